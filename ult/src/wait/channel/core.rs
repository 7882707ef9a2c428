//! The state of a channel, in two halves, so that a sender and a receiver on two cores meet once
//! for many items.
//!
//! | half | who locks it | what is in it |
//! |---|---|---|
//! | [`Back`] | senders; a receiver whose front is empty | the younger items, everybody who waits |
//! | [`Front`] | receivers; whoever is about to wait | the older items |
//!
//! A receiver takes from the front. If that is empty, it locks the back as well and exchanges the
//! two queues: one meeting for all items that have come since. Both locks are OS mutexes, always
//! taken in the order front, back, held for a few instructions, and never across a suspension or
//! while an item is dropped.
//!
//! Where items come one by one, as on one xstream, there is nothing to exchange: the receiver takes
//! the only item out of the back, and leaves the front alone.
//!
//! # Invariants
//!
//! | if | then |
//! |---|---|
//! | a receiver waits | no item is queued, no sender waits, the channel is open |
//! | a sender waits | the queue is full, no receiver waits, the channel is open |
//! | a sender or a select waits for room | `Front::wants_room` is set |
//!
//! So an item goes straight into the hands of a waiting receiver, and the item of a waiting sender
//! moves into the queue (or to the receiver, in a channel without room) when there is room. A
//! waiter is woken when its item has been moved; it finds out what happened by looking into its
//! [`ItemCell`]. Who is about to wait holds both locks: a sender so that no receiver makes room
//! unseen, a receiver so that no other one has put items into the front.
//!
//! # Hints
//!
//! | word | in the line of | meaning |
//! |---|---|---|
//! | `has_news` | its own | false: a receive would have waited, a moment ago |
//! | `in_front`, `in_back` | front, back | the lengths, for who does not hold the lock |
//! | `pace` | front | how long a receiver lets items gather before it exchanges the queues |
//!
//! `in_front` falls until the next exchange, which needs the lock of the back: a sender that reads
//! it under that lock may believe that there is less room than there is, but not more. And who
//! reads zero under that lock knows that the front is empty, and stays so.

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::time::Instant;

use crate::base::wait_kind::WaitKind;
use crate::engine::model::waiter::{WaitList, Waiter};
use crate::engine::waiting::list::Chain;
use crate::engine::waiting::waiter::{SpinFor, spin};
#[cfg(not(loom))]
use crate::engine::xstream::runnable::has_runnable;
#[cfg(not(loom))]
use crate::sync::atomic::AtomicU32;
use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::atomic::{AtomicBool, AtomicUsize};
use crate::sync::{Mutex as OsMutex, MutexGuard as OsGuard, UnsafeCell, lock};
use prim::OwnLine;

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
    front: OwnLine<FrontHalf<T>>,
    back: OwnLine<BackHalf<T>>,
    news: OwnLine<AtomicBool>,
    /// Items that the queue may hold.
    capacity: Option<usize>,
}

struct FrontHalf<T> {
    state: OsMutex<Front<T>>,
    in_front: AtomicUsize,
    #[cfg(not(loom))]
    pace: AtomicU32,
}

struct BackHalf<T> {
    state: OsMutex<Back<T>>,
    #[cfg(not(loom))]
    in_back: AtomicUsize,
}

/// The locks of the front, if need be, and the back.
type Locks<'a, T> = (Option<OsGuard<'a, Front<T>>>, OsGuard<'a, Back<T>>);

struct Front<T> {
    items: VecDeque<T>,
    /// Makes each receiver that takes an item look into the back.
    wants_room: bool,
}

