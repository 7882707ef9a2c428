//! Receives for many messages, whose senders may be near or far.
//!
//! The caller's receives stand in a queue here. Each endpoint is told to receive at least as many
//! messages as the queue has left, since all may come from one side. So the two together may bring
//! more. Messages beyond the queue are held until the caller receives more, and the next receive
//! posts fewer. Messages are handed on in the order in which the endpoints report them.

use std::collections::VecDeque;

use super::receives::Side;
use crate::{Arrival, Completion, Error, MsgBuf, OpId};

/// Numbers from here on name receives at the two endpoints; those before are of single ones.
pub(super) const FIRST: u64 = OpId::RESERVED.0 + (1 << 31);

#[derive(Debug, Default)]
pub(super) struct Many {
    queue: MultiReceives,
    sides: [MultiReceives; 2],
    held: VecDeque<(MsgBuf, Arrival)>,
    next: u64,
}

/// Receives in their order, each with the number of messages that it still takes.
#[derive(Debug, Default)]
struct MultiReceives(VecDeque<(OpId, usize)>);

/// A receive to be posted at a side, for so many messages.
pub(super) type Post = (Side, OpId, usize);

impl MultiReceives {
    fn left(&self) -> usize {
        self.0.iter().fold(0, |sum, (_, left)| sum.saturating_add(*left))
    }

    /// A message for the first one; its name.
    fn take_first(&mut self) -> Option<OpId> {
        let op = self.0.front()?.0;
        self.take_one(op);
        Some(op)
    }

    /// A message for the one of that name.
    fn take_one(&mut self, op: OpId) {
        if let Some(at) = self.0.iter().position(|posted| posted.0 == op) {
            self.0[at].1 -= 1;
            if self.0[at].1 == 0 {
                self.0.remove(at);
            }
        }
    }

    fn remove(&mut self, op: OpId) -> bool {
        let at = self.0.iter().position(|posted| posted.0 == op);
        at.and_then(|at| self.0.remove(at)).is_some()
    }
}

impl Many {
    /// Returns whether this is the name of one that was posted at a side.
    pub(super) fn is_ours(op: OpId) -> bool {
        op.0 >= FIRST
    }

    /// Queues `op`. Returns messages that waited for it, and what is to be posted.
    pub(super) fn add(&mut self, op: OpId, count: usize) -> (Vec<Completion>, Vec<Post>) {
        self.queue.0.push_back((op, count));
        let mut ended = Vec::new();
        while !self.held.is_empty()
            && let Some(op) = self.queue.take_first()
            && let Some((buf, arrival)) = self.held.pop_front()
        {
            ended.push(Completion::Recv { op, buf, result: Ok(arrival) });
        }
        let wanted = self.queue.left();
        let mut posts = Vec::new();
        for side in [Side::Near, Side::Far] {
            let posted = &mut self.sides[side as usize];
            let missing = wanted.saturating_sub(posted.left());
            if missing > 0 {
                self.next = (self.next + 1) % (u64::MAX - FIRST);
                let name = OpId(FIRST + self.next);
                posted.0.push_back((name, missing));
                posts.push((side, name, missing));
            }
        }
        (ended, posts)
    }

    /// The one posted as `name` for `op` was refused. `true`: so is `op`, and it is out of the
    /// queue.
    pub(super) fn refused(&mut self, side: Side, name: OpId, op: OpId) -> bool {
        self.sides[side as usize].remove(name);
        self.queue.remove(op)
    }

    /// Takes `op` out of the queue. `false`: it is not there.
    pub(super) fn cancel(&mut self, op: OpId) -> bool {
        self.queue.remove(op)
    }

    /// A message came by the one posted as `name`.
    pub(super) fn arrived(
        &mut self,
        side: Side,
        name: OpId,
        buf: MsgBuf,
        arrival: Arrival,
    ) -> Option<Completion> {
        self.sides[side as usize].take_one(name);
        match self.queue.take_first() {
            Some(op) => Some(Completion::Recv { op, buf, result: Ok(arrival) }),
            None => {
                self.held.push_back((buf, arrival));
                None
            }
        }
    }

