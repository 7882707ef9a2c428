//! An endpoint in a child process, which a case uses as if it were in its own.
//!
//! The parent's proxy forwards each call over a socket pair; the child (`served.rs`) does nothing
//! but carry the calls out, on the case's one thread. Registered memory is a memfd that both map,
//! so a case sees what peers did to it. The wait descriptor is the child's own, handed over.
//!
//! | parent | child |
//! |---|---|
//! | `Addr` with the child's number of it | `Addr` in a list, by that number |
//! | `LocalMem`, held until the child has released its own | `LocalMem` under the parent's key |
//! | the `MsgBuf` and `Transfer` of each operation | buffers of the same size |
//! | `LargeBuffers` | its own |

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::ptr::NonNull;
use std::time::Duration;

use rustix::mm::{MapFlags, ProtFlags};

use super::Case;
use super::process::ChildNode;
use super::wire::{Reader, Writer, recv_fd, send_fd};
use crate::{
    Access, Addr, Arrival, Completion, Endpoint, Error, LargeBuffers, Limits, LocalMem, Memory,
    MsgBuf, OpId, OpenOptions, RawSegment, Refused, RegionTable, RemoteMem, Tag, Transfer,
};
use prim::sync::{Arc, Mutex, MutexGuard, lock};

pub(super) const ROLE: &str = "endpoint";

/// The calls, as their first word says.
pub(super) mod call {
    pub(in super::super) const LOOKUP: u64 = 1;
    pub(in super::super) const SEND: u64 = 2;
    pub(in super::super) const RECV: u64 = 3;
    pub(in super::super) const REGISTER: u64 = 4;
    pub(in super::super) const REVOKE: u64 = 5;
    pub(in super::super) const DESCRIBE: u64 = 6;
    pub(in super::super) const READ_DESCRIPTION: u64 = 7;
    pub(in super::super) const TRANSFER: u64 = 8;
    pub(in super::super) const CANCEL: u64 = 9;
    pub(in super::super) const POLL: u64 = 10;
    pub(in super::super) const PREPARE_WAIT: u64 = 11;
    pub(in super::super) const CLOSE: u64 = 12;
    pub(in super::super) const MULTI_RECV: u64 = 13;
}

/// No address.
pub(super) const NOBODY: u64 = u64::MAX;

/// The parent's proxy of the child's endpoint.
pub(super) struct RemoteEndpoint {
    id: u64,
    transport: &'static str,
    limits: Limits,
    own: (u64, String),
    bulk_path: String,
    wait_fd: Option<OwnedFd>,
    regions: RegionTable,
    state: Mutex<State>,
}

struct State {
    socket: Option<UnixStream>,
    child: ChildNode,
    buffers: HashMap<u64, MsgBuf>,
    /// Receives for many messages.
    many: HashSet<u64>,
    transfers: HashMap<u64, Transfer>,
    /// By key; `true`: the child was told to revoke it.
    memories: HashMap<u64, (LocalMem, bool)>,
}

impl State {
    fn call(&mut self, request: Writer) -> Reader {
        let socket = self.socket.as_ref().expect("open");
        request.send(socket);
        Reader::receive(socket).expect("the child's endpoint has failed, see its output")
    }

    /// Revokes in the child what the case has revoked or dropped here.
    fn pass_revocations(&mut self, regions: &RegionTable) {
        let mut revoked = Vec::new();
        for (key, (memory, told)) in &mut self.memories {
            let is_named = regions.lease(*key, 0, 0, memory.access() == Access::WriteOnly).is_ok();
            // `lease` has given its own reference back: one is ours.
            if !*told && (!is_named || Arc::strong_count(memory.region()) == 1) {
                *told = true;
                revoked.push(*key);
            }
        }
        for key in revoked {
            self.call(Writer::default().word(call::REVOKE).word(key));
        }
    }
}

