//! Transfers that go on while their caller does: [`BulkRequest`].
//!
//! The request owns the buffer, because nothing else may touch it meanwhile, and because a borrow
//! could be ended by forgetting the request. It gives the buffer back with the result, with other
//! memory if a peer may still write to the old one. A request that is dropped earlier leaves the
//! buffer with the transfer ([`BulkCall::kept`]), whose end drops it.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use hg::{HgError, OpRef};
use ult::{Eventual, ReadyIn, Selectable};

#[cfg(doc)]
use crate::BulkTransfer;
use crate::bulk::transfer::Plan;
use crate::memory::buffer::assert_may_wait;
use crate::operation::bulk_call::BulkCall;
use crate::operation::canceler::CancelTarget;
use crate::operation::deadline::{Deadline, is_past};
use crate::origin::forward_request::at_once;
use crate::support::why_over::GaveUp;
use crate::{Addr, BulkError, Canceler, Instance, LocalBulk};

/// A bulk transfer in flight, made by [`BulkTransfer::start_pull`] or
/// [`BulkTransfer::start_push`]. Has the buffer
/// until the transfer is over, and gives it back with the result, whether that is good or bad.
///
/// ```
/// # use margo::{Access, Instance};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let instance = Instance::builder("na+sm://").start()?;
/// # let exposed = instance.expose(vec![7; 1000], Access::ReadOnly)?;
/// # let (from, remote) = (instance.self_addr(), exposed.bulk());
/// let buffer = instance.memory().bulk_buffer(1000)?;
/// let request = instance.bulk(&from, remote).start_pull(0, buffer, 0..1000);
/// // … something else …
/// let (result, buffer) = request.wait();
/// result?;
/// assert_eq!(buffer[999], 7);
/// # instance.finalize_and_wait()?;
/// # Ok(())
/// # }
/// ```
///
/// A transfer that does not even start ends at once, with its error. To wait for several transfers,
/// or for transfers and calls: [`ready`](Self::ready). In async code await it.
///
/// Dropping it cancels the transfer and never waits: the buffer is dropped, or goes back to its
/// pool, when the network no longer touches it. To let the transfer go on, [`detach`](Self::detach)
/// it. A request keeps its instance running.
///
/// A child process that was forked off is not told of the end of a transfer that was in flight
/// then, whose buffer stays with it: `test` is `false`, methods that give the request back do so at
/// once, and those that would give the buffer back panic with [`HgError::InParent`]. The parent's
/// transfer goes on.
///
/// Counterpart: `margo_request` of `margo_bulk_itransfer`; Thallium's `async_bulk_op`.
#[must_use = "dropping a request cancels the transfer; use `wait`, or `detach`"]
pub struct BulkRequest<B: LocalBulk + Send + 'static> {
    instance: Instance,
    call: Arc<BulkCall>,
    /// `None`: it was not started, for this reason.
    started: Result<OpRef, Option<BulkError>>,
    peer: Addr,
    /// Some until it is given back or left to the transfer.
    buffer: Option<B>,
    /// The future of the task that awaits it.
    awaited: Option<Box<ReadyIn<Arc<BulkCall>, Outcome>>>,
}

/// The end of a transfer.
type Outcome = Eventual<Result<u64, HgError>>;

/// How a transfer ended, and its buffer.
type Ended<B> = (Result<(), BulkError>, B);

impl Instance {
    pub(crate) fn start_request_of<B: LocalBulk + Send + 'static>(
        &self,
        plan: Plan<'_>,
        buffer: B,
        term: Option<Deadline>,
    ) -> BulkRequest<B> {
        let call = Arc::new(BulkCall::of_part(term, plan.written()));
        let peer = plan.peer.clone();
        let started = match term.filter(|term| term.at <= Instant::now()) {
            Some(Deadline { limit, .. }) => {
                Err(BulkError::TimedOut { peer: peer.to_string(), limit })
            }
            // The buffer is the request's from here on, which keeps to the rule of
            // `start_transfer`.
            None => self.start_transfer(plan, buffer.memory(), &call),
        };
        let started = started.map_err(Some);
        if started.is_err() {
            // What it says is not read.
            call.complete(&self.inner().monitoring, Err(HgError::Canceled));
        }
        if let Ok(op) = started {
            // Nobody may ever look at it.
            call.set_alarm(self.inner(), op);
        }
        let instance = self.clone();
        BulkRequest { instance, call, started, peer, buffer: Some(buffer), awaited: None }
    }
}

