//! User-level threads (ULTs) for services: blocking-style code, thousands of ULTs per core.
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
//!
//! None of them yields when there is nothing to wait for. Waits have forms with a deadline, which
//! use the timer of the xstream.
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
//! - `std::sync::OnceLock`, `LazyLock` and `Once` are sound, but block the OS thread of whoever
//!   comes second; if it is that of a ULT whose initialiser is suspended, that thread waits for
//!   itself, for ever. Use [`OnceCell`] and [`Once`] of this crate. `std::cell::OnceCell` and
//!   `LazyCell` in a thread-local panic in the same case.
//! - A panic ends the ULT and is given to whoever joins it. In a destructor that runs because of a
//!   panic, a [cancel](JoinHandle::cancel) or an [`exit`], waiting blocks the whole xstream; for
//!   ever, if what it waits for (a lock, say) is to come from a ULT of the same xstream. A wait of
//!   more than 100 ms is logged as an error.
//! - All of that needs unwinding. In a program that is built with `panic = "abort"`, a panic, a
//!   cancel and an [`exit`] abort the process. The first runtime that starts there warns.
//! - What the program gives the runtime to call (pools, schedulers, sinks, wakers, callbacks,
//!   destructors) and its `tracing` subscriber may panic: that is logged and harms no unit, but see
//!   [`Pool`] for what becomes of units that a pool has in hand.
//! - Stacks have a guard page; an overflow is reported with the names of ULT and pool, and aborts.
//! - A child process that is forked off has none of the threads: a unit that is spawned there
//!   never runs, and who joins it waits for ever. In one that a ULT forks off, its xstream goes on
//!   as soon as it waits, with copies of all other ULTs. So such a child executes another program,
//!   or ends by `_exit`, before it waits for anything here.
//!
//! # Life of a ULT, by file
//!
//! 1. `spawn.rs` takes a descriptor from the xstream's `descriptor_cache.rs`, puts the closure into
//!    it (`payload.rs`, `descriptor.rs`) and the unit into its pool (`pool.rs`): onto a list of the
//!    xstream (`slot.rs`, `list.rs`), into another xstream's `inbox.rs`, or into the pool's queue
//!    (`pools/`). If a sleeping xstream serves the pool, one is woken (`park.rs`).
//! 2. `run_loop.rs` asks the scheduler (`sched.rs`), and `xstream.rs` gives the ULT a stack
//!    (`stack_cache.rs`, `stack.rs`) and switches to it: the first frame is `context::root`, which
//!    calls the closure and catches its panic.
//! 3. When it has to wait, it links a waiter (`wait.rs`, `wait_list.rs`) into what it waits for
//!    (`eventual.rs`, `raw_mutex.rs`, `gate.rs`, `condvar.rs`, `barrier.rs`, `once.rs`, `channel/`,
//!    `join.rs`, several with `select.rs`; `unpark.rs` needs none), and perhaps a node into the
//!    xstream's `timer.rs`, and switches away (`switch.rs`).
//! 4. The xstream, on its own stack, commits the suspension (`suspend.rs`): the ULT is parked, or
//!    it goes back to its queue because a resume came first.
//! 5. Whoever ends the wait resumes it: directly onto the list if it runs on the same xstream,
//!    through the inbox otherwise.
//! 6. When its closure has returned, or has been unwound (`cancel.rs`), it publishes the outcome
//!    (`join.rs`) and switches away for the last time. Its stack goes back to the xstream's cache,
//!    its descriptor to a cache when nobody keeps it any more.
//!
//! An xstream with nothing to do sleeps (`sleep.rs`), with the ULTs that wait for a network in
//! `idle.rs`. `builder.rs`, `runtime.rs`, `shared.rs`, `xstream_thread.rs` and `shutdown.rs` start
//! and end it all, `layout.rs` and `xstream_ref.rs` change it while it runs. `to.rs` switches past
//! the scheduler, `migrate.rs` moves units between pools, `scope.rs` lets them borrow, `local.rs`
//! has their own values, `inherited.rs` what they hand on. `block_on.rs` polls futures in
//! ULTs, `future.rs` makes futures of joins and waits, `timed_unit.rs` starts units at a given
//! time. `helpers.rs` has threads for what waits for the system. `overflow.rs` reports stack
//! overflows; `current.rs` knows where the caller is; [`topology`] knows the machine, and stands by
//! itself.
//!
//! # Looking into a running program
//!
//! [`Runtime::dump`] lists the ULTs with what they wait for and their stacks; [`Runtime::record`]
//! records every switch for a timeline; [`Runtime::add_sink`] calls back for events;
//! [`RuntimeBuilder::monitor`] reports units that do not switch and suspected deadlocks;
//! [`install_panic_hook`] names the ULT in panic messages. What the core calls for all of them is
//! in `diag.rs`.

