//! Transfers that do not wait, with deadlines and cancels, and transfers in chunks.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::bulk_support::idle::idle_owner;
use crate::bulk_support::{self, is_filled, pattern};
use crate::common::{PATIENCE, Pair, TRANSPORTS, bounded, on_each};
use futures_lite::future::{block_on, zip};
use margo::na::{Memory, RawSegment};
use margo::{
    Access, Addr, BulkError, BulkRequest, Exposed, Instance, Rpc, bulk_memory::BulkPoolError,
    bulk_memory::BulkPoolSpec, bulk_memory::PooledBuffer,
};
use ult::Selectable;

const PULL: Rpc<(), ()> = Rpc::new("pull");
/// How a transfer of a pool's buffer ended.
type Ended = (Result<(), BulkError>, PooledBuffer);

const LEN: usize = 100_000;
/// More than sockets hold.
const LONG: usize = 32 << 20;
const SHORT: Duration = Duration::from_millis(20);

/// The service lends `LEN` bytes of a pattern, and the client uses them.
fn with_lent(body: impl Fn(&Pair, &Addr, &Exposed) + Send + Sync + 'static) {
    bounded("transfers in flight", move || {
        on_each(|pair| {
            let lent = pair.service.expose(pattern(LEN, 0), Access::ReadWrite).unwrap();
            body(&pair, pair.target().addr(), &lent);
            drop(lent);
            pair.end();
        });
    });
}

fn bytes_of(lent: &Exposed) -> Vec<u8> {
    let mut bytes = vec![0; LEN];
    lent.read_at(0, &mut bytes).unwrap();
    bytes
}

/// Stripes of one buffer, which may be of several peers.
#[test]
fn several_transfers_have_one_buffer_at_a_time() {
    with_lent(|pair, addr, lent| {
        let client = &pair.client;
        let whole = Arc::new(client.expose(vec![0; LEN], Access::ReadOnly).unwrap());
        let stripe = LEN / 4;
        let requests = [0, 1, 2, 3].map(|at| {
            let range = at * stripe..(at + 1) * stripe;
            client.bulk(addr, lent.bulk()).start_pull(range.start as u64, whole.clone(), range)
        });
        for request in requests {
            request.wait().0.unwrap();
        }
        let whole = Arc::into_inner(whole).expect("the requests have given theirs back");
        assert!(whole.release().unwrap() == pattern(LEN, 0));
    });
}

#[test]
fn memory_of_any_owner_is_lent_and_comes_back() {
    with_lent(|pair, _, _| {
        let mut numbers: Vec<u64> = (0..LEN as u64).collect();
        let bytes = size_of_val(&*numbers);
        let segment = RawSegment { ptr: numbers.as_mut_ptr().cast(), len: bytes };
        // SAFETY: the bytes of the numbers, which the vector keeps where they are; nobody has a
        // reference to them until it is back, and any bytes are numbers.
        let memory = unsafe { Memory::from_raw(vec![segment], numbers) };
        let lent = pair.service.expose(memory, Access::ReadWrite).unwrap();
        let mut buffer = pair.client.memory().bulk_buffer(bytes).unwrap();
        let addr = pair.target();
        pair.client.pull(addr.addr(), lent.bulk(), 0, &mut buffer, 0..bytes).unwrap();
        let second = buffer[8..16].try_into().unwrap();
        assert_eq!(u64::from_le_bytes(second), 1);
        buffer[8..16].copy_from_slice(&77_u64.to_le_bytes());
        pair.client.push(addr.addr(), lent.bulk(), 0, &mut buffer, 0..bytes).unwrap();
        let numbers = lent.release().unwrap().into_owner::<Vec<u64>>().unwrap();
        assert_eq!((numbers[0], numbers[1], numbers[LEN - 1]), (0, 77, LEN as u64 - 1));
    });
}

