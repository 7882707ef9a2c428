//! A thread-per-core RPC runtime: blocking-style handlers on user-level threads.
//!
//! A *provider* registers handlers, plain functions; each request runs on a user-level thread (ULT)
//! that gives its core away whenever it waits with margo: for a call, a transfer, a lock of
//! [`ult`], a time. Code that blocks its thread in other ways (files, databases,
//! `std::thread::sleep`) holds its core up, unless it runs in [`ult::blocking`]. Small arguments
//! travel in the request; large data is moved by *bulk transfer*, straight between the memory of
//! the two processes. A JSON document lays out the execution streams and pools; [`init`] starts it.
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
//! polls for a while or suspends on an [`ult::Eventual`] (`polling/callers.rs`), or parks, if it is
//! an OS thread.
//!
//! At the target: the transport (`na/sm/src`, `na/tcp/src`) delivers; `polling/driver.rs`,
//! a ULT that polls whenever its execution stream has nothing better to do, passes the request to
//! `dispatch/run_handler.rs`, which makes a ULT in the pool of the RPC. That ULT decodes arguments,
//! runs the handler, and answers.
//!
//! Back at the origin `polling/driver.rs` sets the eventual, and `operation/call.rs` decodes the
//! reply.
//!
//! # Ways to call
//!
//! | the caller | with |
//! |---|---|
//! | waits for the result | [`Instance::forward`] |
//! | does something else first, makes several calls at once, cancels | [`Instance::rpc`] with [`start`](RpcCall::start): a [`ForwardRequest`]; [`wait_any`], [`wait_all`] |
//! | is async code | the same; a `ForwardRequest` is a `Future` |
//! | wants to be called back | `rpc` with [`call_back`](RpcCall::call_back) |
//! | wants no response | [`Instance::send`], or `rpc` with [`start_send`](RpcCall::start_send) |
//!
//! Arguments may be a borrowed form of the type that the target owns ([`Rpc::sending`]). A deadline
//! is that of [`RpcCall::timeout`] or [`Instance::forward_timed`]. For results that are a `Result`
//! of the service there is [`RpcCall::call`], and [`CallError::flatten`] for the other ways.
//!
//! Bulk data is moved by [`Instance::pull`] and [`Instance::push`], which wait, or by
//! [`Instance::bulk`]: with a timeout, in chunks, or in the background as a [`BulkRequest`], which
//! is a `Future`, too. None calls back; a ULT that waits for the `BulkRequest` can.
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
pub mod admin;
mod admission;
mod api;
mod bulk;
pub mod capability;
#[cfg(feature = "daemon")]
pub mod daemon;
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
pub mod service;
mod serving;
mod support;
mod timer;

#[doc(hidden)]
pub use self::support::log;
pub use ::device;
#[doc(hidden)]
pub use ::hg;
pub use margo_config as config;
pub use margo_macros::service;
pub use {na, ult};

// For the crate itself; for others, in the modules below.
pub(crate) use self::{
    admission::gates::Load,
    elastic::{ElasticityError, PoolHold, PoolInfo, PoolKey, XstreamHold, XstreamInfo, XstreamKey},
    error::{
        DescribeError, FinalizeError, IdentityError, MetricsError, ProfileError, ProviderError,
        ShutdownRemoteError, TimerError,
    },
    instance::groups::{InstanceLayout, InstanceMemory, InstanceMonitoring, InstanceNetwork},
    layout::plan::Layout,
    memory::{
        buffer::{BulkBuffer, LocalBulk},
        exposed::Exposable,
        pool::{BulkPool, BulkPoolError, BulkPoolSpec, PooledBuffer},
        releasing::Releasing,
        segments::BulkSegments,
    },
    observe::metrics::{BulkPoolMetrics, Stats},
    operation::{cancel::CancelToken, canceler::Canceler},
    timer::{Tick, Timer, TimerSpec},
};
pub use self::{
    bulk::{bulk_request::BulkRequest, bulk_transfer::BulkTransfer},
    dispatch::in_place::DecodeInPlace,
    error::{BulkError, ForwardError, InitError, RegisterError, RespondError},
    hg::{Bulk, HgError, ProviderId, ReturnCode, RpcId},
    instance::{
        address_file::AddressFile,
        inner::{Instance, WeakInstance},
    },
    lifecycle::{
        builder::InstanceBuilder,
        finalize::{FinalizeCallback, SignalFinalizer},
        init::init,
    },
    memory::exposed::Exposed,
    observe::{metrics::Metrics, monitor, trace},
    origin::{
        call_result::CallError,
        forward_request::{ForwardRequest, wait_all, wait_any, wait_any_deadline},
        rpc_call::RpcCall,
    },
    rpc::{NoResponse, OneWay, ProviderHandle, Rpc},
    serving::{
        handle::Handle, irespond::RespondRequest, provider::Provider, respondable::Respondable,
        serve::Serve,
    },
};

