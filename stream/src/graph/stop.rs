//! [`Stop`]: how a stage ends before its input does.

use std::error::Error;
use std::fmt;

/// An error of the program, as its closures return it.
///
/// ```
/// use margo_stream::graph::BoxError;
///
/// fn port(text: &str) -> Result<u16, BoxError> {
///     Ok(text.parse()?)
/// }
/// assert!(port("http").is_err());
/// ```
pub type BoxError = Box<dyn Error + Send + Sync>;

/// A function that ends something when a run is over before its end, and is told why.
pub(crate) type Closer = Box<dyn Fn(&str) + Send + Sync>;

/// The reason for which a stage ends before its input does.
///
/// Whatever gives items on returns it as an error, and who gets it hands it on with `?`.
///
/// ```
/// use margo_stream::graph::Graph;
///
/// let graph = Graph::new();
/// let found = graph
///     .generate("numbers", |emit| {
///         for n in 0u64.. {
///             emit.emit(n)?; // ends the loop when nobody wants more
///         }
///         Ok(())
///     })
///     .own("first", |io| {
///         while let Some(n) = io.recv()? {
///             if n * n > 1000 {
///                 io.emit(n)?;
///                 break;
///             }
///         }
///         Ok(())
///     })
///     .collect();
/// graph.run()?;
/// assert_eq!(found.take(), [32]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Stop(Box<Reason>);

#[derive(Debug)]
enum Reason {
    Over,
    Unwanted,
    Failed(BoxError),
}

impl Stop {
    /// A failure of the stage, which ends the whole graph.
    #[cold]
    pub fn failed(error: impl Into<BoxError>) -> Self {
        let error = error.into();
        match error.downcast::<Self>() {
            // Handed on by code of the program that knows it as an error only.
            Ok(stop) => *stop,
            Err(error) => Self(Box::new(Reason::Failed(error))),
        }
    }

    /// The run is over: it has failed, or was cancelled.
    #[cold]
    pub(crate) fn over() -> Self {
        Self(Box::new(Reason::Over))
    }

    /// All who have taken items from here have ended.
    #[cold]
    pub(crate) fn unwanted() -> Self {
        Self(Box::new(Reason::Unwanted))
    }

    pub(crate) fn is_unwanted(&self) -> bool {
        matches!(*self.0, Reason::Unwanted)
    }

    /// The failure, if the stage has failed itself.
    pub(crate) fn into_failure(self) -> Option<BoxError> {
        match *self.0 {
            Reason::Failed(error) => Some(error),
            Reason::Over | Reason::Unwanted => None,
        }
    }
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0 {
            Reason::Over => f.write_str("the run is over"),
            Reason::Unwanted => f.write_str("nobody takes the items of this stage any more"),
            Reason::Failed(error) => error.fmt(f),
        }
    }
}

impl Error for Stop {}
