//! Calls that go on while their caller does: [`ForwardRequest`].
//!
//! # States
//!
//! | state | left by |
//! |---|---|
//! | in flight | the answer, an error, a cancel, the deadline |
//! | over, not read | `wait` and the others that return the result |
//!
//! A request that is dropped while it is in flight is cancelled. The end itself is always told by
//! the progress ULT, a moment later.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::LazyLock;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use hg::{ForwardOptions, HgError, OpRef};
use na::shared::{Shared, UninitShared};
use serde::Serialize;
use serde::de::DeserializeOwned;
use ult::{Eventual, ReadyIn, Selectable};

use crate::operation::call::{Call, CallInfo, Outcome, failure};
use crate::operation::deadline::{CallLimits, Deadline, is_past};
use crate::{Canceler, ForwardError, Instance, ProviderHandle, Rpc};

/// A call in flight, made by [`RpcCall::start`](crate::RpcCall::start) or
/// [`RpcCall::start_send`](crate::RpcCall::start_send): wait for its result, look whether it is
/// there, await it, cancel it.
///
/// ```
/// # use margo::{Instance, ProviderHandle, Rpc};
/// # const SUM: Rpc<(i64, i64), i64> = Rpc::new("sum");
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let service = Instance::builder("na+sm://").start()?;
/// # service.register(SUM, |handle| {
/// #     let (a, b) = *handle.args();
/// #     let _ = handle.respond(&(a + b));
/// # })?;
/// # let client = Instance::builder("na+sm://").listen(false).start()?;
/// # let target = ProviderHandle::from(client.lookup(service.self_addr().uri())?);
/// let first = client.rpc(SUM, &target, &(1, 2)).start()?;
/// let second = client.rpc(SUM, &target, &(3, 4)).start()?;
/// // Both are on their way. In any order, or `margo::wait_all` …
/// assert_eq!(second.wait()?, 7);
/// // … and in async code, on any executor:
/// assert_eq!(ult::block_on(first)?, 3);
/// # client.finalize_and_wait()?;
/// # service.finalize_and_wait()?;
/// # Ok(())
/// # }
/// ```
///
/// To wait for several of the same type: [`wait_any`], [`wait_all`]. For different types, or
/// together with channels and eventuals: [`ready`](Self::ready). A request keeps its instance
/// running.
///
/// Dropping it cancels the call, as [`cancel`](Self::cancel) does, and never waits; to let the call
/// go on, [`detach`](Self::detach) it.
///
/// A child process that was forked off is not told of the end of a call that was in flight then: it
/// counts as over there, with [`ForwardError::Network`] of [`HgError::InParent`]. The parent's call
/// goes on.
///
/// Counterpart: `margo_request`; Thallium's `async_response`, which waits when it is dropped.
#[must_use = "dropping a request cancels the call; use `wait`, or `detach`"]
pub struct ForwardRequest<R> {
    flight: Flight,
    rpc: &'static str,
    term: Option<Deadline>,
    /// The future of the task that awaits it.
    awaited: Option<Box<ReadyIn<Shared<Call>, Eventual<Outcome>>>>,
    read: Read<R>,
}

