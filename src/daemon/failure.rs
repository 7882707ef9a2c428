//! The ways in which a command fails.

/// The reason why a command failed, which decides the exit status.
///
/// ```
/// use margo::daemon::Failure;
///
/// let failure = Failure::new("cannot open the archive", "permission denied");
/// assert!(matches!(failure, Failure::Failed(_)));
/// assert_eq!(failure.to_string(), "cannot open the archive: permission denied");
/// assert_eq!((failure.status(), Failure::Signal(15).status()), (1, 143));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// It did not work. Status 1.
    #[error("{0}")]
    Failed(String),
    /// It was asked for wrongly: by its arguments, or by a document that is not valid. Status 2.
    #[error("{0}")]
    Usage(String),
    /// The user does not want it any more. Status 130.
    #[error("interrupted")]
    Interrupted,
    /// A signal of this number has ended it. Status 128 plus that.
    #[error("ended by signal {0}")]
    Signal(u8),
    /// The reader of standard output has closed it, as `| head` does. Status 141.
    #[error("standard output was closed")]
    OutputClosed,
}

impl Failure {
    /// Makes a [`Failure::Failed`]: what did not work, and why.
    pub fn new(what: impl std::fmt::Display, why: impl std::fmt::Display) -> Self {
        Self::Failed(format!("{what}: {why}"))
    }

    /// The exit status.
    pub fn status(&self) -> u8 {
        match self {
            Self::Failed(_) => 1,
            Self::Usage(_) => 2,
            Self::Interrupted => 130,
            Self::Signal(number) => 128u8.saturating_add(*number),
            Self::OutputClosed => 141,
        }
    }
}
