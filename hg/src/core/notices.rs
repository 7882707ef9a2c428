//! Notices to the target of a call: that its origin waits no more, or that its answer came damaged.
//!
//! Mercury's protocol has no message for that: `HG_Cancel` ends a call at its origin, and the
//! target works on; a response that cannot be read is an error at the origin alone. Between our own
//! peers the origin sends a one-way message with the call's tag that consists of an [`Extension`]
//! alone. The target does not look the call up. It hands up the origin and the name of the call
//! that was canceled ([`Sink::canceled`](crate::Sink::canceled)), or whose answer could not be read
//! ([`Sink::answer_unread`](crate::Sink::answer_unread)). The layer above, which serves requests,
//! knows which of them are still being handled
//! ([`RequestHandle::call_key`](crate::RequestHandle::call_key)). So a call to which neither
//! happens costs nothing.
//!
//! A notice is an unexpected message behind the requests of its origin, so it waits with them while
//! `requests_max` requests are held. A message that could overtake them (an expected message under
//! a tag of its own, with a receive for short messages) could also overtake the request that it is
//! about, which would then be handled although it was canceled. Nor does an origin know whether its
//! target has a receive for such a message. Without one the message would stay in the transport for
//! as long as the connection, and count against the bound of what its origin may send. A receive
//! for each origin, from its first request on, would cost every request a look-up.

use na::{Addr, Tag};

use crate::base::log::log;
use crate::core::state::Op;
use crate::ops::{Event, Role};
use crate::proc::Written;
use crate::wire::header::RequestHeader;
use crate::{CallKey, Core, Extension, HgError, OpRef, RpcId, wire};

/// How the target of a call is told.
enum Way {
    Message(Tag),
    Here,
}

impl<T> Core<T> {
    /// Gives up a call to `to`, as [`cancel`](Self::cancel) does, and tells the target, if it is
    /// one of our own, so that the handler of the call may stop. The handler decides; its answer,
    /// if there is one, is dropped.
    ///
    /// Counterpart: none; `HG_Cancel` does not tell the target.
    pub fn cancel_call(&self, op: OpRef, to: &Addr) {
        let way = match op.shard() {
            id if id == self.id => self.way_to_target(op),
            id => self.class.get(id).and_then(|starter| starter.way_to_target(op)),
        };
        self.cancel(op);
        match way {
            Some(Way::Message(tag)) => {
                self.send_notice(to, tag, Extension { cancel: true, ..Extension::default() });
            }
            Some(Way::Here) => {
                let origin = self.self_addr.clone();
                let canceled = Event::Canceled { origin, call: CallKey::local(op) };
                self.queue(&mut self.state(), canceled);
            }
            None => {}
        }
    }

    /// A response could not be read: counts that, and tells its sender if that can be told.
    pub(crate) fn response_unread(&self, sender: &Addr, tag: Tag, error: &HgError) {
        // A peer that sends nothing else must not fill the log.
        if self.counts.malformed(error).is_power_of_two() {
            let (log, principal) = (&self.options.log, self.endpoint.principal(sender));
            log!(log, WARN, %sender, %principal, %error, "a response cannot be read");
        }
        self.send_notice(sender, tag, Extension { unread: true, ..Extension::default() });
    }

    /// Returns the way to the target; `None`: no handler works on it that could be told.
    fn way_to_target(&self, op: OpRef) -> Option<Way> {
        match self.state().ops.get_mut(op)? {
            Op::Call(call) if call.receiving && !call.canceled => {
                Some(Way::Message(self.space.tag(call.number, call.target)))
            }
            Op::Local(_) => Some(Way::Here),
            _ => None,
        }
    }

    fn send_notice(&self, to: &Addr, tag: Tag, extension: Extension) {
        if !self.endpoint.carries_extensions(to) {
            return;
        }
        let format = self.accept.format;
        let header = RequestHeader {
            no_response: true,
            cookie: self.id,
            ..RequestHeader::in_format(RpcId(0), format)
        };
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
            let error = &refused.error;
            log!(self.options.log, DEBUG, %error, "a word about a call was not sent");
            self.buffers.put(refused.buf);
        }
    }

    /// A message said something about the call of `origin` with its tag.
    pub(crate) fn on_notice(&self, origin: Addr, tag: Tag, said: &Extension) -> Event<T> {
        // It took a receive and is no request.
        let claim = self.state().receives.released();
        self.request_released(claim, None);
        let call = CallKey::network(tag);
        if said.cancel {
            return Event::Canceled { origin, call };
        }
        if self.counts.resp_unread.bump().is_power_of_two() {
            let (log, caller) = (&self.options.log, self.endpoint.principal(&origin));
            log!(log, WARN, %origin, %caller, "an answer of ours was damaged when it arrived");
        }
        Event::Unread { origin, call }
    }
}
