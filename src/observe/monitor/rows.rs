//! Rows of statistics: one for each call path and peer, found without a lock and counted in without
//! an atomic read-modify-write.
//!
//! A table has a bound. A peer that would need a row beyond it is counted in the row of *other
//! peers* of its call path, and if there is no room for that either, in one row for everything
//! else (of transfers: one for each direction). Requests name their call path, and so a peer can
//! name as many as it likes: before that one, each RPC that is served here has a row for its *other
//! paths*. Once a table is full, those rows are found as fast as others. Rows are never taken away:
//! what was counted stays readable when its RPC or peer is gone.
//!
//! # Who may touch what
//!
//! | state | owner | others |
//! |---|---|---|
//! | a slot of the table, and how many are taken | written under `entering`, a slot once | read without a lock |
//! | a part of a row | one OS thread (`slot.rs`), which loads and stores; the last part is for all threads that have none, which add atomically | read for snapshots |
//! | where a thread has found parts lately (`row_cache.rs`) | that thread | |
//!
//! A ULT that moves to another OS thread between finding its part and counting would break the
//! rule. So all counting is in functions that are not inlined and do not switch: `observe_…`,
//! `note_…`, and those that say so here.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use hg::RpcId;

use super::row_cache::RowCache;
use super::slot;
use crate::Addr;

/// Kinds of ends that a part can tell apart.
pub(super) const ENDS: usize = 13;

/// The key that tells rows apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Key {
    /// The RPC's number, provider included.
    pub(super) id: u64,
    /// The parent's number. Of transfers: the direction.
    pub(super) parent: u64,
    /// The peer, or one of `OTHER_PEERS`, `OF_THE_REST`.
    pub(super) peer: u64,
}

impl Key {
    #[inline]
    pub(super) fn new(id: RpcId, parent: RpcId, peer: &Addr) -> Self {
        // Numbers of endpoints are small, those of peers are small or random.
        let peer = peer.endpoint_id().rotate_left(40) ^ peer.peer_id();
        Self { id: id.0, parent: parent.0, peer }
    }
}

const OTHER_PEERS: u64 = u64::MAX;
const OF_THE_REST: u64 = u64::MAX - 1;

impl Key {
    #[inline]
    pub(super) fn hash(self) -> u64 {
        // Multiplications spread what differs to the upper bits, which are taken.
        const MANY: u64 = 0x9e37_79b9_7f4a_7c15;
        (self.id ^ self.parent.rotate_left(23) ^ self.peer.rotate_left(47)).wrapping_mul(MANY)
    }

    fn of_other_peers(self) -> Self {
        Self { peer: OTHER_PEERS, ..self }
    }

    fn of_other_paths(self) -> Self {
        Self { id: self.id, parent: 0, peer: OF_THE_REST }
    }
}

/// The name of a row.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct About {
    pub(super) rpc: String,
    pub(super) id: u64,
    pub(super) parent: u64,
    /// The address, or [`OTHER_PEERS_NAME`], or [`OTHER_PATHS_NAME`].
    pub(super) peer: String,
}

impl About {
    /// Returns whether the row is that for everything that has none of its own. Its number is 0, as
    /// that of calls outside of any RPC.
    pub(super) fn is_of_the_rest(&self) -> bool {
        self.id == 0 && self.rpc == OTHER_RPCS_NAME
    }
}

/// The name that stands for the addresses of peers that have no row of their own.
pub(super) const OTHER_PEERS_NAME: &str = "other peers";
/// The name that stands for the addresses of peers on call paths that have no row of their own.
pub(super) const OTHER_PATHS_NAME: &str = "other paths";
/// The name that stands for RPCs that have no row of their own.
pub(super) const OTHER_RPCS_NAME: &str = "other RPCs";

/// Counters that one OS thread writes. On lines of its own; what each call touches is in one.
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub(super) struct RowPart {
    /// Calls that have begun.
    calls: AtomicU64,
    /// The next one of them that is looked at.
    next: AtomicU64,
    /// From the one before to that.
    gap: AtomicU64,
    /// Bytes, where they are counted.
    bytes: AtomicU64,
    /// The number of the row.
    row: u32,
    ends: [AtomicU64; ENDS],
    /// State of the random numbers.
    seed: AtomicU64,
}

