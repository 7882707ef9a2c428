//! The limit on how often the system is asked whether a peer's process still lives.
//!
//! Cross-memory attach names a process by its number, which means another process some time after
//! the peer has ended. Asking each time would be a second system call beside that of the copy, and
//! would exclude nothing either: a thread may lose its core between asking and copying. So an
//! answer counts for [`COPIES`] copies, as long as the coarse clock of the system stands still (one
//! to ten milliseconds). Process numbers are given out in turn, so none comes back this soon. A
//! process that executes another program keeps its number, and has its new memory some time before
//! its socket is closed. Bytes that are copied in that time, or while an answer still counts, go to
//! an address that means something else there, if it is mapped at all.

use rustix::time::{ClockId, clock_gettime};

use prim::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Copies for which an answer counts: of the shortest ones that are attached for, 0.2 ms.
const COPIES: u32 = 128;

/// The last answer. Threads that use it at the same time may make a few copies more of it.
#[derive(Debug, Default)]
pub(crate) struct Alive {
    /// Time of the coarse clock when it came, nanoseconds.
    tick: AtomicU64,
    copies_left: AtomicU32,
}

impl Alive {
    /// Returns whether the process was alive just now, for a copy that begins. `ask` asks the
    /// system.
    #[inline]
    pub(crate) fn check(&self, ask: impl FnOnce() -> bool) -> bool {
        self.check_at(coarse_nanos(), ask)
    }

    #[inline]
    fn check_at(&self, now: u64, ask: impl FnOnce() -> bool) -> bool {
        let left = self.copies_left.load(Ordering::Relaxed);
        if left > 0 && self.tick.load(Ordering::Relaxed) == now {
            self.copies_left.store(left - 1, Ordering::Relaxed);
            return true;
        }
        self.ask_at(now, ask)
    }

    #[inline(never)]
    fn ask_at(&self, now: u64, ask: impl FnOnce() -> bool) -> bool {
        let alive = ask();
        self.tick.store(now, Ordering::Relaxed);
        self.copies_left.store(if alive { COPIES - 1 } else { 0 }, Ordering::Relaxed);
        alive
    }
}

/// A fifth of the price of a precise clock.
#[inline]
fn coarse_nanos() -> u64 {
    let now = clock_gettime(ClockId::MonotonicCoarse);
    (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_counts_for_some_copies_of_one_tick() {
        let alive = Alive::default();
        let mut asked = 0;
        let mut check = |now, answer| {
            alive.check_at(now, || {
                asked += 1;
                answer
            })
        };
        for _ in 0..2 * COPIES {
            assert!(check(7, true));
        }
        assert!(check(8, true));
        assert!(check(8, false), "not asked: the answer of this tick counts");
        assert!(!check(9, false));
        assert!(!check(9, false), "a dead one is asked about again");
        assert!(check(9, true));
        assert_eq!(asked, 2 + 1 + 3);
    }

    #[test]
    fn the_clock_goes_on() {
        let (began, alive) = (coarse_nanos(), Alive::default());
        assert!(alive.check(|| true));
        while coarse_nanos() == began {
            std::thread::yield_now();
        }
        let mut asked = false;
        while !asked {
            alive.check(|| {
                asked = true;
                true
            });
        }
    }
}
