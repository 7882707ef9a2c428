//! A request at its target, from the message to the answer.
//!
//! [`Core::on_request`] reads a message and hands the request up to the sink. The layer above holds
//! it in its parts or as a [`RequestHandle`], and answers once: by [`RequestHandle::respond`], by
//! [`RequestHandle::reject`], or, when it is dropped without either, by an error in its stead, so
//! that no origin waits for ever.
//!
//! The answer of a network request is an expected message under the request's tag. If the result
//! overflowed, the receive of the origin's acknowledgement is posted before the answer is sent, and
//! the result stays exposed until it comes. The answer ends with the outcome that the
//! acknowledgement tells.

use std::borrow::{Borrow, BorrowMut};
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use na::{Addr, Arrival, MsgBuf, Principal, Refused, Tag};

use crate::base::clock;
use crate::core::builds::QUESTION;
use crate::core::state::Op;
use crate::memory::{ExposedPayload, Payload};
use crate::ops::{
    Ack, Destination, Event, IncomingRequest, OutgoingResponse, RequestExtension, ResponsePath,
    Role,
};
use crate::proc::Written;
use crate::wire::Body;
use crate::wire::header::{RequestHeader, ResponseHeader};
use crate::wire::introduction::INTRODUCTION;
use crate::{
    Core, Extension, Format, HgError, OpRef, ProcError, RawRequest, Registration, Response,
    ReturnCode, Writer, wire,
};

impl<T> Core<T> {
    /// A request arrived. It goes up at once, unless its arguments have to be fetched.
    #[inline]
    pub(crate) fn on_request(
        self: &Arc<Self>,
        buf: MsgBuf,
        arrival: Arrival,
        up: impl FnOnce(RequestParts),
    ) -> Option<Event<T>> {
        let Arrival { from, tag } = arrival;
        let accept = self.accept;
        match RequestHeader::read_plain(accept, buf.as_slice()) {
            Some(header) => {
                self.hand_up(IncomingRequest::here(header, (from, tag), buf), up);
                None
            }
            None => self.on_other_request((from, tag), buf),
        }
    }

    /// Hands a request up, if its RPC is served here.
    // Inlined where requests arrive, so that the parts of most are never put together before.
    #[inline(always)]
    pub(crate) fn hand_up(
        self: &Arc<Self>,
        incoming: IncomingRequest,
        up: impl FnOnce(RequestParts),
    ) {
        let IncomingRequest { header, origin, path, payload, held, uncounted, beside } = incoming;
        let mut state = self.state();
        let (registration, refusal) = match state.seen.get(&self.class.registry, header.id) {
            None => (None, Some(ReturnCode::NoEntry)),
            Some(there) if !there.serves() => (None, Some(ReturnCode::InvalidArg)),
            Some(there) if there.is_no_response() && !header.no_response => {
                (None, Some(ReturnCode::OpNotSupported))
            }
            Some(there) if there.has_data() => (state.seen.take_last(), None),
            Some(_) => (None, None),
        };
        let mut may_keep = false;
        let is_crowded;
        if uncounted {
            state.hot.rpc_req_recv += 1;
            let more = self.arrived(&mut state.receives);
            may_keep = state.receives.has_plenty();
            is_crowded = state.receives.is_crowded();
            drop(state);
            self.post_more(more);
        } else {
            is_crowded = held && state.receives.is_crowded();
            drop(state);
        }
        let payload_bytes = payload.len();
        let answered = header.no_response;
        let request = RawRequest {
            header,
            path,
            payload,
            payload_bytes,
            held,
            may_keep,
            is_crowded,
            answered,
            beside,
        };
        match refusal {
            None => up(RequestParts { origin, request, registration }),
            Some(code) => self.refuse(&origin, request, code),
        }
    }
}

