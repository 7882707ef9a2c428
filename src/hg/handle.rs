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
use std::time::Instant;

use na::{Addr, MsgBuf, Tag};

use super::buffers::{Buffers, Payload};
use super::context::{Beside, Event};
use super::core::{Core, Op};
use super::header::{RequestHeader, ResponseHeader};
use super::ops::{OpRef, Role};
use super::proc::Written;
use super::receives::Receives;
use super::registry::Registration;
use super::slots::Exposed;
use super::wire;
use super::{CallKey, HgError, ProcError, ReturnCode, RpcId, TraceParent, Writer};

/// A response: what stands behind Mercury's headers. Gives its buffer back when dropped.
pub struct Response {
    payload: Payload,
    /// Names the pool of its buffer.
    pool: u64,
}

impl Response {
    #[inline]
    pub(super) fn new(payload: Payload, buffers: &Buffers) -> Self {
        Self { payload, pool: buffers.number() }
    }

    /// That of a one-way call.
    pub(super) fn empty() -> Self {
        Self { payload: Payload::None, pool: 0 }
    }

    /// The bytes; all of them, also if they had overflowed. Its length is what C calls the output
    /// payload size.
    ///
    /// Counterpart: `HG_Get_output_buf`, `HG_Get_output_extra_buf`, `HG_Get_output_payload_size`.
    #[inline]
    pub fn payload(&self) -> &[u8] {
        self.payload.as_slice()
    }
}

impl Drop for Response {
    fn drop(&mut self) {
        self.payload.recycle(self.pool);
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
    exposed: Option<Box<Exposed>>,
}

impl<T> Respond<T> {
    /// Whether it ends with an error, when it ends.
    pub(super) fn has_failed(&self) -> bool {
        self.error.is_some()
    }

    /// Gives up. Returns the parts to cancel.
    pub(super) fn cancel(&mut self) -> Vec<Role> {
        self.error.get_or_insert(HgError::Canceled);
        self.exposed = None;
        let parts = [(self.sending, Role::Send), (self.receiving, Role::Ack)];
        parts.into_iter().filter_map(|(flying, role)| flying.then_some(role)).collect()
    }

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
        let exposed = self.exposed.take();
        match result {
            Ok(()) => exposed.into_iter().for_each(|exposed| exposed.done()),
            Err(error) => {
                self.error.get_or_insert(error.into());
            }
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
    pub(super) core: Arc<Core<T>>,
    pub(super) header: RequestHeader,
    pub(super) origin: Addr,
    pub(super) reply: Reply,
    pub(super) payload: Payload,
    pub(super) payload_bytes: usize,
    pub(super) registration: Option<Arc<Registration>>,
    pub(super) held: bool,
    /// There were plenty of other receives when it came.
    pub(super) may_keep: bool,
    pub(super) answered: bool,
    pub(super) beside: Option<Box<Beside>>,
}

impl<T> RequestHandle<T> {
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

    /// When the origin gives up, as far as it has said so: by this host's clock, counted from when
    /// the request arrived.
    pub fn deadline(&self) -> Option<Instant> {
        self.beside.as_ref()?.deadline
    }

    /// What the origin says that this is part of, across processes.
    pub fn trace(&self) -> Option<TraceParent> {
        self.beside.as_ref()?.trace
    }

    /// Names this call for [`Sink::canceled`](super::Sink::canceled), together with its origin.
    /// `None`: nobody waits for its end, so nobody will give it up.
    pub fn call_key(&self) -> Option<CallKey> {
        if self.header.no_response { None } else { CallKey::of(self.reply) }
    }

    /// What the RPC was registered with when the request was handed up, if it is of type `D`. Also
    /// there when the RPC was replaced or deregistered since.
    ///
    /// Counterpart: `HG_Registered_data`.
    pub fn data<D: std::any::Any>(&self) -> Option<&D> {
        self.registration.as_ref()?.data_as()
    }

    /// The same with its name and number, if it was registered with data.
    pub fn registration(&self) -> Option<&Arc<Registration>> {
        self.registration.as_ref()
    }

