//! The time that a timed request was on its way, measured between clocks that nobody sets.
//!
//! A request says how much time its caller has left. While it lies in a full ring or socket, or
//! before a busy target, that time goes on, so the target has to know for how long it lay there;
//! and the clocks of two hosts differ by an unknown amount. So a timed request also says when it
//! was sent, by its sender's clock ([`Stamp`]), and the target looks at the *difference* to its own
//! clock at the arrival: way and wait, plus the amount by which the clocks differ. The least
//! difference of an origin lately, its *base*, is that of a request which did not wait. The excess
//! of another request over the base is the time for which that one waited. LEDBAT finds the delay
//! of queues in the same way, with messages that pass one way only (RFC 6817, 2.4.2: base delay and
//! its history). There as here, a delay that all messages have in common cannot be told from a
//! difference of the clocks, and counts as the way.
//!
//! Two clocks do not keep their distance either:
//!
//! | what happens | what is done |
//! |---|---|
//! | they drift apart | a base is worth [`DRIFT`] more with time, more than clocks drift |
//! | an origin's clock stood still: its host was suspended | a base is that of two [`PERIOD`]s |
//! | the same | an origin that is told too early of its deadline renames its clock |
//! | an origin restarts, and another one has its address | its clock has another name |
//!
//! Periods end when a request comes, as in LEDBAT: an origin whose requests are held up for an hour
//! has the base from before that hour when they arrive. If all requests wait for longer than two
//! periods, their wait becomes the base; then less of it counts, as for an origin that was not
//! known.
//!
//! An origin that lies about its clock spoils its own deadlines and no others. A context remembers
//! some dozen bytes of each of at most [`ORIGINS_MAX`] origins; an origin that was forgotten is new
//! when it comes again.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use na::Addr;

/// The inverse of a rate, 500 ppm: so much at most does Linux correct the frequency of its clock
/// by. Crystals are off by a tenth of it.
const DRIFT: u64 = 2000;

/// The shortest time for which a base is remembered; the longest is twice that. LEDBAT's figure.
const PERIOD: Duration = Duration::from_secs(60);

/// Origins that a context remembers.
const ORIGINS_MAX: usize = 4096;

/// The time at which a request was sent, by the clock of its sender.
///
/// ```
/// # use std::time::Duration;
/// use hg::{Extension, Format, Stamp};
///
/// let sent = Some(Stamp { clock: 7, nanos: 1000 });
/// let remaining = Some(Duration::from_secs(1));
/// let extension = Extension { sent, remaining, ..Extension::default() };
/// let mut block = vec![0; extension.bytes(Format::default())];
/// extension.write(Format::default(), &mut block);
/// assert_eq!(Extension::read(Format::default(), &block)?.sent, sent);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// Names that clock: times of clocks with different names have nothing to do with each other.
    pub clock: u32,
    /// Nanoseconds since any point in time.
    pub nanos: u64,
}

/// The clock of a core, of all its shards.
#[derive(Debug)]
pub(crate) struct Clock {
    began: Instant,
    name: AtomicU32,
}

impl Clock {
    pub(crate) fn new() -> Self {
        Self { began: Instant::now(), name: AtomicU32::new(random()) }
    }

    /// Returns the time stamp of a request that is sent now.
    pub(crate) fn stamp(&self, now: Instant) -> Stamp {
        Stamp { clock: self.name.load(Ordering::Relaxed), nanos: self.nanos(now) }
    }

    /// A target has shown that it takes this clock for ahead of what it is: they begin anew.
    #[cold]
    pub(crate) fn rename(&self) {
        self.name.store(random(), Ordering::Relaxed);
    }

    /// That time by this clock.
    pub(crate) fn nanos(&self, now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(self.began).as_nanos()).unwrap_or(u64::MAX)
    }
}

/// Random enough: a clock must not have the name that the one before it had.
fn random() -> u32 {
    RandomState::new().build_hasher().finish() as u32
}

/// An address without what it keeps alive: of an endpoint, and within it.
type Name = (u64, u64);

/// See [`Origins::waited`].
pub(crate) fn name_of(origin: &Addr) -> Name {
    (origin.endpoint_id(), origin.peer_id())
}

