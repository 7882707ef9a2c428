//! Accepting connections while the process has no descriptor left: the caller is told so, and not
//! left waiting.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::EventfdFlags;
use rustix::process::{Resource, getrlimit};

use crate::system::socket;

/// How often at most it is logged that connections cannot be accepted.
const LOGGED_EVERY: Duration = Duration::from_secs(60);

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Lack {
    /// A spare descriptor, which is given up while a caller is turned away, because the caller's
    /// connection needs one.
    kept: Option<OwnedFd>,
    logged_at: Option<Instant>,
    /// Connections that were not accepted since it was logged.
    not_accepted: u64,
}

impl Lack {
    /// Keeps a descriptor, for an endpoint that listens.
    pub(crate) fn prepared() -> Self {
        let mut lack = Self::default();
        lack.keep_one();
        lack
    }

    fn keep_one(&mut self) {
        self.kept = rustix::event::eventfd(0, EventfdFlags::CLOEXEC).ok();
    }

    /// Accepts the next connection, for which there is no descriptor but the one that is kept, only
    /// to `refuse` and close it.
    ///
    /// # Errors
    ///
    /// Those of accepting, also if the kept descriptor was lost to another thread before.
    pub(crate) fn turn_away(
        &mut self,
        listener: &OwnedFd,
        refuse: impl FnOnce(&OwnedFd),
    ) -> io::Result<()> {
        self.kept = None;
        let accepted = socket::accept(listener).map(|socket| {
            refuse(&socket);
            // Its hello, mostly. With that unread the system would reset the connection.
            let _ = rustix::net::shutdown(&socket, rustix::net::Shutdown::Write);
            let _ = rustix::io::read(&socket, &mut [0; 1024]);
        });
        self.keep_one();
        accepted
    }

    /// A connection was not accepted because of `error`.
    pub(crate) fn log(&mut self, error: &io::Error) {
        self.not_accepted += 1;
        let now = Instant::now();
        if self.logged_at.is_some_and(|at| now < at + LOGGED_EVERY) {
            return;
        }
        self.logged_at = Some(now);
        let count = std::mem::take(&mut self.not_accepted);
        match missing_descriptor(error) {
            Some(limit) if limit > 0 => tracing::warn!(
                count,
                "tcp: callers are turned away: the process has no descriptors left for their \
                 connections (limit {limit}; raise `ulimit -n`)"
            ),
            _ => tracing::warn!(count, %error, "tcp: connections cannot be accepted"),
        }
    }
}

/// How many descriptors the process may have, if that is why there was none for a new one; 0: all
/// of the host are taken.
pub(crate) fn missing_descriptor(error: &io::Error) -> Option<u64> {
    match error.raw_os_error()? {
        libc::EMFILE => Some(getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)),
        libc::ENFILE => Some(0),
        _ => None,
    }
}
