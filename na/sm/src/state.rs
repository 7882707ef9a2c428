//! State of an endpoint: what its threads share, and what the poll alone touches. The work on it
//! stands in `impl` blocks of `progress/` and `api/`.
//!
//! # Locks, in the order in which they may be taken
//!
//! 1. `poll`: what the poll alone touches. Held while the sink is called, so nothing that the
//!    sink may call takes it (`close` tries, and leaves the work to the poll otherwise).
//! 2. A peer's `links`: its send lock.
//! 3. `peers`, and what `loopback` holds.
//! 4. `matcher`, `opened`, `kept`, `canceled`, the queue in `ready`, what `group` holds.
//!
//! No memory is released and no sink is called under 2–4, because both run foreign code.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Weak;
use std::time::Instant;

use rustix::event::Timespec;

use crate::address::Name;
use crate::link::group::{Group, PeerName, Stranger};
use crate::link::listener::Listener;
use crate::peers::{Links, Peer, PeerPart, PeerTable, RxLink};
use crate::transfer::cma::Nonce;
use crate::transfer::kept::Kept;
use crate::wake::board::OwnBoard;
use crate::wake::ready::Ready;
use crate::wake::reports::Reports;
use na_core::base::ran::RunClock;
use na_core::limits::descriptors;
use na_core::loopback::{Loopback, Outcome};
use na_core::matching::Matcher;
use na_core::{Addr, Completion, OpId, OpenOptions, RegionTable};
use prim::fork::Process;
use prim::lock::BiasedLock;
use prim::lock::biased::PLACES;
use prim::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use prim::sync::{Arc, Mutex, lock};

/// Tokens in the epoll set; connections follow.
pub(crate) const WAKE: u64 = 0;
pub(crate) const TIMER: u64 = 1;
pub(crate) const LISTENER: u64 = 2;
pub(crate) const INBOX: u64 = 3;
pub(crate) const FIRST_TOKEN: u64 = 16;

/// Added to the token of a connection: the peer's process.
pub(crate) const PROCESS: u64 = 1 << 63;

/// Accepted sockets whose hello has not come, half of them of one user. Nobody waits in the
/// kernel's queue for a place: there, those of one user would keep the others waiting.
const STRANGERS_MAX: usize = 1024;

/// The part of the process's descriptors that such sockets may be: one in this many.
const STRANGERS_PART: u64 = 4;

/// An endpoint of the sm transport.
pub(crate) struct SmEndpoint {
    pub(crate) itself: Weak<Self>,
    pub(crate) id: u64,
    pub(crate) name: Name,
    pub(crate) own_addr: Addr,
    pub(crate) options: OpenOptions,
    /// Bytes of each ring in connections that we make.
    pub(crate) ring_bytes: usize,
    /// Cross-memory attach is wanted and works here.
    pub(crate) attach: bool,
    pub(crate) nonce: Nonce,
    pub(crate) regions: RegionTable,
    /// Where peers tell that they have something, see `board.rs`.
    pub(crate) board: OwnBoard,
    pub(crate) matcher: BiasedLock<Matcher>,
    pub(crate) ready: Ready,
    /// Reports of transfers that were done at once.
    pub(crate) reports: Reports<PLACES>,
    pub(crate) loopback: Loopback,
    pub(crate) peers: Mutex<PeerTable>,
    pub(crate) epoll: OwnedFd,
    pub(crate) timer: OwnedFd,
    pub(crate) next_token: AtomicU64,
    /// Connections made by senders, for the poll to take over.
    pub(crate) opened: Mutex<Vec<RxLink>>,
    pub(crate) has_opened: AtomicBool,
    /// Memory that the owner of a lost connection may still be copying.
    pub(crate) kept: Mutex<Vec<Kept>>,
    /// Canceled transfers whose owners have not answered.
    pub(crate) canceled: Mutex<Vec<Canceled>>,
    pub(crate) poll: BiasedLock<PollState>,
    /// The endpoints behind our name.
    pub(crate) group: Arc<Group>,
    /// Our number among them.
    pub(crate) shard: usize,
    pub(crate) closed: AtomicBool,
    /// The process that opened it.
    pub(crate) process: Process,
    /// A peer was named, or has connected, whose RPC layer is C Mercury's. Relaxed: it comes before
    /// the address, or the end of a call, by which a caller learns of that.
    pub(crate) has_met_mercury: AtomicBool,
    /// Connections, by how bulk data moves.
    pub(crate) attached: AtomicUsize,
    pub(crate) unattached: AtomicUsize,
}

