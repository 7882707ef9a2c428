//! The description of a pool: its kind, the access to it, and the trait of pools that the program
//! makes.

use std::fmt;

use crate::engine::unit::handle::Unit;

/// The reason why a unit becomes runnable; a pool may order units by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PushReason {
    /// It has just been spawned.
    Create,
    /// It yielded.
    Yield,
    /// It had been suspended and was resumed.
    Resume,
    /// It came from another pool.
    Migrate,
}

/// The party that asks a pool for a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PopBy {
    /// An xstream whose scheduler serves the pool in its normal order.
    Owner,
    /// An xstream that has run out of work elsewhere and steals.
    Thief,
}

/// A queue of runnable units, for users who want their own order.
///
/// A pool that is served by one xstream gets all units; one that is served by several gets only
/// unstarted ones. Methods are called by many threads, on the stack of a ULT or of an xstream. They
/// cannot suspend, [`push`](Self::push) included: in there [`current`](crate::current()) knows no
/// unit, and what waits, for a [`Mutex`](crate::Mutex) of this crate or for anything else, blocks
/// the whole xstream. So they must not wait for units. Do not drop units (see [`Unit`]).
///
/// # Panics
///
/// A panic of a method, or of the destructor, ends there and is logged as an error (of one pool the
/// first, the second, the fourth and so on): the party that spawned, resumed or moved the unit, or
/// that runs next, does not notice. The runtime goes on as well as it can, with the pool in place:
///
/// | method | what becomes of the units |
/// |---|---|
/// | `push` | The unit is the pool's if the pool has kept it. If the unwinding drops it, a ULT that has started goes on in the list of its xstream, past the pool, and a unit that has not is lost: a `spawn` has succeeded, and `join` reports [`JoinError::Lost`](crate::JoinError::Lost). |
/// | `pop` | Nothing comes out; a unit that the unwinding drops fares as above. After 16 panics in a row it is called when units have been pushed, or an xstream is awake anyway. |
/// | `len`, `is_empty` | Neither is called again. The runtime takes the pool for non-empty from each push on until a pop finds nothing, and shows a length of zero. |
/// | `for_each` | The units that have been shown are all that are listed. |
///
/// A pool that locks by `lock().unwrap()` panics for ever after its first panic, and the units in
/// it never run: take the content of a poisoned lock.
///
/// Counterpart: `ABT_pool_user_def`.
pub trait Pool: Send + Sync {
    /// Makes `unit` runnable.
    fn push(&self, unit: Unit, why: PushReason);
    /// Takes the next unit by this pool's own order.
    fn pop(&self, who: PopBy) -> Option<Unit>;
    /// Number of queued units. After a `push` has returned, and until the unit is popped, this must
    /// not be zero: xstreams look at it before they sleep.
    fn len(&self) -> usize;
    /// Returns whether nothing is queued.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Makes several units runnable, the first one first. Default: one after the other.
    fn push_many(&self, units: &mut dyn Iterator<Item = Unit>, why: PushReason) {
        units.for_each(|unit| self.push(unit, why));
    }
    /// Appends up to `max` units to `into`. Default: one after the other.
    fn pop_many(&self, max: usize, who: PopBy, into: &mut Vec<Unit>) {
        for _ in 0..max {
            let Some(unit) = self.pop(who) else { return };
            into.push(unit);
        }
    }
    /// Shows the queued units, for debugging. Default: none.
    fn for_each(&self, see: &mut dyn FnMut(&Unit)) {
        let _ = see;
    }
}

