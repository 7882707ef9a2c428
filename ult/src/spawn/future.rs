//! Objects of this crate as futures, for async code on any executor.
//!
//! | future | of | gives |
//! |---|---|---|
//! | [`JoinFuture`] | a [`JoinHandle`] that is awaited | the outcome of the unit |
//! | [`Ready`] | [`ready`] of anything that [`wait_any`](crate::wait_any) takes | a hint, no value |
//! | [`ReadyIn`] | [`ready_in`]: the same, in what the future keeps | a hint, no value |
//! | `async fn`s | [`Eventual`], [`Sender`], [`Receiver`] | what the blocking form gives |
//!
//! None of them cares where it is polled: in [`block_on`](crate::block_on()) on a ULT, or on an
//! executor that knows nothing of ULTs. All may be dropped at any time.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::ptr::NonNull;
use std::task::{Context, Poll};

use stable_deref_trait::CloneStableDeref;

use crate::base::wait_kind::WaitKind;
use crate::engine::error::JoinError;
use crate::engine::model::unit::Timed;
use crate::spawn::join::JoinHandle;
use crate::sync::Arc;
use crate::wait::channel::{Receiver, RecvError, SendError, Sender, TryRecvError, TrySendError};
use crate::wait::eventual::Eventual;
use crate::wait::select::Selectable;
use crate::wait::task_wait::TaskWait;

/// The end of a unit as a future; made by awaiting a [`JoinHandle`].
///
/// The output is that of [`JoinHandle::join`]. Dropping the future lets the unit run on its own,
/// as with the handle; [`into_handle`](Self::into_handle) gives the handle back instead.
///
/// ```
/// # use ult::{PoolSpec, Runtime, XstreamSpec};
/// # let runtime = Runtime::builder()
/// #     .pool(PoolSpec::new("main"))
/// #     .xstream(XstreamSpec::new("x0").pools(["main"]))
/// #     .start()?;
/// # let pool = runtime.pool("main").expect("defined above");
/// let answer = pool.spawn(|| 6 * 7)?;
/// let waits = pool.spawn(ult::park)?;
/// ult::block_on(async {
///     assert_eq!(answer.await.unwrap(), 42);
///     // With the future at hand, the unit can be cancelled.
///     let future = waits.into_future();
///     future.cancel();
///     assert!(future.await.is_err());
/// });
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a future does nothing until it is polled"]
pub struct JoinFuture<T> {
    /// The handle; none once the outcome has been taken.
    handle: Option<JoinHandle<T>>,
    wait: TaskWait,
    /// The timer of a unit that starts at a given time.
    timed: Option<Arc<Timed>>,
}

impl<T> JoinFuture<T> {
    /// Makes the future of a unit that starts at a given time.
    pub(crate) fn timed(handle: JoinHandle<T>, timed: Arc<Timed>) -> Self {
        Self { handle: Some(handle), wait: TaskWait::new(), timed: Some(timed) }
    }

    /// The handle; none if the future has been polled to its end. Of a unit that waits for a time
    /// ([`TimerHandle`](crate::TimerHandle)) it does not reach the timer: a cancel through the
    /// handle takes effect when the time has come.
    #[must_use]
    pub fn into_handle(mut self) -> Option<JoinHandle<T>> {
        self.leave();
        self.handle.take()
    }

    /// Asks the unit to end; see [`JoinHandle::cancel`]. One that waits for a time never starts, as
    /// after [`TimerHandle::cancel`](crate::TimerHandle::cancel).
    pub fn cancel(&self) {
        if self.timed.as_ref().is_some_and(|timed| timed.cancel()) {
            return;
        }
        if let Some(handle) = &self.handle {
            handle.cancel();
        }
    }

    fn leave(&mut self) {
        if let Some(handle) = &self.handle {
            self.wait.leave(handle.word());
        }
    }
}

impl<T> Future for JoinFuture<T> {
    type Output = Result<T, JoinError>;

