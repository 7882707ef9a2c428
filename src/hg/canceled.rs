//! Telling the target that nobody waits for a call any more.
//!
//! Mercury's protocol has no word for that: `HG_Cancel` ends a call at its origin, and the target
//! works on. Between our own peers the origin sends a one-way message with the call's tag that
//! consists of an [`Extension`] alone. The target does not look it up: it hands up who has canceled
//! which call ([`Sink::canceled`](super::Sink::canceled)), and who serves requests knows which of
//! them are still being handled ([`RequestHandle::call_key`](super::RequestHandle::call_key)). So a
//! call that is not canceled costs nothing.

use na::{Addr, Tag};

use super::context::Event;
use super::core::{Core, Op};
use super::header::RequestHeader;
use super::ops::{OpRef, Role};
use super::proc::Written;
use super::raw_request::Reply;
use super::{Extension, RpcId, wire};
use crate::log::log;

/// Names a call among those of its origin that are in flight. A later call may have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CallKey(u64);

impl CallKey {
    pub(super) fn of(reply: Reply) -> Option<Self> {
        match reply {
            Reply::Network(tag) => Some(Self::network(tag)),
            Reply::Local(op) => Some(Self::local(op)),
            Reply::None => None,
        }
    }

    pub(crate) fn network(tag: Tag) -> Self {
        Self(tag.0.into())
    }

    fn local(op: OpRef) -> Self {
        Self(1 << 63 | op.number())
    }
}

/// How the target of a call is told.
enum Way {
    Message(Tag),
    Here,
}

impl<T> Core<T> {
    /// Gives up a call to `to`, as [`cancel`](Self::cancel) does, and tells the target, if it is
    /// one of our own: whoever handles the call there may stop. What it does is up to it; its
    /// answer, if there is one, is dropped.
    ///
    /// Counterpart: none; `HG_Cancel` tells nobody.
    pub fn cancel_call(&self, op: OpRef, to: &Addr) {
        let way = match op.context_id() {
            id if id == self.id => self.way_to_target(op),
            id => self.class.get(id).and_then(|starter| starter.way_to_target(op)),
        };
        self.cancel(op);
        match way {
            Some(Way::Message(tag)) if self.endpoint.carries_extensions(to) => {
                self.send_cancel(to, tag);
            }
            Some(Way::Here) => {
                let origin = self.self_addr.clone();
                let canceled = Event::Canceled { origin, call: CallKey::local(op) };
                self.queue(&mut self.state(), canceled);
            }
            Some(Way::Message(_)) | None => {}
        }
    }

    /// `None`: nobody works on it that could be told.
    fn way_to_target(&self, op: OpRef) -> Option<Way> {
        match self.state().ops.get_mut(op)? {
            Op::Forward(call) if call.receiving && !call.canceled => {
                Some(Way::Message(self.space.tag(call.number, call.target)))
            }
            Op::Local(_) => Some(Way::Here),
            _ => None,
        }
    }

    fn send_cancel(&self, to: &Addr, tag: Tag) {
        let format = self.options.format();
        let header = RequestHeader {
            no_response: true,
            cookie: self.id,
            ..RequestHeader::in_format(RpcId(0), format)
        };
        let extension = Extension { cancel: true, ..Extension::default() };
        let max = self.limits.unexpected_bytes_max;
        let (buf, limits) = (self.buffers.take(), self.writer_limits(max));
        let written =
            wire::encode_extended_request(header, &extension, buf, max, limits, |_| Ok(()));
        let buf = match written {
            Ok(Written::Fits(buf) | Written::Overflow(buf, _)) => buf,
            Err(unencoded) => {
                self.unencoded(unencoded);
                return;
            }
        };
        if self.endpoint.send_unexpected_now(to, tag, buf.as_slice()) {
            self.buffers.put(buf);
            return;
        }
        let op = OpRef::single(Role::Loose, self.id, self.counts.loose.bump());
        if let Err(refused) = self.endpoint.send_unexpected(op, to, tag, buf) {
            log!(self.options.log, DEBUG, error = %refused.error, "a cancel was not sent");
            self.buffers.put(refused.buf);
        }
    }

    /// A message said that the call of `origin` with its tag was canceled.
    pub(super) fn on_cancel(&self, origin: Addr, tag: Tag) -> Event<T> {
        // It took a receive and is no request.
        let claim = self.primary().state().receives.released();
        self.request_released(claim, None);
        Event::Canceled { origin, call: CallKey::network(tag) }
    }
}
