//! Pools, schedulers and payloads that panic.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, PoisonError, mpsc};

use ult::{
    Basic, Eventual, JoinError, Pool, PoolRef, PoolSpec, PoolView, PopBy, PushReason, Runtime,
    Scheduler, Step, Unit, XstreamSpec,
};

use crate::common::{wait_until, within};

/// Which method panics next, and how often they have been called.
#[derive(Default)]
struct Orders {
    push: AtomicBool,
    /// Drops the unit instead.
    drops: AtomicBool,
    pop: AtomicBool,
    len: AtomicBool,
    for_each: AtomicBool,
    pops: AtomicU64,
    lens: AtomicU64,
    /// The stack of some ULT, and how many pushes have panicked there.
    foreign: (AtomicUsize, AtomicUsize),
    panics_there: AtomicU64,
}

/// A FIFO that panics when it is told to.
#[derive(Clone, Default)]
struct Rude(Arc<(Mutex<VecDeque<Unit>>, Orders)>);

impl Rude {
    fn orders(&self) -> &Orders {
        &self.0.1
    }

    fn units(&self) -> std::sync::MutexGuard<'_, VecDeque<Unit>> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn panic_now() -> ! {
    std::panic::resume_unwind(Box::new(Nested(2)))
}

impl Pool for Rude {
    fn push(&self, unit: Unit, _: PushReason) {
        let orders = self.orders();
        if orders.drops.load(SeqCst) {
            return drop(unit);
        }
        if orders.push.load(SeqCst) {
            let here = std::ptr::from_ref(&unit).addr();
            let (low, high) = (orders.foreign.0.load(SeqCst), orders.foreign.1.load(SeqCst));
            if (low..high).contains(&here) {
                orders.panics_there.fetch_add(1, SeqCst);
            }
            panic_now();
        }
        self.units().push_back(unit);
    }

    fn pop(&self, _: PopBy) -> Option<Unit> {
        self.orders().pops.fetch_add(1, SeqCst);
        if self.orders().pop.load(SeqCst) {
            panic_now();
        }
        self.units().pop_front()
    }

    fn len(&self) -> usize {
        if self.orders().len.load(SeqCst) {
            self.orders().lens.fetch_add(1, SeqCst);
            panic_now();
        }
        self.units().len()
    }

    fn for_each(&self, see: &mut dyn FnMut(&Unit)) {
        let units = self.units();
        for unit in units.iter() {
            see(unit);
            if self.orders().for_each.load(SeqCst) {
                panic_now();
            }
        }
    }
}

impl Drop for Rude {
    fn drop(&mut self) {
        // The one that the runtime has.
        if Arc::strong_count(&self.0) == 1 {
            panic_now();
        }
    }
}

/// A payload whose destructor panics with another one, so many times.
struct Nested(u32);

impl Drop for Nested {
    fn drop(&mut self) {
        if self.0 > 0 {
            std::panic::resume_unwind(Box::new(Self(self.0 - 1)));
        }
    }
}

/// A FIFO `p` and a rude pool `c`, on one xstream `x`.
fn rude() -> (Runtime, PoolRef, PoolRef, Rude) {
    let rude = Rude::default();
    let runtime = Runtime::builder()
        .pool(PoolSpec::new("p"))
        .pool(PoolSpec::custom("c", Box::new(rude.clone())))
        .xstream(XstreamSpec::new("x").pools(["p", "c"]))
        .start()
        .unwrap();
    let (p, c) = (runtime.pool("p").unwrap(), runtime.pool("c").unwrap());
    (runtime, p, c, rude)
}

/// Ends the test: only the runtime has the pool from now on.
fn end(runtime: &Runtime, rude: Rude) {
    std::mem::forget(rude);
    runtime.shutdown().unwrap();
}

#[test]
fn a_push_that_panics_does_not_unwind_the_ult_on_whose_stack_it_runs() {
    within(|| {
        let (runtime, p, c, rude) = rude();
        let event = Arc::new(Eventual::<u64>::new());
        let (waits, inner) = (event.clone(), rude.clone());
        let (told, tells) = mpsc::channel();
        let waiter = p.spawn(move || {
            let here = 0u8;
            let high = std::ptr::from_ref(&here).addr();
            let orders = inner.orders();
            orders.foreign.0.store(high - ult::stack_left(), SeqCst);
            orders.foreign.1.store(high, SeqCst);
            drop(inner);
            told.send(ult::unparker()).unwrap();
            *waits.wait()
        });
        let unparker = tells.recv().unwrap();
        rude.orders().push.store(true, SeqCst);
        let (stop, started) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (stops, starts, own) = (stop.clone(), started.clone(), p.clone());
        // It hands over to the one that waits, again and again, which then queues it.
        let hands_over = p.spawn(move || {
            while !stops.load(SeqCst) {
                let _ = ult::set_pool(&own);
                starts.store(true, SeqCst);
                unparker.yield_to();
            }
        });
        let hands_over = hands_over.unwrap();
        wait_until("it runs", || started.load(SeqCst));
        let mut asked = 0u32;
        // Only a request that comes in the middle of a switch is carried out on the other stack.
        while rude.orders().panics_there.load(SeqCst) < 3 {
            hands_over.migrate_to(&c).unwrap();
            asked += 1;
            (0..asked % 64).for_each(|_| std::hint::spin_loop());
        }
        stop.store(true, SeqCst);
        hands_over.join().unwrap();
        event.set(5).unwrap();
        assert_eq!(waiter.unwrap().join().unwrap(), 5, "its wait has not been unwound");
        end(&runtime, rude);
    });
}

