//! Mercury's proc encoding as a serde format.
//!
//! | Rust | bytes | C counterpart |
//! |---|---|---|
//! | integers, floats | fixed width, little endian | `hg_proc_uint32_t` …; floats: raw memory |
//! | `bool` | one byte, 0 or 1 | `hg_proc_hg_bool_t` |
//! | `char` | its number as u32 | – |
//! | `str`, `String` | u64 length + 1, the bytes, NUL, u8 0, u8 0 | `hg_proc_hg_string_t` |
//! | [`ConstStr`] | the same with 1 in the last byte but one | `hg_proc_hg_const_string_t` |
//! | bytes | u64 length, the bytes | a length and `hg_proc_raw` |
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
//! Decoding compares every length and count with the bytes that are left before it allocates by it,
//! accepts at most [`EMPTY_ELEMENTS_MAX`] elements beyond that (elements may take no bytes), and
//! nests at most [`DEPTH_MAX`] levels. Encoding obeys the same limits, so that what can be sent can
//! be received.

mod de;
mod ser;
mod text;
mod writer;

use na::MsgBuf;
use serde::{Deserialize, Serialize};

use super::ProcError;

pub use self::text::ConstStr;
pub use self::writer::{Writer, WriterLimits, Written};

/// Deepest nesting of values.
pub const DEPTH_MAX: usize = 128;

/// Most elements of sequences and maps in one encoding that take no bytes.
pub const EMPTY_ELEMENTS_MAX: u64 = 1 << 16;

/// The name by which [`ConstStr`] tells the serializer what it is.
pub(super) const CONST_STR: &str = "$margo::hg::ConstStr";
/// The name by which [`Bulk`](super::Bulk) tells the serializer and deserializer what it is.
pub(super) const BULK: &str = "$margo::hg::Bulk";

/// Encodes `value` behind what the writer has.
///
/// # Errors
///
/// [`ProcError`]; the writer then holds a part of the encoding.
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

/// Decodes a value that takes all of `bytes`. Strings and bytes may borrow from them.
///
/// # Errors
///
/// [`ProcError`] with the offset; bytes that are left over are an error.
pub fn from_slice<'de, T: Deserialize<'de>>(bytes: &'de [u8]) -> Result<T, ProcError> {
    let (value, rest) = from_prefix(bytes)?;
    match rest.len() {
        0 => Ok(value),
        left => Err(ProcError::Trailing { at: bytes.len() - left, left }),
    }
}

/// Decodes a value from the front of `bytes`; also returns what follows it.
///
/// # Errors
///
/// [`ProcError`] with the offset.
pub fn from_prefix<'de, T: Deserialize<'de>>(
    bytes: &'de [u8],
) -> Result<(T, &'de [u8]), ProcError> {
    let mut decoder = de::Decoder::new(bytes);
    match T::deserialize(&mut decoder) {
        Ok(value) => Ok((value, decoder.rest())),
        Err(error) => Err(decoder.located(error)),
    }
}

#[cfg(test)]
mod tests;
