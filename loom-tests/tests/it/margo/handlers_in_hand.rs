//! Does the end of an instance ever miss a handler, or wait for one that is over?
#![allow(dead_code, unreachable_pub, reason = "what only the runtime needs of the file below")]

// Counts of the model itself: what has happened, whatever the memory order.
use std::sync::atomic::{AtomicUsize as Count, Ordering};

use loom::sync::Arc;
use loom::thread;
use margo_loom_tests::check;

#[path = "../../../../src/instance/handlers_in_hand.rs"]
mod handlers_in_hand;

use handlers_in_hand::HandlersInHand;

/// The handlers, and what the model knows of them.
struct Seen {
    handlers: HandlersInHand,
    /// Handlers that were let in and have not ended.
    running: Count,
    /// How often it was told that none is left.
    told: Count,
}

impl Seen {
    fn new() -> Arc<Self> {
        let (handlers, running, told) = (HandlersInHand::new(), Count::new(0), Count::new(0));
        Arc::new(Self { handlers, running, told })
    }

    fn begin(&self) -> bool {
        let may_run = self.handlers.begin();
        if may_run {
            self.running.fetch_add(1, Ordering::SeqCst);
            assert_eq!(self.told.load(Ordering::SeqCst), 0, "it was told that none is left");
        } else {
            self.end_refused();
        }
        may_run
    }

    fn end(&self) {
        self.running.fetch_sub(1, Ordering::SeqCst);
        self.end_refused();
    }

    fn end_refused(&self) {
        if self.handlers.end() {
            self.tell();
        }
    }

    fn close(&self) {
        if self.handlers.close() && self.handlers.are_none() {
            self.tell();
        }
    }

    fn tell(&self) {
        assert_eq!(self.running.load(Ordering::SeqCst), 0, "one is running still");
        self.told.fetch_add(1, Ordering::SeqCst);
    }

    fn assert_told(&self) {
        assert!(self.told.load(Ordering::SeqCst) > 0, "nobody has told that none is left");
        assert_eq!(self.handlers.count(), 0);
        assert!(!self.handlers.begin() && self.handlers.end());
    }
}

/// A request comes in, and its handler ends on another thread, while the end begins.
#[test]
fn a_handler_is_refused_or_waited_for() {
    check(|| {
        let seen = Seen::new();
        let arriving = seen.clone();
        let progress = thread::spawn(move || {
            if arriving.begin() {
                let ending = arriving.clone();
                thread::spawn(move || ending.end()).join().unwrap();
            }
        });
        seen.close();
        progress.join().unwrap();
        seen.assert_told();
    });
}

/// The last two handlers end at once, while the end begins.
#[test]
fn of_the_last_two_handlers_one_tells() {
    check(|| {
        let seen = Seen::new();
        assert!(seen.begin() && seen.begin());
        let ending = [(); 2].map(|()| {
            let seen = seen.clone();
            thread::spawn(move || seen.end())
        });
        seen.close();
        ending.into_iter().for_each(|thread| thread.join().unwrap());
        seen.assert_told();
    });
}