    /// Takes out what the RPC was registered with; the handle knows it no longer.
    pub fn take_registration(&mut self) -> Option<Arc<Registration>> {
        self.registration.take()
    }

    /// The context that the origin called from.
    pub fn cookie(&self) -> u8 {
        self.header.cookie
    }

    /// The context that handles it. Counterpart: `HG_Get_info`.
    pub fn context_id(&self) -> u8 {
        self.core.id
    }

    /// The bytes behind Mercury's headers; empty after [`release_payload`](Self::release_payload).
    ///
    /// Counterpart: `HG_Get_input_buf`, `HG_Get_input_extra_buf`.
    pub fn payload(&self) -> &[u8] {
        self.payload.as_slice()
    }

    /// How many bytes of payload came, overflowed ones included; also after
    /// [`release_payload`](Self::release_payload).
    ///
    /// Counterpart: `HG_Get_input_payload_size`.
    pub fn payload_bytes(&self) -> usize {
        self.payload_bytes
    }

    /// Reads the arguments. With [`HgOptions::release_input_early`](super::HgOptions) this can be
    /// done once: the payload is released afterwards.
    ///
    /// Counterpart: `HG_Get_input`.
    pub fn input<R>(&mut self, read: impl FnOnce(&[u8]) -> R) -> R {
        let result = read(self.payload.as_slice());
        if self.core.options.release_input_early {
            self.release_payload();
        }
        result
    }

    /// The payload is no longer looked at. Its buffer goes back with the answer or, if many are
    /// held compared with those that wait for requests, at once.
    pub fn payload_was_read(&mut self) {
        if !self.may_keep {
            self.release_payload();
        }
    }

    /// Gives the receive buffer back before the request is answered, so that a long-running handler
    /// does not hold one.
    ///
    /// Counterpart: `HG_Release_input_buf`.
    pub fn release_payload(&mut self) {
        self.done_with(false);
    }

    /// The payload is no longer needed, and an answer was sent if `answered`.
    #[inline]
    fn done_with(&mut self, answered: bool) {
        let held = std::mem::take(&mut self.held);
        if !held && !answered && matches!(self.payload, Payload::None) {
            return;
        }
        let core = &self.core;
        let overflowed = match &self.payload {
            Payload::Overflow(bytes) => bytes.len() as u64,
            _ => 0,
        };
        let released = |receives: &mut Receives| {
            receives.release_bytes(overflowed);
            receives.released()
        };
        let claim = {
            let mut state = core.state();
            state.hot.rpc_resp_sent += u64::from(answered);
            if !held {
                0..0
            } else if core.is_primary() {
                released(&mut state.receives)
            } else {
                drop(state);
                released(&mut core.primary().state().receives)
            }
        };
        core.request_released(claim, self.payload.take_buf());
    }

    /// Answers: what `encode` writes follows Mercury's headers. If the answer is not over at once,
    /// `token` comes back through [`Sink::responded`](super::Sink::responded); see [`Sent`].
    ///
    /// # Errors
    ///
    /// [`HgError::NoResponse`] if the origin wants no response. With [`HgError::Proc`] the request
    /// comes back, still unanswered; with others it is gone, and the origin is told if it can be.
    /// `token` is dropped, and does not come back.
    ///
    /// Counterpart: `HG_Respond`.
    pub fn respond(
        mut self,
        encode: impl FnOnce(&mut Writer) -> Result<(), ProcError>,
        token: T,
    ) -> Result<Sent<T>, Box<(HgError, Option<Self>)>> {
        if self.header.no_response {
            return Err(Box::new((HgError::NoResponse, None)));
        }
        match self.send_response(encode, token) {
            Ok(sent) => Ok(sent),
            Err(error @ HgError::Proc(_)) => Err(Box::new((error, Some(self)))),
            // If the origin can be told at all, it is told when this is dropped.
            Err(error) => Err(Box::new((error, None))),
        }
    }

