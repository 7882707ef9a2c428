//! Bulk data of the sm transport from and to memory of `alloc`: the mappings that peers make, and
//! their end.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;

use na::{
    Access, Addr, AllocOptions, CopyHelper, Error, LocalMem, Memory, OpId, OpenOptions, RemoteMem,
    SharedBuffer, Transfer,
};

use crate::alone;
use crate::common::sm::{
    self as support, ChildNode, Hostile, Node, connected, listening, role, say, sleep_for_ever,
    with_attach,
};
use crate::common::test_path;

/// An owner that listens and a requester that is connected with it.
struct Pair {
    owner: Node,
    requester: Node,
    to_owner: Addr,
}

impl Pair {
    fn new(mut owner: Node, mut requester: Node) -> Self {
        let to_owner = connected(&mut requester, &mut owner);
        Self { owner, requester, to_owner }
    }

    fn start(&mut self, put: bool, transfer: Transfer) -> OpId {
        self.requester.start(put, &self.to_owner, transfer)
    }

    #[track_caller]
    fn finish(&mut self, op: OpId) -> Result<(), Error> {
        self.requester.transferred(op, &mut self.owner)
    }

    fn run(&mut self, put: bool, transfer: Transfer) -> Result<(), Error> {
        let op = self.start(put, transfer);
        self.finish(op)
    }
}

fn memory(shared: bool, len: usize) -> Memory {
    match shared {
        true => Memory::alloc(len, &AllocOptions::default()).expect("allocate"),
        false => Memory::from_vec(vec![0; len]),
    }
}

fn register(node: &Node, shared: bool, len: usize, access: Access) -> (LocalMem, RemoteMem) {
    let local = node.endpoint.register(memory(shared, len), access).expect("register");
    let described = node.endpoint.mem_to_bytes(&local);
    let remote = node.endpoint.mem_from_bytes(&described).expect("a description");
    (local, remote)
}

fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|index| (index * 7 + seed + index / 251) as u8).collect()
}

#[track_caller]
fn holds(memory: &LocalMem, offset: u64, bytes: &[u8]) {
    let mut found = vec![0; bytes.len()];
    assert!(memory.read_at(offset, &mut found));
    assert!(found == bytes, "other bytes than were written");
}

/// The mappings of memory of `alloc` in this process.
fn mappings() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("own mappings");
    maps.lines().filter(|line| line.contains("memfd:margo-alloc")).count()
}

#[test]
fn the_named_bytes_are_moved_whichever_side_is_shared() {
    let _alone = alone();
    for attach in [true, false] {
        let mut pair = Pair::new(with_attach(attach, true), with_attach(attach, false));
        for (owner_shared, requester_shared) in [(true, true), (true, false), (false, true)] {
            let len = 5 << 20;
            let (theirs, remote) = register(&pair.owner, owner_shared, len, Access::ReadWrite);
            let (ours, _) = register(&pair.requester, requester_shared, len, Access::ReadOnly);
            for (seed, (local_offset, remote_offset, bytes)) in
                [(0, 0, len), (1, 77, 1 << 20), (4096, 0, 20_000), (3, 5, 1), (9, 9, 4096)]
                    .into_iter()
                    .enumerate()
            {
                for put in [false, true] {
                    let data = pattern(seed + usize::from(put), bytes);
                    let (from, from_at, to, to_at) = match put {
                        true => (&ours, local_offset, &theirs, remote_offset),
                        false => (&theirs, remote_offset, &ours, local_offset),
                    };
                    assert!(to.write_at(0, &vec![0xEE; len]));
                    assert!(from.write_at(from_at, &data));
                    let (local, remote) = (ours.clone(), remote.clone());
                    let len = bytes as u64;
                    let transfer = Transfer { local, local_offset, remote, remote_offset, len };
                    pair.run(put, transfer).expect("a transfer");
                    holds(to, to_at, &data);
                    if to_at > 0 {
                        holds(to, to_at - 1, &[0xEE]);
                    }
                    if to_at as usize + bytes < to.len() as usize {
                        holds(to, to_at + len, &[0xEE]);
                    }
                }
            }
        }
    }
}

