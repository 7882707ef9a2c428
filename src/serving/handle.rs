//! The handle that a handler gets.

use std::fmt;
use std::marker::PhantomData;
use std::time::{Duration, Instant};

use hg::{OnBehalfOf, ProviderId, ReturnCode, RpcId};
use na::shared::Shared;
use ult::Eventual;

use crate::instance::reply::Reply;
use crate::observe::trace::TraceContext;
use crate::serving::respondable::Respondable;
use crate::{Addr, CancelToken, Instance, Principal, RespondError};

/// A request that is being handled: its arguments, where it came from, and the duty to answer.
///
/// It may be answered early and worked on afterwards, or moved into another ULT and answered there.
/// For bounds and for a shutdown, a request is in hand ([`Load`](crate::metrics::Load)) until its
/// handler has ended and it is answered, whichever comes later; a one-way request until its handler
/// has ended. A request that is still unanswered when the grace period of a shutdown is over is
/// answered with an error ([`ForwardError::Failed`]) before the network closes; to answer it then
/// is [`RespondError::Answered`].
///
/// Dropped without an answer, it answers with an error ([`ForwardError::Failed`] at the origin).
///
/// ```
/// use margo::{Instance, ProviderHandle, Rpc};
///
/// const DIVIDE: Rpc<(i64, i64), i64> = Rpc::new("divide");
///
/// let service = Instance::builder("na+sm://").start()?;
/// service.register(DIVIDE, |request| {
///     let (a, b) = *request.args();
///     let _ = match b {
///         0 => request.fail("division by zero"),
///         _ => request.respond(&(a / b)),
///     };
/// })?;
/// let target = ProviderHandle::from(service.self_addr());
/// assert_eq!(service.forward(DIVIDE, &target, &(84, 2))?, 42);
/// assert!(service.forward(DIVIDE, &target, &(1, 0)).is_err());
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Counterpart: `hg_handle_t` at the target; Thallium's `request`.
///
/// [`ForwardError::Failed`]: crate::ForwardError::Failed
pub struct Handle<A, R> {
    // Before the arguments: an origin that is owed an answer gets it before they are dropped.
    reply: Owed,
    args: A,
    result: PhantomData<fn(R)>,
}

/// The text of an answer with `HG_BUSY` or `HG_AGAIN` to which the handler adds none.
const COME_AGAIN: &str = "its handler asks to come again later";

/// A user's part of a request: dropped, it sees to an answer.
struct Owed(Shared<Reply>);

impl Drop for Owed {
    fn drop(&mut self) {
        self.0.request_dropped();
    }
}

impl<A, R> Handle<A, R> {
    pub(crate) fn new(args: A, reply: Shared<Reply>) -> Self {
        Self { reply: Owed(reply), args, result: PhantomData }
    }

    pub(crate) fn reply(&self) -> &Reply {
        &self.reply.0
    }

    /// Returns whether the origin waits for an answer. It does not if it used
    /// [`Instance::send`](crate::Instance::send); then [`respond`](Self::respond) does nothing,
    /// and a handler may spare itself what only the answer is for.
    ///
    /// Counterpart: `margo_registered_disabled_response`; there it is a property of the RPC, here
    /// of the request.
    pub fn wants_response(&self) -> bool {
        self.reply().wants_response()
    }

    /// The arguments. To own them see [`take_args`](Self::take_args).
    pub fn args(&self) -> &A {
        &self.args
    }

    /// The arguments, to keep or to pass on, and the rest of the request, with the duty to answer.
    ///
    /// ```
    /// use std::sync::{Arc, Mutex};
    ///
    /// use margo::{Instance, ProviderHandle, Rpc};
    ///
    /// const APPEND: Rpc<String, usize> = Rpc::new("append");
    ///
    /// let service = Instance::builder("na+sm://").start()?;
    /// let lines = Arc::new(Mutex::new(Vec::new()));
    /// let kept = lines.clone();
    /// service.register(APPEND, move |handle| {
    ///     let (line, handle) = handle.take_args();
    ///     let mut kept = kept.lock().unwrap();
    ///     kept.push(line); // no copy
    ///     let _ = handle.respond(&kept.len());
    /// })?;
    /// let log = ProviderHandle::from(service.self_addr());
    /// assert_eq!(service.forward(APPEND, &log, &"a line".to_owned())?, 1);
    /// assert_eq!(*lines.lock().unwrap(), ["a line"]);
    /// # service.finalize_and_wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Counterpart: none; there the decoded arguments are the handle's until `margo_free_input`.
    #[must_use = "dropping the handle answers with an error"]
    pub fn take_args(self) -> (A, Handle<(), R>) {
        let Self { reply, args, result } = self;
        (args, Handle { reply, args: (), result })
    }

