//! Objects that may have become ready: what links a waiter into one, and takes it out again.

use std::ptr::NonNull;

use crate::engine::model::waiter::Waiter;

/// How an object is watched.
#[allow(unreachable_pub, reason = "a bound of a public trait")]
pub(crate) trait Watch {
    /// Returns whether an attempt to take what the object has would succeed now.
    fn is_ready(&self) -> bool;

    /// Links a waiter that is woken when the object may have become ready. `false`: it is ready
    /// now, and the waiter is not linked.
    ///
    /// # Safety
    ///
    /// `node` is in no list, and stays alive and where it is until it is woken or
    /// [`unregister`](Self::unregister) has taken it out.
    unsafe fn register(&self, node: NonNull<Waiter>) -> bool;

    /// Takes out a waiter that `register` linked and that is alive. `false`: a waker has taken it
    /// and is about to wake it, or has done so.
    fn unregister(&self, node: NonNull<Waiter>) -> bool;
}
