//! A peer process that is killed, or stopped: its callers are told, and a new one can take its
//! place.

use std::io::Write;
use std::time::Duration;

use crate::common::process::{Service, client_for, serve_if_asked};
use crate::common::{PATIENCE, all_asked_for, bounded, on_fabrics};
use margo::{ForwardError, ProviderHandle, Rpc};
use rustix::process::Signal;

const STUCK: Rpc<(), ()> = Rpc::new("stuck");
const PING: Rpc<u64, u64> = Rpc::new("ping");

/// Not a test of its own: the service process of the others, which run this program again.
#[test]
fn service_process() {
    serve_if_asked(|service| {
        service.register(PING, |request| request.respond(request.args()).unwrap()).unwrap();
        service
            .register(STUCK, |request| {
                println!("entered");
                std::io::stdout().flush().unwrap();
                // Never answers, and holds the request so that nobody answers for it.
                ult::Eventual::<()>::new().wait();
                drop(request);
            })
            .unwrap();
    });
}

fn killed_while_a_call_waits(transport: &'static str) {
    bounded("a call to a killed service", move || {
        let mut service = Service::start(module_path!(), transport);
        let client = client_for(transport);
        let target = ProviderHandle::from(client.lookup(&service.address).unwrap());
        assert_eq!(client.forward_timed(PING, &target, &7, PATIENCE).unwrap(), 7);

        // libfabric tells nobody that a process is gone who sends it nothing more.
        let is_told = !transport.starts_with("ofi+");
        let limit = if is_told { PATIENCE } else { Duration::from_millis(500) };
        let call = {
            let (caller, to) = (client.clone(), target.clone());
            move || match is_told {
                true => caller.forward(STUCK, &to, &()),
                false => caller.forward_timed(STUCK, &to, &(), limit),
            }
        };
        let from_ult = client.layout().rpc_pool().spawn(call.clone()).unwrap();
        let from_thread = std::thread::spawn(call);
        service.line_after("entered");
        service.line_after("entered");
        service.kill();
        let is_end = |error: &ForwardError| {
            let is_late = matches!(error, ForwardError::TimedOut { .. });
            matches!(error, ForwardError::Network { .. }) || is_late && !is_told
        };
        for result in [from_ult.join().unwrap(), from_thread.join().unwrap()] {
            let error = result.unwrap_err();
            assert!(is_end(&error), "{error}");
            assert!(error.to_string().contains(&service.address), "{error}");
        }

        // Dead is dead …
        let error = client.forward_timed(PING, &target, &8, limit).unwrap_err();
        assert!(is_end(&error), "{error}");
        // … until a service comes back under the same address.
        let again = Service::start(module_path!(), &service.address);
        assert_eq!(again.address, service.address);
        let target = ProviderHandle::from(client.lookup(&service.address).unwrap());
        assert_eq!(client.forward_timed(PING, &target, &9, PATIENCE).unwrap(), 9);
        client.finalize_and_wait().unwrap();
    });
}

#[test]
fn killed_while_a_call_waits_over_sm() {
    killed_while_a_call_waits("na+sm://");
}

#[test]
fn killed_while_a_call_waits_over_tcp() {
    killed_while_a_call_waits("na+tcp://127.0.0.1:0");
}

#[test]
fn killed_while_a_call_waits_over_fabrics() {
    on_fabrics(&["ofi+", "ucx+"], killed_while_a_call_waits);
}

/// However somebody waits for a call, or is to be told of it.
fn killed_while_requests_are_in_flight(transport: &'static str) {
    bounded("calls to a killed service", move || {
        let mut service = Service::start(module_path!(), transport);
        let client = client_for(transport);
        let target = ProviderHandle::from(client.lookup(&service.address).unwrap());
        let start = || client.rpc(STUCK, &target, &()).start().unwrap();
        let (mut several, waited, awaited) = (vec![start(), start()], start(), start());
        let timed = client.rpc(STUCK, &target, &()).timeout(PATIENCE).start().unwrap();
        let (sender, receiver) = ult::channel::unbounded();
        let callback = move |result| sender.send(result).unwrap();
        client.rpc(STUCK, &target, &()).call_back(callback).unwrap();
        let (dropped, detached) = (start(), start());
        for _ in 0..8 {
            service.line_after("entered");
        }
        drop(dropped);
        detached.detach();
        let awaited = std::thread::spawn(|| futures_lite::future::block_on(awaited));
        service.kill();
        let mut results = Vec::new();
        while let Some((_, result)) = margo::wait_any(&mut several) {
            results.push(result);
        }
        results.extend(margo::wait_all([waited, timed]));
        results.push(awaited.join().unwrap());
        results.push(receiver.recv().unwrap());
        assert_eq!(results.len(), 6);
        for result in results {
            let error = result.unwrap_err();
            assert!(matches!(error, ForwardError::Network { .. }), "{error}");
        }
        client.finalize_and_wait().unwrap();
    });
}

#[test]
fn killed_while_requests_are_in_flight_over_sm() {
    killed_while_requests_are_in_flight("na+sm://");
}

#[test]
fn killed_while_requests_are_in_flight_over_tcp() {
    killed_while_requests_are_in_flight("na+tcp://127.0.0.1:0");
}

#[test]
fn killed_while_requests_are_in_flight_over_fabrics() {
    on_fabrics(&["ucx+"], killed_while_requests_are_in_flight);
}

/// A stopped process is noticed by its silence alone.
fn stopped_while_a_call_waits(transport: &'static str) {
    bounded("a call to a stopped service", move || {
        let mut service = Service::start(module_path!(), transport);
        let own = transport.split("://").next().unwrap();
        let client = margo::init(&format!(
            r#"{{ "margo": {{ "address": "{own}://", "listen": false,
                  "network": {{ "liveness_msec": 1500 }} }} }}"#
        ))
        .unwrap();
        let target = ProviderHandle::from(client.lookup(&service.address).unwrap());
        let waiting = {
            let (client, target) = (client.clone(), target.clone());
            std::thread::spawn(move || client.forward(STUCK, &target, &()))
        };
        service.line_after("entered");
        service.signal(Signal::STOP);
        let error = waiting.join().unwrap().unwrap_err();
        assert!(matches!(error, ForwardError::Network { .. }), "{error}");
        // When it goes on, it is reached again.
        service.signal(Signal::CONT);
        assert_eq!(client.forward_timed(PING, &target, &7, PATIENCE).unwrap(), 7);
        client.finalize_and_wait().unwrap();
    });
}

#[test]
fn stopped_while_a_call_waits_over_sm() {
    stopped_while_a_call_waits("na+sm://");
}

#[test]
fn stopped_while_a_call_waits_over_tcp() {
    stopped_while_a_call_waits("na+tcp://127.0.0.1:0");
}

#[test]
fn stopped_while_a_call_waits_over_fabrics() {
    on_fabrics(&["ucx+"], stopped_while_a_call_waits);
}

/// The service's side: a client that dies leaves nothing behind that hurts the next one.
#[test]
fn a_service_outlives_its_clients() {
    bounded("clients that come and go", || {
        for transport in all_asked_for() {
            let service = Service::start(module_path!(), transport);
            for round in 0..20u64 {
                let client = client_for(transport);
                let target = ProviderHandle::from(client.lookup(&service.address).unwrap());
                assert_eq!(client.forward_timed(PING, &target, &round, PATIENCE).unwrap(), round);
                client.finalize_and_wait().unwrap();
            }
        }
    });
}
