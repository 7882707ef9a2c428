//! Requests at the target, their answers, and responses at the origin.
//!
//! A request is answered once: by [`RequestHandle::respond`], by [`RequestHandle::reject`], or,
//! when it is dropped without either, by an error in its stead, so that no origin waits for ever.
//!
//! The answer of a network request is an expected message under the request's tag. If the result
//! overflowed, the receive of the origin's acknowledgement is posted before the answer is sent, and
//! the result stays exposed until it comes.

use std::fmt;
use std::sync::Arc;

use na::{Addr, LocalMem, Tag};

use super::buffers::{Buffers, Payload};
use super::context::{Event, Incoming};
use super::core::{Core, Op};
use super::header::{RequestHeader, ResponseHeader};
use super::ops::{OpRef, Role};
use super::wire;
use super::{HgError, ProcError, ReturnCode, RpcId, Writer};

/// A response: what stands behind Mercury's headers. Gives its buffer back when dropped.
pub struct Response {
    payload: Payload,
    buffers: Option<Arc<Buffers>>,
}

impl Response {
    pub(super) fn new(payload: Payload, buffers: &Arc<Buffers>) -> Self {
        Self { payload, buffers: Some(buffers.clone()) }
    }

    /// That of a one-way call.
    pub(super) fn empty() -> Self {
        Self { payload: Payload::None, buffers: None }
    }

    /// The bytes. Counterpart: `HG_Get_output_buf`.
    pub fn payload(&self) -> &[u8] {
        self.payload.as_slice()
    }
}

impl Drop for Response {
    fn drop(&mut self) {
        if let Some(buffers) = &self.buffers {
            self.payload.recycle(buffers);
        }
    }
}

impl fmt::Debug for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Response({} bytes)", self.payload().len())
    }
}

/// How an answer goes back.
#[derive(Debug, Clone, Copy)]
pub(super) enum Reply {
    /// As an expected message with this tag.
    Network(Tag),
    /// To a call to ourselves.
    Local(OpRef),
    /// To nobody.
    None,
}

/// An answer in flight.
#[derive(Debug)]
pub(super) struct Respond<T> {
    token: Option<T>,
    sending: bool,
    /// Waiting for the acknowledgement of a result that overflowed.
    receiving: bool,
    error: Option<HgError>,
    /// The result, while the origin may fetch it.
    exposed: Option<LocalMem>,
}

impl<T> Respond<T> {
    /// The send ended. Returns what is to be canceled because of that.
    pub(super) fn sent(&mut self, result: Result<(), na::Error>) -> Option<Role> {
        self.sending = false;
        let error = result.err()?;
        self.error.get_or_insert(error.into());
        self.receiving.then_some(Role::Ack)
    }

    /// The acknowledgement came, or will not.
    pub(super) fn acknowledged(&mut self, result: Result<(), na::Error>) {
        self.receiving = false;
        self.exposed = None;
        if let Err(error) = result {
            self.error.get_or_insert(error.into());
        }
    }

    /// What there is to tell, and whether the answer is over.
    pub(super) fn settle(&mut self) -> (Option<Event<T>>, bool) {
        if self.sending || self.receiving {
            return (None, false);
        }
        let result = self.error.take().map_or(Ok(()), Err);
        (self.token.take().map(|token| Event::Responded { token, result }), true)
    }
}

/// A request that arrived, with all of its arguments.
///
/// Counterpart: `hg_handle_t` at the target.
pub struct RequestHandle<T> {
    core: Arc<Core<T>>,
    header: RequestHeader,
    origin: Addr,
    reply: Reply,
    payload: Payload,
    held: bool,
    answered: bool,
}

impl<T> RequestHandle<T> {
    pub(super) fn new(core: Arc<Core<T>>, incoming: Incoming) -> Self {
        let Incoming { header, origin, reply, payload, held } = incoming;
        let answered = header.no_response;
        Self { core, header, origin, reply, payload, held, answered }
    }

    /// Which RPC is asked for.
    pub fn id(&self) -> RpcId {
        self.header.id
    }

    /// Who asks. Bulk handles among the arguments belong to this peer.
    pub fn origin(&self) -> &Addr {
        &self.origin
    }

    /// Whether the origin wants no response.
    pub fn is_one_way(&self) -> bool {
        self.header.no_response
    }

    /// The bytes behind Mercury's headers; empty after [`release_payload`](Self::release_payload).
    ///
    /// Counterpart: `HG_Get_input_buf`.
    pub fn payload(&self) -> &[u8] {
        self.payload.as_slice()
    }

    /// Gives the receive buffer back before the request is answered, so that a long-running handler
    /// does not hold one.
    ///
    /// Counterpart: `HG_Release_input_buf`.
    pub fn release_payload(&mut self) {
        match &mut self.payload {
            Payload::Overflow(_) => self.payload = Payload::None,
            payload => payload.recycle(&self.core.buffers),
        }
        if std::mem::take(&mut self.held) {
            self.core.request_released();
        }
    }

