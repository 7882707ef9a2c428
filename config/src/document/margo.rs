//! The `margo` part of the document: settings for which C Margo has no key. The only home of these
//! defaults.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{self, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use super::admission::AdmissionOptions;
use super::dependency::Dependency;
use super::device::DeviceOptions;
use super::network::{NetworkOptions, ProcOptions};
use super::pool_ref::PoolRef;
use super::security::SecurityOptions;
use super::shards::Shards;
use super::trace::TraceOptions;
use super::{is, is_default};

/// Provider id of RPCs that belong to no provider; no provider may have it.
///
/// Counterpart: `MARGO_DEFAULT_PROVIDER_ID` (Margo).
pub const PROVIDER_ID_DEFAULT: u16 = u16::MAX;

/// Largest id that a provider may have: 65534.
pub const PROVIDER_ID_MAX: u16 = PROVIDER_ID_DEFAULT - 1;

/// Our own additions, kept in one object so that they are easy to tell from C Margo's keys.
///
/// ```
/// use margo_config::{Config, MargoOptions};
///
/// let config = Config {
///     margo: MargoOptions {
///         address: "na+tcp://127.0.0.1:7000".to_owned(),
///         address_file: Some("/run/service.addr".to_owned()),
///         ..MargoOptions::default()
///     },
///     ..Config::default()
/// };
/// let resolved = config.resolve(&|_| None)?;
/// assert!(resolved.listen);
/// assert_eq!(resolved.address, "na+tcp://127.0.0.1:7000");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct MargoOptions {
    /// Address to open, as a URI: transport, then what it needs, such as
    /// `"na+tcp://0.0.0.0:7000"`. Default `"na+sm://"`. In C the first argument of
    /// `margo_init`.
    pub address: String,
    /// Accepts RPCs from others (a server); false only calls (a client). Default true. In C the
    /// second argument of `margo_init`.
    pub listen: bool,
    /// Longest time that an xstream with nothing to do keeps looking for work before it sleeps,
    /// in microseconds. Default 50, about twice what being woken costs; 0 sleeps at once.
    pub spin_max_usec: u32,
    /// Largest arguments or result that travel inside the message instead of by bulk transfer,
    /// in bytes, from 256 to 1048576; over ofi from 512. Default none: what the transport has,
    /// which is 4096.
    #[cfg_attr(test, schemars(range(min = 256, max = 1048576)))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eager_size: Option<usize>,
    /// Longest arguments or result, in bytes, from 1 to 1099511627776 (1 TiB): peers that announce
    /// more are refused. Default 268435456 (256 MiB).
    pub overflow_bytes_max: u64,
    /// Bytes of such long arguments that are held at once, from 1 to 17592186044416 (16 TiB): a
    /// request beyond is answered with "busy", unless none is held. As many bytes, counted apart,
    /// of such long results are kept until their origins have fetched them: a result beyond is not
    /// sent, unless none is kept, and its origin gets an error. Default 1073741824 (1 GiB).
    #[serde(skip_serializing_if = "is::<OVERFLOW_HELD_MAX>")]
    pub overflow_held_max: u64,
    /// Most requests whose arguments have not been decoded, posted receives included, from 1 to
    /// 4194304. Beyond, senders are held back. Default 16384, or `mercury.request_post_init` if
    /// that is more.
    pub requests_max: usize,
    /// How many requests each pool may have in hand. Default: see there.
    #[serde(skip_serializing_if = "is_default")]
    pub admission: AdmissionOptions,
    /// Checksum of arguments and results at `mercury.checksum_level` `rpc_payload`. Default
    /// `crc32c`.
    #[serde(skip_serializing_if = "is_default")]
    pub payload_checksum: PayloadChecksum,
    /// Which of Mercury's two header layouts requests are written in, and unmarked requests are
    /// read in. Default: that with room for checksums if `mercury.checksum_level` asks for some,
    /// else the plain one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mercury_build: Option<MercuryBuild>,
    /// How bulk data moves. Default: see there.
    #[serde(skip_serializing_if = "is_default")]
    pub bulk: BulkOptions,
    /// How memory of devices (GPUs) moves. Default: see there.
    #[serde(skip_serializing_if = "is_default")]
    pub device: DeviceOptions,
    /// Limits of the encoding of arguments and results. Default: see there.
    #[serde(skip_serializing_if = "is_default")]
    pub proc: ProcOptions,
    /// How the transport treats its peers. Default: see there.
    #[serde(skip_serializing_if = "is_default")]
    pub network: NetworkOptions,
    /// Rules of who may call what. Default none: everybody may call everything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub security: Option<SecurityOptions>,
    /// File to write the instance's address to once it listens, for others to find it, and a line
    /// feed. Removed when the instance finalizes. Default none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address_file: Option<String>,
    /// Lets any peer that can reach this instance shut it down. Default false.
    #[serde(skip_serializing_if = "is_default")]
    pub remote_shutdown: bool,
    /// Lets those whom `security.allow` names look at this instance and change it while it runs:
    /// start, stop and move providers, add and remove pools, execution streams and shards
    /// (`margo admin`). Without rules only its own user may, over `na+sm`. Default false.
    #[serde(skip_serializing_if = "is_default")]
    pub remote_admin: bool,
    /// Progress spins only while operations of this instance are in flight, not for a while after
    /// them: for clients that call now and then and leave their cores to something else meanwhile.
    /// Default false.
    #[serde(skip_serializing_if = "is_default")]
    pub progress_when_needed: bool,
    /// How others see what the instance does. Default: not at all.
    #[serde(skip_serializing_if = "is_default")]
    pub metrics: MetricsOptions,
    /// The least severe messages of this instance that reach the log; the environment variable
    /// `MARGO_LOG_LEVEL` wins. Default none: all of them, and the program's `tracing` subscriber
    /// decides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_level: Option<LogLevel>,
    /// Most threads that run closures of `ult::blocking` at once, from 1 to 4096; further closures
    /// wait, and with them their ULTs. Default 64. Without effect in a runtime of the program's.
    #[cfg_attr(test, schemars(range(min = 1, max = 4096)))]
    #[serde(skip_serializing_if = "is::<BLOCKING_THREADS_MAX>")]
    pub blocking_threads_max: u32,
    /// How long a unit may hold its xstream, or a runnable one may wait, before the log says so, in
    /// milliseconds, from 10. Default 1000; 0 does not look.
    #[serde(skip_serializing_if = "is::<STALL_LIMIT_MSEC>")]
    pub stall_limit_msec: u32,
    /// How long a shutdown waits for running handlers, and again for each step and each callback
    /// that follows, in milliseconds. Default 5000; 0 does not wait.
    #[serde(skip_serializing_if = "is::<GRACE_MSEC>")]
    pub grace_msec: u32,
    /// Signal at which the state of the instance is written to standard error, as JSON. Default
    /// none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dump_on_signal: Option<DumpSignal>,
    /// Files that show calls across processes. Default: see there.
    #[serde(skip_serializing_if = "is_default")]
    pub trace: TraceOptions,
    /// Shards: a number, `"auto"` for one on each CPU, or the pools of their progress ULTs. Each
    /// has a part of the network endpoint and its connections; handlers without a pool of their own
    /// run in the pool of the shard at which their request arrives, unless there is another
    /// `rpc_pool`. Default: as many as `mercury.max_contexts` says, so one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shards: Option<Shards>,
    /// Lets shards with nothing to do take handlers that have not started: where a request arrives
    /// at a shard in whose pool so many units wait already, its handler goes to whichever shard
    /// comes to it first. From 1. Not those of providers with a pool or objects per shard of their
    /// own. Default none: a handler runs at the shard where its request arrives.
    #[cfg_attr(test, schemars(range(min = 1)))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share_from: Option<u32>,
    /// Services to start, by `margo serve`, or by a program that calls
    /// `Instance::start_providers`; otherwise they are only checked. Default none.
    pub providers: Vec<Provider>,
}

