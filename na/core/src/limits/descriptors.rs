//! The number of connections that a process can have, and the refusal of those beyond.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::event::EventfdFlags;
use rustix::process::{Resource, getrlimit};

/// Descriptors that are not for connections: at least, at most.
const KEPT: (u64, u64) = (16, 256);

/// How many connections others may have of the `wanted` ones: each takes `each` descriptors, and
/// some are kept for everything else, such as those that are to be told that there are too many.
pub fn connections_max(wanted: usize, each: u64) -> usize {
    let Some(limit) = getrlimit(Resource::Nofile).current else { return wanted };
    let possible = possible(limit, each);
    if possible < wanted {
        tracing::info!(
            wanted,
            "others may have {possible} connections to this endpoint: the process may have {limit} \
             descriptors (ulimit -n, RLIMIT_NOFILE)"
        );
    }
    wanted.min(possible)
}

/// For how many connections there are descriptors.
fn possible(limit: u64, each: u64) -> usize {
    usize::try_from((limit.saturating_sub(kept(limit)) / each).max(1)).unwrap_or(usize::MAX)
}

/// How many descriptors are not for connections.
fn kept(limit: u64) -> u64 {
    (limit / 8).clamp(KEPT.0, KEPT.1)
}

/// Returns the reason to refuse a connection that was just accepted as `socket`, if descriptors are
/// lacking: it took one of those that are kept for the rest of the process, whatever uses up the
/// others.
pub fn refusal(socket: impl AsFd) -> Option<String> {
    let limit = getrlimit(Resource::Nofile).current?;
    is_kept(socket.as_fd().as_raw_fd(), limit).then(|| lack(limit))
}

/// As [`refusal`], of a connection that could be accepted only with the [`Reserve`].
pub fn last_refusal() -> String {
    lack(getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX))
}

fn lack(limit: u64) -> String {
    format!(
        "the process there has no free descriptor for a connection (it may have {limit}; raise \
         its `ulimit -n`, RLIMIT_NOFILE)"
    )
}

/// Returns whether a new descriptor of that number is one of those that are kept. The kernel gives
/// the lowest number that is free, so as many are taken.
fn is_kept(number: i32, limit: u64) -> bool {
    let kept = kept(limit).min(limit / 2);
    u64::try_from(number).is_ok_and(|number| number >= limit - kept)
}

/// How many of `wanted` descriptors may be for one purpose that can do with fewer: a part of all.
pub fn share(wanted: usize, part: u64) -> usize {
    let Some(limit) = getrlimit(Resource::Nofile).current else { return wanted };
    wanted.min(usize::try_from(limit / part).unwrap_or(usize::MAX)).max(2)
}

/// A descriptor that is given up so that a process which has no other can accept a connection, say
/// why it refuses it, and close it. Otherwise the dialer would wait, and be told nothing.
///
/// ```
/// use na_core::limits::descriptors::Reserve;
///
/// let mut reserve = Reserve::open();
/// // A descriptor is free meanwhile, for a connection that is refused.
/// assert_eq!(reserve.lend(|| "refused"), "refused");
/// ```
#[derive(Debug)]
pub struct Reserve(Option<OwnedFd>);

impl Reserve {
    /// One descriptor, if there is one.
    pub fn open() -> Self {
        Self(rustix::event::eventfd(0, EventfdFlags::CLOEXEC).ok())
    }

    /// Calls `act` while the descriptor's place is free, and takes it back.
    pub fn lend<T>(&mut self, act: impl FnOnce() -> T) -> T {
        self.0 = None;
        let done = act();
        *self = Self::open();
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_share_the_descriptors_but_for_some() {
        assert_eq!(possible(1024, 1), 896);
        assert_eq!(possible(1024, 3), 298);
        assert_eq!(possible(64, 1), 48);
        assert_eq!(possible(1 << 20, 2), (1 << 19) - 128);
        assert_eq!(possible(10, 1), 1, "one in any case");
    }

    #[test]
    fn the_last_descriptors_are_not_for_connections() {
        assert_eq!([47, 48, 63].map(|number| is_kept(number, 64)), [false, true, true]);
        assert_eq!([895, 896].map(|number| is_kept(number, 1024)), [false, true]);
        assert_eq!([4, 5].map(|number| is_kept(number, 10)), [false, true], "half in any case");
        assert!(!is_kept(i32::MAX, u64::MAX));
        let told = last_refusal();
        assert!(told.contains("no free descriptor") && told.contains("ulimit -n"), "{told}");
    }

    #[test]
    fn what_is_lent_is_there_again() {
        let mut reserve = Reserve::open();
        assert!(reserve.0.is_some());
        assert_eq!(reserve.lend(|| 7), 7);
        assert!(reserve.0.is_some());
    }
}
