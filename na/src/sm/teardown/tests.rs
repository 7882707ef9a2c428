//! What becomes of memory that a peer is copying when the connection ends. The peer lives in this
//! process: a test goes into its gate and out of it in its stead.

use std::sync::mpsc;

use super::*;
use crate::conformance::PATIENCE;
use crate::sm::open::open;
use crate::sm::peer::Peer;
use crate::{Access, Addr, Endpoint, Memory, OpId, OpenOptions, SharedBuffer, Tag, Transfer, Uri};

const LEN: usize = 1 << 20;

fn start(listen: bool) -> Arc<SmEndpoint> {
    let uri = Uri::parse("na+sm://").unwrap();
    open(&uri, &OpenOptions::listening(listen)).unwrap()
}

fn poll(endpoint: &SmEndpoint) -> Vec<Completion> {
    let mut found = Vec::new();
    endpoint.poll(64, &mut |completion| found.push(completion)).unwrap();
    found
}

/// Polls both until the message of `one` has reached `other`; says who sent it.
fn greet(one: &SmEndpoint, to: &Addr, other: &SmEndpoint) -> Addr {
    other.recv_unexpected(OpId(1), other.alloc_msg()).unwrap();
    one.send_unexpected(OpId(2), to, Tag(0), one.alloc_msg()).unwrap();
    let deadline = Instant::now() + PATIENCE;
    loop {
        assert!(Instant::now() < deadline, "no message");
        poll(one);
        for completion in poll(other) {
            if let Completion::Recv { result, .. } = completion {
                return result.unwrap().from;
            }
        }
    }
}

/// The connection with `peer`, as the other side has it.
fn connection(peer: &Addr) -> Arc<Conn> {
    let peer = peer.state::<Peer>().unwrap();
    peer.links.lock()[0].conn.clone()
}

struct Pair {
    owner: Arc<SmEndpoint>,
    mover: Arc<SmEndpoint>,
    to_owner: Addr,
    to_mover: Addr,
}

impl Pair {
    fn new() -> Self {
        let (owner, mover) = (start(true), start(false));
        let to_owner = mover.lookup(owner.self_addr().uri()).unwrap();
        let to_mover = greet(&mover, &to_owner, &owner);
        Self { owner, mover, to_owner, to_mover }
    }

    /// Memory of the owner's, and of the mover's for a transfer from there, whom the owner lets
    /// copy.
    fn granted(&self) -> (LocalMem, LocalMem) {
        let remote = Memory::from_shared(SharedBuffer::new(LEN, &Default::default()).unwrap());
        let remote = self.owner.register(remote, Access::ReadOnly).unwrap();
        let local = Memory::from_vec(vec![2; LEN]);
        let local = self.mover.register_local(local, Access::ReadWrite).unwrap();
        self.get(7, &remote, &local);
        let deadline = Instant::now() + PATIENCE;
        while self.owner.poll.lock().links.iter().all(|link| link.services.is_empty()) {
            assert!(Instant::now() < deadline, "it is not asked");
            assert!(poll(&self.owner).is_empty());
        }
        (remote, local)
    }

    fn get(&self, op: u64, remote: &LocalMem, local: &LocalMem) {
        let transfer = Transfer {
            local: local.clone(),
            local_offset: 0,
            remote: remote.region().describe(),
            remote_offset: 0,
            len: LEN as u64,
        };
        self.mover.get(OpId(op), &self.to_owner, transfer).unwrap();
        // Until it is asked for.
        while self.mover.poll.lock().links.iter().any(|link| link.conn.has_backlog()) {
            assert!(poll(&self.mover).is_empty());
        }
    }
}

#[test]
fn a_transfer_ends_when_its_memory_is_not_copied_any_more() {
    let pair = Pair::new();
    let remote = Memory::from_vec(vec![1; LEN]);
    let remote = pair.owner.register(remote, Access::ReadOnly).unwrap();
    let local = Memory::from_vec(vec![2; LEN]);
    let local = pair.mover.register_local(local, Access::ReadWrite).unwrap();
    pair.get(7, &remote, &local);
    // The owner copies a chunk.
    let conn = connection(&pair.to_mover);
    assert!(conn.segment.gate_as_copier().enter());
    pair.mover.close();
    for _ in 0..5000 {
        let told = poll(&pair.mover);
        assert!(told.is_empty(), "told while its memory is written: {told:?}");
    }
    assert!(pair.mover.keeps_memory());
    conn.segment.gate_as_copier().leave();
    let told = poll(&pair.mover);
    let [Completion::Transfer { op: OpId(7), result: Err(Error::Closed) }] = &*told else {
        panic!("not its end: {told:?}");
    };
    assert!(!pair.mover.keeps_memory());
    local.reclaim().expect("nobody else has it");
}

