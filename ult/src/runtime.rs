//! A running runtime, seen by its user.

use std::fmt;

use crate::builder::RuntimeBuilder;
use crate::error::SpawnError;
use crate::join::JoinHandle;
use crate::mutex::Mutex;
use crate::pool::PoolRef;
use crate::shared::RuntimeCore;
use crate::sync::{Arc, thread};

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

/// What the clones of a `Runtime` share; its `drop` is in [`shutdown`](crate::shutdown).
pub(crate) struct Owner {
    pub(crate) core: Arc<RuntimeCore>,
    pub(crate) turn: Mutex<Turn>,
}

/// State of shutdown, see [`shutdown`](crate::shutdown).
pub(crate) struct Turn {
    pub(crate) threads: Vec<thread::JoinHandle<()>>,
    pub(crate) in_progress: bool,
    pub(crate) is_done: bool,
}

impl Runtime {
    /// Starts a description. See [`RuntimeBuilder`].
    pub fn builder() -> RuntimeBuilder {
        RuntimeBuilder::new()
    }

    pub(crate) fn new(core: Arc<RuntimeCore>, threads: Vec<thread::JoinHandle<()>>) -> Self {
        let turn = Mutex::new(Turn { threads, in_progress: false, is_done: false });
        Self { owner: Arc::new(Owner { core, turn }) }
    }

    fn core(&self) -> &Arc<RuntimeCore> {
        &self.owner.core
    }

    /// The pool with this name.
    #[must_use]
    pub fn pool(&self, name: &str) -> Option<PoolRef> {
        let index = self.core().pools.iter().position(|pool| &*pool.name == name)?;
        Some(PoolRef { core: self.core().clone(), index })
    }

    /// All pools, in the order in which they were described.
    #[must_use]
    pub fn pools(&self) -> Vec<PoolRef> {
        let all = 0..self.core().pools.len();
        all.map(|index| PoolRef { core: self.core().clone(), index }).collect()
    }

    /// All xstreams, in the order in which they were described.
    #[must_use]
    pub fn xstreams(&self) -> Vec<XstreamInfo> {
        let core = self.core();
        let info = |xstream: &crate::xstream::XstreamShared| XstreamInfo {
            index: xstream.index,
            name: xstream.name.to_string(),
            pools: xstream.pools.iter().map(|pool| core.pools[*pool].name.to_string()).collect(),
            cpus: xstream.cpus.to_vec(),
        };
        core.xstreams.iter().map(info).collect()
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

    /// Number of stacks that exist now, in use or kept for reuse.
    #[must_use]
    pub fn stacks(&self) -> usize {
        self.core().depot.mapped()
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

/// What is known of an xstream; see [`Runtime::xstreams`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct XstreamInfo {
    /// Place in the description.
    pub index: usize,
    /// Name in the configuration.
    pub name: String,
    /// Pools that it serves, in the scheduler's order.
    pub pools: Vec<String>,
    /// Processors that it is bound to; empty: not bound.
    pub cpus: Vec<usize>,
}
