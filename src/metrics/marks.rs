//! How old calls are.
//!
//! Reading a clock at the start of each call would cost every call something. In place of that
//! somebody notes from time to time how far the numbers of calls have come: the stall detector at
//! each of its looks (four in `margo.stall_limit_msec`, at least four a second), and whoever takes
//! a snapshot. A call that a note covers is at least as old as the note.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use crate::hg::{CallMark, CallNumber, Core};
use crate::progress::Token;

/// Notes that are kept. They thin out with their age, so these reach back for days.
const NOTES_MAX: usize = 256;
/// The gap between two notes is this part of their age, or what it was at first.
const THINNING: u32 = 8;
/// Notes are not closer than this.
const CLOSEST: Duration = Duration::from_millis(50);

/// Notes of one instance, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Marks(Mutex<VecDeque<(Instant, CallMark)>>);

impl Marks {
    /// Notes how far `core` is.
    pub(crate) fn note(&self, core: &Core<Token>) {
        self.add(Instant::now(), || core.call_mark());
    }

    fn add(&self, now: Instant, mark: impl FnOnce() -> CallMark) {
        let mut notes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if notes.back().is_some_and(|(last, _)| now.saturating_duration_since(*last) < CLOSEST) {
            return;
        }
        thin_out(&mut notes, now);
        // While this thread was held up, calls may have been made: they count as younger.
        notes.push_back((now, mark()));
    }

    /// For how long that call has been going on, at least; `None`: no note covers it.
    pub(crate) fn age(&self, call: CallNumber, now: Instant) -> Option<Duration> {
        let notes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let first = notes.partition_point(|(_, mark)| !mark.covers(call));
        notes.get(first).map(|(noted, _)| now.saturating_duration_since(*noted))
    }
}

/// Drops notes without which no gap is larger than a part of its age.
fn thin_out(notes: &mut VecDeque<(Instant, CallMark)>, now: Instant) {
    let mut newer = now;
    let mut kept = VecDeque::with_capacity(notes.len() + 1);
    while let Some((noted, mark)) = notes.pop_back() {
        let gap = notes.back().map(|(older, _)| newer.saturating_duration_since(*older));
        let most = now.saturating_duration_since(noted) / THINNING;
        if gap.is_none_or(|gap| gap > most) {
            newer = noted;
            kept.push_front((noted, mark));
        }
    }
    while kept.len() >= NOTES_MAX {
        kept.pop_front();
    }
    *notes = kept;
}

/// Whose calls the stall detector of a runtime notes.
#[derive(Default)]
pub(crate) struct Watched(Mutex<Vec<Notable>>);

/// Whose calls are noted, and where.
type Notable = (Weak<Core<Token>>, Arc<Marks>);

impl Watched {
    pub(crate) fn add(&self, core: &Arc<Core<Token>>, marks: &Arc<Marks>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|(core, _)| core.strong_count() > 0);
        all.push((Arc::downgrade(core), marks.clone()));
    }

    pub(crate) fn note(&self) {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for (core, marks) in all {
            if let Some(core) = core.upgrade() {
                marks.note(&core);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notes(marks: &Marks) -> Vec<Instant> {
        marks.0.lock().unwrap().iter().map(|(noted, _)| *noted).collect()
    }

    #[test]
    fn the_stall_detector_notes_calls_without_a_snapshot() {
        let instance = crate::init("{}").unwrap();
        let begun = Instant::now();
        while notes(&instance.inner().metrics.marks).is_empty() {
            assert!(begun.elapsed() < Duration::from_secs(60), "nobody noted anything");
            std::thread::yield_now();
        }
        instance.finalize_and_wait().unwrap();
    }

    #[test]
    fn notes_thin_out_with_their_age_and_stay_few() {
        let (marks, start) = (Marks::default(), Instant::now());
        let mark = crate::init("{}").unwrap();
        for tick in 0..100_000u32 {
            marks.add(start + tick * Duration::from_millis(250), || mark.inner().core.call_mark());
        }
        let end = start + 99_999 * Duration::from_millis(250);
        let notes = notes(&marks);
        assert!(notes.len() < NOTES_MAX, "{}", notes.len());
        assert!(notes.is_sorted());
        assert_eq!(*notes.last().unwrap(), end);
        let oldest = end - notes[0];
        assert!(oldest > Duration::from_secs(20_000), "{oldest:?}");
        for pair in notes.windows(2) {
            let (age, gap) = (end - pair[0], pair[1] - pair[0]);
            assert!(gap <= age / THINNING + Duration::from_millis(250), "{gap:?} at {age:?}");
        }
        mark.finalize_and_wait().unwrap();
    }
}
