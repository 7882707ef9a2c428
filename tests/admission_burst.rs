//! What a burst of requests costs. The only test here, because it looks at the whole process.
#![allow(clippy::unwrap_used, reason = "a test says by panicking what went wrong")]

mod admission_support;
mod common;

use admission_support::{Client, HOLD, Held, assert_busy, join, until};
use common::TRANSPORTS;

/// Resident memory of this process, bytes.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// Requests of four origins against a pool that is stuck: `MARGO_TEST_BURST` of them, 40,000 unless
/// that is set (the bound is stated for 1,000,000).
#[test]
fn a_burst_does_not_grow_memory_beyond_the_bound() {
    const BOUND: usize = 500;
    const ORIGINS: usize = 4;
    const IN_FLIGHT: usize = 500;
    let burst = std::env::var("MARGO_TEST_BURST").map_or(40_000, |burst| burst.parse().unwrap());
    for transport in TRANSPORTS {
        let admission = format!(r#"{{ "handlers_max": {BOUND} }}"#);
        let held = Held::new(transport, &admission, None);
        let clients: Vec<_> = (0..ORIGINS).map(|_| held.client()).collect();
        let inside: Vec<_> =
            clients.iter().flat_map(|client| client.start(0..(BOUND / ORIGINS) as u32)).collect();
        held.begun(BOUND);
        // The first round takes what the buffers of all sides need.
        let mut before = 0;
        for round in 0..2 {
            let callers: Vec<_> = clients
                .iter()
                .flat_map(|client| (0..IN_FLIGHT).map(move |_| client))
                .map(|client| {
                    let (instance, target) = (client.instance.clone(), client.target.clone());
                    let calls = if round == 0 { 4 } else { burst / ORIGINS / IN_FLIGHT };
                    let calls = move || {
                        for n in 0..calls {
                            assert_busy(instance.forward(HOLD, &target, &(n as u32)));
                        }
                    };
                    client.instance.rpc_pool().spawn(calls).unwrap()
                })
                .collect();
            for caller in callers {
                caller.join().unwrap();
            }
            let load = held.service.load(&held.service.pool("slow").unwrap()).unwrap();
            assert_eq!((load.in_hand, load.waiting), (BOUND, 0));
            if round == 0 {
                before = resident();
            }
        }
        let grown = resident().saturating_sub(before);
        assert!(grown < 16 << 20, "{transport}: {burst} requests have left {grown} bytes");
        held.go.release(BOUND);
        join(inside).into_iter().for_each(|call| assert!(call.is_ok()));
        // They have answered, and end soon after.
        until("all have ended", || held.service.stats().handlers_run == BOUND as u64);
        clients.into_iter().for_each(Client::end);
        held.end();
    }
}
