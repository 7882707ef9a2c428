//! Offers of the sm transport: transfers that the requester does by itself, and their end.

use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;

use na::{Access, Addr, AllocOptions, Error, LocalMem, Memory, RemoteMem, SharedBuffer, Transfer};

use crate::common::sm::{Hostile, Node, connected, listening, register, with_attach, words};

const LEN: usize = 64 << 10;

fn register_shared(node: &Node, access: Access) -> (LocalMem, RemoteMem) {
    let memory = Memory::alloc(LEN, &AllocOptions::default()).expect("allocate");
    register(node, memory, access)
}

/// A region of plain memory.
fn register_plain(node: &Node, len: usize) -> (LocalMem, RemoteMem) {
    register(node, Memory::from_vec(vec![0; len]), Access::ReadWrite)
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
        let (theirs, remote) = register_shared(&owner, access);
        let (ours, _) = register_shared(&requester, Access::ReadWrite);
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

    /// Returns whether a transfer ends although the owner does nothing.
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
        let (theirs, remote) = register_shared(&pair.owner, Access::ReadWrite);
        (pair.theirs, pair.remote) = (Some(theirs), remote);
        for _ in 0..3 {
            pair.asked(true, 8).expect("a put");
        }
        assert!(pair.is_alone(true, 8));
    }
}

