//! Admission in the order of arrival: what [`RwLock`](crate::RwLock) and
//! [`Semaphore`](crate::Semaphore) have in common.
//!
//! A word says what is free; its meaning is the object's, but for two flags:
//!
//! | flag of `word` | meaning |
//! |---|---|
//! | `QUEUED` | the queue is not empty: nobody may take anything past it |
//! | `WATCHED` | a select wants to know when something becomes free |
//!
//! Both change under the lock of the queue. Without `QUEUED`, taking is one read-modify-write of
//! the word. Giving back always is one, and whoever finds a flag then calls [`FairQueue::admit`],
//! which admits waiters from the front of the queue as long as the word allows. A waiter is put
//! into the queue, then the flag is set, then the front is admitted: as both sides change the same
//! word, either the newcomer sees what has been given back, or the giver sees the flag.

use std::ptr::NonNull;
use std::time::Instant;

use crate::base::const_new::const_new;
use crate::engine::model::waiter::{WaitList, Waiter};
use crate::engine::waiting::list::Chain;
use crate::sync::atomic::AtomicUsize;
use crate::sync::atomic::Ordering::{AcqRel, Relaxed};
use crate::sync::{Mutex as OsMutex, lock};

pub(crate) const QUEUED: usize = 1;
pub(crate) const WATCHED: usize = 2;

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct FairQueue {
    pub(crate) word: AtomicUsize,
    queues: OsMutex<Queues>,
}

#[derive(Debug)]
struct Queues {
    waiting: WaitList,
    watching: WaitList,
}

impl FairQueue {
    const_new! {
        pub(crate) fn new(word: usize) -> Self {
            Self {
                word: AtomicUsize::new(word),
                queues: OsMutex::new(Queues {
                    waiting: WaitList::new(),
                    watching: WaitList::new(),
                }),
            }
        }
    }

    /// Queues the waiter and waits until it is admitted. `false`: the deadline passed first.
    ///
    /// `take` gets the tag of a waiter as a number, takes what it wants if that is free, and tells
    /// so. It is called under the lock of the queue, and for the front of the queue only.
    pub(crate) fn wait(
        &self,
        waiter: &Waiter,
        deadline: Option<Instant>,
        take: impl Fn(usize) -> bool,
    ) -> bool {
        let node = self.enqueue(waiter, &take);
        waiter.settle(deadline, || self.leave(node, &take))
    }

    /// Like [`wait`](Self::wait), without deadline, and not a cancellation point.
    pub(crate) fn wait_fully(&self, waiter: &Waiter, take: impl Fn(usize) -> bool) {
        self.enqueue(waiter, &take);
        waiter.block_fully();
    }

    fn enqueue(&self, waiter: &Waiter, take: &impl Fn(usize) -> bool) -> NonNull<Waiter> {
        let node = NonNull::from(waiter);
        let mut queues = lock(&self.queues);
        // SAFETY:
        // - in no list: fresh; it stays until it is woken or has left the queue.
        unsafe { queues.waiting.push_back(node) };
        self.word.fetch_or(QUEUED, AcqRel); // pair: GATE-FLAGS
        let admitted = self.admit_front(&mut queues, take);
        drop(queues);
        admitted.wake();
        node
    }

    /// Takes a waiter out whose deadline has passed. `false`: it has been admitted.
    fn leave(&self, node: NonNull<Waiter>, take: &impl Fn(usize) -> bool) -> bool {
        let mut queues = lock(&self.queues);
        // SAFETY:
        // - alive: the caller is its party; it was put into this queue.
        if !unsafe { queues.waiting.remove(node) } {
            return false;
        }
        // It may have been the one that the others could not pass.
        let admitted = self.admit_front(&mut queues, take);
        drop(queues);
        admitted.wake();
        true
    }

    /// Something has been given back while a flag was set.
    #[cold]
    pub(crate) fn admit(&self, take: impl Fn(usize) -> bool) {
        let mut queues = lock(&self.queues);
        let admitted = self.admit_front(&mut queues, &take);
        drop(queues);
        admitted.wake();
    }

    fn admit_front(&self, queues: &mut Queues, take: &impl Fn(usize) -> bool) -> Chain {
        let mut admitted = Chain::new();
        while let Some(first) = queues.waiting.first() {
            if !take(first.tag.addr()) {
                return admitted;
            }
            if let Some(node) = queues.waiting.pop_front() {
                // SAFETY: popped just now.
                unsafe { admitted.push(node) };
            }
        }
        let old = self.word.fetch_and(!(QUEUED | WATCHED), AcqRel); // pair: GATE-FLAGS
        if old & WATCHED != 0 {
            while let Some(node) = queues.watching.pop_front() {
                // SAFETY: popped just now.
                unsafe { admitted.push(node) };
            }
        }
        admitted
    }

    /// Lets a select know when something has been given back. `false`: `is_ready` says that it need
    /// not wait.
    ///
    /// # Safety
    ///
    /// `node` is in no list, and stays alive and where it is until it is woken or
    /// [`unwatch`](Self::unwatch) has taken it out.
    pub(crate) unsafe fn watch(
        &self,
        node: NonNull<Waiter>,
        is_ready: impl FnOnce() -> bool,
    ) -> bool {
        let mut queues = lock(&self.queues);
        self.word.fetch_or(WATCHED, AcqRel); // pair: GATE-FLAGS
        if is_ready() {
            if queues.watching.is_empty() {
                self.word.fetch_and(!WATCHED, Relaxed);
            }
            return false;
        }
        // SAFETY: duty of the caller.
        unsafe { queues.watching.push_back(node) };
        true
    }

    /// Takes a watching waiter out. `false`: it has been woken.
    pub(crate) fn unwatch(&self, node: NonNull<Waiter>) -> bool {
        let mut queues = lock(&self.queues);
        // SAFETY:
        // - alive: the caller is its party; it was put into this list.
        let was_linked = unsafe { queues.watching.remove(node) };
        if queues.watching.is_empty() {
            self.word.fetch_and(!WATCHED, Relaxed);
        }
        was_linked
    }
}
