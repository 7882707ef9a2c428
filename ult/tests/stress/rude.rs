//! Code of the program that panics now and then: a pool, a scheduler, and whatever takes the log.

use std::collections::VecDeque;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{Mutex, Once};

use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata};
use ult::{Pool, PoolView, PopBy, PushReason, Scheduler, Step, Unit};

use crate::world::{EXPECTED, MAY_BE_LOST, Random, Records, lock};

/// Decides by a counter, so that it needs no lock.
struct Now {
    calls: AtomicU64,
    every: u64,
}

impl Now {
    fn new(random: &mut Random, every: usize) -> Self {
        Self { calls: AtomicU64::new(0), every: 2 + random.below(every) as u64 }
    }

    fn is_due(&self) -> bool {
        (self.calls.fetch_add(1, Relaxed) + 1).is_multiple_of(self.every)
    }

    /// Panics without the hook, which would take it for a failed assertion.
    fn panic(&self) {
        if self.is_due() {
            std::panic::resume_unwind(Box::new(EXPECTED));
        }
    }
}

/// A FIFO.
pub(crate) struct RudePool {
    units: Mutex<VecDeque<Unit>>,
    records: Records,
    before: Now,
    after: Now,
    looks: Now,
}

impl RudePool {
    pub(crate) fn new(random: &mut Random, records: &Records) -> Box<Self> {
        Box::new(Self {
            units: Mutex::default(),
            records: records.clone(),
            before: Now::new(random, 12),
            after: Now::new(random, 12),
            looks: Now::new(random, 60),
        })
    }

    /// The code that panics has the unit in hand.
    fn risk(&self, unit: &Unit, now: &Now) {
        if now.is_due() {
            if let Some(id) = unit.name().and_then(|name| name.parse::<usize>().ok()) {
                lock(&self.records)[id].set(MAY_BE_LOST);
            }
            std::panic::resume_unwind(Box::new(EXPECTED));
        }
    }
}

impl Pool for RudePool {
    fn push(&self, unit: Unit, _: PushReason) {
        self.risk(&unit, &self.before);
        lock(&self.units).push_back(unit);
        self.after.panic();
    }

    fn pop(&self, _: PopBy) -> Option<Unit> {
        let unit = lock(&self.units).pop_front()?;
        self.risk(&unit, &self.before);
        Some(unit)
    }

    fn len(&self) -> usize {
        self.looks.panic();
        lock(&self.units).len()
    }

    fn for_each(&self, see: &mut dyn FnMut(&Unit)) {
        lock(&self.units).iter().for_each(see);
        self.after.panic();
    }
}

impl Drop for RudePool {
    fn drop(&mut self) {
        self.after.panic();
    }
}

/// Another one, that panics after it has picked.
pub(crate) struct RudeScheduler {
    inner: Box<dyn Scheduler>,
    records: Records,
    now: Now,
}

impl RudeScheduler {
    pub(crate) fn new(
        random: &mut Random,
        records: &Records,
        inner: Box<dyn Scheduler>,
    ) -> Box<Self> {
        Box::new(Self { inner, records: records.clone(), now: Now::new(random, 40) })
    }
}

impl Scheduler for RudeScheduler {
    fn next(&mut self, pools: &[PoolView<'_>]) -> Step {
        let step = self.inner.next(pools);
        if self.now.is_due() {
            if let Step::Run(unit) = &step
                && let Some(id) = unit.name().and_then(|name| name.parse::<usize>().ok())
            {
                lock(&self.records)[id].set(MAY_BE_LOST);
            }
            std::panic::resume_unwind(Box::new(EXPECTED));
        }
        step
    }
}

impl Drop for RudeScheduler {
    fn drop(&mut self) {
        self.now.panic();
    }
}

/// Takes every message, and panics at every other one.
struct Subscriber(AtomicU64);

pub(crate) fn take_the_log() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        tracing::subscriber::set_global_default(Subscriber(AtomicU64::new(0))).unwrap();
    });
}

impl tracing::Subscriber for Subscriber {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {
        if self.0.fetch_add(1, SeqCst) % 2 == 1 {
            std::panic::resume_unwind(Box::new(EXPECTED));
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
