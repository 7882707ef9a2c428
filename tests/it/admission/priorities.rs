//! Which handlers run first: priorities of RPCs and of providers, pools of the kinds that put
//! started handlers first, and that nobody waits for ever.

use std::sync::{Arc, Mutex};

use crate::common::{TRANSPORTS, bounded, builder};
use margo::{ForwardRequest, Instance, Priority, ProviderHandle, ProviderId, RegisterError, Rpc};
use ult::Eventual;

const HOLD: Rpc<(), ()> = Rpc::new("hold");
const HIGH: Rpc<u32, u32> = Rpc::new("high");
const NORMAL: Rpc<u32, u32> = Rpc::new("normal");
const LOW: Rpc<u32, u32> = Rpc::new("low");

/// A service with a pool whose one xstream is held until the test says so, and the order in which
/// handlers of that pool have begun.
struct Held {
    service: Instance,
    client: Instance,
    target: ProviderHandle,
    open: Arc<Eventual<()>>,
    order: Arc<Mutex<Vec<(Priority, u32)>>>,
    holder: Option<ForwardRequest<()>>,
}

fn service(transport: &str, kind: &str) -> Instance {
    let document = format!(
        r#"{{ "margo": {{ "address": "{transport}" }},
             "argobots": {{ "pools": [{{ "name": "work", "kind": "{kind}" }}],
                 "xstreams": [{{ "name": "x", "scheduler": {{ "pools": ["work"] }} }}] }} }}"#
    );
    margo::init(&document).unwrap()
}

impl Held {
    fn new(transport: &str) -> Self {
        let service = service(transport, "prio_wait");
        let pool = service.layout().pool("work").unwrap();
        let (order, open) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Eventual::new()));
        let all = [(HIGH, Priority::High), (NORMAL, Priority::Normal), (LOW, Priority::Low)];
        for (rpc, priority) in all {
            let order = order.clone();
            let note = move |n| {
                order.lock().unwrap().push((priority, n));
                n
            };
            service.serve(rpc).pool(&pool).priority(priority).function(note).unwrap();
        }
        let (begun, may_end) = (Arc::new(Eventual::new()), open.clone());
        let has_begun = begun.clone();
        let hold = move |()| {
            let _ = has_begun.set(());
            // Without giving the xstream away.
            while !may_end.is_ready() {
                std::thread::yield_now();
            }
        };
        service.serve(HOLD).pool(&pool).function(hold).unwrap();
        let own = transport.split("://").next().unwrap();
        let client = builder(format!("{own}://")).listen(false).start().unwrap();
        let target = ProviderHandle::from(client.lookup(service.self_addr().uri()).unwrap());
        let holder = Some(client.rpc(HOLD, &target, &()).start().unwrap());
        begun.wait();
        Self { service, client, target, open, order, holder }
    }

    fn call(&self, rpc: Rpc<u32, u32>, n: u32) -> ForwardRequest<u32> {
        self.client.rpc(rpc, &self.target, &n).start().unwrap()
    }

    /// Lets the xstream go on when so many more handlers wait; the order in which they began.
    fn order_of(mut self, calls: Vec<ForwardRequest<u32>>) -> Vec<(Priority, u32)> {
        let (service, count) = (self.service.clone(), calls.len() + 1);
        bounded("the requests arrive", move || {
            while service
                .monitoring()
                .load(&service.layout().pool("work").unwrap())
                .unwrap()
                .in_hand
                < count
            {
                std::thread::yield_now();
            }
        });
        self.open.set(()).unwrap();
        self.holder.take().unwrap().wait().unwrap();
        for answer in margo::wait_all(calls) {
            answer.unwrap();
        }
        self.client.finalize_and_wait().unwrap();
        self.service.finalize_and_wait().unwrap();
        std::mem::take(&mut *self.order.lock().unwrap())
    }
}

#[test]
fn requests_that_wait_go_by_priority_and_in_order_among_equals() {
    for transport in TRANSPORTS {
        let held = Held::new(transport);
        let rpcs = [LOW, NORMAL, HIGH];
        let calls = (0..6).map(|n| held.call(rpcs[n as usize % 3], n)).collect();
        let order = held.order_of(calls);
        let expected = [
            (Priority::High, 2),
            (Priority::High, 5),
            (Priority::Normal, 1),
            (Priority::Normal, 4),
            (Priority::Low, 0),
            (Priority::Low, 3),
        ];
        assert_eq!(order, expected, "{transport}");
    }
}

#[test]
fn however_many_of_high_priority_wait_the_others_get_their_documented_share() {
    const MANY: u32 = 400;
    for transport in TRANSPORTS {
        let held = Held::new(transport);
        let mut calls: Vec<_> = (0..4).map(|n| held.call(LOW, n)).collect();
        calls.extend((0..20).map(|n| held.call(NORMAL, n)));
        calls.extend((0..MANY).map(|n| held.call(HIGH, n)));
        let order = held.order_of(calls);
        let place =
            |wanted: (Priority, u32)| 1 + order.iter().position(|place| *place == wanted).unwrap();
        for n in 0..20 {
            // One of eight, but for those that are a low one's.
            let place = place((Priority::Normal, n)) as u32;
            assert!(place <= 8 * (n + 2 + n / 7), "{transport}: normal {n} is number {place}");
            assert!(place >= 8 * n, "{transport}: normal {n} is number {place}");
        }
        for n in 0..4 {
            let place = place((Priority::Low, n)) as u32;
            assert!(place <= 64 * (n + 1), "{transport}: low {n} is number {place}");
            assert!(place > 64 * n, "{transport}: low {n} is number {place}");
        }
    }
}

