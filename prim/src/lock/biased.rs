//! The protocol of [`BiasedLock`](super::BiasedLock), without the value.
//!
//! A plain lock below, and a thread that need not take it: a thread that has taken the plain lock
//! many times in a row becomes the *favoured* one and from then on takes the lock by marking itself
//! as [`inside`](RawBiasedLock) with a plain store. Anybody else takes the plain lock, ends the
//! favour and waits until the favoured one is not inside:
//!
//! | favoured | the one who ends it, with the plain lock held |
//! |---|---|
//! | stores `inside` | stores that nobody is favoured |
//! | [`light`](barrier::light) | [`heavy`](barrier::heavy) |
//! | looks whether it is still favoured; if not, takes `inside` back and the plain lock | waits until `inside` is false |
//!
//! The two halves of the fence forbid that both miss the other's store. Nobody but a thread itself
//! makes it favoured, so what it reads about itself is never out of date in the other direction.
//! Each thread marks itself in a place of its own: it may be late, lose its favour between its two
//! looks, and take its mark back when somebody else is favoured and inside. A lock has
//! [`PLACES`] of them; threads that come when all are taken are never favoured. A new thread may
//! have the token of one that has ended, and then goes on in its place, as if it were that one.
//!
//! Ending a favour costs microseconds, so each time the next one needs twice as many turns in a
//! row: a lock that several threads want ends up as a plain one.
//!
//! Source: D. Dice, M. Moir, W. Scherer, "Quickly Reacquirable Locks" (2003), with `membarrier(2)`
//! in place of their stop of the favoured thread. C Mercury and Argobots take plain locks.
//!
//! The gain is the read-modify-write, whose line stays in the core that takes the lock, so that
//! near and far cores make no difference: two of them take 4.5 ns on an AMD EPYC and 19 ns on an
//! Intel Xeon (docs/performance.md, the floor of `ult.mutex`). The row `na.lock.biased` compares
//! this lock with the plain one: 1.2 against 2.3 ns on an EPYC whose atomics are cheap.

use super::barrier;
use super::plain::{RawLock, spin_while};
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

/// Turns in a row until the first favour. A request takes each lock a few times.
const FIRST: u32 = 64;

/// Turns in a row after many favours that were ended; once in minutes on a busy lock.
const MOST: u32 = 1 << 30;

const NEVER: u32 = u32::MAX;

const NOBODY: usize = 0;

/// How many threads may be favoured, one after the other.
pub const PLACES: usize = 4;

/// Tokens are multiples of eight: the place is below.
const PLACE: usize = 7;

/// Held by one at a time, and cheap for a thread that is mostly the one.
///
/// ```
/// use prim::lock::barrier::thread_token;
/// use prim::lock::biased::RawBiasedLock;
///
/// let lock = RawBiasedLock::new();
/// let me = thread_token();
/// let held = lock.acquire(me);
/// assert!(lock.try_acquire(me).is_none());
/// lock.release(held);
/// ```
// In this order, so that all that a turn touches is in one cache line.
#[derive(Debug)]
#[repr(C)]
pub struct RawBiasedLock {
    /// The token and its place.
    favoured: AtomicUsize,
    // From here on, changed by the holder of `plain`.
    /// The place that was favoured last.
    place: AtomicUsize,
    /// The thread that held the plain lock last.
    last: AtomicUsize,
    in_a_row: AtomicU32,
    needed: AtomicU32,
    plain: RawLock,
    /// Set in a place while its thread holds the lock, or is about to see that it does not.
    inside: [AtomicBool; PLACES],
    /// The thread that each place belongs to, for good.
    owners: [AtomicUsize; PLACES],
}

/// The way in which the lock is held.
///
/// ```
/// use prim::lock::barrier::thread_token;
/// use prim::lock::biased::{Hold, RawBiasedLock};
///
/// let lock = RawBiasedLock::with_first(u32::MAX); // nobody is ever favoured
/// let held = lock.acquire(thread_token());
/// assert_eq!(held, Hold::Plain);
/// lock.release(held);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// By the favoured thread, of that place.
    Inside(u8),
    /// By the plain lock.
    Plain,
    /// By the plain lock, often enough in a row: from when it is given back, the thread is
    /// favoured.
    Last,
}