/// A [`RequestHandle`] in its parts.
///
/// Dropping them answers nothing, and the origin waits.
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
/// # let endpoint = na::open("na+sim://doc-request-parts/a", &na::OpenOptions::listening(true))?;
/// # let core = Core::<u32>::new(endpoint, HgOptions::default())?;
/// # let own = core.self_addr();
/// # let id = core.register(Registration::margo("sum", ProviderId::DEFAULT))?;
/// # core.forward(&own, id, ForwardOptions::default(), |out| out.put(b"1 2"), 7)
/// #     .map_err(|refused| refused.0)?;
/// # core.poll(16, &mut notes)?;
/// # let request = notes.requests.pop().ok_or("no request")?;
/// let (core, parts) = request.into_parts();
/// assert_eq!(parts.request.payload(), b"1 2");
/// parts.into_handle(&core).reject(ReturnCode::Busy); // or another answer
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "the origin waits for an answer"]
pub struct RequestParts {
    /// The peer that sent the request. Bulk handles among the arguments belong to this peer.
    pub origin: Addr,
    /// The request itself, and the duty to answer it.
    pub request: RawRequest,
    /// The registration of the RPC, if it has data.
    pub registration: Option<Arc<Registration>>,
}

/// A request that arrived, with all of its arguments. Its contents are read through [`RawRequest`].
///
/// It owns a count of its core and of its origin's address. A caller that has both anyhow may keep
/// the [`RawRequest`] instead, and lend them and it for the answer.
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
/// # let endpoint = na::open("na+sim://doc-request-handle/a", &na::OpenOptions::listening(true))?;
/// # let core = Core::<u32>::new(endpoint, HgOptions::default())?;
/// # let own = core.self_addr();
/// # let id = core.register(Registration::margo("sum", ProviderId::DEFAULT))?;
/// # core.forward(&own, id, ForwardOptions::default(), |out| out.put(b"1 2"), 7)
/// #     .map_err(|refused| refused.0)?;
/// # core.poll(16, &mut notes)?;
/// # let request = notes.requests.pop().ok_or("no request")?;
/// assert_eq!((request.id(), request.origin()), (id, &own));
/// assert_eq!(request.payload(), b"1 2");
/// request.reject(ReturnCode::Permission);
/// while notes.ended.is_empty() {
///     core.poll(16, &mut notes)?;
/// }
/// assert!(matches!(notes.ended[0], Err(HgError::Remote(ReturnCode::Permission))));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Counterpart: `hg_handle_t` at the target.
pub struct RequestHandle<T, C = Arc<Core<T>>, O = Addr, R = RawRequest>
where
    C: Deref<Target = Core<T>>,
    O: Borrow<Addr>,
    R: BorrowMut<RawRequest>,
{
    core: C,
    origin: O,
    raw: R,
    registration: Option<Arc<Registration>>,
}

/// A [`RequestHandle`] for a caller that has all of its parts and keeps them.
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
/// # let endpoint = na::open("na+sim://doc-lent-request/a", &na::OpenOptions::listening(true))?;
/// # let core = Core::<u32>::new(endpoint, HgOptions::default())?;
/// # let own = core.self_addr();
/// # let id = core.register(Registration::margo("sum", ProviderId::DEFAULT))?;
/// # core.forward(&own, id, ForwardOptions::default(), |out| out.put(b"1 2"), 7)
/// #     .map_err(|refused| refused.0)?;
/// # core.poll(16, &mut notes)?;
/// # let request = notes.requests.pop().ok_or("no request")?;
/// let (core, mut parts) = request.into_parts();
/// let lent = LentRequest::of(&core, &parts.origin, &mut parts.request);
/// let sent = lent.respond(|out| out.put(b"3"), 8).map_err(|refused| refused.0)?;
/// assert!(matches!(sent, Sent::Done(8)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type LentRequest<'a, T> = RequestHandle<T, &'a Core<T>, &'a Addr, &'a mut RawRequest>;

impl RequestParts {
    /// Puts them together. `core` is the one that the request came by.
    pub fn into_handle<T>(self, core: &Arc<Core<T>>) -> RequestHandle<T> {
        let Self { origin, request, registration } = self;
        RequestHandle { core: core.clone(), origin, raw: request, registration }
    }
}

impl<T> RequestHandle<T> {
    /// The core that it came by, and the rest.
    pub fn into_parts(mut self) -> (Arc<Core<T>>, RequestParts) {
        let (origin, request) = (self.origin.clone(), self.raw.take());
        let registration = self.registration.take();
        (self.core.clone(), RequestParts { origin, request, registration })
    }
}

