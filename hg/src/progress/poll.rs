//! Progress and trigger: from a completion of the network to a call of the sink.
//!
//! [`Core::poll`] takes one completion after the other from the network, lets the operation that it
//! belongs to make its next step, and calls the [`Sink`] when that ends something. No lock of this
//! layer is held while the sink runs, so it may start and cancel operations.
//!
//! [`Core::progress`] and [`Core::trigger`] do the same in two steps: the first only collects, the
//! second acts.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, TryLockError};
use std::time::{Duration, Instant};

use na::{Addr, Arrival, Completion, MsgBuf, Tag};

use crate::base::clock;
use crate::base::log::log;
use crate::core::context::{Core, Op};
use crate::memory::buffers::Payload;
use crate::ops::slab::{OpRef, Role, target_of};
use crate::origin::ask_build::QUESTION;
use crate::overflow::fetch::Ack;
use crate::requests::handle::RequestParts;
use crate::requests::raw_request::{RawRequest, Reply};
use crate::wire::header::RequestHeader;
use crate::wire::{self, Body};
use crate::{
    CallKey, Extension, HgError, RequestHandle, Response, ReturnCode, TraceParent, WireError,
};
use prim::sync::lock;

/// Polls by one context on behalf of those that sleep, before it returns.
const ROUNDS_MAX: usize = 16;

/// The receiver of events: operations that end, and requests that arrive. It is called by
/// [`Core::poll`] and [`Core::trigger`], and must not call them in turn.
///
/// Counterpart: the callbacks of `HG_Trigger`.
pub trait Sink<T> {
    /// A request arrived, with all of its arguments.
    fn request(&mut self, request: RequestHandle<T>);
    /// A request arrived, for a sink that has counts of the core and of origins' addresses anyhow
    /// and wants no other ones. The sink takes over the duty to answer. Default: passes a handle to
    /// [`request`](Self::request).
    fn request_parts(&mut self, core: &Arc<Core<T>>, parts: RequestParts) {
        self.request(parts.into_handle(core));
    }
    /// A call ended. A one-way call ends with an empty response.
    fn response(&mut self, token: T, result: Result<Response, HgError>);
    /// An answer was sent, and fetched if it had overflowed. If it had, origins of ours tell when
    /// it was not read: [`HgError::GivenUp`], [`HgError::Unread`].
    fn responded(&mut self, token: T, result: Result<(), HgError>);
    /// The origin of a request has given it up: it does not wait for the answer any more. Told also
    /// of requests that were answered meanwhile, or never came. Default: nothing.
    fn canceled(&mut self, origin: &Addr, call: CallKey) {
        let _ = (origin, call);
    }
    /// The origin of a request could not read its answer, which was damaged on the way: its call
    /// has failed. Only our own peers say so, and one that means harm may say it of any call.
    /// Counted ([`Counters::resp_unread`](crate::Counters)). Default: nothing.
    fn answer_unread(&mut self, origin: &Addr, call: CallKey) {
        let _ = (origin, call);
    }
    /// A peer that was [watched](Core::watch_peer) is gone; it is watched no longer. Default:
    /// nothing.
    fn peer_gone(&mut self, peer: &Addr) {
        let _ = peer;
    }
    /// A bulk transfer ended: bytes moved.
    fn bulk(&mut self, token: T, result: Result<u64, HgError>);
}

/// An event that is to be told to the sink.
#[derive(Debug)]
pub(crate) enum Event<T> {
    Request(IncomingRequest),
    Response { token: T, result: Result<Response, HgError> },
    Responded { token: T, result: Result<(), HgError> },
    Bulk { token: T, result: Result<u64, HgError> },
    Canceled { origin: Addr, call: CallKey },
    Unread { origin: Addr, call: CallKey },
    PeerGone(Addr),
}

/// A request that arrived.
#[derive(Debug)]
pub(crate) struct IncomingRequest {
    pub(crate) header: RequestHeader,
    pub(crate) origin: Addr,
    pub(crate) reply: Reply,
    pub(crate) payload: Payload,
    /// It counts against the requests that may be held.
    pub(crate) held: bool,
    /// It does not yet.
    pub(crate) uncounted: bool,
    pub(crate) beside: Option<Box<RequestExtension>>,
}

