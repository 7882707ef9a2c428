//! Messages and transfers to the endpoint's own address: no connection, no copy in between.
//!
//! A message goes straight to the matcher; when that is full, it and those after it wait here for
//! the poll. Transfers are copied by the poll, a chunk at a time, under a lease like a peer's.

use std::collections::VecDeque;

use super::copy::copy_pieces;
use super::link::{Outcome, Queued};
use super::lock::Lock;
use crate::matching::{Arrived, Matcher};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, lock};
use crate::{Addr, Completion, Error, LocalMem, OpId, RegionTable, Transfer};

/// What waits for the poll.
#[derive(Debug, Default)]
pub(super) struct Loopback {
    waiting: Mutex<Waiting>,
    /// Something waits; to look at without the lock.
    busy: AtomicBool,
}

#[derive(Debug, Default)]
struct Waiting {
    sends: VecDeque<Queued>,
    copies: VecDeque<Copy>,
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
    /// Sends a message to ourselves. Never takes the matcher's lock while holding its own.
    pub(super) fn send(&self, message: Queued) {
        let mut waiting = lock(&self.waiting);
        waiting.sends.push_back(message);
        self.busy.store(true, Ordering::Relaxed);
    }

    /// Starts a transfer.
    pub(super) fn start(&self, op: OpId, put: bool, transfer: Transfer) {
        let mut waiting = lock(&self.waiting);
        waiting.copies.push_back(Copy { op, put, transfer, lease: None, done: 0 });
        self.busy.store(true, Ordering::Relaxed);
    }

    /// Poll: delivers messages and moves up to `budget` bytes. Returns whether anything moved.
    #[inline]
    pub(super) fn run(
        &self,
        own: &Addr,
        matcher: &Lock<Matcher>,
        regions: &RegionTable,
        budget: &mut u64,
        out: &mut Outcome,
    ) -> bool {
        self.busy.load(Ordering::Relaxed) && self.run_waiting(own, matcher, regions, budget, out)
    }

    fn run_waiting(
        &self,
        own: &Addr,
        matcher: &Lock<Matcher>,
        regions: &RegionTable,
        budget: &mut u64,
        out: &mut Outcome,
    ) -> bool {
        let mut waiting = lock(&self.waiting);
        let Waiting { sends, copies } = &mut *waiting;
        let mut progress = false;
        let mut matcher = matcher.lock();
        while let Some(message) = sends.pop_front() {
            match matcher.arrive(message.kind, own, message.tag, message.buf.as_slice()) {
                Arrived::Completed(completion) => out.completions.push(completion),
                Arrived::Held => {}
                Arrived::Full => {
                    sends.push_front(message);
                    break;
                }
            }
            out.completions.push(message.end(Ok(())));
            progress = true;
        }
        drop(matcher);
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
        progress
    }

    /// Gives up one operation. `false`: it is not here.
    pub(super) fn cancel(&self, op: OpId, out: &mut Outcome) -> bool {
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

    /// Ends everything with `error`.
    pub(super) fn fail_all(&self, error: &Error, out: &mut Outcome) {
        let Waiting { sends, copies } = std::mem::take(&mut *lock(&self.waiting));
        out.completions.extend(sends.into_iter().map(|message| message.end(Err(error.clone()))));
        for copy in copies {
            copy.end(Err(error.clone()), out);
        }
    }
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
