//! Mercury's proc encoding as a serde format.
//!
//! | Rust | bytes | C counterpart |
//! |---|---|---|
//! | integers, floats | fixed width, little endian | `hg_proc_uint32_t` …; floats: raw memory |
//! | `bool` | one byte, 0 or 1 | `hg_proc_hg_bool_t` |
//! | `char` | its number as u32 | – |
//! | `str`, `String` | u64 length + 1, the bytes, NUL, u8 0, u8 0 | `hg_proc_hg_string_t` |
//! | [`ConstStr`] | the same with 1 in the last byte but one | `hg_proc_hg_const_string_t` |
//! | bytes, [`Bytes`] | u64 length, the bytes | a length and `hg_proc_raw` |
//! | [`Raw`] | the bytes, to the end | `hg_proc_raw` |
//! | `Option` | u8 0, or u8 1 and the value | – |
//! | sequence, map | u64 count, the elements | a count and the elements |
//! | tuple, struct, array | the members, one after the other | `MERCURY_GEN_STRUCT_PROC` |
//! | enum | u32 number of the variant, its members | – |
//! | unit | nothing | – |
//! | newtype | what is inside | – |
//! | [`Bulk`](super::Bulk) | u64 length of the descriptor, the descriptor | `hg_proc_hg_bulk_t` |
//!
//! There is no padding and no tag: both sides must define the type alike. The rows without a C
//! counterpart are our own.
//!
//! # Limits
//!
//! Decoding compares every length and count with the bytes that are left before it allocates by it.
//! Depth, length, and the number of elements that take no bytes are bounded by [`ProcLimits`];
//! encoding obeys the same, so that what can be sent can be received. The total is bounded by
//! [`WriterLimits::bytes_max`] and, at the receiver, by what it lets overflow.

mod bytes;
mod de;
pub mod descriptor;
mod limits;
#[expect(unsafe_code, reason = "the memory of numbers is bytes")]
mod numbers;
mod ser;
mod text;
#[expect(unsafe_code, reason = "bytes that are ASCII are text")]
mod utf8;
mod writer;

use na::MsgBuf;
use serde::de::DeserializeSeed;
use serde::{Deserialize, Serialize};

use crate::ProcError;

pub use self::bytes::{Bytes, FromBytes, Raw};
pub use self::limits::{DEPTH_MAX, EMPTY_ELEMENTS_MAX, ProcLimits};
pub use self::numbers::bytes_of_numbers;
pub use self::text::ConstStr;
pub use self::writer::{Writer, WriterLimits, Written};

/// The name by which [`ConstStr`] tells the serializer what it is.
pub(super) const CONST_STR: &str = "$margo::hg::ConstStr";
/// The name by which [`Bulk`](super::Bulk) tells the serializer and deserializer what it is.
pub const BULK: &str = "$margo::hg::Bulk";

/// The name by which [`Raw`] tells the serializer and deserializer what it is.
pub const RAW: &str = "$margo::hg::Raw";

/// Encodes `value` behind what the writer has.
///
/// # Errors
///
/// [`ProcError`]; the writer then holds a part of the encoding.
#[inline]
pub fn to_writer<T: Serialize + ?Sized>(writer: &mut Writer, value: &T) -> Result<(), ProcError> {
    value.serialize(&mut ser::Encoder::new(writer))
}

/// Encodes `value` into a vector.
///
/// # Errors
///
/// [`ProcError`].
pub fn to_vec<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, ProcError> {
    let mut writer = Writer::new(MsgBuf::with_capacity(0), 0, 0, WriterLimits::default());
    to_writer(&mut writer, value)?;
    Ok(match writer.finish() {
        Written::Fits(_) => Vec::new(),
        Written::Overflow(_, bytes) => bytes,
    })
}

/// Decodes a value that takes all of `bytes`, within the default limits. Strings and bytes may
/// borrow from them.
///
/// # Errors
///
/// [`ProcError`] with the offset; bytes that are left over are an error.
#[inline]
pub fn from_slice<'de, T: Deserialize<'de>>(bytes: &'de [u8]) -> Result<T, ProcError> {
    from_slice_within(bytes, ProcLimits::default())
}

/// As [`from_slice`], within `limits`.
///
/// # Errors
///
/// As [`from_slice`].
#[inline]
pub fn from_slice_within<'de, T: Deserialize<'de>>(
    bytes: &'de [u8],
    limits: ProcLimits,
) -> Result<T, ProcError> {
    let (value, rest) = from_prefix_within(bytes, limits)?;
    match rest.len() {
        0 => Ok(value),
        left => Err(ProcError::Trailing { at: bytes.len() - left, left }),
    }
}

/// As [`from_slice`], for a value of which only the seed knows how it is made.
///
/// # Errors
///
/// As [`from_slice`].
pub fn from_slice_seed<'de, S: DeserializeSeed<'de>>(
    bytes: &'de [u8],
    seed: S,
) -> Result<S::Value, ProcError> {
    let mut decoder = de::Decoder::new(bytes, ProcLimits::default());
    let decoded = seed.deserialize(&mut decoder);
    let value = decoded.map_err(|error| decoder.located(error))?;
    match decoder.rest().len() {
        0 => Ok(value),
        left => Err(ProcError::Trailing { at: bytes.len() - left, left }),
    }
}

/// Decodes a value from the front of `bytes`, within the default limits; also returns what follows
/// it.
///
/// # Errors
///
/// [`ProcError`] with the offset.
#[inline]
pub fn from_prefix<'de, T: Deserialize<'de>>(
    bytes: &'de [u8],
) -> Result<(T, &'de [u8]), ProcError> {
    from_prefix_within(bytes, ProcLimits::default())
}

/// As [`from_prefix`], within `limits`.
///
/// # Errors
///
/// As [`from_prefix`].
#[inline]
pub fn from_prefix_within<'de, T: Deserialize<'de>>(
    bytes: &'de [u8],
    limits: ProcLimits,
) -> Result<(T, &'de [u8]), ProcError> {
    let mut decoder = de::Decoder::new(bytes, limits);
    match T::deserialize(&mut decoder) {
        Ok(value) => Ok((value, decoder.rest())),
        Err(error) => Err(decoder.located(error)),
    }
}

#[cfg(test)]
mod tests;
