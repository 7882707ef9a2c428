//! Switching on x86-64, for the System V calling convention.
//!
//! A context is one word: the stack pointer of the side that does not run. Both directions are the
//! same few instructions, which exchange it with the stack pointer of the side that does. The idea
//! of letting the compiler save what is alive, by declaring every register as clobbered, is that of
//! libfringe and corosensei; the exchange by `jmp` instead of `call` and `ret` keeps the return
//! predictor in step with the calls of the program.
//!
//! As with an ordinary call, the control words of the floating-point units are not saved: code that
//! changes a rounding mode changes it back before it waits.

use std::arch::{asm, naked_asm};
use std::cell::Cell;
use std::ptr::{self, NonNull};

use corosensei::stack::Stack;

use super::tools::StackAnnotations;
use super::{Answer, Command, Wakeup, root};
use crate::stack::block::{BlockStack, StackBlock};

pub(crate) const CAN_HAND_OVER: bool = true;
const CACHE_LINE_BYTES: usize = 64;

/// A stack's saved state while it is suspended, and its resumer's while it runs.
pub(crate) struct Context(Cell<*mut u8>, StackAnnotations);

/// The way back from a stack to its resumer.
pub(crate) type Back = Context;

impl Context {
    /// Prepares the stack of `block`.
    pub(crate) fn new(stack: BlockStack, block: NonNull<StackBlock>) -> Self {
        let bounds = StackAnnotations::new(&stack, size_of::<StackBlock>());
        let base = block.as_ptr().cast::<usize>().with_addr(stack.base().get() & !15);
        // From the top: padding, so that `enter` finds the alignment for its call; the block, for
        // `enter`; and the address of that, for the first switch.
        //
        // SAFETY:
        // - writable, ours: a new stack is larger than this (`Stack`), and nobody runs on it.
        let words = unsafe { base.sub(3) };
        // SAFETY: as above.
        let second = unsafe { words.add(1) };
        // SAFETY: as above.
        unsafe { second.write(block.as_ptr().expose_provenance()) };
        // SAFETY: as above.
        unsafe { words.write(enter as *const () as usize) };
        Self(Cell::new(words.cast()), bounds)
    }

    /// Runs the stack until it switches away.
    ///
    /// # Safety
    ///
    /// Nobody else resumes this stack, and its memory is alive.
    #[inline(always)]
    pub(crate) unsafe fn resume(&self, why: Wakeup) -> Answer {
        // SAFETY:
        // - the word is that of the suspended stack: duty of the caller.
        let answer = Answer(self.1.resume(|| unsafe { exchange(&self.0, why as usize) }));
        if cfg!(ult_asan) && answer.command() == Command::Finish {
            // Another stack may have taken the place of this one.
            let ended = ptr::with_exposed_provenance::<StackBlock>(answer.0);
            // SAFETY:
            // - valid: the last word of `root` is its own block, which is alive until `end`.
            let Self(top, bounds) = unsafe { &(*ended).context };
            bounds.clear_below(top.get());
        }
        answer
    }

    /// Asks the cache for what a [`resume`](Self::resume) of this suspended stack will touch first.
    #[inline(always)]
    pub(crate) fn prefetch(&self) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let top = self.0.get().cast::<i8>();
        // SAFETY:
        // - a hint: it accesses nothing, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(top) };
        // SAFETY: as above.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(top.wrapping_add(CACHE_LINE_BYTES)) };
    }

    /// Switches from this stack, which is that of `block` and the caller's, to its resumer.
    #[inline(always)]
    pub(crate) fn suspend(&self, block: &StackBlock, command: Command) -> Wakeup {
        let word = command.word(block);
        // SAFETY:
        // - the word is that of the resumer, which waits in `resume`: only code on this very stack
        //   gets at this (`StackBlock::back` of the calling ULT).
        self.1.suspend(|| wakeup(unsafe { exchange(&self.0, word) }))
    }

    /// Switches from this stack, which the caller runs on, to the suspended stack `next`, which
    /// goes on with [`Wakeup::After`] and has this one's resumer as its own from then on.
    ///
    /// # Safety
    ///
    /// Nobody else resumes `next`, its memory is alive, and it has been suspended before: it is not
    /// at its beginning.
    #[inline(always)]
    pub(crate) unsafe fn hand_over(&self, next: &Self) -> Wakeup {
        // SAFETY:
        // - the words are that of the resumer, as in `suspend`, and that of a suspended stack: duty
        //   of the caller.
        let switch = || wakeup(unsafe { exchange_both(&self.0, &next.0, Wakeup::After as usize) });
        self.1.hand_over(&next.1, switch)
    }

    /// The memory is used for something else from now on.
    ///
    /// # Safety
    ///
    /// The caller holds the stack, nobody lives on it, and it is not resumed any more.
    pub(crate) unsafe fn end(&self) {
        self.1.end();
    }
}

