//! Operations on a pool beside spawning: take units out and put them back, move its content, look
//! at it, and give it a scheduler of its own.

use std::ptr;

use crate::base::wait_kind::WaitKind;
use crate::engine::error::{MigrateError, SpawnError};
use crate::engine::model::interfaces::{
    OwnScheduler, PoolView, PopBy, PushReason, Scheduler, Step, Unit, own,
};
use crate::engine::model::pool::PoolShared;
use crate::engine::model::unit::UltPtr;
use crate::engine::model::xstream_shared::{State, XstreamShared};
use crate::engine::pool::handle::PoolRef;
use crate::engine::xstream::change_pool::tell_stacks;
use crate::engine::xstream::current;
use crate::engine::xstream::owner::Xstream;
use crate::engine::xstream::push::push_again;
use crate::engine::xstream::switch;
use crate::runtime::layout::{reconfigure, settle_servers};
use crate::spawn::join::JoinHandle;
use crate::stack::context::Command;
use crate::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use crate::sync::atomic::fence;
use crate::sync::{Arc, lock};

/// A runnable unit as listed by [`PoolRef::units`].
///
/// ```
/// use ult::PoolSpec;
///
/// # use ult::{Runtime, XstreamSpec};
/// # let runtime = Runtime::builder()
/// #     .pool(PoolSpec::new("main"))
/// #     .xstream(XstreamSpec::new("x0").pools(["main"]))
/// #     .start()?;
/// # let pool = runtime.pool("main").expect("defined above");
/// // No xstream serves this pool, so its units wait.
/// let spare = runtime.add_pool(PoolSpec::new("spare"))?;
/// let worker = spare.ult().name("worker").spawn(|| 42)?;
/// let units = spare.units();
/// assert_eq!((units[0].id, units[0].name.as_deref()), (worker.id(), Some("worker")));
/// assert!(!units[0].is_started);
/// # spare.move_all_to(&pool)?;
/// # worker.join()?;
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnitInfo {
    /// Number, unique in the runtime.
    pub id: u64,
    /// Name given at spawn.
    pub name: Option<String>,
    /// True if it has run before.
    pub is_started: bool,
    /// True if it is a tasklet.
    pub is_tasklet: bool,
}

impl UnitInfo {
    fn of(unit: &Unit) -> Self {
        Self {
            id: unit.id(),
            name: unit.name().map(str::to_owned),
            is_started: unit.is_started(),
            is_tasklet: unit.is_tasklet(),
        }
    }
}

impl PoolRef {
    /// Takes a runnable unit out of the pool, for [`yield_to`](crate::yield_to) and the like.
    ///
    /// Finds what the caller could run: on an xstream that serves the pool, what its scheduler
    /// would get; elsewhere, units that have not started and are in nobody's private list.
    ///
    /// Counterpart: `ABT_pool_pop_thread`.
    #[must_use]
    #[inline]
    pub fn pop(&self) -> Option<Unit> {
        // The owner of a pool is of the pool's runtime.
        let own = current::xstream().and_then(|here| Some((here, here.own_slot(&self.pool)?)));
        match own {
            Some((here, slot)) => PoolView::new(slot, here.me(), true).pop(),
            None => self.pop_foreign(),
        }
    }

    /// As [`pop`](Self::pop), where the caller does not own the pool.
    #[inline(never)]
    fn pop_foreign(&self) -> Option<Unit> {
        match current::xstream_in(&self.core).and_then(|xstream| xstream.slot_of(&self.pool)) {
            Some(slot) => PoolView::new(slot, ptr::null_mut(), false).pop(),
            None => self.pool.queue().pop(PopBy::Thief).map(Unit::from_ult),
        }
    }

    /// Takes up to `max` units, as that many [`pop`](Self::pop)s would.
    ///
    /// Counterpart: `ABT_pool_pop_threads`.
    #[must_use]
    pub fn pop_many(&self, max: usize) -> Vec<Unit> {
        std::iter::from_fn(|| self.pop()).take(max).collect()
    }

