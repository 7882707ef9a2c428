//! Values as JSON, encoded and decoded by the description of their type.
//!
//! | type | JSON |
//! |---|---|
//! | numbers, `bool`, text, `char` | the same; numbers of 128 bits may be text |
//! | bytes | text, for its bytes; an array of numbers; `{"hex": "00ff"}` |
//! | `()` | `null` |
//! | `Option` | `null`, or the value |
//! | sequences, tuples, arrays | an array |
//! | maps | an object if keys are text, or else an array of `[key, value]` |
//! | structs | an object with all fields; those that are options may be left out |
//! | enums | the name of a variant, or `{"name": value}` |

use std::fmt;

use hg::{ProcError, Raw, proc};
use serde::de::{DeserializeSeed, Deserializer, EnumAccess, MapAccess, SeqAccess};
use serde::de::{Error as _, VariantAccess, Visitor};
use serde::ser::{Error as _, SerializeMap, SerializeSeq, SerializeTuple};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value, json};

use crate::service::description::{FieldDescription, MethodDescription, TypeDescription};

/// Longest array that is decoded: its length is in the description, which somebody else has made.
const ARRAY_MAX: u64 = 1 << 16;

impl MethodDescription {
    /// Encodes arguments, an object with each of them by its name, as the RPC takes them: send them
    /// as [`Raw`].
    ///
    /// ```
    /// use margo::service::MethodDescription;
    /// use margo::{Instance, ProviderHandle, encoding::Raw, Rpc};
    ///
    /// const SUM: Rpc<(i64, i64), i64> = Rpc::new("sum");
    ///
    /// let service = Instance::builder("na+sm://").start()?;
    /// service.serve(SUM).function(|(a, b)| a + b)?;
    ///
    /// // Elsewhere, from a description that somebody has sent.
    /// let sum = MethodDescription::of(SUM, &["a", "b"]);
    /// let args = sum.encode(&serde_json::json!({ "a": 40, "b": 2 }))?;
    /// let rpc: Rpc<Raw, Raw> = Rpc::new("sum");
    /// let answer = service.forward(rpc, &ProviderHandle::from(service.self_addr()), &Raw(args))?;
    /// assert_eq!(sum.decode(&answer.0)?, 42);
    /// # service.finalize_and_wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ProcError::Custom`] with the place, the type, and what was there instead; so is a type
    /// that cannot be described.
    pub fn encode(&self, arguments: &Value) -> Result<Vec<u8>, ProcError> {
        let root = Place { within: None, name: "" };
        proc::to_vec(&Fields { fields: &self.arguments, value: arguments, place: &root })
    }

    /// Decodes a result; `null` if there is none.
    ///
    /// # Errors
    ///
    /// [`ProcError`]: the bytes are not what the description says.
    pub fn decode(&self, result: &[u8]) -> Result<Value, ProcError> {
        match &self.result {
            None => Ok(Value::Null),
            Some(of) => proc::from_slice_seed(result, Typed(of)),
        }
    }
}

/// Where in the arguments something stands.
struct Place<'p> {
    within: Option<&'p Self>,
    name: &'p str,
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.within {
            None => f.write_str(self.name),
            Some(outer) if outer.name.is_empty() => f.write_str(self.name),
            Some(outer) => write!(f, "{outer}.{}", self.name),
        }
    }
}

/// A value, to be encoded as that type.
struct OfType<'p> {
    of: &'p TypeDescription,
    value: &'p Value,
    place: &'p Place<'p>,
}

/// An object, to be encoded as its fields.
struct Fields<'p> {
    fields: &'p [FieldDescription],
    value: &'p Value,
    place: &'p Place<'p>,
}

/// An element.
struct Nested<'p> {
    of: &'p TypeDescription,
    value: &'p Value,
    name: &'p str,
    within: &'p Place<'p>,
}

impl Serialize for Nested<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let place = Place { within: Some(self.within), name: self.name };
        OfType { of: self.of, value: self.value, place: &place }.serialize(serializer)
    }
}

