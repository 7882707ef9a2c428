//! Progress and trigger: from a completion of the network to the next step of its operation, and to
//! a call of the sink.
//!
//! [`Core::poll`] takes one completion after the other from the network, lets the operation that it
//! belongs to make its next step, and calls the [`Sink`] when that ends something. No lock of this
//! layer is held while the sink runs, so it may start and cancel operations.
//!
//! [`Core::progress`] and [`Core::trigger`] do the same in two steps: the first only collects, the
//! second acts.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use na::{Completion, MsgBuf};
use prim::sync::lock;

use crate::base::log::log;
use crate::core::send::NOT_SENT;
use crate::core::state::Op;
use crate::ops::{Event, IncomingRequest, Role, has_token};
use crate::{Core, HgError, OpRef, Sink};

impl<T> Core<T> {
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
        done += self.endpoint.poll(budget, &mut |found| self.act_and_tell(found, sink))?;
        if self.has_events.load(Ordering::Relaxed) {
            done += self.deliver_queued(sink);
        }
        Ok(done)
    }

    /// Takes the next step of the operation that `completion` belongs to. Events that every call
    /// has go straight to the sink.
    #[inline]
    fn act_and_tell<S: Sink<T> + ?Sized>(self: &Arc<Self>, completion: Completion, sink: &mut S) {
        let event = match completion {
            Completion::Recv { op, buf, result: Ok(arrival) } => match OpRef::parse(op) {
                (_, Some(Role::Request)) => {
                    self.on_request(buf, arrival, |parts| sink.request_parts(self, parts))
                }
                (op, Some(Role::Response)) => {
                    self.on_response(op, buf, arrival, |token, result| sink.response(token, result))
                }
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
        self.hand_up(incoming, |parts| sink.request_parts(self, parts));
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

    /// Returns whether [`poll`](Self::poll) might find something now; for callers that poll without
    /// a break. See [`Endpoint::may_find`](na::Endpoint::may_find).
    #[inline]
    pub fn may_find(&self) -> bool {
        self.has_arrived.load(Ordering::Relaxed)
            || self.has_events.load(Ordering::Relaxed)
            || self.endpoint.may_find()
    }
}

// Progress and trigger, each by itself.

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

    fn take_arrived(&self) -> VecDeque<Completion> {
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

// Steps that few calls have.

impl<T> Core<T> {
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
            (Some(Role::Response), Err(error)) => self.on_response_failed(op, error),
            (Some(Role::Request), Err(error)) => {
                let multi = self.large.is_some();
                self.lose_receives(|receives| receives.ended(multi));
                if !matches!(error, na::Error::Closed | na::Error::Canceled) {
                    log!(self.options.log, WARN, %error, "a receive for requests failed");
                }
                None
            }
            (role, _) => unexpected(role),
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

    /// The network has not sent a request or response.
    #[cold]
    fn on_not_sent(&self, op: OpRef, error: na::Error, buf: MsgBuf) -> Option<Event<T>> {
        if self.sends_otherwise(op, &error, buf) {
            return None;
        }
        if matches!(error, na::Error::TooLong { .. }) {
            self.refuse_too_long(op);
        }
        self.on_sent(op, Err(error))
    }

    /// The send of a request or response ended.
    fn on_sent(&self, op: OpRef, result: Result<(), na::Error>) -> Option<Event<T>> {
        let mut state = self.state();
        // Nobody will answer what was not sent.
        let in_vain = match state.ops.get_mut(op)? {
            Op::Call(forward) => {
                let failed = result.as_ref().err().filter(|_| self.may_have_asked()).cloned();
                let in_vain = forward.sent(result);
                if self.may_have_asked() && forward.may_go_on() {
                    drop(state);
                    return self.go_on(op);
                }
                if let Some(error) = &failed {
                    self.forget_gone(error);
                }
                in_vain
            }
            Op::Response(respond) => respond.sent(result),
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
            Op::Call(forward) => forward.acknowledged(result.map(drop)),
            Op::Response(respond) => respond.acknowledged(result),
            _ => {}
        }
        self.settle(state, op)
    }
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