    /// Puts a unit into the pool; it belongs to this pool from then on.
    ///
    /// # Errors
    ///
    /// Gives the unit back with a [`MigrateError`] if the pool is of another runtime or has been
    /// removed, or if the unit is a started ULT whose home does not serve the pool, or one that has
    /// ended and only drops its outcome.
    ///
    /// Counterpart: `ABT_pool_push_thread`.
    pub fn push(&self, unit: Unit) -> Result<(), (Unit, MigrateError)> {
        let ult = unit.ptr();
        let pool = || self.name().to_owned();
        if !Arc::ptr_eq(&ult.core, &self.core) {
            return Err((unit, MigrateError::OtherRuntime { pool: pool() }));
        }
        if self.pool.removed.load(Acquire) {
            return Err((unit, MigrateError::Removed { pool: pool() }));
        }
        let is_same = ptr::eq(ult.pool(), &*self.pool);
        if unit.is_started() && !ult.may_move() {
            return self.push_started(unit, is_same);
        }
        if !is_same {
            if !crate::engine::xstream::change_pool::enter(&self.pool) {
                return Err((unit, MigrateError::Removed { pool: pool() }));
            }
            crate::engine::xstream::change_pool::adopt(ult, &self.pool);
        }
        let ult = unit.into_ult();
        if ult.home.load(Relaxed).addr() > XstreamShared::nowhere().addr() {
            // It can move, but is still registered at its home, which sends it on.
            push_again(ult, false);
            return Ok(());
        }
        let why = if is_same { PushReason::Yield } else { PushReason::Migrate };
        crate::engine::xstream::push::enqueue(ult, why);
        Ok(())
    }

    /// Puts several units into the pool, the first one first. Stops at the first that is refused,
    /// and gives it and those behind it back.
    ///
    /// # Errors
    ///
    /// See [`push`](Self::push).
    ///
    /// Counterpart: `ABT_pool_push_threads`.
    pub fn push_many(
        &self,
        units: impl IntoIterator<Item = Unit>,
    ) -> Result<(), (Vec<Unit>, MigrateError)> {
        let mut units = units.into_iter();
        while let Some(unit) = units.next() {
            if let Err((unit, error)) = self.push(unit) {
                return Err((std::iter::once(unit).chain(units).collect(), error));
            }
        }
        Ok(())
    }

    /// A started ULT that stays on its xstream.
    fn push_started(&self, unit: Unit, is_same: bool) -> Result<(), (Unit, MigrateError)> {
        let ult = unit.ptr();
        let home = crate::engine::xstream::push::home_here(ult);
        if is_same {
            push_again(unit.into_ult(), false);
            return Ok(());
        }
        if crate::engine::xstream::change_pool::has_ended(ult) {
            return Err((unit, MigrateError::Ended { pool: self.name().to_owned() }));
        }
        let serves = |xstream: &crate::engine::xstream::owner::Xstream| {
            xstream.slot_of(&self.pool).is_some_and(|slot| slot.served.get())
        };
        match home.filter(|xstream| serves(xstream)) {
            Some(_) if !crate::engine::xstream::change_pool::enter(&self.pool) => {
                Err((unit, MigrateError::Removed { pool: self.name().to_owned() }))
            }
            Some(xstream) => {
                crate::engine::xstream::change_pool::move_at_home(xstream, ult, &self.pool);
                xstream.requeue(unit.into_ult(), PushReason::Migrate);
                Ok(())
            }
            None => {
                let xstream = home.map_or("its home", |xstream| &*xstream.shared().name).to_owned();
                let pool = self.name().to_owned();
                Err((unit, MigrateError::NotServed { pool, xstream }))
            }
        }
    }

    /// Moves the units that have not started to `target`, in their order. Returns how many.
    ///
    /// Units in the private list of an xstream are moved by that xstream, a little later; they are
    /// not counted.
    ///
    /// # Errors
    ///
    /// [`MigrateError`] if `target` is of another runtime or has been removed.
    pub fn move_all_to(&self, target: &Self) -> Result<usize, MigrateError> {
        let pool = || target.name().to_owned();
        if !Arc::ptr_eq(&self.core, &target.core) {
            return Err(MigrateError::OtherRuntime { pool: pool() });
        }
        if target.pool.removed.load(Acquire) {
            return Err(MigrateError::Removed { pool: pool() });
        }
        if self == target {
            return Ok(0);
        }
        let moved = self.move_reachable(target);
        // SAFETY:
        // - valid: xstreams live as long as the runtime's shared part.
        let owner = unsafe { self.pool.owner.load(Acquire).as_ref() }; // pair: POOL-OWNER
        let is_here = current::xstream_in(&self.core)
            .is_some_and(|here| owner.is_some_and(|owner| ptr::eq(here.me(), owner)));
        if let Some(owner) = owner.filter(|_| !is_here) {
            let (from, to) = (self.clone(), target.clone());
            owner.ask(move |_| {
                from.move_reachable(&to);
            });
        }
        Ok(moved)
    }

