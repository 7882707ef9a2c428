//! Monitors: they are told of each call once at both ends, of transfers, of the instance's life.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::common::{self, PATIENCE, Pair, TRANSPORTS, bounded, on_each};
use margo::config::Admission;
use margo::monitor::{
    BulkDirection, BulkOutcome, BulkSpan, CallOutcome, LifeEvent, Monitor, OriginSpan,
    RequestOutcome, TargetSpan,
};
use margo::{Access, Bulk, ForwardError, Instance, OneWay, ProviderHandle, ProviderId, Rpc};
use ult::{Eventual, Semaphore};

const ECHO: Rpc<Vec<u8>, Vec<u8>> = Rpc::new("echo");
const PANIC: Rpc<(), ()> = Rpc::new("panic");
const FAIL: Rpc<(), ()> = Rpc::new("fail");
const SILENT: Rpc<(), ()> = Rpc::new("silent");
const HOLD: Rpc<(), ()> = Rpc::new("hold");
const MISSING: Rpc<(), ()> = Rpc::new("missing");
const RELAY: Rpc<(), ()> = Rpc::new("relay");
const FETCH: Rpc<Bulk, ()> = Rpc::new("fetch");
const LOG: OneWay<u32> = OneWay::new("log");

/// Keeps all that it is told.
#[derive(Default)]
struct Record {
    origin: Mutex<Vec<OriginSpan>>,
    target: Mutex<Vec<TargetSpan>>,
    bulk: Mutex<Vec<BulkSpan>>,
    events: Mutex<Vec<String>>,
}

impl Monitor for Record {
    fn on_origin_call(&self, span: &OriginSpan) {
        self.origin.lock().unwrap().push(span.clone());
    }

    fn on_target_call(&self, span: &TargetSpan) {
        self.target.lock().unwrap().push(span.clone());
    }

    fn on_bulk(&self, span: &BulkSpan) {
        self.bulk.lock().unwrap().push(span.clone());
    }

    fn on_event(&self, event: &LifeEvent<'_>) {
        let text = match event {
            LifeEvent::Registered { rpc, provider, pool, .. } => {
                format!("registered {rpc}:{provider} in {}", pool.name())
            }
            LifeEvent::Deregistered { .. } => "deregistered".to_owned(),
            LifeEvent::PoolAdded(pool) => format!("pool {} added", pool.name()),
            LifeEvent::PoolRemoved(pool) => format!("pool {} removed", pool.name()),
            LifeEvent::XstreamAdded(xstream) => format!("xstream {} added", xstream.name()),
            LifeEvent::XstreamRemoved(xstream) => format!("xstream {} removed", xstream.name()),
            LifeEvent::Finalizing => "finalizing".to_owned(),
            LifeEvent::Finalized => "finalized".to_owned(),
            other => format!("{other:?}"),
        };
        self.events.lock().unwrap().push(text);
    }
}

/// Waits until `what` has come to `count`.
fn until<T: Clone>(what: &Mutex<Vec<T>>, count: usize) -> Vec<T> {
    let started = Instant::now();
    loop {
        let there = what.lock().unwrap().clone();
        if there.len() >= count {
            return there;
        }
        assert!(started.elapsed() < PATIENCE, "{} of {count} came", there.len());
        std::thread::sleep(Duration::from_millis(1));
    }
}

struct Watched {
    pair: Pair,
    service: Arc<Record>,
    client: Arc<Record>,
}

impl Watched {
    fn new(pair: Pair) -> Self {
        let (service, client) = (Arc::new(Record::default()), Arc::new(Record::default()));
        pair.service.monitoring().add_monitor(service.clone()).keep();
        pair.client.monitoring().add_monitor(client.clone()).keep();
        Self { pair, service, client }
    }

    /// The outcomes of the calls at the origin, and of the requests at the target.
    fn outcomes(&self, count: usize) -> (Vec<CallOutcome>, Vec<RequestOutcome>) {
        let origin = until(&self.client.origin, count).iter().map(|span| span.outcome).collect();
        let target = until(&self.service.target, count).iter().map(|span| span.outcome).collect();
        (origin, target)
    }
}

