//! Peers that keep asking and do not read the answers.
//!
//! Answers that a full socket does not take wait in the peer's queue, and are charged to the
//! [`Budget`](na_core::limits::budget::Budget). Three things keep them few, in this order.
//!
//! # Pause
//!
//! A connection is read no further while its socket is full and more than [`PAUSE_BYTES`] wait for
//! its peer, unless *something is awaited of that peer*: an expected receive is posted, a transfer
//! of ours is under way, or a message has arrived in part. During the pause its requests wait in
//! the sockets, and the peer is held back by the answers that it does not read. Reading goes on
//! when the socket has taken half of that, or everything that it was offered; when something is
//! awaited after all; and when the peer hangs up, since the rest of its stream is finite then.
//!
//! Two peers that ask each other cannot stop each other in this way. For that, each of them would
//! have to pause while the other has something in its queue that would make it go on. When both
//! pause, neither awaits anything of the other, so both queues hold answers to calls that were
//! given up, and nobody waits for progress. The first one that asks again awaits something, reads,
//! and thereby empties the other's queue, and then the other reads again as well.
//!
//! While a peer must show signs of life, each tick reads a little of a paused connection, because
//! the signs of life lie in it.
//!
//! # Bounds
//!
//! Requests that were read before the pause are still answered, and a peer of which something is
//! awaited is read on. So a peer, a host and all peers together have a bound. When one is broken,
//! the next poll offers the peer concerned its answers once more, and gives it up if that does not
//! help. The peer concerned is the one that is over its own bound; otherwise it is the one that
//! holds most, on the host that is over its bound, or that holds most. Other peers are not
//! affected.
//!
//! # Memory
//!
//! Freed memory lies in the allocator's heaps, between memory in use. When much less is held than
//! at the peak, it is given back to the system, at most every [`TRIM_PAUSE`].

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::peers::{Broken, Conn, Pause, Peer, PeerState, Phase};
use crate::state::{Core, Poller, flush};
use crate::stream::outgoing::Pushed;
use na_core::base::cheap::IntBuildHasher;
use na_core::limits::budget::{self, BudgetLimits};
use na_core::{Completion, MsgBuf, OpId, Principal, Tag};
use prim::lock::BiasedGuard;
use prim::sync::Arc;

/// Bytes that wait for a peer when reading from it pauses, if its bound is not less.
const PAUSE_BYTES: usize = 1 << 20;

/// The part of a peer's bound up to which answers are packed.
const PART: usize = 4;

/// The time between two returns of memory to the system; also the time that holders of buffers of a
/// peer that was given up have to free them.
const TRIM_PAUSE: Duration = Duration::from_secs(5);
const TRIM_DELAY: Duration = Duration::from_millis(500);

/// Bytes that may wait for a peer until answers are not packed any more.
fn packed_max(bounds: &BudgetLimits) -> usize {
    bounds.of_peer / PART
}

/// Bytes that wait for a peer when reading from it pauses. Not more than half of what is packed, so
/// that there is room for answers to requests that were read before.
fn pause_at(bounds: &BudgetLimits) -> usize {
    PAUSE_BYTES.min(packed_max(bounds) / 2)
}

impl Core {
    /// Queues an answer that a full socket does not take; its send is over if it was copied.
    #[cold]
    pub(crate) fn queue_answer(
        &self,
        peer: &Arc<Peer>,
        mut state: BiasedGuard<'_, PeerState>,
        op: OpId,
        tag: Tag,
        buf: MsgBuf,
    ) {
        let ended = match state.out.push_answer(op, tag, buf, packed_max(&self.budget.bounds)) {
            Pushed::Copied(buf) => Some((buf, Ok(()))),
            Pushed::Waits => None,
            Pushed::NoMemory(buf) => {
                let error = peer.gone("no memory is left for answers that it does not take");
                state.broken = Some(Broken { error: error.clone(), read_first: false });
                self.mail.list(peer, &mut state);
                Some((buf, Err(error)))
            }
        };
        peer.note(&mut state);
        self.call_poll();
        drop(state);
        if let Some((buf, result)) = ended {
            self.mail.complete([Completion::Send { op, buf, result }]);
        }
    }

