//! A bounded queue between one sender and one receiver, each of which waits for the other.
//!
//! `rtrb` has such a ring, but nobody can wait at it: the looks for a party that sleeps belong
//! between its stores and ours, and the models need the atomics of `crate::sync`.
//!
//! # State
//!
//! | state | written by | read by |
//! |---|---|---|
//! | `tail`: the items that were ever sent | the sender | the receiver, whose known items are used up |
//! | `head`: the items that were ever taken | the receiver | the sender, whose known room is used up |
//! | a slot from `head` to `tail` | nobody | the receiver, once |
//! | any other slot | the sender | nobody |
//! | `signals` | both, when they begin or end to wait, close, or change their way to look | both, after each step |
//! | `parked` | as `signals`, under its lock | the same |
//! | [`Cursor`] | its end alone | the same |
//!
//! So the sides share a line for what a [`Cursor`] has come to know at once, which is many items
//! while both are busy. Positions wrap around.
//!
//! # Nobody sleeps through a step
//!
//! A side publishes a step and then looks into `signals` whether the other one waits; who is about
//! to wait says so there and then looks for a step (Dekker). Both need a full fence in between,
//! and with each item that would take longer than all the rest. So a side that has made
//! [`CALM`] steps in a row for nobody who waited becomes *hot*: it says so in `signals`, and its
//! fence is only [`light`](barrier::light). Who is about to wait for a side that is hot ends that,
//! and does the [`heavy`](barrier::heavy) half:
//!
//! | side that publishes | who is about to wait, or closes the channel, under the lock |
//! |---|---|
//! | stores its position | says so in `signals`, and ends the heat in the same step |
//! | `light` | `heavy` if the other side was hot, else a fence |
//! | looks: if it is hot and nobody waits, that is all | looks at the position; if it is as before, waits |
//! | else a fence, and a second look | |
//!
//! A look with only the light fence counts if it finds the side hot still: then it was made before
//! the heat ended, hence before the heavy half. So a channel pays a heavy fence once in `CALM`
//! steps at most.
//!
//! # Close
//!
//! The receiver may close the channel while the sender is between its look whether it is open and
//! its step. The same fences tell the sender of that afterwards. The receiver writes down in
//! `Parked::end`, under the lock, at which position it has found the end, and takes nothing any
//! more; the sender takes back what it has put behind that.

use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::time::Instant;

use super::core::{Refusal, WaitLimit};
use crate::base::wait_kind::WaitKind;
use crate::engine::model::waiter::{WaitList, Waiter};
use crate::engine::waiting::list::Chain;
use crate::engine::waiting::waiter::{SpinFor, spin};
#[cfg(not(loom))]
use crate::engine::xstream::runnable::has_runnable;
use crate::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use crate::sync::atomic::{AtomicUsize, fence};
use crate::sync::{Arc, Mutex as OsMutex, UnsafeCell, lock};
use prim::OwnLine;
use prim::lock::barrier;

/// Steps in a row for nobody who waited until a side is hot.
const CALM: u32 = if cfg!(loom) { 1 } else { 1 << 14 };

const CLOSED: usize = 1;

/// The two sides, as the bits of `signals` that say that they wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Sender = 2,
    Receiver = 4,
}

impl Side {
    const fn other(self) -> Self {
        match self {
            Self::Sender => Self::Receiver,
            Self::Receiver => Self::Sender,
        }
    }

    const fn waits(self) -> usize {
        self as usize
    }

    const fn is_hot(self) -> usize {
        self.waits() << 2
    }

    /// The signals that this side does something about.
    const fn heeds(self) -> usize {
        self.other().waits()
            | match self {
                Self::Sender => CLOSED,
                Self::Receiver => 0,
            }
    }
}

type Slot<T> = UnsafeCell<MaybeUninit<T>>;

pub(super) struct SpscRing<T> {
    /// A power of two of them, no less than `capacity`.
    slots: Box<[Slot<T>]>,
    capacity: usize,
    tail: OwnLine<AtomicUsize>,
    head: OwnLine<AtomicUsize>,
    signals: OwnLine<AtomicUsize>,
    parked: OsMutex<Parked>,
}

struct Parked {
    senders: WaitList,
    receivers: WaitList,
    /// The position at which the receiver has found the end.
    end: Option<usize>,
}

impl Parked {
    fn of(&mut self, side: Side) -> &mut WaitList {
        match side {
            Side::Sender => &mut self.senders,
            Side::Receiver => &mut self.receivers,
        }
    }
}

