//! Calls and transfers that end in every way at once: answers, deadlines, cancels from elsewhere,
//! requests that are dropped, detached, awaited and called back, from ULTs and OS threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::{bounded, on_each};
use futures_lite::future::poll_once;
use margo::{Access, Bulk, BulkError, ForwardError, Instance, ProviderHandle, Rpc};
use ult::block_on;

/// Answers with its argument, after so many turns of other ULTs.
const ECHO: Rpc<(u32, u32), u32> = Rpc::new("echo");
const BYTES: usize = 20_000;
const ROUNDS: u32 = 250;

/// Knuth's generator; the seed is told when an assertion fails.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

fn check_timed(result: &Result<u32, ForwardError>) {
    let expected = matches!(result, Ok(_) | Err(ForwardError::TimedOut { .. }));
    assert!(expected, "{result:?}");
}

struct Counts {
    started: AtomicUsize,
    called_back: AtomicUsize,
}

fn check(result: Result<u32, ForwardError>, n: u32, may_end_early: bool) {
    match result {
        Ok(value) => assert_eq!(value, n),
        Err(ForwardError::Canceled { .. } | ForwardError::TimedOut { .. }) if may_end_early => {}
        Err(error) => panic!("{error:?}"),
    }
}

fn check_bulk(result: Result<(), BulkError>) {
    if !matches!(result, Ok(()) | Err(BulkError::Canceled { .. } | BulkError::TimedOut { .. })) {
        panic!("{result:?}");
    }
}

fn calls(client: &Instance, target: &ProviderHandle, bulk: &Bulk, counts: &Arc<Counts>, seed: u64) {
    let mut random = Random(seed);
    let mut several = Vec::new();
    for n in 0..ROUNDS {
        let args = (n, random.below(4) as u32);
        let limit = Duration::from_micros(random.below(300));
        let start = || client.rpc(ECHO, target, &args).start().unwrap();
        let timed = || client.rpc(ECHO, target, &args).timeout(limit).start().unwrap();
        match random.below(14) {
            0 => check(start().wait(), n, false),
            1 => check(timed().wait(), n, true),
            2 => check(client.forward_timed(ECHO, target, &args, limit), n, true),
            3 => check(block_on(timed()), n, true),
            4 => drop(timed()),
            5 => timed().detach(),
            6 => {
                let request = start();
                let canceler = request.canceler();
                let other = client.layout().rpc_pool().spawn(move || canceler.cancel()).unwrap();
                check(request.wait(), n, true);
                other.join().unwrap();
            }
            7 => several.push(timed()),
            8 => {
                // Polled once, then dropped or waited for.
                let mut request = timed();
                let first = block_on(poll_once(&mut request));
                match first {
                    Some(result) => check(result, n, true),
                    None if random.below(2) == 0 => drop(request),
                    None => check(request.wait(), n, true),
                }
            }
            9 => {
                let request = timed();
                let _ = ult::wait_any(&[request.ready()], None);
                check(request.try_wait().unwrap(), n, true);
            }
            10 | 11 => {
                counts.started.fetch_add(1, Ordering::SeqCst);
                let own = counts.clone();
                let callback = move |result| {
                    check(result, n, true);
                    own.called_back.fetch_add(1, Ordering::SeqCst);
                };
                let call =
                    client.rpc(ECHO, target, &args).timeout(limit).call_back(callback).unwrap();
                if random.below(2) == 0 {
                    call.cancel();
                }
            }
            _ => transfer(client, target, bulk, &mut random, limit),
        }
        if several.len() > 5
            && let Some((_, result)) = margo::wait_any(&mut several)
        {
            check_timed(&result);
        }
    }
    for result in margo::wait_all(several) {
        check_timed(&result);
    }
}

fn transfer(
    client: &Instance,
    target: &ProviderHandle,
    bulk: &Bulk,
    random: &mut Random,
    limit: Duration,
) {
    let mut buffer = client.memory().bulk_buffer(BYTES).unwrap();
    let to = target.addr();
    match random.below(4) {
        0 => check_bulk(client.bulk(to, bulk).timeout(limit).pull(0, &mut buffer, 0..BYTES)),
        1 => drop(client.bulk(to, bulk).start_pull(0, buffer, 0..BYTES)),
        2 => {
            let request = client.bulk(to, bulk).start_pull(0, buffer, 0..BYTES);
            request.cancel();
            check_bulk(request.wait().0);
        }
        _ => {
            let (result, buffer) = block_on(client.bulk(to, bulk).start_pull(0, buffer, 0..BYTES));
            result.unwrap();
            assert!(buffer.iter().all(|byte| *byte == 7));
        }
    }
}

#[test]
fn calls_end_in_every_way_at_once() {
    bounded("calls that end in every way", || {
        on_each(|pair| {
            pair.service
                .register(ECHO, |handle| {
                    let (n, turns) = *handle.args();
                    for _ in 0..turns {
                        ult::yield_now();
                    }
                    handle.respond(&n).unwrap();
                })
                .unwrap();
            let lent = pair.service.expose(vec![7; BYTES], Access::ReadOnly).unwrap();
            let (client, target) = (pair.client.clone(), pair.target());
            let counts =
                Arc::new(Counts { started: AtomicUsize::new(0), called_back: AtomicUsize::new(0) });
            let run = |seed: u64| {
                let (client, target) = (client.clone(), target.clone());
                let (bulk, counts) = (lent.bulk().clone(), counts.clone());
                move || calls(&client, &target, &bulk, &counts, seed)
            };
            let ults: Vec<_> =
                (0..6).map(|seed| client.layout().rpc_pool().spawn(run(seed)).unwrap()).collect();
            let threads: Vec<_> = (10..12).map(|seed| std::thread::spawn(run(seed))).collect();
            for ult in ults {
                ult.join().unwrap();
            }
            for thread in threads {
                thread.join().unwrap();
            }
            assert_eq!(client.forward(ECHO, &target, &(1, 0)).unwrap(), 1);
            drop((client, lent));
            // Alarms, callbacks and detached calls are no obstacle; each callback was called once.
            pair.end();
            let [started, called_back] =
                [&counts.started, &counts.called_back].map(|count| count.load(Ordering::SeqCst));
            assert!(started > 100, "{started}");
            assert_eq!(called_back, started);
        });
    });
}
