//! Turns and shares of peers at a gate.

use super::*;

fn peers(count: u16) -> Vec<Addr> {
    let own = crate::Instance::builder("na+tcp://").listen(false).start().unwrap();
    let peer = |n: u16| own.lookup(&format!("na+tcp://127.0.0.1:{}", 10_000 + n)).unwrap();
    let peers = (0..count).map(peer).collect();
    own.finalize_and_wait().unwrap();
    peers
}

fn turns(gate: &Gate<usize>) -> Vec<Addr> {
    let peer_of = |turn: &Turn| match turn {
        Turn::OfPeer(peer) => peer.clone(),
        Turn::OfHost(host) => panic!("{host} has a turn"),
    };
    gate.careful.as_ref().unwrap().lock().turns.iter().map(peer_of).collect()
}

/// `true`: it is inside; `false`: it waits.
fn enter(gate: &Gate<usize>, peer: &Addr, who: usize) -> bool {
    enter_from(gate, (peer, None), who)
}

fn enter_from(gate: &Gate<usize>, (peer, host): (&Addr, Host), who: usize) -> bool {
    match gate.enter(peer, || host, who, || true) {
        Entrance::In(_) => true,
        Entrance::Waits => false,
        Entrance::Busy(_) => panic!("it may wait"),
    }
}

#[test]
fn who_leaves_looks_at_no_peer_that_has_its_share() {
    const PEERS: u16 = 10_000;
    let peers = peers(PEERS);
    let bounds = Admission::new(usize::MAX).per_peer(1).overload(Overload::Wait);
    let gate = Gate::of_rpc(bounds);
    for (n, peer) in peers.iter().enumerate() {
        assert!(enter(&gate, peer, n));
        assert!(!enter(&gate, peer, n), "it has its share");
    }
    assert_eq!(turns(&gate), [], "all of them have");
    for n in [5_000, 0, 9_999] {
        assert_eq!(gate.leave(&peers[n]), Some(n), "the next one of the same peer");
        assert_eq!(turns(&gate), []);
        assert_eq!(gate.leave(&peers[n]), None, "it has no more");
    }
    let load = gate.load();
    let left = usize::from(PEERS) - 3;
    assert_eq!((load.in_hand, load.waiting), (left, left));
}

#[test]
fn peers_that_get_a_share_back_take_turns_with_those_that_have_one() {
    let [one, two, three] = &peers(3)[..] else { unreachable!() };
    let bounds = Admission::new(2).per_peer(1).overload(Overload::Wait);
    let gate = Gate::of_rpc(bounds);
    assert!(enter(&gate, one, 10) && enter(&gate, two, 20));
    for (peer, who) in [(one, 11), (one, 12), (two, 21), (three, 30), (three, 31)] {
        assert!(!enter(&gate, peer, who));
    }
    assert_eq!(turns(&gate), std::slice::from_ref(three));
    // Who leaves, and who comes in its place.
    for (leaves, next) in
        [(one, Some(30)), (two, Some(11)), (three, Some(21)), (one, Some(31)), (three, Some(12))]
    {
        assert_eq!(gate.leave(leaves), next);
    }
    assert_eq!((gate.leave(one), gate.leave(two)), (None, None));
    assert_eq!((gate.load().in_hand, gate.load().waiting, turns(&gate)), (0, 0, vec![]));
}

#[test]
fn a_place_beyond_the_bounds_counts_for_the_share_of_its_peer() {
    let [one, two] = &peers(2)[..] else { unreachable!() };
    let gate = Gate::of_rpc(Admission::new(1).per_peer(1).overload(Overload::Wait));
    assert!(enter(&gate, two, 20) && !enter(&gate, one, 10));
    assert_eq!(turns(&gate), std::slice::from_ref(one));
    gate.enter_beyond(one, || None);
    assert_eq!(turns(&gate), [], "it has its share");
    assert_eq!(gate.leave(two), None);
    assert_eq!(gate.leave(one), Some(10));
    assert_eq!(gate.leave(one), None);
}

fn host(n: u8) -> Host {
    Some(Principal::of_host(std::net::Ipv4Addr::new(10, 0, 0, n).into()))
}

