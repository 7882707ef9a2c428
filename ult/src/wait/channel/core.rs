//! The state of a channel, behind an OS mutex that is held for a few instructions and never across
//! a suspension or while an item is dropped.
//!
//! # Invariants
//!
//! | if | then |
//! |---|---|
//! | a receiver waits | no item is queued, no sender waits, the channel is open |
//! | a sender waits | the queue is full, no receiver waits, the channel is open |
//!
//! So an item goes straight into the hands of a waiting receiver, and the item of a waiting sender
//! moves into the queue (or to the receiver, in a channel without room) when there is room. A
//! waiter is woken when its item has been moved; it finds out what happened by looking into its
//! [`ItemCell`].
//!
//! `has_news` is a copy of "a receive would not wait", for looks without the lock.

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::time::Instant;

use crate::base::wait_kind::WaitKind;
use crate::engine::model::waiter::{WaitList, Waiter};
use crate::engine::waiting::list::Chain;
use crate::engine::waiting::waiter::{SpinFor, spin};
use crate::sync::atomic::AtomicBool;
use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::{Mutex as OsMutex, MutexGuard as OsGuard, UnsafeCell, lock};

/// How an operation that cannot be done at once goes on.
#[derive(Debug, Clone, Copy)]
pub(super) enum WaitLimit {
    None,
    Until(Option<Instant>),
}

/// The reason why an operation was not done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// It would have had to wait (longer).
    NotNow,
    Closed,
}

pub(super) struct ChannelCore<T> {
    state: OsMutex<ChannelState<T>>,
    /// Items that the queue may hold.
    capacity: Option<usize>,
    has_news: AtomicBool,
}

struct ChannelState<T> {
    items: VecDeque<T>,
    receivers: WaitList,
    senders: WaitList,
    /// Selects that wait for something to receive.
    recv_watch: WaitList,
    /// Selects that wait for room.
    send_watch: WaitList,
    is_closed: bool,
}

/// The place for the item of a waiting party: a sender's until it is taken, a receiver's once it
/// has come. The lock of the channel guards it while the waiter is linked; its party owns it
/// afterwards.
pub(super) struct ItemCell<T>(UnsafeCell<Option<T>>);

impl<T> ItemCell<T> {
    pub(super) fn new(item: Option<T>) -> Self {
        Self(UnsafeCell::new(item))
    }

    fn waiter(&self, kind: WaitKind) -> Waiter {
        let mut waiter = Waiter::new(kind);
        waiter.tag = std::ptr::from_ref(self).cast_mut().cast();
        waiter
    }

    /// Takes the item out of the slot when the wait is over.
    pub(super) fn take(&self) -> Option<T> {
        // SAFETY:
        // - no alias: the waiter is unlinked, so the slot is its party's, which is the caller.
        self.0.with_mut(|slot| unsafe { (*slot).take() })
    }
}

/// The slot of a waiter.
///
/// # Safety
///
/// The waiter is in a list of a channel of `T`, or popped and not yet woken, under the lock.
unsafe fn slot_of<'a, T>(waiter: NonNull<Waiter>) -> &'a ItemCell<T> {
    // SAFETY:
    // - alive: linked or not yet woken.
    let tag = unsafe { waiter.as_ref() }.tag;
    // SAFETY:
    // - alive and of this type: made by `ItemCell::waiter`, by a party that waits until it is
    //   woken.
    unsafe { &*tag.cast::<ItemCell<T>>() }
}

// SAFETY: items move between threads (`T: Send`); everything else is guarded by the lock.
unsafe impl<T: Send> Sync for ChannelCore<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for ChannelCore<T> {}

impl<T> ChannelCore<T> {
    pub(super) fn new(capacity: Option<usize>) -> Self {
        /// A larger queue grows when it is needed.
        const RESERVED_MAX: usize = 1024;
        let state = ChannelState {
            items: VecDeque::with_capacity(capacity.unwrap_or(0).min(RESERVED_MAX)),
            receivers: WaitList::new(),
            senders: WaitList::new(),
            recv_watch: WaitList::new(),
            send_watch: WaitList::new(),
            is_closed: false,
        };
        Self { state: OsMutex::new(state), capacity, has_news: AtomicBool::new(false) }
    }

