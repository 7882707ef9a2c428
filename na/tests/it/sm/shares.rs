//! Transfers of the sm transport of which each side copies a half, where both may attach to the
//! other.

use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;

use na::{Access, Addr, Error, LocalMem, Memory, OpId, RemoteMem, Transfer};

use crate::common::sm::*;

/// Longer than what one side attaches for alone.
const LEN: usize = 128 << 10;
const HALF: usize = LEN / 2;

/// The word by which the side that connected says that it copies in the other's memory.
const GATE: usize = 640;

/// The word of the slots that it has emptied.
const LANE: usize = 1280;

const COPY_FAILED: u64 = 4;
const CANCELED: u64 = 5;

fn word(payload: &[u8], index: usize) -> u64 {
    u64::from_le_bytes(payload[8 * index..8 * index + 8].try_into().expect("eight bytes"))
}

/// Returns the present contents of memory that others have written. None of them writes any more.
fn seen(memory: &[u8]) -> Vec<u8> {
    // SAFETY: references that live.
    memory.iter().map(|byte| unsafe { std::ptr::from_ref(byte).read_volatile() }).collect()
}

/// A region in one piece.
fn plain(node: &Node, len: usize, fill: u8) -> (LocalMem, RemoteMem) {
    register(node, Memory::from_vec(vec![fill; len]), Access::ReadWrite)
}

fn read(memory: &LocalMem, offset: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    assert!(memory.read_at(offset as u64, &mut bytes), "in the region");
    bytes
}

/// An owner of ours, and a requester by hand: memory of the owner holds 1, that of the requester 2.
struct Owner {
    node: Node,
    hostile: Hostile,
    addr: Addr,
    theirs: LocalMem,
    place: Vec<u8>,
    part: u64,
    /// Slots of the lane.
    emptied: u32,
}

impl Owner {
    fn new() -> Self {
        let mut node = with_attach(true, true);
        let (mut hostile, addr) = Hostile::attach_open(&mut node);
        // The next one begins at an even line, as all that follow do: none meets the ring's end.
        hostile.write(10, 0, &[]);
        let (theirs, _) = plain(&node, LEN, 1);
        Self { node, hostile, addr, theirs, place: vec![2; LEN], part: 0, emptied: 0 }
    }

    /// The next record, which comes in time.
    fn next(&mut self) -> (u8, Vec<u8>) {
        let mut found = None;
        let hostile = &mut self.hostile;
        self.node.until("a record", |_| {
            found = hostile.read();
            found.is_some()
        });
        found.expect("just seen")
    }

    fn ask(&mut self, put: bool) {
        let addr = self.place.as_ptr().expose_provenance() as u64;
        self.ask_at(put, addr);
    }

    /// Asks for a transfer with memory that the requester claims to have at `addr`.
    fn ask_at(&mut self, put: bool, addr: u64) {
        self.part += 1;
        let len = LEN as u64;
        let key = self.theirs.key();
        let request = words(&[self.part, key, 0, len, addr, len, 0]);
        self.hostile.write(if put { PUT } else { GET }, 0, &request);
        // Two lines, as what follows.
        self.hostile.write(10, 0, &[]);
    }

    /// Asks until a transfer is shared; what the share says. Through the ring copying is slow.
    fn shared(&mut self, put: bool) -> (u64, u64) {
        for _ in 0..200 {
            if let Some(shared) = self.asked(put) {
                return shared;
            }
        }
        panic!("a second for each line is slow, and nothing is shared");
    }

    /// Asks; what the share says, or `None` after the end of the transfer.
    fn asked(&mut self, put: bool) -> Option<(u64, u64)> {
        self.ask(put);
        let part = self.part;
        let mut measured = false;
        loop {
            let (kind, payload) = self.next();
            match kind {
                SHARE => {
                    assert_eq!(word(&payload, 0), part);
                    return Some((word(&payload, 1), word(&payload, 2)));
                }
                PULL => self.supply(part),
                LANE_DATA => {
                    measured |= word(&payload, 4) == 1;
                    self.emptied += (word(&payload, 3) as u32).div_ceil(SLOT as u32);
                    self.hostile.half(LANE).store(self.emptied, Ordering::Release);
                }
                DONE => {
                    assert_eq!((word(&payload, 0), word(&payload, 1)), (part, 0));
                    if measured {
                        self.hostile.write(TAKEN, 0, &words(&[part, 1 << 40, 1 << 40]));
                        self.hostile.write(10, 0, &[]);
                    }
                    return None;
                }
                _ => {}
            }
        }
    }