    /// # Panics
    ///
    /// If it has returned an outcome before.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let handle = this.handle.as_ref().expect("`JoinFuture` was polled after its end");
        if handle.is_own() {
            this.leave();
            drop(this.handle.take());
            return Poll::Ready(Err(JoinError::Deadlock));
        }
        // SAFETY:
        // - the word stands in the descriptor, which the handle keeps where it is; the handle is
        //   given up only after `leave` or after this has returned `true`.
        if !unsafe { this.wait.poll(handle.word(), WaitKind::Join, cx.waker()) } {
            return Poll::Pending;
        }
        Poll::Ready(this.handle.take().map_or(Err(JoinError::Lost), JoinHandle::outcome))
    }
}

impl<T> Drop for JoinFuture<T> {
    fn drop(&mut self) {
        self.leave();
    }
}

impl<T> fmt::Debug for JoinFuture<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinFuture").field("handle", &self.handle).finish_non_exhaustive()
    }
}

/// Awaits the end of the unit: from async code, on any executor.
///
/// ```
/// # use ult::{PoolSpec, Runtime, XstreamSpec};
/// # let runtime = Runtime::builder()
/// #     .pool(PoolSpec::new("main"))
/// #     .xstream(XstreamSpec::new("x0").pools(["main"]))
/// #     .start()?;
/// # let pool = runtime.pool("main").expect("defined above");
/// let handle = pool.spawn(|| 6 * 7)?;
/// assert_eq!(ult::block_on(async { handle.await })?, 42);
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
impl<T> IntoFuture for JoinHandle<T> {
    type Output = Result<T, JoinError>;
    type IntoFuture = JoinFuture<T>;

    fn into_future(self) -> JoinFuture<T> {
        JoinFuture { handle: Some(self), wait: TaskWait::new(), timed: None }
    }
}

/// A future that ends when an object is ready; see [`ready`].
///
/// ```
/// use ult::channel;
///
/// let (sender, receiver) = channel::bounded(1);
/// sender.send("item")?;
/// let item = ult::block_on(async {
///     ult::ready(&receiver).await;
///     // Other receivers may have been faster.
///     receiver.try_recv()
/// });
/// assert_eq!(item?, "item");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a future does nothing until it is polled"]
pub struct Ready<'a, S: Selectable + ?Sized> {
    object: &'a S,
    wait: TaskWait,
}

/// A future that ends when `object` is ready, in the sense of [`wait_any`](crate::wait_any):
/// another party may be faster, so use the `try_` form of the operation, and await again if that
/// fails.
///
/// ```
/// let stop = ult::Eventual::new();
/// stop.set(()).unwrap();
/// ult::block_on(ult::ready(&stop));
/// ```
pub fn ready<S: Selectable + ?Sized>(object: &S) -> Ready<'_, S> {
    Ready { object, wait: TaskWait::new() }
}

impl<S: Selectable + ?Sized> Future for Ready<'_, S> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        // SAFETY:
        // - borrowed, so it stays where it is while this future exists, which leaves it when it is
        //   dropped. If it is forgotten, the object may go: objects do not touch who waits for
        //   them when they are dropped.
        let is_ready = unsafe { this.wait.poll(this.object, WaitKind::Select, cx.waker()) };
        if is_ready { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl<S: Selectable + ?Sized> Drop for Ready<'_, S> {
    fn drop(&mut self) {
        self.wait.leave(self.object);
    }
}

impl<S: Selectable + ?Sized> fmt::Debug for Ready<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ready").field("wait", &self.wait).finish_non_exhaustive()
    }
}

/// A future that ends when an object is ready, and borrows nothing; see [`ready_in`].
///
/// ```
/// use std::sync::Arc;
/// use ult::{CountDown, ReadyIn};
///
/// struct Batch {
///     done: CountDown,
/// }
///
/// let batch = Arc::new(Batch { done: CountDown::new(1) });
/// // Owns a count on the batch, so it can be kept anywhere.
/// let ready: ReadyIn<Arc<Batch>, CountDown> = ult::ready_in(batch.clone(), |batch| &batch.done);
/// batch.done.arrive()?;
/// ult::block_on(ready);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a future does nothing until it is polled"]
pub struct ReadyIn<O, S: Selectable> {
    /// In `_owner`.
    object: NonNull<S>,
    wait: TaskWait,
    _owner: O,
}

