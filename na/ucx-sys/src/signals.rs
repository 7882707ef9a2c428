//! Handlers of signals, kept over the loading of a library that installs its own.
//!
//! UCX does so when it is loaded: for fatal signals (`UCX_ERROR_SIGNALS`), with a stack of its own
//! for the calling thread, and for the one that has it wait for a debugger (`UCX_DEBUG_SIGNO`,
//! SIGHUP by default), which then no longer ends the process (`ucs_debug_init`, debug.c).

use std::mem::MaybeUninit;

/// All signals of Linux.
const SIGNALS: std::ops::RangeInclusive<libc::c_int> = 1..=64;

/// What is done at one moment with the process's signals, and where the calling thread does it.
pub(crate) struct Saved {
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

/// What tells one action from another.
fn handler(action: &libc::sigaction) -> (usize, libc::c_int) {
    (action.sa_sigaction, action.sa_flags & !RESTORER)
}

/// What tells one stack from another.
fn place(stack: &libc::stack_t) -> (usize, usize, libc::c_int) {
    (stack.ss_sp.addr(), stack.ss_size, stack.ss_flags)
}

impl Saved {
    /// As it is.
    pub(crate) fn now() -> Self {
        let actions = SIGNALS.filter_map(|signal| Some((signal, action(signal)?)));
        Self { actions: actions.collect(), stack: stack() }
    }

    /// Undoes what was changed since. What other threads change at the same time is theirs: only
    /// what differs is touched.
    pub(crate) fn restore(self) {
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
            // SAFETY: the thread's stack of before, or none. The one that it replaces is UCX's,
            // which nobody is on: this is no handler.
            unsafe { libc::sigaltstack(&raw const before, std::ptr::null_mut()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;

    use super::*;

    const ROLE: &str = "UCX_SYS_TEST_CHILD";

    fn all() -> Vec<Option<(usize, libc::c_int)>> {
        SIGNALS.map(|signal| action(signal).as_ref().map(handler)).collect()
    }

    /// In a process of its own, because UCX reads what it is to do when it is loaded.
    #[test]
    fn the_library_changes_no_handler_and_no_stack() {
        if std::env::var_os(ROLE).is_none() {
            let name = std::thread::current().name().unwrap_or_default().to_owned();
            let mut child = std::process::Command::new(std::env::current_exe().unwrap());
            child.args([&name, "--exact", "--nocapture"]).env(ROLE, "1");
            child.env("UCX_HANDLE_ERRORS", "bt");
            let die_with_parent = || {
                // SAFETY: sets an attribute of the calling process.
                match unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } {
                    0 => Ok(()),
                    _ => Err(std::io::Error::last_os_error()),
                }
            };
            // SAFETY: the closure runs between fork and exec and makes one system call.
            unsafe { child.pre_exec(die_with_parent) };
            let output = child.output().unwrap();
            print!("{}", String::from_utf8_lossy(&output.stdout));
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{said}");
            return eprint!("{said}");
        }
        let before = (all(), stack().as_ref().map(place));
        if let Err(error) = crate::library() {
            eprintln!("SKIPPED: {error}");
            return;
        }
        assert_eq!((all(), stack().as_ref().map(place)), before);
    }

    #[test]
    fn a_handler_and_a_stack_that_somebody_installs_are_undone() {
        extern "C" fn nothing(_: libc::c_int) {}
        let saved = Saved::now();
        let before = (action(libc::SIGWINCH).as_ref().map(handler), stack().as_ref().map(place));
        let mut other = action(libc::SIGWINCH).unwrap();
        other.sa_sigaction = nothing as extern "C" fn(libc::c_int) as usize;
        let room = vec![0_u8; libc::SIGSTKSZ * 4].leak();
        let other_stack =
            libc::stack_t { ss_sp: room.as_mut_ptr().cast(), ss_flags: 0, ss_size: room.len() };
        // SAFETY: a handler that does nothing, for a signal that is ignored by default.
        let done =
            unsafe { libc::sigaction(libc::SIGWINCH, &raw const other, std::ptr::null_mut()) };
        assert_eq!(done, 0);
        // SAFETY: a stack that is never freed.
        let done = unsafe { libc::sigaltstack(&raw const other_stack, std::ptr::null_mut()) };
        assert_eq!(done, 0);
        saved.restore();
        let after = (action(libc::SIGWINCH).as_ref().map(handler), stack().as_ref().map(place));
        assert_eq!(after, before);
    }
}
