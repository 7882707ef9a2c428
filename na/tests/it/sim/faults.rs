//! Each kind of trouble in a simulated network: its effects, and where they end.

use std::time::Duration;

use na::sim::{Latency, LinkOptions};
use na::{Error, OpenOptions};

use super::support::{Node, builder, drive, exhaust, finish, greet, network, options, pattern};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn loss_repetition_and_reordering_cost_only_time() {
    const COUNT: u32 = 300;
    for seed in 0..5 {
        let network = network(seed, LinkOptions::unreliable(0.3));
        let _explain = network.trace_on_panic(40);
        let (a, b) = (Node::open(&network, "a"), Node::open(&network, "b"));
        let to_b = a.to("b");
        let receives: Vec<_> = (0..COUNT).map(|_| b.recv()).collect();
        for number in 0..COUNT {
            a.send(&to_b, number, &pattern(number.into(), 100));
        }
        finish(&[&b, &a], "all messages", &receives);
        for (number, op) in (0..COUNT).zip(receives) {
            let (_, tag, bytes) = b.received(op);
            assert_eq!((tag, bytes), (number, pattern(number.into(), 100)));
        }
        exhaust(&[&a, &b]);
        let text = network.trace().to_string();
        for word in ["dropped: lost", "retransmitted", "duplicated", "discarded: a repetition"] {
            assert!(text.contains(word), "no packet was {word}");
        }
    }
}

#[test]
fn bandwidth_latency_and_costs_add_up() {
    let link = LinkOptions {
        latency: Latency::Constant(Duration::from_millis(3)),
        bandwidth: 1_000_000,
        ..LinkOptions::default()
    };
    let network = network(1, link);
    let (a, b) = (Node::open(&network, "a"), Node::open(&network, "b"));
    let (to_b, _) = greet(&a, &b, "b");
    let start = network.now();
    let (local, remote) = (a.register(vec![0; 1_000_000]), b.register(vec![1; 1_000_000]));
    let got = a.transfer(false, &to_b, &local, (&b, &remote));
    finish(&[&a, &b], "a megabyte at a megabyte per second", &[got]);
    let took = network.now() - start;
    assert!(took > SECOND && took < 2 * SECOND, "{took:?}");

    // One message: 64 bytes and its own at the bandwidth, then the latency.
    exhaust(&[&a, &b]);
    let (start, received) = (network.now(), b.recv());
    a.send(&to_b, 1, &[0; 936]);
    finish(&[&b, &a], "a message", &[received]);
    assert_eq!(network.now() - start, Duration::from_millis(1 + 3));

    exhaust(&[&a, &b]);
    network.set_operation_cost("b", Duration::from_millis(5));
    let (start, received) = (network.now(), b.recv());
    a.send(&to_b, 1, &[0; 936]);
    finish(&[&b, &a], "a message to a slow node", &[received]);
    assert_eq!(network.now() - start, Duration::from_millis(1 + 3 + 5));
}

#[test]
fn a_slow_node_is_waited_for_and_slows_nobody_else() {
    let network = network(3, LinkOptions::default());
    let (a, slow, quick) =
        (Node::open(&network, "a"), Node::open(&network, "slow"), Node::open(&network, "quick"));
    network.set_operation_cost("slow", Duration::from_millis(100));
    let receives: Vec<_> = (0..500).map(|_| slow.recv()).collect();
    let to_slow = a.to("slow");
    let sends: Vec<_> = (0..500).map(|tag| a.send(&to_slow, tag, b"work")).collect();
    let quick_one = quick.recv();
    a.send(&a.to("quick"), 1, b"x");
    finish(&[&quick, &a, &slow], "the quick node's message", &[quick_one]);
    assert!(network.now() < Duration::from_millis(1), "{:?}", network.now());
    finish(&[&slow, &a], "the slow node's messages", &receives);
    // 500 packets of 100 ms each are far beyond the limit for a silent peer; it was not silent.
    assert!(network.now() > 50 * SECOND, "{:?}", network.now());
    finish(&[&a, &slow], "the sends", &sends);
    sends.into_iter().for_each(|op| a.succeeded(op));
}

