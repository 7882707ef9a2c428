//! Responses at the origin: from a message to the end of a call.

use na::{Arrival, MsgBuf};

use crate::core::state::Op;
use crate::memory::Payload;
use crate::ops::Event;
use crate::wire::Body;
use crate::wire::header::ResponseHeader;
use crate::{Core, Format, HgError, OpRef, Response, ReturnCode, wire};

impl<T> Core<T> {
    /// A response arrived. The end of the call is told at once, unless the call is a special one.
    #[inline]
    pub(crate) fn on_response(
        &self,
        op: OpRef,
        buf: MsgBuf,
        arrival: Arrival,
        end: impl FnOnce(T, Result<Response, HgError>),
    ) -> Option<Event<T>> {
        let format = match self.asks.then(|| self.format_of_response(op)) {
            None => self.accept.format,
            Some(Some(format)) => format,
            Some(None) => return self.on_told(op, buf, &arrival),
        };
        if !ResponseHeader::is_plain_success(format, buf.as_slice()) {
            let result = self.read_response(op, format, buf, arrival)?;
            return self.on_result(op, result, true);
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
                end(token, result);
                None
            }
            None => self.on_result(op, result, true),
        }
    }

    /// As [`on_response`](Self::on_response), whatever result and call are.
    #[inline(never)]
    fn on_result(
        &self,
        op: OpRef,
        result: Result<Response, HgError>,
        came: bool,
    ) -> Option<Event<T>> {
        let mut state = self.state();
        state.hot.rpc_resp_recv += u64::from(came);
        let Some(Op::Call(call)) = state.ops.get_mut(op) else { return None };
        call.received(result);
        self.settle(state, op)
    }

    /// The receive of a response failed.
    pub(crate) fn on_response_failed(&self, op: OpRef, error: na::Error) -> Option<Event<T>> {
        if self.asks && !matches!(error, na::Error::Canceled) {
            self.class.builds.forget();
        }
        self.on_result(op, Err(error.into()), false)
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
}
