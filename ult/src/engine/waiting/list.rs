//! Lists of waiters. The nodes are on the stacks of the waiting parties; the holder of the lock
//! around the list owns all links.
//!
//! | type | what | a waiter in it |
//! |---|---|---|
//! | [`WaitList`] | who waits, oldest first | can be removed by its party (deadline, cancel) |
//! | [`Chain`] | who has been taken out, to be woken when the lock is free | has been won |

use std::ptr::{self, NonNull};

use crate::engine::model::waiter::{Links, WaitList, Waiter};
use crate::engine::waiting::waiter::Deferred;

/// Changes the links of a waiter.
///
/// # Safety
///
/// `node` is alive and the caller owns its links.
#[inline]
unsafe fn edit<R>(node: NonNull<Waiter>, f: impl FnOnce(&mut Links) -> R) -> R {
    // SAFETY:
    // - alive: duty of the caller; shared access only.
    let waiter = unsafe { node.as_ref() };
    waiter.links.with_mut(|links| {
        // SAFETY:
        // - no alias: the caller owns the links, and `f` does not reach them another way.
        f(unsafe { &mut *links })
    })
}

/// Reads the link to the next waiter.
///
/// # Safety
///
/// `node` is alive and nobody writes its links.
#[inline]
pub(crate) unsafe fn next_of(node: NonNull<Waiter>) -> *mut Waiter {
    // SAFETY:
    // - alive: duty of the caller; shared access only.
    let waiter = unsafe { node.as_ref() };
    waiter.links.with(|links| {
        // SAFETY:
        // - no writer: duty of the caller.
        unsafe { &*links }.next
    })
}

/// Writes the link to the next waiter, for lists that have no other links.
///
/// # Safety
///
/// `node` is alive and the caller owns its links.
#[inline]
pub(crate) unsafe fn set_next(node: NonNull<Waiter>, next: *mut Waiter) {
    // SAFETY: the same duties.
    unsafe { edit(node, |links| links.next = next) }
}

/// Writes the links of a waiter that becomes the first of a chain, for [`remove_from`].
///
/// # Safety
///
/// `node` is alive and the caller owns its links.
#[inline]
pub(crate) unsafe fn set_first(node: NonNull<Waiter>, next: *mut Waiter) {
    // SAFETY: the same duties.
    unsafe {
        edit(node, |links| {
            links.prev = ptr::null_mut();
            links.next = next;
        });
    }
}

/// Removes `node` from the chain at `first`, and returns the new first node.
///
/// The party that adds a node makes the link forwards only ([`set_first`]). The links backwards are
/// made here, each once. So to leave costs as much as to come, on average, in whatever order they
/// leave.
///
/// # Safety
///
/// All nodes of the chain are alive, `node` is one of them, and the caller owns their links.
pub(crate) unsafe fn remove_from(first: *mut Waiter, node: NonNull<Waiter>) -> *mut Waiter {
    // SAFETY: the same duties.
    unsafe { link_backwards(first) };
    // SAFETY:
    // - alive, ours: duty of the caller.
    let (prev, next) = unsafe { edit(node, |links| (links.prev, links.next)) };
    if let Some(next) = NonNull::new(next) {
        // If it is the first one now, its link is null, as that of the first one shall be.
        //
        // SAFETY:
        // - alive, ours: a neighbour in the chain.
        unsafe { edit(next, |links| links.prev = prev) };
    }
    match NonNull::new(prev) {
        None => next,
        Some(prev) => {
            // SAFETY:
            // - alive, ours: a neighbour in the chain.
            unsafe { set_next(prev, next) };
            first
        }
    }
}

/// Makes the links backwards that are missing, and returns how many. The nodes that came since the
/// last time stand first: behind a node that has its link all have theirs.
///
/// # Safety
///
/// All nodes of the chain are alive, and the caller owns their links.
unsafe fn link_backwards(first: *mut Waiter) -> usize {
    let (mut made, mut at) = (0, first);
    while let Some(here) = NonNull::new(at) {
        // SAFETY:
        // - alive, no writer: duty of the caller.
        let Some(next) = NonNull::new(unsafe { next_of(here) }) else { break };
        let link = |links: &mut Links| std::mem::replace(&mut links.prev, here.as_ptr()).is_null();
        // SAFETY:
        // - alive, ours: duty of the caller.
        if !unsafe { edit(next, link) } {
            break;
        }
        made += 1;
        at = next.as_ptr();
    }
    made
}