impl Default for MargoOptions {
    fn default() -> Self {
        Self {
            address: "na+sm://".to_owned(),
            listen: true,
            spin_max_usec: 50,
            eager_size: None,
            overflow_bytes_max: 256 << 20,
            overflow_held_max: OVERFLOW_HELD_MAX,
            requests_max: 16 << 10,
            admission: AdmissionOptions::default(),
            payload_checksum: PayloadChecksum::Crc32c,
            mercury_build: None,
            bulk: BulkOptions::default(),
            device: DeviceOptions::default(),
            proc: ProcOptions::default(),
            network: NetworkOptions::default(),
            security: None,
            address_file: None,
            remote_shutdown: false,
            remote_admin: false,
            progress_when_needed: false,
            metrics: MetricsOptions::default(),
            log_level: None,
            blocking_threads_max: BLOCKING_THREADS_MAX as u32,
            stall_limit_msec: STALL_LIMIT_MSEC as u32,
            grace_msec: GRACE_MSEC as u32,
            dump_on_signal: None,
            trace: TraceOptions::default(),
            shards: None,
            share_from: None,
            providers: Vec::new(),
        }
    }
}

/// Threads for blocking closures unless said otherwise.
const BLOCKING_THREADS_MAX: u64 = 64;

/// Most bytes of long arguments that are held at once, unless said otherwise.
const OVERFLOW_HELD_MAX: u64 = 1 << 30;

