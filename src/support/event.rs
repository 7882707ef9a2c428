//! The eventfd by which a signal handler wakes a thread.

/// The event that wakes the thread which waits for a signal.
#[derive(Debug)]
pub(crate) struct Event {
    fd: std::os::fd::OwnedFd,
    process: rustix::process::Pid,
}

impl Event {
    pub(crate) fn new() -> std::io::Result<Self> {
        use rustix::event::{EventfdFlags, eventfd};
        let fd = eventfd(0, EventfdFlags::CLOEXEC)?;
        Ok(Self { fd, process: rustix::process::getpid() })
    }

    /// Async-signal-safe.
    pub(crate) fn ring(&self) {
        // The eventfd of a child is that of its parent.
        if rustix::process::getpid() == self.process {
            na::lost::ring(&self.fd, EVENT_NAME);
        }
    }

    pub(crate) fn wait(&self) {
        let mut count = [0; 8];
        while let Err(errno) = rustix::io::read(&self.fd, &mut count) {
            na::lost::check(errno, EVENT_NAME);
            if errno != rustix::io::Errno::INTR {
                break;
            }
        }
    }
}

/// How an event is called, should it be lost.
const EVENT_NAME: &str = "the eventfd that tells of signals";
