//! The pointers to a shared value: [`Shared`] owns it, [`WeakShared`] does not keep it.

use std::fmt;
use std::marker::PhantomData;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ops::Deref;
use std::ptr::NonNull;

use stable_deref_trait::{CloneStableDeref, StableDeref};

use super::counts::{Counts, Left};
use crate::sync::UnsafeCell;

struct Node<T> {
    counts: Counts,
    value: UnsafeCell<ManuallyDrop<T>>,
}

/// An owner of a value that others own, too.
///
/// ```
/// use prim::shared::{Shared, UninitShared};
///
/// let mut one = UninitShared::new().fill(7);
/// let other = one.clone();
/// assert_eq!((*other, Shared::get_mut(&mut one)), (7, None));
/// drop(other);
/// assert_eq!(Shared::get_mut(&mut one), Some(&mut 7));
/// ```
pub struct Shared<T> {
    node: NonNull<Node<T>>,
    /// Owns a `T`.
    owns: PhantomData<T>,
}

/// A weak pointer: it reaches the value as long as there is an owner, and does not keep it.
///
/// ```
/// use prim::shared::{Shared, UninitShared};
///
/// let owner = UninitShared::new().fill(7);
/// let weak = Shared::downgrade(&owner);
/// assert_eq!(weak.upgrade().as_deref(), Some(&7));
/// drop(owner);
/// assert!(weak.upgrade().is_none());
/// ```
pub struct WeakShared<T> {
    node: NonNull<Node<T>>,
    /// May free a node of `T`.
    owns: PhantomData<T>,
}

// SAFETY: as for `Arc`: who sends an owner shares the value between threads (`Sync`), and may be
// the one who lets another thread drop it (`Send`). The counts are atomic.
unsafe impl<T: Send + Sync> Send for Shared<T> {}
// SAFETY: a shared reference to an owner gives a reference to the value, and by a clone an owner.
unsafe impl<T: Send + Sync> Sync for Shared<T> {}
// SAFETY: who looks on may become an owner.
unsafe impl<T: Send + Sync> Send for WeakShared<T> {}
// SAFETY: the same.
unsafe impl<T: Send + Sync> Sync for WeakShared<T> {}

impl<T> Shared<T> {
    /// An owner that was counted.
    #[inline]
    fn of(node: NonNull<Node<T>>) -> Self {
        Self { node, owns: PhantomData }
    }

    #[inline]
    fn counts(&self) -> &Counts {
        // SAFETY: the node stays while it has an owner, such as this one; its value, which may be
        // borrowed otherwise, is in a cell.
        &unsafe { self.node.as_ref() }.counts
    }

    /// The value, if nobody else owns it or looks on.
    #[inline]
    pub fn get_mut(this: &mut Self) -> Option<&mut T> {
        if !this.counts().is_sole() {
            return None;
        }
        // SAFETY: the node stays while it has an owner, such as this one.
        let node = unsafe { this.node.as_ref() };
        // SAFETY: there is no other owner and no onlooker, none can come but by this one, which is
        // borrowed mutably; what former ones did is ordered before (`is_sole`).
        Some(node.value.with_mut(|value| unsafe { &mut **value }))
    }

    /// A further owner, as by `clone`. It costs less while there is no other one.
    #[inline]
    pub fn clone_sole(this: &mut Self) -> Self {
        this.counts().add_one_apart();
        Self::of(this.node)
    }

    /// Returns whether both are owners of one value.
    pub fn ptr_eq(one: &Self, other: &Self) -> bool {
        one.node == other.node
    }

    /// One who looks on.
    pub fn downgrade(this: &Self) -> WeakShared<T> {
        this.counts().add_weak();
        WeakShared { node: this.node, owns: PhantomData }
    }
}

