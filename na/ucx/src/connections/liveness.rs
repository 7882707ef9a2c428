//! Signs of life: a peer that wants some gets them, and a peer that owes us something must give
//! them.
//!
//! UCX notices a process that dies, and not one that is stopped. Silence is counted look by look,
//! after the messages that have come were read. Only time in which this process runs counts: see
//! `ran.rs`.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use crate::operations::{slots::Work, transfer_state::Landing};
use crate::state::driver::{Driver, Watch};
use crate::state::peer::Phase;
use crate::wire::Control;
use na_core::base::ran::{LIMIT_MIN, LOOKS, RunClock};

/// Signs of life are sent this often at most.
pub(crate) const EVERY_MIN: Duration =
    Duration::from_millis(LIMIT_MIN.as_millis() as u64 / LOOKS as u64);

impl Driver {
    /// How often to look after a peer that wants signs of life so often.
    fn interval(&self, wanted: Option<Duration>) -> Option<Duration> {
        let limit = self.facts.liveness_limit;
        let own = (!limit.is_zero()).then_some(limit / LOOKS);
        own.into_iter().chain(wanted).min()
    }

    /// A peer is connected that may want signs of life, or owe them.
    pub(crate) fn watch_over(&mut self, index: usize) {
        let wanted = self.peer(index).and_then(|peer| peer.alive_every);
        let Some(every) = self.interval(wanted) else { return };
        let now = Instant::now();
        // Far limits are not points in time.
        let Some(next) = now.checked_add(every) else { return };
        let watch = self.watch.get_or_insert(Watch { next, every, ran: RunClock::since(now) });
        watch.next = watch.next.min(next);
    }

    /// Sends signs of life, and ends peers that owe something and give none.
    pub(crate) fn look_after_peers(&mut self) {
        let Some(watch) = &mut self.watch else { return };
        let now = Instant::now();
        if now < watch.next {
            return;
        }
        let elapsed = watch.ran.look(now, watch.every);
        let limit = self.facts.liveness_limit;
        let debtors = if limit.is_zero() { HashSet::new() } else { self.debtors() };
        let mut next: Option<Duration> = None;
        for index in 0..self.peers.len() {
            let heard =
                self.state().windows.get_mut(index).map(|own| std::mem::take(&mut own.heard));
            let Some(peer) = self.peers[index].as_mut() else { continue };
            if peer.phase != Phase::Connected {
                continue;
            }
            let excused = heard == Some(true) || !debtors.contains(&index);
            if peer.silence.look(elapsed, excused, limit) {
                self.end_session(index, format!("it gave no sign of life for {limit:?}"));
                continue;
            }
            let wanted = peer.alive_every;
            // It may be asked for a little late, and is counted from when it was due.
            let since = |at: Instant| now.duration_since(at) + EVERY_MIN / 2;
            if wanted.is_some_and(|every| peer.told_at.is_none_or(|at| since(at) >= every)) {
                peer.told_at = Some(now);
                self.tell_alive(index);
            }
            next = next.into_iter().chain(self.interval(wanted)).min();
        }
        let next = next.and_then(|every| Some((now.checked_add(every)?, every)));
        self.watch = match (self.watch.take(), next) {
            (Some(watch), Some((next, every))) => Some(Watch { next, every, ..watch }),
            _ => None,
        };
    }

    /// Tells a peer that we live, once UCX has sent what it was told of that before: to one that is
    /// stopped nothing goes, and they would pile up.
    fn tell_alive(&mut self, index: usize) {
        let Some(peer) = self.peer(index).filter(|peer| !peer.alive_in_hand) else { return };
        let session = peer.session;
        let Some(link) = peer.link else { return };
        peer.alive_in_hand = true;
        self.tell_as(link, &Control::Alive, |bytes| Work::Alive(bytes, index, session));
    }

    /// UCX has sent that, or never will.
    pub(crate) fn alive_sent(&mut self, index: usize, session: u64) {
        if let Some(peer) = self.peer(index).filter(|peer| peer.session == session) {
            peer.alive_in_hand = false;
        }
    }

    /// Peers from which something is awaited.
    fn debtors(&self) -> HashSet<usize> {
        let sends = self.slots.iter().filter_map(|(_, work)| match work {
            Work::Send { op: None, .. } => None,
            // Of an earlier session, or of one that goes on.
            Work::Lent(stream, _)
            | Work::Landing(Landing { stream, .. })
            | Work::Reached(stream, ..)
            | Work::Flushed(stream) => self.is_current(*stream).then_some(stream.peer),
            work => work.peer(),
        });
        let transfers = self.transfers.values().filter(|own| !own.has_ended()).map(|own| own.peer);
        let state = self.state();
        let awaited: HashSet<u64> = state.matcher.awaited().map(|(id, _)| id).collect();
        let others = self.peers.iter().enumerate().filter(|(_, peer)| {
            peer.as_ref().is_some_and(|peer| {
                awaited.contains(&peer.id)
                    || peer.given.are_owed()
                    // It has our memory, or takes its time to read it.
                    || !peer.leases.is_empty()
                    || peer.load.chunks > 0
                    || peer.queues.iter().any(|queue| !queue.is_empty())
            })
        });
        sends.chain(transfers).chain(others.map(|(index, _)| index)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::peer::Silence;

    const LIMIT: Duration = Duration::from_secs(2);

    /// Looks that it takes, `pause` apart, until a silent peer is told from one that lives.
    fn looks(pause: Duration) -> usize {
        let every = LIMIT / LOOKS;
        let began = Instant::now();
        let (mut ran, mut silence) = (RunClock::since(began), Silence::default());
        let is_over = |look: u32| silence.look(ran.look(began + pause * look, every), false, LIMIT);
        (1..100).position(is_over).unwrap() + 1
    }

    #[test]
    fn a_silent_peer_passes_the_limit_however_seldom_somebody_polls() {
        assert_eq!(looks(LIMIT / LOOKS), LOOKS as usize);
        assert_eq!(looks(LIMIT), LOOKS as usize);
        assert_eq!(looks(LIMIT * 100), LOOKS as usize);
        assert_eq!(looks(LIMIT / (2 * LOOKS)), 2 * LOOKS as usize);
    }

    #[test]
    fn who_is_heard_or_owes_nothing_is_not_silent() {
        let mut silence = Silence::default();
        for _ in 0..10 {
            assert!(!silence.look(LIMIT / 2, false, LIMIT));
            assert!(!silence.look(LIMIT * 2, true, LIMIT));
        }
        assert!(!silence.look(LIMIT, false, Duration::ZERO), "there is no limit");
        assert!(silence.look(LIMIT, false, LIMIT));
    }
}
