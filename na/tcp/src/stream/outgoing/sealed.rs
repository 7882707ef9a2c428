//! Sends of which the message is sealed, in records that the kernel has not taken.
//!
//! A send that has ended needs no further poll of its endpoint: its message is the kernel's. So
//! their ends are held back until it has the records.

use super::{Harvest, Outgoing, answer_bytes};
use crate::wire::frame::Kind;
use na_core::{Completion, Error, MsgBuf, OpId};

/// A send that is held back.
pub(crate) struct SealedSend {
    op: OpId,
    buf: MsgBuf,
    /// The part of it in `Outgoing::answers`.
    answer_bytes: usize,
}

impl Outgoing {
    /// Takes the send of a message that the line has taken, if some of that is still sealed; the
    /// buffer comes back otherwise, and the send has ended.
    pub(crate) fn hold_sealed(&mut self, kind: Kind, op: OpId, buf: MsgBuf) -> Option<MsgBuf> {
        if self.sealed == 0 {
            return Some(buf);
        }
        let answer_bytes = answer_bytes(kind as u8, &buf);
        self.answers += answer_bytes;
        self.sealed_sends.push(SealedSend { op, buf, answer_bytes });
        None
    }

    /// As [`hold_sealed`](Self::hold_sealed), of a message that was queued, and is counted.
    pub(super) fn hold_queued(&mut self, op: OpId, buf: MsgBuf, answer_bytes: usize) {
        self.sealed_sends.push(SealedSend { op, buf, answer_bytes });
    }

    /// Ends the sends that are held back: the kernel has all records, or they will not leave.
    pub(super) fn end_sealed(&mut self, result: &Result<(), Error>, harvest: &mut Harvest) {
        for SealedSend { op, buf, answer_bytes } in self.sealed_sends.drain(..) {
            self.answers -= answer_bytes;
            harvest.completions.push(Completion::Send { op, buf, result: result.clone() });
        }
    }

    /// Ends the send `wanted`, if it is held back. Its message arrives, and may be answered.
    pub(super) fn cancel_sealed(&mut self, wanted: OpId) -> Option<Completion> {
        let at = self.sealed_sends.iter().position(|send| send.op == wanted)?;
        let SealedSend { op, buf, answer_bytes } = self.sealed_sends.swap_remove(at);
        self.answers -= answer_bytes;
        Some(Completion::Send { op, buf, result: Ok(()) })
    }
}
