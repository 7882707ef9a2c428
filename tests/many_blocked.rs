//! 100,000 handlers that wait in a nested call, at once: their callers all get their answers, and
//! what such a handler costs while it waits is bounded.
//!
//! `MARGO_BLOCKED=n` makes it n calls; by default it is a fifth of them in builds with assertions.
#![allow(clippy::unwrap_used, reason = "a test says by panicking what went wrong")]

mod common;

use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use common::{TRANSPORTS, bounded};
use margo::{ForwardError, Instance, ProviderHandle, Rpc, metrics::Load};
use ult::{Eventual, Semaphore};

/// At the front: calls `BACK` at its origin.
const FRONT: Rpc<u32, u32> = Rpc::new("front");
/// Answers when all have come.
const BACK: Rpc<u32, u32> = Rpc::new("back");

/// A call is two handlers, each a ULT with a page or two of stack and a page table of its own, and
/// two calls in flight.
const BYTES_PER_CALL_MAX: usize = 48 << 10;

/// Kibibytes of a line of `/proc/self/status`, as bytes.
fn status(key: &str) -> usize {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

/// Memory in pages, and in the tables that find them.
fn memory() -> (usize, usize) {
    (status("VmRSS"), status("VmPTE"))
}

/// Handlers leave after their answers.
fn until_none_in_hand(instance: &Instance) -> Load {
    let (instance, pool) = (instance.clone(), instance.layout().rpc_pool());
    bounded("handlers leave", move || {
        loop {
            let load = instance.monitoring().load(&pool).unwrap();
            if load.in_hand == 0 {
                return load;
            }
            std::thread::yield_now();
        }
    })
}

/// Two services: the front's handlers call the back's, which wait for `open`.
struct Services {
    front: Instance,
    back: Instance,
    arrived: Arc<Semaphore>,
    open: Arc<Eventual<()>>,
}

impl Services {
    fn new(transport: &str) -> Self {
        // Each has the other one for its only client, which is to have all places.
        let start = || {
            let document = format!(
                r#"{{ "margo": {{ "address": "{transport}", "admission": {{
                    "peer_handlers_max": 0, "host_handlers_max": 0 }} }} }}"#
            );
            margo::init(&document).unwrap()
        };
        let (front, back) = (start(), start());
        let (arrived, open) = (Arc::new(Semaphore::new(0)), Arc::new(Eventual::new()));
        front
            .serve(FRONT)
            .returning(|handle| {
                let back = ProviderHandle::from(handle.origin().clone());
                handle.instance().forward(BACK, &back, handle.args()).unwrap()
            })
            .unwrap();
        let (here, may_end) = (arrived.clone(), open.clone());
        let wait = move |n| {
            here.release(1);
            may_end.wait();
            n + 1
        };
        back.serve(BACK).function(wait).unwrap();
        Self { front, back, arrived, open }
    }

    fn end(self) {
        self.front.finalize_and_wait().unwrap();
        self.back.finalize_and_wait().unwrap();
    }
}