    /// Moves the unstarted units that the caller can reach.
    fn move_reachable(&self, target: &Self) -> usize {
        let (mut moved, mut stay) = (0, Vec::new());
        // Others may push meanwhile; what is there now is enough.
        for _ in 0..self.len() {
            let Some(unit) = self.pop() else { break };
            if unit.is_started() || !crate::engine::xstream::change_pool::enter(&target.pool) {
                stay.push(unit);
            } else {
                crate::engine::xstream::change_pool::adopt(unit.ptr(), &target.pool);
                crate::engine::xstream::push::enqueue(unit.into_ult(), PushReason::Migrate);
                moved += 1;
            }
        }
        for unit in stay {
            if unit.is_started() {
                push_again(unit.into_ult(), true);
            } else {
                // The target has been removed, and the unit is at home nowhere yet.
                crate::engine::xstream::push::enqueue(unit.into_ult(), PushReason::Yield);
            }
        }
        moved
    }

    /// The runnable units of the pool, for debugging. Shows what the caller could
    /// [`pop`](Self::pop), without taking it; not the content of work-stealing deques.
    ///
    /// Counterpart: `ABT_pool_print_all_threads`.
    #[must_use]
    pub fn units(&self) -> Vec<UnitInfo> {
        let mut found = Vec::new();
        let xstream = current::xstream_in(&self.core);
        if let Some(slot) = xstream.and_then(|xstream| xstream.slot_of(&self.pool)) {
            slot.list.for_each(|ult| {
                found.push(UnitInfo::of(&std::mem::ManuallyDrop::new(Unit::from_ult(ult))));
            });
        }
        self.pool.queue().for_each(&mut |unit| found.push(UnitInfo::of(unit)));
        found
    }

    /// Spawns one ULT for each closure. Stops at the first that cannot be spawned; the ones before
    /// it run, and their handles are in the error.
    ///
    /// # Errors
    ///
    /// See [`SpawnError`].
    ///
    /// Counterpart: `ABT_thread_create_many`.
    #[allow(clippy::type_complexity, reason = "the handles, and with the error those so far")]
    pub fn spawn_many<F, T>(
        &self,
        closures: impl IntoIterator<Item = F>,
    ) -> Result<Vec<JoinHandle<T>>, (Vec<JoinHandle<T>>, SpawnError)>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let mut handles = Vec::new();
        for f in closures {
            match self.spawn(f) {
                Ok(handle) => handles.push(handle),
                Err(error) => return Err((handles, error)),
            }
        }
        Ok(handles)
    }

    /// Stacks a scheduler: a ULT of this pool that schedules `pools` by `scheduler`, as a child of
    /// whatever runs this pool. It ends when its pools have no units left that have not ended.
    ///
    /// It gives way to other units of its xstream after every 32 units, and sleeps while its
    /// units are suspended. The pools should be served by nobody else ([`Runtime::add_pool`]); what
    /// starts there is at home on the xstream where the scheduler runs.
    ///
    /// # Errors
    ///
    /// See [`SpawnError`].
    ///
    /// Counterpart: `ABT_pool_add_sched`.
    ///
    /// [`Runtime::add_pool`]: crate::Runtime::add_pool
    pub fn push_scheduler(
        &self,
        scheduler: Box<dyn Scheduler>,
        pools: impl IntoIterator<Item = PoolRef>,
    ) -> Result<JoinHandle<()>, SpawnError> {
        let pools: Vec<Self> = pools.into_iter().collect();
        let scheduler = own(scheduler);
        self.ult().name("scheduler").spawn(move || stacked(scheduler, &pools))
    }
}

/// Units that a stacked scheduler runs before it lets others run.
const STACKED_TURN: u32 = 32;

/// The body of a stacked scheduler.
fn stacked(mut scheduler: OwnScheduler, pools: &[PoolRef]) {
    let Some((xstream, me)) = current::xstream_and_ult() else { return };
    let stack = Stack::new(xstream, me, pools);
    let views: Vec<_> = pools.iter().map(|pool| xstream.view(&pool.pool)).collect();
    let mut turn = 0;
    loop {
        match scheduler.next(&views) {
            Step::Run(unit) => {
                xstream.streak.stop();
                xstream.run(unit.into_ult());
                turn += 1;
                if turn == STACKED_TURN {
                    turn = 0;
                    crate::yield_now();
                }
            }
            Step::Idle if !stack.has_units() => break,
            Step::Idle => stack.sleep(&views),
        }
    }
}

