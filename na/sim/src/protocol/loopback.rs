//! Messages and transfers to the node's own address: no packets, nothing lost.

use std::collections::VecDeque;

use super::outgoing::{Ends, Queued};
use na_core::matching::{Arrived, Matcher};
use na_core::{Addr, Completion, Error, OpId, RegionTable, Transfer};

/// Bytes copied at once.
const CHUNK: u64 = 1 << 20;

#[derive(Debug)]
struct Copy {
    op: OpId,
    put: bool,
    transfer: Transfer,
}

/// Messages and transfers to the node's own address that are not finished yet.
#[derive(Debug, Default)]
pub(crate) struct Loopback {
    messages: VecDeque<Queued>,
    copies: VecDeque<Copy>,
    /// An event will call `run`.
    armed: bool,
}

impl Loopback {
    pub(crate) fn send(&mut self, message: Queued) {
        self.messages.push_back(message);
    }

    pub(crate) fn start(&mut self, op: OpId, put: bool, transfer: Transfer) {
        self.copies.push_back(Copy { op, put, transfer });
    }

    /// Returns whether the caller has to make the event that calls `run`.
    pub(crate) fn arm(&mut self) -> bool {
        let wanted = !self.messages.is_empty() || !self.copies.is_empty();
        wanted && !std::mem::replace(&mut self.armed, true)
    }

    /// Delivers all messages that there is room for, and carries out all transfers.
    pub(crate) fn run(
        &mut self,
        own: &Addr,
        matcher: &mut Matcher,
        regions: &RegionTable,
        ends: &mut Ends,
    ) {
        self.armed = false;
        while let Some(message) = self.messages.pop_front() {
            match matcher.arrive(message.kind, own, message.tag, message.buf.as_slice()) {
                Arrived::Completed(completion) => ends.completions.push(completion),
                Arrived::Held | Arrived::Discarded => {}
                Arrived::Full => {
                    self.messages.push_front(message);
                    break;
                }
            }
            ends.completions.push(message.end(Ok(())));
        }
        for Copy { op, put, transfer } in self.copies.drain(..) {
            let result = carry_out(own, put, &transfer, regions, ends);
            ends.completions.push(Completion::Transfer { op, result });
            ends.memories.push(transfer.local);
        }
    }

    /// Gives up one operation. `false`: it is not here.
    pub(crate) fn cancel(&mut self, op: OpId, ends: &mut Ends) -> bool {
        if let Some(at) = self.messages.iter().position(|message| message.op == op) {
            let message = self.messages.remove(at);
            ends.completions.extend(message.map(|message| message.end(Err(Error::Canceled))));
            return true;
        }
        let Some(at) = self.copies.iter().position(|copy| copy.op == op) else { return false };
        if let Some(Copy { op, transfer, .. }) = self.copies.remove(at) {
            ends.completions.push(Completion::Transfer { op, result: Err(Error::Canceled) });
            ends.memories.push(transfer.local);
        }
        true
    }

    /// Gives up everything.
    pub(crate) fn fail(&mut self, error: &Error, ends: &mut Ends) {
        let sends = self.messages.drain(..);
        ends.completions.extend(sends.map(|message| message.end(Err(error.clone()))));
        for Copy { op, transfer, .. } in self.copies.drain(..) {
            ends.completions.push(Completion::Transfer { op, result: Err(error.clone()) });
            ends.memories.push(transfer.local);
        }
    }
}

fn carry_out(
    own: &Addr,
    put: bool,
    transfer: &Transfer,
    regions: &RegionTable,
    ends: &mut Ends,
) -> Result<(), Error> {
    let Transfer { local, local_offset, remote, remote_offset, len } = transfer;
    let lease = regions
        .lease(remote.key, *remote_offset, *len, put)
        .map_err(|reason| Error::Denied { peer: own.uri().to_owned(), reason })?;
    let mut buffer = vec![0; (*len).min(CHUNK) as usize];
    let (from, to) = if put { (local, &lease) } else { (&lease, local) };
    let (from_at, to_at) =
        if put { (*local_offset, *remote_offset) } else { (*remote_offset, *local_offset) };
    let mut done = 0;
    while done < *len {
        let piece = &mut buffer[..(*len - done).min(CHUNK) as usize];
        let copied = from.read_at(from_at + done, piece) && to.write_at(to_at + done, piece);
        debug_assert!(copied, "both ranges were checked");
        done += piece.len() as u64;
    }
    ends.memories.push(lease);
    Ok(())
}
