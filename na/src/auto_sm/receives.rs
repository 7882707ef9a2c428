//! Receives of unexpected messages, whose sender may be near or far.
//!
//! A receive of the caller stands in a queue here, and for each in the queue one is posted at both
//! endpoints. The next message, wherever it comes from, ends one of the queue; so one of the two
//! posted for it is left over, and serves the next one that is queued. In the long run each receive
//! of the caller posts one.
//!
//! # Order
//!
//! An endpoint matches messages with receives in the order in which these were posted, but may
//! report them in another. So a message is given to the receive of the caller that has the same
//! place in the queue as its own receive has among those posted on its side: then two messages of
//! one peer end two receives in the right order, and a message that is still on its way holds up
//! no other. A message whose place is beyond the end of the queue is held until it is not.
//!
//! A canceled receive leaves its two posted ones behind, to serve later ones: to cancel these would
//! lose a long message that is arriving in one of them. So after a cancel a message may be held
//! while one before it is still arriving, although a receive is queued: until that one is here, or
//! one more receive is queued.
//!
//! Buffers are exchanged: a receive may end with another buffer than it began with. All have the
//! same capacity at least.

use std::collections::VecDeque;

use crate::{Arrival, Completion, Error, MsgBuf, OpId};

/// Near or far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Near,
    Far,
}

/// Numbers from here on name receives at the two endpoints, up to those for many messages; see
/// [`OpId::RESERVED`](crate::OpId::RESERVED).
const FIRST: u64 = OpId::RESERVED.0;

#[derive(Debug, Default)]
pub(super) struct Receives {
    queue: VecDeque<OpId>,
    /// Posted at each side, in that order. At least as many as are queued, at most as many as ever
    /// were.
    posted: [VecDeque<PostedReceive>; 2],
    spare: Vec<MsgBuf>,
    next: u64,
}

#[derive(Debug)]
struct PostedReceive {
    name: OpId,
    message: Option<(MsgBuf, Arrival)>,
}

/// The outcome of one more receive.
#[derive(Debug)]
pub(super) enum Added {
    /// A message waited.
    Ended(Completion),
    /// These are to be posted, with a buffer if there is one.
    Post(Vec<(Side, OpId, Option<MsgBuf>)>),
}

impl Receives {
    /// Queues `op`.
    pub(super) fn add(&mut self, op: OpId, buf: MsgBuf) -> Added {
        let place = self.queue.len();
        self.queue.push_back(op);
        self.spare.push(buf);
        for side in [Side::Near, Side::Far] {
            if let Some(completion) = self.end(side, place) {
                return Added::Ended(completion);
            }
        }
        let mut posts = Vec::new();
        for side in [Side::Near, Side::Far] {
            let posted = &mut self.posted[side as usize];
            if posted.len() <= place {
                self.next = (self.next + 1) % (super::many::FIRST - FIRST);
                let name = OpId(FIRST + self.next);
                posted.push_back(PostedReceive { name, message: None });
                posts.push((side, name, self.spare.pop()));
            }
        }
        Added::Post(posts)
    }

    /// Ends the receive at `place` with the message that has this place on `side`, if it is here.
    fn end(&mut self, side: Side, place: usize) -> Option<Completion> {
        let op = *self.queue.get(place)?;
        let posted = &mut self.posted[side as usize];
        let (buf, arrival) = posted.get_mut(place)?.message.take()?;
        posted.remove(place);
        self.queue.remove(place);
        Some(Completion::Recv { op, buf, result: Ok(arrival) })
    }

    fn place_of(&self, side: Side, name: OpId) -> Option<usize> {
        self.posted[side as usize].iter().position(|posted| posted.name == name)
    }

    /// The one posted as `name` for `op` was refused. `true`: so is `op`, and it is out of the
    /// queue.
    pub(super) fn refused(&mut self, side: Side, name: OpId, op: OpId) -> bool {
        if let Some(place) = self.place_of(side, name) {
            self.posted[side as usize].remove(place);
        }
        self.remove(op)
    }

    /// Takes `op` out of the queue. `false`: it is not there.
    pub(super) fn remove(&mut self, op: OpId) -> bool {
        let at = self.queue.iter().position(|queued| *queued == op);
        at.and_then(|at| self.queue.remove(at)).is_some()
    }

    /// A buffer that nothing uses.
    pub(super) fn take_spare(&mut self) -> Option<MsgBuf> {
        self.spare.pop()
    }

    /// Keeps a buffer that nothing uses.
    pub(super) fn put_spare(&mut self, mut buf: MsgBuf) {
        buf.clear();
        self.spare.push(buf);
    }

    /// Returns whether this is the name of a posted one.
    pub(super) fn is_ours(op: OpId) -> bool {
        (FIRST..super::many::FIRST).contains(&op.0)
    }

