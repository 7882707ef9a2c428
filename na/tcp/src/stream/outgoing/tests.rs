//! Unit tests of the frames for one peer.

use super::*;
use na_core::{Access, Memory, RegionTable};
use prim::sync::Arc;
use std::io::Read;
use std::os::unix::net::UnixStream;

/// A line that does not block, and its other end.
fn lines() -> (Line, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    (Line::new(Arc::new(ours.into()), None), theirs)
}

fn message(text: &[u8]) -> MsgBuf {
    let mut buf = MsgBuf::with_capacity(64);
    assert!(buf.try_extend(text));
    buf
}

fn sent(harvest: &Harvest) -> Vec<u64> {
    let ops = harvest.completions.iter().map(|completion| match completion {
        Completion::Send { op, result: Ok(()), .. } => op.0,
        other => panic!("not sent: {other:?}"),
    });
    ops.collect()
}

/// Reads frames until `frames` are complete: (kind, number, payload).
fn frames(stream: &mut UnixStream, frames: usize) -> Vec<(Kind, u64, Vec<u8>)> {
    let mut out = Vec::new();
    for _ in 0..frames {
        let mut header = [0; HEADER_BYTES];
        stream.read_exact(&mut header).unwrap();
        let header = Header::decode(&header, 1 << 20).unwrap();
        let mut payload = vec![0; header.len as usize];
        stream.read_exact(&mut payload).unwrap();
        out.push((header.kind, header.number, payload));
    }
    out
}

#[test]
fn messages_leave_in_order_and_complete() {
    let (mut ours, mut theirs) = lines();
    let mut out = Outgoing::default();
    let mut harvest = Harvest::default();
    for op in 0..100 {
        out.push_message(Kind::Expected, OpId(op), Tag(op as u32), message(&[op as u8]));
    }
    assert_eq!(out.flush(&mut ours, &mut harvest, || ()).unwrap(), Flushed::All);
    assert_eq!(sent(&harvest), (0..100).collect::<Vec<_>>());
    for (at, (kind, number, payload)) in frames(&mut theirs, 100).into_iter().enumerate() {
        assert_eq!((kind, number, payload), (Kind::Expected, at as u64, vec![at as u8]));
    }
}

#[test]
fn packed_messages_keep_their_place_among_the_others() {
    let (mut ours, mut theirs) = lines();
    let mut out = Outgoing::default();
    let mut harvest = Harvest::default();
    let mut expected = Vec::new();
    for number in 0..20u8 {
        let (bytes, tag) = ([number; 5], Tag(number.into()));
        // A message that is waited for closes the packed frame in front of it.
        if number % 4 == 3 {
            out.push_message(Kind::Unexpected, OpId(number.into()), tag, message(&bytes));
            assert!(!out.push_packed(Kind::Unexpected, tag, &bytes), "behind a message");
            assert_eq!(out.flush(&mut ours, &mut harvest, || ()).unwrap(), Flushed::All);
        } else {
            assert!(out.push_packed(Kind::Expected, tag, &bytes));
        }
        expected.push((u64::from(number), bytes.to_vec()));
    }
    assert_eq!(sent(&harvest), [3, 7, 11, 15, 19]);
    assert!(out.is_empty());
    let got = frames(&mut theirs, 20).into_iter().map(|(_, number, bytes)| (number, bytes));
    assert_eq!(got.collect::<Vec<_>>(), expected);
}

#[test]
fn packed_messages_are_few_and_arrive_whole_when_the_socket_is_full() {
    let (mut ours, mut theirs) = lines();
    let mut out = Outgoing::default();
    let mut harvest = Harvest::default();
    assert!(!out.push_packed(Kind::Expected, Tag(0), &[0; COPY_BYTES_MAX + 1]), "too long");
    let (mut taken, mut blocked) = (0, false);
    while !blocked {
        while out.push_packed(Kind::Expected, Tag(taken), &[taken as u8; 300]) {
            taken += 1;
        }
        assert!(out.queue.len() == 1 && out.queue[0].len <= PACKED_BYTES_MAX);
        blocked = out.flush(&mut ours, &mut harvest, || ()).unwrap() == Flushed::Blocked;
    }
    let reader = std::thread::spawn(move || frames(&mut theirs, taken as usize));
    while out.flush(&mut ours, &mut harvest, || ()).unwrap() != Flushed::All {
        std::thread::yield_now();
    }
    for (at, (_, number, bytes)) in reader.join().unwrap().into_iter().enumerate() {
        assert_eq!((number, bytes), (at as u64, vec![at as u8; 300]));
    }
    assert!(harvest.completions.is_empty(), "nobody waits for them");
}

