//! C Margo's own tests, as far as no other file here has their part: the shell-driven ones over two
//! processes, and some of the unit tests.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use crate::bulk_support::Node;
use crate::common::process::{Service, client_for, serve_if_asked};
use crate::common::{self, PATIENCE, bounded, builder};
use margo::hg::{ForwardOptions, HgError, HgOptions, Registration, Writer, margo as prefix, proc};
use margo::{
    Bulk, ForwardError, Instance, InstanceBuilder, ProviderHandle, ProviderId, ReturnCode, Rpc,
    config::Config,
};

const TRANSFER: Rpc<Bulk, u64> = Rpc::new("transfer");
const SLOW: Rpc<(), ()> = Rpc::new("slow");
/// Ends the handlers of `SLOW`.
const RELEASE: Rpc<(), ()> = Rpc::new("release");
const SUM: Rpc<(i64, i64), i64> = Rpc::new("sum");
const BYTES: usize = 512;

/// Layouts of the server: progress with the handlers or on its own, and the kind of all pools.
const LAYOUTS: [(&str, bool); 4] =
    [("fifo_wait", false), ("fifo_wait", true), ("prio_wait", false), ("prio_wait", true)];

fn config(kind: &str, dedicated: bool) -> String {
    let progress = if dedicated { "net" } else { "__primary__" };
    format!(
        r#"{{ "margo": {{ "address": "na+sm://", "remote_shutdown": true }},
             "progress_pool": "{progress}", "rpc_pool": "__primary__",
             "argobots": {{
                 "pools": [{{ "name": "__primary__", "kind": "{kind}" }},
                           {{ "name": "net", "kind": "{kind}" }}],
                 "xstreams": [
                     {{ "name": "__primary__", "scheduler": {{ "pools": ["__primary__"] }} }},
                     {{ "name": "net", "scheduler": {{ "pools": ["net"] }} }}] }} }}"#
    )
}

fn register(service: &Instance) {
    service
        .serve(TRANSFER)
        .returning(|handle| {
            let mut local = handle.instance().memory().bulk_buffer(BYTES).unwrap();
            handle.pull(handle.args(), 0, &mut local, 0..BYTES).unwrap();
            local.iter().map(|byte| u64::from(*byte)).sum()
        })
        .unwrap();
    let gate = Arc::new(ult::Eventual::new());
    let releases = gate.clone();
    service.serve(SLOW).function(move |()| *gate.wait()).unwrap();
    service.serve(RELEASE).function(move |()| releases.set(()).unwrap()).unwrap();
    service.serve(SUM).function(|(a, b)| a + b).unwrap();
}

/// Not a test of its own: the process that the others start.
#[test]
fn service_process() {
    serve_if_asked(register);
    let Ok(document) = std::env::var("MARGO_TEST_DOCUMENT") else { return };
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).unwrap();
    let service = margo::init(&document).unwrap();
    register(&service);
    println!("listening on {}", service.self_addr());
    std::io::Write::flush(&mut std::io::stdout()).unwrap();
    service.wait_for_finalize().unwrap();
}

fn server(document: &str) -> Service {
    Service::start_with(module_path!(), "MARGO_TEST_DOCUMENT", document)
}

/// `basic`, `basic-ded-pool`, `basic-prio`, `basic-ded-pool-prio`.
#[test]
fn four_ults_lend_memory_which_a_server_of_every_layout_pulls_until_it_is_shut_down() {
    for (kind, dedicated) in LAYOUTS {
        let mut server = server(&config(kind, dedicated));
        let client = client_for(&server.address);
        let target = ProviderHandle::from(client.lookup(&server.address).unwrap());
        let ults: Vec<_> = (0..4u8)
            .map(|n| {
                let (own, target) = (client.clone(), target.clone());
                let call = move || {
                    let data = [n + 1; BYTES];
                    own.memory().expose_ref(&data, |bulk| own.forward(TRANSFER, &target, bulk))
                };
                client.layout().rpc_pool().spawn(call).unwrap()
            })
            .collect();
        for (n, ult) in (1u64..).zip(ults) {
            assert_eq!(ult.join().unwrap().unwrap().unwrap(), n * BYTES as u64, "{kind}");
        }
        client.network().shutdown_remote(target.addr()).unwrap();
        assert!(server.wait(), "{kind}, {dedicated}: it ends with success");
        client.finalize_and_wait().unwrap();
    }
}

