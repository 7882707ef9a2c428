//! Receives for requests: enough of them posted, and not more requests held than allowed.
//!
//! A request is *posted* while a receive waits in the network for it, and *held* from its arrival
//! until it is answered or its arguments are given back. Then a receive takes its place. When no
//! receive is left, more are added; at the limit they are not, and the transport holds the senders
//! back until requests are done with.
//!
//! Receives are posted one by one, each with a buffer for the longest request, or many together,
//! for which the transport finds the memory when requests come (*multi-recv*). In the second case a
//! receive whose place was taken is *owed* until there are enough to be posted together, or none is
//! left. Nothing else differs, nor does any bound.
//!
//! Handlers end on other threads than requests arrive on. Where receives are posted together,
//! `releases.rs` counts requests that are done with by the thread that is, and they are collected
//! here when receives run low: until then as many count as held.

use std::time::{Duration, Instant};

use na::{Addr, LargeBuffers, MsgBuf};
use prim::lock::BiasedGuard;

use crate::base::log::log;
use crate::core::releases::{Counted, Releases};
use crate::core::state::State;
use crate::ops::Role;
use crate::{Core, HgError, OpRef};

/// Counts of one core's requests. A caller that is told to post receives does so outside of the
/// lock that protects this.
#[derive(Debug)]
pub(crate) struct Receives {
    /// Receives to restore as requests are done with.
    target: usize,
    /// Receives to add when none is left.
    more: usize,
    /// Most requests posted and held together.
    max: usize,
    /// With more held than this, whose they are is to be looked at.
    crowd: usize,
    pub(crate) posted: usize,
    pub(crate) held: usize,
    /// Receives that failed and were not replaced yet.
    lost: usize,
    /// Receives whose requests are done with, and which were not posted again yet.
    pub(crate) owed: usize,
    /// So many are owed at most.
    batch: usize,
    /// Receives ever posted.
    total: u64,
    /// Requests that are held and whose arguments are being fetched.
    pub(crate) fetching: usize,
    /// Fetches ever begun.
    fetches: u64,
    /// When a fetch was refused, and how many had begun before then.
    mark: Option<(Instant, u64)>,
    /// When all fetches were last looked through for one that gives way, and which origin's were
    /// spared then, because it was the one that was refused.
    look: Option<(Instant, Option<Addr>)>,
    /// With so many held, releases are to be collected; never, if none are counted apart.
    collect_at: usize,
    /// Releases that were counted apart, and collected.
    collected: u64,
    #[cfg(test)]
    pub(crate) looks: u64,
}

/// Releases are counted apart where there are so many receives at least. With fewer they run low
/// with each burst.
const APART_MIN: usize = 16;

/// The time that a fetch may take while others are refused for its sake.
pub(crate) const FETCH_PATIENCE: Duration = Duration::from_secs(1);

/// Refusals within so much time look through all fetches once: there may be many of both.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// Most receives that are owed.
const BATCH_MAX: usize = 64;

/// Receives that the caller has to post: their first number, and how many.
pub(crate) type Claim = std::ops::Range<u64>;

impl Receives {
    pub(crate) fn new(target: usize, more: usize, max: usize, multi: bool) -> Self {
        let max = max.max(target);
        let batch = if multi { (target / 8).clamp(1, BATCH_MAX) } else { 1 };
        Self {
            target,
            more,
            max,
            crowd: max / 8 * 3 + max % 8 * 3 / 8,
            posted: 0,
            held: 0,
            lost: 0,
            owed: 0,
            batch,
            total: 0,
            fetching: 0,
            fetches: 0,
            mark: None,
            look: None,
            collect_at: if multi && target >= APART_MIN { target / 5 } else { usize::MAX },
            collected: 0,
            #[cfg(test)]
            looks: 0,
        }
    }

    /// Returns whether releases may be counted apart.
    pub(crate) fn may_collect(&self) -> bool {
        self.collect_at != usize::MAX
    }

    /// Claims the receives to post at the beginning.
    #[inline]
    pub(crate) fn first(&mut self) -> Claim {
        self.claim(self.target)
    }

