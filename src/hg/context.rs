//! Progress and trigger: from a completion of the network to a call of the sink.
//!
//! [`Core::progress`] only collects. [`Core::trigger`] takes one completion after the other, lets
//! the operation that it belongs to make its next step, and calls the [`Sink`] when that ends
//! something. No lock is held while the sink runs, so it may start and cancel operations.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use na::{Addr, Arrival, Completion, MsgBuf, Tag};

use super::buffers::{Payload, lock};
use super::core::{Core, Op};
use super::handle::Reply;
use super::header::RequestHeader;
use super::ops::{OpRef, Role};
use super::wire::{self, Body};
use super::{HgError, RequestHandle, Response, ReturnCode, WireError};

/// Who is told how operations end, and what arrives. Called by [`Core::trigger`].
///
/// Counterpart: the callbacks of `HG_Trigger`.
pub trait Sink<T> {
    /// A request arrived, with all of its arguments.
    fn request(&mut self, request: RequestHandle<T>);
    /// A call ended. A one-way call ends with an empty response.
    fn response(&mut self, token: T, result: Result<Response, HgError>);
    /// An answer was sent, and fetched if it had overflowed.
    fn responded(&mut self, token: T, result: Result<(), HgError>);
    /// A bulk transfer ended: bytes moved.
    fn bulk(&mut self, token: T, result: Result<u64, HgError>);
}

/// What is to be told to the sink.
#[derive(Debug)]
pub(super) enum Event<T> {
    Request(Incoming),
    Response { token: T, result: Result<Response, HgError> },
    Responded { token: T, result: Result<(), HgError> },
    Bulk { token: T, result: Result<u64, HgError> },
}

