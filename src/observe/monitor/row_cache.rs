//! The rows that an OS thread has found lately, so that it finds its counters in them again with a
//! look at one place and no pointer to follow but the last.
//!
//! Each thread that has a number of its own (`slot.rs`) has places of its own, which no other
//! thread reads or writes. The next thread with that number goes on with them; the hand-over of the
//! number orders the accesses of the two.
//!
//! The row `rpc.sm.rtt.stats` shows all that counting costs a call, both ends together: 10 ns
//! between near cores, 15 ns between far ones (docs/performance.md). Without this cache, which
//! saves three loads of which each waits for the one before, that row is 1.7 % slower (two near
//! cores of an EPYC).

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use super::rows::{Key, RowPart};

/// Places of a thread. One key takes another one's place, which costs that a search.
const PLACES: usize = 32;

/// A key, and the counters of its row.
#[derive(Debug, Default)]
#[repr(align(32))]
struct CachedRow {
    id: AtomicU64,
    parent: AtomicU64,
    peer: AtomicU64,
    /// Null: free.
    part: AtomicPtr<RowPart>,
}

/// The places of all threads, in one table of rows.
#[derive(Debug)]
pub(super) struct RowCache(Box<[[CachedRow; PLACES]]>);

impl RowCache {
    /// For so many numbers, which are of one thread each.
    pub(super) fn new(numbers: usize) -> Self {
        Self((0..numbers).map(|_| Default::default()).collect())
    }

    #[inline]
    fn place(&self, number: usize, key: Key) -> Option<&CachedRow> {
        Some(&self.0.get(number)?[(key.hash() >> (64 - PLACES.ilog2())) as usize])
    }

    /// The counters that were noted for `key` by the thread of that number, which is the caller or
    /// beyond all of them.
    #[inline]
    pub(super) fn find(&self, number: usize, key: Key) -> Option<&RowPart> {
        let place = self.place(number, key)?;
        let is_it = place.id.load(Ordering::Relaxed) == key.id
            && place.parent.load(Ordering::Relaxed) == key.parent
            && place.peer.load(Ordering::Relaxed) == key.peer;
        let part = if is_it { place.part.load(Ordering::Relaxed) } else { ptr::null_mut() };
        // SAFETY:
        // - null, or a part: only `note` writes it, before in this thread or in one whose end is
        //   ordered before this (module documentation), and so with the key that belongs to it;
        // - alive, never `&mut`: whoever notes it promises that until the end of `self`.
        unsafe { part.as_ref() }
    }

    /// Notes counters for `key`, if the caller, whose number this is, has places.
    ///
    /// # Safety
    ///
    /// `part` stays where it is, and is only shared, for as long as `self` is.
    pub(super) unsafe fn note(&self, number: usize, key: Key, part: &RowPart) {
        if let Some(place) = self.place(number, key) {
            place.id.store(key.id, Ordering::Relaxed);
            place.parent.store(key.parent, Ordering::Relaxed);
            place.peer.store(key.peer, Ordering::Relaxed);
            place.part.store(ptr::from_ref(part).cast_mut(), Ordering::Relaxed);
        }
    }
}