#[cfg(not(loom))]
mod backtrace;
mod barrier;
#[cfg(not(loom))]
mod block_on;
#[cfg(not(loom))]
mod builder;
mod cancel;
pub mod channel;
mod condvar;
#[cfg(not(loom))]
mod contain;
#[cfg(not(loom))]
mod context;
mod countdown;
#[cfg(not(loom))]
mod current;
#[cfg(not(loom))]
mod descriptor;
#[cfg(not(loom))]
mod descriptor_cache;
#[cfg(not(loom))]
mod diag;
#[cfg(not(loom))]
mod error;
mod eventual;
#[cfg(not(loom))]
mod extra;
#[cfg(not(loom))]
mod future;
mod gate;
#[cfg(not(loom))]
#[doc(hidden)]
pub mod helpers;
#[cfg(not(loom))]
mod idle;
mod inbox;
#[cfg(not(loom))]
mod inherited;
#[cfg(not(loom))]
mod interval;
#[cfg(not(loom))]
mod join;
#[cfg(not(loom))]
mod join_any;
mod join_word;
#[cfg(not(loom))]
mod layout;
#[cfg(not(loom))]
mod limit;
#[cfg(not(loom))]
mod list;
#[cfg(not(loom))]
mod local;
#[cfg(not(loom))]
mod lost;
#[cfg(not(loom))]
mod migrate;
#[cfg(not(loom))]
mod monitor;
mod mutex;
#[cfg(not(loom))]
mod news;
mod once;
#[cfg(not(loom))]
mod overflow;
#[cfg(not(loom))]
mod panic_hook;
mod park;
mod party;
#[cfg(not(loom))]
mod payload;
#[cfg(not(loom))]
mod pool;
#[cfg(not(loom))]
mod pool_ops;
#[cfg(not(loom))]
mod pools;
mod prefetch;
mod priority;
mod raw_mutex;
mod remutex;
#[cfg(not(loom))]
mod report_log;
#[cfg(not(loom))]
mod run_loop;
#[cfg(not(loom))]
mod runtime;
mod rwlock;
#[cfg(not(loom))]
mod sched;
#[cfg(not(loom))]
mod scope;
mod select;
mod semaphore;
#[cfg(not(loom))]
mod shared;
#[cfg(not(loom))]
mod shutdown;
#[cfg(not(loom))]
mod sleep;
#[cfg(not(loom))]
mod slot;
#[cfg(not(loom))]
mod spawn;
#[cfg(not(loom))]
mod spin;
#[cfg(not(loom))]
mod stack;
#[cfg(not(loom))]
mod stack_cache;
#[cfg(not(loom))]
mod standard;
#[cfg(not(loom))]
mod starve;
#[cfg(not(loom))]
mod streak;
mod suspend;
#[cfg(not(loom))]
mod switch;
mod sync;
mod task_wait;
#[cfg(not(loom))]
mod timed_unit;
#[cfg(not(loom))]
mod timer;
mod timer_state;
#[cfg(not(loom))]
mod to;
#[cfg(not(loom))]
pub mod topology;
mod trace;
#[cfg(not(loom))]
mod unit;
#[cfg(not(loom))]
mod unpark;
#[cfg(not(loom))]
mod user_stack;
mod wait;
mod wait_kind;
mod wait_list;
#[cfg(not(loom))]
mod xstream;
#[cfg(not(loom))]
mod xstream_ref;
#[cfg(not(loom))]
mod xstream_shared;
#[cfg(not(loom))]
mod xstream_thread;

