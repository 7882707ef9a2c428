//! Switching with corosensei.

use std::convert::Infallible;
use std::ptr::NonNull;

use corosensei::{Coroutine, CoroutineResult, Yielder};

use super::{Command, Wakeup, root};
use crate::stack::{BlockStack, StackBlock};
use crate::sync::UnsafeCell;

/// A stack's saved state.
pub(crate) struct Context(UnsafeCell<Coroutine<Wakeup, Command, Infallible, BlockStack>>);

/// The way back from a stack to whoever resumed it.
pub(crate) type Back = Yielder<Wakeup, Command>;

impl Context {
    /// Prepares the stack of `block`.
    pub(crate) fn new(stack: BlockStack, block: NonNull<StackBlock>) -> Self {
        let coroutine = Coroutine::with_stack(stack, move |back, _| root(block, back));
        Self(UnsafeCell::new(coroutine))
    }

    /// Runs the stack until it switches away.
    ///
    /// # Safety
    ///
    /// Nobody else resumes this stack, and its memory is alive.
    #[inline]
    pub(crate) unsafe fn resume(&self, why: Wakeup) -> Command {
        // SAFETY:
        // - no alias: duty of the caller.
        let result = self.0.with_mut(|coroutine| unsafe { &mut *coroutine }.resume(why));
        let CoroutineResult::Yield(command) = result;
        command
    }
}
