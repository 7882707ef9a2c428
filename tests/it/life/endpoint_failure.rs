//! A network endpoint that can no longer work: its callers are told, its instance ends by itself,
//! and the process, with all other instances in it, goes on.

use std::collections::BTreeSet;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::process::{Service, asked, say};
use crate::common::{self, PATIENCE, TRANSPORTS, bounded, builder};
use margo::{ForwardError, Instance, ProviderHandle, Rpc};
use rustix::event::{EventfdFlags, eventfd};
use tracing::{Event, Level};
use ult::Semaphore;

const TRANSPORT: &str = "MARGO_TEST_TRANSPORT";

const PING: Rpc<(), ()> = Rpc::new("ping");
/// Never answered.
const HOLD: Rpc<(), ()> = Rpc::new("hold");
/// Ends with the call of `HOLD` that its handler makes.
const RELAY: Rpc<(), bool> = Rpc::new("relay");

/// Events logged at the level `error`: their number, and the texts of the first ones.
static ERRORS: AtomicUsize = AtomicUsize::new(0);
static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn hear(event: &Event<'_>) {
    ERRORS.fetch_add(1, Ordering::SeqCst);
    let mut said = SAID.lock().unwrap();
    if said.len() < 10 {
        said.push(format!("{event:?}"));
    }
}

/// The epoll sets of this process: each endpoint has one.
fn epoll_sets() -> BTreeSet<RawFd> {
    let is_set = |fd: &RawFd| {
        std::fs::read_link(format!("/proc/self/fd/{fd}"))
            .is_ok_and(|to| to.to_string_lossy().contains("[eventpoll]"))
    };
    let names = std::fs::read_dir("/proc/self/fd").unwrap();
    let numbers = names.filter_map(|name| name.unwrap().file_name().to_str()?.parse().ok());
    numbers.filter(is_set).collect()
}

/// Takes the epoll set of an endpoint away: its descriptor is another thing from now on, always
/// readable, and every look at it fails.
fn breaks(set: RawFd) {
    let other = eventfd(1, EventfdFlags::CLOEXEC).unwrap();
    // SAFETY: the number is that of an open descriptor, whose owner is the endpoint and goes on to
    // be; nothing else is closed or given away: the value here is not dropped.
    let mut owned = std::mem::ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(set) });
    rustix::io::dup2(&other, &mut owned).unwrap();
}

/// Wakes the shards, as one that sleeps does so on the descriptor that it had before.
fn call_from_each_shard(
    broken: &Instance,
    to: &ProviderHandle,
) -> Vec<ult::JoinHandle<Result<(), ForwardError>>> {
    let call = |pool: margo::Pool| {
        let (broken, to) = (broken.clone(), to.clone());
        pool.spawn(move || broken.forward_timed(PING, &to, &(), PATIENCE)).unwrap()
    };
    broken.layout().progress_pools().map(call).collect()
}

/// In a process of its own, because nothing but the kernel says no to an endpoint.
fn endpoint_that_fails(transport: &str) {
    common::log::listen(Level::ERROR, hear);
    let start = || {
        let builder = builder(transport).grace(PATIENCE);
        builder.rpc_thread_count(1).start().unwrap()
    };
    let other = start();
    let (entered, go) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (enters, may_go) = (entered.clone(), go.clone());
    let hold = move |handle: margo::Handle<(), ()>| {
        enters.release(1);
        may_go.acquire(1).forget();
        let _ = handle.respond(&());
    };
    other.register(HOLD, hold).unwrap();
    other.serve(PING).function(|()| ()).unwrap();

    let before = epoll_sets();
    let broken = start();
    let sets: Vec<_> = epoll_sets().difference(&before).copied().collect();
    assert_eq!(sets.len(), common::shards() as usize, "the endpoint of each shard has one");
    let whom = |from: &Instance, to: &Instance| {
        ProviderHandle::from(from.lookup(to.self_addr().uri()).unwrap())
    };
    let to_other = whom(&broken, &other);
    let nested = to_other.clone();
    let relay = move |handle: margo::Handle<(), bool>| {
        let ended = handle.instance().forward(HOLD, &nested, &());
        let _ = handle.respond(&ended.is_err());
    };
    broken.register(RELAY, relay).unwrap();

    // A thread, a ULT, a request, one with a time that does not come, and a handler's call.
    let call = || {
        let (broken, to) = (broken.clone(), to_other.clone());
        move || broken.forward(HOLD, &to, &())
    };
    let thread = std::thread::spawn(call());
    let ult = broken.layout().rpc_pool().spawn(call()).unwrap();
    let request = broken.rpc(HOLD, &to_other, &()).start().unwrap();
    let timed = {
        let (broken, to) = (broken.clone(), to_other.clone());
        let call = move || broken.forward_timed(HOLD, &to, &(), Duration::from_secs(3600));
        std::thread::spawn(call)
    };
    let relayed = other.rpc(RELAY, &whom(&other, &broken), &()).start().unwrap();
    entered.acquire(5).forget();

    // That of one shard is enough.
    breaks(sets[0]);
    let wakers = call_from_each_shard(&broken, &to_other);
    let ends = [thread.join().unwrap(), ult.join().unwrap(), request.wait(), timed.join().unwrap()];
    for end in ends {
        let error = end.unwrap_err();
        assert!(matches!(error, ForwardError::Closing { .. }), "{error}");
    }
    for waker in wakers {
        // It may have been answered before the next look.
        let end = waker.join().unwrap();
        assert!(!matches!(end, Err(ForwardError::TimedOut { .. })), "{end:?}");
    }
    // Its handler has seen the same; the answer has no way.
    let error = relayed.wait().unwrap_err();
    assert!(matches!(error, ForwardError::Network { .. }), "{error}");
    // Nobody has asked for this end.
    broken.wait_for_finalize().unwrap();
    assert!(broken.is_finalized());
    let late = broken.forward(PING, &to_other, &()).unwrap_err();
    assert!(matches!(late, ForwardError::Closing { .. }), "{late}");
    let said = SAID.lock().unwrap();
    let about = |text: &String| text.contains("the network endpoint failed");
    assert!(said.len() == 1 && said.iter().all(about), "told once: {said:#?}");
    assert_eq!(ERRORS.load(Ordering::SeqCst), 1);

    // The others in the process have lost a peer.
    go.release(5);
    let again = start();
    again.forward_timed(PING, &whom(&again, &other), &(), PATIENCE).unwrap();
    again.finalize_and_wait().unwrap();
    other.finalize_and_wait().unwrap();
    say("the process lives");
}

/// Not a test of its own: the process of the others.
#[test]
fn service_process() {
    if let Some(transport) = asked(TRANSPORT) {
        bounded("an endpoint that fails", move || endpoint_that_fails(&transport));
    }
}

#[test]
fn whoever_waits_on_an_endpoint_that_fails_is_told_and_the_process_lives() {
    for transport in TRANSPORTS {
        let mut process = Service::spawn(module_path!(), TRANSPORT, transport);
        process.line_after("the process lives");
        assert!(process.wait(), "{transport}");
    }
}
