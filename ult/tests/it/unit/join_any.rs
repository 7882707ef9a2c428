//! Joining the first of several units, and mixing joins with other objects.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::common::{LONG, shared, wait_until, within};
use ult::{
    CountDown, Eventual, JoinError, JoinHandle, PoolRef, channel, join_any, join_any_deadline,
    wait_any, wait_any_timeout,
};

/// Units that return their number, each when its eventual is set.
fn gated(pool: &PoolRef, count: usize) -> (Vec<Arc<Eventual<()>>>, Vec<JoinHandle<usize>>) {
    let gates: Vec<_> = (0..count).map(|_| Arc::new(Eventual::new())).collect();
    let spawn = |(n, gate): (usize, &Arc<Eventual<()>>)| {
        let gate = gate.clone();
        let body = move || {
            gate.wait();
            n
        };
        pool.spawn(body).unwrap()
    };
    let handles = gates.iter().enumerate().map(spawn).collect();
    (gates, handles)
}

#[test]
fn the_first_that_ends_is_joined_and_removed() {
    within(|| {
        let (runtime, pool) = shared(2);
        let (gates, mut handles) = gated(&pool, 4);
        gates[2].set(()).unwrap();
        let (index, outcome) = join_any(&mut handles).unwrap();
        assert_eq!((index, outcome.unwrap()), (2, 2));
        assert_eq!(handles.len(), 3);
        gates[3].set(()).unwrap();
        let (index, outcome) = join_any(&mut handles).unwrap();
        assert_eq!((index, outcome.unwrap()), (2, 3), "the others have kept their order");
        gates[0].set(()).unwrap();
        gates[1].set(()).unwrap();
        let rest = ult::join_all(handles).into_iter().map(Result::unwrap);
        assert_eq!(rest.collect::<Vec<_>>(), [0, 1]);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn of_several_that_have_ended_the_lowest_is_joined() {
    within(|| {
        let (runtime, pool) = shared(1);
        let mut handles: Vec<_> = (0..3).map(|n| pool.spawn(move || n).unwrap()).collect();
        wait_until("all have ended", || handles.iter().all(JoinHandle::is_finished));
        for n in 0..3 {
            let (index, outcome) = join_any(&mut handles).unwrap();
            assert_eq!((index, outcome.unwrap()), (0, n));
        }
        assert!(join_any(&mut handles).is_none(), "none is left");
        runtime.shutdown().unwrap();
    });
}

#[test]
fn a_ult_joins_any_without_blocking_its_xstream() {
    within(|| {
        let (runtime, pool) = shared(1);
        let inner = pool.clone();
        let sum = pool.spawn(move || {
            let yields = |n: u64| {
                move || {
                    (0..(n * 5) % 7).for_each(|_| ult::yield_now());
                    n
                }
            };
            let mut handles: Vec<_> = (0..30).map(|n| inner.spawn(yields(n)).unwrap()).collect();
            let mut sum = 0;
            while let Some((_, outcome)) = join_any(&mut handles) {
                sum += outcome.unwrap();
            }
            sum
        });
        assert_eq!(sum.unwrap().join().unwrap(), 435);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn failures_are_outcomes_too() {
    within(|| {
        let (runtime, pool) = shared(1);
        let (gates, mut handles) = gated(&pool, 2);
        handles.push(pool.spawn(|| -> usize { panic!("no") }).unwrap());
        let (index, outcome) = join_any(&mut handles).unwrap();
        assert_eq!(index, 2);
        assert!(matches!(outcome, Err(JoinError::Panicked(_))));
        handles[1].cancel();
        let (index, outcome) = join_any(&mut handles).unwrap();
        assert_eq!(index, 1);
        assert!(matches!(outcome, Err(JoinError::Cancelled)));
        gates[0].set(()).unwrap();
        drop(handles);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn a_deadline_ends_the_wait_and_keeps_all_handles() {
    within(|| {
        let (runtime, pool) = shared(2);
        let (gates, mut handles) = gated(&pool, 2);
        let soon = Instant::now() + Duration::from_millis(2);
        assert!(join_any_deadline(&mut handles, soon).is_none());
        assert!(Instant::now() >= soon);
        assert_eq!(handles.len(), 2);
        gates[1].set(()).unwrap();
        let (index, outcome) = join_any_deadline(&mut handles, Instant::now() + LONG).unwrap();
        assert_eq!((index, outcome.unwrap()), (1, 1));
        gates[0].set(()).unwrap();
        let past = Instant::now();
        wait_until("the last one ends", || handles[0].is_finished());
        let late = join_any_deadline(&mut handles, past);
        assert_eq!(late.unwrap().1.unwrap(), 0, "one that has ended counts, however late");
        runtime.shutdown().unwrap();
    });
}

#[test]
fn a_unit_among_its_own_handles_is_told() {
    within(|| {
        let (runtime, pool) = shared(1);
        let (gates, mut handles) = gated(&pool, 1);
        let own = Arc::new(Eventual::<std::sync::Mutex<Vec<JoinHandle<usize>>>>::new());
        let told = Arc::new(Eventual::new());
        let (takes, tells) = (own.clone(), told.clone());
        let unit = pool.spawn(move || {
            let mut handles = std::mem::take(&mut *takes.wait().lock().unwrap());
            let (index, outcome) = join_any(&mut handles).unwrap();
            let is_told = matches!(outcome, Err(JoinError::Deadlock));
            tells.set((index, is_told, handles.len())).unwrap();
            0
        });
        handles.push(unit.unwrap());
        assert!(own.set(std::sync::Mutex::new(handles)).is_ok());
        assert_eq!(*told.wait(), (1, true, 1));
        gates[0].set(()).unwrap();
        runtime.shutdown().unwrap();
    });
}

#[test]
fn joins_mix_with_other_objects() {
    within(|| {
        let (runtime, pool) = shared(2);
        let (gates, mut handles) = gated(&pool, 1);
        let (sender, receiver) = channel::unbounded::<u8>();
        let (stop, count) = (Eventual::<()>::new(), CountDown::new(1));
        let handle = handles.pop().unwrap();
        let soon = Duration::from_millis(1);
        assert_eq!(wait_any_timeout(&[&handle, &receiver, &stop, &count], soon), None);
        sender.send(1).unwrap();
        assert_eq!(wait_any(&[&handle, &receiver, &stop, &count], None), Some(1));
        receiver.try_recv().unwrap();
        gates[0].set(()).unwrap();
        assert_eq!(wait_any(&[&stop, &handle, &receiver], None), Some(1));
        assert_eq!(wait_any(&[&handle, &stop], None), Some(0), "nothing has been taken");
        assert_eq!(handle.join().unwrap(), 0);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn several_parties_watch_one_unit() {
    within(|| {
        let (runtime, pool) = shared(2);
        let (gates, mut handles) = gated(&pool, 1);
        let handle = handles.pop().unwrap();
        std::thread::scope(|threads| {
            let watch = || assert_eq!(wait_any(&[&handle], None), Some(0));
            let asynchronous = || ult::block_on(ult::ready(&handle));
            let leave = || {
                let _ = wait_any_timeout(&[&handle], Duration::from_micros(50));
            };
            for _ in 0..3 {
                threads.spawn(watch);
                threads.spawn(asynchronous);
                threads.spawn(leave);
            }
            gates[0].set(()).unwrap();
        });
        assert_eq!(handle.join().unwrap(), 0);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn a_cancelled_ult_leaves_all_units_that_it_waited_for() {
    within(|| {
        let (runtime, pool) = shared(1);
        let (gates, handles) = gated(&pool, 3);
        let waits = Arc::new(AtomicBool::new(false));
        let tells = waits.clone();
        let unit = pool.spawn(move || {
            let mut handles = handles;
            tells.store(true, Ordering::SeqCst);
            join_any(&mut handles).map(|(index, _)| index)
        });
        wait_until("it starts", || waits.load(Ordering::SeqCst));
        let unit = unit.unwrap();
        unit.cancel();
        assert!(matches!(unit.join(), Err(JoinError::Cancelled)));
        gates.iter().for_each(|gate| gate.set(()).unwrap());
        runtime.shutdown().unwrap();
    });
}

#[test]
fn timed_joins_race_with_ends() {
    const ROUNDS: u32 = 3000;
    within(|| {
        let (runtime, pool) = shared(2);
        let ended = Arc::new(AtomicUsize::new(0));
        let mut random = 3u32;
        for _ in 0..ROUNDS {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let counts = ended.clone();
            let yields = random >> 30;
            let handle = pool.spawn(move || {
                (0..yields).for_each(|_| ult::yield_now());
                counts.fetch_add(1, Ordering::Relaxed);
                7
            });
            let limit = Duration::from_nanos(u64::from((random >> 16) % 8000));
            match handle.unwrap().join_deadline(Instant::now() + limit) {
                Ok(outcome) => assert_eq!(outcome.unwrap(), 7),
                Err(handle) if random & 0x100 == 0 => assert_eq!(handle.join().unwrap(), 7),
                Err(handle) => drop(handle),
            }
        }
        wait_until("all have ended", || ended.load(Ordering::Relaxed) == ROUNDS as usize);
        runtime.shutdown().unwrap();
    });
}