/// Reads the result of a call that is over.
type Read<R> = fn(&Call, &Instance, CallInfo<'_>) -> Result<R, ForwardError>;

/// Cancels its call when it is dropped.
struct Flight {
    instance: Instance,
    call: Shared<Call>,
    op: OpRef,
    to: ProviderHandle,
    is_detached: bool,
}

impl Instance {
    pub(crate) fn start_request<A: Serialize, P, R>(
        &self,
        options: ForwardOptions,
        rpc: Rpc<A, P>,
        to: &ProviderHandle,
        args: &A,
        bounds: CallLimits,
        read: Read<R>,
    ) -> Result<ForwardRequest<R>, ForwardError> {
        let term = bounds.term;
        let call = match bounds {
            CallLimits { term: None, canceled_by: None } => Call::new(),
            bounds => Call::with_extra(bounds, None),
        };
        let (call, token) = UninitShared::new().fill_pair(call);
        let site = CallInfo { rpc: rpc.name(), to, term };
        let op = self.start(options, rpc, site, args, token)?;
        // Nobody may ever look at it.
        Call::set_alarm(&call, self.inner(), op);
        Call::tie(&call, self.inner(), op, to);
        let (instance, to) = (self.clone(), to.clone());
        let flight = Flight { instance, call, op, to, is_detached: false };
        Ok(ForwardRequest { flight, rpc: rpc.name(), term, awaited: None, read })
    }
}

impl Instance {
    /// Waits as [`ult::wait_any`] does, and ends as that does, for objects of which some are ready
    /// by this instance's network ([`ForwardRequest::ready`]). A ULT beside which only the
    /// instance's progress runs on its execution stream polls the network itself for a while
    /// first, as one that waits for a call does: two switches less where an answer comes within
    /// microseconds.
    ///
    /// ```
    /// # use margo::{Instance, ProviderHandle, Rpc};
    /// # const SUM: Rpc<(i64, i64), i64> = Rpc::new("sum");
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let service = Instance::builder("na+sm://").start()?;
    /// # service.register(SUM, |handle| {
    /// #     let (a, b) = *handle.args();
    /// #     let _ = handle.respond(&(a + b));
    /// # })?;
    /// # let client = Instance::builder("na+sm://").listen(false).start()?;
    /// # let target = ProviderHandle::from(client.lookup(service.self_addr().uri())?);
    /// let stop = ult::Eventual::<()>::new();
    /// let request = client.rpc(SUM, &target, &(40, 2)).start()?;
    /// assert_eq!(client.wait_any(&[&stop, request.ready()], None), Some(1));
    /// assert_eq!(request.wait()?, 42);
    /// # client.finalize_and_wait()?;
    /// # service.finalize_and_wait()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn wait_any(
        &self,
        objects: &[&dyn Selectable],
        deadline: Option<Instant>,
    ) -> Option<usize> {
        if !objects.is_empty() && deadline.is_none_or(|deadline| deadline > Instant::now()) {
            self.inner().stand_in(&|| ult::integration::first_ready(objects).is_some());
        }
        ult::wait_any(objects, deadline)
    }
}

pub(super) fn read<R: DeserializeOwned>(
    call: &Call,
    instance: &Instance,
    site: CallInfo<'_>,
) -> Result<R, ForwardError> {
    call.read(instance.reading(), site)
}

impl<R> ForwardRequest<R> {
    /// Returns whether the call is over, so that [`wait`](Self::wait) would not wait. Never waits.
    ///
    /// Counterpart: `margo_test`.
    #[must_use]
    pub fn test(&self) -> bool {
        self.expire();
        self.is_settled()
    }

    /// Ends the call early: it ends with [`ForwardError::Canceled`] a moment later, unless it is
    /// over before. A target of ours is told: it does not start the handler any more, or tells one
    /// that runs ([`Handle::cancel_token`](crate::Handle::cancel_token)). Another one's answer is
    /// dropped. Never waits.
    ///
    /// Counterpart: `HG_Cancel`, which Margo does not wrap, and reports as a timeout in timed
    /// calls.
    pub fn cancel(&self) {
        self.flight.cancel();
    }

    /// Something with which others can cancel the call, while this is waited for or after it was
    /// detached.
    pub fn canceler(&self) -> Canceler {
        let by = self.flight.instance.inner();
        Call::canceler(self.call(), by, self.flight.op, &self.flight.to)
    }

    /// Lets the call go on by itself; its result is dropped. Its deadline stays. It does not keep
    /// the instance running any more.
    pub fn detach(mut self) {
        self.flight.is_detached = true;
    }

    /// As [`detach`](Self::detach), with the call, whose end can be waited for.
    pub(crate) fn detach_to_end(self) -> Shared<Call> {
        let call = self.flight.call.clone();
        self.detach();
        call
    }