impl Serialize for Fields<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { fields, value, place } = self;
        let at = if place.name.is_empty() { String::new() } else { format!("{place}: ") };
        let nothing = Map::new();
        let object = match value {
            Value::Object(object) => object,
            Value::Null if fields.is_empty() => &nothing,
            other => {
                return Err(S::Error::custom(format_args!("{at}{other} is no object")));
            }
        };
        let names = || fields.iter().map(|field| format!("`{}`", field.name)).collect::<Vec<_>>();
        if let Some(key) = object.keys().find(|key| !fields.iter().any(|own| own.name == **key)) {
            let names = names().join(", ");
            let text = format!("{at}there is no `{key}`; there are: {names}");
            return Err(S::Error::custom(text));
        }
        let mut members = serializer.serialize_tuple(fields.len())?;
        for FieldDescription { name, of } in *fields {
            let value = match (object.get(name), of) {
                (Some(value), _) => value,
                (None, TypeDescription::Option(_)) => &Value::Null,
                (None, _) => {
                    return Err(S::Error::custom(format_args!("{at}`{name}: {of}` is missing")));
                }
            };
            members.serialize_element(&Nested { of, value, name, within: place })?;
        }
        members.end()
    }
}

impl OfType<'_> {
    fn wrong<E: serde::ser::Error>(&self) -> E {
        let Self { of, value, place } = self;
        E::custom(format_args!("{place}: {value} is no {of}"))
    }

    fn whole<S: Serializer, N: TryFrom<i128>>(
        &self,
        serialize: impl FnOnce(N) -> Result<S::Ok, S::Error>,
    ) -> Result<S::Ok, S::Error> {
        let number = match self.value {
            Value::String(text) => text.parse().ok(),
            value => value.as_i64().map(i128::from).or_else(|| value.as_u64().map(i128::from)),
        };
        serialize(number.and_then(|number| N::try_from(number).ok()).ok_or_else(|| self.wrong())?)
    }

    fn text<E: serde::ser::Error>(&self) -> Result<&str, E> {
        self.value.as_str().ok_or_else(|| self.wrong())
    }

    fn elements<E: serde::ser::Error>(&self, len: Option<usize>) -> Result<&Vec<Value>, E> {
        let elements = self.value.as_array().ok_or_else(|| self.wrong())?;
        match len {
            Some(len) if len != elements.len() => Err(self.wrong()),
            _ => Ok(elements),
        }
    }

    fn bytes<E: serde::ser::Error>(&self) -> Result<Vec<u8>, E> {
        let number = |value: &Value| u8::try_from(value.as_u64()?).ok();
        let bytes = match self.value {
            Value::String(text) => Some(text.clone().into_bytes()),
            Value::Array(numbers) => numbers.iter().map(number).collect(),
            Value::Object(object) if object.len() == 1 => {
                object.get("hex").and_then(Value::as_str).and_then(of_hex)
            }
            _ => None,
        };
        bytes.ok_or_else(|| self.wrong())
    }

    fn members<S: Serializer>(
        &self,
        serializer: S,
        types: &[&TypeDescription],
    ) -> Result<S::Ok, S::Error> {
        let values = self.elements(Some(types.len()))?;
        let mut members = serializer.serialize_tuple(values.len())?;
        for (index, (value, of)) in values.iter().zip(types).enumerate() {
            let name = &*index.to_string();
            members.serialize_element(&Nested { of, value, name, within: self.place })?;
        }
        members.end()
    }

    fn map<S: Serializer>(
        &self,
        serializer: S,
        of: &(TypeDescription, TypeDescription),
    ) -> Result<S::Ok, S::Error> {
        let pair = |pair: &Value| match pair.as_array().map(Vec::as_slice) {
            Some([key, value]) => Some((key.clone(), value.clone())),
            _ => None,
        };
        let pairs: Option<Vec<_>> = match self.value {
            Value::Object(object) => {
                let pair = |(key, value): (&String, &Value)| (json!(key), value.clone());
                Some(object.iter().map(pair).collect())
            }
            Value::Array(pairs) => pairs.iter().map(pair).collect(),
            _ => None,
        };
        let pairs = pairs.ok_or_else(|| self.wrong())?;
        let mut map = serializer.serialize_map(Some(pairs.len()))?;
        for (key, value) in &pairs {
            let name = &*key.to_string();
            let key = Nested { of: &of.0, value: key, name, within: self.place };
            map.serialize_entry(&key, &Nested { of: &of.1, value, name, within: self.place })?;
        }
        map.end()
    }

    fn variant<S: Serializer>(
        &self,
        serializer: S,
        variants: &[FieldDescription],
    ) -> Result<S::Ok, S::Error> {
        let (name, value) = match self.value {
            Value::String(name) => (name, &Value::Null),
            Value::Object(object) if object.len() == 1 => {
                object.iter().next().ok_or_else(|| self.wrong())?
            }
            _ => return Err(self.wrong()),
        };
        let Some(index) = variants.iter().position(|variant| variant.name == *name) else {
            let names: Vec<_> = variants.iter().map(|own| format!("`{}`", own.name)).collect();
            let (place, of, names) = (self.place, self.of, names.join(", "));
            let text = format!("{place}: {of} has no `{name}`; it has: {names}");
            return Err(S::Error::custom(text));
        };
        let number = u32::try_from(index).map_err(S::Error::custom)?;
        let value = Nested { of: &variants[index].of, value, name, within: self.place };
        serializer.serialize_newtype_variant("", number, "", &value)
    }
}

