//! Changing pools and xstreams of a running runtime.
//!
//! One change at a time (the lock of the layout). A change decides which xstreams serve a pool and
//! which of them, if any, shall have its private end (`heir`). The xstreams carry it out
//! themselves, between two units ([`Xstream::enter_pools`]): one that shall not own a pool any more
//! gives it up and hands over what is queued there; one that shall own a pool which nobody owns
//! takes it. Units that are on their way meanwhile find their place; see
//! [`pool`](crate::engine::model::pool).

use std::ptr;

use crate::engine::error::{LayoutError, StartError};
use crate::engine::model::interfaces::Access;
use crate::engine::model::pool::{PoolShared, PoolSlot, Queue};
use crate::engine::model::runtime_core::{RuntimeCore, UnitTotals};
use crate::engine::model::xstream_shared::{State, XstreamShared};
use crate::engine::xstream::current;
use crate::engine::xstream::owner::Xstream;
use crate::runtime::specs::XstreamSpec;
use crate::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use crate::sync::atomic::fence;
use crate::sync::{Arc, lock};
use crate::topology::AffinityPattern;

/// Decides whether `pool` is removed. The caller holds the lock of the layout.
pub(super) fn close_pool(
    core: &Arc<RuntimeCore>,
    pool: &PoolShared,
) -> Result<UnitTotals, LayoutError> {
    let name = || pool.name.to_string();
    if pool.removed.load(Relaxed) {
        return Err(LayoutError::Removed { pool: name() });
    }
    if let Some(server) = lock(&pool.servers).first() {
        return Err(LayoutError::Served { pool: name(), xstream: server.name.to_string() });
    }
    // Spawns wait until it is decided, so that not both are refused because of each other.
    pool.removing.store(true, Relaxed);
    fence(SeqCst); // pair: REMOVE-DEKKER
    // Before the books: an owner counts what it spawns without a look at `removing`.
    let owner = pool.owner.load(Acquire); // pair: POOL-OWNER
    let (books, units) = pool.close_books();
    let here = current::xstream_in(core);
    let is_held = match here.and_then(|here| Some((here, here.own_slot(pool)?))) {
        Some((here, slot)) if units == 0 => {
            // Between two steps of a unit that runs here: what it spawned has been counted.
            here.give_up(slot);
            false
        }
        _ => !owner.is_null(),
    };
    if units == 0 && !is_held {
        pool.removed.store(true, Release); // pair: POOL-REMOVED
    }
    pool.removing.store(false, Release); // pair: REMOVE-DECIDED
    if units > 0 {
        let units = usize::try_from(units).unwrap_or(usize::MAX);
        return Err(LayoutError::NotEmpty { pool: name(), units });
    }
    // SAFETY:
    // - valid: xstreams live as long as the runtime's shared part.
    match unsafe { owner.as_ref() } {
        Some(owner) if is_held => {
            Err(LayoutError::Held { pool: name(), xstream: owner.name.to_string() })
        }
        _ => Ok(books),
    }
}

/// `pool` has been removed, when its books were these. The caller holds the lock of the layout.
pub(super) fn retire_pool(core: &RuntimeCore, pool: &Arc<PoolShared>, books: UnitTotals) {
    core.forget_pool(pool, books);
    // Those that run drop their slots between two units, and are then through with the pool; one
    // that has left has no slots, and does nothing.
    for xstream in core.xstreams() {
        if xstream.state() != State::Terminated {
            let (pool, has_slot) = (pool.clone(), pool.has_slot_of(&xstream));
            xstream.ask(move |xstream| {
                drop(pool); // pair: POOL-COUNT
                if has_slot {
                    xstream.reconfigured.set(true);
                }
            });
        }
    }
}