/// A call that was counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CountedCall {
    /// The number of its row; 0: it was not counted.
    pub(super) row: u32,
    /// How many calls it stands for if it is to be looked at, else 0.
    weight: u32,
}

impl CountedCall {
    /// It was not counted.
    pub(super) const NOT: Self = Self { row: 0, weight: 0 };

    /// It was counted, and that is all.
    #[inline]
    pub(super) fn is_all(self) -> bool {
        self.row != 0 && self.weight == 0
    }

    pub(super) fn weight(self) -> Option<u32> {
        if self.weight == 0 { None } else { Some(self.weight) }
    }
}

/// Adds, and returns the new value; `owned`: no other thread does so here.
#[inline]
fn add(counter: &AtomicU64, n: u64, owned: bool) -> u64 {
    if owned {
        let sum = counter.load(Ordering::Relaxed).wrapping_add(n);
        counter.store(sum, Ordering::Relaxed);
        sum
    } else {
        counter.fetch_add(n, Ordering::Relaxed).wrapping_add(n)
    }
}

impl RowPart {
    fn new(row: u32) -> Self {
        Self { row, ..Self::default() }
    }

    /// Counts a call.
    #[inline]
    fn begin(&self, every: u32, owned: bool) -> CountedCall {
        let call = add(&self.calls, 1, owned);
        let is_next = call >= self.next.load(Ordering::Relaxed);
        CountedCall { row: self.row, weight: if is_next { self.look(call, every) } else { 0 } }
    }

    /// Looks at this call, and chooses the next one: at random, so that no pattern in the calls
    /// hides from it; all of the first ones, and then fewer and fewer, up to one in `every`.
    #[inline(never)]
    fn look(&self, call: u64, every: u32) -> u32 {
        if every == 0 {
            // `next` stays behind: as soon as there is another `every`, the next call counts.
            return 0;
        }
        const FIRST: u64 = 32;
        let mean = u64::from(every).min(1 + call / FIRST);
        let gap = 1 + self.random() % (2 * mean - 1);
        self.next.store(call + gap, Ordering::Relaxed);
        let since_last = self.gap.swap(gap, Ordering::Relaxed);
        u32::try_from(since_last).unwrap_or(u32::MAX).max(1)
    }

    /// Marsaglia's xorshift.
    fn random(&self) -> u64 {
        let mut x = match self.seed.load(Ordering::Relaxed) {
            0 => std::ptr::from_ref(self).addr() as u64 | 1,
            seed => seed,
        };
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.seed.store(x, Ordering::Relaxed);
        x >> 11
    }
}

/// The counts of a row.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct RowCounts {
    pub(super) calls: u64,
    pub(super) bytes: u64,
    pub(super) ends: [u64; ENDS],
}

impl RowCounts {
    pub(super) fn ended(&self) -> u64 {
        self.ends.iter().sum()
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.calls += other.calls;
        self.bytes += other.bytes;
        for (end, more) in self.ends.iter_mut().zip(other.ends) {
            *end += more;
        }
    }

    fn minus(&self, before: &Self) -> Self {
        let mut ends = self.ends;
        for (end, before) in ends.iter_mut().zip(before.ends) {
            // Some may have been taken back since.
            *end = end.saturating_sub(before);
        }
        let calls = self.calls.wrapping_sub(before.calls);
        Self { calls, bytes: self.bytes.wrapping_sub(before.bytes), ends }
    }

    /// Returns the ends that are told once these counts are. An end that was told before and has
    /// been taken back since stays told, so that the next ones make up for it.
    fn told(&self, before: &Self) -> Self {
        let mut told = *self;
        for (end, before) in told.ends.iter_mut().zip(before.ends) {
            *end = (*end).max(before);
        }
        told
    }
}

/// One row. `D`: what calls are found to be that are looked at.
#[derive(Debug)]
pub(super) struct Row<D> {
    pub(super) about: About,
    parts: Box<[RowPart]>,
    detail: Mutex<Detail<D>>,
}

#[derive(Debug, Default)]
struct Detail<D> {
    detail: Option<Box<D>>,
    /// Counts at the last reset, as they were told.
    before: RowCounts,
}