    /// Returns the object to pass to [`Instance::wait_any`] or [`ult::wait_any`]: it is ready when
    /// the call is over. Use it to wait for calls of different types, or for calls and channels,
    /// semaphores, eventuals, timers and ULTs:
    ///
    /// ```
    /// # use margo::{Instance, ProviderHandle, Rpc};
    /// # const SUM: Rpc<(i64, i64), i64> = Rpc::new("sum");
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let service = Instance::builder("na+sm://").start()?;
    /// # service.register(SUM, |handle| {
    /// #     let (a, b) = *handle.args();
    /// #     let _ = handle.respond(&(a + b));
    /// # })?;
    /// # let client = Instance::builder("na+sm://").listen(false).start()?;
    /// # let target = ProviderHandle::from(client.lookup(service.self_addr().uri())?);
    /// # let stop = ult::Eventual::<()>::new();
    /// let request = client.rpc(SUM, &target, &(40, 2)).start()?;
    /// match client.wait_any(&[&stop, request.ready()], None) {
    ///     Some(1) => assert_eq!(request.wait()?, 42),
    ///     _ => request.cancel(),
    /// }
    /// # client.finalize_and_wait()?;
    /// # service.finalize_and_wait()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A limit for the whole wait is the second argument. A timer among the
    /// objects is a unit that starts later, `&pool.spawn_after(delay, || {})?`; cancel it when it
    /// is not needed any more ([`ult::TimerHandle::cancel`]).
    pub fn ready(&self) -> &dyn Selectable {
        if self.is_forked() {
            return at_once();
        }
        self.call().done()
    }

    /// The RPC's name.
    pub fn rpc_name(&self) -> &'static str {
        self.rpc
    }

    /// Returns the provider that was called. Counterpart: `margo_request_get_handle`.
    pub fn target(&self) -> &ProviderHandle {
        &self.flight.to
    }

    /// As if its alarm came late.
    #[cfg(test)]
    pub(crate) fn without_alarm(&self) {
        self.call().end_alarm();
    }

    fn call(&self) -> &Shared<Call> {
        &self.flight.call
    }

    fn is_forked(&self) -> bool {
        self.flight.instance.inner().is_forked()
    }

    /// Returns whether nothing more is to be waited for: it is over, or its end is not told here.
    fn is_settled(&self) -> bool {
        self.call().is_over() || self.is_forked()
    }

    /// When it has to be ended, if it has.
    fn due(&self) -> Option<Instant> {
        let term = self.term.filter(|_| !self.call().is_given_up());
        term.map(|term| term.at)
    }

    /// Ends the call if its deadline has passed.
    fn expire(&self) {
        if is_past(self.due()) {
            self.flight.time_out();
        }
    }

    /// An error in a tasklet, unless the call is over or this is not to wait for it.
    fn may_wait(&self, until: Option<Instant>) -> Result<(), ForwardError> {
        let waits = || !self.test() && until.is_none_or(|until| until > Instant::now());
        if ult::is_tasklet() && waits() {
            return Err(ForwardError::Tasklet { rpc: self.rpc, never_ran: false });
        }
        Ok(())
    }

    /// Waits until the call is over, or returns at once in a forked child; `false`: it was not at
    /// `until`.
    fn wait_ready(&self, until: Option<Instant>) -> bool {
        if self.is_settled() {
            return true;
        }
        let (inner, done) = (self.flight.instance.inner(), self.call().done());
        inner.wait_for_end(done, until, || self.due(), || self.flight.time_out())
    }
}

impl<R: DeserializeOwned> ForwardRequest<R> {
    /// Waits for the result. A ULT suspends, an OS thread parks. A ULT that is cancelled meanwhile
    /// cancels the call.
    ///
    /// # Errors
    ///
    /// As [`Instance::forward`]; [`ForwardError::TimedOut`], [`ForwardError::Canceled`]; in a
    /// tasklet, if the call is in flight, [`ForwardError::Tasklet`], and the call is cancelled.
    ///
    /// Counterpart: `margo_wait`, `margo_get_output`.
    pub fn wait(self) -> Result<R, ForwardError> {
        self.may_wait(None)?;
        self.wait_ready(None);
        self.read()
    }

    /// The result, if the call is over. Never waits.
    ///
    /// # Errors
    ///
    /// Gives the request back if the call is in flight.
    #[expect(clippy::result_large_err, reason = "the request comes back")]
    pub fn try_wait(self) -> Result<Result<R, ForwardError>, Self> {
        if self.test() { Ok(self.read()) } else { Err(self) }
    }

