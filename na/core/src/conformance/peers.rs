//! Cases about peers that leave, die, never were, or come back; and about what we leave behind.

use std::time::Instant;

use super::messages::call;
use super::node::{Node, finish, greet, pattern};
use super::process;
use super::process::ChildNode;
use super::{Case, PATIENCE, told};
use crate::{
    Access, Addr, Completion, Error, OpId, OpenOptions, Principal, RemoteMem, Tag, Transfer,
};

pub(super) fn assert_gone(error: &Error) {
    let gone = matches!(error, Error::PeerGone { .. } | Error::Unreachable { .. });
    assert!(gone, "neither gone nor unreachable: {error}");
}

/// Sends to `to` until that fails, because the death may not have been noticed yet.
pub(super) fn send_until_it_fails(node: &Node, to: &Addr) -> Error {
    let deadline = Instant::now() + PATIENCE;
    // Not `drive`, which may sleep: the news may be had while a send is waited for.
    loop {
        assert!(Instant::now() < deadline, "sends to a peer that is gone succeed");
        let sent = node.send_unexpected(to, 1, b"still there?");
        finish(&[node], "a send to a peer that is gone", &[sent]);
        if let Err(error) = node.outcome(sent) {
            return error;
        }
        node.poll();
        std::thread::yield_now();
    }
}

/// The principal of a peer is that which the kernel reports. Bounds are kept by it, so that a crowd
/// of connections has one share.
pub fn who_is_behind_a_peer_is_what_the_kernel_says(case: &Case<'_>) {
    let target = Node::open(case, true);
    let own = target.endpoint.self_addr();
    assert_eq!(target.endpoint.principal(&own), Principal::Unknown, "we bound nothing of our own");
    let seen: Vec<Principal> = (0..2)
        .map(|_| {
            let origin = Node::open(case, false);
            let (to_target, to_origin) = greet(&origin, &target);
            let (there, here) =
                (origin.endpoint.principal(&to_target), target.endpoint.principal(&to_origin));
            assert_eq!(there, here, "all of this is one host and one user");
            here
        })
        .collect();
    assert_eq!(seen[0], seen[1], "however many connections it has");
    let scheme = own.uri().split("://").next().unwrap_or_default();
    let is_known = match seen[0] {
        Principal::User(uid) => uid == rustix::process::geteuid().as_raw(),
        Principal::Host(_) => scheme == "na+tcp" || scheme.starts_with("ucx+"),
        Principal::Member(_) | Principal::Name(_) => scheme == "na+tcp",
        Principal::Unknown => scheme == "na+sim" || scheme.starts_with("ofi+"),
    };
    assert!(is_known, "{scheme}: {}", seen[0]);
}

/// A peer that closes ends what waits for it; sending to it afterwards fails and does not hang.
pub fn a_closed_peer_is_reported(case: &Case<'_>) {
    let (target, origin) = Node::pair(case);
    let (to_target, to_origin) = greet(&origin, &target);
    let memory = target.register(vec![0; 8], Access::ReadOnly);
    let described = target.described_to(&origin, &memory);
    let waiting = origin.recv_expected(&to_target, 5);
    let unaffected = origin.recv_unexpected();
    target.endpoint.close();
    let getting = origin.get(&to_target, transfer(&origin, &described, 8));
    finish(&[&origin, &target], "operations with a closed peer", &[waiting, getting]);
    let gone = origin.error(waiting);
    assert!(matches!(gone, Error::PeerGone { .. }), "{gone}");
    assert_gone(&origin.error(getting));
    assert_gone(&send_until_it_fails(&origin, &to_target));
    assert!(!origin.is_done(unaffected), "a receive of any source waits for others");

    // The same for the side that was contacted.
    let (target, origin) = Node::pair(case);
    let (_, to_left) = greet(&origin, &target);
    assert_ne!(to_left, to_origin);
    let waiting = target.recv_expected(&to_left, 5);
    origin.endpoint.close();
    finish(&[&target, &origin], "a receive from a closed origin", &[waiting]);
    assert!(matches!(target.error(waiting), Error::PeerGone { .. }));
}

