//! Keeps the numbers of standard input, output and error taken. A program may have closed them, as
//! daemons do, and then the next descriptor that is made gets one of their numbers. The output of
//! the program must not go into a descriptor of ours.

use std::os::fd::{AsRawFd, IntoRawFd};

use rustix::fs::{Mode, OFlags, open};

/// Opens the null device in place of each of them that is closed. A process without descriptors
/// enough, or without that device, goes on as it is.
pub fn keep_standard_descriptors() {
    // The system gives the lowest number that is free.
    while let Ok(null) = open("/dev/null", OFlags::RDWR, Mode::empty()) {
        if null.as_raw_fd() > libc::STDERR_FILENO {
            return;
        }
        // Stays open, also in programs that this one executes, as they expect.
        let _kept = null.into_raw_fd();
    }
}