/// How long a unit may hold its xstream unless said otherwise, milliseconds.
const STALL_LIMIT_MSEC: u64 = 1000;

/// How long a shutdown waits for handlers unless said otherwise, milliseconds.
const GRACE_MSEC: u64 = 5000;

/// How others see what an instance does: gauges and counters, no contents of calls.
///
/// ```
/// use margo_config::Config;
///
/// let text = r#"{ "margo": { "metrics": { "listen": "127.0.0.1:9100", "remote": true } } }"#;
/// let metrics = Config::from_json(text)?.margo.metrics;
/// assert_eq!((metrics.listen.as_deref(), metrics.remote), (Some("127.0.0.1:9100"), true));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct MetricsOptions {
    /// Address and port of an HTTP server for Prometheus, such as `"127.0.0.1:9100"` or
    /// `"[::]:9100"`; port 0 takes a free one, which the log tells. Whoever reaches it may read
    /// `/metrics`. Default none: there is no server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<String>,
    /// Lets any peer that can reach this instance read the same by an RPC, as `margo top` does.
    /// Default false.
    pub remote: bool,
}

/// A signal for which the operating system has no use.
///
/// ```
/// use margo_config::{Config, DumpSignal};
///
/// let config = Config::from_json(r#"{ "margo": { "dump_on_signal": "usr1" } }"#)?;
/// assert_eq!(config.margo.dump_on_signal, Some(DumpSignal::Usr1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum DumpSignal {
    /// `SIGUSR1`.
    Usr1,
    /// `SIGUSR2`.
    Usr2,
}

/// How severe a message of the log is.
///
/// ```
/// use margo_config::{Config, LogLevel};
///
/// assert_eq!(LogLevel::from_name("critical"), Some(LogLevel::Error), "a name of C");
/// assert!(LogLevel::Warning < LogLevel::Debug, "later levels include the earlier ones");
///
/// let config = Config::from_json(r#"{ "margo": { "log_level": "info" } }"#)?;
/// let quieter = |name: &str| (name == "MARGO_LOG_LEVEL").then(|| "error".to_owned());
/// assert_eq!(config.resolve(&quieter)?.log_level, Some(LogLevel::Error));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Counterpart: `margo_log_level`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum LogLevel {
    /// Nothing.
    Off,
    /// Failures that cannot be helped.
    Error,
    /// Things that are probably not meant.
    Warning,
    /// Things that happen rarely and are worth knowing.
    Info,
    /// Details that help to find an error.
    Debug,
    /// Everything.
    Trace,
}

impl LogLevel {
    /// The level of that name; those of C are known, too: `critical` is `error` here, and
    /// `external` is `trace`.
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name.trim().to_ascii_lowercase().as_str() {
            "off" => Self::Off,
            "error" | "critical" => Self::Error,
            "warning" | "warn" => Self::Warning,
            "info" => Self::Info,
            "debug" => Self::Debug,
            "trace" | "external" => Self::Trace,
            _ => return None,
        })
    }
}

/// Checksum of arguments and results.
///
/// ```
/// use margo_config::{Config, PayloadChecksum};
///
/// let config = Config::from_json(r#"{
///     "mercury": { "checksum_level": "rpc_payload" },
///     "margo": { "payload_checksum": "crc64" },
/// }"#)?;
/// assert_eq!(config.margo.payload_checksum, PayloadChecksum::Crc64);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum PayloadChecksum {
    /// 32 bits, as C Mercury. The default.
    #[default]
    Crc32c,
    /// 64 bits; C peers do not take such requests, but theirs are taken.
    Crc64,
}

/// How a Mercury was built, which decides the length of its headers.
///
/// ```
/// use margo_config::{Config, MercuryBuild};
///
/// // For peers whose Mercury comes from Spack.
/// let config = Config::from_json(r#"{ "margo": { "mercury_build": "checksums" } }"#)?;
/// assert_eq!(config.margo.mercury_build, Some(MercuryBuild::Checksums));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum MercuryBuild {
    /// Without checksum support: Mercury's own default.
    Plain,
    /// With checksum support: the default of Spack.
    Checksums,
}