#[test]
fn a_partition_that_heals_in_time_costs_only_time() {
    for seed in 0..20 {
        let network = network(seed, LinkOptions::unreliable(0.05));
        let _explain = network.trace_on_panic(40);
        let (a, b) = (Node::open(&network, "a"), Node::open(&network, "b"));
        let (to_b, to_a) = greet(&a, &b, "b");
        let begin = network.now();
        // Both directions, one, or the other.
        match seed % 3 {
            0 => network.partition("a", "b"),
            1 => network.partition_one_way("a", "b"),
            _ => network.partition_one_way("b", "a"),
        }
        network.schedule(begin + 20 * SECOND, |network| network.heal());
        let (asked, answered) = (b.recv(), a.recv_expected(&to_b, 5));
        a.send(&to_b, 5, b"are you there?");
        finish(&[&b, &a], "the message", &[asked]);
        b.send_expected(&to_a, 5, b"yes");
        finish(&[&a, &b], "the answer", &[answered]);
        assert!(network.now() >= begin + 20 * SECOND);
        a.succeeded(answered);
    }
}

#[test]
fn a_long_partition_ends_the_connection_on_both_sides() {
    let network = builder(4).peer_limit(10 * SECOND).build().unwrap();
    let (a, b) = (Node::open(&network, "a"), Node::open(&network, "b"));
    let (to_b, to_a) = greet(&a, &b, "b");
    let (at_a, at_b) = (a.recv_expected(&to_b, 5), b.recv_expected(&to_a, 5));
    let unaffected = a.recv();
    exhaust(&[&a, &b]);
    let begin = network.now();
    network.partition("a", "b");
    a.send(&to_b, 1, b"into the void");
    finish(&[&a, &b], "the end at the side that waits", &[at_a]);
    a.assert_gone(at_a);
    assert_eq!(network.now() - begin, 10 * SECOND);
    exhaust(&[&a, &b]);
    // The other side waits for nothing that a partition would disturb, and has no liveness limit.
    assert!(!b.is_done(at_b) && !a.is_done(unaffected));
    network.heal();
    a.send(&to_b, 2, b"hello again");
    let received = b.recv();
    finish(&[&b, &a], "a message of the new connection", &[received]);
    assert_eq!(b.received(received), (to_a, 2, b"hello again".to_vec()));
    b.assert_gone(at_b);
    assert!(b.outcome(at_b).unwrap_err().to_string().contains("new connection"));
}

#[test]
fn in_an_asymmetric_partition_the_receiver_hears_and_the_sender_gives_up() {
    let network = builder(5).peer_limit(10 * SECOND).build().unwrap();
    let (a, b) = (Node::open(&network, "a"), Node::open(&network, "b"));
    let (to_b, to_a) = greet(&a, &b, "b");
    network.partition_one_way("b", "a");
    let (received, at_a, at_b) = (b.recv(), a.recv_expected(&to_b, 5), b.recv_expected(&to_a, 5));
    a.send(&to_b, 1, b"I cannot hear you");
    finish(&[&b, &a], "the message that comes through", &[received]);
    finish(&[&a, &b], "the sender's patience", &[at_a]);
    a.assert_gone(at_a);
    finish(&[&b, &a], "the farewell, which comes through as well", &[at_b]);
    b.assert_gone(at_b);
    let text = network.trace().to_string();
    assert!(text.contains("b -> a: ack no. 2: dropped: partitioned"), "{text}");
    exhaust(&[&a, &b]);
    // And nobody can connect that way: the hello arrives, the welcome does not.
    let sent = a.send(&to_b, 2, b"again");
    finish(&[&a, &b], "the end of connecting", &[sent]);
    assert!(matches!(a.outcome(sent), Err(Error::Unreachable { .. })));
}

