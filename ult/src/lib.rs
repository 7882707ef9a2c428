//! User-level threads (ULTs) for services: blocking-style code, thousands of ULTs per core.
//!
//! The waits of this crate suspend a ULT. All others block its xstream, with every ULT there:
//! [`blocking()`] runs code that has such waits on another thread.
//!
//! A [`Runtime`] has *xstreams* (execution streams: one OS thread each) and *pools* (queues of
//! runnable ULTs). Each xstream serves one or more pools; its [`Scheduler`] decides which unit
//! runs next. A ULT runs until it waits, yields or ends: nothing is preempted.
//!
//! ```
//! use ult::{PoolSpec, Runtime, XstreamSpec};
//!
//! let runtime = Runtime::builder()
//!     .pool(PoolSpec::new("main"))
//!     .xstream(XstreamSpec::new("x0").pools(["main"]))
//!     .xstream(XstreamSpec::new("x1").pools(["main"]))
//!     .start()?;
//! let pool = runtime.pool("main").expect("defined above");
//!
//! let inner_pool = pool.clone();
//! let sum = pool.spawn(move || {
//!     // Inside a ULT, waiting suspends the ULT and not the thread.
//!     let parts: Vec<_> = (0..10u64).map(|n| inner_pool.spawn(move || n * n)).collect();
//!     parts.into_iter().map(|part| part.unwrap().join().unwrap()).sum::<u64>()
//! })?;
//! assert_eq!(sum.join()?, 285);
//! runtime.shutdown()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Waiting works everywhere and in any mixture: a ULT suspends, an OS thread blocks.
//!
//! | for | there is |
//! |---|---|
//! | exclusion | [`Mutex`], [`ReentrantMutex`], [`RwLock`], [`Condvar`] |
//! | an event | [`Eventual`], [`CountDown`], [`Once`], [`OnceCell`], [`Barrier`], [`XstreamBarrier`] |
//! | resources and data | [`Semaphore`], [`channel`] |
//! | the first of several | [`wait_any`], [`join_any`] |
//! | a unit | [`JoinHandle`], [`scope()`], [`park()`] |
//! | a time | [`sleep()`], [`interval()`], [`PoolRef::spawn_after`] |
//! | async code | [`block_on()`] in a ULT; a [`JoinHandle`] can be awaited anywhere |
//! | code that blocks its thread: files, databases, `std::thread::sleep` | [`blocking()`] |
//!
//! Computations use all xstreams of a pool by [`join`](join()) and the loops of [`par`].
//!
//! None of the waits yields when there is nothing to wait for. Waits have forms with a deadline,
//! which use the timer of the xstream.
//!
//! # What ULT code must know
//!
//! - A ULT that has started stays on its xstream, hence on its OS thread. Thread-locals and values
//!   that are not `Send` survive every suspension. In a pool that several xstreams serve, a ULT may
//!   start on any of them.
//! - Thread-locals are shared by the ULTs of an xstream, so do not hold a `RefCell` borrow, a
//!   `std::sync::MutexGuard` or an entered `tracing` span over a suspension.
//! - *Unsound, and nobody can prevent it:* the initialiser of a `thread_local!` must not suspend.
//!   Meanwhile another ULT of the xstream finds the value missing, makes its own, and may be
//!   suspended inside of `with`; when the first initialiser returns, its value takes the place of
//!   that one, which is dropped although it is borrowed. Make the value first and put it into a
//!   `Cell` or `RefCell`, or use [`UltLocal`], whose initialiser may wait.
//! - *Unsound likewise:* crates that leave a pointer to a value of the caller's in a thread-local
//!   for the time of a call, and put the former one back at its end, as `scoped-tls` and
//!   `scoped_thread_local!` do. If two ULTs of an xstream suspend inside of such calls, the one
//!   that ends last puts back the pointer of the other, whose value is gone. Crates that do so with
//!   a handle instead of a pointer are safe, but go wrong: the executor of `tokio` that is entered
//!   ([`block_on()`] tells what to do instead), a default `tracing` subscriber for a scope, an
//!   entered span.
//! - `std::sync::OnceLock`, `LazyLock` and `Once` are sound, but block the OS thread of the second
//!   caller; if it is that of a ULT whose initialiser is suspended, that thread waits for itself,
//!   for ever. Use [`OnceCell`] and [`Once`] of this crate. `std::cell::OnceCell` and `LazyCell` in
//!   a thread-local panic in the same case.
//! - A panic ends the ULT and is given to the party that joins it. In a destructor that runs
//!   because of a panic, a [cancel](JoinHandle::cancel) or an [`exit`], waiting blocks the whole
//!   xstream; for ever, if what it waits for (a lock, say) is to come from a ULT of the same
//!   xstream. A wait of more than 100 ms is logged as an error.
//! - All of that needs unwinding. In a program that is built with `panic = "abort"`, a panic, a
//!   cancel and an [`exit`] abort the process. The first runtime that starts there warns.
//! - What the program gives the runtime to call (pools, schedulers, sinks, wakers, callbacks,
//!   destructors) and its `tracing` subscriber may panic: that is logged and harms no unit, but see
//!   [`Pool`] for what becomes of units that a pool has in hand.
//! - Stacks have a guard page; an overflow is reported with the names of ULT and pool, and aborts.
//! - A child process that is forked off has none of the threads: a unit that is spawned there never
//!   runs, and a join of it waits for ever. In a child that a ULT forks off, the ULT's xstream goes
//!   on as soon as it waits, with copies of all other ULTs. So such a child executes another
//!   program, or ends by `_exit`, before it waits for anything here.
//!
//! # Life of a ULT, by file
//!
//! 1. `spawn/ult_builder.rs` takes a descriptor from the xstream's cache
//!    (`engine/xstream/descriptor_cache.rs`), puts the closure into it (`base/payload.rs`,
//!    `engine/model/unit.rs`) and the unit into its pool (`engine/xstream/push.rs`): onto a list of
//!    the xstream, into another xstream's `base/inbox.rs`, or into the pool's queue. If a sleeping
//!    xstream serves the pool, one is woken (`base/park_word.rs`).
//! 2. `engine/run/run_loop.rs` asks the scheduler (`sched.rs`), and `run_unit.rs` gives the ULT a
//!    stack (`stack/`) and switches to it: the first frame is `context::root`, which calls
//!    the closure and catches its panic.
//! 3. When it has to wait, it links a waiter (`engine/waiting/`) into what it waits for: an object
//!    of `wait/` or the join of a unit, or several with `wait/select.rs`; `wait/park_token.rs`
//!    needs none. It links perhaps a node into the xstream's `timer.rs`, too, and switches away
//!    (`engine/xstream/switch.rs`).
//! 4. The xstream, on its own stack, commits the suspension (`base/suspend.rs`): the ULT is parked,
//!    or it goes back to its queue because a resume came first.
//! 5. The party that ends the wait resumes it: directly onto the list if it runs on the same
//!    xstream, through the inbox otherwise.
//! 6. When its closure has returned, or has been unwound (`engine/xstream/cancel.rs`), it publishes
//!    the outcome (`engine/unit/end.rs`) and switches away for the last time. Its stack goes back
//!    to the xstream's cache, its descriptor to a cache when nobody keeps it any more.
//!
//! Each folder's `mod.rs` says what the other files do, and in which order to read them:
//! [`topology`], `base`, `trace`, `stack`, `engine` with its parts, `wait`, `spawn`, `time`,
//! `runtime` and `observe`.
//!
//! # Looking into a running program
//!
//! [`Runtime::dump`] lists the ULTs with what they wait for and their stacks; [`Runtime::record`]
//! records every switch for a timeline; [`Runtime::add_sink`] calls back for events;
//! [`RuntimeBuilder::monitor`] reports units that do not switch and suspected deadlocks;
//! [`install_panic_hook`] names the ULT in panic messages. What the core calls for all of them is
//! in `engine/xstream/diag.rs`.

