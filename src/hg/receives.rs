//! Receives for requests: enough of them posted, and not more requests held than allowed.
//!
//! A request is *posted* while its buffer waits in the network for a message, and *held* from its
//! arrival until it is answered or its arguments are given back. Then a receive takes its place.
//! When no receive is left, more are added; at the limit they are not, and the transport holds the
//! senders back until requests are done with.

use super::ops::{OpRef, Role};
use super::{Core, HgError};
use crate::log::log;

/// Counts of one core's requests. Who is told to post does so outside of the lock that protects
/// this.
#[derive(Debug)]
pub(super) struct Receives {
    /// Receives to restore as requests are done with.
    target: usize,
    /// Receives to add when none is left.
    more: usize,
    /// Most requests posted and held together.
    max: usize,
    pub(super) posted: usize,
    pub(super) held: usize,
    /// Receives that failed and were not replaced yet.
    lost: usize,
    /// Receives ever posted.
    total: u64,
    /// Bytes of arguments that overflowed, of requests that are held.
    bytes: u64,
}

/// Receives that the caller has to post: their first number, and how many.
pub(super) type Claim = std::ops::Range<u64>;

impl Receives {
    pub(super) fn new(target: usize, more: usize, max: usize) -> Self {
        let max = max.max(target);
        Self { target, more, max, posted: 0, held: 0, lost: 0, total: 0, bytes: 0 }
    }

    /// What to post at the beginning.
    pub(super) fn first(&mut self) -> Claim {
        self.claim(self.target)
    }

    /// A posted receive ended with a request.
    pub(super) fn arrived(&mut self) -> Claim {
        self.posted = self.posted.saturating_sub(1);
        self.held += 1;
        if self.posted > 0 {
            return self.claim(0);
        }
        let wanted = self.more.max(self.lost);
        self.lost = 0;
        self.claim(wanted)
    }

    /// Whether so few requests are held, compared with the receives that wait, that a buffer may
    /// stay with its request until the answer.
    #[inline]
    pub(super) fn has_plenty(&self) -> bool {
        4 * self.held <= self.posted
    }

    /// A posted receive ended without one, or was refused.
    pub(super) fn failed(&mut self) {
        self.posted = self.posted.saturating_sub(1);
        self.lost += 1;
    }

    /// Arguments of `len` bytes that overflowed are to be fetched. `false`: with those that are
    /// held they are more than `max`; but alone they never are.
    pub(super) fn hold_bytes(&mut self, len: u64, max: u64) -> bool {
        let fits = self.bytes == 0 || self.bytes.checked_add(len).is_some_and(|sum| sum <= max);
        self.bytes += if fits { len } else { 0 };
        fits
    }

    /// They are not here any more.
    pub(super) fn release_bytes(&mut self, len: u64) {
        self.bytes = self.bytes.saturating_sub(len);
    }

    /// A request is held no longer.
    pub(super) fn released(&mut self) -> Claim {
        self.held = self.held.saturating_sub(1);
        let wanted = if self.posted < self.target { 1 + self.lost } else { 0 };
        self.lost = 0;
        self.claim(wanted)
    }

    fn claim(&mut self, wanted: usize) -> Claim {
        let count = wanted.min(self.max.saturating_sub(self.posted + self.held));
        self.posted += count;
        let first = self.total;
        self.total += count as u64;
        first..self.total
    }
}

impl<T> Core<T> {
    /// Posts receives that context 0 has claimed.
    #[cold]
    pub(super) fn post_receives(&self, claim: Claim) -> Result<(), HgError> {
        for number in claim.clone() {
            if let Err(error) = self.post_receive(number, self.buffers.take()) {
                let mut state = self.primary().state();
                (number..claim.end).for_each(|_| state.receives.failed());
                return Err(error);
            }
        }
        Ok(())
    }

    /// Posts one receive.
    #[inline]
    fn post_receive(&self, number: u64, buf: na::MsgBuf) -> Result<(), HgError> {
        let op = OpRef::single(Role::Request, 0, number);
        self.endpoint.recv_unexpected(op, buf).map_err(|refused| {
            self.buffers.put(refused.buf);
            refused.error.into()
        })
    }

    /// A request is done with, and its buffer `buf` is free: posts what was claimed because of
    /// that.
    #[inline]
    pub(super) fn request_released(&self, mut claim: Claim, buf: Option<na::MsgBuf>) {
        if self.options.listen
            && let Some(number) = claim.next()
        {
            let buf = buf.unwrap_or_else(|| self.buffers.take());
            let posted = self.post_receive(number, buf);
            if posted.is_err() {
                self.primary().state().receives.failed();
            }
            self.post_more(claim);
        } else if let Some(buf) = buf {
            self.buffers.put(buf);
        }
    }

    /// Posts receives that were claimed because too few are left.
    #[inline]
    pub(super) fn post_more(&self, claim: Claim) {
        if !claim.is_empty()
            && self.options.listen
            && let Err(error) = self.post_receives(claim)
        {
            log!(self.options.log, DEBUG, %error, "cannot receive further requests");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receives_grow_until_the_limit_and_shrink_to_the_target() {
        let mut receives = Receives::new(2, 4, 5);
        assert_eq!(receives.first(), 0..2);
        assert_eq!(receives.arrived(), 2..2, "one is left");
        assert_eq!(receives.arrived(), 2..5, "none is left; the limit");
        for _ in 0..3 {
            assert!(receives.arrived().is_empty());
        }
        assert_eq!((receives.posted, receives.held), (0, 5));
        let posted: usize = (0..5).map(|_| receives.released().count()).sum();
        assert_eq!((posted, receives.posted, receives.held), (2, 2, 0));
    }

    #[test]
    fn buffers_may_stay_with_requests_while_few_are_held() {
        let mut receives = Receives::new(10, 0, 100);
        receives.first();
        receives.arrived();
        receives.arrived();
        assert!(receives.has_plenty(), "8 are left, 2 are held");
        receives.arrived();
        assert!(!receives.has_plenty());
        let mut single = Receives::new(1, 0, 100);
        single.first();
        single.arrived();
        assert!(!single.has_plenty(), "the next request must not wait for the answer");
    }

    #[test]
    fn without_growth_a_request_keeps_the_place_of_its_receive() {
        let mut receives = Receives::new(1, 0, 100);
        assert_eq!(receives.first().count(), 1);
        assert!(receives.arrived().is_empty());
        assert_eq!(receives.released().count(), 1);
    }

    #[test]
    fn a_receive_that_failed_is_replaced() {
        let mut receives = Receives::new(3, 1, 100);
        receives.first();
        receives.failed();
        receives.failed();
        assert_eq!(receives.arrived().count(), 2, "none is left");
        assert_eq!(receives.released().count(), 1);
        let mut fixed = Receives::new(2, 0, 100);
        fixed.first();
        fixed.failed();
        assert_eq!(fixed.arrived().count(), 1, "also where receives do not grow");
    }
}
