//! The errors of this crate, one enum per family of operations.

use std::fmt;
use std::io;

use crate::base::contain::{Panic, discard_panic, panic_message};
use crate::engine::model::interfaces::{Access, Unit};
use crate::engine::model::runtime_core::StuckUlt;
use crate::topology::TopologyError;

/// The reason why a runtime did not start. Nothing is left running.
///
/// ```
/// use ult::{PoolSpec, Runtime, StartError, XstreamSpec};
///
/// let started = Runtime::builder()
///     .pool(PoolSpec::new("main"))
///     .xstream(XstreamSpec::new("x0").pools(["rpc"]))
///     .start();
/// match started {
///     Err(StartError::UnknownPool { pool, .. }) => assert_eq!(pool, "rpc"),
///     Err(StartError::System { what, source, .. }) => panic!("cannot {what}: {source}"),
///     other => panic!("{other:?}"),
/// }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// There is nothing to run on.
    #[error("the runtime has no xstream: add at least one with `RuntimeBuilder::xstream`")]
    NoXstream,
    /// Two pools have the same name.
    #[error("pool `{pool}` is defined twice: pool names are unique")]
    DuplicatePool {
        /// The name.
        pool: String,
    },
    /// Two xstreams have the same name.
    #[error("xstream `{xstream}` is defined twice: xstream names are unique")]
    DuplicateXstream {
        /// The name.
        xstream: String,
    },
    /// An xstream names a pool that is not there.
    #[error("xstream `{xstream}` serves pool `{pool}`, which is not defined (have: {have})")]
    UnknownPool {
        /// The xstream.
        xstream: String,
        /// The name that no pool has.
        pool: String,
        /// The names that are there.
        have: String,
    },
    /// An xstream names a pool twice.
    #[error("xstream `{xstream}` lists pool `{pool}` twice: list each pool once")]
    RepeatedPool {
        /// The xstream.
        xstream: String,
        /// The pool that is listed twice.
        pool: String,
    },
    /// An xstream serves no pool and could never run anything.
    #[error("xstream `{xstream}` serves no pool: give it at least one")]
    NoPool {
        /// The xstream.
        xstream: String,
    },
    /// A pool that no xstream serves, so that its units would never run.
    #[error("pool `{pool}` is served by no xstream: list it in one, or remove it")]
    UnservedPool {
        /// The pool.
        pool: String,
    },
    /// A processor that does not exist, or that this process may not use.
    #[error("xstream `{xstream}`: cpu {cpu} does not exist or is not allowed here (have: {have})")]
    Cpu {
        /// The xstream.
        xstream: String,
        /// The processor that was asked for.
        cpu: usize,
        /// The processors that can be had.
        have: String,
    },
    /// Two xstreams want the same rank.
    #[error("xstream `{xstream}`: rank {rank} is taken; ranks are unique")]
    DuplicateRank {
        /// The xstream.
        xstream: String,
        /// The rank that both want.
        rank: usize,
    },
    /// A second xstream wants to serve a pool that was promised to one.
    #[error(
        "xstream `{xstream}` cannot serve pool `{pool}`: its access is {access}, and xstream \
         `{server}` serves it; define the pool as mpmc"
    )]
    Access {
        /// The pool.
        pool: String,
        /// The promise.
        access: Access,
        /// The xstream that wants to serve it.
        xstream: String,
        /// The xstream that serves it.
        server: String,
    },
    /// A stack size of zero.
    #[error(
        "stack size 0 {}: give at least 16384 bytes, or leave it out for the default of 2 MiB",
        of_pool(.pool.as_deref())
    )]
    NoStack {
        /// The pool, or none if it is the runtime's default size.
        pool: Option<String>,
    },
    /// An xstream cannot be bound to no processor.
    #[error("xstream `{xstream}`: the list of processors is empty")]
    NoCpu {
        /// The xstream.
        xstream: String,
    },
    /// The part of the machine that an xstream shall be bound to is not there.
    #[error("xstream `{xstream}`")]
    Place {
        /// The xstream.
        xstream: String,
        /// The reason why the place cannot be used.
        #[source]
        source: TopologyError,
    },
    /// A NUMA node that is not there.
    #[error("pool `{pool}`: there is no NUMA node {node} (have: {have})")]
    NumaNode {
        /// The pool.
        pool: String,
        /// The node that was asked for.
        node: u32,
        /// The nodes that are there.
        have: String,
    },
    /// The machine cannot be looked at.
    #[error("pool `{pool}`: cannot find out about NUMA nodes")]
    Topology {
        /// The pool.
        pool: String,
        /// The reason why the topology is unknown.
        #[source]
        source: TopologyError,
    },
    /// A time of the monitor is zero.
    #[error("monitor: `{what}` is zero: give it at least 1 ms")]
    MonitorZero {
        /// Which one.
        what: &'static str,
    },
    /// A runtime has one monitor at most.
    #[error("the runtime has a monitor already")]
    Monitored,
    /// The system refused the monitor its thread.
    #[error("cannot start the thread of the monitor{}", advice(.source))]
    Monitor {
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// The runtime has been shut down.
    #[error("xstream `{xstream}`: the runtime has shut down")]
    ShutDown {
        /// The xstream.
        xstream: String,
    },
    /// The system refused what an xstream needs.
    #[error("xstream `{xstream}`: cannot {what}{}", advice(.source))]
    System {
        /// The xstream.
        xstream: String,
        /// The step that failed, for example "start its thread".
        what: &'static str,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
}

/// Returns advice for the reader of a refusal by the system, which is the source of the error.
fn advice(refused: &io::Error) -> &'static str {
    match refused.raw_os_error() {
        Some(libc::EAGAIN) => {
            " (raise the limit on threads: ulimit -u, pids.max of the control group, \
             kernel.threads-max; or use fewer xstreams)"
        }
        Some(libc::EMFILE) => " (raise the limit on open descriptors: ulimit -n)",
        Some(libc::ENFILE) => " (raise the system's limit on open files: fs.file-max)",
        Some(libc::ENOMEM) => " (memory or address space is short: see ulimit -v)",
        _ => "",
    }
}

