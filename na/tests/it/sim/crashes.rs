//! Crashes of simulated nodes, in every phase of a message and of a transfer, on either side: what
//! their peers see, and what their successors can do.

use std::time::Duration;

use na::sim::{LinkOptions, Network};
use na::{Error, OpId, OpenOptions};

use super::support::{
    Node, builder, drive, exhaust, finish, greet, network, options, pattern, revoke,
};

const SEEDS: u64 = 6;
const SECOND: Duration = Duration::from_secs(1);

fn link(seed: u64) -> LinkOptions {
    // The first is without any trouble but the crash.
    LinkOptions::unreliable(if seed == 0 { 0.0 } else { 0.15 })
}

/// An operation either did what it was for or says that the peer is gone.
fn assert_ok_or_gone(node: &Node, op: OpId) {
    let end = node.outcome(op);
    let gone = matches!(end, Err(Error::PeerGone { .. } | Error::Unreachable { .. }));
    assert!(end.is_ok() || gone, "operation {}: {end:?}", op.0);
}

/// Asserts that operations of the dead endpoint have ended, and that one poll says that it is dead.
fn assert_dead(node: &Node) {
    let polls = [node.try_poll(), node.try_poll(), node.try_poll()];
    let told = polls.iter().filter(|poll| matches!(poll, Err(Error::Unavailable { .. }))).count();
    assert_eq!(told, 1, "{polls:?}");
    assert_eq!(node.unfinished(), [0; 0], "a dead endpoint gives every buffer back");
}

/// Runs `scenario` once to count its events, and then for each number of events up to there with a
/// crash of `victim` after so many.
fn crash_after_each_event(
    victim: &str,
    mut scenario: impl FnMut(&Network, &mut dyn FnMut(&[&Node]) -> bool),
) {
    for seed in 0..SEEDS {
        let mut events = 0;
        scenario(&network(seed, link(seed)), &mut |nodes| {
            exhaust_counting(nodes, &mut events);
            false
        });
        assert!(events > 5, "{events} events");
        for after in 0..=events {
            let network = network(seed, link(seed));
            let _explain = network.trace_on_panic(60);
            scenario(&network, &mut |nodes| {
                for _ in 0..after {
                    nodes.iter().for_each(|node| assert!(node.try_poll().is_ok()));
                    network.step();
                }
                network.crash(victim);
                true
            });
        }
    }
}

fn exhaust_counting(nodes: &[&Node], events: &mut u64) {
    loop {
        let progress: usize = nodes.iter().map(|node| node.poll()).sum();
        if progress == 0 && !nodes[0].network.step() {
            return;
        }
        *events += 1;
    }
}

fn message_in_every_phase(victim: &str) {
    crash_after_each_event(victim, |network, play| {
        let (a, b) = (Node::open(network, "a"), Node::open(network, "b"));
        let (to_a, to_b) = (b.to("a"), a.to("b"));
        let at_b = [b.recv(), b.recv(), b.recv_expected(&to_a, 7), b.recv_expected(&to_a, 99)];
        let at_a = [
            a.send(&to_b, 1, &pattern(1, 3000)),
            a.send(&to_b, 2, b""),
            a.send_expected(&to_b, 7, b"expected"),
            a.recv_expected(&to_b, 99),
        ];
        let crashed = play(&[&a, &b]);
        let (dead, alive, ops) =
            if victim == "a" { (&a, &b, &at_b[2..]) } else { (&b, &a, &at_a[..]) };
        if !crashed {
            assert_eq!(b.received(at_b[0]).2, pattern(1, 3000));
            assert_eq!((a.unfinished().len(), b.unfinished().len()), (1, 1), "tag 99 of each");
            return;
        }
        assert_dead(dead);
        exhaust(&[alive]);
        for op in ops.iter().filter(|op| alive.is_done(**op)) {
            assert_ok_or_gone(alive, *op);
        }
        // Whoever was never connected goes on waiting; all others know.
        let knew = network.trace().to_string().contains(&format!(
            "{}: connected with {victim}",
            if victim == "a" { "b" } else { "a" }
        ));
        if knew || victim == "b" {
            assert!(alive.all_done(ops), "unfinished: {:?}", alive.unfinished());
        }
        for op in at_b.iter().take(2).filter(|op| victim == "a" && b.is_done(**op)) {
            let (_, tag, bytes) = b.received(*op);
            assert_eq!(bytes, if tag == 1 { pattern(1, 3000) } else { Vec::new() });
        }
    });
}

