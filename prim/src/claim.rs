//! A shared value that one of its sharers may claim, to use it in place.

use std::fmt;

use crate::sync::UnsafeCell;
use crate::sync::atomic::{AtomicBool, Ordering};

/// A value that the first caller gets, to use in place; later callers get nothing.
///
/// For a duty that is done once, by the first caller: a lock would have to be held for as long as
/// it takes, and an `Option` would have to be moved out.
///
/// ```
/// use prim::claim::Claim;
///
/// let duty = Claim::new(vec![1]);
/// assert_eq!(duty.claim(), Some(&mut vec![1]));
/// assert_eq!(duty.claim(), None, "somebody has it");
/// ```
pub struct Claim<T> {
    claimed: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: one thread at most reaches the value through a shared reference, and not in turns with
// others (`claim`): that is a move, which `T: Send` allows.
unsafe impl<T: Send> Sync for Claim<T> {}

impl<T> Claim<T> {
    /// A value that nobody has claimed yet.
    #[inline]
    pub fn new(value: T) -> Self {
        Self { claimed: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Returns whether somebody has claimed it. `false` may be out of date at once.
    #[inline]
    pub fn is_claimed(&self) -> bool {
        self.claimed.load(Ordering::Relaxed)
    }

    /// Returns the value to the first caller, and nothing to later ones.
    #[inline]
    #[allow(clippy::mut_from_ref, reason = "it is given once")]
    pub fn claim(&self) -> Option<&mut T> {
        // Relaxed: who made the value has shared it since, and who drops it has got the last of the
        // shared references back; nobody else but the first looks at it.
        if self.claimed.swap(true, Ordering::Relaxed) {
            return None;
        }
        // SAFETY:
        // - unshared: this is passed once in the life of `self`, and `get_mut` needs all of `self`;
        // - alive: as long as the reference to `self`.
        Some(self.value.with_mut(|value| unsafe { &mut *value }))
    }

    /// The value, of which nobody else has a reference.
    #[inline]
    pub fn get_mut(&mut self) -> &mut T {
        // SAFETY: unshared and alive: `&mut self`.
        self.value.with_mut(|value| unsafe { &mut *value })
    }
}

impl<T> fmt::Debug for Claim<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claim").field("claimed", &self.is_claimed()).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::Claim;

    #[test]
    fn the_first_gets_it_and_nobody_else() {
        let mut claim = Claim::new(vec![1]);
        claim.get_mut().push(2);
        assert!(!claim.is_claimed());
        claim.claim().expect("the first").push(3);
        assert!(claim.is_claimed() && claim.claim().is_none());
        assert_eq!(*claim.get_mut(), [1, 2, 3]);
    }
}
