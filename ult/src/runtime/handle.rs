//! A running runtime, seen by its user.

use std::fmt;
use std::time::Duration;

use crate::base::limit::Limit;
use crate::engine::error::{LayoutError, SpawnError, StartError};
use crate::engine::helpers::BlockingStats;
use crate::engine::model::interfaces::own;
use crate::engine::model::runtime_core::{EXIT, RuntimeCore};
use crate::engine::pool::handle::PoolRef;
use crate::engine::pool::spec::PoolSpec;
use crate::engine::run::sched::BasicWait;
use crate::runtime::layout::{close_pool, make_xstream, retire_pool, set_pools};
use crate::runtime::specs::{XstreamSpec, check_pool};
use crate::runtime::xstream_ref::XstreamRef;
use crate::runtime::xstream_thread;
use crate::spawn::join::JoinHandle;
use crate::sync::Arc;
use crate::sync::atomic::Ordering::{Acquire, Relaxed};
use crate::topology::CpuSet;
use crate::wait::mutex::Mutex;

/// Xstreams, their pools, and the ULTs in them. Cheap to clone.
///
/// End it with [`shutdown`](Self::shutdown). If the last clone is dropped without, nothing hangs
/// and nothing is lost: the ULTs go on, and a helper thread waits for the last of them, then ends
/// the xstreams. Spawns through a [`PoolRef`] work until then. ULTs that never end keep their
/// (sleeping) threads and memory until the process ends.
///
/// ```
/// use ult::{PoolSpec, Runtime, XstreamSpec};
///
/// let runtime = Runtime::builder()
///     .pool(PoolSpec::new("main"))
///     .xstream(XstreamSpec::new("x0").pools(["main"]))
///     .start()?;
/// let pool = runtime.pool("main").expect("defined above");
/// assert_eq!(pool.spawn(|| 6 * 7)?.join()?, 42);
/// runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Counterpart: the state between `ABT_init` and `ABT_finalize`, but not global: a process may have
/// several.
#[derive(Clone)]
pub struct Runtime {
    pub(crate) owner: Arc<Owner>,
}

/// State that all clones of a `Runtime` share; its `drop` is in
/// [`shutdown`](crate::runtime::shutdown).
pub(crate) struct Owner {
    pub(crate) core: Arc<RuntimeCore>,
    pub(crate) turn: Mutex<ShutdownState>,
}

/// State of shutdown, see [`shutdown`](crate::runtime::shutdown).
#[derive(Default)]
pub(crate) struct ShutdownState {
    pub(crate) in_progress: bool,
    pub(crate) is_done: bool,
}

/// Limit of [`Runtime::remove_pool`].
const REMOVE_LIMIT: Duration = Duration::from_secs(30);

impl Runtime {
    pub(crate) fn new(core: Arc<RuntimeCore>) -> Self {
        Self { owner: Arc::new(Owner { core, turn: Mutex::default() }) }
    }

    fn core(&self) -> &Arc<RuntimeCore> {
        &self.owner.core
    }

    /// The pool with this name.
    #[must_use]
    pub fn pool(&self, name: &str) -> Option<PoolRef> {
        self.pools().into_iter().find(|pool| pool.name() == name)
    }

    /// All pools, in the order in which they were described or added.
    #[must_use]
    pub fn pools(&self) -> Vec<PoolRef> {
        let core = self.core();
        core.pools().into_iter().map(|pool| PoolRef { core: core.clone(), pool }).collect()
    }

    /// Returns whether the pool is of this runtime, also if it has been removed from it.
    #[must_use]
    pub fn has_pool(&self, pool: &PoolRef) -> bool {
        Arc::ptr_eq(self.core(), &pool.core)
    }

    /// Name of the xstream with that [`index`](XstreamRef::index), also of one that was removed.
    #[must_use]
    pub fn xstream_name(&self, index: usize) -> Option<String> {
        let parts = crate::sync::lock(&self.owner.core.parts);
        parts.xstreams.get(index).map(|xstream| xstream.name.to_string())
    }

    /// The xstream with this name.
    #[must_use]
    pub fn xstream(&self, name: &str) -> Option<XstreamRef> {
        self.xstreams().into_iter().find(|xstream| xstream.name() == name)
    }

    /// All xstreams, in the order in which they were described or added, also those that have
    /// been joined.
    #[must_use]
    pub fn xstreams(&self) -> Vec<XstreamRef> {
        let core = self.core();
        core.xstreams().into_iter().map(|x| XstreamRef::new(core.clone(), x)).collect()
    }

    /// Adds a pool. No xstream serves it yet: spawns into it wait until one does
    /// ([`add_xstream`](Self::add_xstream), [`XstreamRef::set_scheduler`]).
    ///
    /// # Errors
    ///
    /// [`StartError::DuplicatePool`] and the other errors about pools.
    ///
    /// Counterpart: `ABT_pool_create`.
    pub fn add_pool(&self, spec: PoolSpec) -> Result<PoolRef, StartError> {
        let core = &self.owner.core;
        core.sweep_pools();
        let _one_at_a_time = core.lock_layout();
        check_pool(&spec)?;
        if core.pools().iter().any(|pool| *pool.name == *spec.name) {
            return Err(StartError::DuplicatePool { pool: spec.name });
        }
        let pool = core.add_pool(|index| spec.build(index, core.class.bytes()));
        Ok(PoolRef { core: core.clone(), pool })
    }

