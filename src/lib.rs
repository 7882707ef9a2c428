//! A thread-per-core RPC runtime: blocking-style handlers on user-level threads.
//!
//! A *provider* registers handlers, plain functions that may block; each request runs on a
//! user-level thread (ULT) that gives its core away whenever it waits. Small arguments travel in
//! the request; large data is moved by *bulk transfer*, straight between the memory of the two
//! processes. A JSON document lays out the execution streams and pools; [`init`] starts it.
//!
//! ```
//! use margo::{Instance, ProviderHandle, Rpc};
//!
//! const SUM: Rpc<(i64, i64), i64> = Rpc::new("sum");
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let service = Instance::builder("na+sm://").start()?;
//! service.register(SUM, |request| {
//!     let (a, b) = *request.args();
//!     let _ = request.respond(&(a + b));
//! })?;
//!
//! let client = Instance::builder("na+sm://").listen(false).start()?;
//! let target = ProviderHandle::from(client.lookup(service.self_addr().uri())?);
//! assert_eq!(client.forward(SUM, &target, &(40, 2))?, 42);
//!
//! client.finalize_and_wait()?;
//! service.finalize_and_wait()?;
//! # Ok(())
//! # }
//! ```
//!
//! # The life of an RPC, by file
//!
//! At the origin: `forward.rs` encodes the arguments into the transport's send buffer through
//! `hg/src/forward.rs`, which posts the receive for the reply and sends; the caller suspends on an
//! [`ult::Eventual`] (or parks, if it is an OS thread).
//!
//! At the target: the transport (`na/src/sm`, `na/src/tcp`) delivers; `progress.rs`, a ULT that
//! polls whenever its execution stream has nothing better to do, passes the request to
//! `handler.rs`, which makes a ULT in the pool of the RPC. That ULT decodes the arguments, runs the
//! handler, and answers through `respond.rs`.
//!
//! Back at the origin `progress.rs` sets the eventual, and `call.rs` decodes the reply.
//!
//! # Ways to call
//!
//! | the caller | with |
//! |---|---|
//! | waits for the result | [`Instance::forward`] |
//! | does something else first, makes several calls at once, cancels | [`Instance::iforward`], [`Request`], [`wait_any`], [`wait_all`] |
//! | is async code | the same; a `Request` is a `Future` |
//! | wants to be called back | [`Instance::cforward`] |
//! | wants no response | [`Instance::send`], [`Instance::isend`] |
//!
//! Arguments may be a borrowed form of what the target owns ([`Rpc::sending`]). Each has a `_timed`
//! form with a deadline. Results that are a `Result` of the service:
//! [`Instance::call`], and [`CallError::flatten`] for the other ways.
//!
//! Bulk transfers are waited for ([`Instance::pull`], [`Instance::pull_chunks`]) or go on as a
//! [`BulkRequest`], which is a `Future`, too ([`Instance::ipull`]), all with a `_timed` form. None
//! calls back; a ULT that waits for the `BulkRequest` can.
//!
//! # What a caller is told
//!
//! Unknown RPC, arguments that cannot be decoded, a panicking handler, a handler that never
//! answers, a peer that dies or shuts down: each is its own variant of [`ForwardError`].
//!
//! # Unsafe code
//!
//! Only `bulk.rs`, `segments.rs`, `copy_pool.rs` and `dump_signal.rs` use it: the first two hand
//! memory to the transport, the third lets other execution streams copy it, the last installs a
//! signal handler. They say there why that is sound.

mod address_file;
mod admission;
mod alarm;
mod answer;
mod bulk;
mod bulk_bind;
mod bulk_chunks;
mod bulk_pool;
mod bulk_request;
mod call;
mod call_result;
mod callback;
mod cancel;
mod child;
mod company;
mod component;
mod contain;
mod contexts;
mod copy_claims;
mod copy_pool;
mod deadline;
mod dependency;
mod dump_signal;
mod elastic;
mod error;
mod exposed;
mod files;
mod finalize;
#[cfg(test)]
mod forked;
mod forward;
mod gate;
mod handle;
mod handler;
mod home;
mod identity;
mod init;
mod instance;
mod layout;
#[doc(hidden)]
pub mod log;
mod metrics;
pub mod monitor;
mod network_check;
mod options;
mod parent;
mod patience;
mod profile;
mod progress;
mod provider;
mod provider_close;
mod provider_rpcs;
mod register;
mod register_error;
mod releasing;
mod remote_shutdown;
mod request;
mod request_shares;
mod respond;
mod respond_request;
mod rpc;
mod segments;
mod serve;
mod shutdown;
mod stand_in;
mod standing_transfers;
mod state_dump;
mod sync;
mod tie;
mod timer;
pub mod trace;
mod unanswered;
mod unwinding;
mod when_needed;

#[doc(hidden)]
pub use ::hg;
pub use margo_config as config;
pub use {na, ult};

pub use self::{
    address_file::AddressFile,
    admission::Load,
    bulk::{BulkBuffer, LocalBulk},
    bulk_pool::{BulkClassStats, BulkPool, BulkPoolError, BulkPoolSpec, PooledBuffer},
    bulk_request::BulkRequest,
    call_result::CallError,
    cancel::{CancelReason, CancelToken},
    component::{Component, ProviderSpec, RunningProvider, RunningProviders, check_providers},
    deadline::without_deadline,
    dependency::{Dependencies, Dependency, Need},
    elastic::{ElasticityError, PoolHold, PoolInfo, PoolKey, XstreamHold, XstreamInfo, XstreamKey},
    error::{
        BulkError, FinalizeError, ForwardError, IdentityError, InitError, LayoutError,
        LayoutErrors, LookupError, MetricsError, ProfileError, ProviderError, RespondError,
        ShutdownRemoteError, StageOver, TimerError,
    },
    exposed::{Exposable, Exposed},
    finalize::{FinalizeCallback, SignalFinalizer},
    handle::Handle,
    hg::{
        Bulk, Bytes, ConstStr, HgError, MemoryAttr, MemoryKind, ProcError, ProviderId, Raw,
        ReturnCode, RpcId,
    },
    init::{InstanceBuilder, init},
    instance::{Instance, Stats, WeakInstance},
    layout::{Layout, LayoutPool, LayoutXstream},
    metrics::{
        BulkPoolMetrics, ContextMetrics, CurrentUnit, GateKind, GateMetrics, MemoryMetrics,
        Metrics, NetworkCounters, PeerCount, PeerMetrics, PeersMetrics, Phase, PhaseMetrics,
        PoolMetrics, ProcessMetrics, RpcEnd, RpcMetrics, XstreamMetrics,
    },
    network_check::check_network,
    options::start_warnings,
    parent::{current_rpc_id, set_current_rpc_id},
    provider::Provider,
    provider_close::CloseError,
    register_error::RegisterError,
    releasing::Releasing,
    request::{Canceler, Request, wait_all, wait_any, wait_any_deadline},
    respond_request::RespondRequest,
    rpc::{NoResponse, OneWay, ProviderHandle, Rpc},
    segments::BulkSegments,
    serve::Serve,
    state_dump::{StateDump, TimerState, UltLine},
    timer::{Tick, Timer, TimerSpec},
};
pub use margo_config::{Config, ConfigFlags, LogLevel};
pub(crate) use na::Principal;
pub use na::{Access, Addr, AllocOptions, SharedBuffer};
pub use ult::{PoolRef as Pool, Priority, XstreamRef as Xstream};

/// The README's code is compiled and run as a documentation test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(doctest)]
mod bulk_misuse;
