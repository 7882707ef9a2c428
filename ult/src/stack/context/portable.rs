//! Switching with corosensei.

use std::convert::Infallible;
use std::ptr::NonNull;

use corosensei::{Coroutine, CoroutineResult, Yielder};

use super::{Answer, Command, Wakeup, root};
use crate::stack::block::{BlockStack, StackBlock};
use crate::sync::UnsafeCell;

pub(crate) const CAN_HAND_OVER: bool = false;

/// A stack's saved state.
pub(crate) struct Context(UnsafeCell<Coroutine<Wakeup, usize, Infallible, BlockStack>>);

/// The way back from a stack to its resumer.
#[repr(transparent)]
pub(crate) struct Back(Yielder<Wakeup, usize>);

impl Back {
    /// Switches from this stack, which the caller runs on, to its resumer.
    pub(crate) fn suspend(&self, block: &StackBlock, command: Command) -> Wakeup {
        self.0.suspend(command.word(block))
    }
}

impl Context {
    /// Prepares the stack of `block`.
    pub(crate) fn new(stack: BlockStack, block: NonNull<StackBlock>) -> Self {
        let coroutine = Coroutine::with_stack(stack, move |back, _| {
            // SAFETY: `Back` is transparent.
            let back = unsafe { &*std::ptr::from_ref(back).cast::<Back>() };
            root(block, back)
        });
        Self(UnsafeCell::new(coroutine))
    }

    /// Nothing: only the other switch knows what to fetch.
    pub(crate) fn prefetch(&self) {}

    /// Runs the stack until it switches away.
    ///
    /// # Safety
    ///
    /// Nobody else resumes this stack, and its memory is alive.
    #[inline]
    pub(crate) unsafe fn resume(&self, why: Wakeup) -> Answer {
        // SAFETY:
        // - no alias: duty of the caller.
        let result = self.0.with_mut(|coroutine| unsafe { &mut *coroutine }.resume(why));
        let CoroutineResult::Yield(word) = result;
        Answer(word)
    }

    /// Never called; see [`CAN_HAND_OVER`].
    ///
    /// # Safety
    ///
    /// None.
    pub(crate) unsafe fn hand_over(&self, _next: &Self) -> Wakeup {
        unreachable!("this kind of stack cannot hand over")
    }

    /// The memory is used for something else from now on.
    ///
    /// # Safety
    ///
    /// The caller holds the stack, nobody lives on it, and it is not resumed any more.
    pub(crate) unsafe fn end(&self) {}
}
