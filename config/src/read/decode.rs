//! Decodes the tree into the serde types and collects every error on the way.
//!
//! serde stops at the first error. So decoding is repeated: each round records one error, marks the
//! value it is about, and the next round leaves that value out, as if it were not given. So
//! decoding always ends with a value, whose other parts can be checked (`lacks.rs`). Structs refuse
//! unknown keys before serde sees them. `null` counts as "not given", which is what it means in C
//! Margo. Inside free-form objects (`monitoring`, a provider's `config`) everything is kept as it
//! is.

use std::cell::RefCell;
use std::collections::HashSet;
use std::fmt;

use serde::de::value::StrDeserializer;
use serde::de::{
    self, DeserializeOwned, DeserializeSeed, Expected, IntoDeserializer, Unexpected, Visitor,
};
use serde_json::Value;

use super::tree::{Kind, Member, Node, Path, Tree, join};
use crate::report::error::{Error, Errors, REPORTED_MAX};
use crate::report::suggest::choices;

/// Decodes the document, with `advice` for unknown keys: what could be read, with defaults for what
/// is wrong, if that can be; and all wrong types, values out of range and unknown keys, each with
/// its position.
pub(crate) fn decode<T: DeserializeOwned>(
    tree: &Tree<'_>,
    advice: fn(&str) -> Option<String>,
) -> (Option<T>, Vec<Error>) {
    let state = State { tree, advice, errors: RefCell::default(), left_out: RefCell::default() };
    loop {
        let outcome = T::deserialize(Cursor { node: &tree.root, path: &Path::Root, state: &state });
        let done = match outcome {
            Ok(value) => return (Some(value), state.errors.into_inner()),
            Err(fault) => {
                let root = || (String::new(), tree.root.start);
                let (path, start) = fault.origin.unwrap_or_else(root);
                let error = Error { help: fault.help, ..Error::new(path, fault.message) };
                // The root cannot be left out, and nothing is left out twice.
                let fresh = state.left_out.borrow_mut().insert(start);
                state.record(error, start);
                start == tree.root.start || !fresh
            }
        };
        if done || state.errors.borrow().len() >= REPORTED_MAX {
            return (None, state.errors.into_inner());
        }
    }
}

/// Decodes a value that has no text, at the path `at` of the document.
///
/// # Errors
///
/// As [`decode`], in the order of a text, without positions.
pub(crate) fn decode_value<T: DeserializeOwned>(value: &Value, at: &str) -> Result<T, Vec<Error>> {
    let text = value.to_string();
    let (decoded, errors) = match Tree::parse(&text) {
        Ok(tree) => decode(&tree, |_| None),
        Err(error) => (None, vec![error]),
    };
    match decoded {
        Some(decoded) if errors.is_empty() => Ok(decoded),
        _ => Err(Errors::new(errors).into_iter().map(|error| error.below(at)).collect()),
    }
}

struct State<'t> {
    tree: &'t Tree<'t>,
    advice: fn(&str) -> Option<String>,
    errors: RefCell<Vec<Error>>,
    left_out: RefCell<HashSet<usize>>,
}

impl State<'_> {
    fn record(&self, error: Error, offset: usize) {
        self.errors.borrow_mut().push(error.at(self.tree.position(offset)));
    }

    fn is_left_out(&self, node: &Node) -> bool {
        self.left_out.borrow().contains(&node.start)
    }

    /// Returns true if a struct has this key; if not, records that once.
    fn knows(&self, path: &Path<'_>, entry: &Member, fields: &[&str]) -> bool {
        if fields.contains(&entry.key.as_str()) {
            return true;
        }
        let enough = self.errors.borrow().len() >= REPORTED_MAX;
        if self.left_out.borrow_mut().insert(entry.value.start) && !enough {
            let path = join(&path.to_string(), &entry.key);
            let message = format!("unknown key{}", choices("allowed", &entry.key, fields));
            let help = (self.advice)(&path);
            self.record(Error { help, ..Error::new(path, message) }, entry.key_start);
        }
        false
    }
}

