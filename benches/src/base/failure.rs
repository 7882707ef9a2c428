//! Reasons why a row has no figure.

use std::error::Error;
use std::fmt;
use std::panic::Location;

/// A failure in words, for the reader of the report. Rows fail one by one; nothing acts on the kind
/// of failure, so there is only text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure(String);

/// Result of a measurement or a part of one.
pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

impl Failure {
    /// A failure with this text.
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<E: Error> From<E> for Failure {
    /// The error, and the place of the `?` that met it.
    #[track_caller]
    fn from(error: E) -> Self {
        let at = Location::caller();
        Self(format!("{error} (at {}:{})", at.file(), at.line()))
    }
}

/// Adds what was being done to an error.
pub(crate) trait Doing<T> {
    /// Turns the error into a [`Failure`] that says `what` was being done.
    fn doing(self, what: &str) -> Result<T>;
}

impl<T, E: fmt::Display> Doing<T> for Result<T, E> {
    fn doing(self, what: &str) -> Result<T> {
        self.map_err(|error| Failure(format!("{what}: {error}")))
    }
}

/// Turns what is missing into a failure.
pub(crate) trait OrFail<T> {
    /// The value, or a [`Failure`] with this text.
    fn or_fail(self, text: &str) -> Result<T>;
}

impl<T> OrFail<T> for Option<T> {
    fn or_fail(self, text: &str) -> Result<T> {
        self.ok_or_else(|| Failure::new(text))
    }
}

/// Returns a failure with this text.
macro_rules! fail {
    ($($text:tt)+) => {
        return Err($crate::base::Failure::new(format!($($text)+)))
    };
}

/// Returns a failure with this text unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            $crate::base::fail!($($text)+);
        }
    };
}

pub(crate) use {ensure, fail};
