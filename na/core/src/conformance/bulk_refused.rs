//! Cases about transfers that must not happen, and about memory that must come back.

use std::sync::mpsc;

use super::Case;
use super::node::{Node, bytes_of, contents, drive, finish, pattern};
use crate::{Access, DeniedReason, Error, LocalMem, RemoteMem, Transfer};

const LEN: u64 = 4096;

fn whole(local: &LocalMem, remote: &RemoteMem) -> Transfer {
    Transfer {
        local: local.clone(),
        local_offset: 0,
        remote: remote.clone(),
        remote_offset: 0,
        len: LEN,
    }
}

fn denied(error: &Error) -> DeniedReason {
    match error {
        Error::Denied { reason, .. } => *reason,
        other => panic!("not a denial: {other}"),
    }
}

/// Ranges that leave the local memory or contradict the description start nothing.
pub fn wrong_local_ranges_are_refused_at_once(case: &Case<'_>) {
    let (target, origin) = Node::pair(case);
    let to_target = origin.addr_of(&target);
    let remote = target.register(vec![1; LEN as usize], Access::ReadWrite);
    let described = target.described_to(&origin, &remote);
    let local = origin.register(vec![2; LEN as usize], Access::ReadWrite);
    let spans = [(1, 0, LEN), (0, 1, LEN), (u64::MAX, 0, 2), (0, u64::MAX, 2), (0, 0, u64::MAX)];
    for (local_offset, remote_offset, len) in spans {
        let transfer =
            || Transfer { local_offset, remote_offset, len, ..whole(&local, &described) };
        let op = origin.op();
        for result in [
            origin.endpoint.get(op, &to_target, transfer()),
            origin.endpoint.put(op, &to_target, transfer()),
        ] {
            let error = result.expect_err("out of range");
            assert!(matches!(error, Error::InvalidArgument(_)), "{error}");
        }
    }
    let foreign = target.endpoint.self_addr();
    let error = origin.endpoint.get(origin.op(), &foreign, whole(&local, &described));
    assert!(matches!(error, Err(Error::InvalidArgument(_))), "foreign address: {error:?}");
    assert!(origin.endpoint.mem_from_bytes(b"no such thing").is_err());
    assert_eq!(contents(&local), [2; LEN as usize]);
}

/// The owner checks access and range itself: a forged description helps nobody.
pub fn the_owner_denies_what_was_not_granted(case: &Case<'_>) {
    let (target, origin) = Node::pair(case);
    let to_target = origin.addr_of(&target);
    let local = origin.register(vec![2; LEN as usize], Access::ReadWrite);
    for (access, put) in [(Access::ReadOnly, true), (Access::WriteOnly, false)] {
        let remote = target.register(vec![1; LEN as usize], access);
        let honest = target.described_to(&origin, &remote);
        let start = |remote: &RemoteMem, remote_offset, len| {
            let transfer = Transfer { remote_offset, len, ..whole(&local, remote) };
            let op = origin.op();
            let result = match put {
                true => origin.endpoint.put(op, &to_target, transfer),
                false => origin.endpoint.get(op, &to_target, transfer),
            };
            result.map(|()| op)
        };
        let error = start(&honest, 0, LEN).expect_err("the description says that it is denied");
        assert!(matches!(error, Error::InvalidArgument(_)), "{error}");

        let forged = RemoteMem { access: Access::ReadWrite, ..honest.clone() };
        for len in [LEN, 0] {
            let op = start(&forged, 0, len).expect("looks right from here");
            finish(&[&origin, &target], "a transfer with a forged access", &[op]);
            assert_eq!(denied(&origin.error(op)), DeniedReason::Access);
        }
        assert_eq!(contents(&remote), [1; LEN as usize]);
    }
    let remote = target.register(vec![1; LEN as usize], Access::ReadWrite);
    let honest = target.described_to(&origin, &remote);
    let forged = RemoteMem { len: u64::MAX, ..honest };
    for (remote_offset, len) in [(1, LEN), (LEN, 1), (LEN + 1, 0), (u64::MAX - 8, 8)] {
        let transfer = || Transfer { remote_offset, len, ..whole(&local, &forged) };
        let ops = [origin.get(&to_target, transfer()), origin.put(&to_target, transfer())];
        finish(&[&origin, &target], "transfers with a forged length", &ops);
        for op in ops {
            assert_eq!(denied(&origin.error(op)), DeniedReason::OutOfRange);
        }
    }
    assert_eq!(contents(&remote), [1; LEN as usize]);
    assert_eq!(contents(&local), [2; LEN as usize]);
    // The peers still understand each other.
    let forged_honestly = RemoteMem { len: LEN, ..forged };
    let got = origin.get(&to_target, whole(&local, &forged_honestly));
    finish(&[&origin, &target], "an honest transfer", &[got]);
    origin.succeeded(got);
    assert_eq!(contents(&local), [1; LEN as usize]);
}