/// Makes an xstream that does not run yet. The caller holds the lock of the layout, or is the only
/// one who knows `core`.
pub(crate) fn make_xstream(
    core: &Arc<RuntimeCore>,
    spec: &XstreamSpec,
    affinity: Option<&AffinityPattern>,
) -> Result<Arc<XstreamShared>, StartError> {
    let name = || spec.name.clone();
    let others = core.xstreams();
    if others.iter().any(|other| *other.name == *spec.name) {
        return Err(StartError::DuplicateXstream { xstream: name() });
    }
    let ranks: Vec<usize> = others.iter().map(|other| other.rank()).collect();
    let rank = match spec.rank {
        Some(rank) if ranks.contains(&rank) => {
            return Err(StartError::DuplicateRank { xstream: name(), rank });
        }
        Some(rank) => rank,
        None => (0..).find(|rank| !ranks.contains(rank)).unwrap_or(ranks.len()),
    };
    let pools = find_pools(core, &spec.name, &spec.pools)?;
    for pool in &pools {
        check_access(&spec.name, pool, None)?;
    }
    let mut cpus = spec.resolve_cpus(&core.cpus)?;
    if let Some(pattern) = affinity.filter(|_| cpus.is_empty()) {
        cpus = pattern.cpus_among(rank, &core.cpus).iter().collect();
    }
    let index = lock(&core.parts).xstreams.len();
    let xstream = XstreamShared::new(&spec.name, index, rank).map_err(|source| {
        StartError::System { xstream: name(), what: "make an eventfd", source }
    })?;
    let xstream = Arc::new(xstream);
    *lock(&xstream.cpus) = cpus;
    core.add_xstream(&xstream);
    core.diag.admit(&xstream);
    set_pools(core, &xstream, pools);
    Ok(xstream)
}

/// The pools of these names.
pub(crate) fn find_pools(
    core: &RuntimeCore,
    xstream: &str,
    names: &[String],
) -> Result<Vec<Arc<PoolShared>>, StartError> {
    if names.is_empty() {
        return Err(StartError::NoPool { xstream: xstream.to_owned() });
    }
    let all = core.pools();
    let mut found: Vec<Arc<PoolShared>> = Vec::new();
    for name in names {
        let Some(pool) = all.iter().find(|pool| *pool.name == **name) else {
            let have: Vec<&str> = all.iter().map(|pool| &*pool.name).collect();
            let (xstream, have) = (xstream.to_owned(), have.join(", "));
            return Err(StartError::UnknownPool { xstream, pool: name.clone(), have });
        };
        if found.iter().any(|other| Arc::ptr_eq(other, pool)) {
            let xstream = xstream.to_owned();
            return Err(StartError::RepeatedPool { xstream, pool: name.clone() });
        }
        found.push(pool.clone());
    }
    Ok(found)
}

/// A pool for one consumer gets no second one.
pub(crate) fn check_access(
    xstream: &str,
    pool: &PoolShared,
    me: Option<&Arc<XstreamShared>>,
) -> Result<(), StartError> {
    let is_other = |server: &&Arc<XstreamShared>| me.is_none_or(|me| !Arc::ptr_eq(server, me));
    let servers = lock(&pool.servers);
    match servers.iter().find(is_other) {
        Some(server) if pool.access.is_single_consumer() => Err(StartError::Access {
            pool: pool.name.to_string(),
            access: pool.access,
            xstream: xstream.to_owned(),
            server: server.name.to_string(),
        }),
        _ => Ok(()),
    }
}

/// Gives an xstream other pools, in the scheduler's order. It takes notice when it is asked to, or
/// when it starts. Xstreams that lose a private end are asked here.
pub(crate) fn set_pools(
    core: &RuntimeCore,
    xstream: &Arc<XstreamShared>,
    pools: Vec<Arc<PoolShared>>,
) {
    let old = std::mem::take(&mut *lock(&xstream.pools));
    let is_in = |list: &[Arc<PoolShared>], pool| list.iter().any(|p| Arc::ptr_eq(p, pool));
    for pool in old.iter().filter(|pool| !is_in(&pools, pool)) {
        let mut servers = lock(&pool.servers);
        // One of them: stacked schedulers of the xstream have entries of their own.
        if let Some(at) = servers.iter().position(|server| Arc::ptr_eq(server, xstream)) {
            servers.remove(at);
        }
        drop(servers);
        settle_servers(core, pool);
    }
    lock(&xstream.pools).clone_from(&pools);
    for pool in &pools {
        if !is_in(&old, pool) {
            lock(&pool.servers).push(xstream.clone());
        }
        settle_servers(core, pool);
    }
}

