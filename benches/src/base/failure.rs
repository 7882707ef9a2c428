//! Reasons why a row has no figure.

use std::fmt;

/// A failure in words, for the reader of the report. Rows fail one by one; nothing acts on the kind
/// of failure, so there is only text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure(String);

/// Result of a measurement or a part of one.
pub(crate) type Result<T> = std::result::Result<T, Failure>;

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

/// Adds what was being done to an error.
pub(crate) trait Doing<T> {
    /// Turns the error into a [`Failure`] that says `what` was being done.
    fn doing(self, what: &str) -> Result<T>;
}

impl<T, E: fmt::Display> Doing<T> for std::result::Result<T, E> {
    fn doing(self, what: &str) -> Result<T> {
        self.map_err(|error| Failure(format!("{what}: {error}")))
    }
}
