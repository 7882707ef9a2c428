//! Cases about transfers that succeed.

use super::Case;
use super::Random;
use super::node::{Node, contents, drive, finish, greet, pattern};
use crate::{Access, Addr, LocalMem, Memory, OpId, RemoteMem, Transfer};

pub(super) fn transfer(
    local: (&LocalMem, usize),
    remote: (&RemoteMem, usize),
    len: usize,
) -> Transfer {
    Transfer {
        local: local.0.clone(),
        local_offset: local.1 as u64,
        remote: remote.0.clone(),
        remote_offset: remote.1 as u64,
        len: len as u64,
    }
}

/// The bytes between the two offsets move, and no others; whether a peer could name the local side
/// or not.
pub fn get_and_put_move_the_named_bytes(case: &Case<'_>) {
    const LEN: usize = 10_000;
    let (target, origin) = Node::pair(case);
    let to_target = origin.addr_of(&target);
    let remote = target.register(pattern(1, LEN), Access::ReadWrite);
    let described = target.described_to(&origin, &remote);
    let spans = [(0, 0, LEN), (0, 1, 1), (17, 4099, 2001), (LEN - 1, LEN - 1, 1), (3, 0, 4096)];
    for ((local_at, remote_at, len), named) in
        spans.into_iter().flat_map(|s| [(s, true), (s, false)])
    {
        let own = |bytes, access| {
            if named {
                origin.register(bytes, access)
            } else {
                origin.register_local(bytes, access)
            }
        };
        let local = own(pattern(2, LEN), Access::WriteOnly);
        let got =
            origin.get(&to_target, transfer((&local, local_at), (&described, remote_at), len));
        finish(&[&origin, &target], "a get", &[got]);
        origin.succeeded(got);
        let mut expected = pattern(2, LEN);
        let source = contents(&remote);
        expected[local_at..local_at + len].copy_from_slice(&source[remote_at..remote_at + len]);
        assert!(contents(&local) == expected, "get {local_at} {remote_at} {len}");

        let local = own(pattern(3, LEN), Access::ReadOnly);
        let put =
            origin.put(&to_target, transfer((&local, local_at), (&described, remote_at), len));
        finish(&[&origin, &target], "a put", &[put]);
        origin.succeeded(put);
        let mut expected = source;
        expected[remote_at..remote_at + len]
            .copy_from_slice(&pattern(3, LEN)[local_at..local_at + len]);
        assert!(contents(&remote) == expected, "put {local_at} {remote_at} {len}");
    }
}

pub(super) fn in_pieces(bytes: &[u8], lengths: impl IntoIterator<Item = usize>) -> Memory {
    let mut pieces = Vec::new();
    let mut at = 0;
    for len in lengths {
        let end = (at + len).min(bytes.len());
        pieces.push(bytes[at..end].to_vec());
        at = end;
    }
    pieces.push(bytes[at..].to_vec());
    Memory::from_vecs(pieces)
}

/// Segment borders on either side, in any relation, leave no trace.
pub fn get_and_put_between_segments(case: &Case<'_>) {
    let (target, origin) = Node::pair(case);
    let to_target = origin.addr_of(&target);
    let len = 300_007;
    let layouts: [(&str, Vec<usize>); 4] = [
        ("one", vec![]),
        ("8", vec![len / 8; 7]),
        ("1024", vec![len / 1024; 1023]),
        ("odd and empty", vec![1, 0, 3, 4096, 0, 0, 65_535, 7, 2, 100_001]),
    ];
    let mut random = Random::new(5);
    for (here, local_layout) in &layouts {
        for (there, remote_layout) in &layouts {
            let remote_bytes = pattern(random.next(), len);
            let local_bytes = pattern(random.next(), len);
            let register = |node: &Node, memory| {
                node.endpoint.register(memory, Access::ReadWrite).expect("register")
            };
            let remote = register(&target, in_pieces(&remote_bytes, remote_layout.clone()));
            let local = register(&origin, in_pieces(&local_bytes, local_layout.clone()));
            let described = target.described_to(&origin, &remote);
            let (local_at, remote_at) = (random.below(1000), random.below(1000));
            let count = len - 1000 - random.below(5000);
            let got = origin
                .get(&to_target, transfer((&local, local_at), (&described, remote_at), count));
            finish(&[&origin, &target], "a get between segments", &[got]);
            origin.succeeded(got);
            let mut expected = local_bytes;
            expected[local_at..local_at + count]
                .copy_from_slice(&remote_bytes[remote_at..remote_at + count]);
            assert!(contents(&local) == expected, "get {there} -> {here}");

            let put = origin
                .put(&to_target, transfer((&local, remote_at), (&described, local_at), count));
            finish(&[&origin, &target], "a put between segments", &[put]);
            origin.succeeded(put);
            let mut changed = remote_bytes;
            changed[local_at..local_at + count]
                .copy_from_slice(&expected[remote_at..remote_at + count]);
            assert!(contents(&remote) == changed, "put {here} -> {there}");
        }
    }
}