    /// A posted receive ended with a request; `released` counts what is to be collected.
    #[inline]
    pub(crate) fn arrived(&mut self, released: impl FnOnce() -> u64) -> Claim {
        self.posted = self.posted.saturating_sub(1);
        self.held += 1;
        if self.posted > 0 && self.held < self.collect_at {
            return self.claim(0);
        }
        self.restock(released())
    }

    #[inline(never)]
    fn restock(&mut self, released: u64) -> Claim {
        self.collect(released);
        // More only if those that there were are all in use.
        match self.posted == 0 && self.owed == 0 {
            true => self.claim(self.more.max(self.lost)),
            false => self.claim_due(),
        }
    }

    /// Requests that were counted apart, so many in all, are held no longer.
    pub(crate) fn collect(&mut self, released: u64) {
        let new = released.wrapping_sub(self.collected) as usize;
        self.collected = released;
        self.held = self.held.saturating_sub(new);
        self.owed += new.min(self.target.saturating_sub(self.posted + self.owed));
        if self.may_collect() {
            // Not with each request, when many are held; unless they are a crowd, or seem to be.
            let later = (self.held + self.target / 16).max(self.target / 5);
            self.collect_at = later.min(self.crowd + 1);
        }
    }

    /// Returns whether so few requests are held, compared with the receives that wait, that a
    /// buffer may stay with its request until the answer.
    #[inline]
    pub(crate) fn has_plenty(&self) -> bool {
        4 * self.held <= self.posted + self.owed
    }

    /// Returns whether so many requests are held that whose they are is to be looked at: three
    /// eighths of those that may be.
    #[inline]
    pub(crate) fn is_crowded(&self) -> bool {
        self.held > self.crowd
    }

    /// So many receives were refused.
    pub(crate) fn refused(&mut self, count: usize) {
        self.posted = self.posted.saturating_sub(count);
        self.lost += count;
    }

    /// A posted receive ended without a request. One that is for many (`multi`) does so only with
    /// all others.
    pub(crate) fn ended(&mut self, multi: bool) {
        self.refused(if multi { self.posted } else { 1 });
    }

    /// Most requests whose arguments are fetched at a time. Origins that are stopped let no fetch
    /// end: they must not have all places.
    pub(crate) fn fetches_max(&self) -> usize {
        (self.max / 2).max(1)
    }

    /// Arguments of a request are to be fetched. Returns how many were before.
    ///
    /// # Errors
    ///
    /// Those of as many as allowed are, which is how many.
    pub(crate) fn begin_fetch(&mut self) -> Result<u64, usize> {
        let max = self.fetches_max();
        if self.fetching >= max {
            return Err(max);
        }
        self.fetching += 1;
        self.fetches += 1;
        Ok(self.fetches - 1)
    }

    /// A fetch is refused for the sake of others: returns the number below which fetches have taken
    /// [`FETCH_PATIENCE`]. It is known from the fetches that have begun between two refusals, so
    /// that fetches for which none is refused ask no clock.
    pub(crate) fn old_fetches(&mut self, now: Instant) -> u64 {
        let (since, before) = *self.mark.get_or_insert((now, self.fetches));
        if now.saturating_duration_since(since) >= FETCH_PATIENCE { before } else { 0 }
    }

    /// There was none of them at a refusal: `now` counts for later ones, if the time before is
    /// over.
    pub(crate) fn no_fetch_is_old(&mut self, now: Instant) {
        if self.old_fetches(now) > 0 {
            self.mark = Some((now, self.fetches));
        }
    }

    /// A fetch of `newcomer` is refused: whether it is time to look for others that give way.
    pub(crate) fn begin_look(&mut self, now: Instant, newcomer: &Addr) -> bool {
        let is_due = self.look.as_ref().is_none_or(|(last, spared)| {
            now.saturating_duration_since(*last) >= LOOK_INTERVAL
                || spared.as_ref().is_some_and(|spared| spared != newcomer)
        });
        if is_due {
            self.look = Some((now, None));
            #[cfg(test)]
            {
                self.looks += 1;
            }
        }
        is_due
    }

    /// One of `newcomer`'s own would have given way to another origin.
    pub(crate) fn has_spared(&mut self, newcomer: &Addr) {
        if let Some((_, spared)) = &mut self.look {
            *spared = Some(newcomer.clone());
        }
    }

