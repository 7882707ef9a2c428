//! Bulk handles and transfers.

use super::net::Refuse;
use super::*;
use crate::bulk::desc::{BulkDesc, Handles, Segment, flags};
use crate::proc::{self, WriterLimits, Written};
use crate::{Bulk, BulkOp, Writer};

/// Returns the handle as the other side sees it, when the message that brings it has `room` bytes.
fn sent_with_room(bulk: &Bulk, room: usize) -> Bulk {
    let mut writer = Writer::new(na::MsgBuf::with_capacity(room), 0, room, WriterLimits::default());
    proc::to_writer(&mut writer, bulk).unwrap();
    match writer.finish() {
        Written::Fits(buf) => proc::from_slice(buf.as_slice()).unwrap(),
        Written::Overflow(_, bytes) => proc::from_slice(&bytes).unwrap(),
    }
}

fn sent(bulk: &Bulk) -> Bulk {
    sent_with_room(bulk, 0)
}

struct Case {
    op: BulkOp,
    remote_offset: u64,
    local_offset: u64,
    len: u64,
}

fn run(
    origin: &mut Side,
    target: &mut Side,
    bulk: &Bulk,
    local: &LocalMem,
    case: &Case,
    token: u32,
) {
    let peer = target.addr_of(origin);
    let Case { op, remote_offset, local_offset, len } = *case;
    target
        .core
        .transfer(op, &peer, bulk, remote_offset, local, local_offset, len, token)
        .map_err(|refused| refused.0)
        .unwrap();
    settle(origin, target);
    assert_eq!(*target.notes.bulks[&token].as_ref().unwrap(), len);
}

fn cut(bytes: &[u8], pieces: usize) -> Vec<Vec<u8>> {
    bytes.chunks(bytes.len().div_ceil(pieces)).map(<[u8]>::to_vec).collect()
}

#[test]
fn data_moves_across_segments_offsets_and_chunks() {
    let len = 4096usize;
    let chunked = HgOptions { bulk_chunk_bytes: 300, bulk_window: 3, ..HgOptions::default() };
    for options in [HgOptions::default(), chunked] {
        let chunk = options.bulk_chunk_bytes;
        let (mut origin, mut target) = pair_with(options);
        let (mut token, mut operations) = (0, 0);
        for (theirs, ours) in [(1, 1), (2, 1), (16, 5), (1024, 7), (3, 1024)] {
            for (remote_offset, local_offset, part) in
                [(0, 0, len), (len / 2 + 1, 0, len / 4), (len / 2 + 1, len / 4, len / 8), (5, 9, 0)]
            {
                let data = pattern(len);
                let remote = origin.expose_all(cut(&data, theirs), Access::ReadWrite);
                let bulk = sent(&origin.core.bulk_handle(&remote));
                let local = target.expose_all(cut(&vec![0; len], ours), Access::ReadOnly);
                let mut case = Case {
                    op: BulkOp::Pull,
                    remote_offset: remote_offset as u64,
                    local_offset: local_offset as u64,
                    len: part as u64,
                };
                run(&mut origin, &mut target, &bulk, &local, &case, token);
                let mut expected = vec![0; len];
                expected[local_offset..local_offset + part]
                    .copy_from_slice(&data[remote_offset..remote_offset + part]);
                assert_eq!(read(&local), expected);
                // And back, over something else.
                let ones = origin.expose_all(cut(&vec![1; len], theirs), Access::WriteOnly);
                let bulk = sent(&origin.core.bulk_handle(&ones));
                case.op = BulkOp::Push;
                run(&mut origin, &mut target, &bulk, &local, &case, token + 1);
                let mut expected = vec![1; len];
                expected[remote_offset..remote_offset + part]
                    .copy_from_slice(&data[remote_offset..remote_offset + part]);
                assert_eq!(read(&ones), expected);
                token += 2;
                operations += 2 * case.len.div_ceil(chunk).max(1);
            }
        }
        // However the two sides are cut.
        assert_eq!(target.endpoint.moves_started() as u64, operations);
        assert_eq!(target.core.counters().bulk_count, u64::from(token));
    }
}

