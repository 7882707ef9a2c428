//! Pools and xstreams of a running instance: finding, counting users, adding, removing, moving.
//!
//! [`Elastic`] is the instance's own list of them. `ult` carries out what changes; this layer
//! decides whether a change may be made:
//!
//! - **the whole document is checked again.** A change is applied to the document in effect, which
//!   then goes through the same checks as at the start ([`Config::resolve`]). So a running instance
//!   gets no layout that `init` would have refused, and the warnings that `init` would have given
//!   are logged (`change.rs`);
//! - **nothing that is used goes away.** Users are found, not counted: roles and xstreams in the
//!   list, RPCs in the registry, all others in [`PoolHold`]s. So no count can go wrong, and an
//!   error names them all;
//! - **names and indices are stable.** An index is never given to another pool or xstream, and a
//!   name only when its owner has been removed.
//!
//! # Who may touch what
//!
//! | state | lock |
//! |---|---|
//! | what may not change between a check and its consequence: users of pools, the runtime's layout | `changes`, one at a time; registering an RPC takes it too |
//! | the list itself | `table`, for the length of a look-up; never held across a call of `ult` |
//!
//! A hold is taken under `table` alone. So a pool or xstream that is to be removed is marked as
//! leaving in the section that finds no holds. Later holds are refused until it is gone, or stays
//! after all.
//!
//! An xstream that is removed leaves in its own time, which may be long; `changes` is free
//! meanwhile.
//!
//! In a child process that was forked off, either lock may be held for ever, so neither is taken
//! there: functions that can fail do so, and the others return the state of the start.

mod change;
mod error;
mod migrate;
mod print;
mod remove;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use margo_config::{Resolved, ResolvedPool, ResolvedXstream};
use na::fork::Process;
use ult::{PoolRef, Runtime, XstreamRef};

pub(crate) use self::change::{described, described_xstream};
pub use self::error::ElasticityError;
pub(crate) use self::print::Part;
use crate::Instance;

/// The owner of an instance's pools and execution streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RuntimeOwner {
    Own,
    Parent,
    Program,
}

/// The pools and xstreams of an instance.
pub(crate) struct Elastic {
    changes: ult::Mutex<()>,
    table: Mutex<Table>,
    process: Process,
}

/// See the module's documentation.
struct Table {
    pools: BTreeMap<usize, PoolEntry>,
    xstreams: BTreeMap<usize, XstreamEntry>,
    next_pool: usize,
    next_xstream: usize,
    /// Index of the pool of each context's progress ULT.
    progress: Vec<usize>,
    rpc: usize,
    copies: Option<usize>,
    /// Number of the next hold.
    next_hold: u64,
}

struct PoolEntry {
    pool: PoolRef,
    /// As in a document; of a pool with a queue of the program's own, as far as there are words.
    about: ResolvedPool,
    /// The holders, by the numbers of their holds.
    holds: BTreeMap<u64, String>,
    leaving: bool,
}

struct XstreamEntry {
    xstream: XstreamRef,
    about: ResolvedXstream,
    /// The processors to which the xstream was bound in the end.
    cpus: Vec<usize>,
    holds: BTreeMap<u64, String>,
    leaving: bool,
}

/// A pool of an instance. See [`Instance::find_pool`].
///
/// Counterpart: `struct margo_pool_info`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolInfo {
    /// The place. No other pool of the instance ever gets it.
    pub index: usize,
    /// The pool.
    pub pool: PoolRef,
}

impl PoolInfo {
    /// The name.
    pub fn name(&self) -> &str {
        self.pool.name()
    }
}

/// An xstream of an instance. See [`Instance::find_xstream`].
///
/// Counterpart: `struct margo_xstream_info`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct XstreamInfo {
    /// The place. No other xstream of the instance ever gets it.
    pub index: usize,
    /// The xstream.
    pub xstream: XstreamRef,
}

impl XstreamInfo {
    /// The name.
    pub fn name(&self) -> &str {
        self.xstream.name()
    }
}