/// 16 MiB in one operation, both ways.
pub fn large_transfers_are_complete(case: &Case<'_>) {
    const LEN: usize = 16 << 20;
    let (target, origin) = Node::pair(case);
    let to_target = origin.addr_of(&target);
    let remote = target.register(pattern(1, LEN), Access::ReadWrite);
    let described = target.described_to(&origin, &remote);
    let local = origin.register(vec![0; LEN], Access::ReadWrite);
    let got = origin.get(&to_target, transfer((&local, 0), (&described, 0), LEN));
    finish(&[&origin, &target], "a large get", &[got]);
    origin.succeeded(got);
    assert!(contents(&local) == pattern(1, LEN));

    let local = origin.register(pattern(2, LEN), Access::ReadOnly);
    let put = origin.put(&to_target, transfer((&local, 0), (&described, 0), LEN));
    finish(&[&origin, &target], "a large put", &[put]);
    origin.succeeded(put);
    assert!(contents(&remote) == pattern(2, LEN));
}

/// Hundreds of transfers in flight, of random sizes, in both directions at once.
pub fn many_transfers_at_once(case: &Case<'_>) {
    const COUNT: usize = 600;
    let (target, origin) = Node::pair(case);
    let to_target = origin.addr_of(&target);
    let mut random = Random::new(6);
    let mut running: Vec<(OpId, LocalMem, Vec<u8>)> = Vec::new();
    for number in 0..COUNT {
        let len = random.below(if number % 16 == 0 { 1_000_000 } else { 5000 });
        let bytes = pattern(random.next(), len);
        if number % 2 == 0 {
            let remote = target.register(bytes.clone(), Access::ReadOnly);
            let local = origin.register(vec![0; len], Access::WriteOnly);
            let described = target.described_to(&origin, &remote);
            let got = origin.get(&to_target, transfer((&local, 0), (&described, 0), len));
            // The owner drops its handle only with `running`, when the transfer is over.
            running.push((got, local, bytes));
            running.push((OpId(0), remote, Vec::new()));
        } else {
            let remote = target.register(vec![0; len], Access::WriteOnly);
            let local = origin.register(bytes.clone(), Access::ReadOnly);
            let described = target.described_to(&origin, &remote);
            let put = origin.put(&to_target, transfer((&local, 0), (&described, 0), len));
            running.push((put, remote, bytes));
        }
    }
    running.iter().filter(|(op, ..)| op.0 != 0).for_each(|(op, memory, bytes)| {
        finish(&[&origin, &target], "one of many transfers", &[*op]);
        origin.succeeded(*op);
        assert!(contents(memory) == *bytes, "transfer {}", op.0);
    });
}

/// The listening side can transfer from and to an origin that does not listen.
pub fn transfers_from_and_to_an_origin(case: &Case<'_>) {
    const LEN: usize = 1 << 20;
    let (target, origin) = Node::pair(case);
    let (_, to_origin): (Addr, Addr) = greet(&origin, &target);
    let remote = origin.register(pattern(1, LEN), Access::ReadWrite);
    let described = origin.described_to(&target, &remote);
    let local = target.register(vec![0; LEN], Access::ReadWrite);
    let got = target.get(&to_origin, transfer((&local, 0), (&described, 0), LEN));
    finish(&[&target, &origin], "a pull from an origin", &[got]);
    target.succeeded(got);
    assert!(contents(&local) == pattern(1, LEN));

    let local = target.register(pattern(2, LEN), Access::ReadWrite);
    let put = target.put(&to_origin, transfer((&local, 0), (&described, 0), LEN));
    finish(&[&target, &origin], "a push to an origin", &[put]);
    target.succeeded(put);
    assert!(contents(&remote) == pattern(2, LEN));
}

/// Nothing moves, but the owner is asked, also for memory without any bytes.
pub fn zero_length_transfers_ask_permission(case: &Case<'_>) {
    let (target, origin) = Node::pair(case);
    let to_target = origin.addr_of(&target);
    let local = origin.register(vec![7; 4], Access::ReadWrite);
    for bytes in [vec![], vec![1; 8]] {
        let at = bytes.len();
        let remote = target.register(bytes, Access::ReadWrite);
        let described = target.described_to(&origin, &remote);
        let empty = || transfer((&local, 4), (&described, at), 0);
        let ops = [origin.get(&to_target, empty()), origin.put(&to_target, empty())];
        finish(&[&origin, &target], "empty transfers", &ops);
        ops.into_iter().for_each(|op| origin.succeeded(op));
        drop(remote);
        let ops = [origin.get(&to_target, empty()), origin.put(&to_target, empty())];
        finish(&[&origin, &target], "empty transfers of revoked memory", &ops);
        ops.into_iter().for_each(|op| drop(origin.error(op)));
    }
    assert_eq!(contents(&local), [7; 4]);
}

/// Small messages overtake a transfer that takes long.
pub fn messages_pass_during_large_transfers(case: &Case<'_>) {
    const LEN: usize = 64 << 20;
    let (target, origin) = Node::pair(case);
    let (to_target, to_origin) = greet(&origin, &target);
    let remote = target.register(vec![1; LEN], Access::ReadOnly);
    let described = target.described_to(&origin, &remote);
    let local = origin.register(vec![0; LEN], Access::WriteOnly);
    let got = origin.get(&to_target, transfer((&local, 0), (&described, 0), LEN));
    for tag in 0..3 {
        let asked = target.recv_expected(&to_origin, tag);
        let answered = origin.recv_expected(&to_target, tag);
        origin.send_expected(&to_target, tag, b"are you there?");
        finish(&[&target, &origin], "a message during a transfer", &[asked]);
        target.send_expected(&to_origin, tag, b"yes");
        finish(&[&origin, &target], "its answer", &[answered]);
    }
    drive(&[&origin, &target], "the transfer", || origin.is_done(got));
    origin.succeeded(got);
    assert!(contents(&local).iter().all(|byte| *byte == 1));
}