#[test]
fn what_is_very_short_and_of_plain_memory_is_asked_for() {
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

/// Revokes what was offered first, and expects that it is kept until the peer has stopped copying.
#[track_caller]
fn expect_kept(node: &mut Node, hostile: &mut Hostile, addr: &Addr, memory: LocalMem) {
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
    assert_eq!(node.received(asked).0.from, *addr);
}

#[test]
fn memory_stays_while_a_peer_copies_under_an_offer() {
    let mut node = listening();
    let (mut hostile, addr) = Hostile::attach(&mut node);
    let (memory, _) = register_shared(&node, Access::ReadWrite);
    for part in 1..=3u64 {
        let words = [part, memory.key(), 0, 8, 1 << 20, 8, 0];
        let request: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        hostile.write(3, 0, &request);
    }
    node.until("an offer", |_| hostile.half(OFFER).load(Ordering::Relaxed) != 0);
    expect_kept(&mut node, &mut hostile, &addr, memory);
}

/// The `part`th put of a page, from a peer to which copying
/// through the ring is slow. Whether the owner attached.
fn slow_put(node: &mut Node, hostile: &mut Hostile, part: u64, theirs: &LocalMem) -> bool {
    const PAGE: usize = 4096;
    let source = vec![part as u8; PAGE];
    let addr = source.as_ptr().expose_provenance() as u64;
    let mut found = vec![0; PAGE];
    let page = PAGE as u64;
    hostile.write(4, 0, &words(&[part, theirs.key(), 0, page, addr, page, 0]));
    // Two lines, as what follows.
    hostile.write(10, 0, &[]);
    (0..64).for_each(|_| node.poll());
    let arrived = |found: &mut Vec<u8>| theirs.read_at(0, found) && *found == source;
    if arrived(&mut found) {
        return true;
    }
    for at in (0..PAGE).step_by(64) {
        // A second for each line.
        let mut supply = words(&[part, at as u64, 1_000_000_000, 0, 0, 0, 0]);
        supply.extend(&source[at..at + 64]);
        hostile.write(8, 0, &supply);
    }
    node.until(&format!("put {part}"), |_| arrived(&mut found));
    false
}

#[test]
fn puts_attach_where_the_ring_is_slow_and_their_region_is_offered_in_any_case() {
    let mut node = with_attach(true, true);
    let (mut hostile, addr) = Hostile::attach_open(&mut node);
    // The next one begins at an even line, as all that follow do: none meets the ring's end.
    hostile.write(10, 0, &[]);
    let (theirs, _) = register_plain(&node, 4096);
    let is_offered = |hostile: &Hostile| hostile.half(OFFER).load(Ordering::Relaxed) != 0;
    slow_put(&mut node, &mut hostile, 1, &theirs);
    assert!(!is_offered(&hostile), "what is asked for once");
    let attached = (2..100).find(|part| slow_put(&mut node, &mut hostile, *part, &theirs));
    assert!(attached.is_some(), "a second for each line is slow");
    assert!(is_offered(&hostile), "it was asked for again");
    expect_kept(&mut node, &mut hostile, &addr, theirs);
}

/// The `part`th get of a page, by a peer that says that taking it took `nanos`. Whether the owner
/// attached.
fn slow_get(node: &mut Node, hostile: &mut Hostile, part: u64, key: u64, nanos: u64) -> bool {
    const PAGE: usize = 4096;
    let mut place = vec![0u8; PAGE];
    let addr = place.as_mut_ptr().expose_provenance() as u64;
    hostile.write(3, 0, &words(&[part, key, 0, PAGE as u64, addr, PAGE as u64, 0]));
    let (mut through_ring, mut measured) = (false, false);
    let mut is_over = |hostile: &mut Hostile| {
        while let Some((kind, payload)) = hostile.read() {
            if kind == 7 {
                (through_ring, measured) = (true, payload[16] == 1);
            }
            if kind == 5 {
                return true;
            }
        }
        false
    };
    node.until(&format!("get {part}"), |_| is_over(hostile));
    if measured {
        hostile.write(19, 0, &words(&[part, nanos, nanos]));
        // Nobody waits for these.
        hostile.write(19, 0, &words(&[part, 1, 1]));
        hostile.write(19, 0, &words(&[u64::MAX, nanos, nanos]));
    }
    !through_ring
}

#[test]
fn gets_attach_for_a_peer_that_says_it_takes_them_slowly() {
    for nanos in [1_000_000_000, u64::MAX] {
        let mut node = with_attach(true, true);
        let (mut hostile, addr) = Hostile::attach_open(&mut node);
        let (theirs, _) = register_plain(&node, 4096);
        let key = theirs.key();
        let attached = (1..100).find(|part| slow_get(&mut node, &mut hostile, *part, key, nanos));
        assert!(attached.is_some(), "{nanos} ns are slow");
        assert_ne!(hostile.half(OFFER).load(Ordering::Relaxed), 0, "it was asked for again");
        expect_kept(&mut node, &mut hostile, &addr, theirs);
    }
}

/// The first offer of the side that connected.
const THEIR_OFFER: usize = 2048;

/// A peer that offers plain memory, and an endpoint of ours that would use it.
struct Plain {
    node: Node,
    hostile: Hostile,
    addr: Addr,
    ours: LocalMem,
    key: u64,
    remote: RemoteMem,
    theirs: Box<[u8; 8192]>,
    /// Bytes that it offers.
    offered: u64,
}

impl Plain {
    fn new() -> Self {
        let mut node = with_attach(true, true);
        let (hostile, addr) = Hostile::attach_open(&mut node);
        let (ours, _) = register_plain(&node, 8192);
        // It says nothing of whose region it is.
        let (described, remote) = register_plain(&node, 8192);
        let key = described.key();
        Self { node, hostile, addr, ours, key, remote, theirs: Box::new([7; 8192]), offered: 8192 }
    }

    /// Offers memory under the key of `remote`.
    fn offer(&mut self, key: u64, addr: u64, access: u64, generation: u32) {
        self.hostile.half(THEIR_OFFER).store(generation, Ordering::Relaxed);
        let place = access << 8 | u64::from(generation) << 32;
        self.hostile.write(18, 0, &words(&[key, place, addr, self.offered]));
        (0..64).for_each(|_| self.node.poll());
    }

    fn theirs(&self) -> u64 {
        self.theirs.as_ptr().expose_provenance() as u64
    }

    /// Returns whether a transfer ends although the owner answers nothing.
    fn is_alone(&mut self, put: bool, at: u64, len: u64) -> bool {
        let (local, remote) = (self.ours.clone(), self.remote.clone());
        let transfer = Transfer { local, local_offset: 0, remote, remote_offset: at, len };
        let op = self.node.start(put, &self.addr, transfer);
        (0..64).for_each(|_| self.node.poll());
        self.node.is_done(op)
    }
}

/// Transfers of a length that are copied under an offer before the owner is asked, to compare.
const AT_FIRST: usize = 4;

#[test]
fn a_peer_that_offers_plain_memory_is_asked_no_more_but_to_compare() {
    let mut plain = Plain::new();
    let key = plain.key;
    assert!(!plain.is_alone(false, 0, 8192), "nothing is offered");
    plain.offer(key, plain.theirs(), 3, 9);
    // This owner answers nothing: whatever is asked of it never ends.
    let alone = (0..64).filter(|_| plain.is_alone(false, 0, 8192)).count();
    assert_eq!(alone, AT_FIRST);
    let mut found = vec![0; 8192];
    assert!(plain.ours.read_at(0, &mut found) && found == [7; 8192]);
    assert!(plain.ours.write_at(0, &[3; 4096]));
    assert!(plain.is_alone(true, 4096, 4096), "a put");
    // SAFETY: the box lives, and the put is over: nobody writes there.
    let written = unsafe { plain.theirs.as_ptr().cast::<[u8; 8192]>().read_volatile() };
    assert_eq!((written[4095], written[4096]), (7, 3));
    assert!(!plain.is_alone(true, 0, 4095), "so short that a system call is dear");
    let whole = plain.ours.clone();
    let parts: Vec<Vec<u8>> = (0..128).map(|_| vec![0; 64]).collect();
    let memory = Memory::from_vecs(parts);
    plain.ours = plain.node.endpoint.register(memory, Access::ReadWrite).expect("register");
    assert!(!plain.is_alone(true, 0, 8192), "more pieces than a call can name");
    plain.ours = whole;
    assert!(plain.is_alone(true, 0, 8192), "which is no reason to ask always");
    plain.hostile.half(THEIR_OFFER).store(0, Ordering::Relaxed);
    assert!(!plain.is_alone(true, 0, 8192), "withdrawn");
    plain.offered = 8191;
    plain.offer(key, plain.theirs(), 3, 10);
    assert!(!plain.is_alone(true, 0, 8192), "beyond its end");
    assert!(plain.is_alone(true, 0, 8191));
}

#[test]
fn an_offer_of_plain_memory_allows_what_its_region_does() {
    for (access, put) in [(1, true), (2, false)] {
        let mut plain = Plain::new();
        plain.offer(plain.key, plain.theirs(), access, 9);
        assert!(!plain.is_alone(put, 0, 8192), "access {access}");
        assert!(plain.is_alone(!put, 0, 8192), "access {access}");
    }
}

#[test]
fn an_offer_of_memory_that_is_not_there_is_no_harm() {
    let mut plain = Plain::new();
    let key = plain.key;
    plain.offer(key, 8, 3, 9);
    assert!(!plain.is_alone(false, 0, 8192), "nothing is mapped there");
    plain.offer(key, plain.theirs(), 3, 10);
    assert!(!plain.is_alone(false, 0, 8192), "it has lied once");
    let asked = plain.node.recv();
    plain.hostile.write(1, 7, b"still connected");
    assert_eq!(plain.node.received(asked).0.from, plain.addr);
    let waiting = plain.node.recv_expected(&plain.addr, 9);
    plain.hostile.write(18, 0, &words(&[key, 3 << 8 | 1 << 32, u64::MAX, 2]));
    let error = plain.node.error(waiting);
    assert!(matches!(error, Error::Protocol { .. }), "{error}");
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