/// The books about a stacked scheduler, also when it is cancelled or panics.
struct Stack<'a> {
    xstream: &'a Xstream,
    me: UltPtr,
    pools: &'a [PoolRef],
}

impl<'a> Stack<'a> {
    /// Lets pushes into the pools, and ends of their units elsewhere, wake this xstream.
    fn new(xstream: &'a Xstream, me: UltPtr, pools: &'a [PoolRef]) -> Self {
        for PoolRef { pool, core } in pools {
            pool.stacks.fetch_add(1, Relaxed);
            xstream.slot_for(pool).stack();
            pool.was_shared.store(true, Release);
            lock(&pool.servers).push(xstream.shared().clone());
            settle_servers(core, pool);
            // Others count ends without a fence. From this request on they see `stacks`, and it
            // tells of the ends before. One that has left has none to tell of.
            fence(SeqCst); // pair: STACK-LIFE
            for other in core.xstreams() {
                if !matches!(other.state(), State::Terminated | State::Removed) {
                    let pool = pool.clone();
                    other.ask(move |_| tell_stacks(&pool));
                }
            }
        }
        xstream.mark_odd();
        Self { xstream, me, pools }
    }

    /// Returns whether the pools have units beside the scheduler, which may have been moved into
    /// one.
    fn has_units(&self) -> bool {
        let own = |pool: &PoolShared| usize::from(ptr::eq(self.me.pool(), pool));
        self.pools.iter().any(|pool| pool.total_len() > own(&pool.pool))
    }