#[test]
fn small_readable_data_travels_inside_the_handle() {
    let (mut origin, mut target) = pair();
    let data = pattern(100);
    let memory = origin.expose(data.clone(), Access::ReadOnly);
    let bulk = origin.core.bulk_handle(&memory);
    // 8 bytes of length, a descriptor of 64, the data.
    assert!(sent_with_room(&bulk, 171).eager_data().is_none());
    let eager = sent_with_room(&bulk, 172);
    assert_eq!(eager.eager_data(), Some(&data[..]));
    assert_eq!((eager.len(), eager.access()), (100, Some(Access::ReadOnly)));
    assert_eq!(sent(&eager).eager_data(), Some(&data[..]), "passed on as it came");

    let local = target.expose(vec![0; 100], Access::ReadOnly);
    let case = Case { op: BulkOp::Pull, remote_offset: 10, local_offset: 20, len: 50 };
    run(&mut origin, &mut target, &eager, &local, &case, 1);
    assert_eq!(read(&local)[20..70], data[10..60]);
    assert_eq!(target.endpoint.moves_started(), 0, "without the network");

    let secret = origin.expose(data, Access::WriteOnly);
    let secret = origin.core.bulk_handle(&secret);
    assert!(sent_with_room(&secret, 4096).eager_data().is_none());
    let shared = origin.expose(pattern(100), Access::ReadWrite);
    let shared = origin.core.bulk_handle(&shared);
    assert!(sent_with_room(&shared, 4096).eager_data().is_none(), "it may be written meanwhile");
    drop(memory);
    assert!(sent_with_room(&bulk, 4096).eager_data().is_none(), "the memory is gone");
}

#[test]
fn embedded_data_can_be_switched_off() {
    let options = HgOptions { bulk_eager: false, ..HgOptions::default() };
    for (options, expected) in [(HgOptions::default(), true), (options, false)] {
        let (mut origin, mut target) = pair_with(options);
        let memory = origin.expose(pattern(32), Access::ReadOnly);
        let bulk = origin.core.bulk_handle(&memory);
        let to = origin.addr_of(&target);
        let encode = |writer: &mut Writer| proc::to_writer(writer, &(7u8, &bulk, "after"));
        origin.core.forward(&to, SUM, ForwardOptions::default(), encode, 1).unwrap();
        let request = arrive(&mut origin, &mut target);
        let (seven, received, after) =
            proc::from_slice::<(u8, Bulk, &str)>(request.payload()).unwrap();
        assert_eq!((seven, after), (7, "after"));
        assert_eq!(received.eager_data().is_some(), expected);
    }
}

#[test]
fn what_a_c_peer_embeds_of_writable_memory_can_be_written_to() {
    let (mut origin, mut target) = pair();
    let memory = origin.expose(pattern(32), Access::ReadWrite);
    let (bulk, data) = (origin.core.bulk_handle(&memory), pattern(32));
    let mut desc = BulkDesc::from_bytes(bulk.as_bytes()).unwrap();
    desc.flags |= flags::EAGER;
    desc.eager = Some(&data);
    let received = Bulk::from_bytes(&desc.to_bytes()).unwrap();
    assert_eq!(received.eager_data(), Some(&data[..]));
    let local = target.expose(vec![9; 32], Access::ReadOnly);
    let case = Case { op: BulkOp::Push, remote_offset: 0, local_offset: 0, len: 32 };
    run(&mut origin, &mut target, &received, &local, &case, 2);
    assert_eq!(read(&memory), [9; 32]);
}

#[test]
fn null_and_empty_handles_move_nothing() {
    let (mut origin, mut target) = pair();
    let empty = origin.expose(Vec::new(), Access::ReadOnly);
    let local = target.expose(vec![0; 8], Access::ReadOnly);
    let case = Case { op: BulkOp::Pull, remote_offset: 0, local_offset: 8, len: 0 };
    for (token, bulk) in [(1, Bulk::null()), (2, origin.core.bulk_handle(&empty))] {
        let bulk = sent(&bulk);
        assert!(bulk.is_empty());
        assert_eq!(bulk.is_null(), token == 1);
        run(&mut origin, &mut target, &bulk, &local, &case, token);
    }
}

