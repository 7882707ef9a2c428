//! The choice between two ways for plain memory: through memory that both sides have mapped, or by
//! cross-memory attach.
//!
//! Neither is always the faster one. Through a lane both sides copy: between cores that share a
//! cache that is up to twice as fast as attaching; between others it is three times as slow. The
//! distance of the cores changes when the system moves threads. So the owner, which chooses,
//! measures the cost of both.
//!
//! For a transfer that has no other beside it, the time that it takes is measured, which includes
//! what the two sides have to tell each other. For one among several that time says little: it also
//! contains the other work of both sides and the wait behind other transfers, and waiting costs
//! nobody anything. For those the time is measured in which bytes are copied. The two sides copy at
//! the same time, so the slower one counts. Between far cores that is the first to copy, which
//! takes back lines that the other core has read, at ten times the cost; between near ones it is
//! often the second. A lone transfer also has to wait for the second side's last chunk: with 16
//! KiB, one slot of the lane, that is half of all. So the requester tells, when it is asked, how
//! long it copied: with the data of a put, and for a get when it has taken all of it. It can
//! deceive nobody but itself, because the choice serves its own transfers. A disturbance makes a
//! measurement longer, so the least of the last few counts.
//!
//! The unused way is tried now and then, always after the used one was measured again: a few
//! transfers in a row, because the memory of the unused way has left the caches. Between such
//! comparisons nothing is measured. Lengths are told apart, and puts from gets: attaching costs a
//! system call, and reading is not writing.
//!
//! The requester does the same for short transfers of memory that was offered to it (`offer.rs`):
//! it attaches by itself, or asks the owner, which then uses either way. Only the requester knows
//! what it waits for. It measures the transfers that it asks for from the first of those in flight
//! to the last: for a single one this is how long it took, for several the time that each adds.
//! Here, [`Way::Ring`] means asking. Asking takes two processors where attaching takes one, so it
//! has to be much the cheaper one.
//!
//! The rows `bulk.sm.any.64k` and `bulk.sm.any.1m` show the worth of a choice (docs/performance.md,
//! beside cross-memory attach by one side). Between near cores both take the lane, at 1.95 and 3.81
//! times that rate; between far ones both sides attach for 1 MiB, at 1.66 times, and 64 KiB reach
//! 0.85. A fixed way would be the dearer one on one of the two machines.

use std::time::Duration;

use super::fallback::{INLINE_MAX, SLOT_BYTES};
use crate::link::lane::SLOTS;

/// The number of last measurements of which the least counts.
const KEPT: usize = 4;

/// Transfers in a row for which attaching is tried. The ring is tried until each slot of the lane
/// has been used besides, if it is: what its memory costs when it is cold says nothing.
const TRIES: u32 = KEPT as u32;

/// Transfers from one comparison to the next, for each one that a trial takes: a way that costs
/// four times as much then adds little more than a hundredth to the time of all.
const PAUSE: u32 = 256;

/// A way must be this much cheaper than the one that is used.
const CHEAPER: f32 = 0.95;

/// As [`CHEAPER`], of the time that asking takes, for a requester that can attach by itself.
const MUCH_CHEAPER: f32 = 0.7;

/// Up to 4 KiB, which travel in the ring and not in the lane; up to 16, 64 and 256 KiB, up to
/// 1 MiB, and longer.
const LENGTHS: usize = 6;

/// Shortest transfer that is measured, bytes. Shorter ones fit into few lines of the ring.
pub(crate) const MEASURED_FROM: u64 = 4 << 10;

/// How plain memory moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Way {
    #[default]
    Ring,
    Attach,
}

/// A way, and whether to measure what it costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) way: Way,
    pub(crate) measure: bool,
}

impl Choice {
    /// A way that was chosen for other reasons than its cost.
    pub(crate) fn unmeasured(way: Way) -> Self {
        Self { way, measure: false }
    }
}

/// The costs of a peer's transfers lately.
#[derive(Debug, Default)]
pub(crate) struct Costs {
    gets: [Class; LENGTHS],
    puts: [Class; LENGTHS],
}

