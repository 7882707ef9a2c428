//! Tests with devices that this machine does not have, by a library that stands in for libfabric
//! ([`fake`](crate::fake)).
#![allow(clippy::unwrap_used, reason = "a test says by panicking what went wrong")]

mod conformance;
mod errors;
mod hmem;
mod injected;
mod memory;
mod opening;
mod opx;
mod regions;
mod retries;
mod senders;
mod untaken;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use crate::endpoint::OfiEndpoint;
use crate::fake::{Device, Fake};
use na_core::{
    Access, Addr, Completion, Endpoint, Error, LocalMem, Memory, MsgBuf, OpId, OpenOptions,
    RawSegment, RemoteMem, Tag, Transfer,
};
use prim::sync::Arc;
use prim::sync::atomic::{AtomicUsize, Ordering};

/// Polls after which something that has to happen will not.
const POLLS_MAX: usize = 100_000;

/// A fake library whose TCP has a buffer for each message.
fn single(device: Device) -> Fake {
    Fake::of_version(1, 19, [device])
}

/// An endpoint with what has completed.
struct Node {
    endpoint: OfiEndpoint,
    next: Cell<u64>,
    done: RefCell<HashMap<u64, Completion>>,
}

impl Node {
    fn open(fake: &Fake, uri: &str) -> Self {
        Self::open_with(fake, uri, &OpenOptions::default())
    }

    fn open_with(fake: &Fake, uri: &str, options: &OpenOptions) -> Self {
        Self::of(fake.open_with(uri, options).unwrap_or_else(|error| panic!("{error}")))
    }

    fn of(endpoint: OfiEndpoint) -> Self {
        Self { endpoint, next: Cell::new(0), done: RefCell::default() }
    }

    /// Two that know each other: each has had a message of the other.
    fn pair(fake: &Fake, uri: &str) -> (Self, Self) {
        Self::pair_with(fake, uri, &OpenOptions::default())
    }

    /// The first one with these options.
    fn pair_with(fake: &Fake, uri: &str, options: &OpenOptions) -> (Self, Self) {
        let (a, b) = (Self::open_with(fake, uri, options), Self::open(fake, uri));
        for (from, to) in [(&a, &b), (&b, &a)] {
            let recv = to.recv_unexpected();
            let send = from.send_unexpected(&from.addr_of(to), 1, b"hello");
            assert_eq!(received(both(from, to, to, recv)).0, 1);
            sent(both(from, to, from, send)).unwrap();
        }
        (a, b)
    }

    fn op(&self) -> OpId {
        self.next.set(self.next.get() + 1);
        OpId(self.next.get())
    }

    fn addr_of(&self, other: &Self) -> Addr {
        self.endpoint.lookup(other.endpoint.self_addr().uri()).unwrap()
    }

    fn message(&self, bytes: &[u8]) -> MsgBuf {
        let mut buf = self.endpoint.alloc_msg();
        assert!(buf.try_extend(bytes));
        buf
    }

    fn send_unexpected(&self, to: &Addr, tag: u32, bytes: &[u8]) -> OpId {
        let op = self.op();
        self.endpoint.send_unexpected(op, to, Tag(tag), self.message(bytes)).unwrap();
        op
    }

    fn send_expected(&self, to: &Addr, tag: u32, bytes: &[u8]) -> OpId {
        let op = self.op();
        self.endpoint.send_expected(op, to, Tag(tag), self.message(bytes)).unwrap();
        op
    }

    fn recv_unexpected(&self) -> OpId {
        let op = self.op();
        self.endpoint.recv_unexpected(op, self.endpoint.alloc_msg()).unwrap();
        op
    }

    fn recv_expected(&self, from: &Addr, tag: u32) -> OpId {
        let op = self.op();
        self.endpoint.recv_expected(op, from, Tag(tag), self.endpoint.alloc_msg()).unwrap();
        op
    }

    fn register(&self, bytes: Vec<u8>, access: Access) -> LocalMem {
        self.endpoint.register(Memory::from_vec(bytes), access).unwrap()
    }

    /// Returns another node's memory as this node learns of it.
    fn told(&self, other: &Self, memory: &LocalMem) -> RemoteMem {
        self.endpoint.mem_from_bytes(&other.endpoint.mem_to_bytes(memory)).unwrap()
    }

    fn transfer(&self, put: bool, with: &Addr, transfer: Transfer) -> OpId {
        let op = self.op();
        match put {
            true => self.endpoint.put(op, with, transfer).unwrap(),
            false => self.endpoint.get(op, with, transfer).unwrap(),
        }
        op
    }

    fn poll(&self) -> Result<usize, Error> {
        self.endpoint.poll(64, &mut |completion| {
            let op = match &completion {
                Completion::Send { op, .. }
                | Completion::Recv { op, .. }
                | Completion::Transfer { op, .. } => op.0,
            };
            let before = self.done.borrow_mut().insert(op, completion);
            assert!(before.is_none(), "operation {op} completed twice");
        })
    }

    fn has(&self, op: OpId) -> bool {
        self.done.borrow().contains_key(&op.0)
    }

    fn take(&self, op: OpId) -> Completion {
        self.done.borrow_mut().remove(&op.0).unwrap()
    }

    /// Polls until it is over.
    fn wait(&self, op: OpId) -> Completion {
        both(self, self, self, op)
    }
}

/// Polls two until an operation of one is over.
fn both(a: &Node, b: &Node, of: &Node, op: OpId) -> Completion {
    for _ in 0..POLLS_MAX {
        if of.has(op) {
            return of.take(op);
        }
        a.poll().unwrap();
        b.poll().unwrap();
    }
    panic!("operation {op:?} does not end")
}

/// Tag and message of a receive.
fn received(completion: Completion) -> (u32, Vec<u8>) {
    match completion {
        Completion::Recv { buf, result: Ok(arrival), .. } => {
            (arrival.tag.0, buf.as_slice().to_vec())
        }
        other => panic!("no message: {other:?}"),
    }
}

/// How something else than a receive of a message ended.
fn sent(completion: Completion) -> Result<(), Error> {
    match completion {
        Completion::Send { result, .. } | Completion::Transfer { result, .. } => result,
        Completion::Recv { result, .. } => result.map(drop),
    }
}

/// Memory that counts when it is given back.
struct Counted {
    _bytes: Box<[u8]>,
    back: Arc<AtomicUsize>,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.back.fetch_add(1, Ordering::Relaxed);
    }
}

/// So many bytes of memory, and how often it was given back.
fn counted(len: usize) -> (Memory, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let mut bytes = vec![0; len].into_boxed_slice();
    let segment = RawSegment { ptr: bytes.as_mut_ptr(), len };
    let owner = Counted { _bytes: bytes, back: count.clone() };
    // SAFETY: the owner keeps the bytes, which do not move with it, until it is dropped.
    (unsafe { Memory::from_raw(vec![segment], owner) }, count)
}