// SAFETY: items move between threads (`T: Send`); the table above says who may touch what.
unsafe impl<T: Send> Sync for SpscRing<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for SpscRing<T> {}

impl<T> SpscRing<T> {
    pub(super) fn new(capacity: usize) -> Self {
        assert!(capacity > 0, "a channel with one sender and one receiver needs room");
        let slots = capacity.checked_next_power_of_two().expect("a capacity beyond all memory");
        Self {
            slots: (0..slots).map(|_| UnsafeCell::new(MaybeUninit::uninit())).collect(),
            capacity,
            tail: OwnLine(AtomicUsize::new(0)),
            head: OwnLine(AtomicUsize::new(0)),
            signals: OwnLine(AtomicUsize::new(0)),
            parked: OsMutex::new(Parked {
                senders: WaitList::new(),
                receivers: WaitList::new(),
                end: None,
            }),
        }
    }

    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    pub(super) fn len(&self) -> usize {
        // In this order, so that the tail is not the older one.
        let head = self.position(Side::Receiver);
        self.position(Side::Sender).wrapping_sub(head).min(self.capacity)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.signals.0.load(Acquire) & CLOSED != 0 // pair: SPSC-CLOSED
    }

    #[inline(always)]
    fn index(&self, side: Side) -> &AtomicUsize {
        match side {
            Side::Sender => &self.tail.0,
            Side::Receiver => &self.head.0,
        }
    }

    #[inline(always)]
    fn position(&self, side: Side) -> usize {
        self.index(side).load(Acquire) // pair: SPSC-STEP
    }

    /// The position up to which a side may go.
    #[inline(always)]
    fn limit(&self, side: Side) -> usize {
        let other = self.position(side.other());
        match side {
            Side::Sender => other.wrapping_add(self.capacity),
            Side::Receiver => other,
        }
    }

    #[inline(always)]
    fn slot(&self, position: usize) -> &Slot<T> {
        &self.slots[position & (self.slots.len() - 1)]
    }

    /// The slots of `count` positions, in order.
    #[inline(always)]
    fn slots(&self, from: usize, count: usize) -> [&[Slot<T>]; 2] {
        let from = from & (self.slots.len() - 1);
        let first = count.min(self.slots.len() - from);
        [&self.slots[from..from + first], &self.slots[..count - first]]
    }

    /// Moves `count` items into the ring.
    ///
    /// # Safety
    ///
    /// - The items are initialised, and the caller forgets them.
    /// - The slots are the caller's.
    unsafe fn put(&self, position: usize, mut items: *const T, count: usize) {
        for slots in self.slots(position, count) {
            for slot in slots {
                // SAFETY:
                // - both are valid, and apart from each other: duties of the caller.
                slot.with_mut(|slot| unsafe { slot.copy_from_nonoverlapping(items.cast(), 1) });
                // SAFETY: in the array of the caller or at its end.
                items = unsafe { items.add(1) };
            }
        }
    }

    /// Moves `count` items out of the ring.
    ///
    /// # Safety
    ///
    /// - The slots are the caller's, and initialised; it takes them for empty afterwards.
    /// - There is room for the items.
    unsafe fn take(&self, position: usize, mut items: *mut T, count: usize) {
        for slots in self.slots(position, count) {
            for slot in slots {
                // SAFETY:
                // - both are valid, and apart from each other: duties of the caller.
                slot.with(|slot| unsafe { slot.copy_to_nonoverlapping(items.cast(), 1) });
                // SAFETY: in the array of the caller or at its end.
                items = unsafe { items.add(1) };
            }
        }
    }

    /// Returns whether a step of this side would not wait.
    pub(super) fn is_ready(&self, side: Side) -> bool {
        self.limit(side) != self.position(side) || self.is_closed()
    }

    /// Has the other side find `bits` in `signals` after its next step. Otherwise that step is
    /// visible when this returns. Under the lock.
    fn announce(&self, bits: usize, other: Side) -> Result<(), barrier::Refused> {
        let told = |word: usize| Some((word | bits) & !other.is_hot());
        // pair: SPSC-CLOSED
        let (Ok(old) | Err(old)) = self.signals.0.fetch_update(Release, Relaxed, told);
        if old & other.is_hot() == 0 {
            fence(SeqCst); // pair: SPSC-DEKKER
            return Ok(());
        }
        // pair: SPSC-DEKKER
        barrier::heavy().inspect_err(|_| {
            self.signals.0.fetch_or(other.is_hot(), Relaxed);
        })
    }