impl RawBiasedLock {
    /// A lock that is free.
    #[allow(clippy::new_without_default, reason = "a lock alone is of no use to anybody else")]
    pub fn new() -> Self {
        let needed = if barrier::is_there() { FIRST } else { NEVER };
        Self::with_first(needed)
    }

    /// With another number of turns until the first favour; `u32::MAX`: never.
    pub fn with_first(needed: u32) -> Self {
        Self {
            favoured: AtomicUsize::new(NOBODY),
            inside: std::array::from_fn(|_| AtomicBool::new(false)),
            plain: RawLock::new(),
            owners: std::array::from_fn(|_| AtomicUsize::new(NOBODY)),
            place: AtomicUsize::new(0),
            last: AtomicUsize::new(NOBODY),
            in_a_row: AtomicU32::new(0),
            needed: AtomicU32::new(needed),
        }
    }

    /// Waits until the lock is free and takes it, for the calling thread `me`: a multiple of eight
    /// that no other living thread has.
    ///
    /// # Panics
    ///
    /// As [`barrier::heavy`] fails; the lock is as before.
    #[inline(always)]
    pub fn acquire(&self, me: usize) -> Hold {
        match self.enter(me) {
            Some(held) => held,
            None => self.acquire_plain(me),
        }
    }

    /// Takes the lock if it is free. May fail without a holder while a favour ends.
    ///
    /// # Panics
    ///
    /// As [`acquire`](Self::acquire).
    #[inline(always)]
    #[must_use]
    pub fn try_acquire(&self, me: usize) -> Option<Hold> {
        self.enter(me).or_else(|| self.try_acquire_plain(me))
    }

    /// Gives it back; only for the thread that has acquired it so.
    #[inline(always)]
    pub fn release(&self, held: Hold) {
        match held {
            // pair: FAVOUR (everything done under the lock first)
            Hold::Inside(place) => self.mark(place as usize).store(false, Ordering::Release),
            Hold::Plain => self.plain.release(),
            Hold::Last => self.release_last(),
        }
    }

    #[inline(always)]
    fn mark(&self, place: usize) -> &AtomicBool {
        // For the compiler; places are less.
        &self.inside[place % PLACES]
    }

    /// Returns the place of `me` if it is favoured still. Then the next thread to take the lock
    /// sees everything that `me` has done before, as if there were a full fence here.
    #[inline(always)]
    #[must_use]
    pub fn place_of(&self, me: usize) -> Option<usize> {
        // pair: BARRIER (with that of `end_favour_of`)
        barrier::light();
        let favoured = self.favoured.load(Ordering::Relaxed);
        (favoured & !PLACE == me).then_some(favoured & PLACE)
    }

    /// Holds the lock from now on as the favoured thread, if `me` is that.
    #[inline(always)]
    fn enter(&self, me: usize) -> Option<Hold> {
        let favoured = self.favoured.load(Ordering::Relaxed);
        if favoured & !PLACE != me {
            return None;
        }
        let place = favoured & PLACE;
        let inside = self.mark(place);
        // Set already: this thread holds the lock, and waits for itself, as for any lock.
        if inside.load(Ordering::Relaxed) {
            return None;
        }
        inside.store(true, Ordering::Relaxed);
        // pair: BARRIER (with that of `end_favour_of`)
        barrier::light();
        if self.favoured.load(Ordering::Relaxed) == favoured {
            return Some(Hold::Inside(place as u8));
        }
        // pair: FAVOUR (also the last section of this thread: this replaces its store)
        inside.store(false, Ordering::Release);
        None
    }

    /// Returns whether the thread that was favoured last is inside; with the plain lock held, and
    /// nobody favoured.
    #[inline(always)]
    fn is_inside(&self) -> bool {
        // pair: FAVOUR
        self.mark(self.place.load(Ordering::Relaxed)).load(Ordering::Acquire)
    }

    #[inline(never)]
    fn acquire_plain(&self, me: usize) -> Hold {
        self.plain.acquire();
        self.end_favour(me);
        spin_while(|| self.is_inside());
        self.count(me)
    }