impl Costs {
    /// Costs for a requester that can attach by itself, and does that first.
    pub(crate) fn by_itself() -> Self {
        let class = || Class { used: Way::Attach, by_itself: true, ..Class::default() };
        let classes = || std::array::from_fn(|_| class());
        Self { gets: classes(), puts: classes() }
    }

    /// Returns the way for such a transfer, if both are possible.
    #[inline]
    pub(crate) fn choose(&mut self, put: bool, len: u64) -> Choice {
        if len < MEASURED_FROM {
            return Choice::unmeasured(Way::Ring);
        }
        self.class(put, len).choose(len)
    }

    /// Transfers that were to be measured, of about `len` bytes each and of `bytes` in all, took so
    /// long.
    #[inline(never)]
    pub(crate) fn measured(&mut self, cost: Cost, way: Way) {
        let Cost { put, len, bytes, took } = cost;
        let cost = took.as_nanos() as f32 / bytes.max(1) as f32;
        self.class(put, len).samples(way).add(cost);
    }

    fn class(&mut self, put: bool, len: u64) -> &mut Class {
        let classes = if put { &mut self.puts } else { &mut self.gets };
        &mut classes[length(len)]
    }
}

/// The cost of transfers of about one length.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cost {
    pub(crate) put: bool,
    /// Length of one of them.
    pub(crate) len: u64,
    /// Bytes of all of them.
    pub(crate) bytes: u64,
    pub(crate) took: Duration,
}

impl Cost {
    /// The cost of a single transfer.
    pub(crate) fn of_one(put: bool, len: u64, took: Duration) -> Self {
        Self { put, len, bytes: len, took }
    }
}

/// Which lengths are measured together.
pub(crate) fn length(len: u64) -> usize {
    match len.saturating_sub(1) / INLINE_MAX {
        0 => 0,
        more => (1 + more.ilog2() as usize / 2).min(LENGTHS - 1),
    }
}

/// Transfers of one direction and about one length.
#[derive(Debug, Default)]
struct Class {
    used: Way,
    /// Attaching needs nobody else.
    by_itself: bool,
    ring: Samples,
    attach: Samples,
    stage: ClassStage,
    /// Transfers until the next stage.
    left: u32,
}

/// The stage that a class is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum ClassStage {
    /// Uses one way.
    #[default]
    Settled,
    /// Finds out what that costs.
    First,
    /// Tries the other one.
    Trial,
}

impl Class {
    #[inline]
    fn choose(&mut self, len: u64) -> Choice {
        if self.stage == ClassStage::Settled && self.left > 0 {
            self.left -= 1;
            return Choice::unmeasured(self.used);
        }
        self.choose_anew(len)
    }

    #[inline(never)]
    fn choose_anew(&mut self, len: u64) -> Choice {
        if self.left == 0 {
            match self.stage {
                ClassStage::Settled => self.enter(ClassStage::First, len),
                ClassStage::First => self.enter(ClassStage::Trial, len),
                ClassStage::Trial => self.compare(len),
            }
        }
        self.left -= 1;
        let way = if self.stage == ClassStage::Trial { self.used.other() } else { self.used };
        Choice { way, measure: self.stage != ClassStage::Settled }
    }

    fn samples(&mut self, way: Way) -> &mut Samples {
        match way {
            Way::Ring => &mut self.ring,
            Way::Attach => &mut self.attach,
        }
    }

    fn enter(&mut self, stage: ClassStage, len: u64) {
        let tried = if stage == ClassStage::Trial { self.used.other() } else { self.used };
        *self.samples(tried) = Samples::default();
        (self.stage, self.left) = (stage, tries(tried, len));
    }

    /// The end of a trial. Measurements of transfers that have not ended come too late for it.
    fn compare(&mut self, len: u64) {
        let (used, other) = (self.used, self.used.other());
        let Some(cost) = self.samples(used).least() else {
            return self.enter(ClassStage::First, len);
        };
        let Some(trial) = self.samples(other).least() else {
            // None has ended yet.
            self.left = tries(other, len);
            return;
        };
        let enough = match (self.by_itself, used) {
            (false, _) => CHEAPER,
            (true, Way::Attach) => MUCH_CHEAPER,
            (true, Way::Ring) => 1.0 / MUCH_CHEAPER,
        };
        if trial < enough * cost {
            self.used = other;
        }
        (self.stage, self.left) = (ClassStage::Settled, PAUSE * tries(self.used.other(), len));
    }
}

