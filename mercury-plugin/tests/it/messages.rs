//! Messages, their order and their bounds; operations that are misused.

use na_plugin_margo::abi::NaInitInfo;

use super::mercury::{BUSY, CANCELED, HOST_UNREACH, MSG_SIZE, OK, OVERFLOW, Side, call, pairs};

const MAX: usize = 4096;

#[test]
fn a_request_comes_with_its_sender_and_the_answer_goes_back() {
    for (a, b) in pairs() {
        let to = a.addr_of(&b);
        let (ask, answered, served, answer) = (a.op(), a.op(), b.op(), b.op());
        let (mut room, mut room_of_answer) = (vec![0; MAX], vec![0; MAX]);
        for (tag, len) in [(0, 1), (7, 100), (i32::MAX as u32, MAX)] {
            let request: Vec<u8> = (0..len).map(|at| at as u8).collect();
            assert_eq!(b.receive(&mut room, served), OK);
            assert_eq!(a.receive_from(&mut room_of_answer, to, tag, answered), OK);
            assert_eq!(a.send(true, &request, to, tag, ask), OK);
            assert_eq!((a.next(&[&b]).op, 0), (ask.addr(), OK));
            let end = b.next(&[&a]);
            assert_eq!((end.op, end.ret, end.bytes, end.tag), (served.addr(), OK, len, tag));
            assert_eq!(room[..len], request);

            assert_eq!(b.send(false, &request[..1], end.source(), tag, answer), OK);
            let end_of_answer = a.next(&[&b]);
            assert_eq!((end_of_answer.op, end_of_answer.ret), (answered.addr(), OK));
            assert_eq!((end_of_answer.bytes, room_of_answer[0]), (1, request[0]));
            assert_eq!(b.next(&[&a]).op, answer.addr());
            b.free(&[end.source()], &[]);
        }
        a.free(&[to], &[ask, answered]);
        b.free(&[], &[served, answer]);
    }
}

#[test]
fn what_is_too_long_is_refused_on_both_sides() {
    let (a, b) = (Side::open("tcp"), Side::open("tcp"));
    let (to, send, receive) = (a.addr_of(&b), a.op(), b.op());
    assert_eq!(a.send(true, &[1; MAX + 1], to, 0, send), MSG_SIZE);
    let mut small = [0; 8];
    assert_eq!(b.receive_many(&mut small, receive), OVERFLOW, "no message is sure to fit");
    assert_eq!(b.receive(&mut small, receive), OK);
    assert_eq!(a.send(true, &[1; 9], to, 0, send), OK);
    let end = b.next(&[&a]);
    assert_eq!((end.ret, end.source, small), (MSG_SIZE, 0, [0; 8]));
    a.free(&[to], &[send]);
    b.free(&[], &[receive]);
}

#[test]
fn messages_have_the_length_that_the_program_asks_for() {
    for protocol in ["sm", "tcp"] {
        let init = NaInitInfo { max_unexpected_size: 20_000, ..NaInitInfo::default() };
        let a = Side::open_with(protocol, "", init, true).unwrap();
        assert_eq!(call!(msg_get_max_unexpected_size(a.class())), 20_000);
        assert_eq!(call!(msg_get_max_expected_size(a.class())), 20_000);
        let init = NaInitInfo { max_expected_size: usize::MAX, ..NaInitInfo::default() };
        assert!(Side::open_with(protocol, "", init, true).is_err());
    }
}

