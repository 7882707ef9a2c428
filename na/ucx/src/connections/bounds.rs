//! Bounds on the operations and the memory that a peer makes us hold.
//!
//! UCX takes whatever is sent and keeps it until the peer reads. A peer may be stopped, or read
//! nothing and keep asking. So everything that it can ask for without end is counted here until UCX
//! has sent it. Requests and transfers of ours are counted where they begin.

use crate::operations::{keys::KEYS_MAX, transfer_state::Stream};
use crate::state::driver::Driver;
use crate::state::peer::{Load, Peer, Phase};
use crate::traffic::transfers::{ASKED_MAX, IN_HAND_MAX};
use na_core::Principal;

/// Chunks of what a peer gets that UCX has in hand, at most: those of as many transfers as it may
/// ask for. Further ones wait here, with their transfers.
pub(crate) const CHUNKS_MAX: u32 = ASKED_MAX as u32 * IN_HAND_MAX;

/// Control messages to a peer that UCX has in hand, at most. For a peer that keeps to the rules
/// there are fewer, even if it reads nothing: about the transfers of either side twice each (asked
/// and given up, granted and done), about the keys of either side twice each (wanted or given,
/// revoked or returned), and about its messages 2 of each kind.
pub(crate) const TOLD_MAX: u32 = (4 * ASKED_MAX + 4 * KEYS_MAX) as u32 + 128;

impl Driver {
    /// The load of a peer, if that is still its session.
    fn load(&mut self, index: usize, session: u64) -> Option<&mut Load> {
        let peer = self.peer(index).filter(|peer| peer.session == session)?;
        Some(&mut peer.load)
    }

    /// UCX has one chunk more in hand.
    pub(crate) fn chunk_given(&mut self, stream: Stream) {
        if !stream.put
            && let Some(load) = self.load(stream.peer, stream.session)
        {
            load.chunks += 1;
        }
    }

    /// Returns whether a get has to wait until UCX has fewer chunks for that peer. Our own puts do
    /// not: we have asked for no more of them than it allows.
    pub(crate) fn has_to_wait(&mut self, stream: Stream) -> bool {
        let load = self.load(stream.peer, stream.session).filter(|_| !stream.put);
        load.is_some_and(|load| {
            load.waits |= load.chunks >= CHUNKS_MAX;
            load.chunks >= CHUNKS_MAX
        })
    }

    /// UCX has sent a chunk, or never will: those that have waited go on.
    pub(crate) fn chunk_left(&mut self, stream: Stream) {
        let Stream { peer: index, session, put, .. } = stream;
        let Some(load) = self.load(index, session).filter(|_| !put) else { return };
        load.chunks -= 1;
        if !std::mem::take(&mut load.waits) {
            return;
        }
        let Some(peer) = self.peer(index) else { return };
        let gets = peer.leases.iter().filter(|(_, lease)| lease.outgoing.is_some());
        let gets: Vec<u64> = gets.map(|(id, _)| *id).collect();
        gets.into_iter().for_each(|id| self.queue(Stream { id, ..stream }));
    }

    /// UCX has sent what a peer was told, or never will.
    pub(crate) fn told_sent(&mut self, index: usize, session: u64) {
        if let Some(load) = self.load(index, session) {
            load.told -= 1;
        }
    }

    /// Ends the connection of a peer that asks on and reads nothing of what it is told; whether it
    /// was one.
    pub(crate) fn ends_deaf(&mut self, index: usize) -> bool {
        let deaf = self.peer(index).filter(|peer| peer.load.told > TOLD_MAX);
        let Some(link) = deaf.and_then(|peer| peer.link) else { return false };
        self.broke(link, format!("it asks on and reads nothing: {TOLD_MAX} things wait for it"));
        true
    }

    /// UCX has sent an answer of so many bytes, of the session that there is.
    pub(crate) fn answer_left(&mut self, index: usize, bytes: usize) {
        if let Some(peer) = self.peer(index) {
            peer.load.answer_left(bytes);
        }
    }

    /// Answers of so many bytes more wait for a peer, or are in UCX's hands.
    pub(crate) fn answer_waits(&mut self, index: usize, bytes: usize) {
        if bytes == 0 {
            return;
        }
        let budget = self.answers.clone();
        let Some(peer) = self.peer(index) else { return };
        let account = &mut peer.load.answers;
        let account = account.get_or_insert_with(|| budget.account(Principal::Unknown));
        account.set(account.held() + bytes);
    }

    /// Ends peers for which more answers wait than may, now that it is known what they have read;
    /// and those for which most wait, as long as all together are too many.
    pub(crate) fn end_overfull(&mut self) {
        let bounds = self.answers.bounds;
        let connected = |(_, peer): &(usize, &Peer)| peer.phase == Phase::Connected;
        loop {
            let peers = self.peers.iter().enumerate();
            let peers = peers.filter_map(|(at, peer)| Some((at, peer.as_ref()?))).filter(connected);
            let largest = peers.map(|(at, peer)| (peer.load.answers(), at)).max();
            let Some((bytes, index)) = largest.filter(|(bytes, _)| *bytes > 0) else { return };
            if bounds.broken_by(bytes, 0, self.answers.held()).is_none() {
                return;
            }
            let session = self.peer(index).map(|peer| peer.session);
            self.end_session(index, format!("it takes no answers: {bytes} bytes wait"));
            if self.peer(index).map(|peer| peer.session) == session {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests;
