//! Bytes to values. The bytes come from a peer: nothing in them is believed.

use serde::de::{self, DeserializeSeed, IntoDeserializer, Visitor};

use super::{BULK, DEPTH_MAX, EMPTY_ELEMENTS_MAX};
use crate::hg::ProcError;

/// A serde deserializer over a slice.
pub(super) struct Decoder<'de> {
    bytes: &'de [u8],
    at: usize,
    depth: usize,
    /// Elements that may still be claimed beyond the bytes that are left.
    empty_elements_left: u64,
}

impl<'de> Decoder<'de> {
    pub(super) fn new(bytes: &'de [u8]) -> Self {
        Self { bytes, at: 0, depth: 0, empty_elements_left: EMPTY_ELEMENTS_MAX }
    }

    /// What has not been read.
    pub(super) fn rest(&self) -> &'de [u8] {
        &self.bytes[self.at..]
    }

    /// Adds the place to what a type's own `Deserialize` said.
    pub(super) fn located(&self, error: ProcError) -> ProcError {
        match error {
            ProcError::Custom(what) => ProcError::Invalid { at: self.at, what },
            error => error,
        }
    }

    fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    fn take(&mut self, len: u64) -> Result<&'de [u8], ProcError> {
        let end = usize::try_from(len).ok().and_then(|len| self.at.checked_add(len));
        match end.and_then(|end| self.bytes.get(self.at..end)) {
            Some(taken) => {
                self.at += taken.len();
                Ok(taken)
            }
            None => Err(ProcError::End { at: self.at, need: len, left: self.left() }),
        }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], ProcError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N as u64)?);
        Ok(array)
    }

    fn byte(&mut self) -> Result<u8, ProcError> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn u64(&mut self) -> Result<u64, ProcError> {
        self.array().map(u64::from_le_bytes)
    }

    /// A count of elements. Most take at least a byte, so a count beyond the bytes that are left
    /// and the allowance for those that do not is refused here already.
    fn count(&mut self) -> Result<u64, ProcError> {
        let at = self.at;
        let count = self.u64()?;
        let left = self.left();
        if count.saturating_sub(left as u64) > self.empty_elements_left {
            return Err(ProcError::Count { at, count, left });
        }
        Ok(count)
    }

    /// An element that began at `at` has been read. One that took no bytes draws on the allowance,
    /// or a peer could claim more of them than anyone can count.
    fn charge(&mut self, at: usize) -> Result<(), ProcError> {
        if self.at == at {
            let left = self.left();
            self.empty_elements_left = self
                .empty_elements_left
                .checked_sub(1)
                .ok_or(ProcError::Count { at, count: EMPTY_ELEMENTS_MAX + 1, left })?;
        }
        Ok(())
    }

    /// `hg_string_t`.
    fn str(&mut self) -> Result<&'de str, ProcError> {
        let at = self.at;
        let len = self.u64()?;
        // C sends NULL as a length of 0, and nothing after it.
        if len == 0 {
            return Ok("");
        }
        let bytes = self.take(len)?;
        let [is_const, is_owned] = self.array()?;
        if is_const > 1 || is_owned > 1 {
            return Err(invalid(at, "the flags after a string are not 0 or 1"));
        }
        let Some((0, text)) = bytes.split_last() else {
            return Err(invalid(at, "a string does not end with NUL"));
        };
        std::str::from_utf8(text)
            .map_err(|error| invalid(at, format!("a string is not UTF-8: {error}")))
    }

    fn nested<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, ProcError>,
    ) -> Result<T, ProcError> {
        if self.depth == DEPTH_MAX {
            return Err(ProcError::TooDeep { max: DEPTH_MAX });
        }
        self.depth += 1;
        let result = read(self);
        self.depth -= 1;
        result
    }
}

fn invalid(at: usize, what: impl Into<String>) -> ProcError {
    ProcError::Invalid { at, what: what.into() }
}