fn of_pool(pool: Option<&str>) -> String {
    pool.map_or_else(|| "for the runtime".to_owned(), |pool| format!("for pool `{pool}`"))
}

/// The reason why a recording did not start.
///
/// ```
/// use ult::{RecordError, RecordOptions};
///
/// # use ult::{PoolSpec, Runtime, XstreamSpec};
/// # let runtime = Runtime::builder()
/// #     .pool(PoolSpec::new("main"))
/// #     .xstream(XstreamSpec::new("x0").pools(["main"]))
/// #     .start()?;
/// # let pool = runtime.pool("main").expect("defined above");
/// let options = RecordOptions::new().events_per_xstream(1023);
/// let recording = runtime.record(&options)?;
/// assert_eq!(runtime.record(&options).err(), Some(RecordError::AlreadyRecording));
/// drop(recording);
/// assert!(runtime.record(&options).is_ok());
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// There is one already.
    #[error("this runtime is being recorded already: stop that recording first")]
    AlreadyRecording,
}

/// The reason why a unit was not spawned. Its closure has been dropped.
///
/// ```
/// use ult::SpawnError;
///
/// # use ult::{PoolSpec, Runtime, XstreamSpec};
/// # let runtime = Runtime::builder()
/// #     .pool(PoolSpec::new("main"))
/// #     .xstream(XstreamSpec::new("x0").pools(["main"]))
/// #     .start()?;
/// # let pool = runtime.pool("main").expect("defined above");
/// runtime.shutdown()?;
/// match pool.spawn(|| 42) {
///     Err(SpawnError::ShutDown { pool }) => assert_eq!(pool, "main"),
///     Err(SpawnError::NoMemory { .. }) => panic!("too many units wait"),
///     other => panic!("{other:?}"),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpawnError {
    /// The runtime of this pool has shut down, or is about to.
    #[error("cannot spawn into pool `{pool}`: its runtime has shut down")]
    ShutDown {
        /// The pool.
        pool: String,
    },
    /// A unit is revived in the runtime that it belongs to.
    #[error("cannot revive a unit in pool `{pool}`: the pool belongs to another runtime")]
    OtherRuntime {
        /// The pool.
        pool: String,
    },
    /// The pool has been removed.
    #[error("cannot spawn into pool `{pool}`: it has been removed from its runtime")]
    Removed {
        /// The pool.
        pool: String,
    },
    /// There is no memory for one more unit that waits. Units that end make room for others.
    #[error(
        "cannot spawn into pool `{pool}`: no memory for a unit; let fewer wait at a time, or raise \
         the limit that is reached: memory, address space of the process (RLIMIT_AS, ulimit -v), \
         or mappings (vm.max_map_count)"
    )]
    NoMemory {
        /// The pool.
        pool: String,
    },
}

