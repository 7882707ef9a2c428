//! Messages that are too long for the peer.
//!
//! The longest message is the smaller of two limits. This layer knows its own limit; the peer's
//! comes with the connection, which the first message makes. So a request or response that the
//! network gives back because of its length is sent once more, as one that has overflowed.
//! Counterpart: none; C has one limit, which all peers have to agree upon (Mercury issue 67).

use na::{Addr, MsgBuf, Tag};

use crate::base::log::log;
use crate::core::state::Op;
use crate::memory::ExposedPayload;
use crate::ops::{Destination, Role};
use crate::wire::header::{RequestHeader, ResponseHeader};
use crate::{Core, OpRef, ReturnCode, RpcId, WireError};

/// A message that was not sent.
enum Unsent {
    Request { to: Addr, tag: Tag, one_way: bool },
    Response(Destination),
}

impl Unsent {
    fn to(&self) -> (&Addr, Tag) {
        match self {
            Self::Request { to, tag, .. } => (to, *tag),
            Self::Response(to) => (&to.origin, to.tag),
        }
    }

    /// Marks the message as one that has overflowed. Returns where its payload begins, and that.
    fn split<T>(&self, core: &Core<T>, buf: &mut MsgBuf) -> Result<(usize, Vec<u8>), WireError> {
        let (start, payload) = match self {
            Self::Request { .. } => {
                let (header, payload) = RequestHeader::read(core.accept, buf.as_slice())?;
                let (start, payload) = (header.payload_at(), payload.to_vec());
                RequestHeader { more_data: true, ..header }.write(buf.spare_mut());
                (start, payload)
            }
            Self::Response(Destination { format, .. }) => {
                let (header, payload) = ResponseHeader::read(*format, buf.as_slice())?;
                let (start, payload) = (header.format.header_bytes(), payload.to_vec());
                ResponseHeader { more_data: true, ..header }.write(buf.spare_mut());
                (start, payload)
            }
        };
        buf.clear();
        Ok((start, payload))
    }
}

impl<T> Core<T> {
    /// The network gives the message of a call or answer back because of `error`. Whether it was
    /// sent in another way, so that it is under way as before.
    #[cold]
    pub(crate) fn sends_otherwise(&self, op: OpRef, error: &na::Error, buf: MsgBuf) -> bool {
        let na::Error::TooLong { max, .. } = *error else {
            self.buffers.put(buf);
            return false;
        };
        match self.unsent(op).filter(|_| self.options.overflow) {
            Some(unsent) => self.send_overflowed(op, &unsent, buf, max),
            None => {
                self.buffers.put(buf);
                false
            }
        }
    }

    /// Returns the message that was not sent, if it had not overflowed and was not given up.
    fn unsent(&self, op: OpRef) -> Option<Unsent> {
        let mut state = self.state();
        match state.ops.get_mut(op)? {
            Op::Call(call) => {
                let tag = self.space.tag(call.number, call.target);
                let (to, one_way) = (call.in_sending()?.clone(), call.response_role() == Role::Ack);
                Some(Unsent::Request { to, tag, one_way })
            }
            Op::Response(answer) => {
                answer.in_sending().then(|| Unsent::Response(answer.destination()))
            }
            _ => None,
        }
    }

    fn send_overflowed(&self, op: OpRef, unsent: &Unsent, mut buf: MsgBuf, max: usize) -> bool {
        let (start, payload) = match unsent.split(self, &mut buf) {
            Ok(parts) => parts,
            Err(error) => {
                log!(self.options.log, ERROR, %error, "a message of ours cannot be read");
                self.buffers.put(buf);
                return false;
            }
        };
        let (to, tag) = unsent.to();
        let exposed = match unsent {
            Unsent::Request { .. } => self.expose_overflow(to, start, buf, payload, max),
            Unsent::Response(_) => self.expose_result(to, start, buf, payload, max, None),
        };
        let (mut buf, exposed) = match exposed {
            Ok(exposed) => exposed,
            Err(error) => {
                if let Some(Op::Response(answer)) = self.state().ops.get_mut(op) {
                    answer.fail(error);
                }
                return false;
            }
        };
        if !self.note_late_overflow(op, exposed) {
            self.buffers.put(buf);
            return false;
        }
        let acknowledged = !matches!(unsent, Unsent::Request { one_way: false, .. });
        if acknowledged {
            let ack = self.buffers.take();
            let posted = self.endpoint().recv_expected(op.part(Role::Ack), to, tag, ack);
            if let Err(refused) = posted {
                self.buffers.put(refused.buf);
                self.buffers.put(buf);
                self.is_not_acknowledged(op, refused.error);
                return false;
            }
        }
        let part = op.part(Role::Send);
        if let Unsent::Request { .. } = unsent {
            self.seal_again(to, &mut buf);
        }
        let sent = match unsent {
            Unsent::Request { .. } => self.endpoint().send_unexpected(part, to, tag, buf),
            Unsent::Response(_) => self.endpoint().send_expected(part, to, tag, buf),
        };
        let Err(refused) = sent else {
            self.cancel_if_given_up(op, acknowledged);
            return true;
        };
        self.buffers.put(refused.buf);
        if acknowledged {
            self.endpoint().cancel(op.part(Role::Ack));
        }
        false
    }

    /// A cancel that came before there was anything to cancel has found nothing.
    fn cancel_if_given_up(&self, op: OpRef, acknowledged: bool) {
        let is_given_up = match self.state().ops.get_mut(op) {
            Some(Op::Response(answer)) => answer.has_failed(),
            _ => false,
        };
        if is_given_up {
            self.endpoint().cancel(op.part(Role::Send));
            if acknowledged {
                self.endpoint().cancel(op.part(Role::Ack));
            }
        }
    }

    /// `false`: it was given up meanwhile.
    fn note_late_overflow(&self, op: OpRef, exposed: ExposedPayload) -> bool {
        let mut state = self.state();
        match state.ops.get_mut(op) {
            Some(Op::Call(call)) if call.in_sending().is_some() => {
                self.counts.req_extra.bump();
                call.has_overflowed(exposed);
                true
            }
            Some(Op::Response(answer)) if answer.in_sending() => {
                self.counts.resp_extra.bump();
                answer.has_overflowed(exposed);
                true
            }
            _ => {
                drop(state);
                // Not under the lock: it revokes memory.
                drop(exposed);
                false
            }
        }
    }

    /// The acknowledgement cannot be received.
    fn is_not_acknowledged(&self, op: OpRef, error: na::Error) {
        match self.state().ops.get_mut(op) {
            Some(Op::Call(call)) => call.acknowledged(Err(error)),
            Some(Op::Response(answer)) => answer.acknowledged(Err(error)),
            _ => {}
        }
    }

    /// Tells an origin that its result is too long, or too much with others: it waits for an
    /// answer.
    pub(crate) fn refuse_too_long(&self, op: OpRef) {
        let (to, code) = match self.state().ops.get_mut(op) {
            Some(Op::Response(answer)) if answer.is_beyond_limit() => {
                (answer.destination(), ReturnCode::NoMem)
            }
            Some(Op::Response(answer)) => (answer.destination(), ReturnCode::MsgSize),
            _ => return,
        };
        let header = RequestHeader::in_format(RpcId(0), to.format);
        self.send_refusal(&to.origin, to.tag, code, &header);
    }
}
