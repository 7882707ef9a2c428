//! The ends of a channel with one sender and one receiver.

use std::fmt;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use super::core::{Refusal, WaitLimit};
use super::error::{
    RecvError, RecvTimeoutError, SendError, SendTimeoutError, TryRecvError, TrySendError,
};
use super::ring::{Cursor, Side, SpscRing};
use crate::engine::model::waiter::Waiter;
use crate::engine::waiting::waiter::after;
use crate::engine::waiting::watch::Watch;
use crate::sync::Arc;
use crate::wait::select::Selectable;

/// A channel from one sender to one receiver with room for `capacity` items: several times as fast
/// as [`bounded`](super::bounded) between two execution streams.
///
/// # Panics
///
/// If `capacity` is zero, or beyond what there is memory for. A wait of either end panics if the
/// kernel refuses `membarrier(2)`, which it has granted to the process before.
///
/// ```
/// use ult::{PoolSpec, Runtime, XstreamSpec, channel};
///
/// let runtime = Runtime::builder()
///     .pool(PoolSpec::new("p0"))
///     .pool(PoolSpec::new("p1"))
///     .xstream(XstreamSpec::new("x0").pools(["p0"]))
///     .xstream(XstreamSpec::new("x1").pools(["p1"]))
///     .start()?;
/// let pools = ["p0", "p1"].map(|name| runtime.pool(name).expect("defined above"));
/// let (mut sender, mut receiver) = channel::spsc(1024);
/// pools[0].spawn(move || (0..10_000u64).for_each(|n| sender.send(n).unwrap()))?;
/// let sum = pools[1].spawn(move || receiver.iter().sum::<u64>())?.join()?;
/// assert_eq!(sum, 49_995_000);
/// runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn spsc<T>(capacity: usize) -> (SpscSender<T>, SpscReceiver<T>) {
    let ring = Arc::new(SpscRing::new(capacity));
    (
        SpscSender(Cursor::new(ring.clone(), Side::Sender)),
        SpscReceiver(Cursor::new(ring, Side::Receiver)),
    )
}

/// The end of a channel of [`spsc`] where items go in. The channel is closed when it is dropped.
///
/// ```
/// let (mut sender, mut receiver) = ult::channel::spsc(4);
/// std::thread::spawn(move || {
///     // In one step for as many as there is room for.
///     let mut batch: Vec<u32> = (0..10).collect();
///     sender.send_many(&mut batch).unwrap();
///     assert!(batch.is_empty());
/// });
/// assert_eq!(receiver.iter().sum::<u32>(), 45);
/// ```
pub struct SpscSender<T>(Cursor<T>);

impl<T> SpscSender<T> {
    /// Sends an item, waiting for room.
    ///
    /// # Errors
    ///
    /// If the channel is closed, before or while this waits. The item comes back.
    #[inline(always)]
    pub fn send(&mut self, item: T) -> Result<(), SendError<T>> {
        self.0.send(item, WaitLimit::Until(None)).map_err(|(item, _)| SendError(item))
    }

    /// Sends an item if there is room.
    ///
    /// # Errors
    ///
    /// If there is no room, or the channel is closed. The item comes back.
    #[inline(always)]
    pub fn try_send(&mut self, item: T) -> Result<(), TrySendError<T>> {
        self.0.send(item, WaitLimit::None).map_err(|(item, why)| match why {
            Refusal::NotNow => TrySendError::Full(item),
            Refusal::Closed => TrySendError::Closed(item),
        })
    }

    /// Sends an item, waiting for room no longer than until `deadline`.
    ///
    /// # Errors
    ///
    /// If there was no room, or the channel is closed. The item comes back.
    pub fn send_deadline(&mut self, item: T, deadline: Instant) -> Result<(), SendTimeoutError<T>> {
        self.send_until(item, Some(deadline))
    }

    /// Like [`send_deadline`](Self::send_deadline), counted from now.
    ///
    /// # Errors
    ///
    /// As [`send_deadline`](Self::send_deadline).
    pub fn send_timeout(&mut self, item: T, timeout: Duration) -> Result<(), SendTimeoutError<T>> {
        self.send_until(item, after(timeout))
    }

    fn send_until(&mut self, item: T, until: Option<Instant>) -> Result<(), SendTimeoutError<T>> {
        self.0.send(item, WaitLimit::Until(until)).map_err(|(item, why)| match why {
            Refusal::NotNow => SendTimeoutError::TimedOut(item),
            Refusal::Closed => SendTimeoutError::Closed(item),
        })
    }

    /// Sends all of `items`, oldest first, waiting for room. The vector is empty afterwards, and
    /// keeps its memory for the next batch.
    ///
    /// # Errors
    ///
    /// If the channel is closed, before or while this waits. The items that were not sent stay in
    /// the vector, also if the ULT is cancelled.
    pub fn send_many(&mut self, items: &mut Vec<T>) -> Result<(), SendError<()>> {
        self.0.send_many(items, WaitLimit::Until(None)).map_err(|_| SendError(()))
    }

    /// Sends as many of `items`, oldest first, as there is room for. The others stay in the vector.
    ///
    /// # Errors
    ///
    /// If there was no room for all, or the channel is closed.
    pub fn try_send_many(&mut self, items: &mut Vec<T>) -> Result<(), TrySendError<()>> {
        self.0.send_many(items, WaitLimit::None).map_err(|why| match why {
            Refusal::NotNow => TrySendError::Full(()),
            Refusal::Closed => TrySendError::Closed(()),
        })
    }
}

impl<T> Drop for SpscSender<T> {
    fn drop(&mut self) {
        self.close();
    }
}