    /// Returns the peer that called. Bulk handles among the arguments belong to this peer.
    ///
    /// Over tcp and UCX the peer is known by its connection. Its text, which names the address
    /// where it listens, is not checked: grant no rights by it, but by
    /// [`principal`](Self::principal). A message sent to this address
    /// reaches the caller; to reach the process that listens there for certain, look the text up.
    /// That gives another address, which does not equal this one.
    pub fn origin(&self) -> &Addr {
        self.reply().origin()
    }

    /// Returns who called, as far as the kernel of this host vouches for it: the user over `na+sm`,
    /// the host over `na+tcp` and `ucx+…`. [`Principal::Unknown`] over other transports, and of
    /// calls that this instance makes to itself, which are always allowed. `margo.security` has
    /// rules by this.
    ///
    /// ```
    /// use margo::{Instance, Principal, ProviderHandle, Rpc};
    ///
    /// const WHO: Rpc<(), bool> = Rpc::new("who");
    ///
    /// let service = Instance::builder("na+sm://").start()?;
    /// service.register(WHO, |request| {
    ///     let is_user = matches!(request.principal(), Principal::User(_));
    ///     let _ = request.respond(&is_user);
    /// })?;
    /// let client = Instance::builder("na+sm://").listen(false).start()?;
    /// let target = ProviderHandle::from(client.lookup(service.self_addr().uri())?);
    /// assert!(client.forward(WHO, &target, &())?);
    /// # client.finalize_and_wait()?;
    /// # service.finalize_and_wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn principal(&self) -> Principal {
        self.reply().principal()
    }

    /// Returns on whose behalf the call is made, if its origin says so
    /// ([`on_behalf_of`](crate::delegation::on_behalf_of)). Nobody has signed that: it is worth as
    /// much as the word of the [principal](Self::principal).
    pub fn on_behalf_of(&self) -> Option<&OnBehalfOf> {
        self.reply().on_behalf_of.as_deref()
    }

    /// The instance that serves this request; for nested calls.
    pub fn instance(&self) -> &Instance {
        self.reply().instance()
    }

    /// The RPC's name.
    pub fn rpc_name(&self) -> &'static str {
        self.reply().rpc()
    }

    /// The provider that was called.
    pub fn provider_id(&self) -> ProviderId {
        self.reply().provider()
    }

    /// The RPC in whose handler the call was made, at the origin: what
    /// [`current_rpc_id`](crate::monitor::current_rpc_id) said there. `None`: outside of any.
    ///
    /// Counterpart: `parent_rpc_id` of Margo's monitoring.
    pub fn parent(&self) -> Option<RpcId> {
        self.reply().parent()
    }

    /// Returns the trace that this request is part of, across processes, if it is sampled: for
    /// logs. The id of the span is that of its handling here. On the handler's ULT, and in what it
    /// spawns, it is also [`trace::current`](crate::observe::trace::current).
    pub fn trace(&self) -> Option<TraceContext> {
        self.reply().trace()
    }

    /// The shard of this instance that took the request, by whose connection it came: see
    /// [`ProviderHandle::in_shard`](crate::ProviderHandle::in_shard).
    ///
    /// Counterpart: `context_id` of `HG_Get_info`.
    pub fn shard(&self) -> u8 {
        self.reply().shard()
    }

    /// When the origin gives up, by this host's clock; `None`: it waits for ever, or cannot tell
    /// (origins of ours can, over `na+sm`, `na+tcp`, `ucx+…` and `na+sim`). Time that the request
    /// has waited in the transport counts, once there is another one of that origin with a deadline
    /// to compare it with. Calls that the handler
    /// makes on its own ULT have this deadline, too: see
    /// [`without_deadline`](crate::cancel::without_deadline).
    pub fn deadline(&self) -> Option<Instant> {
        self.reply().deadline()
    }

    /// Time until [`deadline`](Self::deadline); zero when that has passed.
    pub fn remaining(&self) -> Option<Duration> {
        self.deadline().map(|at| at.saturating_duration_since(Instant::now()))
    }

    /// Returns a token that fires when the answer is not waited for any more: the deadline has
    /// passed, the origin has canceled the call or is gone, or this instance shuts down and its
    /// grace period is over. Ask for it before long work, then look at it, wait for it in another
    /// ULT, or select on it with whatever the work waits for. Calls of the handler go on, unless
    /// they are made in [`CancelToken::cancels_calls_in`].
    ///
    /// That an origin cancels is told by those of ours, unless too many requests wait
    /// ([`CancelToken`]), over `na+sm`, `na+tcp`, `ucx+…` and
    /// `na+sim`; that it is gone, by all but `ofi+…`, where it is told when something is sent to
    /// it. An origin that listens, and was gone before the first
    /// token for a request of it, is not seen to be.
    ///
    /// ```
    /// # use margo::{Instance, Rpc};
    /// # fn part_of_the_work() -> bool { true }
    /// # const LONG: Rpc<(), ()> = Rpc::new("long");
    /// # let service = Instance::builder("na+sm://").start()?;
    /// service.register(LONG, |handle| {
    ///     let canceled = handle.cancel_token();
    ///     while !part_of_the_work() {
    ///         if canceled.is_canceled() {
    ///             return; // the origin will not see the error that this answers with
    ///         }
    ///         ult::yield_now();
    ///     }
    ///     let _ = handle.respond(&());
    /// })?;
    /// # service.finalize_and_wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn cancel_token(&self) -> CancelToken {
        self.reply().cancel_token().clone()
    }

    /// The event that is set when this instance begins to shut down: for handlers whose answer may
    /// take as long as the service runs, such as those that wait for something to be told. The
    /// shutdown waits for them, for its grace period
    /// ([`InstanceBuilder::grace`](crate::InstanceBuilder::grace)), unless they answer then.
    ///
    /// ```
    /// use margo::{Instance, Rpc};
    ///
    /// const NEXT_CHANGE: Rpc<(), Option<String>> = Rpc::new("next_change");
    ///
    /// let service = Instance::builder("na+sm://").start()?;
    /// let (changes, changed) = ult::channel::unbounded::<String>();
    /// service.register(NEXT_CHANGE, move |handle| {
    ///     let answer = match ult::wait_any(&[&changed, handle.closing()], None) {
    ///         Some(0) => changed.recv().ok(),
    ///         _ => None, // ask another one
    ///     };
    ///     let _ = handle.respond(&answer);
    /// })?;
    /// let target = service.self_addr().into();
    /// let waiting = service.rpc(NEXT_CHANGE, &target, &()).start()?;
    /// # while service.monitoring().stats().requests_received == 0 { std::thread::yield_now(); }
    /// service.finalize_and_wait()?; // at once
    /// # drop((waiting, changes));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn closing(&self) -> &Eventual<()> {
        self.instance().inner().shutdown.begun()
    }

    /// Returns whether the answer is not waited for any more: [`cancel_token`](Self::cancel_token)
    /// has fired. The first question makes the token, and events that only a token sees count from
    /// then on.
    pub fn is_canceled(&self) -> bool {
        self.reply().cancel_token().is_canceled()
    }

    /// Answers that the handler failed, with a text for people. For failures that the origin's
    /// program should tell apart, make the RPC's result a `Result` instead, or give a code:
    /// [`fail_with`](Self::fail_with).
    ///
    /// # Errors
    ///
    /// [`RespondError::Answered`] if there was an answer; [`RespondError::Network`] of
    /// [`HgError::Forked`](crate::HgError::Forked) in a child process that was forked off.
    pub fn fail(&self, detail: &str) -> Result<(), RespondError> {
        if self.reply().fail(ReturnCode::OtherError, detail) {
            Ok(())
        } else {
            Err(self.reply().not_taken())
        }
    }

    /// [`fail`](Self::fail) with a return code of the handler's choice, for origins that are C
    /// programs, to which it is the `hg_return_t` of their `margo_get_output`, and to have an
    /// origin come again later. The text is for people, and only origins of ours see it.
    ///
    /// | code | an origin of ours gets |
    /// |---|---|
    /// | [`Busy`](ReturnCode::Busy), [`Again`](ReturnCode::Again) | [`ForwardError::Busy`] |
    /// | `Success`, `NoEntry`, `Permission`, `ProtocolError`, `Fault`, `Timeout` | nothing: they are refused here |
    /// | all others | [`ForwardError::Failed`] with that code |
    ///
    /// **`Busy` and `Again` are a promise**: this handler has changed nothing, and the same call
    /// may be made again. Origins cannot tell it from a request that was not let in, which
    /// [`never_ran`](crate::ForwardError::never_ran); an origin that repeats such calls repeats
    /// this one. Say it before the work, or when all of it is undone.
    ///
    /// The codes that are refused tell facts that only the runtime knows: that there is no such
    /// RPC, that the service shuts down, that the arguments cannot be decoded, that the deadline
    /// had passed, so that no handler has run; or that one panicked. An origin would go elsewhere,
    /// or repeat work that has been done. For things that the service itself does not have or allow
    /// there are `InvalidArg` and `Access`.
    ///
    /// # Errors
    ///
    /// [`RespondError::Reserved`] for those codes: the request is not answered. Others as `fail`.
    ///
    /// Counterpart: none that is public; `__margo_respond_with_error`.
    ///
    /// [`ForwardError::Busy`]: crate::ForwardError::Busy
    /// [`ForwardError::Failed`]: crate::ForwardError::Failed
    pub fn fail_with(&self, code: ReturnCode, detail: &str) -> Result<(), RespondError> {
        // One that has a name by its name.
        let code = ReturnCode::from_number(code.number());
        let detail = match code {
            ReturnCode::Success
            | ReturnCode::NoEntry
            | ReturnCode::Permission
            | ReturnCode::ProtocolError
            | ReturnCode::Fault
            | ReturnCode::Timeout => {
                return Err(RespondError::Reserved { rpc: self.rpc_name(), code });
            }
            // Without a text it is taken for a bound that was reached.
            ReturnCode::Busy | ReturnCode::Again if detail.is_empty() => COME_AGAIN,
            _ => detail,
        };
        match self.reply().fail_as_handler(code, detail) {
            true => Ok(()),
            false => Err(self.reply().not_taken()),
        }
    }
}