fn whole(local: &LocalMem, remote: &RemoteMem) -> Transfer {
    let (local, remote, len) = (local.clone(), remote.clone(), remote.len);
    Transfer { local, local_offset: 0, remote, remote_offset: 0, len }
}

#[test]
fn a_block_is_mapped_once_and_unmapped_after_its_end() {
    let _alone = alone();
    let before = mappings();
    let mut pair = Pair::new(listening(), with_attach(true, false));
    for _ in 0..3 {
        let (theirs, remote) = register(&pair.owner, true, 1 << 20, Access::ReadWrite);
        let (ours, _) = register(&pair.requester, false, 1 << 20, Access::ReadWrite);
        for _ in 0..5 {
            pair.run(false, whole(&ours, &remote)).expect("get");
        }
        // Ours, the peer's, and the one that the previous round left.
        assert!(mappings() - before <= 3, "{}", mappings() - before);
        assert!(mappings() - before >= 2, "the block was not mapped");
        drop(theirs);
    }
    drop(pair);
    assert_eq!(mappings(), before);
}

#[test]
fn more_blocks_than_a_peer_maps_work_too() {
    let _alone = alone();
    let mut pair = Pair::new(listening(), with_attach(true, false));
    let blocks: Vec<_> =
        (0..70).map(|_| register(&pair.owner, true, 32 << 10, Access::ReadWrite)).collect();
    let (ours, _) = register(&pair.requester, false, 32 << 10, Access::ReadWrite);
    for (seed, (theirs, remote)) in blocks.iter().enumerate() {
        let data = pattern(seed, 32 << 10);
        assert!(theirs.write_at(0, &data));
        pair.run(false, whole(&ours, remote)).expect("get");
        holds(&ours, 0, &data);
    }
    drop(blocks);
    let (theirs, remote) = register(&pair.owner, true, 32 << 10, Access::ReadWrite);
    pair.run(true, whole(&ours, &remote)).expect("put");
    let data = pattern(69, 32 << 10);
    holds(&theirs, 0, &data);
}

#[test]
fn the_owner_still_decides() {
    let _alone = alone();
    let mut pair = Pair::new(listening(), with_attach(true, false));
    let (theirs, remote) = register(&pair.owner, true, 1 << 20, Access::ReadOnly);
    let (ours, _) = register(&pair.requester, true, 1 << 20, Access::ReadWrite);
    pair.run(false, whole(&ours, &remote)).expect("get");
    let forged = RemoteMem { access: Access::ReadWrite, ..remote.clone() };
    let denied = pair.run(true, whole(&ours, &forged));
    assert!(matches!(denied, Err(Error::Denied { .. })), "{denied:?}");
    let longer = RemoteMem { len: 2 << 20, ..remote.clone() };
    let mut beyond = whole(&ours, &longer);
    (beyond.remote_offset, beyond.len) = (1, 1 << 20);
    let denied = pair.run(false, beyond);
    assert!(matches!(denied, Err(Error::Denied { .. })), "{denied:?}");
    let (sender, released) = channel();
    theirs.revoke(move |memory| sender.send(memory).expect("the test waits"));
    let buffer = released.try_recv().expect("nothing is in flight");
    let mut buffer = buffer.into_owner::<SharedBuffer>().expect("what was allocated");
    assert_eq!(buffer.as_mut_slice().expect("bytes").len(), 1 << 20);
    let denied = pair.run(false, whole(&ours, &remote));
    assert!(matches!(denied, Err(Error::Denied { .. })), "{denied:?}");
}

