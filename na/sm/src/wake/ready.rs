//! Completions that did not come out of the poll, and the poll's own doorbell.
//!
//! Any thread may complete an operation at once (a receive whose message is there, a refused
//! connection) or give the poll work (a queue, a new connection). It puts that where the poll
//! looks and then wakes the poll if it sleeps; the handshake is `doorbell.rs`, the bell an
//! eventfd.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use rustix::event::EventfdFlags;

use super::doorbell::{Doorbell, RECORDS};
use na_core::{Completion, Error};
use prim::lost;
use prim::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use prim::sync::{Mutex, lock};

/// How the bell is called, should it be lost.
const EVENT: &str = "the eventfd that wakes the progress of an sm endpoint";

/// The queue and the bell.
#[derive(Debug)]
pub(crate) struct Ready {
    queue: Mutex<Vec<Completion>>,
    /// Length of the queue, to look at without the lock.
    count: AtomicUsize,
    bell: AtomicU32,
    /// The poll may sleep.
    sleeps: bool,
    event: OwnedFd,
}

impl Ready {
    /// `sleeps`: the poll may.
    pub(crate) fn new(sleeps: bool) -> Result<Self, Error> {
        let event = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| Error::io("cannot create an eventfd", errno))?;
        let (count, bell) = (AtomicUsize::new(0), AtomicU32::new(0));
        Ok(Self { queue: Mutex::new(Vec::new()), count, bell, sleeps, event })
    }

    /// Returns the descriptor that becomes readable when the poll is woken.
    pub(crate) fn event(&self) -> &OwnedFd {
        &self.event
    }

    /// Reports a completion; wakes the poll.
    pub(crate) fn push(&self, completion: Completion) {
        let mut queue = lock(&self.queue);
        queue.push(completion);
        self.count.store(queue.len(), Ordering::Relaxed);
        drop(queue);
        self.wake_poll();
    }

    /// Returns whether [`settle`](super::doorbell::settle) is due before
    /// [`wake_poll_settled`](Self::wake_poll_settled): the poll may sleep.
    #[inline]
    pub(crate) fn sleeps(&self) -> bool {
        self.sleeps
    }

    /// Wakes the poll if it sleeps. Whatever the caller gave it to do must be in place.
    #[inline]
    pub(crate) fn wake_poll(&self) {
        if self.sleeps && self.bell().must_ring(RECORDS) {
            self.ring();
        }
    }

    /// As [`wake_poll`](Self::wake_poll), after [`settle`](super::doorbell::settle) if the poll
    /// may sleep.
    #[inline]
    pub(crate) fn wake_poll_settled(&self) {
        if self.sleeps && self.bell().claim(RECORDS) {
            self.ring();
        }
    }

    #[cold]
    fn ring(&self) {
        lost::ring(&self.event, EVENT);
    }

    /// Poll: takes what is there. Returns whether there was something.
    #[inline]
    pub(crate) fn take(&self, out: &mut VecDeque<Completion>) -> bool {
        self.is_filled() && self.take_queue(out)
    }

    /// Returns whether something is there.
    #[inline]
    pub(crate) fn is_filled(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    #[inline(never)]
    fn take_queue(&self, out: &mut VecDeque<Completion>) -> bool {
        let mut queue = lock(&self.queue);
        out.extend(queue.drain(..));
        self.count.store(0, Ordering::Relaxed);
        true
    }

    /// Poll: its doorbell.
    pub(crate) fn bell(&self) -> Doorbell<'_> {
        Doorbell::new(&self.bell)
    }

    /// Poll: silences the eventfd.
    pub(crate) fn silence(&self) {
        lost::silence(&self.event, EVENT);
    }
}