    #[inline(never)]
    fn try_acquire_plain(&self, me: usize) -> Option<Hold> {
        if !self.plain.try_acquire() {
            return None;
        }
        self.end_favour(me);
        if self.is_inside() {
            self.plain.release();
            return None;
        }
        Some(self.count(me))
    }

    /// With the plain lock held.
    #[inline(always)]
    fn end_favour(&self, me: usize) {
        let favoured = self.favoured.load(Ordering::Relaxed);
        if favoured != NOBODY {
            self.end_favour_of(favoured, me);
        }
    }

    #[cold]
    fn end_favour_of(&self, favoured: usize, me: usize) {
        self.favoured.store(NOBODY, Ordering::Relaxed);
        // Its own stores a thread sees without a fence.
        if favoured & !PLACE != me {
            // pair: BARRIER (with that of `enter`)
            if let Err(refused) = barrier::heavy() {
                self.favoured.store(favoured, Ordering::Relaxed);
                self.plain.release();
                panic!("{refused}");
            }
        }
        let needed = self.needed.load(Ordering::Relaxed);
        self.needed.store(needed.saturating_mul(2).min(MOST), Ordering::Relaxed);
        self.last.store(me, Ordering::Relaxed);
        self.in_a_row.store(0, Ordering::Relaxed);
    }

    /// With the lock held.
    #[inline(always)]
    fn count(&self, me: usize) -> Hold {
        if self.last.load(Ordering::Relaxed) != me {
            self.last.store(me, Ordering::Relaxed);
            self.in_a_row.store(0, Ordering::Relaxed);
            return Hold::Plain;
        }
        let turns = self.in_a_row.load(Ordering::Relaxed).saturating_add(1);
        self.in_a_row.store(turns, Ordering::Relaxed);
        // Without a barrier nobody is ever favoured: MOST is less than NEVER.
        let enough = turns.min(MOST) >= self.needed.load(Ordering::Relaxed);
        if enough { Hold::Last } else { Hold::Plain }
    }

    #[cold]
    fn release_last(&self) {
        let me = self.last.load(Ordering::Relaxed);
        let is_mine = |owner: &AtomicUsize| [me, NOBODY].contains(&owner.load(Ordering::Relaxed));
        match self.owners.iter().position(is_mine) {
            Some(place) => {
                self.owners[place].store(me, Ordering::Relaxed);
                self.place.store(place, Ordering::Relaxed);
                self.favoured.store(me | place, Ordering::Relaxed);
            }
            // All places are taken: do not ask again for long.
            None => self.in_a_row.store(0, Ordering::Relaxed),
        }
        self.plain.release();
    }
}

