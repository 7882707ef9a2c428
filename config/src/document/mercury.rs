//! The `mercury` part of the document. The only home of these defaults.

use serde::{Deserialize, Serialize};

use super::is_default;

/// Large buffers for requests, where the document does not say, as in Mercury
/// (`HG_CORE_MULTI_RECV_OP_COUNT`).
pub(crate) const MULTI_RECV_OP_MAX: u32 = 4;

/// Receives for requests posted at the start, where the document does not say, as in Mercury
/// (`HG_CORE_POST_INIT`).
const REQUEST_POST_INIT: u32 = 256;

/// Network settings with the names and defaults of Mercury's `hg_init_info`.
///
/// Which of them matter depends on the transport; one that a transport cannot honour is its
/// business to report.
///
/// ```
/// use margo_config::Config;
///
/// let config = Config::from_json(r#"{ "mercury": { "auto_sm": true, "max_contexts": 2 } }"#)?;
/// let resolved = config.resolve(&|_| None)?;
/// assert!(resolved.mercury.auto_sm);
/// assert_eq!(resolved.progress_pools().count(), 2, "contexts are shards");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Mercury {
    /// The address of a running instance, as peers look it up. Output; ignored on input (see
    /// `margo.address`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// True if the instance listens. Output; ignored on input (see `margo.listen`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listening: Option<bool>,
    /// Version of the network layer. Output; ignored on input.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Largest request that travels without bulk transfer, in bytes. Output; ignored on input
    /// (see `margo.eager_size`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_eager_size: Option<u32>,
    /// Largest response that travels without bulk transfer, in bytes. Output; ignored on input.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_eager_size: Option<u32>,
    /// Receives for requests posted at start, at most `margo.requests_max`, which follows unless
    /// it is written. Default 0: 256, or `margo.requests_max` if that is less.
    pub request_post_init: u32,
    /// Receives added when they run out; -1: none, senders are held back then. Default 256,
    /// also for 0.
    pub request_post_incr: i32,
    /// Shared memory towards peers of the same node, whatever the address. Default false.
    pub auto_sm: bool,
    /// Never carry small bulk data inside a request. Default false.
    pub no_bulk_eager: bool,
    /// Refuse arguments and results that do not fit into a message, instead of sending them by bulk
    /// transfer. Default false. Not known to C Margo.
    #[serde(skip_serializing_if = "is_default")]
    pub no_overflow: bool,
    /// Give the receive buffer back as soon as the arguments are decoded. Default true: a handler
    /// may run for long. With false it stays until the answer, and a running handler counts as one
    /// of `margo.requests_max`, beyond which senders are held back. Not known to C Margo.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub release_input_early: Option<bool>,
    /// One receive buffer for each request, as long as the longest. Otherwise requests share large
    /// buffers, where each takes what it is long. Default false. Not known to C Margo.
    #[serde(skip_serializing_if = "is_default")]
    pub no_multi_recv: bool,
    /// Large buffers, each as long as `request_post_init` of the longest requests; they take
    /// memory as it is needed. 0 stands for 4. Default 0. Not known to C Margo.
    #[serde(skip_serializing_if = "is_default")]
    pub multi_recv_op_max: u32,
    /// So many of the large buffers are not for requests that are held: once these have taken the
    /// others, further ones get memory of their own. At most `multi_recv_op_max`. Default 0. Not
    /// known to C Margo.
    #[serde(skip_serializing_if = "is_default")]
    pub multi_recv_copy_threshold: u32,
    /// RPCs to oneself go through the network too. Default false.
    pub no_loopback: bool,
    /// Count operations. Default false.
    pub stats: bool,
    /// Poll the network, never block. Default false.
    pub na_no_block: bool,
    /// Report "try again" instead of trying again. Default false.
    pub na_no_retry: bool,
    /// Network contexts, from 1 to [`SHARDS_MAX`](crate::SHARDS_MAX), which are shards: the same as
    /// that number in `margo.shards`. Default 0: as that key says.
    pub max_contexts: u32,
    /// Subnet to choose the own address by where `margo.address` names no host, such as
    /// `"192.168.0.0/24"` or `"fd00::/8"`. Default none, also for `""`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ip_subnet: Option<String>,
    /// Authorization key of the fabric, on CXI `service:vni[:index]`. Default none, also for `""`;
    /// on CXI `0:0:1`, the job's second VNI, where the environment variable `SLINGSHOT_VNIS` lists
    /// two or more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auth_key: Option<String>,
    /// Largest unexpected message, in bytes. Default 0: the transport's own limit.
    pub na_max_unexpected_size: u32,
    /// Largest expected message, in bytes. Default 0: the transport's own limit.
    pub na_max_expected_size: u32,
    /// Name of the shared-memory part under `auto_sm`. Default none, also for `""`: a name of its
    /// own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sm_info_string: Option<String>,
    /// Ask for transfers from and to device (GPU) memory. Default false.
    pub na_request_mem_device: bool,
    /// The parts of a message that a checksum protects. Default `none`.
    pub checksum_level: ChecksumLevel,
    /// Form of the own address. Default `unspec`.
    pub na_addr_format: NaAddrFormat,
    /// Which class of the network's traffic. Default `unspec`. Not known to C Margo.
    #[serde(skip_serializing_if = "is_default")]
    pub traffic_class: TrafficClass,
    /// In C the least important message that the network layer logs. Read for its sake, and without
    /// effect: see `margo.log_level`. Default `"warning"`.
    pub log_level: String,
    /// In C the parts of the network layer that log, separated by commas. Read for its sake, and
    /// without effect. Default `"hg,na"`.
    pub log_subsys: String,
}

