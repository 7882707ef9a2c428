//! Messages and transfers to the endpoint's own address, for transports whose endpoints are polled
//! by one thread at a time: no connection, no system call, no copy in between.
//!
//! Operations wait here for the poll, in order. A message goes straight to the matcher; when that
//! is full, it and those after it stay. Transfers are copied a chunk at a time, under a lease like
//! a peer's. The transport wakes its poll after each operation.
//!
//! `Waiting` is behind its lock; the poll takes the matcher's lock while it holds it, so nobody
//! does the reverse. The flags are written under the lock, and read without it:
//!
//! | flag | set | cleared by the poll |
//! |---|---|---|
//! | `busy` | something waits | nothing waits |
//! | `due` | something waits that has not been tried, or is not finished | else |
//!
//! Operations that wait and are not due are messages for which the matcher was full. They can go on
//! when a receive was posted or canceled; a caller that does that while `busy` wakes the poll.

use std::collections::VecDeque;
use std::ops::DerefMut;

use crate::matching::{Arrived, Kind, Matcher};
use crate::memory::copy::copy_pieces;
use crate::{Addr, Completion, Error, LocalMem, MsgBuf, OpId, Refused, RegionTable, Tag, Transfer};
use prim::sync::atomic::{AtomicBool, Ordering};
use prim::sync::{Mutex, lock};

/// The results of operations, collected under locks and acted upon without them.
///
/// ```
/// use na_core::loopback::{Loopback, Outcome, Queued};
/// use na_core::matching::Kind;
/// use na_core::{Error, MsgBuf, OpId, Tag};
///
/// let loopback = Loopback::default();
/// let (op, tag, buf) = (OpId(1), Tag(0), MsgBuf::with_capacity(64));
/// loopback.send(Queued { op, kind: Kind::Unexpected, tag, buf })?;
/// let mut outcome = Outcome::default();
/// loopback.fail_all(&Error::Closed, &mut outcome);
/// assert_eq!(outcome.completions.len(), 1, "told when the lock is free");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Default)]
pub struct Outcome {
    /// Ends of operations.
    pub completions: Vec<Completion>,
    /// Memory that may be released.
    pub memory: Vec<LocalMem>,
}

/// A message that waits.
///
/// ```
/// use na_core::loopback::Queued;
/// use na_core::matching::Kind;
/// use na_core::{Completion, Error, MsgBuf, OpId, Tag};
///
/// let (op, tag, buf) = (OpId(1), Tag(0), MsgBuf::with_capacity(64));
/// let message = Queued { op, kind: Kind::Unexpected, tag, buf };
/// let end = message.end(Err(Error::Canceled));
/// assert!(matches!(end, Completion::Send { op: OpId(1), result: Err(Error::Canceled), .. }));
/// ```
#[derive(Debug)]
pub struct Queued {
    /// The send.
    pub op: OpId,
    /// The kind of the message.
    pub kind: Kind,
    /// The tag of the message.
    pub tag: Tag,
    /// The message.
    pub buf: MsgBuf,
}

impl Queued {
    /// The end of the send.
    pub fn end(self, result: Result<(), Error>) -> Completion {
        Completion::Send { op: self.op, buf: self.buf, result }
    }
}

/// Operations on oneself that wait for the poll.
///
/// ```
/// use na_core::loopback::{Loopback, Outcome, Queued};
/// use na_core::matching::{Kind, Matcher};
/// use na_core::{Addr, MsgBuf, OpId, RegionTable, Tag};
///
/// let own = Addr::new("na+x://own", Addr::unique_endpoint_id(), 0, ());
/// let mut matcher = Matcher::new(1 << 18, 1 << 24);
/// matcher.post_unexpected(OpId(1), MsgBuf::with_capacity(64));
///
/// let loopback = Loopback::default();
/// let (op, tag, buf) = (OpId(2), Tag(0), MsgBuf::with_capacity(64));
/// loopback.send(Queued { op, kind: Kind::Unexpected, tag, buf })?;
/// let mut outcome = Outcome::default();
/// assert!(loopback.run(&own, || &mut matcher, &RegionTable::new(), &mut 4096, &mut outcome));
/// assert_eq!(outcome.completions.len(), 2, "the receive and the send");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Default)]
pub struct Loopback {
    waiting: Mutex<Waiting>,
    /// See the module's documentation.
    busy: AtomicBool,
    due: AtomicBool,
}

#[derive(Debug, Default)]
struct Waiting {
    sends: VecDeque<Queued>,
    copies: VecDeque<Copy>,
    /// Nothing more is taken.
    closed: bool,
}

#[derive(Debug)]
struct Copy {
    op: OpId,
    put: bool,
    transfer: Transfer,
    /// The remote side, once it was allowed.
    lease: Option<LocalMem>,
    done: u64,
}

impl Loopback {
    /// Sends a message to ourselves, in the next poll.
    ///
    /// # Errors
    ///
    /// [`Error::Closed`] after [`fail_all`](Self::fail_all).
    pub fn send(&self, message: Queued) -> Result<(), Refused> {
        let mut waiting = lock(&self.waiting);
        if waiting.closed {
            return Err(Refused { error: Error::Closed, buf: message.buf });
        }
        waiting.sends.push_back(message);
        self.set_due();
        Ok(())
    }

    /// Starts a transfer, in the next poll.
    ///
    /// # Errors
    ///
    /// [`Error::Closed`] after [`fail_all`](Self::fail_all).
    pub fn start(&self, op: OpId, put: bool, transfer: Transfer) -> Result<(), Error> {
        let mut waiting = lock(&self.waiting);
        if waiting.closed {
            // The memory may run the code of its owner.
            drop(waiting);
            return Err(Error::Closed);
        }
        waiting.copies.push_back(Copy { op, put, transfer, lease: None, done: 0 });
        self.set_due();
        Ok(())
    }