/// The end of a channel of [`spsc`] where items come out. When it is dropped the channel is closed,
/// and what is queued is dropped.
///
/// ```
/// let (mut sender, mut receiver) = ult::channel::spsc(8);
/// sender.send_many(&mut vec!["a", "b", "c"])?;
/// drop(sender);
/// let mut batch = Vec::new();
/// assert_eq!(receiver.recv_many(&mut batch, 2), Ok(2));
/// assert_eq!((batch, receiver.recv()), (vec!["a", "b"], Ok("c")));
/// // The channel is closed, and nothing is left in it.
/// assert!(receiver.recv().is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct SpscReceiver<T>(Cursor<T>);

impl<T> SpscReceiver<T> {
    /// Receives the oldest item, waiting for one.
    ///
    /// # Errors
    ///
    /// If the channel is closed and nothing is left in it.
    #[inline(always)]
    pub fn recv(&mut self) -> Result<T, RecvError> {
        self.0.recv(WaitLimit::Until(None)).map_err(|_| RecvError)
    }

    /// Receives the oldest item, if there is one.
    ///
    /// # Errors
    ///
    /// If there is none, or the channel is closed and nothing is left in it.
    #[inline(always)]
    pub fn try_recv(&mut self) -> Result<T, TryRecvError> {
        self.0.recv(WaitLimit::None).map_err(not_now)
    }

    /// Receives the oldest item, waiting for one no longer than until `deadline`.
    ///
    /// # Errors
    ///
    /// If nothing came, or the channel is closed and nothing is left in it.
    pub fn recv_deadline(&mut self, deadline: Instant) -> Result<T, RecvTimeoutError> {
        self.recv_until(Some(deadline))
    }

    /// Like [`recv_deadline`](Self::recv_deadline), counted from now.
    ///
    /// # Errors
    ///
    /// As [`recv_deadline`](Self::recv_deadline).
    pub fn recv_timeout(&mut self, timeout: Duration) -> Result<T, RecvTimeoutError> {
        self.recv_until(after(timeout))
    }

    fn recv_until(&mut self, until: Option<Instant>) -> Result<T, RecvTimeoutError> {
        self.0.recv(WaitLimit::Until(until)).map_err(|why| match why {
            Refusal::NotNow => RecvTimeoutError::TimedOut,
            Refusal::Closed => RecvTimeoutError::Closed,
        })
    }

    /// Appends up to `max` items to `items`, oldest first, waiting for the first one only. Returns
    /// how many; zero only if `max` is.
    ///
    /// # Errors
    ///
    /// If the channel is closed and nothing is left in it.
    pub fn recv_many(&mut self, items: &mut Vec<T>, max: usize) -> Result<usize, RecvError> {
        self.0.recv_many(items, max, WaitLimit::Until(None)).map_err(|_| RecvError)
    }

    /// Appends up to `max` items to `items`, if there are any. Returns how many.
    ///
    /// # Errors
    ///
    /// If there is none, or the channel is closed and nothing is left in it.
    pub fn try_recv_many(&mut self, items: &mut Vec<T>, max: usize) -> Result<usize, TryRecvError> {
        self.0.recv_many(items, max, WaitLimit::None).map_err(not_now)
    }

    /// Receives until the channel is closed and empty, waiting for each item.
    pub fn iter(&mut self) -> impl Iterator<Item = T> + '_ {
        std::iter::from_fn(|| self.recv().ok())
    }

    /// Receives what is there, without waiting.
    pub fn try_iter(&mut self) -> impl Iterator<Item = T> + '_ {
        std::iter::from_fn(|| self.try_recv().ok())
    }
}

fn not_now(why: Refusal) -> TryRecvError {
    match why {
        Refusal::NotNow => TryRecvError::Empty,
        Refusal::Closed => TryRecvError::Closed,
    }
}

impl<T> Drop for SpscReceiver<T> {
    fn drop(&mut self) {
        self.0.discard();
    }
}

macro_rules! either_end {
    ($end:ident, $side:expr) => {
        impl<T> $end<T> {
            /// Closes the channel for both ends. What is queued can still be received.
            pub fn close(&self) {
                self.0.ring.close();
            }

            /// Returns whether the channel is closed; items may be left in it.
            #[must_use]
            pub fn is_closed(&self) -> bool {
                self.0.ring.is_closed()
            }

            /// Queued items. A snapshot: stale as soon as it is read.
            #[must_use]
            pub fn len(&self) -> usize {
                self.0.ring.len()
            }

            /// Returns whether no item is queued. A snapshot.
            #[must_use]
            pub fn is_empty(&self) -> bool {
                self.len() == 0
            }

            /// Room of the channel in items.
            #[must_use]
            pub fn capacity(&self) -> usize {
                self.0.ring.capacity()
            }
        }

        impl<T> fmt::Debug for $end<T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($end)).field("len", &self.len()).finish_non_exhaustive()
            }
        }

        impl<T> Watch for $end<T> {
            fn is_ready(&self) -> bool {
                self.0.ring.is_ready($side)
            }

            unsafe fn register(&self, node: NonNull<Waiter>) -> bool {
                // SAFETY: the duties of the caller are the same.
                unsafe { self.0.ring.link($side, node) }
            }

            fn unregister(&self, node: NonNull<Waiter>) -> bool {
                self.0.ring.unlink($side, node)
            }
        }
    };
}

either_end!(SpscSender, Side::Sender);
either_end!(SpscReceiver, Side::Receiver);

/// Ready when there is room, or the channel is closed.
impl<T> Selectable for SpscSender<T> {}

/// Ready when there is an item, or the channel is closed.
impl<T> Selectable for SpscReceiver<T> {}
