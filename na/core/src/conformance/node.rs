//! An endpoint with a notebook of what has completed, and the loop that drives several of them.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::time::Timespec;

use super::remote::RemoteEndpoint;
use super::{Case, PATIENCE, Random};
use crate::{
    Access, Addr, Arrival, Completion, Endpoint, Error, LargeBuffers, LocalMem, Memory, MsgBuf,
    OpId, OpenOptions, RemoteMem, Tag, Transfer,
};

/// An endpoint under test. Operations are numbered; each may complete once.
pub(super) struct Node {
    pub(super) endpoint: Arc<dyn Endpoint>,
    /// A loop that waits for it sleeps.
    blocking: bool,
    next: Cell<u64>,
    done: RefCell<BTreeMap<u64, Completion>>,
    seen: RefCell<HashSet<u64>>,
    /// Receives for many messages.
    many: RefCell<BTreeMap<u64, Many>>,
}

/// A receive for many messages: how many it still takes, and those that have come and that no case
/// has taken yet.
struct Many {
    left: usize,
    came: Vec<Completion>,
}

impl Node {
    pub(super) fn new(case: &Case<'_>, endpoint: Arc<dyn Endpoint>) -> Self {
        Self::of(endpoint, case.mode.blocking)
    }

    pub(super) fn of(endpoint: Arc<dyn Endpoint>, blocking: bool) -> Self {
        Self {
            endpoint,
            blocking,
            next: Cell::new(1),
            done: RefCell::default(),
            seen: RefCell::default(),
            many: RefCell::default(),
        }
    }

    /// A node of this process.
    pub(super) fn open(case: &Case<'_>, listen: bool) -> Self {
        Self::new(case, case.open(listen))
    }

    /// A listening node, in a process of its own if the mode says so, and one that is not.
    pub(super) fn pair(case: &Case<'_>) -> (Self, Self) {
        let target = match case.mode.two_processes {
            true => RemoteEndpoint::start(case, &OpenOptions::listening(true)),
            false => case.open(true),
        };
        (Self::new(case, target), Self::open(case, false))
    }

    /// A [`pair`](Self::pair) with options; `None` if the factory heeds none.
    pub(super) fn pair_with(
        case: &Case<'_>,
        of_target: &OpenOptions,
        of_origin: &OpenOptions,
    ) -> Option<(Self, Self)> {
        let origin = case.open_with(of_origin)?;
        let target = match case.mode.two_processes {
            true => RemoteEndpoint::start(case, of_target),
            false => case.open_with(of_target)?,
        };
        Some((Self::new(case, target), Self::new(case, origin)))
    }

    pub(super) fn op(&self) -> OpId {
        let op = self.next.get();
        self.next.set(op + 1);
        OpId(op)
    }

    pub(super) fn addr_of(&self, other: &Node) -> Addr {
        self.endpoint.lookup(other.endpoint.self_addr().uri()).expect("a listener's own address")
    }

    /// A buffer that holds `bytes`.
    pub(super) fn message(&self, bytes: &[u8]) -> MsgBuf {
        let mut buf = self.endpoint.alloc_msg();
        assert!(buf.try_extend(bytes), "test message too long");
        buf
    }

    pub(super) fn send_unexpected(&self, to: &Addr, tag: u32, bytes: &[u8]) -> OpId {
        let op = self.op();
        let buf = self.message(bytes);
        self.endpoint.send_unexpected(op, to, Tag(tag), buf).expect("send_unexpected");
        op
    }

    pub(super) fn send_expected(&self, to: &Addr, tag: u32, bytes: &[u8]) -> OpId {
        let op = self.op();
        self.endpoint.send_expected(op, to, Tag(tag), self.message(bytes)).expect("send_expected");
        op
    }

    pub(super) fn recv_unexpected(&self) -> OpId {
        let op = self.op();
        self.endpoint.recv_unexpected(op, self.endpoint.alloc_msg()).expect("recv_unexpected");
        op
    }

    pub(super) fn multi_recv(&self, count: usize, buffers: &LargeBuffers) -> OpId {
        let op = self.op();
        self.many.borrow_mut().insert(op.0, Many { left: count, came: Vec::new() });
        let posted = self.endpoint.multi_recv_unexpected(op, count, buffers);
        posted.expect("multi_recv_unexpected");
        op
    }

