//! Helpers that the fault tests of the sm transport share: a node that collects completions, a
//! hostile peer that speaks the protocol by hand, and second processes.
#![allow(dead_code, reason = "each test file uses a part")]

use std::collections::HashMap;
use std::io::{BufRead, BufReader, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use na::{
    Access, Addr, Arrival, Completion, Endpoint, Error, LocalMem, Memory, OpId, OpenOptions,
    RemoteMem, Tag, Transfer,
};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix};

/// Far above what a loaded machine needs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// An endpoint with the completions that it has reported.
pub(crate) struct Node {
    pub(crate) endpoint: Arc<dyn Endpoint>,
    done: HashMap<u64, Completion>,
    next: u64,
    polls: u64,
}

impl Node {
    pub(crate) fn new(endpoint: Arc<dyn Endpoint>) -> Self {
        Self { endpoint, done: HashMap::new(), next: 1, polls: 0 }
    }

    pub(crate) fn op(&mut self) -> OpId {
        self.next += 1;
        OpId(self.next)
    }

    pub(crate) fn poll(&mut self) {
        let done = &mut self.done;
        let mut sink = |completion: Completion| {
            let (Completion::Send { op, .. }
            | Completion::Recv { op, .. }
            | Completion::Transfer { op, .. }) = &completion;
            assert!(done.insert(op.0, completion).is_none(), "two completions");
        };
        self.endpoint.poll(64, &mut sink).expect("poll");
        self.polls += 1;
    }

    /// Polls until it may sleep, and says that it does. Of the polls that follow the eighth is the
    /// first that reads a clock and, while somebody greets, asks the kernel by itself.
    #[track_caller]
    pub(crate) fn fall_asleep(&mut self) {
        self.until("a sleep", |node| node.polls % 16 == 8 && node.endpoint.prepare_wait());
    }

    /// Waits until something wakes it.
    #[track_caller]
    pub(crate) fn woken(&self) {
        let fd = self.endpoint.wait_fd().expect("a descriptor to wait for");
        let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
        let limit = rustix::event::Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
        let ready = rustix::event::poll(&mut fds, Some(&limit)).expect("a sleep");
        assert_eq!(ready, 1, "nobody wakes it");
    }

    pub(crate) fn is_done(&self, op: OpId) -> bool {
        self.done.contains_key(&op.0)
    }

