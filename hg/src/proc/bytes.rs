//! Byte strings: with a length before them, and without.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::RAW;

/// A byte string: a length of 8 bytes, and the bytes. The encoding is that of `Vec<u8>` and
/// `&[u8]`, but it is copied as a whole. `Bytes<&[u8]>` borrows, also when decoded.
///
/// ```
/// # mod margo { pub mod encoding { pub use hg::*; } }
/// # use hg::proc::{from_slice, to_vec};
/// use margo::encoding::Bytes;
///
/// let sent = to_vec(&Bytes(vec![7; 1000]))?; // copied as a whole
/// assert_eq!(sent, to_vec(&vec![7_u8; 1000])?, "the same bytes, one by one");
/// let received: Bytes<&[u8]> = from_slice(&sent)?; // not copied
/// assert_eq!(received.len(), 1000);
/// # Ok::<(), hg::ProcError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Bytes<B = Vec<u8>>(pub B);

/// Bytes as they are, without a length: for callers with a format of their own, and for bytes that
/// C writes by `hg_proc_raw`. It decodes as everything that is left, so it can only be the last
/// value. `Raw<&[u8]>` borrows, also when decoded.
///
/// ```
/// # mod margo { pub mod encoding { pub use hg::*; } }
/// # use hg::proc::{from_slice, to_vec};
/// use margo::encoding::Raw;
///
/// let sent = to_vec(&(7_u8, Raw(b"as it is")))?;
/// assert_eq!(sent, b"\x07as it is");
/// let (number, rest): (u8, Raw) = from_slice(&sent)?;
/// assert_eq!((number, rest.0), (7, b"as it is".to_vec()));
/// # Ok::<(), hg::ProcError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Raw<B = Vec<u8>>(pub B);

impl<B: Deref<Target = [u8]>> Deref for Bytes<B> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl<B: Deref<Target = [u8]>> Deref for Raw<B> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl<B: AsRef<[u8]>> Serialize for Bytes<B> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self.0.as_ref())
    }
}

impl<B: AsRef<[u8]>> Serialize for Raw<B> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_newtype_struct(RAW, &Bytes(self.0.as_ref()))
    }
}

/// Types that bytes can be decoded into.
///
/// ```
/// use std::sync::Arc;
///
/// use hg::Bytes;
/// use hg::proc::{FromBytes, from_slice, to_vec};
///
/// struct Shared(Arc<[u8]>);
///
/// impl FromBytes<'_> for Shared {
///     fn from_bytes(bytes: &[u8]) -> Self {
///         Self(bytes.into())
///     }
/// }
///
/// let sent = to_vec(&Bytes(b"data"))?;
/// let Bytes(Shared(received)) = from_slice(&sent)?;
/// assert_eq!(&*received, b"data");
/// # Ok::<(), hg::ProcError>(())
/// ```
pub trait FromBytes<'de> {
    /// Makes a value of bytes in the receive buffer.
    fn from_bytes(bytes: &'de [u8]) -> Self;
}

impl<'de: 'a, 'a> FromBytes<'de> for &'a [u8] {
    fn from_bytes(bytes: &'de [u8]) -> Self {
        bytes
    }
}

impl FromBytes<'_> for Vec<u8> {
    fn from_bytes(bytes: &[u8]) -> Self {
        bytes.to_vec()
    }
}

impl FromBytes<'_> for Box<[u8]> {
    fn from_bytes(bytes: &[u8]) -> Self {
        bytes.into()
    }
}

/// Takes bytes that live in the receive buffer.
struct BytesVisitor<B>(PhantomData<B>);

impl<'de, B: FromBytes<'de>> Visitor<'de> for BytesVisitor<B> {
    type Value = B;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("bytes")
    }

    fn visit_borrowed_bytes<E: de::Error>(self, bytes: &'de [u8]) -> Result<B, E> {
        Ok(B::from_bytes(bytes))
    }
}

impl<'de, B: FromBytes<'de>> Deserialize<'de> for Bytes<B> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_bytes(BytesVisitor(PhantomData)).map(Self)
    }
}

impl<'de, B: FromBytes<'de>> Deserialize<'de> for Raw<B> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_newtype_struct(RAW, BytesVisitor(PhantomData)).map(Self)
    }
}
