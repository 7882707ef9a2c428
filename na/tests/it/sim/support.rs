//! Nodes of simulated networks that a test drives by hand. Nothing here looks at a clock: a test
//! that waits for what will not happen fails when nothing is left to happen.
#![allow(dead_code, clippy::unwrap_used, reason = "each test file uses part of it; asserts")]

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};

pub(crate) use na::conformance::Random;
use na::sim::{Drive, LinkOptions, Network, NetworkBuilder};
use na::{
    Access, Addr, Completion, Endpoint, Error, LocalMem, Memory, MsgBuf, OpId, OpenOptions, Tag,
    Transfer,
};

/// Far above what any of these tests needs.
const EVENTS_MAX: u64 = 10_000_000;

/// A network of its own, driven by hand.
pub(crate) fn builder(seed: u64) -> NetworkBuilder {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    // The name is in no trace.
    Network::builder(format!("by-hand-{number}")).seed(seed).drive(Drive::Manual)
}

pub(crate) fn network(seed: u64, link: LinkOptions) -> Network {
    builder(seed).link(link).build().unwrap()
}

/// `OpenOptions` cannot be listed from outside the crate.
pub(crate) fn options(change: impl FnOnce(&mut OpenOptions)) -> OpenOptions {
    let mut options = OpenOptions::listening(true);
    change(&mut options);
    options
}

/// An endpoint with a notebook of what has completed.
pub(crate) struct Node {
    pub(crate) network: Network,
    pub(crate) endpoint: Arc<dyn Endpoint>,
    next: Cell<u64>,
    started: RefCell<BTreeSet<u64>>,
    done: RefCell<BTreeMap<u64, Completion>>,
}

impl Node {
    pub(crate) fn open(network: &Network, name: &str) -> Self {
        Self::open_with(network, name, &OpenOptions::listening(true))
    }

    pub(crate) fn open_with(network: &Network, name: &str, options: &OpenOptions) -> Self {
        Self {
            network: network.clone(),
            endpoint: network.open(name, options).unwrap(),
            next: Cell::new(1),
            started: RefCell::default(),
            done: RefCell::default(),
        }
    }

    fn op(&self) -> OpId {
        let op = self.next.get();
        self.next.set(op + 1);
        self.started.borrow_mut().insert(op);
        OpId(op)
    }

    pub(crate) fn to(&self, other: &str) -> Addr {
        self.endpoint.lookup(&format!("na+sim://{}/{other}", self.network.name())).unwrap()
    }

    pub(crate) fn message(&self, bytes: &[u8]) -> MsgBuf {
        let mut buf = self.endpoint.alloc_msg();
        assert!(buf.try_extend(bytes));
        buf
    }

    pub(crate) fn send(&self, to: &Addr, tag: u32, bytes: &[u8]) -> OpId {
        let (op, buf) = (self.op(), self.message(bytes));
        self.endpoint.send_unexpected(op, to, Tag(tag), buf).unwrap();
        op
    }

    pub(crate) fn send_expected(&self, to: &Addr, tag: u32, bytes: &[u8]) -> OpId {
        let (op, buf) = (self.op(), self.message(bytes));
        self.endpoint.send_expected(op, to, Tag(tag), buf).unwrap();
        op
    }

    pub(crate) fn recv(&self) -> OpId {
        let op = self.op();
        self.endpoint.recv_unexpected(op, self.endpoint.alloc_msg()).unwrap();
        op
    }

    pub(crate) fn recv_expected(&self, from: &Addr, tag: u32) -> OpId {
        let op = self.op();
        self.endpoint.recv_expected(op, from, Tag(tag), self.endpoint.alloc_msg()).unwrap();
        op
    }

    pub(crate) fn register(&self, bytes: Vec<u8>) -> LocalMem {
        self.endpoint.register(Memory::from_vec(bytes), Access::ReadWrite).unwrap()
    }

    /// A transfer of all of `remote`, which `owner` has registered.
    pub(crate) fn transfer(
        &self,
        put: bool,
        owner: &Addr,
        local: &LocalMem,
        (registrar, remote): (&Node, &LocalMem),
    ) -> OpId {
        let op = self.op();
        let remote = self.endpoint.mem_from_bytes(&registrar.endpoint.mem_to_bytes(remote));
        let transfer = Transfer {
            local: local.clone(),
            local_offset: 0,
            len: local.len(),
            remote: remote.unwrap(),
            remote_offset: 0,
        };
        match put {
            true => self.endpoint.put(op, owner, transfer).unwrap(),
            false => self.endpoint.get(op, owner, transfer).unwrap(),
        }
        op
    }