#[test]
fn the_buffer_comes_back_with_the_data() {
    with_lent(|pair, addr, lent| {
        let client = &pair.client;
        let half = LEN / 2;
        let buffer = || client.memory().bulk_buffer(half).unwrap();
        let first = client.bulk(addr, lent.bulk()).start_pull(0, buffer(), 0..half);
        let second = client.bulk(addr, lent.bulk()).start_pull(half as u64, buffer(), 0..half);
        assert_eq!(second.peer(), addr);
        let (result, second) = second.wait();
        result.unwrap();
        let (result, first) = first.wait();
        result.unwrap();
        assert!([&first[..], &second[..]].concat() == pattern(LEN, 0));
        // And back, exchanged.
        let first = client.bulk(addr, lent.bulk()).start_push(half as u64, first, 0..half);
        let second = client.bulk(addr, lent.bulk()).start_push(0, second, 0..half);
        for request in [first, second] {
            request.wait().0.unwrap();
        }
        let (low, high) = (pattern(LEN, 0)[..half].to_vec(), pattern(LEN, 0)[half..].to_vec());
        assert!(bytes_of(lent) == [high, low].concat());
    });
}

#[test]
fn every_kind_of_local_memory_can_be_in_flight() {
    with_lent(|pair, addr, lent| {
        let client = &pair.client;
        let segments = client.memory().bulk_segments(vec![vec![0; 10], vec![0; LEN - 10]]).unwrap();
        let (result, segments) =
            client.bulk(addr, lent.bulk()).start_pull(0, segments, 0..LEN).wait();
        result.unwrap();
        assert!(segments.into_segments().concat() == pattern(LEN, 0));

        let exposed = client.expose(vec![0; LEN], Access::ReadOnly).unwrap();
        let (result, exposed) =
            client.bulk(addr, lent.bulk()).start_pull(0, exposed, 0..LEN).wait();
        result.unwrap();
        assert!(exposed.release().unwrap() == pattern(LEN, 0));

        let pool = client.memory().bulk_pool(&BulkPoolSpec::geometric(1, 1, LEN, 1)).unwrap();
        let request = client.bulk(addr, lent.bulk()).start_pull(0, pool.get(LEN).unwrap(), 0..LEN);
        assert!(pool.try_get(LEN).unwrap().is_none(), "it is in flight");
        let (result, buffer) = request.wait();
        result.unwrap();
        assert!(buffer[..] == pattern(LEN, 0));
        drop(buffer);
        assert!(pool.try_get(LEN).unwrap().is_some());
    });
}

#[test]
fn what_does_not_start_ends_at_once_with_its_buffer() {
    with_lent(|pair, addr, lent| {
        let client = &pair.client;
        let buffer = client.memory().bulk_buffer(10).unwrap();
        let request = client.bulk(addr, lent.bulk()).start_pull(0, buffer, 5..11);
        assert!(request.test());
        request.cancel();
        request.canceler().cancel();
        assert_eq!(ult::wait_any(&[request.ready()], None), Some(0));
        let (result, buffer) = request.wait();
        assert!(matches!(result, Err(BulkError::LocalRange { start: 5, end: 11, len: 10 })));
        let (result, buffer) =
            client.bulk(addr, lent.bulk()).start_push(LEN as u64, buffer, 0..10).wait();
        assert!(matches!(result, Err(BulkError::Transfer { .. })), "{result:?}");
        assert_eq!(buffer.len(), 10);
    });
}

#[test]
fn an_owner_that_refuses_gives_an_error_and_the_buffer() {
    with_lent(|pair, addr, _| {
        let lent = pair.service.expose(vec![1; 10], Access::ReadOnly).unwrap();
        let bulk = lent.bulk().clone();
        lent.release().unwrap();
        let buffer = pair.client.memory().bulk_buffer(10).unwrap();
        let (result, buffer) = pair.client.bulk(addr, &bulk).start_pull(0, buffer, 0..10).wait();
        assert!(matches!(result, Err(BulkError::Transfer { .. })), "{result:?}");
        assert_eq!(buffer.len(), 10);
    });
}

#[test]
fn transfers_are_futures_and_can_be_selected() {
    with_lent(|pair, addr, lent| {
        let client = pair.client.clone();
        let start = || {
            let buffer = client.memory().bulk_buffer(LEN).unwrap();
            client.bulk(addr, lent.bulk()).start_pull(0, buffer, 0..LEN)
        };
        let ((first, _), (second, buffer)) = block_on(zip(start(), start()));
        first.and(second).unwrap();
        assert!(buffer[..] == pattern(LEN, 0));
        let (result, buffer) = ult::block_on(start());
        result.unwrap();
        assert!(buffer[..] == pattern(LEN, 0));
        let (request, other) = (start(), start());
        let objects: [&dyn Selectable; 2] = [request.ready(), other.ready()];
        assert!(ult::wait_any(&objects, None).is_some());
        let (result, _) = request.wait_timeout(PATIENCE).unwrap();
        result.unwrap();
        let (result, _) = other.wait_timeout(Duration::MAX).unwrap();
        result.unwrap();
    });
}