    pub(super) fn capacity(&self) -> Option<usize> {
        self.capacity
    }

    pub(super) fn len(&self) -> usize {
        lock(&self.state).items.len()
    }

    pub(super) fn is_closed(&self) -> bool {
        lock(&self.state).is_closed
    }

    pub(super) fn send(&self, item: T, patience: WaitLimit) -> Result<(), (T, Refusal)> {
        let mut state = lock(&self.state);
        if state.is_closed {
            return Err((item, Refusal::Closed));
        }
        if let Some(receiver) = state.receivers.pop_front() {
            // SAFETY: a receiver of this channel, popped under the lock and not yet woken.
            unsafe { put(receiver, item) };
            drop(state);
            // SAFETY:
            // - alive, unlinked: popped above; not touched afterwards.
            unsafe { Waiter::wake(receiver) };
            return Ok(());
        }
        if state.has_room(self.capacity) {
            state.items.push_back(item);
            self.tell_receivers(state);
            return Ok(());
        }
        match patience {
            WaitLimit::None => Err((item, Refusal::NotNow)),
            WaitLimit::Until(deadline) => self.send_slow(state, item, deadline),
        }
    }

    #[cold]
    fn send_slow(
        &self,
        mut state: OsGuard<'_, ChannelState<T>>,
        item: T,
        deadline: Option<Instant>,
    ) -> Result<(), (T, Refusal)> {
        let slot = ItemCell::new(Some(item));
        let waiter = slot.waiter(WaitKind::ChannelSend);
        let node = NonNull::from(&waiter);
        // SAFETY:
        // - in no list: fresh; it and the slot stay until it is woken or removed (`settle`).
        unsafe { state.senders.push_back(node) };
        // Without room the waiting sender is what a receiver gets.
        self.tell_receivers(state);
        // SAFETY: alive, our own; senders wait in no other list.
        let is_woken = waiter.settle(deadline, || unsafe { self.leave(|s| &mut s.senders, node) });
        match slot.take() {
            None => Ok(()),
            Some(item) if is_woken => Err((item, Refusal::Closed)),
            Some(item) => Err((item, Refusal::NotNow)),
        }
    }

    /// Gives the item of an async sender to a receiver that waits. If none does, links the waiter
    /// of the sender, whose tag is `slot`, until one comes. `false`: nothing is linked, because the
    /// item is gone or the channel is closed.
    ///
    /// # Safety
    ///
    /// The waiter is in no list, and it and `slot` stay until it is woken or
    /// [`withdraw`](Self::withdraw) has taken it out.
    #[cfg(not(loom))]
    pub(super) unsafe fn offer(&self, node: NonNull<Waiter>, slot: &ItemCell<T>) -> bool {
        let mut state = lock(&self.state);
        if state.is_closed {
            return false;
        }
        // Nothing of it is linked, so the slot is the caller's.
        let Some(item) = slot.take() else { return false };
        if let Some(receiver) = state.receivers.pop_front() {
            // SAFETY: a receiver of this channel, popped under the lock and not yet woken.
            unsafe { put(receiver, item) };
            drop(state);
            // SAFETY:
            // - alive, unlinked: popped above; not touched afterwards.
            unsafe { Waiter::wake(receiver) };
            return false;
        }
        // SAFETY:
        // - no alias: not linked yet.
        slot.0.with_mut(|slot| unsafe { *slot = Some(item) });
        // SAFETY: duty of the caller.
        unsafe { state.senders.push_back(node) };
        self.tell_receivers(state);
        true
    }

