//! The end: of a connection, of the endpoint, and of the memory that outlives them.
//!
//! `reap` takes a connection apart. Complete records in the ring are still delivered, without
//! regard to the bound on early messages. Then the sending half fails its operations, and the gate
//! to our memory is shut. With the last open link of a peer, its expected receives fail; a link on
//! which the peer has not answered yet does not count as open, because their messages could not
//! come on it. Memory that the other process may be copying at this moment is kept until that chunk
//! is over or the process is dead. A transfer of ours that uses it ends at once, and its memory
//! says that it may still be written ([`LocalMem::may_be_written`]): a peer that is stopped in the
//! midst of a copy holds nobody up.

use std::time::{Duration, Instant};

use rustix::event::epoll;

use crate::link::group::Handed;
use crate::link::socket;
use crate::peers::{ConnectionStage, Reach, RxLink, TxLink};
use crate::state::SmEndpoint;
use crate::state::{PollState, Sink};
use crate::transfer::kept::{Keeper, Kept};
use na_core::memory::region::{LingeringMemory, RetiredMemory};
use na_core::{Error, SessionChange};
use prim::sync::atomic::Ordering;
use prim::sync::lock;

/// How long dropping an endpoint waits for memory that a peer is copying.
pub(crate) const KEPT_WAIT: Duration = Duration::from_secs(1);

impl Keeper for SmEndpoint {
    fn keep(&self, kept: Kept) {
        lock(&self.kept).push(kept);
        self.ready.wake_poll();
    }
}

impl SmEndpoint {
    /// Takes apart the connections whose `end` is set.
    #[cold]
    pub(crate) fn reap_ended(&self, state: &mut PollState) {
        let mut at = 0;
        while let Some(link) = state.links.take_ended(&mut at, &self.board) {
            self.reap(link, state);
        }
    }

    /// Takes apart a connection that has ended.
    fn reap(&self, mut link: RxLink, state: &mut PollState) {
        let Some(error) = link.end.clone() else { return };
        match &error {
            Error::Protocol { .. } => tracing::warn!("{error}; its connection is closed"),
            _ => tracing::debug!("connection ends: {error}"),
        }
        let was_up = link.stage == ConnectionStage::Up;
        if was_up && matches!(error, Error::PeerGone { .. }) {
            self.drain_dead(&mut link, state);
        }
        let mut links = link.peer.links.lock();
        let found = link.peer.remove_link(&mut links, link.conn.token);
        let late = found.map(|tx| tx.fail(&error, &mut state.out)).unwrap_or_default();
        if links.is_empty() && link.peer.reach == Reach::Connection {
            link.peer.set_gone();
        }
        let last_open = was_up && !links.iter().any(TxLink::is_open);
        if last_open {
            link.peer.end_session();
        }
        drop(links);
        let memory = link.services.fail_all(&link.conn, &mut state.out);
        let admission = link.admission.take();
        if !(memory.is_empty() && late.is_empty()) {
            let conn = link.conn.clone();
            lock(&self.kept).push(Kept { conn, memory, late, held: None, admission });
        }
        if last_open {
            let mut failed = Vec::new();
            self.matcher.lock().fail_peer(link.peer.id, &error, &mut failed);
            state.out.completions.append(&mut failed);
        } else if was_up {
            // The peer lives on with another link, and so does the bound of what it may leave here.
            self.matcher.lock().restore_bound(link.peer.id);
        }
        if was_up {
            let reason = error.to_string();
            let ended = SessionChange::Ended { reason: &reason };
            self.tell(&link.peer.uri, link.peer.principal(), ended);
            // Which may not be how it is now: what has failed once is not tried again.
            let by_path = if link.began_attached { &self.attached } else { &self.unattached };
            by_path.fetch_sub(1, Ordering::Relaxed);
        }
        socket::say_goodbye(&link.conn.socket);
        // Who has not connected is not there.
        let _ = epoll::delete(&self.epoll, &link.conn.socket);
        if let Some(process) = link.conn.process() {
            let _ = epoll::delete(&self.epoll, process);
        }
    }

