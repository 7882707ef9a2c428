//! One program: its runtime, the thread that changes the layout, and the end.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use ult::{
    Access, Basic, BasicWait, PoolKind, PoolSpec, Prio, RandWs, RoundRobin, Runtime, Scheduler,
    XstreamRef, XstreamSpec, XstreamState,
};

use crate::rude::{RudePool, RudeScheduler};
use crate::unit::{give_back, spawn};
use crate::world::{CANCELLED, LOCALS_ALIVE, Random, Records, World, lock, take_panics};

/// How long a program may take from its last spawn on.
const PATIENCE: Duration = Duration::from_secs(20);
/// How often the end of all units is looked for, 200 us or more apart.
const ROUNDS_MAX: u32 = 75_000;
/// Stacks that may be kept per xstream.
const STACKS_KEPT: usize = 4;

/// Runs the program of one seed; returns what went wrong.
pub(crate) fn run(seed: u64) -> Vec<String> {
    let mut random = Random::new(seed);
    let is_fixed = random.one_in(3);
    let records = Records::default();
    let (runtime, private) = start(&mut random, &records, is_fixed);
    let world = Arc::new(World::new(runtime.pools(), private, records, &mut random));
    let mut control = Control { runtime, world, random, named: 0, schedulers: Vec::new() };
    control.play(is_fixed);
    control.finish();
    let mut problems = take_panics();
    problems.append(&mut lock(&control.world.problems));
    problems
}

fn scheduler(random: &mut Random, records: &Records) -> Box<dyn Scheduler> {
    match random.below(6) {
        0 => Box::new(Basic::new()),
        1 => Box::new(BasicWait::new()),
        2 => Box::new(Prio::new()),
        3 => Box::new(RandWs::new()),
        4 => Box::new(RoundRobin::new()),
        _ => {
            let inner = scheduler(random, records);
            RudeScheduler::new(random, records, inner)
        }
    }
}

fn pool_spec(random: &mut Random, records: &Records, name: String) -> PoolSpec {
    if random.one_in(5) {
        return PoolSpec::custom(name, RudePool::new(random, records));
    }
    let kinds = [
        PoolKind::Fifo,
        PoolKind::FifoWait,
        PoolKind::PrioWait,
        PoolKind::EarliestFirst,
        PoolKind::RandWs,
    ];
    PoolSpec::new(name).kind(*random.pick(&kinds))
}

/// Up to three xstreams over up to four pools; only a runtime whose layout stays has private ones.
fn start(
    random: &mut Random,
    records: &Records,
    is_fixed: bool,
) -> (Runtime, Vec<(String, String)>) {
    let (xstreams, pools) = (1 + random.below(3), 1 + random.below(4));
    let mut builder = Runtime::builder().stack_cache_max(STACKS_KEPT).stack_bytes(128 * 1024);
    let mut serves = vec![vec!["p0".to_owned()]; xstreams];
    let mut private = Vec::new();
    builder = builder.pool(pool_spec(random, records, "p0".to_owned()));
    for index in 1..pools {
        let name = format!("p{index}");
        let mut spec = pool_spec(random, records, name.clone());
        let first = random.below(xstreams);
        serves[first].insert(random.below(2), name.clone());
        match random.below(4) {
            0 if is_fixed => {
                spec = spec.access(Access::Private);
                private.push((name, format!("x{first}")));
            }
            1 => spec = spec.access(Access::Mpsc),
            _ => {
                for (at, served) in serves.iter_mut().enumerate() {
                    if at != first && random.one_in(2) {
                        served.push(name.clone());
                    }
                }
            }
        }
        builder = builder.pool(spec);
    }
    for (index, served) in serves.into_iter().enumerate() {
        let spec = XstreamSpec::new(format!("x{index}")).pools(served);
        builder = builder.xstream(spec.scheduler(scheduler(random, records)));
    }
    if random.one_in(4) {
        builder = builder.spin_max(Duration::ZERO);
    }
    (builder.start().unwrap(), private)
}

struct Control {
    runtime: Runtime,
    world: Arc<World>,
    random: Random,
    /// Parts that have been given a name.
    named: usize,
    schedulers: Vec<ult::JoinHandle<()>>,
}

impl Control {
    fn play(&mut self, is_fixed: bool) {
        for _ in 0..3 + self.random.below(20) {
            match self.random.below(if is_fixed { 8 } else { 20 }) {
                0..=2 => self.spawn(),
                3 => self.cancel_unit(),
                4 => self.look(),
                5 => self.take_out(),
                6 => self.wake(),
                7 => std::thread::sleep(Duration::from_micros(self.random.below(300) as u64)),
                8 => self.add_xstream(),
                9 | 10 => self.join_xstream(),
                11 => self.revive(),
                12 => self.remove_xstream(),
                13 => self.cancel_xstream(),
                14..=16 => self.set_scheduler(),
                17 => self.add_pool(),
                18 => self.stack_scheduler(),
                _ => self.move_all(),
            }
        }
    }