    /// The one posted as `name` ended with an error. Returns what ends with it: all, if what that
    /// side still takes is not enough.
    pub(super) fn failed(&mut self, side: Side, name: OpId, error: &Error) -> Vec<Completion> {
        let posted = &mut self.sides[side as usize];
        posted.remove(name);
        if posted.left() >= self.queue.left() {
            return Vec::new();
        }
        std::mem::take(&mut self.queue.0).into_iter().map(|(op, _)| ended(op, error)).collect()
    }
}

/// The last completion of a receive for many messages that takes no more.
pub(super) fn ended(op: OpId, error: &Error) -> Completion {
    Completion::Recv { op, buf: MsgBuf::with_capacity(0), result: Err(error.clone()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Addr, Tag};

    fn message(tag: u32) -> (MsgBuf, Arrival) {
        let from = Addr::new("test://1", 1, 1, ());
        (MsgBuf::with_capacity(1), Arrival { from, tag: Tag(tag) })
    }

    fn arrive(many: &mut Many, post: Post, tag: u32) -> Option<(u64, u32)> {
        let (buf, arrival) = message(tag);
        many.arrived(post.0, post.1, buf, arrival).map(|completion| told(&completion))
    }

    fn told(completion: &Completion) -> (u64, u32) {
        match completion {
            Completion::Recv { op, result: Ok(arrival), .. } => (op.0, arrival.tag.0),
            other => panic!("not a message: {other:?}"),
        }
    }

    #[test]
    fn messages_of_both_sides_share_the_receives() {
        let mut many = Many::default();
        let (ended, posts) = many.add(OpId(1), 2);
        assert!(ended.is_empty());
        let [near, far] = posts[..] else { panic!("one at each side: {posts:?}") };
        assert_eq!([(near.0, near.2), (far.0, far.2)], [(Side::Near, 2), (Side::Far, 2)]);
        assert_eq!(arrive(&mut many, near, 10), Some((1, 10)));
        assert_eq!(arrive(&mut many, far, 11), Some((1, 11)));
        // More than the caller has asked for is held, in order.
        assert_eq!(arrive(&mut many, near, 12), None);
        assert_eq!(arrive(&mut many, far, 13), None);
        let (ended, posts) = many.add(OpId(2), 3);
        assert_eq!(ended.iter().map(told).collect::<Vec<_>>(), [(2, 12), (2, 13)]);
        assert_eq!(posts.iter().map(|post| post.2).collect::<Vec<_>>(), [1, 1]);
    }

    #[test]
    fn what_one_side_has_left_is_not_posted_again() {
        let mut many = Many::default();
        let (_, posts) = many.add(OpId(1), 8);
        for tag in 0..8 {
            assert_eq!(arrive(&mut many, posts[0], tag), Some((1, tag)));
        }
        let (_, posts) = many.add(OpId(2), 5);
        let [(Side::Near, _, 5)] = posts[..] else { panic!("far has 8 left: {posts:?}") };
    }

    #[test]
    fn a_canceled_receive_leaves_its_messages_to_the_next() {
        let mut many = Many::default();
        let (_, posts) = many.add(OpId(1), 4);
        assert!(many.cancel(OpId(1)) && !many.cancel(OpId(1)));
        assert_eq!(arrive(&mut many, posts[1], 7), None);
        let (ended, _) = many.add(OpId(2), 1);
        assert_eq!(ended.iter().map(told).collect::<Vec<_>>(), [(2, 7)]);
    }

    #[test]
    fn the_end_of_a_side_ends_what_relies_on_it() {
        let mut many = Many::default();
        let (_, posts) = many.add(OpId(1), 4);
        many.add(OpId(2), 4);
        let ended = many.failed(posts[0].0, posts[0].1, &Error::Closed);
        assert_eq!(ended.len(), 2);
        assert!(many.failed(posts[1].0, posts[1].1, &Error::Closed).is_empty(), "once");
    }
}
