//! The program's handle of an xstream.

use std::fmt;
use std::time::Duration;

use crate::base::contain::log;
use crate::base::limit::Limit;
use crate::engine::error::{LayoutError, StartError};
use crate::engine::model::interfaces::{Scheduler, own};
use crate::engine::model::pool::PoolCounters;
use crate::engine::model::runtime_core::{CLOSING, EXIT, RuntimeCore};
use crate::engine::model::xstream_shared::{State, XstreamShared, XstreamStats};
use crate::engine::xstream::current;
use crate::runtime::layout::{check_access, find_pools, reconfigure, set_pools, settle_servers};
use crate::runtime::specs::check_cpus;
use crate::runtime::xstream_thread;
use crate::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use crate::sync::atomic::fence;
use crate::sync::{Arc, lock};
use crate::topology::CpuSet;

/// A handle to an xstream of a [`Runtime`](crate::Runtime). Cheap to clone; it does not keep the
/// runtime open.
///
/// ```
/// use ult::XstreamSpec;
///
/// # use ult::{PoolSpec, Runtime};
/// # let runtime = Runtime::builder()
/// #     .pool(PoolSpec::new("main"))
/// #     .xstream(XstreamSpec::new("x0").pools(["main"]))
/// #     .start()?;
/// # let pool = runtime.pool("main").expect("defined above");
/// // A second xstream for a while.
/// let x1 = runtime.add_xstream(XstreamSpec::new("x1").pools(["main"]))?;
/// assert_eq!((x1.name(), x1.rank()), ("x1", 1));
/// x1.remove()?;
/// assert!(runtime.xstream("x1").is_none());
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Counterpart: `ABT_xstream`.
#[derive(Clone)]
pub struct XstreamRef {
    core: Arc<RuntimeCore>,
    xstream: Arc<XstreamShared>,
}

/// Where an xstream is in its life.
///
/// ```
/// use ult::XstreamState;
///
/// # use ult::{PoolSpec, Runtime, XstreamSpec};
/// # let runtime = Runtime::builder()
/// #     .pool(PoolSpec::new("main"))
/// #     .xstream(XstreamSpec::new("x0").pools(["main"]))
/// #     .start()?;
/// # let pool = runtime.pool("main").expect("defined above");
/// let x0 = runtime.xstream("x0").expect("defined above");
/// x0.join()?;
/// assert_eq!(x0.state(), XstreamState::Terminated);
/// x0.revive()?;
/// assert!(matches!(x0.state(), XstreamState::Running | XstreamState::Idle));
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum XstreamState {
    /// Runs units, or passes from one to the next.
    Running,
    /// Has nothing to run: it sleeps, or looks for something before it does.
    Idle,
    /// Has been asked to leave, and still has work.
    Joining,
    /// Has left; it can be revived.
    Terminated,
    /// Has been removed, or its runtime has ended.
    Removed,
}

/// Limit of [`XstreamRef::join`].
const JOIN_LIMIT: Duration = Duration::from_secs(30);

impl XstreamRef {
    pub(crate) fn new(core: Arc<RuntimeCore>, xstream: Arc<XstreamShared>) -> Self {
        Self { core, xstream }
    }

