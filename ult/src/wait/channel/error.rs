//! Errors of channel operations. A sender gets its item back.

use std::fmt;

/// The channel is closed; here is the item.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the channel is closed")]
pub struct SendError<T>(pub T);

/// The item could not be sent now; here it is.
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the channel is closed and empty")]
pub struct RecvError;

/// Nothing could be received now.
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
