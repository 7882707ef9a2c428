//! A request at its target: from its arrival to a handler ULT, and on that to the response.
//!
//! [`dispatch`] runs on the progress ULT, so it does only the steps that cannot be done elsewhere:
//! find the handler, admit the request (`admit.rs` has all but the usual way), make a ULT in the
//! handler's pool. Decoding, the user's code and the answer happen on that ULT.
//!
//! Whatever happens to the request from here on, the origin is told: the [`Reply`] answers when it
//! is dropped unanswered (`error_response.rs`), and [`RunningHandler`] counts the handler out even
//! when it panics.

use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use hg::{
    Core, HgError, LentRequest, OpRef, ProcError, ProviderId, RawRequest, Registration,
    RequestHandle, RequestParts, ReturnCode, Sent, TakenPayload, margo, proc,
};
use na::claim::Claim;
use na::lock::Lock;
use na::shared::{Shared, UninitShared};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use ult::{PoolRef, Priority, SpawnError, UltBuilder};

use crate::admission::counters::Counters;
use crate::admission::waiting::Waiting;
use crate::dispatch::admit::{self, AdmissionStep};
use crate::dispatch::error_response::{self, NO_ULT};
use crate::dispatch::in_place::DecodeInPlace;
use crate::dispatch::registered_rpc::{RegisteredRpc, Run};
use crate::instance::inner::Inner;
use crate::instance::reply::{Ends, NO_UNIT, Reply};
use crate::observe::monitor::{Moment, RequestWatch};
use crate::observe::trace::{self, SpanOfTrace};
use crate::operation::deadline;
use crate::operation::token::Token;
use crate::progress::surplus::Surplus;
use crate::support::log::log;
use crate::{Addr, Instance, RespondError};

/// Starts the handler of `request`, or answers with an error.
#[inline(always)]
pub(crate) fn dispatch(inner: &Inner, core: &Arc<Core<Token>>, parts: RequestParts) {
    let RequestParts { origin, mut request, registration } = parts;
    let Some(registration) = registration else {
        // The RPC core has refused what is not registered; this is not one of ours.
        return admit::not_ours(core, &origin, request);
    };
    let Some(entry) = registration.data_as::<RegisteredRpc>() else {
        return admit::not_ours(core, &origin, request);
    };
    // The message of one whose arguments were fetched has been here for long.
    inner.cancels.arrived(&origin, || request.call_key().filter(|_| !request.was_fetched()));
    if let Some(callers) = &entry.callers
        && let Err(refusal) = admit::ask_rules(core, callers, &origin, &mut request)
    {
        admit::refuse_by_rules(inner, core, (&origin, request), registration, &refusal);
    } else if request.is_crowded()
        && !admit::has_share(inner, (entry, core.shard()), &origin, &mut request)
    {
        admit::refuse_plainly(inner, core, (&origin, request), registration, ReturnCode::Busy);
    } else if entry.parts > 0 && request.target().is_some_and(|part| entry.is_not_for(part, core)) {
        admit::dispatch_to_part(inner, core, (origin, request), registration);
    } else if !entry.is_plain() {
        let arrived = inner.monitoring.arrival();
        let request = RequestHandle::of(core.clone(), origin, request);
        admit::admit(inner, Waiting { request, registration, in_own: false, arrived });
    } else if !entry.gate.enter_plain(&origin, || admit::host_of(inner, &origin)) {
        admit::refuse_plainly(inner, core, (&origin, request), registration, ReturnCode::Busy);
    } else if let Some(start) = HandlerSpawn::prepare(inner, core.shard(), entry) {
        start.go(inner, core.shard(), (origin, request), registration, None);
    } else {
        inner.counters.handler_not_run();
        // Nobody waits at a plain gate.
        entry.gate.leave(&origin);
        Counters::add(&inner.counters.requests_closing);
        admit::refuse_plainly(
            inner,
            core,
            (&origin, request),
            registration,
            ReturnCode::Permission,
        );
    }
}

/// The facts that the handler of a request needs, once the request is through all gates.
pub(super) struct HandlerSpawn<'a> {
    instance: Instance,
    pool: Cow<'a, PoolRef>,
    rpc: &'static str,
    provider: ProviderId,
    tasklet: bool,
    priority: Priority,
    /// It may start at another shard.
    stealable: bool,
}

