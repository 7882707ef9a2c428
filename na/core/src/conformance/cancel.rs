//! Cases about cancel: every operation, in every state, ends exactly once.
//!
//! `Node::poll` fails a case when an operation completes twice; that each completes at all is what
//! the cases wait for.

use super::Case;
use super::Random;
use super::node::{Node, contents, drive, finish, greet, pattern};
use super::told;
use crate::{Access, Addr, Completion, Error, LocalMem, OpId, RemoteMem, Transfer};

fn part(local: &LocalMem, remote: &RemoteMem, len: usize) -> Transfer {
    Transfer {
        local: local.clone(),
        local_offset: 0,
        remote: remote.clone(),
        remote_offset: 0,
        len: len as u64,
    }
}

/// One operation of each kind with `to`.
fn one_of_each(node: &Node, to: &Addr, local: &LocalMem, remote: &RemoteMem) -> Vec<OpId> {
    let len = local.len() as usize;
    vec![
        node.send_unexpected(to, 1, b"unexpected"),
        node.send_expected(to, 1, b"expected"),
        node.recv_unexpected(),
        node.recv_expected(to, 1),
        node.get(to, part(local, remote, len)),
        node.put(to, part(local, remote, len)),
    ]
}

fn ended_by_cancel(result: &Result<(), Error>) -> bool {
    matches!(result, Ok(()) | Err(Error::Canceled))
}

/// Canceled before the peer has even been greeted; the connection is then of use to others.
pub fn cancel_before_the_connection_ends_once(case: &Case<'_>) {
    let (target, origin) = Node::pair(case);
    let to_target = origin.addr_of(&target);
    let remote = target.register(vec![1; 4096], Access::ReadWrite);
    let described = target.described_to(&origin, &remote);
    let local = origin.register(vec![2; 4096], Access::ReadWrite);
    let ops = one_of_each(&origin, &to_target, &local, &described);
    let counted = told::counts(&origin, to_target.uri());
    for op in &ops {
        origin.endpoint.cancel(*op);
        origin.endpoint.cancel(*op);
    }
    // The target does nothing: a cancel needs nobody's help.
    finish(&[&origin], "what was canceled before the connection", &ops);
    assert!(told::counts(&origin, to_target.uri()) >= counted, "counts went back: {counted:?}");
    for op in ops {
        let result = origin.outcome(op);
        assert!(ended_by_cancel(&result), "{result:?}");
    }
    let (to_target, _) = greet(&origin, &target);
    let got = origin.get(&to_target, part(&local, &described, 4096));
    finish(&[&origin, &target], "a get after the cancel", &[got]);
    origin.succeeded(got);
}

/// Canceled while the owner of the memory does nothing: receives and messages end at once,
/// transfers when the owner looks.
pub fn cancel_while_the_owner_is_idle_ends_once(case: &Case<'_>) {
    const LEN: usize = 1 << 20;
    let (target, origin) = Node::pair(case);
    let (to_target, _) = greet(&origin, &target);
    let remote = target.register(pattern(1, LEN), Access::ReadWrite);
    let described = target.described_to(&origin, &remote);
    let locals: Vec<_> =
        (0..150).map(|_| origin.register(vec![2; LEN], Access::ReadWrite)).collect();
    // More than any transport has in flight, so some have not been asked for.
    let mut ops = Vec::new();
    for local in &locals {
        ops.push(origin.get(&to_target, part(local, &described, LEN)));
    }
    let sink = origin.register(pattern(1, LEN), Access::ReadOnly);
    ops.extend((0..150).map(|_| origin.put(&to_target, part(&sink, &described, LEN))));
    for _ in 0..100 {
        origin.poll();
    }
    let waiting = [origin.recv_expected(&to_target, 5), origin.recv_unexpected()];
    // From the last to the first, and each twice.
    for op in waiting.iter().chain(ops.iter().rev()) {
        origin.endpoint.cancel(*op);
        origin.endpoint.cancel(*op);
    }
    finish(&[&origin], "canceled receives", &waiting);
    finish(&[&origin, &target], "canceled transfers", &ops);
    for op in ops.into_iter().chain(waiting) {
        let result = origin.outcome(op);
        assert!(ended_by_cancel(&result), "{result:?}");
    }
    // The memory is ours again.
    for local in locals {
        assert!(local.write_at(0, &[9; LEN]));
    }
    greet(&origin, &target);
}

