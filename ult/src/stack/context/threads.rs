//! An OS thread in place of each stack, for tools that cannot follow a switch of stacks.
//!
//! Chosen with `--cfg ult_thread_context`, for checking only (see `docs/checking.md`): the rest of
//! the crate is the same, and so are the promises. The resumer hands a baton to the thread of the
//! stack, together with its xstream, and waits until it gets it back; so of an xstream and its
//! stacks one runs at a time, as ever.
//!
//! # Who may touch what
//!
//! | state | who |
//! |---|---|
//! | `turn` | whoever has it, to pass it on |
//! | `word`, `xstream` | whoever has the turn |
//! | `thread` | whoever holds the stack |
//!
//! The memory that belongs to the stack holds its [`StackBlock`] and is otherwise not used, so
//! overflows are reported by the standard library, without the name of the ULT.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::{self, NonNull};

use super::{Answer, Command, Wakeup, root};
use crate::base::park_word::ThreadParker;
use crate::stack::block::{BlockStack, StackBlock};
use crate::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use crate::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize};
use crate::sync::{Arc, thread};

/// A smaller one might not hold what the standard library needs at the start of a thread.
const THREAD_STACK_BYTES_MIN: usize = 256 * 1024;
/// In place of a [`Wakeup`]: the stack is not needed any more.
const END: usize = 2;

pub(crate) const CAN_HAND_OVER: bool = false;

/// A stack's thread.
pub(crate) struct Context {
    baton: Arc<Baton>,
    thread: Cell<Option<thread::JoinHandle<()>>>,
}

/// The way back from a stack to its resumer.
pub(crate) type Back = Baton;

/// Tells which of the two runs, the stack or its resumer.
pub(crate) struct Baton {
    /// True if the stack runs.
    turn: AtomicBool,
    word: AtomicUsize,
    /// The xstream of the resumer; the engine knows what it points to.
    pub(crate) xstream: AtomicPtr<()>,
    stack_side: ThreadParker,
    resumer_side: ThreadParker,
}

/// Unwinds the first frame of a stack that is not needed any more.
struct StackEnded;

struct Handed(NonNull<StackBlock>);

// SAFETY: the thread of a stack touches its block only when it has the turn.
unsafe impl Send for Handed {}

impl Context {
    /// Prepares the stack of `block`.
    pub(crate) fn new(stack: BlockStack, block: NonNull<StackBlock>) -> Self {
        use corosensei::stack::Stack;
        let bytes = stack.base().get() - stack.limit().get();
        let baton = Arc::new(Baton {
            turn: AtomicBool::new(false),
            word: AtomicUsize::new(0),
            xstream: AtomicPtr::new(ptr::null_mut()),
            stack_side: ThreadParker::new(),
            resumer_side: ThreadParker::new(),
        });
        let (back, block) = (baton.clone(), Handed(block));
        let thread = thread::Builder::new()
            .name("stack".to_owned())
            .stack_size(bytes.max(THREAD_STACK_BYTES_MIN))
            .spawn(move || {
                let block = block;
                // The first turn is either a run or the end.
                if back.wait(true) != END {
                    let frames = AssertUnwindSafe(|| root(block.0, &back));
                    let ended = catch_unwind(frames).is_err_and(|why| why.is::<StackEnded>());
                    assert!(ended, "a stack ends only when it is not needed any more");
                }
            });
        let thread = thread.expect("a thread for each stack, for checking");
        Self { baton, thread: Cell::new(Some(thread)) }
    }

    /// Nothing: only the other switch knows what to fetch.
    pub(crate) fn prefetch(&self) {}

    /// Runs the stack until it switches away.
    ///
    /// # Safety
    ///
    /// Nobody else resumes this stack, and its memory is alive.
    pub(crate) unsafe fn resume(&self, why: Wakeup) -> Answer {
        self.baton.pass(true, why as usize);
        Answer(self.baton.wait(false))
    }

    /// Never called; see [`CAN_HAND_OVER`].
    ///
    /// # Safety
    ///
    /// None.
    pub(crate) unsafe fn hand_over(&self, _next: &Self) -> Wakeup {
        unreachable!("this kind of stack cannot hand over")
    }

    /// Lets the thread end.
    ///
    /// # Safety
    ///
    /// The caller holds the stack, nobody lives on it, and it is not resumed any more.
    pub(crate) unsafe fn end(&self) {
        self.baton.pass(true, END);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("a stack's thread does not panic");
        }
    }
}

impl Baton {
    /// Switches from this stack, which the caller runs on, to its resumer.
    pub(crate) fn suspend(&self, block: &StackBlock, command: Command) -> Wakeup {
        self.pass(false, command.word(block));
        match self.wait(true) {
            0 => Wakeup::Run,
            END => resume_unwind(Box::new(StackEnded)),
            _ => Wakeup::Inspect,
        }
    }

    fn pass(&self, to_stack: bool, word: usize) {
        self.word.store(word, Relaxed);
        if to_stack {
            self.take_xstream();
        }
        self.turn.store(to_stack, Release); // pair: BATON
        if to_stack { self.stack_side.unpark() } else { self.resumer_side.unpark() }
    }

    fn wait(&self, for_stack: bool) -> usize {
        // pair: BATON
        while self.turn.load(Acquire) != for_stack {
            if for_stack { self.stack_side.park(None) } else { self.resumer_side.park(None) }
        }
        if for_stack {
            self.bring_xstream();
        }
        self.word.load(Relaxed)
    }
}