impl<T, C: Deref<Target = Core<T>>, O: Borrow<Addr>, R: BorrowMut<RawRequest>>
    RequestHandle<T, C, O, R>
{
    /// Makes a handle of parts, which may be lent to it for the answer.
    #[inline]
    pub fn of(core: C, origin: O, request: R) -> Self {
        Self { core, origin, raw: request, registration: None }
    }

    /// Returns the peer that sent the request. Bulk handles among the arguments belong to this
    /// peer.
    pub fn origin(&self) -> &Addr {
        self.origin.borrow()
    }

    /// The number of the shard by which it came. Counterpart: `HG_Get_info`.
    pub fn shard(&self) -> u8 {
        self.core.id
    }

    /// Returns the data that the RPC was registered with when the request was handed up, if it is
    /// of type `D`. It is also there when the RPC was replaced or deregistered since.
    ///
    /// Counterpart: `HG_Registered_data`.
    pub fn data<D: std::any::Any>(&self) -> Option<&D> {
        self.registration.as_ref()?.data_as()
    }

    /// Returns the registration of the RPC, with its data, name and number, if it was registered
    /// with data.
    pub fn registration(&self) -> Option<&Arc<Registration>> {
        self.registration.as_ref()
    }

    /// Reads the arguments. With [`HgOptions::release_input_early`](crate::HgOptions) this can be
    /// done once: the payload is released afterwards.
    ///
    /// Counterpart: `HG_Get_input`.
    pub fn input<V>(&mut self, read: impl FnOnce(&[u8]) -> V) -> V {
        let result = read(self.raw.borrow().payload());
        if self.core.options.release_input_early {
            self.release_payload();
        }
        result
    }

    /// See [`RawRequest::payload_was_read`].
    pub fn payload_was_read(&mut self) {
        self.raw.borrow_mut().payload_was_read(&self.core);
    }

    /// Gives the receive buffer back before the request is answered, so that a long-running handler
    /// does not hold one.
    ///
    /// Counterpart: `HG_Release_input_buf`.
    pub fn release_payload(&mut self) {
        self.raw.borrow_mut().release_payload(&self.core);
    }

    /// Answers: what `encode` writes follows Mercury's headers. If the answer is not over at once,
    /// `token` comes back through [`Sink::responded`](crate::Sink::responded); see [`Sent`].
    ///
    /// # Errors
    ///
    /// [`HgError::NoResponse`] if the origin wants no response. With [`HgError::Proc`] and
    /// [`HgError::Unfetched`] the request comes back, still unanswered; with others it is gone, and
    /// the origin is told if it can be. `token` is dropped, and does not come back.
    ///
    /// Counterpart: `HG_Respond`.
    pub fn respond(
        mut self,
        encode: impl FnOnce(&mut Writer) -> Result<(), ProcError>,
        token: T,
    ) -> Result<Sent<T>, Box<(HgError, Option<Self>)>> {
        let raw = self.raw.borrow_mut();
        match raw.respond(&self.core, self.origin.borrow(), encode, token) {
            Ok(sent) => Ok(sent),
            Err(error @ (HgError::Proc(_) | HgError::Unfetched { .. })) => {
                Err(Box::new((error, Some(self))))
            }
            // If the origin can be told at all, it is told when this is dropped.
            Err(error) => Err(Box::new((error, None))),
        }
    }

    /// Answers in Mercury's header alone that the request was not taken: the origin gets
    /// [`HgError::Remote`]. Nothing is sent to an origin that wants no response.
    pub fn reject(mut self, code: ReturnCode) {
        self.raw.borrow_mut().answer_with_code(&self.core, self.origin.borrow(), code);
    }
}

/// The state of an answer that was given.
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
/// # let endpoint = na::open("na+sim://doc-sent/a", &na::OpenOptions::listening(true))?;
/// # let core = Core::<u32>::new(endpoint, HgOptions::default())?;
/// # let own = core.self_addr();
/// # let id = core.register(Registration::margo("sum", ProviderId::DEFAULT))?;
/// # core.forward(&own, id, ForwardOptions::default(), |out| out.put(b"1 2"), 7)
/// #     .map_err(|refused| refused.0)?;
/// # core.poll(16, &mut notes)?;
/// # let request = notes.requests.pop().ok_or("no request")?;
/// match request.respond(|out| out.put(b"3"), 8).map_err(|refused| refused.0)? {
///     Sent::Done(token) => assert_eq!(token, 8),
///     Sent::InFlight(answer) => core.cancel(answer), // if it takes too long
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "an answer that is over gives its token back here, and not through the sink"]
pub enum Sent<T> {
    /// It was sent, or handed over to ourselves. The sink is not told.
    Done(T),
    /// The end is told to the sink; until then it can be canceled.
    InFlight(OpRef),
}

