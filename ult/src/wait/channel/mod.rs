//! Channels: items from senders to receivers, in order.
//!
//! | constructor | ends | room | a send |
//! |---|---|---|---|
//! | [`unbounded()`] | any number | as much as there is memory | never waits |
//! | [`bounded(n)`](bounded) | any number | `n` items | waits while `n` items are queued |
//! | [`bounded(0)`](bounded) | any number | none (rendezvous) | waits until the item is taken |
//! | [`spsc(n)`](spsc()) | one of each | `n` items | waits while `n` items are queued |
//!
//! ULTs of any xstream and OS threads may use both ends: a ULT that waits suspends, an OS thread
//! blocks. Waiting parties are served first come, first served: an item goes straight to the
//! receiver that has waited longest. A party that need not wait does not yield.
//!
//! [`spsc()`] is for the edges of a dataflow: between two xstreams it is many times as fast as
//! [`bounded`], since its ends meet only when one has caught up with the other. Items go one by one
//! or in batches.
//!
//! # Close
//!
//! A channel is closed by `close` of either end, or when the last sender or the last receiver is
//! dropped. A send then gives its item back, also one that waits; receivers get
//! what is queued, and then an error.
//!
//! ```
//! let (sender, receiver) = ult::channel::bounded(4);
//! std::thread::spawn(move || {
//!     for n in 0..10 {
//!         sender.send(n).unwrap();
//!     }
//! });
//! assert_eq!(receiver.iter().sum::<i32>(), 45);
//! ```

// `core.rs` is the state of a channel with any number of ends, `offer.rs` an async sender of one
// without room; `ring.rs` is the state of a channel with one end each, `spsc.rs` those ends.

mod core;
mod error;
#[cfg(not(loom))]
mod offer;
mod ring;
mod spsc;

use std::fmt;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

pub use error::{
    RecvError, RecvTimeoutError, SendError, SendTimeoutError, TryRecvError, TrySendError,
};
pub use spsc::{SpscReceiver, SpscSender, spsc};

use crate::engine::model::waiter::Waiter;
use crate::engine::waiting::waiter::after;
use crate::engine::waiting::watch::Watch;
use crate::sync::Arc;
use crate::sync::atomic::AtomicUsize;
use crate::sync::atomic::Ordering::{AcqRel, Relaxed};
use crate::wait::select::Selectable;
use core::{ChannelCore, Refusal, WaitLimit};

/// A channel with room for `capacity` items. With zero, a send waits until a receiver takes the
/// item from its hands.
#[must_use]
pub fn bounded<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    new(Some(capacity))
}

/// A channel whose sends never wait.
///
/// If the senders are faster than the receivers in the long run, it grows until memory is full.
#[must_use]
pub fn unbounded<T>() -> (Sender<T>, Receiver<T>) {
    new(None)
}

fn new<T>(capacity: Option<usize>) -> (Sender<T>, Receiver<T>) {
    let shared = Arc::new(ChannelShared {
        core: ChannelCore::new(capacity),
        senders: AtomicUsize::new(1),
        receivers: AtomicUsize::new(1),
    });
    (Sender { shared: shared.clone() }, Receiver { shared })
}

struct ChannelShared<T> {
    core: ChannelCore<T>,
    /// Handles of either end that exist.
    senders: AtomicUsize,
    receivers: AtomicUsize,
}

/// The end of a channel where items go in. Clones are ends of the same channel.
///
/// ```
/// use ult::channel;
///
/// # use ult::{PoolSpec, Runtime, XstreamSpec};
/// # let runtime = Runtime::builder()
/// #     .pool(PoolSpec::new("main"))
/// #     .xstream(XstreamSpec::new("x0").pools(["main"]))
/// #     .start()?;
/// # let pool = runtime.pool("main").expect("defined above");
/// let (sender, receiver) = channel::unbounded();
/// for n in [1, 2] {
///     let sender = sender.clone();
///     pool.spawn(move || sender.send(n))?.join()??;
/// }
/// // With the last sender the channel is closed.
/// drop(sender);
/// assert_eq!(receiver.iter().collect::<Vec<i32>>(), [1, 2]);
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Sender<T> {
    shared: Arc<ChannelShared<T>>,
}

impl<T> Sender<T> {
    /// Sends an item, waiting for room.
    ///
    /// # Errors
    ///
    /// If the channel is closed, before or while this waits. The item comes back.
    pub fn send(&self, item: T) -> Result<(), SendError<T>> {
        let sent = self.shared.core.send(item, WaitLimit::Until(None));
        sent.map_err(|(item, _)| SendError(item))
    }

    /// Sends an item if there is room, or a receiver that waits.
    ///
    /// # Errors
    ///
    /// If there is no room, or the channel is closed. The item comes back.
    pub fn try_send(&self, item: T) -> Result<(), TrySendError<T>> {
        self.shared.core.send(item, WaitLimit::None).map_err(|(item, why)| match why {
            Refusal::NotNow => TrySendError::Full(item),
            Refusal::Closed => TrySendError::Closed(item),
        })
    }