    /// Links a waiter that is woken when this side may go on. `false`: it may.
    ///
    /// # Safety
    ///
    /// It is in no list, and stays until it is woken or [`unlink`](Self::unlink) has taken it out.
    ///
    /// # Panics
    ///
    /// As [`barrier::heavy`] fails; the waiter is not linked then.
    pub(super) unsafe fn link(&self, side: Side, node: NonNull<Waiter>) -> bool {
        let mut parked = lock(&self.parked);
        if let Err(refused) = self.announce(side.waits(), side.other()) {
            panic!("{refused}");
        }
        if self.is_ready(side) {
            self.end_wait(&mut parked, side);
            return false;
        }
        // SAFETY: duty of the caller.
        unsafe { parked.of(side).push_back(node) };
        true
    }

    /// Takes a waiter out. `false`: it has been woken.
    pub(super) fn unlink(&self, side: Side, node: NonNull<Waiter>) -> bool {
        let mut parked = lock(&self.parked);
        // SAFETY: alive, and the caller's own; it was put into this list.
        let was_linked = unsafe { parked.of(side).remove(node) };
        self.end_wait(&mut parked, side);
        was_linked
    }

    /// Takes the signal back if nobody waits on this side.
    fn end_wait(&self, parked: &mut Parked, side: Side) {
        if parked.of(side).is_empty() {
            self.signals.0.fetch_and(!side.waits(), Relaxed);
        }
    }

    #[cold]
    fn wake(&self, side: Side) {
        let mut parked = lock(&self.parked);
        let all = parked.of(side).take_all();
        self.end_wait(&mut parked, side);
        drop(parked);
        all.wake();
    }

    /// Lets everybody go.
    pub(super) fn close(&self) {
        let mut parked = lock(&self.parked);
        // Where the fence is refused, the item that the sender is just sending may stay in the
        // ring; it is told no later than at the next one.
        drop(self.announce(CLOSED, Side::Sender));
        let mut all = Chain::new();
        for side in [Side::Sender, Side::Receiver] {
            all.append(parked.of(side).take_all());
            self.end_wait(&mut parked, side);
        }
        drop(parked);
        all.wake();
    }
}

impl<T> Drop for SpscRing<T> {
    fn drop(&mut self) {
        let (mut at, tail) = (self.position(Side::Receiver), self.position(Side::Sender));
        while at != tail {
            // SAFETY:
            // - initialised: between head and tail; no alias: nobody else has the ring.
            self.slot(at).with_mut(|slot| unsafe { slot.cast::<T>().drop_in_place() });
            at = at.wrapping_add(1);
        }
    }
}

/// One end of a ring: where its side is, and how far it may go as far as it knows.
pub(super) struct Cursor<T> {
    pub(super) ring: Arc<SpscRing<T>>,
    at: usize,
    limit: usize,
    /// Steps in a row for nobody who waited.
    calm: u32,
    /// How long to let the other side get ahead before the next look at it.
    #[cfg_attr(loom, allow(dead_code, reason = "the models have no use for time"))]
    pace: u32,
    /// The receiver has found the end.
    has_ended: bool,
}

impl<T> Cursor<T> {
    pub(super) fn new(ring: Arc<SpscRing<T>>, side: Side) -> Self {
        let limit = ring.limit(side);
        Self { ring, at: 0, limit, calm: 0, pace: 0, has_ended: false }
    }

    #[inline(always)]
    fn known(&self) -> usize {
        self.limit.wrapping_sub(self.at)
    }

    /// Looks how far the other side is. Returns how many steps there are to go.
    #[inline(always)]
    fn look(&mut self, side: Side) -> usize {
        if !self.has_ended {
            self.limit = self.ring.limit(side);
        }
        self.known()
    }

    /// Makes `count` steps visible. `true`: the sender has to see to the end of the channel.
    #[inline(always)]
    fn publish(&mut self, side: Side, count: usize) -> bool {
        self.at = self.at.wrapping_add(count);
        self.ring.index(side).store(self.at, Release); // pair: SPSC-STEP
        barrier::light(); // pair: SPSC-DEKKER
        let heeds = side.heeds() | side.is_hot();
        self.ring.signals.0.load(Relaxed) & heeds != side.is_hot() && self.heed(side)
    }

