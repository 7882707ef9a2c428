//! Starts a runtime from its description.
//!
//! Everything is checked before anything is started. Then each xstream's thread sets itself up and
//! reports ([`xstream_thread`]); if one fails, those that run
//! already are told to leave, and joined.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Once, mpsc};
use std::time::Duration;

use crate::base::contain::{Panic, log, set_aside};
use crate::base::unwind::{Unwind, without_unwinding};
use crate::engine::error::StartError;
use crate::engine::model::interfaces::own;
use crate::engine::model::runtime_core::RuntimeCore;
use crate::engine::model::xstream_shared::XstreamShared;
use crate::engine::pool::handle::PoolRef;
use crate::engine::pool::spec::PoolSpec;
use crate::engine::run::sched::BasicWait;
use crate::engine::run::stack_overflow;
use crate::engine::xstream::budget::SPIN_MAX_DEFAULT;
use crate::engine::xstream::current;
use crate::runtime::handle::Runtime;
use crate::runtime::specs::{XstreamSpec, check_pool};
use crate::runtime::{layout, xstream_thread};
use crate::stack::memory::{STACK_BYTES_DEFAULT, StackClass};
use crate::sync::{Arc, lock};
use crate::topology::{AffinityPattern, CpuSet, current_binding};
use prim::standard::keep_standard_descriptors;

/// Idle stacks per xstream.
const STACK_CACHE_MAX_DEFAULT: usize = 64;
/// Threads for closures of `blocking`.
const BLOCKING_THREADS_MAX_DEFAULT: usize = 64;

/// An observer that starts with the runtime, before its xstreams do.
pub(crate) trait StartsWith: fmt::Debug + Send + Sync {
    /// Starts it. An error ends the start of the runtime.
    fn start(self: Box<Self>, core: &Arc<RuntimeCore>) -> Result<(), StartError>;
}

/// Collects the description of a runtime. Nothing is started before [`start`](Self::start).
///
/// ```
/// use ult::{PoolSpec, Runtime, XstreamSpec};
///
/// let builder = Runtime::builder()
///     .stack_bytes(64 * 1024)
///     .pool(PoolSpec::new("main"))
///     .pool(PoolSpec::new("background"))
///     .xstream(XstreamSpec::new("x0").pools(["main"]))
///     .xstream(XstreamSpec::new("x1").pools(["main", "background"]));
/// // The calling thread becomes `x0`, and the closure a ULT of its first pool.
/// let pools = builder.run(|runtime| runtime.pools().len())?;
/// assert_eq!(pools, 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "a builder does nothing until `start` is called"]
pub struct RuntimeBuilder {
    pools: Vec<PoolSpec>,
    xstreams: Vec<XstreamSpec>,
    stack_bytes: usize,
    stack_cache_max: usize,
    spin_max: Duration,
    blocking_threads_max: usize,
    affinity: Option<AffinityPattern>,
    pub(crate) monitor: Option<Box<dyn StartsWith>>,
}

impl Runtime {
    /// Starts a description. See [`RuntimeBuilder`].
    pub fn builder() -> RuntimeBuilder {
        RuntimeBuilder::new()
    }
}

impl RuntimeBuilder {
    fn new() -> Self {
        Self {
            pools: Vec::new(),
            xstreams: Vec::new(),
            stack_bytes: STACK_BYTES_DEFAULT,
            stack_cache_max: STACK_CACHE_MAX_DEFAULT,
            spin_max: SPIN_MAX_DEFAULT,
            blocking_threads_max: BLOCKING_THREADS_MAX_DEFAULT,
            affinity: None,
            monitor: None,
        }
    }

    /// Adds a pool.
    pub fn pool(mut self, spec: PoolSpec) -> Self {
        self.pools.push(spec);
        self
    }

    /// Adds an xstream.
    pub fn xstream(mut self, spec: XstreamSpec) -> Self {
        self.xstreams.push(spec);
        self
    }

    /// Stack size in bytes of ULTs for which neither the spawn nor the pool says another. Virtual:
    /// memory is used as far as a ULT reaches down. Rounded up to whole pages, at least 16 KiB.
    /// Default 2 MiB.
    pub fn stack_bytes(mut self, bytes: usize) -> Self {
        self.stack_bytes = bytes;
        self
    }