// Slow: 100,000 calls, or 20,000 in builds with assertions, over each transport.
#[test]
fn a_hundred_thousand_handlers_wait_in_nested_calls_at_once() {
    let count = std::env::var("MARGO_BLOCKED").ok().and_then(|text| text.parse().ok());
    let count: u32 = count.unwrap_or(if cfg!(debug_assertions) { 20_000 } else { 100_000 });
    for transport in TRANSPORTS {
        let services = Services::new(transport);
        let Services { front, back, arrived, open } = &services;
        let to_front = ProviderHandle::from(back.lookup(front.self_addr().uri()).unwrap());
        let before = memory();
        let begun = Instant::now();
        let calls: Vec<_> =
            (0..count).map(|n| back.rpc(FRONT, &to_front, &n).start().unwrap()).collect();
        let here = arrived.clone();
        bounded("handlers begin", move || here.acquire(count as usize).forget());
        let (pages, tables) = memory();
        let per_call = |now: usize, then: usize| now.saturating_sub(then) / count as usize;
        let (pages, tables) = (per_call(pages, before.0), per_call(tables, before.1));
        println!(
            "{transport}: {count} nested calls wait after {:?}; each has {pages} bytes in pages \
             and {tables} in page tables",
            begun.elapsed()
        );
        for instance in [front, back] {
            let load = instance.monitoring().load(&instance.layout().rpc_pool()).unwrap();
            assert_eq!(load.in_hand, count as usize, "{transport}");
        }
        assert!(calls.iter().all(|call| !call.test()), "{transport}: nobody may answer yet");
        // With few of them, buffers and the like count.
        if count >= 10_000 {
            assert!(pages + tables < BYTES_PER_CALL_MAX, "{transport}: {pages} + {tables} bytes");
        }
        open.set(()).unwrap();
        let answers = bounded("the answers", move || margo::wait_all(calls));
        for (n, answer) in (0..).zip(answers) {
            assert_eq!(answer.unwrap(), n + 1, "{transport}");
        }
        for instance in [front, back] {
            let load = until_none_in_hand(instance);
            assert_eq!(load.refused, 0, "{transport}");
        }
        services.end();
    }
}

const LIMITED: &str = "MARGO_TEST_LIMITED";

/// Runs in a process of its own, whose address space it limits.
#[test]
fn where_the_system_has_no_memory_for_more_stacks_callers_are_told_and_the_service_lives() {
    if std::env::var_os(LIMITED).is_some() {
        return calls_beyond_the_memory();
    }
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture"])
        .arg(
            "where_the_system_has_no_memory_for_more_stacks_callers_are_told_and_the_service_lives",
        )
        .env(LIMITED, "1")
        .spawn()
        .unwrap();
    assert!(child.wait().unwrap().success());
}

fn calls_beyond_the_memory() {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).unwrap();
    const CALLS: u32 = 24;
    let document = r#"{ "argobots": {
        "pools": [{ "name": "deep", "stack_bytes": 1073741824 }],
        "xstreams": [{ "name": "deep", "scheduler": { "pools": ["deep"] } }] } }"#;
    let service = margo::init(document).unwrap();
    let client = Instance::builder("na+sm://").listen(false).start().unwrap();
    let target = ProviderHandle::from(client.lookup(service.self_addr().uri()).unwrap());
    let open = Arc::new(Eventual::new());
    let may_end = open.clone();
    let wait = move |n| {
        may_end.wait();
        n + 1
    };
    service.serve(BACK).pool(&service.layout().pool("deep").unwrap()).function(wait).unwrap();
    // Room for some of the stacks, and beside them for everything else.
    let room = Some((status("VmSize") + (9 << 30) + (9 << 26)) as u64);
    let limit = rustix::process::Rlimit { current: room, maximum: room };
    rustix::process::setrlimit(rustix::process::Resource::As, limit).unwrap();
    let mut calls: Vec<_> =
        (0..CALLS).map(|n| client.rpc(BACK, &target, &n).start().unwrap()).collect();
    // One that does not fit ends at once, the others when they may.
    let (_, first) = margo::wait_any(&mut calls).unwrap();
    let Err(ForwardError::Busy { detail, .. }) = first else { panic!("{first:?}") };
    assert!(detail.contains("for want of memory for its stack"), "{detail}");
    open.set(()).unwrap();
    let results = margo::wait_all(calls);
    let told = |result: &Result<u32, ForwardError>| {
        matches!(result, Ok(_) | Err(ForwardError::Busy { .. }))
    };
    assert!(results.iter().all(told), "{results:?}");
    assert!(results.iter().any(Result::is_ok), "{results:?}");
    assert_eq!(client.forward(BACK, &target, &7).unwrap(), 8, "it goes on");
    client.finalize_and_wait().unwrap();
    service.finalize_and_wait().unwrap();
}