    /// As [`wait`](Self::wait), no longer than until `until`. The call goes on if it is not over
    /// then; this is no deadline of the call, which is
    /// [`RpcCall::timeout`](crate::RpcCall::timeout).
    ///
    /// # Errors
    ///
    /// Gives the request back if the call is in flight then. In a tasklet, which cannot wait, the
    /// call ends as [`wait`](Self::wait) says, unless `until` has passed.
    #[expect(clippy::result_large_err, reason = "the request comes back")]
    pub fn wait_deadline(self, until: Instant) -> Result<Result<R, ForwardError>, Self> {
        if let Err(error) = self.may_wait(Some(until)) {
            return Ok(Err(error));
        }
        if self.wait_ready(Some(until)) { Ok(self.read()) } else { Err(self) }
    }

    /// As [`wait_deadline`](Self::wait_deadline), counted from now.
    ///
    /// # Errors
    ///
    /// As there.
    #[expect(clippy::result_large_err, reason = "the request comes back")]
    pub fn wait_timeout(self, timeout: Duration) -> Result<Result<R, ForwardError>, Self> {
        match Instant::now().checked_add(timeout) {
            Some(until) => self.wait_deadline(until),
            None => Ok(self.wait()),
        }
    }

    /// The result of a call that is over, or that it belongs to the parent process.
    fn read(&self) -> Result<R, ForwardError> {
        let site = CallInfo { rpc: self.rpc, to: &self.flight.to, term: self.term };
        if !self.call().is_over() {
            return Err(failure(site, HgError::InParent));
        }
        (self.read)(self.call(), &self.flight.instance, site)
    }
}

/// The result of the call. May be polled on any executor; in a ULT use [`ult::block_on`], because
/// that of another executor would hold up the whole execution stream. Dropped before its end, as by
/// a `select!` or a timeout of the executor, it cancels the call.
impl<R: DeserializeOwned> Future for ForwardRequest<R> {
    type Output = Result<R, ForwardError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if !this.is_settled() {
            let call = &this.flight.call;
            let ready = || Box::new(ult::ready_in(call.clone(), |call| call.done()));
            let awaited = this.awaited.get_or_insert_with(ready);
            ready!(Pin::new(&mut **awaited).poll(cx));
        }
        this.awaited = None;
        Poll::Ready(this.read())
    }
}

/// Returns an object that is ready, for operations whose end is not told in this process.
pub(crate) fn at_once() -> &'static Eventual<()> {
    static READY: LazyLock<Eventual<()>> = LazyLock::new(|| {
        let ready = Eventual::new();
        let _ = ready.set(());
        ready
    });
    &READY
}

impl Flight {
    fn time_out(&self) {
        self.call.time_out(&**self.instance.inner(), self.op);
    }

    fn cancel(&self) {
        self.call.cancel(&**self.instance.inner(), self.op, &self.to);
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        if !self.is_detached {
            self.cancel();
        }
    }
}

/// Waits for the first of `requests` that is over; the lowest if there are several. Removes it, and
/// returns where it was and its result; the others keep their order and go on. `None`: there are no
/// requests.
///
/// A ULT suspends, an OS thread parks. In a tasklet, which cannot wait, the first of `requests`
/// ends with [`ForwardError::Tasklet`] if none is over. For requests of different types see
/// [`ForwardRequest::ready`].
///
/// ```
/// # use margo::{Instance, ProviderHandle, Rpc};
/// # const SUM: Rpc<(i64, i64), i64> = Rpc::new("sum");
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let service = Instance::builder("na+sm://").start()?;
/// # service.register(SUM, |handle| {
/// #     let (a, b) = *handle.args();
/// #     let _ = handle.respond(&(a + b));
/// # })?;
/// # let client = Instance::builder("na+sm://").listen(false).start()?;
/// # let target = ProviderHandle::from(client.lookup(service.self_addr().uri())?);
/// let mut requests = Vec::new();
/// for n in 0..10 {
///     requests.push(client.rpc(SUM, &target, &(n, n)).start()?);
/// }
/// let mut sum = 0;
/// while let Some((_at, result)) = margo::wait_any(&mut requests) {
///     sum += result?;
/// }
/// assert_eq!(sum, 90);
/// # client.finalize_and_wait()?;
/// # service.finalize_and_wait()?;
/// # Ok(())
/// # }
/// ```
///
/// Each call looks at all of `requests`, twice if it has to wait. To take the results of thousands
/// as they come, put the requests, which are futures, into a `FuturesUnordered` of the `futures`
/// crate and take from it in [`ult::block_on`], or let
/// [`RpcCall::call_back`](crate::RpcCall::call_back) call back.
///
/// Counterpart: `margo_wait_any`, which polls.
pub fn wait_any<R: DeserializeOwned>(
    requests: &mut Vec<ForwardRequest<R>>,
) -> Option<(usize, Result<R, ForwardError>)> {
    first_of(requests, None)
}