    #[track_caller]
    pub(crate) fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !done(self) {
            assert!(Instant::now() < deadline, "waited too long for {what}");
            self.poll();
        }
    }

    #[track_caller]
    pub(crate) fn finish(&mut self, op: OpId) -> Completion {
        self.until("an operation", |node| node.is_done(op));
        self.done.remove(&op.0).expect("just seen")
    }

    #[track_caller]
    pub(crate) fn error(&mut self, op: OpId) -> Error {
        match self.finish(op) {
            Completion::Send { result, .. } | Completion::Transfer { result, .. } => result.err(),
            Completion::Recv { result, .. } => result.err(),
        }
        .expect("it should have failed")
    }

    pub(crate) fn send(&mut self, to: &Addr, tag: u32, bytes: &[u8]) -> OpId {
        let op = self.op();
        let mut buf = self.endpoint.alloc_msg();
        assert!(buf.try_extend(bytes));
        self.endpoint.send_unexpected(op, to, Tag(tag), buf).expect("send");
        op
    }

    pub(crate) fn recv(&mut self) -> OpId {
        let op = self.op();
        let buf = self.endpoint.alloc_msg();
        self.endpoint.recv_unexpected(op, buf).expect("post a receive");
        op
    }

    pub(crate) fn recv_expected(&mut self, from: &Addr, tag: u32) -> OpId {
        let op = self.op();
        let buf = self.endpoint.alloc_msg();
        self.endpoint.recv_expected(op, from, Tag(tag), buf).expect("post a receive");
        op
    }

    /// Starts a transfer with the memory of `owner`.
    pub(crate) fn start(&mut self, put: bool, owner: &Addr, transfer: Transfer) -> OpId {
        let op = self.op();
        let started = match put {
            true => self.endpoint.put(op, owner, transfer),
            false => self.endpoint.get(op, owner, transfer),
        };
        started.expect("start");
        op
    }

    /// The end of a transfer, while `owner` polls too.
    #[track_caller]
    pub(crate) fn transferred(&mut self, op: OpId, owner: &mut Node) -> Result<(), Error> {
        self.until("a transfer", |requester| {
            owner.poll();
            requester.is_done(op)
        });
        match self.finish(op) {
            Completion::Transfer { result, .. } => result,
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    pub(crate) fn received(&mut self, op: OpId) -> (Arrival, Vec<u8>) {
        match self.finish(op) {
            Completion::Recv { buf, result: Ok(arrival), .. } => (arrival, buf.as_slice().to_vec()),
            other => panic!("expected a message, got {other:?}"),
        }
    }

    /// A fresh client gets its message through: the endpoint still serves.
    #[track_caller]
    pub(crate) fn still_serves(&mut self) {
        let client = na::open("na+sm://", &na::OpenOptions::default()).expect("open a client");
        let to = super::lookup(&client, self.endpoint.self_addr().uri());
        let mut client = Node::new(client);
        let asked = self.recv();
        client.send(&to, 77, b"still there?");
        self.until("a request", |node| {
            client.poll();
            node.is_done(asked)
        });
        let (arrival, bytes) = self.received(asked);
        assert_eq!((arrival.tag, bytes.as_slice()), (Tag(77), &b"still there?"[..]));
        let answered = client.recv_expected(&to, 78);
        let (op, mut buf) = (self.op(), self.endpoint.alloc_msg());
        assert!(buf.try_extend(b"yes"));
        self.endpoint.send_expected(op, &arrival.from, Tag(78), buf).expect("answer");
        self.until("the answer", |_| {
            client.poll();
            client.is_done(answered)
        });
        assert_eq!(client.received(answered).1, b"yes");
    }
}

pub(crate) fn listening() -> Node {
    Node::new(super::open("na+sm://", &OpenOptions::listening(true)))
}

/// Connects `requester` with `owner`, whose address there is returned.
pub(crate) fn connected(requester: &mut Node, owner: &mut Node) -> Addr {
    let uri = owner.endpoint.self_addr().uri().to_owned();
    let to_owner = super::lookup(&requester.endpoint, &uri);
    let hello = owner.recv();
    requester.send(&to_owner, 1, b"hello");
    owner.until("a connection", |owner| {
        requester.poll();
        owner.is_done(hello)
    });
    to_owner
}

pub(crate) fn with_attach(attach: bool, listen: bool) -> Node {
    let mut options = OpenOptions::listening(listen);
    options.sm.cross_memory_attach = attach;
    Node::new(super::open("na+sm://", &options))
}

/// Zero bytes without touching them, so that they cost nothing.
pub(crate) fn registered(node: &Node, len: usize, access: Access) -> LocalMem {
    node.endpoint.register(Memory::from_vec(vec![0; len]), access).expect("register")
}

pub(crate) fn whole(local: &LocalMem, remote: &RemoteMem) -> Transfer {
    let len = remote.len.min(local.len());
    Transfer {
        local: local.clone(),
        local_offset: 0,
        remote: remote.clone(),
        remote_offset: 0,
        len,
    }
}

/// Kinds of record (`docs/wire-sm.md`).
pub(crate) const GET: u8 = 3;
pub(crate) const PUT: u8 = 4;
pub(crate) const DONE: u8 = 5;
pub(crate) const PULL: u8 = 6;
pub(crate) const SUPPLY: u8 = 8;
pub(crate) const CANCEL: u8 = 9;
pub(crate) const FINISHED: u8 = 13;
pub(crate) const LANE_DATA: u8 = 15;
pub(crate) const LANE_SUPPLY: u8 = 16;
pub(crate) const TAKEN: u8 = 19;
pub(crate) const SHARE: u8 = 22;

/// Bytes of a slot of a lane.
pub(crate) const SLOT: usize = 16 << 10;

/// The payload of a record.
pub(crate) fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// A region, and how others call it.
pub(crate) fn register(node: &Node, memory: Memory, access: Access) -> (LocalMem, RemoteMem) {
    let local = node.endpoint.register(memory, access).expect("register");
    let described = node.endpoint.mem_to_bytes(&local);
    let remote = node.endpoint.mem_from_bytes(&described).expect("a description");
    (local, remote)
}

/// Bytes of each ring of a hostile peer, and of its whole segment.
pub(crate) const RING: usize = 64 << 10;
pub(crate) const SEGMENT: usize = 4096 + 2 * RING + 4 * 4096;

/// A hello as the handshake describes it, of an endpoint that `listens` at `uri` or does not.
pub(crate) fn hello(uri: &str, listens: bool) -> Vec<u8> {
    let mut bytes = b"MRGO\x04\0\x01\0".to_vec();
    for word in [4096u32, u32::from(listens), RING as u32, uri.len() as u32] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend([0; 24]);
    bytes.extend(uri.as_bytes());
    if let Some(shard) = super::wanted() {
        // It has one shard itself.
        bytes[12] |= 8;
        bytes[15] = 1 + shard as u8;
    }
    bytes
}

/// Where an endpoint listens.
fn socket_address(uri: &str) -> SocketAddrUnix {
    let name = uri.strip_prefix("na+sm://").expect("an sm address");
    let name = match name.split_once('@') {
        Some((user, name)) => format!("margo-sm/{user}/{name}"),
        None => format!("margo-sm/{}/{name}", rustix::process::geteuid().as_raw()),
    };
    SocketAddrUnix::new_abstract_name(name.as_bytes()).expect("a socket name")
}

fn raw_socket() -> OwnedFd {
    use rustix::net::{AddressFamily, SocketFlags, SocketType};
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None).expect("a socket")
}

