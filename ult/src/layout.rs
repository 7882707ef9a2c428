//! Changing pools and xstreams of a running runtime.
//!
//! One change at a time (the lock of the layout). A change decides which xstreams serve a pool and
//! which of them, if any, shall have its private end (`heir`). The xstreams carry it out
//! themselves, between two units ([`Xstream::enter_pools`]): one that shall not own a pool any more
//! gives it up and hands over what is queued there; one that shall own a pool which nobody owns
//! takes it. Units that are on their way meanwhile find their place; see [`pool`](crate::pool).

use std::ptr;

use crate::builder::{XstreamSpec, check_pool};
use crate::error::{LayoutError, StartError};
use crate::pool::{Access, PoolRef, PoolShared, PoolSpec, Queue};
use crate::runtime::Runtime;
use crate::sched::BasicWait;
use crate::shared::{EXIT, RuntimeCore};
use crate::slot::Slot;
use crate::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use crate::sync::atomic::fence;
use crate::sync::{Arc, lock};
use crate::topology::AffinityPattern;
use crate::xstream::{State, Xstream, XstreamShared};
use crate::xstream_ref::XstreamRef;
use crate::xstream_thread;

impl Runtime {
    /// Adds a pool. No xstream serves it yet: spawns into it wait until one does
    /// ([`add_xstream`](Self::add_xstream), [`XstreamRef::set_scheduler`]).
    ///
    /// # Errors
    ///
    /// [`StartError::DuplicatePool`] and the other errors about pools.
    ///
    /// Counterpart: `ABT_pool_create`.
    pub fn add_pool(&self, spec: PoolSpec) -> Result<PoolRef, StartError> {
        let core = &self.owner.core;
        core.sweep_pools();
        let _one_at_a_time = core.layout.lock();
        check_pool(&spec)?;
        if core.pools().iter().any(|pool| *pool.name == *spec.name) {
            return Err(StartError::DuplicatePool { pool: spec.name });
        }
        let pool = core.add_pool(|index| PoolShared::new(spec, index, core.class.bytes()));
        Ok(PoolRef { core: core.clone(), pool })
    }

    /// Removes a pool that no xstream serves and that has no units. Spawns into it fail from then
    /// on.
    ///
    /// Of the pool stay its name and counters (less than 1 KiB), until the runtime ends. The queue
    /// of a [custom](PoolSpec::custom) one is dropped when there is no handle to the pool any more,
    /// by the next call of this or of [`add_pool`](Self::add_pool).
    ///
    /// # Errors
    ///
    /// [`LayoutError`] if it is served, or not empty. Nothing has changed then.
    ///
    /// Counterpart: `ABT_pool_free`.
    pub fn remove_pool(&self, pool: &PoolRef) -> Result<(), LayoutError> {
        let core = &self.owner.core;
        core.sweep_pools();
        let _one_at_a_time = core.layout.lock();
        let name = || pool.name().to_owned();
        if !Arc::ptr_eq(core, &pool.core) {
            return Err(LayoutError::OtherRuntime { pool: name() });
        }
        if let Some(server) = lock(&pool.pool.servers).first() {
            return Err(LayoutError::Served { pool: name(), xstream: server.name.to_string() });
        }
        // Spawns wait until it is decided, so that not both are refused because of each other.
        pool.pool.removing.store(true, Relaxed);
        fence(SeqCst); // pair: REMOVE-DEKKER
        let (books, units) = pool.pool.close_books();
        if units == 0 {
            pool.pool.removed.store(true, Release); // pair: POOL-REMOVED
        }
        pool.pool.removing.store(false, Release); // pair: REMOVE-DECIDED
        if units > 0 {
            let units = usize::try_from(units).unwrap_or(usize::MAX);
            return Err(LayoutError::NotEmpty { pool: name(), units });
        }
        core.forget_pool(&pool.pool, books);
        // Those that run drop their slots between two units, and are then through with the pool;
        // one that has left has no slots, and does nothing.
        for xstream in core.xstreams() {
            if xstream.state() != State::Terminated {
                let (pool, has_slot) = (pool.pool.clone(), pool.pool.has_slot_of(&xstream));
                xstream.ask(Box::new(move |xstream| {
                    drop(pool); // pair: POOL-COUNT
                    if has_slot {
                        xstream.reconfigured.set(true);
                    }
                }));
            }
        }
        Ok(())
    }

    /// Starts another xstream.
    ///
    /// # Errors
    ///
    /// See [`StartError`]. Nothing has changed then.
    ///
    /// Counterpart: `ABT_xstream_create`.
    pub fn add_xstream(&self, mut spec: XstreamSpec) -> Result<XstreamRef, StartError> {
        let core = &self.owner.core;
        let _one_at_a_time = core.layout.lock();
        if self.is_shut_down() {
            return Err(StartError::ShutDown { xstream: spec.name });
        }
        let scheduler = spec.scheduler.take().unwrap_or_else(|| Box::new(BasicWait::new()));
        let xstream = make_xstream(core, &spec, None)?;
        drop(xstream.put_scheduler(scheduler));
        let (_, word) = core.phase();
        xstream.see(word);
        // It looks at the flags that came with the word before it does anything else.
        xstream.signal();
        if let Err(error) = xstream_thread::start(core, &xstream) {
            set_pools(core, &xstream, Vec::new());
            core.forget_xstream(&xstream);
            return Err(error);
        }
        let (flags, _) = core.phase();
        if flags & EXIT != 0 {
            // The shutdown may have joined the threads before it knew this one.
            xstream_thread::join(&xstream);
            return Err(StartError::ShutDown { xstream: spec.name });
        }
        Ok(XstreamRef::new(core.clone(), xstream))
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

/// Recomputes who serves a pool alone, and who shall own it, after a change of its servers.
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
    xstream.ask(Box::new(|xstream| xstream.reconfigured.set(true)));
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

    /// Whether another xstream runs that serves `pool`.
    fn has_other_servers(&self, pool: &PoolShared) -> bool {
        let servers = lock(&pool.servers);
        servers.iter().any(|server| {
            !ptr::eq(Arc::as_ptr(server), self.me()) && server.state() == State::Running
        })
    }

    /// Takes the private end of a pool that nobody owns, unless somebody else is faster or shall
    /// have it by now.
    fn claim(&self, slot: &Slot) {
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
        }
    }

    /// Hands the unstarted units of an owned pool to the queue where all servers find them.
    fn give_up(&self, slot: &Slot) {
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
                pool.queue().push(ult, crate::pool::PushReason::Migrate);
            }
        }
        stay.into_iter().for_each(|ult| slot.push_back(ult));
        self.core.wake_one(pool);
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
    use std::sync::atomic::AtomicUsize;
    use std::sync::atomic::Ordering::Relaxed;
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use crate::{
        BasicWait, MonitorSpec, Pool, PoolRef, PoolSpec, PopBy, PushReason, Runtime, Unit,
        XstreamSpec,
    };

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
            crate::current::xstream().unwrap().any_slot(|_| {
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
            let (_, me) = crate::current::xstream_and_ult().unwrap();
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
