//! The document's top level and its `argobots` part. The only home of these defaults.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::affinity::Affinity;
use super::is_default;
use super::margo::MargoOptions;
use super::mercury::Mercury;
use super::pool_ref::PoolRef;

/// A configuration document. Every key may be left out; [`Config::default`] is `{}`.
///
/// Fill the fields from a program, or read them with [`Config::from_json`]; either way nothing
/// is checked for consistency before [`Config::resolve`].
///
/// ```
/// use margo_config::Config;
///
/// let mut config = Config { rpc_thread_count: 2, ..Config::default() };
/// config.margo.address = "na+tcp://127.0.0.1:0".to_owned();
/// assert_eq!(config.resolve(&|_| None)?.xstreams.len(), 3);
///
/// let text = r#"{ "rpc_thread_count": 2, "margo": { "address": "na+tcp://127.0.0.1:0" } }"#;
/// assert_eq!(Config::from_json(text)?, config);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Counterpart: the JSON of `margo_init_ext` and `margo_get_config` (Margo).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Version of margo that printed the document. Output; ignored on input.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Settings that C Margo has no key for: address, listening, providers, our own tuning.
    pub margo: MargoOptions,
    /// Pools and xstreams.
    pub argobots: Argobots,
    /// Network settings, with Mercury's names.
    pub mercury: Mercury,
    /// Pool in which the progress ULT runs. Default: the first pool of xstream `__primary__`,
    /// or the pool that `use_progress_thread` adds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress_pool: Option<PoolRef>,
    /// Pool in which handlers run unless their provider has its own. Default: the first pool of
    /// xstream `__primary__`, or what `rpc_thread_count` says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rpc_pool: Option<PoolRef>,
    /// Adds a pool and an xstream only for the progress ULT. Default false. Loses against
    /// `progress_pool`, with a warning.
    #[serde(skip_serializing_if = "is_default")]
    pub use_progress_thread: bool,
    /// Above 0: adds one pool for handlers and this many xstreams that share it, at most
    /// [`XSTREAMS_MAX`](crate::XSTREAMS_MAX). Below 0: handlers run in the progress pool.
    /// Default 0: in the primary pool. Loses against `rpc_pool`, with a warning.
    #[serde(skip_serializing_if = "is_default")]
    pub rpc_thread_count: i32,
    /// In C the longest blocking wait for the network, in milliseconds. 0: progress polls without
    /// a break, as with `mercury.na_no_block`. Otherwise read for C's sake, and without effect:
    /// nothing here wakes by the clock. Default 100.
    pub progress_timeout_ub_msec: u32,
    /// How long the progress ULT keeps polling after the last activity before it may block, in
    /// milliseconds. Default 10; 0 blocks at once.
    pub progress_spindown_msec: u32,
    /// In C the number of RPC handles made ahead of need. Read for its sake, and without effect:
    /// calls need no handles. Default 256.
    pub handle_cache_size: u32,
    /// Records what units and xstreams do, and writes a timeline to `argobots.profiling_dir` at the
    /// end. Default false.
    pub enable_abt_profiling: bool,
    /// Settings of the monitor: `name` (default `"default"`) and `config`, which is
    /// [`MonitoringOptions`](crate::MonitoringOptions) for that one and of its own keys for others.
    /// Kept as given; absent by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schemars(schema_with = "crate::document::monitoring::schema"))]
    pub monitoring: Option<Map<String, Value>>,
    /// Path or URI of the [JSON Schema](crate::json_schema), for editors. Ignored, not printed.
    #[serde(rename = "$schema", skip_serializing_if = "Option::is_none")]
    pub schema: Option<String>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            version: None,
            margo: MargoOptions::default(),
            argobots: Argobots::default(),
            mercury: Mercury::default(),
            progress_pool: None,
            rpc_pool: None,
            use_progress_thread: false,
            rpc_thread_count: 0,
            progress_timeout_ub_msec: 100,
            progress_spindown_msec: 10,
            handle_cache_size: 256,
            enable_abt_profiling: false,
            monitoring: None,
            schema: None,
        }
    }
}

