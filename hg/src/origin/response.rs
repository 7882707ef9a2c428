//! Responses at the origin: from a message to the end of a call.

use na::{Arrival, MsgBuf};

use crate::core::context::{Core, Op};
use crate::memory::buffers::Payload;
use crate::ops::slab::OpRef;
use crate::origin::forward::Fetching;
use crate::progress::poll::Event;
use crate::wire::format::Format;
use crate::wire::header::ResponseHeader;
use crate::wire::{self, Body};
use crate::{HgError, Response, ReturnCode, Sink};

impl<T> Core<T> {
    /// A response arrived. The end of the call is told at once, unless the call is a special one.
    #[inline]
    pub(crate) fn on_reply<S: Sink<T> + ?Sized>(
        &self,
        op: OpRef,
        buf: MsgBuf,
        arrival: Arrival,
        sink: &mut S,
    ) -> Option<Event<T>> {
        let format = match self.asks.then(|| self.format_of_reply(op)) {
            None => self.accept.format,
            Some(Some(format)) => format,
            Some(None) => return self.on_told(op, buf, &arrival),
        };
        if !ResponseHeader::is_plain_success(format, buf.as_slice()) {
            let result = self.read_response(op, format, buf, arrival)?;
            return self.on_result(op, result);
        }
        let token = {
            let mut state = self.state();
            let token = state.end_plain_call(op);
            state.hot.rpc_resp_recv += u64::from(token.is_some());
            token
        };
        let payload = Payload::Message(buf, format.header_bytes());
        let result = Ok(Response::new(payload, &self.buffers));
        match token {
            Some(token) => {
                sink.response(token, result);
                None
            }
            None => self.on_result(op, result),
        }
    }

    /// As [`on_reply`](Self::on_reply), whatever result and call are.
    #[inline(never)]
    fn on_result(&self, op: OpRef, result: Result<Response, HgError>) -> Option<Event<T>> {
        let mut state = self.state();
        state.hot.rpc_resp_recv += 1;
        let Some(Op::Forward(call)) = state.ops.get_mut(op) else { return None };
        call.received(result);
        self.settle(state, op)
    }

    /// The receive of a response failed.
    pub(crate) fn on_no_reply(&self, op: OpRef, error: na::Error) -> Option<Event<T>> {
        if self.asks && !matches!(error, na::Error::Canceled) {
            self.class.builds.forget();
        }
        let mut state = self.state();
        let Some(Op::Forward(call)) = state.ops.get_mut(op) else { return None };
        call.received(Err(error.into()));
        self.settle(state, op)
    }

    /// `None`: the result is being fetched.
    fn read_response(
        &self,
        op: OpRef,
        format: Format,
        buf: MsgBuf,
        arrival: Arrival,
    ) -> Option<Result<Response, HgError>> {
        let result = match wire::decode_response(format, buf.as_slice()) {
            Ok((header, _)) if header.code != ReturnCode::Success => {
                // C's own RPC layer says `HG_NOENTRY` of an RPC that is not registered.
                let of_layer = header.code == ReturnCode::NoEntry
                    || wire::is_own_refusal(format, buf.as_slice());
                Err(if of_layer {
                    HgError::Remote(header.code)
                } else {
                    HgError::Foreign(header.code)
                })
            }
            Ok((header, Body::Inline(_))) => {
                let payload = Payload::Message(buf, header.format.header_bytes());
                return Some(Ok(Response::new(payload, &self.buffers)));
            }
            Ok((header, Body::Overflow(desc))) => {
                self.counts.resp_extra.bump();
                match self.fetch_response(op, &header, &arrival, &desc) {
                    Ok(None) => {
                        self.buffers.put(buf);
                        self.state().hot.rpc_resp_recv += 1;
                        return None;
                    }
                    Ok(Some(bytes)) => Ok(Response::new(Payload::Overflow(bytes), &self.buffers)),
                    Err(error) => Err(error),
                }
            }
            Err(error) => Err(error.into()),
        };
        if let Err(error @ HgError::Wire(_)) = &result {
            self.response_unread(&arrival.from, arrival.tag, error);
        }
        self.buffers.put(buf);
        Some(result)
    }

    /// Returns whether the result of a call is to be fetched: not if the call is over or was
    /// canceled.
    pub(crate) fn wants_result(&self, op: OpRef) -> bool {
        matches!(self.state().ops.get_mut(op), Some(Op::Forward(call)) if !call.canceled)
    }

    /// The response came and its result is being fetched; `false`: the call is over.
    pub(crate) fn begin_fetch(&self, op: OpRef, fetching: Fetching) -> bool {
        let mut state = self.state();
        let Some(Op::Forward(call)) = state.ops.get_mut(op) else { return false };
        call.receiving = false;
        call.release();
        call.fetching = Some(Box::new(fetching));
        true
    }
}