    /// The one posted as `name` ended. Returns what ends with it.
    pub(super) fn ended(
        &mut self,
        side: Side,
        name: OpId,
        buf: MsgBuf,
        result: Result<Arrival, Error>,
    ) -> Option<Completion> {
        let place = self.place_of(side, name)?;
        let posted = &mut self.posted[side as usize];
        let error = match result {
            Ok(arrival) => {
                posted[place].message = Some((buf, arrival));
                return self.end(side, place);
            }
            Err(error) => error,
        };
        posted.remove(place);
        if posted.len() >= self.queue.len() {
            // It was left over.
            self.put_spare(buf);
            // What stood behind it may have got into the queue.
            return self.end(side, self.queue.len().checked_sub(1)?);
        }
        let op = self.queue.remove(place)?;
        Some(Completion::Recv { op, buf, result: Err(error) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Addr, Tag};

    fn buf() -> MsgBuf {
        MsgBuf::with_capacity(8)
    }

    fn arrival() -> Arrival {
        Arrival { from: Addr::new("a", 1, 1, ()), tag: Tag(0) }
    }

    fn posts(added: Added) -> Vec<(Side, OpId)> {
        match added {
            Added::Ended(_) => panic!("nothing has arrived"),
            Added::Post(posts) => posts.into_iter().map(|(side, name, _)| (side, name)).collect(),
        }
    }

    fn op_of(completion: Option<Completion>) -> Option<u64> {
        match completion? {
            Completion::Recv { op, .. } => Some(op.0),
            _ => None,
        }
    }

    fn arrives(receives: &mut Receives, (side, name): (Side, OpId)) -> Option<u64> {
        op_of(receives.ended(side, name, buf(), Ok(arrival())))
    }

    #[test]
    fn what_is_left_over_serves_the_next() {
        let mut receives = Receives::default();
        let [near, far] = posts(receives.add(OpId(1), buf()))[..] else { panic!("both") };
        assert_eq!((near.0, far.0), (Side::Near, Side::Far));
        assert_eq!(arrives(&mut receives, far), Some(1));
        let [far] = posts(receives.add(OpId(2), buf()))[..] else { panic!("one") };
        assert_eq!(far.0, Side::Far);
        assert_eq!(arrives(&mut receives, near), Some(2));
        // What is left over there gets a message; the next receive ends with it at once.
        assert_eq!(arrives(&mut receives, far), None);
        assert!(matches!(receives.add(OpId(3), buf()), Added::Ended(_)));
        assert!(receives.posted.iter().all(VecDeque::is_empty));
    }

    #[test]
    fn messages_that_are_reported_late_keep_their_place() {
        let mut receives = Receives::default();
        let mut near = Vec::new();
        let mut far = Vec::new();
        for op in 0..3 {
            let posts = posts(receives.add(OpId(op), buf()));
            near.push(posts[0]);
            far.push(posts[1]);
        }
        assert_eq!(arrives(&mut receives, near[1]), Some(1));
        assert_eq!(arrives(&mut receives, far[0]), Some(0));
        assert_eq!(arrives(&mut receives, near[2]), None, "the first of its side comes before it");
        assert_eq!(arrives(&mut receives, near[0]), Some(2));
        assert!(matches!(receives.add(OpId(3), buf()), Added::Ended(_)));
    }

    #[test]
    fn each_is_ended_once_by_a_close() {
        let mut receives = Receives::default();
        let mut open: Vec<_> = (0..3).flat_map(|op| posts(receives.add(OpId(op), buf()))).collect();
        assert_eq!(arrives(&mut receives, open.remove(0)), Some(0));
        assert!(receives.remove(OpId(2)), "canceled");
        let mut ended = Vec::new();
        for (side, name) in open {
            ended.extend(op_of(receives.ended(side, name, buf(), Err(Error::Closed))));
        }
        assert_eq!(ended, [1]);
        assert!(receives.posted.iter().all(VecDeque::is_empty));
    }

    #[test]
    fn a_message_that_was_held_takes_the_place_of_one_that_does_not_come() {
        let mut receives = Receives::default();
        let first = posts(receives.add(OpId(1), buf()));
        let second = posts(receives.add(OpId(2), buf()));
        assert!(receives.remove(OpId(1)), "canceled");
        assert_eq!(arrives(&mut receives, second[0]), None, "one of its peer may come before it");
        let (side, name) = first[0];
        assert_eq!(op_of(receives.ended(side, name, buf(), Err(Error::Closed))), Some(2));
    }

    #[test]
    fn a_refused_receive_leaves_the_queue() {
        let mut receives = Receives::default();
        let posts = posts(receives.add(OpId(1), buf()));
        assert!(receives.refused(posts[0].0, posts[0].1, OpId(1)));
        assert!(!receives.refused(posts[1].0, posts[1].1, OpId(1)), "it is out already");
        assert!(receives.posted.iter().all(VecDeque::is_empty));
    }
}