#[test]
fn what_begins_while_the_endpoint_is_closed_ends_with_it() {
    let (owner, mover) = (start(true), start(false));
    let to_owner = mover.lookup(owner.self_addr().uri()).unwrap();
    let memory = mover.register_local(Memory::from_vec(vec![2; 64]), Access::ReadWrite).unwrap();
    let remote = owner.register(Memory::from_vec(vec![1; 64]), Access::ReadOnly).unwrap();
    let remote = remote.region().describe();
    let (local, local_offset, remote_offset, len) = (memory.clone(), 0, 0, 64);
    let transfer = Transfer { local, local_offset, remote, remote_offset, len };
    mover.get(OpId(7), &to_owner, transfer).unwrap();
    // As if its thread had come no further while another one closes.
    let opened = std::mem::take(&mut *lock(&mover.opened));
    mover.has_opened.store(false, Ordering::Relaxed);
    assert_eq!(opened.len(), 1);
    mover.close();
    assert!(poll(&mover).is_empty());
    lock(&mover.opened).extend(opened);
    mover.has_opened.store(true, Ordering::Relaxed);
    let mut told = poll(&mover);
    told.extend(poll(&mover));
    let [Completion::Transfer { op: OpId(7), result: Err(Error::Closed) }] = &*told else {
        panic!("not its end: {told:?}");
    };
    memory.reclaim().expect("nobody else has it");
}

/// Its way of bulk data may have changed since it came.
#[test]
fn the_counts_of_peers_are_as_before_when_all_have_left() {
    let pair = Pair::new();
    for link in pair.owner.poll.lock().links.iter_mut() {
        assert!(link.began_attached || !pair.owner.attach);
        link.services = crate::sm::serve::Services::new(false, None);
        link.breach("a test");
    }
    pair.owner.poll.lock().links.sweep();
    poll(&pair.owner);
    assert_eq!(pair.owner.poll.lock().crowd.len(), 0);
    assert_eq!(pair.owner.bulk_path(), start(true).bulk_path());
}

/// A peer that says for ever that it copies takes the place of a peer.
#[test]
fn a_connection_that_is_kept_counts() {
    let pair = Pair::new();
    let (_remote, _local) = pair.granted();
    assert!(connection(&pair.to_owner).segment.gate_as_copier().enter());
    let conn = connection(&pair.to_owner);
    pair.owner.poll.lock().links.iter_mut().for_each(|link| link.breach("a test"));
    pair.owner.poll.lock().links.sweep();
    poll(&pair.owner);
    assert!(pair.owner.keeps_memory());
    assert_eq!(pair.owner.poll.lock().crowd.len(), 1);
    conn.segment.gate_as_copier().leave();
    let deadline = Instant::now() + PATIENCE;
    while pair.owner.keeps_memory() {
        assert!(Instant::now() < deadline, "it is kept for ever");
        poll(&pair.owner);
    }
    assert_eq!(pair.owner.poll.lock().crowd.len(), 0);
}

#[test]
fn a_closed_endpoint_gives_memory_back_once_nobody_copies_it() {
    let pair = Pair::new();
    let (remote, _local) = pair.granted();
    let conn = connection(&pair.to_owner);
    assert!(conn.segment.gate_as_copier().enter());
    let (sender, released) = mpsc::channel();
    remote.revoke(move |memory| sender.send(memory).unwrap());
    pair.owner.close();
    for _ in 0..5000 {
        assert!(poll(&pair.owner).is_empty());
    }
    assert!(pair.owner.keeps_memory() && released.try_recv().is_err());
    conn.segment.gate_as_copier().leave();
    assert!(poll(&pair.owner).is_empty());
    assert!(!pair.owner.keeps_memory());
    released.try_recv().expect("the next poll gives it back");
}

#[test]
fn who_waits_for_memory_that_a_peer_never_lets_go_of_is_told() {
    let pair = Pair::new();
    let (remote, _local) = pair.granted();
    assert!(connection(&pair.to_owner).segment.gate_as_copier().enter());
    let (sender, released) = mpsc::channel();
    remote.revoke(move |memory| sender.send(memory).unwrap());
    let Pair { owner, .. } = pair;
    drop(owner);
    assert_eq!(released.recv().err(), Some(mpsc::RecvError), "told, and not given");
}

#[test]
fn a_child_drops_its_copy_without_waiting_for_what_is_kept() {
    let owner = start(true);
    let taken = lock(&owner.kept);
    // SAFETY: the child runs this thread alone; it drops a value and exits.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "no second process");
    if child == 0 {
        std::mem::forget(taken);
        // SAFETY: ends this process, which has nothing to wait for, should it wait for ever.
        unsafe { libc::alarm(PATIENCE.as_secs() as u32) };
        drop(owner);
        // SAFETY: ends this process, without its parent's destructors and output.
        unsafe { libc::_exit(0) }
    }
    drop(taken);
    let pid = rustix::process::Pid::from_raw(child).unwrap();
    let (_, status) = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty())
        .unwrap()
        .unwrap();
    assert_eq!(status.exit_status(), Some(0), "{status:?}");
}
