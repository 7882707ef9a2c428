//! Progress and trigger: from a completion of the network to a call of the sink.
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

use na::Completion;
use prim::sync::lock;

use crate::ops::{Event, IncomingRequest, has_token};
use crate::{Core, HgError, Sink};

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

    /// Returns whether [`poll`](Self::poll) might find something now; for callers that poll without
    /// a break. See [`Endpoint::may_find`](na::Endpoint::may_find).
    #[inline]
    pub fn may_find(&self) -> bool {
        self.has_arrived.load(Ordering::Relaxed)
            || self.has_events.load(Ordering::Relaxed)
            || self.endpoint.may_find()
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

    #[inline]
    pub(super) fn deliver<S: Sink<T> + ?Sized>(self: &Arc<Self>, event: Event<T>, sink: &mut S) {
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