pub(super) fn transfer(node: &Node, remote: &RemoteMem, len: usize) -> Transfer {
    Transfer {
        local: node.register(vec![0; len], Access::ReadWrite),
        local_offset: 0,
        remote: remote.clone(),
        remote_offset: 0,
        len: len as u64,
    }
}

/// The address of an origin dies with it.
pub fn an_origin_that_left_cannot_be_answered(case: &Case<'_>) {
    let (target, origin) = Node::pair(case);
    let (_, to_origin) = greet(&origin, &target);
    drop(origin);
    assert_gone(&send_until_it_fails(&target, &to_origin));
    // A successor is somebody else.
    let successor = Node::open(case, false);
    let (_, to_successor) = greet(&successor, &target);
    assert_ne!(to_successor, to_origin);
    assert_gone(&send_until_it_fails(&target, &to_origin));
}

/// Messages of peers that are gone wait for their receives up to a limit. Beyond, the peer that
/// left last loses all of its own, and no other peer loses any.
pub fn what_gone_peers_left_is_bounded(case: &Case<'_>) {
    const EACH: u32 = 5;
    let mut of_target = OpenOptions::listening(true);
    // Room for the messages of one peer, with what they cost, but not of two.
    of_target.left_bytes_max = 1000;
    let Some((target, first)) = Node::pair_with(case, &of_target, &OpenOptions::default()) else {
        return;
    };
    // Greeted first: a receive of any source takes what was left.
    let origins = [first, Node::open(case, false)].map(|origin| {
        let names = greet(&origin, &target);
        (origin, names)
    });
    for (number, (origin, (to_target, to_origin))) in origins.into_iter().enumerate() {
        for tag in 0..EACH {
            origin.send_unexpected(&to_target, tag, &[number as u8; 100]);
        }
        // They are there when this is, which comes behind them.
        let last = target.recv_expected(&to_origin, 8);
        origin.send_expected(&to_target, 8, b"all sent");
        finish(&[&target, &origin], "the last message", &[last]);
        let end = target.recv_expected(&to_origin, 9);
        drop(origin);
        finish(&[&target], "the end of a peer", &[end]);
        assert_gone(&target.error(end));
    }
    let present = Node::open(case, false);
    let to_target = present.addr_of(&target);
    let receives: Vec<_> = (0..=EACH).map(|_| target.recv_unexpected()).collect();
    present.send_unexpected(&to_target, 7, b"still here");
    finish(&[&target, &present], "what is left", &receives);
    for (tag, op) in (0..EACH).zip(&receives) {
        let (arrival, bytes) = target.received(*op);
        assert_eq!((arrival.tag, bytes), (Tag(tag), vec![0; 100]));
    }
    assert_eq!(target.received(receives[EACH as usize]).1, b"still here");
}

/// Operations towards an address where nobody listens fail, naming it.
pub fn nobody_listens(case: &Case<'_>) {
    let (target, origin) = Node::pair(case);
    let to_nobody = origin.addr_of(&target);
    let memory = target.register(vec![0; 8], Access::ReadWrite);
    let described = target.described_to(&origin, &memory);
    target.endpoint.close();
    drop(target);
    let sent = origin.send_unexpected(&to_nobody, 1, b"anybody?");
    let answered = origin.send_expected(&to_nobody, 1, b"anybody?");
    let got = origin.get(&to_nobody, transfer(&origin, &described, 8));
    let put = origin.put(&to_nobody, transfer(&origin, &described, 8));
    let ops = [sent, answered, got, put];
    finish(&[&origin], "operations that reach nobody", &ops);
    for op in ops {
        let error = origin.error(op);
        let Error::Unreachable { peer, .. } = &error else { panic!("not unreachable: {error}") };
        // Or the part of it that was tried, if it is a composed one.
        assert!(to_nobody.uri().contains(&**peer), "{peer}");
        assert!(error.never_arrived());
    }
}