/// serde's error type here. `origin` is the innermost value concerned: its path and offset.
#[derive(Debug)]
pub(crate) struct Fault {
    message: String,
    help: Option<String>,
    origin: Option<(String, usize)>,
}

impl Fault {
    fn or_at(mut self, path: &Path<'_>, node: &Node) -> Self {
        self.origin.get_or_insert_with(|| (path.to_string(), node.start));
        self
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Fault {}

impl de::Error for Fault {
    fn custom<M: fmt::Display>(message: M) -> Self {
        Self { message: message.to_string(), help: None, origin: None }
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        let found = match found {
            Unexpected::Unit => "null".to_owned(),
            Unexpected::Bool(value) => value.to_string(),
            Unexpected::Unsigned(value) => format!("the number {value}"),
            Unexpected::Signed(value) => format!("the number {value}"),
            Unexpected::Float(value) => format!("the number {value:?}"),
            Unexpected::Str(text) => describe(&Kind::String(text.to_owned())),
            Unexpected::Seq => "an array".to_owned(),
            Unexpected::Map => "an object".to_owned(),
            other => other.to_string(),
        };
        Self::custom(format_args!("expected {expected}, found {found}"))
    }
}

/// A value about to be decoded.
struct Cursor<'t, 's> {
    node: &'t Node,
    path: &'s Path<'s>,
    state: &'s State<'t>,
}

impl<'t, 's> Cursor<'t, 's> {
    fn mismatch(&self, expected: &str) -> Fault {
        let found = describe(&self.node.kind);
        de::Error::custom(format_args!("expected {expected}, found {found}"))
    }

    fn integer<T: TryFrom<i128>>(&self, min: i128, max: i128) -> Result<T, Fault> {
        let expected = match max == u64::MAX.into() {
            true => "an integer from 0".to_owned(),
            false => format!("an integer from {min} to {max}"),
        };
        let Kind::Number(text) = &self.node.kind else { return Err(self.mismatch(&expected)) };
        text.parse::<i128>()
            .ok()
            .filter(|value| (min..=max).contains(value))
            .and_then(|value| T::try_from(value).ok())
            .ok_or_else(|| self.mismatch(&expected))
    }

    fn seq<'de, V: Visitor<'de>>(self, items: &'t [Node], visitor: V) -> Result<V::Value, Fault> {
        visitor.visit_seq(Items { items: items.iter().enumerate(), parent: self })
    }

    fn map<'de, V: Visitor<'de>>(
        self,
        entries: Vec<&'t Member>,
        visitor: V,
    ) -> Result<V::Value, Fault> {
        visitor.visit_map(Entries { entries: entries.into_iter(), next: None, parent: self })
    }
}

/// Describes a value for messages. Long strings are cut.
fn describe(kind: &Kind) -> String {
    match kind {
        Kind::Null => "null".to_owned(),
        Kind::Bool(value) => value.to_string(),
        Kind::Number(text) => format!("the number {text}"),
        Kind::String(text) if text.chars().count() > 40 => {
            format!("the string {:?}...", text.chars().take(40).collect::<String>())
        }
        Kind::String(text) => format!("the string {text:?}"),
        Kind::Array(_) => "an array".to_owned(),
        Kind::Object(_) => "an object".to_owned(),
    }
}

macro_rules! integers {
    ($($method:ident $visit:ident $type:ty),* $(,)?) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
            visitor.$visit(self.integer(<$type>::MIN.into(), <$type>::MAX.into())?)
        }
    )*};
}

impl<'de> de::Deserializer<'de> for Cursor<'_, '_> {
    type Error = Fault;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match &self.node.kind {
            Kind::Null => visitor.visit_unit(),
            Kind::Bool(value) => visitor.visit_bool(*value),
            Kind::String(text) => visitor.visit_str(text),
            Kind::Array(items) => self.seq(items, visitor),
            Kind::Object(entries) => self.map(entries.iter().collect(), visitor),
            Kind::Number(text) => {
                if let Ok(value) = text.parse::<u64>() {
                    visitor.visit_u64(value)
                } else if let Ok(value) = text.parse::<i64>() {
                    visitor.visit_i64(value)
                } else {
                    let value = text.parse().map_err(|_| self.mismatch("a number"))?;
                    visitor.visit_f64(value)
                }
            }
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match self.node.kind {
            Kind::Bool(value) => visitor.visit_bool(value),
            _ => Err(self.mismatch("true or false")),
        }
    }