impl WaitList {
    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_null()
    }

    /// The waiter that came first.
    pub(crate) fn first(&self) -> Option<&Waiter> {
        // SAFETY:
        // - alive: linked waiters stay until they are popped or removed, which needs `&mut self`.
        unsafe { self.first.as_ref() }
    }

    /// Appends a waiter.
    ///
    /// # Safety
    ///
    /// It is in no list, and stays alive and where it is until it is woken after a pop, or removed.
    pub(crate) unsafe fn push_back(&mut self, node: NonNull<Waiter>) {
        let prev = self.last;
        let links = Links { prev, next: ptr::null_mut(), is_linked: true };
        // SAFETY:
        // - alive, in no list: duty of the caller, so its links are ours from now on.
        unsafe { edit(node, |slot| *slot = links) };
        match NonNull::new(prev) {
            // SAFETY:
            // - alive, ours: it is linked in this list.
            Some(prev) => unsafe { edit(prev, |links| links.next = node.as_ptr()) },
            None => self.first = node.as_ptr(),
        }
        self.last = node.as_ptr();
    }

    /// Puts a waiter before all others.
    ///
    /// # Safety
    ///
    /// As for [`push_back`](Self::push_back).
    pub(crate) unsafe fn push_front(&mut self, node: NonNull<Waiter>) {
        let next = self.first;
        let links = Links { prev: ptr::null_mut(), next, is_linked: true };
        // SAFETY:
        // - alive, in no list: duty of the caller, so its links are ours from now on.
        unsafe { edit(node, |slot| *slot = links) };
        match NonNull::new(next) {
            // SAFETY:
            // - alive, ours: it is linked in this list.
            Some(next) => unsafe { edit(next, |links| links.prev = node.as_ptr()) },
            None => self.last = node.as_ptr(),
        }
        self.first = node.as_ptr();
    }

    /// Takes the oldest waiter out. It must be woken.
    pub(crate) fn pop_front(&mut self) -> Option<NonNull<Waiter>> {
        let node = NonNull::new(self.first)?;
        self.unlink(node);
        Some(node)
    }

    /// Takes a waiter out, if it is still in.
    ///
    /// # Safety
    ///
    /// It is alive and was put into this list and no other.
    pub(crate) unsafe fn remove(&mut self, node: NonNull<Waiter>) -> bool {
        // SAFETY:
        // - alive: duty of the caller; shared access only.
        let is_linked = unsafe { node.as_ref() }.links.with(|links| {
            // SAFETY:
            // - no writer: `is_linked` is written only with `&mut self`.
            unsafe { &*links }.is_linked
        });
        if is_linked {
            self.unlink(node);
        }
        is_linked
    }

    /// Takes everybody out, to be woken.
    pub(crate) fn take_all(&mut self) -> Chain {
        let mut chain = Chain::new();
        while let Some(node) = self.pop_front() {
            // SAFETY: popped here and in no other list.
            unsafe { chain.push(node) };
        }
        chain
    }

    /// `node` is in this list.
    fn unlink(&mut self, node: NonNull<Waiter>) {
        // SAFETY:
        // - alive, ours: it is linked in this list.
        let Links { prev, next, .. } =
            unsafe { edit(node, |links| std::mem::replace(links, Links::new())) };
        match NonNull::new(prev) {
            // SAFETY:
            // - alive, ours: a neighbour in this list.
            Some(prev) => unsafe { edit(prev, |links| links.next = next) },
            None => self.first = next,
        }
        match NonNull::new(next) {
            // SAFETY:
            // - alive, ours: a neighbour in this list.
            Some(next) => unsafe { edit(next, |links| links.prev = prev) },
            None => self.last = prev,
        }
    }
}

/// Waiters that have been taken out and must be woken. See the module documentation.
#[derive(Debug)]
#[must_use = "whoever takes waiters out of a list must wake them"]
pub(crate) struct Chain {
    first: *mut Waiter,
    last: *mut Waiter,
}

impl Chain {
    pub(crate) const fn new() -> Self {
        Self { first: ptr::null_mut(), last: ptr::null_mut() }
    }

    /// Appends a waiter. Under the lock of the list that it was in.
    ///
    /// # Safety
    ///
    /// It has been popped from its list and not been woken.
    pub(crate) unsafe fn push(&mut self, node: NonNull<Waiter>) {
        match NonNull::new(self.last) {
            // SAFETY:
            // - alive: not yet woken; ours: its party only reads `is_linked`, under the same lock.
            Some(last) => unsafe { set_next(last, node.as_ptr()) },
            None => self.first = node.as_ptr(),
        }
        self.last = node.as_ptr();
    }

    /// Appends those of another list of the same object, which are woken after these. Under its
    /// lock.
    pub(crate) fn append(&mut self, other: Self) {
        let Some(first) = NonNull::new(other.first) else { return };
        // SAFETY: popped and not yet woken.
        unsafe { self.push(first) };
        self.last = other.last;
    }