    /// How many completions of such a receive have come and were not taken.
    pub(super) fn count_many(&self, op: OpId) -> usize {
        self.many.borrow()[&op.0].came.len()
    }

    pub(super) fn take_many(&self, op: OpId) -> Vec<Completion> {
        let mut many = self.many.borrow_mut();
        std::mem::take(&mut many.get_mut(&op.0).expect("it was posted").came)
    }

    pub(super) fn recv_expected(&self, from: &Addr, tag: u32) -> OpId {
        let op = self.op();
        let buf = self.endpoint.alloc_msg();
        self.endpoint.recv_expected(op, from, Tag(tag), buf).expect("recv_expected");
        op
    }

    pub(super) fn register(&self, bytes: Vec<u8>, access: Access) -> LocalMem {
        self.endpoint.register(Memory::from_vec(bytes), access).expect("register")
    }

    pub(super) fn register_local(&self, bytes: Vec<u8>, access: Access) -> LocalMem {
        self.endpoint.register_local(Memory::from_vec(bytes), access).expect("register")
    }

    /// Returns the description of `memory` that a peer reads from its bytes.
    pub(super) fn described_to(&self, other: &Node, memory: &LocalMem) -> RemoteMem {
        let bytes = self.endpoint.mem_to_bytes(memory);
        other.endpoint.mem_from_bytes(&bytes).expect("a description survives the wire")
    }

    pub(super) fn get(&self, from: &Addr, transfer: Transfer) -> OpId {
        let op = self.op();
        self.endpoint.get(op, from, transfer).expect("get");
        op
    }

    pub(super) fn put(&self, to: &Addr, transfer: Transfer) -> OpId {
        let op = self.op();
        self.endpoint.put(op, to, transfer).expect("put");
        op
    }

    /// Polls once. A second completion of the same operation fails the case, and one too many of a
    /// receive for many messages.
    pub(super) fn poll(&self) -> usize {
        let mut done = self.done.borrow_mut();
        let mut seen = self.seen.borrow_mut();
        let mut many = self.many.borrow_mut();
        self.endpoint
            .poll(64, &mut |completion| {
                let op = id(&completion).0;
                if let Some(many) = many.get_mut(&op) {
                    assert!(many.left > 0, "receive {op} was over");
                    many.left = outcome(&completion).map_or(0, |()| many.left - 1);
                    return many.came.push(completion);
                }
                assert!(seen.insert(op), "operation {op} completed twice");
                done.insert(op, completion);
            })
            .expect("poll")
    }

    pub(super) fn is_done(&self, op: OpId) -> bool {
        self.done.borrow().contains_key(&op.0)
    }

    pub(super) fn all_done(&self, ops: &[OpId]) -> bool {
        ops.iter().all(|op| self.is_done(*op))
    }

    pub(super) fn count_done(&self, ops: &[OpId]) -> usize {
        ops.iter().filter(|op| self.is_done(**op)).count()
    }

    pub(super) fn take(&self, op: OpId) -> Completion {
        self.done.borrow_mut().remove(&op.0).expect("the operation has completed")
    }

    /// The message of a receive that has completed.
    pub(super) fn received(&self, op: OpId) -> (Arrival, Vec<u8>) {
        match self.take(op) {
            Completion::Recv { buf, result: Ok(arrival), .. } => (arrival, buf.as_slice().to_vec()),
            other => panic!("not a message: {other:?}"),
        }
    }

    /// Asserts that an operation has completed well.
    pub(super) fn succeeded(&self, op: OpId) {
        if let Err(error) = self.outcome(op) {
            panic!("operation failed: {error}");
        }
    }

    /// The error of an operation that has failed.
    pub(super) fn error(&self, op: OpId) -> Error {
        self.outcome(op).expect_err("the operation must fail")
    }

    pub(super) fn outcome(&self, op: OpId) -> Result<(), Error> {
        outcome(&self.take(op))
    }
}

/// The operation that a completion ends.
pub(super) fn id(completion: &Completion) -> OpId {
    match completion {
        Completion::Send { op, .. } | Completion::Recv { op, .. } => *op,
        Completion::Transfer { op, .. } => *op,
    }
}

