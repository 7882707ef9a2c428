//! Is a value with several owners dropped once, after all its uses, and is its memory freed once,
//! after that?

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use prim::shared::counts::{Counts, Left};

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

/// A race among so many owners and onlookers: one of them is a thread that does `other` while this
/// one does `own`.
fn race(
    (owners, onlookers): (u32, u32),
    other: impl Fn(&Node) + Copy + Send + Sync + 'static,
    own: impl Fn(&Node) + Copy + Send + Sync + 'static,
) {
    loom::model(move || {
        let node = Node::new(owners);
        (0..onlookers).for_each(|_| node.counts.add_weak());
        let there = node.clone();
        let thread = thread::spawn(move || other(&there));
        own(&node);
        thread.join().unwrap();
        node.check();
    });
}

fn read_and_release(node: &Node) {
    node.read();
    node.release();
}

fn change_and_release(node: &Node) {
    node.change();
    node.release();
}

/// For an onlooker.
fn join_and_forget(node: &Node) {
    if node.counts.join() {
        read_and_release(node);
    }
    node.forget();
}

#[test]
fn two_owners_let_go() {
    race((2, 0), read_and_release, read_and_release);
}

#[test]
fn an_owner_is_added_while_another_lets_go() {
    let add = |node: &Node| {
        node.counts.add_one();
        read_and_release(node);
        node.release();
    };
    race((2, 0), add, read_and_release);
}

#[test]
fn who_is_alone_changes_what_others_have_read() {
    race((2, 0), read_and_release, change_and_release);
}

#[test]
fn who_looks_on_joins_or_finds_it_ended() {
    race((1, 1), join_and_forget, change_and_release);
}

#[test]
fn an_owner_becomes_an_onlooker_and_one_again() {
    // Neither count alone says that nobody else can have it.
    let change_sides = |node: &Node| {
        node.counts.add_weak();
        read_and_release(node);
        join_and_forget(node);
    };
    race((2, 0), change_sides, change_and_release);
}

#[test]
fn the_last_of_two_who_look_on_frees_the_memory() {
    let two = |node: &Node| {
        node.release();
        node.forget();
    };
    race((1, 2), Node::forget, two);
}

#[test]
fn who_is_alone_adds_one_after_another_let_go() {
    race((2, 0), read_and_release, |node| {
        // By a store if the other has let go, beside it if not.
        node.counts.add_one_apart();
        change_and_release(node);
        change_and_release(node);
    });
}

#[test]
fn one_is_added_while_somebody_who_looks_on_joins() {
    race((1, 1), join_and_forget, |node| {
        node.counts.add_one_apart();
        read_and_release(node);
        node.release();
    });
}