impl<'a> HandlerSpawn<'a> {
    /// Counts a handler in; `None`: the instance shuts down.
    #[inline(always)]
    pub(super) fn prepare(inner: &'a Inner, shard: u8, entry: &RegisteredRpc) -> Option<Self> {
        let instance = match inner.shards.are_several() {
            false => entry.instance.upgrade()?,
            // A lease that is made when progress has ended would have nobody to end it.
            true if inner.shutdown.has_begun() => return None,
            true => {
                let lend = || entry.instance.upgrade().map(Instance::lent);
                inner.shards.get(shard).lease(lend)?
            }
        };
        if !inner.shutdown.admit() {
            return None;
        }
        // Nearly always one of ours, which costs no count; the entry goes to the handler.
        let pool = match entry.pool_index.and_then(|index| inner.pools.get(index)) {
            Some(pool) => Cow::Borrowed(pool),
            None => Cow::Owned(entry.pool.clone()),
        };
        let RegisteredRpc { rpc, provider, tasklet, priority, stealable, .. } = *entry;
        Some(Self { instance, pool, rpc, provider, tasklet, priority, stealable })
    }

    /// Makes its unit.
    // Inlined, so that the request's parts are moved once: from where the RPC layer has put them
    // to the reply.
    #[inline(always)]
    pub(super) fn go(
        self,
        inner: &Inner,
        shard: u8,
        (origin, request): (Addr, RawRequest),
        registration: Arc<Registration>,
        arrived: Option<Moment>,
    ) {
        let Self { instance, pool, rpc, provider, tasklet, priority, stealable } = self;
        let about = (&origin, &request);
        let served = || {
            let entry = registration.data_as::<RegisteredRpc>();
            entry.map(|entry| entry.serving(&inner.shards.get(shard).core))
        };
        let watch = inner.monitoring.request_starts(about, served, arrived);
        let unit = if tasklet { pool.tasklet() } else { pool.ult() };
        let unit = unit.name(rpc).priority(priority);
        let (about, from) = ((rpc, provider), (shard, origin, request));
        let surplus = if stealable { inner.surplus.as_deref() } else { None };
        let spawned = if let Some(surplus) = surplus.filter(|surplus| surplus.is_open(&pool)) {
            let parts = HandlerParts { instance, about, from, watch, registration };
            spawn_stealable((inner, surplus), unit, parts)
        } else if pool.is_only_here() {
            let reply = Reply::new(instance, about, from, watch);
            let running = RunningHandler { reply, registration: Some(registration) };
            unit.spawn_detached(move || running.run())
        } else {
            let late =
                DeferredHandler(Some(HandlerParts { instance, about, from, watch, registration }));
            unit.spawn_detached(move || late.run())
        };
        if let Err(error) = spawned {
            // The closure was dropped, and the reply in it has answered.
            no_unit(inner, rpc, &error);
        }
    }
}

/// Makes the unit of a handler where other shards find it, and wakes one that sleeps.
#[inline(never)]
fn spawn_stealable(
    (inner, surplus): (&Inner, &Surplus),
    unit: UltBuilder<'_>,
    parts: HandlerParts,
) -> Result<(), SpawnError> {
    let late = DeferredHandler(Some(parts));
    unit.spawn_stealable(move || late.run())?;
    if let Some(shard) = surplus.to_wake() {
        inner.shards.get(shard).kick();
    }
    Ok(())
}

#[cold]
fn no_unit(inner: &Inner, rpc: &str, error: &SpawnError) {
    let count = Counters::add(&inner.counters.units_not_made);
    // As long as there is no memory, each request would have a line.
    if count.is_power_of_two() {
        log!(inner.log, ERROR, rpc, %error, count, "no ULT for a request");
    }
}

/// A handler that was admitted. Counts it out when it ends, however it ends, unless its request was
/// left to another ULT: then the unit that answers does.
struct RunningHandler {
    reply: Shared<Reply>,
    /// The registration of the RPC when the request was admitted: its data is the
    /// [`RegisteredRpc`]. `None`: its places were given back, or belong to the unit that answers.
    // Two words in all, which move in registers.
    registration: Option<Arc<Registration>>,
}

impl RunningHandler {
    fn run(mut self) {
        let Some(registration) = &self.registration else { return };
        let Some(entry) = registration.data_as::<RegisteredRpc>() else { return };
        let reply = &mut self.reply;
        reply.watch.started();
        reply.handler_begins();
        if reply.is_abandoned() {
            reply.instance().inner().counters.handler_not_run();
        } else {
            if let Some(deadline) = reply.deadline() {
                deadline::begin(deadline);
            }
            ult::integration::announce();
            // Calls that it makes, and what it spawns, are on behalf of this request; not of the
            // one whose handler has made place for it, and has spawned its unit.
            trace::begin_unit(registration.id().0, reply.trace());
            if let Err(caught) = catch_unwind(AssertUnwindSafe(|| (entry.run)(reply))) {
                error_response::unwound(reply, &*caught);
                ult::integration::discard_panic(caught);
            }
        }
        let reply = &self.reply;
        reply.watch.ended();
        let inner = reply.instance().inner();
        if reply.is_over() {
            leave(inner, entry, reply.origin());
            self.registration = None;
        } else if let Some(places) = self.registration.take()
            && let Some(places) = Reply::ended_unanswered(reply, places)
        {
            give_back(inner, &places, reply.origin());
        }
    }
}