/// A request that arrived.
#[derive(Debug)]
pub(super) struct Incoming {
    pub(super) header: RequestHeader,
    pub(super) origin: Addr,
    pub(super) reply: Reply,
    pub(super) payload: Payload,
    /// It counts against the requests that may be held.
    pub(super) held: bool,
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
        let mut arrived = lock(&self.arrived);
        Ok(self.endpoint.poll(budget, &mut |completion| arrived.push_back(completion))?)
    }

    /// Acts on what `progress` collected and on what was queued here, and tells `sink`; returns how
    /// much there was.
    ///
    /// Counterpart: `HG_Event_trigger`.
    pub fn trigger(self: &Arc<Self>, sink: &mut dyn Sink<T>) -> usize {
        // Taken out first: no lock is held while the sink runs, which may start operations.
        let mut completions = std::mem::take(&mut *lock(&self.arrived));
        let mut done = completions.len() + self.deliver_queued(sink);
        for completion in completions.drain(..) {
            if let Some(event) = self.act(completion) {
                self.deliver(event, sink);
            }
        }
        if done > 0 {
            // The room is used again.
            let mut arrived = lock(&self.arrived);
            if arrived.is_empty() {
                std::mem::swap(&mut *arrived, &mut completions);
            }
            drop(arrived);
            done += self.deliver_queued(sink);
        }
        done
    }

    /// Delivers what was queued before this call; what the sink queues waits for the next.
    fn deliver_queued(self: &Arc<Self>, sink: &mut dyn Sink<T>) -> usize {
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

    fn deliver(self: &Arc<Self>, event: Event<T>, sink: &mut dyn Sink<T>) {
        match event {
            Event::Request(incoming) => sink.request(RequestHandle::new(self.clone(), incoming)),
            Event::Response { token, result } => sink.response(token, result),
            Event::Responded { token, result } => sink.responded(token, result),
            Event::Bulk { token, result } => sink.bulk(token, result),
        }
    }

    /// The next step of the operation that `completion` belongs to.
    fn act(&self, completion: Completion) -> Option<Event<T>> {
        match completion {
            Completion::Recv { op, buf, result } => match OpRef::parse(op) {
                (_, Some(Role::Request)) => self.on_request(buf, result),
                (op, Some(Role::Reply)) => self.on_reply(op, buf, result),
                (op, Some(Role::Ack)) => {
                    self.buffers.put(buf);
                    self.on_ack(op, result.map(|_| ()))
                }
                (_, role) => unexpected(role),
            },
            Completion::Send { op, buf, result } => {
                self.buffers.put(buf);
                match OpRef::parse(op) {
                    (op, Some(Role::Send)) => self.on_sent(op, result),
                    (_, Some(Role::Loose)) => {
                        if let Err(error) = result {
                            tracing::debug!(%error, "an acknowledgement or refusal was not sent");
                        }
                        None
                    }
                    (_, role) => unexpected(role),
                }
            }
            Completion::Transfer { op, result } => match OpRef::parse(op) {
                (op, Some(Role::Fetch)) => self.on_fetched(op, result),
                (op, Some(Role::Piece(piece))) => self.on_piece(op, piece, result),
                (_, role) => unexpected(role),
            },
        }
    }

    fn on_request(&self, buf: MsgBuf, result: Result<Arrival, na::Error>) -> Option<Event<T>> {
        let Arrival { from, tag } = match result {
            Ok(arrival) => arrival,
            Err(error) => {
                self.receives.failed();
                self.buffers.put(buf);
                if !matches!(error, na::Error::Closed | na::Error::Canceled) {
                    tracing::warn!(%error, "a receive for requests failed");
                }
                return None;
            }
        };
        self.receives.arrived();
        if let Err(error) = self.post_receives() {
            tracing::debug!(%error, "cannot receive further requests");
        }
        let accept = self.options.accept();
        match wire::decode_request(accept, buf.as_slice()) {
            Ok((header, Body::Inline(_))) => {
                self.counts.rpc_req_recv.bump();
                let payload = Payload::Message(buf, header.format.header_bytes());
                Some(Event::Request(Incoming {
                    header,
                    origin: from,
                    reply: Reply::Network(tag),
                    payload,
                    held: true,
                }))
            }
            Ok((header, Body::Overflow(desc))) => {
                self.counts.rpc_req_recv.bump();
                self.counts.req_extra.bump();
                let started = self.fetch_request(header, &from, tag, &desc);
                self.buffers.put(buf);
                started.unwrap_or_else(|(error, code)| {
                    self.reject(Some(header), &from, tag, code, &error);
                    None
                })
            }
            Err(error) => {
                let header = RequestHeader::to_answer(accept, buf.as_slice(), &error);
                self.buffers.put(buf);
                self.reject(header, &from, tag, ReturnCode::from(&error), &error.into());
                None
            }
        }
    }

    /// Drops a request that cannot be handed up, and tells its origin if that can be told.
    pub(super) fn reject(
        &self,
        header: Option<RequestHeader>,
        origin: &Addr,
        tag: Tag,
        code: ReturnCode,
        error: &HgError,
    ) {
        // A peer that sends nothing else must not fill the log.
        if self.counts.malformed(error).is_power_of_two() {
            tracing::warn!(%origin, %error, "a request cannot be read or fetched; dropped");
        }
        self.request_released();
        if let Some(header) = header.filter(|header| !header.no_response) {
            self.send_refusal(origin, tag, code, &header);
        }
    }

    /// Sends a message that nobody waits for.
    pub(super) fn send_loose(&self, to: &Addr, tag: Tag, buf: MsgBuf) {
        let number = self.counts.loose.bump();
        let op = OpRef::single(Role::Loose, number);
        if let Err(refused) = self.endpoint.send_expected(op, to, tag, buf) {
            tracing::debug!(error = %refused.error, "an acknowledgement or refusal was not sent");
            self.buffers.put(refused.buf);
        }
    }

    /// The send of a request or response ended.
    fn on_sent(&self, op: OpRef, result: Result<(), na::Error>) -> Option<Event<T>> {
        let mut state = self.state();
        // Nobody will answer what was not sent.
        let in_vain = match state.ops.get_mut(op)? {
            Op::Forward(forward) => forward.sent(result),
            Op::Respond(respond) => respond.sent(result),
            _ => None,
        };
        let event = self.settle(state, op);
        if let Some(role) = in_vain {
            self.endpoint.cancel(op.part(role));
        }
        event
    }

    /// The receive of an acknowledgement ended.
    fn on_ack(&self, op: OpRef, result: Result<(), na::Error>) -> Option<Event<T>> {
        let mut state = self.state();
        match state.ops.get_mut(op)? {
            Op::Forward(forward) => forward.acknowledged(result),
            Op::Respond(respond) => respond.acknowledged(result),
            _ => {}
        }
        self.settle(state, op)
    }
}

fn has_token<T>(event: &Event<T>) -> bool {
    !matches!(event, Event::Request(_))
}

/// The network completed an operation as another kind than it was started as.
fn unexpected<T>(role: Option<Role>) -> Option<Event<T>> {
    tracing::error!(?role, "the transport completed an operation as another kind; ignored");
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