#[test]
fn a_call_has_one_span_at_each_end_and_its_moments_are_in_order() {
    on_each(|pair| {
        let watched = Watched::new(pair);
        let Pair { service, client } = &watched.pair;
        service.register(ECHO, |handle| drop(handle.respond(handle.args()))).unwrap();
        let target = watched.pair.target();
        assert_eq!(client.forward(ECHO, &target, &vec![7; 100]).unwrap(), vec![7; 100]);
        let origin = until(&watched.client.origin, 1);
        let at_target = until(&watched.service.target, 1);
        assert_eq!((origin.len(), at_target.len()), (1, 1));
        let span = &origin[0];
        assert_eq!((span.rpc, span.provider, span.parent), ("echo", ProviderId::DEFAULT, None));
        assert_eq!((span.outcome, span.weight, span.one_way), (CallOutcome::Ok, 1, false));
        assert_eq!(span.peer, *target.addr());
        // A length and the bytes.
        assert!((101..=108).contains(&span.bytes_out), "{}", span.bytes_out);
        assert_eq!(span.bytes_in, Some(span.bytes_out));
        let moments = [
            Some(span.created),
            span.encode_start,
            span.encode_end,
            span.arrived,
            span.resumed,
            span.decoded,
        ];
        assert!(moments.iter().all(Option::is_some), "{span:?}");
        assert!(moments.is_sorted(), "{span:?}");
        assert!(span.sent > span.encode_end);
        let request = &at_target[0];
        assert_eq!((request.rpc, request.outcome), ("echo", RequestOutcome::Ok));
        assert_eq!((request.rpc_id, request.bytes_in), (span.rpc_id, span.bytes_out));
        assert_eq!(request.bytes_out, Some(span.bytes_out));
        assert_eq!(request.pool, service.layout().rpc_pool());
        let moments = [
            Some(request.arrived),
            request.admitted,
            request.started,
            request.decoded,
            request.respond_start,
            request.respond_end,
            request.ended,
        ];
        assert!(moments.iter().all(Option::is_some), "{request:?}");
        assert!(moments.is_sorted(), "{request:?}");
        assert!(request.sent >= request.respond_start);
        // Of one process, so on one clock.
        assert!(request.arrived > span.encode_end.unwrap());
        assert!(request.respond_start < span.arrived);
        watched.pair.end();
    });
}

#[test]
fn every_way_to_end_is_told_once_at_both_ends() {
    on_each(|pair| {
        let watched = Watched::new(pair);
        let Pair { service, client } = &watched.pair;
        service.register(PANIC, |_| panic!("on purpose")).unwrap();
        service.register(FAIL, |handle| drop(handle.fail("no"))).unwrap();
        service.register(SILENT, drop).unwrap();
        service.register(ECHO, |handle| drop(handle.respond(handle.args()))).unwrap();
        let target = watched.pair.target();
        let forward = |rpc: Rpc<(), ()>| client.forward(rpc, &target, &()).unwrap_err();
        assert!(matches!(forward(PANIC), ForwardError::Panicked { .. }));
        assert!(matches!(forward(FAIL), ForwardError::Failed { .. }));
        assert!(matches!(forward(SILENT), ForwardError::Failed { .. }));
        // Nothing where a length should be.
        assert!(matches!(forward(Rpc::new("echo")), ForwardError::BadArguments { .. }));
        // More than there is.
        const LONG: Rpc<Vec<u8>, (u64, u64)> = Rpc::new("echo");
        let error = client.forward(LONG, &target, &vec![]).unwrap_err();
        assert!(matches!(error, ForwardError::Decode { .. }), "{error}");
        let (origin, at_target) = watched.outcomes(5);
        use {CallOutcome as C, RequestOutcome as R};
        assert_eq!(origin, [C::Panicked, C::Failed, C::Failed, C::BadArguments, C::Decode]);
        assert_eq!(at_target, [R::Panicked, R::Failed, R::Failed, R::BadArguments, R::Ok]);
        // Of this one the target has no handler that it could be told of.
        assert!(matches!(forward(MISSING), ForwardError::NotRegistered { .. }));
        let origin = until(&watched.client.origin, 6);
        assert_eq!((origin.len(), origin[5].outcome), (6, C::NotRegistered));
        assert_eq!(watched.service.target.lock().unwrap().len(), 5);
        watched.pair.end();
    });
}

