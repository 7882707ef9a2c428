//! A job in the frame of its owner: does exactly one party run it, does the owner see what a thief
//! has left, and does nobody touch the frame when the owner has gone?
//!
//! The deque is a list behind a lock: that one party gets each item, and sees what was written
//! before it was left, is what `crossbeam-deque` promises.

use std::collections::VecDeque;

use loom::cell::UnsafeCell;
use loom::sync::{Arc, Mutex};
use loom::thread;
use margo_loom_tests::check;
use ult::loom_exports::{JoinWord, Published};

/// The frame: closure and outcome have no other protection than who has the job.
struct Frame {
    word: JoinWord,
    body: UnsafeCell<Option<u32>>,
    outcome: UnsafeCell<Option<u32>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Job(*const Frame);

// SAFETY: the deque and the word order the accesses, which loom checks.
unsafe impl Send for Job {}

type Deque = Arc<Mutex<VecDeque<Job>>>;

impl Job {
    fn new(body: u32) -> Self {
        let body = UnsafeCell::new(Some(body));
        let outcome = UnsafeCell::new(None);
        Self(Box::into_raw(Box::new(Frame { word: JoinWord::new(), body, outcome })))
    }

    fn frame(&self) -> &Frame {
        // SAFETY: the owner has not left, which loom checks by the cells of the frame.
        unsafe { &*self.0 }
    }

    /// The caller has the job.
    fn run(self) -> u32 {
        // SAFETY: exclusive: the caller has the job, which loom checks.
        let body = self.frame().body.with_mut(|body| unsafe { (*body).take() });
        body.expect("a job runs once") + 1
    }

    /// A thief, which may also give the job back, since there is no memory for a stack.
    fn taken(self, runs: bool) {
        if runs {
            let outcome = self.run();
            // SAFETY: exclusive, as above.
            self.frame().outcome.with_mut(|place| unsafe { *place = Some(outcome) });
        }
        if let Published::Waited(waiters) = self.frame().word.publish() {
            waiters.wake();
        }
    }

    /// The owner is through with its first half. Frees the frame.
    fn end(self, deque: &Deque) -> u32 {
        let top = deque.lock().unwrap().pop_back();
        match top {
            Some(top) => assert!(top == self, "the newest job is the owner's"),
            None => self.frame().word.wait_fully(),
        }
        // SAFETY: exclusive: the job is the owner's again, which loom checks.
        let outcome = self.frame().outcome.with_mut(|place| unsafe { (*place).take() });
        let outcome = outcome.unwrap_or_else(|| self.run());
        // SAFETY: from a box; only the owner does this, once.
        drop(unsafe { Box::from_raw(self.0.cast_mut()) });
        outcome
    }
}

fn steal(deque: &Deque) -> Option<Job> {
    deque.lock().unwrap().pop_front()
}

/// An owner that leaves its job, and thieves, of which each runs what it finds or gives it back.
fn race(thieves: &'static [bool]) {
    check(move || {
        let (deque, job) = (Deque::default(), Job::new(6));
        deque.lock().unwrap().push_back(job);
        let spawn = |runs: &bool| {
            let (deque, runs) = (deque.clone(), *runs);
            thread::spawn(move || {
                if let Some(job) = steal(&deque) {
                    job.taken(runs);
                }
            })
        };
        let thieves: Vec<_> = thieves.iter().map(spawn).collect();
        assert_eq!(job.end(&deque), 7);
        thieves.into_iter().for_each(|thief| thief.join().unwrap());
    });
}

#[test]
fn a_job_is_taken_back_or_run_by_a_thief() {
    race(&[true]);
}

#[test]
fn a_job_that_a_thief_cannot_run_is_run_by_its_owner() {
    race(&[false]);
}

#[test]
fn of_two_thieves_one_gets_the_job() {
    race(&[true, false]);
}

/// A fork within a fork: the thief takes the older job first.
#[test]
fn nested_jobs_come_back_newest_first() {
    check(|| {
        let (deque, outer) = (Deque::default(), Job::new(1));
        deque.lock().unwrap().push_back(outer);
        let thief = {
            let deque = deque.clone();
            thread::spawn(move || {
                if let Some(job) = steal(&deque) {
                    job.taken(true);
                }
            })
        };
        let inner = Job::new(10);
        deque.lock().unwrap().push_back(inner);
        assert_eq!(inner.end(&deque), 11);
        assert_eq!(outer.end(&deque), 2);
        thief.join().unwrap();
    });
}