#[test]
fn the_sender_crashes_in_every_phase_of_a_message() {
    message_in_every_phase("a");
}

#[test]
fn the_receiver_crashes_in_every_phase_of_a_message() {
    message_in_every_phase("b");
}

fn transfers_in_every_phase(victim: &str) {
    const LEN: usize = 150_000;
    crash_after_each_event(victim, |network, play| {
        let (a, b) = (Node::open(network, "a"), Node::open(network, "b"));
        let to_b = a.to("b");
        let local = [a.register(vec![0; LEN]), a.register(pattern(1, LEN))];
        let remote = [b.register(pattern(2, LEN)), b.register(vec![0; LEN])];
        let got = a.transfer(false, &to_b, &local[0], (&b, &remote[0]));
        let put = a.transfer(true, &to_b, &local[1], (&b, &remote[1]));
        let crashed = play(&[&a, &b]);
        if crashed {
            let (dead, alive) = if victim == "a" { (&a, &b) } else { (&b, &a) };
            assert_dead(dead);
            exhaust(&[alive]);
            assert_eq!(alive.unfinished(), [0; 0]);
            if victim == "b" {
                assert_ok_or_gone(&a, got);
                assert_ok_or_gone(&a, put);
            }
        }
        let done = (a.outcome(got).is_ok(), a.outcome(put).is_ok());
        assert!(crashed || done == (true, true));
        // No transfer holds memory any more, whoever died.
        let back = |memory| {
            let memory = revoke(memory).try_recv().expect("given back");
            memory.into_owner::<Vec<u8>>().expect("a vector")
        };
        let [local, remote] = [local.map(back), remote.map(back)];
        assert!(!done.0 || local[0] == pattern(2, LEN), "a get that succeeded is complete");
        assert!(!done.1 || remote[1] == pattern(1, LEN), "a put that succeeded is complete");
    });
}

#[test]
fn the_requester_crashes_in_every_phase_of_a_transfer() {
    transfers_in_every_phase("a");
}

#[test]
fn the_owner_crashes_in_every_phase_of_a_transfer() {
    transfers_in_every_phase("b");
}

/// The counterpart of the conformance case that kills and restarts a process.
#[test]
fn a_node_restarts_under_its_address() {
    for seed in 0..20 {
        let network = network(seed, link(seed));
        let _explain = network.trace_on_panic(60);
        let a = Node::open_with(&network, "a", &OpenOptions::listening(false));
        let mut b = Node::open(&network, "b");
        let to_b = a.to("b");
        for round in 0..4 {
            greet(&a, &b, "b");
            let waiting = a.recv_expected(&to_b, 99);
            network.crash("b");
            // Sometimes the successor is there before anybody knows of the death.
            if round % 2 == 0 {
                finish(&[&a], "the death", &[waiting]);
            }
            b = Node::open(&network, "b");
            assert_eq!(a.to("b"), to_b);
            finish(&[&a, &b], "the death, at the latest", &[waiting]);
            a.assert_gone(waiting);
        }
        greet(&a, &b, "b");
    }
}

#[test]
fn a_node_that_restarts_first_and_calls_is_told_apart() {
    let network = network(1, LinkOptions::default());
    let (a, b) = (Node::open(&network, "a"), Node::open(&network, "b"));
    let (_, from_a) = greet(&a, &b, "b");
    let waiting = b.recv_expected(&from_a, 99);
    network.power_off("a");
    exhaust(&[&b]);
    assert!(!b.is_done(waiting), "nobody told, and there is no liveness limit");
    let a = Node::open(&network, "a");
    let received = b.recv();
    a.send(&a.to("b"), 3, b"it is me");
    finish(&[&b, &a], "the successor's message", &[received]);
    assert_eq!(b.received(received), (from_a, 3, b"it is me".to_vec()));
    b.assert_gone(waiting);
}

