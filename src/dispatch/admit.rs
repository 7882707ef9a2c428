//! The longer way to a handler: requests that wait at gates, are refused, or are for another shard.
//!
//! `run_handler.rs` has the way of most, which pass a plain gate or are told that it is full. A
//! request that waits for a place is started by the handler that gives its place up.

use std::sync::Arc;

use hg::{
    Core, LentRequest, OnBehalfOf, RawRequest, Registration, RequestHandle, RequestParts,
    ReturnCode,
};
use margo_config::Overload;

use crate::admission::counters::Counters;
use crate::admission::gates::{Entrance, Host};
use crate::admission::limits::{Limits, OverLimit};
use crate::admission::rules::Callers;
use crate::admission::waiting::Waiting;
use crate::dispatch::error_response::{self, NO_ULT, NOT_ALLOWED};
use crate::dispatch::registered_rpc::{RegisteredRpc, RequestGate};
use crate::dispatch::run_handler::HandlerSpawn;
use crate::elastic::may_spawn;
use crate::instance::inner::Inner;
use crate::instance::reply::Reply;
use crate::observe::audit::AuditEvent;
use crate::observe::span::RequestOutcome;
use crate::operation::token::Token;
use crate::support::contain::contain;
use crate::support::log::log;
use crate::{Addr, Principal};

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
        let (refused, outcome) = ((request.origin(), &*request), RequestOutcome::of_code(code));
        let core = &inner.shards.get(request.shard()).core;
        inner.monitoring.refused(refused, entry.serving(core), arrived, outcome);
        let detail = if code == ReturnCode::Again { no_ult(entry) } else { "" };
        error_response::refuse(inner, request, code, detail);
    }
}