impl<B: LocalBulk + Send + 'static> BulkRequest<B> {
    /// Returns whether the transfer is over, so that [`wait`](Self::wait) would not wait. Never
    /// waits.
    ///
    /// Counterpart: `margo_test`.
    #[must_use]
    pub fn test(&self) -> bool {
        if is_past(self.call.due()) {
            self.give_up(GaveUp::TimedOut);
        }
        self.call.done.is_ready()
    }

    /// Waits for the end of the transfer. A ULT suspends, an OS thread parks. A ULT that is
    /// cancelled meanwhile cancels the transfer.
    ///
    /// The result is good, or says why the destination's bytes are not to be relied on:
    /// [`BulkError::LocalRange`] and [`BulkError::Transfer`] as for [`Instance::pull`],
    /// [`BulkError::TimedOut`], [`BulkError::Canceled`].
    ///
    /// # Panics
    ///
    /// In a tasklet, which cannot wait, if the transfer is in flight: there is no buffer to give
    /// back. The transfer is cancelled, as by dropping the request. In a child process that was
    /// forked off while it was in flight.
    ///
    /// Counterpart: `margo_wait`.
    pub fn wait(mut self) -> (Result<(), BulkError>, B) {
        assert_may_wait(self.test());
        self.assert_ends_here();
        self.wait_ready(None);
        self.end()
    }

    /// The result and the buffer, if the transfer is over. Never waits.
    ///
    /// # Errors
    ///
    /// Gives the request back if the transfer is in flight.
    pub fn try_wait(mut self) -> Result<(Result<(), BulkError>, B), Self> {
        if self.test() { Ok(self.end()) } else { Err(self) }
    }

    /// As [`wait`](Self::wait), no longer than until `until`. The transfer goes on if it is not
    /// over then; this is no deadline of the transfer, which [`BulkTransfer::timeout`] gives.
    ///
    /// # Errors
    ///
    /// Gives the request back if the transfer is in flight.
    ///
    /// # Panics
    ///
    /// As `wait`, unless `until` has passed.
    pub fn wait_deadline(mut self, until: Instant) -> Result<(Result<(), BulkError>, B), Self> {
        assert_may_wait(self.test() || until <= Instant::now());
        if self.wait_ready(Some(until)) { Ok(self.end()) } else { Err(self) }
    }

    /// As [`wait_deadline`](Self::wait_deadline), counted from now.
    ///
    /// # Errors
    ///
    /// As there.
    ///
    /// # Panics
    ///
    /// As there.
    pub fn wait_timeout(self, timeout: Duration) -> Result<(Result<(), BulkError>, B), Self> {
        match Instant::now().checked_add(timeout) {
            Some(until) => self.wait_deadline(until),
            None => Ok(self.wait()),
        }
    }

    /// Ends the transfer early: it ends with [`BulkError::Canceled`] as soon as the network no
    /// longer touches the buffer, unless it is over before. Never waits.
    ///
    /// Counterpart: `HG_Bulk_cancel`.
    pub fn cancel(&self) {
        self.give_up(GaveUp::Canceled);
    }

    /// Something with which others can cancel the transfer, while this is waited for or after it
    /// was detached.
    pub fn canceler(&self) -> Canceler {
        let op = *self.started.as_ref().unwrap_or(&OpRef::NONE);
        let what = CancelTarget::Bulk(Arc::downgrade(&self.call));
        Canceler::new(self.instance.inner(), op, what)
    }

    /// Lets the transfer go on by itself; its result is dropped, and its buffer when it is over. It
    /// does not keep the instance running any more. Its deadline stays.
    pub fn detach(mut self) {
        self.leave_buffer();
    }

    /// Returns the object to pass to [`ult::wait_any`]: it is ready when the transfer is over. See
    /// [`ForwardRequest::ready`](crate::ForwardRequest::ready).
    pub fn ready(&self) -> &dyn Selectable {
        if self.is_lost() {
            return at_once();
        }
        &self.call.done
    }

    /// Returns the peer whose memory is at the other side.
    pub fn peer(&self) -> &Addr {
        &self.peer
    }

    fn give_up(&self, why: GaveUp) {
        if let Ok(op) = self.started {
            self.call.give_up(&**self.instance.inner(), op, why);
        }
    }

    /// Returns whether it is in flight in the process from which this one was forked off.
    pub(crate) fn is_lost(&self) -> bool {
        !self.call.done.is_ready() && self.instance.inner().is_forked()
    }

    pub(crate) fn lost(&self) -> BulkError {
        BulkError::Transfer { peer: self.peer.to_string(), source: HgError::InParent }
    }

    /// That waiting for it has an end. If not there is no buffer to give back: of memory that a
    /// device accesses, a child need not have a copy.
    #[track_caller]
    fn assert_ends_here(&self) {
        assert!(!self.is_lost(), "{}", self.lost());
    }

    /// Waits until the transfer is over; `false`: it was not at `until`, or will not be in this
    /// process.
    fn wait_ready(&self, until: Option<Instant>) -> bool {
        if self.is_lost() {
            return false;
        }
        let (inner, done) = (self.instance.inner(), &self.call.done);
        inner.wait_for_end(done, until, || self.call.due(), || self.give_up(GaveUp::TimedOut))
    }

    /// Waits for the end whatever happens: no cancellation point.
    pub(crate) fn wait_fully(&self) {
        self.call.done.wait_ready_fully();
    }

    /// Returns the result of a transfer that is over, with its buffer.
    fn end(&mut self) -> Ended<B> {
        let result = match &mut self.started {
            Ok(_) => self.call.result(&self.peer, self.call.term().map(|term| term.limit)),
            Err(refused) => refused.take().map_or(Ok(()), Err),
        };
        let mut buffer = self.buffer.take().expect("a request is read once");
        buffer.set_aside(self.call.moved());
        (result, buffer)
    }

    fn leave_buffer(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            let mut kept = self.call.kept.lock().unwrap_or_else(PoisonError::into_inner);
            *kept = Some(Box::new(buffer));
        }
    }
}

