//! A request as it came in, and how it is answered.
//!
//! The answer of a network request is an expected message under the request's tag. If the result
//! overflowed, the receive of the origin's acknowledgement is posted before the answer is sent, and
//! the result stays exposed until it comes. The answer ends with the outcome that the
//! acknowledgement tells.

use std::any::Any;
use std::time::Instant;

use na::{Addr, MsgBuf, Refused, Tag};

use crate::core::state::Op;
use crate::memory::{ExposedPayload, Payload};
use crate::ops::{Destination, OutgoingResponse, RequestExtension, ResponsePath, Role, target_of};
use crate::proc::Written;
use crate::wire::header::{RequestHeader, ResponseHeader};
use crate::{
    CallKey, Core, Format, HgError, OpRef, ProcError, Response, ReturnCode, RpcId, Sent,
    TraceParent, Writer, wire,
};

/// A request without where it came from, and where it is handled.
///
/// It is to be dropped as part of a [`RequestHandle`](crate::RequestHandle), which answers it and
/// gives its buffer back; builds with debug assertions panic otherwise.
///
/// ```
/// # use hg::*;
/// # #[derive(Default)]
/// # struct Notes { requests: Vec<RequestHandle<u32>>, ended: Vec<Result<Response, HgError>> }
/// # impl Sink<u32> for Notes {
/// #     fn request(&mut self, request: RequestHandle<u32>) { self.requests.push(request); }
/// #     fn response(&mut self, _: u32, end: Result<Response, HgError>) { self.ended.push(end); }
/// #     fn responded(&mut self, _: u32, _: Result<(), HgError>) {}
/// #     fn bulk(&mut self, _: u32, _: Result<u64, HgError>) {}
/// # }
/// # let mut notes = Notes::default();
/// # let endpoint = na::open("na+sim://doc-raw-request/a", &na::OpenOptions::listening(true))?;
/// # let core = Core::<u32>::new(endpoint, HgOptions::default())?;
/// # let own = core.self_addr();
/// # let id = core.register(Registration::margo("sum", ProviderId::DEFAULT))?;
/// # core.forward(&own, id, ForwardOptions::default(), |out| out.put(b"1 2"), 7)
/// #     .map_err(|refused| refused.0)?;
/// # core.poll(16, &mut notes)?;
/// # let request = notes.requests.pop().ok_or("no request")?;
/// let raw: &RawRequest = &request;
/// assert_eq!((raw.id(), raw.payload_bytes()), (id, 3));
/// assert!(!raw.is_one_way() && raw.deadline().is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "the origin waits for an answer"]
pub struct RawRequest {
    pub(crate) header: RequestHeader,
    pub(crate) path: ResponsePath,
    pub(crate) payload: Payload,
    pub(crate) payload_bytes: usize,
    pub(crate) held: bool,
    /// There were plenty of other receives when it came.
    pub(crate) may_keep: bool,
    /// Many others were held when it came.
    pub(crate) is_crowded: bool,
    pub(crate) answered: bool,
    pub(crate) beside: Option<Box<RequestExtension>>,
}

impl Drop for RawRequest {
    fn drop(&mut self) {
        let is_over = self.answered && !self.held && matches!(self.payload, Payload::None);
        debug_assert!(is_over || std::thread::panicking(), "dropped in hand: {self:?}");
    }
}

impl RawRequest {
    /// Returns the id of the RPC that is called.
    #[inline]
    pub fn id(&self) -> RpcId {
        self.header.id
    }

    /// Returns whether the origin wants no response.
    #[inline]
    pub fn is_one_way(&self) -> bool {
        self.header.no_response
    }

    /// The time at which the origin gives up, by this host's clock, if it has named one. It is
    /// later than the origin's by the least time that its requests take, or by the time that this
    /// one took if it is the first with a deadline. It is earlier only after the origin's clock
    /// stood still, as in a suspend of its host. For a request that has expired on its way it is
    /// the time of arrival.
    #[inline]
    pub fn deadline(&self) -> Option<Instant> {
        self.beside.as_ref()?.deadline
    }

    /// Returns the trace that this request is part of, across processes, if the origin has named
    /// one.
    #[inline]
    pub fn trace(&self) -> Option<TraceParent> {
        self.beside.as_ref()?.trace
    }

    /// Names this call for [`Sink::canceled`](crate::Sink::canceled), together with its origin.
    /// `None`: its origin does not wait for its end, so it will not give it up.
    #[inline]
    pub fn call_key(&self) -> Option<CallKey> {
        if self.header.no_response { None } else { CallKey::of(self.path) }
    }

