//! The connections of a poll: those whose ring it looks at in every round, and the others.
//!
//! | state | what the poll looks at | leaves it |
//! |---|---|---|
//! | watched | the ring, the flag, the services | quiet for long while others are watched |
//! | left | its bit on the board | the bit is set; the kernel tells; a sweep finds something |
//!
//! A sweep looks for work of which no mark tells. Before a sleep it looks at all links; otherwise
//! each look at the kernel goes over those that were left since the last one and a few others, so
//! that thousands of quiet peers cost next to nothing.
//!
//! Only a link in its quiet state can be left: connected, with nothing queued and no transfer open.

use std::collections::HashMap;

use crate::peers::rx::{ConnectionStage, RxLink};
use crate::wake::board::OwnBoard;
use crate::wake::doorbell::settle;
use na_core::base::cheap::IntBuildHasher;

/// So many links are always watched: about what a look at the board costs.
const WATCHED_MIN: usize = 4;

/// Rounds without anything to do after which a link is left.
const QUIET_ROUNDS: u32 = 64;

/// Links beside those left lately that a sweep in a look goes over.
const SWEPT: usize = 64;

/// The links, the watched ones first. A link whose end is known is watched, or about to be.
#[derive(Debug, Default)]
pub(crate) struct Links {
    all: Vec<RxLink>,
    watched: usize,
    /// Index of the link with each slot.
    by_slot: Vec<usize>,
    /// Slot of the link with each token, if it has one. It stays while links move about.
    slots: HashMap<u64, u32, IntBuildHasher>,
    /// Tokens of those left since the last sweep.
    left_lately: Vec<u64>,
    /// Where the next sweep in a look goes on.
    swept: usize,
}

const NOWHERE: usize = usize::MAX;