    /// Asks for a poll if the budget has to be looked after.
    pub(crate) fn call_poll(&self) {
        if self.budget.calls() {
            self.mail.notify();
        }
    }

    /// Something was asked of a peer whose state is given: if it is not read, it is again.
    pub(crate) fn asked(&self, peer: &Arc<Peer>, state: &mut PeerState) {
        if state.unread() > pause_at(&self.budget.bounds) {
            self.mail.list(peer, state);
        }
    }
}

impl Poller {
    /// Returns whether a connection is read no further.
    #[inline]
    pub(crate) fn pauses_unread(&mut self, core: &Core, conn: &mut Conn) -> bool {
        let waits =
            |peer: &Arc<Peer>| peer.is_blocked() && peer.unread() > pause_at(&core.budget.bounds);
        conn.up().is_some_and(waits) && self.pause_unread(core, conn)
    }

    #[cold]
    fn pause_unread(&mut self, core: &Core, conn: &mut Conn) -> bool {
        let Some(peer) = conn.up().cloned() else { return false };
        if conn.hung_up || conn.is_tried || conn.incoming.is_amid() {
            return false;
        }
        // Under the lock, so that its socket is full and the event of its room still to come; and
        // that a receive from it is posted before, or ends the pause.
        let state = peer.lock();
        if !state.is_unread(core)
            || state.transfers.has_asked()
            || !core.matcher.lock().watch(peer.id)
        {
            return false;
        }
        drop(state);
        conn.paused = Some(Pause::Unread);
        self.unread.paused.insert(peer.id, conn.key);
        true
    }

    /// Reads the connection of peer number `id` again, if it was paused.
    pub(crate) fn read_again(&mut self, core: &Core, id: u64) {
        let Some(key) = self.unread.paused.remove(&id) else { return };
        core.matcher.lock().unwatch(id);
        if let Some(conn) = self.conns.get_mut(key) {
            conn.paused = None;
            conn.readable = true;
        }
        self.enqueue(key);
    }

    /// Reads once from the connection of peer number `id`, if it was paused.
    pub(crate) fn try_unread(&mut self, core: &Core, id: u64) {
        if let Some(key) = self.unread.paused.get(&id).copied() {
            self.read_again(core, id);
            if let Some(conn) = self.conns.get_mut(key) {
                conn.is_tried = true;
            }
        }
    }

    /// A connection that may be paused is closed.
    pub(crate) fn forget_unread(&mut self, conn: &Conn) {
        if conn.paused == Some(Pause::Unread)
            && let Some(peer) = conn.up()
        {
            self.unread.paused.remove(&peer.id);
        }
    }

    /// Reads connections again of whose peers something is awaited now.
    pub(crate) fn resume_unread(&mut self, core: &Core) {
        if !self.unread.paused.is_empty() {
            let awaited = core.matcher.lock().take_awaited();
            awaited.into_iter().for_each(|id| self.read_again(core, id));
        }
    }

    /// A peer's socket has taken something, or something was asked of it.
    pub(crate) fn resume_reader(&mut self, core: &Core, peer: &Peer) {
        if self.unread.paused.contains_key(&peer.id) {
            let state = peer.lock();
            let goes_on = !state.is_unread(core) || state.transfers.has_asked();
            drop(state);
            if goes_on {
                self.read_again(core, peer.id);
            }
        }
    }

    /// Looks after bounds that are broken, and memory that has become free, if there is any.
    #[inline]
    pub(crate) fn look_after_budget(&mut self, core: &Core) {
        if core.budget.calls() && core.budget.take_call() {
            self.give_up_unread(core);
            self.plan_trim(core);
        }
    }