    /// Removes a pool that no xstream serves and that has no units. Spawns into it fail from then
    /// on.
    ///
    /// An xstream that has served it lets go of it between two units. This waits for that, for at
    /// most 30 s, unless it is the caller's own xstream: that lets go at once. A tasklet of
    /// another xstream blocks that one meanwhile.
    ///
    /// Of the pool stay its name and counters (less than 1 KiB), until the runtime ends. The queue
    /// of a [custom](PoolSpec::custom) one is dropped when there is no handle to the pool any more,
    /// by the next call of this or of [`add_pool`](Self::add_pool); if an xstream was about to
    /// leave at the time of the removal, perhaps not before that is revived or removed.
    ///
    /// # Errors
    ///
    /// [`LayoutError`] if it is served, or not empty, or has been removed before, or if an xstream
    /// has run one unit all the time and still holds it ([`LayoutError::Held`]). Nothing has
    /// changed then.
    ///
    /// Counterpart: `ABT_pool_free`.
    pub fn remove_pool(&self, pool: &PoolRef) -> Result<(), LayoutError> {
        self.remove_pool_within(pool, Limit::new(REMOVE_LIMIT))
    }

    pub(super) fn remove_pool_within(
        &self,
        target: &PoolRef,
        mut limit: Limit,
    ) -> Result<(), LayoutError> {
        let (core, pool) = (&self.owner.core, &target.pool);
        if !Arc::ptr_eq(core, &target.core) {
            return Err(LayoutError::OtherRuntime { pool: target.name().to_owned() });
        }
        core.sweep_pools();
        loop {
            let one_at_a_time = core.lock_layout();
            match close_pool(core, pool) {
                Ok(books) => {
                    retire_pool(core, pool, books);
                    return Ok(());
                }
                Err(LayoutError::Held { .. }) if !limit.is_over() => {}
                Err(error) => return Err(error),
            }
            // What its owner runs may want the lock, and block the owner.
            drop(one_at_a_time);
            // With an heir it is served again.
            let has_changed = || {
                // pair: POOL-OWNER
                pool.owner.load(Acquire).is_null() || !pool.heir.load(Relaxed).is_null()
            };
            core.news.wait_until(&mut limit, has_changed);
        }
    }

    /// Starts another xstream.
    ///
    /// # Errors
    ///
    /// See [`StartError`]. Nothing has changed then.
    ///
    /// Counterpart: `ABT_xstream_create`.
    pub fn add_xstream(&self, mut spec: XstreamSpec) -> Result<XstreamRef, StartError> {
        let core = &self.owner.core;
        let _one_at_a_time = core.lock_layout();
        if self.is_shut_down() {
            return Err(StartError::ShutDown { xstream: spec.name });
        }
        let scheduler = spec.scheduler.take().unwrap_or_else(|| Box::new(BasicWait::new()));
        let xstream = make_xstream(core, &spec, None)?;
        drop(xstream.put_scheduler(own(scheduler)));
        let (_, word) = core.phase();
        xstream.see(word);
        // It looks at the flags that came with the word before it does anything else.
        xstream.signal();
        if let Err(error) = xstream_thread::start(core, &xstream) {
            set_pools(core, &xstream, Vec::new());
            core.forget_xstream(&xstream);
            return Err(error);
        }
        let (flags, _) = core.phase();
        if flags & EXIT != 0 {
            // The shutdown may have joined the threads before it knew this one.
            xstream_thread::join(&xstream);
            return Err(StartError::ShutDown { xstream: spec.name });
        }
        Ok(XstreamRef::new(core.clone(), xstream))
    }

    /// Spawns a ULT into `pool`; the same as [`PoolRef::spawn`].
    ///
    /// # Errors
    ///
    /// See [`SpawnError`]; `f` has then been dropped.
    pub fn spawn<F, T>(&self, pool: &PoolRef, f: F) -> Result<JoinHandle<T>, SpawnError>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        pool.spawn(f)
    }

    /// The processors that its xstreams may use: those of the thread that started it. An OS thread
    /// that an xstream starts has only that xstream's, until it binds itself to these.
    #[must_use]
    pub fn cpus(&self) -> &CpuSet {
        &self.core().cpus
    }

    /// Counts of the threads for [`blocking`](crate::blocking()) and of their work. A snapshot;
    /// zeros in a child process that was forked off.
    #[must_use]
    pub fn blocking_stats(&self) -> BlockingStats {
        self.core().helpers.stats()
    }

    /// Number of stacks that exist now, in use or kept for reuse.
    #[must_use]
    pub fn stacks(&self) -> usize {
        self.core().xstreams().iter().map(|xstream| xstream.stacks.load(Relaxed)).sum()
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime")
            .field("xstreams", &self.xstreams())
            .field("pools", &self.pools())
            .finish_non_exhaustive()
    }
}
