//! Memory does not grow with calls, however they end, nor with what comes and goes. The only test
//! here, because it looks at the whole process.
#![allow(clippy::unwrap_used, reason = "a test says by panicking what went wrong")]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use margo::{Bulk, ForwardError, Handle, Instance, OneWay, ProviderHandle, ProviderId, Rpc};

const SUM: Rpc<(i64, i64), i64> = Rpc::new("sum");
const TRANSFER: Rpc<Bulk, u64> = Rpc::new("transfer");
const FAIL: Rpc<String, ()> = Rpc::new("fail");
const HOLD: Rpc<(), ()> = Rpc::new("hold");
/// Calls `SUM` or `HOLD` at this instance itself, given up with its own call.
const RELAY: Rpc<bool, i64> = Rpc::new("relay");
const MISSING: Rpc<(), ()> = Rpc::new("missing");
const LOG: OneWay<String> = OneWay::new("log");
const BYTES: usize = 512;

/// An allocator that counts the bytes in use. The count is exact, which the size of the process is
/// not.
struct Counting;

static LIVE: AtomicI64 = AtomicI64::new(0);

// SAFETY: all is done by the system's allocator, whose obligations are the caller's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: as the caller says.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, bytes: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: as the caller says.
        unsafe { System.dealloc(bytes, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn resident() -> i64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: i64 = text.split(' ').nth(1).unwrap().parse().unwrap();
    pages * rustix::param::page_size() as i64
}

/// After as many before, `rounds` leave less than `max` bytes more each on average, beside what is
/// made once in a while; and of stacks and mappings, which the kernel counts roughly, some MiB.
fn expect_level(what: &str, rounds: usize, max: usize, round: impl Fn()) {
    (0..rounds).for_each(|_| round());
    let (live, before) = (LIVE.load(Ordering::Relaxed), resident());
    (0..rounds).for_each(|_| round());
    // A queue may have doubled.
    let limit = (rounds * max + (128 << 10)) as i64;
    let grown = || LIVE.load(Ordering::Relaxed) - live;
    // On a loaded machine others are not done with what was begun.
    let deadline = Instant::now() + common::PATIENCE;
    while grown() >= limit {
        let grown = grown();
        assert!(Instant::now() < deadline, "{what}: {grown} bytes more after {rounds} rounds");
        ult::sleep(Duration::from_millis(1));
    }
    let grown = resident() - before;
    assert!(grown < 8 << 20, "{what}: the process has {grown} bytes more after {rounds} rounds");
}

fn serve(service: &Instance) {
    service.serve(SUM).function(|(a, b)| a + b).unwrap();
    service
        .serve(TRANSFER)
        .returning(|handle| {
            let mut local = handle.instance().memory().bulk_buffer(BYTES).unwrap();
            handle.pull(handle.args(), 0, &mut local, 0..BYTES).unwrap();
            local.iter().map(|byte| u64::from(*byte)).sum()
        })
        .unwrap();
    service.register(FAIL, |handle| handle.fail(handle.args()).unwrap()).unwrap();
    service.register(LOG, |handle| assert!(!handle.args().is_empty())).unwrap();
    service.register(HOLD, |handle| _ = handle.cancel_token().wait()).unwrap();
    let relay = |handle: &Handle<bool, i64>| {
        let (own, token) = (handle.instance(), handle.cancel_token());
        let to = ProviderHandle::from(own.self_addr());
        token.cancels_calls_in(|| match handle.args() {
            true => own.forward(HOLD, &to, &()).map(|()| 0).unwrap_or_default(),
            false => (0..20).map(|n| own.forward(SUM, &to, &(n, 1)).unwrap()).sum(),
        })
    };
    service.serve(RELAY).returning(relay).unwrap();
}

/// Calls that end in all the ways there are.
fn calls(pair: &common::Pair, transport: &str) {
    let (client, target) = (&pair.client, pair.target());
    let data = [1; BYTES];
    expect_level(&format!("answers, {transport}"), 2000, 16, || {
        let requests: Vec<_> =
            (0..8).map(|m| client.rpc(SUM, &target, &(1, m)).start().unwrap()).collect();
        margo::wait_all(requests).into_iter().for_each(|sum| assert!(sum.is_ok()));
        let call = |bulk: &Bulk| client.forward(TRANSFER, &target, bulk);
        client.memory().expose_ref(&data, call).unwrap().unwrap();
    });
    expect_level(&format!("errors, {transport}"), 3000, 16, || {
        let failed = client.forward(FAIL, &target, &"as asked".to_owned());
        assert!(matches!(failed, Err(ForwardError::Failed { .. })));
        let missing = client.forward(MISSING, &target, &());
        assert!(matches!(missing, Err(ForwardError::NotRegistered { .. })));
    });
    expect_level(&format!("callbacks and one-way calls, {transport}"), 3000, 16, || {
        let done = std::sync::Arc::new(ult::Eventual::new());
        let told = done.clone();
        let tell = move |sum: Result<i64, ForwardError>| told.set(sum.unwrap()).unwrap();
        client.rpc(SUM, &target, &(1, 2)).call_back(tell).unwrap();
        client.send(LOG, &target, &"a line".to_owned()).unwrap();
        assert_eq!(*done.wait(), 3);
    });
    // Or there are as many stacks as there happened to be handlers.
    let pool = pair.service.layout().rpc_pool();
    let handlers_end = || {
        // It comes after the request before it.
        client.forward(SUM, &target, &(1, 2)).unwrap();
        let start = Instant::now();
        while pair.service.monitoring().load(&pool).unwrap().in_hand > 0 {
            assert!(start.elapsed() < common::PATIENCE, "the handlers do not end");
            ult::yield_now();
        }
    };
    expect_level(&format!("cancels, {transport}"), 2000, 16, || {
        let call = client.rpc(HOLD, &target, &()).start().unwrap();
        call.cancel();
        assert!(matches!(call.wait(), Err(ForwardError::Canceled { .. })));
        handlers_end();
    });
    expect_level(&format!("nested calls, {transport}"), 500, 64, || {
        assert_eq!(client.forward(RELAY, &target, &false).unwrap(), 210);
        let call = client.rpc(RELAY, &target, &true).start().unwrap();
        call.cancel();
        assert!(matches!(call.wait(), Err(ForwardError::Canceled { .. })));
        handlers_end();
    });
    expect_level(&format!("deadlines, {transport}"), 1000, 16, || {
        let late = client.forward_timed(HOLD, &target, &(), Duration::from_micros(100));
        // Or the handler, which hears of it, has ended without an answer.
        assert!(late.is_err());
        handlers_end();
    });
}

/// Checks objects that come and go in an instance, and instances.
fn parts() {
    let instance = margo::init("{}").unwrap();
    expect_level("providers", 2000, 16, || {
        let id = ProviderId::new(7);
        let provider = instance.provider_of(id, &instance.layout().rpc_pool(), 5_i64);
        provider.serve(SUM).returning_method(|more: &i64, call| call.args().0 + more).unwrap();
        let to = ProviderHandle::new(instance.self_addr(), id);
        assert_eq!(instance.forward(SUM, &to, &(1, 2)).unwrap(), 6);
    });
    // Of each there stays a record, so that its index and its handles go on meaning it.
    expect_level("pools and execution streams", 200, 2048, || {
        let pool = instance.layout().add_pool_from_json("{}").unwrap();
        let xstream = format!(r#"{{ "scheduler": {{ "pools": ["{}"] }} }}"#, pool.name());
        let xstream = instance.layout().add_xstream_from_json(&xstream).unwrap();
        assert_eq!(pool.pool.spawn(|| 5).unwrap().join().unwrap(), 5);
        instance.layout().remove_xstream(&xstream).unwrap();
        instance.layout().remove_pool(&pool).unwrap();
    });
    expect_level("timers", 2000, 16, || {
        let timer = instance.timer(|_| ());
        timer.start(Duration::from_secs(3600)).unwrap();
        drop(timer);
        // Its unit is on the way to an execution stream, and this one comes after it. Or there are
        // as many units as were ahead of a loaded machine, and the runtime keeps them for later.
        instance.layout().rpc_pool().spawn(|| ()).unwrap().join().unwrap();
    });
    instance.finalize_and_wait().unwrap();
    expect_level("instances", 50, 1024, || {
        let pair = common::Pair::new("na+sm://");
        serve(&pair.service);
        assert_eq!(pair.client.forward(SUM, &pair.target(), &(1, 2)).unwrap(), 3);
        pair.end();
    });
}

// Slow: thousands of rounds, or growth would be less than the noise.
#[test]
fn memory_does_not_grow() {
    for transport in common::TRANSPORTS {
        let pair = common::Pair::new(transport);
        serve(&pair.service);
        // On the client's own execution stream: an OS thread would be woken for each answer, and
        // beside two instances that poll it had no processor.
        let pool = pair.client.layout().rpc_pool();
        let called = pool.spawn(move || {
            calls(&pair, transport);
            pair
        });
        called.unwrap().join().unwrap().end();
    }
    parts();
}
