//! One endpoint of a group, with the others in tow.
//!
//! A case then runs as over an endpoint alone, but each of its connections is accepted by another
//! endpoint of the group and handed over. The others are polled, and sleep, together with it, and
//! have nothing else to do.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::epoll;

use crate::{
    Access, Addr, Completion, Endpoint, EndpointStats, Error, LargeBuffers, Limits, LocalMem,
    MemPart, Memory, MsgBuf, OpId, Principal, Refused, RemoteMem, Tag, Transfer,
};

#[derive(Debug)]
struct GroupMember {
    own: Arc<dyn Endpoint>,
    /// The place in its group, which is that of its peers in theirs.
    shard: usize,
    others: Vec<Arc<dyn Endpoint>>,
    /// Ready when one of them is; `None`: they never sleep.
    any_ready: Option<OwnedFd>,
}

/// Returns the last endpoint of a group, which the others give its connections. It calls the last
/// one of each group as well.
///
/// # Panics
///
/// If the group is empty.
pub fn last_of_group(mut group: Vec<Arc<dyn Endpoint>>) -> Arc<dyn Endpoint> {
    let own = group.pop().expect("an endpoint");
    let all = || group.iter().chain([&own]);
    let any_ready = own.wait_fd().map(|_| {
        let ready = epoll::create(epoll::CreateFlags::CLOEXEC).expect("an epoll set");
        let fds = all().map(|one| one.wait_fd().expect("as the last one"));
        for (number, fd) in (0..).zip(fds) {
            let data = epoll::EventData::new_u64(number);
            epoll::add(&ready, fd, data, epoll::EventFlags::IN).expect("a place in the set");
        }
        ready
    });
    Arc::new(GroupMember { own, shard: group.len(), others: group, any_ready })
}

impl Endpoint for GroupMember {
    fn transport(&self) -> &'static str {
        self.own.transport()
    }

    fn limits(&self) -> Limits {
        self.own.limits()
    }

    fn idle_receives_max(&self) -> usize {
        self.own.idle_receives_max()
    }

    fn carries_extensions(&self, to: &Addr) -> bool {
        self.own.carries_extensions(to)
    }

    fn may_meet_mercury(&self) -> bool {
        self.own.may_meet_mercury()
    }

    fn hand_over(&self, to: &Addr, number: u64, fd: OwnedFd) -> Result<(), Error> {
        self.own.hand_over(to, number, fd)
    }

    fn is_gone(&self, peer: &Addr) -> bool {
        self.own.is_gone(peer)
    }

    fn principal(&self, peer: &Addr) -> Principal {
        self.own.principal(peer)
    }

    fn knows_principals(&self, peer: &Addr) -> bool {
        self.own.knows_principals(peer)
    }

    fn is_at(&self, peer: &Addr, address: &str) -> bool {
        self.own.is_at(peer, address)
    }

    fn look_at_secrets(&self) {
        self.own.look_at_secrets();
    }

    fn asks_owners(&self) -> bool {
        self.own.asks_owners()
    }

    fn knows_who_transfers(&self) -> bool {
        self.own.knows_who_transfers()
    }

    fn self_addr(&self) -> Addr {
        self.own.self_addr()
    }

    fn lookup(&self, uri: &str) -> Result<Addr, Error> {
        self.own.lookup_shard(uri, self.shard)
    }

    fn addr_to_bytes(&self, addr: &Addr) -> Result<Vec<u8>, Error> {
        self.own.addr_to_bytes(addr)
    }

    fn alloc_msg(&self) -> MsgBuf {
        self.own.alloc_msg()
    }

    fn send_unexpected(&self, op: OpId, to: &Addr, tag: Tag, buf: MsgBuf) -> Result<(), Refused> {
        self.own.send_unexpected(op, to, tag, buf)
    }

    fn send_unexpected_now(&self, to: &Addr, tag: Tag, message: &[u8]) -> bool {
        self.own.send_unexpected_now(to, tag, message)
    }

    fn recv_unexpected(&self, op: OpId, buf: MsgBuf) -> Result<(), Refused> {
        self.own.recv_unexpected(op, buf)
    }

    fn has_multi_recv(&self) -> bool {
        self.own.has_multi_recv()
    }

    fn multi_recv_unexpected(
        &self,
        op: OpId,
        count: usize,
        buffers: &LargeBuffers,
    ) -> Result<(), Error> {
        self.own.multi_recv_unexpected(op, count, buffers)
    }

    fn send_expected(&self, op: OpId, to: &Addr, tag: Tag, buf: MsgBuf) -> Result<(), Refused> {
        self.own.send_expected(op, to, tag, buf)
    }

    fn send_expected_now(&self, to: &Addr, tag: Tag, message: &[u8]) -> bool {
        self.own.send_expected_now(to, tag, message)
    }

    fn recv_expected(&self, op: OpId, from: &Addr, tag: Tag, buf: MsgBuf) -> Result<(), Refused> {
        self.own.recv_expected(op, from, tag, buf)
    }

    fn call_now(&self, op: OpId, to: &Addr, tag: Tag, buf: MsgBuf) -> Result<(), MsgBuf> {
        self.own.call_now(op, to, tag, buf)
    }

    fn register(&self, memory: Memory, access: Access) -> Result<LocalMem, Error> {
        self.own.register(memory, access)
    }

    fn register_local(&self, memory: Memory, access: Access) -> Result<LocalMem, Error> {
        self.own.register_local(memory, access)
    }

    fn mem_to_bytes(&self, memory: &LocalMem) -> Vec<u8> {
        self.own.mem_to_bytes(memory)
    }

    fn mem_parts(&self, memory: &LocalMem) -> Option<Vec<MemPart>> {
        self.own.mem_parts(memory)
    }

    fn mem_from_bytes(&self, bytes: &[u8]) -> Result<RemoteMem, Error> {
        self.own.mem_from_bytes(bytes)
    }

    fn put(&self, op: OpId, to: &Addr, transfer: Transfer) -> Result<(), Error> {
        self.own.put(op, to, transfer)
    }

    fn get(&self, op: OpId, from: &Addr, transfer: Transfer) -> Result<(), Error> {
        self.own.get(op, from, transfer)
    }

    fn cancel(&self, op: OpId) {
        self.own.cancel(op);
    }

    fn poll(&self, budget: usize, sink: &mut dyn FnMut(Completion)) -> Result<usize, Error> {
        for other in &self.others {
            other.poll(budget, &mut |completion| panic!("of another shard: {completion:?}"))?;
        }
        self.own.poll(budget, sink)
    }

    fn may_find(&self) -> bool {
        self.own.may_find() || self.others.iter().any(|other| other.may_find())
    }

    fn prepare_wait(&self) -> bool {
        self.others.iter().all(|other| other.prepare_wait()) && self.own.prepare_wait()
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.any_ready.as_ref().map(AsFd::as_fd)
    }

    fn close(&self) {
        self.others.iter().for_each(|other| other.close());
        self.own.close();
    }

    fn keeps_memory(&self) -> bool {
        self.own.keeps_memory()
    }

    fn direct_bytes_max(&self, peer: &Addr) -> u64 {
        self.own.direct_bytes_max(peer)
    }

    fn served(&self) -> u64 {
        self.own.served()
    }

    fn stats(&self) -> EndpointStats {
        self.own.stats()
    }

    fn bulk_path(&self) -> String {
        self.own.bulk_path()
    }
}