/// Once a canceled put has ended, its memory is its owner's alone: the peer gets nothing that was
/// written there afterwards, though much was on the way.
pub fn a_canceled_put_reads_no_more(case: &Case<'_>) {
    // More than any transport and system takes at once.
    const LEN: usize = 24 << 20;
    const LATE: u8 = 0xee;
    let (target, origin) = Node::pair(case);
    let (to_target, _) = greet(&origin, &target);
    let remote = target.register(vec![1; LEN], Access::ReadWrite);
    let described = target.described_to(&origin, &remote);
    let local = origin.register(vec![2; LEN], Access::ReadWrite);
    let put = origin.put(&to_target, part(&local, &described, LEN));
    for _ in 0..100 {
        origin.poll();
    }
    origin.endpoint.cancel(put);
    // The target looks only if its help is needed.
    for _ in 0..10 {
        origin.poll();
    }
    finish(&[&origin, &target], "a canceled put", &[put]);
    assert!(ended_by_cancel(&origin.outcome(put)));
    assert!(local.write_at(0, &vec![LATE; LEN]));
    // Behind whatever is still on the way.
    let got = origin.get(&to_target, part(&local, &described, LEN));
    finish(&[&origin, &target], "a get after the put", &[got]);
    origin.succeeded(got);
    let bytes = contents(&local);
    // What a canceled put leaves behind is not said, except that it is nothing of that.
    let wrong = bytes.chunks(512).position(|bytes| bytes.iter().all(|byte| *byte == LATE));
    assert_eq!(wrong, None, "the peer was sent what was written after the end");
}

/// Answers whose receives were canceled are thrown away, and hold up no later one, however many
/// they are.
pub fn late_answers_do_not_hold_up_later_ones(case: &Case<'_>) {
    // More than any transport holds back.
    const COUNT: u32 = 500;
    let (target, origin) = Node::pair(case);
    let (to_target, to_origin) = greet(&origin, &target);
    let receives: Vec<_> = (0..COUNT).map(|tag| origin.recv_expected(&to_target, tag)).collect();
    receives.iter().for_each(|op| origin.endpoint.cancel(*op));
    finish(&[&origin, &target], "canceled receives", &receives);
    for op in receives {
        let error = origin.error(op);
        assert!(matches!(error, Error::Canceled), "{error}");
    }
    let bytes = pattern(1, origin.endpoint.limits().expected_bytes_max);
    let last = origin.recv_expected(&to_target, COUNT);
    let sends: Vec<_> =
        (0..=COUNT).map(|tag| target.send_expected(&to_origin, tag, &bytes)).collect();
    finish(&[&origin, &target], "the answer that is awaited", &[last]);
    assert!(origin.received(last).1 == bytes);
    finish(&[&target, &origin], "the sends", &sends);
    sends.into_iter().for_each(|op| target.succeeded(op));
}

/// Cancel and close together still make one end of each operation.
pub fn cancel_and_close_end_everything_once(case: &Case<'_>) {
    for (polls_before, polls_between) in [(0, 0), (0, 1), (5, 0), (50, 3)] {
        let (target, origin) = Node::pair(case);
        let (to_target, _) = greet(&origin, &target);
        let remote = target.register(vec![1; 1 << 20], Access::ReadWrite);
        let described = target.described_to(&origin, &remote);
        let local = origin.register(vec![2; 1 << 20], Access::ReadWrite);
        let mut ops = Vec::new();
        for _ in 0..100 {
            ops.extend(one_of_each(&origin, &to_target, &local, &described));
        }
        for _ in 0..polls_before {
            origin.poll();
            target.poll();
        }
        ops.iter().step_by(2).for_each(|op| origin.endpoint.cancel(*op));
        for _ in 0..polls_between {
            origin.poll();
        }
        origin.endpoint.close();
        ops.iter().for_each(|op| origin.endpoint.cancel(*op));
        finish(&[&origin], "what was canceled and closed", &ops);
        for op in ops {
            let result = origin.outcome(op);
            let fine = ended_by_cancel(&result) || matches!(result, Err(Error::Closed));
            assert!(fine, "{result:?}");
        }
        assert_eq!(origin.poll(), 0, "nothing is left to report");
    }
}