impl Serialize for OfType<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { of, value, place } = *self;
        match of {
            TypeDescription::Bool => {
                serializer.serialize_bool(value.as_bool().ok_or_else(|| self.wrong())?)
            }
            TypeDescription::I8 => self.whole::<S, _>(|n| serializer.serialize_i8(n)),
            TypeDescription::I16 => self.whole::<S, _>(|n| serializer.serialize_i16(n)),
            TypeDescription::I32 => self.whole::<S, _>(|n| serializer.serialize_i32(n)),
            TypeDescription::I64 => self.whole::<S, _>(|n| serializer.serialize_i64(n)),
            TypeDescription::I128 => self.whole::<S, _>(|n| serializer.serialize_i128(n)),
            TypeDescription::U8 => self.whole::<S, _>(|n| serializer.serialize_u8(n)),
            TypeDescription::U16 => self.whole::<S, _>(|n| serializer.serialize_u16(n)),
            TypeDescription::U32 => self.whole::<S, _>(|n| serializer.serialize_u32(n)),
            TypeDescription::U64 => self.whole::<S, _>(|n| serializer.serialize_u64(n)),
            TypeDescription::U128 => match value.as_str().and_then(|text| text.parse().ok()) {
                Some(number) => serializer.serialize_u128(number),
                None => self.whole::<S, _>(|n| serializer.serialize_u128(n)),
            },
            TypeDescription::F32 => {
                #[expect(clippy::cast_possible_truncation, reason = "as a literal of an f32 is")]
                let number = value.as_f64().ok_or_else(|| self.wrong())? as f32;
                serializer.serialize_f32(number)
            }
            TypeDescription::F64 => {
                serializer.serialize_f64(value.as_f64().ok_or_else(|| self.wrong())?)
            }
            TypeDescription::Char => match self.text()?.parse() {
                Ok(one) => serializer.serialize_char(one),
                Err(_) => Err(self.wrong()),
            },
            TypeDescription::String => serializer.serialize_str(self.text()?),
            TypeDescription::Bytes => serializer.serialize_bytes(&self.bytes()?),
            TypeDescription::Raw => Raw(self.bytes()?).serialize(serializer),
            TypeDescription::Unit if value.is_null() => serializer.serialize_unit(),
            TypeDescription::Unit => Err(self.wrong()),
            TypeDescription::Option(_) if value.is_null() => serializer.serialize_none(),
            TypeDescription::Option(of) => serializer.serialize_some(&OfType { of, value, place }),
            TypeDescription::Seq(of) => {
                let elements = self.elements(None)?;
                let mut seq = serializer.serialize_seq(Some(elements.len()))?;
                for (index, value) in elements.iter().enumerate() {
                    let name = &*index.to_string();
                    seq.serialize_element(&Nested { of, value, name, within: place })?;
                }
                seq.end()
            }
            TypeDescription::Map(of) => self.map(serializer, of),
            TypeDescription::Tuple(of) => self.members(serializer, &of.iter().collect::<Vec<_>>()),
            TypeDescription::Array(of, len) => {
                let elements: &Vec<Value> = self.elements(None)?;
                if elements.len() as u64 != *len {
                    return Err(self.wrong());
                }
                self.members(serializer, &vec![&**of; elements.len()])
            }
            TypeDescription::Struct { fields, .. } => {
                Fields { fields, value, place }.serialize(serializer)
            }
            TypeDescription::Enum { variants, .. } => self.variant(serializer, variants),
            TypeDescription::Bulk => {
                let text = "a bulk handle is of memory that a program exposes";
                Err(S::Error::custom(format_args!("{place}: {text}")))
            }
            TypeDescription::Unknown(why) => {
                let text = "the type of it cannot be described";
                Err(S::Error::custom(format_args!("{place}: {text}: {why}")))
            }
        }
    }
}

