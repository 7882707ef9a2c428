//! A pool named in the document, by name or by position.

use std::fmt;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// How a document refers to a pool: `"name"` or its index in `argobots.pools`.
///
/// Only pools written in the document have an index there; pools that resolution adds do not.
///
/// ```
/// use margo_config::{Config, PoolRef};
///
/// let text = r#"{ "argobots": { "pools": [{ "name": "__primary__" }] }, "rpc_pool": 0 }"#;
/// let mut config = Config::from_json(text)?;
/// assert_eq!(config.rpc_pool, Some(PoolRef::Index(0)));
///
/// config.rpc_pool = Some("nowhere".into());
/// let errors = config.resolve(&|_| None).unwrap_err();
/// assert_eq!(errors.as_slice()[0].path, "rpc_pool");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum PoolRef {
    /// Position in `argobots.pools`, from 0.
    Index(usize),
    /// The pool's `name`.
    Name(String),
}

impl From<&str> for PoolRef {
    fn from(name: &str) -> Self {
        Self::Name(name.to_owned())
    }
}

impl From<usize> for PoolRef {
    fn from(index: usize) -> Self {
        Self::Index(index)
    }
}

impl<'de> Deserialize<'de> for PoolRef {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // By hand: an untagged enum would buffer the value and forget what was wrong with it.
        deserializer.deserialize_any(PoolRefVisitor)
    }
}

struct PoolRefVisitor;

impl Visitor<'_> for PoolRefVisitor {
    type Value = PoolRef;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a pool: its name (string) or its index (integer from 0)")
    }

    fn visit_u64<E: de::Error>(self, index: u64) -> Result<PoolRef, E> {
        usize::try_from(index).map(PoolRef::Index).map_err(|_| self.wrong_integer(index))
    }

    fn visit_i64<E: de::Error>(self, index: i64) -> Result<PoolRef, E> {
        usize::try_from(index).map(PoolRef::Index).map_err(|_| self.wrong_integer(index))
    }

    fn visit_str<E: de::Error>(self, name: &str) -> Result<PoolRef, E> {
        Ok(PoolRef::Name(name.to_owned()))
    }
}

impl PoolRefVisitor {
    fn wrong_integer<E: de::Error>(&self, found: impl fmt::Display) -> E {
        E::custom(format_args!("there is no pool {found}: pool indices count from 0"))
    }
}