/// A service whose handlers of [`HOLD`] wait for a permit each.
fn hold(service: &Instance) -> Arc<Semaphore> {
    let go = Arc::new(Semaphore::new(0));
    let may_go = go.clone();
    service
        .serve(HOLD)
        .admission(Admission::new(1))
        .handler(move |handle| {
            may_go.acquire(1).forget();
            let _ = handle.respond(&());
        })
        .unwrap();
    go
}

#[test]
fn what_is_refused_times_out_or_is_canceled_is_told_once() {
    on_each(|pair| {
        let watched = Watched::new(pair);
        let Pair { service, client } = &watched.pair;
        let go = hold(service);
        let target = watched.pair.target();
        let first = client.rpc(HOLD, &target, &()).start().unwrap();
        until_in_hand(service);
        let busy = client.forward(HOLD, &target, &()).unwrap_err();
        assert!(matches!(busy, ForwardError::Busy { .. }), "{busy}");
        first.cancel();
        assert!(matches!(first.wait().unwrap_err(), ForwardError::Canceled { .. }));
        go.release(1);
        let (origin, at_target) = watched.outcomes(2);
        assert_eq!(origin, [CallOutcome::Busy, CallOutcome::Canceled]);
        // Its handler ran and answered; that nobody waits is the origin's business.
        assert_eq!(at_target, [RequestOutcome::Busy, RequestOutcome::Ok]);
        let refused = watched.service.target.lock().unwrap()[0].clone();
        assert!(refused.admitted.is_none() && refused.started.is_none());

        let short = Duration::from_millis(20);
        let late = client.forward_timed(HOLD, &target, &(), short).unwrap_err();
        assert!(matches!(late, ForwardError::TimedOut { .. }), "{late}");
        go.release(1);
        let (origin, at_target) = watched.outcomes(3);
        assert_eq!(origin[2], CallOutcome::TimedOut);
        // On a machine that is very busy it comes too late to begin.
        assert!(matches!(at_target[2], RequestOutcome::Ok | RequestOutcome::TimedOut));
        watched.pair.end();
    });
}

#[test]
fn requests_that_nobody_looks_at_and_one_way_ones_have_spans() {
    on_each(|pair| {
        let watched = Watched::new(pair);
        let Pair { service, client } = &watched.pair;
        service.register(ECHO, |handle| drop(handle.respond(handle.args()))).unwrap();
        service.serve(LOG).handler(drop).unwrap();
        const LEAVES: OneWay<u32> = OneWay::new("leaves");
        service.serve(LEAVES).handler(|_| ult::exit()).unwrap();
        let target = watched.pair.target();
        client.rpc(ECHO, &target, &vec![]).start().unwrap().detach();
        let span = until(&watched.client.origin, 1)[0].clone();
        assert_eq!((span.outcome, span.resumed), (CallOutcome::Ok, None));
        client.send(LOG, &target, &5).unwrap();
        let span = until(&watched.client.origin, 2)[1].clone();
        assert_eq!((span.outcome, span.one_way, span.bytes_in), (CallOutcome::Ok, true, None));
        let request = until(&watched.service.target, 2)[1].clone();
        assert_eq!((request.outcome, request.one_way), (RequestOutcome::Ok, true));
        assert!(request.ended.is_some() && request.respond_start.is_none());
        client.send(LEAVES, &target, &5).unwrap();
        let request = until(&watched.service.target, 3)[2].clone();
        assert_eq!((request.rpc, request.outcome), ("leaves", RequestOutcome::Ok));
        watched.pair.end();
    });
}