impl Default for Mercury {
    fn default() -> Self {
        Self {
            address: None,
            listening: None,
            version: None,
            input_eager_size: None,
            output_eager_size: None,
            request_post_init: 0,
            request_post_incr: 256,
            auto_sm: false,
            no_bulk_eager: false,
            no_overflow: false,
            release_input_early: None,
            no_multi_recv: false,
            multi_recv_op_max: 0,
            multi_recv_copy_threshold: 0,
            no_loopback: false,
            stats: false,
            na_no_block: false,
            na_no_retry: false,
            max_contexts: 0,
            ip_subnet: None,
            auth_key: None,
            na_max_unexpected_size: 0,
            na_max_expected_size: 0,
            sm_info_string: None,
            na_request_mem_device: false,
            checksum_level: ChecksumLevel::None,
            na_addr_format: NaAddrFormat::Unspec,
            traffic_class: TrafficClass::Unspec,
            log_level: "warning".to_owned(),
            log_subsys: "hg,na".to_owned(),
        }
    }
}

impl Mercury {
    /// Returns the settings in effect: without the keys that only mean something in printed
    /// documents, and with a number where a default depends on `margo.requests_max`.
    pub(crate) fn in_effect(&self, requests_max: usize) -> Self {
        let request_post_init = match self.request_post_init {
            0 => REQUEST_POST_INIT.min(u32::try_from(requests_max).unwrap_or(u32::MAX)),
            receives => receives,
        };
        // Nothing is written in C, too, as an empty string.
        let written = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        Self {
            request_post_init,
            ip_subnet: written(&self.ip_subnet),
            auth_key: written(&self.auth_key),
            sm_info_string: written(&self.sm_info_string),
            address: None,
            listening: None,
            version: None,
            input_eager_size: None,
            output_eager_size: None,
            ..self.clone()
        }
    }
}

/// The parts of a message that a checksum protects. Counterpart: `hg_checksum_level_t` (Mercury).
///
/// ```
/// use margo_config::{ChecksumLevel, Config};
///
/// let config = Config::from_json(r#"{ "mercury": { "checksum_level": "rpc_headers" } }"#)?;
/// assert_eq!(config.mercury.checksum_level, ChecksumLevel::RpcHeaders);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ChecksumLevel {
    /// Nothing. The default.
    #[default]
    None,
    /// The headers of requests and responses.
    RpcHeaders,
    /// Headers, arguments and results.
    RpcPayload,
}

/// Form of addresses. Counterpart: `enum na_addr_format` (Mercury).
///
/// ```
/// use margo_config::{Config, NaAddrFormat};
///
/// let config = Config::from_json(r#"{ "mercury": { "na_addr_format": "ipv6" } }"#)?;
/// assert_eq!(config.mercury.na_addr_format, NaAddrFormat::Ipv6);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum NaAddrFormat {
    /// The transport chooses. The default.
    #[default]
    Unspec,
    /// IPv4.
    Ipv4,
    /// IPv6.
    Ipv6,
    /// The fabric's own.
    Native,
}

/// Class of the fabric's traffic. Counterpart: `enum na_traffic_class` (Mercury).
///
/// ```
/// use margo_config::{Config, TrafficClass};
///
/// let config = Config::from_json(r#"{ "mercury": { "traffic_class": "low_latency" } }"#)?;
/// assert_eq!(config.mercury.traffic_class, TrafficClass::LowLatency);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum TrafficClass {
    /// The transport chooses. The default.
    #[default]
    Unspec,
    /// The one of ordinary traffic.
    BestEffort,
    /// Short and urgent.
    LowLatency,
    /// Long transfers.
    BulkData,
    /// Bandwidth of its own.
    DedicatedAccess,
    /// Traffic that takes what others leave over.
    Scavenger,
    /// Control of the network itself.
    NetworkCtrl,
}