/// A raw connection to an endpoint.
pub(crate) fn dial(uri: &str) -> OwnedFd {
    let socket = raw_socket();
    rustix::net::connect(&socket, &socket_address(uri)).expect("connect");
    socket
}

/// A raw socket that listens in place of an endpoint.
pub(crate) fn listen(uri: &str) -> OwnedFd {
    let socket = raw_socket();
    rustix::net::bind(&socket, &socket_address(uri)).expect("bind");
    rustix::net::listen(&socket, 64).expect("listen");
    socket
}

/// Sends a packet with descriptors.
pub(crate) fn send_packet(socket: &OwnedFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
    try_send_packet(socket, bytes, fds).expect("send a packet");
}

pub(crate) fn try_send_packet(
    socket: &OwnedFd,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
) -> rustix::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds)));
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)
        .map(drop)
}

/// Sends the first packet with descriptors as soon as `node` lets them through.
#[track_caller]
pub(crate) fn greet(node: &mut Node, socket: &OwnedFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
    node.until("leave to send descriptors", |_| is_greeted(socket, bytes, fds));
}

/// Sends the first packet with descriptors. `false`: they are not let through yet.
pub(crate) fn is_greeted(socket: &OwnedFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> bool {
    match try_send_packet(socket, bytes, fds) {
        Err(rustix::io::Errno::PERM) => false,
        sent => {
            sent.expect("send a packet");
            true
        }
    }
}

/// A file whose last close waits as long as `peer` is open: it lingers over data that nobody reads.
pub(crate) struct Lingering {
    pub(crate) file: OwnedFd,
    pub(crate) peer: std::net::TcpStream,
}

impl Lingering {
    pub(crate) fn new() -> Self {
        use std::io::Write;
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("listen");
        let address = listener.local_addr().expect("an address");
        let mut file = std::net::TcpStream::connect(address).expect("connect");
        let (peer, _) = listener.accept().expect("accept");
        file.set_nonblocking(true).expect("an option");
        while file.write(&[0; 1 << 16]).is_ok() {}
        // Without this, close does not wait.
        file.set_nonblocking(false).expect("an option");
        let linger = Some(Duration::from_secs(1000));
        rustix::net::sockopt::set_socket_linger(&file, linger).expect("an option");
        Self { file: file.into(), peer }
    }
}

/// Runs `act`, which must not wait for anybody, on a thread of its own.
#[track_caller]
pub(crate) fn without_waiting<R: Send + 'static>(act: impl FnOnce() -> R + Send + 'static) -> R {
    let (done, ended) = channel();
    let thread = std::thread::spawn(move || drop(done.send(act())));
    match ended.recv_timeout(PATIENCE / 2) {
        Ok(result) => result,
        Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("it waits for somebody"),
        Err(_) => std::panic::resume_unwind(thread.join().expect_err("it said nothing")),
    }
}

