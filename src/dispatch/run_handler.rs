//! From an arrived request to a handler ULT.
//!
//! [`dispatch`] runs on the progress ULT, so it does only the steps that cannot be done elsewhere:
//! find the handler, admit the request (`gates.rs`), make a ULT in the handler's pool.
//! Decoding, the user's code and the answer happen on that ULT. A request that waits for a place is
//! started by the handler that gives its place up.
//!
//! Whatever happens to the request from here on, the origin is told: the [`Reply`] answers when it
//! is dropped unanswered, and [`RunningHandler`] counts the handler out even when it panics.

use std::any::Any;
use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use hg::{
    Core, LentRequest, ProviderId, RawRequest, Registration, RequestHandle, RequestParts,
    ReturnCode,
};
use margo_config::Overload;
use na::shared::Shared;
use ult::{PoolRef, Priority, SpawnError, UltBuilder};

use crate::admission::counters::Counters;
use crate::admission::gates::{Entrance, Host};
use crate::admission::waiting::Waiting;
use crate::dispatch::registered_rpc::{RegisteredRpc, RequestGate};
use crate::dispatch::respond;
use crate::elastic::may_spawn;
use crate::instance::inner::Inner;
use crate::instance::reply::Reply;
use crate::observe::monitor::{Moment, RequestWatch};
use crate::operation::token::Token;
use crate::progress::surplus::Surplus;
use crate::support::contain::{contain, message_of};
use crate::support::log::log;
use crate::{Addr, Instance, Principal, observe::trace, operation::deadline};

impl Waiting {
    fn origin(&self) -> &Addr {
        self.request.origin()
    }

    /// Returns whether its handler is to run in the pool of that gate.
    fn is_for(&self, gate: &Arc<RequestGate>) -> bool {
        let entry = self.registration.data_as::<RegisteredRpc>();
        entry.is_some_and(|entry| Arc::ptr_eq(&entry.gate, gate))
    }

    fn refuse(self, inner: &Inner, entry: &RegisteredRpc, code: ReturnCode) {
        let Self { request, arrived, .. } = self;
        inner.monitoring.refused((request.origin(), &request), entry.serving(), arrived, code);
        let detail = if code == ReturnCode::Again { no_ult(entry) } else { "" };
        respond::refuse(inner, request, code, detail);
    }
}

/// Starts the handler of `request`, or answers with an error.
#[inline(always)]
pub(crate) fn dispatch(inner: &Inner, core: &Arc<Core<Token>>, parts: RequestParts) {
    let RequestParts { origin, mut request, registration } = parts;
    let Some(registration) = registration else {
        // The RPC core has refused what is not registered; this is not one of ours.
        return not_ours(core, &origin, request);
    };
    let Some(entry) = registration.data_as::<RegisteredRpc>() else {
        return not_ours(core, &origin, request);
    };
    // The message of one whose arguments were fetched has been here for long.
    inner.cancels.arrived(&origin, || request.call_key().filter(|_| !request.was_fetched()));
    if request.is_crowded() && !has_share(inner, (entry, core.shard()), &origin, &mut request) {
        refuse_plainly(inner, core, (&origin, request), registration, ReturnCode::Busy);
    } else if entry.parts > 0 && request.target().is_some_and(|part| entry.is_not_for(part, core)) {
        dispatch_to_part(inner, core, (origin, request), registration);
    } else if !entry.is_plain() {
        let arrived = inner.monitoring.arrival();
        let request = RequestHandle::of(core.clone(), origin, request);
        admit(inner, Waiting { request, registration, in_own: false, arrived });
    } else if !entry.gate.enter_plain(&origin, || host_of(inner, &origin)) {
        refuse_plainly(inner, core, (&origin, request), registration, ReturnCode::Busy);
    } else if let Some(start) = HandlerSpawn::prepare(inner, core.shard(), entry) {
        start.go(inner, core.shard(), (origin, request), registration, None);
    } else {
        inner.counters.handler_not_run();
        // Nobody waits at a plain gate.
        entry.gate.leave(&origin);
        Counters::add(&inner.counters.requests_closing);
        refuse_plainly(inner, core, (&origin, request), registration, ReturnCode::Permission);
    }
}