impl<T, C: Deref<Target = Core<T>>, O: Borrow<Addr>, R: BorrowMut<RawRequest>> Deref
    for RequestHandle<T, C, O, R>
{
    type Target = RawRequest;

    fn deref(&self) -> &RawRequest {
        self.raw.borrow()
    }
}

impl<T, C: Deref<Target = Core<T>>, O: Borrow<Addr>, R: BorrowMut<RawRequest>> Drop
    for RequestHandle<T, C, O, R>
{
    #[inline]
    fn drop(&mut self) {
        self.raw.borrow_mut().end(&self.core, self.origin.borrow());
    }
}

impl<T, C: Deref<Target = Core<T>>, O: Borrow<Addr>, R: BorrowMut<RawRequest>> fmt::Debug
    for RequestHandle<T, C, O, R>
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RequestHandle({} from {})", self.id(), self.origin())
    }
}

/// The payload of a request that was taken out of it, see [`RawRequest::take_payload`]. Dropped, it
/// frees its memory; [`give_back`](Self::give_back) keeps that for other requests.
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
/// # let endpoint = na::open("na+sim://doc-taken/a", &na::OpenOptions::listening(true))?;
/// # let core = Core::<u32>::new(endpoint, HgOptions::default())?;
/// # let own = core.self_addr();
/// # let id = core.register(Registration::margo("sum", ProviderId::DEFAULT))?;
/// # core.forward(&own, id, ForwardOptions::default(), |out| out.put(b"1 2"), 7)
/// #     .map_err(|refused| refused.0)?;
/// # core.poll(16, &mut notes)?;
/// # let request = notes.requests.pop().ok_or("no request")?;
/// let (core, mut parts) = request.into_parts();
/// let taken = parts.request.take_payload(&core);
/// parts.into_handle(&core).reject(ReturnCode::Busy); // or another answer
/// assert_eq!(taken.as_slice(), b"1 2", "also now");
/// taken.give_back(&core);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct TakenPayload(Payload);

impl TakenPayload {
    /// The bytes.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        self.0.as_slice()
    }

    /// Gives the memory to `core`, for requests to come.
    #[inline]
    pub fn give_back<T>(mut self, core: &Core<T>) {
        if let Some(buf) = self.0.take_buf() {
            core.buffers.put(buf);
        }
    }
}