/// The next packet but for *ready*, `None` while there is none; empty at end of file.
pub(crate) fn recv_packet(socket: &OwnedFd) -> Option<Vec<u8>> {
    match recv_any(socket) {
        Some(packet) if packet.starts_with(b"MRGO\x04\0\x04\0") => recv_packet(socket),
        packet => packet,
    }
}

/// The next packet of whatever kind.
pub(crate) fn recv_any(socket: &OwnedFd) -> Option<Vec<u8>> {
    let mut bytes = vec![0; 4096];
    match rustix::net::recv(socket, &mut bytes[..], rustix::net::RecvFlags::DONTWAIT) {
        Ok((len, _)) => Some(bytes[..len].to_vec()),
        Err(rustix::io::Errno::AGAIN) => None,
        // The other side has closed with something unread. The kernel says so once, and before what
        // had been sent.
        Err(rustix::io::Errno::CONNRESET) => recv_any(socket),
        Err(_) => Some(Vec::new()),
    }
}

/// A memfd of `len` bytes, sealed like a segment if `seal`.
pub(crate) fn memfd(len: usize, seal: bool) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create(c"hostile", flags).expect("memfd");
    rustix::fs::ftruncate(&fd, len as u64).expect("size");
    if seal {
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW).expect("seal");
    }
    fd
}

/// A packet with descriptors, `None` while there is none.
fn recv_with_fds(socket: &OwnedFd) -> Option<(Vec<u8>, Vec<OwnedFd>)> {
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = vec![0; 4096];
    let slices = &mut [std::io::IoSliceMut::new(&mut bytes)];
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = match rustix::net::recvmsg(socket, slices, &mut control, flags) {
        Err(rustix::io::Errno::AGAIN) => return None,
        received => received.expect("receive a packet").bytes,
    };
    let rights = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    let fds = rights.flatten().collect();
    bytes.truncate(received);
    Some((bytes, fds))
}

/// Waits for what `look` finds, while `poll` drives the other side.
#[track_caller]
pub(crate) fn wait<T>(poll: &mut dyn FnMut(), mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited too long");
        poll();
    }
}

/// A peer that attaches properly and then writes what it likes.
pub(crate) struct Hostile {
    pub(crate) socket: OwnedFd,
    map: *mut u8,
    /// Which of the rings it writes into: 0 if it has connected, 1 if it has accepted.
    out: usize,
    /// Where the next record goes in the ring towards the endpoint.
    tail: usize,
    /// Bytes that were read from the ring towards us.
    read: u64,
}

impl Hostile {
    /// Connects to `node`, greets, and sends one message with tag 1, whose arrival is returned.
    pub(crate) fn attach(node: &mut Node) -> (Self, Addr) {
        Self::attach_as(node, "na+sm://hostile", false)
    }

    /// Attaches like [`attach`](Self::attach), under a name that the peer claims.
    pub(crate) fn attach_as(node: &mut Node, claimed: &str, listens: bool) -> (Self, Addr) {
        Self::attach_with(node, &hello(claimed, listens))
    }

    /// Attaches like [`attach`](Self::attach), and lets the endpoint copy in the peer's memory,
    /// which is ours.
    pub(crate) fn attach_open(node: &mut Node) -> (Self, Addr) {
        static NONCE: u64 = 0x0123_4567_89ab_cdef;
        let mut hello = hello("na+sm://hostile", false);
        hello[12] |= 2;
        hello[24..32].copy_from_slice(&((&raw const NONCE) as u64).to_le_bytes());
        hello[32..40].copy_from_slice(&NONCE.to_le_bytes());
        Self::attach_with(node, &hello)
    }

    fn attach_with(node: &mut Node, hello: &[u8]) -> (Self, Addr) {
        let uri = node.endpoint.self_addr().uri().to_owned();
        let (mut hostile, answer) = Self::call(&uri, hello, &mut || node.poll());
        assert!(answer.starts_with(b"MRGO\x04\0\x02\0"), "no welcome");
        let asked = node.recv();
        hostile.write(1, 1, b"hello");
        let (arrival, bytes) = node.received(asked);
        assert_eq!(bytes, b"hello");
        (hostile, arrival.from)
    }

