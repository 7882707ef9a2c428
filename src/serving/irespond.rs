//! Answers whose end the handler wants to know: [`RespondRequest`], and those that call back.
//!
//! | the handler | |
//! |---|---|
//! | goes on, and never hears of its answer again | [`Handle::respond`], in `handle.rs` |
//! | waits for the end, for so long | [`Handle::respond_timed`] |
//! | goes on, and waits, polls or awaits later | [`Handle::irespond`] |
//! | goes on, and is called back | [`Handle::crespond`] |
//!
//! All answer in the same way (`run_handler.rs`); `pending_response.rs` has the object that they
//! wait for, and how it ends. An answer whose request is dropped or forgotten goes on
//! all the same: there is no other one, and its origin waits for it.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use hg::{HgError, OpRef};
use serde::Serialize;
use ult::{Eventual, ReadyIn, Selectable};

use crate::operation::canceler::CancelTarget;
use crate::operation::deadline::{Deadline, is_past};
use crate::operation::pending_response::{Callback, PendingResponse, Where};
use crate::operation::token::Token;
use crate::origin::callback::Caller;
use crate::origin::forward_request::at_once;
use crate::support::why_over::GaveUp;
use crate::{Addr, Canceler, Handle, Instance, RespondError};

/// An answer on its way, made by [`Handle::irespond`]: wait for its end, look whether it is over,
/// await it, cancel it.
///
/// ```
/// # use margo::{Instance, ProviderHandle, Rpc};
/// # const LIST: Rpc<u32, Vec<u8>> = Rpc::new("list");
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let service = Instance::builder("na+sm://").start()?;
/// # let (sender, ends) = std::sync::mpsc::channel();
/// service.register(LIST, move |handle| {
///     let list = vec![7; 1 << 20];
///     let Ok(answer) = handle.irespond(&list) else { return };
///     // … something else, and then:
///     # let answer_ends = |end| sender.send(end).unwrap_or_default();
///     answer_ends(answer.wait());
/// })?;
/// # let target = ProviderHandle::from(service.self_addr());
/// # assert_eq!(service.forward(LIST, &target, &0)?.len(), 1 << 20);
/// # ends.recv()??;
/// # service.finalize_and_wait()?;
/// # Ok(())
/// # }
/// ```
///
/// Its end is good when an answer that fits into a message was taken by the network, and a longer
/// one was fetched by its origin. Several answers, or answers and whatever else:
/// [`ready`](Self::ready). A request keeps its instance running.
///
/// Dropping it lets the answer go on, as after [`Handle::respond`], and never waits; its deadline
/// stays.
///
/// A child process that was forked off is not told of the end of an answer that was on its way
/// then: it counts as over there, with [`RespondError::Network`] of [`HgError::InParent`]. The
/// parent's answer goes on.
///
/// Counterpart: `margo_request` of `margo_irespond`.
#[must_use = "to answer without looking after the answer, use `respond`"]
pub struct RespondRequest {
    instance: Instance,
    answer: Arc<PendingResponse>,
    /// `None`: it was over at once.
    op: Option<OpRef>,
    about: Where,
    due: Option<Instant>,
    /// The future of the task that awaits it.
    awaited: Option<Box<ReadyIn<Arc<PendingResponse>, Outcome>>>,
}

/// The end of an answer.
type Outcome = Eventual<Result<(), HgError>>;

impl<A, R: Serialize> Handle<A, R> {
    /// Answers, as [`respond`](Self::respond) does, and waits for the end of that, for at most
    /// `limit` from now, encoding included: until the network has taken an answer that fits into a
    /// message, or the origin has fetched a longer one. Then the answer is taken back. A ULT
    /// suspends, an OS thread parks.
    ///
    /// How much time the origin still has is told by [`remaining`](Self::remaining). A ULT that is
    /// cancelled meanwhile leaves the answer on its way. For a wait without a limit use
    /// [`irespond`](Self::irespond) and [`RespondRequest::wait`].
    ///
    /// # Errors
    ///
    /// As `respond`; [`RespondError::TimedOut`]; [`RespondError::Unread`];
    /// [`RespondError::Network`] when the origin is gone or the instance closes meanwhile; in a
    /// tasklet, if it would have to wait, [`RespondError::Tasklet`].
    ///
    /// Counterpart: `margo_respond_timed`, for which zero is no limit, and which does not wait for
    /// a long answer to be fetched.
    pub fn respond_timed(&self, result: &R, limit: Duration) -> Result<(), RespondError> {
        self.irespond_timed(result, limit)?.wait()
    }

    /// Answers, as [`respond`](Self::respond) does, and returns when the result has been encoded:
    /// it is not needed any more. How that ends is told by the [`RespondRequest`]. If the origin
    /// [wants no answer](Self::wants_response), it is over at once.
    ///
    /// # Errors
    ///
    /// As `respond`.
    ///
    /// Counterpart: `margo_irespond`.
    pub fn irespond(&self, result: &R) -> Result<RespondRequest, RespondError> {
        self.start_answer(result, None, None)
    }