    /// Answers in Mercury's header alone that the request was not taken: the origin gets
    /// [`HgError::Remote`]. Nothing is sent to an origin that wants no response.
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
            Reply::Local(op) => self.core.answer_local(op, Err(HgError::Remote(code))),
            Reply::None => {}
        }
    }
}

impl<T> Drop for RequestHandle<T> {
    #[inline]
    fn drop(&mut self) {
        if self.held || !matches!(self.payload, Payload::None) {
            self.release_payload();
        }
        if !self.answered {
            self.answer_with_code(ReturnCode::OtherError);
        }
    }
}

impl<T> fmt::Debug for RequestHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RequestHandle({} from {})", self.header.id, self.origin)
    }
}

impl<T> RequestHandle<T> {
    /// Encodes and sends; the request is answered unless this fails with [`HgError::Proc`].
    #[inline]
    fn send_response(
        &mut self,
        encode: impl FnOnce(&mut Writer) -> Result<(), ProcError>,
        token: T,
    ) -> Result<Sent<T>, HgError> {
        let core = &*self.core;
        let max = core.limits.expected_bytes_max;
        let limits = core.writer_limits(max);
        let header = ResponseHeader::answering(&self.header, ReturnCode::Success);
        let format = header.format;
        let buf = core.buffers.take();
        let written = wire::encode_response(header, buf, max, limits, encode)
            .map_err(|unencoded| core.unencoded(unencoded))?;
        let tag = match self.reply {
            Reply::Network(tag) => tag,
            Reply::Local(op) => {
                let response = Response::new(
                    core.local_payload(format.header_bytes(), written),
                    &core.buffers,
                );
                core.answer_local(op, Ok(response));
                self.answered = true;
                return Ok(Sent::Done(token));
            }
            Reply::None => return Err(HgError::NoResponse),
        };
        let (buf, exposed) = match written {
            Written::Fits(buf) => (buf, None),
            Written::Overflow(buf, bytes) => {
                let (buf, exposed) = {
                    let start = format.header_bytes();
                    core.expose_overflow(&self.origin, start, buf, bytes, max)?
                };
                (buf, Some(Box::new(exposed)))
            }
        };
        if exposed.is_none() && core.endpoint.send_expected_now(&self.origin, tag, buf.as_slice()) {
            core.buffers.put(buf);
            self.answered = true;
            self.done_with(true);
            return Ok(Sent::Done(token));
        }
        let started = core.launch_response(&self.origin, tag, buf, exposed, token);
        self.answered = started.is_ok();
        started.map(Sent::InFlight)
    }
}

/// What became of an answer.
#[derive(Debug)]
#[must_use = "an answer that is over gives its token back here, and not through the sink"]
pub enum Sent<T> {
    /// It was sent, or handed over to ourselves. The sink is not told.
    Done(T),
    /// Its end is told to the sink; until then it can be canceled.
    InFlight(OpRef),
}

impl<T> Core<T> {
    /// Starts the parts of an answer.
    fn launch_response(
        &self,
        origin: &Addr,
        tag: Tag,
        buf: MsgBuf,
        exposed: Option<Box<Exposed>>,
        token: T,
    ) -> Result<OpRef, HgError> {
        let receiving = exposed.is_some();
        if receiving {
            self.counts.resp_extra.bump();
        }
        let token = Some(token);
        let answer = Respond { token, sending: true, receiving, error: None, exposed };
        let op = {
            let mut state = self.state();
            let op = match state.admit(Op::Respond(answer)) {
                Ok(op) => op,
                Err(refused) => {
                    drop(state);
                    self.buffers.put(buf);
                    return Err(refused.0);
                }
            };
            state.tokens += 1;
            state.hot.rpc_resp_sent += 1;
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
            Ok(()) => Ok(op),
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
    ) -> Result<OpRef, HgError> {
        let mut state = self.state();
        state.hot.rpc_resp_sent -= 1;
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
        self.state().hot.rpc_resp_sent += 1;
        self.send_loose(origin, tag, buf);
    }
}
