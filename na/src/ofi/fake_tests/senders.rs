//! Who sends, where the device tells it.

use super::super::endpoint::Setup;
use super::super::fake::{Device, Fake};
use super::*;

const CXI: &str = "ofi+cxi://cxi0";

/// Peers that are kept.
const PEERS: usize = 8;

/// What a peer says to `to`: who it is.
fn introduce(from: &Node, to: &Node) -> OpId {
    let own = from.endpoint.self_addr();
    from.send_unexpected(&from.addr_of(to), 1, own.uri().as_bytes())
}

/// Who is told to have sent a message, and who says so in it.
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