/// The fields that the origin has sent beside the header, if any.
#[derive(Debug)]
pub(crate) struct RequestExtension {
    /// When the origin gives up.
    pub(crate) deadline: Option<Instant>,
    pub(crate) trace: Option<TraceParent>,
    /// See [`RawRequest::set_place`].
    pub(crate) place: Option<Box<dyn Any + Send + Sync>>,
}

/// The origin of a request, its tag, and whether it was counted as held already.
type Arrived = (Addr, Tag, bool);

impl IncomingRequest {
    /// One whose arguments are in the message.
    #[inline(always)]
    fn here(header: RequestHeader, (origin, tag, counted): Arrived, buf: MsgBuf) -> Self {
        let payload = Payload::Message(buf, header.payload_at());
        let reply = Reply::Network(tag);
        let beside = None;
        Self { header, origin, reply, payload, held: true, uncounted: !counted, beside }
    }
}

impl<T> Core<T> {
    /// Collects at most `budget` completions of the network; returns how many.
    ///
    /// # Errors
    ///
    /// When the endpoint itself can no longer work; what it had completed was collected.
    ///
    /// Counterpart: `HG_Event_progress`.
    pub fn progress(&self, budget: usize) -> Result<usize, HgError> {
        if self.class.is_several() {
            return self.take_turn(budget, &mut |completion| self.hand_over(self, completion));
        }
        let mut arrived = lock(&self.arrived);
        let polled = self.endpoint.poll(budget, &mut |completion| arrived.push_back(completion));
        self.has_arrived.store(!arrived.is_empty(), Ordering::Relaxed);
        Ok(polled?)
    }

    /// Acts on what `progress` collected and on what was queued here, and tells `sink`; returns how
    /// much there was.
    ///
    /// Counterpart: `HG_Event_trigger`.
    pub fn trigger<S: Sink<T> + ?Sized>(self: &Arc<Self>, sink: &mut S) -> usize {
        if !self.has_arrived.load(Ordering::Relaxed) && !self.has_events.load(Ordering::Relaxed) {
            return 0;
        }
        // Taken out first: no lock is held while the sink runs, which may start operations.
        let mut taken = Taken { completions: self.take_arrived(), core: self };
        let mut done = taken.completions.len() + self.deliver_queued(sink);
        while let Some(completion) = taken.completions.pop_front() {
            self.act_and_tell(completion, sink);
        }
        drop(taken);
        if done > 0 {
            done += self.deliver_queued(sink);
        }
        done
    }

    pub(crate) fn take_arrived(&self) -> VecDeque<Completion> {
        let mut arrived = lock(&self.arrived);
        self.has_arrived.store(false, Ordering::Relaxed);
        std::mem::take(&mut *arrived)
    }

    /// Puts back completions that were taken out and not acted on, ahead of those that have arrived
    /// since. If there are none of either, the memory of `left` is used again.
    fn put_arrived_back(&self, mut left: VecDeque<Completion>) {
        let mut arrived = lock(&self.arrived);
        if !left.is_empty() {
            left.append(&mut arrived);
            self.has_arrived.store(true, Ordering::Relaxed);
        }
        if arrived.is_empty() {
            *arrived = left;
        }
    }

    /// Progress and trigger in one: acts on each completion of the network as it comes, at most
    /// `budget` of them, and on what was queued here; returns how much there was. This is the
    /// quickest way: nothing is stored in between. `sink` is called while the endpoint is being
    /// polled, so another thread that comes to poll it waits.
    ///
    /// # Errors
    ///
    /// When the endpoint itself can no longer work; what it had completed was acted on.
    #[inline]
    pub fn poll<S: Sink<T> + ?Sized>(
        self: &Arc<Self>,
        budget: usize,
        sink: &mut S,
    ) -> Result<usize, HgError> {
        let mut done = self.trigger(sink);
        done += if self.class.is_several() {
            self.take_turn(budget, &mut |completion| self.act_and_tell(completion, sink))?
        } else {
            self.endpoint.poll(budget, &mut |completion| self.act_and_tell(completion, sink))?
        };
        if self.has_events.load(Ordering::Relaxed) {
            done += self.deliver_queued(sink);
        }
        Ok(done)
    }

    /// Returns whether [`poll`](Self::poll) might find something now; for callers that poll without
    /// a break. See [`Endpoint::may_find`](na::Endpoint::may_find).
    #[inline]
    pub fn may_find(&self) -> bool {
        self.has_arrived.load(Ordering::Relaxed)
            || self.has_events.load(Ordering::Relaxed)
            || self.endpoint.may_find()
    }