/// Returns whether the operation succeeded.
pub(super) fn outcome(completion: &Completion) -> Result<(), Error> {
    match completion {
        Completion::Send { result, .. } | Completion::Transfer { result, .. } => result.clone(),
        Completion::Recv { result, .. } => result.as_ref().map(|_| ()).map_err(Clone::clone),
    }
}

/// Polls `nodes` until `done`, which only what they report may bring about; fails after
/// [`PATIENCE`].
#[track_caller]
pub(super) fn drive(nodes: &[&Node], what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    let mut idle_polls = 0;
    while !done() {
        let progress: usize = nodes.iter().map(|node| node.poll()).sum();
        idle_polls = if progress == 0 { idle_polls + 1 } else { 0 };
        if progress == 0 {
            assert!(Instant::now() < deadline, "waited too long for: {what}");
            if nodes.iter().any(|node| node.blocking) && !done() {
                sleep(nodes, what);
            } else {
                give_way(idle_polls);
            }
        }
    }
}

/// Lets others run: after many polls in a row that found nothing, for long enough to leave them the
/// processor. What has not come after some 100 ms waits for a limit of seconds.
pub(super) fn give_way(idle_polls: u32) {
    match idle_polls {
        ..1000 => std::thread::yield_now(),
        1000..2000 => std::thread::sleep(Duration::from_micros(100)),
        _ => std::thread::sleep(Duration::from_millis(2)),
    }
}

/// Sleeps until one of `nodes` has something to do, if all of them can and have nothing now.
#[track_caller]
pub(super) fn sleep(nodes: &[&Node], what: &str) {
    if !nodes.iter().all(|node| node.endpoint.prepare_wait()) {
        return;
    }
    let fds: Option<Vec<_>> = nodes.iter().map(|node| node.endpoint.wait_fd()).collect();
    let Some(fds) = fds else { return std::thread::yield_now() };
    let mut fds: Vec<_> = fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
    let limit = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
    let ready = rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, Some(&limit)));
    assert!(ready.is_ok_and(|ready| ready > 0), "slept through: {what}");
}

/// Polls `nodes` until the operations of the first have completed.
#[track_caller]
pub(super) fn finish(nodes: &[&Node], what: &str, ops: &[OpId]) {
    let owner = nodes[0];
    let mut left: Vec<OpId> = ops.to_vec();
    // There may be thousands, and the polls that find nothing are many more.
    let mut ended = usize::MAX;
    drive(nodes, what, || {
        let now = owner.seen.borrow().len();
        if ended != now {
            ended = now;
            left.retain(|op| !owner.is_done(*op));
        }
        left.is_empty()
    });
}

/// Connects both ways with one message and its answer. Returns what each calls the other; `origin`
/// need not listen.
pub(super) fn greet(origin: &Node, target: &Node) -> (Addr, Addr) {
    let to_target = origin.addr_of(target);
    let asked = target.recv_unexpected();
    let answered = origin.recv_expected(&to_target, 1);
    origin.send_unexpected(&to_target, 1, b"hello");
    finish(&[target, origin], "greeting", &[asked]);
    let (arrival, _) = target.received(asked);
    target.send_expected(&arrival.from, 1, b"hello yourself");
    finish(&[origin, target], "answer to the greeting", &[answered]);
    assert_eq!(origin.received(answered).0.from, to_target, "the answer names its sender");
    (to_target, arrival.from)
}

/// Reproducible bytes that differ from place to place and from seed to seed.
pub(super) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut bytes = vec![0; len];
    for chunk in bytes.chunks_mut(8) {
        let word = random.next().to_le_bytes();
        chunk.copy_from_slice(&word[..chunk.len()]);
    }
    bytes
}

/// The bytes of registered memory.
pub(super) fn contents(memory: &LocalMem) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(memory.len()).expect("test memory fits")];
    assert!(memory.read_at(0, &mut bytes));
    bytes
}

/// The bytes of memory that has come back.
pub(super) fn bytes_of(memory: &Memory) -> Vec<u8> {
    let mut bytes = Vec::new();
    for segment in memory.segments() {
        if segment.len > 0 {
            // SAFETY: `memory` keeps the segment valid, and nobody writes to it any more: it was
            // given back.
            bytes
                .extend_from_slice(unsafe { std::slice::from_raw_parts(segment.ptr, segment.len) });
        }
    }
    bytes
}
