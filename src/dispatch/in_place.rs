//! The forms of arguments that handlers look at where they have arrived.

use hg::{Bytes, Raw};
use serde::Deserialize;

/// Arguments with a form that borrows from the receive buffer, for [`Serve::in_place`].
///
/// | arguments | their form in place |
/// |---|---|
/// | `String` | `&str` |
/// | [`Bytes`], [`Raw`] | `Bytes<&[u8]>`, `Raw<&[u8]>` |
/// | numbers, `bool`, `char`, `()` | themselves |
/// | `Option<T>`, `Vec<T>`, tuples | the same of the forms of their parts |
///
/// A type of your own has one parameter for what may be borrowed:
///
/// ```
/// use margo::DecodeInPlace;
/// use margo::encoding::Bytes;
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct Put<B = Bytes> {
///     key: B,
///     value: B,
/// }
///
/// impl DecodeInPlace for Put {
///     type InPlace<'a> = Put<Bytes<&'a [u8]>>;
/// }
/// ```
///
/// The two have to **encode alike**, as [`Rpc::sending`](crate::Rpc::sending) says it.
///
/// [`Serve::in_place`]: crate::Serve::in_place
pub trait DecodeInPlace {
    /// The form, whose parts may lie in a buffer that lives for `'a`.
    type InPlace<'a>: Deserialize<'a>;
}

impl DecodeInPlace for String {
    type InPlace<'a> = &'a str;
}

impl DecodeInPlace for Bytes {
    type InPlace<'a> = Bytes<&'a [u8]>;
}

impl DecodeInPlace for Raw {
    type InPlace<'a> = Raw<&'a [u8]>;
}

impl<T: DecodeInPlace> DecodeInPlace for Option<T> {
    type InPlace<'a> = Option<T::InPlace<'a>>;
}

impl<T: DecodeInPlace> DecodeInPlace for Vec<T> {
    type InPlace<'a> = Vec<T::InPlace<'a>>;
}

macro_rules! themselves {
    ($($type:ty)*) => {
        $(impl DecodeInPlace for $type {
            type InPlace<'a> = Self;
        })*
    };
}

themselves!(() bool char f32 f64 i8 i16 i32 i64 i128 isize u8 u16 u32 u64 u128 usize);

macro_rules! tuples {
    ($(($($part:ident)*))*) => {
        $(impl<$($part: DecodeInPlace),*> DecodeInPlace for ($($part,)*) {
            type InPlace<'a> = ($($part::InPlace<'a>,)*);
        })*
    };
}

tuples!((A)(A B)(A B C)(A B C D)(A B C D E)(A B C D E F));