    /// Polls for all contexts, unless another one does: `own` gets what belongs to this one.
    fn take_turn(&self, budget: usize, own: &mut dyn FnMut(Completion)) -> Result<usize, HgError> {
        if let Some(bell) = &self.bell {
            bell.retract(&self.class);
        }
        let turn = match self.class.polling.try_lock() {
            Ok(turn) => turn,
            // A sink has panicked; what it was told is lost, and nothing else.
            Err(TryLockError::Poisoned(turn)) => turn.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(0),
        };
        let mut done = 0;
        for _ in 0..ROUNDS_MAX {
            done +=
                self.endpoint.poll(budget.saturating_sub(done), &mut |completion| match self
                    .owner(&completion)
                {
                    Some(other) => self.hand_over(&other, completion),
                    None => own(completion),
                })?;
            // Our poll has ended the announcement of those who sleep: renew it.
            if !self.class.has_sleepers() || self.endpoint.prepare_wait() {
                return Ok(done);
            }
            if done >= budget {
                break;
            }
        }
        drop(turn);
        // There is more, and we may be long in coming back.
        self.class.wake_one();
        Ok(done)
    }

    /// The context that a completion belongs to; `None`: this one, or one that is gone.
    fn owner(&self, completion: &Completion) -> Option<Arc<Self>> {
        let id = match completion {
            Completion::Recv { op, result, .. } => match (OpRef::parse(*op).1, result) {
                (Some(Role::Request), Ok(arrival)) => {
                    let target = target_of(arrival.tag);
                    if target == self.id {
                        return None;
                    }
                    return self
                        .class
                        .get(target)
                        .or_else(|| self.class.get(0))
                        .filter(|there| there.id != self.id);
                }
                _ => OpRef::context(*op),
            },
            Completion::Send { op, .. } | Completion::Transfer { op, .. } => OpRef::context(*op),
        };
        if id == self.id { None } else { self.class.get(id) }
    }

    /// Delivers what was queued before this call; what the sink queues waits for the next.
    fn deliver_queued<S: Sink<T> + ?Sized>(self: &Arc<Self>, sink: &mut S) -> usize {
        if !self.has_events.load(Ordering::Relaxed) {
            return 0;
        }
        let queued = self.state().events.len();
        for _ in 0..queued {
            let Some(event) = self.next_event() else { break };
            self.deliver(event, sink);
        }
        queued
    }

    fn next_event(&self) -> Option<Event<T>> {
        let mut state = self.state();
        let event = state.events.pop_front();
        self.has_events.store(!state.events.is_empty(), Ordering::Relaxed);
        if event.as_ref().is_some_and(has_token) {
            state.tokens -= 1;
        }
        event
    }

    /// Takes the next step of the operation that `completion` belongs to. Events that every call
    /// has go straight to the sink.
    #[inline]
    fn act_and_tell<S: Sink<T> + ?Sized>(self: &Arc<Self>, completion: Completion, sink: &mut S) {
        let event = match completion {
            Completion::Recv { op, buf, result: Ok(arrival) } => match OpRef::parse(op) {
                (_, Some(Role::Request)) => self.on_request(buf, arrival, sink),
                (_, Some(Role::Counted)) => self.on_counted_request(buf, arrival, sink),
                (op, Some(Role::Reply)) => self.on_reply(op, buf, arrival, sink),
                (op, role) => self.on_other_receive(op, role, buf, Ok(())),
            },
            other => self.act(other),
        };
        if let Some(event) = event {
            self.deliver(event, sink);
        }
    }

    #[inline]
    fn deliver<S: Sink<T> + ?Sized>(self: &Arc<Self>, event: Event<T>, sink: &mut S) {
        match event {
            Event::Request(incoming) => self.deliver_request(incoming, sink),
            Event::Response { token, result } => sink.response(token, result),
            Event::Responded { token, result } => sink.responded(token, result),
            Event::Bulk { token, result } => sink.bulk(token, result),
            Event::Canceled { origin, call } => sink.canceled(&origin, call),
            Event::Unread { origin, call } => sink.answer_unread(&origin, call),
            Event::PeerGone(peer) => sink.peer_gone(&peer),
        }
    }