/// Goes on where the stack pointer in `other` was saved, and saves that of the caller in its place.
/// Returns, when somebody exchanges it back, the word that this one passes.
///
/// # Safety
///
/// `other` has been saved by this function, or prepared by `Context::new`, and what it points to is
/// alive and has not been gone on with since.
#[inline(always)]
unsafe fn exchange(other: &Cell<*mut u8>, word: usize) -> usize {
    let answer;
    // SAFETY:
    // - registers: all are declared as outputs or clobbered, except `rbx` and `rbp`, which may not
    //   be, and `rsp`; these are on the stack or exchanged. Both sides are this same code, or
    //   `enter`.
    // - flags and direction: as after any call.
    // - the stack below `rsp` is used: no `nostack`.
    unsafe {
        asm!(
            "push rbp",
            "push rbx",
            "lea rax, [rip + 2f]",
            "push rax",
            "mov rcx, [rsi]",
            "mov [rsi], rsp",
            "mov rsp, rcx",
            "pop rax",
            "jmp rax",
            "2:",
            "pop rbx",
            "pop rbp",
            in("rsi") other.as_ptr(),
            inlateout("rdi") word => answer,
            lateout("r12") _, lateout("r13") _, lateout("r14") _, lateout("r15") _,
            clobber_abi("sysv64"),
        );
    }
    answer
}

/// Goes on where the stack pointer in `next` was saved, moves that in `own` there, and saves that
/// of the caller in `own`. Otherwise as [`exchange`].
///
/// # Safety
///
/// Both have been saved by [`exchange`] or this function, and what they point to is alive and has
/// not been gone on with since.
#[inline(always)]
unsafe fn exchange_both(own: &Cell<*mut u8>, next: &Cell<*mut u8>, word: usize) -> usize {
    let answer;
    // SAFETY: as in `exchange`.
    unsafe {
        asm!(
            "push rbp",
            "push rbx",
            "lea rax, [rip + 2f]",
            "push rax",
            "mov rax, [rsi]",
            "mov rcx, [rdx]",
            "mov [rsi], rsp",
            "mov [rdx], rax",
            "mov rsp, rcx",
            "pop rax",
            "jmp rax",
            "2:",
            "pop rbx",
            "pop rbp",
            in("rsi") own.as_ptr(),
            in("rdx") next.as_ptr(),
            inlateout("rdi") word => answer,
            lateout("r12") _, lateout("r13") _, lateout("r14") _, lateout("r15") _,
            clobber_abi("sysv64"),
        );
    }
    answer
}

#[inline(always)]
fn wakeup(word: usize) -> Wakeup {
    match word {
        0 => Wakeup::Run,
        1 => Wakeup::Inspect,
        _ => Wakeup::After,
    }
}

/// Where a new stack begins. The word that was passed, always `Wakeup::Run`, is dropped.
///
/// # Safety
///
/// Entered by `exchange` only, on a stack that `Context::new` has prepared.
#[unsafe(naked)]
unsafe extern "sysv64" fn enter() {
    naked_asm!(
        ".cfi_startproc",
        // Unwinders stop here.
        ".cfi_undefined rip",
        "xor ebp, ebp",
        "mov rdi, [rsp]",
        "call {first}",
        "ud2",
        ".cfi_endproc",
        first = sym first,
    )
}

/// The first frame of Rust code. A panic does not get past it.
extern "sysv64" fn first(block: *mut StackBlock) -> ! {
    let block = NonNull::new(block).unwrap_or(NonNull::dangling());
    // SAFETY:
    // - valid: `Context::new` put it there; it is the block of this very stack.
    let back = ptr::from_ref(unsafe { &block.as_ref().context });
    // SAFETY: as above.
    unsafe { &*back }.1.enter();
    // SAFETY: as above; the reference lives as long as the stack.
    root(block, unsafe { &*back })
}
