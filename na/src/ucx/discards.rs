//! Connections that were closed by force, until UCX has made an end of them.
//!
//! `ucp_ep_close_nbx` returns at once, by force. The transports' own connections, UCX's *lanes*,
//! are flushed and destroyed by later calls of `ucp_worker_progress` (`ucp_worker_discard_uct_ep`,
//! ucp_worker.c), from a queue of callbacks that `ucp_worker_arm` does not look at. So nobody may
//! sleep before, or the peer would not hear of the end.
//!
//! And until then the queue pair of a connection of InfiniBand or RoCE may work: if nothing is in
//! flight, its flush is over at once and leaves it as it is (`uct_rc_ep_flush`, rc_ep.c); if its
//! queue is full the flush has to wait. So the peer reaches memory of which it has keys, and that
//! is given back after the end only. UCX does not tell the end of one connection, but a flush of
//! the worker waits for all lanes that are to be destroyed (`flush_ops_count`, flush.c).
//!
//! Where puts and gets are emulated by messages, none comes through a connection that is closed,
//! and such a flush may never end: UCX waits for the answers to puts of a connection that has
//! ended. There two looks that find nothing are enough.

use ucx_sys::{UCS_OK, ucs_status_t};

use super::driver::Driver;
use super::remote::Ended;
use super::slots::Work;
use super::worker::Posted;

/// Looks, in a row, that must find nothing after a connection was closed. The first one may have
/// run the callback that asks for the last one.
const QUIET_TURNS: usize = 2;

/// Looks after which memory is given back although each of them finds something, where puts and
/// gets are messages.
const TURNS_MAX: usize = 64;

/// Connections that UCX has been told to end.
#[derive(Default)]
pub(super) struct Discards {
    /// So many looks more must find nothing before somebody may sleep.
    restless: usize,
    /// Looks since a connection was closed.
    turns: usize,
    /// Keys that their holders may still use.
    ended: Vec<Ended>,
    is_flushing: bool,
}

impl Discards {
    /// Whether nobody may sleep.
    pub(super) fn is_busy(&self) -> bool {
        self.restless > 0
    }

    /// Whether looks at the network are of interest here.
    #[inline]
    pub(super) fn is_waiting(&self) -> bool {
        self.restless > 0 || self.is_flushing
    }

    fn stir(&mut self, quiet_turns: usize) {
        self.restless = self.restless.max(quiet_turns);
    }

    /// A connection was closed by force, with which these keys end.
    pub(super) fn add(&mut self, ended: Option<Ended>) {
        self.ended.extend(ended);
        self.turns = 0;
        self.stir(QUIET_TURNS);
    }

    /// The keys that were waited for.
    pub(super) fn into_ended(self) -> Vec<Ended> {
        self.ended
    }
}

impl Driver {
    /// The network was looked at after connections were closed. `quiet`: the last look has found
    /// nothing.
    pub(super) fn settle_discards(&mut self, quiet: bool) {
        let links = self.state().links.len();
        let own = &mut self.discards;
        own.turns += 1;
        own.restless = match quiet {
            true => own.restless.saturating_sub(1),
            // A flush looks at one connection in each turn.
            false if own.is_flushing => QUIET_TURNS + links,
            false => QUIET_TURNS,
        };
        if own.ended.is_empty() {
            return;
        }
        let (flushed, messages): (Vec<_>, Vec<_>) =
            std::mem::take(&mut own.ended).into_iter().partition(|ended| ended.by_adapter);
        let is_over = own.restless == 0 || own.turns >= TURNS_MAX;
        match is_over {
            true => messages.into_iter().for_each(|ended| self.end_all_given(ended)),
            false => own.ended.extend(messages),
        }
        if flushed.is_empty() {
            return;
        }
        // What is under way was asked for before these were closed.
        if self.discards.is_flushing {
            return self.discards.ended.extend(flushed);
        }
        self.flush_discards(flushed);
    }

    /// Asks for the end of what was closed; then these keys are over.
    fn flush_discards(&mut self, ended: Vec<Ended>) {
        let links = self.state().links.len();
        let slot = self.slots.add(Work::Discarded(ended));
        let pinned = self.slots.pinned(slot);
        let Some(worker) = &self.worker else { return };
        // SAFETY: the slot stays until the callback, or until the worker is gone.
        match unsafe { worker.flush_all(pinned) } {
            Posted::Pending(request) => {
                self.slots.started(slot, request);
                self.discards.is_flushing = true;
                self.discards.stir(QUIET_TURNS + links);
            }
            Posted::Done => self.finished(slot, UCS_OK),
            Posted::Failed(status) => self.finished(slot, status),
        }
    }

    /// Such a flush has ended.
    pub(super) fn discarded(&mut self, ended: Vec<Ended>, status: ucs_status_t) {
        self.discards.is_flushing = false;
        // Connections were closed meanwhile, which are next.
        if !self.discards.ended.is_empty() {
            self.discards.stir(QUIET_TURNS);
        }
        match status {
            UCS_OK => ended.into_iter().for_each(|ended| self.end_all_given(ended)),
            // Until another connection ends, or all do.
            _ => self.discards.ended.extend(ended),
        }
    }
}