    /// Hands up a request that was not handed up where it arrived.
    #[inline(never)]
    fn deliver_request<S: Sink<T> + ?Sized>(
        self: &Arc<Self>,
        incoming: IncomingRequest,
        sink: &mut S,
    ) {
        self.hand_up(incoming, sink);
    }

    /// Hands a request up, if its RPC is served here.
    // Inlined where requests arrive, so that the parts of most are never put together before.
    #[inline(always)]
    fn hand_up<S: Sink<T> + ?Sized>(self: &Arc<Self>, incoming: IncomingRequest, sink: &mut S) {
        let IncomingRequest { header, origin, reply, payload, held, uncounted, beside } = incoming;
        let mut state = self.state();
        let (registration, refusal) = match state.seen.get(&self.class.registry, header.id) {
            None => (None, Some(ReturnCode::NoEntry)),
            Some(there) if !there.serves() => (None, Some(ReturnCode::InvalidArg)),
            Some(there) if there.is_no_response() && !header.no_response => {
                (None, Some(ReturnCode::OpNotSupported))
            }
            Some(there) => (there.has_data().then(|| there.clone()), None),
        };
        let mut may_keep = false;
        let is_crowded;
        if uncounted {
            state.hot.rpc_req_recv += 1;
            if self.is_primary() {
                let more = state.receives.arrived();
                may_keep = state.receives.has_plenty();
                is_crowded = state.receives.is_crowded();
                drop(state);
                self.note_crowd(is_crowded);
                self.post_more(more);
            } else {
                drop(state);
                is_crowded = self.count_arrival();
            }
        } else {
            drop(state);
            is_crowded = held && self.primary().crowded.load(Ordering::Relaxed);
        }
        let payload_bytes = payload.len();
        let answered = header.no_response;
        let request = RawRequest {
            header,
            reply,
            payload,
            payload_bytes,
            held,
            may_keep,
            is_crowded,
            answered,
            beside,
        };
        match refusal {
            None => sink.request_parts(self, RequestParts { origin, request, registration }),
            Some(code) => self.refuse(&origin, request, code),
        }
    }

    #[cold]
    #[inline(never)]
    fn refuse(&self, origin: &Addr, mut request: RawRequest, code: ReturnCode) {
        if request.id() == QUESTION {
            self.state().hot.rpc_req_recv -= 1;
        } else {
            self.counts.not_registered.bump();
        }
        RequestHandle::of(self, origin, &mut request).reject(code);
    }

    /// A receive took a request, which is held from now on.
    /// Returns whether many are.
    pub(crate) fn count_arrival(&self) -> bool {
        let (more, is_crowded) = {
            let receives = &mut self.primary().state().receives;
            (receives.arrived(), receives.is_crowded())
        };
        self.primary().note_crowd(is_crowded);
        self.post_more(more);
        is_crowded
    }

    /// For requests that are handed up later, and by other contexts.
    #[inline]
    fn note_crowd(&self, is_crowded: bool) {
        if self.crowded.load(Ordering::Relaxed) != is_crowded {
            self.crowded.store(is_crowded, Ordering::Relaxed);
        }
    }

    fn count_unless(&self, counted: bool) {
        if !counted {
            self.count_arrival();
        }
    }

    /// As [`act_and_tell`](Self::act_and_tell), for rare events.
    #[inline(never)]
    fn act(&self, completion: Completion) -> Option<Event<T>> {
        match completion {
            Completion::Recv { op, buf, result } => {
                let (op, role) = OpRef::parse(op);
                self.on_other_receive(op, role, buf, result.map(|_| ()))
            }
            Completion::Send { op, buf, result } => match (OpRef::parse(op), result) {
                ((op, Some(Role::Send)), Err(error)) => self.on_not_sent(op, error, buf),
                ((op, role), result) => {
                    self.buffers.put(buf);
                    self.on_send_over(op, role, result)
                }
            },
            Completion::Transfer { op, result } => match OpRef::parse(op) {
                (op, Some(Role::Fetch)) => self.on_fetched(op, result),
                (op, Some(Role::Piece(piece))) => self.on_piece(op, piece, result),
                (_, role) => unexpected(role),
            },
        }
    }

