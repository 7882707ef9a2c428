//! The time that progress ULTs spend on polls and on sleeps.

use super::monitoring::Monitoring;
use super::statistics::ProgressPhase;
use crate::observe::clock::Moment;

/// Polls take nanoseconds and come by the million, so of them only so many-th are timed that are
/// timed of sleeps. Each that is timed stands for those between it and the one before.
const POLLS_PER_TURN: u32 = 1024;

/// The polls and sleeps of one progress ULT, to be timed.
#[derive(Debug, Default)]
pub(crate) struct ProgressSampler {
    polls: SampleCount,
    sleeps: SampleCount,
}

/// The choice of polls, or of sleeps, that are timed.
#[derive(Debug, Default)]
struct SampleCount {
    /// How many are still left out, and one.
    left: u32,
    /// How many the next one that is timed stands for.
    gap: u32,
    /// How many the last one did.
    weight: u32,
}

impl ProgressSampler {
    /// The network is about to be polled; when, if that is to be timed.
    #[inline]
    pub(crate) fn poll(&mut self, monitoring: &Monitoring) -> Option<Moment> {
        // One branch for all but one of many, also while nothing is counted: every nanosecond of a
        // poll that finds nothing delays what comes.
        if self.polls.left > 1 {
            self.polls.left -= 1;
            return None;
        }
        match monitoring.mode() {
            0 => None,
            mode => self.polls.begin(POLLS_PER_TURN, monitoring, mode),
        }
    }

    /// The progress ULT is about to sleep; when, if that is to be timed.
    pub(crate) fn sleep(&mut self, monitoring: &Monitoring) -> Option<Moment> {
        self.sleeps.begin(1, monitoring, monitoring.mode())
    }

    /// It was polled, and so much was found.
    #[inline]
    pub(crate) fn polled(&self, monitoring: &Monitoring, since: Option<Moment>, found: usize) {
        if let Some(since) = since {
            let turn = if found == 0 { ProgressPhase::IdlePoll } else { ProgressPhase::BusyPoll };
            self.polls.end(monitoring, since, turn);
        }
    }

    /// The progress ULT runs again.
    pub(crate) fn slept(&self, monitoring: &Monitoring, since: Option<Moment>) {
        if let Some(since) = since {
            self.sleeps.end(monitoring, since, ProgressPhase::Sleep);
        }
    }
}

impl SampleCount {
    #[inline(never)]
    fn begin(&mut self, unit: u32, monitoring: &Monitoring, mode: u8) -> Option<Moment> {
        if self.left > 1 {
            self.left -= 1;
            return None;
        }
        let every = monitoring.counting(mode)?.progress_every().saturating_mul(unit);
        // Those that were passed over while none was to be timed are nobody's.
        self.weight = std::mem::replace(&mut self.gap, every).max(1);
        self.left = if every == 0 { unit } else { every };
        (every != 0).then(Moment::now)
    }

    #[inline(never)]
    fn end(&self, monitoring: &Monitoring, since: Moment, turn: ProgressPhase) {
        if let Some(store) = monitoring.shared.store.get() {
            store.note_turn(turn, Moment::now().nanos_since(since), self.weight);
        }
    }
}