/// Like [`wait_any`], but no longer than until `until`. `None` also: none was over by then; they
/// are all still there.
pub fn wait_any_deadline<R: DeserializeOwned>(
    requests: &mut Vec<ForwardRequest<R>>,
    until: Instant,
) -> Option<(usize, Result<R, ForwardError>)> {
    first_of(requests, Some(until))
}

fn first_of<R: DeserializeOwned>(
    requests: &mut Vec<ForwardRequest<R>>,
    until: Option<Instant>,
) -> Option<(usize, Result<R, ForwardError>)> {
    let first = requests.first()?;
    if ult::is_tasklet() {
        // In this order: one that ends in between is found.
        let refused = first.may_wait(until).err();
        let over = requests.iter().position(ForwardRequest::test);
        let refused = refused.filter(|_| over.is_none());
        let index = over.or_else(|| refused.is_some().then_some(0))?;
        let request = requests.remove(index);
        return Some((index, refused.map_or_else(|| request.read(), Err)));
    }
    if let Some(index) = requests.iter().position(ForwardRequest::is_forked) {
        let request = requests.remove(index);
        return Some((index, request.read()));
    }
    loop {
        let objects: Vec<&dyn Selectable> =
            requests.iter().map(|request| request.call().done() as _).collect();
        let due = requests.iter().filter_map(ForwardRequest::due).min();
        let first_limit = [due, until].into_iter().flatten().min();
        if let Some(index) = requests[0].flight.instance.wait_any(&objects, first_limit) {
            let request = requests.remove(index);
            return Some((index, request.read()));
        }
        if until.is_some_and(|until| until <= Instant::now()) {
            return None;
        }
        requests.iter().for_each(ForwardRequest::expire);
    }
}

/// Waits for all of `requests`; their results, in the order of the requests. All wait at once, so
/// it takes as long as the slowest one.
///
/// Counterpart: none; asked for in Margo since its beginnings.
pub fn wait_all<R: DeserializeOwned>(
    requests: impl IntoIterator<Item = ForwardRequest<R>>,
) -> Vec<Result<R, ForwardError>> {
    // An iterator that makes the calls has to make all of them before the first wait.
    let requests: Vec<_> = requests.into_iter().collect();
    if !ult::is_tasklet() {
        end_in_time(&requests);
    }
    requests.into_iter().map(ForwardRequest::wait).collect()
}

/// Waits for all of them; the deadline of none has to wait until those before it are over.
fn end_in_time<R>(requests: &[ForwardRequest<R>]) {
    let due = |request: &&ForwardRequest<R>| request.term.map(|term| term.at);
    let mut timed: Vec<_> = requests.iter().filter(|request| due(request).is_some()).collect();
    timed.sort_by_key(due);
    let mut timed = timed.into_iter().peekable();
    for request in requests {
        while !request.is_settled() {
            while timed.next_if(|timed| timed.due().is_none() || timed.call().is_over()).is_some() {
            }
            if !request.wait_ready(timed.peek().and_then(due)) {
                timed.next().into_iter().for_each(ForwardRequest::expire);
            }
        }
    }
}

impl<R> fmt::Debug for ForwardRequest<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ForwardRequest")
            .field("rpc", &self.rpc)
            .field("to", &self.flight.to)
            .field("is_over", &self.call().is_over())
            .finish_non_exhaustive()
    }
}
