//! Settings that only the tcp transport has. Here, so that they exist in every build.

use std::time::Duration;

use crate::Error;

/// Most connections to one endpoint, unless said otherwise.
pub(crate) const CONNECTIONS_MAX: usize = 65_536;

/// Time after which the kernel looks after an idle connection, unless said otherwise.
const KEEP_ALIVE: Duration = Duration::from_secs(60);

/// Bytes of answers that a peer may leave unread, and how many of the longest in any case, unless
/// said otherwise.
const UNREAD_ANSWERS_MAX: usize = 256 << 20;
const UNREAD_ANSWERS_MIN: usize = 1024;

/// Settings of the tcp transport, as [`OpenOptions::tcp`](crate::OpenOptions::tcp).
///
/// Times are kept to about a quarter of themselves.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct TcpOptions {
    /// How long a connection that is refused, or ends before it is greeted, or whose host cannot be
    /// reached, is tried again: for targets that are about to start. The pauses grow from 10 ms to
    /// 500 ms, and the attempts end with [`connect_timeout`](crate::OpenOptions::connect_timeout)
    /// in any case. Default zero: the first refusal is reported.
    pub connect_retry: Duration,
    /// Connections that others may have to this endpoint. Further ones are refused, and their
    /// dialer is told so ([`Error::Unreachable`]). Default 65,536; at least 1. Never more than the
    /// process may have descriptors when the endpoint is opened (the soft `RLIMIT_NOFILE`), less an
    /// eighth of those, but 16 to 256, for everything else.
    pub connections_max: usize,
    /// How long a peer may take nothing of what we have for it before it is given up
    /// ([`Error::PeerGone`]). Default zero: for ever; sends to it just do not complete, up to
    /// [`unread_answers_max`](Self::unread_answers_max).
    pub slow_reader_limit: Duration,
    /// Bytes of answers (expected messages) that may wait for a peer which does not read them, each
    /// counted with its whole buffer and some 100 bytes beside. A peer for which more wait, and
    /// which takes too little of them at that moment, is given up ([`Error::PeerGone`]): one that
    /// asks without end and reads nothing would fill our memory. For an honest one never more wait
    /// than it has calls in flight, times
    /// [`message_bytes_max`](crate::OpenOptions::message_bytes_max). Default `None`: 256 MiB,
    /// some 60,000 answers of the default length, or 1,024 of full length if that is more; at least
    /// 1.
    pub unread_answers_max: Option<usize>,
    /// Time after which the kernel asks an idle peer's host whether the connection still exists;
    /// a host that does not answer within as much again has gone. In whole seconds; zero: never
    /// asks. Default 60 s.
    pub keep_alive: Duration,
    /// How long a poll that finds nothing may ask the network card directly (`SO_BUSY_POLL`),
    /// which spares an interrupt; in whole microseconds. Needs a driver that can do that, and
    /// the capability `CAP_NET_ADMIN`. Loopback has no card: no effect. Default zero: off.
    pub busy_poll: Duration,
}

impl Default for TcpOptions {
    fn default() -> Self {
        Self {
            connect_retry: Duration::ZERO,
            connections_max: CONNECTIONS_MAX,
            slow_reader_limit: Duration::ZERO,
            unread_answers_max: None,
            keep_alive: KEEP_ALIVE,
            busy_poll: Duration::ZERO,
        }
    }
}

impl TcpOptions {
    /// The bound, for messages of up to so many bytes.
    #[allow(dead_code, reason = "a build may be without the transport")]
    pub(crate) fn unread_answers_bound(&self, message_bytes_max: usize) -> usize {
        unread_answers_bound(self.unread_answers_max, message_bytes_max)
    }

    /// Refuses what cannot work.
    pub(crate) fn check(&self) -> Result<(), Error> {
        check_bounds(
            ("tcp.connections_max", self.connections_max),
            ("tcp.unread_answers_max", self.unread_answers_max),
        )
    }
}

/// Bytes of answers that a peer may leave unread, for messages of up to so many bytes.
#[allow(dead_code, reason = "a build may be without the transports")]
pub(crate) fn unread_answers_bound(wanted: Option<usize>, message_bytes_max: usize) -> usize {
    let of_messages = UNREAD_ANSWERS_MIN.saturating_mul(message_bytes_max);
    wanted.unwrap_or(UNREAD_ANSWERS_MAX.max(of_messages))
}

/// What a bound of ours that lets nobody in, or answers nobody, is refused with.
#[allow(dead_code, reason = "a build may be without the transports")]
pub(crate) fn check_bounds(
    (connections, connections_max): (&'static str, usize),
    (answers, unread_answers_max): (&'static str, Option<usize>),
) -> Result<(), Error> {
    if connections_max == 0 {
        let reason = "it is 0; at least 1 is needed (or do not listen)".to_owned();
        return Err(Error::BadOption { option: connections, reason });
    }
    if unread_answers_max == Some(0) {
        let reason = "it is 0: no peer could be answered; at least 1 is needed".to_owned();
        return Err(Error::BadOption { option: answers, reason });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_messages_may_wait_unread_as_well() {
        let mut options = TcpOptions::default();
        assert_eq!(unread_answers_bound(None, 4096), 256 << 20);
        assert_eq!(unread_answers_bound(None, 1 << 20), 1 << 30);
        assert_eq!(unread_answers_bound(Some(9), 1 << 20), 9);
        options.unread_answers_max = Some(0);
        let option = "tcp.unread_answers_max";
        assert!(matches!(options.check(), Err(Error::BadOption { option: o, .. }) if o == option));
    }
}