    /// Wakes all, oldest first, and async tasks after all others. Without the lock.
    pub(crate) fn wake(self) {
        let mut deferred = Deferred::new();
        let mut next = self.first;
        while let Some(node) = NonNull::new(next) {
            // SAFETY:
            // - alive: not yet woken; nobody writes the links of a popped waiter.
            next = unsafe { next_of(node) };
            // SAFETY:
            // - alive, unlinked: popped and not yet woken; not touched afterwards.
            unsafe { Waiter::wake_among(node, &mut deferred) };
        }
        deferred.fire();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::base::wait_kind::WaitKind;

    fn tags(list: &mut WaitList) -> Vec<usize> {
        std::iter::from_fn(|| list.pop_front())
            // SAFETY: the waiters of the tests outlive the list.
            .map(|node| unsafe { node.as_ref() }.tag.addr())
            .collect()
    }

    fn waiters(count: usize) -> Vec<Waiter> {
        (0..count).map(|n| Waiter::new(WaitKind::Select).with_number(n)).collect()
    }

    #[test]
    fn keeps_the_order_of_arrival() {
        let waiters = waiters(4);
        let mut list = WaitList::new();
        for waiter in &waiters[..3] {
            // SAFETY: alive, in no list.
            unsafe { list.push_back(NonNull::from(waiter)) };
        }
        // SAFETY: alive, in no list.
        unsafe { list.push_front(NonNull::from(&waiters[3])) };
        assert_eq!(list.first().map(|first| first.tag.addr()), Some(3));
        assert_eq!(tags(&mut list), [3, 0, 1, 2]);
        assert!(list.is_empty());
    }

    #[test]
    fn removes_each_position_once() {
        for gone in 0..3 {
            let waiters = waiters(3);
            let mut list = WaitList::new();
            for waiter in &waiters {
                // SAFETY: alive, in no list.
                unsafe { list.push_back(NonNull::from(waiter)) };
            }
            let node = NonNull::from(&waiters[gone]);
            // SAFETY: alive, and was put into this list.
            assert!(unsafe { list.remove(node) });
            // SAFETY: as above.
            assert!(!unsafe { list.remove(node) }, "it was out already");
            let rest: Vec<usize> = (0..3).filter(|n| *n != gone).collect();
            assert_eq!(tags(&mut list), rest);
        }
    }

    /// The waiters as a chain, the last one first. Returns that.
    fn chain(waiters: &[Waiter], mut first: *mut Waiter) -> *mut Waiter {
        for waiter in waiters {
            let node = NonNull::from(waiter);
            // SAFETY: alive, in no chain.
            unsafe { set_first(node, first) };
            first = node.as_ptr();
        }
        first
    }

    fn numbers(mut first: *mut Waiter) -> Vec<usize> {
        let next = || {
            let node = NonNull::new(first)?;
            // SAFETY: alive, and nobody else knows it.
            first = unsafe { next_of(node) };
            // SAFETY: as above.
            Some(unsafe { node.as_ref() }.tag.addr())
        };
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn leaves_a_chain_from_each_position_also_while_others_come() {
        for order in [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2], [2, 0, 3, 1]] {
            for late in 0..4 {
                let all = waiters(6);
                let (early, new) = all.split_at(4);
                let mut first = chain(early, ptr::null_mut());
                let mut left: Vec<usize> = vec![3, 2, 1, 0];
                for (turn, gone) in order.into_iter().enumerate() {
                    if turn == late {
                        first = chain(new, first);
                        left.splice(..0, [5, 4]);
                    }
                    // SAFETY: alive, and in the chain, which is ours.
                    first = unsafe { remove_from(first, NonNull::from(&all[gone])) };
                    left.retain(|number| *number != gone);
                    assert_eq!(numbers(first), left);
                }
                // SAFETY: as above.
                first = unsafe { remove_from(first, NonNull::from(&all[4])) };
                assert_eq!(numbers(first), [5]);
            }
        }
    }

    #[test]
    fn to_leave_a_chain_takes_as_many_steps_as_there_are_waiters_for_all_together() {
        const WAITERS: usize = 20_000;
        let all = waiters(WAITERS);
        let (early, new) = all.split_at(WAITERS / 2);
        let mut first = chain(early, ptr::null_mut());
        let mut steps = 0;
        for (turn, waiter) in all.iter().enumerate() {
            // SAFETY: alive, and ours.
            steps += unsafe { link_backwards(first) };
            // SAFETY: alive, and in the chain, which is ours.
            first = unsafe { remove_from(first, NonNull::from(waiter)) };
            if let Some(next) = new.get(turn) {
                first = chain(std::slice::from_ref(next), first);
            }
        }
        assert!(first.is_null());
        assert!((WAITERS / 2..=WAITERS).contains(&steps), "{steps}");
    }

    #[test]
    fn a_chain_wakes_everybody() {
        let waiters = waiters(3);
        let mut list = WaitList::new();
        for waiter in &waiters {
            // SAFETY: alive, in no list.
            unsafe { list.push_back(NonNull::from(waiter)) };
        }
        let chain = list.take_all();
        // SAFETY: alive, and was put into this list.
        assert!(!unsafe { list.remove(NonNull::from(&waiters[1])) }, "it has been won");
        assert!(waiters.iter().all(|waiter| !waiter.is_woken()));
        chain.wake();
        assert!(waiters.iter().all(Waiter::is_woken));
    }
}