/// Recomputes which xstream serves a pool alone, and which one shall own it, after a change of its
/// servers.
///
/// What is computed is stored under the lock of the servers: a stacked scheduler comes and goes
/// without the lock of the layout.
pub(crate) fn settle_servers(core: &RuntimeCore, pool: &PoolShared) {
    let servers = lock(&pool.servers);
    let sole = match &servers[..] {
        [only] => Arc::as_ptr(only).cast_mut(),
        _ => ptr::null_mut(),
    };
    if pool.sole.swap(sole, AcqRel) != sole {
        // Either whoever queues a unit sees the new server and wakes it, or it sees the unit.
        fence(SeqCst); // pair: SOLE-DEKKER
        if let [only] = &servers[..] {
            reconfigure(only);
        }
    }
    // They leave to others what these serve as well, and those may be the ones that have gone.
    for server in servers.iter().filter(|server| server.state() == State::Joining) {
        reconfigure(server);
    }
    let heir = match pool.queue() {
        Queue::Object(_) => ptr::null_mut(),
        // Once several xstreams have served it, its units stand where all find them.
        Queue::Fifo(_) if pool.was_shared.load(Relaxed) => ptr::null_mut(),
        Queue::Fifo(_) => sole,
        Queue::Deque(_) => {
            let is_first = |server: &&Arc<XstreamShared>| {
                lock(&server.pools).first().is_some_and(|first| ptr::eq(&**first, pool))
            };
            servers.iter().find(is_first).map_or(sole, |first| Arc::as_ptr(first).cast_mut())
        }
    };
    if servers.len() > 1 {
        pool.was_shared.store(true, Relaxed);
    }
    pool.heir.store(heir, Release); // pair: POOL-HEIR
    drop(servers);
    fence(SeqCst); // pair: HEIR-DEKKER
    let owner = pool.owner.load(Acquire); // pair: POOL-OWNER
    if owner == heir {
        return;
    }
    // The owner asks the heir when it has given up.
    let asked = if owner.is_null() { heir } else { owner };
    if let Some(asked) = core.xstreams().iter().find(|x| ptr::eq(Arc::as_ptr(x), asked)) {
        reconfigure(asked);
    }
}

/// Makes a running xstream look at its pools and its scheduler between two units.
pub(crate) fn reconfigure(xstream: &XstreamShared) {
    xstream.ask(|xstream| xstream.reconfigured.set(true));
}

impl Xstream {
    /// Takes notice of a changed layout: gives up pools that it shall not own any more, takes those
    /// that it shall, and marks the slots that its scheduler serves. Returns the latter's pools.
    pub(crate) fn enter_pools(&self) -> Vec<Arc<PoolShared>> {
        let mut pools = lock(&self.shared().pools).clone();
        for pool in &pools {
            self.slot_for(pool);
        }
        if self.shared().state() == State::Joining {
            // What others serve would never run dry under load.
            pools.retain(|pool| !self.has_other_servers(pool));
        }
        self.any_slot(|slot| {
            let pool = &slot.pool;
            let heir = pool.heir.load(Acquire); // pair: POOL-HEIR
            let owner = pool.owner.load(Acquire); // pair: POOL-OWNER
            if owner == self.me() && heir != owner {
                self.give_up(slot);
            } else if owner.is_null() && heir == self.me() {
                self.claim(slot);
            }
            let rank = pools.iter().position(|served| Arc::ptr_eq(served, pool));
            slot.served.set(rank.is_some());
            slot.rank.set(rank.unwrap_or_default());
            slot.is_last.set(slot.rank.get() + 1 >= pools.len());
            false
        });
        self.drop_slots();
        self.has_odd_slots.set(false);
        if self.any_slot(|slot| !slot.served.get() || slot.is_stacked()) {
            self.mark_odd();
        }
        pools
    }

