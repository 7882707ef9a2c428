//! Jobs: second halves of a [`join`](crate::join()) that wait on the stack of their caller.
//!
//! A job is a closure, in the frame of the ULT that forks, and a pointer to it on the deque of that
//! ULT's xstream ([`JobQueue`]). As a rule the ULT takes the pointer back when it is through with
//! the first half, and calls the closure. An xstream that has nothing else to run takes the oldest
//! pointer out of some deque and runs the job as a ULT of its own, so that it may wait.
//!
//! | who takes a job | when | the pool of its ULT |
//! |---|---|---|
//! | its owner | it is through with the first half | none is made |
//! | the owner's xstream | it has nothing else to run, since the owner waits | the owner's |
//! | the owner's xstream | the job lies above that of a ULT that takes its own back | the owner's |
//! | another xstream that serves the pool | it has nothing else to run | that where the job lay |
//!
//! # Who may touch what
//!
//! The owner writes the job before it leaves it. From then on it belongs to the party that has the
//! pointer: the deque sees to it that there is one. A party that is not the owner calls
//! [`Job::run`], or does not ([`Taken`]), and then publishes in `word`, which is its last access.
//! The owner does not leave its frame before it has the pointer, or has seen the word: a panic, a
//! cancel and an exit are caught there, and go on afterwards.
//!
//! # Waking
//!
//! A ULT that leaves a job looks, without a fence, whether an xstream sleeps that serves the pool.
//! So now and then one goes to sleep beside a job, and is woken by a job that is left later. Nobody
//! depends on thieves: the owner's xstream runs the job before it would sleep. A thief that leaves
//! jobs behind wakes the next one.

use std::mem::ManuallyDrop;
use std::ptr;

use crate::base::job_queues::{JobPtr, JobQueue};
use crate::base::values::Values;
use crate::engine::model::interfaces::PushReason;
use crate::engine::model::pool::{PoolShared, PoolSlot, bump};
use crate::engine::model::unit::{UltPtr, UltRef, UnitInit, UnitKind};
use crate::engine::model::waiter::{DETACHED, JoinWord};
use crate::engine::waiting::join_word::Published;
use crate::engine::xstream::owner::Xstream;
use crate::engine::xstream::push::push;
use crate::sync::atomic::AtomicBool;
use crate::sync::atomic::Ordering::{Relaxed, Release};
use crate::trace::event::EventKind;

/// The part of a job that does not depend on the types of its closure. The rest stands behind it.
pub(crate) struct Job {
    /// Runs the closure, once, and leaves its outcome beside it. Does not unwind.
    pub(crate) run: unsafe fn(JobPtr),
    /// The ULT whose frame this is in.
    pub(crate) owner: UltPtr,
    /// Says that the party that took it is through with it.
    pub(crate) word: JoinWord,
    /// A party that is not the owner has taken it.
    pub(crate) is_taken: AtomicBool,
    /// Inherited from the owner.
    pub(crate) inherited: u64,
    pub(crate) values: Values,
}

impl Job {
    /// The job behind a pointer.
    ///
    /// # Safety
    ///
    /// The caller has the pointer from a queue, or is the owner, and the job is not over.
    unsafe fn of<'a>(job: JobPtr) -> &'a Self {
        // SAFETY:
        // - type: who leaves a job leaves one of these (`leave_job`); valid: duty of the caller.
        unsafe { job.0.cast().as_ref() }
    }
}

/// A job that a party other than its owner has taken.
struct Taken(JobPtr);

impl Taken {
    fn run(self) {
        let job = ManuallyDrop::new(self).0;
        // SAFETY:
        // - not over: `finish` comes last.
        let run = unsafe { Job::of(job) }.run;
        // SAFETY:
        // - once: it has been taken once.
        unsafe { run(job) };
        finish(job);
    }
}

/// It does not run here: there was no memory for a stack, say. The owner then runs it.
impl Drop for Taken {
    fn drop(&mut self) {
        finish(self.0);
    }
}

/// The last access to a job that was taken.
fn finish(job: JobPtr) {
    // SAFETY:
    // - not over: that is what this says.
    match unsafe { Job::of(job) }.word.publish() {
        // Nothing behind this line touches the job, which may be gone.
        Published::Waited(waiters) => waiters.wake(),
        Published::First | Published::Detached => {}
    }
}

