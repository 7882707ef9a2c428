//! The description of a type, found by decoding values that are made up: what a type asks its
//! deserializer for is what it is made of.
//!
//! A value has one variant of each enum, so a type is decoded as often as it takes to see all of
//! them. What was found stays in the description, where [`open`] is what has not been seen.

use std::any::type_name;
use std::panic::{AssertUnwindSafe, catch_unwind};

use hg::proc;
use serde::de::value::Error;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, Error as _, IntoDeserializer,
    MapAccess, SeqAccess, VariantAccess, Visitor,
};

use crate::service::description::{FieldDescription, TypeDescription};

/// Most values that are made up for a type: one for each variant that there is in it.
const VALUES_MAX: usize = 1000;

/// Most parts of a value.
const PARTS_MAX: usize = 10_000;

/// Fewest members of one type that are told as an array.
const ARRAY_MIN: usize = 3;

/// The descriptor of a bulk handle of no memory: its length, one segment, readable, at no address,
/// of no length.
const NO_BULK: [u8; 32] = {
    let mut descriptor = [0; 32];
    descriptor[8] = 1;
    descriptor[12] = 1;
    descriptor
};

/// Describes a type.
pub(super) fn of<T: DeserializeOwned>() -> TypeDescription {
    let mut found = open();
    let mut end = "it has too many variants".to_owned();
    for _ in 0..VALUES_MAX {
        let before = found.clone();
        let mut walk = Walk { within: Vec::new(), parts_left: PARTS_MAX, has_marked: false };
        let probe = Probe { found: &mut found, walk: &mut walk };
        // It is code of users, and the value is none that they have thought of.
        let decoded = catch_unwind(AssertUnwindSafe(|| T::deserialize(probe).map(drop)));
        if !has(&found, is_open) {
            break;
        }
        match decoded {
            Err(_) => "its `Deserialize` panics".clone_into(&mut end),
            Ok(Err(error)) => end = error.to_string(),
            Ok(Ok(())) => continue,
        }
        if found == before {
            break;
        }
    }
    give_up(&mut found, &end);
    tell_arrays(&mut found);
    found
}

/// Not seen yet.
fn open() -> TypeDescription {
    TypeDescription::Unknown(String::new())
}

fn is_open(of: &TypeDescription) -> bool {
    *of == open()
}

fn is_unknown(of: &TypeDescription) -> bool {
    matches!(of, TypeDescription::Unknown(_))
}

/// Returns whether a type, or one of its parts, is so.
fn has(of: &TypeDescription, is_so: fn(&TypeDescription) -> bool) -> bool {
    is_so(of) || of.parts().into_iter().any(|part| has(part, is_so))
}

/// Says why the parts that are open will not be seen.
fn give_up(of: &mut TypeDescription, why: &str) {
    match of {
        TypeDescription::Unknown(text) if text.is_empty() => why.clone_into(text),
        of => of.parts_mut().into_iter().for_each(|part| give_up(part, why)),
    }
}

/// Members of one type are an array, which serde does not tell.
fn tell_arrays(of: &mut TypeDescription) {
    of.parts_mut().into_iter().for_each(tell_arrays);
    if let TypeDescription::Tuple(members) = of
        && members.len() >= ARRAY_MIN
        && members.iter().all(|of| *of == members[0])
    {
        let len = members.len() as u64;
        *of = TypeDescription::Array(Box::new(members.swap_remove(0)), len);
    }
}

fn fields_of(names: &[&str]) -> Vec<FieldDescription> {
    names.iter().map(|name| FieldDescription { name: (*name).to_owned(), of: open() }).collect()
}

fn not_the_same() -> Error {
    Error::custom("it decodes in another way each time")
}

/// The way to where a value is decoded.
struct Walk {
    /// The types with names that this is within.
    within: Vec<&'static str>,
    parts_left: usize,
    /// A variant was given up, so that the next value has another one.
    has_marked: bool,
}

/// A deserializer that makes a value up, and keeps what it was asked for.
struct Probe<'p> {
    found: &'p mut TypeDescription,
    walk: &'p mut Walk,
}