    /// Returns whether so many requests were held when it came, of those that may be
    /// ([`HgOptions::requests_max`](crate::HgOptions::requests_max)), that whose they are is to be
    /// looked at.
    #[inline]
    pub fn is_crowded(&self) -> bool {
        self.is_crowded
    }

    /// Keeps something until the request is held no longer, and then drops it.
    pub fn set_place(&mut self, place: Box<dyn Any + Send + Sync>) {
        let new = || Box::new(RequestExtension { deadline: None, trace: None, place: None });
        self.beside.get_or_insert_with(new).place = Some(place);
    }

    /// Returns whether its arguments did not fit into its message.
    #[inline]
    pub fn was_fetched(&self) -> bool {
        matches!(self.payload, Payload::Overflow(_))
    }

    /// The number of the shard that the origin wants to handle it, if it wants a certain one. The
    /// origin may name one that is not there.
    #[inline]
    pub fn target(&self) -> Option<u8> {
        match self.path {
            ResponsePath::Network(tag) => target_of(tag),
            ResponsePath::Local(_) | ResponsePath::None => None,
        }
    }

    /// The number of the shard, or C's context, that the origin called from.
    #[inline]
    pub fn cookie(&self) -> u8 {
        self.header.cookie
    }

    /// The bytes behind Mercury's headers; empty after
    /// [`release_payload`](crate::RequestHandle::release_payload).
    ///
    /// Counterpart: `HG_Get_input_buf`, `HG_Get_input_extra_buf`.
    #[inline]
    pub fn payload(&self) -> &[u8] {
        self.payload.as_slice()
    }

    /// How many bytes of payload came, overflowed ones included; also after
    /// [`release_payload`](crate::RequestHandle::release_payload).
    ///
    /// Counterpart: `HG_Get_input_payload_size`.
    #[inline]
    pub fn payload_bytes(&self) -> usize {
        self.payload_bytes
    }

    /// The payload is no longer looked at. Its buffer goes back to `core`, which the request came
    /// by: with the answer or, with
    /// [`release_input_early`](crate::HgOptions::release_input_early) and if many are held compared
    /// with those that wait for requests, at once.
    pub fn payload_was_read<T>(&mut self, core: &Core<T>) {
        if core.options.release_input_early && !self.may_keep {
            self.release_payload(core);
        }
    }

    /// In a child process that was forked off: answers nothing, and leaves what it holds where it
    /// is. All of that is the parent's.
    pub fn leave_to_parent(&mut self) {
        std::mem::forget(self.take());
    }

    /// Takes everything out: what stays needs nothing any more.
    pub(crate) fn take(&mut self) -> Self {
        let Self { header, path, payload_bytes, may_keep, is_crowded, .. } = *self;
        Self {
            header,
            path,
            payload: std::mem::replace(&mut self.payload, Payload::None),
            payload_bytes,
            held: std::mem::take(&mut self.held),
            may_keep,
            is_crowded,
            answered: std::mem::replace(&mut self.answered, true),
            beside: self.beside.take(),
        }
    }

    pub(crate) fn release_payload<T>(&mut self, core: &Core<T>) {
        self.done_with(core, false);
    }

    /// The request was let go of.
    #[inline]
    pub(crate) fn end<T>(&mut self, core: &Core<T>, origin: &Addr) {
        if self.held || !matches!(self.payload, Payload::None) {
            self.release_payload(core);
        }
        if !self.answered {
            self.answer_with_code(core, origin, ReturnCode::OtherError);
        }
    }

    /// The payload is no longer needed, and an answer was sent if `answered`.
    #[inline]
    fn done_with<T>(&mut self, core: &Core<T>, answered: bool) {
        let held = std::mem::take(&mut self.held);
        if !held && !answered && matches!(self.payload, Payload::None) {
            return;
        }
        if let Some(beside) = &mut self.beside {
            beside.place = None;
        }
        let overflowed = match &self.payload {
            // Those of a call to ourselves were never counted.
            Payload::Overflow(bytes) if held => bytes.len() as u64,
            _ => 0,
        };
        if overflowed == 0 && core.release_apart(held, answered) {
            if let Some(buf) = self.payload.take_buf() {
                core.buffers.put(buf);
            }
        } else {
            self.done_with_under_lock(core, (held, answered), overflowed);
        }
    }