impl<D: Default + Clone> Row<D> {
    fn new(about: About, number: u32) -> Self {
        let parts = (0..slot::parts()).map(|_| RowPart::new(number)).collect();
        let detail = Mutex::new(Detail { detail: None, before: RowCounts::default() });
        Self { about, parts, detail }
    }

    /// The part of that number, and whether it is of one thread alone.
    #[inline]
    fn part(&self, number: usize) -> (&RowPart, bool) {
        (&self.parts[number], number + 1 < self.parts.len())
    }

    /// Counts the end of a call.
    #[cold]
    fn end(&self, end: u8) {
        let (part, owned) = self.part(slot::here());
        add(&part.ends[usize::from(end)], 1, owned);
    }

    /// Counts bytes.
    #[inline(never)]
    pub(super) fn bytes(&self, bytes: u64) {
        let (part, owned) = self.part(slot::here());
        add(&part.bytes, bytes, owned);
    }

    /// Takes the end of a call back: it ended in another way. It may have been told already.
    #[inline(never)]
    pub(super) fn not_ended(&self, end: u8) {
        let (part, owned) = self.part(slot::here());
        // Wraps around; the sum over all parts does not stay below 0.
        add(&part.ends[usize::from(end)], u64::MAX, owned);
    }

    fn detail(&self) -> MutexGuard<'_, Detail<D>> {
        // No code of others runs under this lock.
        self.detail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn note(&self, note: impl FnOnce(&mut D)) {
        note(self.detail().detail.get_or_insert_default());
    }

    /// Returns the counts since the beginning.
    pub(super) fn all(&self) -> RowCounts {
        let mut sums = RowCounts::default();
        for part in self.parts.iter() {
            for (sum, end) in sums.ends.iter_mut().zip(&part.ends) {
                *sum = sum.wrapping_add(end.load(Ordering::Relaxed));
            }
            sums.calls = sums.calls.wrapping_add(part.calls.load(Ordering::Relaxed));
            sums.bytes = sums.bytes.wrapping_add(part.bytes.load(Ordering::Relaxed));
        }
        for sum in &mut sums.ends {
            // Shards are read one after the other: an end that was taken back in a later one may
            // not have been seen where it was counted.
            *sum = u64::try_from(sum.cast_signed()).unwrap_or(0);
        }
        sums
    }

    /// Returns the counts since the last reset, how many calls have not ended, and the details that
    /// were kept.
    pub(super) fn read(&self, reset: bool) -> (RowCounts, u64, Option<D>) {
        let mut own = self.detail();
        let sums = self.all();
        let since = sums.minus(&own.before);
        // Counted on while this reads: an end may be seen and its beginning not.
        let in_flight = sums.calls.saturating_sub(sums.ended());
        let detail = if reset {
            own.before = sums.told(&own.before);
            own.detail.take().map(|detail| *detail)
        } else {
            own.detail.as_deref().cloned()
        };
        (since, in_flight, detail)
    }
}

/// Where a row is, with its key at hand for those who look for it.
#[derive(Debug)]
struct RowSlot<D> {
    key: Key,
    row: Box<Row<D>>,
}

/// The rows of one kind.
#[derive(Debug)]
pub(super) struct RowTable<D> {
    /// The parts that each thread has found lately.
    lately: RowCache,
    slots: Box<[OnceLock<RowSlot<D>>]>,
    rows_max: usize,
    rest: Rest,
    /// Held by a thread that makes a row.
    entering: Mutex<()>,
    /// How many rows there are.
    rows: AtomicUsize,
}

/// How what has no row of its own, nor of its call path, is told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rest {
    /// It is not.
    Together,
    /// By [`Key::parent`], of which there are few.
    ByParent,
    /// By [`Key::id`], as far as the bound for these goes.
    ById,
}

impl<D: Default + Clone> RowTable<D> {
    /// For at most so many rows, a quarter more for those of other peers, and another quarter for
    /// those of other paths.
    pub(super) fn new(rows_max: usize, rest: Rest) -> Self {
        let slots = (rows_max.max(4) * 2).next_power_of_two();
        let slots = (0..slots).map(|_| OnceLock::new()).collect();
        let (entering, rows) = (Mutex::default(), AtomicUsize::new(0));
        let lately = RowCache::new(slot::parts() - 1);
        Self { lately, slots, rows_max, rest, entering, rows }
    }