#[test]
fn connections_of_one_host_have_one_share_and_wait_behind_it() {
    let [one, two, three] = &peers(3)[..] else { unreachable!() };
    let (here, there) = (host(1), host(2));
    let bounds = Admission::new(4).per_host(2).overload(Overload::Wait);
    let gate = Gate::of_rpc(bounds);
    for (peer, who) in [(one, 10), (one, 11)] {
        assert!(enter_from(&gate, (peer, here), who));
    }
    for (peer, who) in [(two, 20), (one, 12), (two, 21)] {
        assert!(!enter_from(&gate, (peer, here), who), "its host has its share");
    }
    assert_eq!(turns(&gate), [], "nobody looks at them in vain");
    assert!(enter_from(&gate, (three, there), 30) && enter_from(&gate, (three, there), 31));
    assert!(!enter_from(&gate, (three, there), 32));
    // Who leaves, and who comes in its place: peers of one host take turns.
    for (leaves, next) in [
        (one, Some(20)),
        (two, Some(12)),
        (three, Some(32)),
        (one, Some(21)),
        (one, None),
        (two, None),
        (three, None),
        (three, None),
    ] {
        assert_eq!(gate.leave(leaves), next);
    }
    assert_eq!((gate.load().in_hand, gate.load().waiting), (0, 0));
    let careful = gate.careful.as_ref().unwrap().lock();
    assert!(careful.lines.is_empty() && careful.counts.of_hosts.is_empty());
}

#[test]
fn hosts_take_turns_with_however_many_connections() {
    let [one, two, three, other, unknown] = &peers(5)[..] else { unreachable!() };
    // Two bounds under which nobody has a share of its own, and one of peers.
    let alone = Admission::new(1).overload(Overload::Wait);
    for bounds in [alone, alone.per_peer(1)] {
        let gate = Gate::of_rpc(bounds);
        assert!(enter_from(&gate, (one, host(1)), 0));
        for (n, peer) in [one, two, three].into_iter().enumerate() {
            assert!(!enter_from(&gate, (peer, host(1)), 10 + n));
            assert!(!enter_from(&gate, (peer, host(1)), 20 + n));
        }
        for who in [30, 31] {
            assert!(!enter_from(&gate, (other, host(2)), who));
        }
        assert!(!enter_from(&gate, (unknown, None), 40));
        let place = |who: usize| match who {
            30.. => [other, unknown][who / 10 - 3],
            who => [one, two, three][who % 10],
        };
        let mut came = vec![0];
        while let Some(next) = gate.leave(place(came[came.len() - 1])) {
            came.push(next);
        }
        let hosts: Vec<_> = came[1..6].iter().map(|who| who.max(&29) / 10).collect();
        assert_eq!(hosts[..3].iter().collect::<std::collections::BTreeSet<_>>().len(), 3);
        assert_eq!((came.len(), hosts.iter().filter(|from| **from == 3).count()), (10, 2));
        assert_eq!((gate.load().in_hand, gate.load().waiting), (0, 0));
        assert!(gate.careful.as_ref().unwrap().lock().lines.is_empty());
    }
}

/// As many of each peer as come in, until it is refused.
fn fill(gate: &Gate<()>, peer: &Addr, host: Host) -> usize {
    (0..).take_while(|_| gate.enter_plain(peer, || host)).count()
}

#[test]
fn of_a_plain_gate_no_peer_and_no_host_gets_more_than_its_share() {
    let peers = peers(40);
    for several in [false, true] {
        let gate = Gate::<()>::of_pool(Admission::new(1600), several);
        assert!(gate.is_plain());
        assert_eq!(fill(&gate, &peers[0], host(1)), 700, "seven sixteenths");
        assert_eq!(fill(&gate, &peers[1], host(1)), 100, "half of all with the first");
        let of_crowd: usize = peers[2..30].iter().map(|peer| fill(&gate, peer, host(1))).sum();
        assert_eq!(of_crowd, 0, "however many connections");
        assert_eq!(fill(&gate, &peers[30], host(2)), 100);
        assert_eq!(fill(&gate, &peers[31], None), 100, "who is not known counts for itself");
        assert_eq!(gate.load().in_hand, 1000);
        // What the first peer gives back is its own share again, then anybody's.
        (0..100).for_each(|_| assert!(gate.leave(&peers[0]).is_none()));
        assert_eq!(fill(&gate, &peers[0], host(1)), 100);
        (0..700).for_each(|_| assert!(gate.leave(&peers[0]).is_none()));
        let others = [(1, 100), (30, 100), (31, 100)];
        for (peer, count) in others {
            (0..count).for_each(|_| assert!(gate.leave(&peers[peer]).is_none()));
        }
        let crowd = gate.crowd.as_ref().unwrap();
        assert!(!crowd.is_any() && gate.load().in_hand == 0, "nobody is left");
        let counts = crowd.counts.lock();
        assert!(counts.of_peers.is_empty() && counts.of_hosts.is_empty());
    }
}

#[test]
fn few_places_and_a_word_against_it_leave_all_to_one() {
    let peers = peers(1);
    for (bounds, all) in [
        (Admission::new(255), 255),
        (Admission::new(1000).per_peer(0).per_host(0), 1000),
        (Admission::new(1000).per_peer(0), 500),
    ] {
        let gate = Gate::<()>::of_pool(bounds, false);
        assert_eq!(fill(&gate, &peers[0], host(1)), all);
    }
}