/// Starts the handler of a request for a part that another shard has, in the pool of that one. Its
/// origin has sent it to the wrong shard, or asks for a part that is not there.
#[cold]
#[inline(never)]
fn dispatch_to_part(
    inner: &Inner,
    core: &Arc<Core<Token>>,
    (origin, request): (Addr, RawRequest),
    registration: Arc<Registration>,
) {
    let parts = registration.data_as::<RegisteredRpc>().map_or(0, |entry| entry.parts);
    let part = request.target().filter(|part| *part < parts);
    let shard = part.and_then(|part| inner.shards.find(part));
    let Some(there) = shard.and_then(|shard| shard.core.registered(registration.id())) else {
        return refuse_plainly(
            inner,
            core,
            (&origin, request),
            registration,
            ReturnCode::InvalidArg,
        );
    };
    let_go(inner, registration);
    let arrived = inner.monitoring.arrival();
    let request = RequestHandle::of(core.clone(), origin, request);
    admit(inner, Waiting { request, registration: there, in_own: false, arrived });
}

// These take the request itself, and not a reference to it: for one that is handled it then need
// not be anywhere but where it stays.

#[cold]
#[inline(never)]
fn not_ours(core: &Core<Token>, origin: &Addr, mut request: RawRequest) {
    LentRequest::of(core, origin, &mut request).reject(ReturnCode::NoEntry);
}

#[cold]
#[inline(never)]
fn refuse_plainly(
    inner: &Inner,
    core: &Core<Token>,
    (origin, mut request): (&Addr, RawRequest),
    registration: Arc<Registration>,
    code: ReturnCode,
) {
    if let Some(entry) = registration.data_as::<RegisteredRpc>() {
        inner.monitoring.refused((origin, &request), entry.serving(), None, code);
    }
    respond::refuse(inner, LentRequest::of(core, origin, &mut request), code, "");
    let_go(inner, registration);
}

/// Drops what a request was registered with whose handler does not run. If the RPC was deregistered
/// meanwhile, that may be the last there is of it: what goes with it is the user's, and goes on a
/// ULT in its pool. Here may be the progress ULT in the midst of a poll.
#[inline(never)]
pub(crate) fn let_go(inner: &Inner, registration: Arc<Registration>) {
    if let Some(last) = Arc::into_inner(registration) {
        drop_in_its_pool(inner, last);
    }
}

#[cold]
fn drop_in_its_pool(inner: &Inner, last: Registration) {
    const WHAT: &str = "what an RPC was served with, when dropped,";
    let Some(entry) = last.data_as::<RegisteredRpc>() else { return };
    let (pool, rpc, log) = (entry.pool.clone(), entry.rpc, inner.log.clone());
    if !may_spawn(&pool) {
        _ = contain(&log, WHAT, || drop(last));
        return;
    }
    let drop_there = move || _ = contain(&log, WHAT, || drop(last));
    // No ULT can be made, and the closure with it is dropped here: nothing is left but that.
    _ = contain(&inner.log, WHAT, || pool.ult().name(rpc).spawn_detached(drop_there));
}

/// Returns whether a request that came while many wait to be decoded may wait with them; its peer
/// and host have a share of the places, however fast they send. Not asked where requests are to
/// wait rather than be refused, nor for the RPCs of the runtime itself, of which few are in hand.
#[cold]
#[inline(never)]
fn has_share(
    inner: &Inner,
    (entry, shard): (&RegisteredRpc, u8),
    origin: &Addr,
    request: &mut RawRequest,
) -> bool {
    let waits = |gate: &Arc<RequestGate>| gate.bounds().overload == Overload::Wait;
    if waits(&entry.gate)
        || entry.own_gate.as_ref().is_some_and(waits)
        || inner.gates.internal_of(&entry.gate).is_some()
    {
        return true;
    }
    let has_share =
        inner.shards.get(shard).request_shares.admit(origin, || host_of(inner, origin), request);
    if !has_share {
        entry.gate.count_refused();
    }
    has_share
}

/// Returns the host or user behind a peer, the key of their bounds. Asked when a bound is near.
fn host_of(inner: &Inner, peer: &Addr) -> Host {
    match inner.shards.of_addr(peer).core.endpoint().principal(peer) {
        Principal::Unknown => None,
        known => Some(known),
    }
}

/// The request that is next: at the gate of its RPC or of its pool, or past both.
enum AdmissionStep {
    AtGate(Waiting),
    Inside(Waiting),
}

