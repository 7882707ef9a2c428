//! The sleep of an xstream with nothing to run: it spins for a short time, then sleeps on one word
//! or in one `poll` until something is runnable.
//!
//! 1. Timers that are due fire.
//! 2. Idle waiters ([`idle`](crate::integration::idle())) past which other units have run are run
//!    once more.
//! 3. Without idle waiters, it spins and watches its inbox and pools. With them it does
//!    not: they have spun themselves, watching the outside, and a spin here would be blind to it.
//! 4. Each idle waiter is asked to arm its source of events, once per call of `idle`.
//! 5. The park word announces sleep, everything that others can make runnable is looked at once
//!    more, and the thread sleeps: on the word (futex), or, if there are idle waiters, in `poll` on
//!    their descriptors and its own eventfd. See [`park`](mod@crate::base::park_word) for why
//!    nothing is lost.
//!
//! `poll` instead of an epoll set: an xstream has very few idle waiters, so passing the descriptors
//! at each sleep costs nothing against the sleep itself, and there is no registration that could
//! go stale when a descriptor is closed and its number used again.
//!
//! The sleep is bounded by the next timer, and while stacks have come back since the last look at
//! them, by the next look: so after a burst it wakes once or twice to give memory back.

use std::time::{Duration, Instant};

use crate::base::park_word::ParkMode;
use crate::base::timespec::timespec;
use crate::engine::model::pool::{PoolShared, bump};
use crate::engine::model::xstream_shared::EVENTFD_NAME;
use crate::engine::pulse::Rest;
use crate::engine::xstream::owner::Xstream;
use crate::sync::atomic::Ordering::Relaxed;
use prim::lost;

impl Xstream {
    /// The scheduler found nothing. Returns when something may be runnable.
    pub(crate) fn on_idle(&self) {
        let now = Instant::now();
        if self.fire_timers(now) || self.resume_idle(1) {
            return;
        }
        if self.tend_stacks(now) {
            return;
        }
        let until_timer = self.until_next_timer(now);
        if self.idle.is_empty() {
            self.looks(true);
            let limit = until_timer.unwrap_or(Duration::MAX);
            let has_found = self.spin.spin(limit, || self.is_runnable() || self.has_jobs());
            self.looks(false);
            if has_found {
                return;
            }
        }
        if self.arm_idle() {
            return;
        }
        self.sleep();
    }

    fn sleep(&self) {
        self.core.sleeping.fetch_add(1, Relaxed);
        let may_help = self.core.has_jobs.load(Relaxed);
        if may_help {
            self.each_served(|pool| _ = pool.sleepers.fetch_add(1, Relaxed));
        }
        self.sleep_counted();
        if may_help {
            self.each_served(|pool| _ = pool.sleepers.fetch_sub(1, Relaxed));
        }
        self.core.sleeping.fetch_sub(1, Relaxed);
        // Not before: what they spawn into shared pools would look for a sleeper to wake.
        self.run_polled();
    }

    /// Calls `f` for each pool that the scheduler serves: the same ones before and after a sleep.
    fn each_served(&self, f: impl Fn(&PoolShared)) {
        self.any_slot(|slot| {
            if slot.served.get() {
                f(&slot.pool);
            }
            false
        });
    }

    fn sleep_counted(&self) {
        let bed = if self.idle.is_empty() { ParkMode::Futex } else { ParkMode::Poll };
        let is_forever = bed == ParkMode::Futex && self.timers.borrow().len() == 0;
        // Before the second look: a sink may make something runnable.
        self.on_rest(if is_forever { Rest::Forever } else { Rest::Waiting });
        let word = self.shared().word();
        if !word.begin(bed) {
            self.on_rest(Rest::Awake);
            return;
        }
        // The second look; see `park`.
        if self.is_runnable() || self.has_jobs() {
            if word.end() {
                self.pass_on_wake();
            }
            self.on_rest(Rest::Awake);
            return;
        }
        bump(&self.shared().sleeps);
        let start = Instant::now();
        let limits = [self.until_next_timer(start), self.stacks.until_look(start)];
        let limit = limits.into_iter().flatten().min();
        let epoch = self.core.diag.epoch;
        self.shared().slept.begin(start.saturating_duration_since(epoch));
        match bed {
            ParkMode::Futex => word.sleep_futex(limit),
            ParkMode::Poll => self.poll(limit),
        }
        let is_woken = word.end();
        self.on_rest(Rest::Awake);
        let end = Instant::now();
        self.shared().slept.end(end.saturating_duration_since(epoch));
        let slept = end - start;
        if is_woken {
            self.spin.learn(slept);
            self.pass_on_wake();
        }
    }

    /// Looks at the idle stacks and descriptors if it is time to, and gives some of the cold ones
    /// back. Returns whether more may be left.
    pub(crate) fn tend_stacks(&self, now: Instant) -> bool {
        let depot = &self.core.depot;
        if self.stacks.until_look(now).is_some_and(|until| until.is_zero()) {
            let (is_quiet, has_chains) = (self.stacks.look(now), depot.look(now));
            if is_quiet || has_chains {
                self.descriptors.drain(depot);
            }
            if has_chains {
                self.stacks.ask_for_look();
            }
        }
        self.stacks.step(&self.shared().stacks) | depot.step()
    }

    /// Time to the next timer.
    fn until_next_timer(&self, now: Instant) -> Option<Duration> {
        let next = self.timers.borrow().next()?;
        Some(next.saturating_duration_since(now))
    }

    /// A push to a shared pool wakes one xstream. If this one was chosen but has other work as
    /// well, the unit would wait behind it while others sleep: so it wakes the next.
    fn pass_on_wake(&self) {
        if !self.shared().has_mail() {
            return;
        }
        self.any_slot(|slot| {
            let pool = &slot.pool;
            let is_shared = pool.sole.load(Relaxed).is_null();
            if slot.served.get() && is_shared && !pool.queue().is_empty() {
                self.core.wake_one(pool);
            }
            false
        });
    }

    /// Sleeps in `poll` on the eventfd and the descriptors of the idle waiters.
    fn poll(&self, limit: Option<Duration>) {
        let mut fds = self.idle.take_poll_fds(&self.eventfd);
        let limit = limit
            .map(timespec)
            .map(|limit| libc::timespec { tv_sec: limit.tv_sec, tv_nsec: limit.tv_nsec });
        let limit_ptr = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        let len = libc::nfds_t::try_from(fds.len()).unwrap_or(0);
        // SAFETY:
        // - `fds` and `limit` are live and as long as said; no signal mask is passed.
        let ready = unsafe { libc::ppoll(fds.as_mut_ptr(), len, limit_ptr, std::ptr::null()) };
        if ready > 0 {
            if fds[0].revents != 0 {
                lost::silence(&*self.eventfd, EVENTFD_NAME);
            }
            self.idle.mark_polled(&fds);
        }
        self.idle.put_poll_fds(fds);
    }
}