    /// They are here, or will never be.
    pub(crate) fn end_fetch(&mut self) {
        self.fetching = self.fetching.saturating_sub(1);
    }

    /// A request is held no longer.
    #[inline]
    pub(crate) fn released(&mut self) -> Claim {
        self.held = self.held.saturating_sub(1);
        if self.posted + self.owed < self.target {
            self.owed += 1;
        }
        self.claim_due()
    }

    /// Claims what is owed, if that is enough or none is left.
    #[inline]
    pub(crate) fn claim_due(&mut self) -> Claim {
        let is_due = self.owed >= self.batch || self.posted == 0;
        if is_due { self.claim_owed() } else { self.claim(0) }
    }

    fn claim_owed(&mut self) -> Claim {
        let wanted = if self.owed > 0 { std::mem::take(&mut self.owed) + self.lost } else { 0 };
        self.claim(wanted)
    }

    fn claim(&mut self, wanted: usize) -> Claim {
        if wanted > 0 {
            self.lost = 0;
        }
        let count = wanted.min(self.max.saturating_sub(self.posted + self.held));
        self.posted += count;
        let first = self.total;
        self.total += count as u64;
        first..self.total
    }
}

impl<T> Core<T> {
    /// Returns whether the system has memory for the first receives, if each has a buffer. Buffers
    /// are made one by one, where a lack of memory ends the process.
    pub(crate) fn has_memory_for(&self, first: &Claim) -> Result<(), HgError> {
        if self.large.is_some() {
            return Ok(());
        }
        let (count, bytes) = (first.end - first.start, self.buffers.bytes());
        let all = usize::try_from(count).ok().and_then(|count| count.checked_mul(bytes));
        // Address space alone: nothing is written, and it is given back at once.
        let mut probe: Vec<u8> = Vec::new();
        let had = all.is_some_and(|all| probe.try_reserve_exact(all).is_ok());
        // An allocation at which nobody looks need not be made.
        std::hint::black_box(&probe);
        if had { Ok(()) } else { Err(HgError::Receives { count, bytes }) }
    }

    /// Posts receives that were claimed.
    #[cold]
    pub(crate) fn post_receives(&self, claim: Claim) -> Result<(), HgError> {
        if claim.is_empty() {
            return Ok(());
        }
        let posted = match &self.large {
            Some(large) => self.post_together(claim.clone(), large).map_err(|error| (0, error)),
            None => claim.clone().enumerate().try_for_each(|(before, number)| {
                self.post_receive(number, self.buffers.take()).map_err(|error| (before, error))
            }),
        };
        posted.map_err(|(before, error)| {
            self.lose_receives(|receives| receives.refused(claim.count() - before));
            error
        })
    }

    /// Posts receives that share one name.
    fn post_together(&self, claim: Claim, large: &LargeBuffers) -> Result<(), HgError> {
        let op = OpRef::single(Role::Request, self.id, claim.start);
        Ok(self.endpoint.multi_recv_unexpected(op, claim.count(), large)?)
    }

    /// Posts one receive.
    #[inline]
    fn post_receive(&self, number: u64, buf: MsgBuf) -> Result<(), HgError> {
        let op = OpRef::single(Role::Request, self.id, number);
        self.endpoint.recv_unexpected(op, buf).map_err(|refused| {
            self.buffers.put(refused.buf);
            refused.error.into()
        })
    }

    /// A request is done with, and its buffer `buf` is free: posts what was claimed because of
    /// that.
    #[inline]
    pub(crate) fn request_released(&self, mut claim: Claim, buf: Option<MsgBuf>) {
        if self.options.listen
            && self.large.is_none()
            && let Some(number) = claim.next()
        {
            let buf = buf.unwrap_or_else(|| self.buffers.take());
            let posted = self.post_receive(number, buf);
            if posted.is_err() {
                self.lose_receives(|receives| receives.refused(1));
            }
        } else if let Some(buf) = buf {
            self.buffers.put(buf);
        }
        self.post_more(claim);
    }