    /// A receive ended that is no request and no response.
    #[inline(never)]
    fn on_other_receive(
        &self,
        op: OpRef,
        role: Option<Role>,
        buf: MsgBuf,
        result: Result<(), na::Error>,
    ) -> Option<Event<T>> {
        let said = buf.as_slice().first().copied();
        self.buffers.put(buf);
        match (role, result) {
            (Some(Role::Ack), result) => self.on_ack(op, result.map(|()| said)),
            (Some(Role::Watch), result) => self.on_watch(op, result),
            (Some(Role::Reply), Err(error)) => self.on_no_reply(op, error),
            (Some(Role::Request), Err(error)) => {
                self.primary().state().receives.ended(self.large.is_some());
                if !matches!(error, na::Error::Closed | na::Error::Canceled) {
                    log!(self.options.log, WARN, %error, "a receive for requests failed");
                }
                None
            }
            (role, _) => unexpected(role),
        }
    }

    /// A request arrived. It goes up at once, unless its arguments have to be fetched.
    #[inline]
    fn on_request<S: Sink<T> + ?Sized>(
        self: &Arc<Self>,
        buf: MsgBuf,
        arrival: Arrival,
        sink: &mut S,
    ) -> Option<Event<T>> {
        let Arrival { from, tag } = arrival;
        let accept = self.accept;
        match RequestHeader::read_plain(accept, buf.as_slice()) {
            Some(header) => {
                self.hand_up(IncomingRequest::here(header, (from, tag, false), buf), sink);
                None
            }
            None => self.on_other_request((from, tag, false), buf),
        }
    }

    /// A request that another context has handed over.
    #[inline(never)]
    fn on_counted_request<S: Sink<T> + ?Sized>(
        self: &Arc<Self>,
        buf: MsgBuf,
        arrival: Arrival,
        sink: &mut S,
    ) -> Option<Event<T>> {
        let from = (arrival.from, arrival.tag, true);
        match RequestHeader::read_plain(self.accept, buf.as_slice()) {
            Some(header) => {
                self.state().hot.rpc_req_recv += 1;
                self.hand_up(IncomingRequest::here(header, from, buf), sink);
                None
            }
            None => self.on_other_request(from, buf),
        }
    }

    /// Returns what `origin` has said beside the header of a message that has just come.
    fn beside(&self, origin: &Addr, extension: &Extension) -> Option<Box<RequestExtension>> {
        let Extension { remaining, sent, trace, .. } = *extension;
        let deadline = remaining.and_then(|left| {
            let now = Instant::now();
            let waited = sent.map_or(Duration::ZERO, |sent| {
                let now = self.class.clock.nanos(now);
                self.state().origins.waited(clock::name_of(origin), sent, now)
            });
            // A time beyond what the clock can count is none.
            now.checked_add(left.saturating_sub(waited))
        });
        let says_any = deadline.is_some() || trace.is_some();
        says_any.then(|| Box::new(RequestExtension { deadline, trace, place: None }))
    }

