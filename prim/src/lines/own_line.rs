//! Values with a cache line of their own.

/// A value that shares no cache line with its neighbours, so that what one side writes is away from
/// what another one reads or writes. 128 bytes: processors fetch lines in pairs.
///
/// ```
/// use prim::OwnLine;
/// use prim::sync::atomic::AtomicU64;
///
/// let counts: [OwnLine<AtomicU64>; 2] = Default::default();
/// assert_eq!(size_of_val(&counts), 256, "two threads do not wait for each other");
/// ```
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct OwnLine<T>(pub T);