/// Starts the handler of a request for a part that another shard has, in the pool of that one. Its
/// origin has sent it to the wrong shard, or asks for a part that is not there.
#[cold]
#[inline(never)]
pub(super) fn dispatch_to_part(
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
pub(super) fn not_ours(core: &Core<Token>, origin: &Addr, mut request: RawRequest) {
    LentRequest::of(core, origin, &mut request).reject(ReturnCode::NoEntry);
}

#[cold]
#[inline(never)]
pub(super) fn refuse_plainly(
    inner: &Inner,
    core: &Core<Token>,
    (origin, mut request): (&Addr, RawRequest),
    registration: Arc<Registration>,
    code: ReturnCode,
) {
    if let Some(entry) = registration.data_as::<RegisteredRpc>() {
        let outcome = RequestOutcome::of_code(code);
        inner.monitoring.refused((origin, &request), entry.serving(core), None, outcome);
    }
    error_response::refuse(inner, LentRequest::of(core, origin, &mut request), code, "");
    let_go(inner, registration);
}

/// Why the rules refuse a request.
pub(super) enum Refusal {
    NotAllowed,
    OverLimit(OverLimit),
}

/// Asks the rules whether the origin of a request may call, and whether it is not too much. An
/// instance may call itself.
#[inline]
pub(super) fn ask_rules(
    core: &Core<Token>,
    callers: &Callers,
    origin: &Addr,
    request: &mut RawRequest,
) -> Result<(), Refusal> {
    if request.is_from_ourselves() {
        return Ok(());
    }
    let caller = request.principal(&**core.endpoint(), origin);
    match callers.limits() {
        _ if !callers.may_for(caller, request.on_behalf_of()) => Err(Refusal::NotAllowed),
        None => Ok(()),
        Some(limits) => ask_limits(limits, caller, request),
    }
}

#[inline(never)]
fn ask_limits(
    limits: &Arc<Limits>,
    caller: Principal,
    request: &mut RawRequest,
) -> Result<(), Refusal> {
    match limits.admit(caller, request.payload_bytes() as u64) {
        Ok(None) => Ok(()),
        Ok(Some(charge)) => {
            request.set_charge(Box::new(charge));
            Ok(())
        }
        Err(over) => Err(Refusal::OverLimit(over)),
    }
}

/// Refuses a request by the rules. The log says which one, and not the answer.
#[cold]
#[inline(never)]
pub(super) fn refuse_by_rules(
    inner: &Inner,
    core: &Core<Token>,
    (origin, mut request): (&Addr, RawRequest),
    registration: Arc<Registration>,
    refusal: &Refusal,
) {
    let counters = &inner.counters;
    let (counter, code, outcome, detail) = match refusal {
        Refusal::NotAllowed => {
            let (code, outcome) = (ReturnCode::Permission, RequestOutcome::Permission);
            (&counters.requests_not_allowed, code, outcome, NOT_ALLOWED.to_owned())
        }
        Refusal::OverLimit(over) => {
            let (code, outcome) = (ReturnCode::Busy, RequestOutcome::Busy);
            (&counters.requests_over_limit, code, outcome, over.to_string())
        }
    };
    let count = Counters::add(counter);
    if let Some(entry) = registration.data_as::<RegisteredRpc>() {
        let caller = request.principal(&**core.endpoint(), origin);
        let who = (origin, caller, request.on_behalf_of());
        record_refusal(inner, entry, who, refusal, count);
        inner.monitoring.refused((origin, &request), entry.serving(core), None, outcome);
    }
    error_response::refuse(inner, LentRequest::of(core, origin, &mut request), code, &detail);
    let_go(inner, registration);
}

/// Tells the log and the audit file of a request that the rules refuse.
fn record_refusal(
    inner: &Inner,
    entry: &RegisteredRpc,
    (origin, caller, on_behalf_of): (&Addr, Principal, Option<&OnBehalfOf>),
    refusal: &Refusal,
    count: u64,
) {
    let (rpc, provider) = (entry.rpc, entry.provider);
    let Some(rules) = &inner.rules else { return };
    let (reason, over) = match refusal {
        Refusal::NotAllowed => ("not_allowed", None),
        Refusal::OverLimit(over) => ("over_limit", Some(over)),
    };
    let why = || match over {
        None => rules.reason(rpc, provider, (caller, on_behalf_of)),
        Some(over) => rules.reason_of(over),
    };
    // A peer that calls nothing else must not fill the log.
    if count.is_power_of_two() {
        let (log, why) = (&inner.log, why());
        let on_behalf_of = on_behalf_of.map(tracing::field::display);
        let what = "a call was refused";
        log!(
            log, WARN, rpc, %provider, %origin, %caller, on_behalf_of, why, count, "{what}"
        );
    }
    if let Some(audit) = &inner.audit {
        audit.record(|| AuditEvent::Refused {
            reason,
            why: why(),
            rpc,
            provider: provider.get(),
            caller: caller.to_string(),
            on_behalf_of: on_behalf_of.map(ToString::to_string),
            origin: origin.to_string(),
        });
    }
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
pub(super) fn has_share(
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
pub(super) fn host_of(inner: &Inner, peer: &Addr) -> Host {
    match inner.shards.of_addr(peer).core.endpoint().principal(peer) {
        Principal::Unknown => None,
        known => Some(known),
    }
}

/// The request that is next: at the gate of its RPC or of its pool, or past both.
pub(super) enum AdmissionStep {
    AtGate(Waiting),
    Inside(Waiting),
}

/// Lets a request through the gates in front of it, and those who get a place because of it.
#[inline(never)]
pub(super) fn admit(inner: &Inner, waiting: Waiting) {
    go_on(inner, vec![AdmissionStep::AtGate(waiting)]);
}

// One after the other: on a ULT's stack there is no room for a recursion of all who wait.
pub(super) fn go_on(inner: &Inner, mut todo: Vec<AdmissionStep>) {
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
                let closing = RequestOutcome::Closing;
                let core = &inner.shards.get(shard).core;
                inner.monitoring.refused(refused, entry.serving(core), arrived, closing);
                Counters::add(&inner.counters.requests_closing);
                error_response::refuse(inner, request, ReturnCode::Permission, "");
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
pub(super) fn give_place(
    inner: &Inner,
    entry: &RegisteredRpc,
    peer: &Addr,
    todo: &mut Vec<AdmissionStep>,
) {
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
pub(super) fn moved_on(
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

/// No unit could be made. None can for those who wait for its place, either: they are refused.
#[cold]
pub(super) fn did_not_run(inner: &Inner, entry: &RegisteredRpc, reply: &Reply) {
    Counters::add(&inner.counters.requests_no_ult);
    inner.counters.handler_not_run();
    reply.fail(ReturnCode::Again, no_ult(entry));
    let mut todo = Vec::new();
    give_place(inner, entry, reply.origin(), &mut todo);
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

/// Why there was none.
fn no_ult(entry: &RegisteredRpc) -> &'static str {
    match entry.pool.is_removed() {
        true => "no ULT could be made for its handler: its pool has been removed",
        false => NO_ULT,
    }
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use hg::ProviderId;
    use margo_config::{Admission, Overload, Pool, Xstream};
    use na::shared::Shared;
    use ult::{PoolRef, Semaphore};

    use super::*;
    use crate::dispatch::run_handler::dispatch;
    use crate::{Instance, ProviderHandle, Rpc};

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