// SAFETY: it owns an owner of the object, which it uses by shared reference.
unsafe impl<O: Send, S: Selectable + Sync> Send for ReadyIn<O, S> {}
// SAFETY: as for `Send`; shared access does nothing.
unsafe impl<O: Sync, S: Selectable + Sync> Sync for ReadyIn<O, S> {}

/// Like [`ready`], for an object inside of something shared (an `Arc`, say), which the future keeps
/// alive: for futures that others keep in their own.
///
/// ```
/// struct Job {
///     done: ult::Eventual<u32>,
/// }
/// let job = std::sync::Arc::new(Job { done: ult::Eventual::new() });
/// let ready = ult::ready_in(job.clone(), |job| &job.done);
/// job.done.set(5).unwrap();
/// ult::block_on(ready);
/// ```
pub fn ready_in<O, S: Selectable>(owner: O, object: fn(&O::Target) -> &S) -> ReadyIn<O, S>
where
    O: CloneStableDeref,
{
    let object = NonNull::from(object(&owner));
    ReadyIn { object, wait: TaskWait::new(), _owner: owner }
}

impl<O, S: Selectable> ReadyIn<O, S> {
    fn parts(&mut self) -> (&S, &mut TaskWait) {
        // SAFETY:
        // - alive and in place: `object` got a borrow of any length of what the owner owns, so the
        //   reference is good for as long as that is borrowed shared. That it is while this value
        //   has the owner (`CloneStableDeref`: it stays although the owner moves, and another owner
        //   borrows it shared only).
        (unsafe { self.object.as_ref() }, &mut self.wait)
    }
}

impl<O: Unpin, S: Selectable> Future for ReadyIn<O, S> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let (object, wait) = self.get_mut().parts();
        // SAFETY:
        // - it stays where it is while this future exists, see `parts`, and the future leaves it
        //   when it is dropped; if it is forgotten, so is its owner.
        let is_ready = unsafe { wait.poll(object, WaitKind::Select, cx.waker()) };
        if is_ready { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl<O, S: Selectable> Drop for ReadyIn<O, S> {
    fn drop(&mut self) {
        let (object, wait) = self.parts();
        wait.leave(object);
    }
}

impl<O, S: Selectable> fmt::Debug for ReadyIn<O, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadyIn").field("wait", &self.wait).finish_non_exhaustive()
    }
}

impl<T: Sync> Eventual<T> {
    /// Like [`wait`](Self::wait), for async code.
    pub async fn wait_async(&self) -> &T {
        loop {
            if let Some(value) = self.try_get() {
                return value;
            }
            ready(self).await;
        }
    }
}

impl<T> Receiver<T> {
    /// Like [`recv`](Self::recv), for async code. Receivers that block are served first. If the
    /// future is dropped, no item is lost.
    ///
    /// An item for which no receiver blocks wakes all futures and selects that wait, and the first
    /// gets it: each of these may choose something else, or never be polled again. Where very many
    /// shall share one channel, receive in ULTs.
    ///
    /// # Errors
    ///
    /// As [`recv`](Self::recv).
    pub async fn recv_async(&self) -> Result<T, RecvError> {
        loop {
            match self.try_recv() {
                Ok(item) => return Ok(item),
                Err(TryRecvError::Closed) => return Err(RecvError),
                Err(TryRecvError::Empty) => ready(self).await,
            }
        }
    }
}

impl<T> Sender<T> {
    /// Like [`send`](Self::send), for async code. Senders that block are served first, except in a
    /// channel without room, where all are served in turn. If the future is dropped before its end,
    /// the item is dropped and not sent.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send).
    pub async fn send_async(&self, item: T) -> Result<(), SendError<T>> {
        let mut item = item;
        loop {
            match self.try_send(item) {
                Ok(()) => return Ok(()),
                Err(TrySendError::Closed(back)) => return Err(SendError(back)),
                Err(TrySendError::Full(back)) => item = back,
            }
            if self.capacity() == Some(0) {
                return self.offer(item).await;
            }
            ready(self).await;
        }
    }
}