    #[inline(never)]
    fn heed(&mut self, side: Side) -> bool {
        let signals = &self.ring.signals.0;
        fence(SeqCst); // pair: SPSC-DEKKER
        let word = signals.load(Relaxed);
        if word & side.heeds() != 0 {
            self.calm = 0;
            if word & side.other().waits() != 0 {
                self.ring.wake(side.other());
            }
            return word & CLOSED != 0;
        }
        self.calm += 1;
        if self.calm == CALM {
            self.calm = 0;
            if barrier::is_there() {
                signals.fetch_or(side.is_hot(), Relaxed);
            }
        }
        false
    }

    /// Looks how far the other side is, and lets it get ahead if that is not far while it is busy,
    /// so that the two do not meet for each item.
    fn catch_up(&mut self, side: Side) -> usize {
        let found = self.look(side);
        #[cfg(not(loom))]
        if found > 0 {
            return self.let_gather(side, found);
        }
        found
    }

    #[cfg(not(loom))]
    fn let_gather(&mut self, side: Side, mut found: usize) -> usize {
        /// Meetings that are rarer than one in so many items are rare enough.
        const ENOUGH: usize = 64;
        /// Pauses of the processor: about a microsecond.
        const PACE_MAX: u32 = 32;
        let enough = ENOUGH.min(self.ring.capacity / 2);
        if found >= enough {
            return found;
        }
        if self.pace > 0 {
            if !has_runnable() {
                (0..self.pace).for_each(|_| crate::sync::hint::spin_loop());
            }
            let before = std::mem::replace(&mut found, self.look(side));
            if before == found {
                // The other side is not at it.
                self.pace = 0;
                return found;
            }
        }
        if found < enough {
            self.pace = if found > 1 { (2 * self.pace + 1).min(PACE_MAX) } else { self.pace / 2 };
        }
        found
    }

    /// Waits until there is a step to go, unless one is known. Returns how many there are.
    #[inline(always)]
    fn reach(&mut self, side: Side, limit: WaitLimit) -> Result<usize, Refusal> {
        if side == Side::Sender && self.ring.signals.0.load(Relaxed) & CLOSED != 0 {
            return Err(Refusal::Closed);
        }
        match self.known() {
            0 => self.reach_slowly(side, limit),
            known => Ok(known),
        }
    }

    #[inline(never)]
    fn reach_slowly(&mut self, side: Side, mut limit: WaitLimit) -> Result<usize, Refusal> {
        loop {
            let found = match limit {
                WaitLimit::None => self.look(side),
                WaitLimit::Until(_) => self.catch_up(side),
            };
            if self.ring.is_closed() && (found == 0 || side == Side::Sender) {
                return self.find_end(side);
            }
            match limit {
                _ if found > 0 => return Ok(found),
                WaitLimit::None => return Err(Refusal::NotNow),
                WaitLimit::Until(deadline) if self.wait(side, deadline) => {}
                WaitLimit::Until(_) => limit = WaitLimit::None,
            }
        }
    }

    /// Waits for the other side. `false`: it has not moved until the deadline.
    #[cold]
    fn wait(&self, side: Side, deadline: Option<Instant>) -> bool {
        let is_ready = || self.ring.is_ready(side);
        // Another core may be about to make a step.
        if spin(SpinFor::Other, is_ready) {
            return true;
        }
        let waiter = Waiter::new(match side {
            Side::Sender => WaitKind::ChannelSend,
            Side::Receiver => WaitKind::ChannelRecv,
        });
        let node = NonNull::from(&waiter);
        // SAFETY:
        // - in no list: fresh; it stays until it is woken or removed (`settle`).
        waiter.spin_idle(deadline, is_ready)
            || !unsafe { self.ring.link(side, node) }
            || waiter.settle(deadline, || self.ring.unlink(side, node))
    }

    /// The channel is closed, and there seemed to be nothing to go. For the receiver that is final
    /// if it is so under the lock.
    #[cold]
    fn find_end(&mut self, side: Side) -> Result<usize, Refusal> {
        if side == Side::Receiver && !self.has_ended {
            let mut parked = lock(&self.ring.parked);
            self.limit = self.ring.limit(side);
            if self.known() > 0 {
                return Ok(self.known());
            }
            parked.end = Some(self.at);
            self.has_ended = true;
        }
        Err(Refusal::Closed)
    }

    /// The number of the last `count` steps that the receiver does not take any more, because it
    /// had found the end before them. They are unmade.
    #[cold]
    fn unmake(&mut self, count: usize) -> usize {
        let parked = lock(&self.ring.parked);
        let Some(end) = parked.end else { return 0 };
        let behind = self.at.wrapping_sub(end).min(count);
        self.at = self.at.wrapping_sub(behind);
        self.ring.tail.0.store(self.at, Relaxed);
        behind
    }
}