    /// Rows of their own, and those of other peers.
    fn all_max(&self) -> usize {
        self.rows_max + self.rows_max / 4
    }

    /// Those, and the ones of other paths.
    fn with_paths_max(&self) -> usize {
        match self.rest {
            Rest::Together | Rest::ByParent => self.all_max(),
            Rest::ById => self.all_max() + (self.rows_max / 4).max(1),
        }
    }

    /// The key of the row for everything else.
    fn rest_of(&self, key: Key) -> Key {
        let parent = match self.rest {
            Rest::Together | Rest::ById => 0,
            Rest::ByParent => key.parent,
        };
        Key { id: 0, parent, peer: OF_THE_REST }
    }

    #[inline]
    fn place(&self, key: Key) -> usize {
        (key.hash() >> (64 - self.slots.len().ilog2())) as usize
    }

    /// The row of `key`, or the free slot where it would be.
    #[inline]
    fn find(&self, key: Key) -> Result<usize, usize> {
        let mut place = self.place(key);
        // Ends: one of the slots at least is free, a quarter where there are many.
        while let Some(slot) = self.slots[place].get() {
            if slot.key == key {
                return Ok(place);
            }
            place = (place + 1) & (self.slots.len() - 1);
        }
        Err(place)
    }

    /// The number of the row of `key`, which is not 0; it is made if there is room.
    #[inline]
    pub(super) fn number(&self, key: Key, about: impl FnOnce() -> About) -> u32 {
        let place = match self.find(key) {
            Ok(place) => place,
            Err(_) => self.find_beyond(key).unwrap_or_else(|| self.enter(key, about())),
        };
        // A table that fits into memory has fewer slots.
        place as u32 + 1
    }

    /// Counts a call that begins in the row of `key`, if this thread has found that lately.
    // What it takes and returns is in registers.
    #[inline(never)]
    pub(super) fn begin_again(&self, id: u64, parent: u64, peer: u64, every: u32) -> CountedCall {
        match self.lately.find(slot::known(), Key { id, parent, peer }) {
            Some(part) => part.begin(every, true),
            None => CountedCall::NOT,
        }
    }

    /// Counts a call that begins in the row of `key`.
    #[inline(never)]
    pub(super) fn begin(&self, key: Key, about: impl FnOnce() -> About, every: u32) -> CountedCall {
        let number = self.number(key, about);
        let Some(row) = self.row(number) else { return CountedCall::NOT };
        let here = slot::here();
        let (part, owned) = row.part(here);
        // SAFETY:
        // - stays, shared: it is in a box of a row, that is in a box of a slot of ours, and no slot
        //   changes any more; they go together with `lately`.
        unsafe { self.lately.note(here, key, part) };
        part.begin(every, owned)
    }

    /// Counts an end in the row of that number, if it is one.
    #[inline(never)]
    pub(super) fn end(&self, number: u32, end: u8) {
        let Some(row) = self.row(number) else { return };
        let owned = row.parts.len() - 1;
        match row.parts[..owned].get(slot::known()) {
            Some(part) => _ = add(&part.ends[usize::from(end)], 1, true),
            None => row.end(end),
        }
    }

    /// The row of other paths of an RPC, where there are such. Where parents are directions that
    /// row would be the one for the rest of a direction.
    fn paths_of(&self, key: Key) -> Option<Key> {
        (self.rest == Rest::ById).then(|| key.of_other_paths())
    }

    /// The row in which a key without one is counted, if that is there and no other one can be
    /// made: peers may send as many such keys as they like, so this takes no lock and no memory.
    #[inline(never)]
    fn find_beyond(&self, key: Key) -> Option<usize> {
        let rows = self.rows.load(Ordering::Relaxed);
        if rows < self.rows_max {
            return None;
        }
        let others = self.find(key.of_other_peers()).ok();
        if others.is_some() || rows < self.all_max() {
            return others;
        }
        let paths = self.paths_of(key).and_then(|paths| self.find(paths).ok());
        if paths.is_some() || rows < self.with_paths_max() {
            return paths;
        }
        self.find(self.rest_of(key)).ok()
    }

