//! An xstream that leaves closes its inbox. Can a unit be lost in it, or be in two places?

use std::ptr::NonNull;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::AtomicPtr;
use loom::thread;
use margo_loom_tests::check;
use ult::loom_exports::{Closed, Inbox, Linked};

struct Node {
    link: AtomicPtr<Node>,
    /// Written by each holder of the node, so that loom reports two holders at a time.
    holder: UnsafeCell<u32>,
}

// SAFETY: `link` is one field, written by the inbox only.
unsafe impl Linked for Node {
    fn link(&self) -> &AtomicPtr<Self> {
        &self.link
    }
}

fn node() -> NonNull<Node> {
    let node = Box::new(Node { link: AtomicPtr::default(), holder: UnsafeCell::new(0) });
    NonNull::from(Box::leak(node))
}

/// `true`: the owner has it or will; `false`: it is still the caller's.
fn push(inbox: &Inbox<Node>, node: NonNull<Node>) -> bool {
    // SAFETY:
    // - in no queue: fresh, or refused before;
    // - leaked until `dispose`.
    match unsafe { inbox.push(node) } {
        Ok(_) => true,
        Err(Closed) => false,
    }
}

fn dispose(node: NonNull<Node>) {
    // SAFETY: leaked by `node`, and disposed of by the one who has it.
    let node = unsafe { Box::from_raw(node.as_ptr()) };
    // SAFETY: checked by loom.
    node.holder.with_mut(|holder| unsafe { *holder += 1 });
}

/// Does the work of an xstream that may leave: takes the nodes that are there until it can close.
fn leave(inbox: &Inbox<Node>) -> usize {
    let mut taken = 0;
    while !inbox.close() {
        for node in inbox.take_all() {
            dispose(node);
            taken += 1;
        }
    }
    taken
}

#[test]
fn a_node_is_taken_or_refused() {
    check(|| {
        let inbox = Arc::new(Inbox::new());
        let senders = [0, 1].map(|_| {
            let inbox = inbox.clone();
            thread::spawn(move || {
                let node = node();
                let is_sent = push(&inbox, node);
                if !is_sent {
                    dispose(node);
                }
                usize::from(is_sent)
            })
        });
        let taken = leave(&inbox);
        let sent: usize = senders.into_iter().map(|sender| sender.join().unwrap()).sum();
        assert_eq!(taken, sent);
    });
}

/// A revival opens the inbox on another thread. The new owner finds what was sent to it, and
/// nothing of before.
#[test]
fn a_revived_owner_takes_the_rest() {
    check(|| {
        let inbox = Arc::new(Inbox::new());
        let sender = {
            let inbox = inbox.clone();
            thread::spawn(move || {
                let mut refused = 0;
                for _ in 0..2 {
                    let node = node();
                    if !push(&inbox, node) {
                        dispose(node);
                        refused += 1;
                    }
                }
                refused
            })
        };
        let first = {
            let inbox = inbox.clone();
            thread::spawn(move || leave(&inbox))
        };
        let mut taken = first.join().unwrap();
        inbox.open();
        let refused = sender.join().unwrap();
        taken += inbox.take_all().map(dispose).count();
        assert_eq!(taken + refused, 2);
    });
}
