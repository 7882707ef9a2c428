//! Detection of forks: has this process been forked off since an object was made?
//!
//! A forked child has a copy of all memory and none of the threads that work on it: a lock may be
//! held for ever, and descriptors and shared memory are its parent's. So an object with such parts
//! asks here first. The answer costs one load of a count, which a handler of the C library raises
//! in each child.

use crate::sync::atomic::{AtomicU32, Ordering};
use std::sync::Once;

/// How many forks lie between this process and the one that loaded this program.
static FORKS: AtomicU32 = AtomicU32::new(0);

extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// A process, to tell it from its children.
///
/// ```
/// use prim::fork::Process;
///
/// let maker = Process::current();
/// assert!(!maker.is_other(), "no child of it");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process(u32);

impl Process {
    /// This process.
    #[must_use]
    pub fn current() -> Self {
        static REGISTERED: Once = Once::new();
        REGISTERED.call_once(|| {
            // SAFETY: the handler lives as long as the program, and does one atomic operation on a
            // static, which may be done in a child of a process with threads. A failure, for lack
            // of memory, leaves forks undetected.
            let _ = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        });
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// Returns whether the caller is in a child process that was forked off this one. Children made
    /// by system calls past the C library are not noticed.
    #[inline]
    #[must_use]
    pub fn is_other(self) -> bool {
        FORKS.load(Ordering::Relaxed) != self.0
    }
}

impl Default for Process {
    /// The current one.
    fn default() -> Self {
        Self::current()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_knows_that_it_is_one() {
        let process = Process::current();
        // Whoever started this may have had it ignore the ends of its children.
        // SAFETY: the default action is no function of ours.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
        // SAFETY: the child calls only what may be called after a fork of a process with threads.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let code = i32::from(!process.is_other());
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(code) };
        }
        assert!(child > 0, "cannot fork");
        let mut status = -1;
        // SAFETY: a child of ours that nobody else waits for; the pointer is to a live variable.
        let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!((waited, status), (child, 0));
        assert!(!process.is_other());
    }
}
