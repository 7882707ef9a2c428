//! Errors of channel operations. A sender gets its item back.

use std::fmt;

/// The channel is closed; here is the item.
///
/// ```
/// use ult::channel::{self, SendError};
///
/// let (sender, receiver) = channel::bounded(1);
/// drop(receiver);
/// let SendError(item) = sender.send("item").unwrap_err();
/// assert_eq!(item, "item");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the channel is closed")]
pub struct SendError<T>(pub T);

/// The item could not be sent now; here it is.
///
/// ```
/// use ult::channel::{self, TrySendError};
///
/// let (sender, receiver) = channel::bounded(1);
/// sender.send(1)?;
/// assert_eq!(sender.try_send(2), Err(TrySendError::Full(2)));
/// receiver.close();
/// match sender.try_send(3) {
///     Ok(()) => unreachable!("there is no room"),
///     Err(TrySendError::Full(item)) => println!("later, perhaps: {item}"),
///     Err(TrySendError::Closed(item)) => assert_eq!(item, 3),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TrySendError<T> {
    /// There is no room now.
    #[error("the channel is full")]
    Full(T),
    /// There is no room and never will be: the channel is closed.
    #[error("the channel is closed")]
    Closed(T),
}

/// The item could not be sent in time; here it is.
///
/// ```
/// use std::time::Duration;
/// use ult::channel::{self, SendTimeoutError};
///
/// let (sender, receiver) = channel::bounded(1);
/// sender.send(1)?;
/// match sender.send_timeout(2, Duration::from_millis(1)) {
///     Ok(()) => println!("there was room"),
///     Err(SendTimeoutError::TimedOut(item)) => assert_eq!(item, 2),
///     Err(SendTimeoutError::Closed(_)) => println!("no receiver is left"),
/// }
/// # drop(receiver);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SendTimeoutError<T> {
    /// There was no room until the deadline.
    #[error("the channel was full until the deadline")]
    TimedOut(T),
    /// The channel is closed.
    #[error("the channel is closed")]
    Closed(T),
}

/// The channel is closed, and nothing is left in it.
///
/// ```
/// use ult::channel::{self, RecvError};
///
/// let (sender, receiver) = channel::bounded(1);
/// sender.send("last")?;
/// drop(sender);
/// assert_eq!(receiver.recv(), Ok("last"));
/// assert_eq!(receiver.recv(), Err(RecvError));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the channel is closed and empty")]
pub struct RecvError;

/// Nothing could be received now.
///
/// ```
/// use ult::channel::{self, TryRecvError};
///
/// let (sender, receiver) = channel::bounded::<u32>(1);
/// assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
/// drop(sender);
/// assert_eq!(receiver.try_recv(), Err(TryRecvError::Closed));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TryRecvError {
    /// There is nothing now.
    #[error("the channel is empty")]
    Empty,
    /// The channel is closed, and nothing is left in it.
    #[error("the channel is closed and empty")]
    Closed,
}

/// Nothing could be received in time.
///
/// ```
/// use std::time::Duration;
/// use ult::channel::{self, RecvTimeoutError};
///
/// let (sender, receiver) = channel::bounded::<u32>(1);
/// match receiver.recv_timeout(Duration::from_millis(1)) {
///     Ok(item) => println!("{item}"),
///     Err(RecvTimeoutError::TimedOut) => assert!(!sender.is_closed()),
///     Err(RecvTimeoutError::Closed) => println!("no sender is left"),
/// }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecvTimeoutError {
    /// Nothing came until the deadline.
    #[error("the channel was empty until the deadline")]
    TimedOut,
    /// The channel is closed, and nothing is left in it.
    #[error("the channel is closed and empty")]
    Closed,
}

impl<T> TrySendError<T> {
    /// The item.
    pub fn into_inner(self) -> T {
        match self {
            Self::Full(item) | Self::Closed(item) => item,
        }
    }
}

impl<T> SendTimeoutError<T> {
    /// The item.
    pub fn into_inner(self) -> T {
        match self {
            Self::TimedOut(item) | Self::Closed(item) => item,
        }
    }
}

// The item need not be `Debug`.
impl<T> fmt::Debug for SendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SendError(..)")
    }
}

impl<T> fmt::Debug for TrySendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full(_) => "Full(..)",
            Self::Closed(_) => "Closed(..)",
        })
    }
}

impl<T> fmt::Debug for SendTimeoutError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TimedOut(_) => "TimedOut(..)",
            Self::Closed(_) => "Closed(..)",
        })
    }
}