/// The reason why a change of pools and xstreams was refused.
///
/// ```
/// use ult::LayoutError;
///
/// # use ult::{PoolSpec, Runtime, XstreamSpec};
/// # let runtime = Runtime::builder()
/// #     .pool(PoolSpec::new("main"))
/// #     .xstream(XstreamSpec::new("x0").pools(["main"]))
/// #     .start()?;
/// # let pool = runtime.pool("main").expect("defined above");
/// match runtime.remove_pool(&pool) {
///     Err(LayoutError::Served { xstream, .. }) => assert_eq!(xstream, "x0"),
///     Err(LayoutError::NotEmpty { units, .. }) => panic!("{units} units have not ended"),
///     other => panic!("{other:?}"),
/// }
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// The pool is part of another runtime.
    #[error("pool `{pool}` belongs to another runtime")]
    OtherRuntime {
        /// The pool.
        pool: String,
    },
    /// An xstream serves the pool.
    #[error("pool `{pool}` is served by xstream `{xstream}`: give that xstream other pools first")]
    Served {
        /// The pool.
        pool: String,
        /// One of the xstreams that serve it.
        xstream: String,
    },
    /// The pool has been removed.
    #[error("pool `{pool}` has been removed already")]
    Removed {
        /// The pool.
        pool: String,
    },
    /// The time was over before an xstream that has served the pool let go of it.
    #[error(
        "pool `{pool}` is still held by xstream `{xstream}`, which has served it and lets go of it \
         between two units: one has run there all the time; try again when that has ended or waits"
    )]
    Held {
        /// The pool.
        pool: String,
        /// The xstream.
        xstream: String,
    },
    /// The pool has units that would never run.
    #[error(
        "pool `{pool}` has {units} units that have not ended: wait for them, move them to another \
         pool, or let another xstream serve it"
    )]
    NotEmpty {
        /// The pool.
        pool: String,
        /// Number of units.
        units: usize,
    },
    /// The caller is a unit of the xstream that it wants to end.
    #[error(
        "xstream `{xstream}` cannot be joined by one of its own units: it would wait for itself"
    )]
    OwnXstream {
        /// The xstream.
        xstream: String,
    },
    /// The xstream runs, and should not.
    #[error("xstream `{xstream}` is running: join it first")]
    Running {
        /// The xstream.
        xstream: String,
    },
    /// The xstream is the thread that called `RuntimeBuilder::run`.
    #[error("xstream `{xstream}` is the primary one and ends with its runtime")]
    Primary {
        /// The xstream.
        xstream: String,
    },
    /// The xstream has been removed, or its runtime has shut down.
    #[error("xstream `{xstream}` has been removed, or its runtime has shut down")]
    Gone {
        /// The xstream.
        xstream: String,
    },
    /// The time was over before the xstream could leave.
    #[error("xstream `{xstream}` is still busy: {ults} ULTs call it home, and {units} units wait")]
    Busy {
        /// The xstream.
        xstream: String,
        /// Number of ULTs that have started there and not ended.
        ults: usize,
        /// Number of units in pools that only it serves.
        units: usize,
    },
    /// The description does not work.
    #[error(transparent)]
    Start(#[from] StartError),
}