/// The counterpart of the conformance case about a process that dies with everything in flight.
#[test]
fn a_dead_node_ends_everything_that_waits_for_it() {
    for seed in 0..SEEDS {
        let network = network(seed, link(seed));
        let _explain = network.trace_on_panic(60);
        let (a, b) = (Node::open(&network, "a"), Node::open(&network, "b"));
        let (to_b, _) = greet(&a, &b, "b");
        let (local, remote) = (a.register(vec![0; 16 << 20]), b.register(vec![1; 16 << 20]));
        let mut ops = vec![a.recv_expected(&to_b, 2), a.recv_expected(&to_b, 3)];
        ops.push(a.transfer(false, &to_b, &local, (&b, &remote)));
        ops.push(a.transfer(true, &to_b, &local, (&b, &remote)));
        let sends: Vec<_> = (0..500).map(|_| a.send(&to_b, 9, &[1; 4096])).collect();
        (0..50).for_each(|_| assert!(network.step()));
        network.crash("b");
        finish(&[&a], "operations with a dead node", &ops);
        ops.into_iter().for_each(|op| a.assert_gone(op));
        assert!(a.all_done(&sends));
        sends.into_iter().for_each(|op| assert_ok_or_gone(&a, op));
        let after = a.send(&to_b, 1, b"still there?");
        finish(&[&a], "a send to nobody", &[after]);
        assert!(matches!(a.outcome(after), Err(Error::Unreachable { .. })));
    }
}

#[test]
fn an_origin_that_crashed_cannot_be_answered() {
    let network = network(2, LinkOptions::default());
    let b = Node::open(&network, "b");
    let origin = OpenOptions::listening(false);
    let a = Node::open_with(&network, "a", &origin);
    let (_, to_a) = greet(&a, &b, "b");
    network.crash("a");
    let sent = b.recv_expected(&to_a, 1);
    finish(&[&b], "the origin's death", &[sent]);
    b.assert_gone(sent);
    let successor = Node::open_with(&network, "a", &origin);
    let (_, to_successor) = greet(&successor, &b, "b");
    assert_ne!(to_a, to_successor);
    for op in [b.send(&to_a, 1, b"x"), b.recv_expected(&to_a, 1)] {
        finish(&[&b, &successor], "an answer to the dead", &[op]);
        b.assert_gone(op);
    }
}

#[test]
fn without_power_only_silence_tells() {
    let limits = [(Duration::ZERO, 10 * SECOND), (2 * SECOND, 2 * SECOND)];
    for (liveness, expected) in limits {
        let network = builder(3).peer_limit(10 * SECOND).build().unwrap();
        let open = options(|options| options.liveness_limit = liveness);
        let a = Node::open_with(&network, "a", &open);
        let b = Node::open(&network, "b");
        let (to_b, _) = greet(&a, &b, "b");
        let waiting = a.recv_expected(&to_b, 7);
        // While it lives, a peer that owes an answer may take its time.
        network.run_for(100 * SECOND);
        assert_eq!(a.poll(), 0, "{:?}", a.outcome(waiting));
        let dark = network.now();
        network.power_off("b");
        if liveness.is_zero() {
            exhaust(&[&a]);
            assert!(!a.is_done(waiting), "no limit, and nothing on the way");
            a.send(&to_b, 1, b"anybody?");
        }
        let asked = network.now();
        finish(&[&a], "the end", &[waiting]);
        a.assert_gone(waiting);
        let took = network.now() - if liveness.is_zero() { asked } else { dark };
        assert!(took <= expected && took > expected / 2, "{took:?}");
    }
}

#[test]
fn a_death_behind_a_partition_is_told_when_it_heals() {
    let network = network(4, LinkOptions::default());
    let (a, b) = (Node::open(&network, "a"), Node::open(&network, "b"));
    let (to_b, _) = greet(&a, &b, "b");
    exhaust(&[&a, &b]);
    let waiting = a.recv_expected(&to_b, 7);
    network.partition("a", "b");
    network.crash("b");
    network.schedule(network.now() + 5 * SECOND, |network| network.heal());
    finish(&[&a], "the news", &[waiting]);
    a.assert_gone(waiting);
    assert!(network.now() > 5 * SECOND && network.now() < 30 * SECOND, "{:?}", network.now());
}

#[test]
fn what_was_sent_before_a_close_arrives() {
    for seed in 0..SEEDS {
        let network = network(seed, link(seed));
        let _explain = network.trace_on_panic(60);
        let (a, b) = (Node::open(&network, "a"), Node::open(&network, "b"));
        let (to_b, to_a) = greet(&a, &b, "b");
        let receives: Vec<_> = (0..20).map(|_| b.recv()).collect();
        let last = b.recv_expected(&to_a, 99);
        let sends: Vec<_> = (0..20).map(|tag| a.send(&to_b, tag, &[1; 4096])).collect();
        assert!(a.poll() > 0 && a.all_done(&sends), "the window takes them all");
        drop(a);
        drive(&[&b], "the messages", || b.all_done(&receives));
        finish(&[&b], "the farewell", &[last]);
        b.assert_gone(last);
        exhaust(&[&b]);
        // The name is free at once.
        Node::open(&network, "a");
    }
}
