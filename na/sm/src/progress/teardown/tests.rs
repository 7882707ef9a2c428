//! Tests of memory that a peer is copying when the connection ends. The peer lives in this process:
//! a test enters and leaves the gate in its place.

use std::sync::mpsc;

use super::*;
use crate::api::open::open;
use crate::link::Conn;
use crate::peers::Peer;
use crate::transfer::rma::ANSWER_LIMIT;
use na_core::conformance::PATIENCE;
use na_core::{
    Access, Addr, Completion, Endpoint, LocalMem, Memory, OpId, OpenOptions, SharedBuffer, Tag,
    Transfer, Uri,
};
use prim::sync::Arc;

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

    /// Memory of the owner, and memory of the mover for a transfer from there, which the owner lets
    /// the mover copy.
    fn granted(&self) -> (LocalMem, LocalMem) {
        let remote = Memory::from_shared(SharedBuffer::new(LEN, &Default::default()).unwrap());
        let remote = self.owner.register(remote, Access::ReadOnly).unwrap();
        let local = Memory::from_vec(vec![2; LEN]);
        let local = self.mover.register_local(local, Access::ReadWrite).unwrap();
        self.transfer(7, false, &remote, &local);
        let deadline = Instant::now() + PATIENCE;
        while self.owner.poll.lock().links.iter().all(|link| link.services.is_empty()) {
            assert!(Instant::now() < deadline, "it is not asked");
            assert!(poll(&self.owner).is_empty());
        }
        (remote, local)
    }

    fn described(remote: &LocalMem, local: &LocalMem) -> Transfer {
        let (local, remote) = (local.clone(), remote.region().describe());
        Transfer { local, local_offset: 0, remote, remote_offset: 0, len: LEN as u64 }
    }

    fn transfer(&self, op: u64, put: bool, remote: &LocalMem, local: &LocalMem) {
        let transfer = Self::described(remote, local);
        let started = match put {
            true => self.mover.put(OpId(op), &self.to_owner, transfer),
            false => self.mover.get(OpId(op), &self.to_owner, transfer),
        };
        started.unwrap();
        // Until it is asked for.
        while self.mover.poll.lock().links.iter().any(|link| link.conn.has_backlog()) {
            assert!(poll(&self.mover).is_empty());
        }
    }

    /// Memory of the owner's, and of the mover's for a transfer from or to there.
    fn plain(&self) -> (LocalMem, LocalMem) {
        let remote = Memory::from_vec(vec![1; LEN]);
        let remote = self.owner.register(remote, Access::ReadWrite).unwrap();
        let local = Memory::from_vec(vec![2; LEN]);
        let local = self.mover.register_local(local, Access::ReadWrite).unwrap();
        (remote, local)
    }

    /// The end of that transfer, while the owner does not poll.
    fn told(&self, wanted: u64) -> Result<(), Error> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            assert!(Instant::now() < deadline, "its end is not told");
            if let Some(completion) = poll(&self.mover).pop() {
                let Completion::Transfer { op, result } = completion else { panic!("another") };
                assert_eq!(op, OpId(wanted));
                return result;
            }
        }
    }

    /// Both poll until the mover's connection awaits nothing any more.
    fn until_answered(&self) {
        let deadline = Instant::now() + PATIENCE;
        let peer = self.to_owner.state::<Peer>().unwrap();
        while peer.links.lock().iter().any(TxLink::waits_for_peer) {
            assert!(Instant::now() < deadline, "the owner does not answer");
            poll(&self.owner);
            assert!(poll(&self.mover).is_empty(), "its end is told twice");
        }
    }
}

/// The owner is stopped in the midst of a copy, and the connection ends.
#[test]
fn a_get_ends_with_its_connection_and_leaves_its_memory_to_who_copies_there() {
    let pair = Pair::new();
    let (remote, local) = pair.plain();
    pair.transfer(7, false, &remote, &local);
    let conn = connection(&pair.to_mover);
    assert!(conn.segment.gate_as_copier().enter());
    pair.mover.close();
    assert!(matches!(pair.told(7), Err(Error::Closed)));
    assert!(local.may_be_written() && pair.mover.keeps_memory());
    let local = local.reclaim().expect_err("the owner may write there");
    for _ in 0..5000 {
        assert!(poll(&pair.mover).is_empty());
    }
    assert!(local.may_be_written());
    conn.segment.gate_as_copier().leave();
    assert!(poll(&pair.mover).is_empty());
    assert!(!pair.mover.keeps_memory() && !local.may_be_written());
    local.reclaim().expect("nobody else has it");
}

