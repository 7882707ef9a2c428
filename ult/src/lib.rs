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
//! Waiting works everywhere and in any mixture: [`Mutex`], [`Condvar`], [`Eventual`],
//! [`JoinHandle`], [`park()`] and [`sleep()`] suspend a ULT and block an OS thread.
//!
//! # What ULT code must know
//!
//! - A ULT that has started stays on its xstream, hence on its OS thread. Thread-locals and values
//!   that are not `Send` survive every suspension. In a pool that several xstreams serve, a ULT may
//!   start on any of them.
//! - Thread-locals are shared by the ULTs of an xstream, so do not hold a `RefCell` borrow, a
//!   `std::sync::MutexGuard` or an entered `tracing` span over a suspension.
//! - A panic ends the ULT and is given to whoever joins it. In a destructor that runs because of a
//!   panic, waiting blocks the whole xstream.
//! - Stacks have a guard page; an overflow is reported with the names of ULT and pool, and aborts.
//!
//! # Life of a ULT, by file
//!
//! 1. `spawn.rs` takes a block (stack and descriptor) from the xstream's `stack_cache.rs`, or from
//!    `stack.rs`, puts the closure into it (`payload.rs`, `descriptor.rs`) and the unit into its
//!    pool (`pool.rs`): onto a list of the xstream (`list.rs`), into another xstream's `inbox.rs`,
//!    or into the pool object. If a sleeping xstream serves the pool, one is woken (`park.rs`).
//! 2. `run_loop.rs` asks the scheduler (`sched.rs`), and `xstream.rs` switches to the ULT: the
//!    first frame of its stack is `switch::root`, which calls the closure and catches its panic.
//! 3. When it has to wait, it links a waiter (`wait.rs`) into what it waits for (`eventual.rs`,
//!    `mutex.rs`, `condvar.rs`, `join.rs`; `unpark.rs` needs none), and perhaps a node into the
//!    xstream's `timer.rs`, and switches away (`switch.rs`).
//! 4. The xstream, on its own stack, commits the suspension (`suspend.rs`): the ULT is parked, or
//!    it goes back to its queue because a resume came first.
//! 5. Whoever ends the wait resumes it: directly onto the list if it runs on the same xstream,
//!    through the inbox otherwise.
//! 6. When its closure has returned, it publishes the outcome (`join.rs`) and switches away for the
//!    last time. When nobody holds a count on the descriptor any more, the block goes back to a
//!    cache.
//!
//! An xstream with nothing to do sleeps (`sleep.rs`), with the ULTs that wait for a network in
//! `idle.rs`. `builder.rs`, `runtime.rs`, `shared.rs` and `shutdown.rs` start and end it all;
//! `overflow.rs` reports stack overflows; `current.rs` knows where the caller is.
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
#[cfg(not(loom))]
mod builder;
#[cfg(not(loom))]
mod condvar;
#[cfg(not(loom))]
mod current;
#[cfg(not(loom))]
mod descriptor;
#[cfg(not(loom))]
mod diag;
#[cfg(not(loom))]
mod error;
mod eventual;
#[cfg(not(loom))]
mod idle;
mod inbox;
#[cfg(not(loom))]
mod join;
#[cfg(not(loom))]
mod list;
#[cfg(not(loom))]
mod monitor;
mod mutex;
#[cfg(not(loom))]
mod overflow;
#[cfg(not(loom))]
mod panic_hook;
mod park;
#[cfg(not(loom))]
mod payload;
#[cfg(not(loom))]
mod pool;
#[cfg(not(loom))]
mod run_loop;
#[cfg(not(loom))]
mod runtime;
#[cfg(not(loom))]
mod sched;
#[cfg(not(loom))]
mod shared;
#[cfg(not(loom))]
mod shutdown;
#[cfg(not(loom))]
mod sleep;
#[cfg(not(loom))]
mod spawn;
#[cfg(not(loom))]
mod stack;
#[cfg(not(loom))]
mod stack_cache;
mod suspend;
#[cfg(not(loom))]
mod switch;
mod sync;
#[cfg(not(loom))]
mod timer;
mod trace;
#[cfg(not(loom))]
mod unit;
#[cfg(not(loom))]
mod unpark;
mod wait;
mod wait_kind;
#[cfg(not(loom))]
mod xstream;

pub use eventual::Eventual;
pub use mutex::{Mutex, MutexGuard};
pub use wait_kind::WaitKind;

#[cfg(not(loom))]
pub use {
    backtrace::{BusyXstream, Dump, DumpOptions, Frame, StackDump, UltDump, UltState},
    builder::{RuntimeBuilder, XstreamSpec},
    condvar::Condvar,
    current::{UltInfo, current, is_ult},
    descriptor::UltName,
    error::{
        JoinError, PanicPayload, RecordError, ShutdownError, SpawnError, StartError, StillAlive,
        StuckUlt,
    },
    idle::{IdleEnd, idle},
    join::JoinHandle,
    monitor::{Deadlock, MonitorSpec, Report, Stall},
    panic_hook::install_panic_hook,
    pool::{Pool, PoolKind, PoolRef, PoolSpec, PoolStats, PopBy, PushReason},
    runtime::{Runtime, XstreamInfo},
    sched::{Basic, BasicWait, PoolView, Scheduler, Step},
    spawn::UltBuilder,
    switch::{has_runnable, sleep, yield_now},
    trace::event::{Event, EventKind, EventMask},
    trace::record::{RecordOptions, Recording, Trace},
    trace::sink::{EventSink, SinkHandle},
    unit::Unit,
    unpark::{Unparker, park, park_deadline, unparker},
};

/// The concurrency cores, for the models in `loom-tests`.
#[cfg(loom)]
#[doc(hidden)]
pub mod loom_exports {
    pub use crate::inbox::{Batch, Inbox, Linked};
    pub use crate::park::{Bed, ParkWord, ThreadParker};
    pub use crate::suspend::SuspendCell;
    pub use crate::trace::ring::{Read, Ring};
}