impl SmEndpoint {
    /// Also in a child that was forked off: what it has a copy of is its parent's.
    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed) || self.process.is_other()
    }

    /// Notes whether the RPC layer of a peer is C Mercury's.
    pub(crate) fn note_rpc_layer(&self, peer: &Peer, for_mercury: bool) {
        if for_mercury {
            self.has_met_mercury.store(true, Ordering::Relaxed);
        }
        peer.set_for_mercury(for_mercury);
    }

    /// The peer that listens as `name`, through its endpoint `wanted` if possible.
    pub(crate) fn peer_named(&self, name: &Name, wanted: Option<u8>) -> Arc<Peer> {
        lock(&self.peers).named(name, wanted, || PeerPart {
            identity: Some(self.group.identity(PeerName::Listening(name.clone()))),
            is_apart: self.group.count() > 1 || wanted.is_some(),
            wanted,
        })
    }

    /// Returns whether there is a connection with the peer that listens as `name` on which either
    /// side answers whatever came from the other one.
    pub(crate) fn shares_with(&self, name: &Name) -> bool {
        let known = lock(&self.peers).known(name);
        known.is_some_and(|peer| peer.links.lock().iter().any(|link| !link.conn.is_apart))
    }
}

/// A transfer that was canceled and waits for the answer of the memory's owner.
#[derive(Debug)]
pub(crate) struct Canceled {
    pub(crate) op: OpId,
    pub(crate) peer: Weak<Peer>,
    pub(crate) waited: RunClock,
}

/// The state that the poll alone touches.
#[derive(Debug, Default)]
pub(crate) struct PollState {
    pub(crate) links: Links,
    pub(crate) strangers: Vec<Stranger>,
    pub(crate) listener: Option<Listener>,
    /// How many strangers there may be.
    pub(crate) strangers_max: usize,
    /// When to accept again, after descriptors had run out.
    pub(crate) accept_again: Option<Instant>,
    /// Completions to report.
    pub(crate) arrived: VecDeque<Completion>,
    pub(crate) out: Outcome,
    pub(crate) polls: u32,
    pub(crate) looked_at: Timespec,
    pub(crate) look_now: bool,
    /// Events of the last looks, if each left some behind.
    pub(crate) crowded: usize,
    pub(crate) asleep: bool,
    /// Polls since the last round.
    pub(crate) reports: u32,
    pub(crate) turn: usize,
    pub(crate) shut_down: bool,
}

impl PollState {
    pub(crate) fn new(listener: Option<Listener>) -> Self {
        Self {
            strangers_max: descriptors::share(STRANGERS_MAX, STRANGERS_PART),
            listener,
            look_now: true,
            ..Self::default()
        }
    }
}

/// The receiver of what a poll reports.
///
/// A completion that passes through a queue is copied twice more, so while nothing waits before it
/// it is reported where it comes up. No lock but the poll's may be held there.
pub(crate) struct Sink<'a> {
    pub(crate) call: &'a mut dyn FnMut(Completion),
    /// Completions that it still takes.
    pub(crate) left: usize,
}

impl<'a> Sink<'a> {
    /// One that takes `budget` completions; the others are queued.
    pub(crate) fn new(call: &'a mut dyn FnMut(Completion), budget: usize) -> Self {
        Self { call, left: budget }
    }

    /// Returns whether it is the turn of a completion that comes up now.
    #[inline]
    pub(crate) fn takes(&self, queue: &VecDeque<Completion>) -> bool {
        self.left > 0 && queue.is_empty()
    }

    /// Reports a completion whose turn it is.
    #[inline(always)]
    pub(crate) fn tell(&mut self, completion: Completion) {
        self.left = self.left.saturating_sub(1);
        (self.call)(completion);
    }

    /// Reports what is queued.
    #[inline(never)]
    pub(crate) fn drain(&mut self, queue: &mut VecDeque<Completion>) {
        while self.left > 0
            && let Some(completion) = queue.pop_front()
        {
            self.left -= 1;
            (self.call)(completion);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_endpoints_of_a_group_share_no_cache_line() {
        let (size, align) = (size_of::<SmEndpoint>(), align_of::<SmEndpoint>());
        assert!(align >= 128, "{align}, of {size} bytes");
    }
}
