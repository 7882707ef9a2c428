//! Cases about the end of operations and endpoints: cancel and close.

use std::sync::mpsc;

use super::Case;
use super::node::{Node, contents, drive, finish, greet, pattern};
use crate::{Access, Completion, Error, Memory, OpId, Tag, Transfer};

/// A canceled receive ends once, with its buffer; its message goes to the next receive.
pub fn canceled_receives_end_once(case: &Case<'_>) {
    let (target, origin) = Node::pair(case);
    let (to_target, to_origin) = greet(&origin, &target);
    let ops = [target.recv_unexpected(), target.recv_expected(&to_origin, 5)];
    for op in ops {
        target.endpoint.cancel(op);
        target.endpoint.cancel(op);
    }
    finish(&[&target, &origin], "canceled receives", &ops);
    for op in ops {
        match target.take(op) {
            Completion::Recv { buf, result: Err(Error::Canceled), .. } => {
                assert_eq!(buf.capacity(), target.endpoint.alloc_msg().capacity());
            }
            other => panic!("not canceled: {other:?}"),
        }
    }
    let again = [target.recv_unexpected(), target.recv_expected(&to_origin, 5)];
    origin.send_unexpected(&to_target, 1, b"a");
    origin.send_expected(&to_target, 5, b"b");
    finish(&[&target, &origin], "receives after the cancel", &again);
    assert_eq!(target.received(again[0]).1, b"a");
    assert_eq!(target.received(again[1]).1, b"b");
}

/// Canceled sends end once, canceled or sent, even when the peer takes nothing. Messages that were
/// sent arrive, whole and in order, and canceled ones do not.
pub fn canceled_sends_end_once(case: &Case<'_>) {
    const COUNT: u32 = 4000;
    let (target, origin) = Node::pair(case);
    let (to_target, to_origin) = greet(&origin, &target);
    let bytes = pattern(1, origin.endpoint.limits().unexpected_bytes_max);
    let sends: Vec<_> =
        (0..COUNT).map(|number| origin.send_unexpected(&to_target, number, &bytes)).collect();
    origin.poll();
    sends.iter().for_each(|op| origin.endpoint.cancel(*op));
    // Only the origin polls: a cancel needs nobody's help.
    finish(&[&origin], "canceled sends", &sends);
    let (mut sent, mut canceled) = (0, 0);
    for op in sends {
        match origin.take(op) {
            Completion::Send { buf, result, .. } => {
                assert_eq!(buf.len(), bytes.len());
                match result {
                    Ok(()) => sent += 1,
                    Err(Error::Canceled) => canceled += 1,
                    Err(error) => panic!("neither sent nor canceled: {error}"),
                }
            }
            other => panic!("not a send: {other:?}"),
        }
    }
    // An expected message marks the end of what still arrives, and a second one, behind all that
    // was sent, that no more does.
    let mut receives = vec![target.recv_unexpected()];
    for tag in [1, 2] {
        origin.send_expected(&to_target, tag, b"end");
        let end = target.recv_expected(&to_origin, tag);
        drive(&[&target, &origin], "the messages that were sent", || {
            if target.is_done(receives[receives.len() - 1]) {
                receives.push(target.recv_unexpected());
            }
            target.is_done(end) && receives.len() > sent
        });
    }
    assert_eq!(receives.len(), sent + 1, "what was canceled does not arrive");
    let mut last = None;
    for op in receives.into_iter().filter(|op| target.is_done(*op)) {
        let (arrival, got) = target.received(op);
        assert!(got == bytes, "a message that arrives is whole");
        assert!(last < Some(arrival.tag.0), "and in order");
        last = Some(arrival.tag.0);
    }
    // libfabric's TCP takes whatever it is given.
    let takes_all = origin.endpoint.transport() == "ofi";
    assert!(canceled > 0 || takes_all, "a peer that takes nothing leaves something to cancel");
}

