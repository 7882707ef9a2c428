//! How a thread sleeps without missing a wake-up.
//!
//! A [`ParkWord`] is one 32-bit word with these states:
//!
//! | state | meaning |
//! |---|---|
//! | `EMPTY` | the owner is awake |
//! | `NOTIFIED` | somebody called `notify` since the owner last looked |
//! | `PARKED` | the owner sleeps, or is about to, in the kernel on this word (futex) |
//! | `POLLING` | the owner sleeps, or is about to, in `poll`; a wake must write its eventfd |
//!
//! Only the owner calls `begin` (`EMPTY` -> asleep) and `end` (-> `EMPTY`). There are two ways to
//! wake it:
//!
//! - [`ParkWord::notify`] leaves a token: always a swap to `NOTIFIED`, so a notify that comes just
//!   before `begin` makes `begin` fail. OS threads that wait for a
//!   [`Waiter`](crate::engine::waiting::waiter) use it.
//! - [`ParkWord::looks_asleep`] only looks, and `notify` follows if it says so. It is for senders
//!   that have just published work somewhere else (an inbox, a pool), followed by a
//!   `fence(SeqCst)`. The owner in turn looks at all those places between `begin`, which ends with
//!   a `fence(SeqCst)`, and sleeping.
//!   The two fences forbid the one bad outcome, sender reads "awake" while the owner reads "no
//!   work": of two threads that each write, fence, and read the other's location, at least one
//!   sees the write of the other. pair: PARK-DEKKER
//!
//! The word decides which caller pays for the system call: only the caller that changed an asleep
//! state to `NOTIFIED` wakes, so concurrent senders cost one system call.

#![cfg_attr(not(loom), allow(unreachable_pub, reason = "public for the loom models only"))]

use std::time::Duration;

use crate::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use crate::sync::atomic::{AtomicBool, AtomicU32, fence};

const EMPTY: u32 = 0;
const NOTIFIED: u32 = 1;
const PARKED: u32 = 2;
const POLLING: u32 = 3;

/// Where the owner of a [`ParkWord`] sleeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParkMode {
    /// In the kernel on the word itself; wake it with [`ParkWord::wake_futex`].
    Futex,
    /// In `poll` on an eventfd and other descriptors; wake it by writing the eventfd.
    Poll,
}

/// The word. See the module documentation.
#[derive(Debug)]
pub struct ParkWord {
    word: AtomicU32,
    #[cfg(loom)]
    kernel: (crate::sync::Mutex<()>, crate::sync::OsCondvar),
}

impl ParkWord {
    /// A word whose owner is awake.
    #[must_use]
    pub fn new() -> Self {
        Self {
            word: AtomicU32::new(EMPTY),
            #[cfg(loom)]
            kernel: (crate::sync::Mutex::new(()), crate::sync::OsCondvar::new()),
        }
    }

    /// Owner: announces sleep. `false`: a token was there and has been consumed; stay awake.
    ///
    /// After `true` the owner must look once more at everything that senders publish before
    /// `looks_asleep`, and call [`end`](Self::end) when it is awake again.
    #[must_use]
    pub fn begin(&self, bed: ParkMode) -> bool {
        let asleep = match bed {
            ParkMode::Futex => PARKED,
            ParkMode::Poll => POLLING,
        };
        // pair: PARK-TOKEN
        if self.word.compare_exchange(EMPTY, asleep, AcqRel, Acquire).is_err() {
            // pair: PARK-TOKEN
            self.word.swap(EMPTY, AcqRel);
            return false;
        }
        // Forbids that the owner's second look is done before its announcement is visible.
        fence(SeqCst); // pair: PARK-DEKKER
        true
    }

    /// Owner: is awake again. Returns whether somebody woke it on purpose.
    pub fn end(&self) -> bool {
        // pair: PARK-TOKEN
        self.word.swap(EMPTY, AcqRel) == NOTIFIED
    }

    /// Leaves a token. `Some`: the owner sleeps there and the caller must wake it.
    #[must_use]
    pub fn notify(&self) -> Option<ParkMode> {
        // pair: PARK-TOKEN
        match self.word.swap(NOTIFIED, AcqRel) {
            PARKED => Some(ParkMode::Futex),
            POLLING => Some(ParkMode::Poll),
            _ => None,
        }
    }

