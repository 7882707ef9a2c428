//! Pages that both sides write in turn. A long message lies in one, and with the message the page
//! passes to its receiver, who may answer in it.
//!
//! A cache line that one processor has just read and then writes is already in its cache. In a ring
//! each side writes only its own memory, which the other has read last, so every line passes
//! between the processors twice per message: to take it back, and to bring the new contents. A
//! request of 4 KiB and its answer of the same length take half as long in one page. C's `na+sm`
//! gains the same from buffers that both directions share; it finds them with a locked instruction
//! on a word that all peers share. When pages came, 4 KiB one way took 0.32 us instead of 0.72
//! between near cores. Without pages the row `hg.sm.rtt.1k`, which has requests and answers of 1
//! KiB, is 4.2 % slower between near cores, and `hg.sm.rtt`, whose messages are short, as fast.
//!
//! There are [`PAGES`] on each connection, half of them with each side at first. A side without
//! one, or with a short message, uses the ring. Pages are not given back: a side that receives long
//! messages and sends none ends up with all of them. That harms nobody, because where messages are
//! long in one direction only, a page is no faster than the ring.
//!
//! | state | written by | read by |
//! |---|---|---|
//! | a page that is ours | sender, under its lock | nobody |
//! | a page that is theirs, after its record came, until it is ours | nobody | receiver |
//! | `theirs`, private to this process | sender: true before the record; receiver: false after the copy (pair: PAGE-TURN) | both |
//!
//! The record that announces a page orders what is in it (pair: RING-COMMIT).
//!
//! # Distrust
//!
//! A peer that announces a page which it was not given, or writes one that it has passed on, harms
//! only the data that it sends itself: a page is read only while it is theirs, so never while it is
//! written here.

use prim::sync::atomic::{AtomicBool, Ordering};

/// Pages of a connection.
pub const PAGES: usize = 4;

/// Bytes of a page: the longest message that goes there.
pub const PAGE_BYTES: usize = 4096;

/// The shortest, bytes: fewer lines do not make up for the one of the record.
pub const PAGED_MIN: usize = 256;

/// The side whose turn each page is, as one side knows it.
#[derive(Debug)]
pub struct PageOwners {
    theirs: [AtomicBool; PAGES],
}

impl PageOwners {
    /// At first: one side has the first half of the pages, the other the rest.
    pub fn new(first_half: bool) -> Self {
        let theirs = std::array::from_fn(|page| AtomicBool::new((page < PAGES / 2) != first_half));
        Self { theirs }
    }

    /// A page that is ours, to write and [`pass`](Self::pass): of one sender at a time.
    #[inline]
    pub fn ours(&self) -> Option<usize> {
        // pair: PAGE-TURN (what was in it is copied)
        (0..PAGES).find(|page| !self.theirs[*page].load(Ordering::Acquire))
    }

    /// A page that was ours is written; the record follows.
    #[inline]
    pub fn pass(&self, page: usize) {
        // pair: PAGE-TURN (it is written: should the peer announce it early, we read all of it)
        self.theirs[page].store(true, Ordering::Release);
    }

    /// The peer announces a page: which, if it is theirs, so that it can be read and
    /// [`taken`](Self::take).
    #[inline]
    pub fn theirs(&self, page: u64) -> Option<usize> {
        let page = usize::try_from(page).ok()?;
        // pair: PAGE-TURN (we have written it)
        self.theirs.get(page)?.load(Ordering::Acquire).then_some(page)
    }

    /// A page that was theirs is copied: it is ours.
    #[inline]
    pub fn take(&self, page: usize) {
        // pair: PAGE-TURN (it is copied)
        self.theirs[page].store(false, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_page_goes_back_and_forth_and_each_side_has_it_in_turn() {
        let (creator, acceptor) = (PageOwners::new(true), PageOwners::new(false));
        assert_eq!((creator.ours(), acceptor.ours()), (Some(0), Some(PAGES / 2)));
        for _ in 0..3 {
            for (from, to) in [(&creator, &acceptor), (&acceptor, &creator)] {
                let page = from.ours().unwrap();
                assert_eq!(page, 0, "what was received is passed back");
                from.pass(page);
                let page = to.theirs(page as u64).unwrap();
                to.take(page);
            }
        }
    }

    #[test]
    fn who_only_sends_runs_out_of_pages() {
        let (from, to) = (PageOwners::new(true), PageOwners::new(false));
        for _ in 0..PAGES / 2 {
            let page = from.ours().unwrap();
            from.pass(page);
            to.take(to.theirs(page as u64).unwrap());
        }
        assert_eq!(from.ours(), None);
        assert_eq!((0..PAGES as u64).filter_map(|page| to.theirs(page)).count(), 0, "all are ours");
    }

    #[test]
    fn a_page_that_the_peer_does_not_have_is_refused() {
        let turns = PageOwners::new(true);
        for page in [0, 1, PAGES as u64, u64::MAX] {
            assert_eq!(turns.theirs(page), None, "{page}");
        }
        turns.take(turns.theirs(2).unwrap());
        assert_eq!(turns.theirs(2), None, "twice");
    }
}