#[test]
fn a_unit_that_a_panicking_push_drops_is_lost_if_new_and_goes_on_if_started() {
    within(|| {
        let (runtime, p, c, rude) = rude();
        let own = rude.clone();
        let started = c.spawn(move || {
            own.orders().push.store(true, SeqCst);
            drop(own);
            ult::yield_now();
            ult::sleep(std::time::Duration::from_millis(1));
            7
        });
        assert_eq!(started.unwrap().join().unwrap(), 7);
        let held = Arc::new(());
        for from_unit in [false, true] {
            let (pool, held) = (c.clone(), held.clone());
            let spawn = move || pool.spawn(move || drop(held)).unwrap().join();
            let outcome = if from_unit { p.spawn(spawn).unwrap().join().unwrap() } else { spawn() };
            assert!(matches!(outcome, Err(JoinError::Lost)), "{outcome:?}");
        }
        assert_eq!(Arc::strong_count(&held), 1);
        rude.orders().push.store(false, SeqCst);
        assert_eq!(c.spawn(|| 8).unwrap().join().unwrap(), 8);
        assert_eq!(c.total_len(), 0);
        end(&runtime, rude);
    });
}

#[test]
fn a_migratable_ult_that_its_pool_drops_goes_on() {
    within(|| {
        let rude = Rude::default();
        let runtime = Runtime::builder()
            .pool(PoolSpec::custom("c", Box::new(rude.clone())))
            .xstream(XstreamSpec::new("x").pools(["c"]))
            .xstream(XstreamSpec::new("y").pools(["c"]))
            .start()
            .unwrap();
        let c = runtime.pool("c").unwrap();
        for panics in [false, true] {
            let orders = rude.orders();
            if panics { &orders.push } else { &orders.drops }.store(false, SeqCst);
            let (own, event) = (rude.clone(), Arc::new(Eventual::<u64>::new()));
            let (waits, parked) = (event.clone(), Arc::new(AtomicBool::new(false)));
            let parks = parked.clone();
            let body = move || {
                let orders = own.orders();
                if panics { &orders.push } else { &orders.drops }.store(true, SeqCst);
                ult::yield_now();
                parks.store(true, SeqCst);
                let value = *waits.wait();
                drop(own);
                value
            };
            // SAFETY: it uses no thread-locals, and holds nothing over a wait that is not `Send`.
            let unit = unsafe { c.ult().spawn_migratable(body) }.unwrap();
            wait_until("it waits", || parked.load(SeqCst) && c.stats().blocked() == 1);
            // From a thread that is no xstream.
            event.set(9).unwrap();
            assert_eq!(unit.join().unwrap(), 9);
            rude.orders().drops.store(false, SeqCst);
            rude.orders().push.store(false, SeqCst);
        }
        end(&runtime, rude);
    });
}

#[test]
fn units_run_although_their_pool_panics_when_it_is_asked_for_its_length() {
    within(|| {
        let (runtime, _p, c, rude) = rude();
        let x = runtime.xstream("x").unwrap();
        rude.orders().len.store(true, SeqCst);
        for round in 0..50 {
            let sleeps = x.stats().sleeps;
            assert_eq!(c.spawn(move || round).unwrap().join().unwrap(), round);
            wait_until("it sleeps", || x.stats().sleeps > sleeps);
        }
        assert_eq!(c.len(), 0);
        assert!(rude.orders().lens.load(SeqCst) <= 2, "it is not asked again");
        end(&runtime, rude);
    });
}

#[test]
fn a_pool_that_panics_at_every_pop_does_not_keep_its_xstream_busy() {
    within(|| {
        let (runtime, p, c, rude) = rude();
        let x = runtime.xstream("x").unwrap();
        rude.orders().pop.store(true, SeqCst);
        let unit = c.spawn(|| 1).unwrap();
        assert_eq!(p.spawn(|| 2).unwrap().join().unwrap(), 2);
        let sleeps = x.stats().sleeps;
        wait_until("it sleeps", || x.stats().sleeps > sleeps);
        assert!(!unit.is_finished());
        rude.orders().pop.store(false, SeqCst);
        let next = c.spawn(|| 3).unwrap();
        assert_eq!((unit.join().unwrap(), next.join().unwrap()), (1, 3));
        end(&runtime, rude);
    });
}