#[test]
fn memory_comes_back_after_a_grant_in_flight() {
    let _alone = alone();
    let len = 64 << 20;
    let mut pair = Pair::new(listening(), with_attach(true, false));
    let (theirs, remote) = register(&pair.owner, true, len, Access::ReadWrite);
    let (ours, _) = register(&pair.requester, false, len, Access::ReadWrite);
    let op = pair.start(true, whole(&ours, &remote));
    // A poll moves a part of it only, so it is under way after each side had a turn or two.
    (0..3).for_each(|_| {
        pair.owner.poll();
        pair.requester.poll();
    });
    let (sender, released) = channel();
    theirs.revoke(move |memory| sender.send(memory).expect("the test waits"));
    assert!(released.try_recv().is_err(), "a transfer is under way");
    pair.requester.endpoint.cancel(op);
    let Pair { owner, requester, .. } = &mut pair;
    owner.until("the memory", |_| {
        requester.poll();
        released.try_recv().is_ok()
    });
    let result = pair.finish(op);
    assert!(matches!(result, Err(Error::Canceled)), "{result:?}");
}

#[test]
fn a_helper_takes_part_in_large_copies() {
    let _alone = alone();
    let called = Arc::new(AtomicUsize::new(0));
    let count = called.clone();
    let mut options = OpenOptions::listening(true);
    options.copy_helper = Some(CopyHelper::new(move |parts, part| {
        count.fetch_add(1, Ordering::Relaxed);
        std::thread::scope(|scope| {
            scope.spawn(|| (0..parts / 2).for_each(part));
            (parts / 2..parts).for_each(part);
        });
    }));
    let owner = Node::new(na::open("na+sm://", &options).expect("open"));
    let mut pair = Pair::new(owner, with_attach(true, false));
    let len = 3 << 20;
    let (theirs, remote) = register(&pair.owner, false, len, Access::ReadWrite);
    let (ours, _) = register(&pair.requester, true, len, Access::ReadWrite);
    let data = pattern(3, len);
    assert!(theirs.write_at(0, &data));
    pair.run(false, whole(&ours, &remote)).expect("get");
    holds(&ours, 0, &data);
    assert!(called.load(Ordering::Relaxed) >= 3);
}

/// Serves or asks with shared memory until it is killed: `<role> <parent's uri>`.
fn play(role: &[String]) -> ! {
    let mut node = listening();
    let to_parent = node.endpoint.lookup(&role[1]).expect("the parent's address");
    let memory = memory(role[0] == "shared", 256 << 20);
    let memory = node.endpoint.register(memory, Access::ReadWrite).expect("register");
    let go = node.recv();
    node.send(&to_parent, 1, &node.endpoint.mem_to_bytes(&memory));
    let (_, described) = node.received(go);
    let remote = node.endpoint.mem_from_bytes(&described).expect("a description");
    for put in [false, true] {
        let (op, transfer) = (node.op(), whole(&memory, &remote));
        let started = match put {
            true => node.endpoint.put(op, &to_parent, transfer),
            false => node.endpoint.get(op, &to_parent, transfer),
        };
        started.expect("start");
    }
    let never = node.recv();
    say("started");
    node.until("the end, which does not come", |node| node.is_done(never));
    sleep_for_ever()
}

#[test]
fn a_killed_peer_leaves_nothing_and_gives_memory_back() {
    if let Some(role) = role() {
        play(&role);
    }
    let _alone = alone();
    let before = mappings();
    for (theirs, ours) in [("shared", true), ("plain", true), ("shared", false)] {
        let mut node = listening();
        let uri = node.endpoint.self_addr().uri().to_owned();
        let test = test_path!("a_killed_peer_leaves_nothing_and_gives_memory_back");
        let mut child = ChildNode::start(test, &format!("{theirs} {uri}"));
        let first = node.recv();
        let (arrival, described) = node.received(first);
        let remote = node.endpoint.mem_from_bytes(&described).expect("a description");
        let (memory, _) = register(&node, ours, 256 << 20, Access::ReadWrite);
        node.send(&arrival.from, 2, &node.endpoint.mem_to_bytes(&memory));
        let op = node.op();
        node.endpoint.get(op, &arrival.from, whole(&memory, &remote)).expect("get");
        node.until("the child", |_| child.try_line().is_some());
        let (sender, released) = channel();
        memory.revoke(move |memory| sender.send(memory).expect("the test waits"));
        child.kill();
        node.until("the memory", |_| released.try_recv().is_ok());
        node.until("the transfer", |node| node.is_done(op));
        node.still_serves();
        for directory in ["/dev/shm", "/tmp", "/var/tmp"] {
            let Ok(entries) = std::fs::read_dir(directory) else { continue };
            for entry in entries.flatten() {
                let file = entry.file_name().to_string_lossy().into_owned();
                assert!(!file.contains("margo-sm") && !file.contains("margo-alloc"), "{file}");
            }
        }
    }
    assert_eq!(mappings(), before);
}

