//! Can a context sleep although there is work for it, because another one has polled or has filled
//! its mailbox?

use loom::sync::atomic::{AtomicU32, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;
use margo_loom_tests::check;

use prim::sleepers::{Sleeper, Sleepers};

/// An endpoint as `na` promises it: what comes after an announcement makes its descriptor readable,
/// and a poll ends the announcement.
#[derive(Default)]
struct Endpoint {
    messages: u32,
    announced: bool,
    readable: bool,
}

impl Endpoint {
    fn arrive(&mut self) {
        self.messages += 1;
        self.readable |= self.announced;
    }

    fn poll(&mut self, budget: u32) -> u32 {
        (self.announced, self.readable) = (false, false);
        let taken = self.messages.min(budget);
        self.messages -= taken;
        taken
    }

    fn prepare_wait(&mut self) -> bool {
        self.announced = self.messages == 0;
        self.announced
    }
}

/// One context that sleeps, and what it shares with another one, which polls. All messages are for
/// the sleeper. The mailbox is weaker than the real one, which is behind a lock: so it is the
/// fences that must hold.
#[derive(Default)]
struct Shared {
    endpoint: Mutex<Endpoint>,
    sleepers: Sleepers,
    asleep: Sleeper,
    mailbox: AtomicU32,
    rings: AtomicU32,
}

impl Shared {
    fn ring(&self) {
        if self.asleep.must_ring() {
            self.rings.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// `Core::prepare_wait`.
    fn prepare_wait(&self) -> bool {
        self.asleep.announce(&self.sleepers);
        let quiet = self.mailbox.load(Ordering::Relaxed) == 0
            && self.endpoint.lock().unwrap().prepare_wait();
        if !quiet {
            self.asleep.retract(&self.sleepers);
        }
        quiet
    }

    /// `Core::take_turn` of the other context.
    fn take_turn(&self, budget: u32) {
        let mut done = 0;
        loop {
            let taken = self.endpoint.lock().unwrap().poll(budget - done);
            done += taken;
            for _ in 0..taken {
                self.mailbox.fetch_add(1, Ordering::Relaxed);
                self.ring();
            }
            if !self.sleepers.any() || self.endpoint.lock().unwrap().prepare_wait() {
                return;
            }
            if done >= budget {
                break;
            }
        }
        self.ring();
    }

    /// Checks, when all threads have ended, that the context does not sleep on work.
    fn must_not_sleep_on_work(&self) {
        let (messages, readable) = {
            let endpoint = self.endpoint.lock().unwrap();
            (endpoint.messages, endpoint.readable)
        };
        let woken = self.rings.load(Ordering::Relaxed) > 0 || readable;
        let work = self.mailbox.load(Ordering::Relaxed) + messages;
        assert!(work == 0 || woken, "asleep with {work} messages, and nobody rang");
    }
}

#[test]
fn what_is_put_into_a_mailbox_wakes_its_context() {
    check(|| {
        let shared = Arc::new(Shared::default());
        let other = shared.clone();
        let filler = thread::spawn(move || {
            other.mailbox.fetch_add(1, Ordering::Relaxed);
            other.ring();
        });
        let sleeps = shared.prepare_wait();
        filler.join().unwrap();
        if sleeps {
            shared.must_not_sleep_on_work();
        } else {
            assert!(shared.mailbox.load(Ordering::Relaxed) > 0, "awake for nothing");
        }
    });
}

#[test]
fn a_poll_by_another_context_does_not_end_a_sleep_for_good() {
    check(|| {
        let shared = Arc::new(Shared::default());
        let (peer, poller) = (shared.clone(), shared.clone());
        let peer = thread::spawn(move || peer.endpoint.lock().unwrap().arrive());
        let poller = thread::spawn(move || poller.take_turn(4));
        let sleeps = shared.prepare_wait();
        peer.join().unwrap();
        poller.join().unwrap();
        if sleeps {
            shared.must_not_sleep_on_work();
        }
    });
}

/// It has had enough and does not come back.
#[test]
fn a_context_that_stops_with_work_left_wakes_another() {
    check(|| {
        let shared = Arc::new(Shared::default());
        shared.endpoint.lock().unwrap().arrive();
        let (peer, poller) = (shared.clone(), shared.clone());
        let peer = thread::spawn(move || peer.endpoint.lock().unwrap().arrive());
        let poller = thread::spawn(move || poller.take_turn(1));
        let sleeps = shared.prepare_wait();
        peer.join().unwrap();
        poller.join().unwrap();
        if sleeps {
            shared.must_not_sleep_on_work();
        }
    });
}

#[test]
fn an_ended_sleep_is_not_counted() {
    check(|| {
        let shared = Arc::new(Shared::default());
        let other = shared.clone();
        let second = thread::spawn(move || {
            let own = Sleeper::default();
            own.announce(&other.sleepers);
            own.announce(&other.sleepers);
            assert!(own.retract(&other.sleepers) && !own.retract(&other.sleepers));
        });
        shared.asleep.announce(&shared.sleepers);
        assert!(shared.sleepers.any());
        second.join().unwrap();
        assert!(shared.asleep.retract(&shared.sleepers));
        assert!(!shared.sleepers.any() && !shared.asleep.must_ring());
    });
}
