//! The configuration of a margo process: one JSON document, its types, defaults and checks.
//!
//! The serde structs under [`Config`] are the only home of defaults. A document goes through
//! these steps, one short module each:
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

mod admission;
mod affinity;
mod child;
mod clean;
mod config;
mod decode;
mod dependency;
mod effective;
mod error;
/// Entry point for fuzzers: whatever bytes it gets, it must return. See `fuzz/`.
#[doc(hidden)]
pub mod fuzzing;
mod lacks;
mod margo;
mod mercury;
mod monitoring;
mod network;
mod parse;
mod pool_ref;
mod resolve;
mod samples;
mod schema;
mod subnet;
mod suggest;
/// For what shows text of others: providers and programs.
#[doc(hidden)]
pub mod text;
mod trace;
mod tree;

pub use admission::{Admission, AdmissionOptions, Overload, PoolAdmission, ResolvedAdmission};
pub use affinity::Affinity;
pub use config::{Argobots, Config, Pool, PoolAccess, PoolKind, Scheduler, SchedulerKind, Xstream};
pub use dependency::Dependency;
pub use effective::ConfigFlags;
pub use error::{Error, Errors, Warning};
pub use margo::{
    BulkOptions, DumpSignal, LogLevel, MargoOptions, MercuryBuild, MetricsOptions,
    PROVIDER_ID_DEFAULT, PROVIDER_ID_MAX, PayloadChecksum, Priority, Provider,
};
pub use mercury::{ChecksumLevel, Mercury, NaAddrFormat, TrafficClass};
pub use monitoring::{MonitoringOptions, StatisticsOptions, TimeSeriesOptions};
pub use network::{NetworkOptions, PeerUsers, ProcOptions, RemoteKeys};
pub use parse::{process_env, provider_config};
pub use pool_ref::PoolRef;
pub use resolve::{
    CONTEXTS_MAX, DependencyTarget, EAGER_SIZE_MAX, EAGER_SIZE_MIN, Resolved, ResolvedDependency,
    ResolvedPool, ResolvedProvider, ResolvedXstream, STACK_BYTES_MAX, STACK_BYTES_MIN,
    XSTREAMS_MAX,
};
pub use samples::samples;
pub use schema::json_schema;
pub use subnet::IpSubnet;
#[doc(hidden)]
pub use suggest::nearest;
pub use trace::TraceOptions;