    /// Sends an item, waiting for room no longer than until `deadline`.
    ///
    /// # Errors
    ///
    /// If there was no room, or the channel is closed. The item comes back.
    pub fn send_deadline(&self, item: T, deadline: Instant) -> Result<(), SendTimeoutError<T>> {
        self.send_until(item, Some(deadline))
    }

    /// Like [`send_deadline`](Self::send_deadline), counted from now.
    ///
    /// # Errors
    ///
    /// As [`send_deadline`](Self::send_deadline).
    pub fn send_timeout(&self, item: T, timeout: Duration) -> Result<(), SendTimeoutError<T>> {
        self.send_until(item, after(timeout))
    }

    fn send_until(&self, item: T, until: Option<Instant>) -> Result<(), SendTimeoutError<T>> {
        let sent = self.shared.core.send(item, WaitLimit::Until(until));
        sent.map_err(|(item, why)| match why {
            Refusal::NotNow => SendTimeoutError::TimedOut(item),
            Refusal::Closed => SendTimeoutError::Closed(item),
        })
    }

    /// Closes the channel for all senders. What is queued can still be received.
    pub fn close(&self) {
        self.shared.core.close();
    }

    /// Returns whether the channel is closed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.shared.core.is_closed()
    }

    /// Queued items. A snapshot: stale as soon as it is read.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shared.core.len()
    }

    /// Returns whether no item is queued. A snapshot.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Room of the channel in items; `None` if it is unbounded.
    #[must_use]
    pub fn capacity(&self) -> Option<usize> {
        self.shared.core.capacity()
    }

    /// Waits for a receiver with the item in its hands, for async code.
    #[cfg(not(loom))]
    pub(crate) fn offer(&self, item: T) -> offer::Offer<'_, T> {
        offer::Offer::new(&self.shared.core, item)
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.shared.senders.fetch_add(1, Relaxed);
        Self { shared: self.shared.clone() }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        // pair: CHANNEL-ENDS
        if self.shared.senders.fetch_sub(1, AcqRel) == 1 {
            self.shared.core.close();
        }
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").field("len", &self.len()).finish_non_exhaustive()
    }
}

/// The end of a channel where items come out. Clones are ends of the same channel; each item comes
/// out once.
///
/// ```
/// use ult::channel;
///
/// # use ult::{PoolSpec, Runtime, XstreamSpec};
/// # let runtime = Runtime::builder()
/// #     .pool(PoolSpec::new("main"))
/// #     .xstream(XstreamSpec::new("x0").pools(["main"]))
/// #     .start()?;
/// # let pool = runtime.pool("main").expect("defined above");
/// let (sender, receiver) = channel::bounded(8);
/// // Each item goes to one of the two.
/// let workers = [receiver.clone(), receiver]
///     .map(|receiver| pool.spawn(move || receiver.into_iter().sum::<u64>()));
/// for n in 1..=10 {
///     sender.send(n)?;
/// }
/// drop(sender);
/// let mut sum = 0;
/// for worker in workers {
///     sum += worker?.join()?;
/// }
/// assert_eq!(sum, 55);
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Receiver<T> {
    shared: Arc<ChannelShared<T>>,
}

impl<T> Receiver<T> {
    /// Receives the oldest item, waiting for one.
    ///
    /// # Errors
    ///
    /// If the channel is closed and nothing is left in it.
    pub fn recv(&self) -> Result<T, RecvError> {
        self.shared.core.recv(WaitLimit::Until(None)).map_err(|_| RecvError)
    }

    /// Receives the oldest item, if there is one.
    ///
    /// # Errors
    ///
    /// If there is none, or the channel is closed and nothing is left in it.
    pub fn try_recv(&self) -> Result<T, TryRecvError> {
        self.shared.core.recv(WaitLimit::None).map_err(|why| match why {
            Refusal::NotNow => TryRecvError::Empty,
            Refusal::Closed => TryRecvError::Closed,
        })
    }

    /// Receives the oldest item, waiting for one no longer than until `deadline`.
    ///
    /// # Errors
    ///
    /// If nothing came, or the channel is closed and nothing is left in it.
    pub fn recv_deadline(&self, deadline: Instant) -> Result<T, RecvTimeoutError> {
        self.recv_until(Some(deadline))
    }

    /// Like [`recv_deadline`](Self::recv_deadline), counted from now.
    ///
    /// # Errors
    ///
    /// As [`recv_deadline`](Self::recv_deadline).
    pub fn recv_timeout(&self, timeout: Duration) -> Result<T, RecvTimeoutError> {
        self.recv_until(after(timeout))
    }