#[test]
fn what_cannot_be_is_refused_at_once() {
    let (origin, target) = pair();
    let local = target.expose(vec![0; 100], Access::ReadWrite);
    let peer = target.addr_of(&origin);
    let handle = |access| sent(&origin.core.bulk_handle(&origin.expose(vec![0; 100], access)));
    let (both, to_read, to_write) =
        (handle(Access::ReadWrite), handle(Access::ReadOnly), handle(Access::WriteOnly));
    let refused = |op, bulk: &Bulk, remote_offset, local_offset, len| {
        let started =
            target.core.transfer(op, &peer, bulk, remote_offset, &local, local_offset, len, 1);
        let (error, token) = *started.unwrap_err();
        assert!(matches!(error, HgError::Bulk(_)), "{error}");
        assert_eq!((token, target.core.in_flight()), (1, 0));
    };
    refused(BulkOp::Pull, &both, 1, 0, 100);
    refused(BulkOp::Pull, &both, 0, 1, 100);
    refused(BulkOp::Pull, &both, u64::MAX, 0, 2);
    refused(BulkOp::Push, &both, 0, u64::MAX, 2);
    refused(BulkOp::Push, &to_read, 0, 0, 1);
    refused(BulkOp::Pull, &to_write, 0, 0, 1);
    refused(BulkOp::Pull, &Bulk::null(), 0, 0, 1);
}

#[test]
fn the_owner_has_the_last_word() {
    let (mut origin, mut target) = pair();
    let memory = origin.expose(pattern(64), Access::ReadOnly);
    let bulk = sent(&origin.core.bulk_handle(&memory));
    drop(memory);
    let local = target.expose(vec![0; 64], Access::ReadWrite);
    let peer = target.addr_of(&origin);
    target.core.transfer(BulkOp::Pull, &peer, &bulk, 0, &local, 0, 64, 1).unwrap();
    settle(&mut origin, &mut target);
    let error = target.notes.bulks[&1].as_ref().unwrap_err();
    assert!(matches!(error, HgError::Na(na::Error::Denied { .. })), "{error}");
}

/// Memory as C describes it on transports without vectors: a handle for each segment.
fn per_segment(origin: &Side, pieces: &[LocalMem]) -> Bulk {
    let handles: Vec<_> =
        pieces.iter().map(|memory| origin.endpoint.mem_to_bytes(memory)).collect();
    let desc = BulkDesc {
        len: pieces.iter().map(LocalMem::len).sum(),
        flags: flags::READ | flags::WRITE,
        segments: pieces.iter().map(|m| Segment { base: 0x1000, len: m.len() }).collect(),
        handles: Handles::PerSegment(handles.iter().map(|h| Some(&h[..])).collect()),
        sm_handles: None,
        binding: None,
        eager: None,
    };
    Bulk::from_bytes(&desc.to_bytes()).unwrap()
}

#[test]
fn a_handle_for_each_segment_is_cut_there() {
    let (mut origin, mut target) = pair();
    let data = pattern(1000);
    let pieces: Vec<_> = [&data[..1], &data[1..1], &data[1..600], &data[600..]]
        .into_iter()
        .map(|piece| origin.expose(piece.to_vec(), Access::ReadWrite))
        .collect();
    let bulk = per_segment(&origin, &pieces);
    let local = target.expose(vec![0; 1000], Access::ReadWrite);
    for (token, (offset, len)) in
        [(0, 1000), (0, 1), (1, 599), (600, 400), (599, 2), (1000, 0)].into_iter().enumerate()
    {
        let case = Case { op: BulkOp::Pull, remote_offset: offset, local_offset: offset, len };
        run(&mut origin, &mut target, &bulk, &local, &case, token as u32);
    }
    assert_eq!(read(&local), data);
    let partial = Case { op: BulkOp::Push, remote_offset: 590, local_offset: 0, len: 20 };
    run(&mut origin, &mut target, &bulk, &local, &partial, 50);
    assert_eq!(read(&pieces[2])[589..], data[..10]);
    assert_eq!(read(&pieces[3])[..10], data[10..20]);
}

