//! `margo.network` and `margo.proc`: the bounds of the transports and of the encoding. The only
//! home of these defaults.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{ListOrText, is_default};

/// How the transport treats its peers. A key that the transport has no use for is ignored, for with
/// `mercury.auto_sm` there are two.
///
/// ```
/// use margo_config::Config;
///
/// let config = Config::from_json(r#"{ "margo": {
///     "address": "na+tcp://",
///     "network": { "connect_retry_msec": 3000, "liveness_msec": 5000 },
/// } }"#)?;
/// let network = config.margo.network;
/// assert_eq!((network.connect_retry_msec, network.connect_timeout_msec), (3000, 10_000));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct NetworkOptions {
    /// Longest time that connecting to a peer may take, in milliseconds, from 1. Default 10000.
    pub connect_timeout_msec: u32,
    /// How long a connection that is refused is tried again, in milliseconds, within
    /// `connect_timeout_msec`: for peers that are about to start. tcp only. Default 0: not.
    pub connect_retry_msec: u32,
    /// Longest time without a sign of life from a peer that owes us something, in milliseconds.
    /// Default 0: none but what the operating system reports, which is every death on the same
    /// host.
    pub liveness_msec: u32,
    /// Longest time that a peer may take nothing of what we have for it, in milliseconds. tcp only.
    /// Default 0: for ever.
    pub slow_reader_msec: u32,
    /// Bytes of answers that may wait for a peer which does not read them, from 1; beyond, it is
    /// given up. tcp, ofi and ucx. Default none: 67108864 (64 MiB), or 64 messages of full length.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unread_answers_max: Option<usize>,
    /// Bytes of answers that may wait for all peers of a host together, from 1; beyond, that one of
    /// them is given up for which most waits. tcp only. Default none: twice `unread_answers_max`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unread_answers_per_host_max: Option<usize>,
    /// Bytes of answers that may wait for all peers together, from 1. tcp, ofi and ucx. Default
    /// none: four times `unread_answers_max`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unread_answers_total_max: Option<usize>,
    /// Time after which the kernel asks the host of an idle connection whether it is still there,
    /// in seconds; 0: never. tcp only. Default 60.
    pub keep_alive_sec: u32,
    /// How long a look for messages may ask the network card itself, in microseconds; needs
    /// `CAP_NET_ADMIN` and a driver that can do it. tcp only. Default 0: not.
    pub busy_poll_usec: u32,
    /// Connections that others may have to us, from 1. Default none: the transport's, which is
    /// 65536 for tcp and ucx, and 8192 for sm. Other transports have no such bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections_max: Option<usize>,
    /// Connections that the processes of each user may have to us. sm only. Default 4096.
    pub connections_per_user_max: usize,
    /// Bytes that peers which have gone may have left for receives still to come. Default 16777216
    /// (16 MiB).
    pub left_bytes_max: usize,
    /// Bytes of messages that peers may send before they are received, all together; those of a
    /// host may have half of it. Beyond, senders are held back. tcp and sm. Default 67108864
    /// (64 MiB).
    pub early_bytes_max: usize,
    /// Bytes of one peer's registered memory that are mapped here at once. sm only. Default
    /// 1099511627776 (1 TiB).
    pub mapped_bytes_per_peer_max: u64,
    /// Moves bulk data by cross-memory attach where that is permitted and faster. sm only. Default
    /// true.
    pub cross_memory_attach: bool,
    /// Memory of at least so many bytes in one piece is sent by UCX's rendezvous, from memory to
    /// memory; what is shorter is copied. From 1. ucx only, never over shared memory. Default none:
    /// 65536 towards peers that UCX reaches by InfiniBand or RoCE, and never towards those by TCP
    /// alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rendezvous_bytes_min: Option<usize>,
    /// Moves bulk data by UCX's remote memory access, without the owner's processor, where that is
    /// safe. ucx only. Default `"auto"`.
    #[serde(skip_serializing_if = "is_default")]
    pub remote_keys: RemoteKeys,
    /// The users whose processes are let in. sm only: other transports cannot tell. Default
    /// `"own"`.
    #[serde(skip_serializing_if = "is_default")]
    pub peer_users: PeerUsers,
}