#[test]
fn chunks_of_several_transfers_take_turns_and_release_their_memory() {
    let (mut ours, mut theirs) = lines();
    let table = RegionTable::new();
    let len = CHUNK_BYTES * 2 + 10;
    let mut out = Outgoing::default();
    for number in 0..2u8 {
        let pieces = vec![vec![number; 100]; len / 100 + 1];
        let memory = table.register(Memory::from_vecs(pieces), Access::ReadOnly).unwrap();
        let data = Data { number: number.into(), memory: &memory, offset: 2, len: len as u64 };
        out.push_bulk(Kind::GetData, data);
    }
    let reader = std::thread::spawn(move || frames(&mut theirs, 6));
    let (mut harvest, mut cut) = (Harvest::default(), 0);
    loop {
        match out.flush(&mut ours, &mut harvest, || cut += 1).unwrap() {
            Flushed::All => break,
            Flushed::Blocked => std::thread::yield_now(),
            Flushed::More => {}
        }
    }
    assert_eq!((cut, harvest.memories.len()), (2, 6));
    harvest.memories.clear();
    assert!(table.is_empty(), "nothing holds the memory any more");
    let got = reader.join().unwrap();
    let order: Vec<_> = got.iter().map(|(_, number, bytes)| (*number, bytes.len())).collect();
    let chunk = CHUNK_BYTES;
    assert_eq!(order, [(0, chunk), (1, chunk), (0, chunk), (1, chunk), (0, 10), (1, 10)]);
    let whole = |(_, number, bytes): &(Kind, u64, Vec<u8>)| {
        bytes.iter().all(|byte| u64::from(*byte) == *number)
    };
    assert!(got.iter().all(whole));
}

/// The frames of a put of four bytes, or its data alone as those of a get.
fn short_transfer(out: &mut Outgoing, door: &mut Line, put: bool, memory: &LocalMem) -> bool {
    let data = Data { number: 5, memory, offset: 1, len: 4 };
    match put {
        true => out.send_short_put(Some(door), &[9; REQUEST_BYTES], data),
        false => out.send_short_data(Some(door), data),
    }
}

#[test]
fn what_the_socket_takes_in_part_arrives_whole() {
    let table = RegionTable::new();
    let memory = Memory::from_vec(vec![0, 1, 2, 3, 4, 5]);
    let memory = table.register(memory, Access::ReadOnly).unwrap();
    for put in [false, true] {
        let (mut ours, mut theirs) = lines();
        let mut out = Outgoing::default();
        assert!(short_transfer(&mut out, &mut ours, put, &memory));
        assert!(out.is_empty());
        let asked = if put { HEADER_BYTES + REQUEST_BYTES } else { 0 };
        let mut whole = vec![0; asked + HEADER_BYTES + 4];
        theirs.read_exact(&mut whole).unwrap();
        assert_eq!(whole[whole.len() - 4..], [1, 2, 3, 4]);
        for sent in 0..whole.len() {
            let data = Data { number: 5, memory: &memory, offset: 1, len: 4 };
            let header = whole[asked..].first_chunk().copied().unwrap();
            let request = [9; REQUEST_BYTES];
            ours.say(&whole[..sent]).unwrap();
            out.queue_rest(put.then_some(&request), header, data, sent);
            assert!(!short_transfer(&mut out, &mut ours, put, &memory), "behind the rest");
            let flushed = out.flush(&mut ours, &mut Harvest::default(), || ()).unwrap();
            assert_eq!((flushed, out.data_queued, out.sent), (Flushed::All, 0, 0));
            let mut got = vec![0; whole.len()];
            theirs.read_exact(&mut got).unwrap();
            assert_eq!(got, whole, "after {sent} bytes");
        }
    }
    drop(memory);
    assert!(table.is_empty(), "nothing holds the memory any more");
}