fn of_hex(text: &str) -> Option<Vec<u8>> {
    let pairs = text.as_bytes().chunks(2);
    let digits = |pair: &[u8]| {
        let both = pair.len() == 2 && pair.iter().all(u8::is_ascii_hexdigit);
        let text = std::str::from_utf8(pair).ok().filter(|_| both)?;
        u8::from_str_radix(text, 16).ok()
    };
    pairs.map(digits).collect()
}

fn to_json(bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.contains(char::is_control) => json!(text),
        _ => json!({ "hex": bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>() }),
    }
}

/// A value of that type, to be decoded as JSON.
#[derive(Clone, Copy)]
struct Typed<'t>(&'t TypeDescription);

impl<'de> DeserializeSeed<'de> for Typed<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
        match self.0 {
            TypeDescription::Bool => from.deserialize_bool(self),
            TypeDescription::I8 => from.deserialize_i8(self),
            TypeDescription::I16 => from.deserialize_i16(self),
            TypeDescription::I32 => from.deserialize_i32(self),
            TypeDescription::I64 => from.deserialize_i64(self),
            TypeDescription::I128 => from.deserialize_i128(self),
            TypeDescription::U8 => from.deserialize_u8(self),
            TypeDescription::U16 => from.deserialize_u16(self),
            TypeDescription::U32 => from.deserialize_u32(self),
            TypeDescription::U64 => from.deserialize_u64(self),
            TypeDescription::U128 => from.deserialize_u128(self),
            TypeDescription::F32 => from.deserialize_f32(self),
            TypeDescription::F64 => from.deserialize_f64(self),
            TypeDescription::Char => from.deserialize_char(self),
            TypeDescription::String => from.deserialize_str(self),
            TypeDescription::Bytes => from.deserialize_bytes(self),
            TypeDescription::Raw => Raw::<Vec<u8>>::deserialize(from).map(|raw| to_json(&raw)),
            TypeDescription::Unit => from.deserialize_unit(self),
            TypeDescription::Option(_) => from.deserialize_option(self),
            TypeDescription::Seq(_) => from.deserialize_seq(self),
            TypeDescription::Map(_) => from.deserialize_map(self),
            TypeDescription::Tuple(of) => from.deserialize_tuple(of.len(), self),
            TypeDescription::Array(_, len) => match usize::try_from(*len) {
                Ok(size) if *len <= ARRAY_MAX => from.deserialize_tuple(size, self),
                _ => Err(D::Error::custom(format_args!("an array of {len} elements"))),
            },
            TypeDescription::Struct { fields, .. } => from.deserialize_tuple(fields.len(), self),
            TypeDescription::Enum { .. } => from.deserialize_enum("", &[], self),
            TypeDescription::Bulk => Err(D::Error::custom("a bulk handle has no JSON")),
            TypeDescription::Unknown(why) => {
                Err(D::Error::custom(format_args!("its type cannot be described: {why}")))
            }
        }
    }
}