#[test]
fn one_receive_takes_many_messages_until_its_buffer_is_full() {
    for (a, b) in pairs() {
        let (to, receive) = (a.addr_of(&b), b.op());
        let mut room = vec![0_u64; 3 * MAX / 8];
        let start = room.as_ptr().addr();
        // SAFETY: memory of the vector, which is not used otherwise before the end.
        let room = unsafe { std::slice::from_raw_parts_mut(room.as_mut_ptr().cast(), 3 * MAX) };
        assert_eq!(b.receive_many(room, receive), OK);
        let sends: Vec<_> = (0..400_u32).map(|_| a.op()).collect();
        for (tag, op) in (0..).zip(&sends) {
            assert_eq!(a.send(true, &[tag as u8; 61], to, tag, *op), OK);
        }
        let mut ends = Vec::new();
        while ends.last().is_none_or(|end: &super::mercury::End| !end.last) {
            let end = b.next(&[&a]);
            assert_eq!((end.op, end.ret, end.bytes), (receive.addr(), OK, 61));
            assert_eq!((end.tag as usize, end.message % 8), (ends.len(), 0));
            let at = end.message - start;
            assert_eq!(room[at..at + 61], [end.tag as u8; 61]);
            b.free(&[end.source()], &[]);
            ends.push(end);
        }
        // Until less than a message of the greatest length fits: 64 bytes for each.
        assert_eq!(ends.len(), (2 * MAX).div_ceil(64) + 1);
        a.free(&[to], &[]);
        b.free(&[], &[receive]);
    }
}

#[test]
fn receives_end_once_when_they_are_canceled() {
    for (a, b) in pairs() {
        let from = a.addr_of(&b);
        let mut rooms = [vec![0; MAX], vec![0; MAX], vec![0; 2 * MAX]];
        let [one, two, many] = &mut rooms;
        let ops = [a.op(), a.op(), a.op()];
        assert_eq!(a.receive(one, ops[0]), OK);
        assert_eq!(a.receive_from(two, from, 3, ops[1]), OK);
        assert_eq!(a.receive_many(many, ops[2]), OK);
        for op in ops {
            assert_eq!(call!(cancel(a.class(), a.context(), op)), OK);
            let end = a.next(&[]);
            assert_eq!((end.op, end.ret, end.last), (op.addr(), CANCELED, true));
            assert_eq!(call!(cancel(a.class(), a.context(), op)), OK, "it is over");
        }
        a.poll();
        assert_eq!(a.trigger(), None);
        a.free(&[from], &ops);
    }
}

#[test]
fn an_operation_is_for_one_thing_at_a_time() {
    let a = Side::open("sm");
    let op = a.op();
    let (mut one, mut other) = (vec![0; MAX], vec![0; MAX]);
    assert_eq!(a.receive(&mut one, op), OK);
    assert_eq!(a.receive(&mut other, op), BUSY);
    assert_eq!(call!(cancel(a.class(), a.context(), op)), OK);
    assert_eq!(a.next(&[]).ret, CANCELED);
    assert_eq!(a.receive(&mut other, op), OK, "it may be used again");
    // Dropped while it is under way: it ends unheard, also when the class is finalised.
    a.free(&[], &[op]);
    a.poll();
    assert_eq!(a.trigger(), None);
}

#[test]
fn who_waits_for_a_peer_that_ends_is_told() {
    for (a, b) in pairs() {
        let (to, send, receive) = (a.addr_of(&b), a.op(), a.op());
        let mut room = vec![0; MAX];
        assert_eq!(a.receive_from(&mut room, to, 1, receive), OK);
        assert_eq!(a.send(true, b"are you there", to, 1, send), OK);
        assert_eq!(a.next(&[&b]).op, send.addr());
        drop(b);
        let end = a.next(&[]);
        assert_eq!((end.op, end.ret), (receive.addr(), HOST_UNREACH));
        a.free(&[to], &[send, receive]);
    }
}

#[test]
fn operations_under_way_do_not_outlive_their_class() {
    for protocol in ["sm", "tcp", "all"] {
        let a = Side::open(protocol);
        let mut room = vec![0; MAX];
        let op = a.op();
        assert_eq!(a.receive(&mut room, op), OK);
        drop(a);
        let b = Side::open(protocol);
        // It is idle, and belongs to no class.
        b.free(&[], &[op]);
    }
    let other = Side::open("sm");
    assert!(call!(has_opt_feature(other.class(), 1)));
    assert!(!call!(has_opt_feature(other.class(), 2)));
}
