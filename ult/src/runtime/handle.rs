//! A running runtime, seen by its user.

use std::fmt;

use crate::engine::error::SpawnError;
use crate::engine::model::runtime_core::RuntimeCore;
use crate::engine::pool::handle::PoolRef;
use crate::runtime::xstream_ref::XstreamRef;
use crate::spawn::join::JoinHandle;
use crate::sync::Arc;
use crate::sync::atomic::Ordering::Relaxed;
use crate::topology::CpuSet;
use crate::wait::mutex::Mutex;

/// Xstreams, their pools, and the ULTs in them. Cheap to clone.
///
/// End it with [`shutdown`](Self::shutdown). If the last clone is dropped without, nothing hangs
/// and nothing is lost: the ULTs go on, and a helper thread waits for the last of them, then ends
/// the xstreams. Spawns through a [`PoolRef`] work until then. ULTs that never end keep their
/// (sleeping) threads and memory until the process ends.
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