#[test]
fn a_partial_failure_ends_the_transfer_once_after_all_of_it() {
    let options = HgOptions { bulk_chunk_bytes: 10, bulk_window: 4, ..HgOptions::default() };
    let (mut origin, mut target) = pair_with(options);
    let peer = target.addr_of(&origin);
    let first = origin.expose(pattern(40), Access::ReadWrite);
    let second = origin.expose(pattern(40), Access::ReadWrite);
    let bulk = per_segment(&origin, &[first.clone(), second]);
    // The second segment's memory is gone: its pieces are denied.
    let local = target.expose(vec![0; 80], Access::ReadWrite);
    target.core.transfer(BulkOp::Pull, &peer, &bulk, 0, &local, 0, 80, 1).unwrap();
    settle(&mut origin, &mut target);
    let error = target.notes.bulks[&1].as_ref().unwrap_err();
    assert!(matches!(error, HgError::Na(na::Error::Denied { .. })), "{error}");

    // The network refuses a later piece: the earlier ones are waited for.
    let bulk = per_segment(&origin, std::slice::from_ref(&first));
    target.endpoint.freeze_moves(true);
    target.endpoint.refuse_after(Refuse::Transfer, 2);
    target.core.transfer(BulkOp::Pull, &peer, &bulk, 0, &local, 0, 40, 2).unwrap();
    settle(&mut origin, &mut target);
    assert_eq!((target.core.in_flight(), target.notes.bulks.len()), (1, 1));
    target.endpoint.freeze_moves(false);
    settle(&mut origin, &mut target);
    let error = target.notes.bulks[&2].as_ref().unwrap_err();
    assert!(matches!(error, HgError::Na(na::Error::InvalidArgument(_))), "{error}");

    // It refuses the very first: nothing was started.
    target.endpoint.refuse(Refuse::Transfer);
    let refused = target.core.transfer(BulkOp::Pull, &peer, &bulk, 0, &local, 0, 40, 3);
    assert!(matches!(*refused.unwrap_err(), (HgError::Na(na::Error::InvalidArgument(_)), 3)));
    assert_eq!(target.core.in_flight(), 0);
}

#[test]
fn a_canceled_transfer_ends_when_the_memory_is_quiet() {
    let options = HgOptions { bulk_chunk_bytes: 10, bulk_window: 2, ..HgOptions::default() };
    let (mut origin, mut target) = pair_with(options);
    let peer = target.addr_of(&origin);
    let memory = origin.expose(pattern(100), Access::ReadWrite);
    let bulk = sent(&origin.core.bulk_handle(&memory));
    let local = target.expose(vec![0; 100], Access::ReadWrite);
    target.endpoint.freeze_moves(true);
    let op = target.core.transfer(BulkOp::Pull, &peer, &bulk, 0, &local, 0, 100, 1).unwrap();
    target.core.cancel(op);
    settle(&mut origin, &mut target);
    assert!(target.notes.bulks.is_empty(), "two pieces may still be written");
    target.endpoint.freeze_moves(false);
    settle(&mut origin, &mut target);
    assert!(matches!(target.notes.bulks[&1], Err(HgError::Canceled)));
    assert_eq!(target.endpoint.moves_started(), 2, "no further piece");
    // Not frozen, the network ends the pieces at once.
    let op = target.core.transfer(BulkOp::Pull, &peer, &bulk, 0, &local, 0, 100, 2).unwrap();
    target.core.cancel(op);
    settle(&mut origin, &mut target);
    assert!(matches!(target.notes.bulks[&2], Err(HgError::Canceled)));
    assert_eq!(target.core.in_flight(), 0);
}

#[test]
fn a_descriptor_without_memory_is_an_error_not_a_success() {
    let (origin, target) = pair();
    let desc = BulkDesc {
        len: 64,
        flags: flags::READ,
        segments: vec![Segment { base: 0, len: 64 }],
        handles: Handles::One(None),
        sm_handles: None,
        binding: None,
        eager: None,
    };
    let bulk = Bulk::from_bytes(&desc.to_bytes()).unwrap();
    let local = target.expose(vec![0; 64], Access::ReadWrite);
    let peer = target.addr_of(&origin);
    let refused = target.core.transfer(BulkOp::Pull, &peer, &bulk, 0, &local, 0, 64, 1);
    assert!(matches!(*refused.unwrap_err(), (HgError::Bulk(_), 1)));
}

#[test]
fn other_formats_say_that_they_cannot() {
    let (origin, _target) = pair();
    let bulk = origin.core.bulk_handle(&origin.expose(vec![0; 8], Access::ReadOnly));
    let error = serde_json::to_string(&bulk).unwrap_err().to_string();
    assert!(error.contains("RPC arguments"), "{error}");
    let error = serde_json::from_str::<Bulk>("[1, 2]").unwrap_err().to_string();
    assert!(error.contains("RPC arguments"), "{error}");
}
