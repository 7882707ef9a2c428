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

use super::{Command, Wakeup, root};
use crate::stack::{BlockStack, StackBlock};

/// A stack's saved state while it is suspended, and its resumer's while it runs.
pub(crate) struct Context(Cell<*mut u8>);

/// The way back from a stack to whoever resumed it.
pub(crate) type Back = Context;

impl Context {
    /// Prepares the stack of `block`.
    pub(crate) fn new(stack: BlockStack, block: NonNull<StackBlock>) -> Self {
        let base = block.as_ptr().cast::<usize>().with_addr(stack.base().get() & !15);
        // From the top: padding, so that `enter` finds the alignment for its call; the block, for
        // `enter`; and the address of that, for the first switch.
        //
        // SAFETY:
        // - writable, ours: a new stack is larger than this (`Stack`), and nobody runs on it.
        let words = unsafe { base.sub(3) };
        // SAFETY: as above.
        unsafe { words.add(1).write(block.as_ptr().expose_provenance()) };
        // SAFETY: as above.
        unsafe { words.write(enter as *const () as usize) };
        Self(Cell::new(words.cast()))
    }

    /// Runs the stack until it switches away.
    ///
    /// # Safety
    ///
    /// Nobody else resumes this stack, and its memory is alive.
    #[inline(always)]
    pub(crate) unsafe fn resume(&self, why: Wakeup) -> Command {
        // SAFETY:
        // - the word is that of the suspended stack: duty of the caller.
        Command::from_word(unsafe { exchange(&self.0, why as usize) })
    }

    /// Switches from this stack, which the caller runs on, to whoever resumed it.
    #[inline(always)]
    pub(crate) fn suspend(&self, command: Command) -> Wakeup {
        // SAFETY:
        // - the word is that of the resumer, which waits in `resume`: only code on this very stack
        //   gets at this (`StackBlock::back` of the calling ULT).
        match unsafe { exchange(&self.0, command as usize) } {
            0 => Wakeup::Run,
            _ => Wakeup::Inspect,
        }
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
    // SAFETY: as above; the reference lives as long as the stack.
    root(block, unsafe { &*back })
}