    #[cold]
    fn enter(&self, key: Key, about: About) -> usize {
        let _entering = self.entering.lock().unwrap_or_else(PoisonError::into_inner);
        let others = About { peer: OTHER_PEERS_NAME.to_owned(), ..about.clone() };
        let paths = About { peer: OTHER_PATHS_NAME.to_owned(), parent: 0, ..about.clone() };
        let rest_key = self.rest_of(key);
        let (rpc, parent) = (OTHER_RPCS_NAME.to_owned(), rest_key.parent);
        let rest = About { rpc, id: 0, parent, ..others.clone() };
        let choices = [
            Some((key, about, self.rows_max)),
            Some((key.of_other_peers(), others, self.all_max())),
            self.paths_of(key).map(|key| (key, paths, self.with_paths_max())),
            Some((rest_key, rest, usize::MAX)),
        ];
        let rows = self.rows.load(Ordering::Relaxed);
        for (key, about, max) in choices.into_iter().flatten() {
            match self.find(key) {
                Ok(place) => return place,
                Err(place) if rows < max => {
                    self.rows.store(rows + 1, Ordering::Relaxed);
                    // Free, and nobody else enters.
                    let row = Box::new(Row::new(about, place as u32 + 1));
                    self.slots[place].get_or_init(|| RowSlot { key, row });
                    return place;
                }
                Err(_) => {}
            }
        }
        unreachable!("the last choice has no bound, and is one row or two")
    }

