//! Cases that check that endpoints leave nothing behind in their process.

use super::Case;
use super::node::{Node, finish, greet};
use super::peers::{is_child, transfer};
use super::process;
use super::process::ChildNode;
use crate::Access;

/// The resources of the system that a process holds.
#[derive(Debug, PartialEq, Eq)]
struct Holdings {
    descriptors: usize,
    /// Mappings of memory that is shared with others.
    shared_mappings: usize,
    threads: usize,
}

impl Holdings {
    fn now() -> Self {
        let count = |directory| std::fs::read_dir(directory).expect("own process").count();
        let maps = std::fs::read_to_string("/proc/self/maps").expect("own mappings");
        let is_shared = |line: &&str| line.split(' ').nth(1).is_some_and(|way| way.ends_with('s'));
        Self {
            descriptors: count("/proc/self/fd"),
            shared_mappings: maps.lines().filter(is_shared).count(),
            threads: count("/proc/self/task"),
        }
    }
}

fn use_endpoints(case: &Case<'_>, close: bool) {
    let (target, origin) = Node::pair(case);
    let (to_target, to_origin) = greet(&origin, &target);
    let memory = target.register(vec![0; 1 << 20], Access::ReadWrite);
    let described = target.described_to(&origin, &memory);
    let got = origin.get(&to_target, transfer(&origin, &described, 1 << 20));
    finish(&[&origin, &target], "a get", &[got]);
    // Some operations are left in flight, one of them towards nobody.
    origin.recv_expected(&to_target, 7);
    target.send_unexpected(&to_origin, 7, b"nobody receives this");
    origin.put(&to_target, transfer(&origin, &described, 1 << 20));
    let left = Node::open(case, true);
    let to_left = origin.addr_of(&left);
    drop(left);
    // May be refused at once.
    let buf = origin.message(b"to nobody");
    drop(origin.endpoint.send_unexpected(origin.op(), &to_left, crate::Tag(1), buf));
    if close {
        target.endpoint.close();
        origin.endpoint.close();
    }
}

/// The child's part.
pub(super) fn play(case: &Case<'_>) {
    let before = Holdings::now();
    for close in [true, false, true] {
        use_endpoints(case, close);
        assert_eq!(Holdings::now(), before, "left behind after close: {close}");
    }
    process::say("all given back");
}

/// Opening, using and dropping endpoints leaves no descriptor, shared mapping or thread. In a
/// process of its own, since other tests have theirs.
pub fn nothing_is_left_behind(case: &Case<'_>) {
    if is_child(case) {
        return;
    }
    let mut child = ChildNode::start(case, "leftovers", "");
    assert_eq!(child.line(), "all given back");
}