    /// Returns whether the item of an async sender has been taken, or never will be.
    #[cfg(not(loom))]
    pub(super) fn is_offer_over(&self, slot: &ItemCell<T>) -> bool {
        let state = lock(&self.state);
        // SAFETY:
        // - no writer: only its owner, who is the caller, and receivers, who need the lock.
        state.is_closed || slot.0.with(|slot| unsafe { (*slot).is_none() })
    }

    /// Takes the waiter of an async sender out. `false`: its wait has been ended.
    #[cfg(not(loom))]
    pub(super) fn withdraw(&self, node: NonNull<Waiter>) -> bool {
        // SAFETY: alive, and the caller's own; senders wait in no other list.
        unsafe { self.leave(|state| &mut state.senders, node) }
    }

    pub(super) fn recv(&self, patience: WaitLimit) -> Result<T, Refusal> {
        let WaitLimit::Until(deadline) = patience else {
            if !self.has_news.load(Relaxed) {
                return Err(Refusal::NotNow);
            }
            return self.take_item(lock(&self.state)).map_err(|(refusal, _)| refusal);
        };
        // Another core may be about to send.
        spin(SpinFor::Other, || self.has_news.load(Relaxed));
        match self.take_item(lock(&self.state)) {
            Ok(item) => Ok(item),
            Err((Refusal::NotNow, state)) => self.recv_slow(state, deadline),
            Err((Refusal::Closed, _)) => Err(Refusal::Closed),
        }
    }