/// Plays the roles of the cases below.
fn play(case: &Case<'_>, role: &str, argument: &str) {
    match role {
        "stall" | "offer" => {
            let node = Node::open(case, true);
            let memory = node.register(vec![1; STALLED_LEN], Access::ReadWrite);
            process::say(node.endpoint.self_addr().uri());
            process::say(&format!("{:?}", node.endpoint.mem_to_bytes(&memory)));
            serve_one(&node);
            if role == "stall" {
                process::sleep_for_ever();
            }
            loop {
                serve_one(&node);
            }
        }
        "origin" => {
            let node = Node::open(case, false);
            let to_target = node.endpoint.lookup(argument).expect("the parent's address");
            let sent = node.send_unexpected(&to_target, 1, b"remember me");
            finish(&[&node], "the child's message", &[sent]);
            process::sleep_for_ever();
        }
        "serve" => {
            let node = match argument {
                "" => Node::open(case, true),
                uri => {
                    let open = case.reopen.expect("one of the cases about processes");
                    let endpoint = open(uri, &OpenOptions::listening(true));
                    Node::new(case, endpoint.expect("the old address"))
                }
            };
            process::say(node.endpoint.self_addr().uri());
            loop {
                serve_one(&node);
            }
        }
        "leftovers" => super::leftovers::play(case),
        "pour" => super::midway::play(case),
        "move" => super::midway::play_mover(case),
        other => panic!("unknown role {other}"),
    }
}

pub(super) const STALLED_LEN: usize = 16 << 20;

/// Answers one unexpected message with an expected one of the same tag and contents.
pub(super) fn serve_one(node: &Node) {
    let asked = node.recv_unexpected();
    finish(&[node], "a request to the child", &[asked]);
    let (arrival, bytes) = node.received(asked);
    let sent = node.send_expected(&arrival.from, arrival.tag.0, &bytes);
    finish(&[node], "the child's answer", &[sent]);
}

pub(super) fn echo(node: &Node, to: &Addr, tag: u32) {
    let answered = node.recv_expected(to, tag);
    let sent = node.send_unexpected(to, tag, b"echo");
    finish(&[node], "an echo of the child", &[sent, answered]);
    node.succeeded(sent);
    assert_eq!(node.received(answered).1, b"echo");
}

/// A child that makes no progress, with its address and its memory.
pub(super) fn stalled_child(case: &Case<'_>, node: &Node) -> (ChildNode, Addr, RemoteMem) {
    child_with_memory(case, node, "stall")
}

/// A child, with the address and the memory that it announces.
pub(super) fn child_with_memory(
    case: &Case<'_>,
    node: &Node,
    role: &str,
) -> (ChildNode, Addr, RemoteMem) {
    let mut child = ChildNode::start(case, role, "");
    let to_child = node.endpoint.lookup(&child.line()).expect("the child's address");
    let line = child.line();
    let bytes: Vec<u8> = line
        .trim_matches(['[', ']'])
        .split(", ")
        .map(|byte| byte.parse().expect("a byte"))
        .collect();
    let described = node.endpoint.mem_from_bytes(&bytes).expect("a description");
    echo(node, &to_child, 1);
    (child, to_child, described)
}

/// Starts operations of each kind that a stalled child cannot finish.
pub(super) fn pending_on(node: &Node, to_child: &Addr, described: &RemoteMem) -> Vec<OpId> {
    let mut ops = vec![node.recv_expected(to_child, 2), node.recv_expected(to_child, 3)];
    ops.push(node.get(to_child, transfer(node, described, STALLED_LEN)));
    ops.push(node.put(to_child, transfer(node, described, STALLED_LEN)));
    ops
}

/// If the process plays a child of one of these cases, plays it and says so.
pub(super) fn is_child(case: &Case<'_>) -> bool {
    let Some((role, argument)) = process::role() else { return false };
    play(case, &role, &argument);
    true
}

