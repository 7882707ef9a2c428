//! The body of one unit: random operations.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use ult::{PoolRef, SpawnError, Unit};

use crate::world::{
    BOMB, CANCELLED, ClosureGuard, DONE, EXITS, EXPECTED, Handle, LOCAL, MAY_BE_LOST, PANICS,
    REFUSED, Random, Record, STARTED, Value, World, lock,
};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Ult,
    Migratable,
    Tasklet,
}

/// The caller of an operation.
struct Me<'a> {
    world: &'a Arc<World>,
    record: &'a Arc<Record>,
    kind: Kind,
    random: Random,
}

fn soon(random: &mut Random) -> Instant {
    Instant::now() + Duration::from_micros(random.below(400) as u64)
}

/// Never inlined: a migratable unit must not keep the address of a thread-local.
#[inline(never)]
fn this_thread() -> std::thread::ThreadId {
    std::thread::current().id()
}

fn body(
    world: Arc<World>,
    record: Arc<Record>,
    kind: Kind,
    random: Random,
    guard: ClosureGuard,
) -> Value {
    record.set(STARTED);
    *lock(&record.thread) = Some(this_thread());
    let mut me = Me { world: &world, record: &record, kind, random };
    for _ in 0..1 + me.random.below(10) {
        me.enter();
        if kind == Kind::Tasklet { me.quick() } else { me.any() }
    }
    me.enter();
    let yields = me.random.one_in(8);
    let value = Value::new(&record, yields);
    me.leave();
    record.set(DONE);
    drop(guard);
    value
}

/// Spawns a unit of a random kind. `None`: no more units, or the pool does not take any.
pub(crate) fn spawn(world: &Arc<World>, random: &mut Random, pool: &PoolRef) -> Option<Handle> {
    spawn_as(world, random, pool, false)
}

fn spawn_as(
    world: &Arc<World>,
    random: &mut Random,
    pool: &PoolRef,
    switches: bool,
) -> Option<Handle> {
    if world.budget.fetch_sub(1, SeqCst) <= 0 {
        return None;
    }
    let kind = match random.below(6) {
        0 => Kind::Tasklet,
        1 => Kind::Migratable,
        _ => Kind::Ult,
    };
    let record = world.record();
    let builder = if kind == Kind::Tasklet { pool.tasklet() } else { pool.ult() };
    let mut builder = builder.name(record.id.to_string());
    if random.one_in(6) {
        builder = builder.stack_bytes(64 * 1024);
    }
    if random.one_in(4) {
        builder = builder.on_migrate(|_| {});
    }
    let (inner, guard) = ((world.clone(), record.clone()), ClosureGuard(record.clone()));
    let unit_random = random.fork();
    let f = move || body(inner.0, inner.1, kind, unit_random, guard);
    // Before the spawn: it may be over before this returns.
    world.accepted.fetch_add(1, SeqCst);
    let spawned = match kind {
        // SAFETY: `body` and what it calls use thread-locals in functions of their own only, and
        // hold nothing over a suspension that is not `Send`.
        Kind::Migratable => unsafe { builder.spawn_migratable(f) },
        _ if switches => builder.spawn_to(f),
        _ => builder.spawn(f),
    };
    match spawned {
        Ok(handle) => {
            if random.one_in(4) {
                record.set(BOMB);
            }
            Some((record, handle))
        }
        Err(error) => {
            world.accepted.fetch_sub(1, SeqCst);
            record.set(REFUSED);
            let is_known = matches!(error, SpawnError::Removed { .. });
            world.check(is_known, || format!("spawn: {error}"));
            None
        }
    }
}

