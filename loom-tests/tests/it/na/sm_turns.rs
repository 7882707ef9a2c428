//! Is a page that both sides write in turn never written while it is read: by the two sides, and by
//! the two threads of one side whose peer announces what it likes?
#![allow(clippy::multiple_unsafe_ops_per_block, reason = "a model")]

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;
use margo_loom_tests::check;
use na_sm::link::turns::PageOwners;

/// One page, as a cell: an access that nothing orders is reported.
struct Page(UnsafeCell<u32>);

// SAFETY: the model reports any access that is not ordered.
unsafe impl Sync for Page {}

impl Page {
    fn new() -> Self {
        Self(UnsafeCell::new(0))
    }

    fn write(&self, value: u32) {
        // SAFETY: the model reports any other access meanwhile.
        self.0.with_mut(|place| unsafe { *place = value });
    }

    fn read(&self) -> u32 {
        // SAFETY: the model reports a write meanwhile.
        self.0.with(|place| unsafe { *place })
    }
}

/// Sends `value` in page 0, which is ours. The record is a count of messages, in place of the ring,
/// which has a model of its own.
fn send(turns: &PageOwners, page: &Page, records: &AtomicU32, value: u32) {
    assert_eq!(turns.ours(), Some(0));
    page.write(value);
    turns.pass(0);
    records.fetch_add(1, Ordering::Release);
}

fn receive(turns: &PageOwners, page: &Page, records: &AtomicU32, count: u32) -> u32 {
    while records.load(Ordering::Acquire) < count {
        thread::yield_now();
    }
    assert_eq!(turns.theirs(0), Some(0));
    let value = page.read();
    turns.take(0);
    value
}

#[test]
fn requests_and_answers_pass_one_page_to_and_fro() {
    check(|| {
        let shared = Arc::new((Page::new(), AtomicU32::new(0), AtomicU32::new(0)));
        let theirs = shared.clone();
        let target = thread::spawn(move || {
            let (page, requests, answers) = &*theirs;
            let turns = PageOwners::new(false);
            for round in 1..3 {
                let value = receive(&turns, page, requests, round);
                send(&turns, page, answers, value + 100);
            }
        });
        let (page, requests, answers) = &*shared;
        let turns = PageOwners::new(true);
        for round in 1..3 {
            send(&turns, page, requests, round);
            assert_eq!(receive(&turns, page, answers, round), round + 100);
        }
        target.join().unwrap();
    });
}

/// The peer is not in the model: it announces page 0 again and again, also when it does not have
/// it.
#[test]
fn a_page_is_not_read_while_it_is_written_whatever_the_peer_says() {
    check(|| {
        let shared = Arc::new((PageOwners::new(true), Page::new()));
        let receiving = shared.clone();
        let receiver = thread::spawn(move || {
            let (turns, page) = &*receiving;
            let mut came = 0;
            for _ in 0..3 {
                if turns.theirs(0).is_some() {
                    let value = page.read();
                    assert!(value > came, "what was taken came again");
                    came = value;
                    turns.take(0);
                }
                thread::yield_now();
            }
        });
        let (turns, page) = &*shared;
        for value in 1..4 {
            if turns.ours() == Some(0) {
                page.write(value);
                turns.pass(0);
            }
            thread::yield_now();
        }
        receiver.join().unwrap();
    });
}
