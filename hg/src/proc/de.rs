//! Bytes to values. The bytes come from a peer: nothing in them is believed.

use serde::de::{self, DeserializeSeed, IntoDeserializer, Visitor};

use super::{BULK, ProcLimits, RAW};
use crate::ProcError;
use crate::proc::utf8::str_of;

/// A serde deserializer over a slice.
pub(super) struct Decoder<'de> {
    /// The bytes that have not been read.
    rest: &'de [u8],
    /// Bytes that there were.
    total: usize,
    limits: ProcLimits,
    /// Levels of nesting.
    depth: usize,
    /// Elements that may still be claimed beyond the bytes that are left.
    empty_elements_left: u64,
}

impl<'de> Decoder<'de> {
    #[inline]
    pub(super) fn new(bytes: &'de [u8], limits: ProcLimits) -> Self {
        Self {
            rest: bytes,
            total: bytes.len(),
            limits,
            depth: 0,
            empty_elements_left: limits.empty_elements_max,
        }
    }

    /// Returns the bytes that have not been read.
    #[inline]
    pub(super) fn rest(&self) -> &'de [u8] {
        self.rest
    }

    /// Adds the place to what a type's own `Deserialize` said.
    #[cold]
    pub(super) fn located(&self, error: ProcError) -> ProcError {
        match error {
            ProcError::Custom(what) => ProcError::Invalid { at: self.at(), what },
            error => error,
        }
    }

    /// Where the next byte is.
    fn at(&self) -> usize {
        self.total - self.rest.len()
    }

    #[cold]
    fn end(&self, need: u64) -> ProcError {
        ProcError::End { at: self.at(), need, left: self.rest.len() }
    }

    #[inline]
    fn take(&mut self, len: u64) -> Result<&'de [u8], ProcError> {
        match usize::try_from(len).ok().and_then(|len| self.rest.split_at_checked(len)) {
            Some((taken, rest)) => {
                self.rest = rest;
                Ok(taken)
            }
            None => Err(self.end(len)),
        }
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Result<[u8; N], ProcError> {
        match self.rest.split_first_chunk() {
            Some((array, rest)) => {
                self.rest = rest;
                Ok(*array)
            }
            None => Err(self.end(N as u64)),
        }
    }

    #[inline]
    fn byte(&mut self) -> Result<u8, ProcError> {
        self.array::<1>().map(|[byte]| byte)
    }

    #[inline]
    fn u64(&mut self) -> Result<u64, ProcError> {
        self.array().map(u64::from_le_bytes)
    }

    /// The length of a string or byte string, and as many bytes.
    #[inline]
    fn counted(&mut self) -> Result<&'de [u8], ProcError> {
        let len = self.u64()?;
        self.limits.check_len(len)?;
        self.take(len)
    }

    /// A count of elements. Most take at least a byte, so a count beyond the bytes that are left
    /// and the allowance for those that do not is refused here already.
    #[inline]
    fn count(&mut self) -> Result<u64, ProcError> {
        let count = self.u64()?;
        self.limits.check_len(count)?;
        let left = self.rest.len();
        if count.saturating_sub(left as u64) > self.empty_elements_left {
            return Err(ProcError::Count { at: self.at() - size_of::<u64>(), count, left });
        }
        Ok(count)
    }

    /// An element that began with `left` bytes left has been read. One that took no bytes draws on
    /// the allowance, or a peer could claim more of them than anyone can count.
    #[inline]
    fn charge(&mut self, left: usize) -> Result<(), ProcError> {
        if self.rest.len() == left {
            let max = self.limits.empty_elements_max;
            self.empty_elements_left =
                self.empty_elements_left.checked_sub(1).ok_or_else(|| ProcError::Count {
                    at: self.at(),
                    count: max.saturating_add(1),
                    left,
                })?;
        }
        Ok(())
    }

    /// `hg_string_t`.
    #[inline]
    fn str(&mut self) -> Result<&'de str, ProcError> {
        let bytes = self.counted()?;
        // C sends NULL as a length of 0, and nothing after it.
        let Some((nul, text)) = bytes.split_last() else { return Ok("") };
        let [is_const, is_owned] = self.array()?;
        if *nul == 0
            && is_const <= 1
            && is_owned <= 1
            && let Ok(text) = str_of(text)
        {
            return Ok(text);
        }
        Err(self.bad_str(bytes))
    }

    #[cold]
    fn bad_str(&self, bytes: &[u8]) -> ProcError {
        let at = self.at() - bytes.len() - size_of::<u64>() - 2;
        match bytes.split_last() {
            Some((0, text)) => match std::str::from_utf8(text) {
                Ok(_) => invalid(at, "the flags after a string are not 0 or 1"),
                Err(error) => invalid(at, format!("a string is not UTF-8: {error}")),
            },
            _ => invalid(at, "a string does not end with NUL"),
        }
    }

    #[inline]
    fn nested<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, ProcError>,
    ) -> Result<T, ProcError> {
        let max = self.limits.depth_max;
        if self.depth >= max {
            return Err(ProcError::TooDeep { max });
        }
        self.depth += 1;
        let value = read(self)?;
        self.depth -= 1;
        Ok(value)
    }
}