/// Lets a request through the gates in front of it, and those who get a place because of it.
#[inline(never)]
fn admit(inner: &Inner, waiting: Waiting) {
    go_on(inner, vec![AdmissionStep::AtGate(waiting)]);
}

// One after the other: on a ULT's stack there is no room for a recursion of all who wait.
fn go_on(inner: &Inner, mut todo: Vec<AdmissionStep>) {
    while let Some(next) = todo.pop() {
        match next {
            AdmissionStep::AtGate(waiting) => pass(inner, waiting, &mut todo),
            AdmissionStep::Inside(Waiting { request, registration, arrived, .. }) => {
                let came = (&registration, request.shard());
                let there = moved_on(inner, came, request.origin(), &mut todo);
                let registration = there.unwrap_or(registration);
                let Some(entry) = registration.data_as::<RegisteredRpc>() else { continue };
                let shard = request.shard();
                if let Some(start) = HandlerSpawn::prepare(inner, shard, entry) {
                    let (_, parts) = request.into_parts();
                    let RequestParts { origin, request, .. } = parts;
                    start.go(inner, shard, (origin, request), registration, arrived);
                    continue;
                }
                let peer = request.origin().clone();
                let refused = (&peer, &*request);
                inner.monitoring.refused(refused, entry.serving(), arrived, ReturnCode::Permission);
                Counters::add(&inner.counters.requests_closing);
                respond::refuse(inner, request, ReturnCode::Permission, "");
                inner.counters.handler_not_run();
                give_place(inner, entry, &peer, &mut todo);
                let_go(inner, registration);
            }
        }
    }
}

fn pass(inner: &Inner, waiting: Waiting, todo: &mut Vec<AdmissionStep>) {
    let registration = waiting.registration.clone();
    if let Some(entry) = registration.data_as() {
        pass_gates(inner, entry, waiting, todo);
    }
    let_go(inner, registration);
}

// The RPC's gate first: who waits there has no place in the pool, which is for others meanwhile.
fn pass_gates(
    inner: &Inner,
    entry: &RegisteredRpc,
    mut waiting: Waiting,
    todo: &mut Vec<AdmissionStep>,
) {
    let peer = waiting.request.origin().clone();
    let (may_wait, host) = (|| !inner.shutdown.has_begun(), || host_of(inner, &peer));
    if let Some(own) = entry.own_gate.as_ref().filter(|_| !waiting.in_own) {
        waiting = match own.enter(&peer, host, waiting, may_wait) {
            Entrance::In(waiting) => Waiting { in_own: true, ..waiting },
            Entrance::Busy(waiting) => return waiting.refuse(inner, entry, ReturnCode::Busy),
            Entrance::Waits => return,
        };
    }
    match entry.gate.enter(&peer, host, waiting, may_wait) {
        Entrance::In(waiting) => todo.push(AdmissionStep::Inside(waiting)),
        Entrance::Busy(waiting) => {
            // Its place first: whoever is told may look. Who is at a plain gate here may let in
            // there.
            let is_plain = entry.gate.is_plain();
            let go = |next| if is_plain { AdmissionStep::AtGate(next) } else { moved(inner, next) };
            todo.extend(leave_own(entry, &peer).map(go));
            waiting.refuse(inner, entry, ReturnCode::Busy);
        }
        Entrance::Waits => {}
    }
}

/// Gives a place of an RPC back. Returns who has it now, and is to go to its pool's gate.
fn leave_own(entry: &RegisteredRpc, peer: &Addr) -> Option<Waiting> {
    let next = entry.own_gate.as_ref()?.leave(peer)?;
    Some(Waiting { in_own: true, ..next })
}

/// Gives the places of a request of `peer` to those who wait for them.
fn give_place(inner: &Inner, entry: &RegisteredRpc, peer: &Addr, todo: &mut Vec<AdmissionStep>) {
    let next = match leave_own(entry, peer) {
        // Nobody waits in the pool: the place there goes on with that of the RPC.
        Some(next) if next.is_for(&entry.gate) && entry.gate.may_hand_over(peer, next.origin()) => {
            entry.gate.hand_over(peer, next.origin(), || host_of(inner, next.origin()));
            todo.push(AdmissionStep::Inside(next));
            return;
        }
        next => next,
    };
    // To the end of the line in the pool: behind who waits there, of whom one is let in now.
    let waited = entry.gate.leave(peer);
    todo.extend(next.map(|next| moved(inner, next)));
    todo.extend(waited.map(AdmissionStep::Inside));
}