/// Pools, xstreams and ULT stacks.
///
/// A pool and an xstream called `__primary__` are appended when no xstream of that name is
/// described (the pool only when there is none of that name either). An xstream of that name needs
/// a pool of that name, as its first.
///
/// ```
/// use margo_config::Config;
///
/// let config = Config::from_json(r#"{ "argobots": {
///     "pools": [{ "name": "disk" }],
///     "xstreams": [{ "name": "writer", "scheduler": { "pools": ["disk"] } }],
///     "abt_thread_stacksize": 65536,
/// } }"#)?;
/// let resolved = config.resolve(&|_| None)?;
/// let pools: Vec<_> = resolved.pools.iter().map(|pool| pool.name.as_str()).collect();
/// assert_eq!(pools, ["disk", "__primary__"]);
/// assert_eq!(resolved.stack_bytes, 65536);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Argobots {
    /// Version of the runtime that printed the document. Output; ignored on input.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Where units wait to run. Default none.
    pub pools: Vec<Pool>,
    /// OS threads and the pools each takes units from. Default none.
    pub xstreams: Vec<Xstream>,
    /// ULT stacks that each xstream keeps for reuse while it has nothing to do; up to 32 times as
    /// many while it is busy. Default 8. The environment variable `ABT_MEM_MAX_NUM_STACKS` wins.
    pub abt_mem_max_num_stacks: u32,
    /// Size of a ULT stack in bytes, rounded up to whole 4 KiB pages. Default 2097152 (2 MiB);
    /// at least 16384. The environment variable `ABT_THREAD_STACKSIZE` wins.
    #[cfg_attr(test, schemars(range(min = 16384, max = 17179869184_u64)))]
    pub abt_thread_stacksize: usize,
    /// Directory of the files that `enable_abt_profiling` writes. Default `"."`.
    pub profiling_dir: String,
    /// Printed by C Margo. Output; ignored on input.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lazy_stack_alloc: Option<bool>,
    /// True if these pools and xstreams exist already, in a runtime that the program made: all of
    /// them are [external](crate::ResolvedPool::external), and no `__primary__` is added. Never in
    /// a document.
    #[serde(skip)]
    pub external: bool,
}

impl Default for Argobots {
    fn default() -> Self {
        Self {
            version: None,
            pools: Vec::new(),
            xstreams: Vec::new(),
            abt_mem_max_num_stacks: 8,
            abt_thread_stacksize: 2 << 20,
            profiling_dir: ".".to_owned(),
            lazy_stack_alloc: None,
            external: false,
        }
    }
}

/// One pool.
///
/// ```
/// use margo_config::{Pool, PoolAccess, PoolKind};
///
/// let pool = Pool::from_json(r#"{ "name": "disk", "kind": "prio_wait" }"#)?;
/// assert_eq!((pool.kind, pool.access), (PoolKind::PrioWait, PoolAccess::Mpmc));
///
/// let same = Pool { name: Some("disk".into()), kind: PoolKind::PrioWait, ..Pool::default() };
/// assert_eq!(pool, same);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Pool {
    /// A C identifier, unique among pools. Default `__pool_<index>__`.
    #[cfg_attr(test, schemars(regex(pattern = "^[A-Za-z_][A-Za-z0-9_]*$")))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// In which order units leave. Default `fifo_wait`.
    pub kind: PoolKind,
    /// How many threads may push and pop. Default `mpmc`.
    pub access: PoolAccess,
    /// Stack size of this pool's ULTs in bytes, under the rules of `abt_thread_stacksize`.
    /// Default: that size. Not known to C Margo.
    #[cfg_attr(test, schemars(range(min = 16384, max = 17179869184_u64)))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stack_bytes: Option<usize>,
    /// NUMA node whose memory the stacks of this pool's ULTs use, by the number that the operating
    /// system gives it. Default: the node that all xstreams which run the pool are bound to, if
    /// there is one. Not known to C Margo.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u32>,
    /// The pool's index, where that is not its place in the list: the index of the pool in the
    /// running instance that this is printed of, once others have been removed there. References of
    /// a [child](Config::with_layout_of) mean this one. Never in a document.
    #[serde(skip)]
    pub index: Option<usize>,
}