    fn name(&mut self, kind: char) -> String {
        self.named += 1;
        format!("{kind}{}", self.named)
    }

    fn spawn(&mut self) {
        let pool = self.world.pool(&mut self.random);
        if let Some(handle) = spawn(&self.world, &mut self.random, &pool) {
            self.world.leave_handle(handle);
        }
    }

    fn cancel_unit(&mut self) {
        if let Some((record, handle)) = self.world.take_handle(&mut self.random) {
            record.set(CANCELLED);
            handle.cancel();
            self.world.leave_handle((record, handle));
        }
    }

    fn look(&mut self) {
        let pool = self.world.pool(&mut self.random);
        drop(pool.units());
        let stats = pool.stats();
        self.world.check(stats.pushed >= stats.created, || format!("{stats:?}"));
    }

    fn take_out(&mut self) {
        for unit in self.world.pool(&mut self.random).pop_many(2) {
            give_back(&self.world, &mut self.random, unit);
        }
    }

    fn wake(&mut self) {
        if let Some(unparker) = self.world.take_parked(&mut self.random) {
            unparker.unpark();
        }
        let _ = self.random.pick(&self.world.eventuals).set(7);
    }

    /// Names of pools that several xstreams may serve, at least one.
    fn some_pools(&mut self) -> Vec<String> {
        let pools = lock(&self.world.pools).clone();
        let mut names = Vec::new();
        for pool in pools {
            if !pool.access().is_single_consumer() && self.random.one_in(2) {
                names.insert(self.random.below(names.len() + 1), pool.name().to_owned());
            }
        }
        if names.is_empty() {
            names.push("p0".to_owned());
        }
        names
    }

    fn some_xstream(&mut self) -> XstreamRef {
        self.random.pick(&self.runtime.xstreams()).clone()
    }

    fn add_xstream(&mut self) {
        if self.runtime.xstreams().len() >= 5 {
            return;
        }
        let (name, pools) = (self.name('y'), self.some_pools());
        let spec = XstreamSpec::new(name)
            .pools(pools)
            .scheduler(scheduler(&mut self.random, &self.world.records));
        // Refused if a stacked scheduler's pool was removed meanwhile, and the like.
        let _ = self.runtime.add_xstream(spec);
    }

    fn join_xstream(&mut self) {
        let limit = Duration::from_micros(self.random.below(1500) as u64);
        let _ = self.some_xstream().join_timeout(limit);
    }

    fn revive(&mut self) {
        let _ = self.some_xstream().revive();
    }

    fn remove_xstream(&mut self) {
        if self.runtime.xstreams().len() == 1 {
            return;
        }
        let xstream = self.some_xstream();
        if xstream.join_timeout(Duration::from_millis(1)).is_ok() {
            let _ = xstream.remove();
        }
    }

    fn cancel_xstream(&mut self) {
        let _ = self.some_xstream().cancel();
    }

    fn set_scheduler(&mut self) {
        let pools = self.some_pools();
        let _ = self
            .some_xstream()
            .set_scheduler(scheduler(&mut self.random, &self.world.records), pools);
    }

    fn add_pool(&mut self) {
        let name = self.name('q');
        let pool =
            self.runtime.add_pool(pool_spec(&mut self.random, &self.world.records, name)).unwrap();
        if self.random.one_in(2) {
            self.runtime.remove_pool(&pool).unwrap();
        } else {
            lock(&self.world.pools).push(pool);
        }
    }

    /// A pool of its own with a scheduler of its own, somewhere.
    fn stack_scheduler(&mut self) {
        let name = self.name('s');
        let inner =
            self.runtime.add_pool(pool_spec(&mut self.random, &self.world.records, name)).unwrap();
        for _ in 0..self.random.below(4) {
            if let Some(handle) = spawn(&self.world, &mut self.random, &inner) {
                self.world.leave_handle(handle);
            }
        }
        let outer = self.runtime.pool("p0").unwrap();
        let scheduler = scheduler(&mut self.random, &self.world.records);
        self.world.accepted.fetch_add(1, SeqCst);
        let handle = outer.push_scheduler(scheduler, [inner.clone()]).unwrap();
        if self.random.one_in(3) {
            handle.cancel();
        }
        lock(&self.world.pools).push(inner);
        self.schedulers.push(handle);
    }

