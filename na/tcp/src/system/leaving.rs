//! Data that connections leave in the kernel when they have ended.
//!
//! A socket that is closed may still have data that its peer has not taken. The kernel keeps that
//! data for as long as the peer answers that its window is closed: megabytes for each connection,
//! and without a limit in time. So the data left behind is bounded in time ([`LINGER`]) and, for
//! all connections together, in bytes ([`LINGER_BYTES_MAX`]). Beyond these bounds, and where the
//! stream is cut anyway, a connection is reset, which frees everything at once.

use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use rustix::net::sockopt;

/// How long the kernel may try to deliver what a closed connection has left.
const LINGER: Duration = Duration::from_secs(30);

/// Bytes that connections closed within [`LINGER`] may have left.
const LINGER_BYTES_MAX: usize = 16 << 20;

/// Counts what is left. See the module's documentation.
#[derive(Debug)]
pub(crate) struct Leaving {
    bytes_max: usize,
    bytes: usize,
    /// From when on what was counted has gone.
    until: Option<Instant>,
}

impl Default for Leaving {
    fn default() -> Self {
        Self { bytes_max: LINGER_BYTES_MAX, bytes: 0, until: None }
    }
}

impl Leaving {
    /// Counts without a bound, for the end of an endpoint, of which there is one: every peer gets
    /// what was sent to it, if it takes it in time.
    pub(crate) fn unbounded() -> Self {
        Self { bytes_max: usize::MAX, ..Self::default() }
    }

    /// A connection of which something was not sent is about to be closed.
    pub(crate) fn cut(&self, socket: impl AsFd) {
        // It fails for sockets of other kinds, as tests have.
        let _ = sockopt::set_socket_linger(socket, Some(Duration::ZERO));
    }

    /// A connection is about to be closed.
    pub(crate) fn closes(&mut self, socket: impl AsFd) {
        let bytes = untaken(&socket);
        if bytes == 0 {
            return;
        }
        if self.admits(bytes, Instant::now()) {
            let _ = sockopt::set_tcp_user_timeout(socket, LINGER.as_millis() as u32);
        } else {
            self.cut(socket);
        }
    }

    fn admits(&mut self, bytes: usize, now: Instant) -> bool {
        if self.until.is_none_or(|until| until <= now) {
            self.until = Some(now + LINGER);
            self.bytes = 0;
        }
        let admits = bytes <= self.bytes_max - self.bytes;
        if admits {
            self.bytes += bytes;
        }
        admits
    }
}

/// Bytes that the kernel has and the peer has not acknowledged.
fn untaken(socket: impl AsFd) -> usize {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the request writes an integer, which lives here.
    let done = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if done == 0 { usize::try_from(bytes).unwrap_or(0) } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_within_a_time_is_bounded() {
        let (mut leaving, now) = (Leaving::default(), Instant::now());
        assert!(leaving.admits(LINGER_BYTES_MAX - 1, now));
        assert!(!leaving.admits(2, now + LINGER / 2));
        assert!(leaving.admits(1, now + LINGER / 2));
        assert!(!leaving.admits(1, now + LINGER / 2));
        assert!(leaving.admits(LINGER_BYTES_MAX, now + LINGER));
        assert!(Leaving::unbounded().admits(usize::MAX, now));
    }
}
