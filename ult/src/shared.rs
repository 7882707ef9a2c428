//! The part of a runtime that every thread may use.
//!
//! Pools and xstreams are never removed while this part lives, so plain references and indices to
//! them stay valid. It is kept alive by the `Runtime`, by every `PoolRef`, by the xstreams, and by
//! every block (hence by everything that may still wake a ULT). Closing the depot at the end of a
//! shutdown breaks the circle between the depot and its idle blocks.
//!
//! # Phases
//!
//! | phase | meaning | left by |
//! |---|---|---|
//! | open | spawns are accepted | shutdown |
//! | + `WATCHED` | the same; every end of a ULT is reported to the shutdown that waits | shutdown |
//! | + `CLOSING` | spawns are refused; the rest runs to its end | shutdown (or open again) |
//! | + `EXIT` | nothing is alive; xstreams leave their loops | never |
//!
//! The phase word also counts its changes. An xstream copies the flags when it is signalled, so the
//! spawn path of a ULT reads its own xstream's copy only, and stores the word it has seen; the
//! shutdown waits until all have seen the new one. Threads that are no xstream pass a `gate` while
//! they spawn: they enter, look at the phase, push, and leave. pair: GATE-DEKKER

use std::time::Duration;

use crate::condvar::Condvar;
use crate::error::StuckUlt;
use crate::mutex::Mutex as UltMutex;
use crate::pool::PoolShared;
use crate::stack_cache::Depot;
use crate::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use crate::sync::atomic::{AtomicU64, AtomicUsize, fence};
use crate::sync::{Mutex, lock};
use crate::xstream::{SlotShared, XstreamShared};

/// Every end of a ULT is reported.
pub(crate) const WATCHED: u64 = 1;
/// Spawns are refused.
pub(crate) const CLOSING: u64 = 2;
/// Xstreams leave.
pub(crate) const EXIT: u64 = 4;
/// Xstreams write down their suspended ULTs.
pub(crate) const REPORT: u64 = 8;
const FLAGS: u64 = WATCHED | CLOSING | EXIT | REPORT;
const CHANGE: u64 = 16;

/// Numbers that an xstream draws at once.
pub(crate) const IDS_PER_DRAW: u64 = 1024;

/// See the module documentation.
pub(crate) struct RuntimeCore {
    pub(crate) pools: Box<[PoolShared]>,
    pub(crate) xstreams: Box<[XstreamShared]>,
    pub(crate) depot: Depot,
    pub(crate) spin_max: Duration,
    pub(crate) stack_cache_max: usize,
    /// Stack size class of the runtime, which the caches are made for.
    pub(crate) stack_bytes: usize,
    next_id: AtomicU64,
    phase: AtomicU64,
    gate: AtomicUsize,
    /// Where a shutdown waits for news.
    quiet: UltMutex<()>,
    pub(crate) news: Condvar,
    /// Filled by the xstreams while the phase says `REPORT`.
    stuck: Mutex<Vec<StuckUlt>>,
    pub(crate) diag: crate::diag::Shared,
}

/// What a runtime is made of.
pub(crate) struct CoreParts {
    pub(crate) pools: Vec<PoolShared>,
    pub(crate) xstreams: Vec<XstreamShared>,
    pub(crate) spin_max: Duration,
    pub(crate) stack_cache_max: usize,
    pub(crate) stack_bytes: usize,
}

impl RuntimeCore {
    pub(crate) fn new(parts: CoreParts) -> Self {
        Self {
            pools: parts.pools.into(),
            xstreams: parts.xstreams.into(),
            depot: Depot::new(parts.stack_cache_max),
            spin_max: parts.spin_max,
            stack_cache_max: parts.stack_cache_max,
            stack_bytes: parts.stack_bytes,
            next_id: AtomicU64::new(1),
            phase: AtomicU64::new(0),
            gate: AtomicUsize::new(0),
            quiet: UltMutex::new(()),
            news: Condvar::new(),
            stuck: Mutex::new(Vec::new()),
            diag: crate::diag::Shared::default(),
        }
    }

