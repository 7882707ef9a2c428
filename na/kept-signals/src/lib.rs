//! Keeps a process's signal handlers over the loading of a library that installs its own.
//!
//! Libraries for networks install signal handlers when they are loaded, for their own ends:
//!
//! - UCX: for fatal signals (`UCX_ERROR_SIGNALS`), with a stack of its own for the calling thread,
//!   and for the one that has it wait for a debugger (`UCX_DEBUG_SIGNO`, SIGHUP by default), which
//!   then no longer ends the process (`ucs_debug_init`, debug.c).
//! - `libpsm_infinipath`, with which Debian's libfabric 1.17 is linked: for SIGINT and SIGTERM,
//!   which then end the process with status 1 and no word, and for fatal signals
//!   (`IPATH_NO_BACKTRACE`); `libpsm2`, likewise (`HFI_NO_BACKTRACE`).
//!
//! No such library tells a program that has asked for SIGTERM, to end in order, that it will never
//! hear of that signal.

use std::mem::MaybeUninit;
use std::sync::{Mutex, PoisonError};

/// All signals of Linux.
const SIGNALS: std::ops::RangeInclusive<libc::c_int> = 1..=64;

/// The signal handlers of the process at one moment, and the stack on which the calling thread runs
/// them.
#[derive(Debug)]
pub struct Saved {
    /// Those that may be asked about: not the ones that the C library keeps to itself.
    actions: Vec<(libc::c_int, libc::sigaction)>,
    stack: Option<libc::stack_t>,
}

fn action(signal: libc::c_int) -> Option<libc::sigaction> {
    let mut action = MaybeUninit::uninit();
    // SAFETY: asks only; the result has room for one.
    let done = unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) };
    // SAFETY: the call succeeded, so it has written the result.
    (done == 0).then(|| unsafe { action.assume_init() })
}

fn stack() -> Option<libc::stack_t> {
    let mut stack = MaybeUninit::uninit();
    // SAFETY: asks only; the result has room for one.
    let done = unsafe { libc::sigaltstack(std::ptr::null(), stack.as_mut_ptr()) };
    // SAFETY: the call succeeded, so it has written the result.
    (done == 0).then(|| unsafe { stack.assume_init() })
}

/// `SA_RESTORER` of the kernel (asm/signal.h): the C library adds it where it installs something.
const RESTORER: libc::c_int = 0x0400_0000;

/// Returns the parts by which one action is told from another.
fn handler(action: &libc::sigaction) -> (usize, libc::c_int) {
    (action.sa_sigaction, action.sa_flags & !RESTORER)
}

/// Returns the parts by which one stack is told from another.
fn place(stack: &libc::stack_t) -> (usize, usize, libc::c_int) {
    (stack.ss_sp.addr(), stack.ss_size, stack.ss_flags)
}

impl Saved {
    /// Reads the present state.
    #[must_use]
    pub fn now() -> Self {
        let actions = SIGNALS.filter_map(|signal| Some((signal, action(signal)?)));
        Self { actions: actions.collect(), stack: stack() }
    }

    /// Returns whether the present state is the same.
    #[must_use]
    pub fn is_now(&self) -> bool {
        let now = Self::now();
        let handlers = |of: &Self| -> Vec<_> {
            of.actions.iter().map(|(signal, action)| (*signal, handler(action))).collect()
        };
        let stacks = [self, &now].map(|of| of.stack.as_ref().map(place));
        handlers(self) == handlers(&now) && stacks[0] == stacks[1]
    }

    /// Undoes what was changed since. What other threads change at the same time is theirs: only
    /// what differs is touched.
    fn restore(self) {
        for (signal, before) in self.actions {
            if action(signal).is_none_or(|now| handler(&now) == handler(&before)) {
                continue;
            }
            // SAFETY: an action that was installed before, whose code is still there. It was valid,
            // so this does not fail.
            unsafe { libc::sigaction(signal, &raw const before, std::ptr::null_mut()) };
        }
        let Some(before) = self.stack else { return };
        if stack().is_some_and(|now| place(&now) != place(&before)) {
            // SAFETY: the thread's stack of before, or none. The one that it replaces is the
            // library's, which nobody is on: this is no handler.
            unsafe { libc::sigaltstack(&raw const before, std::ptr::null_mut()) };
        }
    }
}

/// Calls `load`, and then puts back the process's signal handlers and the calling thread's stack
/// for them, unless `load` panics.
///
/// Calls run one at a time in a process: two would each take the handlers of the other's library
/// for the process's own. Handlers that another thread installs meanwhile are undone as well, so
/// `load` should do short work.
pub fn keep<R>(load: impl FnOnce() -> R) -> R {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let saved = Saved::now();
    let result = load();
    saved.restore();
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handler_and_a_stack_that_somebody_installs_are_undone() {
        extern "C" fn nothing(_: libc::c_int) {}
        let before = Saved::now();
        let mut other = action(libc::SIGWINCH).unwrap();
        other.sa_sigaction = nothing as extern "C" fn(libc::c_int) as usize;
        let room = vec![0_u8; libc::SIGSTKSZ * 4].leak();
        let other_stack =
            libc::stack_t { ss_sp: room.as_mut_ptr().cast(), ss_flags: 0, ss_size: room.len() };
        let done = keep(|| {
            // SAFETY: a handler that does nothing, for a signal that is ignored by default.
            let done =
                unsafe { libc::sigaction(libc::SIGWINCH, &raw const other, std::ptr::null_mut()) };
            // SAFETY: a stack that is never freed.
            let stack = unsafe { libc::sigaltstack(&raw const other_stack, std::ptr::null_mut()) };
            (done, stack, before.is_now())
        });
        assert_eq!(done, (0, 0, false));
        assert!(before.is_now());
    }
}
