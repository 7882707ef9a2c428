//! How an async task waits for an object of this crate.
//!
//! The waiter stands on the heap and not in the future, so that futures may move, and so that one
//! that is forgotten leaks a little memory instead of leaving a dangling link. It belongs to its
//! maker until it is linked, to the object while it is linked, and again to its maker when it has
//! been unlinked or woken.
//!
//! | `node` | meaning |
//! |---|---|
//! | null | waits for nothing |
//! | a waiter that is not woken | linked in the object, or in the hands of a waker |
//! | a waiter that is woken | linked nowhere; the next poll looks at the object |

#![cfg_attr(not(loom), allow(unreachable_pub, reason = "public for the loom models only"))]

use std::fmt;
use std::ptr::{self, NonNull};
use std::task::Waker;

use crate::base::wait_kind::WaitKind;
use crate::engine::model::waiter::Waiter;
use crate::engine::waiting::watch::Watch;
use crate::sync::relax;

/// The waiter of one async task in one object. See the module documentation.
pub struct TaskWait {
    node: *mut Waiter,
    /// The waker that the waiter calls.
    waker: Option<Waker>,
}

// SAFETY: wakers move between threads, and so does the right to a waiter.
unsafe impl Send for TaskWait {}
// SAFETY: shared access only reads.
unsafe impl Sync for TaskWait {}

impl TaskWait {
    /// Waits for nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self { node: ptr::null_mut(), waker: None }
    }

    /// Returns whether `object` is ready; nothing is linked then. Otherwise `waker` is called when
    /// it may have become ready.
    ///
    /// # Safety
    ///
    /// `object` is the same one at each call, and stays where it is until this has returned `true`
    /// or [`leave`](Self::leave) has returned, or forever if neither happens.
    #[allow(private_bounds, reason = "not public outside of the models")]
    pub unsafe fn poll(
        &mut self,
        object: &(impl Watch + ?Sized),
        kind: WaitKind,
        waker: &Waker,
    ) -> bool {
        if object.is_ready() {
            self.leave(object);
            return true;
        }
        if self.is_waiting() && self.waker.as_ref().is_some_and(|old| old.will_wake(waker)) {
            return false;
        }
        // Before the earlier one is freed, so that it has another address: a party that has seen
        // that one in the object notices that another one stands there.
        let waiter = Box::new(Waiter::for_task(kind, waker.clone()));
        self.leave(object);
        let node = NonNull::from(Box::leak(waiter));
        // SAFETY:
        // - in no list: fresh; it stays until `leave` frees it, or forever.
        if unsafe { object.register(node) } {
            self.node = node.as_ptr();
            self.waker = Some(waker.clone());
            return false;
        }
        // SAFETY:
        // - from a box, and not linked, so nobody else has it.
        drop(unsafe { Box::from_raw(node.as_ptr()) });
        true
    }

    /// Returns whether a waker will come.
    fn is_waiting(&self) -> bool {
        // SAFETY:
        // - alive: ours until `leave` frees it; shared access only.
        unsafe { self.node.as_ref() }.is_some_and(|waiter| !waiter.is_woken())
    }

    /// Unlinks the waiter, if there is one. `object` is the one of [`poll`](Self::poll).
    #[allow(private_bounds, reason = "not public outside of the models")]
    pub fn leave(&mut self, object: &(impl Watch + ?Sized)) {
        let Some(node) = NonNull::new(self.node) else { return };
        self.node = ptr::null_mut();
        self.waker = None;
        if !object.unregister(node) {
            // A waker has it, and is at most a few instructions away from its last access.
            let mut round = 0;
            // SAFETY:
            // - alive: freed below; shared access only.
            while !unsafe { node.as_ref() }.is_woken() {
                relax(&mut round);
            }
        }
        // SAFETY:
        // - from a box, and neither linked nor in the hands of a waker, so nobody else has it.
        drop(unsafe { Box::from_raw(node.as_ptr()) });
    }
}

impl Default for TaskWait {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for TaskWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskWait").field("is_waiting", &self.is_waiting()).finish()
    }
}
