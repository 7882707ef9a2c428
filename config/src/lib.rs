//! The configuration of a margo process: one JSON document, its types, defaults and checks.
//!
//! The serde structs under [`Config`] are the only home of defaults. A document goes through
//! these steps, one short module each (1 to 3 in `read`, 5 in `resolve`):
//!
//! 1. `clean` blanks comments and trailing commas, byte for byte, so that positions stay right;
//! 2. `tree` reads the JSON and remembers where every value stands;
//! 3. `decode` turns the tree into [`Config`], collecting *all* type errors and unknown keys;
//! 4. [`Config::resolve`] gives names to what has none, turns pool names into indices, applies
//!    the precedence rules and checks the layout, collecting *all* semantic errors, also of a
//!    document in which step 3 has found some, as far as they do not come of those (`lacks`);
//! 5. [`Resolved::effective`] writes the outcome as a complete document, itself valid input.
//!
//! ```
//! use margo_config::Config;
//!
//! let config = Config::from_json(r#"{ "use_progress_thread": true } // one extra xstream"#)?;
//! let resolved = config.resolve(&|_| None)?;
//! assert_eq!(resolved.pools[resolved.progress_pool].name, "__pool_1__");
//!
//! let errors = Config::from_json(r#"{ "progres_pool": "net" }"#).unwrap_err();
//! assert!(errors.to_string().contains(r#"did you mean "progress_pool"?"#));
//! # Ok::<(), margo_config::Errors>(())
//! ```
//!
//! # Compared with C Margo
//!
//! Documents that C Margo accepts mean the same here: comments, trailing commas, an empty string
//! and `null` for "not given" included. On top of what it rejects, these are errors here because
//! they are mistakes: unknown keys, keys given twice, text after the document, integers out of
//! range, `cpubind` and `request_post_incr` below -1, negative numbers and short intervals among
//! the settings of the monitor, which C changes into others, CPUs that the machine lacks (when an
//! instance starts), a stack below [`STACK_BYTES_MIN`], a pool that handlers or progress use but no
//! xstream runs, and an `access` that the layout breaks. What C takes as call arguments (address,
//! listening) and the providers to start are in one object of our own, [`MargoOptions`], under the
//! key `margo`.
#![forbid(unsafe_code)]

mod child;
mod document;
/// Entry point for fuzzers: whatever bytes it gets, it must return. See `fuzz/`.
#[doc(hidden)]
pub mod fuzzing;
mod parse;
mod read;
mod report;
mod resolve;
mod samples;
mod schema;

pub use document::admission::{
    Admission, AdmissionOptions, Overload, PoolAdmission, ResolvedAdmission,
};
pub use document::affinity::Affinity;
pub use document::config::{
    Argobots, Config, Pool, PoolAccess, PoolKind, Scheduler, SchedulerKind, Xstream,
};
pub use document::dependency::Dependency;
pub use document::device::DeviceOptions;
pub use document::fabric_security::{
    FabricSecurityMode, FabricSecurityOptions, ResolvedFabricSecurity,
};
pub use document::margo::{
    BulkOptions, DumpSignal, LogLevel, MargoOptions, MercuryBuild, MetricsOptions,
    PROVIDER_ID_DEFAULT, PROVIDER_ID_MAX, PayloadChecksum, Priority, Provider,
};
pub use document::mercury::{ChecksumLevel, Mercury, NaAddrFormat, TrafficClass};
pub use document::monitoring::{MonitoringOptions, StatisticsOptions, TimeSeriesOptions};
pub use document::network::{NetworkOptions, PeerUsers, ProcOptions, RemoteKeys};
pub use document::pool_ref::PoolRef;
pub use document::security::{
    AuditOptions, CallerLimit, RateLimit, ResolvedLimit, ResolvedRule, ResolvedSecurity, Rule,
    SecurityOptions, Who,
};
pub use document::shards::{Shards, ShardsWord};
pub use document::subnet::IpSubnet;
pub use document::tcp_security::{ResolvedTcpSecurity, TcpSecurityMode, TcpSecurityOptions};
pub use document::trace::TraceOptions;
pub use parse::{document_from_json, process_env, provider_config};
pub use report::error::{Error, Errors, Warning};
#[doc(hidden)]
pub use report::suggest::nearest;
/// For what shows text of others, and draws: providers and programs.
#[doc(hidden)]
pub use report::{drawing, text};
pub use resolve::{
    ConfigFlags, DependencyTarget, EAGER_SIZE_MAX, EAGER_SIZE_MIN, Resolved, ResolvedDependency,
    ResolvedPool, ResolvedProvider, ResolvedXstream, SHARDS_MAX, STACK_BYTES_MAX, STACK_BYTES_MIN,
    XSTREAMS_MAX,
};
pub use samples::samples;
pub use schema::json_schema;