pub use barrier::{Barrier, NoParties};
pub use condvar::Condvar;
pub use countdown::{CountDown, TooManyArrivals};
pub use eventual::Eventual;
pub use mutex::{Mutex, MutexGuard};
pub use once::{Once, OnceCell};
pub use remutex::{ReentrantMutex, ReentrantMutexGuard};
pub use rwlock::{RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use select::{Selectable, wait_any, wait_any_timeout};
pub use semaphore::{Permit, Semaphore, SemaphoreReady};
pub use wait_kind::WaitKind;

#[cfg(not(loom))]
pub use {
    backtrace::{BusyXstream, Dump, DumpOptions, Frame, StackDump, UltDump, UltState},
    barrier::XstreamBarrier,
    block_on::{block_on, block_on_deadline, block_on_timeout},
    builder::{RuntimeBuilder, XstreamSpec},
    cancel::{exit, is_cancelled, is_exit},
    contain::discard_panic,
    current::{
        UltInfo, current, current_address, current_ids, is_tasklet, is_tasklet_or_has_locals,
        is_ult,
    },
    descriptor::UltName,
    diag::announce,
    error::{
        JoinError, LayoutError, MigrateError, PanicPayload, RecordError, ShutdownError, SpawnError,
        StartError, StillAlive, StuckUlt, ToError,
    },
    future::{JoinFuture, Ready, ReadyIn, ready, ready_in},
    idle::{IdleEnd, idle},
    inherited::{
        Inherited, InheritedState, inherit_nothing, inherited, inherited_word, set_inherited_word,
    },
    interval::{Interval, MissedTicks, interval, interval_at},
    join::{Ended, JoinHandle, join_all},
    join_any::{join_any, join_any_deadline},
    limit::Limit,
    local::UltLocal,
    migrate::set_pool,
    monitor::{Deadlock, MonitorSpec, Report, Stall, Starvation},
    panic_hook::install_panic_hook,
    pool::{Access, Pool, PoolKind, PoolRef, PoolSpec, PoolStats, PopBy, PushReason},
    pool_ops::UnitInfo,
    priority::Priority,
    runtime::Runtime,
    sched::{Basic, BasicWait, PoolView, Prio, RandWs, RoundRobin, Scheduler, Step},
    scope::{Scope, ScopedJoinHandle, scope},
    spawn::UltBuilder,
    switch::{
        has_runnable, has_runnable_behind, has_runnable_beyond, is_migratable, sleep, sleep_until,
        stack_left, units_run, yield_now,
    },
    timed_unit::TimerHandle,
    to::{exit_to, park_to, run_unit, yield_to},
    topology::{AffinityPattern, CpuSet, Place, Topology, TopologyError},
    trace::event::{Event, EventKind, EventMask},
    trace::record::{RecordOptions, Recording, Trace},
    trace::sink::{EventSink, SinkHandle},
    unit::Unit,
    unpark::{Unparker, park, park_deadline, unparker},
    user_stack::{StackTooSmall, UserStack},
    xstream_ref::{CurrentUnit, XstreamRef, XstreamState, XstreamStats},
};

/// The concurrency cores, for the models in `loom-tests`.
#[cfg(loom)]
#[doc(hidden)]
pub mod loom_exports {
    pub use crate::inbox::{Batch, Closed, Inbox, Linked};
    pub use crate::join_word::{JoinWord, Published, Waiters};
    pub use crate::park::{Bed, ParkWord, ThreadParker};
    pub use crate::suspend::SuspendCell;
    pub use crate::task_wait::TaskWait;
    pub use crate::timer_state::{Cancel, TimerState};
    pub use crate::trace::ring::{Read, Ring};
}