    /// Answers: what `encode` writes follows Mercury's headers. `token` comes back through
    /// [`Sink::responded`](super::Sink::responded).
    ///
    /// # Errors
    ///
    /// [`HgError::NoResponse`] if the origin wants no response. With [`HgError::Proc`] the request
    /// comes back, still unanswered; with others it is gone. `token` is dropped, and does not come
    /// back.
    ///
    /// Counterpart: `HG_Respond`.
    pub fn respond(
        mut self,
        encode: impl FnOnce(&mut Writer) -> Result<(), ProcError>,
        token: T,
    ) -> Result<(), Box<(HgError, Option<Self>)>> {
        if self.header.no_response {
            return Err(Box::new((HgError::NoResponse, None)));
        }
        let core = self.core.clone();
        let header = ResponseHeader::answering(&self.header, ReturnCode::Success);
        match core.send_response(&self.origin, self.reply, header, encode, token) {
            Err(error @ HgError::Proc(_)) => Err(Box::new((error, Some(self)))),
            result => {
                self.answered = true;
                result.map_err(|error| Box::new((error, None)))
            }
        }
    }

    /// Answers in Mercury's header alone that the request was not taken: the origin gets
    /// [`HgError::Remote`]. Nothing is sent to an origin that wants no response.
    ///
    /// For an id that is not registered: [`ReturnCode::NoEntry`].
    pub fn reject(mut self, code: ReturnCode) {
        self.answer_with_code(code);
    }

    fn answer_with_code(&mut self, code: ReturnCode) {
        if std::mem::replace(&mut self.answered, true) {
            return;
        }
        match self.reply {
            Reply::Network(tag) => {
                self.core.send_refusal(&self.origin, tag, code, &self.header);
            }
            Reply::Local(op) => self.core.answer_local(op, Err(HgError::Remote(code)), None),
            Reply::None => {}
        }
    }
}

impl<T> Drop for RequestHandle<T> {
    fn drop(&mut self) {
        self.release_payload();
        self.answer_with_code(ReturnCode::OtherError);
    }
}

impl<T> fmt::Debug for RequestHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RequestHandle({} from {})", self.header.id, self.origin)
    }
}

impl<T> Core<T> {
    fn send_response(
        &self,
        origin: &Addr,
        reply: Reply,
        header: ResponseHeader,
        encode: impl FnOnce(&mut Writer) -> Result<(), ProcError>,
        token: T,
    ) -> Result<(), HgError> {
        let max = self.limits.expected_bytes_max;
        let (format, limits) = (header.format, self.writer_limits());
        let written = wire::encode_response(header, self.buffers.take(), max, limits, encode)
            .map_err(|unencoded| self.unencoded(unencoded))?;
        let tag = match reply {
            Reply::Network(tag) => tag,
            Reply::Local(op) => {
                let response = Response::new(self.local_payload(format, written), &self.buffers);
                self.answer_local(op, Ok(response), Some(token));
                return Ok(());
            }
            Reply::None => return Err(HgError::NoResponse),
        };
        let (buf, exposed) = self.expose_overflow(format, written, max)?;
        let receiving = exposed.is_some();
        if receiving {
            self.counts.resp_extra.bump();
        }
        let token = Some(token);
        let answer = Respond { token, sending: true, receiving, error: None, exposed };
        let op = {
            let mut state = self.state();
            let op = state.admit(Op::Respond(answer)).map_err(|refused| refused.0)?;
            state.tokens += 1;
            op
        };
        if receiving {
            let ack = self.buffers.take();
            let posted = self.endpoint.recv_expected(op.part(Role::Ack), origin, tag, ack);
            if let Err(refused) = posted {
                self.buffers.put(refused.buf);
                self.buffers.put(buf);
                return self.withdraw_answer(op, true, refused.error);
            }
        }
        match self.endpoint.send_expected(op.part(Role::Send), origin, tag, buf) {
            Ok(()) => {
                self.counts.rpc_resp_sent.bump();
                Ok(())
            }
            Err(refused) => {
                self.buffers.put(refused.buf);
                let withdrawn = self.withdraw_answer(op, false, refused.error);
                self.endpoint.cancel(op.part(Role::Ack));
                withdrawn
            }
        }
    }

    /// A part of an answer was refused, so nothing was sent: drops the token.
    fn withdraw_answer(
        &self,
        op: OpRef,
        not_receiving: bool,
        error: na::Error,
    ) -> Result<(), HgError> {
        let mut state = self.state();
        if let Some(Op::Respond(answer)) = state.ops.get_mut(op) {
            answer.sending = false;
            answer.receiving &= !not_receiving;
            let token = answer.token.take();
            if token.is_some() {
                state.tokens -= 1;
            }
            let (_, gone) = state.settle(op);
            drop(state);
            drop((token, gone));
        }
        Err(error.into())
    }

    /// Ends a call to ourselves, unless it was canceled meanwhile; `token` is the answerer's.
    fn answer_local(&self, op: OpRef, result: Result<Response, HgError>, token: Option<T>) {
        self.counts.rpc_resp_sent.bump();
        let mut state = self.state();
        if let Some(Op::Local(token)) = state.ops.remove(op) {
            self.counts.rpc_resp_recv.bump();
            self.queue(&mut state, Event::Response { token, result });
        }
        if let Some(token) = token {
            state.tokens += 1;
            self.queue(&mut state, Event::Responded { token, result: Ok(()) });
        }
    }

    /// Sends an error response that nobody waits for.
    pub(super) fn send_refusal(
        &self,
        origin: &Addr,
        tag: Tag,
        code: ReturnCode,
        request: &RequestHeader,
    ) {
        let mut buf = self.buffers.take();
        wire::encode_refusal(request, code, &mut buf);
        self.counts.rpc_resp_sent.bump();
        self.send_loose(origin, tag, buf);
    }
}