    #[inline(never)]
    fn done_with_under_lock<T>(
        &mut self,
        core: &Core<T>,
        (held, answered): (bool, bool),
        overflowed: u64,
    ) {
        if overflowed > 0 {
            core.class.held.release(overflowed);
        }
        let claim = {
            let mut state = core.state();
            state.hot.rpc_resp_sent += u64::from(answered);
            if held { state.receives.released() } else { 0..0 }
        };
        core.request_released(claim, self.payload.take_buf());
    }

    pub(crate) fn answer_with_code<T>(&mut self, core: &Core<T>, origin: &Addr, code: ReturnCode) {
        if std::mem::replace(&mut self.answered, true) {
            return;
        }
        match self.path {
            ResponsePath::Network(tag) => core.send_refusal(origin, tag, code, &self.header),
            ResponsePath::Local(op) => core.answer_local(op, Err(HgError::Remote(code))),
            ResponsePath::None => {}
        }
    }

    /// Encodes and sends; the request is answered unless this fails.
    #[inline]
    pub(crate) fn respond<T>(
        &mut self,
        core: &Core<T>,
        origin: &Addr,
        encode: impl FnOnce(&mut Writer) -> Result<(), ProcError>,
        token: T,
    ) -> Result<Sent<T>, HgError> {
        if self.header.no_response {
            return Err(HgError::NoResponse);
        }
        let max = core.limits.expected_bytes_max;
        let limits = core.writer_limits(max);
        let header = ResponseHeader::answering(&self.header, ReturnCode::Success);
        let format = header.format;
        let buf = core.buffers.take();
        let written = wire::encode_response(header, buf, max, limits, encode)
            .map_err(|unencoded| core.unencoded(unencoded))?;
        let tag = match self.path {
            ResponsePath::Network(tag) => tag,
            ResponsePath::Local(op) => {
                let response = Response::new(
                    core.local_payload(format.header_bytes(), written),
                    &core.buffers,
                );
                core.answer_local(op, Ok(response));
                self.answered = true;
                return Ok(Sent::Done(token));
            }
            ResponsePath::None => return Err(HgError::NoResponse),
        };
        let (buf, exposed) = match written {
            Written::Fits(buf) => (buf, None),
            Written::Overflow(buf, bytes) => {
                let (buf, exposed) = {
                    let start = format.header_bytes();
                    let rpc = Some(self.header.id);
                    core.expose_result(origin, start, buf, bytes, max, rpc)?
                };
                (buf, Some(Box::new(exposed)))
            }
        };
        if exposed.is_none() && core.endpoint.send_expected_now(origin, tag, buf.as_slice()) {
            core.buffers.put(buf);
            self.answered = true;
            self.done_with(core, true);
            return Ok(Sent::Done(token));
        }
        let started = core.launch_response(origin, (tag, format), buf, exposed, token);
        self.answered = started.is_ok();
        started.map(Sent::InFlight)
    }
}

impl<T> Core<T> {
    /// Starts the parts of an answer.
    fn launch_response(
        &self,
        origin: &Addr,
        (tag, format): (Tag, Format),
        buf: MsgBuf,
        exposed: Option<Box<ExposedPayload>>,
        token: T,
    ) -> Result<OpRef, HgError> {
        let receiving = exposed.is_some();
        let is_told = receiving && self.endpoint.carries_extensions(origin);
        if receiving {
            self.counts.resp_extra.bump();
        }
        let to = Destination { origin: origin.clone(), tag, format };
        let answer = OutgoingResponse::new(token, to, is_told, exposed);
        let op = {
            let mut state = self.state();
            let op = match state.admit(Op::Response(answer)) {
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
        let sent = self.endpoint.send_expected(op.part(Role::Send), origin, tag, buf);
        let Err(Refused { error, buf }) = sent else { return Ok(op) };
        if self.sends_otherwise(op, &error, buf) {
            return Ok(op);
        }
        let withdrawn = self.withdraw_answer(op, false, error);
        self.endpoint.cancel(op.part(Role::Ack));
        withdrawn
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
        let mut error = HgError::from(error);
        if let Some(Op::Response(answer)) = state.ops.get_mut(op) {
            let (token, met) = answer.withdraw(not_receiving);
            error = met.unwrap_or(error);
            if token.is_some() {
                state.tokens -= 1;
            }
            let (_, gone) = state.settle(op);
            drop(state);
            drop((token, gone));
        }
        Err(error)
    }
}