/// The kinds of pool that come with the runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum PoolKind {
    /// First in, first out. `fifo` in a Margo configuration.
    Fifo,
    /// Behaves like [`Fifo`](Self::Fifo); the name exists because C Margo has two. `fifo_wait`
    /// there.
    #[default]
    FifoWait,
    /// Two queues: ULTs that have run before go first, so that started work ends before new work
    /// begins. A ULT that came back 25 times counts as new, and every 256th pop prefers new
    /// ones. `prio_wait` in a Margo configuration.
    ///
    /// That is so where one xstream serves the pool. Where several do, a ULT that has started stays
    /// on its xstream, which takes those and new ones in turn, while there are new ones.
    ///
    /// New ones go by their [`Priority`](crate::Priority), and in order among equals; every 8th of
    /// them is taken from those of normal priority first, and every 64th from those of low
    /// priority, so that nobody waits for ever.
    PrioWait,
    /// The unit that was spawned first goes first, so that started work ends before new work
    /// begins. ULTs that came back 32 times wait in a FIFO instead; pops take from heap and FIFO in
    /// turn. Age goes by the number of the unit, which grows with time among the spawns of one
    /// xstream. Where several xstreams serve the pool, each takes ULTs that have started there and
    /// new ones in turn. `earliest_first` in a Margo configuration.
    EarliestFirst,
    /// A work-stealing deque. The xstream that names the pool first in its list runs the unit that
    /// was spawned last, others that name it steal the one that was spawned first. For many small
    /// units that spawn each other; use it with [`RandWs`](crate::RandWs). Walks do not show its
    /// content.
    RandWs,
    /// Made with [`PoolSpec::custom`].
    Custom,
}

/// The parties that may use a pool; a promise by the user that saves locks.
///
/// Counterpart: `ABT_pool_access`, whose promises are not checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Access {
    /// One xstream spawns into the pool and serves it. No atomic operation is needed. A spawn by
    /// anybody else works in release builds, and panics in debug builds.
    Private,
    /// One xstream serves it, one thread spawns. Not checked further than [`Mpsc`](Self::Mpsc).
    Spsc,
    /// One xstream serves it, anybody spawns. A second xstream is refused.
    Mpsc,
    /// Several xstreams serve it, one thread spawns. Treated like [`Mpmc`](Self::Mpmc).
    Spmc,
    /// No promise. As long as one xstream serves the pool, it costs as little as `Mpsc`.
    #[default]
    Mpmc,
}

impl Access {
    /// Returns whether only one xstream may serve the pool.
    #[must_use]
    pub fn is_single_consumer(self) -> bool {
        matches!(self, Self::Private | Self::Spsc | Self::Mpsc)
    }
}

/// The description of a pool to be made; see [`RuntimeBuilder::pool`](crate::RuntimeBuilder::pool).
pub struct PoolSpec {
    pub(crate) name: String,
    pub(crate) kind: PoolKind,
    pub(crate) access: Access,
    pub(crate) stack_bytes: Option<usize>,
    pub(crate) numa_node: Option<u32>,
    pub(crate) custom: Option<Box<dyn Pool>>,
}

impl PoolSpec {
    /// A pool of the default kind ([`PoolKind::FifoWait`]).
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            kind: PoolKind::default(),
            access: Access::default(),
            stack_bytes: None,
            numa_node: None,
            custom: None,
        }
    }

    /// A pool of the user's own making.
    pub fn custom(name: impl Into<String>, pool: Box<dyn Pool>) -> Self {
        Self { kind: PoolKind::Custom, custom: Some(pool), ..Self::new(name) }
    }

    /// Chooses the kind. Without effect on a custom pool.
    #[must_use]
    pub fn kind(mut self, kind: PoolKind) -> Self {
        if self.custom.is_none() && kind != PoolKind::Custom {
            self.kind = kind;
        }
        self
    }

    /// Promises which parties will use the pool. Default: [`Access::Mpmc`], no promise.
    #[must_use]
    pub fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }

    /// Stack size in bytes of ULTs that are spawned into this pool, unless the spawn says
    /// otherwise. Default: that of the runtime.
    #[must_use]
    pub fn stack_bytes(mut self, bytes: usize) -> Self {
        self.stack_bytes = Some(bytes);
        self
    }

    /// NUMA node whose memory the stacks of this pool's ULTs shall use. Default: the node of the
    /// core that touches a stack first. If the system refuses, that is warned about once, and the
    /// default applies.
    #[must_use]
    pub fn numa_node(mut self, node: u32) -> Self {
        self.numa_node = Some(node);
        self
    }
}

impl fmt::Debug for PoolSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolSpec")
            .field("name", &self.name)
            .field("kind", &self.kind)
            .field("access", &self.access)
            .field("stack_bytes", &self.stack_bytes)
            .field("numa_node", &self.numa_node)
            .finish_non_exhaustive()
    }
}