/// SIGKILL of a peer ends everything that waits for it.
pub fn a_dead_peer_is_reported(case: &Case<'_>) {
    if is_child(case) {
        return;
    }
    let node = Node::open(case, true);
    let (mut child, to_child, described) = stalled_child(case, &node);
    let ops = pending_on(&node, &to_child, &described);
    let bytes = pattern(1, node.endpoint.limits().unexpected_bytes_max);
    let sends: Vec<_> = (0..500).map(|_| node.send_unexpected(&to_child, 9, &bytes)).collect();
    for _ in 0..1000 {
        node.poll();
    }
    assert_eq!(node.count_done(&ops), 0, "the child is stalled");
    child.kill();
    finish(&[&node], "operations with a dead peer", &ops);
    finish(&[&node], "sends to a dead peer", &sends);
    for op in ops {
        let error = node.error(op);
        assert!(matches!(error, Error::PeerGone { .. }), "{error}");
    }
    for op in sends {
        let end = node.take(op);
        let fine =
            matches!(end, Completion::Send { result: Ok(()) | Err(Error::PeerGone { .. }), .. });
        assert!(fine, "{end:?}");
    }
    assert_gone(&send_until_it_fails(&node, &to_child));

    // An origin that nobody can call dies as well.
    let asked = node.recv_unexpected();
    let mut child = ChildNode::start(case, "origin", node.endpoint.self_addr().uri());
    finish(&[&node], "the child's message", &[asked]);
    let (arrival, _) = node.received(asked);
    let waiting = node.recv_expected(&arrival.from, 1);
    child.kill();
    finish(&[&node], "a receive from a dead origin", &[waiting]);
    assert!(matches!(node.error(waiting), Error::PeerGone { .. }));
    assert_gone(&send_until_it_fails(&node, &arrival.from));
}

/// A call ends with its peer, whenever that dies: before it or right after it, and before the death
/// is noticed.
pub fn a_call_at_once_ends_with_its_peer(case: &Case<'_>) {
    if is_child(case) {
        return;
    }
    let node = Node::open(case, false);
    let mut child = ChildNode::start(case, "serve", "");
    let uri = child.line();
    let to_child = node.endpoint.lookup(&uri).expect("the child's address");
    for round in 0..4 {
        echo(&node, &to_child, round);
        child.stop();
        let before = call(&node, &to_child, 10);
        child.kill();
        let mut calls = vec![before];
        if round % 2 == 0 {
            calls.extend((11..15).map(|tag| call(&node, &to_child, tag)));
        }
        finish(&[&node], "calls of a child that was killed", &calls);
        for op in calls {
            assert_gone(&node.error(op));
        }
        child = ChildNode::start(case, "serve", &uri);
        assert_eq!(child.line(), uri);
    }
    echo(&node, &to_child, 4);
}

/// A successor under the same address is reached through the same address.
pub fn a_peer_restarts_under_its_address(case: &Case<'_>) {
    if is_child(case) {
        return;
    }
    let node = Node::open(case, false);
    let mut child = ChildNode::start(case, "serve", "");
    let uri = child.line();
    let to_child = node.endpoint.lookup(&uri).expect("the child's address");
    let mut counted = told::counts(&node, &uri);
    for round in 0..3 {
        echo(&node, &to_child, round);
        counted = told::counts_after(&node, &uri, counted);
        let waiting = node.recv_expected(&to_child, 99);
        child.kill();
        finish(&[&node], "a receive from the dead child", &[waiting]);
        assert!(matches!(node.error(waiting), Error::PeerGone { .. }));
        child = ChildNode::start(case, "serve", &uri);
        assert_eq!(child.line(), uri);
        assert_eq!(node.endpoint.lookup(&uri).expect("the same address"), to_child);
    }
    echo(&node, &to_child, 4);
    told::counts_after(&node, &uri, counted);
}