impl RemoteEndpoint {
    /// Starts a child that opens an endpoint.
    pub(super) fn start(case: &Case<'_>, options: &OpenOptions) -> Arc<dyn Endpoint> {
        let (socket, theirs) = UnixStream::pair().expect("a socket pair");
        let fd = theirs.as_raw_fd();
        let child = ChildNode::start_with(case, ROLE, &fd.to_string(), Some(fd));
        drop(theirs);
        let nanos = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Writer::default()
            .word(options.listen.into())
            .word(options.message_bytes_max as u64)
            .word(nanos(options.connect_timeout))
            .word(nanos(options.liveness_limit))
            .word(options.left_bytes_max as u64)
            .send(&socket);
        let mut opened = Reader::receive(&socket).expect("the child opens an endpoint");
        let transport = opened.text().leak();
        let limits = Limits {
            unexpected_bytes_max: opened.word() as usize,
            expected_bytes_max: opened.word() as usize,
        };
        let own = (opened.word(), opened.text());
        let bulk_path = opened.text();
        let wait_fd = opened.flag().then(|| recv_fd(&socket));
        let state = State {
            socket: Some(socket),
            child,
            buffers: HashMap::new(),
            many: HashSet::new(),
            transfers: HashMap::new(),
            memories: HashMap::new(),
        };
        Arc::new(Self {
            id: Addr::unique_endpoint_id(),
            transport,
            limits,
            own,
            bulk_path,
            wait_fd,
            regions: RegionTable::new(),
            state: Mutex::new(state),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn addr(&self, number: u64, uri: String) -> Addr {
        Addr::new(uri, self.id, number, ())
    }

    fn number(&self, addr: &Addr) -> Result<u64, Error> {
        match addr.endpoint_id() == self.id {
            true => Ok(addr.peer_id()),
            false => Err(Error::InvalidArgument("an address of another endpoint".into())),
        }
    }

    fn message(
        &self,
        start: u64,
        expected: bool,
        op: OpId,
        peer: Option<(&Addr, Tag)>,
        buf: MsgBuf,
    ) -> Result<(), Refused> {
        let (number, tag) = match peer.map(|(addr, tag)| (self.number(addr), tag)) {
            Some((Ok(number), tag)) => (number, tag.0),
            Some((Err(error), _)) => return Err(Refused { error, buf }),
            None => (NOBODY, 0),
        };
        let request = Writer::default()
            .word(start)
            .word(expected.into())
            .word(op.0)
            .word(number)
            .word(tag.into())
            .word(buf.capacity() as u64)
            .bytes(if start == call::SEND { buf.as_slice() } else { &[] });
        let mut state = self.state();
        match state.call(request).result() {
            Ok(()) => {
                state.buffers.insert(op.0, buf);
                Ok(())
            }
            Err(error) => Err(Refused { error, buf }),
        }
    }

    fn transfer(&self, put: bool, op: OpId, peer: &Addr, transfer: Transfer) -> Result<(), Error> {
        let number = self.number(peer)?;
        let mut state = self.state();
        state.pass_revocations(&self.regions);
        let request = Writer::default()
            .word(call::TRANSFER)
            .word(put.into())
            .word(op.0)
            .word(number)
            .word(transfer.local.key())
            .word(transfer.local_offset)
            .remote(&transfer.remote)
            .word(transfer.remote_offset)
            .word(transfer.len);
        state.call(request).result()?;
        state.transfers.insert(op.0, transfer);
        Ok(())
    }

    fn completion(&self, state: &mut State, reply: &mut Reader) -> Completion {
        let (kind, op) = (reply.word(), OpId(reply.word()));
        let result = reply.result();
        if kind == call::TRANSFER {
            state.transfers.remove(&op.0);
            return Completion::Transfer { op, result };
        }
        let (capacity, bytes) = (reply.word() as usize, reply.bytes());
        let mut buf = match state.many.contains(&op.0) {
            true => MsgBuf::with_capacity(capacity),
            false => state.buffers.remove(&op.0).expect("an operation that was started"),
        };
        assert_eq!(buf.capacity(), capacity, "another buffer came back");
        if kind == call::SEND {
            assert!(buf.as_slice() == bytes, "the buffer of a send was changed");
            return Completion::Send { op, buf, result };
        }
        let from = (reply.word(), reply.text());
        let tag = Tag(reply.word() as u32);
        let result = result.map(|()| Arrival { from: self.addr(from.0, from.1), tag });
        if result.is_ok() {
            buf.clear();
            assert!(buf.try_extend(&bytes));
        }
        Completion::Recv { op, buf, result }
    }
}

impl std::fmt::Debug for RemoteEndpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RemoteEndpoint({})", self.own.1)
    }
}

impl Endpoint for RemoteEndpoint {
    fn transport(&self) -> &'static str {
        self.transport
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn self_addr(&self) -> Addr {
        self.addr(self.own.0, self.own.1.clone())
    }

    fn lookup(&self, uri: &str) -> Result<Addr, Error> {
        let mut reply = self.state().call(Writer::default().word(call::LOOKUP).text(uri));
        reply.result()?;
        Ok(self.addr(reply.word(), reply.text()))
    }

    fn send_unexpected(&self, op: OpId, to: &Addr, tag: Tag, buf: MsgBuf) -> Result<(), Refused> {
        self.message(call::SEND, false, op, Some((to, tag)), buf)
    }

    fn recv_unexpected(&self, op: OpId, buf: MsgBuf) -> Result<(), Refused> {
        self.message(call::RECV, false, op, None, buf)
    }

    fn has_multi_recv(&self) -> bool {
        true
    }

    fn multi_recv_unexpected(
        &self,
        op: OpId,
        count: usize,
        _buffers: &LargeBuffers,
    ) -> Result<(), Error> {
        let mut state = self.state();
        let request = Writer::default().word(call::MULTI_RECV).word(op.0).word(count as u64);
        state.call(request).result()?;
        state.many.insert(op.0);
        Ok(())
    }

    fn send_expected(&self, op: OpId, to: &Addr, tag: Tag, buf: MsgBuf) -> Result<(), Refused> {
        self.message(call::SEND, true, op, Some((to, tag)), buf)
    }