    /// Idle stacks kept per xstream. Default 64. Up to 32 times as many are kept as long as they
    /// are used, so that ULTs which come and go in waves find one; what exceeds that goes back to
    /// the system at once, and what nobody has used for a second or two soon after, whether the
    /// xstream is idle or busy. `abt_mem_max_num_stacks` in a Margo configuration.
    pub fn stack_cache_max(mut self, count: usize) -> Self {
        self.stack_cache_max = count;
        self
    }

    /// Longest time that an xstream with nothing to do spins before it sleeps. The time adapts
    /// below this cap. Default 20 us, which is about what a wake-up costs; zero never spins, and is
    /// the default if the process has only one processor.
    pub fn spin_max(mut self, limit: Duration) -> Self {
        self.spin_max = limit;
        self
    }

    /// Most threads that run closures of [`blocking`](crate::blocking()) at once; further closures
    /// wait, and with them their ULTs. Default 64; at least 1. Threads exist while they are needed
    /// and for ten seconds after.
    pub fn blocking_threads_max(mut self, count: usize) -> Self {
        self.blocking_threads_max = count;
        self
    }

    /// Binds xstreams that say nothing themselves by a pattern: the xstream of rank *k* gets the
    /// pattern's *k*-th entry, and the first one again after the last.
    ///
    /// Counterpart: `ABT_SET_AFFINITY` in the environment.
    pub fn affinity(mut self, pattern: AffinityPattern) -> Self {
        self.affinity = Some(pattern);
        self
    }

    /// Starts the xstreams.
    ///
    /// # Errors
    ///
    /// See [`StartError`]. Nothing is left running.
    ///
    /// Counterpart: `ABT_init`.
    pub fn start(self) -> Result<Runtime, StartError> {
        let (core, xstreams) = self.prepare()?;
        start_threads(&core, &xstreams)?;
        Ok(Runtime::new(core))
    }

