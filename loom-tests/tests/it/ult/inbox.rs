//! Can the inbox lose a node, hand one out twice, or mix up the order of one sender?

use std::ptr::NonNull;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::Ordering::{Relaxed, SeqCst};
use loom::sync::atomic::{AtomicPtr, fence};
use loom::thread;
use margo_loom_tests::check;
use ult::loom_exports::{Inbox, Linked, ParkMode, ParkWord};

struct Node {
    link: AtomicPtr<Node>,
    value: UnsafeCell<u32>,
}

// SAFETY: `link` is one field, written by the inbox only.
unsafe impl Linked for Node {
    fn link(&self) -> &AtomicPtr<Self> {
        &self.link
    }
}

fn push(inbox: &Inbox<Node>, value: u32) -> bool {
    let node = Box::new(Node { link: AtomicPtr::default(), value: UnsafeCell::new(0) });
    // SAFETY: checked by loom.
    node.value.with_mut(|place| unsafe { *place = value });
    // SAFETY:
    // - fresh, hence in no queue;
    // - leaked until `take` frees it.
    let pushed = unsafe { inbox.push(NonNull::from(Box::leak(node))) };
    pushed.expect("nobody closes it")
}

fn take(inbox: &Inbox<Node>, seen: &mut Vec<u32>) {
    for node in inbox.take_all() {
        // SAFETY: leaked by `push`, taken once.
        let node = unsafe { Box::from_raw(node.as_ptr()) };
        // SAFETY: checked by loom.
        seen.push(node.value.with(|value| unsafe { *value }));
    }
}

#[test]
fn every_node_comes_out_once_and_in_order() {
    check(|| {
        let inbox = Arc::new(Inbox::new());
        let senders = [10, 20].map(|base| {
            let inbox = inbox.clone();
            thread::spawn(move || {
                push(&inbox, base);
                push(&inbox, base + 1);
            })
        });
        let mut seen = Vec::new();
        take(&inbox, &mut seen);
        take(&inbox, &mut seen);
        senders.into_iter().for_each(|sender| sender.join().unwrap());
        take(&inbox, &mut seen);
        for base in [10, 20] {
            let of_one: Vec<u32> =
                seen.iter().copied().filter(|value| value / 10 == base / 10).collect();
            assert_eq!(of_one, [base, base + 1]);
        }
    });
}

/// Two senders, of which only the one that found the inbox empty looks at the park word, and an
/// owner that sleeps when it sees nothing. loom reports a deadlock if it sleeps forever.
#[test]
fn owner_is_woken_by_the_first_sender() {
    check(|| {
        let shared = Arc::new((Inbox::new(), ParkWord::new()));
        let senders = [1, 2].map(|value| {
            let shared = shared.clone();
            thread::spawn(move || {
                if push(&shared.0, value) {
                    fence(SeqCst);
                    if shared.1.looks_asleep() && shared.1.notify().is_some() {
                        shared.1.wake_futex();
                    }
                }
            })
        });
        let mut seen = Vec::new();
        loop {
            take(&shared.0, &mut seen);
            if seen.len() == 2 {
                break;
            }
            if shared.1.begin(ParkMode::Futex) {
                if shared.0.is_empty() {
                    shared.1.sleep_futex(None);
                }
                shared.1.end();
            }
        }
        senders.into_iter().for_each(|sender| sender.join().unwrap());
    });
}

/// A release sequence: the owner sees what an earlier sender wrote, though it reads the later one.
#[test]
fn link_is_free_after_taking() {
    check(|| {
        let inbox = Arc::new(Inbox::new());
        let sender = {
            let inbox = inbox.clone();
            thread::spawn(move || push(&inbox, 1))
        };
        push(&inbox, 2);
        let mut seen = Vec::new();
        take(&inbox, &mut seen);
        assert!(seen.contains(&2));
        // The same memory may go straight back.
        let node =
            Box::leak(Box::new(Node { link: AtomicPtr::default(), value: UnsafeCell::new(3) }));
        node.link.store(std::ptr::dangling_mut(), Relaxed);
        // SAFETY: fresh, and leaked until taken.
        unsafe { inbox.push(NonNull::from(node)) }.unwrap();
        sender.join().unwrap();
        take(&inbox, &mut seen);
        seen.sort_unstable();
        assert_eq!(seen, [1, 2, 3]);
    });
}