#[test]
fn a_pool_that_panics_while_it_shows_its_units_shows_those_before() {
    within(|| {
        let rude = Rude::default();
        let runtime = Runtime::builder()
            .pool(PoolSpec::new("p"))
            .xstream(XstreamSpec::new("x").pools(["p"]))
            .start()
            .unwrap();
        let c = runtime.add_pool(PoolSpec::custom("c", Box::new(rude.clone()))).unwrap();
        let units = [c.spawn(|| ()).unwrap(), c.spawn(|| ()).unwrap()];
        rude.orders().for_each.store(true, SeqCst);
        let ids = |pool: &PoolRef| pool.units().iter().map(|unit| unit.id).collect::<Vec<_>>();
        assert_eq!(ids(&c), [units[0].id()]);
        runtime.add_xstream(XstreamSpec::new("y").pools(["c"])).unwrap();
        units.into_iter().for_each(|unit| unit.join().unwrap());
        end(&runtime, rude);
    });
}

/// Runs one unit, then panics; and when it is dropped.
struct Once(Arc<AtomicUsize>);

impl Scheduler for Once {
    fn next(&mut self, pools: &[PoolView<'_>]) -> Step {
        match Basic::new().next(pools) {
            Step::Run(unit) => Step::Run(unit),
            Step::Idle => panic_now(),
        }
    }
}

impl Drop for Once {
    fn drop(&mut self) {
        self.0.fetch_add(1, SeqCst);
        panic_now();
    }
}

#[test]
fn a_scheduler_may_panic_and_again_when_it_is_dropped() {
    within(|| {
        let drops = Arc::new(AtomicUsize::new(0));
        let own = || Box::new(Once(drops.clone()));
        let runtime = Runtime::builder()
            .pool(PoolSpec::new("p"))
            .xstream(XstreamSpec::new("x").pools(["p"]).scheduler(own()))
            .start()
            .unwrap();
        let (p, x) = (runtime.pool("p").unwrap(), runtime.xstream("x").unwrap());
        for round in 1..4 {
            wait_until("it is replaced", || drops.load(SeqCst) == round);
            assert_eq!(p.spawn(move || round).unwrap().join().unwrap(), round);
            x.set_scheduler(own(), ["p"]).unwrap();
        }
        wait_until("it is replaced", || drops.load(SeqCst) == 4);
        let stacked = p.push_scheduler(own(), [runtime.add_pool(PoolSpec::new("i")).unwrap()]);
        assert!(matches!(stacked.unwrap().join(), Err(JoinError::Panicked(_))));
        runtime.shutdown().unwrap();
    });
}

/// A value that panics when it is dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic_now();
    }
}

#[test]
fn payloads_and_values_may_panic_when_the_runtime_drops_them() {
    within(|| {
        let (runtime, p, _c, rude) = rude();
        for depth in 0..4 {
            let panics = move || -> Bomb { std::panic::resume_unwind(Box::new(Nested(depth))) };
            // Nobody looks at it; nobody looks at its error; somebody catches it.
            drop(p.spawn(panics).unwrap());
            p.ult().spawn_detached(move || drop(panics())).unwrap();
            assert!(matches!(p.spawn(panics).unwrap().join(), Err(JoinError::Panicked(_))));
            let caught = p.spawn(panics).unwrap().join().map(|_| ()).unwrap_err();
            let JoinError::Panicked(panic) = caught else { panic!("{caught}") };
            let payload = panic.into_inner();
            assert_eq!(payload.downcast_ref::<Nested>().map(|nested| nested.0), Some(depth));
            ult::integration::discard_panic(payload);
            drop(p.spawn(|| Bomb).unwrap());
            p.tasklet().spawn(panics).map(drop).unwrap();
        }
        let last = p.spawn(|| 1).unwrap();
        assert_eq!(last.join().unwrap(), 1);
        end(&runtime, rude);
    });
}

struct Subscriber;

impl tracing::Subscriber for Subscriber {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        TAKEN.fetch_add(1, SeqCst);
        panic_now();
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

static TAKEN: AtomicU64 = AtomicU64::new(0);

#[test]
fn whatever_takes_the_log_may_panic() {
    // For all tests of this program.
    tracing::subscriber::set_global_default(Subscriber).unwrap();
    within(|| {
        let (runtime, p, _c, rude) = rude();
        let before = TAKEN.load(SeqCst);
        p.ult().spawn_detached(|| panic_now()).unwrap();
        wait_until("it is logged", || TAKEN.load(SeqCst) > before);
        assert_eq!(p.spawn(|| 1).unwrap().join().unwrap(), 1);
        end(&runtime, rude);
    });
}