    /// The name in the description.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.xstream.name
    }

    /// The place among all xstreams that the runtime ever had.
    #[must_use]
    pub fn index(&self) -> usize {
        self.xstream.index
    }

    /// The rank, unique among the xstreams that there are.
    ///
    /// Counterpart: `ABT_xstream_get_rank`.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.xstream.rank()
    }

    /// Changes its rank.
    ///
    /// # Errors
    ///
    /// [`StartError::DuplicateRank`] if another xstream has it.
    ///
    /// Counterpart: `ABT_xstream_set_rank`.
    pub fn set_rank(&self, rank: usize) -> Result<(), StartError> {
        let _one_at_a_time = self.core.lock_layout();
        let others = self.core.xstreams();
        let mut others = others.iter().filter(|other| !Arc::ptr_eq(other, &self.xstream));
        if others.any(|other| other.rank() == rank) {
            return Err(StartError::DuplicateRank { xstream: self.name().to_owned(), rank });
        }
        self.xstream.set_rank(rank);
        Ok(())
    }

    /// Names of the pools that it serves, in the scheduler's order.
    ///
    /// Counterpart: `ABT_xstream_get_main_pools`.
    #[must_use]
    pub fn pools(&self) -> Vec<String> {
        lock(&self.xstream.pools).iter().map(|pool| pool.name.to_string()).collect()
    }

    /// Processors that it is bound to; empty: not bound.
    ///
    /// Counterpart: `ABT_xstream_get_affinity`.
    #[must_use]
    pub fn cpus(&self) -> Vec<usize> {
        lock(&self.xstream.cpus).clone()
    }

    /// Restricts it to these processors, from the next unit on, and after a revival as well.
    ///
    /// # Errors
    ///
    /// [`StartError::Cpu`] if the list is empty, or names a processor that the process may not use.
    ///
    /// Counterpart: `ABT_xstream_set_affinity`.
    pub fn set_affinity(&self, cpus: &[usize]) -> Result<(), StartError> {
        check_cpus(self.name(), cpus, &self.core.cpus)?;
        if cpus.is_empty() {
            return Err(StartError::NoCpu { xstream: self.name().to_owned() });
        }
        *lock(&self.xstream.cpus) = cpus.to_vec();
        let set: CpuSet = cpus.iter().copied().collect();
        self.xstream.ask(move |xstream| {
            if let Err(error) = crate::topology::bind_this_thread(&set) {
                let name = &*xstream.shared().name;
                log!(ERROR, %error, xstream = name, "cannot bind to the processors {set}");
            }
        });
        Ok(())
    }

    /// Where it is in its life. A snapshot.
    ///
    /// Counterpart: `ABT_xstream_get_state`.
    #[must_use]
    pub fn state(&self) -> XstreamState {
        let (flags, _) = self.core.phase();
        match self.xstream.state() {
            State::Removed => XstreamState::Removed,
            State::Terminated if flags & EXIT != 0 => XstreamState::Removed,
            State::Terminated => XstreamState::Terminated,
            State::Joining | State::Leaving => XstreamState::Joining,
            State::Running if self.xstream.is_idle() => XstreamState::Idle,
            State::Running => XstreamState::Running,
        }
    }

    /// Number of ULTs that have started here and not ended. A snapshot.
    #[must_use]
    pub fn ults(&self) -> usize {
        self.xstream.ults.load(Relaxed)
    }

    /// Counters since the start of the runtime; a revival does not reset them. Each is exact, but
    /// they are not read at one moment.
    #[must_use]
    pub fn stats(&self) -> XstreamStats {
        let stats = self.count();
        // If it is removed meanwhile, these may lack something.
        lock(&self.xstream.last_stats).unwrap_or(stats)
    }

    fn count(&self) -> XstreamStats {
        let mut stats = XstreamStats {
            sleeps: self.xstream.sleeps.load(Relaxed),
            slept: self.xstream.slept.total(|| self.core.diag.epoch.elapsed()),
            ults: self.ults(),
            stacks: self.xstream.stacks.load(Relaxed),
            ..XstreamStats::default()
        };
        let mut add = |slot: &PoolCounters| {
            stats.finished += slot.finished.load(Relaxed);
            stats.yields += slot.yields.load(Relaxed);
            stats.parked += slot.parked.load(Relaxed);
            stats.resumed += slot.resumed.load(Relaxed);
            stats.run_at_once += slot.run_at_once.load(Relaxed);
        };
        let (pools, ()) = self.core.pools_and(|| add(&self.xstream.past));
        for pool in pools {
            pool.for_each_slot(|slot| {
                if slot.xstream == self.xstream.index {
                    add(slot);
                }
            });
        }
        // A run ends in one of three ways.
        stats.executed = stats.finished + stats.yields + stats.parked;
        stats
    }

    /// The unit that runs now, if that is known: while somebody records or listens, or a monitor
    /// watches. A [lazy](crate::MonitorSpec::lazy) one begins to when it has found a stall; a unit
    /// that was running then is not known.
    #[must_use]
    pub fn current_unit(&self) -> Option<CurrentUnit> {
        let (id, pool, name) = self.xstream.diag.known_unit()?;
        let pool = self.core.pool_name(pool)?;
        Some(CurrentUnit { id, pool, name })
    }

    /// Gives it another scheduler over other pools, from the next unit on. This does not wait
    /// for that. ULTs that have started here and whose pool it no longer serves are still run.
    ///
    /// Of several changes in a row the last one holds.
    ///
    /// # Errors
    ///
    /// [`LayoutError`] if a pool is not there, or is promised to another xstream; or if units would
    /// be left in a pool that no xstream serves any more. Nothing has changed then.
    ///
    /// Counterpart: `ABT_xstream_set_main_sched`.
    pub fn set_scheduler<S: Into<String>>(
        &self,
        scheduler: Box<dyn Scheduler>,
        pools: impl IntoIterator<Item = S>,
    ) -> Result<(), LayoutError> {
        let one_at_a_time = self.core.lock_layout();
        self.check_not_gone()?;
        let names: Vec<String> = pools.into_iter().map(Into::into).collect();
        let pools = find_pools(&self.core, self.name(), &names)?;
        for pool in &pools {
            check_access(self.name(), pool, Some(&self.xstream))?;
        }
        let leaves = |pool: &Arc<_>| !pools.iter().any(|new| Arc::ptr_eq(new, pool));
        self.check_orphans(leaves)?;
        set_pools(&self.core, &self.xstream, pools);
        // Those that it had when it was cancelled are not what a revival shall give it.
        let parked = std::mem::take(&mut *lock(&self.xstream.parked_pools));
        let untaken = self.xstream.put_scheduler(own(scheduler));
        reconfigure(&self.xstream);
        // The user's destructor may change the layout.
        drop(one_at_a_time);
        drop((untaken, parked));
        Ok(())
    }

    /// Waits until the pools that only this xstream serves are empty and no ULT calls it home, for
    /// at most 30 s; then it leaves, and its thread ends. Units that are spawned into those pools
    /// afterwards wait until it is revived or another xstream serves them.
    ///
    /// # Errors
    ///
    /// - [`LayoutError::OwnXstream`] if called by a unit that runs there.
    /// - [`LayoutError::Primary`] for the primary xstream.
    /// - [`LayoutError::Busy`] when the time is over; the xstream then goes on as before.
    ///
    /// Counterpart: `ABT_xstream_join`, which waits without limit.
    pub fn join(&self) -> Result<(), LayoutError> {
        self.join_timeout(JOIN_LIMIT)
    }

    /// Like [`join`](Self::join), with another limit.
    ///
    /// # Errors
    ///
    /// See [`join`](Self::join).
    pub fn join_timeout(&self, limit: Duration) -> Result<(), LayoutError> {
        let name = || self.name().to_owned();
        if current::xstream().is_some_and(|here| Arc::ptr_eq(here.shared(), &self.xstream)) {
            return Err(LayoutError::OwnXstream { xstream: name() });
        }
        let xstream = &self.xstream;
        let mut limit = Limit::new(limit);
        loop {
            let lives = {
                let _one_at_a_time = self.core.lock_layout();
                self.check_not_gone()?;
                // Before the state, which it leaves first.
                let lives = xstream.lives_ended();
                if xstream.state() == State::Terminated {
                    return Ok(());
                }
                if xstream.is_primary() {
                    return Err(LayoutError::Primary { xstream: name() });
                }
                self.begin_to_leave();
                lives
            };
            // Not by its state: somebody may have revived it since.
            let has_left = || xstream.lives_ended() != lives;
            let is_called_back = || xstream.state() == State::Running;
            self.core.news.wait_until(&mut limit, || has_left() || is_called_back());
            if has_left() {
                break;
            }
            if !limit.is_over() {
                // By another who has waited for it, and less long.
                continue;
            }
            let _one_at_a_time = self.core.lock_layout();
            while !has_left() {
                if xstream.change_state(State::Joining, State::Running) {
                    reconfigure(xstream);
                }
                if is_called_back() {
                    let units = self.sole_pools().iter().map(|pool| pool.len()).sum();
                    return Err(LayoutError::Busy { xstream: name(), ults: self.ults(), units });
                }
                // It leaves just now, or finds that it may not; that takes microseconds.
                crate::sync::thread::yield_now();
            }
            break;
        }
        let thread = {
            let _one_at_a_time = self.core.lock_layout();
            // Another life's is none of ours.
            let is_its = xstream.state() == State::Terminated;
            is_its.then(|| lock(&xstream.thread).take()).flatten()
        };
        if let Some(thread) = thread {
            xstream_thread::wait_for(thread);
        }
        Ok(())
    }

    /// Asks it to leave without running what waits in its pools: it serves none from then on. ULTs
    /// that have started here are run to their end, or cancelled through their handles. What waits
    /// in its pools stays there. Does not wait; [`join`](Self::join) does.
    ///
    /// # Errors
    ///
    /// [`LayoutError::Primary`] for the primary xstream, [`LayoutError::Gone`].
    ///
    /// Counterpart: `ABT_xstream_cancel`.
    pub fn cancel(&self) -> Result<(), LayoutError> {
        let _one_at_a_time = self.core.lock_layout();
        self.check_not_gone()?;
        if self.xstream.is_primary() {
            return Err(LayoutError::Primary { xstream: self.name().to_owned() });
        }
        let pools = lock(&self.xstream.pools).clone();
        set_pools(&self.core, &self.xstream, Vec::new());
        if !pools.is_empty() {
            // For the revival.
            *lock(&self.xstream.parked_pools) = pools;
        }
        self.begin_to_leave();
        Ok(())
    }

    /// It leaves to others what they serve as well, and others that leave do not count on it.
    /// Nothing, if somebody has asked it to before, or it is not there.
    fn begin_to_leave(&self) {
        // Only a running one: its thread may be about to say that it has ended.
        if !self.xstream.change_state(State::Running, State::Joining) {
            return;
        }
        reconfigure(&self.xstream);
        let pools = lock(&self.xstream.pools).clone();
        pools.iter().for_each(|pool| settle_servers(&self.core, pool));
    }

    /// Starts an xstream again that has been joined, with its scheduler and pools.
    ///
    /// # Errors
    ///
    /// [`LayoutError::Running`] if it has not been joined; [`LayoutError::Start`] if the system
    /// refuses a thread, or if a pool that it served when it was cancelled has been removed since,
    /// or is promised to another xstream. It is as before then:
    /// [`set_scheduler`](Self::set_scheduler) gives it other pools.
    ///
    /// Counterpart: `ABT_xstream_revive`.
    pub fn revive(&self) -> Result<(), LayoutError> {
        let _one_at_a_time = self.core.lock_layout();
        self.check_not_gone()?;
        if self.xstream.state() != State::Terminated {
            return Err(LayoutError::Running { xstream: self.name().to_owned() });
        }
        self.check_parked()?;
        xstream_thread::join(&self.xstream);
        let pools = std::mem::take(&mut *lock(&self.xstream.parked_pools));
        if !pools.is_empty() {
            set_pools(&self.core, &self.xstream, pools);
        }
        self.xstream.inbox.open();
        self.xstream.set_state(State::Running);
        // Either its life begins with what a stacked scheduler has said before, or that asks it.
        fence(SeqCst); // pair: STACK-LIFE
        let (_, word) = self.core.phase();
        self.xstream.see(word);
        // It looks at the flags that came with the word before it does anything else.
        self.xstream.signal();
        let started = xstream_thread::start(&self.core, &self.xstream);
        if started.is_err() {
            let closed = self.xstream.inbox.close();
            debug_assert!(closed, "an xstream that owns nothing gets no mail");
            self.xstream.set_state(State::Terminated);
            // A shutdown may wait until it has seen the phase.
            self.core.tell_news();
        }
        Ok(started?)
    }

    /// Joins it and forgets it. Its name and rank are free again.
    ///
    /// # Errors
    ///
    /// As [`join`](Self::join), and
    ///
    /// - [`LayoutError::NotEmpty`] if units wait in a pool that no other xstream serves, such as
    ///   those that are to start at a later time, which `join` does not wait for; it is then
    ///   joined, and can be revived.
    /// - [`LayoutError::Running`] if somebody has revived it meanwhile.
    ///
    /// Counterpart: `ABT_xstream_free`.
    pub fn remove(&self) -> Result<(), LayoutError> {
        self.join()?;
        let _one_at_a_time = self.core.lock_layout();
        self.check_not_gone()?;
        if self.xstream.state() != State::Terminated {
            return Err(LayoutError::Running { xstream: self.name().to_owned() });
        }
        self.check_orphans(|_| true)?;
        set_pools(&self.core, &self.xstream, Vec::new());
        // Before the pools forget it, so that nobody reads less.
        let stats = self.stats();
        *lock(&self.xstream.last_stats) = Some(stats);
        self.core.pools().iter().for_each(|pool| pool.forget_xstream(self.xstream.index));
        self.core.forget_xstream(&self.xstream);
        Ok(())
    }

    /// Returns whether it can have again the pools that it lost when it was cancelled.
    fn check_parked(&self) -> Result<(), LayoutError> {
        for pool in lock(&self.xstream.parked_pools).iter() {
            if pool.removed.load(Acquire) {
                let have: Vec<String> =
                    self.core.pools().iter().map(|pool| pool.name.to_string()).collect();
                let (xstream, pool) = (self.name().to_owned(), pool.name.to_string());
                return Err(StartError::UnknownPool { xstream, pool, have: have.join(", ") }.into());
            }
            check_access(self.name(), pool, Some(&self.xstream))?;
        }
        Ok(())
    }

    fn check_not_gone(&self) -> Result<(), LayoutError> {
        let (flags, _) = self.core.phase();
        if self.xstream.is_removed() || flags & (CLOSING | EXIT) != 0 {
            return Err(LayoutError::Gone { xstream: self.name().to_owned() });
        }
        Ok(())
    }

    /// Pools that nobody else serves.
    fn sole_pools(&self) -> Vec<Arc<crate::engine::model::pool::PoolShared>> {
        let mut pools = lock(&self.xstream.pools).clone();
        pools.retain(|pool| lock(&pool.servers).len() == 1);
        pools
    }

    /// Refuses if a pool that `leaves` would have units and no xstream.
    fn check_orphans(
        &self,
        leaves: impl Fn(&Arc<crate::engine::model::pool::PoolShared>) -> bool,
    ) -> Result<(), LayoutError> {
        for pool in self.sole_pools().iter().filter(|pool| leaves(pool)) {
            let units = pool.len();
            if units > 0 {
                return Err(LayoutError::NotEmpty { pool: pool.name.to_string(), units });
            }
        }
        Ok(())
    }
}