impl Me<'_> {
    /// Before an operation, and after each switch.
    fn enter(&self) {
        let (id, world) = (self.record.id, self.world);
        world.check(!self.record.running.swap(true, SeqCst), || format!("unit {id} runs twice"));
        let mut thread = lock(&self.record.thread);
        let now = this_thread();
        if self.kind != Kind::Migratable && *thread != Some(now) {
            drop(thread);
            world.problem(format!("unit {id} has changed its thread"));
            return;
        }
        *thread = Some(now);
    }

    /// Before a switch.
    fn leave(&self) {
        self.record.running.store(false, SeqCst);
    }

    /// Does one random operation that never waits.
    fn quick(&mut self) {
        match self.random.below(10) {
            0 => self.leave_token(),
            1 => self.fulfil(),
            2 => self.local(),
            3 => self.cancel_some(),
            4 => self.migrate_some(),
            5 => self.try_things(),
            6 => self.requeue_unit(),
            7 => self.end_early(),
            _ => self.spawn_and_leave(),
        }
        self.leave();
    }

    fn any(&mut self) {
        match self.random.below(30) {
            0..=4 => self.quick(),
            op => {
                self.waiting(op);
                self.leave();
            }
        }
    }

    fn waiting(&mut self, op: usize) {
        self.leave();
        match op {
            5..=7 => ult::yield_now(),
            8 => ult::sleep(Duration::from_micros(self.random.below(300) as u64)),
            9 => drop(ult::park_deadline(Some(soon(&mut self.random)))),
            10 | 11 => self.park(),
            12 | 13 => self.exclude(),
            14 => self.wait_eventual(),
            15 => self.send(),
            16 => self.receive(),
            17 => self.wait_condvar(),
            18 => self.acquire(),
            19 | 20 => self.spawn_and_join(),
            21 => self.spawn_to(),
            22 => self.change_pool(),
            23 => self.switch_to_unit(),
            24 => self.scope(),
            25 => self.join_some(),
            26 => self.revive(),
            27 => self.select(),
            28 => self.switch_to_parked(),
            _ => self.run_unit(),
        }
        self.enter();
    }

    fn leave_token(&mut self) {
        if let Some(unparker) = self.world.take_parked(&mut self.random) {
            unparker.unpark();
        }
    }

    fn fulfil(&mut self) {
        let _ = self.random.pick(&self.world.eventuals).set(7);
        self.world.over.1.notify_one();
    }

    fn local(&self) {
        LOCAL.with(|local| local.0.fetch_add(1, SeqCst));
    }

    fn cancel_some(&mut self) {
        if !self.random.one_in(3) {
            return;
        }
        if let Some((record, handle)) = self.world.take_handle(&mut self.random) {
            record.set(CANCELLED);
            handle.cancel();
            self.world.leave_handle((record, handle));
        }
    }

    fn migrate_some(&mut self) {
        let pool = self.world.pool(&mut self.random);
        if let Some(handle) = self.world.take_handle(&mut self.random) {
            let _ = handle.1.migrate_to(&pool);
            self.world.leave_handle(handle);
        }
    }

    fn try_things(&mut self) {
        let world = self.world;
        if let Some(mut guard) = self.random.pick(&world.locks).mutex.try_lock() {
            *guard += 1;
            drop(guard);
            // Counted together with the others below: which lock it was does not matter.
            world.locks[0].entries.fetch_add(1, SeqCst);
        }
        world.sent.fetch_add(1, SeqCst);
        if world.sender.try_send(1).is_err() {
            world.sent.fetch_sub(1, SeqCst);
        }
        if world.receiver.try_recv().is_ok() {
            world.received.fetch_add(1, SeqCst);
        }
    }

    fn end_early(&mut self) {
        match self.random.below(4) {
            0 => {
                self.record.set(PANICS);
                self.leave();
                std::panic::resume_unwind(Box::new(EXPECTED));
            }
            1 => {
                self.record.set(EXITS);
                self.leave();
                ult::exit();
            }
            _ => {}
        }
    }

    fn spawn_and_leave(&mut self) {
        let pool = self.world.pool(&mut self.random);
        let Some(handle) = spawn(self.world, &mut self.random, &pool) else { return };
        if self.random.one_in(4) {
            drop(handle);
        } else {
            self.world.leave_handle(handle);
        }
    }

    fn park(&self) {
        lock(&self.world.parked).push(ult::unparker());
        ult::park();
    }

    fn exclude(&mut self) {
        let locked = self.random.pick(&self.world.locks);
        let guard = if self.random.one_in(3) {
            locked.mutex.lock_deadline(soon(&mut self.random))
        } else {
            Some(locked.mutex.lock())
        };
        let Some(mut guard) = guard else { return };
        let inside = Inside::enter(self.world, &locked.inside);
        *guard += 1;
        locked.entries.fetch_add(1, SeqCst);
        if self.random.one_in(2) {
            ult::yield_now();
        }
        drop(inside);
        drop(guard);
    }

    fn wait_eventual(&mut self) {
        let eventual = self.random.pick(&self.world.eventuals);
        if self.random.one_in(2) {
            eventual.wait_ready_deadline(soon(&mut self.random));
        } else {
            eventual.wait_ready();
        }
    }

    fn send(&mut self) {
        let sent = Sent::start(self.world);
        let result = if self.random.one_in(2) {
            self.world.sender.send_deadline(1, soon(&mut self.random)).is_ok()
        } else {
            self.world.sender.send(1).is_ok()
        };
        if result {
            std::mem::forget(sent);
        }
    }

    fn receive(&mut self) {
        let result = if self.random.one_in(2) {
            self.world.receiver.recv_deadline(soon(&mut self.random)).is_ok()
        } else {
            self.world.receiver.recv().is_ok()
        };
        if result {
            self.world.received.fetch_add(1, SeqCst);
        }
    }

    fn wait_condvar(&mut self) {
        let (mutex, condvar) = &self.world.over;
        let guard = mutex.lock();
        if *guard {
            return;
        }
        if self.random.one_in(2) {
            drop(condvar.wait(guard));
        } else {
            drop(condvar.wait_deadline(guard, soon(&mut self.random)));
        }
    }

    fn acquire(&mut self) {
        let permit = if self.random.one_in(2) {
            self.world.permits.acquire_deadline(1 + self.random.below(2), soon(&mut self.random))
        } else {
            Some(self.world.permits.acquire(1))
        };
        if permit.is_some() {
            ult::yield_now();
        }
    }

    fn spawn_and_join(&mut self) {
        let pool = self.world.pool(&mut self.random);
        let handles: Vec<_> = (0..1 + self.random.below(3))
            .filter_map(|_| spawn(self.world, &mut self.random, &pool))
            .collect();
        for (record, handle) in handles {
            if self.random.one_in(6) {
                record.set(CANCELLED);
                handle.cancel();
            }
            let outcome = handle.join();
            self.world.check_outcome(&record, outcome);
        }
    }

    fn spawn_to(&mut self) {
        let pool = self.world.pool(&mut self.random);
        if let Some(handle) = spawn_as(self.world, &mut self.random, &pool, true) {
            self.world.leave_handle(handle);
        }
    }

    fn change_pool(&mut self) {
        let pool = self.world.pool(&mut self.random);
        let _ = ult::set_pool(&pool);
        if self.random.one_in(2) {
            ult::yield_now();
        }
    }

    /// Takes a unit out of a pool.
    fn pop(&mut self) -> Option<Unit> {
        self.world.pool(&mut self.random).pop()
    }

    /// Puts it back, or loses it.
    fn put_back(&mut self, unit: Unit) {
        give_back(self.world, &mut self.random, unit);
    }

    fn requeue_unit(&mut self) {
        if let Some(unit) = self.pop() {
            self.put_back(unit);
        }
    }

    fn switch_to_unit(&mut self) {
        let Some(unit) = self.pop() else { return };
        let result = if self.random.one_in(3) {
            lock(&self.world.parked).push(ult::unparker());
            ult::park_to(unit)
        } else {
            ult::yield_to(unit)
        };
        if let Err(error) = result {
            self.put_back(error.into_unit());
        }
    }

    fn run_unit(&mut self) {
        let Some(unit) = self.pop() else { return };
        if let Err(error) = ult::run_unit(unit) {
            self.put_back(error.into_unit());
        }
    }

    fn switch_to_parked(&mut self) {
        let Some(unparker) = self.world.take_parked(&mut self.random) else { return };
        match self.random.below(5) {
            0 => {
                self.record.set(EXITS);
                unparker.exit_to();
            }
            1 => {
                lock(&self.world.parked).push(ult::unparker());
                unparker.park_to();
            }
            _ => unparker.yield_to(),
        }
    }

    fn scope(&mut self) {
        let pool = self.world.pool(&mut self.random);
        let mut numbers = [0u64; 3];
        let mut spawned = 0;
        ult::scope(|scope| {
            for number in &mut numbers {
                let f = move || {
                    ult::yield_now();
                    *number += 1;
                };
                self.world.accepted.fetch_add(1, SeqCst);
                match scope.spawn(&pool, f) {
                    Ok(_) => spawned += 1,
                    Err(_) => drop(self.world.accepted.fetch_sub(1, SeqCst)),
                }
            }
        });
        // Units without a number as their name may be lost to `requeue_unit` of others.
        let sum: u64 = numbers.iter().sum();
        self.world.check(sum <= spawned, || format!("scope: {numbers:?} of {spawned}"));
    }

    fn join_some(&mut self) {
        let Some((record, handle)) = self.world.take_handle(&mut self.random) else { return };
        match handle.join_deadline(soon(&mut self.random)) {
            Ok(outcome) => self.world.check_outcome(&record, outcome),
            Err(handle) => self.world.leave_handle((record, handle)),
        }
    }

    fn revive(&mut self) {
        let pool = self.world.pool(&mut self.random);
        let Some((record, handle)) = spawn(self.world, &mut self.random, &pool) else { return };
        let (outcome, ended) = handle.join_keep();
        self.world.check_outcome(&record, outcome);
        let Some(ended) = ended else { return };
        // A migratable ULT may be elsewhere by now, where the first one is private to others.
        let pool = self.world.pool(&mut self.random);
        let next = self.world.record();
        let guard = ClosureGuard(next.clone());
        let inner = next.clone();
        self.world.accepted.fetch_add(1, SeqCst);
        let revived = ended.revive(&pool, move || {
            inner.set(STARTED);
            let value = Value::new(&inner, false);
            inner.set(DONE);
            drop(guard);
            value
        });
        match revived {
            Ok(handle) => {
                // It keeps its name, so others who lose it blame the first record.
                next.set(MAY_BE_LOST);
                self.world.leave_handle((next, handle));
            }
            Err(_) => drop(self.world.accepted.fetch_sub(1, SeqCst)),
        }
    }

    fn select(&mut self) {
        let eventuals = &self.world.eventuals;
        let (first, second) = (self.random.pick(eventuals), self.random.pick(eventuals));
        let deadline = self.random.one_in(2).then(|| soon(&mut self.random));
        let _ = ult::wait_any(&[first, second], deadline);
    }
}

