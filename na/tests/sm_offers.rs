//! Offers of the sm transport: transfers that the requester does by itself, and their end.
#![cfg(feature = "sm")]

use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;

use na::{Access, Addr, AllocOptions, Error, LocalMem, Memory, RemoteMem, SharedBuffer, Transfer};

#[path = "sm_support/mod.rs"]
mod support;

use support::{Hostile, Node, connected, listening, with_attach};

const LEN: usize = 64 << 10;

fn register(node: &Node, access: Access) -> (LocalMem, RemoteMem) {
    let memory = Memory::alloc(LEN, &AllocOptions::default()).expect("allocate");
    let local = node.endpoint.register(memory, access).expect("register");
    let described = node.endpoint.mem_to_bytes(&local);
    let remote = node.endpoint.mem_from_bytes(&described).expect("a description");
    (local, remote)
}

/// An owner, and a requester to which a region of the owner was offered.
struct Offered {
    owner: Node,
    requester: Node,
    to_owner: Addr,
    theirs: Option<LocalMem>,
    remote: RemoteMem,
    ours: LocalMem,
}

impl Offered {
    fn new(access: Access) -> Self {
        let mut owner = listening();
        let mut requester = with_attach(true, false);
        let to_owner = connected(&mut requester, &mut owner);
        let (theirs, remote) = register(&owner, access);
        let (ours, _) = register(&requester, Access::ReadWrite);
        let theirs = Some(theirs);
        let mut offered = Self { owner, requester, to_owner, theirs, remote, ours };
        for _ in 0..3 {
            offered.asked(!access.readable(), 8).expect("a transfer");
        }
        offered
    }

    fn start(&mut self, put: bool, len: u64) -> na::OpId {
        let (local, remote) = (self.ours.clone(), self.remote.clone());
        let transfer = Transfer { local, local_offset: 0, remote, remote_offset: 0, len };
        self.requester.start(put, &self.to_owner, transfer)
    }

    /// A transfer while both sides poll.
    fn asked(&mut self, put: bool, len: u64) -> Result<(), Error> {
        let op = self.start(put, len);
        self.requester.transferred(op, &mut self.owner)
    }

    /// Whether a transfer ends although the owner does nothing.
    fn is_alone(&mut self, put: bool, len: u64) -> bool {
        let op = self.start(put, len);
        (0..64).for_each(|_| self.requester.poll());
        let done = self.requester.is_done(op);
        // A denied one has ended as well.
        let _ = self.requester.transferred(op, &mut self.owner);
        done
    }
}

#[test]
fn a_region_that_is_asked_for_again_needs_its_owner_no_more() {
    let mut pair = Offered::new(Access::ReadWrite);
    let bytes: Vec<u8> = (0..LEN).map(|index| (index % 251) as u8).collect();
    assert!(pair.ours.write_at(0, &bytes));
    assert!(pair.is_alone(true, LEN as u64), "a put");
    let theirs = pair.theirs.clone().expect("it is registered");
    let mut found = vec![0; LEN];
    assert!(theirs.read_at(0, &mut found) && found == bytes);
    assert!(theirs.write_at(9, b"changed"));
    assert!(pair.is_alone(false, 100), "a get");
    assert!(pair.ours.read_at(9, &mut found[..7]) && found.starts_with(b"changed"));
}

#[test]
fn an_offer_allows_what_the_region_does() {
    for (access, put) in [(Access::ReadOnly, true), (Access::WriteOnly, false)] {
        let mut pair = Offered::new(access);
        assert!(pair.is_alone(!put, 8));
        pair.remote.access = Access::ReadWrite;
        let denied = pair.asked(put, 8);
        assert!(matches!(denied, Err(Error::Denied { .. })), "{denied:?}");
    }
}

#[test]
fn a_revoked_region_is_refused_and_its_memory_comes_back_at_once() {
    let mut pair = Offered::new(Access::ReadWrite);
    assert!(pair.is_alone(false, 8));
    let (sender, released) = channel();
    let theirs = pair.theirs.take().expect("it is registered");
    theirs.revoke(move |memory| sender.send(memory).expect("the test waits"));
    let memory = released.try_recv().expect("nobody copies");
    assert!(memory.into_owner::<SharedBuffer>().is_ok());
    let denied = pair.asked(false, 8);
    assert!(matches!(denied, Err(Error::Denied { .. })), "{denied:?}");
}