    /// Reports everything that has completed; how much that was. What polling said at last.
    pub(crate) fn try_poll(&self) -> Result<usize, Error> {
        let mut count = 0;
        loop {
            let mut done = self.done.borrow_mut();
            let started = self.started.borrow();
            let reported = self.endpoint.poll(16, &mut |completion| {
                let op = id(&completion);
                assert!(started.contains(&op), "operation {op} was never started");
                assert!(done.insert(op, completion).is_none(), "operation {op} completed twice");
            })?;
            count += reported;
            if reported == 0 {
                return Ok(count);
            }
        }
    }

    pub(crate) fn poll(&self) -> usize {
        self.try_poll().unwrap()
    }

    pub(crate) fn is_done(&self, op: OpId) -> bool {
        self.done.borrow().contains_key(&op.0)
    }

    pub(crate) fn all_done(&self, ops: &[OpId]) -> bool {
        ops.iter().all(|op| self.is_done(*op))
    }

    /// Operations that were started and have not completed.
    pub(crate) fn unfinished(&self) -> Vec<u64> {
        let done = self.done.borrow();
        self.started.borrow().iter().filter(|op| !done.contains_key(op)).copied().collect()
    }

    pub(crate) fn outcome(&self, op: OpId) -> Result<(), Error> {
        match &self.done.borrow()[&op.0] {
            Completion::Send { result, .. } | Completion::Transfer { result, .. } => result.clone(),
            Completion::Recv { result, .. } => result.as_ref().map(|_| ()).map_err(Clone::clone),
        }
    }

    #[track_caller]
    pub(crate) fn succeeded(&self, op: OpId) {
        self.outcome(op).unwrap_or_else(|error| panic!("operation failed: {error}"));
    }

    #[track_caller]
    pub(crate) fn assert_gone(&self, op: OpId) {
        let end = self.outcome(op);
        assert!(matches!(end, Err(Error::PeerGone { .. })), "not gone: {end:?}");
    }

    /// Source, tag and bytes of a receive that has succeeded.
    #[track_caller]
    pub(crate) fn received(&self, op: OpId) -> (Addr, u32, Vec<u8>) {
        match &self.done.borrow()[&op.0] {
            Completion::Recv { buf, result: Ok(arrival), .. } => {
                (arrival.from.clone(), arrival.tag.0, buf.as_slice().to_vec())
            }
            other => panic!("not a message: {other:?}"),
        }
    }
}

fn id(completion: &Completion) -> u64 {
    match completion {
        Completion::Send { op, .. } | Completion::Recv { op, .. } => op.0,
        Completion::Transfer { op, .. } => op.0,
    }
}

/// Polls the nodes and moves the clock until `done`.
#[track_caller]
pub(crate) fn drive(nodes: &[&Node], what: &str, mut done: impl FnMut() -> bool) {
    let network = &nodes[0].network;
    for _ in 0..EVENTS_MAX {
        while nodes.iter().map(|node| node.poll()).sum::<usize>() > 0 {}
        if done() {
            return;
        }
        assert!(network.step(), "nothing is left to happen, but not: {what}");
    }
    panic!("{EVENTS_MAX} events without: {what}");
}

/// Drives until the operations of the first node have completed.
#[track_caller]
pub(crate) fn finish(nodes: &[&Node], what: &str, ops: &[OpId]) {
    drive(nodes, what, || nodes[0].all_done(ops));
}

/// Drives until nothing is left to happen.
#[track_caller]
pub(crate) fn exhaust(nodes: &[&Node]) {
    let network = &nodes[0].network;
    for _ in 0..EVENTS_MAX {
        let progress: usize = nodes.iter().map(|node| node.poll()).sum();
        if progress == 0 && !network.step() {
            return;
        }
    }
    panic!("it never comes to rest");
}

/// One message there and one back.
#[track_caller]
pub(crate) fn greet(origin: &Node, target: &Node, name: &str) -> (Addr, Addr) {
    let to_target = origin.to(name);
    let (asked, answered) = (target.recv(), origin.recv_expected(&to_target, 1));
    origin.send(&to_target, 1, b"hello");
    finish(&[target, origin], "a greeting", &[asked]);
    let (to_origin, ..) = target.received(asked);
    target.send_expected(&to_origin, 1, b"hello yourself");
    finish(&[origin, target], "its answer", &[answered]);
    (to_target, to_origin)
}

/// Bytes that differ from place to place and from seed to seed.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut random = Random::new(seed);
    (0..len).map(|_| random.next() as u8).collect()
}

/// Takes `memory` back; the owner arrives when no transfer uses it any more.
pub(crate) fn revoke(memory: LocalMem) -> Receiver<Memory> {
    let (sender, receiver) = channel();
    memory.revoke(move |memory| drop(sender.send(memory)));
    receiver
}