/// The end of the transfer, and the buffer. May be polled on any executor, and inside of a ULT with
/// [`ult::block_on`]. Dropped before its end it cancels the transfer.
///
/// # Panics
///
/// If it is polled after its end: the buffer is gone. In a child process that was forked off while
/// it was in flight.
impl<B: LocalBulk + Send + Unpin + 'static> Future for BulkRequest<B> {
    type Output = (Result<(), BulkError>, B);

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if !this.test() {
            this.assert_ends_here();
            let call = &this.call;
            let ready = || Box::new(ult::ready_in(call.clone(), |call| &call.done));
            let awaited = this.awaited.get_or_insert_with(ready);
            ready!(Pin::new(&mut **awaited).poll(cx));
        }
        this.awaited = None;
        Poll::Ready(this.end())
    }
}

impl<B: LocalBulk + Send + 'static> Drop for BulkRequest<B> {
    fn drop(&mut self) {
        if self.buffer.is_some() {
            self.cancel();
            // Our count of the call goes next; the last one takes the buffer with it.
            self.leave_buffer();
        }
    }
}

impl<B: LocalBulk + Send + 'static> fmt::Debug for BulkRequest<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BulkRequest")
            .field("peer", &self.peer)
            .field("is_over", &self.call.done.is_ready())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ends_well_after_its_deadline_has_timed_out() {
        let instance = Instance::builder("na+sm://").listen(false).start().unwrap();
        let ended = |limit| {
            let call = BulkCall::with_term(Deadline::of_call(Some(limit), None));
            call.complete(&instance.inner().monitoring, Ok(5));
            call.result(&instance.self_addr(), Some(limit))
        };
        let late = ended(Duration::ZERO);
        assert!(matches!(late, Err(BulkError::TimedOut { limit: Duration::ZERO, .. })), "{late:?}");
        ended(Duration::from_secs(3600)).unwrap();
        instance.finalize_and_wait().unwrap();
    }
}