#[test]
fn a_nested_call_has_its_parent_at_both_ends() {
    on_each(|pair| {
        let watched = Watched::new(pair);
        let Pair { service, client } = &watched.pair;
        service.register(ECHO, |handle| drop(handle.respond(handle.args()))).unwrap();
        let own = ProviderHandle::from(service.self_addr());
        service
            .register(RELAY, move |handle| {
                handle.instance().forward(ECHO, &own, &vec![]).unwrap();
                let _ = handle.respond(&());
            })
            .unwrap();
        client.forward(RELAY, &watched.pair.target(), &()).unwrap();
        let relay = Some(RELAY.id(ProviderId::DEFAULT));
        assert_eq!(until(&watched.client.origin, 1)[0].parent, None);
        let nested = until(&watched.service.origin, 1)[0].clone();
        assert_eq!((nested.rpc, nested.parent), ("echo", relay));
        let mut requests = until(&watched.service.target, 2);
        requests.sort_by_key(|span| span.rpc);
        assert_eq!((requests[0].rpc, requests[0].parent), ("echo", relay));
        assert_eq!((requests[1].rpc, requests[1].parent), ("relay", None));
        watched.pair.end();
    });
}

#[test]
fn a_transfer_is_told_with_the_request_that_it_belongs_to() {
    on_each(|pair| {
        let watched = Watched::new(pair);
        let Pair { service, client } = &watched.pair;
        service
            .register(FETCH, |handle| {
                let mut buffer = handle.instance().memory().bulk_buffer(5000).unwrap();
                handle.pull(handle.args(), 0, &mut buffer, 0..5000).unwrap();
                let beyond = handle.push(handle.args(), 0, &mut buffer, 0..10);
                assert!(beyond.is_err(), "it is read only");
                let _ = handle.respond(&());
            })
            .unwrap();
        let exposed = client.expose(vec![1; 5000], Access::ReadOnly).unwrap();
        client.forward(FETCH, &watched.pair.target(), exposed.bulk()).unwrap();
        let spans = until(&watched.service.bulk, 2);
        let (pull, push) = (&spans[0], &spans[1]);
        assert_eq!((pull.direction, pull.bytes), (BulkDirection::Pull, 5000));
        assert_eq!((pull.outcome, push.outcome), (BulkOutcome::Ok, BulkOutcome::Failed));
        assert_eq!(push.direction, BulkDirection::Push);
        assert_eq!(pull.rpc_id, Some(FETCH.id(ProviderId::DEFAULT)));
        assert!(pull.ended >= Some(pull.created) && pull.resumed >= pull.ended);
        let request = until(&watched.service.target, 1)[0].clone();
        let of = pull.request.as_ref().unwrap();
        assert_eq!((of.arrived, &of.peer), (request.arrived, &request.peer));
        assert_eq!((request.bulk.transfers, request.bulk.bytes), (2, 5010));
        assert!(request.bulk.nanos >= pull.ended.unwrap().nanos_since(pull.created));
        watched.pair.end();
    });
}

/// The service that is killed.
#[test]
fn service_process() {
    common::process::serve_if_asked(|service| {
        service.register(HOLD, |_handle| ult::Eventual::<()>::new().wait_ready()).unwrap();
    });
}

#[test]
fn a_peer_that_is_killed_is_an_outcome_too() {
    for transport in TRANSPORTS {
        let service = common::process::Service::start(module_path!(), transport);
        let own = transport.split("://").next().unwrap();
        let client = Instance::builder(format!("{own}://")).listen(false).start().unwrap();
        let record = Arc::new(Record::default());
        client.monitoring().add_monitor(record.clone()).keep();
        let target = ProviderHandle::from(client.lookup(&service.address).unwrap());
        let calls: Vec<_> =
            (0..3).map(|_| client.rpc(HOLD, &target, &()).start().unwrap()).collect();
        drop(service);
        for result in margo::wait_all(calls) {
            assert!(matches!(result.unwrap_err(), ForwardError::Network { .. }));
        }
        let spans = until(&record.origin, 3);
        assert!(spans.iter().all(|span| span.outcome == CallOutcome::Network));
        client.finalize_and_wait().unwrap();
        assert_eq!(record.origin.lock().unwrap().len(), 3);
    }
}

