//! Where the jobs of [`join`](crate::join()) wait: a deque for each xstream, on which it leaves the
//! jobs of one pool.
//!
//! The queues of a pool are a list that only grows, so that thieves walk it without a lock. A queue
//! belongs to an xstream by its index, also while that has left and may be revived; when it has
//! been removed, another one may have the queue. They stay where they are as long as the pool's
//! shared part.

use std::iter;
use std::ptr::{self, NonNull};

use crate::base::work_deque::StealDeque;
use crate::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use crate::sync::atomic::{AtomicPtr, AtomicUsize};

/// A job, of a type that is known above. Who has taken it out of its queue has to carry it out, or
/// to give it back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct JobPtr(pub(crate) NonNull<()>);

// SAFETY: a pointer; what may be done with it is said where its type is known.
unsafe impl Send for JobPtr {}

/// The owner of a queue that anybody may have.
const NOBODY: usize = usize::MAX;

/// The jobs that one xstream has left of one pool.
pub(crate) struct JobQueue {
    pub(crate) jobs: StealDeque<JobPtr>,
    /// Index of the xstream that has the private end.
    owner: AtomicUsize,
    /// The next one of the pool; constant.
    next: *const Self,
}

// SAFETY: `next` is constant; the rest is made to be shared.
unsafe impl Sync for JobQueue {}

/// The queues of one pool.
pub(crate) struct JobQueues(AtomicPtr<JobQueue>);

impl JobQueues {
    pub(crate) const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// Every queue, the newest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &JobQueue> {
        let first = self.0.load(Acquire); // pair: JOB-QUEUES
        // SAFETY:
        // - valid: queues are freed together with `self`, which is borrowed.
        iter::successors(unsafe { first.as_ref() }, |queue| unsafe { queue.next.as_ref() })
    }

    /// The queue of the xstream with this index, made if need be. The caller is that xstream.
    #[cold]
    pub(crate) fn of(&self, xstream: usize) -> &JobQueue {
        if let Some(own) = self.iter().find(|queue| queue.owner.load(Relaxed) == xstream) {
            return own;
        }
        let free = self.iter().find(|queue| {
            // pair: JOB-QUEUE-OWNER
            queue.owner.compare_exchange(NOBODY, xstream, Acquire, Relaxed).is_ok()
        });
        free.unwrap_or_else(|| self.add(xstream))
    }

    fn add(&self, xstream: usize) -> &JobQueue {
        let owner = AtomicUsize::new(xstream);
        let queue = JobQueue { jobs: StealDeque::new(), owner, next: ptr::null() };
        let queue = Box::into_raw(Box::new(queue));
        let mut first = self.0.load(Relaxed);
        loop {
            // SAFETY:
            // - exclusive: nobody knows it before the exchange succeeds.
            unsafe { (*queue).next = first };
            // pair: JOB-QUEUES
            match self.0.compare_exchange_weak(first, queue, AcqRel, Relaxed) {
                // SAFETY: valid: as in `iter`.
                Ok(_) => return unsafe { &*queue },
                Err(seen) => first = seen,
            }
        }
    }

    /// The xstream with this index has been removed: its queue is empty, and nobody uses the
    /// private end any more.
    pub(crate) fn give_up(&self, xstream: usize) {
        if let Some(own) = self.iter().find(|queue| queue.owner.load(Relaxed) == xstream) {
            own.owner.store(NOBODY, Release); // pair: JOB-QUEUE-OWNER
        }
    }
}

impl Drop for JobQueues {
    fn drop(&mut self) {
        let mut next = self.0.load(Relaxed);
        while !next.is_null() {
            // SAFETY:
            // - from a box, and freed once: nobody borrows `self`, and so none of them.
            let queue = unsafe { Box::from_raw(next) };
            next = queue.next.cast_mut();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_queue_belongs_to_one_xstream_until_that_is_removed() {
        let queues = JobQueues::new();
        let first = ptr::from_ref(queues.of(0));
        let second = ptr::from_ref(queues.of(1));
        assert_ne!(first, second);
        assert_eq!(ptr::from_ref(queues.of(0)), first);
        queues.give_up(0);
        queues.give_up(7);
        assert_eq!(ptr::from_ref(queues.of(2)), first);
        assert_eq!(queues.iter().count(), 2);
    }

    #[test]
    fn who_owns_takes_the_newest_and_thieves_the_oldest() {
        let queues = JobQueues::new();
        let mut places = [0u8; 3];
        let jobs: Vec<_> =
            places.iter_mut().map(|place| JobPtr(NonNull::from(place).cast())).collect();
        let queue = queues.of(0);
        for job in &jobs {
            // SAFETY: the owner is this thread.
            unsafe { queue.jobs.push_own(*job) };
        }
        assert_eq!(queue.jobs.steal(), Some(jobs[0]));
        // SAFETY: the owner is this thread.
        assert_eq!(unsafe { queue.jobs.pop_own() }, Some(jobs[2]));
        assert_eq!(queue.jobs.len(), 1);
    }
}