    /// Connects to whoever listens as `uri`, says `hello`, and hears the answer, while `poll`
    /// drives the other side.
    #[track_caller]
    pub(crate) fn call(uri: &str, hello: &[u8], poll: &mut dyn FnMut()) -> (Self, Vec<u8>) {
        let (socket, memory) = (dial(uri), memfd(SEGMENT, true));
        let hostile = Self::over(socket, &memory, 0);
        let fds = [memory.as_fd()];
        wait(poll, || is_greeted(&hostile.socket, hello, &fds).then_some(()));
        let answer = wait(poll, || recv_packet(&hostile.socket));
        (hostile, answer)
    }

    /// Accepts a connection and answers its hello, which is returned, with `welcome`.
    #[track_caller]
    pub(crate) fn accept(
        listener: &OwnedFd,
        welcome: &[u8],
        poll: &mut dyn FnMut(),
    ) -> (Self, Vec<u8>) {
        let accept = rustix::net::accept;
        rustix::io::ioctl_fionbio(listener, true).expect("an option");
        let socket = wait(poll, || accept(listener).ok());
        let (hello, fds) = wait(poll, || recv_with_fds(&socket));
        let hostile = Self::over(socket, &fds[0], 1);
        send_packet(&hostile.socket, welcome, &[]);
        (hostile, hello)
    }

    /// Over a socket and the segment in `memory`, with `out` as its ring.
    fn over(socket: OwnedFd, memory: &OwnedFd, out: usize) -> Self {
        let (protection, share) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        let anywhere = std::ptr::null_mut();
        // SAFETY: a fresh mapping of a file of that size.
        let map = unsafe { rustix::mm::mmap(anywhere, SEGMENT, protection, share, memory, 0) };
        Self { socket, map: map.expect("map").cast(), out, tail: 0, read: 0 }
    }

    /// Where the ring that it writes into begins, or the other one.
    fn ring(&self, own: bool) -> usize {
        4096 + if own { self.out } else { 1 - self.out } * RING
    }

    /// The word at `offset` of the segment.
    pub(crate) fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset + 8 <= SEGMENT);
        // SAFETY: inside the mapping, which lives as long as `self`.
        let word = unsafe { self.map.add(offset) };
        // SAFETY: as above, aligned, and only used as an atomic.
        unsafe { AtomicU64::from_ptr(word.cast()) }
    }

    /// The half word at `offset` of the segment.
    pub(crate) fn half(&self, offset: usize) -> &AtomicU32 {
        assert!(offset + 4 <= SEGMENT);
        // SAFETY: inside the mapping, which lives as long as `self`.
        let word = unsafe { self.map.add(offset) };
        // SAFETY: as above, aligned, and only used as an atomic.
        unsafe { AtomicU32::from_ptr(word.cast()) }
    }

    /// Stores a commit word at the endpoint's read position.
    pub(crate) fn commit(&mut self, word: u64) {
        self.word(self.ring(true) + self.tail).store(word, Ordering::Release);
    }

    /// A proper record.
    pub(crate) fn write(&mut self, kind: u8, tag: u32, payload: &[u8]) {
        let at = self.ring(true) + self.tail + 8;
        for (index, chunk) in payload.chunks(8).enumerate() {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.word(at + 8 * index).store(u64::from_ne_bytes(word), Ordering::Relaxed);
        }
        let span = (8 + payload.len()).next_multiple_of(64);
        // Records that divide the ring need no padding at its end.
        let next = (self.tail + span) % RING;
        self.word(self.ring(true) + next).store(0, Ordering::Relaxed);
        self.commit(payload.len() as u64 | u64::from(kind) << 24 | u64::from(tag) << 32);
        self.tail = next;
    }

    /// The next record that the endpoint wrote: its kind and payload. Its room is free again.
    pub(crate) fn read(&mut self) -> Option<(u8, Vec<u8>)> {
        let start = self.ring(false);
        let mut at = (self.read % RING as u64) as usize;
        let mut word = self.word(start + at).load(Ordering::Acquire);
        if word >> 24 & 0xff == 255 {
            self.read += (RING - at) as u64;
            at = 0;
            word = self.word(start).load(Ordering::Acquire);
        }
        let (len, kind) = ((word & 0xff_ffff) as usize, (word >> 24) as u8);
        if kind == 0 {
            return None;
        }
        let words = (0..len.div_ceil(8)).map(|index| start + at + 8 + 8 * index);
        let payload = words.flat_map(|at| self.word(at).load(Ordering::Relaxed).to_ne_bytes());
        let payload = payload.take(len).collect();
        self.read += (8 + len).next_multiple_of(64) as u64;
        self.word(256 - 128 * self.out).store(self.read, Ordering::Release);
        Some((kind, payload))
    }

    /// Returns whether the endpoint has ended the connection.
    pub(crate) fn is_closed(&self) -> bool {
        matches!(recv_packet(&self.socket), Some(packet) if packet.is_empty())
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `attach`; no reference outlives `self`.
        let _ = unsafe { rustix::mm::munmap(self.map.cast(), SEGMENT) };
    }
}