/// Puts a unit back into its pool or another one, or loses it.
pub(crate) fn give_back(world: &World, random: &mut Random, unit: Unit) {
    // See `Control::move_all`.
    let is_scheduler = unit.name() == Some("scheduler");
    if !unit.is_started() && !is_scheduler && random.one_in(4) {
        let id = unit.name().and_then(|name| name.parse::<usize>().ok());
        if let Some(id) = id {
            lock(&world.records)[id].set(MAY_BE_LOST);
        }
        return drop(unit);
    }
    let own = lock(&world.pools).iter().find(|pool| pool.name() == unit.pool()).cloned();
    let other = world.pool(random);
    let target = own.filter(|_| is_scheduler || !random.one_in(3)).unwrap_or(other);
    // The pool where a started one came from always takes it back, by way of the drop.
    let mut refused = target.push(unit).err();
    while let Some((unit, _)) = refused.take() {
        if unit.is_started() {
            return drop(unit);
        }
        refused = world.pool(random).push(unit).err();
    }
}

/// Says that somebody is inside a lock.
struct Inside<'a>(&'a std::sync::atomic::AtomicBool);

impl<'a> Inside<'a> {
    fn enter(world: &World, inside: &'a std::sync::atomic::AtomicBool) -> Self {
        world.check(!inside.swap(true, SeqCst), || "two units inside a lock".to_owned());
        Self(inside)
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.store(false, SeqCst);
    }
}

/// A send that has not succeeded; a cancel may end it.
struct Sent<'a>(&'a World);

impl<'a> Sent<'a> {
    fn start(world: &'a World) -> Self {
        world.sent.fetch_add(1, SeqCst);
        Self(world)
    }
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        self.0.sent.fetch_sub(1, SeqCst);
    }
}