    /// Gives up every private end; the xstream leaves.
    pub(crate) fn give_up_pools(&self) {
        self.any_slot(|slot| {
            // pair: POOL-OWNER
            if slot.pool.owner.load(Acquire) == self.me() {
                self.give_up(slot);
            }
            false
        });
    }

    /// Returns whether another xstream runs that serves `pool`.
    fn has_other_servers(&self, pool: &PoolShared) -> bool {
        let servers = lock(&pool.servers);
        servers.iter().any(|server| {
            !ptr::eq(Arc::as_ptr(server), self.me()) && server.state() == State::Running
        })
    }

    /// Takes the private end of a pool that nobody owns, unless somebody else is faster or shall
    /// have it by now.
    fn claim(&self, slot: &PoolSlot) {
        let pool = &slot.pool;
        // pair: POOL-OWNER
        if pool.owner.compare_exchange(ptr::null_mut(), self.me(), AcqRel, Relaxed).is_err() {
            return;
        }
        pool.owner_slot.set(slot);
        // Either whoever chooses another heir sees the new owner and asks it to give up, or the
        // other heir is seen here.
        fence(SeqCst); // pair: HEIR-DEKKER
        // pair: POOL-HEIR
        if pool.heir.load(Acquire) != self.me() {
            self.give_up(slot);
        } else if !pool.outlives_removal() {
            // A stacked scheduler came to it while it was removed. Either that is seen here, or the
            // removal sees an owner. So what has been removed has none, and owners need not look.
            pool.owner.store(ptr::null_mut(), Release); // pair: POOL-OWNER
        }
    }

    /// Hands the unstarted units of an owned pool to the queue where all servers find them.
    fn give_up(&self, slot: &PoolSlot) {
        let pool = &slot.pool;
        pool.owner.store(ptr::null_mut(), Release); // pair: POOL-OWNER
        // Either whoever chooses an heir sees that nobody owns the pool, or the heir is seen here.
        fence(SeqCst); // pair: HEIR-DEKKER
        let heir = pool.heir.load(Acquire); // pair: POOL-HEIR
        // SAFETY:
        // - valid: xstreams live as long as the runtime's shared part.
        if let Some(heir) = unsafe { heir.as_ref() } {
            // Also if it is this one, chosen again meanwhile: then nobody else has asked it.
            reconfigure(heir);
        }
        let mut stay = Vec::new();
        while let Some(ult) = slot.pop_front() {
            if self.is_home_of(ult) {
                stay.push(ult);
            } else {
                pool.queue().push(ult, crate::engine::model::interfaces::PushReason::Migrate);
            }
        }
        stay.into_iter().for_each(|ult| slot.push_back(ult));
        self.core.wake_one(pool);
        // A removal may wait for it.
        self.core.tell_news();
    }
}

