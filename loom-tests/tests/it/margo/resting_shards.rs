//! A handler that may be taken, and shards that fall asleep: can one be forgotten beside the other,
//! can two handlers wake the same shard, can the end of the instance be slept through?
//!
//! The word that announces sleep is the real one. The queue is weaker than the real one, which has
//! a lock: so it is the fences that must hold.

use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use margo_loom_tests::check_bounded;

#[path = "../../../../src/progress/resting_shards.rs"]
mod resting_shards;

use resting_shards::RestingShards;

/// A token as that of `ult::park`.
#[derive(Default)]
struct Token {
    is_there: Mutex<bool>,
    unparked: Condvar,
}

impl Token {
    fn unpark(&self) {
        *self.is_there.lock().unwrap() = true;
        self.unparked.notify_one();
    }

    fn park(&self) {
        let mut is_there = self.is_there.lock().unwrap();
        while !*is_there {
            is_there = self.unparked.wait(is_there).unwrap();
        }
        *is_there = false;
    }
}

struct Shared {
    resting: RestingShards,
    /// Handlers that may be taken.
    queue: AtomicUsize,
    is_over: AtomicBool,
    tokens: [Token; 2],
}

impl Shared {
    fn new() -> Arc<Self> {
        let (queue, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
        Arc::new(Self {
            resting: RestingShards::new(2),
            queue,
            is_over,
            tokens: Default::default(),
        })
    }

    /// As `spawn_stealable` of `src/dispatch/run_handler.rs`.
    fn give(&self) {
        self.queue.fetch_add(1, Ordering::Relaxed);
        self.wake_one();
    }

    fn wake_one(&self) {
        if let Some(shard) = self.resting.claim() {
            self.tokens[shard].unpark();
        }
    }

    /// As `Progress::stop`.
    fn end(&self, shard: usize) {
        self.is_over.store(true, Ordering::Release);
        self.tokens[shard].unpark();
    }

    fn take(&self) -> bool {
        let mut len = self.queue.load(Ordering::Relaxed);
        while len > 0 {
            let taken =
                self.queue.compare_exchange(len, len - 1, Ordering::Relaxed, Ordering::Relaxed);
            match taken {
                Ok(_) => return true,
                Err(seen) => len = seen,
            }
        }
        false
    }

    /// The progress ULT of a shard until it has taken a handler, which holds it from then on, or
    /// the instance ends: whether it has taken one.
    fn run(&self, me: usize) -> bool {
        loop {
            if self.take() {
                return true;
            }
            if self.is_over.load(Ordering::Acquire) {
                return false;
            }
            self.resting.begin(me);
            if self.queue.load(Ordering::Relaxed) == 0 && !self.is_over.load(Ordering::Acquire) {
                self.tokens[me].park();
            }
            self.resting.end(me);
            if self.queue.load(Ordering::Relaxed) > 0 {
                self.wake_one();
            }
        }
    }
}

/// The owner is in the midst of a handler: the others take one each.
#[test]
fn every_handler_that_is_given_away_finds_a_shard_that_sleeps() {
    check_bounded(2, || {
        let shared = Shared::new();
        let shards = [0, 1].map(|me| {
            let shared = shared.clone();
            thread::spawn(move || assert!(shared.run(me)))
        });
        shared.give();
        shared.give();
        shards.into_iter().for_each(|shard| shard.join().unwrap());
        assert_eq!(shared.queue.load(Ordering::Relaxed), 0);
        assert_eq!(shared.resting.claim(), None, "nobody sleeps");
    });
}

/// The owner takes some itself, and the instance ends meanwhile.
#[test]
fn a_shard_that_sleeps_beside_handlers_is_told_of_the_end() {
    check_bounded(3, || {
        let shared = Shared::new();
        let own = shared.clone();
        let shard = thread::spawn(move || own.run(0));
        shared.give();
        let is_own = shared.take();
        shared.end(0);
        assert!(shard.join().unwrap() != is_own, "one of them has it");
    });
}