    /// Waits until there may be something to run, or nothing to wait for.
    fn sleep(&self, views: &[PoolView<'_>]) {
        for view in views {
            view.slot().add_sleeper(self.me);
        }
        self.xstream.mark_odd();
        // Either whoever takes the last unit away sees that somebody waits, or it is seen here.
        fence(SeqCst); // pair: STACK-DEKKER
        if views.iter().all(PoolView::is_empty) && self.has_units() {
            self.me.state.waits.set(WaitKind::Park);
            switch::suspend(self.me, Command::Park);
        }
        for view in views {
            view.slot().remove_sleeper(self.me);
        }
        switch::check(self.me);
    }
}

impl Drop for Stack<'_> {
    fn drop(&mut self) {
        for PoolRef { pool, core } in self.pools {
            pool.stacks.fetch_sub(1, Relaxed);
            let slot = self.xstream.slot_for(pool);
            slot.unstack();
            slot.remove_sleeper(self.me);
            let mut servers = lock(&pool.servers);
            let me = self.xstream.me();
            // The last one: an earlier one may be that of the xstream's own scheduler.
            if let Some(at) = servers.iter().rposition(|server| ptr::eq(Arc::as_ptr(server), me)) {
                servers.remove(at);
            }
            drop(servers);
            settle_servers(core, pool);
            if pool.removed.load(Acquire) {
                // The slot has stayed for this scheduler.
                reconfigure(self.xstream.shared());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::sync::atomic::Ordering::Relaxed;
    use std::sync::{Arc, Mutex};
    use std::time::{Duration, Instant};

    use crate::engine::xstream::change_pool::tell_loss;
    use crate::{
        Basic, Event, EventMask, EventSink, Eventual, JoinHandle, PoolRef, PoolSpec, Runtime,
        SinkHandle, XstreamSpec,
    };

    fn runtime() -> Runtime {
        Runtime::builder()
            .pool(PoolSpec::new("a"))
            .pool(PoolSpec::new("b"))
            .xstream(XstreamSpec::new("x0").pools(["a"]))
            .xstream(XstreamSpec::new("x1").pools(["b"]))
            .start()
            .unwrap()
    }

    #[test]
    fn an_xstream_that_has_left_is_not_asked_for_the_ends_of_units() {
        let runtime = runtime();
        let a = runtime.pool("a").unwrap();
        let inner = runtime.add_pool(PoolSpec::new("inner")).unwrap();
        let x1 = runtime.xstream("x1").unwrap();
        x1.join().unwrap();
        let shared = runtime.owner.core.xstreams().remove(1);
        let before = shared.requests();
        for _ in 0..100 {
            let child = inner.spawn(|| ()).unwrap();
            let scheduler = a.push_scheduler(Box::new(Basic::new()), [inner.clone()]);
            scheduler.unwrap().join().unwrap();
            child.join().unwrap();
        }
        assert_eq!(shared.requests(), before);
        x1.revive().unwrap();
        runtime.shutdown().unwrap();
    }

    /// Runs on the xstream of `pool`, and does not leave it before the flag is set.
    fn hold(pool: &PoolRef) -> (Arc<AtomicBool>, JoinHandle<()>) {
        let (stop, is_held) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (stops, holds) = (stop.clone(), is_held.clone());
        let holder = pool.spawn(move || {
            holds.store(true, Relaxed);
            while !stops.load(Relaxed) {
                std::thread::yield_now();
            }
        });
        while !is_held.load(Relaxed) {
            std::thread::yield_now();
        }
        (stop, holder.unwrap())
    }

    /// A sink that is removed inside of itself, so that the holder of the last plan drops it.
    struct Rude {
        own: Arc<Mutex<Option<SinkHandle>>>,
        is_dropped: Arc<AtomicBool>,
    }

    impl EventSink for Rude {
        fn event(&self, _: &Event<'_>) {
            drop(self.own.lock().unwrap().take());
        }
    }

    impl Drop for Rude {
        fn drop(&mut self) {
            self.is_dropped.store(true, Relaxed);
            panic!(
                "on xstream {:?}",
                crate::engine::xstream::current::xstream().map(|here| here.shared().rank())
            );
        }
    }

    #[test]
    fn the_destructor_of_a_sink_keeps_no_xstream_from_its_mail() {
        let x = XstreamSpec::new("x").pools(["a"]);
        let runtime = Runtime::builder().pool(PoolSpec::new("a")).xstream(x).start().unwrap();
        let a = runtime.pool("a").unwrap();
        let inner = runtime.add_pool(PoolSpec::new("inner")).unwrap();
        let lost = inner.spawn(|| ()).unwrap();
        let unit = inner.pop().unwrap();
        let scheduler = a.push_scheduler(Box::new(Basic::new()), [inner.clone()]).unwrap();
        while a.stats().blocked() == 0 {
            std::thread::yield_now();
        }
        let (own, is_dropped) = (Arc::new(Mutex::new(None)), Arc::new(AtomicBool::new(false)));
        let sink = Rude { own: own.clone(), is_dropped: is_dropped.clone() };
        let sink = runtime.add_sink(EventMask::CREATE, sink);
        // With the run of this one it has the plan.
        let (stop, holder) = hold(&a);
        *own.lock().unwrap() = Some(sink);
        let next = a.spawn(|| ()).unwrap();
        tell_loss(&inner.pool);
        assert!(!is_dropped.load(Relaxed));
        stop.store(true, Relaxed);
        holder.join().unwrap();
        next.join().unwrap();
        a.spawn(|| ()).unwrap().join().unwrap();
        assert!(is_dropped.load(Relaxed));
        drop(unit);
        assert!(lost.join().is_err());
        let ended = scheduler.join_deadline(Instant::now() + Duration::from_secs(60));
        ended.expect("it is told that its pool has no units").unwrap();
        runtime.shutdown().unwrap();
    }

    #[test]
    fn many_ends_elsewhere_are_one_call_for_a_stacked_scheduler() {
        let runtime = runtime();
        let a = runtime.pool("a").unwrap();
        let inner = runtime.add_pool(PoolSpec::new("inner")).unwrap();
        let go = Arc::new(Eventual::<()>::new());
        let waits = go.clone();
        let child = inner.spawn(move || waits.wait_ready()).unwrap();
        let scheduler = a.push_scheduler(Box::new(Basic::new()), [inner.clone()]).unwrap();
        let (stop, holder) = hold(&a);
        let shared = runtime.owner.core.xstreams().remove(0);
        let before = shared.requests();
        for _ in 0..1000 {
            tell_loss(&inner.pool);
        }
        assert_eq!(shared.requests(), before);
        stop.store(true, Relaxed);
        holder.join().unwrap();
        go.set(()).unwrap();
        child.join().unwrap();
        scheduler.join().unwrap();
        runtime.shutdown().unwrap();
    }
}