macro_rules! key {
    ($(#[$doc:meta])* $key:ident, $handle:ty, $info:ty, $field:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy)]
        pub enum $key<'k> {
            /// By index.
            Index(usize),
            /// By name.
            Name(&'k str),
            /// By handle.
            Handle(&'k $handle),
        }

        impl From<usize> for $key<'_> {
            fn from(index: usize) -> Self {
                Self::Index(index)
            }
        }

        impl<'k> From<&'k str> for $key<'k> {
            fn from(name: &'k str) -> Self {
                Self::Name(name)
            }
        }

        impl<'k> From<&'k String> for $key<'k> {
            fn from(name: &'k String) -> Self {
                Self::Name(name)
            }
        }

        impl<'k> From<&'k $handle> for $key<'k> {
            fn from(handle: &'k $handle) -> Self {
                Self::Handle(handle)
            }
        }

        impl<'k> From<&'k $info> for $key<'k> {
            fn from(info: &'k $info) -> Self {
                Self::Handle(&info.$field)
            }
        }

        impl fmt::Display for $key<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    Self::Index(index) => write!(f, "{index}"),
                    Self::Name(name) => write!(f, "`{name}`"),
                    Self::Handle(handle) => write!(f, "`{}` (of this handle)", handle.name()),
                }
            }
        }
    };
}

key!(
    /// How to say which pool: `"name"`, an index, or a handle.
    PoolKey,
    PoolRef,
    PoolInfo,
    pool
);
key!(
    /// How to say which xstream: `"name"`, an index, or a handle.
    XstreamKey,
    XstreamRef,
    XstreamInfo,
    xstream
);

impl Elastic {
    /// Where the progress ULTs run.
    pub(crate) fn progress_pools(&self) -> Vec<PoolRef> {
        let table = self.table();
        table.progress.iter().map(|pool| table.pools[pool].pool.clone()).collect()
    }

    /// The list as the document has it, with a parent's indices if it has a parent's layout.
    /// `pools` are those of the document, in its order.
    pub(crate) fn new(resolved: &Resolved, runtime: &Runtime, pools: &[PoolRef]) -> Self {
        let pools: BTreeMap<_, _> = resolved
            .pools
            .iter()
            .zip(pools)
            .map(|(about, pool)| (about.index, PoolEntry::new(about.clone(), pool.clone())))
            .collect();
        let xstreams: BTreeMap<_, _> = resolved
            .xstreams
            .iter()
            .filter_map(|about| {
                let xstream = runtime.xstream(&about.name)?;
                Some((about.index, XstreamEntry::new(about.clone(), xstream)))
            })
            .collect();
        let index = |place: usize| resolved.pools[place].index;
        let table = Table {
            next_pool: pools.keys().next_back().map_or(0, |last| last + 1),
            next_xstream: xstreams.keys().next_back().map_or(0, |last| last + 1),
            pools,
            xstreams,
            progress: resolved.progress_pools().map(index).collect(),
            rpc: index(resolved.rpc_pool),
            copies: resolved.copy_pool.map(index),
            next_hold: 0,
        };
        let process = Process::current();
        Self { changes: ult::Mutex::new(()), table: Mutex::new(table), process }
    }

    /// Runs `work` with the locks held, as another thread might hold them.
    #[cfg(test)]
    pub(crate) fn while_locked<V>(&self, work: impl FnOnce() -> V) -> V {
        let _held = (self.changes.lock(), self.table());
        work()
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All pools, in the order of their indices.
    pub(crate) fn pools(&self) -> Vec<PoolRef> {
        self.table().pools.values().map(|entry| entry.pool.clone()).collect()
    }

    /// Returns the pool of handlers that were registered without one.
    pub(crate) fn rpc_pool(&self) -> PoolRef {
        let table = self.table();
        table.pools[&table.rpc].pool.clone()
    }

    /// Keeps the layout as it is: pools that are looked at under it are not removed meanwhile.
    /// Suspends the calling ULT until a change that is under way has been made.
    pub(crate) fn hold_still(&self) -> ult::MutexGuard<'_, ()> {
        self.changes.lock()
    }