/// Canceled transfers end once; afterwards nothing writes to our memory.
pub fn canceled_transfers_end_once(case: &Case<'_>) {
    const LEN: usize = 4 << 20;
    let (target, origin) = Node::pair(case);
    let (to_target, _) = greet(&origin, &target);
    let remote = target.register(pattern(1, LEN), Access::ReadWrite);
    let described = target.described_to(&origin, &remote);
    for polls_before in [0, 1, 5, 50] {
        let local = origin.register(vec![0; LEN], Access::ReadWrite);
        let transfer = || Transfer {
            local: local.clone(),
            local_offset: 0,
            remote: described.clone(),
            remote_offset: 0,
            len: LEN as u64,
        };
        let ops: Vec<OpId> = (0..8).map(|_| origin.get(&to_target, transfer())).collect();
        for _ in 0..polls_before {
            origin.poll();
            target.poll();
        }
        ops.iter().for_each(|op| origin.endpoint.cancel(*op));
        finish(&[&origin, &target], "canceled gets", &ops);
        let outcomes: Vec<_> = ops.iter().map(|op| origin.outcome(*op)).collect();
        assert!(outcomes.iter().all(|end| matches!(end, Ok(()) | Err(Error::Canceled))));
        // The memory is ours again: what is left of the gets must not write to it.
        assert!(local.write_at(0, &vec![9; LEN]));
        let small = origin.register(vec![0; 8], Access::ReadWrite);
        let after = origin.get(&to_target, Transfer { local: small, len: 8, ..transfer() });
        finish(&[&origin, &target], "a get after the cancel", &[after]);
        origin.succeeded(after);
        assert!(contents(&local).iter().all(|byte| *byte == 9));
    }
    let sink = target.register(vec![0; LEN], Access::ReadWrite);
    let local = origin.register(pattern(2, LEN), Access::ReadOnly);
    let put = || Transfer {
        local: local.clone(),
        local_offset: 0,
        remote: target.described_to(&origin, &sink),
        remote_offset: 0,
        len: LEN as u64,
    };
    let ops: Vec<OpId> = (0..8).map(|_| origin.put(&to_target, put())).collect();
    ops.iter().for_each(|op| origin.endpoint.cancel(*op));
    finish(&[&origin, &target], "canceled puts", &ops);
    for op in ops {
        assert!(matches!(origin.outcome(op), Ok(()) | Err(Error::Canceled)));
    }
    let after = origin.put(&to_target, put());
    finish(&[&origin, &target], "a put after the cancel", &[after]);
    origin.succeeded(after);
    assert!(contents(&sink) == pattern(2, LEN));
}

/// A cancel that comes too late, or for nothing, does nothing.
pub fn cancel_of_unknown_operations_is_ignored(case: &Case<'_>) {
    let (target, origin) = Node::pair(case);
    origin.endpoint.cancel(OpId(12345));
    let (to_target, _) = greet(&origin, &target);
    let received = target.recv_unexpected();
    let sent = origin.send_unexpected(&to_target, 1, b"x");
    drive(&[&target, &origin], "a message", || target.is_done(received) && origin.is_done(sent));
    origin.endpoint.cancel(sent);
    target.endpoint.cancel(received);
    for _ in 0..100 {
        origin.poll();
        target.poll();
    }
    origin.succeeded(sent);
    assert_eq!(target.received(received).1, b"x");
}

/// After a close every operation completes, once, with its buffer and an error.
pub fn close_gives_every_buffer_back(case: &Case<'_>) {
    let (target, origin) = Node::pair(case);
    let (to_target, _) = greet(&origin, &target);
    let remote = target.register(vec![1; 4096], Access::ReadWrite);
    let described = target.described_to(&origin, &remote);
    let local = origin.register(vec![0; 4096], Access::ReadWrite);
    let mut receives: Vec<_> = (0..10).map(|_| origin.recv_unexpected()).collect();
    receives.extend((0..10).map(|tag| origin.recv_expected(&to_target, tag)));
    let bytes = pattern(1, origin.endpoint.limits().unexpected_bytes_max);
    let sends: Vec<_> =
        (0..10_000).map(|number| origin.send_unexpected(&to_target, number, &bytes)).collect();
    let transfer = || Transfer {
        local: local.clone(),
        local_offset: 0,
        remote: described.clone(),
        remote_offset: 0,
        len: 4096,
    };
    let mut transfers: Vec<_> = (0..400).map(|_| origin.get(&to_target, transfer())).collect();
    transfers.extend((0..400).map(|_| origin.put(&to_target, transfer())));
    origin.endpoint.close();
    origin.endpoint.close();
    finish(&[&origin], "closed receives", &receives);
    finish(&[&origin], "closed sends", &sends);
    finish(&[&origin], "closed transfers", &transfers);
    let mut unsent = 0;
    for op in receives {
        assert!(matches!(origin.outcome(op), Err(Error::Closed)));
    }
    for op in sends {
        match origin.take(op) {
            Completion::Send { buf, result, .. } => {
                assert_eq!(buf.len(), bytes.len());
                match result {
                    Ok(()) => {}
                    Err(Error::Closed) => unsent += 1,
                    Err(error) => panic!("neither sent nor closed: {error}"),
                }
            }
            other => panic!("not a send: {other:?}"),
        }
    }
    assert!(unsent > 0, "nobody received them");
    for op in transfers {
        assert!(matches!(origin.outcome(op), Err(Error::Closed)));
    }
}