    /// As [`irespond`](Self::irespond), with a deadline `limit` from now, encoding included. Then
    /// the answer ends with [`RespondError::TimedOut`], whether or not a caller waits for it, and
    /// the origin cannot fetch it any more.
    ///
    /// # Errors
    ///
    /// As `irespond`.
    ///
    /// Counterpart: `margo_irespond_timed`, for which zero is no limit.
    pub fn irespond_timed(
        &self,
        result: &R,
        limit: Duration,
    ) -> Result<RespondRequest, RespondError> {
        self.start_answer(result, Deadline::of_call(Some(limit), None), None)
    }

    /// As [`irespond`](Self::irespond); when the answer is over, `callback` is called once with how
    /// it ended.
    ///
    /// It runs as a ULT of its own in the default handler pool, so it may wait, make calls, and
    /// take its time. If it panics, that is logged and affects nothing else. It is called on errors
    /// and cancels too, and when the instance shuts down. An answer with a callback keeps its
    /// instance running until it is over.
    ///
    /// The value that is returned can cancel the answer; dropping it does nothing.
    ///
    /// # Errors
    ///
    /// As `irespond`; `callback` is then dropped and not called.
    ///
    /// Counterpart: `margo_crespond`, which runs the callback in the progress loop.
    pub fn crespond<F>(&self, result: &R, callback: F) -> Result<Canceler, RespondError>
    where
        F: FnOnce(Result<(), RespondError>) + Send + 'static,
    {
        self.start_with_callback(result, None, callback)
    }

    /// As [`crespond`](Self::crespond), with a deadline `limit` from now, encoding included. Then
    /// `callback` gets [`RespondError::TimedOut`].
    ///
    /// # Errors
    ///
    /// As `crespond`.
    ///
    /// Counterpart: `margo_crespond_timed`, for which zero is no limit.
    pub fn crespond_timed<F>(
        &self,
        result: &R,
        limit: Duration,
        callback: F,
    ) -> Result<Canceler, RespondError>
    where
        F: FnOnce(Result<(), RespondError>) + Send + 'static,
    {
        self.start_with_callback(result, Deadline::of_call(Some(limit), None), callback)
    }

    fn start_with_callback<F>(
        &self,
        result: &R,
        term: Option<Deadline>,
        callback: F,
    ) -> Result<Canceler, RespondError>
    where
        F: FnOnce(Result<(), RespondError>) + Send + 'static,
    {
        let (instance, about, caller) = (self.instance().clone(), self.about(term), Caller::here());
        let at_end: Callback = Box::new(move |answer: Arc<PendingResponse>| {
            caller.call_back(&instance.clone(), about.rpc, move || {
                let result = answer.result(&about);
                // The instance is not needed any more.
                drop((answer, instance));
                callback(result);
            });
        });
        self.start_answer(result, term, Some(at_end)).map(|request| request.canceler())
    }

    fn start_answer(
        &self,
        result: &R,
        term: Option<Deadline>,
        callback: Option<Callback>,
    ) -> Result<RespondRequest, RespondError> {
        let (instance, reply) = (self.instance(), self.reply());
        let answer = PendingResponse::new(reply.watch.span(), callback);
        let op = reply.answer(result, || Token::Awaited(answer.clone()))?;
        let due = term.map(|term| term.at);
        match (op, due) {
            (None, _) => answer.clone().end(Ok(())),
            // Nobody may ever look at it.
            (Some(op), Some(due)) => answer.set_alarm(instance.inner(), op, due),
            (Some(_), None) => {}
        }
        instance.inner().operation_started(reply.of_shard());
        let (instance, about) = (instance.clone(), self.about(term));
        Ok(RespondRequest { instance, answer, op, about, due, awaited: None })
    }

    fn about(&self, term: Option<Deadline>) -> Where {
        let limit = term.map(|term| term.limit);
        Where { rpc: self.rpc_name(), origin: self.origin().clone(), limit }
    }
}

impl RespondRequest {
    /// Returns whether the answer is over, so that [`wait`](Self::wait) would not wait. Never
    /// waits.
    ///
    /// Counterpart: `margo_test`.
    #[must_use]
    pub fn test(&self) -> bool {
        if is_past(self.due()) {
            self.give_up(GaveUp::TimedOut);
        }
        self.is_settled()
    }

    /// Waits for the end of the answer. A ULT suspends, an OS thread parks. A ULT that is cancelled
    /// meanwhile leaves the answer on its way.
    ///
    /// # Errors
    ///
    /// [`RespondError::Unread`], [`RespondError::Network`], [`RespondError::TimedOut`],
    /// [`RespondError::Canceled`]; in a tasklet, if the answer is not over,
    /// [`RespondError::Tasklet`], and it goes on.
    ///
    /// Counterpart: `margo_wait`.
    pub fn wait(self) -> Result<(), RespondError> {
        self.may_wait(None)?;
        self.wait_ready(None);
        self.result()
    }