/// The clocks of origins that a context has heard of lately. When `recent` is full it becomes
/// `before`, and an origin that is heard of again moves back to `recent`. So the quietest origins
/// are forgotten without a search for them.
#[derive(Debug, Default)]
pub(crate) struct Origins {
    recent: HashMap<Name, Origin>,
    before: HashMap<Name, Origin>,
}

impl Origins {
    /// How long a request of that origin has waited that arrives `now`, beyond what it takes them
    /// at least.
    pub(crate) fn waited(&mut self, name: Name, sent: Stamp, now: u64) -> Duration {
        if let Some(origin) = self.recent.get_mut(&name) {
            return origin.waited(sent, now);
        }
        let known = self.before.remove(&name);
        let mut origin = known.unwrap_or_else(|| Origin::new(sent, now));
        let waited = origin.waited(sent, now);
        if self.recent.len() >= ORIGINS_MAX / 2 {
            self.before = std::mem::take(&mut self.recent);
        }
        self.recent.insert(name, origin);
        waited
    }
}

/// An origin's clock as far as it is known. Times are nanoseconds of this process's clock.
#[derive(Debug)]
struct Origin {
    clock: u32,
    /// When the period of `recent` began.
    began: u64,
    recent: Base,
    /// The base of the period before.
    before: Base,
}

impl Origin {
    fn new(sent: Stamp, now: u64) -> Self {
        let base = Base::of(sent, now);
        Self { clock: sent.clock, began: now, recent: base, before: base }
    }

    fn waited(&mut self, sent: Stamp, now: u64) -> Duration {
        if sent.clock != self.clock {
            *self = Self::new(sent, now);
        }
        let seen = Base::of(sent, now);
        if u128::from(now.saturating_sub(self.began)) >= PERIOD.as_nanos() {
            (self.began, self.before, self.recent) = (now, self.recent, seen);
        }
        if seen.difference <= self.recent.worth(now) {
            self.recent = seen;
        }
        let base = self.recent.worth(now).min(self.before.worth(now));
        // Not negative: what was just seen is among them.
        Duration::from_nanos(u64::try_from(seen.difference - base).unwrap_or(u64::MAX))
    }
}

/// A difference of two clocks, and when it was seen.
#[derive(Debug, Clone, Copy)]
struct Base {
    /// In 128 bits: whatever a peer says, it does not overflow.
    difference: i128,
    at: u64,
}

impl Base {
    fn of(sent: Stamp, now: u64) -> Self {
        Self { difference: i128::from(now) - i128::from(sent.nanos), at: now }
    }