    /// Returns whether the owner sleeps or is about to. For senders that have published work and
    /// put a `fence(SeqCst)` behind it: if this says no, the owner will find the work by itself.
    #[must_use]
    pub fn looks_asleep(&self) -> bool {
        self.word.load(Relaxed) >= PARKED
    }

    /// Owner, between `begin(ParkMode::Futex)` and `end`: sleeps until woken or until `limit`
    /// passed. May return early.
    #[cfg(not(loom))]
    pub fn sleep_futex(&self, limit: Option<Duration>) {
        use rustix::thread::futex;
        let limit = limit.map(crate::base::timespec::timespec);
        // Every outcome (woken, word changed, timeout, signal) means: look again.
        let _ = futex::wait(&self.word, futex::Flags::PRIVATE, PARKED, limit.as_ref());
    }

    /// Wakes an owner that sleeps in [`sleep_futex`](Self::sleep_futex).
    #[cfg(not(loom))]
    pub fn wake_futex(&self) {
        use rustix::thread::futex;
        // Fails only for a bad address, and ours is good.
        let _ = futex::wake(&self.word, futex::Flags::PRIVATE, 1);
    }

    /// The kernel's futex in the model: check and sleep are one step under a lock.
    #[cfg(loom)]
    pub fn sleep_futex(&self, _limit: Option<Duration>) {
        let mut guard = crate::sync::lock(&self.kernel.0);
        while self.word.load(Relaxed) == PARKED {
            guard = match self.kernel.1.wait(guard) {
                Ok(guard) => guard,
                Err(poisoned) => poisoned.into_inner(),
            };
        }
    }

    /// The kernel's futex in the model.
    #[cfg(loom)]
    pub fn wake_futex(&self) {
        drop(crate::sync::lock(&self.kernel.0));
        self.kernel.1.notify_all();
    }
}

impl Default for ParkWord {
    fn default() -> Self {
        Self::new()
    }
}

/// The word that an OS thread sleeps on while it waits for a ULT or another thread.
#[derive(Debug, Default)]
pub struct ThreadParker {
    word: ParkWord,
    /// The token of [`park`](crate::park()); the wait objects never touch it.
    token: AtomicBool,
}

impl ThreadParker {
    /// A parker of a thread that is awake.
    #[must_use]
    pub fn new() -> Self {
        Self { word: ParkWord::new(), token: AtomicBool::new(false) }
    }

    /// Sleeps until an [`unpark`](Self::unpark) that no earlier `park` consumed, or until `limit`
    /// passed. Also returns without cause: callers check their own condition again.
    pub fn park(&self, limit: Option<Duration>) {
        if self.word.begin(ParkMode::Futex) {
            self.word.sleep_futex(limit);
            self.word.end();
        }
    }

    /// Ends the current or the next [`park`](Self::park).
    pub fn unpark(&self) {
        if self.word.notify().is_some() {
            self.word.wake_futex();
        }
    }

    /// Stores the user's token and wakes.
    pub fn leave_token(&self) {
        // A plain store would hide what an earlier giver wrote, whose token it replaces.
        let _ = self.token.swap(true, Release); // pair: THREAD-TOKEN
        self.unpark();
    }

    /// Takes the user's token.
    pub fn take_token(&self) -> bool {
        // pair: THREAD-TOKEN
        self.token.load(Relaxed) && self.token.swap(false, Acquire)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn token_before_begin_is_not_lost() {
        let word = ParkWord::new();
        assert_eq!(word.notify(), None);
        assert!(!word.begin(ParkMode::Futex));
        assert!(word.begin(ParkMode::Poll));
        assert!(word.looks_asleep());
        assert_eq!(word.notify(), Some(ParkMode::Poll));
        assert_eq!(word.notify(), None, "one caller pays");
        assert!(word.end());
    }

    #[test]
    fn looking_at_an_awake_owner_leaves_nothing() {
        let word = ParkWord::new();
        assert!(!word.looks_asleep());
        assert!(word.begin(ParkMode::Futex));
        assert!(!word.end());
    }

    #[test]
    fn limit_ends_a_thread_park() {
        ThreadParker::new().park(Some(Duration::from_millis(1)));
    }
}
