//! Handlers that start at another shard than that of their request (`margo.share_from`).

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::common::{PATIENCE, bounded};
use margo::ult;
use margo::{
    ForwardError, ForwardRequest, Instance, ProviderHandle, ProviderId, Rpc, sharded::ShardPlace,
};

/// Answers with whether another one ran at the same time.
const MEET: Rpc<(), bool> = Rpc::new("meet");
/// Holds its shard until those behind it have run; answers with whether they have.
const STUCK: Rpc<usize, bool> = Rpc::new("stuck");
/// Answers with its number, the shard of the request, and the pool where it ran.
const WORK: Rpc<u32, (u32, u8, String)> = Rpc::new("work");
const PANIC: Rpc<(), ()> = Rpc::new("panic");
/// Answers with the part whose object it found, and whether that was made on its thread.
const AT_HOME: Rpc<(), (usize, bool)> = Rpc::new("at_home");

const ADDRESSES: [&str; 3] = ["na+sm://", "na+tcp://127.0.0.1:0", "na+sim://"];

/// How long a handler waits for others; whoever waits in vain is asked again.
const WAIT: Duration = Duration::from_millis(50);

/// A service whose shards sleep as soon as there is nothing to do.
fn start(address: &str, more: &str) -> Instance {
    let document = format!(
        r#"{{ "margo": {{ "address": "{address}", {more} }}, "progress_spindown_msec": 0 }}"#
    );
    margo::init(&document).unwrap()
}