    /// Posts receives that were claimed because too few are left.
    #[inline]
    pub(crate) fn post_more(&self, claim: Claim) {
        if !claim.is_empty()
            && self.options.listen
            && let Err(error) = self.post_receives(claim)
        {
            log!(self.options.log, DEBUG, %error, "cannot receive further requests");
        }
    }

    /// A receive took a request, which is held from now on.
    pub(crate) fn count_arrival(&self) {
        let more = self.arrived(&mut self.state().receives);
        self.post_more(more);
    }

    /// A receive took a request, which is held from now on.
    #[inline]
    pub(crate) fn arrived(&self, receives: &mut Receives) -> Claim {
        let claim = receives.arrived(|| self.released_apart());
        if receives.posted == 0 { self.run_short(receives) } else { claim }
    }

    /// Receives have failed.
    #[cold]
    pub(crate) fn lose_receives(&self, lose: impl FnOnce(&mut Receives)) {
        let claim = {
            let receives = &mut self.state().receives;
            lose(receives);
            if receives.posted > 0 {
                return;
            }
            self.run_short(receives)
        };
        self.post_more(claim);
    }

    /// No receive is left: who is done with a request looks from now on.
    #[cold]
    #[inline(never)]
    fn run_short(&self, receives: &mut Receives) -> Claim {
        match &self.releases {
            Some(releases) if releases.run_short() => {
                receives.collect(releases.released());
                receives.claim_due()
            }
            _ => 0..0,
        }
    }

    /// A request that may have been `held` is done with, and may have been `answered`. `false`: it
    /// is to be counted under the lock.
    #[inline]
    pub(crate) fn release_apart(&self, held: bool, answered: bool) -> bool {
        let Some(releases) = &self.releases else { return false };
        let counted = releases.count(held, answered);
        if counted == Counted::Short {
            self.collect_now(releases);
        }
        counted != Counted::Not
    }

    #[cold]
    #[inline(never)]
    fn collect_now(&self, releases: &Releases) {
        let claim = {
            let receives = &mut self.state().receives;
            receives.collect(releases.released());
            let claim = receives.claim_due();
            if receives.has_plenty() {
                releases.has_plenty();
            }
            claim
        };
        self.post_more(claim);
    }

    #[inline(never)]
    fn released_apart(&self) -> u64 {
        self.releases.as_ref().map_or(0, Releases::released)
    }

    /// The state, with nothing left to be collected.
    pub(crate) fn collected_state(&self) -> BiasedGuard<'_, State<T>> {
        let mut state = self.state();
        state.receives.collect(self.released_apart());
        state
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receives_grow_until_the_limit_and_shrink_to_the_target() {
        let mut receives = Receives::new(2, 4, 5, false);
        assert_eq!(receives.first(), 0..2);
        assert_eq!(receives.arrived(|| 0), 2..2, "one is left");
        assert_eq!(receives.arrived(|| 0), 2..5, "none is left; the limit");
        for _ in 0..3 {
            assert!(receives.arrived(|| 0).is_empty());
        }
        assert_eq!((receives.posted, receives.held), (0, 5));
        let posted: usize = (0..5).map(|_| receives.released().count()).sum();
        assert_eq!((posted, receives.posted, receives.held), (2, 2, 0));
    }

    #[test]
    fn buffers_may_stay_with_requests_while_few_are_held() {
        let mut receives = Receives::new(10, 0, 100, false);
        receives.first();
        receives.arrived(|| 0);
        receives.arrived(|| 0);
        assert!(receives.has_plenty(), "8 are left, 2 are held");
        receives.arrived(|| 0);
        assert!(!receives.has_plenty());
        let mut single = Receives::new(1, 0, 100, false);
        single.first();
        single.arrived(|| 0);
        assert!(!single.has_plenty(), "the next request must not wait for the answer");
    }

    #[test]
    fn without_growth_a_request_keeps_the_place_of_its_receive() {
        let mut receives = Receives::new(1, 0, 100, false);
        assert_eq!(receives.first().count(), 1);
        assert!(receives.arrived(|| 0).is_empty());
        assert_eq!(receives.released().count(), 1);
    }