    /// How the answer has ended, if it is over. Never waits.
    ///
    /// # Errors
    ///
    /// Gives the request back if the answer is on its way.
    pub fn try_wait(self) -> Result<Result<(), RespondError>, Self> {
        if self.test() { Ok(self.result()) } else { Err(self) }
    }

    /// As [`wait`](Self::wait), no longer than until `until`. The answer goes on if it is not over
    /// then; this is no deadline of the answer, which [`Handle::irespond_timed`] has.
    ///
    /// # Errors
    ///
    /// Gives the request back if the answer is on its way then. In a tasklet, which cannot wait, it
    /// ends as [`wait`](Self::wait) says, unless `until` has passed.
    pub fn wait_deadline(self, until: Instant) -> Result<Result<(), RespondError>, Self> {
        if let Err(error) = self.may_wait(Some(until)) {
            return Ok(Err(error));
        }
        if self.wait_ready(Some(until)) { Ok(self.result()) } else { Err(self) }
    }

    /// As [`wait_deadline`](Self::wait_deadline), counted from now.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn wait_timeout(self, timeout: Duration) -> Result<Result<(), RespondError>, Self> {
        match Instant::now().checked_add(timeout) {
            Some(until) => self.wait_deadline(until),
            None => Ok(self.wait()),
        }
    }

    /// Takes the answer back: it ends with [`RespondError::Canceled`] a moment later, unless it is
    /// over before. The origin cannot fetch it any more, and its call fails. Never waits.
    ///
    /// Counterpart: `HG_Cancel`, which Margo does not wrap.
    pub fn cancel(&self) {
        self.give_up(GaveUp::Canceled);
    }

    /// Something with which others can cancel the answer, while this is waited for or after it was
    /// dropped.
    pub fn canceler(&self) -> Canceler {
        let op = self.op.unwrap_or(OpRef::NONE);
        let what = CancelTarget::Response(Arc::downgrade(&self.answer));
        Canceler::new(self.instance.inner(), op, what)
    }

    /// Returns the object to pass to [`ult::wait_any`]: it is ready when the answer is over. See
    /// [`ForwardRequest::ready`](crate::ForwardRequest::ready).
    pub fn ready(&self) -> &dyn Selectable {
        if !self.answer.done.is_ready() && self.is_forked() {
            return at_once();
        }
        &self.answer.done
    }

    /// The RPC's name.
    pub fn rpc_name(&self) -> &'static str {
        self.about.rpc
    }

    /// Returns the peer that is answered.
    pub fn origin(&self) -> &Addr {
        &self.about.origin
    }

    fn result(&self) -> Result<(), RespondError> {
        self.answer.result(&self.about)
    }

    fn is_forked(&self) -> bool {
        self.instance.inner().is_forked()
    }

    /// Returns whether nothing more is to be waited for: it is over, or its end is not told here.
    fn is_settled(&self) -> bool {
        self.answer.done.is_ready() || self.is_forked()
    }

    /// When it has to be ended, if it has.
    fn due(&self) -> Option<Instant> {
        self.due.filter(|_| !self.answer.is_given_up())
    }

    fn give_up(&self, why: GaveUp) {
        if let Some(op) = self.op {
            self.answer.give_up(&**self.instance.inner(), op, why);
        }
    }

    /// An error in a tasklet, unless the answer is over or this is not to wait for it.
    fn may_wait(&self, until: Option<Instant>) -> Result<(), RespondError> {
        let waits = || !self.test() && until.is_none_or(|until| until > Instant::now());
        if ult::is_tasklet() && waits() {
            return Err(RespondError::Tasklet { rpc: self.about.rpc });
        }
        Ok(())
    }

    /// Waits until the answer is over, or returns at once in a forked child; `false`: it was not at
    /// `until`.
    fn wait_ready(&self, until: Option<Instant>) -> bool {
        if self.is_settled() {
            return true;
        }
        let (inner, done) = (self.instance.inner(), &self.answer.done);
        inner.wait_for_end(done, until, || self.due(), || self.give_up(GaveUp::TimedOut))
    }
}

/// How the answer ends. May be polled on any executor, and inside of a ULT with [`ult::block_on`].
/// Dropped before its end it leaves the answer on its way.
impl Future for RespondRequest {
    type Output = Result<(), RespondError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if !this.is_settled() {
            let answer = &this.answer;
            let ready = || Box::new(ult::ready_in(answer.clone(), |answer| &answer.done));
            let awaited = this.awaited.get_or_insert_with(ready);
            ready!(Pin::new(&mut **awaited).poll(cx));
        }
        this.awaited = None;
        Poll::Ready(this.result())
    }
}

impl fmt::Debug for RespondRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RespondRequest")
            .field("rpc", &self.about.rpc)
            .field("origin", &self.about.origin)
            .field("is_over", &self.answer.done.is_ready())
            .finish_non_exhaustive()
    }
}