/// For messages.
impl std::fmt::Display for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Private => "private",
            Self::Spsc => "spsc",
            Self::Mpsc => "mpsc",
            Self::Spmc => "spmc",
            Self::Mpmc => "mpmc",
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::AtomicUsize;
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;
    use crate::base::limit::Limit;
    use crate::{BasicWait, PoolRef, PoolSpec, Runtime};
    use crate::{
        MonitorSpec, Pool, PoolKind, PoolView, PopBy, PushReason, Scheduler, SpawnError, Step,
        Unit, XstreamState,
    };
    use std::time::Duration;

    /// Looks at queues, and queues that are there.
    #[derive(Default)]
    struct Tally {
        looks: AtomicUsize,
        queues: AtomicUsize,
        ticks: AtomicUsize,
    }

    struct Counting {
        units: Mutex<Vec<Unit>>,
        tally: Arc<Tally>,
    }

    impl Pool for Counting {
        fn push(&self, unit: Unit, _: PushReason) {
            self.units.lock().unwrap().push(unit);
        }

        fn pop(&self, _: PopBy) -> Option<Unit> {
            self.units.lock().unwrap().pop()
        }

        fn len(&self) -> usize {
            self.tally.looks.fetch_add(1, Relaxed);
            self.units.lock().unwrap().len()
        }
    }

    impl Drop for Counting {
        fn drop(&mut self) {
            self.tally.queues.fetch_sub(1, Relaxed);
        }
    }

    fn add(runtime: &Runtime, name: &str, tally: &Arc<Tally>) -> PoolRef {
        tally.queues.fetch_add(1, Relaxed);
        let queue = Counting { units: Mutex::default(), tally: tally.clone() };
        runtime.add_pool(PoolSpec::custom(name, Box::new(queue))).unwrap()
    }

    fn slots(base: &PoolRef) -> usize {
        let count = || {
            let mut count = 0;
            crate::engine::xstream::current::xstream().unwrap().any_slot(|_| {
                count += 1;
                false
            });
            count
        };
        base.spawn(count).unwrap().join().unwrap()
    }

    fn patiently(mut test: impl FnMut() -> bool) {
        let begin = std::time::Instant::now();
        while !test() {
            assert!(begin.elapsed() < Duration::from_secs(60), "it does not come");
            std::thread::yield_now();
        }
    }

    #[test]
    fn of_pools_that_have_been_removed_nothing_is_looked_at_and_their_queues_are_dropped() {
        const JOBS: usize = 2000;
        let tally = Arc::new(Tally::default());
        let ticks = tally.clone();
        let monitor = MonitorSpec::new()
            .lazy()
            .starve_limit(Some(Duration::from_secs(600)))
            .tick(Duration::from_millis(1))
            .on_tick(move || {
                ticks.ticks.fetch_add(1, Relaxed);
            });
        let x = XstreamSpec::new("x").pools(["base"]);
        let runtime = Runtime::builder().pool(PoolSpec::new("base")).xstream(x);
        let runtime = runtime.monitor(monitor).start().unwrap();
        let (base, x) = (runtime.pool("base").unwrap(), runtime.xstream("x").unwrap());
        let before = slots(&base);
        for job in 0..JOBS {
            let pool = add(&runtime, &format!("job {job}"), &tally);
            x.set_scheduler(Box::new(BasicWait::new()), ["base", pool.name()]).unwrap();
            pool.spawn(crate::yield_now).unwrap().join().unwrap();
            x.set_scheduler(Box::new(BasicWait::new()), ["base"]).unwrap();
            runtime.remove_pool(&pool).unwrap();
        }
        patiently(|| slots(&base) == before);
        // A look that goes on has the pools of before.
        let tick = |count| {
            let until = tally.ticks.load(Relaxed) + count;
            patiently(|| tally.ticks.load(Relaxed) >= until);
        };
        tick(2);
        let looks = tally.looks.load(Relaxed);
        tick(3);
        assert_eq!(tally.looks.load(Relaxed), looks);
        let last = add(&runtime, "last", &tally);
        assert_eq!(tally.queues.load(Relaxed), 1, "that of `last`");
        runtime.remove_pool(&last).unwrap();
        // Nothing that they counted is lost: a job ran twice.
        assert!(x.stats().finished >= JOBS as u64);
        assert!(x.stats().yields >= JOBS as u64);
        assert_eq!(runtime.pools().len(), 1);
        drop(last);
        runtime.shutdown().unwrap();
    }

    #[test]
    fn the_queue_of_a_removed_pool_stays_while_there_is_a_handle() {
        let tally = Arc::new(Tally::default());
        let x = XstreamSpec::new("x").pools(["base"]);
        let runtime = Runtime::builder().pool(PoolSpec::new("base")).xstream(x).start().unwrap();
        let pool = add(&runtime, "job", &tally);
        runtime.remove_pool(&pool).unwrap();
        let handle = pool.clone();
        drop(pool);
        runtime.remove_pool(&runtime.add_pool(PoolSpec::new("other")).unwrap()).unwrap();
        assert_eq!((handle.len(), tally.queues.load(Relaxed)), (0, 1));
        drop(handle);
        patiently(|| {
            runtime.remove_pool(&runtime.add_pool(PoolSpec::new("other")).unwrap()).unwrap();
            tally.queues.load(Relaxed) == 0
        });
        runtime.shutdown().unwrap();
    }

    /// `x` serves `base` and `job`, and runs a unit, which it cannot leave before `go`, and which
    /// spawns another one into `job` then. Only `base` is to be served.
    fn held_job() -> (Runtime, PoolRef, Arc<AtomicUsize>, crate::JoinHandle<crate::JoinHandle<()>>)
    {
        let x = XstreamSpec::new("x").pools(["base", "job"]);
        let pools = [PoolSpec::new("base"), PoolSpec::new("job")];
        let runtime = pools.into_iter().fold(Runtime::builder(), |b, pool| b.pool(pool));
        let runtime = runtime.xstream(x).start().unwrap();
        let (base, job) = (runtime.pool("base").unwrap(), runtime.pool("job").unwrap());
        let go = Arc::new(AtomicUsize::new(0));
        let (waits, into) = (go.clone(), job.clone());
        let holder = base.spawn(move || {
            waits.store(1, Relaxed);
            patiently(|| waits.load(Relaxed) == 2);
            into.spawn(|| ()).unwrap()
        });
        patiently(|| go.load(Relaxed) == 1);
        let x = runtime.xstream("x").unwrap();
        x.set_scheduler(Box::new(BasicWait::new()), ["base"]).unwrap();
        (runtime, job, go, holder.unwrap())
    }

    #[test]
    fn a_removal_waits_until_the_owner_has_let_go() {
        let (runtime, job, go, holder) = held_job();
        let (remover, target) = (runtime.clone(), job.clone());
        let removes = std::thread::spawn(move || remover.remove_pool(&target));
        patiently(|| !runtime.owner.core.news.is_empty() || removes.is_finished());
        // Nor does it hold up others.
        runtime.add_pool(PoolSpec::new("other")).unwrap();
        go.store(2, Relaxed);
        let unit = holder.join().unwrap();
        let refused = removes.join().unwrap().unwrap_err();
        assert!(matches!(refused, LayoutError::NotEmpty { units: 1, .. }), "{refused}");
        assert_eq!(job.move_all_to(&runtime.pool("base").unwrap()).unwrap(), 1);
        unit.join().unwrap();
        runtime.remove_pool(&job).unwrap();
        assert!(matches!(job.spawn(|| ()), Err(SpawnError::Removed { .. })));
        runtime.shutdown().unwrap();
    }

    #[test]
    fn a_removal_does_not_wait_for_ever_for_an_owner() {
        let (runtime, job, go, holder) = held_job();
        let held = runtime.remove_pool_within(&job, Limit::new(Duration::from_millis(1)));
        let held = held.unwrap_err();
        assert!(matches!(&held, LayoutError::Held { xstream, .. } if xstream == "x"), "{held}");
        go.store(2, Relaxed);
        let unit = holder.join().unwrap();
        runtime.pool("base").unwrap().spawn(|| ()).unwrap().join().unwrap();
        assert_eq!(job.move_all_to(&runtime.pool("base").unwrap()).unwrap(), 1);
        unit.join().unwrap();
        runtime.remove_pool(&job).unwrap();
        runtime.shutdown().unwrap();
    }

    /// A scheduler that is stacked over a removed pool, and lets its xstream look at its mail.
    struct Late(PoolRef, Arc<AtomicUsize>);

    impl Scheduler for Late {
        fn next(&mut self, pools: &[PoolView<'_>]) -> Step {
            (0..3).for_each(|_| crate::yield_now());
            if self.1.load(Relaxed) == 0 {
                let is_refused = matches!(self.0.spawn(|| ()), Err(SpawnError::Removed { .. }));
                self.1.store(1 + usize::from(is_refused), Relaxed);
            }
            pools[0].pop().map_or(Step::Idle, Step::Run)
        }
    }

    #[test]
    fn nobody_owns_a_removed_pool_and_its_slot_goes_with_the_last_stacked_scheduler() {
        let x = XstreamSpec::new("x").pools(["base"]);
        let runtime = Runtime::builder().pool(PoolSpec::new("base")).xstream(x).start().unwrap();
        let base = runtime.pool("base").unwrap();
        let before = slots(&base);
        let job = runtime.add_pool(PoolSpec::new("job").kind(PoolKind::RandWs)).unwrap();
        runtime.remove_pool(&job).unwrap();
        let refused = Arc::new(AtomicUsize::new(0));
        let late = Late(job.clone(), refused.clone());
        base.push_scheduler(Box::new(late), [job.clone()]).unwrap().join().unwrap();
        assert_eq!(refused.load(Relaxed), 2);
        patiently(|| slots(&base) == before);
        runtime.shutdown().unwrap();
    }

    /// Removes a pool while its xstream is about to leave.
    struct Removing(Runtime, PoolRef);

    impl Scheduler for Removing {
        fn next(&mut self, _: &[PoolView<'_>]) -> Step {
            let is_joining = self.0.xstream("leaves").unwrap().state() == XstreamState::Joining;
            if is_joining && !self.1.is_removed() {
                self.0.remove_pool(&self.1).unwrap();
            }
            Step::Idle
        }
    }

    #[test]
    fn an_xstream_that_leaves_keeps_nothing_of_a_removed_pool() {
        let tally = Arc::new(Tally::default());
        let x = XstreamSpec::new("x").pools(["base"]);
        let runtime = Runtime::builder().pool(PoolSpec::new("base")).xstream(x).start().unwrap();
        let job = add(&runtime, "job", &tally);
        runtime.add_pool(PoolSpec::new("spare")).unwrap();
        let leaves = XstreamSpec::new("leaves").pools(["spare"]);
        let leaves = leaves.scheduler(Box::new(Removing(runtime.clone(), job)));
        let leaves = runtime.add_xstream(leaves).unwrap();
        leaves.join().unwrap();
        let revived = Box::new(BasicWait::new());
        leaves.set_scheduler(revived, ["spare"]).unwrap();
        patiently(|| {
            runtime.remove_pool(&runtime.add_pool(PoolSpec::new("other")).unwrap()).unwrap();
            tally.queues.load(Relaxed) == 0
        });
        // What it is asked later goes with it.
        let token = Arc::new(());
        let (shared, holds) = (runtime.owner.core.xstreams().remove(1), token.clone());
        shared.ask(move |_| drop(holds));
        leaves.remove().unwrap();
        assert_eq!(Arc::strong_count(&token), 1);
        runtime.shutdown().unwrap();
    }

    #[test]
    fn a_slot_stays_while_a_ult_that_has_moved_away_points_to_it() {
        let x = XstreamSpec::new("x").pools(["base", "job"]);
        let pools = [PoolSpec::new("base"), PoolSpec::new("job")];
        let runtime = pools.into_iter().fold(Runtime::builder(), |b, pool| b.pool(pool));
        let runtime = runtime.xstream(x).start().unwrap();
        let (base, job) = (runtime.pool("base").unwrap(), runtime.pool("job").unwrap());
        let x = runtime.xstream("x").unwrap();
        let (go, to) = (Arc::new(crate::Eventual::new()), base.clone());
        let waits = go.clone();
        let ult = job.spawn(move || {
            let (_, me) = crate::engine::xstream::current::xstream_and_ult().unwrap();
            let old = me.slot.get();
            crate::set_pool(&to).unwrap();
            // As if another thread had moved it, which leaves that to its home.
            let new = me.slot.replace(old);
            let () = *waits.wait();
            me.slot.set(new);
        });
        let ult = ult.unwrap();
        patiently(|| job.total_len() == 0);
        x.set_scheduler(Box::new(BasicWait::new()), ["base"]).unwrap();
        runtime.remove_pool(&job).unwrap();
        let change = || {
            runtime.remove_pool(&runtime.add_pool(PoolSpec::new("other")).unwrap()).unwrap();
            x.set_scheduler(Box::new(BasicWait::new()), ["base"]).unwrap();
        };
        for _ in 0..3 {
            change();
            assert_eq!(slots(&base), 2, "it points to one of them");
        }
        go.set(()).unwrap();
        ult.join().unwrap();
        change();
        patiently(|| slots(&base) == 1);
        assert_eq!(base.total_len(), 0);
        runtime.shutdown().unwrap();
    }
}