/// A client with one connection.
fn client_of(service: &Instance, address: &str) -> (Instance, ProviderHandle) {
    let own = address.split("://").next().unwrap();
    let client = start(&format!("{own}://"), r#""listen": false"#);
    let target = ProviderHandle::from(client.lookup(service.self_addr().uri()).unwrap());
    (client, target)
}

fn end(client: Instance, service: Instance) {
    client.finalize_and_wait().unwrap();
    service.finalize_and_wait().unwrap();
}

/// Waits without giving the execution stream away.
fn spin_until(mut test: impl FnMut() -> bool) -> bool {
    let begin = Instant::now();
    while begin.elapsed() < WAIT {
        if test() {
            return true;
        }
        std::thread::yield_now();
    }
    false
}

fn burst<A: serde::Serialize, R: serde::de::DeserializeOwned>(
    (client, target): (&Instance, &ProviderHandle),
    rpc: Rpc<A, R>,
    args: impl IntoIterator<Item = A>,
) -> Vec<ForwardRequest<R>> {
    args.into_iter().map(|args| client.rpc(rpc, target, &args).start().unwrap()).collect()
}

fn answers<R: serde::de::DeserializeOwned>(calls: Vec<ForwardRequest<R>>) -> Vec<R> {
    calls.into_iter().map(|call| call.wait_timeout(PATIENCE).unwrap().unwrap()).collect()
}

/// One connection, and handlers that each need two cores: `service` has them.
fn meet(service: Instance, address: &str) {
    let running = Arc::new(AtomicUsize::new(0));
    service
        .serve(MEET)
        .function(move |()| {
            running.fetch_add(1, Ordering::SeqCst);
            let have_met = spin_until(|| running.load(Ordering::SeqCst) > 1);
            running.fetch_sub(1, Ordering::SeqCst);
            have_met
        })
        .unwrap();
    let (client, target) = client_of(&service, address);
    while !answers(burst((&client, &target), MEET, [(); 8])).contains(&true) {}
    end(client, service);
}

#[test]
fn handlers_of_one_connection_run_on_several_cores() {
    for address in ADDRESSES {
        bounded(address, move || meet(start(address, r#""shards": 2, "share_from": 1"#), address));
    }
}

/// The shard sleeps when it is added, and is woken for a handler all the same.
#[test]
fn a_shard_that_was_added_takes_handlers() {
    for address in ADDRESSES {
        bounded(address, move || {
            let service = start(address, r#""share_from": 1"#);
            service.layout().add_shard().unwrap();
            // The place of one that was removed stays, and takes nothing.
            let removed = service.layout().add_shard().unwrap();
            service.layout().remove_shard(removed).unwrap();
            meet(service, address);
        });
    }
}

/// Where handlers of `WORK` ran, in their order.
type Ran = Arc<Mutex<Vec<(u32, String)>>>;

/// Serves `STUCK` and `WORK`.
fn serve_work(service: &Instance) -> Ran {
    let ran = Ran::default();
    let (log, count) = (ran.clone(), ran.clone());
    service
        .register(WORK, move |request| {
            let (number, pool) = (*request.args(), ult::current().unwrap().pool);
            log.lock().unwrap().push((number, pool.clone()));
            request.respond(&(number, request.shard(), pool)).unwrap();
        })
        .unwrap();
    service
        .serve(STUCK)
        .function(move |others| spin_until(|| count.lock().unwrap().len() >= others))
        .unwrap();
    ran
}

/// A handler that computes for long keeps those behind it from no other core, in their order. There
/// are two such handlers, as the first one may begin before the others are seen, and three shards,
/// as the second one may be at another shard.
#[test]
fn a_shard_in_the_midst_of_a_long_handler_is_relieved() {
    const OTHERS: u32 = 9;
    for address in ADDRESSES {
        bounded(address, move || {
            let service = start(address, r#""shards": 3, "share_from": 1"#);
            let ran = serve_work(&service);
            let (client, target) = client_of(&service, address);
            let own_pool = loop {
                ran.lock().unwrap().clear();
                let stuck = burst((&client, &target), STUCK, [OTHERS as usize, OTHERS as usize]);
                let work = burst((&client, &target), WORK, 0..OTHERS);
                let relieved = answers(stuck).contains(&true);
                let answered = answers(work);
                let shard = answered[0].1;
                assert!(answered.iter().zip(0..).all(|(got, n)| (got.0, got.1) == (n, shard)));
                let pool = service.layout().progress_pools().nth(shard.into()).unwrap();
                if relieved {
                    break pool.name().to_owned();
                }
            };
            let ran = ran.lock().unwrap();
            assert!(ran.iter().any(|(_, pool)| *pool != own_pool), "{ran:?}");
            for pool in service.layout().progress_pools() {
                let here = ran.iter().filter(|(_, name)| name == pool.name());
                assert!(here.is_sorted_by_key(|(number, _)| *number), "{ran:?}");
            }
            drop(ran);
            end(client, service);
        });
    }
}

/// Calls until a handler of `WORK` has run at another shard, behind one that is stuck.
fn until_shared(service: &Instance, client: &Instance, target: &ProviderHandle, ran: &Ran) {
    loop {
        ran.lock().unwrap().clear();
        let stuck = burst((client, target), STUCK, [4; 2]);
        let answered = answers(burst((client, target), WORK, 0..4));
        answers(stuck);
        let own = |shard: u8| service.layout().progress_pools().nth(shard.into()).unwrap();
        if answered.iter().any(|(_, shard, pool)| own(*shard).name() != pool) {
            return;
        }
    }
}

/// The pool of one shard is run by two execution streams, and its progress ULT moves away.
#[test]
fn shards_that_several_execution_streams_run_share_too() {
    bounded("several", || {
        let document = r#"{ "argobots": {
            "pools": [ { "name": "net0" }, { "name": "net1" }, { "name": "away" } ],
            "xstreams": [ { "name": "x0", "scheduler": { "pools": ["net0"] } },
                          { "name": "x1", "scheduler": { "pools": ["net0"] } },
                          { "name": "x2", "scheduler": { "pools": ["net1"] } },
                          { "name": "x3", "scheduler": { "pools": ["away"] } } ] },
            "progress_spindown_msec": 0,
            "margo": { "address": "na+sm://", "shards": ["net0", "net1"], "share_from": 1 } }"#;
        let service = margo::init(document).unwrap();
        let ran = serve_work(&service);
        let (client, target) = client_of(&service, "na+sm://");
        for shard in [0, 1, 0] {
            until_shared(&service, &client, &target.clone().in_shard(shard), &ran);
        }
        // From here on the first shard gives, and takes nothing.
        service.layout().migrate_progress(&service.layout().pool("away").unwrap()).unwrap();
        for shard in [1, 0, 1] {
            ran.lock().unwrap().clear();
            let target = target.clone().in_shard(shard);
            let stuck = burst((&client, &target), STUCK, [1; 3]);
            let answered = answers(burst((&client, &target), WORK, 0..8));
            answers(stuck);
            assert!(answered.iter().zip(0..).all(|(got, n)| (got.0, got.1) == (n, shard)));
        }
        end(client, service);
    });
}

#[test]
fn without_the_key_handlers_stay_where_their_requests_arrive() {
    bounded("off", || {
        let service = start("na+sm://", r#""shards": 2"#);
        serve_work(&service);
        let (client, target) = client_of(&service, "na+sm://");
        for _ in 0..3 {
            let stuck = burst((&client, &target), STUCK, [1]);
            let answered = answers(burst((&client, &target), WORK, 0..20));
            answers(stuck);
            let pool = service.layout().progress_pools().nth(answered[0].1.into()).unwrap();
            assert!(answered.iter().all(|(_, _, ran_in)| ran_in == pool.name()));
        }
        end(client, service);
    });
}

/// Handlers of a provider with a pool of its own, and handlers that work on the object of a shard.
#[test]
fn handlers_with_a_place_of_their_own_stay_there() {
    bounded("places", || {
        let document = r#"{ "argobots": {
            "pools": [ { "name": "net0" }, { "name": "net1" }, { "name": "own" } ],
            "xstreams": [ { "name": "x0", "scheduler": { "pools": ["net0"] } },
                          { "name": "x1", "scheduler": { "pools": ["net1"] } },
                          { "name": "x2", "scheduler": { "pools": ["own"] } } ] },
            "progress_spindown_msec": 0,
            "margo": { "address": "na+sm://", "shards": ["net0", "net1"], "share_from": 1 } }"#;
        let service = margo::init(document).unwrap();
        let ran = serve_work(&service);
        let own = service.layout().pool("own").unwrap();
        let work = |request: margo::Handle<u32, (u32, u8, String)>| {
            let pool = ult::current().unwrap().pool;
            request.respond(&(*request.args(), request.shard(), pool)).unwrap();
        };
        let provider = service.provider(ProviderId::new(1), &own);
        provider.register(WORK, work).unwrap();
        let make = |at: &ShardPlace| std::rc::Rc::new((at.index(), std::thread::current().id()));
        let sharded = service.sharded_provider(ProviderId::new(2), make).unwrap();
        let at_home = |home: &std::rc::Rc<(usize, std::thread::ThreadId)>, ()| {
            (home.0, home.1 == std::thread::current().id())
        };
        sharded.serve(AT_HOME).part_function(at_home).unwrap();
        let (client, target) = client_of(&service, "na+sm://");
        let to_own = ProviderHandle::new(target.addr().clone(), ProviderId::new(1));
        let to_sharded = ProviderHandle::new(target.addr().clone(), ProviderId::new(2));
        let parts = client.sharded_handle(&to_sharded).unwrap();
        for part in [0, 1].into_iter().cycle().take(6) {
            // The others have nothing to do, and look for something.
            until_shared(&service, &client, &target, &ran);
            let to_part = parts.for_part(part).unwrap();
            let to_shard = target.clone().in_shard(part as u8);
            let stuck = burst((&client, &to_shard), STUCK, [1; 2]);
            let of_part = burst((&client, to_part), AT_HOME, [(); 20]);
            let of_own = burst((&client, &to_own), WORK, 0..20);
            answers(stuck);
            assert!(answers(of_part).into_iter().all(|found| found == (part, true)));
            assert!(answers(of_own).into_iter().all(|(_, _, pool)| pool == "own"));
        }
        client.finalize_and_wait().unwrap();
        drop((provider, sharded));
        service.finalize_and_wait().unwrap();
    });
}

/// A handler that waits where others may take it is cancelled, one that runs elsewhere panics, and
/// all of them give their places back.
#[test]
fn shared_handlers_end_as_any_other() {
    for overload in ["wait", "busy"] {
        bounded(overload, move || {
            let bounds = format!(
                r#""shards": 3, "share_from": 1,
                   "admission": {{ "handlers_max": 6, "overload": "{overload}" }}"#
            );
            let service = start("na+sm://", &bounds);
            let ran = serve_work(&service);
            service.serve(PANIC).function(|()| panic!("as it should")).unwrap();
            let (client, target) = client_of(&service, "na+sm://");
            let before = service.monitoring().stats().handlers_panicked;
            for _ in 0..20 {
                ran.lock().unwrap().clear();
                let stuck = burst((&client, &target), STUCK, [1]);
                let panics = burst((&client, &target), PANIC, [(); 2]);
                let canceled = burst((&client, &target), WORK, 0..2);
                canceled.iter().for_each(ForwardRequest::cancel);
                let timed = client.forward_timed(WORK, &target, &9, Duration::from_millis(1));
                let is_fair = |error: &ForwardError| match error {
                    ForwardError::Canceled { .. } | ForwardError::TimedOut { .. } => true,
                    ForwardError::Busy { .. } => overload == "busy",
                    _ => false,
                };
                assert!(timed.as_ref().err().is_none_or(is_fair), "{timed:?}");
                for call in canceled {
                    let answer = call.wait_timeout(PATIENCE).unwrap();
                    assert!(answer.as_ref().err().is_none_or(is_fair), "{answer:?}");
                }
                for call in panics {
                    let error = call.wait_timeout(PATIENCE).unwrap().unwrap_err();
                    let is_told = matches!(error, ForwardError::Panicked { .. });
                    assert!(is_told || is_fair(&error), "{error:?}");
                }
                for call in stuck {
                    let answer = call.wait_timeout(PATIENCE).unwrap();
                    assert!(answer.as_ref().err().is_none_or(is_fair), "{answer:?}");
                }
            }
            assert!(service.monitoring().stats().handlers_panicked > before);
            client.finalize_and_wait().unwrap();
            for pool in service.layout().progress_pools() {
                let in_hand = || service.monitoring().load(&pool).map_or(0, |load| load.in_hand);
                while in_hand() > 0 {
                    std::thread::yield_now();
                }
            }
            service.finalize_and_wait().unwrap();
        });
    }
}

/// The end waits for those that run elsewhere; those that have not started run or are refused.
#[test]
fn finalize_waits_for_handlers_at_other_shards() {
    for address in ADDRESSES {
        bounded(address, move || {
            for _ in 0..3 {
                let service = start(address, r#""shards": 3, "share_from": 1"#);
                let (begun, ended) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
                let is_over = Arc::new(AtomicBool::new(false));
                let (count, done, over) = (begun.clone(), ended.clone(), is_over.clone());
                service
                    .serve(MEET)
                    .function(move |()| {
                        assert!(!over.load(Ordering::SeqCst), "the instance has ended");
                        let number = count.fetch_add(1, Ordering::SeqCst);
                        // The first one lets the others pile up.
                        let begin = Instant::now();
                        let time = Duration::from_millis(if number == 0 { 20 } else { 1 });
                        while begin.elapsed() < time {}
                        done.fetch_add(1, Ordering::SeqCst);
                        true
                    })
                    .unwrap();
                let (client, target) = client_of(&service, address);
                let calls = burst((&client, &target), MEET, [(); 32]);
                while begun.load(Ordering::SeqCst) < 2 {
                    std::thread::yield_now();
                }
                service.finalize_and_wait().unwrap();
                is_over.store(true, Ordering::SeqCst);
                assert_eq!(begun.load(Ordering::SeqCst), ended.load(Ordering::SeqCst));
                let answered = calls.into_iter().map(|call| call.wait_timeout(PATIENCE).unwrap());
                let answered = answered.filter(Result::is_ok).count();
                assert!(answered <= ended.load(Ordering::SeqCst));
                client.finalize_and_wait().unwrap();
            }
        });
    }
}
