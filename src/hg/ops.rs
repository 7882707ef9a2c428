//! Operations in flight, and how the network's completions find them.
//!
//! An operation of this layer is several of the network's: a call is a send and a receive, perhaps
//! a get of a long result. Each of them carries a 64-bit [`na::OpId`] that names the operation
//! (slot and generation) and its [`Role`] in it; a completion whose operation is gone finds nobody.
//!
//! # Tags
//!
//! A tag pairs a response with its request. Tags count up from a random number: random, because the
//! acknowledgements of overflows travel under the *peer's* tags (Mercury's protocol has no separate
//! space for them), and two sides that both count from zero would soon have the same tag in both
//! directions. A tag is never that of another call in flight, however long that has been waiting:
//! see [`Tags`].

use std::hash::{BuildHasher, Hasher, RandomState};

use na::{OpId, Tag};

/// Names an operation in flight for [`Core::cancel`](super::Core::cancel).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpRef {
    index: u32,
    generation: u32,
}

/// What a network operation is to the operation that it belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// The receive of a request; belongs to no operation.
    Request,
    /// A send that nobody waits for; belongs to no operation.
    Loose,
    /// The send of a request or of a response.
    Send,
    /// The receive of a response.
    Reply,
    /// The receive of an acknowledgement.
    Ack,
    /// The get of an overflowed payload.
    Fetch,
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
            Self::Reply => 3,
            Self::Ack => 4,
            Self::Fetch => 5,
            Self::Piece(index) => Self::PIECES + u64::from(index),
        }
    }

    fn from_number(number: u64) -> Option<Self> {
        Some(match number {
            0 => Self::Request,
            1 => Self::Loose,
            2 => Self::Send,
            3 => Self::Reply,
            4 => Self::Ack,
            5 => Self::Fetch,
            number => Self::Piece(u8::try_from(number.checked_sub(Self::PIECES)?).ok()?),
        })
    }
}

/// Most operations in flight: what the index in an [`OpId`] can tell apart.
pub(super) const OPS_MAX: usize = 1 << 24;

impl OpRef {
    /// Names no operation. For operations that are over before their caller knows them.
    pub(super) const NONE: Self = Self { index: u32::MAX, generation: 0 };

    /// The name of the next operation in the slot of this one.
    #[cfg(test)]
    pub(super) fn reused(self) -> Self {
        Self { generation: self.generation.wrapping_add(1), ..self }
    }

    /// The network's name of a part of this operation.
    pub(super) fn part(self, role: Role) -> OpId {
        let index = u64::from(self.index) & (OPS_MAX as u64 - 1);
        OpId(role.number() << 56 | index << 32 | u64::from(self.generation))
    }

    /// The `count`th network operation that belongs to none.
    pub(super) fn single(role: Role, count: u64) -> OpId {
        OpId(role.number() << 56 | count & ((1 << 56) - 1))
    }

    /// The reverse of [`part`](Self::part).
    pub(super) fn parse(id: OpId) -> (Self, Option<Role>) {
        let index = ((id.0 >> 32) & (OPS_MAX as u64 - 1)) as u32;
        (Self { index, generation: id.0 as u32 }, Role::from_number(id.0 >> 56))
    }
}

/// Slots for operations, reused; last freed, first used.
#[derive(Debug)]
pub(super) struct Slab<O> {
    slots: Vec<Slot<O>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Slot<O> {
    generation: u32,
    op: Option<O>,
}

impl<O> Slab<O> {
    pub(super) const fn new() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }

    /// Operations in it.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Adds an operation; gives it back when there is no name for it.
    pub(super) fn insert(&mut self, op: O) -> Result<OpRef, O> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.slots.len() == OPS_MAX => return Err(op),
            None => {
                self.slots.push(Slot { generation: 0, op: None });
                (self.slots.len() - 1) as u32
            }
        };
        let slot = &mut self.slots[index as usize];
        slot.generation = slot.generation.wrapping_add(1);
        slot.op = Some(op);
        Ok(OpRef { index, generation: slot.generation })
    }

    pub(super) fn get_mut(&mut self, op: OpRef) -> Option<&mut O> {
        let slot = self.slots.get_mut(op.index as usize)?;
        slot.op.as_mut().filter(|_| slot.generation == op.generation)
    }

    pub(super) fn remove(&mut self, op: OpRef) -> Option<O> {
        self.get_mut(op)?;
        self.free.push(op.index);
        self.slots[op.index as usize].op.take()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (OpRef, &O)> {
        self.slots.iter().zip(0..).filter_map(|(slot, index)| {
            let op = slot.op.as_ref()?;
            Some((OpRef { index, generation: slot.generation }, op))
        })
    }
}

/// Chooses tags.
///
/// Calls are numbered in 64 bits; a tag is the lower half of a number. So two calls in flight have
/// the same tag only if their numbers differ by a multiple of 2^32. Up to `safe_until` no number
/// can do that; there the calls in flight are looked through, once in up to 2^32 calls, for those
/// that the next numbers could collide with.
#[derive(Debug)]
pub(super) struct Tags {
    next: u64,
    safe_until: u64,
}

/// Numbers that share a tag are this far apart.
const TAG_SPACE: u64 = 1 << 32;

impl Tags {
    pub(super) fn new() -> Self {
        Self::starting_at(RandomState::new().build_hasher().finish() & (TAG_SPACE - 1))
    }

    pub(super) const fn starting_at(next: u64) -> Self {
        Self { next, safe_until: next + TAG_SPACE }
    }

    /// The number of a new call. `in_flight` gives those of the calls in flight.
    pub(super) fn next<I: Iterator<Item = u64>>(&mut self, in_flight: impl Fn() -> I) -> u64 {
        loop {
            let number = self.next;
            self.next += 1;
            if number < self.safe_until {
                return number;
            }
            // The first number from `number` on that has the same tag as `other`.
            let collision = |other: u64| number + other.wrapping_sub(number) % TAG_SPACE;
            let end = number + TAG_SPACE;
            self.safe_until = in_flight().map(collision).min().unwrap_or(end);
            if number < self.safe_until {
                return number;
            }
            self.safe_until = self.next;
        }
    }
}

/// The tag of the call of that number.
pub(super) const fn tag_of(number: u64) -> Tag {
    Tag(number as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_survive_the_network_and_do_not_outlive_their_operation() {
        let mut slab = Slab::new();
        let first = slab.insert('a').unwrap();
        for role in [Role::Send, Role::Reply, Role::Ack, Role::Fetch, Role::Piece(31)] {
            assert_eq!(OpRef::parse(first.part(role)), (first, Some(role)));
        }
        assert_eq!(slab.remove(first), Some('a'));
        let second = slab.insert('b').unwrap();
        assert_eq!(first.index, second.index, "the slot is reused");
        assert!(slab.get_mut(first).is_none() && slab.remove(first).is_none());
        assert_eq!(slab.get_mut(second), Some(&mut 'b'));
        assert_eq!((slab.len(), slab.iter().count()), (1, 1));
        assert!(slab.get_mut(OpRef::NONE).is_none());
    }

    #[test]
    fn a_tag_is_not_reused_while_its_call_waits() {
        let mut tags = Tags::starting_at(10);
        let waiting = [10, 11, 13];
        let in_flight = || waiting.into_iter();
        for expected in 10..14 {
            assert_eq!(tags.next(in_flight), expected);
        }
        tags.next = 10 + TAG_SPACE;
        let numbers: Vec<_> = (0..3).map(|_| tags.next(in_flight) - TAG_SPACE).collect();
        assert_eq!(numbers, [12, 14, 15]);
        assert_eq!(tags.safe_until, 10 + 2 * TAG_SPACE, "and then none for long");
    }

    #[test]
    fn tags_start_at_random() {
        let starts: std::collections::HashSet<_> = (0..8).map(|_| Tags::new().next).collect();
        assert!(starts.len() > 1);
    }
}
