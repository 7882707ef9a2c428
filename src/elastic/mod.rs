//! Pools and xstreams of a running instance: finding, counting users, adding, removing, moving.
//!
//! [`Elastic`] is the instance's own list of them. `ult` carries out what changes; this layer
//! decides whether a change may be made:
//!
//! - **the whole document is checked again.** A change is applied to the document in effect, which
//!   then goes through the same checks as at the start (`Config::resolve`). So a running instance
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

mod error;
mod print;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use margo_config::{Resolved, ResolvedPool, ResolvedXstream};
use na::fork::Process;
use ult::{PoolRef, Runtime, XstreamRef};

pub use self::error::ElasticityError;
pub(crate) use self::print::{Part, listed};

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
    table: Mutex<ElasticTable>,
    process: Process,
}

/// See the module's documentation.
pub(crate) struct ElasticTable {
    pub(crate) pools: BTreeMap<usize, ElasticPool>,
    pub(crate) xstreams: BTreeMap<usize, XstreamEntry>,
    pub(crate) next_pool: usize,
    pub(crate) next_xstream: usize,
    /// Index of the pool of each shard's progress ULT, by the number of the shard.
    pub(crate) progress: BTreeMap<usize, usize>,
    /// Index of the pool of what is left of each removed shard.
    pub(crate) retired: BTreeMap<usize, usize>,
    pub(crate) rpc: usize,
    pub(crate) copies: Option<usize>,
    /// Number of the next hold.
    pub(crate) next_hold: u64,
}

pub(crate) struct ElasticPool {
    pub(crate) pool: PoolRef,
    /// As in a document; of a pool with a queue of the program's own, as far as there are words.
    pub(crate) about: ResolvedPool,
    /// The holders, by the numbers of their holds.
    pub(crate) holds: BTreeMap<u64, String>,
    pub(crate) leaving: bool,
}

pub(crate) struct XstreamEntry {
    pub(crate) xstream: XstreamRef,
    pub(crate) about: ResolvedXstream,
    /// The processors to which the xstream was bound in the end.
    pub(crate) cpus: Vec<usize>,
    pub(crate) holds: BTreeMap<u64, String>,
    pub(crate) leaving: bool,
}

/// A pool of an instance. See
/// [`InstanceLayout::find_pool`](crate::groups::InstanceLayout::find_pool).
///
/// ```
/// let instance = margo::Instance::builder("na+sm://").start()?;
/// let found = instance.layout().find_pool("__primary__")?;
/// assert_eq!((found.index, found.name()), (0, "__primary__"));
/// assert_eq!(found.pool.spawn(|| 6 * 7)?.join()?, 42);
/// # instance.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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

/// An xstream of an instance. See
/// [`InstanceLayout::find_xstream`](crate::groups::InstanceLayout::find_xstream).
///
/// ```
/// let instance = margo::Instance::builder("na+sm://").start()?;
/// let found = instance.layout().find_xstream(0)?;
/// assert_eq!(found.name(), "__primary__");
/// println!("bound to {:?}", found.xstream.cpus());
/// # instance.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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
    ///
    /// ```
    /// use margo::elasticity::PoolKey;
    ///
    /// let instance = margo::Instance::builder("na+sm://").start()?;
    /// let layout = instance.layout();
    /// let by_name = layout.find_pool("__primary__")?;
    /// assert_eq!(layout.find_pool(by_name.index)?, by_name);
    /// assert_eq!(layout.find_pool(&by_name.pool)?, by_name);
    /// assert_eq!(PoolKey::from("work").to_string(), "`work`");
    /// # instance.finalize_and_wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    PoolKey,
    PoolRef,
    PoolInfo,
    pool
);
key!(
    /// How to say which xstream: `"name"`, an index, or a handle.
    ///
    /// ```
    /// use margo::elasticity::XstreamKey;
    ///
    /// let instance = margo::Instance::builder("na+sm://").start()?;
    /// let layout = instance.layout();
    /// let by_name = layout.find_xstream("__primary__")?;
    /// assert_eq!(layout.find_xstream(by_name.index)?, by_name);
    /// assert_eq!(XstreamKey::from(3).to_string(), "3");
    /// # instance.finalize_and_wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    XstreamKey,
    XstreamRef,
    XstreamInfo,
    xstream
);

impl Elastic {
    /// Where the progress ULTs run.
    pub(crate) fn progress_pools(&self) -> Vec<PoolRef> {
        let table = self.table();
        table.progress.values().map(|pool| table.pools[pool].pool.clone()).collect()
    }

    /// Where the progress ULTs run, by shard; those of removed shards, too.
    pub(crate) fn all_progress(&self) -> Vec<(usize, PoolRef)> {
        let table = self.table();
        let mut all: Vec<_> = table.progress.iter().chain(&table.retired).collect();
        all.sort_unstable();
        all.into_iter().map(|(shard, pool)| (*shard, table.pools[pool].pool.clone())).collect()
    }

