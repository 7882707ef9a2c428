//! A started ULT stays on its xstream; pools and schedulers of the user's own.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;
use std::time::Duration;

use crate::common::{shared, wait_until, within};
use ult::{
    JoinError, Pool, PoolRef, PoolSpec, PoolView, PopBy, PushReason, Runtime, Scheduler, Step,
    Unit, XstreamSpec,
};

fn thread_id() -> ThreadId {
    std::thread::current().id()
}

/// Suspends in every way there is and checks that the thread stays the same.
fn wander(pool: &PoolRef, seed: usize) {
    thread_local! {
        static DEPTH: Cell<usize> = const { Cell::new(0) };
        static LOG: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
    }
    let home = thread_id();
    let xstream = ult::current().unwrap().xstream;
    let local = Rc::new(Cell::new(seed));
    let address = DEPTH.with(std::ptr::from_ref).addr();
    for round in 0..30 {
        match (seed + round) % 5 {
            0 => ult::yield_now(),
            1 => ult::sleep(Duration::from_micros(20)),
            2 => pool.spawn(|| ()).unwrap().join().unwrap(),
            3 => {
                let me = ult::unparker();
                let waker = pool.spawn(move || me.unpark()).unwrap();
                ult::park();
                waker.join().unwrap();
            }
            _ => {
                let me = ult::unparker();
                std::thread::spawn(move || me.unpark());
                ult::park();
            }
        }
        let other = Rc::clone(&local);
        other.set(other.get() + 1);
        DEPTH.set(DEPTH.get() + 1);
        LOG.with_borrow_mut(|log| log.push(seed));
        assert_eq!(thread_id(), home, "round {round}");
        assert_eq!(DEPTH.with(std::ptr::from_ref).addr(), address);
    }
    assert_eq!(local.get(), seed + 30);
    assert_eq!(ult::current().unwrap().xstream, xstream);
}

#[test]
fn thread_is_constant_in_a_shared_pool() {
    within(|| {
        let (runtime, pool) = shared(2);
        let handles: Vec<_> = (0..50)
            .map(|seed| {
                let inner = pool.clone();
                pool.spawn(move || wander(&inner, seed)).unwrap()
            })
            .collect();
        handles.into_iter().for_each(|handle| handle.join().unwrap());
        runtime.shutdown().unwrap();
    });
}

#[test]
fn unstarted_units_of_a_shared_pool_start_anywhere() {
    within(|| {
        let (runtime, pool) = shared(2);
        // Two ULTs that cannot both end unless they run at the same time.
        let meet = Arc::new(AtomicUsize::new(0));
        let handles: Vec<_> = (0..2)
            .map(|_| {
                let meet = meet.clone();
                let body = move || {
                    meet.fetch_add(1, Ordering::SeqCst);
                    while meet.load(Ordering::SeqCst) < 2 {
                        std::thread::yield_now();
                    }
                    thread_id()
                };
                pool.spawn(body).unwrap()
            })
            .collect();
        let ids: Vec<_> = handles.into_iter().map(|handle| handle.join().unwrap()).collect();
        assert_ne!(ids[0], ids[1]);
        runtime.shutdown().unwrap();
    });
}

/// Last in, first out; counts what it sees.
#[derive(Default)]
struct Lifo {
    units: Mutex<Vec<Unit>>,
    creates: AtomicUsize,
    started: AtomicUsize,
}

/// The user keeps one end of the pool.
struct Keep(Arc<Lifo>);

impl Pool for Keep {
    fn push(&self, unit: Unit, why: PushReason) {
        let is_create = why == PushReason::Create;
        assert_eq!(is_create, !unit.is_started());
        let counter = if is_create { &self.0.creates } else { &self.0.started };
        counter.fetch_add(1, Ordering::SeqCst);
        self.0.units.lock().unwrap().push(unit);
    }
    fn pop(&self, _who: PopBy) -> Option<Unit> {
        self.0.units.lock().unwrap().pop()
    }
    fn len(&self) -> usize {
        self.0.units.lock().unwrap().len()
    }
}

fn with_lifo(xstreams: usize) -> (Runtime, PoolRef, Arc<Lifo>) {
    let lifo = Arc::new(Lifo::default());
    let keep = Box::new(Keep(lifo.clone()));
    let mut builder = Runtime::builder().pool(PoolSpec::custom("lifo", keep));
    for index in 0..xstreams {
        builder = builder.xstream(XstreamSpec::new(format!("x{index}")).pools(["lifo"]));
    }
    let runtime = builder.start().unwrap();
    let pool = runtime.pool("lifo").unwrap();
    (runtime, pool, lifo)
}

#[test]
fn custom_pool_orders_units() {
    within(|| {
        let (runtime, pool, lifo) = with_lifo(1);
        let order = Arc::new(Mutex::new(Vec::new()));
        let (inner_pool, inner_order) = (pool.clone(), order.clone());
        let spawner = pool.spawn(move || {
            let spawn = |n| {
                let order = inner_order.clone();
                let body = move || {
                    order.lock().unwrap().push(n);
                    ult::yield_now();
                };
                inner_pool.spawn(body).unwrap()
            };
            (0..3).map(spawn).collect::<Vec<_>>()
        });
        for handle in spawner.unwrap().join().unwrap() {
            handle.join().unwrap();
        }
        assert_eq!(*order.lock().unwrap(), [2, 1, 0]);
        runtime.shutdown().unwrap();
        assert_eq!(lifo.creates.load(Ordering::SeqCst), 4);
        assert!(lifo.started.load(Ordering::SeqCst) >= 3, "yields come back to a private pool");
    });
}