/// Figures of an instance: counters, what [`Instance::metrics`] tells, dumps of its state.
pub mod metrics {
    pub use crate::admission::gates::Load;
    pub use crate::observe::metrics::{
        BlockingMetrics, BulkPoolMetrics, Column, ColumnKind, ColumnMetrics, CurrentUnit, GateKind,
        GateMetrics, MemoryMetrics, Metrics, NetworkCounters, PeerCount, PeerMetrics, PeersMetrics,
        Phase, PhaseMetrics, PoolMetrics, ProcessMetrics, PublishedTable, RowMetrics, RpcEnd,
        RpcMetrics, ShardMetrics, Stats, TableMetrics, TableSpec, XstreamMetrics,
    };
    pub use crate::report::state_dump::{StateDump, UltLine};
}

/// Errors of what is not for every day. Those of calls, handlers, bulk transfers and the start are
/// at the root.
pub mod errors {
    pub use crate::error::{
        DescribeError, FinalizeError, IdentityError, LayoutError, LayoutErrors, LookupError,
        MetricsError, ProfileError, ProviderError, PublishError, ShutdownRemoteError, StageOver,
        TimerError,
    };
    pub use crate::serving::{provider_close::CloseError, sharded::ShardedError};
}

/// Pools, execution streams and shards of an instance that runs ([`Instance::layout`]), and the
/// layout of a document before it is started.
pub mod elasticity {
    pub use crate::elastic::{
        ElasticityError, PoolHold, PoolInfo, PoolKey, XstreamHold, XstreamInfo, XstreamKey,
    };
    pub use crate::layout::{
        network_check::check_network,
        options::{na_options, start_warnings},
        plan::{Layout, LayoutPool, LayoutXstream},
    };
}

/// Memory for bulk transfers, beyond [`Exposed`]: buffers, segments, pools of buffers
/// ([`Instance::memory`]).
pub mod bulk_memory {
    pub use crate::memory::{
        buffer::{BulkBuffer, LocalBulk},
        exposed::Exposable,
        pool::{BulkClassStats, BulkPool, BulkPoolError, BulkPoolSpec, PooledBuffer},
        releasing::Releasing,
        segments::BulkSegments,
    };
    pub use hg::{MemoryAttr, MemoryKind};
    pub use na::{AllocOptions, SharedBuffer, Terms};
}

/// Groups of an instance's methods ([`Instance::layout`] and the like).
pub mod groups {
    pub use crate::instance::groups::{
        InstanceLayout, InstanceMemory, InstanceMonitoring, InstanceNetwork,
    };
}

/// Timers of an instance ([`Instance::timer`]).
pub mod timers {
    pub use crate::timer::{Tick, Timer, TimerSpec, TimerState};
}

/// Types whose encoding is not that of their serde form, and errors of encoding.
pub mod encoding {
    pub use hg::{Bytes, ConstStr, ProcError, Raw};
}

/// Cancels and deadlines beyond [`Instance::forward_timed`].
pub mod cancel {
    pub use crate::operation::{
        cancel::{CancelReason, CancelToken},
        canceler::Canceler,
        deadline::without_deadline,
    };
}

/// Calls on behalf of the caller of a handler.
pub mod delegation {
    pub use crate::operation::on_behalf::on_behalf_of;
    pub use hg::OnBehalfOf;
}

/// Providers with an object for each shard ([`Instance::sharded_provider`]).
pub mod sharded {
    pub use crate::origin::sharded_handle::ShardedHandle;
    pub use crate::serving::{
        shard_place::ShardPlace,
        sharded::{Sharded, ShardedError},
    };
    pub use crate::support::parts::part_of_key;
}

/// Providers that a document starts: components, and what they depend on.
pub mod component {
    pub use crate::providers::{
        component::{Component, ProviderSpec, check_providers},
        dependency::{Dependencies, Dependency, Need},
        running::{RunningProvider, RunningProviders, Unsupported},
        schema::document_schema,
    };
}

/// Names that most services and clients import: `use margo::prelude::*`.
pub mod prelude {
    pub use crate::{
        Access, Bulk, ForwardError, ForwardRequest, Handle, Instance, OneWay, Provider,
        ProviderHandle, ProviderId, Rpc,
    };
}
pub use na::{Access, Addr, PeerName, Principal};
pub use ult::{PoolRef as Pool, Priority, XstreamRef as Xstream};

/// The code of README, guide and reference is compiled and run as documentation tests.
#[cfg(doctest)]
mod pages {
    macro_rules! pages {
        ($($name:ident: $path:literal,)*) => {
            $(#[doc = include_str!($path)] struct $name;)*
        };
    }

    pages! {
        Readme: "../README.md",
        Blocking: "../docs/blocking.md",
        AsyncAndBlocking: "../docs/guide/src/async-and-blocking.md",
        BulkData: "../docs/guide/src/bulk-data.md",
        ComingFromTonic: "../docs/guide/src/coming-from-tonic.md",
        Concepts: "../docs/guide/src/concepts.md",
        Devices: "../docs/guide/src/devices.md",
        FirstService: "../docs/guide/src/first-service.md",
        Layouts: "../docs/guide/src/layouts.md",
        ManyCores: "../docs/guide/src/many-cores.md",
        Operation: "../docs/guide/src/operation.md",
        StateAndErrors: "../docs/guide/src/state-and-errors.md",
        Testing: "../docs/guide/src/testing.md",
        Ult: "../docs/guide/src/ult.md",
    }
}