impl Probe<'_> {
    /// The type is that one.
    fn find(&mut self, found: TypeDescription) -> Result<(), Error> {
        let left = self.walk.parts_left.checked_sub(1);
        self.walk.parts_left = left.ok_or_else(|| Error::custom("it has too many parts"))?;
        if is_open(self.found) {
            *self.found = found;
        }
        Ok(())
    }

    /// The value is of a type of users, which must not contain itself.
    fn enter<V>(&mut self) -> Result<(), Error> {
        let name = type_name::<V>();
        if self.walk.within.contains(&name) {
            return Err(Error::custom(format_args!("`{name}` contains itself")));
        }
        self.walk.within.push(name);
        Ok(())
    }
}

/// Values of types without parts.
macro_rules! values {
    ($($method:ident, $visit:ident: $found:ident, $value:expr;)+) => {
        $(fn $method<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, Error> {
            self.find(TypeDescription::$found)?;
            visitor.$visit($value)
        })+
    };
}

impl<'de> Deserializer<'de> for Probe<'_> {
    type Error = Error;

    // Not 0, for types that are never 0.
    values! {
        deserialize_bool, visit_bool: Bool, false;
        deserialize_i8, visit_i8: I8, 1;
        deserialize_i16, visit_i16: I16, 1;
        deserialize_i32, visit_i32: I32, 1;
        deserialize_i64, visit_i64: I64, 1;
        deserialize_i128, visit_i128: I128, 1;
        deserialize_u8, visit_u8: U8, 1;
        deserialize_u16, visit_u16: U16, 1;
        deserialize_u32, visit_u32: U32, 1;
        deserialize_u64, visit_u64: U64, 1;
        deserialize_u128, visit_u128: U128, 1;
        deserialize_f32, visit_f32: F32, 1.0;
        deserialize_f64, visit_f64: F64, 1.0;
        deserialize_char, visit_char: Char, 'a';
        deserialize_str, visit_borrowed_str: String, "";
        deserialize_string, visit_borrowed_str: String, "";
        deserialize_bytes, visit_borrowed_bytes: Bytes, &[];
        deserialize_byte_buf, visit_borrowed_bytes: Bytes, &[];
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
        Err(Error::custom("it asks its bytes what they are, and they do not tell"))
    }

    serde::forward_to_deserialize_any! { ignored_any identifier }

    fn deserialize_option<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, Error> {
        self.find(TypeDescription::Option(Box::new(open())))?;
        let TypeDescription::Option(of) = self.found else { return Err(not_the_same()) };
        visitor.visit_some(Probe { found: of, walk: self.walk })
    }

    fn deserialize_unit<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, Error> {
        self.find(TypeDescription::Unit)?;
        visitor.visit_unit()
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.deserialize_unit(visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        mut self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        match name {
            proc::BULK => {
                self.find(TypeDescription::Bulk)?;
                visitor.visit_borrowed_bytes(&NO_BULK)
            }
            proc::RAW => {
                self.find(TypeDescription::Raw)?;
                visitor.visit_borrowed_bytes(&[])
            }
            _ => {
                self.enter::<V::Value>()?;
                let Self { found, walk } = self;
                let value = visitor.visit_newtype_struct(Probe { found, walk })?;
                walk.within.pop();
                Ok(value)
            }
        }
    }

    fn deserialize_seq<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, Error> {
        self.find(TypeDescription::Seq(Box::new(open())))?;
        let TypeDescription::Seq(of) = self.found else { return Err(not_the_same()) };
        visitor.visit_seq(Members { found: vec![&mut **of].into_iter(), walk: self.walk })
    }

    fn deserialize_tuple<V: Visitor<'de>>(
        mut self,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, Error> {
        if len > self.walk.parts_left {
            return Err(Error::custom("it has too many parts"));
        }
        self.find(TypeDescription::Tuple(vec![open(); len]))?;
        let TypeDescription::Tuple(of) = self.found else { return Err(not_the_same()) };
        let found: Vec<_> = of.iter_mut().collect();
        visitor.visit_seq(Members { found: found.into_iter(), walk: self.walk })
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        mut self,
        _name: &'static str,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.enter::<V::Value>()?;
        let Self { found, walk } = self;
        let value = Probe { found, walk: &mut *walk }.deserialize_tuple(len, visitor)?;
        walk.within.pop();
        Ok(value)
    }

    fn deserialize_map<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, Error> {
        self.find(TypeDescription::Map(Box::new((open(), open()))))?;
        let TypeDescription::Map(of) = self.found else { return Err(not_the_same()) };
        let (key, value) = &mut **of;
        visitor.visit_map(Members { found: vec![key, value].into_iter(), walk: self.walk })
    }

    fn deserialize_struct<V: Visitor<'de>>(
        mut self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.enter::<V::Value>()?;
        let (name, fields) = (name.to_owned(), fields_of(fields));
        self.find(TypeDescription::Struct { name, fields })?;
        let Self { found, walk } = self;
        let TypeDescription::Struct { fields, .. } = found else { return Err(not_the_same()) };
        let found: Vec<_> = fields.iter_mut().map(|field| &mut field.of).collect();
        let value = visitor.visit_seq(Members { found: found.into_iter(), walk: &mut *walk })?;
        walk.within.pop();
        Ok(value)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        mut self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.enter::<V::Value>()?;
        let (name, variants) = (name.to_owned(), fields_of(variants));
        self.find(TypeDescription::Enum { name, variants })?;
        let Self { found, walk } = self;
        let TypeDescription::Enum { variants, .. } = found else { return Err(not_the_same()) };
        // One that was not seen, or at least one that can be decoded.
        let unseen = variants.iter().position(|variant| has(&variant.of, is_open));
        let known = || variants.iter().position(|variant| !has(&variant.of, is_unknown));
        let index = unseen.or_else(known).unwrap_or_default();
        let Some(variant) = variants.get_mut(index) else {
            return Err(Error::custom("it has no variants"));
        };
        let number = u32::try_from(index).map_err(Error::custom)?;
        let chosen = Variant { number, found: &mut variant.of, walk: &mut *walk };
        let decoded = visitor.visit_enum(chosen);
        if let Err(error) = &decoded
            && !std::mem::replace(&mut walk.has_marked, true)
        {
            give_up(&mut variant.of, &error.to_string());
        }
        walk.within.pop();
        decoded
    }

    fn is_human_readable(&self) -> bool {
        false
    }
}