/// In which order a pool gives out its units.
///
/// ```
/// use margo_config::{Pool, PoolKind};
///
/// assert_eq!(Pool::from_json(r#"{ "kind": "earliest_first" }"#)?.kind, PoolKind::EarliestFirst);
/// assert_eq!(PoolKind::default(), PoolKind::FifoWait);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum PoolKind {
    /// First in, first out; an xstream with nothing to do polls.
    Fifo,
    /// First in, first out; an xstream with nothing to do sleeps. The default.
    #[default]
    FifoWait,
    /// Resumed ULTs before fresh ones, so that started RPCs finish first.
    PrioWait,
    /// ULTs that were created earlier first.
    EarliestFirst,
    /// A deque for work stealing: the xstream that lists the pool first runs the newest unit,
    /// others steal the oldest. Meant for the scheduler `randws`. Not known to C Margo.
    #[serde(rename = "randws")]
    RandWs,
}

/// How many threads may push to a pool and pop from it: one (s) or several (m) producers (p) and
/// consumers (c).
///
/// ```
/// use margo_config::{Pool, PoolAccess};
///
/// assert_eq!(Pool::from_json(r#"{ "access": "mpsc" }"#)?.access, PoolAccess::Mpsc);
/// assert_eq!(PoolAccess::default(), PoolAccess::Mpmc);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum PoolAccess {
    /// Only one xstream, for both. Handlers are pushed by the progress ULT, so a private pool of
    /// handlers belongs to the xstream that runs progress.
    Private,
    /// One producer, one consumer.
    Spsc,
    /// Several producers, one consumer.
    Mpsc,
    /// One producer, several consumers.
    Spmc,
    /// Anybody. The default.
    #[default]
    Mpmc,
}

/// One execution stream: an OS thread.
///
/// ```
/// use margo_config::Xstream;
///
/// let text = r#"{ "name": "writer", "cpubind": 3, "scheduler": { "pools": ["disk"] } }"#;
/// let xstream = Xstream::from_json(text)?;
/// assert_eq!((xstream.name.as_deref(), xstream.cpubind), (Some("writer"), 3));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Xstream {
    /// A C identifier, unique among xstreams. Default `__xstream_<index>__`. One called
    /// `__primary__` is added if none is described.
    #[cfg_attr(test, schemars(regex(pattern = "^[A-Za-z_][A-Za-z0-9_]*$")))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// CPU to run on, by the number that the operating system gives it. Default -1: unbound.
    #[cfg_attr(test, schemars(range(min = -1)))]
    pub cpubind: i32,
    /// CPUs to stay on, when `cpubind` is -1. Default none: anywhere.
    pub affinity: Affinity,
    /// From which pools it takes units. Required.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduler: Option<Scheduler>,
    /// As [`Pool::index`].
    #[serde(skip)]
    pub index: Option<usize>,
}

impl Default for Xstream {
    fn default() -> Self {
        Self {
            name: None,
            cpubind: -1,
            affinity: Affinity::default(),
            scheduler: None,
            index: None,
        }
    }
}

/// The policy by which an xstream chooses what to run next.
///
/// ```
/// use margo_config::{PoolRef, Scheduler, SchedulerKind, Xstream};
///
/// let text = r#"{ "scheduler": { "type": "prio", "pools": ["net", 1] } }"#;
/// let pools = vec![PoolRef::from("net"), PoolRef::Index(1)];
/// let scheduler = Scheduler { kind: SchedulerKind::Prio, pools };
/// assert_eq!(Xstream::from_json(text)?.scheduler, Some(scheduler));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Scheduler {
    /// The policy. Default `basic_wait`.
    #[serde(rename = "type")]
    pub kind: SchedulerKind,
    /// The pools, most urgent first. At least one.
    pub pools: Vec<PoolRef>,
}

/// The policy by which an xstream chooses among its pools.
///
/// ```
/// use margo_config::{SchedulerKind, Xstream};
///
/// let xstream = Xstream::from_json(r#"{ "scheduler": { "type": "randws", "pools": [0] } }"#)?;
/// assert_eq!(xstream.scheduler.map(|scheduler| scheduler.kind), Some(SchedulerKind::Randws));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum SchedulerKind {
    /// Left to the runtime.
    Default,
    /// Pools in order; polls when all are empty.
    Basic,
    /// As `basic`, which lets busy pools starve nobody. In C, always the first pool that has a
    /// unit.
    Prio,
    /// The first pool is its own; the others are robbed in random order.
    Randws,
    /// Pools in order; sleeps when all are empty. The default.
    #[default]
    BasicWait,
}
