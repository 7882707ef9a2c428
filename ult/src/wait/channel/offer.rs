//! An async sender of a channel without room: it waits in the channel with its item, as senders
//! that block do. If it only watched for a receiver, and an async receiver for a sender, the two
//! would never meet.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::ptr::NonNull;
use std::task::{Context, Poll};

use super::core::{ChannelCore, ItemCell};
use super::error::SendError;
use crate::base::wait_kind::WaitKind;
use crate::engine::model::waiter::Waiter;
use crate::engine::waiting::watch::Watch;
use crate::wait::task_wait::TaskWait;

/// Sends an item when a receiver comes. Dropped before that, it takes the item back and drops it.
pub(crate) struct Offer<'a, T> {
    hand: Hand<'a, T>,
    wait: TaskWait,
}

/// The slot that holds the item. On the heap, so that a future that is forgotten leaks it instead
/// of leaving a dangling link.
struct Hand<'a, T> {
    core: &'a ChannelCore<T>,
    slot: NonNull<ItemCell<T>>,
}

// SAFETY: it owns the slot, whose item moves between threads (`T: Send`), and shares the core.
unsafe impl<T: Send> Send for Offer<'_, T> {}
// SAFETY: shared access does nothing.
unsafe impl<T: Send> Sync for Offer<'_, T> {}

impl<'a, T> Offer<'a, T> {
    pub(super) fn new(core: &'a ChannelCore<T>, item: T) -> Self {
        let slot = NonNull::from(Box::leak(Box::new(ItemCell::new(Some(item)))));
        Self { hand: Hand { core, slot }, wait: TaskWait::new() }
    }
}

impl<T> Hand<'_, T> {
    fn slot(&self) -> &ItemCell<T> {
        // SAFETY:
        // - alive: freed by `drop` of the offer only, which has the hand.
        unsafe { self.slot.as_ref() }
    }
}

/// Ready when the item has been taken, or the channel is closed.
impl<T> Watch for Hand<'_, T> {
    fn is_ready(&self) -> bool {
        self.core.is_offer_over(self.slot())
    }

    unsafe fn register(&self, node: NonNull<Waiter>) -> bool {
        // SAFETY:
        // - alive, ours to write: from a box of `TaskWait`, and not linked yet.
        unsafe { (*node.as_ptr()).tag = self.slot.as_ptr().cast() };
        // SAFETY:
        // - in no list, stays: the duties of the caller are the same;
        // - the slot stays: `drop` frees it after the wait has been left.
        unsafe { self.core.offer(node, self.slot()) }
    }

    fn unregister(&self, node: NonNull<Waiter>) -> bool {
        self.core.withdraw(node)
    }
}

impl<T> Future for Offer<'_, T> {
    type Output = Result<(), SendError<T>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        // SAFETY:
        // - stays: what is linked stands in the channel, which is borrowed, and the slot on the
        //   heap; both are left when this is dropped, and the slot leaks if it is forgotten.
        if !unsafe { this.wait.poll(&this.hand, WaitKind::ChannelSend, cx.waker()) } {
            return Poll::Pending;
        }
        Poll::Ready(match this.hand.slot().take() {
            None => Ok(()),
            Some(item) => Err(SendError(item)),
        })
    }
}

impl<T> Drop for Offer<'_, T> {
    fn drop(&mut self) {
        self.wait.leave(&self.hand);
        // SAFETY:
        // - from a box, and no waiter with it is linked, so nobody else has it.
        drop(unsafe { Box::from_raw(self.hand.slot.as_ptr()) });
    }
}

impl<T> fmt::Debug for Offer<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Offer").field("wait", &self.wait).finish_non_exhaustive()
    }
}