    /// Sends the data of a put in pieces of two lines, while the owner takes them.
    fn supply(&mut self, part: u64) {
        for at in (0..LEN).step_by(64) {
            let mut supply = words(&[part, at as u64, 1 << 40, 0, 0, 0, 0]);
            supply.extend(&self.place[at..at + 64]);
            self.hostile.write(SUPPLY, 0, &supply);
            if at % 4096 == 0 {
                (0..4).for_each(|_| self.node.poll());
            }
        }
    }

    /// Returns whether the transfer has written all of the first half, and all of the second.
    fn written(&self, put: bool) -> (bool, bool) {
        let (found, new) = match put {
            true => (read(&self.theirs, 0, LEN), 2),
            false => (seen(&self.place), 1),
        };
        let all = |half: &[u8]| half.iter().all(|byte| *byte == new);
        (all(&found[..HALF]), all(&found[HALF..]))
    }

    /// Puts both memories back to what they held at first.
    fn renew(&mut self) {
        self.place.fill(2);
        assert!(self.theirs.write_at(0, &[1; LEN]));
    }

    /// The owner has copied its half, and says nothing.
    fn expect_waiting(&mut self, put: bool) {
        let mut silent = true;
        let hostile = &mut self.hostile;
        (0..5000).for_each(|_| {
            self.node.poll();
            while let Some((kind, _)) = hostile.read() {
                silent &= !matches!(kind, DONE | LANE_DATA | PULL);
            }
        });
        assert!(silent, "an answer while we copy");
        assert_eq!(self.written(put), (false, true), "put: {put}");
    }

    fn finish(&mut self, status: u64) {
        self.hostile.write(FINISHED, 0, &words(&[self.part, status, 1000]));
        self.hostile.write(10, 0, &[]);
    }

    #[track_caller]
    fn expect_done(&mut self, status: u64) {
        loop {
            let (kind, payload) = self.next();
            assert!(!matches!(kind, LANE_DATA | PULL | SHARE), "record {kind}");
            if kind == DONE {
                assert_eq!((word(&payload, 0), word(&payload, 1)), (self.part, status));
                return;
            }
        }
    }

    /// Asks until a transfer is shared, with the memories as at first.
    fn shared_anew(&mut self, put: bool) -> (u64, u64) {
        self.shared(put);
        self.finish(0);
        self.expect_done(0);
        self.renew();
        self.asked(put).expect("and the next one is shared too")
    }
}

#[test]
fn the_owner_does_its_half_and_waits_for_the_other() {
    for put in [false, true] {
        let mut owner = Owner::new();
        let (addr, len) = owner.shared_anew(put);
        let start = owner.theirs.segments()[0].ptr.expose_provenance() as u64;
        assert_eq!((addr, len), (start, HALF as u64));
        owner.expect_waiting(put);
        owner.finish(0);
        owner.expect_done(0);
        assert_eq!(owner.written(put), (false, true), "the first half was ours to copy");
    }
}

#[test]
fn what_the_requester_cannot_do_the_owner_does_and_shares_no_more() {
    for put in [false, true] {
        let mut owner = Owner::new();
        owner.shared_anew(put);
        owner.expect_waiting(put);
        owner.finish(1);
        owner.expect_done(0);
        assert_eq!(owner.written(put), (true, true), "put: {put}");
        owner.renew();
        // Attaching goes on, as it is the faster way.
        owner.ask(put);
        owner.expect_done(0);
        assert_eq!(owner.written(put), (true, true), "put: {put}");
    }
}

#[test]
fn a_requester_that_cannot_says_so_before_the_owner_is_done_with_its_half() {
    let mut owner = Owner::new();
    owner.shared(false);
    owner.finish(0);
    owner.expect_done(0);
    owner.renew();
    owner.ask(false);
    // In one look at the ring with the request.
    owner.finish(1);
    owner.node.until("the share", |_| {
        let record = owner.hostile.read();
        record.is_some_and(|(kind, _)| kind == SHARE)
    });
    owner.expect_done(0);
    assert_eq!(owner.written(false), (true, true));
}

