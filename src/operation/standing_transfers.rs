//! The end of transfers that stand still: an origin that does not serve its memory must not hold a
//! handler, its place and its buffer for good.
//!
//! Transfers with a deadline end by that. A timer looks at the others a few times in
//! `margo.bulk.timeout_msec` while there are any, so that a transfer itself costs one look at a
//! flag. Looks are counted instead of time, so that no transfer ends because this process was
//! stopped for a while.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use ult::TimerHandle;

use crate::support::log::log;
use crate::support::why_over::GaveUp;
use crate::{Instance, operation::deadline_timer};

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
    timer: Mutex<Timer>,
}

#[derive(Debug, Default)]
enum Timer {
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
    pub(crate) fn begun(&self, instance: &Instance) {
        // Either this sees what `look` has stored before it found no transfer under the lock of the
        // RPC layer, or `look` finds this one there.
        if !self.limit.is_zero() && !self.is_set.load(Ordering::Relaxed) {
            self.set(instance);
        }
    }

    fn timer(&self) -> std::sync::MutexGuard<'_, Timer> {
        self.timer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cold]
    fn set(&self, instance: &Instance) {
        let mut timer = self.timer();
        if matches!(*timer, Timer::Closed) || self.is_set.swap(true, Ordering::Relaxed) {
            return;
        }
        let at = Instant::now() + (self.limit / LOOKS).max(Duration::from_millis(1));
        for pool in deadline_timer::pools(instance) {
            let own = instance.downgrade();
            let look = move || own.upgrade().iter().for_each(look);
            match pool.tasklet().name("margo transfers").spawn_at(at, look) {
                Ok(set) => {
                    *timer = Timer::Set(set);
                    return;
                }
                Err(error) => {
                    log!(instance.inner().log, DEBUG, %error, "no timer for transfers there")
                }
            }
        }
        // The next transfer tries again.
        self.is_set.store(false, Ordering::Relaxed);
    }

    /// The instance ends, and its transfers with it.
    pub(crate) fn close(&self) {
        let before = std::mem::replace(&mut *self.timer(), Timer::Closed);
        if let Timer::Set(timer) = before {
            timer.cancel();
        }
    }

    /// Looks after which a transfer has stood still for too long that has so many bytes under way.
    fn looks(&self, bytes: u64) -> u32 {
        let more = Duration::from_secs(bytes / BYTES_PER_SEC).as_millis();
        let more = u128::from(LOOKS) * more / self.limit.as_millis().max(1);
        LOOKS.saturating_add(u32::try_from(more).unwrap_or(u32::MAX))
    }
}

fn look(instance: &Instance) {
    let inner = instance.inner();
    let own = &inner.standing_transfers;
    if inner.is_forked() {
        return;
    }
    own.is_set.store(false, Ordering::Relaxed);
    let mut any = false;
    for (core, _) in inner.contexts() {
        let (others, standing) = core.standing_transfers(
            |bytes| own.looks(bytes),
            |token| token.as_bulk().filter(|call| call.may_stand()).cloned(),
        );
        any |= others;
        for (op, call) in standing {
            call.stands_still(own.limit);
            call.give_up(&**inner, op, GaveUp::TimedOut);
        }
    }
    if any {
        own.begun(instance);
    }
}

/// How long a transfer has stood still that was ended for it.
#[derive(Debug, Default)]
pub(crate) struct StoodFor(AtomicU32);

impl StoodFor {
    pub(crate) fn set(&self, limit: Duration) {
        // Whoever reads it has seen the end of the transfer, which comes after this.
        self.0.store(u32::try_from(limit.as_millis()).unwrap_or(u32::MAX), Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> Option<Duration> {
        let msec = self.0.load(Ordering::Relaxed);
        (msec > 0).then(|| Duration::from_millis(msec.into()))
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
