//! Instances that share the pools and execution streams of another one.
//!
//! A child has its own network endpoint, progress ULT, handlers and timers; it runs in pools of its
//! parent. That is how one process serves two transports with the same execution streams.
//!
//! A child keeps its parent running, as a clone of it would. When the parent is finalized, which
//! any holder may ask for, its children end first: they could not run without it.
//!
//! | state | under |
//! |---|---|
//! | children of an instance, and whether there may be more | the lock of `InstanceTree::children` |

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use margo_config::Config;

use crate::instance::inner::Inner;
use crate::lifecycle::runtime_source::RuntimeSource;
use crate::{InitError, Instance, InstanceBuilder, PoolHold};

/// The instances that share execution streams with one: its parent and its children.
#[derive(Default)]
pub(crate) struct InstanceTree {
    /// Until the end of this instance.
    parent: Mutex<Option<(Instance, Vec<PoolHold>)>>,
    children: Mutex<Children>,
}

#[derive(Default)]
struct Children {
    all: Vec<Weak<Inner>>,
    /// The instance ends: it takes no more.
    is_over: bool,
}

impl InstanceTree {
    pub(crate) fn new(parent: Option<&Instance>) -> Self {
        let parent = parent.map(|parent| (parent.clone(), Vec::new()));
        Self { parent: Mutex::new(parent), children: Mutex::default() }
    }

    fn children(&self) -> MutexGuard<'_, Children> {
        self.children.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps these pools of the parent where they are, until it is told others.
    pub(crate) fn keep(&self, holds: Vec<PoolHold>) {
        let mut parent = self.parent.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, kept)) = parent.as_mut() {
            *kept = holds;
        }
    }

    /// Returns the parent, whose pools these are; `None` once this instance has ended.
    pub(crate) fn parent(&self) -> Option<Instance> {
        let parent = self.parent.lock().unwrap_or_else(PoisonError::into_inner);
        parent.as_ref().map(|(parent, _)| parent.clone())
    }

    /// Takes a child in. `false`: the instance ends.
    fn admit(&self, child: &Arc<Inner>) -> bool {
        let mut children = self.children();
        if !children.is_over {
            children.all.retain(|child| child.strong_count() > 0);
            children.all.push(Arc::downgrade(child));
        }
        !children.is_over
    }

    /// The children that are there.
    pub(crate) fn living(&self) -> Vec<Arc<Inner>> {
        self.children().all.iter().filter_map(Weak::upgrade).collect()
    }

    /// Finalizes the children and waits for them. Bounded, as each step of theirs is.
    pub(crate) fn end_children(&self) {
        let children = {
            let mut children = self.children();
            children.is_over = true;
            std::mem::take(&mut children.all)
        };
        let children: Vec<_> = children.iter().filter_map(Weak::upgrade).collect();
        for child in &children {
            crate::lifecycle::shutdown::begin(child);
        }
        for child in &children {
            // What did not end there has been logged there.
            let _ = child.shutdown.wait_done();
        }
    }

    /// This instance has ended: it needs its parent no more.
    pub(crate) fn leave(&self) {
        let parent = self.parent.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(parent);
    }
}

impl InstanceBuilder {
    /// Runs in the pools of `parent`, an instance of this process, in place of pools and execution
    /// streams of its own. Network, handlers, timers and statistics are its own.
    ///
    /// The configuration then says nothing of the layout: `argobots`, `use_progress_thread` and
    /// `rpc_thread_count` must be absent. `progress_pool`, `rpc_pool`, the pools of providers and
    /// all others are names or indices of the parent's pools, those by which
    /// [`find_pool`](Instance::find_pool) finds them there and in the child; the first two default
    /// to what they are there. Indices that the parent has given up are errors.
    ///
    /// A child keeps its parent running, and all pools that the parent had when the child started:
    /// they cannot be removed as long as it lives. Only the parent adds and removes pools and
    /// execution streams. Finalizing the parent finalizes its children first.
    ///
    /// ```
    /// use margo::Instance;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let local = Instance::builder("na+sm://").start()?;
    /// let remote = Instance::builder("na+tcp://127.0.0.1:0").parent(&local).start()?;
    /// assert_eq!(remote.rpc_pool(), local.rpc_pool());
    ///
    /// local.finalize_and_wait()?;
    /// assert!(remote.is_finalized());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A document for a child is read with [`Instance::init_child`], or with
    /// [`Config::from_json_with_parent`].
    ///
    /// Counterpart: `parent_mid` of `margo_init_ext`.
    pub fn parent(mut self, parent: &Instance) -> Self {
        self.home = RuntimeSource::Parent(parent.clone());
        self
    }
}

/// The child's document with the layout of its parent.
pub(crate) fn adopt(config: &Config, parent: &Instance) -> Result<Config, InitError> {
    if parent.is_finalizing() {
        return Err(InitError::ParentClosing);
    }
    Ok(config.with_layout_of(&layout_of(parent))?)
}

/// The parent's document with the layout that it runs in: its own, or that of its parent.
fn layout_of(parent: &Instance) -> Config {
    parent.whole_config()
}

/// Makes a started instance known to its parent.
///
/// # Errors
///
/// The parent is shutting down; the child has been ended.
pub(crate) fn enter(child: &Instance, parent: &Instance) -> Result<(), InitError> {
    if !parent.inner().family.admit(child.inner()) {
        child.finalize();
        return Err(InitError::ParentClosing);
    }
    let by = format!("child instance {}", child.self_addr());
    let hold = |pool: ult::PoolRef| {
        let gone = |_| InitError::PoolGone { pool: pool.name().to_owned() };
        parent.hold_pool(&pool, by.as_str()).map_err(gone)
    };
    let holds: Result<Vec<_>, _> = child.pools().into_iter().map(hold).collect();
    child.inner().family.keep(holds.inspect_err(|_| child.finalize())?);
    Ok(())
}

impl Instance {
    /// Starts an instance with this one as its [parent](InstanceBuilder::parent), from a JSON
    /// document.
    ///
    /// # Errors
    ///
    /// As [`init`](crate::init), under the rules of [`InstanceBuilder::parent`].
    pub fn init_child(&self, json: &str) -> Result<Self, InitError> {
        let config = Config::from_json_with_parent(json, &layout_of(self))?;
        InstanceBuilder::from_config(config).parent(self).start()
    }
}