#[test]
fn announcements_of_impossible_memory_end_the_connection() {
    let _alone = alone();
    let page = || support::memfd(4096, true);
    let words = |flags: u64, id: u64, at: u64, len: u64| {
        let mut bytes = Vec::new();
        [flags << 8 | u64::from(b'B'), id, at, len]
            .iter()
            .for_each(|word| bytes.extend(word.to_le_bytes()));
        bytes
    };
    use std::os::fd::AsFd;
    for (what, bytes, fds) in [
        ("no memory", words(1, 1, 4096, 4096), vec![]),
        ("beyond its end", words(1, 1, 4096, 4097), vec![page()]),
        ("not sealed", words(1, 1, 4096, 4096), vec![support::memfd(4096, false)]),
        ("no number", words(1, 0, 4096, 4096), vec![page()]),
        ("no length", words(1, 1, 4096, 0), vec![page()]),
        ("an address that wraps", words(1, 1, u64::MAX, 4096), vec![page()]),
        ("unknown flags", words(2, 1, 4096, 4096), vec![page()]),
        ("too short", words(1, 1, 4096, 4096)[..31].to_vec(), vec![page()]),
    ] {
        let mut node = listening();
        let (hostile, addr) = Hostile::attach(&mut node);
        let waiting = node.recv_expected(&addr, 9);
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        support::send_packet(&hostile.socket, &bytes, &fds);
        let error = node.error(waiting);
        assert!(matches!(error, Error::Protocol { .. }), "{what}: {error}");
        node.still_serves();
    }
    // A proper one, and records that name it or others.
    let mut node = listening();
    let (mut hostile, addr) = Hostile::attach(&mut node);
    let (memory, _) = register(&node, false, 4096, Access::ReadWrite);
    let fd = page();
    support::send_packet(&hostile.socket, &words(1, 5, 1 << 20, 4096), &[fd.as_fd()]);
    let get = |part: u64, at: u64, block: u64| {
        let words = [part, memory.key(), 0, 8, at, 8, block];
        words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>()
    };
    for (part, at, block) in
        [(1, 1 << 20, 5), (2, (1 << 20) + 4096, 5), (3, 8, 5), (4, u64::MAX - 8, 5), (5, 8, 77)]
    {
        hostile.write(3, 0, &get(part, at, block));
    }
    hostile.write(14, 0, &5u64.to_le_bytes());
    hostile.write(14, 0, &5u64.to_le_bytes());
    hostile.write(3, 0, &get(6, 1 << 20, 5));
    let asked = node.recv();
    hostile.write(1, 7, b"still connected");
    assert_eq!(node.received(asked).0.from, addr);
    for (what, kind, words) in [
        ("a grant of nothing", 12, vec![1, 1, 1]),
        ("a short grant", 12, vec![1, 1]),
        ("a short finish", 13, vec![1]),
        ("a long forget", 14, vec![1, 1]),
    ] {
        let mut node = listening();
        let (mut hostile, addr) = Hostile::attach(&mut node);
        let waiting = node.recv_expected(&addr, 9);
        let payload: Vec<u8> = words.iter().flat_map(|word: &u64| word.to_le_bytes()).collect();
        hostile.write(kind, 0, &payload);
        let error = node.error(waiting);
        assert!(matches!(error, Error::Protocol { .. }), "{what}: {error}");
    }
}