#[test]
fn short_transfers_wait_behind_a_full_socket() {
    let table = RegionTable::new();
    let memory = table.register(Memory::from_vec(vec![3; 8]), Access::ReadOnly).unwrap();
    let (mut ours, mut theirs) = lines();
    let mut out = Outgoing::default();
    let mut count = 0usize;
    while out.is_empty() {
        assert!(short_transfer(&mut out, &mut ours, count.is_multiple_of(2), &memory));
        count += 1;
    }
    assert_eq!(out.flush(&mut ours, &mut Harvest::default(), || ()).unwrap(), Flushed::Blocked);
    out.send_small(Some(&mut ours), Kind::Done, 6, &[0; 4]);
    assert_eq!(out.verdicts(), 1, "it is not sent");
    let wanted = count + count.div_ceil(2) + 1;
    let reader = std::thread::spawn(move || frames(&mut theirs, wanted));
    out.unblock();
    while out.flush(&mut ours, &mut Harvest::default(), || ()).unwrap() != Flushed::All {
        std::thread::yield_now();
    }
    let got = reader.join().unwrap();
    assert_eq!(got.last().map(|(kind, number, _)| (*kind, *number)), Some((Kind::Done, 6)));
}

#[test]
fn a_cancel_takes_back_what_is_unsent_and_completes_what_is_not() {
    let (mut ours, mut theirs) = lines();
    let mut out = Outgoing::default();
    let mut harvest = Harvest::default();
    let count = 20_000;
    for op in 0..count {
        out.push_message(Kind::Unexpected, OpId(op), Tag(0), message(&[9; 50]));
    }
    assert_eq!(out.flush(&mut ours, &mut harvest, || ()).unwrap(), Flushed::Blocked);
    let done = harvest.completions.len() as u64;
    assert!(done > 0 && done < count);
    let mut partial = 0;
    for op in 0..count {
        let canceled = out.cancel_send(OpId(op));
        assert_eq!(canceled.is_some(), op >= done, "{op}");
        match canceled {
            Some(Completion::Send { result: Ok(()), .. }) => partial += 1,
            Some(Completion::Send { result, .. }) => {
                assert!(matches!(result, Err(Error::Canceled)), "{result:?}")
            }
            _ => {}
        }
    }
    assert_eq!(partial, usize::from(!out.is_empty()), "what had been sent in part arrives");
    let reader = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        theirs.read_to_end(&mut bytes).unwrap();
        bytes
    });
    while out.flush(&mut ours, &mut harvest, || ()).unwrap() != Flushed::All {
        std::thread::yield_now();
    }
    drop(ours);
    let bytes = reader.join().unwrap();
    assert_eq!(bytes.len(), (done as usize + partial) * (HEADER_BYTES + 50));
}

/// The receiver may answer it.
#[test]
fn a_canceled_message_of_which_some_was_sent_was_sent() {
    let (mut ours, mut theirs) = lines();
    let bytes: Vec<u8> = (0..4 << 20).map(|at: u32| (at % 251) as u8).collect();
    let mut long = MsgBuf::with_capacity(bytes.len());
    assert!(long.try_extend(&bytes));
    let (mut out, mut harvest) = (Outgoing::default(), Harvest::default());
    out.push_message(Kind::Unexpected, OpId(1), Tag(0), long);
    out.push_message(Kind::Unexpected, OpId(2), Tag(0), message(b"not at all"));
    assert_eq!(out.flush(&mut ours, &mut harvest, || ()).unwrap(), Flushed::Blocked);
    for (op, leaves) in [(1, true), (2, false)] {
        let Some(Completion::Send { result, .. }) = out.cancel_send(OpId(op)) else {
            panic!("{op} was not queued");
        };
        assert_eq!(result.is_ok(), leaves, "{op}: {result:?}");
    }
    let reader = std::thread::spawn(move || {
        let mut got = Vec::new();
        theirs.read_to_end(&mut got).unwrap();
        got
    });
    while out.flush(&mut ours, &mut harvest, || ()).unwrap() != Flushed::All {
        std::thread::yield_now();
    }
    drop(ours);
    let got = reader.join().unwrap();
    assert!(got[HEADER_BYTES..] == bytes, "{} bytes", got.len());
}