#[test]
fn a_shared_transfer_can_be_given_up() {
    for put in [false, true] {
        let mut owner = Owner::new();
        owner.shared_anew(put);
        owner.expect_waiting(put);
        owner.hostile.write(CANCEL, 0, &words(&[owner.part]));
        owner.hostile.write(10, 0, &[]);
        owner.expect_done(CANCELED);
        // It may have finished meanwhile: that is about nothing any more.
        owner.finish(0);
        owner.renew();
        owner.asked(put).expect("a share");
    }
}

#[test]
fn a_half_that_fails_is_told_when_the_other_is_over() {
    for (put, status) in [(false, 0), (true, 0), (false, 1)] {
        let mut owner = Owner::new();
        owner.shared_anew(put);
        owner.finish(0);
        owner.expect_done(0);
        // Nothing is mapped there.
        owner.ask_at(put, 1 << 12);
        let mut kinds = Vec::new();
        let hostile = &mut owner.hostile;
        (0..5000).for_each(|_| {
            owner.node.poll();
            kinds.extend(hostile.read().map(|(kind, _)| kind).filter(|kind| *kind != 11));
        });
        assert_eq!(kinds, [SHARE], "put: {put}");
        owner.finish(status);
        owner.expect_done(COPY_FAILED);
    }
}

#[test]
fn an_unknown_end_of_a_share_ends_the_connection() {
    let mut owner = Owner::new();
    owner.shared(false);
    let waiting = owner.node.recv_expected(&owner.addr, 9);
    owner.finish(2);
    let error = owner.node.error(waiting);
    assert!(matches!(error, Error::Protocol { .. }), "{error}");
}

/// The owner's memory is not given back while the requester may copy there.
#[test]
fn the_owner_keeps_shared_memory_until_it_is_finished_or_the_peer_is_gone() {
    for finishes in [false, true] {
        let mut owner = Owner::new();
        owner.shared_anew(true);
        owner.expect_waiting(true);
        owner.hostile.half(GATE).store(1, Ordering::SeqCst);
        let (sender, released) = channel();
        let theirs = std::mem::replace(&mut owner.theirs, plain(&owner.node, LEN, 1).0);
        theirs.revoke(move |memory| sender.send(memory).expect("the test waits"));
        if !finishes {
            // A breach: the connection ends, and with it what was granted.
            owner.hostile.commit(u64::MAX);
            owner.node.until("the end", |_| owner.hostile.is_closed());
        }
        (0..5000).for_each(|_| owner.node.poll());
        assert!(released.try_recv().is_err(), "somebody copies there");
        owner.hostile.half(GATE).store(0, Ordering::SeqCst);
        if finishes {
            (0..5000).for_each(|_| owner.node.poll());
            assert!(released.try_recv().is_err(), "it may go on any time");
            owner.finish(0);
            owner.expect_done(0);
        }
        owner.node.until("the memory", |_| released.try_recv().is_ok());
    }
}

/// A requester of ours, and an owner by hand, whose memory holds 1; the requester's holds 2.
struct Requester {
    node: Node,
    hostile: Hostile,
    addr: Addr,
    ours: LocalMem,
    remote: RemoteMem,
    theirs: Vec<u8>,
}

impl Requester {
    fn new(attach: bool) -> Self {
        let mut node = with_attach(attach, true);
        let (hostile, addr) = Hostile::attach_open(&mut node);
        let (ours, _) = plain(&node, LEN, 2);
        let remote = RemoteMem { key: 1, len: LEN as u64, access: Access::ReadWrite, native: None };
        Self { node, hostile, addr, ours, remote, theirs: vec![1; LEN] }
    }

    fn theirs(&self) -> u64 {
        self.theirs.as_ptr().expose_provenance() as u64
    }

    /// Starts a transfer of all; its part.
    fn start(&mut self, put: bool) -> (OpId, u64) {
        let (local, remote) = (self.ours.clone(), self.remote.clone());
        let len = LEN as u64;
        let transfer = Transfer { local, local_offset: 0, remote, remote_offset: 0, len };
        let op = self.node.start(put, &self.addr, transfer);
        let request = self.next(if put { PUT } else { GET });
        (op, word(&request, 0))
    }

    /// The next record of that kind.
    #[track_caller]
    fn next(&mut self, wanted: u8) -> Vec<u8> {
        let mut found = None;
        let hostile = &mut self.hostile;
        self.node.until(&format!("record {wanted}"), |_| {
            found = hostile.read().filter(|(kind, _)| *kind == wanted);
            found.is_some()
        });
        found.expect("just seen").1
    }

    fn say(&mut self, kind: u8, said: &[u64]) {
        self.hostile.write(kind, 0, &words(said));
    }

