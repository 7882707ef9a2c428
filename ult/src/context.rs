//! Stacks that can be left and entered again: the one place that knows corosensei.
//!
//! corosensei switches between a coroutine and whoever resumed it. So a ULT that switches away
//! always goes to its xstream (or to the ULT that runs it as its child), with a [`Command`]; what
//! it wants to run instead stands in the xstream. The resumer carries the command out on its own
//! stack, when the ULT's is quiet.
//!
//! A stack is made once and then reused: its coroutine never ends, [`root`] loops over the ULTs
//! that are put into the [`StackBlock`].

use std::convert::Infallible;
use std::ptr::NonNull;

use corosensei::{Coroutine, CoroutineResult, Yielder};

use crate::descriptor::UltPtr;
use crate::stack::{BlockStack, StackBlock};

/// What a ULT asks its xstream to do when it switches away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Command {
    /// Queue it again behind the others.
    Yield,
    /// Park it until somebody resumes it.
    Park,
    /// It is over, and its descriptor may be gone already.
    Finish,
}

/// Why a ULT is switched to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Wakeup {
    /// Go on.
    Run,
    /// Write down where you are, and switch back as if nothing had happened.
    Inspect,
}

/// A stack's saved state.
pub(crate) struct Context(Coroutine<Wakeup, Command, Infallible, BlockStack>);

/// The way back from a stack to whoever resumed it.
pub(crate) type Back = Yielder<Wakeup, Command>;

impl Context {
    /// Prepares the stack of `block`.
    pub(crate) fn new(stack: BlockStack, block: NonNull<StackBlock>) -> Self {
        Self(Coroutine::with_stack(stack, move |back, _| root(block, back)))
    }

    /// Runs the stack until it switches away.
    #[inline]
    pub(crate) fn resume(&mut self, why: Wakeup) -> Command {
        let CoroutineResult::Yield(command) = self.0.resume(why);
        command
    }
}

/// The frame at the bottom of every stack. It runs one ULT after the other and never ends.
///
/// A stack stays on its xstream unless a ULT of [`UltBuilder::spawn_migratable`] carries it away,
/// so this frame may wake up on another thread. It holds nothing that belongs to a thread, and what
/// might read thread-locals is in [`body`].
///
/// [`UltBuilder::spawn_migratable`]: crate::UltBuilder::spawn_migratable
fn root(block: NonNull<StackBlock>, back: &Back) -> Infallible {
    // SAFETY:
    // - valid: it is the block of this very stack, which lives as long as its frames;
    // - shared access only.
    let block = unsafe { block.as_ref() };
    block.back.set(back);
    loop {
        if let Some(ult) = block.ult.get() {
            body(block, ult);
        }
        // An inspection between two ULTs finds nobody here.
        while back.suspend(Command::Finish) == Wakeup::Inspect {}
    }
}

/// One ULT, from its closure to its published result. If its descriptor is left to nobody, it
/// stands in the block.
#[inline(never)]
fn body(block: &StackBlock, ult: UltPtr) {
    if crate::join::run_and_publish(ult) {
        block.ult.set(Some(ult));
    }
}
