//! Strings of C's second kind.

use std::fmt;
use std::ops::Deref;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::CONST_STR;

/// A string that travels as Mercury's `hg_const_string_t`: one byte differs from `hg_string_t`.
/// Decoding accepts either kind, so only what is sent to C needs it.
///
/// `ConstStr<&str>` borrows, also when decoded.
///
/// ```
/// # mod margo { pub mod encoding { pub use hg::*; } }
/// # use hg::proc::{from_slice, to_vec};
/// use margo::encoding::ConstStr;
///
/// let sent = to_vec(&ConstStr::from("for C"))?;
/// assert_ne!(sent, to_vec("for C")?);
/// let received: String = from_slice(&sent)?; // either kind
/// assert_eq!(received, "for C");
/// # Ok::<(), hg::ProcError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ConstStr<S = String>(pub S);

impl<S: Deref<Target = str>> Deref for ConstStr<S> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl From<&str> for ConstStr {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl<S: fmt::Display> fmt::Display for ConstStr<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<S: Serialize> Serialize for ConstStr<S> {
    fn serialize<Z: Serializer>(&self, serializer: Z) -> Result<Z::Ok, Z::Error> {
        serializer.serialize_newtype_struct(CONST_STR, &self.0)
    }
}

impl<'de, S: Deserialize<'de>> Deserialize<'de> for ConstStr<S> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        S::deserialize(deserializer).map(Self)
    }
}