    /// The halves of the memory that a transfer writes, first bytes.
    fn written(&self, put: bool) -> (u8, u8) {
        match put {
            false => (read(&self.ours, 0, 1)[0], read(&self.ours, HALF, 1)[0]),
            true => {
                let place = seen(&self.theirs);
                (place[HALF - 1], place[HALF])
            }
        }
    }
}

#[test]
fn the_requester_copies_what_it_is_let_and_no_more() {
    for put in [false, true] {
        let mut requester = Requester::new(true);
        let (op, part) = requester.start(put);
        requester.say(SHARE, &[part, requester.theirs(), HALF as u64]);
        let finished = requester.next(FINISHED);
        assert_eq!((word(&finished, 0), word(&finished, 1)), (part, 0));
        assert_ne!(word(&finished, 2), 0, "it says how long that took");
        assert!(!requester.node.is_done(op), "the other half is the owner's");
        assert_eq!(requester.written(put), if put { (2, 1) } else { (1, 2) });
        requester.say(DONE, &[part, 0]);
        let requester = &mut requester;
        requester.node.until("the end", |node| node.is_done(op));
    }
}

#[test]
fn a_requester_that_cannot_attach_says_so() {
    for (attaches, addr) in [(false, None), (true, Some(8))] {
        let mut requester = Requester::new(attaches);
        let (op, part) = requester.start(false);
        let addr = addr.unwrap_or(requester.theirs());
        requester.say(SHARE, &[part, addr, HALF as u64]);
        let finished = requester.next(FINISHED);
        assert_eq!((word(&finished, 0), word(&finished, 1)), (part, 1), "at {addr}");
        assert_eq!(requester.written(false), (2, 2), "nothing was copied");
        requester.say(DONE, &[part, 0]);
        requester.node.until("the end", |node| node.is_done(op));
    }
}

#[test]
fn a_share_that_comes_after_a_cancel_is_not_used() {
    let mut requester = Requester::new(true);
    let (op, part) = requester.start(true);
    requester.node.endpoint.cancel(op);
    requester.next(CANCEL);
    requester.say(SHARE, &[part, requester.theirs(), HALF as u64]);
    requester.say(DONE, &[part, CANCELED]);
    assert!(matches!(requester.node.error(op), Error::Canceled));
    assert_eq!(requester.written(true), (1, 1));
    assert!(requester.hostile.read().is_none(), "nothing to finish");
}

#[test]
fn shares_that_make_no_sense_end_the_connection() {
    let half = HALF as u64;
    type Said = fn(u64, u64, u64) -> Vec<(u8, Vec<u64>)>;
    let cases: [(&str, Said); 8] = [
        ("of nothing", |part, addr, _| vec![(SHARE, vec![part, addr, 0])]),
        ("of all", |part, addr, half| vec![(SHARE, vec![part, addr, 2 * half])]),
        ("of another part", |part, addr, half| vec![(SHARE, vec![part + 1, addr, half])]),
        ("of impossible memory", |part, _, half| vec![(SHARE, vec![part, u64::MAX, half])]),
        ("too short", |part, addr, _| vec![(SHARE, vec![part, addr])]),
        ("twice", |part, addr, half| vec![(SHARE, vec![part, addr, half]); 2]),
        ("done before it is finished", |part, addr, half| {
            vec![(SHARE, vec![part, addr, half]), (DONE, vec![part, 0])]
        }),
        ("data beside it", |part, addr, half| {
            let data = vec![part, 0, 0, 0, 0, 0, 0, 1];
            vec![(SHARE, vec![part, addr, half]), (7, data)]
        }),
    ];
    for (what, said) in cases {
        let mut requester = Requester::new(true);
        let (op, part) = requester.start(false);
        for (kind, said) in said(part, requester.theirs(), half) {
            requester.say(kind, &said);
        }
        let error = requester.node.error(op);
        assert!(matches!(error, Error::Protocol { .. }), "{what}: {error}");
    }
    let mut requester = Requester::new(true);
    let (op, part) = requester.start(true);
    requester.say(SHARE, &[part, requester.theirs(), half]);
    requester.say(PULL, &[part, 0]);
    let error = requester.node.error(op);
    assert!(matches!(error, Error::Protocol { .. }), "a pull beside it: {error}");
}