    fn set_due(&self) {
        self.busy.store(true, Ordering::Relaxed);
        self.due.store(true, Ordering::Relaxed);
    }

    /// Returns whether something waits, maybe for a receive.
    #[inline]
    pub fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Relaxed)
    }

    /// Returns whether the next poll has something to do here. A sleeper asks after the fence that
    /// its wakers' fence pairs with.
    #[inline]
    pub fn is_due(&self) -> bool {
        self.due.load(Ordering::Relaxed)
    }

    /// Poll: delivers messages and moves up to `budget` bytes. Returns whether anything moved.
    #[inline]
    pub fn run<M: DerefMut<Target = Matcher>>(
        &self,
        own: &Addr,
        matcher: impl FnOnce() -> M,
        regions: &RegionTable,
        budget: &mut u64,
        out: &mut Outcome,
    ) -> bool {
        self.is_busy() && self.run_waiting(own, matcher, regions, budget, out)
    }

    #[inline(never)]
    fn run_waiting<M: DerefMut<Target = Matcher>>(
        &self,
        own: &Addr,
        matcher: impl FnOnce() -> M,
        regions: &RegionTable,
        budget: &mut u64,
        out: &mut Outcome,
    ) -> bool {
        let mut waiting = lock(&self.waiting);
        let Waiting { sends, copies, .. } = &mut *waiting;
        let mut progress = !sends.is_empty() && deliver(sends, own, &mut matcher(), out);
        while *budget > 0
            && let Some(mut copy) = copies.pop_front()
        {
            progress = true;
            match copy.step(own, regions, budget) {
                None => copies.push_front(copy),
                Some(result) => copy.end(result, out),
            }
        }
        self.busy.store(!sends.is_empty() || !copies.is_empty(), Ordering::Relaxed);
        self.due.store(!copies.is_empty(), Ordering::Relaxed);
        progress
    }

    /// Gives up one operation. `false`: it is not here.
    pub fn cancel(&self, op: OpId, out: &mut Outcome) -> bool {
        let mut waiting = lock(&self.waiting);
        if let Some(at) = waiting.sends.iter().position(|message| message.op == op) {
            let message = waiting.sends.remove(at);
            out.completions.extend(message.map(|message| message.end(Err(Error::Canceled))));
            return true;
        }
        let Some(at) = waiting.copies.iter().position(|copy| copy.op == op) else { return false };
        if let Some(copy) = waiting.copies.remove(at) {
            copy.end(Err(Error::Canceled), out);
        }
        true
    }

    /// Ends everything with `error`, and takes nothing more.
    pub fn fail_all(&self, error: &Error, out: &mut Outcome) {
        let ended = Waiting { closed: true, ..Waiting::default() };
        let Waiting { sends, copies, .. } = std::mem::replace(&mut *lock(&self.waiting), ended);
        out.completions.extend(sends.into_iter().map(|message| message.end(Err(error.clone()))));
        for copy in copies {
            copy.end(Err(error.clone()), out);
        }
    }
}

/// Hands messages to the matcher until it is full. Returns whether it took any.
fn deliver(
    sends: &mut VecDeque<Queued>,
    own: &Addr,
    matcher: &mut Matcher,
    out: &mut Outcome,
) -> bool {
    let mut progress = false;
    while let Some(message) = sends.pop_front() {
        match matcher.arrive(message.kind, own, message.tag, message.buf.as_slice()) {
            Arrived::Completed(completion) => out.completions.push(completion),
            Arrived::Held | Arrived::Discarded => {}
            Arrived::Full => {
                sends.push_front(message);
                break;
            }
        }
        out.completions.push(message.end(Ok(())));
        progress = true;
    }
    progress
}

impl Copy {
    /// Moves one chunk; `Some` when the transfer is over.
    fn step(
        &mut self,
        own: &Addr,
        regions: &RegionTable,
        budget: &mut u64,
    ) -> Option<Result<(), Error>> {
        let Transfer { local, local_offset, remote, remote_offset, len } = &self.transfer;
        let lease = match self.lease.take() {
            Some(lease) => lease,
            None => match regions.lease(remote.key, *remote_offset, *len, self.put) {
                Ok(lease) => lease,
                Err(reason) => {
                    return Some(Err(Error::Denied { peer: own.uri().to_owned(), reason }));
                }
            },
        };
        let chunk = (len - self.done).min(*budget);
        let (ours, theirs) = (local_offset + self.done, remote_offset + self.done);
        if self.put {
            copy_between(local, ours, &lease, theirs, chunk);
        } else {
            copy_between(&lease, theirs, local, ours, chunk);
        }
        self.lease = Some(lease);
        self.done += chunk;
        *budget -= chunk;
        (self.done == *len).then_some(Ok(()))
    }

    fn end(self, result: Result<(), Error>, out: &mut Outcome) {
        out.completions.push(Completion::Transfer { op: self.op, result });
        out.memory.push(self.transfer.local);
        out.memory.extend(self.lease);
    }
}

/// Copies `len` bytes between two ranges, which lie inside their regions.
fn copy_between(from: &LocalMem, from_offset: u64, to: &LocalMem, to_offset: u64, len: u64) {
    let source = from.region().pieces(from_offset, len);
    let target = to.region().pieces(to_offset, len);
    // SAFETY:
    // - source and destination: pieces of regions that are kept alive, valid for the access that
    //   was checked (contract of `Memory::from_raw`);
    // - overlap: without a helper it is allowed, so one region may be both.
    unsafe { copy_pieces(source, target, None) };
}