/// The code that runs on the handler's ULT: decodes the arguments, and calls `handler` with them.
pub(crate) fn decoding<A: DeserializeOwned>(
    handler: impl Fn(&mut Shared<Reply>, A) + Send + Sync + 'static,
) -> Arc<Run> {
    Arc::new(move |reply: &mut Shared<Reply>| {
        if let Some(args) = Reply::decode::<A>(reply) {
            handler(reply, args);
        }
    })
}

/// As [`decoding`], for a handler that looks at the arguments where they have arrived. They stay
/// there until it returns.
pub(crate) fn decoding_in_place<A: DecodeInPlace>(
    handler: impl Fn(&mut Shared<Reply>, A::InPlace<'_>) + Send + Sync + 'static,
) -> Arc<Run> {
    Arc::new(move |reply: &mut Shared<Reply>| {
        let Some(payload) = Reply::take_payload(reply) else { return };
        match Reply::decode_from::<A::InPlace<'_>>(reply, payload.as_slice()) {
            Ok(args) => handler(reply, args),
            Err(error) => reply.undecodable(error),
        }
        payload.give_back(reply.core());
    })
}

impl Reply {
    // Inlined, so that what came with the message is written where it stays, once.
    #[inline(always)]
    fn new(
        instance: Instance,
        (rpc, provider): (&'static str, ProviderId),
        (shard, origin, mut request): (u8, Addr, RawRequest),
        watch: RequestWatch,
    ) -> Shared<Self> {
        let place = UninitShared::new();
        let trace = watch
            .trace()
            .or_else(|| Some(SpanOfTrace::of_request(request.trace()?, false)?.context));
        place.fill(Self {
            instance,
            rpc,
            provider,
            origin,
            shard,
            // Nobody waits for an answer to a one-way request: it has all that it wants.
            wants_response: !request.is_one_way(),
            deadline: request.deadline(),
            cancel: OnceLock::new(),
            watch,
            trace,
            parent: margo::NO_PARENT,
            call: request.call_key(),
            charge: request.take_charge(),
            on_behalf_of: request.take_on_behalf_of(),
            proven: request.proven(),
            request: Claim::new(request),
            is_over: AtomicBool::new(false),
            unit: AtomicUsize::new(NO_UNIT),
            ends: Lock::new(Ends { lost_to_panic: false, left: None }),
        })
    }

    /// The handler's unit begins.
    #[inline]
    fn handler_begins(&self) {
        self.unit.store(ult::integration::current_address(), Ordering::Relaxed);
    }

    /// Returns whether the answer is not waited for any more, before the handler has begun; the
    /// origin was told then, if it is still there. A one-way request is handled, also of an origin
    /// that is gone.
    #[inline]
    fn is_abandoned(&self) -> bool {
        let expired = self.deadline.is_some_and(|deadline| deadline <= Instant::now());
        if expired {
            return self.abandon(ReturnCode::Timeout, "its deadline passed before it began");
        }
        if self.inner().cancels.was_canceled(&self.origin, || self.call) {
            return self.abandon(ReturnCode::Canceled, "it was canceled before it began");
        }
        // A look at what the answer looks at anyway.
        self.wants_response
            && self.core().endpoint().is_gone(&self.origin)
            && self.abandon(ReturnCode::Canceled, "its origin is gone")
    }

    /// Decodes the arguments; the receive buffer goes back before the user's code runs if requests
    /// hold many. `None`: they cannot be decoded, and the origin was told.
    fn decode<A: DeserializeOwned>(this: &mut Shared<Self>) -> Option<A> {
        // The user's code gets its `Handle` when the arguments are there: nobody has it yet.
        let Self { instance, shard, request, parent, .. } = Shared::get_mut(this)?;
        let request = request.get_mut();
        let core = &*instance.inner().shards.get(*shard).core;
        let limits = core.proc_limits();
        let decoded = match margo::split_request(request.payload()) {
            Ok((id, args)) => {
                *parent = id;
                proc::from_slice_within::<A>(args, limits)
            }
            Err(error) => Err(error),
        };
        request.payload_was_read(core);
        this.watch.decoded();
        match decoded {
            Ok(args) => Some(args),
            Err(error) => {
                this.undecodable(error);
                None
            }
        }
    }

    /// Takes the encoded arguments out of the request.
    fn take_payload(this: &mut Shared<Self>) -> Option<TakenPayload> {
        // As in `decode`.
        let Self { instance, shard, request, .. } = Shared::get_mut(this)?;
        Some(request.get_mut().take_payload(&*instance.inner().shards.get(*shard).core))
    }

    /// Decodes arguments from the payload, which was taken out.
    fn decode_from<'a, A: Deserialize<'a>>(
        this: &mut Shared<Self>,
        payload: &'a [u8],
    ) -> Result<A, ProcError> {
        let (parent, args) = margo::split_request(payload)?;
        if let Some(this) = Shared::get_mut(this) {
            this.parent = parent;
        }
        let args = proc::from_slice_within(args, this.core().proc_limits());
        this.watch.decoded();
        args
    }

    /// Answers with the value that a handler returned, unless it has answered itself.
    pub(crate) fn returned<R: Serialize>(&self, result: &R) {
        match self.respond(result) {
            Ok(()) | Err(RespondError::Answered { .. }) => {}
            Err(error) => {
                let log = &self.inner().log;
                log!(log, DEBUG, %error, "what a handler returned was not sent");
            }
        }
    }

    /// Answers with a result, and does not look after it.
    pub(crate) fn respond<R: Serialize + ?Sized>(&self, value: &R) -> Result<(), RespondError> {
        self.answer(value, || Token::Respond(self.watch.span())).map(drop)
    }

    /// Answers with a result. `Some`: that is on its way, and its end is told to the sink with the
    /// token; `None`: it is over.
    #[inline(always)]
    pub(crate) fn answer<R: Serialize + ?Sized>(
        &self,
        value: &R,
        token: impl FnOnce() -> Token,
    ) -> Result<Option<OpRef>, RespondError> {
        let Some(request) = self.take() else { return Err(self.not_taken()) };
        let _answered = Answered(self);
        self.watch.responding();
        let mut panic = None;
        let sent = request.respond(
            |writer| {
                let encode = || {
                    margo::write_response_prefix(writer, ReturnCode::Success)?;
                    proc::to_writer(writer, value)?;
                    self.watch.encoded(writer.len());
                    Ok(())
                };
                // The value's own code; the request has to be answered all the same.
                catch_unwind(AssertUnwindSafe(encode)).unwrap_or_else(|what| {
                    panic = Some(what);
                    Err(ProcError::Unsupported("it panics"))
                })
            },
            token(),
        );
        if let Some(panic) = panic {
            self.encoding_panicked(sent.err(), panic);
        }
        self.watch.responded(matches!(sent, Ok(Sent::Done(_))));
        let error = sent.as_ref().err().map(|error| &error.0);
        self.watch.answered(&self.inner().monitoring, error);
        self.of_shard().kick_if_queued();
        let error = match sent {
            Ok(Sent::Done(_)) => return Ok(None),
            Ok(Sent::InFlight(op)) => return Ok(Some(op)),
            Err(error) => error,
        };
        match *error {
            (HgError::Proc(source), request) => {
                if let Some(request) = request {
                    let text = format!("the result cannot be encoded: {source}");
                    self.send_failure(request, ReturnCode::OtherError, &text);
                }
                Err(RespondError::Encode { rpc: self.rpc, source })
            }
            (source @ HgError::Unfetched { .. }, request) => {
                if let Some(request) = request {
                    self.send_failure(request, ReturnCode::NoMem, &source.to_string());
                }
                Err(RespondError::Network { rpc: self.rpc, source })
            }
            // What a handler does must not depend on what its callers want.
            (HgError::NoResponse, _) => Ok(None),
            (source, _) => Err(RespondError::Network { rpc: self.rpc, source }),
        }
    }

    /// Takes the request, to be answered; `None`: it was answered, or is about to be, or only the
    /// parent process can.
    #[inline]
    pub(super) fn take(&self) -> Option<LentRequest<'_, Token>> {
        if self.inner().is_forked() {
            return None;
        }
        let request = self.request.claim()?;
        Some(LentRequest::of(self.core(), &self.origin, request))
    }

