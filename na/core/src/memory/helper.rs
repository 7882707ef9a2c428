//! Help by other threads with large copies.

use std::fmt;
use std::sync::Arc;

/// A function that runs the parts of a copy, possibly at the same time, and returns when all are
/// done.
type RunParts = dyn Fn(usize, &(dyn Fn(usize) + Sync)) + Send + Sync;

/// Lets several threads (execution streams) take part in large copies.
///
/// ```
/// # use na_core as na;
/// use na::{CopyHelper, OpenOptions};
///
/// let mut options = OpenOptions::listening(true);
/// options.copy_helper = Some(CopyHelper::new(|parts, part| {
///     std::thread::scope(|scope| {
///         for number in 0..parts {
///             scope.spawn(move || part(number));
///         }
///     });
/// }));
/// assert!(options.copy_helper.is_some());
/// ```
#[derive(Clone)]
pub struct CopyHelper(Arc<RunParts>);

impl CopyHelper {
    /// `run` is given a number of parts and a function, which it calls once with each number below
    /// that, from whichever threads; it returns when these calls have returned. It is called by
    /// `poll`, so it must not poll the endpoint. Parts that it leaves out are done by the caller.
    pub fn new(run: impl Fn(usize, &(dyn Fn(usize) + Sync)) + Send + Sync + 'static) -> Self {
        Self(Arc::new(run))
    }

    /// Runs `part` with each number below `parts`, as [`new`](Self::new) says.
    #[doc(hidden)]
    pub fn run(&self, parts: usize, part: &(dyn Fn(usize) + Sync)) {
        (self.0)(parts, part);
    }
}

impl fmt::Debug for CopyHelper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CopyHelper")
    }
}

impl PartialEq for CopyHelper {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}