#[test]
fn connecting_takes_as_long_as_it_may() {
    let network = network(6, LinkOptions::default());
    let a = Node::open_with(&network, "a", &options(|options| options.connect_timeout = SECOND));
    let b = Node::open(&network, "b");
    network.isolate("b");
    let to_b = a.to("b");
    let (sent, answered) = (a.send(&to_b, 1, b"x"), a.recv_expected(&to_b, 1));
    finish(&[&a, &b], "the timeout", &[sent, answered]);
    assert_eq!(network.now(), SECOND);
    for op in [sent, answered] {
        let error = a.outcome(op).unwrap_err();
        assert!(matches!(error, Error::Unreachable { .. }) && error.never_arrived(), "{error}");
    }
    // Healed in time, the same works.
    network.schedule(network.now() + SECOND / 2, |network| network.heal_between("a", "b"));
    let received = b.recv();
    a.send(&to_b, 2, b"y");
    finish(&[&b, &a], "the message", &[received]);
}

#[test]
fn nobody_at_an_address_is_told_at_once() {
    let network = network(7, LinkOptions::default());
    let a = Node::open(&network, "a");
    let deaf = Node::open_with(&network, "deaf", &OpenOptions::listening(false));
    for name in ["nobody", "deaf"] {
        let sent = a.send(&a.to(name), 1, b"x");
        finish(&[&a, &deaf], "the refusal", &[sent]);
        assert!(matches!(a.outcome(sent), Err(Error::Unreachable { .. })));
    }
    assert!(network.now() < Duration::from_millis(1));
}

#[test]
fn two_that_call_each_other_at_once_have_one_connection() {
    for seed in 0..50 {
        let network = network(seed, LinkOptions::unreliable(0.2));
        let _explain = network.trace_on_panic(40);
        let (a, b) = (Node::open(&network, "a"), Node::open(&network, "b"));
        let (to_b, to_a) = (a.to("b"), b.to("a"));
        let (at_a, at_b) = (a.recv(), b.recv());
        a.send(&to_b, 1, b"from a");
        b.send(&to_a, 2, b"from b");
        drive(&[&a, &b], "both messages", || a.is_done(at_a) && b.is_done(at_b));
        assert_eq!(a.received(at_a), (to_b, 2, b"from b".to_vec()));
        assert_eq!(b.received(at_b), (to_a, 1, b"from a".to_vec()));
        exhaust(&[&a, &b]);
        let text = network.trace().to_string();
        assert_eq!(text.matches("connected with").count(), 2, "once on each side");
    }
}

#[test]
fn what_is_in_flight_is_bounded() {
    const WINDOW: u64 = 64 << 10;
    let network = builder(8).window_bytes(WINDOW).build().unwrap();
    let (a, b) = (Node::open(&network, "a"), Node::open(&network, "b"));
    let (to_b, _) = greet(&a, &b, "b");
    let sends: Vec<_> = (0..500).map(|tag| a.send(&to_b, tag, &[7; 4032])).collect();
    exhaust(&[&a, &b]);
    let taken = sends.iter().filter(|op| a.is_done(**op)).count() as u64;
    // The receiver holds 256 KiB of early messages; the window holds as much as it says.
    let most = (256 << 10) + WINDOW;
    assert!((taken - 2) * 4096 <= most && taken * 4096 > most / 2, "{taken} messages were taken");
    let receives: Vec<_> = (0..500).map(|_| b.recv()).collect();
    finish(&[&b, &a], "all messages", &receives);
    finish(&[&a, &b], "all sends", &sends);
}

#[test]
fn transfers_pass_messages_that_nobody_receives() {
    let network = network(9, LinkOptions::default());
    let (a, b) = (Node::open(&network, "a"), Node::open(&network, "b"));
    let (to_b, _) = greet(&a, &b, "b");
    // As many as the receiver holds without a receive, but less than the window.
    for tag in 0..100 {
        a.send(&to_b, tag, &[7; 4032]);
    }
    exhaust(&[&a, &b]);
    let (local, remote) = (a.register(vec![0; 1 << 20]), b.register(pattern(1, 1 << 20)));
    let got = a.transfer(false, &to_b, &local, (&b, &remote));
    let put = a.transfer(true, &to_b, &local, (&b, &remote));
    finish(&[&a, &b], "both transfers", &[got, put]);
    a.succeeded(got);
    a.succeeded(put);
}