impl<A, R> Handle<A, R> {
    /// Answers. Returns when the answer is on its way; does not wait for its delivery. If the
    /// origin [wants none](Self::wants_response), the answer is dropped.
    ///
    /// A handler that wants to know whether its answer was delivered, above all a long one, which
    /// the origin fetches, waits for that: [`respond_timed`](Self::respond_timed),
    /// [`irespond`](Self::irespond), [`crespond`](Self::crespond). Here that costs nothing.
    ///
    /// # Errors
    ///
    /// [`RespondError::Answered`] on the second call, which changes nothing; others when the answer
    /// could not be encoded or sent.
    ///
    /// Counterpart: `margo_respond`, which waits until the network has taken the answer.
    pub fn respond(&self, result: &R) -> Result<(), RespondError>
    where
        R: Respondable,
    {
        self.reply().respond(result)
    }

    /// As [`respond`](Self::respond), with a value that encodes as an `R` does: a borrowed form, so
    /// that nothing is copied only to be encoded. What encodes alike, [`Rpc::sending`] says; of
    /// other values the origin can make nothing, or something else.
    ///
    /// ```
    /// use margo::{Instance, ProviderHandle, Rpc};
    ///
    /// const MOTTO: Rpc<(), Result<String, String>> = Rpc::new("motto");
    ///
    /// let service = Instance::builder("na+sm://").start()?;
    /// let motto = "a long text".to_owned();
    /// service.register(MOTTO, move |handle| {
    ///     let _ = handle.respond_as(&Ok::<&str, &str>(&motto));
    /// })?;
    /// let target = ProviderHandle::from(service.self_addr());
    /// assert_eq!(service.forward(MOTTO, &target, &())?, Ok("a long text".to_owned()));
    /// # service.finalize_and_wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`respond`](Self::respond).
    ///
    /// [`Rpc::sending`]: crate::Rpc::sending
    pub fn respond_as<B>(&self, result: &B) -> Result<(), RespondError>
    where
        B: Respondable + ?Sized,
    {
        self.reply().respond(result)
    }
}

impl<A: fmt::Debug, R> fmt::Debug for Handle<A, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("args", &self.args).field("reply", self.reply()).finish()
    }
}