/// Brings a request that got a place of its RPC to its pool's gate. A plain gate here is that of
/// another pool, to or from which the RPC was moved. The request goes in there whether there is
/// room or not, because only progress ULTs know.
fn moved(inner: &Inner, next: Waiting) -> AdmissionStep {
    let (peer, host) = (next.origin(), || host_of(inner, next.origin()));
    match next.registration.data_as::<RegisteredRpc>() {
        Some(entry) if entry.gate.enter_late(peer, host) => AdmissionStep::Inside(next),
        _ => AdmissionStep::AtGate(next),
    }
}

/// If the pool of a request has been removed, and its RPC had been moved to another one before:
/// what it is registered with now. The place in the pool goes over.
fn moved_on(
    inner: &Inner,
    (registration, shard): (&Arc<Registration>, u8),
    peer: &Addr,
    todo: &mut Vec<AdmissionStep>,
) -> Option<Arc<Registration>> {
    let before =
        registration.data_as::<RegisteredRpc>().filter(|before| before.pool.is_removed())?;
    let now = inner.shards.get(shard).core.registered(registration.id())?;
    // Not what was registered after it had been deregistered, nor where others must not spawn.
    let is_it = |entry: &&RegisteredRpc| {
        !entry.pool.is_removed()
            && may_spawn(&entry.pool)
            && std::ptr::addr_eq(Arc::as_ptr(&before.run), Arc::as_ptr(&entry.run))
    };
    let Some(entry) = now.data_as::<RegisteredRpc>().filter(is_it) else {
        let_go(inner, now);
        return None;
    };
    entry.gate.enter_beyond(peer, || host_of(inner, peer));
    todo.extend(before.gate.leave(peer).map(AdmissionStep::Inside));
    Some(now)
}

/// Refuses all that wait at gates: the instance shuts down.
pub(crate) fn refuse_waiting(inner: &Inner) {
    let mut todo = Vec::new();
    for waiting in inner.gates.give_back() {
        Counters::add(&inner.counters.requests_closing);
        let (registration, in_own) = (waiting.registration.clone(), waiting.in_own);
        let peer = waiting.request.origin().clone();
        let Some(entry) = registration.data_as::<RegisteredRpc>() else { continue };
        waiting.refuse(inner, entry, ReturnCode::Permission);
        if in_own {
            todo.extend(leave_own(entry, &peer).map(|next| moved(inner, next)));
        }
        let_go(inner, registration);
    }
    go_on(inner, todo);
}