/// A key that was guessed, or that was taken back, opens nothing.
pub fn the_owner_denies_unknown_keys(case: &Case<'_>) {
    let (target, origin) = Node::pair(case);
    let to_target = origin.addr_of(&target);
    let local = origin.register(vec![2; LEN as usize], Access::ReadWrite);
    let remote = target.register(vec![1; LEN as usize], Access::ReadWrite);
    let honest = target.described_to(&origin, &remote);
    let forged = RemoteMem { key: honest.key ^ 1, ..honest.clone() };
    let (sender, released) = mpsc::channel();
    remote.revoke(move |memory| sender.send(memory).expect("the test waits"));
    let ops = [
        origin.get(&to_target, whole(&local, &forged)),
        origin.put(&to_target, whole(&local, &forged)),
        origin.get(&to_target, whole(&local, &honest)),
        origin.put(&to_target, whole(&local, &honest)),
    ];
    finish(&[&origin, &target], "transfers with bad keys", &ops);
    for op in ops {
        let error = origin.error(op);
        assert_eq!(denied(&error), DeniedReason::NoSuchKey);
        assert!(error.never_arrived());
    }
    let memory = released.try_recv().expect("given back");
    assert_eq!(bytes_of(&memory), [1; LEN as usize]);
    assert_eq!(contents(&local), [2; LEN as usize]);
}

/// Revoking during transfers gives the memory back once, after the last of them.
pub fn memory_comes_back_after_the_transfer_in_flight(case: &Case<'_>) {
    const LARGE: usize = 8 << 20;
    for polls_before in [0, 1, 10, 100, 1000] {
        let (target, origin) = Node::pair(case);
        let to_target = origin.addr_of(&target);
        let remote = target.register(pattern(1, LARGE), Access::ReadWrite);
        let described = target.described_to(&origin, &remote);
        let local = origin.register(vec![0; LARGE], Access::ReadWrite);
        let transfer = Transfer { len: LARGE as u64, ..whole(&local, &described) };
        let got = origin.get(&to_target, transfer);
        for _ in 0..polls_before {
            origin.poll();
            target.poll();
        }
        let (sender, released) = mpsc::channel();
        let local_sender = sender.clone();
        remote.revoke(move |memory| sender.send(("remote", memory)).expect("the test waits"));
        local.revoke(move |memory| local_sender.send(("local", memory)).expect("the test waits"));
        finish(&[&origin, &target], "a get of revoked memory", &[got]);
        let outcome = origin.outcome(got);

        let mut back = Vec::new();
        drive(&[&origin, &target], "both memories", || {
            back.extend(released.try_iter());
            back.len() == 2
        });
        back.sort_by_key(|(name, _)| *name);
        let mut bytes = back.into_iter().map(|(_, memory)| bytes_of(&memory));
        let (local, remote) = (bytes.next().expect("local"), bytes.next().expect("remote"));
        assert!(remote == pattern(1, LARGE));
        match outcome {
            Ok(()) => assert!(local == remote, "a transfer that succeeded is complete"),
            Err(error) => assert_eq!(denied(&error), DeniedReason::NoSuchKey),
        }
    }
}
