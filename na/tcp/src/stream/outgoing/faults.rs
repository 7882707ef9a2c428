//! Data whose memory the system cannot read, such as pages of a mapped file that somebody has
//! truncated.
//!
//! The system then takes nothing of the call, and says no more than that there is such a piece.
//! That is no fault of the peer, whose connection goes on: only the transfer ends. The rest of a
//! frame that was sent in part follows as zeros, for the stream; the transfer's other frames are
//! dropped. The end of a put of ours is reported by the caller of this code; the end of a get that
//! we serve is told to the peer by a verdict behind the zeros. A get that would be complete with
//! the zeros cannot be told any more, and there the connection has to end.

use std::io;

use super::{Body, Frame, Harvest, Outgoing};
use crate::wire::frame::{HEADER_BYTES, Kind, Status};
use na_core::DeniedReason;

/// Returns whether the system says that it cannot access memory of this process.
pub(crate) fn is_fault(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EFAULT)
}

impl Outgoing {
    /// Gives up the transfer whose data is in front. `false`: it is no data, or cannot be given up.
    pub(super) fn give_up_front(
        &mut self,
        harvest: &mut Harvest,
        get_is_cut: &mut impl FnMut(),
    ) -> bool {
        let Some((header, len, Body::Chunk { .. })) =
            self.queue.front().map(|frame| (frame.header, frame.len, &frame.body))
        else {
            return false;
        };
        let is_get = header[0] == Kind::GetData as u8;
        let kind = if is_get { Kind::GetData } else { Kind::PutData };
        let [_, _, _, _, _, _, _, _, number @ ..] = header;
        let number = u64::from_le_bytes(number);
        // Frames of one transfer differ in their length alone.
        let is_its = |frame: &Frame| {
            matches!(frame.body, Body::Chunk { .. })
                && (&frame.header[..4], &frame.header[8..]) == (&header[..4], &header[8..])
        };
        let uncut = self.bulks.iter().any(|bulk| (bulk.kind, bulk.number) == (kind, number));
        let is_last = !uncut && !self.queue.iter().skip(1).any(is_its);
        if is_get && is_last && self.sent > 0 {
            return false;
        }
        if self.remove_bulk(kind, number, harvest) && is_get {
            get_is_cut();
        }
        if self.sent > 0
            && let Some(front) = self.queue.front_mut()
        {
            let zeros = Body::Packed(vec![0; len]);
            harvest.memories.extend(std::mem::replace(&mut front.body, zeros).into_memory());
            self.data_queued -= len;
        }
        for frame in std::mem::take(&mut self.queue) {
            if is_its(&frame) {
                self.data_queued -= frame.len;
                harvest.memories.extend(frame.body.into_memory());
            } else {
                self.queue.push_back(frame);
            }
        }
        match is_get {
            true => {
                let verdict = Status::Denied(DeniedReason::CopyFailed).encode();
                self.push_small(Kind::Done, number, &verdict);
            }
            false => harvest.unreadable.push(number),
        }
        tracing::warn!(
            "memory of this process that a transfer sends cannot be read: pages of a mapped file \
             are gone; the transfer ends"
        );
        true
    }
}

const _: () = assert!(HEADER_BYTES == 16, "the number is its second half");