    fn recv_expected(&self, op: OpId, from: &Addr, tag: Tag, buf: MsgBuf) -> Result<(), Refused> {
        self.message(call::RECV, true, op, Some((from, tag)), buf)
    }

    fn register(&self, memory: Memory, access: Access) -> Result<LocalMem, Error> {
        let lens: Vec<usize> = memory.segments().iter().map(|segment| segment.len).collect();
        let fd = rustix::fs::memfd_create(c"conformance", rustix::fs::MemfdFlags::CLOEXEC)
            .expect("a memfd");
        let size = lens.iter().sum::<usize>().max(1);
        rustix::fs::ftruncate(&fd, size as u64).expect("size a memfd");
        let shared = shared_memory(&fd, &lens);
        for (from, to) in memory.segments().iter().zip(shared.segments()) {
            // SAFETY:
            // - source: a segment of `memory`, which keeps it valid;
            // - destination: of the same length, inside a fresh mapping that nobody else uses yet.
            unsafe { std::ptr::copy_nonoverlapping(from.ptr, to.ptr, from.len) };
        }
        drop(memory);
        let local = self.regions.register(shared, access)?;
        let mut state = self.state();
        let request = Writer::default()
            .word(call::REGISTER)
            .word(local.key())
            .word(access.bits().into())
            .word(lens.len() as u64);
        let request = lens.iter().fold(request, |request, len| request.word(*len as u64));
        let socket = state.socket.as_ref().expect("open");
        request.send(socket);
        send_fd(socket, fd.as_fd());
        Reader::receive(socket).expect("the child registers memory").result()?;
        state.memories.insert(local.key(), (local.clone(), false));
        Ok(local)
    }

    fn mem_to_bytes(&self, memory: &LocalMem) -> Vec<u8> {
        self.state().call(Writer::default().word(call::DESCRIBE).word(memory.key())).bytes()
    }

    fn mem_from_bytes(&self, bytes: &[u8]) -> Result<RemoteMem, Error> {
        let request = Writer::default().word(call::READ_DESCRIPTION).bytes(bytes);
        let mut reply = self.state().call(request);
        reply.result()?;
        Ok(reply.remote())
    }

    fn put(&self, op: OpId, to: &Addr, transfer: Transfer) -> Result<(), Error> {
        self.transfer(true, op, to, transfer)
    }

    fn get(&self, op: OpId, from: &Addr, transfer: Transfer) -> Result<(), Error> {
        self.transfer(false, op, from, transfer)
    }

    fn cancel(&self, op: OpId) {
        self.state().call(Writer::default().word(call::CANCEL).word(op.0));
    }

    fn poll(&self, budget: usize, sink: &mut dyn FnMut(Completion)) -> Result<usize, Error> {
        let mut state = self.state();
        state.pass_revocations(&self.regions);
        let mut reply = state.call(Writer::default().word(call::POLL).word(budget as u64));
        reply.result()?;
        let count = reply.word();
        let completions: Vec<_> =
            (0..count).map(|_| self.completion(&mut state, &mut reply)).collect();
        let released: Vec<_> =
            (0..reply.word()).map(|_| state.memories.remove(&reply.word())).collect();
        drop(state);
        // Without the lock: both may run the case's code.
        drop(released);
        completions.into_iter().for_each(sink);
        Ok(count as usize)
    }

    fn prepare_wait(&self) -> bool {
        let mut state = self.state();
        state.pass_revocations(&self.regions);
        state.call(Writer::default().word(call::PREPARE_WAIT)).flag()
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.wait_fd.as_ref().map(AsFd::as_fd)
    }

    fn close(&self) {
        self.state().call(Writer::default().word(call::CLOSE));
    }

    fn bulk_path(&self) -> String {
        self.bulk_path.clone()
    }
}

impl Drop for RemoteEndpoint {
    fn drop(&mut self) {
        let mut state = self.state();
        // The child drops its endpoint and ends.
        state.socket = None;
        if !std::thread::panicking() {
            state.child.wait();
        }
    }
}

/// A mapping of a memfd; unmapped when dropped.
struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: plain memory, which is not tied to a thread.
unsafe impl Send for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `shared_memory`; whoever owns it drops it after its last use.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// Maps `fd`, which is as long as `lens` together, as consecutive segments.
pub(super) fn shared_memory(fd: &OwnedFd, lens: &[usize]) -> Memory {
    let len = lens.iter().sum::<usize>().max(1);
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the kernel chooses a free address, so no existing memory is replaced.
    let base =
        unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, fd, 0) };
    let base = NonNull::new(base.expect("map a memfd").cast::<u8>()).expect("not at zero");
    let mut at = 0;
    let mut segments = Vec::with_capacity(lens.len());
    for len in lens {
        segments.push(RawSegment { ptr: base.as_ptr().wrapping_add(at), len: *len });
        at += len;
    }
    // SAFETY: the segments lie in the mapping, which the owner keeps until it is dropped; no
    // reference to its bytes is made.
    unsafe { Memory::from_raw(segments, Mapping { base, len }) }
}