// The folders, lowest first. A folder imports those that stand before it in this list, and none
// that stands behind it:
//
//     topology, base, trace, stack, engine, wait, spawn, time, runtime, observe
//
// `prim::sync`, the shim for the models, is below all of them.

use prim::sync;

mod base;
mod engine;
#[cfg(not(loom))]
mod observe;
#[cfg(not(loom))]
mod runtime;
#[cfg(not(loom))]
mod spawn;
#[cfg(not(loom))]
mod stack;
#[cfg(not(loom))]
mod time;
#[cfg(not(loom))]
pub mod topology;
mod trace;
mod wait;

pub use base::wait_kind::WaitKind;
pub use wait::barrier::{Barrier, NoParties};
pub use wait::channel;
pub use wait::condvar::Condvar;
pub use wait::countdown::{CountDown, TooManyArrivals};
pub use wait::eventual::Eventual;
pub use wait::mutex::{Mutex, MutexGuard};
pub use wait::once::{Once, OnceCell};
pub use wait::remutex::{ReentrantMutex, ReentrantMutexGuard};
pub use wait::rwlock::{RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use wait::select::{Selectable, wait_any, wait_any_timeout};
pub use wait::semaphore::{Permit, Semaphore, SemaphoreReady};

#[cfg(not(loom))]
pub use {
    base::limit::Limit,
    base::priority::Priority,
    base::unwind::is_exit,
    engine::error::{
        JoinError, LayoutError, MigrateError, PanicPayload, RecordError, ShutdownError, SpawnError,
        StartError, StillAlive, ToError,
    },
    engine::helpers::BlockingStats,
    engine::listener::EventSink,
    engine::model::interfaces::{
        Access, Basic, Pool, PoolKind, PoolView, PopBy, PushReason, Scheduler, Step, Unit,
    },
    engine::model::pool::PoolStats,
    engine::model::runtime_core::StuckUlt,
    engine::model::unit::UltName,
    engine::model::xstream_shared::XstreamStats,
    engine::pool::handle::PoolRef,
    engine::pool::migrate::set_pool,
    engine::pool::spec::PoolSpec,
    engine::run::sched::{BasicWait, Prio, RandWs, RoundRobin},
    engine::unit::local::UltLocal,
    engine::xstream::cancel::{exit, is_cancelled},
    engine::xstream::current::{UltInfo, current, is_tasklet, is_ult, pool_index, xstream_rank},
    engine::xstream::switch::{is_migratable, sleep, sleep_until, stack_left, yield_now},
    observe::backtrace::{BusyXstream, Dump, DumpOptions, Frame, StackDump, UltDump, UltState},
    observe::monitor::MonitorSpec,
    observe::panic_hook::install_panic_hook,
    observe::record::{RecordOptions, Recording, Trace},
    observe::report::{Deadlock, Report, Stall, Starvation},
    observe::sink::SinkHandle,
    runtime::builder::RuntimeBuilder,
    runtime::handle::Runtime,
    runtime::pool_ops::UnitInfo,
    runtime::specs::XstreamSpec,
    runtime::xstream_ref::{CurrentUnit, XstreamRef, XstreamState},
    spawn::fork::join,
    spawn::future::{JoinFuture, Ready, ReadyIn, ready, ready_in},
    spawn::join::{Ended, JoinHandle, join_all},
    spawn::join_any::{join_any, join_any_deadline},
    spawn::par,
    spawn::scope::{Scope, ScopedJoinHandle, scope},
    spawn::ult_builder::UltBuilder,
    stack::user::{StackTooSmall, UserStack},
    time::interval::{Interval, MissedTicks, interval, interval_at},
    time::timed_unit::TimerHandle,
    topology::{AffinityPattern, CpuSet, Place, Topology, TopologyError},
    trace::event::{Event, EventKind, EventMask},
    wait::barrier::XstreamBarrier,
    wait::block_on::{block_on, block_on_deadline, block_on_timeout},
    wait::blocking::blocking,
    wait::park_token::{Unparker, park, park_deadline, unparker},
    wait::to::{exit_to, park_to, run_unit, yield_to},
};

/// Hooks for runtimes that are built on ULTs, as `margo` is: ULTs that poll a network in turn with
/// others, state that units inherit from their makers, and diagnosis. Services need none of them.
#[cfg(not(loom))]
pub mod integration {
    pub use crate::base::contain::discard_panic;
    pub use crate::engine::run::idle_wait::idle;
    pub use crate::engine::unit::inherited::{
        Inherited, InheritedState, inherit_nothing, inherited, inherited_word, set_inherited_word,
    };
    pub use crate::engine::unit::local::is_tasklet_or_has_locals;
    pub use crate::engine::xstream::current::{current_address, current_ids};
    pub use crate::engine::xstream::diag::announce;
    pub use crate::engine::xstream::idle_set::IdleEnd;
    pub use crate::engine::xstream::runnable::{
        has_runnable, has_runnable_behind, has_runnable_beyond,
    };
    pub use crate::engine::xstream::switch::units_run;
    #[doc(hidden)]
    pub use crate::wait::blocking::blocking_reserved;
    pub use crate::wait::select::first_ready;
}

/// The concurrency cores, for the models in `loom-tests`.
#[cfg(loom)]
#[doc(hidden)]
pub mod loom_exports {
    pub use crate::base::inbox::{Batch, Closed, Inbox, Linked};
    pub use crate::base::park_word::{ParkMode, ParkWord, ThreadParker};
    pub use crate::base::suspend::SuspendCell;
    pub use crate::base::timer_state::{Cancel, TimerState};
    pub use crate::engine::model::waiter::JoinWord;
    pub use crate::engine::waiting::join_word::{Published, Waiters};
    pub use crate::trace::ring::{Read, Ring};
    pub use crate::wait::task_wait::TaskWait;
}
