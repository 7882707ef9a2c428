//! Values with a cache line of their own.

/// A value that shares no cache line with its neighbours, so that what one side writes is away from
/// what another one reads or writes. 128 bytes: processors fetch lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct OwnLine<T>(pub T);
