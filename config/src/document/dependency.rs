//! Dependencies of a provider of the document on other providers.

use std::fmt;

use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// The value of a key of [`Provider::dependencies`](crate::Provider::dependencies): one provider,
/// or several.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum Dependency {
    /// `<name>` or `<type>:<provider_id>` of a provider of this document, or
    /// `<type>:<provider_id>@<address>` of one elsewhere.
    One(String),
    /// A list of such.
    Many(Vec<String>),
}

impl Dependency {
    /// The providers, as they are written.
    pub fn texts(&self) -> &[String] {
        match self {
            Self::One(text) => std::slice::from_ref(text),
            Self::Many(texts) => texts,
        }
    }
}

impl<'de> Deserialize<'de> for Dependency {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // By hand: an untagged enum would buffer the value and forget what was wrong with it.
        deserializer.deserialize_any(DependencyVisitor)
    }
}

struct DependencyVisitor;

impl<'de> Visitor<'de> for DependencyVisitor {
    type Value = Dependency;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "a provider (\"name\", \"type:id\" or \"type:id@address\"), or a list of providers",
        )
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Dependency, E> {
        Ok(Dependency::One(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Dependency, A::Error> {
        let mut texts = Vec::new();
        while let Some(text) = list.next_element()? {
            texts.push(text);
        }
        Ok(Dependency::Many(texts))
    }
}
