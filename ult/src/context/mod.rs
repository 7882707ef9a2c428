//! Stacks that can be left and entered again.
//!
//! A switch goes between a stack and whoever resumed it. So a ULT that switches away always goes to
//! its xstream (or to the ULT that runs it as its child), with a [`Command`]; what it wants to run
//! instead stands in the xstream. The resumer carries the command out on its own stack, when the
//! ULT's is quiet.
//!
//! A stack is made once and then reused: its first frame, [`root`], never ends, it loops over
//! the ULTs that are put into the [`StackBlock`].
//!
//! On x86-64 the switch is ours ([`x86_64`]); elsewhere corosensei's ([`portable`]). The reason is
//! the processor's return predictor. corosensei resumes with a `call` and yields with a `ret`,
//! which is as fast as can be if nothing but the loop of a generator stands between the two, but
//! mispredicts when functions are left between a resume and the next yield, which is what every
//! blocking call does.

use std::ptr::NonNull;

use crate::descriptor::UltPtr;
use crate::stack::StackBlock;

#[cfg(not(target_arch = "x86_64"))]
mod portable;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(not(target_arch = "x86_64"))]
pub(crate) use portable::{Back, Context};
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::{Back, Context};

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

impl Command {
    /// For switches that pass one word.
    #[inline]
    fn from_word(word: usize) -> Self {
        match word {
            0 => Self::Yield,
            1 => Self::Park,
            _ => Self::Finish,
        }
    }
}

/// The frame at the bottom of every stack. It runs one ULT after the other and never ends.
///
/// A stack stays on its xstream unless a ULT of [`UltBuilder::spawn_migratable`] carries it away,
/// so this frame may wake up on another thread. It holds nothing that belongs to a thread, and what
/// might read thread-locals is in [`body`].
///
/// [`UltBuilder::spawn_migratable`]: crate::UltBuilder::spawn_migratable
fn root(block: NonNull<StackBlock>, back: &Back) -> ! {
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
