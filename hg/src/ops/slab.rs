//! Operations in flight, and how the network's completions find them.
//!
//! An operation of this layer is several of the network's: a call is a send and a receive, perhaps
//! a get of a long result. Each of them carries a 64-bit [`na::OpId`] that names the operation
//! (slot and generation) and its [`Role`] in it. A completion whose operation is gone is ignored.

use na::OpId;

/// Names an operation in flight for [`Core::cancel`](crate::Core::cancel).
///
/// ```
/// # use hg::*;
/// # #[derive(Default)]
/// # struct Notes { requests: Vec<RequestHandle<u32>>, ended: Vec<Result<Response, HgError>> }
/// # impl Sink<u32> for Notes {
/// #     fn request(&mut self, request: RequestHandle<u32>) { self.requests.push(request); }
/// #     fn response(&mut self, _: u32, end: Result<Response, HgError>) { self.ended.push(end); }
/// #     fn responded(&mut self, _: u32, _: Result<(), HgError>) {}
/// #     fn bulk(&mut self, _: u32, _: Result<u64, HgError>) {}
/// # }
/// # let mut notes = Notes::default();
/// # let endpoint = na::open("na+sim://doc-op-ref/a", &na::OpenOptions::listening(true))?;
/// # let core = Core::<u32>::new(endpoint, HgOptions::default())?;
/// # let own = core.self_addr();
/// # let id = core.register(Registration::margo("sum", ProviderId::DEFAULT))?;
/// let call: OpRef = core
///     .forward(&own, id, ForwardOptions::default(), |_| Ok(()), 7)
///     .map_err(|refused| refused.0)?;
/// core.cancel(call);
/// while notes.ended.is_empty() {
///     core.poll(16, &mut notes)?;
/// }
/// assert!(matches!(notes.ended[0], Err(HgError::Canceled)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
// One word, the lower part of an `OpId`: parts of a word that are written one by one have to be
// waited for when it is read as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct OpRef(u64);

/// The part that a network operation plays in the operation that it belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// The receive of a request; belongs to no operation.
    Request,
    /// A send whose end is not waited for; belongs to no operation.
    Loose,
    /// The send of a request or of a response.
    Send,
    /// The receive of a response.
    Response,
    /// The receive of an acknowledgement.
    Ack,
    /// The get of an overflowed payload.
    Fetch,
    /// A receive that ends with the peer; belongs to no operation.
    Watch,
    /// A part of a bulk transfer: which of those in flight.
    Piece(u8),
}

impl Role {
    const PIECES: u64 = 16;

    fn number(self) -> u64 {
        match self {
            Self::Request => 0,
            Self::Loose => 1,
            Self::Send => 2,
            Self::Response => 3,
            Self::Ack => 4,
            Self::Fetch => 5,
            Self::Watch => 6,
            Self::Piece(index) => Self::PIECES + u64::from(index),
        }
    }

    fn from_number(number: u64) -> Option<Self> {
        Some(match number {
            0 => Self::Request,
            1 => Self::Loose,
            2 => Self::Send,
            3 => Self::Response,
            4 => Self::Ack,
            5 => Self::Fetch,
            6 => Self::Watch,
            number => Self::Piece(u8::try_from(number.checked_sub(Self::PIECES)?).ok()?),
        })
    }
}

/// Most operations in flight in one shard: what the index in an [`OpId`] can tell apart.
pub(crate) const OPS_MAX: usize = 1 << INDEX_BITS;

// Layout of an `OpId`, from the top: role, shard, index, generation. An `OpRef` has no role.
const INDEX_BITS: u32 = 22;
const GENERATION_BITS: u32 = 28;
const SHARD_AT: u32 = INDEX_BITS + GENERATION_BITS;
const ROLE_AT: u32 = SHARD_AT + SHARD_BITS;

/// Shards are named by so many bits.
const SHARD_BITS: u32 = 7;

/// Most shards of a group.
pub(crate) const SHARDS_MAX: usize = 1 << SHARD_BITS;

const fn mask(bits: u32) -> u64 {
    (1 << bits) - 1
}

impl OpRef {
    /// Names no operation. For operations that are over before their caller knows them.
    pub const NONE: Self = Self(u64::MAX);

    #[inline]
    fn new(shard: u8, index: usize, generation: u64) -> Self {
        let place = u64::from(shard) << SHARD_AT | (index as u64) << GENERATION_BITS;
        Self(place | generation & mask(GENERATION_BITS))
    }