#[test]
fn detached_and_dropped_transfers_give_their_buffers_to_the_pool() {
    with_lent(|pair, addr, lent| {
        let client = &pair.client;
        let pool = client.memory().bulk_pool(&BulkPoolSpec::geometric(1, 2, LEN, 1)).unwrap();
        for round in 0..20u8 {
            let mut buffer = pool.get(LEN).unwrap();
            buffer.fill(round);
            client.bulk(addr, lent.bulk()).start_push(0, buffer, 0..LEN).detach();
            drop(client.bulk(addr, lent.bulk()).start_pull(0, pool.get(LEN).unwrap(), 0..LEN));
            // Both: when their transfers are over.
            let both = [pool.get(LEN).unwrap(), pool.get(LEN).unwrap()];
            assert!(is_filled(&bytes_of(lent), round));
            drop(both);
        }
    });
}

/// Turns the owner until the request is over.
fn turn_until_over<B>(owner: &mut bulk_support::Node, request: &BulkRequest<B>)
where
    B: margo::bulk_memory::LocalBulk + Send + 'static,
{
    let started = Instant::now();
    while !request.test() {
        owner.turn();
        assert!(started.elapsed() < PATIENCE, "the transfer does not end");
    }
}

#[test]
fn a_look_at_a_transfer_does_not_wait() {
    for transport in TRANSPORTS {
        let (mut owner, _lent, bulk, mover, addr) = idle_owner(transport, LONG);
        let buffer = mover.memory().bulk_buffer(LONG).unwrap();
        let request = mover.bulk(&addr, &bulk).start_pull(0, buffer, 0..LONG);
        assert!(!request.test());
        let request = request.try_wait().expect_err("the owner sleeps");
        let request = request.wait_timeout(SHORT).expect_err("the owner sleeps");
        assert_eq!(ult::wait_any(&[request.ready()], Some(Instant::now())), None);
        turn_until_over(&mut owner, &request);
        let (result, buffer) = request.try_wait().unwrap();
        result.unwrap();
        assert!(buffer[..] == pattern(LONG, 0));
        mover.finalize_and_wait().unwrap();
    }
}

#[test]
fn a_cancelled_transfer_gives_its_buffer_back() {
    for transport in TRANSPORTS {
        let (mut owner, _lent, bulk, mover, addr) = idle_owner(transport, LONG);
        for push in [false, true] {
            let buffer = mover.memory().bulk_buffer(LONG).unwrap();
            let request = match push {
                false => mover.bulk(&addr, &bulk).start_pull(0, buffer, 0..LONG),
                true => mover.bulk(&addr, &bulk).start_push(0, buffer, 0..LONG),
            };
            let canceler = request.canceler();
            request.cancel();
            canceler.cancel();
            turn_until_over(&mut owner, &request);
            let (result, buffer) = request.wait();
            assert!(matches!(result, Err(BulkError::Canceled { .. })), "{transport} {result:?}");
            assert_eq!(buffer.len(), LONG);
        }
        mover.finalize_and_wait().unwrap();
    }
}

/// The transfer has the buffer, so no error could come back with it.
#[test]
fn a_tasklet_that_waits_for_a_transfer_panics_and_does_not_block() {
    bounded("a tasklet with a transfer", || {
        for transport in TRANSPORTS {
            let (mut owner, _lent, bulk, mover, addr) = idle_owner(transport, LONG);
            let pool = mover.layout().rpc_pool();
            let start = || {
                let buffer = mover.memory().bulk_buffer(LONG).unwrap();
                mover.bulk(&addr, &bulk).start_pull(0, buffer, 0..LONG)
            };
            for timed in [false, true] {
                let request = start();
                let waits = pool.tasklet().spawn(move || match timed {
                    false => drop(request.wait()),
                    true => drop(request.wait_timeout(PATIENCE)),
                });
                let Err(ult::JoinError::Panicked(panic)) = waits.unwrap().join() else {
                    panic!("it has waited")
                };
                assert!(panic.message().contains("a tasklet cannot wait for a bulk"));
            }
            // To look is not to wait, and what is over is not waited for.
            let request = start();
            let looks = move || request.wait_timeout(Duration::ZERO).unwrap_err();
            let request = pool.tasklet().spawn(looks).unwrap().join().unwrap();
            turn_until_over(&mut owner, &request);
            let reads = pool.tasklet().spawn(move || request.wait()).unwrap();
            let (result, buffer) = reads.join().unwrap();
            result.unwrap();
            assert!(buffer[..] == pattern(LONG, 0));
            mover.finalize_and_wait().unwrap();
        }
    });
}

