//! A lock-free intrusive queue from any thread to one xstream.
//!
//! Senders push onto a linked stack with one compare-exchange; the owner takes the whole stack
//! with one swap and reverses it, so nodes come out in the order in which they were pushed. Taking
//! everything at once leaves no ABA problem and no half-linked state.
//!
//! # Who may touch what
//!
//! | state | owner | others |
//! |---|---|---|
//! | `head` | swaps it to null (`take_all`) | compare-exchange (`push`) |
//! | a node's link | from `take_all` on | from before `push` until it succeeded |
//!
//! # Orderings
//!
//! `push` releases, `take_all` acquires. All pushes since the last `take_all` form one release
//! sequence on `head`, so the owner sees what each of the senders wrote, not only the last one.
//!
//! An owner that leaves closes its empty inbox with one compare-exchange; later pushes fail and
//! leave the node with the pusher.
//!
//! `push` tells whether the inbox was empty. Only that sender must look whether the owner sleeps:
//! the owner never sleeps without a look at the inbox, and a sender that pushes onto a non-empty
//! inbox knows that an earlier sender is about to look (see [`park`](mod@crate::base::park_word)).

#![cfg_attr(not(loom), allow(unreachable_pub, reason = "public for the loom models only"))]

use std::ptr::{self, NonNull};

use crate::sync::atomic::AtomicPtr;
use crate::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// A node that can stand in one intrusive queue at a time.
///
/// # Safety
///
/// `link` must return the same atomic for the whole life of the node, and nobody but the queue
/// that holds the node may write it.
pub unsafe trait Linked: Sized {
    /// The field that names the next node of the queue.
    fn link(&self) -> &AtomicPtr<Self>;
}

/// The owner of an inbox has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Closed;

/// In place of a node: no node may be pushed.
fn closed<T>() -> *mut T {
    ptr::without_provenance_mut(1)
}

/// The queue. See the module documentation.
#[derive(Debug)]
pub struct Inbox<T> {
    head: AtomicPtr<T>,
}

impl<T: Linked> Inbox<T> {
    /// An empty inbox.
    #[must_use]
    pub fn new() -> Self {
        Self { head: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Returns whether nothing is waiting. A snapshot.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.head.load(Relaxed).is_null()
    }

    /// Returns the node that was pushed last, or null if none waits. This is a hint: the node may
    /// be gone.
    #[inline]
    #[must_use]
    pub fn newest(&self) -> *const T {
        self.head.load(Relaxed)
    }

    /// Hands `node` to the owner. Returns whether the inbox was empty before, or that it is closed,
    /// and `node` still the caller's.
    ///
    /// # Safety
    ///
    /// - `node` is in no queue, and the caller has the right to put it into one.
    /// - It stays valid until the owner has taken it.
    ///
    /// # Errors
    ///
    /// [`Closed`] if the owner has left.
    pub unsafe fn push(&self, node: NonNull<T>) -> Result<bool, Closed> {
        // SAFETY:
        // - valid: the caller's second duty; shared access only, the link is an atomic.
        let link = unsafe { node.as_ref() }.link();
        // Not loaded first: that would fetch the cache line twice, once to read and once to write.
        let mut head = ptr::null_mut();
        loop {
            if head == closed() {
                return Err(Closed);
            }
            link.store(head, Relaxed);
            // pair: INBOX
            match self.head.compare_exchange_weak(head, node.as_ptr(), Release, Relaxed) {
                Ok(_) => return Ok(head.is_null()),
                Err(seen) => head = seen,
            }
        }
    }

    /// Closes an empty inbox. `false`: something is there; take it first. Only the owner may call
    /// this.
    #[must_use]
    pub fn close(&self) -> bool {
        // pair: INBOX
        self.head.compare_exchange(ptr::null_mut(), closed(), AcqRel, Relaxed).is_ok()
    }

    /// Opens a closed inbox. Only its (new) owner may call this.
    pub fn open(&self) {
        // pair: INBOX
        let was = self.head.compare_exchange(closed(), ptr::null_mut(), AcqRel, Relaxed);
        debug_assert!(was.is_ok(), "only a closed inbox can be opened");
    }

    /// Takes all nodes, first pushed first. Only the owner may call this.
    pub fn take_all(&self) -> Batch<T> {
        // pair: INBOX
        let mut node = self.head.swap(ptr::null_mut(), Acquire);
        let mut first = ptr::null_mut();
        while let Some(current) = NonNull::new(node) {
            // SAFETY:
            // - valid: pushed nodes stay valid until taken (contract of `push`), and they are
            //   taken only now; shared access only.
            let link = unsafe { current.as_ref() }.link();
            node = link.load(Relaxed);
            link.store(first, Relaxed);
            first = current.as_ptr();
        }
        Batch { next: first }
    }
}

impl<T: Linked> Default for Inbox<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// The nodes that [`Inbox::take_all`] took, in order. Nodes that are not iterated are lost.
#[derive(Debug)]
#[must_use = "nodes that are not iterated are lost"]
pub struct Batch<T> {
    next: *mut T,
}

impl<T: Linked> Iterator for Batch<T> {
    type Item = NonNull<T>;

    fn next(&mut self) -> Option<NonNull<T>> {
        let node = NonNull::new(self.next)?;
        // SAFETY:
        // - valid: the node was taken by `take_all` and not yet given out, so its contract still
        //   keeps it alive; the link is read before the caller may free or re-queue the node.
        let link = unsafe { node.as_ref() }.link();
        self.next = link.load(Relaxed);
        Some(node)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    struct Node {
        link: AtomicPtr<Node>,
        value: u32,
    }

    // SAFETY: `link` is one field, written by the inbox only.
    unsafe impl Linked for Node {
        fn link(&self) -> &AtomicPtr<Self> {
            &self.link
        }
    }

    #[test]
    fn comes_out_in_order() {
        let inbox = Inbox::new();
        let nodes: Vec<Node> =
            (0..5).map(|value| Node { link: AtomicPtr::default(), value }).collect();
        for (at, node) in nodes.iter().enumerate() {
            // SAFETY:
            // - pushed once;
            // - `nodes` outlives the inbox's use.
            let was_empty = unsafe { inbox.push(NonNull::from(node)) };
            assert_eq!(was_empty, Ok(at == 0));
        }
        // SAFETY: the nodes are alive.
        let seen: Vec<u32> = inbox.take_all().map(|n| unsafe { n.as_ref() }.value).collect();
        assert_eq!(seen, [0, 1, 2, 3, 4]);
        assert!(inbox.is_empty());
        assert!(inbox.close());
        // SAFETY: as above.
        assert_eq!(unsafe { inbox.push(NonNull::from(&nodes[0])) }, Err(Closed));
        inbox.open();
        // SAFETY: as above.
        assert_eq!(unsafe { inbox.push(NonNull::from(&nodes[0])) }, Ok(true));
        assert!(!inbox.close());
    }
}
