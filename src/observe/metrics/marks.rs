//! The age of calls, and how long units have waited in pools.
//!
//! Reading a clock at the start of each call would cost every call something. Instead, notes are
//! taken from time to time of how far the numbers of calls have come, and how many units have come
//! into each pool: by the stall detector at each of its looks (four in `margo.stall_limit_msec`, at
//! least four a second), and with each snapshot. A call that a note covers is at least as old as
//! the note. If more units wait in a pool than have come since a note, one of them has waited since
//! then, whatever the order in which they leave.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use hg::{CallMark, CallNumber, Core};
use ult::{PoolRef, Runtime};

/// Notes that are kept. They thin out with their age, so these reach back for days.
const NOTES_MAX: usize = 256;
/// The gap between two notes is this part of their age, or what it was at first.
const THINNING: u32 = 8;
/// Notes are not closer than this.
const CLOSEST: Duration = Duration::from_millis(50);

/// Notes of one instance, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Marks(Mutex<VecDeque<(Instant, Mark)>>);

/// How far an instance was.
#[derive(Debug)]
struct Mark {
    calls: CallMark,
    /// Units that had come into each pool.
    pools: Vec<(u64, PoolRef)>,
}

impl Mark {
    fn of<T>(runtime: &Runtime, core: &Core<T>) -> Self {
        let came = |pool: PoolRef| (pool.stats().pushed, pool);
        // Those of the runtime: a child, or an instance in a runtime of the program's, is not told
        // of pools that come later.
        let pools = runtime.pools().into_iter().map(came).collect();
        Self { calls: core.call_mark(), pools }
    }

    /// Returns whether more units wait in `pool` than have come since.
    fn is_waited_since(&self, pool: &PoolRef, waiting: u64, pushed: u64) -> bool {
        let before = self.pools.iter().find(|(_, noted)| noted == pool).map(|(before, _)| *before);
        before.and_then(|before| pushed.checked_sub(before)).is_some_and(|since| since < waiting)
    }
}

impl Marks {
    /// Notes how far the instance is.
    pub(crate) fn note<T>(&self, runtime: &Runtime, core: &Core<T>) {
        self.add(Instant::now, || Mark::of(runtime, core));
    }

    fn add(&self, clock: impl Fn() -> Instant, mark: impl FnOnce() -> Mark) {
        let mut notes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = clock();
        if notes.back().is_some_and(|(last, _)| now.saturating_duration_since(*last) < CLOSEST) {
            return;
        }
        thin_out(&mut notes, now);
        for (_, mark) in notes.iter_mut() {
            mark.pools.retain(|(_, pool)| !pool.is_removed());
        }
        // The clock last: while this thread is held up, calls may be made, which the mark covers
        // only if they began before.
        let mark = mark();
        notes.push_back((clock(), mark));
    }

    /// Returns for how long the oldest of the `waiting` units of `pool` has waited, at least, if
    /// `pushed` have ever come; `None`: no unit waits, or none has since a note. `waiting` is read
    /// first: a unit that comes in between does not count as one that has waited. Units that were
    /// taken out to other pools count as if they had waited here.
    pub(crate) fn oldest_wait(
        &self,
        pool: &PoolRef,
        waiting: usize,
        pushed: u64,
        now: Instant,
    ) -> Option<Duration> {
        if waiting == 0 {
            return None;
        }
        let notes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Since a later note fewer have come.
        let oldest =
            notes.partition_point(|(_, mark)| !mark.is_waited_since(pool, waiting as u64, pushed));
        notes.get(oldest).map(|(noted, _)| now.saturating_duration_since(*noted))
    }

    /// For how long that call has been going on, at least; `None`: no note covers it.
    pub(crate) fn age(&self, call: CallNumber, now: Instant) -> Option<Duration> {
        let notes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let first = notes.partition_point(|(_, mark)| !mark.calls.covers(call));
        notes.get(first).map(|(noted, _)| now.saturating_duration_since(*noted))
    }
}

