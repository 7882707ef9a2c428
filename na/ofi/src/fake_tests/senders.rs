//! Senders of messages, where the device tells who they are.

use std::time::Instant;

use super::*;
use crate::endpoint::Setup;
use crate::fake::{Device, Fake};
use na_core::Arrival;
use na_core::conformance::PATIENCE;

const CXI: &str = "ofi+cxi://cxi0";
const URI: &str = "ofi+tcp://127.0.0.1:0";

/// Peers that are kept.
const PEERS: usize = 8;

/// Sends a message to `to` that says who its sender is.
fn introduce(from: &Node, to: &Node) -> OpId {
    let own = from.endpoint.self_addr();
    from.send_unexpected(&from.addr_of(to), 1, own.uri().as_bytes())
}

/// Returns the sender that the endpoint reports, and the one that the message names.
fn told_and_said(completion: Completion) -> [String; 2] {
    let Completion::Recv { buf, result: Ok(arrival), .. } = completion else {
        panic!("no message: {completion:?}")
    };
    let said = String::from_utf8(buf.as_slice().to_vec()).unwrap();
    [arrival.from.uri().to_owned(), said]
}

/// `cxi` finds out who sent a message when it takes the event from the device, before it is asked
/// for the completion, and gives the number of a peer that is removed to the next one.
#[test]
fn no_peer_is_forgotten_while_messages_of_it_may_be_waiting() {
    for by_lookup in [false, true] {
        let fake = Fake::new(Device::cxi());
        let setup = Setup { idle_peers_max: PEERS, ..Setup::default() };
        let node = Node::of(fake.open_as(CXI, &OpenOptions::default(), setup).unwrap());
        // With itself it knows as many as are kept.
        let known: Vec<_> = (1..PEERS).map(|_| Node::open(&fake, CXI)).collect();
        let stranger = Node::open(&fake, CXI);
        for peer in &known {
            let recv = node.recv_unexpected();
            sent(both(peer, &node, peer, introduce(peer, &node))).unwrap();
            node.wait(recv);
        }
        let all = known.iter().chain((!by_lookup).then_some(&stranger));
        let receives: Vec<_> = all.clone().map(|_| node.recv_unexpected()).collect();
        fake.hold(true);
        let sends: Vec<_> = all.rev().map(|peer| (peer, introduce(peer, &node))).collect();
        if by_lookup {
            drop(node.addr_of(&stranger));
        }
        let before = fake.count_addresses();
        fake.hold(false);
        // One poll reads all of them, and does not see the queue empty yet.
        assert_eq!(node.poll().unwrap(), receives.len());
        let mut senders = Vec::new();
        for recv in receives {
            let [told, said] = told_and_said(node.take(recv));
            assert_eq!(told, said);
            senders.push(told);
        }
        senders.sort();
        senders.dedup();
        assert_eq!(senders.len(), sends.len());
        // Then they are, but for itself.
        while node.poll().unwrap() > 0 {}
        let strangers = usize::from(!by_lookup);
        assert_eq!(fake.count_addresses(), before + strangers - PEERS);
        for (peer, send) in sends {
            sent(peer.wait(send)).unwrap();
        }
        // Who comes again is known again.
        let recv = node.recv_unexpected();
        sent(both(&known[0], &node, &known[0], introduce(&known[0], &node))).unwrap();
        let [told, said] = told_and_said(node.wait(recv));
        assert_eq!(told, said);
    }
}

/// Over ofi it is not told who is gone, so each caller may be somebody new.
#[test]
fn what_many_send_early_is_bounded_and_all_of_it_arrives() {
    const EACH: u32 = 100;
    const BYTES: usize = 2000;
    let fake = Fake::new(Device::tcp());
    let mut options = OpenOptions::default();
    options.left_bytes_max = 0;
    let target = Node::open_with(&fake, URI, &options);
    let origins: Vec<_> = (0..8).map(|_| Node::open(&fake, URI)).collect();
    let poll_all = || {
        let of = |node: &Node| node.poll().unwrap();
        of(&target) + origins.iter().map(of).sum::<usize>()
    };
    for origin in &origins {
        let to = origin.addr_of(&target);
        (0..EACH).for_each(|tag| _ = origin.send_unexpected(&to, tag, &[tag as u8; BYTES]));
        while poll_all() > 0 {}
    }
    // The least that is kept of all, and the message that goes beyond.
    let early = target.endpoint.early_bytes();
    assert!((256 << 10..(256 << 10) + 2 * BYTES).contains(&early), "{early}");
    let mut next: HashMap<u64, u32> = HashMap::new();
    for _ in 0..origins.len() as u32 * EACH {
        let recv = target.recv_unexpected();
        let deadline = Instant::now() + PATIENCE;
        while !target.has(recv) {
            assert!(Instant::now() < deadline, "a message is lost");
            poll_all();
        }
        let Completion::Recv { buf, result: Ok(Arrival { from, tag }), .. } = target.take(recv)
        else {
            panic!("no message")
        };
        let wanted = next.entry(from.peer_id()).or_default();
        assert_eq!((tag, buf.as_slice()), (Tag(*wanted), &[*wanted as u8; BYTES][..]));
        *wanted += 1;
    }
    assert!(next.len() == origins.len() && next.values().all(|count| *count == EACH));
    assert_eq!(target.endpoint.early_bytes(), 0);
}