/// The reason why a unit stays in its pool.
///
/// ```
/// use ult::{MigrateError, PoolSpec};
///
/// # use ult::{Runtime, XstreamSpec};
/// # let runtime = Runtime::builder()
/// #     .pool(PoolSpec::new("main"))
/// #     .xstream(XstreamSpec::new("x0").pools(["main"]))
/// #     .start()?;
/// # let pool = runtime.pool("main").expect("defined above");
/// let other = runtime.add_pool(PoolSpec::new("other"))?;
/// // No xstream serves `other`, so the ULT stays in its pool.
/// let target = other.clone();
/// match pool.spawn(move || ult::set_pool(&target))?.join()? {
///     Err(MigrateError::NotServed { xstream, .. }) => assert_eq!(xstream, "x0"),
///     other => panic!("{other:?}"),
/// }
/// // And this thread is no ULT.
/// assert!(matches!(ult::set_pool(&other), Err(MigrateError::NotUlt { .. })));
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MigrateError {
    /// The pool is part of another runtime.
    #[error("cannot move to pool `{pool}`: it belongs to another runtime")]
    OtherRuntime {
        /// The pool.
        pool: String,
    },
    /// The pool has been removed.
    #[error("cannot move to pool `{pool}`: it has been removed")]
    Removed {
        /// The pool.
        pool: String,
    },
    /// The caller is no ULT.
    #[error("cannot move to pool `{pool}`: the caller is no ULT")]
    NotUlt {
        /// The pool.
        pool: String,
    },
    /// The ULT has ended, and only drops an outcome whose handle went away meanwhile.
    #[error("cannot move to pool `{pool}`: the ULT has ended, and only drops its outcome")]
    Ended {
        /// The pool.
        pool: String,
    },
    /// A ULT stays on its xstream, and that does not serve the pool.
    #[error(
        "cannot move to pool `{pool}`: xstream `{xstream}`, where the ULT has started, does not \
         serve it, and only ULTs of `spawn_migratable` change their xstream"
    )]
    NotServed {
        /// The pool.
        pool: String,
        /// The home of the ULT.
        xstream: String,
    },
}

/// The reason why a unit cannot be switched to; it is given back. See
/// [`yield_to`](crate::yield_to).
///
/// ```
/// use ult::{PoolSpec, ToError};
///
/// # use ult::{Runtime, XstreamSpec};
/// # let runtime = Runtime::builder()
/// #     .pool(PoolSpec::new("main"))
/// #     .xstream(XstreamSpec::new("x0").pools(["main"]))
/// #     .start()?;
/// # let pool = runtime.pool("main").expect("defined above");
/// let spare = runtime.add_pool(PoolSpec::new("spare"))?;
/// let worker = spare.spawn(|| 42)?;
/// let unit = spare.pop().expect("no xstream takes it");
/// // Only a ULT can switch to a unit. The error gives it back, and it runs from a pool.
/// let error = ult::yield_to(unit).unwrap_err();
/// assert!(matches!(error, ToError::NotUlt(_)));
/// pool.push(error.into_unit()).map_err(|(_, error)| error)?;
/// assert_eq!(worker.join()?, 42);
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ToError {
    /// The caller is an OS thread, a tasklet, or unwinds.
    #[error("only a ULT can switch to a unit; the caller is a thread or a tasklet, or it unwinds")]
    NotUlt(Unit),
    /// The unit belongs to another runtime.
    #[error("the unit belongs to another runtime")]
    OtherRuntime(Unit),
    /// The unit has started on another xstream and stays there.
    #[error("the unit has started on another xstream and runs only there")]
    OtherXstream(Unit),
}

impl ToError {
    /// The unit.
    pub fn into_unit(self) -> Unit {
        match self {
            Self::NotUlt(unit) | Self::OtherRuntime(unit) | Self::OtherXstream(unit) => unit,
        }
    }
}