/// How bulk data moves.
///
/// ```
/// use margo_config::{BulkOptions, Config};
///
/// let mut config = Config::default();
/// config.margo.bulk = BulkOptions { chunk_bytes: 8 << 20, window: 16, ..BulkOptions::default() };
/// let resolved = config.resolve(&|_| None)?;
/// assert_eq!((resolved.bulk.chunk_bytes, resolved.bulk.timeout_msec), (8 << 20, 60_000));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct BulkOptions {
    /// Longest single put or get of a transfer, in bytes, from 4096. Default 67108864 (64 MiB).
    pub chunk_bytes: u64,
    /// Puts or gets of one transfer in flight at a time, from 1 to 32. Default 8.
    pub window: u32,
    /// How long a transfer without a deadline may stand still before it ends with an error, in
    /// milliseconds, plus a second for each MiB that is under way: a peer that serves nothing must
    /// not hold a handler for good. Default 60000; 0 waits for as long as the peer is there.
    #[serde(skip_serializing_if = "is::<BULK_TIMEOUT_MSEC>")]
    pub timeout_msec: u32,
    /// Pool whose xstreams take part in copies of 512 KiB and more between processes of one host.
    /// Default none: the xstream of the progress ULT copies alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub copy_pool: Option<PoolRef>,
}

impl Default for BulkOptions {
    fn default() -> Self {
        let timeout_msec = BULK_TIMEOUT_MSEC as u32;
        Self { chunk_bytes: 64 << 20, window: 8, timeout_msec, copy_pool: None }
    }
}

/// How long a transfer may stand still unless said otherwise, milliseconds.
const BULK_TIMEOUT_MSEC: u64 = 60_000;

/// Which requests go first among those that wait for an xstream.
///
/// ```
/// use margo_config::{Config, Priority};
///
/// let config = Config::from_json(r#"{
///     "argobots": { "pools": [{ "name": "__primary__", "kind": "prio_wait" }] },
///     "margo": { "providers": [{ "type": "echo", "provider_id": 1, "priority": "high" }] },
/// }"#)?;
/// assert_eq!(config.resolve(&|_| None)?.providers[0].priority, Priority::High);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Priority {
    /// Before all others.
    High,
    /// The default.
    #[default]
    Normal,
    /// After all others.
    Low,
}

/// One service of the process.
///
/// ```
/// use margo_config::Config;
///
/// let config = Config::from_json(r#"{ "margo": { "providers": [
///     { "type": "blob", "provider_id": 1, "config": { "path": "/data/blobs" } },
/// ] } }"#)?;
/// let blob = &config.resolve(&|_| None)?.providers[0];
/// assert_eq!((blob.name.as_str(), blob.provider_id), ("blob_1", 1));
/// assert_eq!(blob.config["path"], "/data/blobs");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Counterpart: an entry of `providers` in a Bedrock document.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Provider {
    /// The type of the provider, such as `"blob"`. A C identifier. Required.
    #[cfg_attr(test, schemars(regex(pattern = "^[A-Za-z_][A-Za-z0-9_]*$")))]
    #[serde(rename = "type")]
    pub type_name: String,
    /// A C identifier, unique among providers. Default `<type>_<provider_id>`.
    #[cfg_attr(test, schemars(regex(pattern = "^[A-Za-z_][A-Za-z0-9_]*$")))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// By which number clients address it: 0 to 65534, unique among providers of its type; best
    /// among all, since an id has one identity. Required.
    #[cfg_attr(test, schemars(range(max = PROVIDER_ID_MAX)))]
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "provider_id")]
    pub provider_id: Option<u16>,
    /// Pool in which its handlers run. Default `rpc_pool`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool: Option<PoolRef>,
    /// Which requests go first among those that wait for an xstream of the pool, which must be of
    /// the kind `prio_wait` then. Default `"normal"`.
    #[serde(skip_serializing_if = "is_default")]
    pub priority: Priority,
    /// Other providers that it works with, under the names that its type has for them
    /// (identifiers): each `<name>` or `<type>:<provider_id>` of this document,
    /// `<type>:<provider_id>@<address>` of another process, or a list of such. Those of this
    /// document start before it. Default `{}`.
    #[cfg_attr(test, schemars(extend("propertyNames" = {
        "pattern": "^[A-Za-z_][A-Za-z0-9_]*$"
    })))]
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub dependencies: BTreeMap<String, Dependency>,
    /// The provider's own settings; an object whose keys it defines itself. Default `{}`.
    pub config: Map<String, Value>,
}

/// An id of a provider, or the reserved one, which is told apart later.
fn provider_id<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u16>, D::Error> {
    struct Id;

    impl Visitor<'_> for Id {
        type Value = Option<u16>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "an integer from 0 to {PROVIDER_ID_MAX}")
        }

        fn visit_unit<E: de::Error>(self) -> Result<Option<u16>, E> {
            Ok(None)
        }

        fn visit_u64<E: de::Error>(self, id: u64) -> Result<Option<u16>, E> {
            let out = |_| E::invalid_type(Unexpected::Unsigned(id), &self);
            u16::try_from(id).map(Some).map_err(out)
        }
    }

    deserializer.deserialize_any(Id)
}