    /// What the serving xstreams keep for `pool`.
    pub(crate) fn slots_of<'a>(
        &'a self,
        pool: &'a PoolShared,
    ) -> impl Iterator<Item = &'a SlotShared> {
        pool.servers.iter().map(|server| &self.xstreams[server.xstream].slots[server.slot])
    }

    /// The next `count` numbers for ULTs.
    pub(crate) fn draw_ids(&self, count: u64) -> u64 {
        self.next_id.fetch_add(count, Relaxed)
    }

    /// Wakes one sleeping xstream that serves `pool`. The caller has made a unit visible before.
    pub(crate) fn wake_one(&self, pool: &PoolShared) {
        // One fence for all the looks below; forbids that they are done before the unit is
        // visible.
        fence(SeqCst); // pair: PARK-DEKKER
        for server in &pool.servers {
            if self.xstreams[server.xstream].wake_after_fence() {
                return;
            }
        }
    }

    /// The current flags, and the word that xstreams acknowledge.
    pub(crate) fn phase(&self) -> (u64, u64) {
        let word = self.phase.load(Acquire); // pair: PHASE
        (word & FLAGS, word)
    }

    /// Changes the flags and makes every xstream look. Returns the word to be acknowledged.
    /// Only one shutdown at a time calls this.
    pub(crate) fn set_phase(&self, flags: u64) -> u64 {
        let word = (self.phase.load(Relaxed) & !FLAGS) + CHANGE + flags;
        self.phase.store(word, Release); // pair: PHASE
        fence(SeqCst); // pair: GATE-DEKKER
        for xstream in &self.xstreams {
            xstream.signal();
        }
        if flags & EXIT != 0 {
            self.diag.monitor.end();
        }
        word
    }

    /// Whether every xstream has seen `word`.
    pub(crate) fn is_seen(&self, word: u64) -> bool {
        self.xstreams.iter().all(|xstream| xstream.has_seen(word))
    }

    /// Lets a thread that is no xstream of this runtime spawn, while the result lives.
    pub(crate) fn enter_gate(&self) -> Option<GatePass<'_>> {
        self.gate.fetch_add(1, Relaxed);
        let pass = GatePass(self);
        fence(SeqCst); // pair: GATE-DEKKER
        let (flags, _) = self.phase();
        (flags & (CLOSING | EXIT) == 0).then_some(pass)
    }

    /// Whether no foreign thread is in the middle of a spawn.
    pub(crate) fn is_gate_empty(&self) -> bool {
        self.gate.load(Acquire) == 0 // pair: GATE
    }

    /// ULTs that have been spawned and have not ended. Exact once spawns are refused and everybody
    /// has seen it; before that, an estimate.
    pub(crate) fn alive(&self) -> u64 {
        // Ends before beginnings: what ends in between is then counted as alive.
        let ended: u64 = self
            .pools
            .iter()
            .map(|pool| {
                let dropped = pool.dropped.load(Acquire); // pair: POOL-ENDED
                // pair: POOL-ENDED
                self.slots_of(pool).map(|slot| slot.finished.load(Acquire)).sum::<u64>() + dropped
            })
            .sum();
        let created: u64 = self
            .pools
            .iter()
            .map(|pool| {
                let foreign = pool.foreign_created.load(Relaxed);
                self.slots_of(pool).map(|slot| slot.created.load(Relaxed)).sum::<u64>() + foreign
            })
            .sum();
        created.saturating_sub(ended)
    }

    /// Tells a waiting shutdown that something has changed.
    pub(crate) fn tell_news(&self) {
        drop(self.quiet.lock());
        self.news.notify_all();
    }

    /// The lock under which a shutdown looks before it waits for news.
    pub(crate) fn quiet(&self) -> &UltMutex<()> {
        &self.quiet
    }

    /// Adds to the report of a shutdown that gave up.
    pub(crate) fn report_stuck(&self, ults: Vec<StuckUlt>) {
        lock(&self.stuck).extend(ults);
    }

    /// Takes the report.
    pub(crate) fn take_stuck(&self) -> Vec<StuckUlt> {
        std::mem::take(&mut lock(&self.stuck))
    }
}

/// See [`RuntimeCore::enter_gate`].
pub(crate) struct GatePass<'a>(&'a RuntimeCore);

impl Drop for GatePass<'_> {
    fn drop(&mut self) {
        self.0.gate.fetch_sub(1, Release); // pair: GATE
    }
}
