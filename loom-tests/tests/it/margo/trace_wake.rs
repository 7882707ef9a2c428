//! Can the thread that writes records sleep on a record, or end before it has taken all of them?

use loom::sync::atomic::{AtomicU32, Ordering};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use margo_loom_tests::check;

#[path = "../../../../src/observe/wake.rs"]
mod wake;

use wake::Wake;

/// The queue is weaker than the real one, which is a channel: so it is the fences that must hold.
/// The token is that of `std::thread::park`.
#[derive(Default)]
struct Shared {
    wake: Wake,
    queue: AtomicU32,
    token: Mutex<bool>,
    unparked: Condvar,
}

impl Shared {
    fn unpark(&self) {
        *self.token.lock().unwrap() = true;
        self.unparked.notify_one();
    }

    fn park(&self) {
        let mut token = self.token.lock().unwrap();
        while !*token {
            token = self.unparked.wait(token).unwrap();
        }
        *token = false;
    }

    /// A sleep whose time is over; a token that has come is taken, too.
    fn gather(&self) {
        *self.token.lock().unwrap() = false;
    }

    /// `Sender::send`.
    fn send(&self) {
        self.queue.fetch_add(1, Ordering::Relaxed);
        if self.wake.must_unpark() {
            self.unpark();
        }
    }

    /// `Sender::close`.
    fn close(&self) {
        self.wake.close();
        self.unpark();
    }

    /// The thread until its end; how many records it has taken.
    fn run(&self, mut on_take: impl FnMut(u32)) -> u32 {
        let mut taken = 0;
        let take = || {
            let records = self.queue.swap(0, Ordering::Relaxed);
            taken += records;
            on_take(taken);
            records > 0
        };
        self.wake.run(take, || self.gather(), || self.park());
        taken
    }
}

/// The writer takes a record before anybody closes. The closer here waits for the record first, so
/// a writer that sleeps on it hangs the model.
#[test]
fn a_record_is_taken_although_nobody_closes() {
    check(|| {
        let shared = Arc::new(Shared::default());
        let (writer, sender) = (shared.clone(), shared.clone());
        let all = Arc::new((Mutex::new(false), Condvar::new()));
        let tell = all.clone();
        let writer = thread::spawn(move || {
            writer.run(|taken| {
                if taken == 1 {
                    *tell.0.lock().unwrap() = true;
                    tell.1.notify_one();
                }
            })
        });
        let sender = thread::spawn(move || sender.send());
        let mut is_taken = all.0.lock().unwrap();
        while !*is_taken {
            is_taken = all.1.wait(is_taken).unwrap();
        }
        drop(is_taken);
        sender.join().unwrap();
        shared.close();
        assert_eq!(writer.join().unwrap(), 1);
    });
}

/// Two senders at a time: one of them wakes the writer for both.
#[test]
fn records_of_several_are_all_taken() {
    check(|| {
        let shared = Arc::new(Shared::default());
        let (first, second) = (shared.clone(), shared.clone());
        let all = Arc::new((Mutex::new(false), Condvar::new()));
        let seen = all.clone();
        let senders = [
            thread::spawn(move || first.send()),
            thread::spawn(move || {
                second.send();
                let mut is_taken = seen.0.lock().unwrap();
                while !*is_taken {
                    is_taken = seen.1.wait(is_taken).unwrap();
                }
                drop(is_taken);
                second.close();
            }),
        ];
        let taken = shared.run(|taken| {
            if taken == 2 {
                *all.0.lock().unwrap() = true;
                all.1.notify_one();
            }
        });
        assert_eq!(taken, 2);
        senders.into_iter().for_each(|sender| sender.join().unwrap());
    });
}

#[test]
fn what_was_handed_over_before_the_end_is_taken() {
    check(|| {
        let shared = Arc::new(Shared::default());
        let other = shared.clone();
        let sender = thread::spawn(move || {
            other.send();
            other.close();
        });
        assert_eq!(shared.run(|_| ()), 1);
        sender.join().unwrap();
    });
}