/// After a close nothing can be started, and polling is harmless.
pub fn a_closed_endpoint_refuses(case: &Case<'_>) {
    let (target, origin) = Node::pair(case);
    let (to_target, _) = greet(&origin, &target);
    let local = origin.register(vec![1; 8], Access::ReadWrite);
    let remote = target.register(vec![1; 8], Access::ReadWrite);
    let described = target.described_to(&origin, &remote);
    origin.endpoint.close();
    let op = origin.op();
    let buf = || origin.endpoint.alloc_msg();
    let refused = [
        origin.endpoint.send_unexpected(op, &to_target, Tag(1), buf()),
        origin.endpoint.send_expected(op, &to_target, Tag(1), buf()),
        origin.endpoint.recv_unexpected(op, buf()),
        origin.endpoint.recv_expected(op, &to_target, Tag(1), buf()),
    ];
    for refused in refused.map(|result| result.expect_err("closed")) {
        assert!(matches!(refused.error, Error::Closed), "{refused}");
        assert_eq!(refused.buf.capacity(), buf().capacity());
    }
    let transfer = Transfer { local, local_offset: 0, remote: described, remote_offset: 0, len: 8 };
    let ends = [
        origin.endpoint.get(op, &to_target, transfer.clone()),
        origin.endpoint.put(op, &to_target, transfer),
        origin.endpoint.register(Memory::from_vec(vec![1]), Access::ReadOnly).map(drop),
    ];
    assert!(ends.iter().all(|end| matches!(end, Err(Error::Closed))), "{ends:?}");
    for _ in 0..10 {
        assert_eq!(origin.poll(), 0);
    }
}

/// Dropping an endpoint in the middle of its operations gives the memory back to its owners, on
/// both sides, and runs their code once.
pub fn a_drop_gives_memory_back(case: &Case<'_>) {
    const LEN: usize = 4 << 20;
    for (polls_before, drop_target_first) in [(0, false), (3, true), (30, false), (300, true)] {
        let (target, origin) = Node::pair(case);
        let (to_target, to_origin) = greet(&origin, &target);
        let (sender, released) = mpsc::channel();
        let remote = target.register(pattern(1, LEN), Access::ReadWrite);
        let described = target.described_to(&origin, &remote);
        let locals: Vec<_> =
            (0..4).map(|_| origin.register(vec![0; LEN], Access::ReadWrite)).collect();
        for (number, local) in locals.iter().enumerate() {
            let transfer = Transfer {
                local: local.clone(),
                local_offset: 0,
                remote: described.clone(),
                remote_offset: 0,
                len: LEN as u64,
            };
            match number % 2 {
                0 => origin.get(&to_target, transfer),
                _ => origin.put(&to_target, transfer),
            };
        }
        let bytes = pattern(2, origin.endpoint.limits().unexpected_bytes_max);
        for tag in 0..500 {
            origin.send_unexpected(&to_target, tag, &bytes);
            origin.recv_expected(&to_target, tag);
            target.recv_expected(&to_origin, tag);
        }
        for _ in 0..polls_before {
            origin.poll();
            target.poll();
        }
        for (number, memory) in locals.into_iter().chain([remote]).enumerate() {
            let sender = sender.clone();
            memory.revoke(move |_| sender.send(number).expect("the test waits"));
        }
        drop(sender);
        if drop_target_first {
            drop(target);
            drop(origin);
        } else {
            drop(origin);
            drop(target);
        }
        let mut back: Vec<_> = released.iter().collect();
        back.sort_unstable();
        assert_eq!(back, [0, 1, 2, 3, 4], "each once");
    }
}