impl RawRequest {
    /// Encodes and sends; the request is answered unless this fails.
    #[inline]
    fn respond<T>(
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

    /// The payload is no longer looked at. Its buffer goes back to `core`, which the request came
    /// by: with the answer or, with
    /// [`release_input_early`](crate::HgOptions::release_input_early) and if many are held compared
    /// with those that wait for requests, at once.
    pub fn payload_was_read<T>(&mut self, core: &Core<T>) {
        if core.options.release_input_early && !self.may_keep {
            self.release_payload(core);
        }
    }

    /// Takes the payload out, to be looked at while the request is answered, and afterwards. To
    /// `core`, which the request came by, it is as good as read: see
    /// [`payload_was_read`](Self::payload_was_read). Arguments that were fetched count no more
    /// among those that it bounds in sum.
    #[inline]
    pub fn take_payload<T>(&mut self, core: &Core<T>) -> TakenPayload {
        let taken = std::mem::replace(&mut self.payload, Payload::None);
        if let Payload::Overflow(bytes) = &taken
            && self.held
        {
            core.class.held.release(bytes.len() as u64);
        }
        self.payload_was_read(core);
        TakenPayload(taken)
    }

    fn release_payload<T>(&mut self, core: &Core<T>) {
        self.done_with(core, false);
    }

    /// The request was let go of.
    #[inline]
    fn end<T>(&mut self, core: &Core<T>, origin: &Addr) {
        if self.held || !matches!(self.payload, Payload::None) {
            self.release_payload(core);
        }
        if !self.answered {
            self.answer_with_code(core, origin, ReturnCode::OtherError);
        }
    }

    fn answer_with_code<T>(&mut self, core: &Core<T>, origin: &Addr, code: ReturnCode) {
        if std::mem::replace(&mut self.answered, true) {
            return;
        }
        match self.path {
            ResponsePath::Network(tag) => core.send_refusal(origin, tag, code, &self.header),
            ResponsePath::Local(op) => core.answer_local(op, Err(HgError::Remote(code))),
            ResponsePath::None => {}
        }
    }
}

impl<T> Core<T> {
    /// Starts the parts of an answer that was not sent at once.
    #[inline(never)]
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

// Requests that few origins send.

impl<T> Core<T> {
    /// As [`on_request`](Self::on_request), whatever the request is.
    #[inline(never)]
    fn on_other_request(&self, (from, tag): (Addr, Tag), buf: MsgBuf) -> Option<Event<T>> {
        let accept = self.accept;
        let read = wire::decode_request(accept, buf.as_slice())
            .and_then(|(header, body)| Ok((header, header.read_extension(buf.as_slice())?, body)));
        match read {
            Ok((_, extension, _)) if extension.cancel || extension.unread => {
                self.count_arrival();
                self.buffers.put(buf);
                Some(self.on_notice(from, tag, &extension))
            }
            Ok((header, extension, body)) => {
                let proven = self.proven_by(&from, &header, &extension, buf.as_slice());
                let proven = match proven {
                    Ok(proven) => proven,
                    Err(code) => {
                        self.count_arrival();
                        self.buffers.put(buf);
                        self.refuse_proof(&from, tag, &header, code);
                        return None;
                    }
                };
                let beside = self.beside(&from, extension, proven);
                let Body::Overflow(desc) = body else {
                    let incoming = IncomingRequest::here(header, (from, tag), buf);
                    return Some(Event::Request(IncomingRequest { beside, ..incoming }));
                };
                self.count_arrival();
                self.state().hot.rpc_req_recv += 1;
                self.counts.req_extra.bump();
                let request = IncomingRequest {
                    header,
                    origin: from,
                    path: ResponsePath::Network(tag),
                    payload: Payload::None,
                    held: true,
                    uncounted: false,
                    beside,
                };
                let event = self.fetch_request(request, tag, &desc);
                self.buffers.put(buf);
                event
            }
            Err(error) => {
                self.count_arrival();
                let header = RequestHeader::to_answer(accept, buf.as_slice(), &error);
                self.buffers.put(buf);
                if header.is_some_and(|header| header.no_response && header.more_data) {
                    // Its origin keeps the arguments until it is told.
                    self.send_ack(&from, tag, Ack::Done);
                }
                self.reject(header, &from, tag, ReturnCode::from(&error), &error.into());
                None
            }
        }
    }

    /// Returns what `origin` has said beside the header of a message that has just come.
    fn beside(
        &self,
        origin: &Addr,
        extension: Extension,
        proven: Option<Principal>,
    ) -> Option<Box<RequestExtension>> {
        let Extension { remaining, sent, trace, own, on_behalf_of, .. } = extension;
        let deadline = remaining.and_then(|left| {
            let now = Instant::now();
            let waited = sent.map_or(Duration::ZERO, |sent| {
                let now = self.class.clock.nanos(now);
                self.state().origins.waited(clock::name_of(origin), sent, now)
            });
            // A time beyond what the clock can count is none.
            now.checked_add(left.saturating_sub(waited))
        });
        let is_own = own.is_some_and(|own| self.class.is_own(&own));
        let says_any = deadline.is_some()
            || trace.is_some()
            || is_own
            || proven.is_some()
            || on_behalf_of.is_some();
        says_any.then(|| {
            let mut beside = RequestExtension::new(deadline, trace);
            (beside.is_own, beside.proven) = (is_own, proven);
            beside.on_behalf_of = on_behalf_of;
            beside
        })
    }

    #[cold]
    #[inline(never)]
    fn refuse(&self, origin: &Addr, mut request: RawRequest, code: ReturnCode) {
        let code = match request.id() {
            QUESTION => {
                self.state().hot.rpc_req_recv -= 1;
                code
            }
            INTRODUCTION => {
                self.state().hot.rpc_req_recv -= 1;
                // One that is answered is not refused below.
                self.answer_introduction(origin, &mut request).err().unwrap_or(code)
            }
            _ => {
                self.counts.not_registered.bump();
                code
            }
        };
        RequestHandle::of(self, origin, &mut request).reject(code);
    }
}