    /// The request is answered, as far as it can be.
    #[inline]
    fn answered(&self) {
        if self.unit.load(Ordering::Relaxed) == ult::integration::current_address() {
            // The handler's end, which looks, comes later in the same unit.
            self.is_over.store(true, Ordering::Relaxed);
        } else {
            self.answered_elsewhere();
        }
    }

    /// Returns whether nothing is left to do when the handler's unit is over. `false`: ask
    /// [`ended_unanswered`](Self::ended_unanswered). A one-way request has no answer.
    #[inline]
    fn is_over(&self) -> bool {
        !self.wants_response || self.is_over.load(Ordering::Relaxed)
    }
}

/// Tells that an answer has been given, also when its encoding panics.
pub(super) struct Answered<'a>(pub(super) &'a Reply);

impl Drop for Answered<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.answered();
    }
}

impl Drop for Reply {
    #[inline]
    fn drop(&mut self) {
        if self.inner().is_forked() {
            std::mem::forget(self.charge.take());
            return self.request.get_mut().leave_to_parent();
        }
        let cancels = &self.inner().cancels;
        match self.cancel.get() {
            Some((token, call)) => {
                if let Some(watch) = cancels.forget(token, &self.origin, *call) {
                    self.core().unwatch_peer(watch);
                }
            }
            // It was not asked for.
            None => _ = cancels.was_canceled(&self.origin, || self.call),
        }
        if self.request.is_claimed() {
            return;
        }
        // Only when no ULT could be made for the handler, and nobody else saw this request; or
        // nobody asked for an answer.
        let Some(request) = self.take() else { return };
        if request.is_one_way() {
            self.watch.answered(&self.inner().monitoring, None);
        } else {
            self.watch.fails(&self.inner().monitoring, ReturnCode::Again);
            self.send_failure(request, ReturnCode::Again, NO_ULT);
        }
    }
}

