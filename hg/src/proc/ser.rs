//! Values to bytes.

use serde::ser::{self, Serialize};

use super::descriptor as desc;
use super::{BULK, CONST_STR, ProcLimits, RAW, Writer};
use crate::ProcError;

/// A serde serializer over a [`Writer`].
pub(super) struct Encoder<'w> {
    writer: &'w mut Writer,
    /// Levels of nesting.
    depth: usize,
    /// Elements that took no bytes, in all sequences and maps so far.
    empty_elements: u64,
    special: Special,
}

/// The rule that the innermost reserved newtype sets for the value that comes next.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Special {
    None,
    /// The next string is a `hg_const_string_t`.
    ConstStr,
    /// The next bytes have no length before them.
    Raw,
    /// The next bytes are the plain descriptor of a bulk handle.
    Descriptor,
    /// The next bytes are the data of a bulk handle, written if `embed` says so; its descriptor
    /// begins at `start`.
    BulkData {
        start: usize,
        embed: bool,
    },
}

impl<'w> Encoder<'w> {
    #[inline]
    pub(super) fn new(writer: &'w mut Writer) -> Self {
        Self { writer, depth: 0, empty_elements: 0, special: Special::None }
    }

    #[inline]
    fn put_u64(&mut self, value: u64) -> Result<(), ProcError> {
        self.writer.put_array(value.to_le_bytes())
    }

    #[inline]
    fn enter(&mut self) -> Result<(), ProcError> {
        let max = self.limits().depth_max;
        if self.depth >= max {
            return Err(ProcError::TooDeep { max });
        }
        self.depth += 1;
        Ok(())
    }

    #[inline]
    fn leave(&mut self) {
        self.depth -= 1;
    }

    #[inline]
    fn limits(&self) -> &ProcLimits {
        self.writer.proc_limits()
    }

    #[inline]
    fn nested<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), ProcError> {
        self.enter()?;
        value.serialize(&mut *self)?;
        self.leave();
        Ok(())
    }

    /// The members of a compound value follow.
    #[inline]
    fn compound(&mut self) -> Result<&mut Self, ProcError> {
        self.enter()?;
        Ok(self)
    }

    /// The plain descriptor of a bulk handle, behind its length.
    fn put_descriptor(&mut self, descriptor: &[u8]) -> Result<(), ProcError> {
        self.put_u64(descriptor.len() as u64)?;
        let start = self.writer.len();
        self.writer.put(descriptor)?;
        let data = desc::embeddable(descriptor);
        let embed = data.is_some_and(|bytes| self.writer.may_embed(bytes));
        self.special = Special::BulkData { start, embed };
        Ok(())
    }

    /// Turns the descriptor that was just written into its eager form.
    fn put_bulk_data(&mut self, start: usize, data: &[u8]) -> Result<(), ProcError> {
        self.writer.put(data)?;
        let len = (self.writer.len() - start) as u64;
        self.writer.patch(start - size_of::<u64>(), &len.to_le_bytes());
        let flags_at = start + desc::FLAGS_AT;
        let flags = self.writer.byte(flags_at) | desc::flags::EAGER as u8;
        self.writer.patch(flags_at, &[flags]);
        Ok(())
    }

    fn begin(&mut self, count: Option<usize>) -> Result<Elements<'_, 'w>, ProcError> {
        self.enter()?;
        let at = self.writer.len();
        let declared = count.unwrap_or(0) as u64;
        self.limits().check_len(declared)?;
        self.put_u64(declared)?;
        Ok(Elements { encoder: self, at, declared, count: 0, entry_at: 0 })
    }
}

/// Fixed-width numbers.
macro_rules! numbers {
    ($($method:ident: $type:ty),+ $(,)?) => {
        $(#[inline]
        fn $method(self, value: $type) -> Result<(), ProcError> {
            self.writer.put_array(value.to_le_bytes())
        })+
    };
}

impl<'a, 'w> ser::Serializer for &'a mut Encoder<'w> {
    type Ok = ();
    type Error = ProcError;
    type SerializeSeq = Elements<'a, 'w>;
    type SerializeTuple = Self;
    type SerializeTupleStruct = Self;
    type SerializeTupleVariant = Self;
    type SerializeMap = Elements<'a, 'w>;
    type SerializeStruct = Self;
    type SerializeStructVariant = Self;

    numbers! {
        serialize_i8: i8, serialize_i16: i16, serialize_i32: i32, serialize_i64: i64,
        serialize_i128: i128, serialize_u8: u8, serialize_u16: u16, serialize_u32: u32,
        serialize_u64: u64, serialize_u128: u128, serialize_f32: f32, serialize_f64: f64,
    }

    #[inline]
    fn serialize_bool(self, value: bool) -> Result<(), ProcError> {
        self.writer.put_array([u8::from(value)])
    }

    fn serialize_char(self, value: char) -> Result<(), ProcError> {
        self.writer.put_array(u32::from(value).to_le_bytes())
    }

    #[inline]
    fn serialize_str(self, value: &str) -> Result<(), ProcError> {
        let is_const = self.special == Special::ConstStr;
        self.limits().check_len(value.len() as u64 + 1)?;
        self.writer.put_str(value, is_const)
    }

    #[inline]
    fn serialize_bytes(self, value: &[u8]) -> Result<(), ProcError> {
        match self.special {
            Special::Descriptor => self.put_descriptor(value),
            Special::BulkData { start, .. } => self.put_bulk_data(start, value),
            Special::Raw => self.writer.put(value),
            Special::None | Special::ConstStr => {
                self.limits().check_len(value.len() as u64)?;
                self.writer.put_counted(value)
            }
        }
    }

    #[inline]
    fn serialize_none(self) -> Result<(), ProcError> {
        self.writer.put_array([0])
    }

