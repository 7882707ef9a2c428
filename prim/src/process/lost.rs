//! Descriptors of ours that other code of the process has closed.
//!
//! A wake-up that goes nowhere leaves a thread asleep for ever, and the number may belong to
//! another file by the next call. Neither can be mended by the caller that finds it, and an error
//! would reach only that caller. So the process ends there, and says why.

use std::os::fd::AsFd;

use rustix::io::Errno;

/// Adds to `bell`, an eventfd of ours that is called `what`.
#[inline]
pub fn ring(bell: impl AsFd, what: &str) {
    // It also fails when the counter is full, and then it is readable.
    if let Err(errno) = rustix::io::write(bell, &1u64.to_ne_bytes()) {
        check(errno, what);
    }
}

/// Empties `bell`, an eventfd or a timer of ours that is called `what`.
#[inline]
pub fn silence(bell: impl AsFd, what: &str) {
    // It also fails when there is nothing to read.
    if let Err(errno) = rustix::io::read(bell, &mut [0; 8]) {
        check(errno, what);
    }
}

/// Ends the process if a system call on a descriptor of ours, which is called `what`, failed with
/// `errno` because there is no such descriptor any more, or another file has its number.
#[inline]
pub fn check(errno: Errno, what: &str) {
    if is_lost(errno) {
        end(what);
    }
}

#[inline]
fn is_lost(errno: Errno) -> bool {
    matches!(errno, Errno::BADF | Errno::NOTSOCK | Errno::INVAL)
}

/// Async-signal-safe.
#[cold]
fn end(what: &str) -> ! {
    let text = [
        "margo: ",
        what,
        " was closed by other code of this process: look for a double close, or for code that \
         closes descriptors which it has not opened. Aborting, because nobody can be woken \
         through it any more, and its number may soon be that of another file.\n",
    ];
    for part in text {
        // There is nobody else to tell.
        let _ = rustix::io::write(std::io::stderr(), part.as_bytes());
    }
    std::process::abort();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_says_that_the_descriptor_is_not_ours_counts() {
        for errno in [Errno::BADF, Errno::NOTSOCK, Errno::INVAL] {
            assert!(is_lost(errno), "{errno}");
        }
        for errno in [Errno::AGAIN, Errno::INTR, Errno::PIPE, Errno::CONNRESET, Errno::MFILE] {
            assert!(!is_lost(errno), "{errno}");
            check(errno, "what is there");
        }
    }
}