impl Links {
    pub(crate) fn iter(&self) -> impl Iterator<Item = &RxLink> {
        self.all.iter()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut RxLink> {
        self.all.iter_mut()
    }

    #[inline]
    pub(crate) fn watched(&mut self) -> &mut [RxLink] {
        &mut self.all[..self.watched]
    }

    /// Returns whether there is something to do for a watched link, or a mark of one that was left.
    #[inline]
    pub(crate) fn has_work(&self, board: &OwnBoard) -> bool {
        self.all[..self.watched].iter().any(|link| !link.is_quiet())
            || self.watched < self.all.len() && board.is_marked()
    }

    /// Returns whether a link is not up yet; such a link is watched.
    pub(crate) fn is_greeting(&self) -> bool {
        self.all[..self.watched].iter().any(|link| link.stage != ConnectionStage::Up)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Adds a link, watched.
    pub(crate) fn push(&mut self, link: RxLink) {
        self.slots.extend(link.conn.slot().map(|slot| (link.conn.token, slot)));
        self.all.push(link);
        self.place(self.all.len() - 1);
        self.watch(self.all.len() - 1);
    }

    /// Lets `act` work on the link with `token`, watched if that gives it something to do. `false`:
    /// there is none.
    pub(crate) fn act_on(&mut self, token: u64, act: impl FnOnce(&mut RxLink)) -> bool {
        let Some(at) = self.find(token) else { return false };
        act(&mut self.all[at]);
        if !self.all[at].is_quiet() {
            self.watch(at);
        }
        true
    }

    /// Index of the link with `token`.
    fn find(&self, token: u64) -> Option<usize> {
        match self.slots.get(&token) {
            Some(slot) => self.by_slot.get(*slot as usize).copied(),
            None => self.all.iter().position(|link| link.conn.token == token),
        }
    }

    /// Takes a watched link out whose end is known, from index `at` on, and sets that to where to
    /// look for the next one.
    pub(crate) fn take_ended(&mut self, at: &mut usize, board: &OwnBoard) -> Option<RxLink> {
        let rest = self.all[..self.watched].get(*at..)?;
        let Some(found) = rest.iter().position(|link| link.end.is_some()) else {
            *at = self.watched;
            return None;
        };
        *at += found;
        self.watched -= 1;
        self.swap(*at, self.watched);
        let link = self.all.swap_remove(self.watched);
        self.slots.remove(&link.conn.token);
        if self.watched < self.all.len() {
            self.place(self.watched);
        }
        if let Some(slot) = link.conn.slot() {
            if let Some(place) = self.by_slot.get_mut(slot as usize) {
                *place = NOWHERE;
            }
            board.free_slot(slot);
        }
        Some(link)
    }

    /// The board's bits: watches the links that are marked. Returns whether there was one.
    #[inline]
    pub(crate) fn read(&mut self, board: &OwnBoard) -> bool {
        self.watched < self.all.len() && self.read_board(board)
    }

    #[inline(never)]
    fn read_board(&mut self, board: &OwnBoard) -> bool {
        let before = self.watched;
        board.take(|slot| {
            if let Some(at) = self.by_slot.get(slot as usize)
                && *at < self.all.len()
            {
                self.watch(*at);
            }
        });
        self.watched > before
    }

    /// Watches the left links that have something to do although nobody said so. Returns whether
    /// there was one.
    pub(crate) fn sweep(&mut self) -> bool {
        self.left_lately.clear();
        let before = self.watched;
        for at in self.watched..self.all.len() {
            self.sweep_one(at);
        }
        self.watched > before
    }

    /// Does as [`sweep`](Self::sweep) for the links that were left lately, and for [`SWEPT`] others
    /// in turn.
    pub(crate) fn sweep_some(&mut self) {
        while let Some(token) = self.left_lately.pop() {
            // Who has ended meanwhile has no slot any more.
            if let Some(slot) = self.slots.get(&token) {
                self.sweep_one(self.by_slot[*slot as usize]);
            }
        }
        for _ in 0..SWEPT.min(self.all.len() - self.watched) {
            // Of those that move the other way none is missed for long.
            if !(self.watched..self.all.len()).contains(&self.swept) {
                self.swept = self.watched;
            }
            self.sweep_one(self.swept);
            self.swept += 1;
        }
    }

    fn sweep_one(&mut self, at: usize) {
        if at >= self.watched && at < self.all.len() && !self.all[at].is_quiet() {
            self.watch(at);
        }
    }

    /// Leaves the watched link at `at` if it has been quiet for long and there are enough others.
    #[inline]
    pub(crate) fn leave_if_quiet(&mut self, at: usize) {
        if self.watched > WATCHED_MIN && self.all[at].quiet_rounds >= QUIET_ROUNDS {
            self.leave(at);
        }
    }

    #[inline(never)]
    fn leave(&mut self, at: usize) {
        let link = &mut self.all[at];
        link.quiet_rounds = 0;
        let Some(slot) = link.conn.slot().filter(|_| link.is_quiet()) else { return };
        link.conn.leave();
        // Whoever has not seen that by now has made work before, which we see here; or in the next
        // sweep, if nobody settles for our sake.
        settle();
        if !link.is_quiet() {
            link.conn.watch();
            return;
        }
        self.left_lately.push(link.conn.token);
        self.slots.insert(link.conn.token, slot);
        self.watched -= 1;
        self.swap(at, self.watched);
    }

    fn watch(&mut self, at: usize) {
        if at < self.watched {
            return;
        }
        let link = &mut self.all[at];
        link.conn.watch();
        link.quiet_rounds = 0;
        self.swap(at, self.watched);
        self.watched += 1;
    }

    fn swap(&mut self, one: usize, other: usize) {
        self.all.swap(one, other);
        self.place(one);
        self.place(other);
    }

    /// Notes where the link at `at` is.
    fn place(&mut self, at: usize) {
        let Some(slot) = self.all[at].conn.slot() else { return };
        let slot = slot as usize;
        if self.by_slot.len() <= slot {
            self.by_slot.resize(slot + 1, NOWHERE);
        }
        self.by_slot[slot] = at;
    }
}

impl RxLink {
    /// Returns whether there is nothing to do for it.
    #[inline]
    fn is_quiet(&self) -> bool {
        self.rx.is_empty()
            && self.stage == ConnectionStage::Up
            && self.end.is_none()
            && self.services.is_empty()
            && !self.conn.has_backlog()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::socket;
    use crate::link::{Conn, RING_BYTES, Segment};
    use crate::peers::peer::{Peer, Reach};
    use crate::wake::board::OwnBoard;
    use na_core::{Addr, Error};
    use prim::sync::Arc;

    /// More than a look goes over; two tests have so many descriptors at a time.
    const COUNT: usize = 100;

    /// Links that are all left but for those that always stay.
    fn left(board: &OwnBoard) -> Links {
        let mut links = Links::default();
        for token in 0..COUNT as u64 {
            let (segment, _) = Segment::create(*RING_BYTES.start()).unwrap();
            let conn = Conn::new(token, socket::new(&Arc::default()).unwrap(), Arc::new(segment));
            conn.set_slot(board.take_slot().unwrap());
            let peer = Peer::new(token, String::new(), Reach::Connection, Default::default());
            let addr: Addr = peer.addr(1);
            links.push(RxLink::new(Arc::new(conn), peer, addr, ConnectionStage::Up));
        }
        while links.watched > WATCHED_MIN {
            links.all[links.watched - 1].quiet_rounds = QUIET_ROUNDS;
            links.leave_if_quiet(links.watched - 1);
        }
        links
    }

    /// Gives each link that is left something to do, without a mark.
    fn give_work(links: &Links) {
        links.all[links.watched..].iter().for_each(|link| {
            let flagged = link.conn.clone();
            crate::peers::tx::TxLink::new(flagged).open(1);
        });
    }

    #[test]
    fn a_look_goes_over_those_left_lately_and_a_few_others() {
        let board = OwnBoard::new().unwrap();
        let mut links = left(&board);
        links.sweep_some();
        assert_eq!((links.watched, links.left_lately.len()), (WATCHED_MIN, 0), "all are quiet");
        give_work(&links);
        links.sweep_some();
        assert_eq!(links.watched, WATCHED_MIN + SWEPT, "all were left long ago");
        links.sweep_some();
        links.sweep_some();
        links.sweep_some();
        assert_eq!(links.watched, COUNT, "each has its turn");
        drop(links);
        let mut links = left(&board);
        give_work(&links);
        links.sweep_some();
        assert_eq!(links.watched, COUNT, "all were left since the last look");
        drop(links);
        let mut links = left(&board);
        assert!(!links.sweep(), "all are quiet");
        give_work(&links);
        assert!(links.sweep(), "the poll does not sleep then");
        assert_eq!(links.watched, COUNT, "and before a sleep all are looked at");
    }

    #[test]
    fn links_are_found_by_their_tokens_wherever_they_are() {
        let board = OwnBoard::new().unwrap();
        let mut links = left(&board);
        let end = |link: &mut RxLink| link.end = Some(Error::Closed);
        for token in [3, 75, 0, 99, 40] {
            assert!(links.act_on(token, |link| assert_eq!(link.conn.token, token)));
            assert!(links.act_on(token, end));
        }
        let (mut at, mut ended) = (0, Vec::new());
        while let Some(link) = links.take_ended(&mut at, &board) {
            ended.push(link.conn.token);
        }
        ended.sort_unstable();
        assert_eq!(ended, [0, 3, 40, 75, 99]);
        for token in 0..COUNT as u64 {
            let found = links.act_on(token, |link| assert_eq!(link.conn.token, token));
            assert_eq!(found, !ended.contains(&token));
        }
        assert_eq!((links.slots.len(), links.iter().count()), (COUNT - 5, COUNT - 5));
    }
}
