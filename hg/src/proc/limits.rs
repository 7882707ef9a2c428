//! Limits of an encoding.

use crate::ProcError;

/// Deepest nesting of values, by default.
pub const DEPTH_MAX: usize = 128;

/// Most elements of sequences and maps in one encoding that take no bytes, by default.
pub const EMPTY_ELEMENTS_MAX: u64 = 1 << 16;

/// Bounds of one encoding, in both directions alike: what one side may write, another that is set
/// alike may read. Its total size is bounded by the message or, if it overflows, by
/// [`HgOptions::overflow_bytes_max`](crate::HgOptions::overflow_bytes_max).
///
/// C has none of these bounds.
///
/// ```
/// use hg::proc::{ProcLimits, from_slice_within, to_vec};
///
/// let bytes = to_vec("a text that is too long")?;
/// let limits = ProcLimits { len_max: 10, ..ProcLimits::default() };
/// assert!(from_slice_within::<&str>(&bytes, limits).is_err());
/// # Ok::<(), hg::ProcError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcLimits {
    /// Deepest nesting: options, newtypes, tuples, structs, sequences, maps and the contents of
    /// variants each are a level. Default [`DEPTH_MAX`], 128.
    pub depth_max: usize,
    /// Longest string (its NUL counts) and byte string, in bytes, and longest sequence and map, in
    /// elements; [`Raw`](super::Raw) and bulk handles have no such limit. Default unlimited: none
    /// is longer than the encoding.
    pub len_max: u64,
    /// Most elements that take no bytes, in all sequences and maps together. Default
    /// [`EMPTY_ELEMENTS_MAX`], 65536.
    pub empty_elements_max: u64,
}

impl Default for ProcLimits {
    fn default() -> Self {
        Self { depth_max: DEPTH_MAX, len_max: u64::MAX, empty_elements_max: EMPTY_ELEMENTS_MAX }
    }
}

impl ProcLimits {
    /// A string, byte string, sequence or map of that length.
    #[inline]
    pub(super) fn check_len(&self, len: u64) -> Result<(), ProcError> {
        if len > self.len_max {
            return Err(ProcError::TooMany { len, max: self.len_max });
        }
        Ok(())
    }
}
