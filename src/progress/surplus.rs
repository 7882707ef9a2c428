//! Handlers that a shard with nothing to do takes from one that has many (`margo.share_from`).
//!
//! A handler goes to the pool of the shard where its request arrives, whose xstream alone touches
//! the list that it stands in. Where `share_from` units wait already, it goes to the queue of that
//! pool instead, behind them, and so do those that follow until the queue is empty. There the
//! xstream itself comes to it in its turn, or the progress ULT of another shard, which has nothing
//! else to run, takes it into its own pool: the oldest first, one at a time. A progress ULT that
//! sleeps is woken for it.
//!
//! The owner gives and others take, also while it is in the midst of a handler that does not yield:
//! at most `share_from` handlers wait where nobody else finds them. Requests that have come to a
//! shard and that its progress ULT has not seen yet are no handlers; they wait for it.
//!
//! A handler that was taken is one of the same request: its answer leaves by the shard where that
//! arrived, and it counts where it counted before. `resting_shards.rs` says why none is forgotten
//! beside a shard that sleeps.

use std::sync::OnceLock;

use margo_config::SHARDS_MAX;
use ult::PoolRef;

use crate::progress::resting_shards::RestingShards;

/// The handlers that may be taken, in the pools of the shards.
#[derive(Debug)]
pub(crate) struct Surplus {
    /// So many units stay where the owner of a pool alone finds them.
    share_from: usize,
    /// By shard, and the places of those that may be added.
    pools: Box<[OnceLock<PoolRef>]>,
    resting: RestingShards,
}

impl Surplus {
    /// `pools`: of the shards; `None`: their handlers run elsewhere.
    pub(crate) fn new(share_from: usize, pools: &[PoolRef]) -> Option<Box<Self>> {
        let place = |shard| pools.get(shard).cloned().map_or_else(OnceLock::new, OnceLock::from);
        let pools = (0..SHARDS_MAX).map(place).collect();
        let all = Self { share_from, pools, resting: RestingShards::new(SHARDS_MAX) };
        all.own(0).is_some().then(|| Box::new(all))
    }

    /// The next shard has its handlers in `pool`. One call at a time; the caller wakes the shard,
    /// which may sleep unknown.
    pub(crate) fn add(&self, pool: &PoolRef) {
        let is_next = |place: &&OnceLock<PoolRef>| place.get().is_none();
        if let Some(next) = self.pools.iter().find(is_next) {
            // It was empty, and nobody else fills one.
            let _ = next.set(pool.clone());
        }
    }

    /// The pool of a shard; `None`: the shard is not known yet.
    fn own(&self, shard: u8) -> Option<&PoolRef> {
        self.pools[usize::from(shard)].get()
    }

    /// Returns whether a handler that is made now for `pool`, which is that of a shard, may be
    /// taken from there.
    pub(crate) fn is_open(&self, pool: &PoolRef) -> bool {
        pool.has_backlog(self.share_from)
    }

    /// A shard that sleeps and that the caller is to wake, for a handler that may be taken.
    #[inline]
    pub(crate) fn to_wake(&self) -> Option<u8> {
        self.resting.claim().and_then(|shard| shard.try_into().ok())
    }

    /// Returns whether handlers wait behind those that stay at the shard, whose pool comes to them
    /// when nothing of its xstream's own waits.
    pub(crate) fn is_behind(&self, shard: u8) -> bool {
        self.own(shard).is_some_and(PoolRef::has_stealable)
    }

    /// Returns whether another shard has a handler that this one may take.
    pub(crate) fn is_there(&self, shard: u8) -> bool {
        self.others(shard).any(PoolRef::has_stealable)
    }

    /// Returns whether the caller, the progress ULT of `shard`, is in the pool of its handlers. If
    /// it has moved, another xstream runs those.
    pub(crate) fn may_take(&self, shard: u8) -> bool {
        self.own(shard).is_some_and(PoolRef::is_current)
    }

    /// Takes a handler of another shard; `false`: there is none. For the progress ULT of `shard`
    /// with nothing to do: its xstream runs the handler next.
    pub(crate) fn take(&self, shard: u8) -> bool {
        let Some(own) = self.own(shard).filter(|own| own.is_current()) else { return false };
        let Some(unit) = self.others(shard).find_map(PoolRef::steal) else { return false };
        // A pool with a unit in it is not removed, and the caller is one. Elsewhere the unit would
        // be dropped, and its request answered.
        own.push(unit).is_ok()
    }

    /// `shard` is about to sleep; `true`: it is not to, as there is a handler for it.
    pub(crate) fn begin_rest(&self, shard: u8) -> bool {
        self.resting.begin(shard.into());
        self.is_there(shard)
    }

    /// `shard` is awake again. Returns another shard that the caller is to wake: it may not be the
    /// one that takes what it was woken for.
    pub(crate) fn end_rest(&self, shard: u8) -> Option<u8> {
        self.resting.end(shard.into());
        if self.is_there(shard) { self.to_wake() } else { None }
    }

    /// The pools of the others. Each shard begins behind its own, so that not all come to one.
    fn others(&self, shard: u8) -> impl Iterator<Item = &PoolRef> {
        let (before, from) = self.pools.split_at(shard.into());
        // Places are filled in order.
        from[1..].iter().map_while(OnceLock::get).chain(before.iter().filter_map(OnceLock::get))
    }
}