#[test]
fn dropped_regions_make_room_for_new_offers() {
    let mut pair = Offered::new(Access::ReadWrite);
    for _ in 0..100 {
        let (theirs, remote) = register(&pair.owner, Access::ReadWrite);
        (pair.theirs, pair.remote) = (Some(theirs), remote);
        for _ in 0..3 {
            pair.asked(true, 8).expect("a put");
        }
        assert!(pair.is_alone(true, 8));
    }
}

#[test]
fn what_is_long_or_of_plain_memory_is_asked_for() {
    let mut pair = Offered::new(Access::ReadWrite);
    let memory = Memory::from_vec(vec![0; LEN]);
    let plain = pair.owner.endpoint.register(memory, Access::ReadWrite).expect("register");
    let described = pair.owner.endpoint.mem_to_bytes(&plain);
    pair.remote = pair.requester.endpoint.mem_from_bytes(&described).expect("a description");
    for _ in 0..4 {
        pair.asked(false, 8).expect("a get");
    }
    assert!(!pair.is_alone(false, 8));
}

/// The word that says that the acceptor's memory is copied under an offer.
const GATE: usize = 1408;

/// The first offer of the acceptor.
const OFFER: usize = 2304;

#[test]
fn memory_stays_while_a_peer_copies_under_an_offer() {
    let mut node = listening();
    let (mut hostile, addr) = Hostile::attach(&mut node);
    let (memory, _) = register(&node, Access::ReadWrite);
    for part in 1..=3u64 {
        let words = [part, memory.key(), 0, 8, 1 << 20, 8, 0];
        let request: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        hostile.write(3, 0, &request);
    }
    node.until("an offer", |_| hostile.half(OFFER).load(Ordering::Relaxed) != 0);
    hostile.half(GATE).store(1, Ordering::Relaxed);
    let (sender, released) = channel();
    memory.revoke(move |memory| sender.send(memory).expect("the test waits"));
    assert_eq!(hostile.half(OFFER).load(Ordering::Relaxed), 0, "withdrawn");
    (0..5000).for_each(|_| node.poll());
    assert!(released.try_recv().is_err(), "somebody copies there");
    hostile.half(GATE).store(0, Ordering::Relaxed);
    node.until("the memory", |_| released.try_recv().is_ok());
    let asked = node.recv();
    hostile.write(1, 7, b"still connected");
    assert_eq!(node.received(asked).0.from, addr);
}

#[test]
fn offers_that_make_no_sense_end_the_connection_and_others_are_ignored() {
    let good = 3u64 | 3 << 8 | 1 << 32;
    for (what, words) in [
        ("no such slot", vec![1, 1, good | 0x40]),
        ("no access", vec![1, 1, good & !0xff00]),
        ("unknown bits", vec![1, 1, good | 1 << 16]),
        ("no generation", vec![1, 1, good & 0xffff_ffff]),
        ("too short", vec![1, 1]),
    ] {
        let mut node = listening();
        let (mut hostile, addr) = Hostile::attach(&mut node);
        let waiting = node.recv_expected(&addr, 9);
        let payload: Vec<u8> = words.iter().flat_map(|word: &u64| word.to_le_bytes()).collect();
        hostile.write(17, 0, &payload);
        let error = node.error(waiting);
        assert!(matches!(error, Error::Protocol { .. }), "{what}: {error}");
    }
    let mut node = listening();
    let (mut hostile, addr) = Hostile::attach(&mut node);
    let payload: Vec<u8> = [1, 77, good].iter().flat_map(|word| word.to_le_bytes()).collect();
    hostile.write(17, 0, &payload);
    let asked = node.recv();
    hostile.write(1, 7, b"a block that nobody announced");
    assert_eq!(node.received(asked).0.from, addr);
}
