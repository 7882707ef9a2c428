//! The deadline of an operation for which there may be no waiting caller.
//!
//! The operation is, say, a request that the caller does not look at, or a future which some other
//! executor polls. A tasklet starts at the deadline and ends the operation. It is made with an
//! operation that has a deadline and is not waited for at once; the end of the operation takes it
//! away, so that none outlives its instance.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use ult::{PoolRef, TimerHandle};

use crate::operation::early::EndsEarly;
use crate::support::log::{Log, log};

/// The alarm of one operation.
#[derive(Default)]
pub(crate) struct DeadlineTimer(Mutex<AlarmState>);

#[derive(Default)]
enum AlarmState {
    #[default]
    Off,
    Set(TimerHandle<()>),
    /// The operation has ended: there will be none.
    Over,
}

impl DeadlineTimer {
    fn state(&self) -> MutexGuard<'_, AlarmState> {
        // No code of others runs under this lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has what `ring` makes called at that time. Once is enough: further ones change nothing.
    pub(crate) fn set<F: FnOnce() + Send + 'static>(
        &self,
        by: &impl EndsEarly,
        at: Instant,
        ring: impl Fn() -> F,
    ) {
        self.set_in(by.log(), by.timer_pools(), at, ring);
    }

    /// In the first of these pools that takes it: progress may just have moved, and its pool have
    /// been removed.
    pub(crate) fn set_in<F: FnOnce() + Send + 'static>(
        &self,
        log: &Log,
        pools: impl Iterator<Item = PoolRef>,
        at: Instant,
        ring: impl Fn() -> F,
    ) {
        let mut state = self.state();
        if !matches!(*state, AlarmState::Off) {
            return;
        }
        for pool in pools {
            match pool.tasklet().name("margo deadline").spawn_at(at, ring()) {
                Ok(timer) => {
                    *state = AlarmState::Set(timer);
                    return;
                }
                Err(error) => log!(log, DEBUG, %error, "no alarm for an operation there"),
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn is_set(&self) -> bool {
        matches!(*self.state(), AlarmState::Set(_))
    }

    /// The operation has ended.
    pub(crate) fn end(&self) {
        let state = std::mem::replace(&mut *self.state(), AlarmState::Over);
        if let AlarmState::Set(timer) = state {
            timer.cancel();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_alarm_goes_off_although_the_pool_that_it_was_for_has_just_been_removed() {
        let own = crate::init("{}").unwrap();
        let gone = own.layout().add_pool_from_json("{}").unwrap().pool;
        own.layout().remove_pool(&gone).unwrap();
        let (sender, rang) = mpsc::channel();
        let alarm = DeadlineTimer::default();
        let pools = [gone, own.layout().rpc_pool()].into_iter();
        alarm.set_in(&own.inner().log, pools, Instant::now(), || {
            let sender = sender.clone();
            move || sender.send(()).unwrap()
        });
        rang.recv_timeout(Duration::from_secs(60)).unwrap();
        own.finalize_and_wait().unwrap();
    }
}