/// The reason why `join` has no value to return.
///
/// ```
/// use ult::JoinError;
///
/// # use ult::{PoolSpec, Runtime, XstreamSpec};
/// # let runtime = Runtime::builder()
/// #     .pool(PoolSpec::new("main"))
/// #     .xstream(XstreamSpec::new("x0").pools(["main"]))
/// #     .start()?;
/// # let pool = runtime.pool("main").expect("defined above");
/// let panics = pool.spawn(|| -> u32 { panic!("no answer") })?;
/// match panics.join() {
///     Ok(value) => println!("{value}"),
///     Err(JoinError::Panicked(panic)) => assert_eq!(panic.message(), "no answer"),
///     Err(error) => panic!("{error}"),
/// }
/// let waits = pool.spawn(ult::park)?;
/// waits.cancel();
/// assert!(matches!(waits.join(), Err(JoinError::Cancelled)));
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// The ULT panicked.
    #[error("the ULT panicked: {}", .0.message())]
    Panicked(PanicPayload),
    /// The ULT never started: its pool dropped it.
    #[error("the ULT was dropped before it started")]
    Lost,
    /// It was cancelled ([`JoinHandle::cancel`](crate::JoinHandle::cancel)) and has been unwound,
    /// or had not started.
    #[error("the unit was cancelled")]
    Cancelled,
    /// It ended with [`exit`](crate::exit), without a value.
    #[error("the unit ended with `exit`, without a value")]
    Exited,
    /// The system had no memory for its stack when it was about to start.
    #[error(
        "the ULT could not start: no memory for a stack of {bytes} bytes; lower stack_bytes, or \
         see ulimit -v, vm.max_map_count and vm.overcommit_memory"
    )]
    NoStack {
        /// Size of the stack.
        bytes: usize,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// A ULT tried to join itself, and would have waited forever.
    #[error("a ULT cannot join itself")]
    Deadlock,
}

/// The payload of the panic that ended a ULT.
///
/// A payload whose destructor panics is dropped with this all the same, see
/// [`discard_panic`].
///
/// ```
/// use ult::JoinError;
///
/// # use ult::{PoolSpec, Runtime, XstreamSpec};
/// # let runtime = Runtime::builder()
/// #     .pool(PoolSpec::new("main"))
/// #     .xstream(XstreamSpec::new("x0").pools(["main"]))
/// #     .start()?;
/// # let pool = runtime.pool("main").expect("defined above");
/// let panics = pool.spawn(|| -> u32 { panic!("no answer") })?;
/// if let Err(JoinError::Panicked(panic)) = panics.join() {
///     assert_eq!(panic.message(), "no answer");
///     // Or `std::panic::resume_unwind(panic.into_inner())`.
///     assert!(panic.into_inner().is::<&str>());
/// }
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct PanicPayload(Option<Panic>);

impl PanicPayload {
    pub(crate) fn new(panic: Panic) -> Self {
        Self(Some(panic))
    }

    /// The message of `panic!`, or a placeholder if the payload is not a string.
    #[must_use]
    pub fn message(&self) -> &str {
        self.0.as_ref().map_or("", panic_message)
    }

    /// The payload, to be passed to [`std::panic::resume_unwind`] for example.
    #[must_use]
    pub fn into_inner(mut self) -> Box<dyn std::any::Any + Send + 'static> {
        // It is taken here and by the destructor only.
        self.0.take().unwrap_or_else(|| Box::new(()))
    }
}

impl Drop for PanicPayload {
    fn drop(&mut self) {
        if let Some(panic) = self.0.take() {
            discard_panic(panic);
        }
    }
}

impl fmt::Debug for PanicPayload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PanicPayload").field(&self.message()).finish()
    }
}

// `Any` is not `Sync`, but shared access only reads strings, which are.
//
// SAFETY: `&PanicPayload` gives out `&str` from a `&'static str` or `String` payload, nothing else.
unsafe impl Sync for PanicPayload {}