/// Lets every ULT of the pool that can run, run.
fn let_them_run(instance: &Instance) {
    for _ in 0..100 {
        instance.layout().rpc_pool().spawn(ult::yield_now).unwrap().join().unwrap();
    }
}

#[test]
fn a_timed_transfer_gives_up() {
    for transport in TRANSPORTS {
        let (mut owner, _lent, bulk, mover, addr) = idle_owner(transport, LONG);
        for push in [false, true] {
            let (own, to, remote) = (mover.clone(), addr.clone(), bulk.clone());
            let started = mover.monitoring().stats().bulk_transfers;
            let transfer = move || {
                let mut buffer = own.memory().bulk_buffer(LONG).unwrap();
                match push {
                    false => {
                        own.bulk(&to, &remote).timeout(Duration::ZERO).pull(0, &mut buffer, 0..LONG)
                    }
                    true => {
                        own.bulk(&to, &remote).timeout(Duration::ZERO).push(0, &mut buffer, 0..LONG)
                    }
                }
            };
            let transfer = mover.layout().rpc_pool().spawn(transfer).unwrap();
            // Not before it has given up: it would succeed.
            while mover.monitoring().stats().bulk_transfers == started {
                std::thread::yield_now();
            }
            let_them_run(&mover);
            let started = Instant::now();
            while !transfer.is_finished() {
                owner.turn();
                assert!(started.elapsed() < PATIENCE, "the transfer does not end");
            }
            match transfer.join().unwrap() {
                Err(BulkError::TimedOut { limit, .. }) => assert_eq!(limit, Duration::ZERO),
                other => panic!("{transport}: {other:?}"),
            }
        }
        mover.finalize_and_wait().unwrap();
    }
}

/// Yields each transport twice: to pull (`false`) and to push (`true`).
fn pulls_and_pushes() -> impl Iterator<Item = (&'static str, bool)> {
    TRANSPORTS.into_iter().flat_map(|transport| [(transport, false), (transport, true)])
}

/// Also over sm, where the owner writes into our memory by itself: the buffer takes other memory
/// then. What the transfer did not touch stays in it.
// Slow: 32 MiB for each of several transfers of each kind, all of which is looked at.
#[test]
fn a_deadline_passes_while_the_owner_sleeps() {
    const HALF: usize = LONG / 2;
    bounded("timed transfers", || {
        for (transport, push) in pulls_and_pushes() {
            let (mut owner, _lent, bulk, mover, addr) = idle_owner(transport, LONG);
            let check = |result| match result {
                Err(BulkError::TimedOut { limit, .. }) => assert_eq!(limit, SHORT),
                other => panic!("{transport}: {other:?}"),
            };
            let mut buffer = mover.memory().bulk_buffer(LONG).unwrap();
            let rows = vec![vec![5; 10], vec![5; LONG - 10]];
            let mut rows = mover.memory().bulk_segments(rows).unwrap();
            buffer.fill(5);
            let started = Instant::now();
            if push {
                check(mover.bulk(&addr, &bulk).timeout(SHORT).push(0, &mut buffer, 0..HALF));
                check(mover.bulk(&addr, &bulk).timeout(SHORT).push(0, &mut rows, 0..HALF));
                assert!(is_filled(&buffer, 5) && is_filled(rows.segment(1), 5));
            } else {
                check(mover.bulk(&addr, &bulk).timeout(SHORT).pull(0, &mut buffer, 0..HALF));
                check(mover.bulk(&addr, &bulk).timeout(SHORT).pull(0, &mut rows, 0..HALF));
            }
            assert!(started.elapsed() >= 2 * SHORT);
            assert!(is_filled(&buffer[HALF..], 5) && is_filled(&rows.segment(1)[HALF..], 5));
            assert_eq!((buffer.len(), rows.count(), rows.len()), (LONG, 2, LONG));
            // The owner goes on, and what it still does is not seen here.
            buffer.fill(6);
            rows.for_each_mut(|_, row| row.fill(6));
            let (local, own, to, remote) = (0..LONG, mover.clone(), addr.clone(), bulk.clone());
            let next = move || {
                let mut buffer = own.memory().bulk_buffer(LONG).unwrap();
                own.pull(&to, &remote, 0, &mut buffer, local).unwrap();
            };
            let next = mover.layout().rpc_pool().spawn(next).unwrap();
            while !next.is_finished() {
                owner.turn();
            }
            next.join().unwrap();
            assert!(is_filled(&buffer, 6) && is_filled(rows.segment(1), 6));
            mover.finalize_and_wait().unwrap();
        }
    });
}