/// `timeout`.
#[test]
fn four_calls_of_a_slow_handler_time_out_and_the_server_goes_on() {
    for (kind, dedicated) in LAYOUTS {
        let mut server = server(&config(kind, dedicated));
        let client = client_for(&server.address);
        let target = ProviderHandle::from(client.lookup(&server.address).unwrap());
        let limit = Duration::from_millis(100);
        let ults: Vec<_> = (0..4)
            .map(|_| {
                let (own, target) = (client.clone(), target.clone());
                let call = move || own.forward_timed(SLOW, &target, &(), limit);
                client.layout().rpc_pool().spawn(call).unwrap()
            })
            .collect();
        for ult in ults {
            let end = ult.join().unwrap();
            assert!(matches!(end, Err(ForwardError::TimedOut { .. })), "{kind}: {end:?}");
        }
        assert_eq!(client.forward(SUM, &target, &(1, 2)).unwrap(), 3, "{kind}");
        client.forward(RELEASE, &target, &()).unwrap();
        client.network().shutdown_remote(target.addr()).unwrap();
        assert!(server.wait(), "{kind}, {dedicated}: it ends with success");
        client.finalize_and_wait().unwrap();
    }
}

/// `sleep`, also where progress has an xstream of its own.
#[test]
fn sleeping_ults_of_one_xstream_sleep_at_the_same_time() {
    for progress in [false, true] {
        let client = builder("na+sm://").listen(false).use_progress_thread(progress);
        let client = client.start().unwrap();
        let asleep = Arc::new(AtomicUsize::new(0));
        let most = Arc::new(AtomicUsize::new(0));
        let begun = Instant::now();
        let nap = Duration::from_millis(300);
        let ults: Vec<_> = (0..4)
            .map(|_| {
                let (asleep, most) = (asleep.clone(), most.clone());
                // Again if one came too late; if they took turns, it would never be all of them.
                let sleep = move || {
                    while most.load(Ordering::SeqCst) < 4 && begun.elapsed() < PATIENCE {
                        most.fetch_max(asleep.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        ult::sleep(nap);
                        asleep.fetch_sub(1, Ordering::SeqCst);
                    }
                };
                client.layout().rpc_pool().spawn(sleep).unwrap()
            })
            .collect();
        ults.into_iter().for_each(|ult| ult.join().unwrap());
        assert!(begun.elapsed() >= nap);
        assert_eq!(most.load(Ordering::SeqCst), 4);
        client.finalize_and_wait().unwrap();
    }
}

/// The other half of `sleep`: a handler that blocks its OS thread blocks all handlers of that
/// thread.
#[test]
fn handlers_that_block_their_os_thread_take_turns_and_those_that_suspend_do_not() {
    const CALLS: usize = 4;
    for blocks in [true, false] {
        let service = builder("na+sm://").use_progress_thread(true).rpc_thread_count(1);
        let service = service.start().unwrap();
        let (begin, begun) = mpsc::channel();
        let (go, may_go) = mpsc::channel::<()>();
        let (wake, may_wake) = (Arc::new(ult::Semaphore::new(0)), Mutex::new(may_go));
        let suspends = wake.clone();
        let hold = move |()| {
            begin.send(()).unwrap();
            match blocks {
                true => may_wake.lock().unwrap().recv().unwrap(),
                false => suspends.acquire(1).forget(),
            }
        };
        service.serve(SLOW).function(hold).unwrap();
        let client = client_for(service.self_addr().uri());
        let target = ProviderHandle::from(client.lookup(service.self_addr().uri()).unwrap());
        let calls: Vec<_> =
            (0..CALLS).map(|_| client.rpc(SLOW, &target, &()).start().unwrap()).collect();
        // Progress is elsewhere: all have arrived, and wait for their turn.
        let started = Instant::now();
        while service.monitoring().load(&service.layout().rpc_pool()).unwrap().in_hand < CALLS {
            assert!(started.elapsed() < PATIENCE, "they do not arrive");
            std::thread::yield_now();
        }
        for turn in 0..CALLS {
            begun.recv_timeout(PATIENCE).unwrap();
            if blocks {
                assert!(begun.try_recv().is_err(), "another one beside it, in turn {turn}");
                go.send(()).unwrap();
            }
        }
        // All at once.
        wake.release(CALLS);
        margo::wait_all(calls).into_iter().for_each(|end| end.unwrap());
        client.finalize_and_wait().unwrap();
        service.finalize_and_wait().unwrap();
    }
}

/// `addr/*`.
#[test]
fn addresses_are_compared_copied_and_read_again() {
    for transport in common::TRANSPORTS {
        let (own, other) = (builder(transport).start().unwrap(), builder(transport).start());
        let other = other.unwrap();
        let address = own.self_addr();
        assert_eq!(address.clone(), address);
        assert_eq!(own.lookup(address.uri()).unwrap(), address);
        assert_eq!(own.lookup(&address.to_string()).unwrap(), address);
        assert_ne!(other.self_addr(), address);
        // An address is that of the instance which has looked it up.
        let peer = || own.lookup(other.self_addr().uri()).unwrap();
        assert_eq!(peer(), peer());
        assert_eq!(peer().uri(), other.self_addr().uri());
        assert_ne!(peer(), address);
        let all: std::collections::HashSet<_> =
            [address.clone(), own.lookup(address.uri()).unwrap(), peer(), peer()].into();
        assert_eq!(all.len(), 2);
        own.finalize_and_wait().unwrap();
        other.finalize_and_wait().unwrap();
    }
}

/// The parameters of `forward/*`: each kind of pool, with and without progress when needed.
#[test]
fn calls_to_a_peer_and_to_oneself_with_every_kind_of_pool_and_of_progress() {
    for kind in ["fifo_wait", "prio_wait", "earliest_first"] {
        for when_needed in [false, true] {
            let mut document = Config::from_json(&config(kind, false)).unwrap();
            document.margo.progress_when_needed = when_needed;
            let start = |document: Config| InstanceBuilder::from_config(document).start().unwrap();
            let (service, client) = (start(document.clone()), start(document));
            register(&service);
            register(&client);
            for to in [service.self_addr(), client.self_addr()] {
                let target = ProviderHandle::from(client.lookup(to.uri()).unwrap());
                for n in 0..20 {
                    assert_eq!(client.forward(SUM, &target, &(n, 1)).unwrap(), n + 1, "{kind}");
                    let request = client.rpc(SUM, &target, &(n, 2)).start().unwrap();
                    assert_eq!(request.wait().unwrap(), n + 2, "{kind}");
                    let limit = client.forward_timed(SUM, &target, &(n, 3), PATIENCE);
                    assert_eq!(limit.unwrap(), n + 3, "{kind}");
                }
                let nobody = Rpc::<(), ()>::new("nobody");
                let error = client.forward(nobody, &target, &()).unwrap_err();
                assert!(matches!(error, ForwardError::NotRegistered { .. }), "{error}");
            }
            client.finalize_and_wait().unwrap();
            service.finalize_and_wait().unwrap();
        }
    }
}

/// `scheduling/abt_mutex_cpu`: there it is only looked at, here nobody burns a processor.
#[test]
fn an_xstream_sleeps_while_a_ult_waits_for_a_mutex_whose_holder_sleeps() {
    let own = builder("na+sm://").rpc_thread_count(1).start().unwrap();
    let pool = own.layout().rpc_pool();
    let xstream = own.runtime().xstream(&pool.xstreams()[0]).unwrap();
    let (mutex, held) = (Arc::new(ult::Mutex::new(0)), Arc::new(ult::Eventual::new()));
    let end = Arc::new(ult::Eventual::<()>::new());
    let (holds, may_end, is_held) = (mutex.clone(), end.clone(), held.clone());
    let holder = pool.spawn(move || {
        let mut value = holds.lock();
        is_held.set(()).unwrap();
        may_end.wait();
        *value += 1;
    });
    held.wait();
    let waits = mutex.clone();
    // Whoever spawns wakes it, if it sleeps already.
    let before = xstream.stats().sleeps;
    let waiter = pool.spawn(move || *waits.lock() += 1);
    bounded("it sleeps", move || {
        while xstream.stats().sleeps <= before {
            std::thread::yield_now();
        }
    });
    end.set(()).unwrap();
    holder.unwrap().join().unwrap();
    waiter.unwrap().join().unwrap();
    assert_eq!(*mutex.lock(), 2);
    own.finalize_and_wait().unwrap();
}

/// `forward_with_shim`, and the other way round: a program of Mercury's that knows what Margo puts
/// before arguments and results, and nothing else of it; here beside an instance in one process.
#[test]
fn a_program_of_the_rpc_layer_alone_calls_handlers_and_serves_callers() {
    const DOUBLE: Rpc<i64, i64> = Rpc::new("double");
    for transport in common::TRANSPORTS {
        let service = builder(transport).start().unwrap();
        register(&service);
        let mut node = Node::open(transport, true, HgOptions::default());
        let until = |node: &mut Node, what: &str, done: &dyn Fn(&Node) -> bool| {
            let started = Instant::now();
            while !done(node) {
                node.turn();
                assert!(started.elapsed() < PATIENCE, "{what}: does not come");
            }
        };

        let to = node.core.lookup(service.self_addr().uri()).unwrap();
        let unknown = Rpc::<(i64, i64), i64>::new("unknown");
        for (token, rpc) in [(1, SUM), (2, unknown)] {
            let encode = |writer: &mut Writer| {
                prefix::write_request_prefix(writer, prefix::NO_PARENT)?;
                proc::to_writer(writer, &(20i64, 22i64))
            };
            let options = ForwardOptions::default().undeclared();
            node.core.forward(&to, rpc.id(ProviderId::DEFAULT), options, encode, token).unwrap();
            until(&mut node, "an answer", &|node| !node.log.responses.is_empty());
            let (ended, response) = node.log.responses.pop().unwrap();
            assert_eq!(ended, token);
            if token == 2 {
                assert!(matches!(response, Err(HgError::Remote(ReturnCode::NoEntry))));
                continue;
            }
            let response = response.unwrap();
            let (code, result) = prefix::split_response(response.payload()).unwrap();
            assert_eq!(code, ReturnCode::Success);
            assert_eq!(proc::from_slice::<i64>(result).unwrap(), 42);
        }

        let registration = Registration::margo(DOUBLE.name(), ProviderId::DEFAULT);
        node.core.register(registration).unwrap();
        let target = service.lookup(node.core.self_addr().uri()).unwrap();
        for code in [ReturnCode::Success, ReturnCode::Again, ReturnCode::InvalidArg] {
            let target = ProviderHandle::from(target.clone());
            let call = service.rpc(DOUBLE, &target, &21).start().unwrap();
            until(&mut node, "a request", &|node| !node.log.requests.is_empty());
            let request = node.log.requests.pop().unwrap();
            let (parent, args) = prefix::split_request(request.payload()).unwrap();
            assert_eq!(parent, prefix::NO_PARENT);
            let doubled = 2 * proc::from_slice::<i64>(args).unwrap();
            let answer = |writer: &mut Writer| {
                prefix::write_response_prefix(writer, code)?;
                // In C there is nothing behind another code.
                if code == ReturnCode::Success { proc::to_writer(writer, &doubled) } else { Ok(()) }
            };
            let _ = request.respond(answer, 3).unwrap();
            until(&mut node, "the end of the call", &|_| call.test());
            match (code, call.wait()) {
                (ReturnCode::Success, Ok(doubled)) => assert_eq!(doubled, 42),
                (ReturnCode::Again, Err(ForwardError::Busy { .. })) => {}
                (_, Err(ForwardError::Failed { code: told, .. })) => assert_eq!(told, code),
                (_, end) => panic!("{end:?}"),
            }
        }
        node.core.close();
        service.finalize_and_wait().unwrap();
    }
}