/// The owner at most reads there.
#[test]
fn a_put_ends_with_its_connection_and_has_its_memory() {
    let pair = Pair::new();
    let (remote, local) = pair.plain();
    pair.transfer(7, true, &remote, &local);
    assert!(connection(&pair.to_mover).segment.gate_as_copier().enter());
    pair.mover.close();
    assert!(matches!(pair.told(7), Err(Error::Closed)));
    assert!(!local.may_be_written() && !pair.mover.keeps_memory());
    local.reclaim().expect("nobody else has it");
}

/// As when it is stopped for a while.
#[test]
fn canceled_transfers_end_although_the_owner_does_not_answer() {
    let pair = Pair::new();
    let (remote, local) = pair.plain();
    let source = Memory::from_vec(vec![3; LEN]);
    let source = pair.mover.register_local(source, Access::ReadWrite).unwrap();
    pair.transfer(7, false, &remote, &local);
    pair.transfer(8, true, &remote, &source);
    // It has begun, and is no further than that.
    let conn = connection(&pair.to_mover);
    assert!(conn.segment.gate_as_copier().enter());
    let canceled = Instant::now();
    pair.mover.cancel(OpId(7));
    assert!(matches!(pair.told(7), Err(Error::Canceled)));
    assert!(canceled.elapsed() >= ANSWER_LIMIT, "it had time to answer");
    pair.mover.cancel(OpId(8));
    assert!(matches!(pair.told(8), Err(Error::Canceled)));
    source.reclaim().expect("nobody else has it");
    // What the peer may write to is no target, as it would change afterwards, but a source.
    assert!(local.may_be_written());
    let again = Pair::described(&remote, &local);
    let refused = pair.mover.get(OpId(9), &pair.to_owner, again).unwrap_err();
    assert!(refused.to_string().contains("may still be written"), "{refused}");
    // Nothing more is asked of that peer, so that a cancel of it ends at once.
    let other = pair.mover.register_local(Memory::from_vec(vec![4; LEN]), Access::ReadWrite);
    let other = other.unwrap();
    let waits = Pair::described(&remote, &other);
    pair.mover.get(OpId(10), &pair.to_owner, waits).unwrap();
    poll(&pair.mover);
    pair.mover.cancel(OpId(10));
    let told = poll(&pair.mover);
    assert!(
        matches!(&*told, [Completion::Transfer { op: OpId(10), result: Err(Error::Canceled) }]),
        "{told:?}"
    );
    other.reclaim().expect("nobody else has it");
    // It goes on.
    conn.segment.gate_as_copier().leave();
    pair.until_answered();
    assert!(!local.may_be_written());
    pair.transfer(11, false, &remote, &local);
    let deadline = Instant::now() + PATIENCE;
    let told = loop {
        assert!(Instant::now() < deadline, "the transfer does not end");
        poll(&pair.owner);
        let told = poll(&pair.mover);
        if !told.is_empty() {
            break told;
        }
    };
    assert!(matches!(&*told, [Completion::Transfer { op: OpId(11), result: Ok(()) }]), "{told:?}");
    let bytes = local.reclaim().expect("nobody else has it").into_owner::<Vec<u8>>().unwrap();
    assert!(bytes == [1; LEN]);
}

#[test]
fn memory_that_is_written_for_ever_stays_marked_and_is_not_given_back() {
    let pair = Pair::new();
    let (remote, local) = pair.plain();
    pair.transfer(7, false, &remote, &local);
    assert!(connection(&pair.to_mover).segment.gate_as_copier().enter());
    pair.mover.close();
    assert!(matches!(pair.told(7), Err(Error::Closed)));
    let Pair { mover, .. } = pair;
    drop(mover);
    assert!(local.may_be_written());
    let (sender, released) = mpsc::channel();
    local.revoke(move |memory| sender.send(memory).unwrap());
    assert_eq!(released.recv().err(), Some(mpsc::RecvError), "told, and not given");
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

/// The way of bulk data may have changed since it came.
#[test]
fn the_counts_of_peers_are_as_before_when_all_have_left() {
    let pair = Pair::new();
    for link in pair.owner.poll.lock().links.iter_mut() {
        assert!(link.began_attached || !pair.owner.attach);
        link.services = crate::transfer::serve::Services::new(false, None);
        link.breach("a test");
    }
    pair.owner.poll.lock().links.sweep();
    poll(&pair.owner);
    assert_eq!(pair.owner.group.accepted(), 0);
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
    assert_eq!(pair.owner.group.accepted(), 1);
    conn.segment.gate_as_copier().leave();
    let deadline = Instant::now() + PATIENCE;
    while pair.owner.keeps_memory() {
        assert!(Instant::now() < deadline, "it is kept for ever");
        poll(&pair.owner);
    }
    assert_eq!(pair.owner.group.accepted(), 0);
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
    na_core::conformance::hear_of_children();
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
