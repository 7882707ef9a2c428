//! The shards that sleep, for those that have something to give away. Nothing but atomics, so that
//! `loom-tests` can include this file.
//!
//! | a shard is about to sleep | one that gives something away |
//! |---|---|
//! | [`begin`](RestingShards::begin): count, flag, fence | makes it visible |
//! | looks for what is given away, and sleeps if there is nothing | [`claim`](RestingShards::claim): fence, count, flags; wakes who was claimed |
//!
//! The fences forbid that both miss the other's store. A shard is claimed once for each of its
//! sleeps, so that of many things each wakes another shard.

use prim::OwnLine;
use prim::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};

/// Which shards of an instance sleep.
#[derive(Debug)]
pub(crate) struct RestingShards {
    /// Read by those who give something away; written when a shard falls asleep or wakes up.
    count: OwnLine<AtomicUsize>,
    flags: Box<[AtomicBool]>,
}

impl RestingShards {
    pub(crate) fn new(shards: usize) -> Self {
        let flags = (0..shards).map(|_| AtomicBool::new(false)).collect();
        Self { count: OwnLine(AtomicUsize::new(0)), flags }
    }

    /// `shard` is about to sleep. It looks once more afterwards, and stays awake if there is
    /// something.
    pub(crate) fn begin(&self, shard: usize) {
        // First: the count is never less than the flags.
        self.count.0.fetch_add(1, Ordering::Relaxed);
        // Not a store: loom would let a swap that came before it win.
        self.flags[shard].swap(true, Ordering::Relaxed);
        fence(Ordering::SeqCst); // pair: RESTING
    }

    /// `shard` sleeps no more, or did not.
    pub(crate) fn end(&self, shard: usize) {
        _ = self.take(shard);
    }

    /// Returns a shard that sleeps, and that nobody else wakes; the caller does. It has made
    /// visible before what is given away.
    #[inline]
    pub(crate) fn claim(&self) -> Option<usize> {
        fence(Ordering::SeqCst); // pair: RESTING
        if self.count.0.load(Ordering::Relaxed) == 0 { None } else { self.search() }
    }

    #[cold]
    fn search(&self) -> Option<usize> {
        (0..self.flags.len()).find(|shard| self.take(*shard))
    }

    fn take(&self, shard: usize) -> bool {
        let flag = &self.flags[shard];
        let is_taken = flag.load(Ordering::Relaxed) && flag.swap(false, Ordering::Relaxed);
        if is_taken {
            self.count.0.fetch_sub(1, Ordering::Relaxed);
        }
        is_taken
    }
}
