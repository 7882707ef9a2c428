//! The instances that share execution streams with one; `lifecycle/child.rs` has the rules.
//!
//! | state | under |
//! |---|---|
//! | children of an instance, and whether there may be more | the lock of `InstanceTree::children` |

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::instance::inner::Inner;
use crate::{Instance, PoolHold};

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
    pub(crate) fn admit(&self, child: &Arc<Inner>) -> bool {
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

    /// The children; there will be no others.
    pub(crate) fn take_children(&self) -> Vec<Arc<Inner>> {
        let children = {
            let mut children = self.children();
            children.is_over = true;
            std::mem::take(&mut children.all)
        };
        children.iter().filter_map(Weak::upgrade).collect()
    }

    /// This instance has ended: it needs its parent no more.
    pub(crate) fn leave(&self) {
        let parent = self.parent.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(parent);
    }
}
