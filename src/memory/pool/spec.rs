//! The specification of a pool, its statistics, and the reasons why there is no buffer.

use std::time::Duration;

use crate::BulkError;

/// The buffers that a pool has.
///
/// ```
/// use margo::{Instance, bulk_memory::BulkPoolSpec};
///
/// let instance = Instance::builder("na+sm://").start()?;
/// // Many small buffers, and two large ones.
/// let spec = BulkPoolSpec::new().class(4096, 64).class(1 << 20, 2);
/// let pool = instance.memory().bulk_pool(&spec)?;
/// assert_eq!(pool.bytes_max(), 1 << 20);
/// # instance.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BulkPoolSpec {
    /// Bytes of a buffer and number of buffers.
    classes: Vec<(usize, usize)>,
}

impl BulkPoolSpec {
    /// No buffers yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a class of `buffers` buffers of `bytes` bytes each.
    #[must_use]
    pub fn class(mut self, bytes: usize, buffers: usize) -> Self {
        self.classes.push((bytes, buffers));
        self
    }

    /// `classes` classes of `buffers` buffers each; the smallest of `first_bytes`, each further one
    /// `factor` times as large as the one before.
    ///
    /// Counterpart: the arguments of `margo_bulk_poolset_create`.
    pub fn geometric(classes: usize, buffers: usize, first_bytes: usize, factor: usize) -> Self {
        let bytes = std::iter::successors(Some(first_bytes), |bytes| {
            // What is too large is told when the pool is made.
            Some(bytes.saturating_mul(factor))
        });
        Self { classes: bytes.take(classes).map(|bytes| (bytes, buffers)).collect() }
    }

    /// The classes, smallest first, or what is wrong with them.
    pub(super) fn check(&self) -> Result<Vec<(usize, usize)>, BulkPoolError> {
        let bad = |text: String| Err(BulkPoolError::Spec(text));
        let mut classes = self.classes.clone();
        classes.sort_unstable();
        if classes.is_empty() {
            return bad("it has no classes".into());
        }
        if let Some((bytes, buffers)) = classes.iter().find(|(b, n)| *b == 0 || *n == 0) {
            return bad(format!("a class of {buffers} buffers of {bytes} bytes is of no use"));
        }
        let total = classes.iter().try_fold(0usize, |sum, (bytes, buffers)| {
            sum.checked_add(bytes.checked_mul(*buffers)?)
        });
        if total.is_none_or(|total| isize::try_from(total).is_err()) {
            return bad("its buffers exceed the address space".into());
        }
        if let Some(twice) = classes.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return bad(format!("two classes have buffers of {} bytes", twice[0].0));
        }
        Ok(classes)
    }
}

/// The reason why there is no buffer, or no pool.
///
/// ```
/// use std::time::Duration;
///
/// use margo::Instance;
/// use margo::bulk_memory::{BulkPoolError, BulkPoolSpec};
///
/// let instance = Instance::builder("na+sm://").start()?;
/// let pool = instance.memory().bulk_pool(&BulkPoolSpec::new().class(4096, 1))?;
/// let buffer = pool.get(4096)?;
/// match pool.get_timed(4096, Duration::from_millis(1)) {
///     Ok(_) => unreachable!("the only buffer is in use"),
///     Err(BulkPoolError::TimedOut { bytes, .. }) => assert_eq!(bytes, 4096),
///     Err(BulkPoolError::TooLarge { max, .. }) => println!("in parts of {max} bytes"),
///     Err(error) => println!("{error}"),
/// }
/// # drop(buffer);
/// # instance.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BulkPoolError {
    /// Such a pool cannot be made. Change its classes.
    #[error("a bulk pool cannot be made: {0}")]
    Spec(String),
    /// A buffer could not be made.
    #[error("a bulk pool cannot be made: {0}")]
    Buffer(#[from] BulkError),
    /// No class has buffers of that size. Transfer in parts, or add a class.
    #[error("a buffer of {len} bytes was asked for; the largest class has {max}")]
    TooLarge {
        /// Bytes that were asked for.
        len: usize,
        /// Bytes of the largest buffers.
        max: usize,
    },
    /// All buffers of the class stayed in use. Give some back earlier, or add buffers.
    #[error("no buffer of {bytes} bytes became free within {limit:?}")]
    TimedOut {
        /// Bytes of the class.
        bytes: usize,
        /// The time that was allowed.
        limit: Duration,
    },
    /// All buffers are in use, and the caller is a tasklet, which cannot wait without blocking its
    /// whole execution stream. Ask in a ULT, or use
    /// [`BulkPool::try_get`](super::BulkPool::try_get).
    #[error("a tasklet cannot wait for a buffer of {bytes} bytes: ask for it in a ULT")]
    Tasklet {
        /// Bytes of the class.
        bytes: usize,
    },
    /// The caller's eventual ended the wait.
    #[error("the wait for a buffer was cancelled")]
    Canceled,
    /// [`BulkPool::close`](super::BulkPool::close) was called.
    #[error("the bulk pool is closed")]
    Closed,
    /// This process is a child that was forked off. The pool is its parent's.
    #[error("this process was forked off: the bulk pool belongs to its parent process")]
    Forked,
}

/// A class of a [`BulkPool`](super::BulkPool). A snapshot.
///
/// ```
/// use margo::{Instance, bulk_memory::BulkPoolSpec};
///
/// let instance = Instance::builder("na+sm://").start()?;
/// let pool = instance.memory().bulk_pool(&BulkPoolSpec::new().class(4096, 8))?;
/// let buffer = pool.get(100)?;
/// let class = pool.stats()[0];
/// assert_eq!((class.bytes, class.buffers, class.free), (4096, 8, 7));
/// assert_eq!((class.gets, class.waits), (1, 0));
/// # drop(buffer);
/// # instance.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct BulkClassStats {
    /// Bytes of each buffer.
    pub bytes: usize,
    /// Buffers.
    pub buffers: usize,
    /// Buffers that are free.
    pub free: usize,
    /// Callers that wait for a buffer now.
    pub waiting: usize,
    /// Buffers in use at most, so far.
    pub in_use_max: usize,
    /// Buffers given out.
    pub gets: u64,
    /// Those of them that were waited for.
    pub waits: u64,
    /// Those of them that a smaller class would have had, if it had had any.
    pub spills: u64,
    /// Waits that ended without a buffer: too late, cancelled, closed.
    pub given_up: u64,
}