    /// As [`on_request`](Self::on_request), whatever the request is.
    #[inline(never)]
    fn on_other_request(&self, (from, tag, counted): Arrived, buf: MsgBuf) -> Option<Event<T>> {
        let accept = self.accept;
        let read = wire::decode_request(accept, buf.as_slice())
            .and_then(|(header, body)| Ok((header, header.read_extension(buf.as_slice())?, body)));
        match read {
            Ok((_, extension, _)) if extension.cancel || extension.unread => {
                self.count_unless(counted);
                self.buffers.put(buf);
                Some(self.on_notice(from, tag, &extension))
            }
            Ok((header, extension, Body::Inline(_))) => {
                let beside = self.beside(&from, &extension);
                if counted {
                    self.state().hot.rpc_req_recv += 1;
                }
                let incoming = IncomingRequest::here(header, (from, tag, counted), buf);
                let incoming = IncomingRequest { beside, ..incoming };
                Some(Event::Request(incoming))
            }
            Ok((header, extension, Body::Overflow(desc))) => {
                self.count_unless(counted);
                self.state().hot.rpc_req_recv += 1;
                self.counts.req_extra.bump();
                let beside = self.beside(&from, &extension);
                let started = self.fetch_request(header, &from, tag, &desc, beside);
                self.buffers.put(buf);
                started.unwrap_or_else(|(error, code)| {
                    self.reject(Some(header), &from, tag, code, &error);
                    None
                })
            }
            Err(error) => {
                self.count_unless(counted);
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

    /// Drops a request that cannot be handed up, and tells its origin if that can be told.
    pub(crate) fn reject(
        &self,
        header: Option<RequestHeader>,
        origin: &Addr,
        tag: Tag,
        code: ReturnCode,
        error: &HgError,
    ) {
        // A peer that sends nothing else must not fill the log.
        if self.counts.malformed(error).is_power_of_two() {
            let log = &self.options.log;
            log!(log, WARN, %origin, %error, "a request cannot be read or fetched; dropped");
        }
        let claim = self.primary().state().receives.released();
        self.request_released(claim, None);
        if let Some(header) = header.filter(|header| !header.no_response) {
            self.send_refusal(origin, tag, code, &header);
        }
    }

    /// Sends a message whose end is not waited for.
    pub(crate) fn send_loose(&self, to: &Addr, tag: Tag, buf: MsgBuf) {
        if self.endpoint.send_expected_now(to, tag, buf.as_slice()) {
            self.buffers.put(buf);
            return;
        }
        let op = OpRef::single(Role::Loose, self.id, self.counts.loose.bump());
        if let Err(refused) = self.endpoint.send_expected(op, to, tag, buf) {
            log!(self.options.log, DEBUG, error = %refused.error, "{NOT_SENT}");
            self.buffers.put(refused.buf);
        }
    }

    /// A send ended, and not because a request or response cannot be sent.
    fn on_send_over(
        &self,
        op: OpRef,
        role: Option<Role>,
        result: Result<(), na::Error>,
    ) -> Option<Event<T>> {
        match role {
            Some(Role::Send) => self.on_sent(op, result),
            Some(Role::Loose) => {
                if let Err(error) = result {
                    log!(self.options.log, DEBUG, %error, "{NOT_SENT}");
                }
                None
            }
            role => unexpected(role),
        }
    }

    /// The send of a request or response ended.
    pub(crate) fn on_sent(&self, op: OpRef, result: Result<(), na::Error>) -> Option<Event<T>> {
        let mut state = self.state();
        // Nobody will answer what was not sent.
        let in_vain = match state.ops.get_mut(op)? {
            Op::Forward(forward) => {
                let has_failed = result.is_err();
                let in_vain = forward.sent(result);
                if self.asks && forward.may_go_on() {
                    drop(state);
                    return self.go_on(op);
                }
                if self.asks && has_failed {
                    self.class.builds.forget();
                }
                in_vain
            }
            Op::Respond(respond) => respond.sent(result),
            _ => None,
        };
        let event = self.settle(state, op);
        if let Some(role) = in_vain {
            self.endpoint.cancel(op.part(role));
        }
        event
    }

    /// The receive of an acknowledgement ended; what it said.
    fn on_ack(&self, op: OpRef, result: Result<Option<u8>, na::Error>) -> Option<Event<T>> {
        let mut state = self.state();
        match state.ops.get_mut(op)? {
            Op::Forward(forward) => forward.acknowledged(result.map(drop)),
            Op::Respond(respond) => respond.acknowledged(result),
            _ => {}
        }
        self.settle(state, op)
    }
}

/// Completions that a trigger acts on; those that are left when the sink panics are not lost.
struct Taken<'a, T> {
    completions: VecDeque<Completion>,
    core: &'a Core<T>,
}

impl<T> Drop for Taken<'_, T> {
    fn drop(&mut self) {
        self.core.put_arrived_back(std::mem::take(&mut self.completions));
    }
}

const NOT_SENT: &str = "an acknowledgement or refusal was not sent";

fn has_token<T>(event: &Event<T>) -> bool {
    !matches!(
        event,
        Event::Request(_) | Event::Canceled { .. } | Event::Unread { .. } | Event::PeerGone(_)
    )
}

/// The network completed an operation as another kind than it was started as.
fn unexpected<T>(role: Option<Role>) -> Option<Event<T>> {
    tracing::error!(
        target: concat!("margo::", module_path!()),
        ?role,
        "the transport completed an operation as another kind; ignored"
    );
    None
}

impl From<&WireError> for ReturnCode {
    fn from(error: &WireError) -> Self {
        match error {
            error if error.is_checksum() => Self::ChecksumError,
            WireError::OverflowTooLong { .. } => Self::MsgSize,
            _ => Self::ProtocolError,
        }
    }
}
