//! The protocol of [`Shared`](super::Shared), without the value.

use crate::sync::atomic::{AtomicU64, Ordering};

/// One pointer that does not keep the value.
const WEAK: u64 = 1 << 32;

/// One owner, and no onlooker that might become one.
const SOLE: u64 = 1;

/// Owners in the lower half.
const OWNERS: u64 = WEAK - 1;

/// So many owners can only have been leaked; the count must not run over.
const OWNERS_MAX: u64 = OWNERS / 2;

/// The work left to an owner that has let go.
///
/// ```
/// use prim::shared::counts::{Counts, Left};
///
/// let counts = Counts::new(2);
/// assert_eq!(counts.release(), Left::Others);
/// assert_eq!(counts.release(), Left::Nobody);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// Nothing: there are others.
    Others,
    /// The value is to be dropped, and the memory freed.
    Nobody,
    /// The value is to be dropped; then [`Counts::forget_one`] says whether the memory is to be
    /// freed.
    Onlookers,
}

/// Owners, and pointers that only look on, in one word: so that one look tells whether there is
/// nobody else.
///
/// ```
/// use prim::shared::counts::{Counts, Left};
///
/// let counts = Counts::new(1);
/// counts.add_weak();
/// assert_eq!(counts.release(), Left::Onlookers);
/// assert!(!counts.join(), "the value has no owner");
/// assert!(!counts.forget_one(), "it is dropped; somebody looks on");
/// assert!(counts.forget_one(), "the memory is to be freed");
/// ```
#[derive(Debug)]
pub struct Counts(AtomicU64);

impl Counts {
    /// Counts of so many owners, and no onlooker.
    #[inline]
    #[must_use]
    pub fn new(owners: u32) -> Self {
        Self(AtomicU64::new(u64::from(owners)))
    }

    /// Counts one more owner; for an owner.
    #[inline]
    pub fn add_one(&self) {
        // Relaxed, as the caller has the value already, and gives it to the new owner by means that
        // order it.
        let before = self.0.fetch_add(1, Ordering::Relaxed);
        if before & OWNERS > OWNERS_MAX {
            // As std's `Arc` does: any other way out would free what is in use.
            std::process::abort();
        }
    }

    /// Counts one more owner; for an owner that nobody else can reach. As long as it is the only
    /// one, this needs no read-modify-write.
    #[inline]
    pub fn add_one_apart(&self) {
        if self.is_sole() {
            // Nobody else can change it: there is no other owner, and nobody looks on.
            self.0.store(SOLE + 1, Ordering::Relaxed);
        } else {
            self.add_one();
        }
    }

    /// Returns whether the caller, an owner, is the only one, and nobody looks on.
    #[inline]
    #[must_use]
    pub fn is_sole(&self) -> bool {
        // Both counts at once: one after the other, somebody could change from one to the other in
        // between.
        self.0.load(Ordering::Acquire) == SOLE // pair: SHARED
    }

    /// Counts one owner less. The last one needs no read-modify-write.
    #[inline]
    pub fn release(&self) -> Left {
        if self.is_sole() { Left::Nobody } else { self.release_beside_others() }
    }

    #[inline]
    fn release_beside_others(&self) -> Left {
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            let (next, left) = match (word & OWNERS, word / WEAK) {
                (1, 0) => (0, Left::Nobody),
                // The value looks on while it is dropped, so that the memory stays.
                (1, _) => (word - 1 + WEAK, Left::Onlookers),
                _ => (word - 1, Left::Others),
            };
            // pair: SHARED
            match self.0.compare_exchange_weak(word, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return left,
                Err(seen) => word = seen,
            }
        }
    }

    /// Counts one more onlooker; for an owner or an onlooker.
    #[inline]
    pub fn add_weak(&self) {
        let before = self.0.fetch_add(WEAK, Ordering::Relaxed);
        if before / WEAK > OWNERS_MAX {
            std::process::abort();
        }
    }

    /// Makes an owner of an onlooker. `false`: the value has no owner any more.
    #[inline]
    #[must_use]
    pub fn join(&self) -> bool {
        let one_more = |word: u64| (word & OWNERS != 0).then_some(word + 1);
        // The value was made before the pointer was, by which it is reached.
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_ok()
    }

    /// Counts one onlooker less. `true`: nobody is left, and the value is gone.
    #[inline]
    #[must_use]
    pub fn forget_one(&self) -> bool {
        self.0.fetch_sub(WEAK, Ordering::AcqRel) == WEAK // pair: SHARED
    }
}
