//! Posted receives that take many messages each.

use std::collections::VecDeque;

use crate::message::Carver;
use crate::{LargeBuffers, MsgBuf, OpId};

/// Posted first, served first.
#[derive(Default)]
pub(super) struct Many {
    /// The first one takes so many more messages; 0: there is none.
    left: usize,
    op: Option<OpId>,
    /// Those behind it. Each takes at least one message.
    next: VecDeque<(OpId, usize)>,
    /// For the buffers that the last one was posted with.
    carver: Carver,
}

impl Many {
    pub(super) fn post(&mut self, op: OpId, count: usize, buffers: &LargeBuffers) {
        self.carver.use_buffers(buffers);
        if count > 0 {
            self.next.push_back((op, count));
        }
        if self.left == 0 {
            self.go_on();
        }
    }

    /// The next one is the first now.
    #[cold]
    fn go_on(&mut self) {
        let next = self.next.pop_front();
        (self.op, self.left) = next.map_or((None, 0), |(op, left)| (Some(op), left));
    }

    /// The receive of the next message, and a buffer for its `len` bytes.
    #[inline(always)]
    pub(super) fn take(&mut self, len: usize) -> Option<(OpId, MsgBuf)> {
        let op = self.op?;
        let buf = self.carver.carve(len);
        self.left -= 1;
        if self.left == 0 {
            self.go_on();
        }
        Some((op, buf))
    }

    /// Messages that are still taken.
    pub(super) fn left(&self) -> usize {
        self.next.iter().fold(self.left, |sum, (_, left)| sum.saturating_add(*left))
    }

    /// Ends `op`. `false`: it is not posted.
    pub(super) fn cancel(&mut self, op: OpId) -> bool {
        if self.op == Some(op) {
            self.go_on();
            return true;
        }
        let at = self.next.iter().position(|next| next.0 == op);
        at.and_then(|at| self.next.remove(at)).is_some()
    }

    /// Ends all, and takes no more memory.
    pub(super) fn end(&mut self) -> impl Iterator<Item = OpId> {
        let Self { op, next, .. } = std::mem::take(self);
        op.into_iter().chain(next.into_iter().map(|(op, _)| op))
    }
}