    fn move_all(&mut self) {
        let (from, to) = (self.world.pool(&mut self.random), self.world.pool(&mut self.random));
        // A stacked scheduler in a pool that it serves itself would never see the end of it.
        if from.name() != "p0" {
            let _ = from.move_all_to(&to);
        }
    }

    /// Lets everything end, and looks at what is left.
    fn finish(&mut self) {
        self.world.budget.store(0, SeqCst);
        // Counted in rounds, which pause when the process does; a clock would not.
        let mut rounds = 0;
        while !self.is_over() {
            self.release();
            self.serve_all();
            rounds += 1;
            if rounds > ROUNDS_MAX {
                return self.report_stuck();
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        self.check_outcomes();
        self.check_books();
        if let Err(error) = self.runtime.shutdown_timeout(PATIENCE) {
            return self.world.problem(format!("shutdown: {error}"));
        }
        let (stacks, locals) = (self.runtime.stacks(), LOCALS_ALIVE.load(SeqCst));
        self.world.check(stacks == 0, || format!("{stacks} stacks after the shutdown"));
        self.world.check(locals == 0, || format!("{locals} locals have not been dropped"));
    }

    fn is_over(&self) -> bool {
        let pools = lock(&self.world.pools).clone();
        let schedulers = self.schedulers.iter().filter(|handle| !handle.is_finished()).count();
        schedulers == 0 && pools.iter().all(|pool| pool.total_len() == 0)
    }

    /// Ends every wait that has no deadline.
    fn release(&self) {
        for unparker in std::mem::take(&mut *lock(&self.world.parked)) {
            unparker.unpark();
        }
        for eventual in &self.world.eventuals {
            let _ = eventual.set(9);
        }
        self.world.receiver.close();
        *self.world.over.0.lock() = true;
        self.world.over.1.notify_all();
    }

    /// Gives every pool that has units an xstream.
    fn serve_all(&mut self) {
        for xstream in self.runtime.xstreams() {
            if xstream.state() == XstreamState::Terminated {
                let _ = xstream.revive();
            }
        }
        let pools = lock(&self.world.pools).clone();
        let orphans: Vec<_> = pools
            .iter()
            .filter(|pool| pool.xstreams().is_empty() && pool.total_len() > 0)
            .map(|pool| pool.name().to_owned())
            .collect();
        if !orphans.is_empty() {
            let name = self.name('z');
            let spec = XstreamSpec::new(name).pools(orphans);
            if let Err(error) = self.runtime.add_xstream(spec) {
                self.world.problem(format!("the last xstream: {error}"));
            }
        }
    }

    fn report_stuck(&self) {
        for pool in lock(&self.world.pools).iter() {
            let (name, servers) = (pool.name(), pool.xstreams());
            let (len, kind) = (pool.len(), pool.kind());
            let text = format!("{name} {kind:?} by {servers:?}: {len} of {:?}", pool.stats());
            self.world.problem(text);
        }
        self.world.problem(format!("{:?}", self.runtime.xstreams()));
        let error = self.runtime.shutdown_timeout(Duration::from_millis(200));
        self.world.problem(format!("stuck: {error:?}"));
    }

    fn check_outcomes(&self) {
        let world = &self.world;
        let handles = std::mem::take(&mut *lock(&world.handles));
        for (record, handle) in handles {
            let outcome = handle.join();
            world.check_outcome(&record, outcome);
        }
        for record in lock(&world.records).iter() {
            let (drops, values) = (record.drops.load(SeqCst), record.values.load(SeqCst));
            world.check(drops == 1 && values == 0, || {
                format!("unit {}: {drops} drops, {values} values left", record.id)
            });
        }
    }

    fn check_books(&self) {
        let world = &self.world;
        let (mut created, mut ended) = (0u64, 0);
        for pool in lock(&world.pools).iter() {
            let stats = pool.stats();
            created = created.wrapping_add(stats.created);
            ended += stats.finished + stats.dropped;
            world.check(pool.is_empty(), || format!("units left in {pool:?}"));
        }
        let accepted = world.accepted.load(SeqCst);
        world.check(created == accepted && ended == accepted, || {
            format!("spawned {accepted}, books say {created}, ended {ended}")
        });
        let values: u64 = world.locks.iter().map(|locked| *locked.mutex.lock()).sum();
        let entries: u64 = world.locks.iter().map(|locked| locked.entries.load(SeqCst)).sum();
        world.check(values == entries, || format!("{entries} entries counted {values}"));
        let left = world.receiver.try_iter().count() as u64;
        let (sent, received) = (world.sent.load(SeqCst), world.received.load(SeqCst));
        world.check(sent == received + left, || format!("{sent} sent, {received} + {left}"));
    }
}
