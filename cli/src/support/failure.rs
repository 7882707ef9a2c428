//! The ways in which a command fails.

/// The reason why a command failed; decides the exit status.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// It did not work.
    #[error("{0}")]
    Failed(String),
    /// It was asked for wrongly.
    #[error("{0}")]
    Usage(String),
    /// The user does not want it any more.
    #[error("interrupted")]
    Interrupted,
    /// The reader of standard output has closed it.
    #[error("standard output was closed")]
    OutputClosed,
}

impl Failure {
    /// Something did not work: what, and why.
    pub(crate) fn new(what: impl std::fmt::Display, why: impl std::fmt::Display) -> Self {
        Self::Failed(format!("{what}: {why}"))
    }

    /// The exit status.
    pub(crate) fn status(&self) -> u8 {
        match self {
            Self::Failed(_) => 1,
            Self::Usage(_) => 2,
            Self::Interrupted => 130,
            Self::OutputClosed => 141,
        }
    }
}