impl Default for NetworkOptions {
    fn default() -> Self {
        Self {
            connect_timeout_msec: 10_000,
            connect_retry_msec: 0,
            liveness_msec: 0,
            slow_reader_msec: 0,
            unread_answers_max: None,
            unread_answers_per_host_max: None,
            unread_answers_total_max: None,
            keep_alive_sec: 60,
            busy_poll_usec: 0,
            connections_max: None,
            connections_per_user_max: 4096,
            left_bytes_max: 16 << 20,
            early_bytes_max: 64 << 20,
            mapped_bytes_per_peer_max: 1 << 40,
            cross_memory_attach: true,
            rendezvous_bytes_min: None,
            remote_keys: RemoteKeys::Auto,
            peer_users: PeerUsers::Own,
        }
    }
}

/// Bounds of what is encoded and decoded, beside its total size (`margo.overflow_bytes_max`). Both
/// sides of a call should have the same.
///
/// ```
/// use margo_config::Config;
///
/// let config = Config::from_json(r#"{ "margo": { "proc": { "len_max": 1048576 } } }"#)?;
/// assert_eq!((config.margo.proc.len_max, config.margo.proc.depth_max), (Some(1 << 20), 128));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct ProcOptions {
    /// Deepest nesting of values, from 1 to 4096. Each level takes stack of the ULT that encodes or
    /// decodes. Default 128.
    pub depth_max: usize,
    /// Longest string (its NUL counts) and byte string, in bytes, and longest sequence and map, in
    /// elements, from 1. Default none: none is longer than the arguments.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub len_max: Option<u64>,
    /// Most elements that take no bytes, in all sequences and maps together. Default 65536.
    pub empty_elements_max: u64,
}

impl Default for ProcOptions {
    fn default() -> Self {
        Self { depth_max: 128, len_max: None, empty_elements_max: 1 << 16 }
    }
}

/// With whom bulk data moves by UCX's remote memory access. Both sides must allow it.
///
/// ```
/// use margo_config::{Config, RemoteKeys};
///
/// let config = Config::from_json(r#"{ "margo": { "network": { "remote_keys": "never" } } }"#)?;
/// assert_eq!(config.margo.network.remote_keys, RemoteKeys::Never);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum RemoteKeys {
    /// With peers that UCX reaches by connections of InfiniBand or RoCE alone.
    #[default]
    Auto,
    /// With all, for every transfer. For tests: over TCP and shared memory UCX emulates it, and may
    /// abort the process when a peer dies.
    Always,
    /// With nobody.
    Never,
}

/// Users whose processes are let in: `"own"`, `"all"`, or `[1000, 1001]` beside the own one.
///
/// ```
/// use margo_config::{Config, PeerUsers};
///
/// let config = Config::from_json(r#"{ "margo": { "network": { "peer_users": [1000] } } }"#)?;
/// assert_eq!(config.margo.network.peer_users, PeerUsers::And(vec![1000]));
///
/// let config = Config::from_json(r#"{ "margo": { "network": { "peer_users": "all" } } }"#)?;
/// assert_eq!(config.margo.network.peer_users, PeerUsers::All);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum PeerUsers {
    /// The user that the process runs as.
    #[default]
    Own,
    /// That one and those with these user ids.
    And(Vec<u32>),
    /// Everybody on the host.
    All,
}

#[cfg(test)]
impl schemars::JsonSchema for PeerUsers {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "PeerUsers".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "description": "Users whose processes are let in: \"own\", \"all\", or user ids beside \
                            the own one.",
            "anyOf": [
                { "enum": ["own", "all"] },
                { "type": "array", "items": { "type": "integer", "minimum": 0,
                  "maximum": 4294967295_u32 } },
            ],
        })
    }
}

impl Serialize for PeerUsers {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Own => serializer.serialize_str("own"),
            Self::And(uids) => uids.serialize(serializer),
            Self::All => serializer.serialize_str("all"),
        }
    }
}

impl<'de> Deserialize<'de> for PeerUsers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ListOrText {
            expected: r#""own", "all" or an array of user ids"#,
            list: Self::And,
            text: |word| match word {
                "own" => Some(Self::Own),
                "all" => Some(Self::All),
                _ => None,
            },
        })
    }
}