/// The unit that an xstream runs; see [`XstreamRef::current_unit`].
///
/// ```
/// use ult::{MonitorSpec, PoolSpec, Runtime, XstreamSpec};
///
/// let runtime = Runtime::builder()
///     .pool(PoolSpec::new("main"))
///     .xstream(XstreamSpec::new("x0").pools(["main"]))
///     .monitor(MonitorSpec::new())
///     .start()?;
/// let pool = runtime.pool("main").expect("defined above");
/// let x0 = runtime.xstream("x0").expect("defined above");
/// // Here the unit asks for itself; usually another thread asks what an xstream is busy with.
/// let unit = pool.ult().name("worker").spawn(move || x0.current_unit())?.join()?;
/// let unit = unit.expect("a monitor watches");
/// assert_eq!((&*unit.pool, unit.name), ("main", Some("worker")));
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CurrentUnit {
    /// The number.
    pub id: u64,
    /// The pool.
    pub pool: String,
    /// The name, if that was given as a literal.
    pub name: Option<&'static str>,
}

impl PartialEq for XstreamRef {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.xstream, &other.xstream)
    }
}

impl Eq for XstreamRef {}

impl fmt::Debug for XstreamRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("XstreamRef")
            .field("name", &self.name())
            .field("rank", &self.rank())
            .field("state", &self.state())
            .field("pools", &self.pools())
            .finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use crate::engine::pool::spec::PoolSpec;
    use crate::{Runtime, XstreamSpec};

    #[test]
    fn a_pool_does_not_count_apart_what_every_life_of_an_xstream_has_done() {
        let x0 = XstreamSpec::new("x0").pools(["p"]);
        let runtime = Runtime::builder().pool(PoolSpec::new("p")).xstream(x0).start().unwrap();
        let pool = runtime.pool("p").unwrap();
        let places = || {
            let mut places = 0;
            pool.pool.for_each_slot(|_| places += 1);
            places
        };
        for _ in 0..5 {
            let x = runtime.add_xstream(XstreamSpec::new("x").pools(["p"])).unwrap();
            for _ in 0..5 {
                pool.spawn(|| ()).unwrap().join().unwrap();
                x.join().unwrap();
                x.revive().unwrap();
            }
            assert!(places() <= 3, "that of `x0`, of `x`, and of those before");
            x.remove().unwrap();
        }
        assert!(places() <= 2);
        assert_eq!((pool.stats().finished, pool.total_len()), (25, 0));
        runtime.shutdown().unwrap();
    }
}