/// The steps of the sender.
impl<T> Cursor<T> {
    #[inline(always)]
    pub(super) fn send(&mut self, item: T, limit: WaitLimit) -> Result<(), (T, Refusal)> {
        if let Err(why) = self.reach(Side::Sender, limit) {
            return Err((item, why));
        }
        // SAFETY:
        // - no alias: there is room at this position, which is the sender's until it is published.
        self.ring.slot(self.at).with_mut(|slot| unsafe { (*slot).write(item) });
        if self.publish(Side::Sender, 1) && self.unmake(1) == 1 {
            // SAFETY:
            // - initialised: written above; no alias: the receiver takes nothing any more.
            let item = self.ring.slot(self.at).with(|slot| unsafe { slot.cast::<T>().read() });
            return Err((item, Refusal::Closed));
        }
        Ok(())
    }

    /// Sends from the front of `items`, which keeps the rest.
    pub(super) fn send_many(
        &mut self,
        items: &mut Vec<T>,
        limit: WaitLimit,
    ) -> Result<(), Refusal> {
        let mut rest = Unsent { count: items.len(), sent: 0, items };
        // SAFETY: `rest` owns them from here on, and gives back what is left.
        unsafe { rest.items.set_len(0) };
        while rest.sent < rest.count {
            let count = self.reach(Side::Sender, limit)?.min(rest.count - rest.sent);
            // SAFETY:
            // - initialised: not sent yet, and counted as sent in the line after it;
            // - no alias: there is room there, which is the sender's until it is published.
            unsafe { self.ring.put(self.at, rest.items.as_ptr().wrapping_add(rest.sent), count) };
            rest.sent += count;
            if self.publish(Side::Sender, count) {
                let behind = self.unmake(count);
                rest.sent -= behind;
                // SAFETY:
                // - initialised: written above; no alias: the receiver takes nothing any more;
                // - they were in the vector.
                unsafe {
                    self.ring.take(
                        self.at,
                        rest.items.as_mut_ptr().wrapping_add(rest.sent),
                        behind,
                    );
                }
            }
        }
        Ok(())
    }
}

/// A vector while its items are sent from the front. Afterwards it has those that were not sent.
struct Unsent<'a, T> {
    /// Says that it is empty.
    items: &'a mut Vec<T>,
    sent: usize,
    count: usize,
}

impl<T> Drop for Unsent<'_, T> {
    fn drop(&mut self) {
        let (left, first) = (self.count - self.sent, self.items.as_mut_ptr());
        // SAFETY:
        // - in the vector, and initialised: those that were not sent.
        unsafe { first.wrapping_add(self.sent).copy_to(first, left) };
        // SAFETY: initialised just now; no more than there were.
        unsafe { self.items.set_len(left) };
    }
}

/// The steps of the receiver.
impl<T> Cursor<T> {
    #[inline(always)]
    pub(super) fn recv(&mut self, limit: WaitLimit) -> Result<T, Refusal> {
        self.reach(Side::Receiver, limit)?;
        // SAFETY:
        // - initialised: before the tail; read once, and no alias: it is the receiver's until the
        //   next line.
        let item = self.ring.slot(self.at).with(|slot| unsafe { slot.cast::<T>().read() });
        self.publish(Side::Receiver, 1);
        Ok(item)
    }

    /// Appends up to `max` items.
    pub(super) fn recv_many(
        &mut self,
        items: &mut Vec<T>,
        max: usize,
        limit: WaitLimit,
    ) -> Result<usize, Refusal> {
        if max == 0 {
            return Ok(0);
        }
        let mut count = self.reach(Side::Receiver, limit)?;
        if count < max {
            // More may have come since the last look.
            count = self.look(Side::Receiver);
        }
        let count = count.min(max);
        // All that may panic.
        items.reserve(count);
        let had = items.len();
        // SAFETY:
        // - initialised: before the tail; no alias: they are the receiver's until they are
        //   published, and empty then;
        // - room has been made above.
        unsafe { self.ring.take(self.at, items.as_mut_ptr().wrapping_add(had), count) };
        // SAFETY: initialised just now.
        unsafe { items.set_len(had + count) };
        self.publish(Side::Receiver, count);
        Ok(count)
    }

    /// Takes part in the channel no more: what is queued is dropped.
    pub(super) fn discard(&mut self) {
        self.ring.close();
        while self.recv(WaitLimit::None).map(drop).is_ok() {}
    }
}