    #[test]
    fn a_receive_that_failed_is_replaced() {
        let mut receives = Receives::new(3, 1, 100, false);
        receives.first();
        receives.ended(false);
        receives.ended(false);
        assert_eq!(receives.arrived(|| 0).count(), 2, "none is left");
        assert_eq!(receives.released().count(), 1);
        let mut fixed = Receives::new(2, 0, 100, false);
        fixed.first();
        fixed.ended(false);
        assert_eq!(fixed.arrived(|| 0).count(), 1, "also where receives do not grow");
    }

    #[test]
    fn receives_posted_together_are_owed_until_there_are_some() {
        let mut receives = Receives::new(32, 0, 100, true);
        assert_eq!(receives.first(), 0..32);
        for _ in 0..3 {
            receives.arrived(|| 0);
            assert!(receives.released().is_empty());
        }
        receives.arrived(|| 0);
        assert_eq!(receives.released(), 32..36, "an eighth");
        assert_eq!(receives.posted, 32);
    }

    #[test]
    fn what_is_owed_is_posted_when_none_is_left() {
        let mut receives = Receives::new(32, 50, 100, true);
        receives.first();
        for _ in 0..3 {
            receives.arrived(|| 0);
            receives.released();
        }
        for _ in 0..28 {
            assert!(receives.arrived(|| 0).is_empty());
        }
        assert_eq!(receives.arrived(|| 0).count(), 3, "before others are added");
        receives.arrived(|| 0);
        receives.arrived(|| 0);
        assert_eq!(receives.arrived(|| 0).count(), 50);
        // Without growth each request done with makes room at once.
        let mut fixed = Receives::new(32, 0, 100, true);
        fixed.first();
        for _ in 0..32 {
            assert!(fixed.arrived(|| 0).is_empty());
        }
        assert_eq!(fixed.released().count(), 1);
        assert_eq!((fixed.posted, fixed.held), (1, 31));
    }

    #[test]
    fn receives_for_many_fail_together_and_are_replaced() {
        let mut receives = Receives::new(32, 0, 100, true);
        receives.first();
        receives.arrived(|| 0);
        receives.ended(true);
        receives.ended(true);
        assert_eq!(receives.posted, 0);
        assert_eq!(receives.released().count(), 32);
    }

    #[test]
    fn a_fetch_is_old_after_a_second_of_refusals() {
        let mut receives = Receives::new(4, 0, 8, false);
        let begin = Instant::now();
        let at = |part| begin + FETCH_PATIENCE * part / 4;
        assert_eq!((receives.begin_fetch(), receives.begin_fetch()), (Ok(0), Ok(1)));
        assert_eq!(receives.old_fetches(at(0)), 0, "who knows");
        assert_eq!(receives.begin_fetch(), Ok(2));
        receives.no_fetch_is_old(at(3));
        assert_eq!(receives.old_fetches(at(4)), 2, "the first two");
        // They have ended meanwhile.
        receives.no_fetch_is_old(at(5));
        assert_eq!(receives.old_fetches(at(8)), 0);
        assert_eq!(receives.old_fetches(at(9)), 3);
    }

    proptest::proptest! {
        /// Whatever happens, posted together or one by one: no more than allowed, and never none
        /// without a reason.
        #[test]
        fn the_bounds_hold_in_any_order(
            target in 1..80usize,
            more in 0..40usize,
            max in 1..120usize,
            steps in proptest::collection::vec(0..4u8, 0..400),
        ) {
            for multi in [false, true] {
                let mut receives = Receives::new(target, more, max, multi);
                let max = max.max(target);
                receives.first();
                for step in &steps {
                    match step {
                        0 | 1 if receives.posted > 0 => drop(receives.arrived(|| 0)),
                        2 | 3 if receives.held > 0 => drop(receives.released()),
                        _ => {}
                    }
                    let all = receives.posted + receives.held;
                    assert!(all <= max, "{receives:?}");
                    if more == 0 {
                        assert!(all + receives.owed <= target, "{receives:?}");
                    }
                    assert!(all + receives.owed >= target, "{receives:?}");
                    assert!(receives.posted > 0 || receives.owed == 0, "{receives:?}");
                }
            }
        }
    }
}