#[test]
fn a_pool_that_knows_no_priorities_is_refused_and_the_rpc_does_not_move_there() {
    let service = service("na+sm://", "prio_wait");
    let (knows, plain) = (service.layout().pool("work").unwrap(), service.layout().rpc_pool());
    let register = |pool: &margo::Pool, priority| {
        service.serve(HIGH).pool(pool).priority(priority).function(|n| n)
    };
    let refused = register(&plain, Priority::High);
    assert!(matches!(refused, Err(RegisterError::NoPriorities { .. })), "{refused:?}");
    register(&knows, Priority::High).unwrap();
    let refused = service.layout().set_handler_pool(HIGH, ProviderId::DEFAULT, &plain);
    let text = refused.unwrap_err().to_string();
    assert!(text.contains("prio_wait") && text.contains("`high`"), "{text}");
    assert_eq!(service.layout().handler_pool(HIGH, ProviderId::DEFAULT), Some(knows));
    // Without a priority any pool will do.
    service.serve(LOW).pool(&plain).function(|n| n).unwrap();
    service.finalize_and_wait().unwrap();
}

#[test]
fn the_document_gives_providers_their_priorities() {
    struct Kind;
    struct Running(#[allow(dead_code, reason = "kept")] margo::Provider);
    impl margo::component::RunningProvider for Running {}
    impl margo::component::Component for Kind {
        fn type_name(&self) -> &'static str {
            "kind"
        }

        fn start(
            &self,
            instance: &Instance,
            spec: &margo::component::ProviderSpec,
        ) -> Result<
            Box<dyn margo::component::RunningProvider>,
            Box<dyn std::error::Error + Send + Sync>,
        > {
            let provider = spec.provider(instance);
            provider.register(HIGH, |handle| handle.respond(handle.args()).unwrap())?;
            let moved = instance
                .layout()
                .set_handler_pool(HIGH, provider.id(), &instance.layout().rpc_pool())
                .is_ok();
            assert_eq!(moved, spec.priority == Priority::Normal, "{spec:?}");
            Ok(Box::new(Running(provider)))
        }
    }
    let document = r#"{
        "margo": { "providers": [
            { "type": "kind", "provider_id": 1, "pool": "work", "priority": "high" },
            { "type": "kind", "provider_id": 2, "pool": "work" },
            { "type": "kind", "provider_id": 3, "pool": "work", "priority": "low" } ] },
        "argobots": { "pools": [{ "name": "work", "kind": "prio_wait" }],
            "xstreams": [{ "name": "x", "scheduler": { "pools": ["work"] } }] } }"#;
    let service = margo::init(document).unwrap();
    let running = service.start_providers(&[&Kind]).unwrap();
    assert_eq!(running.names().count(), 3);
    let shown = service.config().to_json();
    assert!(
        shown.contains(r#""priority""#) && margo::config::Config::from_json(&shown).is_ok(),
        "{shown}"
    );
    drop(running);
    service.finalize_and_wait().unwrap();
}

/// The kinds that put started handlers before new ones: with requests of both, one that comes back
/// from a wait does not queue behind all that have arrived meanwhile.
#[test]
fn started_handlers_go_before_new_ones_where_the_kind_says_so() {
    for kind in ["prio_wait", "earliest_first"] {
        let service = service("na+sm://", kind);
        let pool = service.layout().pool("work").unwrap();
        let (order, go) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Eventual::new()));
        let (seen, may_go) = (order.clone(), go.clone());
        let begun = Arc::new(ult::Semaphore::new(0));
        let has_begun = begun.clone();
        service
            .serve(LOW)
            .pool(&pool)
            .function(move |n| {
                has_begun.release(1);
                may_go.wait();
                seen.lock().unwrap().push(("started", n));
                n
            })
            .unwrap();
        let seen = order.clone();
        let note = move |n| {
            seen.lock().unwrap().push(("new", n));
            n
        };
        service.serve(NORMAL).pool(&pool).function(note).unwrap();
        let (held, may_end) = (Arc::new(Eventual::new()), Arc::new(Eventual::new()));
        let (is_held, end) = (held.clone(), may_end.clone());
        let hold = move |()| {
            let _ = is_held.set(());
            while !end.is_ready() {
                std::thread::yield_now();
            }
        };
        service.serve(HOLD).pool(&pool).function(hold).unwrap();
        let target = ProviderHandle::from(service.self_addr());
        let call = |rpc: Rpc<u32, u32>, n| service.rpc(rpc, &target, &n).start().unwrap();
        let mut calls: Vec<_> = (0..5).map(|n| call(LOW, n)).collect();
        begun.acquire(5).forget();
        let holder = service.rpc(HOLD, &target, &()).start().unwrap();
        held.wait();
        calls.extend((0..20).map(|n| call(NORMAL, n)));
        let own = service.clone();
        bounded("the requests arrive", move || {
            while own.monitoring().load(&own.layout().pool("work").unwrap()).unwrap().in_hand < 26 {
                std::thread::yield_now();
            }
        });
        go.set(()).unwrap();
        may_end.set(()).unwrap();
        holder.wait().unwrap();
        margo::wait_all(calls).into_iter().for_each(|answer| assert!(answer.is_ok()));
        let order = std::mem::take(&mut *order.lock().unwrap());
        let last = order.iter().rposition(|(what, _)| *what == "started").unwrap();
        // `earliest_first` takes in turn from those that wait long.
        assert!(last < 12, "{kind}: {order:?}");
        service.finalize_and_wait().unwrap();
    }
}