    /// Holds the layout still for a caller that may be a tasklet, or a ULT that unwinds. These must
    /// not wait, because a change may need their xstream. `None`: the caller is one of them, and a
    /// change is under way.
    pub(crate) fn hold_still_if_may_wait(&self) -> Option<ult::MutexGuard<'_, ()>> {
        let must_not_wait = ult::is_tasklet() || ult::is_ult() && std::thread::panicking();
        if must_not_wait { self.changes.try_lock() } else { Some(self.changes.lock()) }
    }
}

impl PoolEntry {
    fn new(about: ResolvedPool, pool: PoolRef) -> Self {
        Self { pool, about, holds: BTreeMap::new(), leaving: false }
    }
}

impl XstreamEntry {
    fn new(about: ResolvedXstream, xstream: XstreamRef) -> Self {
        let cpus = xstream.cpus();
        Self { xstream, about, cpus, holds: BTreeMap::new(), leaving: false }
    }
}

impl Table {
    fn find_pool(&self, key: PoolKey<'_>) -> Result<usize, ElasticityError> {
        let index = match key {
            PoolKey::Index(index) => self.pools.contains_key(&index).then_some(index),
            PoolKey::Name(name) => self.pool_where(|pool| pool.name() == name),
            PoolKey::Handle(handle) => self.pool_where(|pool| pool == handle),
        };
        index.ok_or_else(|| ElasticityError::NoSuchPool {
            wanted: key.to_string(),
            have: names(self.pools.iter().map(|(index, entry)| (*index, entry.pool.name()))),
        })
    }

    fn pool_where(&self, is: impl Fn(&PoolRef) -> bool) -> Option<usize> {
        self.pools.iter().find(|(_, entry)| is(&entry.pool)).map(|(index, _)| *index)
    }

    fn find_xstream(&self, key: XstreamKey<'_>) -> Result<usize, ElasticityError> {
        let found = |is: &dyn Fn(&XstreamRef) -> bool| {
            self.xstreams.iter().find(|(_, entry)| is(&entry.xstream)).map(|(index, _)| *index)
        };
        let index = match key {
            XstreamKey::Index(index) => self.xstreams.contains_key(&index).then_some(index),
            XstreamKey::Name(name) => found(&|xstream| xstream.name() == name),
            XstreamKey::Handle(handle) => found(&|xstream| xstream == handle),
        };
        index.ok_or_else(|| ElasticityError::NoSuchXstream {
            wanted: key.to_string(),
            have: names(self.xstreams.iter().map(|(index, entry)| (*index, entry.xstream.name()))),
        })
    }

    fn pool_info(&self, index: usize) -> Option<PoolInfo> {
        self.pools.get(&index).map(|entry| PoolInfo { index, pool: entry.pool.clone() })
    }

    fn xstream_info(&self, index: usize) -> Option<XstreamInfo> {
        let entry = self.xstreams.get(&index)?;
        Some(XstreamInfo { index, xstream: entry.xstream.clone() })
    }
}

/// `0 a, 3 b`
fn names<'n>(all: impl Iterator<Item = (usize, &'n str)>) -> String {
    all.map(|(index, name)| format!("{index} {name}")).collect::<Vec<_>>().join(", ")
}

impl Instance {
    fn elastic(&self) -> &Arc<Elastic> {
        &self.inner().elastic
    }

    /// The list with the xstreams. A child's xstreams are its parent's, which alone removes any.
    /// Their indices are the same. Before its lock, as in [`list`](Self::list).
    fn xstream_list(&self) -> Result<Arc<Elastic>, ElasticityError> {
        if self.inner().is_forked() {
            return Err(ElasticityError::Forked);
        }
        match self.inner().family.parent() {
            Some(parent) => parent.xstream_list(),
            None => Ok(self.elastic().clone()),
        }
    }