    #[inline]
    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), ProcError> {
        self.writer.put_array([1])?;
        self.nested(value)
    }

    #[inline]
    fn serialize_unit(self) -> Result<(), ProcError> {
        Ok(())
    }

    #[inline]
    fn serialize_unit_struct(self, _name: &'static str) -> Result<(), ProcError> {
        Ok(())
    }

    #[inline]
    fn serialize_unit_variant(
        self,
        _name: &'static str,
        index: u32,
        _variant: &'static str,
    ) -> Result<(), ProcError> {
        self.writer.put_array(index.to_le_bytes())
    }

    #[inline]
    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        value: &T,
    ) -> Result<(), ProcError> {
        let outer = self.special;
        self.special = match name {
            CONST_STR => Special::ConstStr,
            BULK => Special::Descriptor,
            RAW => Special::Raw,
            _ => Special::None,
        };
        let result = self.nested(value);
        self.special = outer;
        result
    }

    #[inline]
    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _name: &'static str,
        index: u32,
        _variant: &'static str,
        value: &T,
    ) -> Result<(), ProcError> {
        self.writer.put_array(index.to_le_bytes())?;
        self.nested(value)
    }

    #[inline]
    fn serialize_seq(self, len: Option<usize>) -> Result<Self::SerializeSeq, ProcError> {
        self.begin(len)
    }

    #[inline]
    fn serialize_tuple(self, _len: usize) -> Result<Self, ProcError> {
        self.compound()
    }

    #[inline]
    fn serialize_tuple_struct(self, _name: &'static str, _len: usize) -> Result<Self, ProcError> {
        self.compound()
    }

    #[inline]
    fn serialize_tuple_variant(
        self,
        _name: &'static str,
        index: u32,
        _variant: &'static str,
        _len: usize,
    ) -> Result<Self, ProcError> {
        self.writer.put_array(index.to_le_bytes())?;
        self.compound()
    }

    #[inline]
    fn serialize_map(self, len: Option<usize>) -> Result<Self::SerializeMap, ProcError> {
        self.begin(len)
    }

    #[inline]
    fn serialize_struct(self, _name: &'static str, _len: usize) -> Result<Self, ProcError> {
        self.compound()
    }

    #[inline]
    fn serialize_struct_variant(
        self,
        _name: &'static str,
        index: u32,
        _variant: &'static str,
        _len: usize,
    ) -> Result<Self, ProcError> {
        self.writer.put_array(index.to_le_bytes())?;
        self.compound()
    }

    fn is_human_readable(&self) -> bool {
        false
    }
}

impl ser::SerializeTuple for &mut Encoder<'_> {
    type Ok = ();
    type Error = ProcError;

    #[inline]
    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), ProcError> {
        if matches!(self.special, Special::BulkData { embed: false, .. }) {
            return Ok(());
        }
        value.serialize(&mut **self)
    }

    #[inline]
    fn end(self) -> Result<(), ProcError> {
        self.leave();
        Ok(())
    }
}

/// The members of structs and variants, one after the other.
macro_rules! members {
    ($($trait:ident($($key:ty)?);)+) => {
        $(impl ser::$trait for &mut Encoder<'_> {
            type Ok = ();
            type Error = ProcError;

            #[inline]
            fn serialize_field<T: Serialize + ?Sized>(
                &mut self,
                $(_key: $key,)?
                value: &T,
            ) -> Result<(), ProcError> {
                value.serialize(&mut **self)
            }

            #[inline]
            fn end(self) -> Result<(), ProcError> {
                self.leave();
                Ok(())
            }
        })+
    };
}

members! {
    SerializeTupleStruct();
    SerializeTupleVariant();
    SerializeStruct(&'static str);
    SerializeStructVariant(&'static str);
}

/// A sequence or map. Its count is corrected at the end if it was not known at the beginning.
pub(super) struct Elements<'a, 'w> {
    encoder: &'a mut Encoder<'w>,
    /// Where the count stands.
    at: usize,
    declared: u64,
    count: u64,
    /// Where the current element begins.
    entry_at: usize,
}

impl Elements<'_, '_> {
    #[inline]
    fn begin_entry(&mut self) {
        self.count += 1;
        self.entry_at = self.encoder.writer.len();
    }

    #[inline]
    fn end_entry(&mut self) -> Result<(), ProcError> {
        if self.encoder.writer.len() == self.entry_at {
            self.encoder.empty_elements += 1;
            if self.encoder.empty_elements > self.encoder.limits().empty_elements_max {
                return Err(ProcError::Unsupported(
                    "so many elements that take no bytes cannot be encoded; send their number",
                ));
            }
        }
        Ok(())
    }

    fn finish(self) -> Result<(), ProcError> {
        self.encoder.leave();
        if self.count != self.declared {
            self.encoder.limits().check_len(self.count)?;
            self.encoder.writer.patch(self.at, &self.count.to_le_bytes());
        }
        Ok(())
    }
}

impl ser::SerializeSeq for Elements<'_, '_> {
    type Ok = ();
    type Error = ProcError;

    #[inline]
    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), ProcError> {
        self.begin_entry();
        value.serialize(&mut *self.encoder)?;
        self.end_entry()
    }

    fn end(self) -> Result<(), ProcError> {
        self.finish()
    }
}

impl ser::SerializeMap for Elements<'_, '_> {
    type Ok = ();
    type Error = ProcError;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), ProcError> {
        self.begin_entry();
        key.serialize(&mut *self.encoder)
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), ProcError> {
        value.serialize(&mut *self.encoder)?;
        self.end_entry()
    }

    fn end(self) -> Result<(), ProcError> {
        self.finish()
    }
}