/// The facts that the handler of a request needs, once the request is through all gates.
struct HandlerSpawn<'a> {
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
    fn prepare(inner: &'a Inner, shard: u8, entry: &RegisteredRpc) -> Option<Self> {
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
    fn go(
        self,
        inner: &Inner,
        shard: u8,
        (origin, request): (Addr, RawRequest),
        registration: Arc<Registration>,
        arrived: Option<Moment>,
    ) {
        let Self { instance, pool, rpc, provider, tasklet, priority, stealable } = self;
        let about = (&origin, &request);
        let served = || registration.data_as::<RegisteredRpc>().map(RegisteredRpc::serving);
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
    let Some(registration) = moved_on(inner, came, origin, &mut todo) else {
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
    go_on(inner, todo);
    inner.shutdown.leave();
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
                unwound(reply, &*caught);
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

    /// No unit could be made. None can for those who wait for its place, either: they are refused.
    #[cold]
    fn did_not_run(&self, inner: &Inner, entry: &RegisteredRpc) {
        Counters::add(&inner.counters.requests_no_ult);
        inner.counters.handler_not_run();
        self.reply.fail(ReturnCode::Again, no_ult(entry));
        let mut todo = Vec::new();
        give_place(inner, entry, self.reply.origin(), &mut todo);
        while let Some(next) = todo.pop() {
            let (waiting, inside) = match next {
                AdmissionStep::AtGate(waiting) => (waiting, false),
                AdmissionStep::Inside(waiting) => (waiting, true),
            };
            Counters::add(&inner.counters.requests_no_ult);
            let registration = waiting.registration.clone();
            let peer = waiting.request.origin().clone();
            let Some(entry) = registration.data_as::<RegisteredRpc>() else { continue };
            waiting.refuse(inner, entry, ReturnCode::Again);
            if inside {
                inner.counters.handler_not_run();
                give_place(inner, entry, &peer, &mut todo);
            } else {
                todo.extend(leave_own(entry, &peer).map(AdmissionStep::AtGate));
            }
            let_go(inner, registration);
        }
    }
}

/// Why there was none.
fn no_ult(entry: &RegisteredRpc) -> &'static str {
    match entry.pool.is_removed() {
        true => "no ULT could be made for its handler: its pool has been removed",
        false => respond::NO_ULT,
    }
}

#[cold]
fn unwound(reply: &mut Shared<Reply>, panic: &(dyn Any + Send)) {
    if ult::is_exit(panic) {
        // As if it had returned: if it has left its request to others, they answer, and one that
        // wants no answer is done with.
        if reply.wants_response() && Shared::get_mut(reply).is_some() {
            reply.ended_without_answer();
        }
        return;
    }
    let inner = reply.instance().inner();
    let count = Counters::add(&inner.counters.handlers_panicked);
    let message = message_of(panic);
    let (rpc, provider) = (reply.rpc(), reply.provider());
    // A peer that has found out how must not fill the log.
    if count.is_power_of_two() {
        log!(inner.log, ERROR, rpc, %provider, message, count, "handler panicked");
    }
    reply.panicked(&message);
}

impl Drop for RunningHandler {
    fn drop(&mut self) {
        let Some(registration) = self.registration.take() else { return };
        if let Some(entry) = registration.data_as() {
            let inner = self.reply.instance().inner();
            self.reply.watch.ended();
            self.did_not_run(inner, entry);
            inner.shutdown.leave();
            let_go(inner, registration);
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
        give_place(inner, entry, peer, &mut todo);
        go_on(inner, todo);
    }
    inner.shutdown.leave();
}

/// Gives the places of a request back: for its handler or its answer, whichever comes last.
pub(crate) fn give_back(inner: &Inner, places: &Registration, peer: &Addr) {
    if let Some(entry) = places.data_as::<RegisteredRpc>() {
        leave(inner, entry, peer);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use margo_config::{Admission, Overload, Pool, Xstream};
    use ult::Semaphore;

    use super::*;
    use crate::{ProviderHandle, Rpc};

    const HOLD: Rpc<u32, u32> = Rpc::new("hold");
    const PATIENCE: Duration = Duration::from_secs(60);

    /// A service of `HOLD`, with room for one request; who waits, and who may go on, is told.
    fn holding(service: &Instance, pool: &PoolRef) -> [Arc<Semaphore>; 2] {
        let (begun, go) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
        let (here, wait) = (begun.clone(), go.clone());
        let wait = move |n| {
            here.release(1);
            wait.acquire(1).forget();
            n
        };
        let bounds = Admission::new(1).overload(Overload::Wait);
        service.serve(HOLD).pool(pool).admission(bounds).function(wait).unwrap();
        [begun, go]
    }

    /// The next request that waits at a gate.
    fn take_waiting(inner: &Inner) -> Waiting {
        loop {
            if let Some(waiting) = inner.gates.give_back().pop() {
                return waiting;
            }
            std::thread::yield_now();
        }
    }

    fn add(service: &Instance, name: &str) -> PoolRef {
        let pool = Pool::from_json(&format!(r#"{{ "name": "{name}" }}"#)).unwrap();
        let pool = service.layout().add_pool(pool).unwrap().pool;
        let json = format!(r#"{{ "name": "{name}", "scheduler": {{ "pools": ["{name}"] }} }}"#);
        service.layout().add_xstream(Xstream::from_json(&json).unwrap()).unwrap();
        pool
    }

    /// A request for which no unit could be made, because its pool was removed after it had been
    /// let in there.
    #[test]
    fn a_request_in_hand_while_its_pool_is_removed_goes_where_its_rpc_went() {
        let service = Instance::builder("na+sm://").start().unwrap();
        let (from, to) = (add(&service, "from"), add(&service, "to"));
        let [begun, go] = holding(&service, &from);
        let client = Instance::builder("na+sm://").listen(false).start().unwrap();
        let target = ProviderHandle::from(client.lookup(service.self_addr().uri()).unwrap());
        let first = client.rpc(HOLD, &target, &1).start().unwrap();
        begun.acquire_timeout(1, PATIENCE).expect("it is handled").forget();
        let second = client.rpc(HOLD, &target, &2).start().unwrap();
        let inner = service.inner();
        let waiting = take_waiting(inner);
        go.release(1);
        assert_eq!(first.wait_timeout(PATIENCE).unwrap().unwrap(), 1);
        service.layout().set_handler_pool(HOLD, ProviderId::DEFAULT, &to).unwrap();

        // As `go_on`, between its look at the pool and the spawn.
        let Waiting { request, registration, .. } = waiting;
        let entry = registration.data_as::<RegisteredRpc>().unwrap();
        let own_gate = entry.own_gate.as_ref().unwrap();
        own_gate.enter_beyond(request.origin(), || None);
        entry.gate.enter_beyond(request.origin(), || None);
        service.layout().remove_xstream("from").unwrap();
        service.layout().remove_pool(&from).unwrap();
        let start = HandlerSpawn::prepare(inner, 0, entry).unwrap();
        let (core, parts) = request.into_parts();
        let RequestParts { origin, request, .. } = parts;
        start.go(inner, core.shard(), (origin, request), registration.clone(), None);

        begun.acquire_timeout(1, PATIENCE).expect("it is handled").forget();
        assert_eq!(service.monitoring().load(&to).unwrap().in_hand, 1);
        go.release(1);
        assert_eq!(second.wait_timeout(PATIENCE).unwrap().unwrap(), 2);
        client.finalize_and_wait().unwrap();
        service.finalize_and_wait().unwrap();
        let places = [&entry.gate, own_gate].map(|gate| gate.load().in_hand);
        assert_eq!((places, inner.shutdown.handlers()), ([0, 0], 0));
    }

    /// Tells where it is dropped, and panics there.
    struct Loud(std::sync::mpsc::Sender<Option<String>>);

    impl Drop for Loud {
        fn drop(&mut self) {
            let here = ult::current().filter(|here| !here.is_tasklet);
            self.0.send(here.map(|here| here.pool.to_string())).unwrap();
            panic!("a destructor of the user's");
        }
    }

    /// The RPC of a request is deregistered while that is on its way in, so that the request has
    /// the last there is of it, and the request is refused.
    #[test]
    fn the_last_of_an_rpc_goes_in_its_pool_and_not_where_requests_come_in() {
        let service = Instance::builder("na+sm://").start().unwrap();
        let pool = add(&service, "own");
        let [begun, go] = holding(&service, &pool);
        let client = Instance::builder("na+sm://").listen(false).start().unwrap();
        let target = ProviderHandle::from(client.lookup(service.self_addr().uri()).unwrap());
        let first = client.rpc(HOLD, &target, &1).start().unwrap();
        begun.acquire_timeout(1, PATIENCE).expect("it is handled").forget();
        let (inner, (sender, dropped)) = (service.inner(), std::sync::mpsc::channel());
        for has_own_gate in [false, true] {
            let refused = client.rpc(HOLD, &target, &2).start().unwrap();
            let Waiting { request, registration, .. } = take_waiting(inner);
            let (core, parts) = request.into_parts();
            let loud = Loud(sender.clone());
            let run = Arc::new(move |_: &mut Shared<Reply>| _ = &loud);
            let gate = Arc::new(RequestGate::of_pool(Admission::new(1), false));
            assert!(gate.enter_plain(&service.self_addr(), || None), "it is full now");
            let own_gate = has_own_gate.then(|| Arc::new(RequestGate::of_rpc(Admission::new(1))));
            let entry = registration.data_as::<RegisteredRpc>().unwrap().clone();
            let entry = RegisteredRpc { run, gate, own_gate, ..entry };
            let last = Registration::with_id(registration.id(), "hold").data(Arc::new(entry));
            dispatch(inner, &core, RequestParts { registration: Some(Arc::new(last)), ..parts });
            let place = dropped.recv_timeout(PATIENCE).unwrap();
            assert_eq!(place.as_deref(), Some(pool.name()), "on a ULT");
            let error = refused.wait_timeout(PATIENCE).unwrap().unwrap_err();
            assert!(matches!(error, crate::ForwardError::Busy { .. }), "{error}");
        }
        go.release(1);
        assert_eq!(first.wait_timeout(PATIENCE).unwrap().unwrap(), 1);
        client.finalize_and_wait().unwrap();
        service.finalize_and_wait().unwrap();
    }
}