    /// Starts the xstreams, the first of which is the calling thread, and runs `f` there as a ULT
    /// in its first pool. Returns what `f` returns, after everything has ended as with
    /// [`Runtime::shutdown`], without a limit.
    ///
    /// In `f` and in what it calls, `main` is a ULT like any other: it suspends when it waits. `f`
    /// need not shut the runtime down. The thread gets its former processors back in the end.
    ///
    /// # Errors
    ///
    /// See [`StartError`]; `f` has not run then.
    ///
    /// # Panics
    ///
    /// With the panic of `f`, after everything has ended. Also if it is called by a ULT or
    /// tasklet, whose thread is an xstream already.
    ///
    /// Counterpart: the primary execution stream of `ABT_init`, `__primary__` in a Margo
    /// configuration.
    pub fn run<F, T>(self, f: F) -> Result<T, StartError>
    where
        F: FnOnce(&Runtime) -> T + Send + 'static,
        T: Send + 'static,
    {
        assert!(
            current::xstream().is_none(),
            "`RuntimeBuilder::run` was called on an xstream; use `start`"
        );
        let (core, xstreams) = self.prepare()?;
        let (primary, others) = xstreams.split_first().expect("checked: there is one");
        start_threads(&core, others)?;
        let before = current_binding();
        let result = match xstream_thread::set_up(&core, primary) {
            Ok(guard) => {
                let result = run_primary(&core, primary, f);
                drop(guard);
                Ok(result)
            }
            Err(error) => {
                xstream_thread::stop_all(&core);
                Err(error)
            }
        };
        if let Ok(before) = before {
            // It was in force before, so it can be again, unless the administrator has changed it.
            let _ = crate::topology::bind_this_thread(&before);
        }
        match result? {
            Ok(value) => Ok(value),
            Err(unwind) if unwind.is::<Unwind>() => {
                panic!("`ult::exit` was called in the closure of `RuntimeBuilder::run`")
            }
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    /// Checks everything and makes all parts; nothing runs yet.
    fn prepare(self) -> Result<(Arc<RuntimeCore>, Vec<Arc<XstreamShared>>), StartError> {
        let allowed = allowed_cpus();
        self.check()?;
        keep_standard_descriptors();
        stack_overflow::install();
        let spin_max = if allowed.len() > 1 { self.spin_max } else { Duration::ZERO };
        let class = StackClass::new(self.stack_bytes, None);
        set_aside(|code| current::in_no_unit(code));
        let blocking = self.blocking_threads_max;
        let core = RuntimeCore::new(spin_max, self.stack_cache_max, class, allowed, blocking);
        let core = Arc::new(core);
        match self.fill(&core) {
            Ok(xstreams) => Ok((core, xstreams)),
            Err(error) => {
                core.bury();
                Err(error)
            }
        }
    }

    fn fill(self, core: &Arc<RuntimeCore>) -> Result<Vec<Arc<XstreamShared>>, StartError> {
        for spec in self.pools {
            core.add_pool(|index| spec.build(index, self.stack_bytes));
        }
        let mut xstreams = Vec::new();
        for mut spec in self.xstreams {
            let scheduler = spec.scheduler.take().unwrap_or_else(|| Box::new(BasicWait::new()));
            let xstream = layout::make_xstream(core, &spec, self.affinity.as_ref())?;
            drop(xstream.put_scheduler(own(scheduler)));
            xstreams.push(xstream);
        }
        match core.pools().iter().find(|pool| lock(&pool.servers).is_empty()) {
            Some(pool) => Err(StartError::UnservedPool { pool: pool.name.to_string() }),
            None => {
                if let Some(monitor) = self.monitor {
                    monitor.start(core)?;
                }
                Ok(xstreams)
            }
        }
    }

    fn check(&self) -> Result<(), StartError> {
        if self.xstreams.is_empty() {
            return Err(StartError::NoXstream);
        }
        let mut names = BTreeSet::new();
        for pool in &self.pools {
            check_pool(pool)?;
            if !names.insert(pool.name.as_str()) {
                return Err(StartError::DuplicatePool { pool: pool.name.clone() });
            }
        }
        if self.stack_bytes == 0 {
            return Err(StartError::NoStack { pool: None });
        }
        Ok(())
    }
}

/// The processors that a runtime which the caller starts may use: those of this thread, or of the
/// whole runtime if this is an xstream, which may be bound to few of them.
fn allowed_cpus() -> CpuSet {
    match current::xstream() {
        Some(here) => here.core.cpus.clone(),
        // Without an answer let the kernel judge.
        None => current_binding().unwrap_or_else(|_| (0..4096).collect()),
    }
}

/// Warns, once, if nothing unwinds in this program.
fn warn_without_unwinding() {
    static WARNED: Once = Once::new();
    if let Some(text) = without_unwinding(cfg!(panic = "abort")) {
        WARNED.call_once(|| log!(WARN, "{text}"));
    }
}

/// Starts one thread per xstream, or none.
fn start_threads(
    core: &Arc<RuntimeCore>,
    xstreams: &[Arc<XstreamShared>],
) -> Result<(), StartError> {
    warn_without_unwinding();
    for xstream in xstreams {
        if let Err(error) = xstream_thread::start(core, xstream) {
            xstream_thread::stop_all(core);
            return Err(error);
        }
    }
    Ok(())
}

/// Serves as the primary xstream on the calling thread, with `f` as its first ULT.
fn run_primary<F, T>(core: &Arc<RuntimeCore>, shared: &Arc<XstreamShared>, f: F) -> Result<T, Panic>
where
    F: FnOnce(&Runtime) -> T + Send + 'static,
    T: Send + 'static,
{
    shared.set_primary();
    let runtime = Runtime::new(core.clone());
    let first = lock(&shared.pools).first().cloned();
    let pool = PoolRef { core: core.clone(), pool: first.expect("checked: it has a pool") };
    let (outcome, outcomes) = mpsc::channel();
    let body = move || {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| f(&runtime)));
        // The runtime's end waits for all ULTs, this one as well, so somebody else waits for it.
        runtime.close_in_background();
        // The receiver is there until this thread has left its loop.
        let _ = outcome.send(result);
    };
    xstream_thread::serve(core, shared, || {
        let spawned = pool.ult().name("main").spawn_detached(body);
        debug_assert!(spawned.is_ok(), "a runtime that has just been made takes spawns");
    });
    // The end joins the threads, of which this is none.
    let result = outcomes.recv();
    result.unwrap_or_else(|_| Err(Box::new("the primary xstream ended before its first ULT")))
}
