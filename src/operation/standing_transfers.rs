//! The end of transfers that stand still: an origin that does not serve its memory must not hold a
//! handler, its place and its buffer for good.
//!
//! Transfers with a deadline end by that. A timer looks at the others a few times in
//! `margo.bulk.timeout_msec` while there are any, so that a transfer itself costs one look at a
//! flag. Looks are counted instead of time, so that no transfer ends because this process was
//! stopped for a while.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hg::Core;
use ult::TimerHandle;

use crate::operation::early::EndsEarly;
use crate::operation::token::Token;
use crate::support::log::log;
use crate::support::why_over::GaveUp;

/// Looks within the limit.
const LOOKS: u32 = 4;

/// A transfer may stand still for a second more for each of these bytes that are under way: how far
/// each of them has come is not known here.
const BYTES_PER_SEC: u64 = 1 << 20;

/// The timer of an instance.
#[derive(Debug, Default)]
pub(crate) struct StandingTransfers {
    /// Zero: there is no limit.
    limit: Duration,
    /// The timer is set.
    is_set: AtomicBool,
    timer: Mutex<StandingTimer>,
}

#[derive(Debug, Default)]
enum StandingTimer {
    #[default]
    None,
    Set(TimerHandle<()>),
    /// The instance ends: there will be none.
    Closed,
}

impl StandingTransfers {
    /// `limit_msec`: how long a transfer may stand still, milliseconds; 0 for no limit.
    pub(crate) fn new(limit_msec: u32) -> Self {
        Self { limit: Duration::from_millis(limit_msec.into()), ..Self::default() }
    }

    /// A transfer without a deadline has begun.
    #[inline]
    pub(crate) fn begun<B: EndsEarly, F>(&self, by: &B, look: impl Fn() -> F)
    where
        F: FnOnce() + Send + 'static,
    {
        // Either this sees what `look` has stored before it found no transfer under the lock of the
        // RPC layer, or `look` finds this one there.
        if !self.limit.is_zero() && !self.is_set.load(Ordering::Relaxed) {
            self.set(by, look);
        }
    }

    fn timer(&self) -> std::sync::MutexGuard<'_, StandingTimer> {
        self.timer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cold]
    fn set<B: EndsEarly, F>(&self, by: &B, look: impl Fn() -> F)
    where
        F: FnOnce() + Send + 'static,
    {
        let mut timer = self.timer();
        if matches!(*timer, StandingTimer::Closed) || self.is_set.swap(true, Ordering::Relaxed) {
            return;
        }
        let at = Instant::now() + (self.limit / LOOKS).max(Duration::from_millis(1));
        for pool in by.timer_pools() {
            match pool.tasklet().name("margo transfers").spawn_at(at, look()) {
                Ok(set) => {
                    *timer = StandingTimer::Set(set);
                    return;
                }
                Err(error) => log!(by.log(), DEBUG, %error, "no timer for transfers there"),
            }
        }
        // The next transfer tries again.
        self.is_set.store(false, Ordering::Relaxed);
    }

    /// The instance ends, and its transfers with it.
    pub(crate) fn close(&self) {
        let before = std::mem::replace(&mut *self.timer(), StandingTimer::Closed);
        if let StandingTimer::Set(timer) = before {
            timer.cancel();
        }
    }

    /// Ends the transfers of `cores` that have stood still for too long. Returns whether there are
    /// others, so that it has to look again.
    pub(crate) fn look<'c>(
        &self,
        by: &dyn EndsEarly,
        cores: impl Iterator<Item = &'c Arc<Core<Token>>>,
    ) -> bool {
        self.is_set.store(false, Ordering::Relaxed);
        let mut any = false;
        for core in cores {
            let (others, standing) = core.standing_transfers(
                |bytes| self.looks(bytes),
                |token| token.as_bulk().filter(|call| call.may_stand()).cloned(),
            );
            any |= others;
            for (op, call) in standing {
                call.stands_still(self.limit);
                call.give_up(by, op, GaveUp::TimedOut);
            }
        }
        any
    }

    /// Looks after which a transfer has stood still for too long that has so many bytes under way.
    fn looks(&self, bytes: u64) -> u32 {
        let more = Duration::from_secs(bytes / BYTES_PER_SEC).as_millis();
        let more = u128::from(LOOKS) * more / self.limit.as_millis().max(1);
        LOOKS.saturating_add(u32::try_from(more).unwrap_or(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_much_may_stand_for_longer() {
        let of = StandingTransfers::new;
        assert_eq!(of(60_000).looks(1 << 20), 4);
        assert_eq!(of(60_000).looks(60 << 20), 8);
        assert_eq!(of(1).looks(u64::MAX), u32::MAX);
    }
}