impl Way {
    fn other(self) -> Self {
        match self {
            Self::Ring => Self::Attach,
            Self::Attach => Self::Ring,
        }
    }
}

/// Transfers of that length for which a way is tried.
fn tries(way: Way, len: u64) -> u32 {
    match way {
        Way::Attach => TRIES,
        Way::Ring if len <= INLINE_MAX => 2 * TRIES,
        Way::Ring => TRIES + SLOTS / (len / SLOT_BYTES as u64).clamp(1, SLOTS.into()) as u32,
    }
}

/// The last measurements of a way, nanoseconds per byte.
#[derive(Debug, Default)]
struct Samples {
    last: [f32; KEPT],
    count: usize,
}

impl Samples {
    fn add(&mut self, cost: f32) {
        self.last[self.count % KEPT] = cost;
        self.count += 1;
    }

    fn least(&self) -> Option<f32> {
        self.last[..self.count.min(KEPT)].iter().copied().reduce(f32::min)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: u64 = 64 << 10;

    fn nanos(nanos: f64) -> Duration {
        Duration::from_nanos(nanos as u64)
    }

    /// Transfers until both ways have been compared.
    fn until_compared(len: u64) -> u32 {
        tries(Way::Ring, len) + tries(Way::Attach, len)
    }

    /// So many transfers at these costs in nanoseconds per byte; how many attached.
    fn attached(costs: &mut Costs, ring: f64, attach: f64, count: u32) -> u32 {
        let mut chosen = 0;
        for round in 0..count {
            let Choice { way, measure, .. } = costs.choose(true, LEN);
            let cost = if way == Way::Ring { ring } else { attach };
            // Now and then something comes between.
            let disturbed = if round % 3 == 0 { 9.0 } else { 1.0 };
            if measure {
                costs.measured(Cost::of_one(true, LEN, nanos(cost * disturbed * LEN as f64)), way);
            }
            chosen += u32::from(way == Way::Attach);
        }
        chosen
    }

    #[test]
    fn the_cheaper_way_is_taken_and_the_other_rarely_tried() {
        let mut costs = Costs::default();
        assert_eq!(attached(&mut costs, 0.04, 0.08, until_compared(LEN)), TRIES);
        assert!(attached(&mut costs, 0.04, 0.08, 100_000) <= 100_000 / PAUSE + TRIES);
        let mut costs = Costs::default();
        assert_eq!(attached(&mut costs, 0.3, 0.12, until_compared(LEN)), TRIES);
        let ring = 100_000 - attached(&mut costs, 0.3, 0.12, 100_000);
        assert!(ring <= 100_000 / PAUSE + tries(Way::Ring, LEN), "{ring}");
    }

    #[test]
    fn what_has_changed_is_noticed_soon() {
        let mut costs = Costs::default();
        attached(&mut costs, 0.04, 0.08, 100_000);
        for (ring, attach) in [(0.3, 0.12), (0.04, 0.08), (0.3, 0.12)] {
            // It takes the rest of the pause and a comparison.
            let notice = PAUSE * tries(Way::Ring, LEN) + until_compared(LEN);
            attached(&mut costs, ring, attach, notice);
            let chosen = attached(&mut costs, ring, attach, 1000);
            let wrong = if ring < attach { chosen } else { 1000 - chosen };
            let allowed = 3 * tries(Way::Ring, LEN);
            assert!(wrong <= allowed, "{wrong} after a change to {ring}, {attach}");
        }
    }

    #[test]
    fn costs_that_change_all_the_time_lead_to_few_trials() {
        let mut costs = Costs::default();
        let tried: u32 = (0..1000)
            .map(|round| attached(&mut costs, if round % 2 == 0 { 0.03 } else { 0.07 }, 0.1, 40))
            .sum();
        assert!(tried <= 40_000 / PAUSE + TRIES, "{tried}");
    }

    #[test]
    fn a_way_that_became_cheaper_unseen_is_found_by_a_trial() {
        let mut costs = Costs::default();
        attached(&mut costs, 0.06, 0.12, 100_000);
        attached(&mut costs, 0.06, 0.03, PAUSE * TRIES + until_compared(LEN));
        assert!(attached(&mut costs, 0.06, 0.03, 1000) >= 1000 - 3 * TRIES);
    }

    #[test]
    fn transfers_that_end_late_hold_no_trial_up() {
        let mut costs = Costs::default();
        let mut late = Vec::new();
        for _ in 0..10_000 {
            let choice = costs.choose(false, LEN);
            late.extend(choice.measure.then_some(choice.way));
            if late.len() > 16 {
                let way = late.remove(0);
                let took = if way == Way::Ring { 20_000.0 } else { 8_000.0 };
                costs.measured(Cost::of_one(false, LEN, nanos(took)), way);
            }
        }
        assert_eq!(costs.choose(false, LEN).way, Way::Attach);
    }

    #[test]
    fn a_lane_that_is_cold_at_first_is_chosen_all_the_same() {
        for len in [16 << 10, LEN, 256 << 10, 1 << 20] {
            let mut costs = Costs::default();
            let mut slots = 0;
            for _ in 0..until_compared(len) {
                let Choice { way, measure, .. } = costs.choose(false, len);
                let warm = slots >= u64::from(SLOTS);
                let cost = if way == Way::Attach {
                    0.1
                } else if warm {
                    0.05
                } else {
                    0.3
                };
                if way == Way::Ring {
                    slots += len.div_ceil(SLOT_BYTES as u64);
                }
                if measure {
                    costs.measured(Cost::of_one(false, len, nanos(cost * len as f64)), way);
                }
            }
            assert_eq!(costs.choose(false, len).way, Way::Ring, "{len}");
        }
    }

    #[test]
    fn a_used_way_whose_cost_is_not_known_is_measured_before_it_is_left() {
        let mut costs = Costs::default();
        let cheap = |way| Cost::of_one(true, LEN, nanos(if way == Way::Ring { 2e3 } else { 9e3 }));
        for round in 0..2 * until_compared(LEN) {
            let Choice { way, measure } = costs.choose(true, LEN);
            // Nothing tells the cost of the first ones.
            if measure && (round >= until_compared(LEN) || way == Way::Attach) {
                costs.measured(cheap(way), way);
            }
        }
        assert_eq!(costs.choose(true, LEN), Choice::unmeasured(Way::Ring));
    }

    #[test]
    fn who_can_attach_asks_only_where_that_is_much_cheaper() {
        for (ring, attach, asks) in
            [(0.08, 0.1, false), (0.06, 0.1, true), (0.3, 0.1, false), (0.02, 0.1, true)]
        {
            let mut costs = Costs::by_itself();
            for changed in [0.02, 0.3, 1.0] {
                attached(&mut costs, changed * ring, attach, 50_000);
            }
            attached(&mut costs, ring, attach, PAUSE * tries(Way::Ring, LEN) + until_compared(LEN));
            let attached = attached(&mut costs, ring, attach, 200);
            assert_eq!(attached < 100, asks, "{ring} to {attach}: {attached}");
        }
    }

    #[test]
    fn lengths_and_directions_are_told_apart() {
        let mut costs = Costs::default();
        let ends = [4, 16, 64, 256, 1024, 4096].map(|kib| kib << 10);
        for (index, end) in ends.into_iter().enumerate() {
            for len in [end / 4 + 1, end] {
                let class: *const Class = costs.class(true, len);
                assert!(std::ptr::eq(class, &raw const costs.puts[index]), "{len}");
            }
        }
        let class: *const Class = costs.class(false, u64::MAX);
        assert!(std::ptr::eq(class, &raw const costs.gets[LENGTHS - 1]));
        let short = costs.choose(true, MEASURED_FROM - 1);
        assert_eq!(short, Choice::unmeasured(Way::Ring));
    }
}