    /// Returns the most that the difference may have become by `now`, given how fast clocks drift.
    fn worth(self, now: u64) -> i128 {
        self.difference + i128::from(now.saturating_sub(self.at) / DRIFT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const SECOND: u64 = 1000 * MS;
    const PERIOD_NANOS: u64 = PERIOD.as_secs() * SECOND;
    /// The sender's clock is so far ahead of ours.
    const AHEAD: u64 = 1 << 60;

    /// How long a request waited that was sent and arrived then, by our clock.
    fn waited(origins: &mut Origins, peer: u64, sent: u64, now: u64) -> Duration {
        origins.waited((1, peer), Stamp { clock: 7, nanos: sent + AHEAD }, now)
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn what_a_message_takes_beyond_the_least_is_its_wait() {
        let mut origins = Origins::default();
        // Way 2 ms; the first one has waited, which nobody can know.
        assert_eq!(waited(&mut origins, 1, 0, 5 * MS), Duration::ZERO);
        assert_eq!(waited(&mut origins, 1, 10 * MS, 12 * MS), Duration::ZERO, "a shorter one");
        assert_eq!(waited(&mut origins, 1, 20 * MS, 22 * MS + 5000), Duration::ZERO, "drift");
        let wait = waited(&mut origins, 1, 30 * MS, 132 * MS);
        assert!(wait <= ms(100) && wait > ms(99), "{wait:?}");
        // Of another origin nothing is known.
        assert_eq!(waited(&mut origins, 2, 30 * MS, 132 * MS), Duration::ZERO);
    }

    #[test]
    fn who_was_held_up_for_long_has_the_base_from_before() {
        let mut origins = Origins::default();
        waited(&mut origins, 1, 0, MS);
        let hour = 3600 * SECOND;
        for n in 0..100 {
            let sent = (1 + n) * SECOND;
            let wait = waited(&mut origins, 1, sent, hour + n).as_nanos() as u64;
            let real = hour - sent - MS;
            // What the clocks may have drifted by in that time is not told from a wait.
            assert!(wait <= real && wait >= real - hour / DRIFT, "{wait} of {real}");
        }
    }

    #[test]
    fn clocks_that_drift_make_no_wait() {
        // A million requests, one each 100 ms; the sender's clock is slow by 200 ppm: 20 s at the
        // end. Way 1 ms, and up to 3 us more.
        let mut origins = Origins::default();
        for n in 0..1_000_000u64 {
            let now = n * 100 * MS;
            let way = MS + n % 7 * 500;
            let wait = waited(&mut origins, 1, now - now / 5000, now + way);
            assert!(wait <= Duration::from_micros(3), "{n}: {wait:?}");
        }
        // And a wait is one.
        let now = 1_000_001 * 100 * MS;
        let wait = waited(&mut origins, 1, now - now / 5000, now + 51 * MS);
        assert!(wait <= ms(50) && wait > ms(49), "{wait:?}");
    }

    #[test]
    fn a_clock_that_stood_still_is_believed_after_two_periods() {
        let mut origins = Origins::default();
        waited(&mut origins, 1, 0, MS);
        // It is 10 s behind from now on.
        let later = |origins: &mut Origins, at: u64| waited(origins, 1, at - 10 * SECOND, at + MS);
        let mut at = 11 * SECOND;
        while at < PERIOD_NANOS {
            assert!(later(&mut origins, at) > ms(9900), "{at}");
            at += SECOND;
        }
        // The period that begins now has it as its base; that of the one before is the old one.
        assert!(later(&mut origins, PERIOD_NANOS + MS) > ms(9900));
        assert!(later(&mut origins, 2 * PERIOD_NANOS) > ms(9900));
        assert_eq!(later(&mut origins, 2 * PERIOD_NANOS + 2 * MS), Duration::ZERO);
    }

    #[test]
    fn another_clock_begins_anew() {
        let mut origins = Origins::default();
        let sent = |clock, nanos| Stamp { clock, nanos };
        assert_eq!(origins.waited((1, 1), sent(1, 50 * SECOND), SECOND), Duration::ZERO);
        // A successor, whose clock has just begun.
        assert_eq!(origins.waited((1, 1), sent(2, 0), 2 * SECOND), Duration::ZERO);
        let wait = origins.waited((1, 1), sent(2, 0), 3 * SECOND);
        assert!(wait <= ms(1000) && wait > ms(999), "{wait:?}");
        let clock = Clock::new();
        let before = clock.stamp(Instant::now());
        clock.rename();
        let after = clock.stamp(Instant::now());
        assert!(after.nanos >= before.nanos && after.clock != before.clock);
    }

    #[test]
    fn whatever_a_peer_says_is_harmless() {
        let mut origins = Origins::default();
        let all = [0, 1, u64::MAX / 2, u64::MAX];
        for first in all {
            for second in all {
                for now in all {
                    let clock = (first ^ second) as u32;
                    let _ = origins.waited((1, 1), Stamp { clock, nanos: first }, now);
                    let _ = origins.waited((1, 1), Stamp { clock, nanos: second }, now / 2);
                }
            }
        }
        // The longest there is.
        origins = Origins::default();
        origins.waited((1, 1), Stamp { clock: 1, nanos: u64::MAX }, 0);
        let wait = origins.waited((1, 1), Stamp { clock: 1, nanos: 0 }, 1);
        assert_eq!(wait, Duration::from_nanos(u64::MAX));
    }

    #[test]
    fn the_quietest_are_forgotten() {
        let mut origins = Origins::default();
        let known = |origins: &mut Origins, peer: u64| waited(origins, peer, 0, SECOND) > ms(900);
        assert!(!known(&mut origins, 0) && !known(&mut origins, 1), "they are new");
        for peer in 0..2 {
            waited(&mut origins, peer, SECOND, SECOND);
        }
        for peer in 2..10 * ORIGINS_MAX as u64 {
            waited(&mut origins, peer, 0, 0);
            assert!(known(&mut origins, 0), "heard of all the time");
            assert!(origins.recent.len() + origins.before.len() <= ORIGINS_MAX);
        }
        assert!(!known(&mut origins, 1), "not for long");
    }
}
