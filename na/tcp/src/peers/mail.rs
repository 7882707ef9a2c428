//! Work that any thread leaves for the next poll, and the end of the poller's sleep.
//!
//! Two lists: completions to report, and peers to look at (to dial, to flush, to give up). A peer
//! is in the list at most once; `PeerState::listed`, behind the peer's lock, says whether it is.
//!
//! # Sleeping
//!
//! A sleep must not begin once there is mail, and mail must end a sleep that has begun. Both sides
//! write their flag and then read the other's, with a sequentially consistent fence between
//! (pair: TCP-SLEEP), so at least one of them sees the other: either
//! [`prepare_sleep`](Mail::prepare_sleep) sees the mail, or [`notify`](Mail::notify) sees the
//! sleeper and writes to its eventfd. `sleeping` is taken by a swap, so one sleep costs one write.
//! The lists themselves are ordered by their lock; `any` is only a hint to take it.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use rustix::event::EventfdFlags;

use crate::peers::peer::{Peer, PeerState};
use na_core::{Completion, Error};
use prim::lock::BiasedLock;
use prim::lost;
use prim::sync::Arc;
use prim::sync::atomic::{AtomicBool, Ordering, fence};

/// How the bell is called, should it be lost.
pub(crate) const BELL_NAME: &str = "the eventfd that wakes the progress of a tcp endpoint";

#[derive(Default)]
struct Lists {
    completions: Vec<Completion>,
    peers: Vec<Arc<Peer>>,
    closed: bool,
}

/// See the module's documentation.
pub(crate) struct Mail {
    lists: BiasedLock<Lists>,
    any: AtomicBool,
    sleeping: AtomicBool,
    /// Readable after a sleep was ended by mail.
    bell: OwnedFd,
}

impl Mail {
    pub(crate) fn new() -> Result<Self, Error> {
        let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
        let bell = rustix::event::eventfd(0, flags)
            .map_err(|errno| Error::io("cannot create an eventfd", errno))?;
        Ok(Self {
            lists: BiasedLock::default(),
            any: AtomicBool::new(false),
            sleeping: AtomicBool::new(false),
            bell,
        })
    }

    /// The descriptor that ends a sleep.
    pub(crate) fn bell(&self) -> &OwnedFd {
        &self.bell
    }

    /// Leaves completions for the next poll.
    pub(crate) fn complete(&self, completions: impl IntoIterator<Item = Completion>) {
        self.lists.lock().completions.extend(completions);
        self.notify();
    }

    /// Asks the next poll to look at `peer`, whose state is given. `false`: the endpoint is closed,
    /// there will be none.
    pub(crate) fn list(&self, peer: &Arc<Peer>, state: &mut PeerState) -> bool {
        if !state.listed {
            let mut lists = self.lists.lock();
            if lists.closed {
                return false;
            }
            lists.peers.push(peer.clone());
            drop(lists);
            state.listed = true;
            self.notify();
        }
        true
    }

    /// Peers that wait to be looked at.
    pub(crate) fn listed(&self) -> Vec<Arc<Peer>> {
        self.lists.lock().peers.clone()
    }

    /// No peer is listed from now on; returns those that are.
    pub(crate) fn close(&self) -> Vec<Arc<Peer>> {
        let mut lists = self.lists.lock();
        lists.closed = true;
        std::mem::take(&mut lists.peers)
    }

    /// Returns whether there probably is something to take.
    pub(crate) fn has_some(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// Takes everything. The caller clears `listed` of each peer when it looks at it.
    pub(crate) fn take(&self, completions: &mut VecDeque<Completion>, peers: &mut Vec<Arc<Peer>>) {
        if self.any.load(Ordering::Relaxed) {
            self.any.store(false, Ordering::Relaxed);
            let mut lists = self.lists.lock();
            completions.extend(lists.completions.drain(..));
            peers.append(&mut lists.peers);
        }
    }

    /// Returns whether a sleep was announced and not yet ended.
    pub(crate) fn is_sleeping(&self) -> bool {
        self.sleeping.load(Ordering::Relaxed)
    }

    /// Announces a sleep. `false`: there is mail, do not sleep.
    pub(crate) fn prepare_sleep(&self) -> bool {
        self.sleeping.store(true, Ordering::Relaxed);
        // Forbids to read `any` before others can read `sleeping`.
        fence(Ordering::SeqCst); // pair: TCP-SLEEP
        if self.any.load(Ordering::Relaxed) {
            self.sleeping.store(false, Ordering::Relaxed);
            return false;
        }
        true
    }

    /// Ends the announcement.
    pub(crate) fn end_sleep(&self) {
        if self.sleeping.load(Ordering::Relaxed) {
            self.sleeping.store(false, Ordering::Relaxed);
        }
    }

    /// Asks for a poll.
    pub(crate) fn notify(&self) {
        self.any.store(true, Ordering::Relaxed);
        // Forbids to read `sleeping` before the sleeper can read `any`.
        fence(Ordering::SeqCst); // pair: TCP-SLEEP
        if self.sleeping.load(Ordering::Relaxed) && self.sleeping.swap(false, Ordering::Relaxed) {
            lost::ring(&self.bell, BELL_NAME);
        }
    }
}