#[test]
fn shared_custom_pool_gets_unstarted_units_only() {
    within(|| {
        let (runtime, pool, lifo) = with_lifo(2);
        let handles: Vec<_> = (0..50)
            .map(|seed| {
                let inner = pool.clone();
                pool.spawn(move || wander(&inner, seed)).unwrap()
            })
            .collect();
        handles.into_iter().for_each(|handle| handle.join().unwrap());
        runtime.shutdown().unwrap();
        assert_eq!(lifo.started.load(Ordering::SeqCst), 0);
        assert_eq!(lifo.creates.load(Ordering::SeqCst) as u64, pool.stats().created);
    });
}

/// Drops every unstarted unit while `is_bad`, and every started one once.
struct Lossy {
    units: Mutex<VecDeque<Unit>>,
    is_bad: Arc<AtomicBool>,
}

impl Pool for Lossy {
    fn push(&self, unit: Unit, _why: PushReason) {
        if self.is_bad.load(Ordering::SeqCst) {
            drop(unit);
        } else {
            self.units.lock().unwrap().push_back(unit);
        }
    }
    fn pop(&self, _who: PopBy) -> Option<Unit> {
        self.units.lock().unwrap().pop_front()
    }
    fn len(&self) -> usize {
        self.units.lock().unwrap().len()
    }
}

#[test]
fn dropped_units_are_lost_or_return() {
    within(|| {
        let is_bad = Arc::new(AtomicBool::new(false));
        let lossy = Lossy { units: Mutex::default(), is_bad: is_bad.clone() };
        let runtime = Runtime::builder()
            .pool(PoolSpec::custom("lossy", Box::new(lossy)))
            .xstream(XstreamSpec::new("x").pools(["lossy"]))
            .start()
            .unwrap();
        let pool = runtime.pool("lossy").unwrap();
        let inner_bad = is_bad.clone();
        let survivor = pool.spawn(move || {
            inner_bad.store(true, Ordering::SeqCst);
            for _ in 0..10 {
                ult::yield_now();
            }
            ult::sleep(Duration::from_millis(1));
            5
        });
        assert_eq!(survivor.unwrap().join().unwrap(), 5, "started units come back");
        let held = Arc::new(());
        let inner = held.clone();
        let lost = pool.spawn(move || drop(inner)).unwrap();
        assert!(matches!(lost.join(), Err(JoinError::Lost)));
        assert_eq!(Arc::strong_count(&held), 1);
        runtime.shutdown().unwrap();
        assert_eq!(pool.stats().dropped, 1);
    });
}

/// Hands units to every xstream that asks: the runtime must send them home.
struct Swap {
    stash: Arc<Mutex<VecDeque<Unit>>>,
}

impl Scheduler for Swap {
    fn next(&mut self, pools: &[PoolView<'_>]) -> Step {
        let mut stash = self.stash.lock().unwrap();
        stash.extend(pools.iter().filter_map(PoolView::pop));
        match stash.pop_front() {
            Some(unit) => Step::Run(unit),
            None => Step::Idle,
        }
    }
}

#[test]
fn scheduler_that_mixes_up_xstreams_does_no_harm() {
    within(|| {
        let stash = Arc::new(Mutex::new(VecDeque::new()));
        let mut builder = Runtime::builder();
        for index in 0..2 {
            let (pool, xstream) = (format!("p{index}"), format!("x{index}"));
            let scheduler = Box::new(Swap { stash: stash.clone() });
            builder = builder
                .pool(PoolSpec::new(pool.clone()))
                .xstream(XstreamSpec::new(xstream).pools([pool]).scheduler(scheduler));
        }
        let runtime = builder.start().unwrap();
        let pools = runtime.pools();
        let handles: Vec<_> = (0..20)
            .map(|seed| {
                let pool = pools[seed % 2].clone();
                let xstream = format!("x{}", seed % 2);
                let body = move || {
                    assert_eq!(ult::current().unwrap().xstream, xstream);
                    let home = thread_id();
                    for _ in 0..50 {
                        ult::yield_now();
                        assert_eq!(thread_id(), home);
                    }
                };
                pool.spawn(body).unwrap()
            })
            .collect();
        // A unit may rest in the stash while both xstreams sleep, which is this scheduler's own
        // fault; pushes wake them again.
        let stop = Arc::new(AtomicBool::new(false));
        let seen = stop.clone();
        let nudge_pools = pools.clone();
        let nudge = std::thread::spawn(move || {
            while !seen.load(Ordering::SeqCst) {
                nudge_pools.iter().for_each(|pool| drop(pool.spawn(|| ())));
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        handles.into_iter().for_each(|handle| handle.join().unwrap());
        stop.store(true, Ordering::SeqCst);
        nudge.join().unwrap();
        wait_until("stash is empty", || {
            pools.iter().for_each(|pool| drop(pool.spawn(|| ())));
            pools.iter().all(|pool| pool.stats().alive() == 0)
        });
        runtime.shutdown().unwrap();
    });
}

/// Panics once.
struct Faulty(bool);

impl Scheduler for Faulty {
    fn next(&mut self, pools: &[PoolView<'_>]) -> Step {
        if !std::mem::replace(&mut self.0, true) {
            panic!("scheduler at fault");
        }
        pools[0].pop().map_or(Step::Idle, Step::Run)
    }
}

#[test]
fn panicking_scheduler_is_replaced() {
    within(|| {
        let runtime = Runtime::builder()
            .pool(PoolSpec::new("p"))
            .xstream(XstreamSpec::new("x").pools(["p"]).scheduler(Box::new(Faulty(false))))
            .start()
            .unwrap();
        let pool = runtime.pool("p").unwrap();
        assert_eq!(pool.spawn(|| 4).unwrap().join().unwrap(), 4);
        runtime.shutdown().unwrap();
    });
}