    #[inline]
    fn index(self) -> usize {
        (self.0 >> GENERATION_BITS & mask(INDEX_BITS)) as usize
    }

    /// The name of the next operation in the slot of this one.
    #[inline]
    pub(crate) fn reused(self) -> Self {
        let place = self.0 & !mask(GENERATION_BITS);
        Self(place | self.0.wrapping_add(1) & mask(GENERATION_BITS))
    }

    /// The network's name of a part of this operation.
    #[inline]
    pub(crate) fn part(self, role: Role) -> OpId {
        OpId(role.number() << ROLE_AT | self.0 & mask(ROLE_AT))
    }

    /// The `count`th network operation of a shard that belongs to no operation.
    #[inline]
    pub(crate) fn single(role: Role, shard: u8, count: u64) -> OpId {
        let shard = u64::from(shard) << SHARD_AT;
        OpId(role.number() << ROLE_AT | shard | count & mask(SHARD_AT))
    }

    /// The reverse of [`part`](Self::part).
    #[inline]
    pub(crate) fn parse(id: OpId) -> (Self, Option<Role>) {
        (Self(id.0 & mask(ROLE_AT)), Role::from_number(id.0 >> ROLE_AT))
    }

    /// All of it.
    #[inline]
    pub(crate) fn number(self) -> u64 {
        self.0
    }

    /// Returns the number of the shard that it belongs to.
    #[inline]
    pub fn shard(self) -> u8 {
        (self.0 >> SHARD_AT & mask(SHARD_BITS)) as u8
    }
}

/// Slots for operations, reused; last freed, first used.
#[derive(Debug)]
pub(crate) struct Slab<O> {
    shard: u8,
    slots: Vec<OpSlot<O>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct OpSlot<O> {
    /// The name of the operation in this slot, or of the last one.
    name: OpRef,
    op: Option<O>,
}

impl<O> Slab<O> {
    /// The slots of a shard.
    pub(crate) const fn new(shard: u8) -> Self {
        Self { shard, slots: Vec::new(), free: Vec::new() }
    }

    /// Operations in it.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Returns whether there is no name for one more.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.free.is_empty() && self.slots.len() >= OPS_MAX
    }

    /// Adds an operation, unless the slab [is full](Self::is_full).
    // Inlined, so that it is made in its slot.
    #[inline(always)]
    pub(crate) fn insert(&mut self, op: O) -> OpRef {
        if let Some(index) = self.free.pop()
            && let Some(slot) = self.slots.get_mut(index as usize)
        {
            slot.name = slot.name.reused();
            slot.op = Some(op);
            return slot.name;
        }
        let name = OpRef::new(self.shard, self.slots.len(), 1);
        self.slots.push(OpSlot { name, op: Some(op) });
        name
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, op: OpRef) -> Option<&mut O> {
        let slot = self.slots.get_mut(op.index())?;
        slot.op.as_mut().filter(|_| slot.name == op)
    }

    #[inline]
    pub(crate) fn remove(&mut self, op: OpRef) -> Option<O> {
        self.get_mut(op)?;
        self.free.push(op.index() as u32);
        self.slots[op.index()].op.take()
    }

    /// Removes an operation that is there and owns nothing any more; it is not dropped.
    #[inline]
    pub(crate) fn forget(&mut self, op: OpRef) {
        if let Some(slot) = self.slots.get_mut(op.index()) {
            std::mem::forget(slot.op.take());
            self.free.push(op.index() as u32);
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (OpRef, &O)> {
        self.slots.iter().filter_map(|slot| Some((slot.name, slot.op.as_ref()?)))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (OpRef, &mut O)> {
        self.slots.iter_mut().filter_map(|slot| Some((slot.name, slot.op.as_mut()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_survive_the_network_and_do_not_outlive_their_operation() {
        let mut slab = Slab::new(3);
        let first = slab.insert('a');
        for role in [Role::Send, Role::Response, Role::Ack, Role::Fetch, Role::Piece(111)] {
            assert_eq!(OpRef::parse(first.part(role)), (first, Some(role)));
        }
        assert_eq!(slab.remove(first), Some('a'));
        let second = slab.insert('b');
        assert_eq!(first.index(), second.index(), "the slot is reused");
        assert!(slab.get_mut(first).is_none() && slab.remove(first).is_none());
        assert_eq!(slab.get_mut(second), Some(&mut 'b'));
        assert_eq!((slab.len(), slab.iter().count()), (1, 1));
        assert!(slab.get_mut(OpRef::NONE).is_none());
        assert_eq!(first.shard(), 3);
    }
}
