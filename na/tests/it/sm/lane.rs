//! Bulk data through the lane, where neither side may attach to the other.

use std::os::fd::AsFd;

use crate::common::sm::*;
use na::{Access, AllocOptions, Error, LocalMem, Memory, Transfer};

const SLOTS: usize = 128;

/// The block that the hostile peer announces as its lane.
const BLOCK: u64 = 1;

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| ((at + seed) % 251) as u8).collect()
}

fn contents(memory: &LocalMem, offset: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    assert!(memory.read_at(offset as u64, &mut bytes));
    bytes
}

#[test]
fn transfers_of_all_lengths_go_around_the_lane() {
    const LEN: usize = 3 << 20;
    let (mut owner, mut requester) = (with_attach(false, true), with_attach(false, false));
    let to_owner = connected(&mut requester, &mut owner);
    let theirs = registered(&owner, LEN, Access::ReadWrite);
    let remote = requester.endpoint.mem_from_bytes(&owner.endpoint.mem_to_bytes(&theirs)).unwrap();
    let local = registered(&requester, LEN, Access::ReadWrite);
    // One slot, parts of one, several records of one slot and of four, the whole lane and more; in
    // an order in which the end of the lane comes at another place of a transfer each time.
    let lens =
        [SLOT, 4097, 3 * SLOT + 1, 4 * SLOT, 4 * SLOT + 1, 100, 1 << 20, SLOT - 1, LEN, 7 * SLOT];
    for round in 0..30 {
        let len = lens[round * 7 % lens.len()];
        let offset = round * 1000 % (LEN - len + 1);
        for (put, source, sink) in [(true, &local, &theirs), (false, &theirs, &local)] {
            let sent = pattern(len, round);
            assert!(source.write_at(offset as u64, &sent));
            assert!(sink.write_at(offset as u64, &vec![0; len]));
            let transfer = Transfer {
                local: local.clone(),
                local_offset: offset as u64,
                remote: remote.clone(),
                remote_offset: offset as u64,
                len: len as u64,
            };
            let op = requester.start(put, &to_owner, transfer);
            requester.transferred(op, &mut owner).unwrap();
            assert!(contents(sink, offset, len) == sent, "round {round}: {len} bytes, put {put}");
        }
    }
}

/// A peer that opens a lane may have to say first that a block exists no more.
#[test]
fn a_lane_is_opened_behind_the_end_of_a_block() {
    const LEN: usize = 1 << 20;
    let (mut owner, mut requester) = (with_attach(false, true), with_attach(false, false));
    let to_owner = connected(&mut requester, &mut owner);
    let local = registered(&requester, LEN, Access::ReadWrite);
    let mut get = |owner: &mut Node, theirs: &LocalMem| {
        let described = owner.endpoint.mem_to_bytes(theirs);
        let remote = requester.endpoint.mem_from_bytes(&described).unwrap();
        let op = requester.start(false, &to_owner, whole(&local, &remote));
        requester.transferred(op, owner).unwrap();
    };
    // It is granted: the owner announces the block.
    let memory = Memory::alloc(2 * SLOT, &AllocOptions::default()).unwrap();
    let shared = owner.endpoint.register(memory, Access::ReadOnly).unwrap();
    get(&mut owner, &shared);
    drop(shared.reclaim().unwrap());
    let theirs = registered(&owner, LEN, Access::ReadOnly);
    assert!(theirs.write_at(0, &pattern(LEN, 1)));
    get(&mut owner, &theirs);
    assert!(contents(&local, 0, LEN) == pattern(LEN, 1));
}

/// A peer that puts `len` bytes into memory of `node`, and was asked for them.
fn pulled(node: &mut Node, memory: &LocalMem, len: u64) -> (Hostile, na::Addr) {
    let (mut peer, addr) = Hostile::attach(node);
    let lane = memfd(SLOT * SLOTS, true);
    for slot in 0..SLOTS {
        let filled = [slot as u8; SLOT];
        assert_eq!(rustix::io::pwrite(&lane, &filled, (slot * SLOT) as u64), Ok(SLOT));
    }
    let announcement = words(&[u64::from(b'B'), BLOCK, 4096, (SLOT * SLOTS) as u64]);
    send_packet(&peer.socket, &announcement, &[lane.as_fd()]);
    // Part, key, offset, length; one piece: address, length, no block.
    write(&mut peer, PUT, &[7, memory.key(), 0, len, 4096, len, 0]);
    assert_eq!(answer(node, &mut peer), (PULL, 7));
    (peer, addr)
}

fn write(peer: &mut Hostile, kind: u8, words: &[u64]) {
    let payload: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    peer.write(kind, 0, &payload);
}

/// Returns the next record of the node: its kind and its first word.
fn answer(node: &mut Node, peer: &mut Hostile) -> (u8, u64) {
    let mut came = None;
    node.until("a record", |_| {
        came = peer.read();
        came.is_some()
    });
    let (kind, payload) = came.unwrap();
    (kind, u64::from_le_bytes(payload[..8].try_into().unwrap()))
}

#[test]
fn slots_are_taken_as_a_record_counts_them() {
    let mut node = listening();
    let len = 9 * SLOT + 5;
    let memory = registered(&node, len, Access::ReadWrite);
    let (mut peer, _) = pulled(&mut node, &memory, len as u64);
    // Four whole slots, a part of one, which takes it all, and the rest.
    let mut expected = Vec::new();
    let mut slot = 0;
    for bytes in [4 * SLOT, 100, 3 * SLOT + 1, SLOT + SLOT - 100 + 4] {
        let words = [7, expected.len() as u64, BLOCK, bytes as u64, 0];
        write(&mut peer, LANE_SUPPLY, &words);
        expected.extend((0..bytes).map(|at| (slot + at / SLOT) as u8));
        slot += bytes.div_ceil(SLOT);
    }
    assert_eq!(expected.len(), len);
    assert_eq!(answer(&mut node, &mut peer), (DONE, 7));
    assert!(contents(&memory, 0, len) == expected);
}

#[test]
fn who_announces_slots_that_cannot_be_is_left() {
    let all = (SLOTS * SLOT) as u64;
    let four = 4 * SLOT as u64;
    for (what, before, bytes) in [
        ("more than four", 0, four + 1),
        ("far more", 0, all),
        ("more than there are", 0, all + 1),
        ("as many as can be", 0, u64::MAX),
        ("none", 0, 0),
        ("beyond the last", SLOTS - 4, four + 1),
        ("around the end", SLOTS - 2, four),
    ] {
        let mut node = listening();
        let memory = registered(&node, 2 * SLOT * SLOTS, Access::ReadWrite);
        let (mut peer, addr) = pulled(&mut node, &memory, 2 * all);
        let waiting = node.recv_expected(&addr, 9);
        let mut sent = 0;
        for _ in 0..before {
            write(&mut peer, LANE_SUPPLY, &[7, sent, BLOCK, SLOT as u64, 0]);
            sent += SLOT as u64;
            // Not more than the ring holds.
            node.poll();
        }
        assert!(!node.is_done(waiting), "{what}");
        write(&mut peer, LANE_SUPPLY, &[7, sent, BLOCK, bytes, 0]);
        let error = node.error(waiting);
        assert!(matches!(error, Error::Protocol { .. }), "{what}: {error}");
        assert!(error.to_string().contains("beyond its lane"), "{what}: {error}");
        node.until("the end of the connection", |_| peer.is_closed());
        node.still_serves();
    }
}