/// A pool has its buffers again, with memory that nobody writes to, also of a transfer that nobody
/// waits for.
#[test]
fn a_pool_gets_its_buffer_back_while_the_owner_sleeps() {
    bounded("transfers that are dropped", || {
        for transport in TRANSPORTS {
            let (owner, _lent, bulk, mover, addr) = idle_owner(transport, LONG);
            let pool = mover.memory().bulk_pool(&BulkPoolSpec::geometric(1, 1, LONG, 1)).unwrap();
            drop(mover.bulk(&addr, &bulk).start_pull(0, pool.get(LONG).unwrap(), 0..LONG));
            let buffer = pool.get_timed(LONG, PATIENCE).unwrap();
            assert_eq!(buffer.len(), LONG);
            mover.finalize_and_wait().unwrap();
            drop(owner);
        }
    });
}

/// Exposed memory stays where it is: until the owner has answered, or has ended, it is released
/// late, and is no target of another pull.
#[test]
fn exposed_memory_is_no_target_while_a_peer_may_still_write_there() {
    bounded("a pull into exposed memory", || {
        let (mut owner, _lent, bulk, mover, addr) = idle_owner("na+sm://", LONG);
        let mut exposed = mover.expose(vec![0; LONG], Access::ReadOnly).unwrap();
        let pull = |exposed: &mut Exposed, limit| {
            mover.bulk(&addr, &bulk).timeout(limit).pull(0, exposed, 0..LONG)
        };
        let first = pull(&mut exposed, SHORT);
        assert!(matches!(first, Err(BulkError::TimedOut { .. })), "{first:?}");
        let refused = pull(&mut exposed, PATIENCE).unwrap_err();
        assert!(refused.to_string().contains("may still be written"), "{refused}");
        let releasing = exposed.release_timed(SHORT).unwrap_err();
        assert!(!releasing.is_lost(), "{releasing}");
        let release = mover.layout().rpc_pool().spawn(move || releasing.wait()).unwrap();
        while !release.is_finished() {
            owner.turn();
        }
        assert_eq!(release.join().unwrap().unwrap().len(), LONG);
        mover.finalize_and_wait().unwrap();
    });
}

