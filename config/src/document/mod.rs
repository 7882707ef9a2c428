//! The types of the document, which are the only home of its keys, their documentation and their
//! defaults.
//!
//! Imports `report` and, for the one object that the document keeps as it is written
//! (`monitoring.rs`), `read`. Read `config.rs`, the top level, then the object in question.

pub(crate) mod admission;
pub(crate) mod affinity;
pub(crate) mod config;
pub(crate) mod dependency;
pub(crate) mod device;
pub(crate) mod fabric_security;
pub(crate) mod margo;
pub(crate) mod mercury;
pub(crate) mod monitoring;
pub(crate) mod network;
pub(crate) mod pool_ref;
pub(crate) mod security;
pub(crate) mod shards;
pub(crate) mod subnet;
pub(crate) mod tcp_security;
pub(crate) mod trace;

use std::fmt;

use serde::Deserialize;
use serde::de::value::SeqAccessDeserializer;
use serde::de::{self, SeqAccess, Unexpected, Visitor};

/// Reads an array or a string. An untagged enum would buffer the value and forget what was wrong
/// with it.
struct ListOrText<T, V> {
    expected: &'static str,
    list: fn(Vec<T>) -> V,
    text: fn(&str) -> Option<V>,
}

impl<'de, T: Deserialize<'de>, V> Visitor<'de> for ListOrText<T, V> {
    type Value = V;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<V, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(items)).map(self.list)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<V, E> {
        (self.text)(text).ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
    }
}

/// For `skip_serializing_if`: a default need not be printed.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// For `skip_serializing_if`, too, where the default of the object is not that of the type.
fn is<const DEFAULT: u64>(value: &(impl Copy + Into<u64>)) -> bool {
    (*value).into() == DEFAULT
}
