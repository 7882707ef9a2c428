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
//! At the origin: `origin/forward.rs` encodes the arguments into the transport's send buffer
//! through `hg/src/origin/forward.rs`, which posts the receive for the reply and sends; the caller
//! suspends on an [`ult::Eventual`] (or parks, if it is an OS thread).
//!
//! At the target: the transport (`na/sm/src`, `na/tcp/src`) delivers; `polling/driver.rs`,
//! a ULT that polls whenever its execution stream has nothing better to do, passes the request to
//! `dispatch/run_handler.rs`, which makes a ULT in the pool of the RPC. That ULT decodes arguments,
//! runs the handler, and answers through `dispatch/respond.rs`.
//!
//! Back at the origin `polling/driver.rs` sets the eventual, and `operation/call.rs` decodes the
//! reply.
//!
//! # Ways to call
//!
//! | the caller | with |
//! |---|---|
//! | waits for the result | [`Instance::forward`] |
//! | does something else first, makes several calls at once, cancels | [`Instance::rpc`] with [`start`](RpcCall::start): a [`Request`]; [`wait_any`], [`wait_all`] |
//! | is async code | the same; a `Request` is a `Future` |
//! | wants to be called back | `rpc` with [`call_back`](RpcCall::call_back) |
//! | wants no response | [`Instance::send`], or `rpc` with [`start_send`](RpcCall::start_send) |
//!
//! Arguments may be a borrowed form of the type that the target owns ([`Rpc::sending`]). A deadline
//! is that of [`RpcCall::timeout`] or [`Instance::forward_timed`]. For results that are a `Result`
//! of the service there is [`RpcCall::call`], and [`CallError::flatten`] for the other ways.
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
//! `bulk/` lends memory to the transport and lets other execution streams copy it;
//! `operation/call.rs` and `polling/driver.rs` share calls with the RPC layer by counts;
//! `observe/monitor/` has tables that each thread writes alone; `observe/dump_signal.rs` installs a
//! signal handler. Each says there why that is sound.

// The folders, lowest first. A file imports what stands in its own folder or in one above it in
// this list: support, layout, observe, origin, bulk, target, progress, elastic, timer, report,
// instance. `error.rs` and `rpc.rs` belong to all of them.
mod admission;
mod api;
mod bulk;
mod dispatch;
mod elastic;
mod error;
mod instance;
mod layout;
mod lifecycle;
mod memory;
mod observe;
mod operation;
mod origin;
mod polling;
mod progress;
mod providers;
mod report;
mod reshaping;
mod rpc;
mod serving;
mod support;
mod timer;

#[doc(hidden)]
pub use self::support::log;
#[doc(hidden)]
pub use ::hg;
pub use margo_config as config;
pub use {na, ult};

pub use self::{
    admission::gates::Load,
    bulk::bulk_request::BulkRequest,
    elastic::{ElasticityError, PoolHold, PoolInfo, PoolKey, XstreamHold, XstreamInfo, XstreamKey},
    error::{
        BulkError, FinalizeError, ForwardError, IdentityError, InitError, LayoutError,
        LayoutErrors, LookupError, MetricsError, ProfileError, ProviderError, RegisterError,
        RespondError, ShutdownRemoteError, StageOver, TimerError,
    },
    hg::{
        Bulk, Bytes, ConstStr, HgError, MemoryAttr, MemoryKind, ProcError, ProviderId, Raw,
        ReturnCode, RpcId,
    },
    instance::{
        address_file::AddressFile,
        groups::{InstanceLayout, InstanceMemory, InstanceMonitoring, InstanceNetwork},
        inner::{Instance, WeakInstance},
    },
    layout::{
        network_check::check_network,
        options::start_warnings,
        plan::{Layout, LayoutPool, LayoutXstream},
    },
    lifecycle::{
        builder::InstanceBuilder,
        finalize::{FinalizeCallback, SignalFinalizer},
        init::init,
    },
    memory::{
        buffer::{BulkBuffer, LocalBulk},
        exposed::{Exposable, Exposed},
        pool::{BulkClassStats, BulkPool, BulkPoolError, BulkPoolSpec, PooledBuffer},
        releasing::Releasing,
        segments::BulkSegments,
    },
    observe::{
        metrics::{
            BulkPoolMetrics, CurrentUnit, GateKind, GateMetrics, MemoryMetrics, Metrics,
            NetworkCounters, PeerCount, PeerMetrics, PeersMetrics, Phase, PhaseMetrics,
            PoolMetrics, ProcessMetrics, RpcEnd, RpcMetrics, ShardMetrics, Stats, XstreamMetrics,
        },
        monitor,
        parent::{current_rpc_id, set_current_rpc_id},
        trace,
    },
    operation::{
        cancel::{CancelReason, CancelToken},
        canceler::Canceler,
        deadline::without_deadline,
    },
    origin::{
        call_result::CallError,
        request::{Request, wait_all, wait_any, wait_any_deadline},
        rpc_call::RpcCall,
        sharded_handle::ShardedHandle,
    },
    providers::{
        component::{Component, ProviderSpec, RunningProvider, RunningProviders, check_providers},
        dependency::{Dependencies, Dependency, Need},
    },
    report::state_dump::{StateDump, UltLine},
    rpc::{NoResponse, OneWay, ProviderHandle, Rpc},
    serving::{
        handle::Handle,
        irespond::RespondRequest,
        provider::Provider,
        provider_close::CloseError,
        serve::Serve,
        shard_place::ShardPlace,
        sharded::{Sharded, ShardedError},
    },
    support::parts::part_of_key,
    timer::{Tick, Timer, TimerSpec, TimerState},
};
pub use margo_config::{Config, ConfigFlags, LogLevel};
pub(crate) use na::Principal;
pub use na::{Access, Addr, AllocOptions, SharedBuffer};
pub use ult::{PoolRef as Pool, Priority, XstreamRef as Xstream};

/// The README's code is compiled and run as a documentation test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