    /// The list as the document has it, with a parent's indices if it has a parent's layout.
    /// `pools` are those of the document, in its order.
    pub(crate) fn new(resolved: &Resolved, runtime: &Runtime, pools: &[PoolRef]) -> Self {
        let pools: BTreeMap<_, _> = resolved
            .pools
            .iter()
            .zip(pools)
            .map(|(about, pool)| (about.index, ElasticPool::new(about.clone(), pool.clone())))
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
        let table = ElasticTable {
            next_pool: pools.keys().next_back().map_or(0, |last| last + 1),
            next_xstream: xstreams.keys().next_back().map_or(0, |last| last + 1),
            pools,
            xstreams,
            progress: resolved.progress_pools().map(index).enumerate().collect(),
            retired: BTreeMap::new(),
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

    pub(crate) fn table(&self) -> MutexGuard<'_, ElasticTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All pools, in the order of their indices.
    pub(crate) fn pools(&self) -> Vec<PoolRef> {
        self.table().pools.values().map(|entry| entry.pool.clone()).collect()
    }

    /// The progress ULT of a shard has begun to run in a pool.
    pub(crate) fn progress_is_in(&self, shard: usize, pool: &PoolRef) {
        let mut table = self.table();
        let Ok(index) = table.find_pool(PoolKey::Handle(pool)) else { return };
        match table.retired.get_mut(&shard) {
            Some(place) => *place = index,
            None => _ = table.progress.insert(shard, index),
        }
    }

    /// The pool of the progress ULT of shard 0.
    pub(crate) fn progress_pool(&self) -> PoolRef {
        let table = self.table();
        table.pools[&table.progress[&0]].pool.clone()
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

impl ElasticPool {
    pub(crate) fn new(about: ResolvedPool, pool: PoolRef) -> Self {
        Self { pool, about, holds: BTreeMap::new(), leaving: false }
    }
}

impl XstreamEntry {
    pub(crate) fn new(about: ResolvedXstream, xstream: XstreamRef) -> Self {
        let cpus = xstream.cpus();
        Self { xstream, about, cpus, holds: BTreeMap::new(), leaving: false }
    }
}

impl ElasticTable {
    pub(crate) fn find_pool(&self, key: PoolKey<'_>) -> Result<usize, ElasticityError> {
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

    pub(crate) fn find_xstream(&self, key: XstreamKey<'_>) -> Result<usize, ElasticityError> {
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

    pub(crate) fn pool_info(&self, index: usize) -> Option<PoolInfo> {
        self.pools.get(&index).map(|entry| PoolInfo { index, pool: entry.pool.clone() })
    }

    pub(crate) fn xstream_info(&self, index: usize) -> Option<XstreamInfo> {
        let entry = self.xstreams.get(&index)?;
        Some(XstreamInfo { index, xstream: entry.xstream.clone() })
    }
}

/// Returns whether the caller may spawn there: into a private pool only its xstream does.
pub(crate) fn may_spawn(pool: &PoolRef) -> bool {
    pool.access() != ult::Access::Private
        || ult::current().is_some_and(|here| pool.xstreams().contains(&here.xstream))
}

/// `0 a, 3 b`
fn names<'n>(all: impl Iterator<Item = (usize, &'n str)>) -> String {
    all.map(|(index, name)| format!("{index} {name}")).collect::<Vec<_>>().join(", ")
}

pub(crate) const LEAVING: &str = "somebody who is removing it";

/// Keeps a pool in its instance; see
/// [`InstanceLayout::hold_pool`](crate::groups::InstanceLayout::hold_pool). Does not keep the
/// instance running.
///
/// ```
/// use margo::elasticity::ElasticityError;
///
/// let instance = margo::Instance::builder("na+sm://").start()?;
/// let layout = instance.layout();
/// layout.add_pool_from_json(r#"{ "name": "work" }"#)?;
/// let hold = layout.hold_pool("work", "the cache")?;
/// let removed = layout.remove_pool(hold.pool());
/// assert!(matches!(removed, Err(ElasticityError::PoolInUse { by, .. }) if by == ["the cache"]));
///
/// drop(hold);
/// layout.remove_pool("work")?;
/// # instance.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "dropping this gives the pool free"]
pub struct PoolHold {
    pub(crate) info: PoolInfo,
    pub(crate) id: u64,
    pub(crate) elastic: Arc<Elastic>,
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

/// Keeps an xstream in its instance; see
/// [`InstanceLayout::hold_xstream`](crate::groups::InstanceLayout::hold_xstream). Does not keep the
/// instance running.
///
/// ```
/// use margo::elasticity::ElasticityError;
///
/// let instance = margo::Instance::builder("na+sm://").start()?;
/// let layout = instance.layout();
/// layout.add_xstream_from_json(r#"{ "name": "x", "scheduler": { "pools": ["__primary__"] } }"#)?;
/// let hold = layout.hold_xstream("x", "the cache")?;
/// let removed = layout.remove_xstream(hold.xstream());
/// assert!(matches!(removed, Err(ElasticityError::XstreamInUse { .. })));
///
/// drop(hold);
/// layout.remove_xstream("x")?;
/// # instance.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "dropping this gives the xstream free"]
pub struct XstreamHold {
    pub(crate) info: XstreamInfo,
    pub(crate) id: u64,
    pub(crate) elastic: Arc<Elastic>,
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