    /// Gives up the peers that hold more than they, their host or all may.
    #[cold]
    fn give_up_unread(&mut self, core: &Core) {
        let bounds = core.budget.bounds;
        // A peer with several connections is there once.
        let mut peers: HashMap<u64, (Arc<Peer>, bool), IntBuildHasher> = self
            .conns
            .iter()
            .filter_map(Conn::up)
            .filter(|peer| peer.unread() > 0)
            .map(|peer| (peer.id, (peer.clone(), false)))
            .collect();
        while let Some((id, held, broken)) = worst(&bounds, peers.values().map(|(peer, _)| peer)) {
            let Some((peer, offered)) = peers.get_mut(&id) else { return };
            let peer = peer.clone();
            if !std::mem::replace(offered, true) {
                // It may have read meanwhile.
                self.with_peer(&peer, |state| {
                    state.out.unblock();
                    flush(core, &peer, state);
                });
                self.resume_reader(core, &peer);
                continue;
            }
            peers.remove(&id);
            let error = peer.gone(format!("it takes no answers: {held} bytes wait"));
            self.unread.given_up += 1;
            if self.unread.given_up.is_power_of_two() {
                warn(&peer, held, broken, &bounds, self.unread.given_up);
            }
            self.end_peer(core, &peer, error);
        }
    }

    /// Gives memory back after a while, if much has become free.
    fn plan_trim(&mut self, core: &Core) {
        if core.budget.take_drained() {
            let soon = Instant::now() + TRIM_DELAY;
            let pause = self.unread.trimmed_at.map(|at| at + TRIM_PAUSE);
            let at = pause.map_or(soon, |at| at.max(soon));
            self.unread.trim_at = Some(at);
            self.arm(at);
        }
    }

    /// Gives memory back to the system, if it is time.
    pub(crate) fn trim(&mut self, now: Instant) {
        if self.unread.trim_at.is_some_and(|at| at <= now) {
            self.unread.trim_at = None;
            self.unread.trimmed_at = Some(now);
            give_back_memory();
        }
    }
}

impl PeerState {
    /// Returns whether reading from the peer pauses if nothing is awaited of it.
    fn is_unread(&self, core: &Core) -> bool {
        matches!(self.phase, Phase::Up(_))
            && self.broken.is_none()
            && self.out.is_blocked()
            && self.unread() > pause_at(&core.budget.bounds) / 2
    }
}

/// The peer to be given up, what it holds, and which bound is broken.
fn worst<'a>(
    bounds: &BudgetLimits,
    peers: impl Iterator<Item = &'a Arc<Peer>> + Clone,
) -> Option<(u64, usize, budget::Broken)> {
    let mut hosts: HashMap<Principal, usize> = HashMap::new();
    let mut all = 0;
    for peer in peers.clone() {
        *hosts.entry(peer.host()).or_default() += peer.unread();
        all += peer.unread();
    }
    let of_host = |peer: &Peer| hosts.get(&peer.host()).copied().unwrap_or(0);
    let largest = peers.max_by_key(|peer| {
        let (own, host) = (peer.unread(), of_host(peer));
        // Who breaks a bound of its own goes before the others of its host.
        (own > bounds.of_peer, host, own)
    })?;
    let held = largest.unread();
    let broken = bounds.broken_by(held, of_host(largest), all)?;
    Some((largest.id, held, broken))
}

fn warn(peer: &Peer, held: usize, broken: budget::Broken, bounds: &BudgetLimits, given_up: u64) {
    let (setting, max, whose) = match broken {
        budget::Broken::Peer => ("unread_answers_max", bounds.of_peer, "it"),
        budget::Broken::Host => ("unread_answers_per_host_max", bounds.of_host, "its host"),
        budget::Broken::All => ("unread_answers_total_max", bounds.of_all, "all peers together"),
    };
    tracing::warn!(
        peer = %peer.uri,
        host = %peer.host(),
        held,
        given_up,
        "gave up a peer for which {held} bytes of answers wait that it does not read: {whose} may \
         leave {max} (raise `{setting}` if it is an honest one)"
    );
}

/// Asks the allocator to return what is free.
fn give_back_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it may be called at any time, by any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(test)]
mod tests;