/// Drops notes without which no gap is larger than a part of its age.
fn thin_out(notes: &mut VecDeque<(Instant, Mark)>, now: Instant) {
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

/// An instance of which notes are taken.
pub(crate) trait Noted: Send + Sync {
    fn note(&self);
}

/// The instances whose calls the stall detector of a runtime notes.
#[derive(Default)]
pub(crate) struct Watched {
    all: Mutex<Vec<Weak<dyn Noted>>>,
    /// One of the pools of a runtime that the program made, by which that is known again.
    pool: Option<PoolRef>,
}

impl Watched {
    /// Returns the list of a runtime that the program made. All instances in the runtime share it,
    /// and the first of them brings the stall detector.
    pub(crate) fn of_program(runtime: &Runtime) -> Arc<Self> {
        static ALL: Mutex<Vec<Weak<Watched>>> = Mutex::new(Vec::new());
        // Given back without the lock: the last count on a pool may go with one.
        let there: Vec<_>;
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|watched| watched.strong_count() > 0);
        there = all.iter().filter_map(Weak::upgrade).collect();
        let is_its =
            |watched: &&Arc<Self>| watched.pool.as_ref().is_some_and(|pool| runtime.has_pool(pool));
        there.iter().find(is_its).cloned().unwrap_or_else(|| {
            let pool = runtime.pools().into_iter().next();
            let watched = Arc::new(Self { pool, ..Self::default() });
            all.push(Arc::downgrade(&watched));
            watched
        })
    }

    pub(crate) fn add(&self, new: Weak<dyn Noted>) {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|noted| noted.strong_count() > 0);
        all.push(new);
    }

    pub(crate) fn note(&self) {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner).clone();
        all.iter().filter_map(Weak::upgrade).for_each(|noted| noted.note());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notes(marks: &Marks) -> Vec<Instant> {
        marks.0.lock().unwrap().iter().map(|(noted, _)| *noted).collect()
    }

    fn oldest_wait(marks: &Marks, pool: &PoolRef, now: Instant) -> Option<Duration> {
        let waiting = pool.len();
        marks.oldest_wait(pool, waiting, pool.stats().pushed, now)
    }

    #[test]
    fn nothing_is_kept_of_a_pool_that_was_removed_nor_of_an_instance_that_is_gone() {
        let parent = crate::init("{}").unwrap();
        let child = parent.init_child("{}").unwrap();
        let marks = Arc::downgrade(&child.inner().metrics.marks);
        let added = parent.layout().add_pool_from_json(r#"{ "name": "added" }"#).unwrap();
        let noted = |instance: &crate::Instance| {
            let notes = instance.inner().metrics.marks.0.lock().unwrap();
            let pools = notes.iter().flat_map(|(_, mark)| &mark.pools);
            pools.filter(|(_, noted)| *noted == added.pool).count()
        };
        let begun = Instant::now();
        while noted(&parent) == 0 {
            assert!(begun.elapsed() < Duration::from_secs(60), "nobody noted anything");
            parent.metrics();
        }
        while noted(&child) == 0 {
            assert!(begun.elapsed() < Duration::from_secs(60), "the child does not know the pool");
            child.metrics();
        }
        parent.layout().remove_pool("added").unwrap();
        while noted(&parent) + noted(&child) > 0 {
            assert!(begun.elapsed() < Duration::from_secs(60), "it is kept");
            parent.metrics();
            child.metrics();
        }
        child.finalize_and_wait().unwrap();
        drop(child);
        while marks.strong_count() > 0 {
            assert!(begun.elapsed() < Duration::from_secs(60), "the child's notes are kept");
            std::thread::yield_now();
        }
        parent.finalize_and_wait().unwrap();
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
    fn all_instances_in_a_runtime_of_the_programs_are_noted() {
        let made = || {
            let pool = ult::PoolSpec::new("p");
            let xstream = ult::XstreamSpec::new("x").pools(["p"]);
            Runtime::builder().pool(pool).xstream(xstream).start().unwrap()
        };
        let (runtime, other) = (made(), made());
        let start = |runtime: &Runtime| {
            let builder = crate::Instance::builder("na+sm://").runtime(runtime);
            builder.progress_pool("p").rpc_pool("p").start().unwrap()
        };
        let watched = |instance: &crate::Instance| instance.inner().metrics.watched.clone();
        // The first one has gone when the third one comes, and its detector has not.
        let first = start(&runtime);
        let second = start(&runtime);
        first.finalize_and_wait().unwrap();
        drop(first);
        let instances = [second, start(&runtime), start(&other)];
        let begun = Instant::now();
        for instance in &instances {
            while notes(&instance.inner().metrics.marks).is_empty() {
                assert!(begun.elapsed() < Duration::from_secs(60), "nobody noted anything");
                std::thread::yield_now();
            }
        }
        assert!(Arc::ptr_eq(&watched(&instances[0]), &watched(&instances[1])));
        assert!(!Arc::ptr_eq(&watched(&instances[0]), &watched(&instances[2])));
        let kept = Arc::downgrade(&watched(&instances[0]));
        instances.into_iter().for_each(|instance| instance.finalize_and_wait().unwrap());
        for runtime in [runtime, other] {
            runtime.shutdown().unwrap();
        }
        while kept.strong_count() > 0 {
            assert!(begun.elapsed() < Duration::from_secs(60), "it outlives the runtime");
            std::thread::yield_now();
        }
    }

    #[test]
    fn waits_in_a_pool_that_came_later_are_known_to_a_child() {
        let parent = crate::init("{}").unwrap();
        let child = parent.init_child("{}").unwrap();
        // Nobody runs what is in the pool.
        let pool = parent.layout().add_pool_from_json(r#"{ "name": "batch" }"#).unwrap().pool;
        let unit = pool.spawn(|| ()).unwrap();
        let begun = Instant::now();
        for instance in [&parent, &child] {
            let wait = || {
                let pools = instance.metrics().pools;
                pools.into_iter().find(|pool| pool.name == "batch").unwrap().oldest_wait_sec
            };
            while wait().is_none() {
                assert!(begun.elapsed() < Duration::from_secs(60), "nobody knows that it waits");
                std::thread::yield_now();
            }
        }
        let serves = r#"{ "name": "x", "scheduler": { "pools": ["batch"] } }"#;
        parent.layout().add_xstream_from_json(serves).unwrap();
        unit.join().unwrap();
        child.finalize_and_wait().unwrap();
        parent.finalize_and_wait().unwrap();
    }

    #[test]
    fn notes_thin_out_with_their_age_and_stay_few() {
        let (marks, start) = (Marks::default(), Instant::now());
        let own = crate::init("{}").unwrap();
        for tick in 0..100_000u32 {
            let now = start + tick * Duration::from_millis(250);
            let calls = own.inner().core.call_mark();
            marks.add(|| now, || Mark { calls, pools: Vec::new() });
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
        own.finalize_and_wait().unwrap();
    }

    #[test]
    fn the_time_for_which_a_timer_was_armed_is_no_wait() {
        // Nobody runs what is in the pool.
        let own = crate::init(r#"{ "argobots": { "pools": [{ "name": "later" }] } }"#).unwrap();
        let (marks, start) = (Arc::new(Marks::default()), Instant::now());
        let pool = own.layout().pool("later").unwrap();
        let (noting, target, instance) = (marks.clone(), pool.clone(), own.clone());
        let arm = move || {
            let timer = target.spawn_after(Duration::from_millis(1), || ()).unwrap();
            // Before it fires, which it does on this execution stream.
            noting.add(|| start, || Mark::of(&instance.inner().runtime, &instance.inner().core));
            (timer, target.len())
        };
        let (timer, waiting) =
            own.layout().pool("__primary__").unwrap().spawn(arm).unwrap().join().unwrap();
        assert_eq!(waiting, 0);
        while pool.is_empty() {
            assert!(start.elapsed() < Duration::from_secs(60), "it does not fire");
            std::thread::yield_now();
        }
        assert_eq!(oldest_wait(&marks, &pool, start + Duration::from_secs(9)), None);
        own.layout()
            .add_xstream_from_json(r#"{ "name": "x", "scheduler": { "pools": ["later"] } }"#)
            .unwrap();
        timer.join().unwrap();
        own.finalize_and_wait().unwrap();
    }

    #[test]
    fn a_wait_is_as_old_as_the_oldest_note_since_which_fewer_have_come() {
        // Nobody runs what is in the pool.
        let own = crate::init(r#"{ "argobots": { "pools": [{ "name": "later" }] } }"#).unwrap();
        let (marks, start) = (Marks::default(), Instant::now());
        let pool = own.layout().pool("later").unwrap();
        let at = |second| start + Duration::from_secs(second);
        let note =
            |second| marks.add(|| at(second), || Mark::of(&own.inner().runtime, &own.inner().core));
        let age = |second| oldest_wait(&marks, &pool, at(second)).map(|age| age.as_secs());
        note(0);
        assert_eq!(age(1), None, "nobody waits");
        let spawn = || drop(pool.spawn(|| ()).unwrap());
        spawn();
        assert_eq!(age(1), None, "it came after the note");
        note(2);
        spawn();
        note(4);
        assert_eq!(age(5), Some(3));
        let first = pool.pop().unwrap();
        assert_eq!(age(5), Some(1), "the second one came after the second note");
        drop(first);
        spawn();
        assert_eq!(age(9), Some(5));
        own.layout()
            .add_xstream_from_json(r#"{ "name": "x", "scheduler": { "pools": ["later"] } }"#)
            .unwrap();
        let begun = Instant::now();
        while age(9).is_some() {
            assert!(begun.elapsed() < Duration::from_secs(60), "they are not run");
            std::thread::yield_now();
        }
        own.finalize_and_wait().unwrap();
    }
}