/// The owner lets copy once, so it can make us refuse once.
#[test]
fn what_was_refused_does_not_come_again() {
    const GRANT: u8 = 12;
    for (kind, said) in [(SHARE, [8, HALF as u64]), (GRANT, [7, 0])] {
        let mut requester = Requester::new(false);
        let (op, part) = requester.start(false);
        requester.say(kind, &[part, said[0], said[1]]);
        let refused = requester.next(FINISHED);
        assert_eq!((word(&refused, 0), word(&refused, 1)), (part, 1));
        assert!(!requester.node.is_done(op));
        requester.say(kind, &[part, said[0], said[1]]);
        let error = requester.node.error(op);
        assert!(matches!(error, Error::Protocol { .. }), "record {kind}: {error}");
    }
}

/// The owner may wait for us with the other parts: it is told that nothing comes.
#[test]
fn the_other_parts_of_a_transfer_that_was_denied_are_given_up() {
    const GRANT: u8 = 12;
    for (kind, put) in [(PULL, true), (SHARE, true), (SHARE, false), (GRANT, false)] {
        let mut requester = Requester::new(true);
        // More pieces than one part holds.
        let (local, _) = pieces(&requester.node, &[2; LEN], 65);
        let (remote, len) = (requester.remote.clone(), LEN as u64);
        let transfer = Transfer { local, local_offset: 0, remote, remote_offset: 0, len };
        let op = requester.node.start(put, &requester.addr, transfer);
        let asked = if put { PUT } else { GET };
        let (first, second) = (requester.next(asked), requester.next(asked));
        let (first, second) = (word(&first, 0), word(&second, 0));
        requester.say(DONE, &[first, COPY_FAILED]);
        assert_eq!(word(&requester.next(CANCEL), 0), second);
        // What was said before that was heard.
        let said = match kind {
            PULL => vec![second, 0],
            SHARE => vec![second, requester.theirs(), 8],
            _ => vec![second, 7, 0],
        };
        requester.say(kind, &said);
        assert!(!requester.node.is_done(op), "a part is open");
        requester.say(DONE, &[second, CANCELED]);
        let error = requester.node.error(op);
        assert!(matches!(error, Error::Denied { .. }), "record {kind}: {error}");
    }
}

/// Bytes that tell where they are.
fn pattern(len: usize, seed: usize) -> Vec<u8> {
    // It repeats; to make each byte by itself takes seconds where nothing is optimised.
    let period: Vec<_> = (0..251).map(|at| ((at + seed) * 31 % 251) as u8).collect();
    let mut bytes = period.repeat(len.div_ceil(251));
    bytes.truncate(len);
    bytes
}

/// A region of those bytes in so many pieces.
fn pieces(node: &Node, bytes: &[u8], count: usize) -> (LocalMem, RemoteMem) {
    let pieces = bytes.chunks(bytes.len().div_ceil(count)).map(<[u8]>::to_vec).collect();
    register(node, Memory::from_vecs(pieces), Access::ReadWrite)
}

/// Long transfers between two of ours are right, whichever way they take and however their memory
/// is cut; those of one piece are shared now and then, at least while the ways are compared.
#[test]
fn long_transfers_are_right_in_all_ways() {
    let mut owner = with_attach(true, true);
    let mut requester = with_attach(true, false);
    let to_owner = connected(&mut requester, &mut owner);
    for (len, count) in [(HALF + 1, 1), (LEN + 7, 3), (300_001, 100), (1 << 20, 1), (3 << 20, 70)] {
        for put in [false, true] {
            for round in 0..if len > 1 << 20 { 12 } else { 40 } {
                let (new, old) = (pattern(len, round), vec![0xee; len]);
                let (from, to) = if put { (&new, &old) } else { (&old, &new) };
                let (ours, _) = pieces(&requester, from, count);
                let (theirs, remote) = pieces(&owner, to, 1 + round % 2);
                let (local, offset) = (ours.clone(), 5 * (round as u64 % 3));
                let transfer = Transfer {
                    local,
                    local_offset: offset,
                    remote,
                    remote_offset: offset,
                    len: len as u64 - offset,
                };
                let op = requester.start(put, &to_owner, transfer);
                requester.transferred(op, &mut owner).expect("a transfer");
                let written = if put { &theirs } else { &ours };
                let offset = offset as usize;
                let found = read(written, offset, len - offset);
                assert!(found == new[offset..], "{len} bytes, put: {put}, round {round}");
                assert!(read(written, 0, offset).iter().all(|byte| *byte == 0xee), "before it");
            }
        }
    }
}