/// Fixed-width numbers.
macro_rules! numbers {
    ($($method:ident, $visit:ident: $type:ty;)+) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ProcError> {
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

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ProcError> {
        self.deserialize_any(visitor)
    }

    fn deserialize_identifier<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ProcError> {
        self.deserialize_any(visitor)
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ProcError> {
        let at = self.at;
        match self.byte()? {
            0 => visitor.visit_bool(false),
            1 => visitor.visit_bool(true),
            other => Err(invalid(at, format!("a bool is {other}, not 0 or 1"))),
        }
    }

    fn deserialize_char<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ProcError> {
        let at = self.at;
        let number = u32::from_le_bytes(self.array()?);
        match char::from_u32(number) {
            Some(c) => visitor.visit_char(c),
            None => Err(invalid(at, format!("{number:#x} is not a character"))),
        }
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ProcError> {
        visitor.visit_borrowed_str(self.str()?)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ProcError> {
        self.deserialize_str(visitor)
    }

    fn deserialize_bytes<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ProcError> {
        let len = self.u64()?;
        visitor.visit_borrowed_bytes(self.take(len)?)
    }

    fn deserialize_byte_buf<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ProcError> {
        self.deserialize_bytes(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ProcError> {
        let at = self.at;
        match self.byte()? {
            0 => visitor.visit_none(),
            1 => self.nested(|decoder| visitor.visit_some(decoder)),
            other => Err(invalid(at, format!("an option is {other}, not 0 or 1"))),
        }
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ProcError> {
        visitor.visit_unit()
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, ProcError> {
        visitor.visit_unit()
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, ProcError> {
        if name == BULK {
            let at = self.at;
            let len = self.u64()?;
            // Located here, because the visitor knows only the descriptor's own bytes.
            return visitor.visit_borrowed_bytes(self.take(len)?).map_err(|error| match error {
                ProcError::Custom(what) => invalid(at, what),
                error => error,
            });
        }
        self.nested(|decoder| visitor.visit_newtype_struct(decoder))
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ProcError> {
        let left = self.count()?;
        self.nested(|decoder| visitor.visit_seq(Members::new(decoder, left, true)))
    }

    fn deserialize_tuple<V: Visitor<'de>>(
        self,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, ProcError> {
        self.nested(|decoder| visitor.visit_seq(Members::new(decoder, len as u64, false)))
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, ProcError> {
        self.deserialize_tuple(len, visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ProcError> {
        let left = self.count()?;
        self.nested(|decoder| visitor.visit_map(Members::new(decoder, left, true)))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ProcError> {
        self.deserialize_tuple(fields.len(), visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ProcError> {
        self.nested(|decoder| visitor.visit_enum(Variant { decoder }))
    }

    fn is_human_readable(&self) -> bool {
        false
    }
}

/// The members of a compound value.
struct Members<'a, 'de> {
    decoder: &'a mut Decoder<'de>,
    left: u64,
    /// Their number came with the bytes; otherwise it is that of the type.
    counted: bool,
    /// Where the current entry of a map began.
    entry_at: usize,
}

impl<'a, 'de> Members<'a, 'de> {
    fn new(decoder: &'a mut Decoder<'de>, left: u64, counted: bool) -> Self {
        Self { decoder, left, counted, entry_at: 0 }
    }

    /// No more than there are bytes, so that nobody reserves memory for elements that cannot come.
    fn hint(&self) -> usize {
        usize::try_from(self.left).unwrap_or(usize::MAX).min(self.decoder.left())
    }

    fn charge(&mut self, at: usize) -> Result<(), ProcError> {
        if self.counted { self.decoder.charge(at) } else { Ok(()) }
    }
}

impl<'de> de::SeqAccess<'de> for Members<'_, 'de> {
    type Error = ProcError;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, ProcError> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        let at = self.decoder.at;
        let element = seed.deserialize(&mut *self.decoder)?;
        self.charge(at)?;
        Ok(Some(element))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.hint())
    }
}

impl<'de> de::MapAccess<'de> for Members<'_, 'de> {
    type Error = ProcError;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, ProcError> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        self.entry_at = self.decoder.at;
        seed.deserialize(&mut *self.decoder).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, ProcError> {
        let value = seed.deserialize(&mut *self.decoder)?;
        self.charge(self.entry_at)?;
        Ok(value)
    }

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

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Self), ProcError> {
        let index = u32::from_le_bytes(self.decoder.array()?);
        let value = seed.deserialize(IntoDeserializer::<ProcError>::into_deserializer(index))?;
        Ok((value, self))
    }
}

impl<'de> de::VariantAccess<'de> for Variant<'_, 'de> {
    type Error = ProcError;

    fn unit_variant(self) -> Result<(), ProcError> {
        Ok(())
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, ProcError> {
        seed.deserialize(self.decoder)
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, ProcError> {
        de::Deserializer::deserialize_tuple(self.decoder, len, visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ProcError> {
        de::Deserializer::deserialize_tuple(self.decoder, fields.len(), visitor)
    }
}