    /// The row of that number.
    #[inline]
    pub(super) fn row(&self, number: u32) -> Option<&Row<D>> {
        self.slots.get((number as usize).checked_sub(1)?)?.get().map(|slot| &*slot.row)
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = &Row<D>> {
        self.slots.iter().filter_map(OnceLock::get).map(|slot| &*slot.row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn about(id: u64, peer: u64) -> About {
        About { rpc: format!("rpc{id}"), id, parent: 0, peer: format!("peer{peer}") }
    }

    fn key(id: u64, peer: u64) -> Key {
        Key { id, parent: 0, peer }
    }

    fn begin<D: Default + Clone>(row: &Row<D>) -> CountedCall {
        let (part, owned) = row.part(slot::here());
        part.begin(1, owned)
    }

    #[test]
    fn a_table_keeps_within_its_bound_and_counts_the_rest_elsewhere() {
        let table = RowTable::<()>::new(8, Rest::Together);
        for id in 0..20 {
            for peer in 0..20 {
                let number = table.number(key(id, peer), || about(id, peer));
                table.begin(key(id, peer), || about(id, peer), 1);
                assert_eq!(number, table.number(key(id, peer), || about(id, peer)), "found again");
            }
        }
        let rows: Vec<_> = table.rows().map(|row| (row.about.clone(), row.read(false).0)).collect();
        assert_eq!(rows.len(), 8 + 2 + 1);
        assert_eq!(rows.iter().map(|row| row.1.calls).sum::<u64>(), 400, "none is lost");
        let of = |rpc: &str, peer: &str| {
            let row = rows.iter().find(|row| row.0.rpc == rpc && row.0.peer == peer);
            row.map(|row| row.1.calls)
        };
        assert_eq!(of("rpc0", "peer7"), Some(1));
        assert_eq!(of("rpc0", OTHER_PEERS_NAME), Some(12));
        assert_eq!(of("rpc1", OTHER_PEERS_NAME), Some(20));
        assert_eq!(of(OTHER_RPCS_NAME, OTHER_PEERS_NAME), Some(18 * 20));
        // Names are made, and locks taken, only for rows that are made.
        let _nobody_enters = table.entering.lock().unwrap();
        for (id, peer) in [(0, 0), (0, 19), (1, 19), (77, 77)] {
            assert_ne!(table.number(key(id, peer), || panic!("a name for {id} {peer}")), 0);
        }
    }

    #[test]
    fn one_peer_that_makes_up_call_paths_leaves_other_rpcs_their_names() {
        let table = RowTable::<()>::new(8, Rest::ById);
        let begin = |id: u64, parent: u64, peer: u64| {
            let key = Key { id, parent, peer };
            let number = table.number(key, || About { parent, ..about(id, peer) });
            assert_eq!(table.begin(key, || panic!("a second row"), 1).row, number);
            &table.row(number).unwrap().about
        };
        (1..=100).for_each(|parent| _ = begin(1, parent << 32 | 7, 1));
        for (id, calls) in [(1, 90), (2, 0)] {
            let row = begin(id, 0, 2);
            let paths = About { peer: OTHER_PATHS_NAME.to_owned(), ..about(id, 0) };
            assert_eq!(*row, paths);
            let all: u64 =
                table.rows().filter(|row| row.about == paths).map(|r| r.all().calls).sum();
            assert_eq!(all, calls + 1);
        }
        // RPCs come and go, so there is a bound for these as well.
        assert!((3..100).all(|id| begin(id, 0, 1).is_of_the_rest()));
        assert_eq!(table.rows().count(), 8 + 2 + 2 + 1);
        let _nobody_enters = table.entering.lock().unwrap();
        for (id, parent) in [(1, 1 << 40), (2, 1 << 40), (3, 5), (777, 777)] {
            let key = Key { id, parent, peer: 9 };
            assert_ne!(table.number(key, || panic!("a name for {id} {parent}")), 0);
        }
    }

    #[test]
    fn the_smallest_tables_end_their_search() {
        for (rest, rows_max) in [Rest::Together, Rest::ByParent, Rest::ById]
            .into_iter()
            .flat_map(|rest| (1..40).map(move |rows_max| (rest, rows_max)))
        {
            let table = RowTable::<()>::new(rows_max, rest);
            for (id, parent, peer) in (0..400).map(|n| (n / 20, n % 2, n)) {
                let key = Key { id, parent, peer };
                assert_ne!(table.number(key, || About { parent, ..about(id, peer) }), 0);
            }
            assert!(table.rows().count() < table.slots.len(), "{rest:?} {rows_max}");
        }
    }

    #[test]
    fn what_has_no_row_is_told_apart_by_its_parent_if_that_is_a_direction() {
        let table = RowTable::<()>::new(4, Rest::ByParent);
        for (id, parent) in (0..20).flat_map(|id| [(id, 0), (id, 1)]) {
            let about = || About { parent, ..about(id, 0) };
            table.begin(Key { id, parent, peer: 0 }, about, 1);
        }
        // Outside of any RPC: of other peers there is no row any more.
        for (parent, peer) in [(1, 1), (0, 2), (1, 2), (1, 3)] {
            let about = || About { parent, ..about(0, peer) };
            table.begin(Key { id: 0, parent, peer }, about, 1);
        }
        let rest = table.rows().filter(|row| row.about.rpc == OTHER_RPCS_NAME);
        let mut rest: Vec<_> = rest.map(|row| (row.about.parent, row.all().calls)).collect();
        rest.sort_unstable();
        // Of 40 keys, 4 have rows of their own, and (2, 0) has one of other peers.
        assert_eq!(rest, [(0, 17 + 1), (1, 18 + 3)]);
    }

    #[test]
    fn threads_count_without_losing_any() {
        let table = RowTable::<()>::new(8, Rest::Together);
        let row = table.row(table.number(key(1, 1), || about(1, 1))).unwrap();
        let threads = 2 * slot::parts();
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        if table.begin_again(1, 0, 1, 1) == CountedCall::NOT {
                            table.begin(key(1, 1), || about(1, 1), 1);
                        }
                        row.bytes(3);
                        row.end(2);
                    }
                });
            }
        });
        let (counts, in_flight, _) = row.read(false);
        let all = 1000 * threads as u64;
        assert_eq!((counts.calls, counts.bytes, counts.ends[2]), (all, 3 * all, all));
        assert_eq!((in_flight, counts.ended()), (0, all));
    }

    #[test]
    fn a_thread_finds_its_rows_again_and_no_others() {
        const IDS: u64 = 200;
        let table = RowTable::<()>::new(IDS as usize, Rest::Together);
        // More than there are places: some take those of others.
        for id in (0..IDS).chain((0..IDS).rev()) {
            let again = table.begin_again(id, 0, id, 1);
            let begun = match again {
                CountedCall::NOT => table.begin(key(id, id), || about(id, id), 1),
                begun => begun,
            };
            assert_eq!(table.row(begun.row).unwrap().about, about(id, id));
            assert_eq!(table.begin_again(id, 0, id, 1).row, begun.row);
            assert_eq!(table.begin_again(id, 0, id + 1, 1), CountedCall::NOT);
            assert_eq!(table.begin_again(id, 1, id, 1), CountedCall::NOT);
        }
        assert!(table.rows().all(|row| row.all().calls == 4));
    }

    #[test]
    fn a_reset_leaves_what_is_in_flight() {
        let table = RowTable::<u32>::new(8, Rest::Together);
        let row = table.row(table.number(key(1, 1), || about(1, 1))).unwrap();
        begin(row);
        begin(row);
        row.end(0);
        row.note(|note| *note = 7);
        let (counts, in_flight, note) = row.read(true);
        assert_eq!((counts.calls, counts.ends[0], in_flight, note), (2, 1, 1, Some(7)));
        row.end(1);
        row.end(1);
        row.not_ended(1);
        let (counts, in_flight, note) = row.read(false);
        assert_eq!((counts.calls, counts.ends[0], counts.ends[1]), (0, 0, 1));
        assert_eq!((in_flight, note), (0, None));
    }

    #[test]
    fn an_end_that_was_told_and_is_taken_back_is_made_up_for_by_the_next_one() {
        let table = RowTable::<()>::new(8, Rest::Together);
        let row = table.row(table.number(key(1, 1), || about(1, 1))).unwrap();
        begin(row);
        row.end(0);
        assert_eq!(row.read(true).0.ends[..2], [1, 0]);
        row.not_ended(0);
        row.end(1);
        let (counts, in_flight, _) = row.read(true);
        assert_eq!((&counts.ends[..2], counts.ended(), in_flight), (&[0, 1][..], 1, 0));
        begin(row);
        row.end(0);
        assert_eq!(row.read(true).0.ends[..2], [0, 0], "told before");
        begin(row);
        row.end(0);
        assert_eq!(row.read(false).0.ends[..2], [1, 0]);
    }

    #[test]
    fn an_end_that_is_seen_only_where_it_was_taken_back_is_none() {
        let table = RowTable::<()>::new(8, Rest::Together);
        let row = table.row(table.number(key(1, 1), || about(1, 1))).unwrap();
        // As if the part in which it was counted had been read before that.
        begin(row);
        row.not_ended(0);
        row.end(1);
        let (counts, in_flight, _) = row.read(false);
        assert_eq!((&counts.ends[..2], counts.ended(), in_flight), (&[0, 1][..], 1, 0));
    }

    #[test]
    fn those_that_are_looked_at_stand_for_all_and_follow_no_pattern() {
        const CALLS: u64 = 200_000;
        let part = RowPart::default();
        let mut sum = 0u64;
        let mut at = Vec::new();
        for call in 0..CALLS {
            if let Some(weight) = part.begin(64, true).weight() {
                sum += u64::from(weight);
                at.push(call);
            }
        }
        assert!(at.starts_with(&(0..20).collect::<Vec<_>>()), "all of the first ones");
        assert!(CALLS - sum < 128, "{sum}");
        let looked = at.len() as u64;
        assert!((CALLS / 80..CALLS / 50).contains(&looked), "{looked} of {CALLS}");
        // Whatever repeats itself is seen in each of its phases.
        for period in [2, 3, 4, 7, 8, 16, 60, 64] {
            let mut phases = vec![0u64; period];
            at.iter().for_each(|call| phases[*call as usize % period] += 1);
            let fair = looked / period as u64;
            let seen = phases.iter().all(|count| (fair / 3..fair * 3).contains(count));
            assert!(seen, "period {period}: {phases:?}");
        }
        let all = RowPart::default();
        assert!((0..1000).all(|_| all.begin(1, true).weight == 1));
        let none = RowPart::default();
        assert!((0..1000).all(|_| none.begin(0, true).weight == 0));
        assert_eq!(none.begin(256, true).weight, 1, "not for ever");
    }
}