/// Memory for a value to be shared. What is made when it is there is made where it stays, as far as
/// the compiler can; what was made before is moved there.
///
/// ```
/// use prim::shared::{Shared, UninitShared};
///
/// let (one, other) = UninitShared::new().fill_pair([7; 64]);
/// assert!(Shared::ptr_eq(&one, &other));
/// ```
pub struct UninitShared<T>(Box<MaybeUninit<Node<T>>>);

impl<T> UninitShared<T> {
    /// For one value.
    #[inline(always)]
    #[allow(clippy::new_without_default, reason = "it is not a value of its own")]
    pub fn new() -> Self {
        Self(Box::new_uninit())
    }

    /// Puts `value` into the memory and returns its only owner.
    #[inline(always)]
    pub fn fill(self, value: T) -> Shared<T> {
        Shared::of(self.fill_node(value, 1))
    }

    /// Puts `value` into the memory and returns its two owners.
    #[inline(always)]
    pub fn fill_pair(self, value: T) -> (Shared<T>, Shared<T>) {
        let node = self.fill_node(value, 2);
        (Shared::of(node), Shared::of(node))
    }

    #[inline(always)]
    fn fill_node(self, value: T, owners: u32) -> NonNull<Node<T>> {
        let value = UnsafeCell::new(ManuallyDrop::new(value));
        NonNull::from(Box::leak(Box::write(self.0, Node { counts: Counts::new(owners), value })))
    }
}

impl<T> fmt::Debug for UninitShared<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UninitShared")
    }
}

impl<T> Clone for Shared<T> {
    #[inline]
    fn clone(&self) -> Self {
        self.counts().add_one();
        Self::of(self.node)
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the node stays while it has an owner, such as this one.
        let node = unsafe { self.node.as_ref() };
        // SAFETY: so does its value, and nobody writes: `get_mut` borrows the only owner mutably.
        node.value.with(|value| unsafe { &**value })
    }
}

// SAFETY: what it derefs to is in memory of its own, also when the owner moves.
unsafe impl<T> StableDeref for Shared<T> {}
// SAFETY: a clone derefs to the same.
unsafe impl<T> CloneStableDeref for Shared<T> {}

impl<T> Drop for Shared<T> {
    #[inline]
    fn drop(&mut self) {
        match self.counts().release() {
            Left::Others => {}
            // SAFETY: the counts say that nobody else has the node.
            Left::Nobody => unsafe { end(self.node, true) },
            // SAFETY: the counts say that nobody else has the value, and count it as an onlooker.
            Left::Onlookers => unsafe { end(self.node, false) },
        }
    }
}

/// Drops the value, and frees the node if it `is_last` or becomes that.
///
/// # Safety
///
/// The value has no owner and is not dropped. `is_last`: nobody looks on; else the caller does, and
/// leaves that to this.
#[inline]
unsafe fn end<T>(node: NonNull<Node<T>>, is_last: bool) {
    /// Also when the value's destructor panics.
    struct Memory<T>(NonNull<Node<T>>, bool);

    impl<T> Drop for Memory<T> {
        #[inline]
        fn drop(&mut self) {
            let Self(node, is_last) = *self;
            // SAFETY: if it is not the last, the caller of `end` has left us an onlooker, which
            // keeps the node until it is counted out.
            if is_last || unsafe { node.as_ref() }.counts.forget_one() {
                // SAFETY: from `Box::leak`, and nobody has it any more. The value, which is
                // dropped, is not dropped again (`ManuallyDrop`).
                drop(unsafe { Box::from_raw(node.as_ptr()) });
            }
        }
    }
    let memory = Memory(node, is_last);
    // SAFETY: `memory` keeps the node.
    let value = &unsafe { memory.0.as_ref() }.value;
    value.with_mut(|value| {
        // SAFETY: nobody has the value any more.
        let value = unsafe { &mut *value };
        // SAFETY: it is dropped once (contract).
        unsafe { ManuallyDrop::drop(value) };
    });
}

impl<T> WeakShared<T> {
    fn counts(&self) -> &Counts {
        // SAFETY: the node stays while somebody looks on.
        &unsafe { self.node.as_ref() }.counts
    }

