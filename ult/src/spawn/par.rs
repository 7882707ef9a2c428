//! Loops over indices that use every xstream with nothing else to do.
//!
//! Each function cuts its range in two, forks ([`join`](crate::join())), and goes on with the
//! halves: at first until there are about twice as many pieces as xstreams that serve the caller's
//! pool, and further where pieces are taken by other xstreams, since those have time. So a loop
//! that nobody helps with has few pieces, and one whose iterations differ much is cut where the
//! work is. On one xstream, on an OS thread and in a tasklet the range is one piece, cut only as
//! far as the caller asks for it.
//!
//! Pieces may wait, as the halves of a [`join`](crate::join()) may. The panic of the lowest piece
//! that has panicked goes on when all have ended; for cancellation see there.
//!
//! ```
//! # use ult::{PoolSpec, Runtime, XstreamSpec};
//! # let runtime = Runtime::builder()
//! #     .pool(PoolSpec::new("main"))
//! #     .xstream(XstreamSpec::new("x0").pools(["main"]))
//! #     .xstream(XstreamSpec::new("x1").pools(["main"]))
//! #     .start()?;
//! # let pool = runtime.pool("main").expect("defined above");
//! let sums = pool.spawn(|| {
//!     let numbers: Vec<u64> = (0..1000).collect();
//!     let total = ult::par::map_reduce(
//!         0..numbers.len(),
//!         |piece| numbers[piece].iter().map(|n| n * n).sum::<u64>(),
//!         |left, right| left + right,
//!     );
//!     let largest = ult::Mutex::new(0);
//!     ult::par::for_each_index(0..numbers.len(), |i| {
//!         let mut largest = largest.lock();
//!         *largest = numbers[i].max(*largest);
//!     });
//!     (total, largest.into_inner())
//! })?;
//! assert_eq!(sums.join()?, (332_833_500, 999));
//! # runtime.shutdown()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::ops::Range;

use crate::engine::xstream::current;
use crate::spawn::fork::fork;
use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::lock;

/// Calls `f` for each index of `range`, in no order.
///
/// # Panics
///
/// As said [above](self). Indices behind one that has panicked, in its piece, are left out.
#[inline]
pub fn for_each_index(range: Range<usize>, f: impl Fn(usize) + Sync) {
    for_each_chunk(range, usize::MAX, |piece| piece.for_each(&f));
}

/// Calls `f` for pieces of `range`, in no order, which together are the range. No piece is longer
/// than `longest`, and none is empty.
///
/// A `longest` of one lets the wait of an iteration keep no other one from being begun, on one
/// xstream, too. Otherwise `usize::MAX` is right: the pieces are then as long as they can be.
///
/// # Panics
///
/// If `longest` is zero, and as said [above](self).
#[inline]
pub fn for_each_chunk(range: Range<usize>, longest: usize, f: impl Fn(Range<usize>) + Sync) {
    assert!(longest > 0, "`for_each_chunk` was asked for pieces without indices");
    if !range.is_empty() {
        cut(range, Splits::new(), false, longest, &f, &|(), ()| ());
    }
}

/// Calls `map` for pieces of `range`, which together are the range, and puts the results together
/// by `reduce`, those of lower indices on the left. An empty range is one empty piece.
///
/// `reduce` has to be associative, but not commutative: where the range is cut, and so in which
/// order the results are put together, differs from run to run.
///
/// # Panics
///
/// As said [above](self).
#[inline]
pub fn map_reduce<T: Send>(
    range: Range<usize>,
    map: impl Fn(Range<usize>) -> T + Sync,
    reduce: impl Fn(T, T) -> T + Sync,
) -> T {
    cut(range, Splits::new(), false, usize::MAX, &map, &reduce)
}

/// How often a piece may still be cut in two, so that there is one for everybody.
#[derive(Debug, Clone, Copy)]
struct Splits {
    left: usize,
    /// The number of xstreams that may help, and the caller's.
    xstreams: usize,
}

impl Splits {
    fn new() -> Self {
        let ult = current::xstream_and_ult().map(|(_, ult)| ult);
        let pool = ult.as_ref().map(|ult| ult.pool());
        let xstreams = match pool {
            Some(pool) if pool.sole.load(Relaxed).is_null() => lock(&pool.servers).len(),
            _ => 1,
        };
        // Nobody helps where there is one.
        Self { left: if xstreams > 1 { xstreams } else { 0 }, xstreams }
    }

    /// Returns whether a piece is cut; `is_taken`: another xstream has just taken it.
    fn again(&mut self, is_taken: bool) -> bool {
        let splits = self.left > 0 || is_taken;
        self.left /= 2;
        if is_taken {
            self.left = self.left.max(self.xstreams);
        }
        splits
    }
}

fn cut<T: Send>(
    range: Range<usize>,
    mut splits: Splits,
    is_taken: bool,
    longest: usize,
    map: &(impl Fn(Range<usize>) -> T + Sync),
    reduce: &(impl Fn(T, T) -> T + Sync),
) -> T {
    let len = range.len();
    if len < 2 || !splits.again(is_taken) && len <= longest {
        return map(range);
    }
    let middle = range.start + len / 2;
    let (low, high) = (range.start..middle, middle..range.end);
    let (low, high) = fork(
        || cut(low, splits, false, longest, map, reduce),
        |is_taken| cut(high, splits, is_taken, longest, map, reduce),
    );
    reduce(low, high)
}