#[cold]
fn invalid(at: usize, what: impl Into<String>) -> ProcError {
    ProcError::Invalid { at, what: what.into() }
}

/// Fixed-width numbers.
macro_rules! numbers {
    ($($method:ident, $visit:ident: $type:ty;)+) => {
        $(#[inline]
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ProcError> {
            visitor.$visit(<$type>::from_le_bytes(self.array()?))
        })+
    };
}

impl<'de> de::Deserializer<'de> for &mut Decoder<'de> {
    type Error = ProcError;

    numbers! {
        deserialize_i8, visit_i8: i8;
        deserialize_i16, visit_i16: i16;
        deserialize_i32, visit_i32: i32;
        deserialize_i64, visit_i64: i64;
        deserialize_i128, visit_i128: i128;
        deserialize_u8, visit_u8: u8;
        deserialize_u16, visit_u16: u16;
        deserialize_u32, visit_u32: u32;
        deserialize_u64, visit_u64: u64;
        deserialize_u128, visit_u128: u128;
        deserialize_f32, visit_f32: f32;
        deserialize_f64, visit_f64: f64;
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, ProcError> {
        Err(ProcError::Unsupported(
            "the encoding has no type tags: a value of unknown type cannot be decoded",
        ))
    }

    serde::forward_to_deserialize_any! { ignored_any identifier }

    #[inline]
    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ProcError> {
        match self.byte()? {
            0 => visitor.visit_bool(false),
            1 => visitor.visit_bool(true),
            other => Err(invalid(self.at() - 1, format!("a bool is {other}, not 0 or 1"))),
        }
    }

    #[inline]
    fn deserialize_char<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ProcError> {
        let number = u32::from_le_bytes(self.array()?);
        match char::from_u32(number) {
            Some(c) => visitor.visit_char(c),
            None => Err(invalid(self.at() - 4, format!("{number:#x} is not a character"))),
        }
    }

    #[inline]
    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ProcError> {
        visitor.visit_borrowed_str(self.str()?)
    }

    #[inline]
    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ProcError> {
        self.deserialize_str(visitor)
    }

    #[inline]
    fn deserialize_bytes<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ProcError> {
        visitor.visit_borrowed_bytes(self.counted()?)
    }

    #[inline]
    fn deserialize_byte_buf<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ProcError> {
        self.deserialize_bytes(visitor)
    }

    #[inline]
    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ProcError> {
        match self.byte()? {
            0 => visitor.visit_none(),
            1 => self.nested(|decoder| visitor.visit_some(decoder)),
            other => Err(invalid(self.at() - 1, format!("an option is {other}, not 0 or 1"))),
        }
    }

    #[inline]
    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ProcError> {
        visitor.visit_unit()
    }

    #[inline]
    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, ProcError> {
        visitor.visit_unit()
    }

    #[inline]
    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, ProcError> {
        if name == BULK {
            let at = self.at();
            // No byte string of the caller's, so no limit of those.
            let len = self.u64()?;
            let descriptor = self.take(len)?;
            // Located here, because the visitor knows only the descriptor's own bytes.
            return visitor.visit_borrowed_bytes(descriptor).map_err(|error| match error {
                ProcError::Custom(what) => invalid(at, what),
                error => error,
            });
        }
        if name == RAW {
            return visitor.visit_borrowed_bytes(std::mem::take(&mut self.rest));
        }
        self.nested(|decoder| visitor.visit_newtype_struct(decoder))
    }

    #[inline]
    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ProcError> {
        let left = self.count()?;
        self.nested(|decoder| visitor.visit_seq(Members::<true>::new(decoder, left)))
    }

    #[inline]
    fn deserialize_tuple<V: Visitor<'de>>(
        self,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, ProcError> {
        self.nested(|decoder| visitor.visit_seq(Members::<false>::new(decoder, len as u64)))
    }

    #[inline]
    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, ProcError> {
        self.deserialize_tuple(len, visitor)
    }

    #[inline]
    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ProcError> {
        let left = self.count()?;
        self.nested(|decoder| visitor.visit_map(Members::<true>::new(decoder, left)))
    }

    #[inline]
    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ProcError> {
        self.deserialize_tuple(fields.len(), visitor)
    }

    #[inline]
    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ProcError> {
        visitor.visit_enum(Variant { decoder: self })
    }

    fn is_human_readable(&self) -> bool {
        false
    }
}