    /// The list, if it can be looked at: before its lock, which may be held for ever in a child
    /// process.
    fn list(&self) -> Result<MutexGuard<'_, Table>, ElasticityError> {
        if self.inner().is_forked() {
            return Err(ElasticityError::Forked);
        }
        Ok(self.elastic().table())
    }

    /// All pools, in the order of their indices. In a child process that was forked off: those that
    /// there were at the start.
    ///
    /// Counterpart: `margo_get_num_pools`.
    pub fn pools(&self) -> Vec<PoolRef> {
        if self.inner().is_forked() {
            return self.inner().pools.clone();
        }
        self.elastic().pools()
    }

    /// All xstreams, in the order of their indices; of a child those of its parent. In a child
    /// process that was forked off, which has none of them: none.
    ///
    /// Counterpart: `margo_get_num_xstreams`.
    pub fn xstreams(&self) -> Vec<XstreamRef> {
        let Ok(list) = self.xstream_list() else { return Vec::new() };
        let table = list.table();
        table.xstreams.values().map(|entry| entry.xstream.clone()).collect()
    }

    /// The pool of that name. See [`find_pool`](Self::find_pool) for other ways to name one.
    pub fn pool(&self, name: &str) -> Option<PoolRef> {
        self.find_pool(name).ok().map(|info| info.pool)
    }

    /// Finds a pool by name, index or handle.
    ///
    /// # Errors
    ///
    /// [`ElasticityError::NoSuchPool`], with the pools that there are;
    /// [`ElasticityError::Forked`].
    ///
    /// Counterpart: `margo_find_pool_by_name`, `_by_index`, `_by_handle`.
    pub fn find_pool<'k>(&self, key: impl Into<PoolKey<'k>>) -> Result<PoolInfo, ElasticityError> {
        let table = self.list()?;
        let index = table.find_pool(key.into())?;
        Ok(PoolInfo { index, pool: table.pools[&index].pool.clone() })
    }

    /// Finds an xstream by name, index or handle.
    ///
    /// # Errors
    ///
    /// [`ElasticityError::NoSuchXstream`], with the xstreams that there are;
    /// [`ElasticityError::Forked`].
    ///
    /// Counterpart: `margo_find_xstream_by_name`, `_by_index`, `_by_handle`.
    pub fn find_xstream<'k>(
        &self,
        key: impl Into<XstreamKey<'k>>,
    ) -> Result<XstreamInfo, ElasticityError> {
        let list = self.xstream_list()?;
        let table = list.table();
        let index = table.find_xstream(key.into())?;
        Ok(XstreamInfo { index, xstream: table.xstreams[&index].xstream.clone() })
    }

    /// Returns the pool of handlers that were registered without one. Counterpart:
    /// `margo_get_handler_pool`.
    pub fn rpc_pool(&self) -> PoolRef {
        let inner = self.inner();
        if inner.is_forked() {
            return inner.pools[inner.resolved.rpc_pool].clone();
        }
        self.elastic().rpc_pool()
    }

    /// Returns the pool of context 0's progress ULT. Counterpart: `margo_get_progress_pool`.
    pub fn progress_pool(&self) -> PoolRef {
        let inner = self.inner();
        if inner.is_forked() {
            return inner.pools[inner.resolved.progress_pool].clone();
        }
        let table = self.elastic().table();
        table.pools[&table.progress[0]].pool.clone()
    }

    /// Returns the pools of the progress ULTs: of context 0, context 1 and so on.
    pub fn progress_pools(&self) -> impl Iterator<Item = PoolRef> + use<> {
        let inner = self.inner();
        let pools = match inner.is_forked() {
            false => self.elastic().progress_pools(),
            true => inner.resolved.progress_pools().map(|at| inner.pools[at].clone()).collect(),
        };
        pools.into_iter()
    }

    /// Keeps a pool from being removed for as long as the value lives. `by` is what an error says
    /// that would remove it.
    ///
    /// # Errors
    ///
    /// [`ElasticityError::NoSuchPool`]; [`ElasticityError::PoolInUse`] if it is being removed;
    /// [`ElasticityError::Forked`].
    ///
    /// Counterpart: `margo_pool_ref_incr`; dropping the value is `margo_pool_release`.
    pub fn hold_pool<'k>(
        &self,
        key: impl Into<PoolKey<'k>>,
        by: impl Into<String>,
    ) -> Result<PoolHold, ElasticityError> {
        let mut table = self.list()?;
        let index = table.find_pool(key.into())?;
        let id = table.next_hold;
        table.next_hold += 1;
        let info = table.pool_info(index);
        let (Some(info), Some(entry)) = (info, table.pools.get_mut(&index)) else {
            return Err(ElasticityError::Closing);
        };
        if entry.leaving {
            return Err(ElasticityError::PoolInUse {
                pool: info.name().to_owned(),
                by: vec![LEAVING.to_owned()],
            });
        }
        entry.holds.insert(id, by.into());
        drop(table);
        Ok(PoolHold { info, id, elastic: self.elastic().clone() })
    }

    /// Keeps an xstream from being removed for as long as the value lives, also one of the parent.
    ///
    /// # Errors
    ///
    /// [`ElasticityError::NoSuchXstream`]; [`ElasticityError::XstreamInUse`] if it is being
    /// removed; [`ElasticityError::Forked`].
    ///
    /// Counterpart: `margo_xstream_ref_incr`; dropping the value is `margo_xstream_release`.
    pub fn hold_xstream<'k>(
        &self,
        key: impl Into<XstreamKey<'k>>,
        by: impl Into<String>,
    ) -> Result<XstreamHold, ElasticityError> {
        let list = self.xstream_list()?;
        let mut table = list.table();
        let index = table.find_xstream(key.into())?;
        let id = table.next_hold;
        table.next_hold += 1;
        let info = table.xstream_info(index);
        let (Some(info), Some(entry)) = (info, table.xstreams.get_mut(&index)) else {
            return Err(ElasticityError::Closing);
        };
        if entry.leaving {
            return Err(ElasticityError::XstreamInUse {
                xstream: info.name().to_owned(),
                by: vec![LEAVING.to_owned()],
            });
        }
        entry.holds.insert(id, by.into());
        drop(table);
        Ok(XstreamHold { info, id, elastic: list })
    }
}