/// However one looks at a request whose owner sleeps, it ends at its deadline, with its buffer.
#[test]
fn a_request_ends_at_its_deadline_whoever_waits() {
    bounded("timed requests", || {
        for (transport, push) in pulls_and_pushes() {
            let (owner, _lent, bulk, mover, addr) = idle_owner(transport, LONG);
            let pool = mover.memory().bulk_pool(&BulkPoolSpec::geometric(1, 1, LONG, 1)).unwrap();
            let start = |limit| {
                let buffer = pool.get(LONG).unwrap();
                match push {
                    false => mover.bulk(&addr, &bulk).timeout(limit).start_pull(0, buffer, 0..LONG),
                    true => mover.bulk(&addr, &bulk).timeout(limit).start_push(0, buffer, 0..LONG),
                }
            };
            let waited = |request: BulkRequest<_>| request.wait();
            let awaited = |request: BulkRequest<_>| block_on(request);
            let selected = |request: BulkRequest<_>| {
                assert_eq!(ult::wait_any(&[request.ready()], None), Some(0));
                request.wait()
            };
            let looked_at = |mut request: BulkRequest<_>| {
                loop {
                    match request.try_wait() {
                        Ok(end) => return end,
                        Err(again) => request = again,
                    }
                    std::thread::yield_now();
                }
            };
            let limited = |request: BulkRequest<_>| request.wait_timeout(PATIENCE).unwrap();
            type Look<'l> = &'l dyn Fn(BulkRequest<PooledBuffer>) -> Ended;
            let unseen = |request: BulkRequest<_>| {
                // Which is no look of the request's.
                while !format!("{request:?}").contains("is_over: true") {
                    std::thread::yield_now();
                }
                request.wait()
            };
            let looks: [Look<'_>; 6] =
                [&unseen, &waited, &awaited, &selected, &looked_at, &limited];
            for look in looks {
                let started = Instant::now();
                let (result, buffer) = look(start(SHORT));
                assert!(started.elapsed() >= SHORT);
                assert_eq!(buffer.len(), LONG);
                match result {
                    // What a timed operation of ours still had to do has taken some of it.
                    Err(BulkError::TimedOut { limit, .. }) => assert!(limit <= SHORT),
                    other => panic!("{other:?}"),
                }
            }
            // Nobody looks: the buffer comes back to the pool by itself.
            start(SHORT).detach();
            assert!(pool.try_get(LONG).unwrap().is_none());
            drop(pool.get(LONG).unwrap());
            // No time at all: nothing is started.
            let before = mover.monitoring().stats().bulk_transfers;
            let request = start(Duration::ZERO);
            assert!(request.test());
            assert!(matches!(request.wait().0, Err(BulkError::TimedOut { .. })));
            assert_eq!(mover.monitoring().stats().bulk_transfers, before);
            // A wait that is over is no deadline.
            let request = start(PATIENCE).wait_timeout(SHORT).unwrap_err();
            assert!(!request.test());
            request.cancel();
            assert!(matches!(request.wait().0, Err(BulkError::Canceled { .. })));
            mover.finalize_and_wait().unwrap();
            drop(owner);
        }
    });
}

#[test]
fn chunks_have_a_deadline_together() {
    bounded("timed chunks", || {
        for (transport, push) in pulls_and_pushes() {
            let (owner, _lent, bulk, mover, addr) = idle_owner(transport, LONG);
            let pool =
                mover.memory().bulk_pool(&BulkPoolSpec::geometric(1, 3, 1 << 20, 1)).unwrap();
            let mut buffers = pool.get_up_to_timed(3, 1 << 20, PATIENCE).unwrap();
            let none = pool.get_up_to_timed(2, 1 << 20, SHORT).unwrap_err();
            assert!(matches!(none, BulkPoolError::TimedOut { .. }), "{none}");
            let (started, range) = (Instant::now(), 0..LONG as u64);
            let f = |_, _: &mut [u8]| Ok::<_, BulkError>(());
            let result = match push {
                false => {
                    mover.bulk(&addr, &bulk).timeout(SHORT).pull_chunks(range, &mut buffers, f)
                }
                true => mover.bulk(&addr, &bulk).timeout(SHORT).push_chunks(range, &mut buffers, f),
            };
            assert!(matches!(result, Err(BulkError::TimedOut { .. })), "{result:?}");
            assert!(started.elapsed() >= SHORT);
            assert_eq!(buffers.len(), 3);
            mover.finalize_and_wait().unwrap();
            drop(owner);
        }
    });
    with_lent(|pair, addr, lent| {
        let client = &pair.client;
        let mut buffers = vec![client.memory().bulk_buffer(LEN / 4).unwrap()];
        let (range, mut taken) = (0..LEN as u64, Vec::new());
        let take = |_, chunk: &mut [u8]| {
            taken.extend_from_slice(chunk);
            Ok::<_, BulkError>(())
        };
        let bulk = lent.bulk();
        client
            .bulk(addr, bulk)
            .timeout(PATIENCE)
            .pull_chunks(range.clone(), &mut buffers, take)
            .unwrap();
        assert!(taken == pattern(LEN, 0));
        // The time that the closure takes counts: nothing is started after it.
        let begun = Instant::now();
        let mut calls = 0;
        let slow = |_, _: &mut [u8]| {
            calls += 1;
            while begun.elapsed() <= 2 * SHORT {
                std::thread::yield_now();
            }
            Ok::<_, BulkError>(())
        };
        let late =
            client.bulk(addr, bulk).timeout(2 * SHORT).push_chunks(range, &mut buffers, slow);
        assert!(matches!(late, Err(BulkError::TimedOut { .. })), "{late:?}");
        assert!(calls <= 1, "{calls}");
    });
}

#[test]
fn requests_of_a_handler_end_with_its_request() {
    bounded("a handler's transfer", || {
        let (owner, _lent, bulk, mover, addr) = idle_owner("na+tcp://127.0.0.1:0", LONG);
        let (ended, end) = std::sync::mpsc::channel();
        let (to, own) = (addr.clone(), mover.clone());
        let pull = move |()| {
            let buffer = own.memory().bulk_buffer(LONG).unwrap();
            let request = own.bulk(&to, &bulk).start_pull(0, buffer, 0..LONG);
            ended.send(request.wait().0).unwrap();
        };
        mover.serve(PULL).function(pull).unwrap();
        let own = margo::ProviderHandle::from(mover.self_addr());
        // Its answer and the caller's deadline come at about the same time.
        let _ = mover.forward_timed(PULL, &own, &(), 10 * SHORT);
        let result = loop {
            if let Ok(result) = end.recv_timeout(SHORT) {
                break result;
            }
            if mover.monitoring().stats().requests_abandoned > 0 {
                // On a busy machine its time may be over before it begins.
                drop(mover.forward_timed(PULL, &own, &(), PATIENCE / 10));
            }
        };
        assert!(matches!(result, Err(BulkError::TimedOut { .. })), "{result:?}");
        mover.finalize_and_wait().unwrap();
        drop(owner);
    });
}

#[test]
fn a_timed_transfer_in_time_is_like_any_other() {
    with_lent(|pair, addr, lent| {
        let mut buffer = pair.client.memory().bulk_buffer(LEN).unwrap();
        for limit in [PATIENCE, Duration::MAX] {
            buffer.fill(0);
            let bulk = lent.bulk();
            pair.client.bulk(addr, bulk).timeout(limit).pull(0, &mut buffer, 0..LEN).unwrap();
            assert!(buffer[..] == pattern(LEN, 0));
            pair.client.bulk(addr, bulk).timeout(limit).push(0, &mut buffer, 0..LEN).unwrap();
        }
    });
}

#[test]
fn chunks_come_in_order_and_cover_the_range() {
    with_lent(|pair, addr, lent| {
        for (sizes, range) in [
            (vec![1000], 0..LEN as u64),
            (vec![1000, 1000], 0..LEN as u64),
            (vec![7001, 5003, 6007], 13..LEN as u64 - 17),
            (vec![2 * LEN, 2 * LEN], 0..LEN as u64),
            (vec![64; 8], 500..501),
            (vec![64], 500..500),
        ] {
            let chunk = sizes.iter().copied().min().unwrap();
            let buffers = sizes.iter().map(|len| pair.client.memory().bulk_buffer(*len).unwrap());
            let mut buffers: Vec<_> = buffers.collect();
            let (mut next, mut bytes) = (range.start, Vec::new());
            let f = |at: u64, data: &mut [u8]| {
                assert_eq!(at, next);
                assert!(data.len() == chunk || at + data.len() as u64 == range.end);
                next += data.len() as u64;
                bytes.extend_from_slice(data);
                Ok::<_, BulkError>(())
            };
            pair.client
                .bulk(addr, lent.bulk())
                .pull_chunks(range.clone(), &mut buffers, f)
                .unwrap();
            let expected = &pattern(LEN, 0)[range.start as usize..range.end as usize];
            assert!(bytes == expected, "{sizes:?} {range:?}");
            assert_eq!(buffers.len(), sizes.len());

            let mut offsets = Vec::new();
            let f = |at: u64, data: &mut [u8]| {
                offsets.push(at);
                data.copy_from_slice(&pattern(LEN, 3)[at as usize..][..data.len()]);
                Ok::<_, BulkError>(())
            };
            lent.write_at(0, &pattern(LEN, 0)).unwrap();
            pair.client
                .bulk(addr, lent.bulk())
                .push_chunks(range.clone(), &mut buffers, f)
                .unwrap();
            assert!(offsets.is_sorted());
            let mut expected = pattern(LEN, 0);
            let range = range.start as usize..range.end as usize;
            expected[range.clone()].copy_from_slice(&pattern(LEN, 3)[range]);
            assert!(bytes_of(lent) == expected);
            assert_eq!(buffers.len(), sizes.len());
            lent.write_at(0, &pattern(LEN, 0)).unwrap();
        }
    });
}

/// The closure sees one chunk while others are in flight: with a closure that does not go on
/// before the next transfer has ended, nothing would move otherwise.
#[test]
fn chunks_move_while_the_closure_works() {
    with_lent(|pair, addr, lent| {
        let client = &pair.client;
        let pool = client.memory().bulk_pool(&BulkPoolSpec::geometric(1, 4, 10_000, 1)).unwrap();
        let mut buffers = pool.get_up_to(3, 10_000).unwrap();
        let mut ended = client.monitoring().stats().bulk_transfers;
        let f = |at: u64, _: &mut [u8]| {
            // This one, and as many as there are other buffers, have been started.
            let started = client.monitoring().stats().bulk_transfers;
            let left = (LEN as u64 - at) / 10_000;
            assert_eq!(started, ended + left.min(3));
            ended += 1;
            Ok::<_, BulkError>(())
        };
        client.bulk(addr, lent.bulk()).pull_chunks(0..LEN as u64, &mut buffers, f).unwrap();
    });
}

#[test]
fn an_error_ends_the_chunks_and_gives_all_buffers_back() {
    #[derive(Debug)]
    enum Failed {
        Bulk(BulkError),
        Mine(u64),
    }
    impl From<BulkError> for Failed {
        fn from(error: BulkError) -> Self {
            Self::Bulk(error)
        }
    }
    with_lent(|pair, addr, lent| {
        let client = &pair.client;
        let mut buffers: Vec<_> =
            (0..4).map(|_| client.memory().bulk_buffer(1000).unwrap()).collect();
        let all = 0..LEN as u64;
        for pull in [false, true] {
            let mut calls = 0;
            let f = |at: u64, _: &mut [u8]| {
                calls += 1;
                if at == 7000 { Err(Failed::Mine(at)) } else { Ok(()) }
            };
            let result = match pull {
                true => client.bulk(addr, lent.bulk()).pull_chunks(all.clone(), &mut buffers, f),
                false => client.bulk(addr, lent.bulk()).push_chunks(all.clone(), &mut buffers, f),
            };
            assert!(matches!(result, Err(Failed::Mine(7000))), "{result:?}");
            assert_eq!((calls, buffers.len()), (8, 4));
            // Beyond the end of what is lent.
            let f = |_: u64, _: &mut [u8]| Ok::<_, Failed>(());
            let end = LEN as u64 + 1;
            let result = match pull {
                true => client.bulk(addr, lent.bulk()).pull_chunks(0..end, &mut buffers, f),
                false => client.bulk(addr, lent.bulk()).push_chunks(0..end, &mut buffers, f),
            };
            assert!(matches!(result, Err(Failed::Bulk(BulkError::Transfer { .. }))), "{result:?}");
            assert_eq!(buffers.len(), 4);
        }
    });
}

#[test]
fn a_closure_that_panics_leaves_no_transfer_behind() {
    with_lent(|pair, addr, lent| {
        let client: &Instance = &pair.client;
        let pool = client.memory().bulk_pool(&BulkPoolSpec::geometric(1, 3, 1000, 1)).unwrap();
        let mut buffers = pool.get_up_to(10, 1000).unwrap();
        assert_eq!(buffers.len(), 3);
        let f = |at: u64, _: &mut [u8]| -> Result<(), BulkError> {
            assert!(at < 2000, "as the test wants");
            Ok(())
        };
        let pull = || client.bulk(addr, lent.bulk()).pull_chunks(0..LEN as u64, &mut buffers, f);
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(pull)).is_err());
        drop(buffers);
        // All of them come back, at the latest when their transfers are over.
        drop([(); 3].map(|()| pool.get(1000).unwrap()));
        assert!(pool.get_up_to(0, 1000).unwrap().is_empty());
    });
}