    fn recv_until(&self, until: Option<Instant>) -> Result<T, RecvTimeoutError> {
        self.shared.core.recv(WaitLimit::Until(until)).map_err(|why| match why {
            Refusal::NotNow => RecvTimeoutError::TimedOut,
            Refusal::Closed => RecvTimeoutError::Closed,
        })
    }

    /// Receives until the channel is closed and empty, waiting for each item.
    pub fn iter(&self) -> Iter<'_, T> {
        Iter { receiver: self }
    }

    /// Receives what is there, without waiting.
    pub fn try_iter(&self) -> TryIter<'_, T> {
        TryIter { receiver: self }
    }

    /// Closes the channel for all senders. What is queued can still be received.
    pub fn close(&self) {
        self.shared.core.close();
    }

    /// Returns whether the channel is closed; items may be left in it.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.shared.core.is_closed()
    }

    /// Queued items. A snapshot: stale as soon as it is read.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shared.core.len()
    }

    /// Returns whether no item is queued. A snapshot.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Room of the channel in items; `None` if it is unbounded.
    #[must_use]
    pub fn capacity(&self) -> Option<usize> {
        self.shared.core.capacity()
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Self {
        self.shared.receivers.fetch_add(1, Relaxed);
        Self { shared: self.shared.clone() }
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        // pair: CHANNEL-ENDS
        if self.shared.receivers.fetch_sub(1, AcqRel) == 1 {
            self.shared.core.close();
            self.shared.core.discard();
        }
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").field("len", &self.len()).finish_non_exhaustive()
    }
}

/// See [`Receiver::iter`].
///
/// ```
/// let (sender, receiver) = ult::channel::bounded(2);
/// sender.send("a")?;
/// sender.send("b")?;
/// sender.close();
/// let mut items = receiver.iter();
/// assert_eq!((items.next(), items.next(), items.next()), (Some("a"), Some("b"), None));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Iter<'a, T> {
    receiver: &'a Receiver<T>,
}

impl<T> Iterator for Iter<'_, T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        self.receiver.recv().ok()
    }
}

/// See [`Receiver::try_iter`].
///
/// ```
/// let (sender, receiver) = ult::channel::bounded(2);
/// sender.send("a")?;
/// // The channel is open, and empty after the first item.
/// assert_eq!(receiver.try_iter().collect::<Vec<_>>(), ["a"]);
/// assert!(!receiver.is_closed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct TryIter<'a, T> {
    receiver: &'a Receiver<T>,
}

impl<T> Iterator for TryIter<'_, T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        self.receiver.try_recv().ok()
    }
}

/// Like [`Iter`], and owns the receiver.
///
/// ```
/// let (sender, receiver) = ult::channel::bounded(2);
/// let worker = std::thread::spawn(move || receiver.into_iter().sum::<u32>());
/// for n in [1, 2, 3] {
///     sender.send(n)?;
/// }
/// drop(sender);
/// assert_eq!(worker.join().unwrap(), 6);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct IntoIter<T> {
    receiver: Receiver<T>,
}

impl<T> Iterator for IntoIter<T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        self.receiver.recv().ok()
    }
}

impl<'a, T> IntoIterator for &'a Receiver<T> {
    type Item = T;
    type IntoIter = Iter<'a, T>;

    fn into_iter(self) -> Iter<'a, T> {
        self.iter()
    }
}

impl<T> IntoIterator for Receiver<T> {
    type Item = T;
    type IntoIter = IntoIter<T>;

    fn into_iter(self) -> IntoIter<T> {
        IntoIter { receiver: self }
    }
}

/// Ready when there is an item, or the channel is closed.
impl<T> Selectable for Receiver<T> {}

impl<T> Watch for Receiver<T> {
    fn is_ready(&self) -> bool {
        self.shared.core.can_recv()
    }

    unsafe fn register(&self, node: NonNull<Waiter>) -> bool {
        // SAFETY: the duties of the caller are the same.
        unsafe { self.shared.core.watch_recv(node) }
    }

    fn unregister(&self, node: NonNull<Waiter>) -> bool {
        self.shared.core.unwatch_recv(node)
    }
}

/// Ready when there is room, or the channel is closed. In a channel without room: when a receiver
/// blocks in a receive. Receivers that select or are awaited do not count, because they take
/// nothing: two parties that both wait in [`wait_any`](crate::wait_any), or for
/// [`ready`](crate::ready()), do not meet in such a channel. One of them must send or receive.
impl<T> Selectable for Sender<T> {}

impl<T> Watch for Sender<T> {
    fn is_ready(&self) -> bool {
        self.shared.core.can_send()
    }

    unsafe fn register(&self, node: NonNull<Waiter>) -> bool {
        // SAFETY: the duties of the caller are the same.
        unsafe { self.shared.core.watch_send(node) }
    }

    fn unregister(&self, node: NonNull<Waiter>) -> bool {
        self.shared.core.unwatch_send(node)
    }
}