#[test]
fn what_is_left_of_a_put_that_is_taken_back_does_not_come_from_its_memory() {
    let (mut ours, mut theirs) = lines();
    let table = RegionTable::new();
    let memory = |byte| {
        let pieces = Memory::from_vec(vec![byte; 2 * CHUNK_BYTES]);
        table.register(pieces, Access::ReadWrite).unwrap()
    };
    let (mut out, mut harvest) = (Outgoing::default(), Harvest::default());
    let put = memory(1);
    let data = Data { number: 3, memory: &put, offset: 0, len: 2 * CHUNK_BYTES as u64 };
    out.push_bulk(Kind::PutData, data);
    assert_eq!(out.flush(&mut ours, &mut harvest, || ()).unwrap(), Flushed::Blocked);
    assert!(out.sent > HEADER_BYTES, "its first frame was sent in part");
    // Whole frames, of it and of others.
    let others = memory(2);
    let queue = |out: &mut Outgoing, kind, number, memory: &LocalMem| {
        let header = Header { kind, len: 10, number }.encode();
        let data = Data { number, memory, offset: 0, len: 10 };
        let sent = out.sent;
        out.queue_rest(None, header, data, sent);
    };
    queue(&mut out, Kind::PutData, 3, &put);
    queue(&mut out, Kind::GetData, 3, &others);
    queue(&mut out, Kind::PutData, 4, &others);
    assert!(out.take_back_put(3, &mut harvest));
    assert!(!out.take_back_put(3, &mut harvest), "nothing of it is left");
    assert_eq!((harvest.memories.len(), out.data_queued), (3, 20));
    harvest.memories.clear();
    let bytes = put.reclaim().expect("nobody reads it any more");
    drop(bytes);

    let reader = std::thread::spawn(move || frames(&mut theirs, 3));
    while out.flush(&mut ours, &mut harvest, || ()).unwrap() != Flushed::All {
        std::thread::yield_now();
    }
    assert_eq!((out.data_queued, out.spare.capacity()), (0, 0), "a long copy is not kept");
    let got = reader.join().unwrap();
    let expected = [
        (Kind::PutData, 3, vec![1; CHUNK_BYTES]),
        (Kind::GetData, 3, vec![2; 10]),
        (Kind::PutData, 4, vec![2; 10]),
    ];
    assert!(
        got == expected,
        "{:?}",
        got.iter().map(|(kind, number, bytes)| (kind, number, bytes.len())).collect::<Vec<_>>()
    );
}

#[test]
fn answers_count_from_when_they_are_queued_until_they_are_gone() {
    let (mut ours, _theirs) = lines();
    let mut out = Outgoing::default();
    let mut harvest = Harvest::default();
    let push = |out: &mut Outgoing, kind, op, text: &[u8]| {
        let before = out.held();
        out.push_message(kind, OpId(op), Tag(op as u32), message(text));
        out.held() - before
    };
    let one = push(&mut out, Kind::Expected, 1, b"x");
    assert!(one >= message(b"").capacity(), "the whole buffer is taken: {one}");
    assert_eq!(push(&mut out, Kind::Unexpected, 2, b"not an answer"), 0);
    assert_eq!(push(&mut out, Kind::Expected, 3, b"longer"), one);
    assert_eq!(push(&mut out, Kind::Expected, 4, b"y"), one);
    assert!(out.cancel_send(OpId(2)).is_some() && out.held() == 3 * one);
    assert!(out.cancel_send(OpId(4)).is_some() && out.held() == 2 * one);
    out.refuse_longer_than(3, &mut harvest);
    assert_eq!(out.held(), one);
    // One of which a part was sent: what is left is a copy that nobody waits for.
    push(&mut out, Kind::Expected, 5, b"z");
    out.sent = 1;
    assert!(out.cancel_send(OpId(1)).is_some() && out.held() == one);
    out.sent = 0;
    assert_eq!(out.flush(&mut ours, &mut harvest, || ()).unwrap(), Flushed::All);
    assert_eq!(out.held(), 0);
    push(&mut out, Kind::Expected, 6, b"z");
    out.fail_all(&Error::Canceled, &mut harvest);
    assert_eq!(out.held(), 0);
}

/// A socket of which the send buffer is full.
fn full(out: &mut Outgoing) -> (Line, UnixStream, usize) {
    let (mut ours, theirs) = lines();
    let mut count = 0;
    while !out.is_blocked() {
        out.push_message(Kind::Unexpected, OpId(0), Tag(0), message(&[0; 50]));
        out.flush(&mut ours, &mut Harvest::default(), || ()).unwrap();
        count += 1;
    }
    (ours, theirs, count)
}