fn until_in_hand(service: &Instance) {
    let started = Instant::now();
    while service.monitoring().rpc_load(HOLD, ProviderId::DEFAULT).unwrap().in_hand == 0 {
        assert!(started.elapsed() < PATIENCE);
        std::thread::yield_now();
    }
}

#[test]
fn what_becomes_of_the_instance_is_told_in_order() {
    let record = Arc::new(Record::default());
    let instance = Instance::builder("na+sm://").monitor(record.clone()).start().unwrap();
    let before = record.events.lock().unwrap().len();
    instance.register(PANIC, drop).unwrap();
    let pool = instance.layout().add_pool_from_json(r#"{ "name": "extra" }"#).unwrap();
    let xstream = r#"{ "name": "helper", "scheduler": { "pools": ["extra"] } }"#;
    instance.layout().add_xstream_from_json(xstream).unwrap();
    instance.layout().remove_xstream("helper").unwrap();
    instance.layout().remove_pool(&pool).unwrap();
    instance.finalize_and_wait().unwrap();
    let events = record.events.lock().unwrap()[before..].to_vec();
    assert_eq!(
        events,
        [
            "registered panic:65535 in __primary__",
            "pool extra added",
            "xstream helper added",
            "xstream helper removed",
            "pool extra removed",
            "finalizing",
            "finalized",
        ]
    );
}

#[test]
fn a_monitor_that_panics_or_goes_away_harms_nobody() {
    struct Loud;
    impl Monitor for Loud {
        fn on_origin_call(&self, _: &OriginSpan) {
            panic!("in a monitor");
        }
        fn on_target_call(&self, _: &TargetSpan) {
            panic!("in a monitor");
        }
        fn on_event(&self, _: &LifeEvent<'_>) {
            panic!("in a monitor");
        }
    }
    for transport in TRANSPORTS {
        bounded("calls with a monitor that panics", move || {
            let pair = Pair::new(transport);
            let record = Arc::new(Record::default());
            pair.client.monitoring().add_monitor(Arc::new(Loud)).keep();
            pair.service.monitoring().add_monitor(Arc::new(Loud)).keep();
            let attached = pair.client.monitoring().add_monitor(record.clone());
            pair.service.register(ECHO, |handle| drop(handle.respond(handle.args()))).unwrap();
            let target = pair.target();
            for _ in 0..10 {
                pair.client.forward(ECHO, &target, &vec![1]).unwrap();
            }
            drop(attached);
            pair.client.forward(ECHO, &target, &vec![1]).unwrap();
            pair.end();
            assert_eq!(record.origin.lock().unwrap().len(), 10, "those of its time");
        });
    }
}

#[test]
fn a_monitor_that_comes_in_between_does_not_see_half_a_call() {
    on_each(|pair| {
        let go = Arc::new(Eventual::new());
        let may_go = go.clone();
        pair.service
            .register(HOLD, move |handle| {
                may_go.wait();
                let _ = handle.respond(&());
            })
            .unwrap();
        let target = pair.target();
        let early = pair.client.rpc(HOLD, &target, &()).start().unwrap();
        let record = Arc::new(Record::default());
        pair.client.monitoring().add_monitor(record.clone()).keep();
        let late = pair.client.rpc(HOLD, &target, &()).start().unwrap();
        go.set(()).unwrap();
        early.wait().unwrap();
        late.wait().unwrap();
        pair.end();
        assert_eq!(record.origin.lock().unwrap().len(), 1);
    });
}