/// The reason why a runtime did not shut down. It is still running, accepts spawns, and can be
/// asked again.
///
/// ```
/// use std::time::Duration;
/// use ult::ShutdownError;
///
/// # use ult::{PoolSpec, Runtime, XstreamSpec};
/// # let runtime = Runtime::builder()
/// #     .pool(PoolSpec::new("main"))
/// #     .xstream(XstreamSpec::new("x0").pools(["main"]))
/// #     .start()?;
/// # let pool = runtime.pool("main").expect("defined above");
/// # let go = std::sync::Arc::new(ult::Eventual::<()>::new());
/// # let waits = go.clone();
/// # let waiter = pool.ult().name("waiter").spawn(move || waits.wait_ready())?;
/// # // It runs behind the other one, which waits by then.
/// # pool.spawn(|| ())?.join()?;
/// // A ULT waits for what does not come in time.
/// match runtime.shutdown_timeout(Duration::from_millis(1)) {
///     Err(ShutdownError::StillAlive(left)) => println!("{left}"),
///     other => panic!("{other:?}"),
/// }
/// let own = runtime.clone();
/// let inside = pool.spawn(move || own.shutdown())?.join()?;
/// assert!(matches!(inside, Err(ShutdownError::FromUlt)));
/// # go.set(()).expect("set once");
/// # waiter.join()?;
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShutdownError {
    /// Called by one of the runtime's own ULTs, which would wait for itself.
    #[error("shutdown was called by a ULT of the same runtime: call it from another thread")]
    FromUlt,
    /// ULTs were still alive at the end of the allowed time.
    #[error("{0}")]
    StillAlive(Box<StillAlive>),
}

/// The units and xstreams that were still alive when a shutdown gave up.
///
/// ```
/// use std::time::Duration;
/// use ult::{ShutdownError, WaitKind};
///
/// # use ult::{PoolSpec, Runtime, XstreamSpec};
/// # let runtime = Runtime::builder()
/// #     .pool(PoolSpec::new("main"))
/// #     .xstream(XstreamSpec::new("x0").pools(["main"]))
/// #     .start()?;
/// # let pool = runtime.pool("main").expect("defined above");
/// # let go = std::sync::Arc::new(ult::Eventual::<()>::new());
/// # let waits = go.clone();
/// # let waiter = pool.ult().name("waiter").spawn(move || waits.wait_ready())?;
/// # // It runs behind the other one, which waits by then.
/// # pool.spawn(|| ())?.join()?;
/// // A ULT waits for what does not come in time.
/// let error = runtime.shutdown_timeout(Duration::from_millis(1)).unwrap_err();
/// let ShutdownError::StillAlive(left) = error else { panic!("{error}") };
/// assert_eq!((left.suspended.len(), left.queued), (1, 0));
/// assert_eq!(left.suspended[0].waits_for, Some(WaitKind::Eventual));
/// # go.set(()).expect("set once");
/// # waiter.join()?;
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct StillAlive {
    /// ULTs that had started and not finished.
    pub suspended: Vec<StuckUlt>,
    /// Number of ULTs that had not started.
    pub queued: usize,
    /// Xstreams that did not answer because a ULT on them neither yields nor suspends. What they
    /// hold is not in the other lists.
    pub busy_xstreams: Vec<String>,
    /// Another shutdown of the same runtime was still in progress, and nothing was examined.
    pub in_progress: bool,
}

impl fmt::Display for StillAlive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 8;
        if self.in_progress {
            return f.write_str("another shutdown of this runtime is still in progress");
        }
        if self.suspended.is_empty() && self.queued == 0 && self.busy_xstreams.is_empty() {
            return f
                .write_str("shutdown gave up: the limit passed before all xstreams had stopped");
        }
        write!(f, "shutdown gave up: {} ULTs still suspended", self.suspended.len())?;
        for (at, ult) in self.suspended.iter().take(SHOWN).enumerate() {
            write!(f, "{} {ult}", if at == 0 { ":" } else { "," })?;
        }
        if self.suspended.len() > SHOWN {
            write!(f, " and {} more", self.suspended.len() - SHOWN)?;
        }
        if self.queued > 0 {
            write!(f, "; {} ULTs not started", self.queued)?;
        }
        if !self.busy_xstreams.is_empty() {
            write!(f, "; no answer from xstreams that run a ULT which never yields: ")?;
            write!(f, "{}", self.busy_xstreams.join(", "))?;
        }
        Ok(())
    }
}
