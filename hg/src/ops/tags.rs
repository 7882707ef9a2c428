//! Tags, which pair a response with its request.
//!
//! Tags count up from a random number: random, because the
//! acknowledgements of overflows travel under the *peer's* tags (Mercury's protocol has no separate
//! space for them), and two sides that both count from zero would soon have the same tag in both
//! directions. A tag is never that of another call in flight, however long that has been waiting:
//! see [`Tags`]. It also says which shard a request is for: see [`Space`].

use std::hash::{BuildHasher, Hasher, RandomState};

use na::Tag;

/// Chooses tags of one [`Space`].
///
/// Calls are numbered in 64 bits; a tag has the lower bits of a number. So two calls in flight have
/// the same tag only if their numbers differ by a multiple of the space. Up to `safe_until` no
/// number can do that; there the calls in flight are looked through, once in as many calls as the
/// space is wide, for those that the next numbers could collide with.
#[derive(Debug)]
pub(crate) struct Tags {
    space: u64,
    next: u64,
    safe_until: u64,
}

impl Tags {
    pub(crate) fn new(space: u64) -> Self {
        Self::starting_at(RandomState::new().build_hasher().finish() % space, space)
    }

    pub(crate) const fn starting_at(next: u64, space: u64) -> Self {
        Self { space, next, safe_until: next + space }
    }

    /// No call has this number or a higher one yet.
    pub(crate) fn upcoming(&self) -> u64 {
        self.next
    }

    /// The number of a new call. `in_flight` gives those of the calls in flight.
    ///
    /// # Errors
    ///
    /// All tags belong to calls in flight: how many there are.
    #[inline]
    pub(crate) fn next<I: Iterator<Item = u64>>(
        &mut self,
        in_flight: impl FnOnce() -> I,
    ) -> Result<u64, usize> {
        if self.next < self.safe_until {
            self.next += 1;
            return Ok(self.next - 1);
        }
        self.search(in_flight())
    }

    /// The first number whose tag is free, and how many after it have free ones.
    #[cold]
    fn search(&mut self, in_flight: impl Iterator<Item = u64>) -> Result<u64, usize> {
        // How far from here the tags are that are taken.
        let steps = |other: u64| other.wrapping_sub(self.next) % self.space;
        let mut taken: Vec<u64> = in_flight.map(steps).collect();
        taken.sort_unstable();
        taken.dedup();
        let first = (0..).zip(&taken).take_while(|(step, taken)| step == *taken).count();
        if first as u64 == self.space {
            return Err(first);
        }
        let end = taken.get(first).copied().unwrap_or(self.space);
        let number = self.next + first as u64;
        (self.safe_until, self.next) = (self.next + end, number + 1);
        Ok(number)
    }
}

/// How the 32 bits of a tag are shared.
///
/// | bit 31 | bits 24–30 | the rest |
/// |---|---|---|
/// | 1: for no certain shard | shard of the origin, number | number |
/// | 0 | shard at the target | shard of the origin, number |
///
/// Mercury calls the shard at the target a context, and has no field for it: there it is part of
/// the network's address. The shards of an origin take as many bits as there are shards, so that
/// their tags differ, also for peers that take all of their connections for one; those that are
/// added later have peers that do not. Tags of C peers count from 0, so without such bits they ask
/// for context 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Space {
    shard: u8,
    shard_bits: u32,
}

const ANY_TARGET: u32 = 1 << 31;

const TARGET_AT: u32 = 24;

impl Space {
    /// The tags of one of so many shards.
    pub(crate) const fn new(shard: u8, shards: usize) -> Self {
        Self { shard, shard_bits: shards.next_power_of_two().ilog2() }
    }

    /// Numbers of calls to no certain shard, or to a certain one.
    pub(crate) const fn width(self, targeted: bool) -> u64 {
        1 << (if targeted { TARGET_AT } else { 31 } - self.shard_bits)
    }

    /// The tag of the call of that number.
    #[inline]
    pub(crate) const fn tag(self, number: u64, target: Option<u8>) -> Tag {
        let width = self.width(target.is_some());
        let low = number as u32 & (width - 1) as u32;
        let origin = self.shard as u32 * width as u32;
        Tag(match target {
            None => ANY_TARGET | origin | low,
            Some(target) => (target as u32) << TARGET_AT | origin | low,
        })
    }
}

/// The shard that a request with that tag is for, if it is for a certain one.
#[inline]
pub(crate) const fn target_of(tag: Tag) -> Option<u8> {
    if tag.0 & ANY_TARGET != 0 { None } else { Some((tag.0 >> TARGET_AT) as u8) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPACE: u64 = 1 << 31;

    #[test]
    fn a_tag_is_not_reused_while_its_call_waits() {
        let mut tags = Tags::starting_at(10, SPACE);
        let waiting = [10, 11, 13];
        let in_flight = || waiting.into_iter();
        for expected in 10..14 {
            assert_eq!(tags.next(in_flight), Ok(expected));
        }
        tags.next = 10 + SPACE;
        let numbers: Vec<_> = (0..3).map(|_| tags.next(in_flight).unwrap() - SPACE).collect();
        assert_eq!(numbers, [12, 14, 15]);
        assert_eq!(tags.safe_until, 10 + 2 * SPACE, "and then none for long");
    }

    #[test]
    fn without_a_free_tag_there_is_no_call() {
        let mut tags = Tags::starting_at(3, 4);
        let mut waiting: Vec<u64> = (0..4).map(|_| tags.next(std::iter::empty).unwrap()).collect();
        assert_eq!(waiting, [3, 4, 5, 6]);
        for _ in 0..2 {
            assert_eq!(tags.next(|| waiting.iter().copied()), Err(4));
        }
        // The one of 5.
        waiting.remove(2);
        let again = tags.next(|| waiting.iter().copied()).unwrap();
        assert_eq!(again, 5 + 4);
        waiting.push(again);
        assert_eq!(tags.next(|| waiting.iter().copied()), Err(4));
    }

    #[test]
    fn tags_name_the_shard_and_differ_between_shards() {
        let spaces = [(0, 1), (0, 3), (2, 3), (127, 128)].map(|(own, all)| Space::new(own, all));
        for space in spaces {
            assert_eq!(target_of(space.tag(u64::MAX, None)), None);
            for target in [0, 1, 127] {
                assert_eq!(target_of(space.tag(u64::MAX, Some(target))), Some(target));
            }
        }
        let tags = |space: Space| [0, 1, u64::MAX].map(|number| space.tag(number, Some(5)).0);
        let (first, third) = (tags(spaces[1]), tags(spaces[2]));
        assert!(first.iter().all(|tag| !third.contains(tag)));
        assert_eq!(spaces[0].width(false), 1 << 31);
    }

    #[test]
    fn tags_start_at_random() {
        let starts: std::collections::HashSet<_> = (0..8).map(|_| Tags::new(SPACE).next).collect();
        assert!(starts.len() > 1);
    }
}