    /// Delivers what a dead peer left in the ring: at most what fits there.
    fn drain_dead(&self, link: &mut RxLink, state: &mut PollState) {
        self.matcher.lock().lift_bound(link.peer.id);
        let mut nowhere = |_| ();
        for _ in 0..=link.rx.capacity() / crate::link::ring::LINE {
            // Queued: the failures that follow shall not be reported first.
            let mut sink = Sink::new(&mut nowhere, 0);
            if !self.pump(link, &mut sink, &mut state.arrived, &mut state.out) {
                break;
            }
        }
    }

    /// Ends everything after `close`. Later calls find what was begun at the same time as that.
    pub(crate) fn shut_down(&self, state: &mut PollState) {
        let again = std::mem::replace(&mut state.shut_down, true);
        self.adopt(state);
        if again && state.links.is_empty() {
            return;
        }
        self.leave_group(state);
        for link in state.links.iter_mut() {
            link.end = Some(Error::Closed);
        }
        state.links.sweep();
        self.reap_ended(state);
        let mut failed = Vec::new();
        self.matcher.lock().fail_all(&Error::Closed, &mut failed);
        state.out.completions.append(&mut failed);
        self.loopback.fail_all(&Error::Closed, &mut state.out);
        state.arrived.extend(state.out.completions.drain(..));
        state.out.memory.clear();
        self.ready.wake_poll();
    }

    /// Leaves to the other endpoints of the group what was not ours yet: what they have handed over
    /// to us, strangers and the listener. All of it ends with the last one.
    pub(crate) fn leave_group(&self, state: &mut PollState) {
        for handed in self.group.close(self.shard) {
            self.group.hand(handed);
        }
        // First: what they leave may be what it takes to accept the others.
        for stranger in state.strangers.drain(..) {
            self.forget_stranger(&stranger);
            self.group.hand(Handed::Stranger(stranger));
        }
        if let Some(listener) = state.listener.take() {
            let _ = epoll::delete(&self.epoll, &listener);
            self.group.hand(Handed::Listener(listener));
        }
    }

    /// Lets go of memory that nobody copies any more.
    pub(crate) fn release_kept(&self) {
        // May run foreign code, so without the lock.
        drop(self.take_released());
    }

    fn take_released(&self) -> Vec<Kept> {
        let mut kept = lock(&self.kept);
        if kept.is_empty() {
            return Vec::new();
        }
        let (over, still): (Vec<_>, Vec<_>) = kept
            .drain(..)
            .partition(|kept| !kept.conn.segment.peer_copies() || !kept.conn.is_alive());
        *kept = still;
        over
    }

    /// Lets go of kept memory when the endpoint is dropped. Waits until `deadline` and then leaks
    /// the rest, because giving the memory back would let a foreign process overwrite whatever
    /// comes next.
    pub(crate) fn release_kept_or_leak(&self, deadline: Instant) {
        loop {
            // Nobody is left to be told.
            drop(self.take_released());
            let mut kept = lock(&self.kept);
            if kept.is_empty() {
                return;
            }
            if Instant::now() >= deadline {
                let left = std::mem::take(&mut *kept);
                drop(kept);
                tracing::warn!("a peer does not stop copying; its transfer's memory is leaked");
                for Kept { memory, late, held, admission, .. } in left {
                    // The endpoint ends, and with it what is counted.
                    drop(admission);
                    late.into_iter().for_each(LingeringMemory::keep_for_good);
                    memory.iter().for_each(|memory| memory.region().keep_for_good());
                    // Whoever waits for it is told by that.
                    drop(memory);
                    held.into_iter().for_each(RetiredMemory::keep_for_good);
                }
                return;
            }
            drop(kept);
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[cfg(test)]
mod tests;
