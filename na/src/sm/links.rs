//! The connections of a poll: those whose ring it looks at in every round, and the others.
//!
//! | state | what the poll looks at | leaves it |
//! |---|---|---|
//! | watched | the ring, the flag, the services | quiet for long while others are watched |
//! | left | its bit on the board | the bit is set; a sweep finds something |
//!
//! Only a link in its quiet state can be left: connected, with nothing queued and no transfer open.

use super::board::OwnBoard;
use super::doorbell::settle;
use super::rx::{RxLink, Stage};

/// So many links are always watched: about what a look at the board costs.
const WATCHED_MIN: usize = 4;

/// Rounds without anything to do after which a link is left.
const QUIET_ROUNDS: u32 = 64;

/// The links, the watched ones first.
#[derive(Debug, Default)]
pub(super) struct Links {
    all: Vec<RxLink>,
    watched: usize,
    /// Index of the link with each slot.
    by_slot: Vec<usize>,
}

const NOWHERE: usize = usize::MAX;

impl Links {
    pub(super) fn iter(&self) -> impl Iterator<Item = &RxLink> {
        self.all.iter()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut RxLink> {
        self.all.iter_mut()
    }

    #[inline]
    pub(super) fn watched(&mut self) -> &mut [RxLink] {
        &mut self.all[..self.watched]
    }

    /// Whether there is something to do for a watched link, or a mark of one that was left.
    #[inline]
    pub(super) fn has_work(&self, board: &OwnBoard) -> bool {
        self.all[..self.watched].iter().any(|link| !link.is_quiet())
            || self.watched < self.all.len() && board.is_marked()
    }

    /// Whether a link is not up yet; such a link is watched.
    pub(super) fn is_greeting(&self) -> bool {
        self.all[..self.watched].iter().any(|link| link.stage != Stage::Up)
    }

    /// Adds a link, watched.
    pub(super) fn push(&mut self, link: RxLink) {
        self.all.push(link);
        self.place(self.all.len() - 1);
        self.watch(self.all.len() - 1);
    }

    /// Takes a link out whose end is known.
    pub(super) fn take_ended(&mut self, board: &OwnBoard) -> Option<RxLink> {
        let at = self.all.iter().position(|link| link.end.is_some())?;
        self.watch(at);
        let at = self.all.iter().position(|link| link.end.is_some())?;
        self.watched -= 1;
        self.swap(at, self.watched);
        let link = self.all.swap_remove(self.watched);
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
    pub(super) fn read(&mut self, board: &OwnBoard) -> bool {
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

    /// Watches the left links that have something to do although nobody said so.
    pub(super) fn sweep(&mut self) {
        let mut at = self.watched;
        while at < self.all.len() {
            if !self.all[at].is_quiet() {
                self.watch(at);
            }
            at += 1;
        }
    }

    /// Leaves the watched link at `at` if it has been quiet for long and there are enough others.
    #[inline]
    pub(super) fn leave_if_quiet(&mut self, at: usize) {
        if self.watched > WATCHED_MIN && self.all[at].quiet_rounds >= QUIET_ROUNDS {
            self.leave(at);
        }
    }

    #[inline(never)]
    fn leave(&mut self, at: usize) {
        let link = &mut self.all[at];
        link.quiet_rounds = 0;
        if link.conn.slot().is_none() || !link.is_quiet() {
            return;
        }
        link.conn.leave();
        // Whoever has not seen that by now has made work before, which we see here; or in the next
        // sweep, if nobody settles for our sake.
        settle();
        if !link.is_quiet() {
            link.conn.watch();
            return;
        }
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
    /// Whether there is nothing to do for it.
    #[inline]
    fn is_quiet(&self) -> bool {
        self.rx.is_empty()
            && self.stage == Stage::Up
            && self.end.is_none()
            && self.services.is_empty()
            && !self.conn.has_backlog()
    }
}