#[test]
fn short_answers_behind_a_full_socket_take_little_more_than_their_bytes() {
    const COUNT: u32 = 50_000;
    const MAX: usize = usize::MAX;
    let mut out = Outgoing::default();
    let (mut ours, mut theirs, first) = full(&mut out);
    let text = |tag: u32| vec![tag as u8; tag as usize % 40];
    let mut bytes = 0;
    for tag in 0..COUNT {
        let mut buf = MsgBuf::with_capacity(4096);
        assert!(buf.try_extend(&text(tag)));
        let Pushed::Copied(buf) = out.push_answer(OpId(1), Tag(tag), buf, MAX) else {
            panic!("{tag} waits in its buffer");
        };
        assert_eq!(buf.as_slice(), text(tag), "the buffer comes back as it was");
        bytes += HEADER_BYTES + buf.len();
    }
    assert!(out.held() < bytes + bytes / 8 + 2 * PIECE_BYTES_MAX, "{} for {bytes}", out.held());
    assert!(out.queue.len() < 100 + bytes / PIECE_BYTES_MAX, "{} frames", out.queue.len());
    assert_eq!(out.messages(), first as u64 + u64::from(COUNT));
    let reader = std::thread::spawn(move || frames(&mut theirs, first + COUNT as usize));
    let mut harvest = Harvest::default();
    while out.flush(&mut ours, &mut harvest, || ()).unwrap() != Flushed::All {
        std::thread::yield_now();
    }
    assert!(sent(&harvest).iter().all(|op| *op == 0), "the answers were over before");
    assert_eq!(out.held(), 0);
    for (tag, (kind, number, got)) in reader.join().unwrap().into_iter().skip(first).enumerate() {
        assert_eq!((kind, number, got), (Kind::Expected, tag as u64, text(tag as u32)));
    }
}

#[test]
fn answers_that_are_long_or_too_many_wait_in_their_buffers_and_in_order() {
    const MAX: usize = 64 << 10;
    let mut out = Outgoing::default();
    let (mut ours, mut theirs, first) = full(&mut out);
    let (mut waiting, mut packed) = (Vec::new(), 0);
    for tag in 0..500 {
        let len = if tag % 100 == 3 { 2 * COPY_BYTES_MAX } else { 200 };
        let mut buf = MsgBuf::with_capacity(len);
        assert!(buf.try_extend(&vec![tag as u8; len]));
        match out.push_answer(OpId(tag), Tag(tag as u32), buf, MAX) {
            Pushed::Copied(_) => packed += 1,
            Pushed::Waits => waiting.push(tag),
            Pushed::NoMemory(_) => panic!("there is memory"),
        }
        assert!(out.packed <= MAX + PIECE_BYTES_MAX);
    }
    assert!(waiting.contains(&3) && waiting.contains(&499) && packed > 100, "{packed} packed");
    // The peer's part of them is charged, as long as its socket is full or much is left.
    assert_eq!(out.charge(0), out.held());
    out.unblock();
    assert_eq!((out.charge(0), out.charge(1)), (0, out.held()));
    assert!(out.queue.capacity() > QUEUE_KEPT, "{} frames", out.queue.len());
    let reader = std::thread::spawn(move || frames(&mut theirs, first + 500));
    let mut harvest = Harvest::default();
    while out.flush(&mut ours, &mut harvest, || ()).unwrap() != Flushed::All {
        std::thread::yield_now();
    }
    let ended: Vec<u64> = sent(&harvest).into_iter().filter(|op| *op > 0).collect();
    assert_eq!(ended, waiting);
    assert_eq!((out.held(), out.charge(1)), (0, 0));
    assert!(out.queue.capacity() <= QUEUE_KEPT, "of a burst no room is kept");
    for (tag, (_, number, got)) in reader.join().unwrap().into_iter().skip(first).enumerate() {
        assert!(number == tag as u64 && got.iter().all(|byte| *byte == tag as u8), "{tag}");
    }
}

#[test]
fn what_ends_with_its_connection_is_not_charged() {
    let mut out = Outgoing::default();
    let _sockets = full(&mut out);
    let answer = |out: &mut Outgoing, len: usize| {
        let mut buf = MsgBuf::with_capacity(len);
        assert!(buf.try_extend(&vec![1; len]));
        out.push_answer(OpId(1), Tag(1), buf, usize::MAX)
    };
    assert!(matches!(answer(&mut out, 10), Pushed::Copied(_)));
    assert!(matches!(answer(&mut out, 2 * COPY_BYTES_MAX), Pushed::Waits));
    out.push_small(Kind::Done, 1, &[0; 4]);
    assert!(out.held() > 2 * COPY_BYTES_MAX);
    out.fail_all(&Error::Canceled, &mut Harvest::default());
    assert_eq!((out.held(), out.charge(1)), (0, 0));
}