/// A handler has ended and its request is answered: its places go to those who wait for them.
#[inline(always)]
fn leave(inner: &Inner, entry: &RegisteredRpc, peer: &Addr) {
    if entry.is_plain() {
        // Nobody waits at a plain gate.
        entry.gate.leave(peer);
    } else {
        let mut todo = Vec::new();
        admit::give_place(inner, entry, peer, &mut todo);
        admit::go_on(inner, todo);
    }
    inner.shutdown.leave();
}

/// Gives the places of a request back: for its handler or its answer, whichever comes last.
pub(super) fn give_back(inner: &Inner, places: &Registration, peer: &Addr) {
    if let Some(entry) = places.data_as::<RegisteredRpc>() {
        leave(inner, entry, peer);
    }
}

impl Drop for RunningHandler {
    fn drop(&mut self) {
        let Some(registration) = self.registration.take() else { return };
        if let Some(entry) = registration.data_as() {
            let inner = self.reply.instance().inner();
            self.reply.watch.ended();
            admit::did_not_run(inner, entry, &self.reply);
            inner.shutdown.leave();
            admit::let_go(inner, registration);
        }
    }
}

/// A handler that may run on another execution stream than the one that has taken its request in.
/// The reply is made there: it is some cache lines, and its memory would be taken on one and given
/// back on the other, for which the two wait for each other in the allocator.
struct DeferredHandler(Option<HandlerParts>);

/// The parts that a [`RunningHandler`] is made of.
struct HandlerParts {
    instance: Instance,
    about: (&'static str, ProviderId),
    from: (u8, Addr, RawRequest),
    watch: RequestWatch,
    registration: Arc<Registration>,
}

impl DeferredHandler {
    fn run(mut self) {
        if let Some(running) = self.arrive() {
            running.run();
        }
    }

    #[inline(always)]
    fn arrive(&mut self) -> Option<RunningHandler> {
        let HandlerParts { instance, about, from, watch, registration } = self.0.take()?;
        let reply = Reply::new(instance, about, from, watch);
        Some(RunningHandler { reply, registration: Some(registration) })
    }
}

impl Drop for DeferredHandler {
    fn drop(&mut self) {
        if let Some(parts) = self.0.take() {
            did_not_arrive(parts);
        }
    }
}

/// One that did not run answers; unless its pool was removed just after the request had been given
/// to it, and its RPC has another one.
#[cold]
fn did_not_arrive(parts: HandlerParts) {
    let (instance, (shard, origin, _)) = (parts.instance.clone(), &parts.from);
    let (inner, mut todo) = (instance.inner(), Vec::new());
    let core = inner.shards.get(*shard).core.clone();
    let came = (&parts.registration, *shard);
    let Some(registration) = admit::moved_on(inner, came, origin, &mut todo) else {
        drop(DeferredHandler(Some(parts)).arrive());
        return;
    };
    let (_, origin, request) = parts.from;
    let request = RequestHandle::of(core, origin, request);
    todo.push(AdmissionStep::Inside(Waiting {
        request,
        registration,
        in_own: true,
        arrived: None,
    }));
    admit::go_on(inner, todo);
    inner.shutdown.leave();
}