/// The members of a compound value. `COUNTED`: their number came with the bytes; otherwise it is
/// that of the type.
struct Members<'a, 'de, const COUNTED: bool> {
    decoder: &'a mut Decoder<'de>,
    left: u64,
    /// Bytes that were left when the current entry of a map began.
    entry: usize,
}

impl<'a, 'de, const COUNTED: bool> Members<'a, 'de, COUNTED> {
    #[inline]
    fn new(decoder: &'a mut Decoder<'de>, left: u64) -> Self {
        Self { decoder, left, entry: 0 }
    }

    /// No more than there are bytes, so that no memory is reserved for elements that cannot come.
    #[inline]
    fn hint(&self) -> usize {
        usize::try_from(self.left).unwrap_or(usize::MAX).min(self.decoder.rest.len())
    }
}

impl<'de, const COUNTED: bool> de::SeqAccess<'de> for Members<'_, 'de, COUNTED> {
    type Error = ProcError;

    #[inline]
    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, ProcError> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        let left = self.decoder.rest.len();
        let element = seed.deserialize(&mut *self.decoder)?;
        if COUNTED {
            self.decoder.charge(left)?;
        }
        Ok(Some(element))
    }

    #[inline]
    fn size_hint(&self) -> Option<usize> {
        Some(self.hint())
    }
}

impl<'de, const COUNTED: bool> de::MapAccess<'de> for Members<'_, 'de, COUNTED> {
    type Error = ProcError;

    #[inline]
    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, ProcError> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        self.entry = self.decoder.rest.len();
        seed.deserialize(&mut *self.decoder).map(Some)
    }

    #[inline]
    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, ProcError> {
        let value = seed.deserialize(&mut *self.decoder)?;
        self.decoder.charge(self.entry)?;
        Ok(value)
    }

    #[inline]
    fn size_hint(&self) -> Option<usize> {
        Some(self.hint())
    }
}

/// The members of an enum's variant.
struct Variant<'a, 'de> {
    decoder: &'a mut Decoder<'de>,
}

impl<'de> de::EnumAccess<'de> for Variant<'_, 'de> {
    type Error = ProcError;
    type Variant = Self;

    #[inline]
    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Self), ProcError> {
        let index = u32::from_le_bytes(self.decoder.array()?);
        let value = seed.deserialize(IntoDeserializer::<ProcError>::into_deserializer(index))?;
        Ok((value, self))
    }
}

impl<'de> de::VariantAccess<'de> for Variant<'_, 'de> {
    type Error = ProcError;

    #[inline]
    fn unit_variant(self) -> Result<(), ProcError> {
        Ok(())
    }

    #[inline]
    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, ProcError> {
        self.decoder.nested(|decoder| seed.deserialize(decoder))
    }

    #[inline]
    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, ProcError> {
        de::Deserializer::deserialize_tuple(self.decoder, len, visitor)
    }

    #[inline]
    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ProcError> {
        de::Deserializer::deserialize_tuple(self.decoder, fields.len(), visitor)
    }
}