#[cfg(all(test, target_os = "linux", not(loom)))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Barrier;
    use std::thread;

    use super::super::BiasedLock;
    use super::super::barrier::thread_token;
    use super::*;

    fn turns(lock: &RawBiasedLock, me: usize, count: u32) -> Hold {
        let mut held = Hold::Plain;
        for _ in 0..count {
            held = lock.acquire(me);
            lock.release(held);
        }
        held
    }

    #[test]
    fn who_comes_again_and_again_is_favoured_until_somebody_else_comes() {
        assert!(barrier::is_there(), "this kernel has membarrier(2)");
        let lock = RawBiasedLock::new();
        let (one, other) = (8, 16);
        assert_eq!(turns(&lock, one, FIRST), Hold::Plain);
        assert_eq!(turns(&lock, one, 2), Hold::Inside(0));
        assert_eq!(turns(&lock, other, 1), Hold::Plain);
        assert_eq!(turns(&lock, one, FIRST + 1), Hold::Plain, "twice as many by now");
        assert_eq!(turns(&lock, one, FIRST + 2), Hold::Inside(0));
        assert_eq!(turns(&lock, other, 4 * FIRST + 2), Hold::Inside(1));
    }

    #[test]
    fn who_comes_when_all_places_are_taken_is_never_favoured() {
        // Nobody may be favoured in a process that is not registered for it.
        if !barrier::is_there() {
            return eprintln!("SKIPPED: this kernel has no membarrier(2) for processes");
        }
        let lock = RawBiasedLock::with_first(1);
        for thread in 1..=PLACES {
            let held = turns(&lock, 8 * thread, 2 << thread);
            assert_eq!(held, Hold::Inside(thread as u8 - 1));
        }
        assert!(!matches!(turns(&lock, 8 * (PLACES + 1), 1000), Hold::Inside(_)));
        assert_eq!(turns(&lock, 8, 2), Hold::Plain);
        assert_eq!(turns(&lock, 8, 1000), Hold::Inside(0), "it has a place");
    }

    #[test]
    fn without_a_barrier_nobody_is_favoured() {
        let lock = RawBiasedLock::with_first(NEVER);
        turns(&lock, 8, 1);
        lock.in_a_row.store(NEVER - 2, Ordering::Relaxed);
        assert_eq!(turns(&lock, 8, 10), Hold::Plain);
    }

    #[test]
    fn tokens_tell_threads_apart() {
        let here = thread_token();
        assert_eq!(here, thread_token());
        assert_eq!(here % 8, 0);
        let there = thread::spawn(thread_token).join().unwrap();
        assert_ne!(here, 0);
        assert_ne!(here, there, "this thread lives on");
    }

    #[test]
    fn nobody_is_inside_with_another() {
        const ROUNDS: usize = 40;
        let lock = BiasedLock::new(0_usize);
        let start = Barrier::new(3);
        let added: usize = thread::scope(|scope| {
            let work = |number: usize| {
                let (lock, start) = (&lock, &start);
                move || {
                    start.wait();
                    // Long runs make it favoured, short ones end the favour of the others.
                    let long = 20_000 * number;
                    (0..ROUNDS).map(|round| if round % 2 == 0 { long } else { 3 }).fold(
                        0,
                        |added, turns| {
                            for _ in 0..turns {
                                *lock.lock() += 1;
                            }
                            let tried = (0..100)
                                .filter(|_| lock.try_lock().map(|mut value| *value += 1).is_some());
                            added + turns + tried.count()
                        },
                    )
                }
            };
            let threads: Vec<_> = (0..3).map(|number| scope.spawn(work(number))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(*lock.lock(), added);
    }

    #[test]
    fn whoever_holds_it_does_not_get_it_again() {
        let lock = BiasedLock::new(());
        for _ in 0..2 * FIRST {
            drop(lock.lock());
        }
        let guard = lock.lock();
        assert!(lock.try_lock().is_none());
        drop(guard);
        assert!(lock.try_lock().is_some());
    }

    /// Lets the calling thread, and no other, ask for no barrier any more.
    fn forbid_membarrier() {
        let load = |offset| sock(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset, 0, 0);
        let refuse = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
        let mut filter = [
            load(0),
            sock(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, libc::SYS_membarrier as u32, 0, 1),
            sock(libc::BPF_RET | libc::BPF_K, refuse, 0, 0),
            sock(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0),
        ];
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
        // SAFETY: no pointers; it only takes rights away from this thread.
        assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
        // SAFETY: the program and its filter live until the kernel has copied them.
        let set = unsafe {
            libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program)
        };
        assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
    }

    fn sock(code: u32, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
        libc::sock_filter { code: code as u16, jt, jf, k }
    }

    #[test]
    fn a_barrier_that_is_refused_later_is_an_error_and_leaves_the_lock_as_it_was() {
        let lock = BiasedLock::new(0);
        for _ in 0..2 * FIRST {
            *lock.lock() += 1;
        }
        let said = thread::scope(|scope| {
            let refused = scope.spawn(|| {
                forbid_membarrier();
                let panic = catch_unwind(AssertUnwindSafe(|| drop(lock.lock()))).unwrap_err();
                panic.downcast_ref::<String>().cloned().unwrap()
            });
            refused.join().unwrap()
        });
        assert!(said.contains("membarrier(2)") && said.contains("seccomp"), "{said}");
        *lock.lock() += 1;
        assert_eq!(
            *thread::scope(|scope| scope.spawn(|| *lock.lock()).join()).as_ref().unwrap(),
            2 * FIRST + 1
        );
    }
}
