//! How many shards an instance has, and where their progress ULTs run.

use std::fmt;

use serde::de::value::SeqAccessDeserializer;
use serde::de::{self, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::pool_ref::PoolRef;

/// The shards of an instance: `4`, `"auto"`, or `["net0", "net1"]`.
///
/// Each shard has its own part of the network endpoint and a progress ULT, and makes the handlers
/// of the requests that arrive there.
///
/// ```
/// use margo_config::{Config, Shards};
///
/// let config = Config::from_json(r#"{ "margo": { "shards": 4 } }"#)?;
/// assert_eq!(config.margo.shards, Some(Shards::Count(4)));
/// assert_eq!(config.resolve(&|_| None)?.progress_pools().count(), 4);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum Shards {
    /// So many, from 1 to [`SHARDS_MAX`](crate::SHARDS_MAX). A pool and an xstream are added for
    /// each but the first, which has `progress_pool`.
    Count(#[cfg_attr(test, schemars(range(min = 1)))] u32),
    /// `"auto"`: one for each CPU that the process may use, on an xstream that is bound to it.
    Word(ShardsWord),
    /// One for each of these pools.
    Pools(Vec<PoolRef>),
}

/// The word that may stand for a number of shards.
///
/// ```
/// use margo_config::{Config, Shards, ShardsWord};
///
/// let config = Config::from_json(r#"{ "margo": { "shards": "auto" } }"#)?;
/// assert_eq!(config.margo.shards, Some(Shards::Word(ShardsWord::Auto)));
/// assert_eq!(config.margo.shards, Some(Shards::AUTO));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum ShardsWord {
    /// As many as there are CPUs.
    Auto,
}

impl Shards {
    /// One for each CPU.
    pub const AUTO: Self = Self::Word(ShardsWord::Auto);
}

impl<'de> Deserialize<'de> for Shards {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // By hand: an untagged enum would buffer the value and forget what was wrong with it.
        deserializer.deserialize_any(ShardsVisitor)
    }
}

struct ShardsVisitor;

impl<'de> Visitor<'de> for ShardsVisitor {
    type Value = Shards;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number of shards (integer from 1), \"auto\", or their pools (array)")
    }

    fn visit_u64<E: de::Error>(self, count: u64) -> Result<Shards, E> {
        match u32::try_from(count) {
            Ok(count @ 1..) => Ok(Shards::Count(count)),
            _ => Err(E::invalid_value(Unexpected::Unsigned(count), &self)),
        }
    }

    fn visit_i64<E: de::Error>(self, count: i64) -> Result<Shards, E> {
        match u64::try_from(count) {
            Ok(count) => self.visit_u64(count),
            Err(_) => Err(E::invalid_value(Unexpected::Signed(count), &self)),
        }
    }

    fn visit_str<E: de::Error>(self, word: &str) -> Result<Shards, E> {
        match word {
            "auto" => Ok(Shards::AUTO),
            _ => Err(E::invalid_value(Unexpected::Str(word), &self)),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, pools: A) -> Result<Shards, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(pools)).map(Shards::Pools)
    }
}
