//! One transfer of more than 4 GiB, between memory that consists of the same few MiB again and
//! again; and one in as many segments as it likes.

use crate::bulk_support::{Bed, Mover, Node, Transport, contents, pattern};
use margo::hg::{Bulk, BulkOp, HgOptions, proc};
use na::{Access, LocalMem, Memory, RawSegment};

/// Bytes that are there, and how often they are used.
const BLOCK: usize = 16 << 20;
const TIMES: usize = 256;
/// Bytes after the first 4 GiB.
const TAIL: usize = (1 << 20) + 3;

/// The segments of `memory`: its first is repeated.
fn repeated(node: &Node, block: Vec<u8>, tail: Vec<u8>) -> LocalMem {
    let mut owner = [block, tail];
    let [block, tail] =
        owner.each_mut().map(|bytes| RawSegment { ptr: bytes.as_mut_ptr(), len: bytes.len() });
    let mut segments = vec![block; TIMES];
    segments.push(tail);
    // SAFETY:
    // - valid at fixed addresses: vectors that `owner` keeps and nobody resizes;
    // - no reference to their bytes exists while they are registered.
    let memory = unsafe { Memory::from_raw(segments, owner) };
    node.core.endpoint().register(memory, Access::ReadWrite).unwrap()
}

fn more_than_4_gib(transport: Transport) {
    let mut bed = Bed::new(transport, false, HgOptions::default());
    // Both sides copy it, on perhaps one processor.
    bed.patience *= 5;
    let lent = repeated(&bed.nodes[0], pattern(BLOCK, 0), pattern(TAIL, 5));
    let len = (TIMES * BLOCK + TAIL) as u64;
    let bulk = bed.nodes[0].core.bulk_handle(&lent);
    assert_eq!((bulk.len(), bulk.segment_count()), (len, TIMES + 1));
    let request = bed.deliver(0, 1, &bulk, 1);
    let received: Bulk = proc::from_slice(request.payload()).unwrap();
    let local = repeated(&bed.nodes[1], vec![0; BLOCK], vec![0; TAIL]);
    let owner = request.origin().clone();
    let whole = Mover {
        op: BulkOp::Pull,
        bulk: &received,
        remote_offset: 0,
        local: &local,
        local_offset: 0,
        len,
        owner: Some(&owner),
    };
    assert_eq!(bed.transfer(1, &whole).unwrap(), len);
    let mut found = vec![0; BLOCK];
    assert!(local.read_at(0, &mut found));
    assert!(found == pattern(BLOCK, 0));
    found.truncate(TAIL);
    assert!(local.read_at((TIMES * BLOCK) as u64, &mut found));
    assert!(found == pattern(TAIL, 5));

    // At offsets that 32 bits do not hold, over the border of the last segment.
    let border = (TIMES * BLOCK) as u64;
    assert!(local.write_at(border - 2, &[1, 2, 3, 4, 5]));
    let part = Mover {
        op: BulkOp::Push,
        remote_offset: border - 1,
        local_offset: border - 2,
        len: 5,
        ..whole
    };
    assert_eq!(bed.transfer(1, &part).unwrap(), 5);
    let mut found = [0; 5];
    assert!(lent.read_at(border - 1, &mut found));
    assert_eq!(found, [1, 2, 3, 4, 5]);
    let beyond = Mover { remote_offset: border + 4, len: TAIL as u64, ..part };
    bed.transfer(1, &beyond).unwrap_err();
    bed.answer(request, 0);
    bed.end();
}

// Slow: more than 4 GiB are copied.
#[test]
fn more_than_4_gib_over_sm() {
    more_than_4_gib(Transport::Sm);
}

// Slow: more than 4 GiB go through the kernel.
#[test]
fn more_than_4_gib_over_tcp() {
    more_than_4_gib(Transport::Tcp);
}

/// In virtual time; only the copies take time of ours.
// Slow: more than 4 GiB are copied.
#[test]
fn more_than_4_gib_over_sim() {
    more_than_4_gib(Transport::Sim);
}

/// However many segments there are, a handle is short and a transfer is one.
#[test]
fn a_hundred_thousand_segments() {
    for transport in [Transport::Sm, Transport::Tcp, Transport::Sim] {
        let mut bed = Bed::new(transport, false, HgOptions::default());
        let data = pattern(300_000, 0);
        let pieces: Vec<Vec<u8>> = data.chunks(3).map(<[u8]>::to_vec).collect();
        let lent = bed.nodes[0].expose(pieces, Access::ReadOnly);
        let bulk = bed.nodes[0].core.bulk_handle(&lent);
        assert!(bulk.as_bytes().len() < 100, "peers do not need the segmentation");
        let request = bed.deliver(0, 1, &bulk, 1);
        let received: Bulk = proc::from_slice(request.payload()).unwrap();
        let zeros = vec![vec![0; 7]; 300_000 / 7 + 1];
        let local = bed.nodes[1].expose(zeros, Access::ReadOnly);
        let owner = request.origin().clone();
        let mover = Mover {
            op: BulkOp::Pull,
            bulk: &received,
            remote_offset: 0,
            local: &local,
            local_offset: 1,
            len: 300_000,
            owner: Some(&owner),
        };
        bed.transfer(1, &mover).unwrap();
        assert!(contents(&local)[1..300_001] == data);
        bed.answer(request, 0);
        bed.end();
    }
}