    /// An owner, if there is one still.
    pub fn upgrade(&self) -> Option<Shared<T>> {
        self.counts().join().then(|| Shared::of(self.node))
    }
}

impl<T> Clone for WeakShared<T> {
    fn clone(&self) -> Self {
        self.counts().add_weak();
        Self { node: self.node, owns: PhantomData }
    }
}

impl<T> Drop for WeakShared<T> {
    fn drop(&mut self) {
        if self.counts().forget_one() {
            // SAFETY: from `Box::leak`; there is no owner and nobody looks on, so it is ours alone.
            // The value was dropped by the last owner, and is not dropped again (`ManuallyDrop`).
            drop(unsafe { Box::from_raw(self.node.as_ptr()) });
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        T::fmt(self, f)
    }
}

impl<T> fmt::Debug for WeakShared<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(WeakShared)")
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;

    use super::*;

    /// Tells how many of it there are.
    struct Told(Arc<()>);

    fn told() -> (Arc<()>, Told) {
        let all = Arc::new(());
        (all.clone(), Told(all))
    }

    fn are_left(all: &Arc<()>) -> usize {
        Arc::strong_count(all) - 1
    }

    #[test]
    fn the_last_owner_drops_the_value() {
        let (all, value) = told();
        let (one, other) = UninitShared::new().fill_pair(value);
        let third = one.clone();
        assert!(Shared::ptr_eq(&one, &third));
        drop(one);
        drop(third);
        assert_eq!((are_left(&all), are_left(&other.0)), (1, 1));
        drop(other);
        assert_eq!(are_left(&all), 0);
    }

    #[test]
    fn who_is_alone_may_change_the_value() {
        let mut one = UninitShared::new().fill(1);
        *Shared::get_mut(&mut one).unwrap() += 1;
        let other = one.clone();
        assert!(Shared::get_mut(&mut one).is_none());
        drop(other);
        let onlooker = Shared::downgrade(&one);
        assert!(Shared::get_mut(&mut one).is_none());
        drop(onlooker);
        assert_eq!(Shared::get_mut(&mut one), Some(&mut 2));
    }

    #[test]
    fn who_looks_on_keeps_nothing() {
        let (all, value) = told();
        let one = UninitShared::new().fill(value);
        let onlookers = [Shared::downgrade(&one), Shared::downgrade(&one)];
        let again = onlookers[0].clone();
        let upgraded = again.upgrade().unwrap();
        drop(one);
        assert_eq!(are_left(&all), 1);
        drop(upgraded);
        assert_eq!(are_left(&all), 0);
        assert!(onlookers.iter().all(|onlooker| onlooker.upgrade().is_none()));
    }

    #[test]
    fn a_destructor_that_panics_is_run_once() {
        struct Bad(Told);
        impl Drop for Bad {
            fn drop(&mut self) {
                assert!(are_left(&self.0.0) == 0, "always");
            }
        }
        for has_onlooker in [false, true] {
            let (all, value) = told();
            let one = UninitShared::new().fill(Bad(value));
            let onlooker = has_onlooker.then(|| Shared::downgrade(&one));
            catch_unwind(AssertUnwindSafe(|| drop(one))).unwrap_err();
            assert_eq!(are_left(&all), 0);
            assert!(onlooker.is_none_or(|onlooker| onlooker.upgrade().is_none()));
        }
    }

    #[test]
    fn owners_on_many_threads_leave_nothing_behind() {
        let (all, value) = told();
        let one = UninitShared::new().fill(value);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                let (own, onlooker) = (one.clone(), Shared::downgrade(&one));
                scope.spawn(move || {
                    for _ in 0..10_000 {
                        let again = onlooker.upgrade().unwrap();
                        drop(own.clone());
                        drop(again);
                    }
                });
            }
        });
        assert_eq!(are_left(&all), 1);
        drop(one);
        assert_eq!(are_left(&all), 0);
    }
}
