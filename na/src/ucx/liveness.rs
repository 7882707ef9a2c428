//! Signs of life: who wants some gets them, and who owes us something must give them.
//!
//! UCX notices a process that dies, and not one that is stopped.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use super::driver::Driver;
use super::peer::Phase;
use super::slots::Work;
use super::wire::Control;

/// Signs of life are sent this often at most.
pub(super) const EVERY_MIN: Duration = Duration::from_millis(20);

/// Signs of life that are asked for within the limit.
const PARTS: u32 = 4;

/// How often we want to hear something, ms.
pub(super) fn alive_every_ms(limit: Duration) -> u32 {
    let every = limit.checked_div(PARTS).unwrap_or_default();
    match limit.is_zero() {
        true => 0,
        false => u32::try_from(every.max(EVERY_MIN).as_millis()).unwrap_or(u32::MAX),
    }
}

/// When to look after the peers.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// `None`: nobody wants a sign of life, nor do we.
    pub(super) next: Option<Instant>,
    last: Option<Instant>,
}

impl Driver {
    /// A peer is connected that may want signs of life, or owe them.
    pub(super) fn watch_over(&mut self, index: usize) {
        let limit = self.facts.liveness_limit;
        let wants = self.peer(index).is_some_and(|peer| peer.alive_every.is_some());
        if wants || !limit.is_zero() {
            self.watch.next.get_or_insert_with(Instant::now);
        }
    }

    /// Sends signs of life, and ends peers that owe something and give none.
    pub(super) fn look_after_peers(&mut self) {
        let Some(next) = self.watch.next else { return };
        let now = Instant::now();
        if now < next {
            return;
        }
        let limit = self.facts.liveness_limit;
        let last = self.watch.last.replace(now).unwrap_or(now);
        // Who was stopped itself blames nobody for that.
        let paused = now.duration_since(last) > limit / 2;
        let debtors = self.debtors();
        let mut every = (!limit.is_zero()).then(|| (limit / PARTS).max(EVERY_MIN));
        for index in 0..self.peers.len() {
            let Some(peer) = self.peers[index].as_mut() else { continue };
            if peer.phase != Phase::Connected {
                continue;
            }
            if paused || !debtors.contains(&index) {
                peer.heard_at = now;
            }
            if !limit.is_zero() && now.duration_since(peer.heard_at) > limit {
                self.end_session(index, format!("it gave no sign of life for {limit:?}"));
                continue;
            }
            let Some(wanted) = peer.alive_every else { continue };
            every = Some(every.map_or(wanted, |every| every.min(wanted)));
            // It may be asked for a little late, and is counted from when it was due.
            if now.duration_since(peer.told_at) + EVERY_MIN / 2 >= wanted {
                peer.told_at = now;
                self.tell(index, &Control::Alive);
            }
        }
        self.watch.next = every.and_then(|every| now.checked_add(every));
    }

    /// Peers from which something is awaited.
    fn debtors(&self) -> HashSet<usize> {
        let slots = self.slots.iter().filter_map(|(_, work)| match work {
            Work::Send { op: Some(_), peer, .. } => Some(*peer),
            Work::Receive { op: Some(_), peer, .. } => Some(*peer),
            _ => None,
        });
        let transfers = self.transfers.values().map(|own| own.peer);
        let queued = self.peers.iter().enumerate().filter(|(_, peer)| {
            peer.as_ref().is_some_and(|peer| peer.queues.iter().any(|queue| !queue.is_empty()))
        });
        slots.chain(transfers).chain(queued.map(|(index, _)| index)).collect()
    }
}