struct Back<T> {
    items: VecDeque<T>,
    receivers: WaitList,
    senders: WaitList,
    /// Selects that wait for something to receive.
    recv_watch: WaitList,
    /// Selects that wait for room.
    send_watch: WaitList,
    is_closed: bool,
    /// No less than there are in the front.
    ahead: usize,
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
        let front = Front { items: VecDeque::new(), wants_room: false };
        let back = Back {
            items: VecDeque::new(),
            receivers: WaitList::new(),
            senders: WaitList::new(),
            recv_watch: WaitList::new(),
            send_watch: WaitList::new(),
            is_closed: false,
            ahead: 0,
        };
        Self {
            front: OwnLine(FrontHalf {
                state: OsMutex::new(front),
                in_front: AtomicUsize::new(0),
                #[cfg(not(loom))]
                pace: AtomicU32::new(0),
            }),
            back: OwnLine(BackHalf {
                state: OsMutex::new(back),
                #[cfg(not(loom))]
                in_back: AtomicUsize::new(0),
            }),
            news: OwnLine(AtomicBool::new(false)),
            capacity,
        }
    }

    fn front(&self) -> OsGuard<'_, Front<T>> {
        lock(&self.front.0.state)
    }

    fn back(&self) -> OsGuard<'_, Back<T>> {
        lock(&self.back.0.state)
    }

    /// Both locks, for who is about to wait.
    fn both(&self) -> Locks<'_, T> {
        let front = self.front();
        (Some(front), self.back())
    }

    pub(super) fn capacity(&self) -> Option<usize> {
        self.capacity
    }

    pub(super) fn len(&self) -> usize {
        // No exchange meanwhile.
        let back = self.back();
        back.items.len() + self.in_front()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.back().is_closed
    }

    fn in_front(&self) -> usize {
        self.front.0.in_front.load(Relaxed)
    }

    fn count_front(&self, front: &Front<T>) {
        self.front.0.in_front.store(front.items.len(), Relaxed);
    }

    #[cfg_attr(loom, allow(unused_variables, reason = "the models have no use for hints"))]
    fn count_back(&self, back: &Back<T>) {
        #[cfg(not(loom))]
        self.back.0.in_back.store(back.items.len(), Relaxed);
    }

    fn has_news(&self) -> bool {
        self.news.0.load(Relaxed)
    }

    /// Under the lock of the back.
    fn set_news(&self, has_news: bool) {
        // Not written again and again: receivers look at it while senders send.
        if self.has_news() != has_news {
            self.news.0.store(has_news, Relaxed);
        }
    }

    /// Returns whether there is room for an item. Under the lock of the back.
    fn has_room(&self, back: &mut Back<T>) -> bool {
        let Some(capacity) = self.capacity else { return true };
        if !back.senders.is_empty() {
            return false;
        }
        if back.items.len() + back.ahead < capacity {
            return true;
        }
        // Not each time: receivers write the line with each item.
        back.ahead = self.in_front();
        back.items.len() + back.ahead < capacity
    }

    pub(super) fn send(&self, item: T, patience: WaitLimit) -> Result<(), (T, Refusal)> {
        let refused = self.give((None, self.back()), item).map_err(|(item, why, _)| (item, why));
        match (refused, patience) {
            (Err((item, Refusal::NotNow)), WaitLimit::Until(deadline)) => {
                self.send_slow(item, deadline)
            }
            (refused, _) => refused,
        }
    }

    /// Gives the item to a receiver that waits, or puts it into the queue; else gives it back, with
    /// the locks.
    fn give<'a>(
        &self,
        (front, mut back): Locks<'a, T>,
        item: T,
    ) -> Result<(), (T, Refusal, Locks<'a, T>)> {
        if back.is_closed {
            return Err((item, Refusal::Closed, (front, back)));
        }
        if let Some(receiver) = back.receivers.pop_front() {
            // SAFETY: a receiver of this channel, popped under the lock and not yet woken.
            unsafe { put(receiver, item) };
            drop((front, back));
            // SAFETY:
            // - alive, unlinked: popped above; not touched afterwards.
            unsafe { Waiter::wake(receiver) };
            return Ok(());
        }
        if !self.has_room(&mut back) {
            return Err((item, Refusal::NotNow, (front, back)));
        }
        back.items.push_back(item);
        self.count_back(&back);
        self.tell_receivers((front, back));
        Ok(())
    }

    /// Waits a little for another core to make room: a quarter of it all, so that the two do not
    /// meet for each item.
    #[cfg(not(loom))]
    fn spin_for_room(&self) {
        let Some(capacity @ 1..) = self.capacity else { return };
        let enough = capacity - (capacity / 4).max(1);
        let queued = || self.back.0.in_back.load(Relaxed) + self.in_front();
        spin(SpinFor::Other, || queued() <= enough);
    }

    #[cold]
    fn send_slow(&self, item: T, deadline: Option<Instant>) -> Result<(), (T, Refusal)> {
        #[cfg(not(loom))]
        self.spin_for_room();
        let (item, (mut front, mut back)) = match self.give(self.both(), item) {
            Ok(()) => return Ok(()),
            Err((item, Refusal::Closed, _)) => return Err((item, Refusal::Closed)),
            Err((item, Refusal::NotNow, locks)) => (item, locks),
        };
        let slot = ItemCell::new(Some(item));
        let waiter = slot.waiter(WaitKind::ChannelSend);
        let node = NonNull::from(&waiter);
        // SAFETY:
        // - in no list: fresh; it and the slot stay until it is woken or removed (`settle`).
        unsafe { back.senders.push_back(node) };
        want_room(&mut front);
        // Without room the waiting sender is what a receiver gets.
        self.tell_receivers((front, back));
        // SAFETY: alive, our own; senders wait in no other list.
        let is_woken = waiter.settle(deadline, || unsafe { self.leave(|b| &mut b.senders, node) });
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
    /// For channels without room.
    ///
    /// # Safety
    ///
    /// The waiter is in no list, and it and `slot` stay until it is woken or
    /// [`withdraw`](Self::withdraw) has taken it out.
    #[cfg(not(loom))]
    pub(super) unsafe fn offer(&self, node: NonNull<Waiter>, slot: &ItemCell<T>) -> bool {
        // Nothing of it is linked, so the slot is the caller's.
        let Some(item) = slot.take() else { return false };
        let Err((item, why, (front, mut back))) = self.give((None, self.back()), item) else {
            return false;
        };
        // SAFETY:
        // - no alias: not linked yet.
        slot.0.with_mut(|slot| unsafe { *slot = Some(item) });
        if why == Refusal::Closed {
            return false;
        }
        // SAFETY: duty of the caller.
        unsafe { back.senders.push_back(node) };
        self.tell_receivers((front, back));
        true
    }

    /// Returns whether the item of an async sender has been taken, or never will be.
    #[cfg(not(loom))]
    pub(super) fn is_offer_over(&self, slot: &ItemCell<T>) -> bool {
        let back = self.back();
        // SAFETY:
        // - no writer: only its owner, who is the caller, and receivers, who need the lock.
        back.is_closed || slot.0.with(|slot| unsafe { (*slot).is_none() })
    }

    /// Takes the waiter of an async sender out. `false`: its wait has been ended.
    #[cfg(not(loom))]
    pub(super) fn withdraw(&self, node: NonNull<Waiter>) -> bool {
        // SAFETY: alive, and the caller's own; senders wait in no other list.
        unsafe { self.leave(|back| &mut back.senders, node) }
    }

    pub(super) fn recv(&self, patience: WaitLimit) -> Result<T, Refusal> {
        // What is in the front, or has come meanwhile.
        if self.has_news() {
            match self.take_item() {
                Err((Refusal::NotNow, _)) => {}
                Err((Refusal::Closed, _)) => return Err(Refusal::Closed),
                Ok(item) => return Ok(item),
            }
        }
        let WaitLimit::Until(deadline) = patience else { return Err(Refusal::NotNow) };
        // Another core may be about to send.
        spin(SpinFor::Other, || self.has_news());
        match self.take_item() {
            Ok(item) => Ok(item),
            Err((Refusal::NotNow, locks)) => self.recv_slow(locks, deadline),
            Err((Refusal::Closed, _)) => Err(Refusal::Closed),
        }
    }

    /// Takes the oldest item, if there is one; else gives the locks back to the caller.
    fn take_item(&self) -> Result<T, (Refusal, Locks<'_, T>)> {
        if self.in_front() == 0 {
            #[cfg(not(loom))]
            self.let_gather();
            if self.has_one()
                && let Some(item) = self.take_only()
            {
                return Ok(item);
            }
        }
        let mut front = self.front();
        if let Some(item) = front.items.pop_front() {
            self.count_front(&front);
            if front.wants_room {
                self.make_room(front);
            }
            return Ok(item);
        }
        let mut back = self.back();
        self.exchange(&mut front, &mut back);
        let queued = front.items.pop_front();
        self.count_front(&front);
        back.ahead = front.items.len();
        let sent = if queued.is_none() { take_sent(&mut back) } else { None };
        let (item, sender) = match (queued, sent) {
            (Some(queued), _) => (queued, None),
            (None, Some((sent, sender))) => (sent, Some(sender)),
            (None, None) => {
                self.set_news(back.is_closed);
                let why = if back.is_closed { Refusal::Closed } else { Refusal::NotNow };
                return Err((why, (Some(front), back)));
            }
        };
        if front.wants_room && sender.is_none() {
            self.make_room_in(front, back);
            return Ok(item);
        }
        self.set_news(!front.items.is_empty() || back.has_news());
        drop((front, back));
        if let Some(sender) = sender {
            // SAFETY:
            // - alive, unlinked: popped by `take_sent`; not touched afterwards.
            unsafe { Waiter::wake(sender) };
        }
        Ok(item)
    }

    /// Returns whether there seems to be one item, which is in the back, and no rush of them.
    #[cfg(not(loom))]
    fn has_one(&self) -> bool {
        self.front.0.pace.load(Relaxed) == 0 && self.back.0.in_back.load(Relaxed) == 1
    }

    /// As above; the models look each time.
    #[cfg(loom)]
    #[allow(clippy::unused_self, reason = "as above")]
    fn has_one(&self) -> bool {
        true
    }

    /// Takes the only item, if it is in the back and nobody waits for room.
    fn take_only(&self) -> Option<T> {
        let mut back = self.back();
        let nobody_waits = back.senders.is_empty() && back.send_watch.is_empty();
        if back.items.len() != 1 || self.in_front() > 0 || !nobody_waits {
            return None;
        }
        let item = back.items.pop_front();
        self.count_back(&back);
        self.set_news(back.is_closed);
        item
    }

    /// Exchanges the queues: the front is empty.
    fn exchange(&self, front: &mut Front<T>, back: &mut Back<T>) {
        std::mem::swap(&mut front.items, &mut back.items);
        self.count_back(back);
        #[cfg(not(loom))]
        self.learn_pace(front.items.len());
    }

    /// Learns from the number of items for which the two sides have met.
    #[cfg(not(loom))]
    fn learn_pace(&self, fetched: usize) {
        /// Meetings that are rarer than one in so many items are rare enough.
        const ENOUGH: usize = 64;
        /// Pauses of the processor: about a microsecond.
        const PACE_MAX: u32 = 32;
        let pace = self.front.0.pace.load(Relaxed);
        let next = match fetched {
            // They come one by one.
            0 | 1 => 0,
            2..ENOUGH => (2 * pace + 1).min(PACE_MAX),
            _ => pace,
        };
        if next != pace {
            self.front.0.pace.store(next, Relaxed);
        }
    }

    /// Lets items gather in the back while a sender on another core is sending one after the other,
    /// so that the two do not meet for each item.
    #[cfg(not(loom))]
    fn let_gather(&self) {
        let pace = self.front.0.pace.load(Relaxed);
        if pace > 0 {
            let in_back = self.back.0.in_back.load(Relaxed);
            if !has_runnable() {
                (0..pace).for_each(|_| crate::sync::hint::spin_loop());
            }
            if self.back.0.in_back.load(Relaxed) == in_back {
                // Nobody is sending.
                self.front.0.pace.store(0, Relaxed);
            }
        }
    }

    /// An item has been taken, and somebody waits for room.
    #[cold]
    fn make_room(&self, front: OsGuard<'_, Front<T>>) {
        let back = self.back();
        self.make_room_in(front, back);
    }

    fn make_room_in(&self, mut front: OsGuard<'_, Front<T>>, mut back: OsGuard<'_, Back<T>>) {
        let mut watchers = Chain::new();
        let sender = take_sent(&mut back).map(|(item, sender)| {
            back.items.push_back(item);
            self.count_back(&back);
            sender
        });
        if sender.is_none() {
            watchers = back.send_watch.take_all();
        }
        front.wants_room = !back.senders.is_empty() || !back.send_watch.is_empty();
        self.set_news(!front.items.is_empty() || back.has_news());
        drop((front, back));
        watchers.wake();
        if let Some(sender) = sender {
            // SAFETY:
            // - alive, unlinked: popped by `take_sent`; not touched afterwards.
            unsafe { Waiter::wake(sender) };
        }
    }

    #[cold]
    fn recv_slow(
        &self,
        (front, mut back): Locks<'_, T>,
        deadline: Option<Instant>,
    ) -> Result<T, Refusal> {
        let slot = ItemCell::new(None);
        let waiter = slot.waiter(WaitKind::ChannelRecv);
        let node = NonNull::from(&waiter);
        // SAFETY:
        // - in no list: fresh; it and the slot stay until it is woken or removed (`settle`).
        unsafe { back.receivers.push_back(node) };
        // Without room a waiting receiver is the room that a sender needs.
        let watchers = back.send_watch.take_all();
        drop((front, back));
        watchers.wake();
        // SAFETY: alive, our own; receivers wait in no other list.
        let is_woken =
            waiter.settle(deadline, || unsafe { self.leave(|b| &mut b.receivers, node) });
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
        list: impl FnOnce(&mut Back<T>) -> &mut WaitList,
        node: NonNull<Waiter>,
    ) -> bool {
        // A sender that leaves may have been the news; a receive finds out.
        //
        // SAFETY: duty of the caller.
        unsafe { list(&mut self.back()).remove(node) }
    }

    /// Wakes the watchers of the receiving end: there is something to receive, and no receiver
    /// waits for it alone.
    fn tell_receivers(&self, (front, mut back): Locks<'_, T>) {
        self.set_news(true);
        if back.recv_watch.is_empty() {
            return;
        }
        let watchers = back.recv_watch.take_all();
        drop((front, back));
        watchers.wake();
    }

    /// Lets everybody go: senders take their items back, receivers get what is queued.
    pub(super) fn close(&self) {
        let mut back = self.back();
        back.is_closed = true;
        self.set_news(true);
        let Back { receivers, senders, recv_watch, send_watch, .. } = &mut *back;
        let mut all = Chain::new();
        for list in [receivers, senders, recv_watch, send_watch] {
            all.append(list.take_all());
        }
        drop(back);
        all.wake();
    }

    /// Drops what is queued, when nobody can receive it any more.
    pub(super) fn discard(&self) {
        let mut front = self.front();
        let mut back = self.back();
        let items = [&mut front.items, &mut back.items].map(std::mem::take);
        self.count_front(&front);
        self.count_back(&back);
        drop((front, back));
        drop(items);
    }

    pub(super) fn can_recv(&self) -> bool {
        let front = self.front();
        !front.items.is_empty() || self.back().has_news()
    }

    pub(super) fn can_send(&self) -> bool {
        let mut back = self.back();
        self.takes_item(&mut back)
    }

    /// Returns whether a send would return at once. Under the lock of the back.
    fn takes_item(&self, back: &mut Back<T>) -> bool {
        back.is_closed || !back.receivers.is_empty() || self.has_room(back)
    }

    /// Links a waiter that is woken when there may be something to receive. `false`: there is.
    ///
    /// # Safety
    ///
    /// It is in no list, and stays until it is woken or `unwatch` has taken it out.
    pub(super) unsafe fn watch_recv(&self, node: NonNull<Waiter>) -> bool {
        let front = self.front();
        let mut back = self.back();
        if !front.items.is_empty() || back.has_news() {
            return false;
        }
        // SAFETY: duty of the caller.
        unsafe { back.recv_watch.push_back(node) };
        true
    }

    /// Links a waiter that is woken when there may be room. `false`: there is.
    ///
    /// # Safety
    ///
    /// As for [`watch_recv`](Self::watch_recv).
    pub(super) unsafe fn watch_send(&self, node: NonNull<Waiter>) -> bool {
        let (mut front, mut back) = self.both();
        if self.takes_item(&mut back) {
            return false;
        }
        // SAFETY: duty of the caller.
        unsafe { back.send_watch.push_back(node) };
        want_room(&mut front);
        true
    }

    pub(super) fn unwatch_recv(&self, node: NonNull<Waiter>) -> bool {
        // SAFETY: alive, and the caller's own; it was put into this list.
        unsafe { self.leave(|back| &mut back.recv_watch, node) }
    }

    pub(super) fn unwatch_send(&self, node: NonNull<Waiter>) -> bool {
        // SAFETY: alive, and the caller's own; it was put into this list.
        unsafe { self.leave(|back| &mut back.send_watch, node) }
    }
}

impl<T> Back<T> {
    /// Returns whether a receive would return at once if the front is empty.
    fn has_news(&self) -> bool {
        self.is_closed || !self.items.is_empty() || !self.senders.is_empty()
    }
}

/// Has whoever takes an item look into the back.
fn want_room<T>(front: &mut Option<OsGuard<'_, Front<T>>>) {
    if let Some(front) = front {
        front.wants_room = true;
    }
}

/// Takes the sender that has waited longest, which must be woken, and its item.
fn take_sent<T>(back: &mut Back<T>) -> Option<(T, NonNull<Waiter>)> {
    let sender = back.senders.pop_front()?;
    // SAFETY: a sender of this channel, popped under the lock and not yet woken.
    let item = unsafe { slot_of::<T>(sender) }.take()?;
    Some((item, sender))
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
