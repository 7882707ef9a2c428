//! Stacks that can be left and entered again.
//!
//! A switch goes between a stack and its resumer. So a ULT that switches away goes to its xstream
//! (or to the ULT that runs it as its child), with a [`Command`]; what it wants to run instead
//! stands in the xstream. The resumer carries the command out on its own stack, when the ULT's is
//! quiet.
//!
//! Where [`CAN_HAND_OVER`] says so, a ULT may also switch to another one directly: that one takes
//! its place with the resumer, and carries the command out ([`Wakeup::After`]).
//!
//! A stack is made once and then reused: its first frame, [`root`], never ends, it loops over
//! the ULTs that are put into the [`StackBlock`].
//!
//! On x86-64 the switch is ours ([`x86_64`]); elsewhere corosensei's ([`portable`]). The reason is
//! the processor's return predictor. corosensei resumes with a `call` and yields with a `ret`,
//! which is as fast as can be if nothing but the loop of a generator stands between the two, but
//! mispredicts when functions are left between a resume and the next yield, which is what every
//! blocking call does.
//!
//! For checking there are `--cfg ult_portable_context`, which takes the portable switch everywhere,
//! and `--cfg ult_thread_context`, an OS thread in place of each stack (`threads`).

use std::ptr::{self, NonNull};

use crate::stack::block::{BlockPtr, StackBlock};

#[cfg(not(ult_thread_context))]
#[cfg(any(ult_portable_context, not(target_arch = "x86_64")))]
mod portable;
#[cfg(ult_thread_context)]
mod threads;
#[cfg(not(any(ult_thread_context, ult_portable_context)))]
#[cfg(target_arch = "x86_64")]
mod tools;
mod wakeup;
#[cfg(not(any(ult_thread_context, ult_portable_context)))]
#[cfg(target_arch = "x86_64")]
mod x86_64;

pub(crate) use wakeup::Wakeup;

#[cfg(not(ult_thread_context))]
#[cfg(any(ult_portable_context, not(target_arch = "x86_64")))]
pub(crate) use portable::{Back, CAN_HAND_OVER, Context};
#[cfg(ult_thread_context)]
pub(crate) use threads::{Back, CAN_HAND_OVER, Context};
#[cfg(not(any(ult_thread_context, ult_portable_context)))]
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::{Back, CAN_HAND_OVER, Context};

/// A request of a ULT to its xstream when it switches away.
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

impl Command {
    /// Returns the word that is passed with a switch; `block` is the stack that is left.
    #[inline(always)]
    fn word(self, block: &StackBlock) -> usize {
        match self {
            Self::Finish if CAN_HAND_OVER => ptr::from_ref(block).expose_provenance(),
            other => other as usize,
        }
    }
}

/// The word with which a stack switched back.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Answer(usize);

impl Answer {
    #[inline(always)]
    pub(crate) fn command(self) -> Command {
        match self.0 {
            0 => Command::Yield,
            1 => Command::Park,
            _ => Command::Finish,
        }
    }

    /// The stack that is free now, after [`Command::Finish`]. `resumed` is the one that had been
    /// resumed; another one may have taken its place.
    #[inline(always)]
    pub(crate) fn finished(self, resumed: BlockPtr) -> BlockPtr {
        if !CAN_HAND_OVER {
            return resumed;
        }
        let block = ptr::with_exposed_provenance::<StackBlock>(self.0);
        // SAFETY:
        // - valid: the last word of `root` is its own block.
        unsafe { BlockPtr::from_ptr(block) }.unwrap_or(resumed)
    }
}

/// The frame at the bottom of every stack. It runs one ULT after the other and never ends.
///
/// A stack stays on its xstream unless a ULT of [`UltBuilder::spawn_migratable`] carries it away,
/// so this frame may wake up on another thread. It holds nothing that belongs to a thread, and what
/// might read thread-locals is in [`run_ults`], which is code of the engine.
///
/// [`UltBuilder::spawn_migratable`]: crate::UltBuilder::spawn_migratable
/// [`run_ults`]: StackBlock::run_ults
fn root(block: NonNull<StackBlock>, back: &Back) -> ! {
    // SAFETY:
    // - valid: it is the block of this very stack, which lives as long as its frames;
    // - shared access only.
    let block = unsafe { block.as_ref() };
    block.back.set(back);
    loop {
        block.run_ults();
        // An inspection between two ULTs finds nobody here.
        while back.suspend(block, Command::Finish) == Wakeup::Inspect {}
    }
}