impl Xstream {
    /// Leaves a job where others may take it.
    ///
    /// # Safety
    ///
    /// - `job` points to a [`Job`], which stays until [`take_back`](Self::take_back) says that the
    ///   caller has it, or until its word says that it is over.
    /// - Its owner is the caller, a ULT that is at home here, and `slot` is its slot.
    #[inline(always)]
    pub(crate) unsafe fn leave_job<'a>(&self, slot: &'a PoolSlot, job: JobPtr) -> &'a JobQueue {
        let queue = match slot.job_queue() {
            Some(queue) => queue,
            None => self.make_job_queue(slot),
        };
        // SAFETY: the queue is this xstream's, and so is the thread.
        unsafe { queue.jobs.push_own(job) };
        if slot.pool.sleepers.load(Relaxed) > 0 {
            self.core.wake_one_slow(&slot.pool);
        }
        queue
    }

    #[cold]
    fn make_job_queue<'a>(&self, slot: &'a PoolSlot) -> &'a JobQueue {
        if !self.core.has_jobs.swap(true, Relaxed) {
            // Those that sleep have not been counted for their pools.
            self.core.xstreams().iter().for_each(|xstream| xstream.signal());
        }
        slot.make_job_queue()
    }

    /// Takes a job of the caller back. `false`: another party has taken it.
    #[inline(always)]
    pub(crate) fn take_back(&self, queue: &JobQueue, job: JobPtr) -> bool {
        loop {
            // SAFETY: the queue is this xstream's, and so is the thread.
            match unsafe { queue.jobs.pop_own() } {
                Some(top) if top == job => return true,
                None => return false,
                Some(other) if self.is_in_the_way(queue, job, other) => {}
                Some(_) => return false,
            }
        }
    }

    /// A job lies above `job`: its owner waits in its own first half, and so it is high time that
    /// the second one begins. Makes a ULT of it. `false`: `job` is not below it.
    #[cold]
    fn is_in_the_way(&self, queue: &JobQueue, job: JobPtr, other: JobPtr) -> bool {
        // SAFETY: the caller is the owner.
        if unsafe { Job::of(job) }.is_taken.load(Relaxed) {
            // SAFETY: the queue is this xstream's, and so is the thread.
            unsafe { queue.jobs.push_own(other) };
            return false;
        }
        // SAFETY: it has just been taken.
        let pool = unsafe { Job::of(other) }.owner.pool();
        if let Some(ult) = self.unit_of(other, pool) {
            push(ult, pool, Some(self), PushReason::Create);
        }
        true
    }

    /// Returns whether there is a job that this xstream would take.
    #[inline]
    pub(crate) fn has_jobs(&self) -> bool {
        self.core.has_jobs.load(Relaxed)
            && self.any_slot(|slot| {
                slot.job_queue().is_some_and(|own| !own.jobs.is_empty())
                    || is_open_to_thieves(slot)
                        && slot.pool.jobs.iter().any(|queue| !queue.jobs.is_empty())
            })
    }

    /// Takes a job and runs it, if there is one. For an xstream with nothing else to run.
    pub(crate) fn run_job(&self) -> bool {
        self.core.has_jobs.load(Relaxed) && self.any_slot(|slot| self.run_job_of(slot))
    }

    fn run_job_of(&self, slot: &PoolSlot) -> bool {
        let own = slot.job_queue();
        let (job, pool) = if let Some(job) = own.and_then(|own| own.jobs.steal()) {
            // SAFETY: it has just been taken; the owner waits, and is at home here.
            (job, unsafe { Job::of(job) }.owner.pool())
        } else if is_open_to_thieves(slot) {
            // Each thief begins behind its own, so that not all of them come to the same one.
            let is_own = |queue: &&JobQueue| own.is_some_and(|own| ptr::eq(*queue, own));
            let queues = || slot.pool.jobs.iter();
            let behind = queues().skip_while(|queue| !is_own(queue));
            let all = behind.chain(queues());
            let Some((queue, job)) = all.into_iter().find_map(|q| Some((q, q.jobs.steal()?)))
            else {
                return false;
            };
            if !queue.jobs.is_empty() {
                self.core.wake_one(&slot.pool);
            }
            (job, &*slot.pool)
        } else {
            return false;
        };
        if let Some(ult) = self.unit_of(job, pool) {
            self.units_run.set(self.units_run.get() + 1);
            self.run(ult);
        }
        true
    }

    /// Makes a ULT of a job that the caller has taken, with a stack like its owner's. `None`: its
    /// pool has been removed, or there is no memory, and the owner has the job again.
    fn unit_of(&self, job: JobPtr, pool: &PoolShared) -> Option<UltPtr> {
        // SAFETY: it has been taken, and is over at the earliest when `taken` has gone.
        let head = unsafe { Job::of(job) };
        let taken = Taken(job);
        head.is_taken.store(true, Relaxed);
        let ult = self.descriptors.take(&self.core)?;
        // The owner has not ended. So before it is counted as ended, this one is counted.
        bump(&self.slot_for(pool).shared.created);
        if !self.owns(pool) && !pool.outlives_removal() {
            pool.dropped.fetch_add(1, Release); // pair: POOL-ENDED
            self.core.tell_news();
            drop(UltRef::adopt(ult));
            return None;
        }
        let of_owner = head.owner.class.get();
        let class = if of_owner.is_users() { pool.class } else { of_owner };
        let (id, kind) = (self.next_id(), UnitKind::Ult);
        // SAFETY: it comes from a cache, or is new.
        unsafe { ult.prepare(UnitInit { id, pool, kind, class, join: DETACHED }) };
        ult.inherited.set(head.inherited);
        if head.values.0.is_some() {
            let values = head.values.clone();
            ult.with_extra(|extra| extra.inherited = values);
        }
        // SAFETY:
        // - the borrows: the owner keeps what the job borrows until `taken` has gone, which is the
        //   last thing that the closure does, or that is done with it.
        unsafe { ult.payload.set_closure(move || taken.run()) };
        self.on_event(ult, EventKind::Create);
        Some(ult)
    }
}

/// Returns whether this xstream takes jobs of others from the pool: it runs the pool's units, and
/// is not the only one.
fn is_open_to_thieves(slot: &PoolSlot) -> bool {
    slot.served.get() && slot.pool.sole.load(Relaxed).is_null()
}
