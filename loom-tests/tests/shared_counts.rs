//! Is a value that several own dropped once, after all that was done with it, and its memory freed
//! once, after that?
#![cfg(loom)]

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use na::loom_exports::counts::{Counts, Left};

/// A value with its counts; the model reports accesses that are not ordered.
struct Node {
    counts: Counts,
    value: UnsafeCell<Value>,
    frees: UnsafeCell<u32>,
}

struct Value {
    reads: u32,
    drops: u32,
}

impl Node {
    fn new(owners: u32) -> Arc<Self> {
        let (counts, value) = (Counts::new(owners), UnsafeCell::new(Value { reads: 0, drops: 0 }));
        Arc::new(Self { counts, value, frees: UnsafeCell::new(0) })
    }

    /// For owners.
    fn read(&self) {
        // SAFETY: read only, and the model reports a writer meanwhile.
        self.value.with(|value| assert_eq!(unsafe { (*value).drops }, 0, "used after its end"));
    }

    fn free(&self) {
        // SAFETY: the model reports any other access meanwhile.
        self.frees.with_mut(|frees| unsafe { *frees += 1 });
    }

    /// An owner lets go.
    fn release(&self) {
        let left = self.counts.release();
        if left == Left::Others {
            return;
        }
        // SAFETY: the model reports any other access meanwhile.
        self.value.with_mut(|value| unsafe { (*value).drops += 1 });
        if left == Left::Nobody || self.counts.forget_one() {
            self.free();
        }
    }

    fn forget(&self) {
        if self.counts.forget_one() {
            self.free();
        }
    }

    /// The only owner changes the value.
    fn change(&self) -> bool {
        let is_sole = self.counts.is_sole();
        if is_sole {
            // SAFETY: the model reports any other access meanwhile.
            self.value.with_mut(|value| unsafe { (*value).reads += 1 });
        }
        is_sole
    }

    /// After all threads: it has ended as it should.
    fn check(&self) {
        // SAFETY: the other threads are gone.
        self.value.with(|value| assert_eq!(unsafe { (*value).drops }, 1));
        // SAFETY: the same.
        self.frees.with(|frees| assert_eq!(unsafe { *frees }, 1));
    }
}

#[test]
fn two_owners_let_go() {
    loom::model(|| {
        let node = Node::new(2);
        let other = node.clone();
        let thread = thread::spawn(move || {
            other.read();
            other.release();
        });
        node.read();
        node.release();
        thread.join().unwrap();
        node.check();
    });
}

#[test]
fn an_owner_is_added_while_another_lets_go() {
    loom::model(|| {
        let node = Node::new(2);
        let other = node.clone();
        let thread = thread::spawn(move || {
            other.counts.add_one();
            other.read();
            other.release();
            other.release();
        });
        node.read();
        node.release();
        thread.join().unwrap();
        node.check();
    });
}

#[test]
fn who_is_alone_changes_what_others_have_read() {
    loom::model(|| {
        let node = Node::new(2);
        let other = node.clone();
        let thread = thread::spawn(move || {
            other.read();
            other.release();
        });
        node.change();
        node.release();
        thread.join().unwrap();
        node.check();
    });
}

#[test]
fn who_looks_on_joins_or_finds_it_ended() {
    loom::model(|| {
        let node = Node::new(1);
        node.counts.look_on();
        let other = node.clone();
        let thread = thread::spawn(move || {
            if other.counts.join() {
                other.read();
                other.release();
            }
            other.forget();
        });
        node.change();
        node.release();
        thread.join().unwrap();
        node.check();
    });
}

#[test]
fn an_owner_becomes_an_onlooker_and_one_again() {
    loom::model(|| {
        let node = Node::new(2);
        let other = node.clone();
        let thread = thread::spawn(move || {
            other.counts.look_on();
            other.read();
            other.release();
            if other.counts.join() {
                other.read();
                other.release();
            }
            other.forget();
        });
        // Neither count alone says that nobody else can have it.
        node.change();
        node.release();
        thread.join().unwrap();
        node.check();
    });
}

#[test]
fn two_look_on_when_it_ends() {
    loom::model(|| {
        let node = Node::new(1);
        node.counts.look_on();
        node.counts.look_on();
        let threads = [node.clone(), node.clone()].map(|node| thread::spawn(move || node.forget()));
        node.release();
        for thread in threads {
            thread.join().unwrap();
        }
        node.check();
    });
}