const ROLE: &str = "NA_SM_FAULTS_ROLE";
const MARK: &str = "sm-child: ";

/// In a child: what it was told.
pub(crate) fn role() -> Option<Vec<String>> {
    let role = std::env::var(ROLE).ok()?;
    Some(role.split(' ').map(str::to_owned).collect())
}

/// In a child: a line for the parent.
pub(crate) fn say(text: &str) {
    println!("\n{MARK}{text}");
}

/// In a child: sleeps until it is killed.
pub(crate) fn sleep_for_ever() -> ! {
    loop {
        std::thread::park();
    }
}

/// This test again, in a process that ends with the thread that starts it.
fn again(test: &str, role: &str) -> Command {
    na::conformance::hear_of_children();
    let mut command = Command::new(std::env::current_exe().expect("own path"));
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]).env(ROLE, role);
    command.stdin(Stdio::null());
    // SAFETY: one async-signal-safe system call between fork and exec.
    unsafe {
        command.pre_exec(|| {
            let signal = Some(rustix::process::Signal::KILL);
            Ok(rustix::process::set_parent_process_death_signal(signal)?)
        })
    };
    command
}

/// How a process ends that does its part of `test`, and what it says.
pub(crate) fn output_of(test: &str, role: &str) -> std::process::Output {
    again(test, role).output().expect("start the test binary again")
}

/// This test again in a second process. Killed when dropped, or with the thread that started it.
pub(crate) struct ChildNode {
    pub(crate) child: Child,
    lines: Receiver<String>,
}

impl ChildNode {
    pub(crate) fn start(test: &str, role: &str) -> Self {
        let mut command = again(test, role);
        command.stdout(Stdio::piped());
        let mut child = command.spawn().expect("start the test binary again");
        let stdout = BufReader::new(child.stdout.take().expect("stdout is piped"));
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if let Some(text) = line.strip_prefix(MARK)
                    && sender.send(text.to_owned()).is_err()
                {
                    return;
                }
            }
        });
        Self { child, lines }
    }

    /// A line that has come, if any.
    #[track_caller]
    pub(crate) fn try_line(&self) -> Option<String> {
        match self.lines.try_recv() {
            Ok(line) => Some(line),
            Err(std::sync::mpsc::TryRecvError::Empty) => None,
            Err(error) => panic!("the child ended without saying what it had to: {error}"),
        }
    }

    /// The next line.
    #[track_caller]
    pub(crate) fn line(&self) -> String {
        self.lines.recv_timeout(PATIENCE).expect("a line from the child")
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).expect("signal the child");
    }

    /// Lets it stand still; returns when it does.
    pub(crate) fn stop(&self) {
        self.signal(rustix::process::Signal::STOP);
        // Another processor may run it a little longer.
        let pid = rustix::process::Pid::from_child(&self.child);
        let stopped = rustix::process::WaitOptions::UNTRACED;
        let waited = rustix::process::waitpid(Some(pid), stopped).expect("wait for the child");
        assert!(waited.expect("a status").1.stopped());
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("kill the child");
        self.child.wait().expect("reap the child");
    }
}

impl Drop for ChildNode {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