/// Visits of values that JSON has.
macro_rules! visits {
    ($($method:ident: $type:ty),+ $(,)?) => {
        $(fn $method<E: serde::de::Error>(self, value: $type) -> Result<Value, E> {
            Ok(json!(value))
        })+
    };
}

impl<'de> Visitor<'de> for Typed<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }

    visits! {
        visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_f32: f32, visit_f64: f64,
        visit_str: &str,
    }

    fn visit_i128<E: serde::de::Error>(self, value: i128) -> Result<Value, E> {
        Ok(i64::try_from(value).map_or_else(|_| json!(value.to_string()), |value| json!(value)))
    }

    fn visit_u128<E: serde::de::Error>(self, value: u128) -> Result<Value, E> {
        Ok(u64::try_from(value).map_or_else(|_| json!(value.to_string()), |value| json!(value)))
    }

    fn visit_bytes<E: serde::de::Error>(self, value: &[u8]) -> Result<Value, E> {
        Ok(to_json(value))
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E: serde::de::Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
        match self.0 {
            TypeDescription::Option(of) => Typed(of).deserialize(from),
            _ => Err(D::Error::custom("no option")),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Value, A::Error> {
        if let TypeDescription::Struct { fields, .. } = self.0 {
            let mut object = Map::new();
            for FieldDescription { name, of } in fields {
                let value = from.next_element_seed(Typed(of))?;
                object.insert(name.clone(), value.unwrap_or_default());
            }
            return Ok(Value::Object(object));
        }
        let mut all = Vec::new();
        loop {
            let of = match self.0 {
                TypeDescription::Seq(of) | TypeDescription::Array(of, _) => Some(&**of),
                TypeDescription::Tuple(of) => of.get(all.len()),
                _ => None,
            };
            let Some(of) = of else { break };
            let Some(value) = from.next_element_seed(Typed(of))? else { break };
            all.push(value);
        }
        Ok(Value::Array(all))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Value, A::Error> {
        let TypeDescription::Map(of) = self.0 else { return Err(A::Error::custom("no map")) };
        let mut pairs = Vec::new();
        while let Some(key) = from.next_key_seed(Typed(&of.0))? {
            pairs.push((key, from.next_value_seed(Typed(&of.1))?));
        }
        Ok(match of.0 {
            TypeDescription::String => {
                let text = |key: Value| key.as_str().map(str::to_owned).unwrap_or_default();
                Value::Object(pairs.into_iter().map(|(key, value)| (text(key), value)).collect())
            }
            _ => pairs.into_iter().map(|(key, value)| json!([key, value])).collect(),
        })
    }

    fn visit_enum<A: EnumAccess<'de>>(self, from: A) -> Result<Value, A::Error> {
        let TypeDescription::Enum { name, variants } = self.0 else {
            return Err(A::Error::custom("no enum"));
        };
        let (number, value) = from.variant::<u32>()?;
        let Some(variant) = usize::try_from(number).ok().and_then(|index| variants.get(index))
        else {
            return Err(A::Error::custom(format_args!("`{name}` has no variant {number}")));
        };
        let value = value.newtype_variant_seed(Typed(&variant.of))?;
        Ok(match variant.of {
            TypeDescription::Unit => json!(variant.name),
            _ => json!({ variant.name.clone(): value }),
        })
    }
}