/// Messages whose receives were given up, as answers after a deadline, are thrown away and hold up
/// nothing else of their peer. A receive that is posted again gets them.
pub fn late_messages_hold_up_nobody(case: &Case<'_>) {
    const TAGS: std::ops::Range<u32> = 100..164;
    let (target, origin) = Node::pair(case);
    let (to_target, to_origin) = greet(&origin, &target);
    let late: Vec<_> = TAGS.map(|tag| origin.recv_expected(&to_target, tag)).collect();
    late.iter().for_each(|op| origin.endpoint.cancel(*op));
    finish(&[&origin], "receives that are given up", &late);
    for op in late {
        assert!(matches!(origin.error(op), Error::Canceled));
    }
    let again = origin.recv_expected(&to_target, TAGS.start);
    let bytes = pattern(1, target.endpoint.limits().expected_bytes_max);
    let sends: Vec<_> = TAGS.map(|tag| target.send_expected(&to_origin, tag, &bytes)).collect();
    finish(&[&target, &origin], "late messages", &sends);
    sends.into_iter().for_each(|op| target.succeeded(op));
    finish(&[&origin, &target], "the receive that was posted again", &[again]);
    assert!(origin.received(again).1 == bytes);
    greet(&origin, &target);
}

/// A random walk: two nodes start operations of every kind, cancel some, poll now and then, and
/// close in the end. Whatever the order, each operation ends once, as what it was.
///
/// `MARGO_STRESS_SEEDS=100..200` in the environment walks other ways.
pub fn operations_end_once_whatever_happens(case: &Case<'_>) {
    let asked = std::env::var("MARGO_STRESS_SEEDS").ok().and_then(|text| {
        let (start, end) = text.split_once("..")?;
        Some(start.parse().ok()?..end.parse().ok()?)
    });
    for seed in asked.unwrap_or(0..4) {
        walk(case, seed);
    }
}

/// The kind of operation that was started, which its completion must match.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Started {
    Send,
    Recv,
    Transfer,
}

fn walk(case: &Case<'_>, seed: u64) {
    const LEN: usize = 100_000;
    let mut random = Random::new(seed);
    let (target, origin) = Node::pair(case);
    let (to_target, to_origin) = greet(&origin, &target);
    let nodes = [&origin, &target];
    let peers = [&to_target, &to_origin];
    let memories = nodes.map(|node| node.register(pattern(1, LEN), Access::ReadWrite));
    let described =
        [target.described_to(&origin, &memories[1]), origin.described_to(&target, &memories[0])];
    let mut started: [Vec<(OpId, Started)>; 2] = [Vec::new(), Vec::new()];
    for _ in 0..3000 {
        let side = random.below(2);
        let (node, peer) = (nodes[side], peers[side]);
        let tag = random.below(4) as u32;
        let limits = node.endpoint.limits();
        let longest = match random.below(4) {
            0 => limits.expected_bytes_max.min(limits.unexpected_bytes_max),
            _ => 64,
        };
        let len = random.below(longest + 1);
        let bytes = pattern(1, len);
        let transfer = || part(&memories[side], &described[side], LEN);
        let op = match random.below(12) {
            0 => (node.send_unexpected(peer, tag, &bytes), Started::Send),
            1 => (node.send_expected(peer, tag, &bytes), Started::Send),
            2 => (node.recv_unexpected(), Started::Recv),
            3 => (node.recv_expected(peer, tag), Started::Recv),
            4 => (node.get(peer, transfer()), Started::Transfer),
            5 => (node.put(peer, transfer()), Started::Transfer),
            6..=8 if !started[side].is_empty() => {
                // Mostly one of the latest.
                let back = 1 + random.below(started[side].len().min(20));
                let at = started[side].len() - back;
                node.endpoint.cancel(started[side][at].0);
                continue;
            }
            _ => {
                node.poll();
                continue;
            }
        };
        started[side].push(op);
    }
    // What can end does so; receives whose message never comes, and sends that nobody receives, are
    // ended by the close.
    for (node, started) in nodes.iter().zip(&started) {
        started.iter().for_each(|(op, _)| node.endpoint.cancel(*op));
    }
    let ends = |side: usize| started[side].iter().map(|(op, _)| *op).collect::<Vec<_>>();
    finish(&[&origin, &target], "what was canceled at the origin", &ends(0));
    finish(&[&target, &origin], "what was canceled at the target", &ends(1));
    drive(&nodes, "a last poll", || true);
    for (side, node) in nodes.iter().enumerate() {
        for (op, what) in &started[side] {
            let (is, result) = match node.take(*op) {
                Completion::Send { result, .. } => (Started::Send, result),
                Completion::Recv { result, .. } => (Started::Recv, result.map(drop)),
                Completion::Transfer { result, .. } => (Started::Transfer, result),
            };
            assert_eq!(is, *what, "seed {seed}");
            assert!(ended_by_cancel(&result), "seed {seed}: {what:?} {result:?}");
        }
        node.endpoint.close();
        assert_eq!(node.poll(), 0, "seed {seed}: more ends than operations");
    }
}