/// The user of a pool or xstream that is being removed, in words.
const LEAVING: &str = "somebody who is removing it";

/// Keeps a pool in its instance; see [`Instance::hold_pool`]. Does not keep the instance running.
#[must_use = "dropping this gives the pool free"]
pub struct PoolHold {
    info: PoolInfo,
    id: u64,
    elastic: Arc<Elastic>,
}

impl PoolHold {
    /// The pool.
    pub fn pool(&self) -> &PoolRef {
        &self.info.pool
    }

    /// The pool and its index.
    pub fn info(&self) -> &PoolInfo {
        &self.info
    }
}

impl Drop for PoolHold {
    fn drop(&mut self) {
        if !self.elastic.process.is_other()
            && let Some(entry) = self.elastic.table().pools.get_mut(&self.info.index)
        {
            entry.holds.remove(&self.id);
        }
    }
}

impl fmt::Debug for PoolHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PoolHold({})", self.info.name())
    }
}

/// Keeps an xstream in its instance; see [`Instance::hold_xstream`]. Does not keep the instance
/// running.
#[must_use = "dropping this gives the xstream free"]
pub struct XstreamHold {
    info: XstreamInfo,
    id: u64,
    elastic: Arc<Elastic>,
}

impl XstreamHold {
    /// The xstream.
    pub fn xstream(&self) -> &XstreamRef {
        &self.info.xstream
    }

    /// The xstream and its index.
    pub fn info(&self) -> &XstreamInfo {
        &self.info
    }
}

impl Drop for XstreamHold {
    fn drop(&mut self) {
        if !self.elastic.process.is_other()
            && let Some(entry) = self.elastic.table().xstreams.get_mut(&self.info.index)
        {
            entry.holds.remove(&self.id);
        }
    }
}

impl fmt::Debug for XstreamHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "XstreamHold({})", self.info.name())
    }
}