    /// Takes the oldest item, if there is one; else gives the lock back to the caller.
    fn take_item<'a>(
        &self,
        mut state: OsGuard<'a, ChannelState<T>>,
    ) -> Result<T, (Refusal, OsGuard<'a, ChannelState<T>>)> {
        let queued = state.items.pop_front();
        // There is room now, or there is none and the sender gives directly.
        let sender = state.senders.pop_front();
        // SAFETY: a sender of this channel, popped under the lock and not yet woken.
        let sent = sender.and_then(|sender| unsafe { slot_of::<T>(sender) }.take());
        let item = match (queued, sent) {
            (Some(queued), sent) => {
                state.items.extend(sent);
                queued
            }
            (None, Some(sent)) => sent,
            (None, None) => {
                let why = if state.is_closed { Refusal::Closed } else { Refusal::NotNow };
                return Err((why, state));
            }
        };
        self.has_news.store(state.has_news(), Relaxed);
        let watchers = if sender.is_none() && !state.send_watch.is_empty() {
            state.send_watch.take_all()
        } else {
            Chain::new()
        };
        drop(state);
        watchers.wake();
        if let Some(sender) = sender {
            // SAFETY:
            // - alive, unlinked: popped above; not touched afterwards.
            unsafe { Waiter::wake(sender) };
        }
        Ok(item)
    }

    #[cold]
    fn recv_slow(
        &self,
        mut state: OsGuard<'_, ChannelState<T>>,
        deadline: Option<Instant>,
    ) -> Result<T, Refusal> {
        let slot = ItemCell::new(None);
        let waiter = slot.waiter(WaitKind::ChannelRecv);
        let node = NonNull::from(&waiter);
        // SAFETY:
        // - in no list: fresh; it and the slot stay until it is woken or removed (`settle`).
        unsafe { state.receivers.push_back(node) };
        // Without room a waiting receiver is the room that a sender needs.
        let watchers = state.send_watch.take_all();
        drop(state);
        watchers.wake();
        // SAFETY: alive, our own; receivers wait in no other list.
        let is_woken =
            waiter.settle(deadline, || unsafe { self.leave(|s| &mut s.receivers, node) });
        match slot.take() {
            Some(item) => Ok(item),
            None if is_woken => Err(Refusal::Closed),
            None => Err(Refusal::NotNow),
        }
    }

    /// Takes a waiter out. `false`: it has been woken.
    ///
    /// # Safety
    ///
    /// It is alive, and was put into this list of this channel and no other.
    unsafe fn leave(
        &self,
        list: impl FnOnce(&mut ChannelState<T>) -> &mut WaitList,
        node: NonNull<Waiter>,
    ) -> bool {
        let mut state = lock(&self.state);
        // SAFETY: duty of the caller.
        let was_linked = unsafe { list(&mut state).remove(node) };
        self.has_news.store(state.has_news(), Relaxed);
        was_linked
    }

    /// Wakes the watchers of the receiving end: there is something to receive, and no receiver
    /// waits for it alone.
    fn tell_receivers(&self, mut state: OsGuard<'_, ChannelState<T>>) {
        self.has_news.store(true, Relaxed);
        if state.recv_watch.is_empty() {
            return;
        }
        let watchers = state.recv_watch.take_all();
        drop(state);
        watchers.wake();
    }

    /// Lets everybody go: senders take their items back, receivers get what is queued.
    pub(super) fn close(&self) {
        let mut state = lock(&self.state);
        state.is_closed = true;
        self.has_news.store(true, Relaxed);
        let ChannelState { receivers, senders, recv_watch, send_watch, .. } = &mut *state;
        let mut all = Chain::new();
        for list in [receivers, senders, recv_watch, send_watch] {
            all.append(list.take_all());
        }
        drop(state);
        all.wake();
    }

    /// Drops what is queued, when nobody can receive it any more.
    pub(super) fn discard(&self) {
        let items = std::mem::take(&mut lock(&self.state).items);
        drop(items);
    }

    pub(super) fn can_recv(&self) -> bool {
        lock(&self.state).has_news()
    }

    pub(super) fn can_send(&self) -> bool {
        lock(&self.state).takes_item(self.capacity)
    }

    /// Links a waiter that is woken when there may be something to receive. `false`: there is.
    ///
    /// # Safety
    ///
    /// It is in no list, and stays until it is woken or `unwatch` has taken it out.
    pub(super) unsafe fn watch_recv(&self, node: NonNull<Waiter>) -> bool {
        let mut state = lock(&self.state);
        if state.has_news() {
            return false;
        }
        // SAFETY: duty of the caller.
        unsafe { state.recv_watch.push_back(node) };
        true
    }

    /// Links a waiter that is woken when there may be room. `false`: there is.
    ///
    /// # Safety
    ///
    /// As for [`watch_recv`](Self::watch_recv).
    pub(super) unsafe fn watch_send(&self, node: NonNull<Waiter>) -> bool {
        let mut state = lock(&self.state);
        if state.takes_item(self.capacity) {
            return false;
        }
        // SAFETY: duty of the caller.
        unsafe { state.send_watch.push_back(node) };
        true
    }

    pub(super) fn unwatch_recv(&self, node: NonNull<Waiter>) -> bool {
        // SAFETY: alive, and the caller's own; it was put into this list.
        unsafe { self.leave(|state| &mut state.recv_watch, node) }
    }

    pub(super) fn unwatch_send(&self, node: NonNull<Waiter>) -> bool {
        // SAFETY: alive, and the caller's own; it was put into this list.
        unsafe { self.leave(|state| &mut state.send_watch, node) }
    }
}

impl<T> ChannelState<T> {
    fn has_room(&self, capacity: Option<usize>) -> bool {
        capacity.is_none_or(|capacity| self.items.len() < capacity)
    }

    /// Returns whether a receive would return at once.
    fn has_news(&self) -> bool {
        self.is_closed || !self.items.is_empty() || !self.senders.is_empty()
    }

    /// Returns whether a send would return at once.
    fn takes_item(&self, capacity: Option<usize>) -> bool {
        self.is_closed || !self.receivers.is_empty() || self.has_room(capacity)
    }
}

/// Puts an item into the hands of a waiting receiver.
///
/// # Safety
///
/// As for [`slot_of`].
unsafe fn put<T>(receiver: NonNull<Waiter>, item: T) {
    // SAFETY: duty of the caller.
    let slot = unsafe { slot_of::<T>(receiver) };
    // SAFETY:
    // - no alias: the lock guards the slot until its party is woken.
    slot.0.with_mut(|slot| unsafe { *slot = Some(item) });
}
