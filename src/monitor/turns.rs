//! What progress ULTs do with their time.

use super::statistics::Turn;
use super::{Moment, Monitoring};

/// Polls take nanoseconds and come by the million, so of them only so many-th are timed that are
/// timed of sleeps.
const POLLS_PER_TURN: u32 = 1024;

/// Of one progress ULT.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    /// How many of them are still left out.
    polls: u32,
    sleeps: u32,
}

impl Turns {
    /// The network is about to be polled; when, if that is to be timed.
    #[inline]
    pub(crate) fn poll(&mut self, monitoring: &Monitoring) -> Option<Moment> {
        // One branch for all but one of many, also while nothing is counted: every nanosecond of a
        // poll that finds nothing delays what comes.
        if self.polls > 1 {
            self.polls -= 1;
            return None;
        }
        match monitoring.mode() {
            0 => None,
            mode => Self::begin(&mut self.polls, POLLS_PER_TURN, monitoring, mode),
        }
    }

    /// The progress ULT is about to sleep; when, if that is to be timed.
    pub(crate) fn sleep(&mut self, monitoring: &Monitoring) -> Option<Moment> {
        Self::begin(&mut self.sleeps, 1, monitoring, monitoring.mode())
    }

    #[inline(never)]
    fn begin(count: &mut u32, unit: u32, monitoring: &Monitoring, mode: u8) -> Option<Moment> {
        if *count > 1 {
            *count -= 1;
            return None;
        }
        let every = monitoring.counting(mode)?.progress_every().saturating_mul(unit);
        *count = if every == 0 { unit } else { every };
        (every != 0).then(Moment::now)
    }

    /// It was polled, and so much was found.
    #[inline]
    pub(crate) fn polled(&self, monitoring: &Monitoring, since: Option<Moment>, found: usize) {
        if let Some(since) = since {
            let turn = if found == 0 { Turn::IdlePoll } else { Turn::BusyPoll };
            Self::end(monitoring, since, turn);
        }
    }

    /// The progress ULT runs again.
    pub(crate) fn slept(&self, monitoring: &Monitoring, since: Option<Moment>) {
        if let Some(since) = since {
            Self::end(monitoring, since, Turn::Sleep);
        }
    }

    #[inline(never)]
    fn end(monitoring: &Monitoring, since: Moment, turn: Turn) {
        if let Some(store) = monitoring.shared.store.get() {
            store.note_turn(turn, Moment::now().nanos_since(since));
        }
    }
}