    integers! {
        deserialize_i8 visit_i8 i8, deserialize_i16 visit_i16 i16,
        deserialize_i32 visit_i32 i32, deserialize_i64 visit_i64 i64,
        deserialize_u8 visit_u8 u8, deserialize_u16 visit_u16 u16,
        deserialize_u32 visit_u32 u32, deserialize_u64 visit_u64 u64,
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match &self.node.kind {
            Kind::String(text) => visitor.visit_str(text),
            _ => Err(self.mismatch("a string")),
        }
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        self.deserialize_str(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match self.node.kind {
            Kind::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match &self.node.kind {
            Kind::Array(items) => self.seq(items, visitor),
            _ => Err(self.mismatch("an array")),
        }
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match &self.node.kind {
            Kind::Object(entries) => self.map(entries.iter().collect(), visitor),
            _ => Err(self.mismatch("an object")),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        let entries: &[Member] = match &self.node.kind {
            Kind::Object(entries) => entries,
            // A null element of an array is an entry with nothing given; a null document is none.
            Kind::Null if !self.path.is_root() => &[],
            _ => return Err(self.mismatch("an object")),
        };
        let mut seen = HashSet::new();
        let known = entries
            .iter()
            .filter(|entry| self.state.knows(self.path, entry, fields))
            .filter(|entry| !matches!(entry.value.kind, Kind::Null))
            // A second one has been reported already (`Tree::duplicates`).
            .filter(|entry| seen.insert(entry.key.as_str()))
            .collect();
        self.map(known, visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        let Kind::String(text) = &self.node.kind else {
            return Err(self.mismatch(&format!("one of the strings {}", variants.join(", "))));
        };
        if !variants.contains(&text.as_str()) {
            let message = format!("unknown value {text:?}{}", choices("allowed", text, variants));
            return Err(de::Error::custom(message));
        }
        let deserializer: StrDeserializer<'_, Fault> = text.as_str().into_deserializer();
        deserializer.deserialize_enum("", variants, visitor)
    }

    serde::forward_to_deserialize_any! {
        i128 u128 f32 f64 char bytes byte_buf unit unit_struct newtype_struct tuple tuple_struct
        identifier ignored_any
    }
}

/// The elements of an array that are not left out.
struct Items<'t, 's> {
    items: std::iter::Enumerate<std::slice::Iter<'t, Node>>,
    parent: Cursor<'t, 's>,
}

impl<'de> de::SeqAccess<'de> for Items<'_, '_> {
    type Error = Fault;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Fault> {
        let state = self.parent.state;
        let Some((index, node)) = self.items.find(|(_, node)| !state.is_left_out(node)) else {
            return Ok(None);
        };
        let path = Path::Index(self.parent.path, index);
        seed.deserialize(Cursor { node, path: &path, state })
            .map(Some)
            .map_err(|fault| fault.or_at(&path, node))
    }
}

/// The entries of an object that are not left out.
struct Entries<'t, 's> {
    entries: std::vec::IntoIter<&'t Member>,
    next: Option<&'t Member>,
    parent: Cursor<'t, 's>,
}

impl<'de> de::MapAccess<'de> for Entries<'_, '_> {
    type Error = Fault;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Fault> {
        let state = self.parent.state;
        self.next = self.entries.find(|entry| !state.is_left_out(&entry.value));
        match self.next {
            Some(entry) => seed.deserialize(entry.key.as_str().into_deserializer()).map(Some),
            None => Ok(None),
        }
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Fault> {
        let Some(entry) = self.next.take() else {
            return Err(de::Error::custom("value asked for before its key"));
        };
        let path = Path::Key(self.parent.path, &entry.key);
        let cursor = Cursor { node: &entry.value, path: &path, state: self.parent.state };
        seed.deserialize(cursor).map_err(|fault| fault.or_at(&path, &entry.value))
    }
}