/// The members of a value: each once.
struct Members<'p> {
    found: std::vec::IntoIter<&'p mut TypeDescription>,
    walk: &'p mut Walk,
}

impl Members<'_> {
    fn next<'de, S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Error> {
        let Some(found) = self.found.next() else { return Ok(None) };
        seed.deserialize(Probe { found, walk: self.walk }).map(Some)
    }
}

impl<'de> SeqAccess<'de> for Members<'_> {
    type Error = Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Error> {
        self.next(seed)
    }
}

impl<'de> MapAccess<'de> for Members<'_> {
    type Error = Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Error> {
        self.next(seed)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Error> {
        self.next(seed)?.ok_or_else(not_the_same)
    }
}

/// A variant of an enum, and its value.
struct Variant<'p> {
    number: u32,
    found: &'p mut TypeDescription,
    walk: &'p mut Walk,
}

impl<'de, 'p> EnumAccess<'de> for Variant<'p> {
    type Error = Error;
    type Variant = Probe<'p>;

    fn variant_seed<S: DeserializeSeed<'de>>(
        self,
        seed: S,
    ) -> Result<(S::Value, Probe<'p>), Error> {
        let number = IntoDeserializer::<Error>::into_deserializer(self.number);
        let value = seed.deserialize(number)?;
        Ok((value, Probe { found: self.found, walk: self.walk }))
    }
}

impl<'de> VariantAccess<'de> for Probe<'_> {
    type Error = Error;

    fn unit_variant(mut self) -> Result<(), Error> {
        self.find(TypeDescription::Unit)
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, Error> {
        seed.deserialize(self)
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_tuple(len, visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        mut self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        // Its type has been entered, and its name is that of the variant.
        let (name, fields) = (String::new(), fields_of(fields));
        self.find(TypeDescription::Struct { name, fields })?;
        let TypeDescription::Struct { fields, .. } = self.found else { return Err(not_the_same()) };
        let found: Vec<_> = fields.iter_mut().map(|field| &mut field.of).collect();
        visitor.visit_seq(Members { found: found.into_iter(), walk: self.walk })
    }
}
