//! The settings of a store. The only home of their defaults and bounds.

use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use margo::config::Error;
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, MapAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};

use crate::KvError;

/// Smallest and largest [`StoreConfig::max_key_bytes`]: the longest key that stores hold.
pub(crate) const MAX_KEY_BYTES: RangeInclusive<usize> = 1..=32 << 10;
/// Smallest and largest [`StoreConfig::max_value_bytes`]: the longest value that every store holds.
pub(crate) const MAX_VALUE_BYTES: RangeInclusive<usize> = 0..=2 << 30;
/// Smallest and largest [`SyncPolicy::IntervalMsec`].
pub(crate) const INTERVAL_MSEC: RangeInclusive<u64> = 1..=3_600_000;
/// Smallest [`StoreConfig::cache_bytes`].
pub(crate) const CACHE_BYTES_MIN: usize = 1 << 20;

/// The store that keeps a database.
///
/// ```
/// use margo_provider_kv::{StoreConfig, StoreKind};
///
/// let json = serde_json::json!({ "kind": "fjall", "path": "/data/kv" });
/// let config: StoreConfig = serde_json::from_value(json)?;
/// assert_eq!(config, StoreConfig::new(StoreKind::Fjall, "/data/kv"));
/// assert_eq!(StoreKind::default(), StoreKind::Redb);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StoreKind {
    /// A B-tree in one file, by the crate `redb`: fast to read, scan and open.
    #[default]
    Redb,
    /// A log-structured merge tree in a directory, by the crate `fjall`: fast to write.
    Fjall,
    /// A B-tree in a directory, by LMDB, mapped into memory: the fastest to read. Written in C, so
    /// only in builds with the feature `lmdb`. Its keys have at most 510 bytes.
    Lmdb,
    /// The memory of the process.
    Memory,
}

/// The reason why a build has no store of that kind.
pub(crate) const WITHOUT_LMDB: &str = "lmdb: this program was built without the feature `lmdb`";

impl StoreKind {
    /// The longest key that the store holds.
    pub(crate) fn longest_key(self) -> usize {
        match self {
            // 511, of which one byte tells records from what is no record.
            Self::Lmdb => 510,
            _ => *MAX_KEY_BYTES.end(),
        }
    }
}

/// The order in which a store in memory keeps its keys.
///
/// ```
/// use margo_provider_kv::{MemoryOrder, StoreConfig};
///
/// let scanned = StoreConfig::memory(MemoryOrder::Ordered);
/// let json = serde_json::json!({ "kind": "memory", "order": "ordered" });
/// assert_eq!(scanned, serde_json::from_value(json)?);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryOrder {
    /// None: a hash table. The fastest for single keys; each scan looks at all keys and sorts.
    #[default]
    Hashed,
    /// By their bytes: a tree, which scans without sorting.
    Ordered,
}

/// When changes are written through to the disk.
///
/// ```
/// use margo_provider_kv::{StoreConfig, StoreKind, SyncPolicy};
///
/// let mut config = StoreConfig::new(StoreKind::Redb, "/data/kv.redb");
/// assert_eq!(config.sync, SyncPolicy::Always);
/// config.sync = serde_json::from_str(r#"{ "interval_msec": 100 }"#)?;
/// assert_eq!(config.sync, SyncPolicy::IntervalMsec(100));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SyncPolicy {
    /// Before they are acknowledged, those that come together in one go.
    #[default]
    Always,
    /// Only when a change or a flush asks for it, and when the database is closed.
    Never,
    /// So many milliseconds after they were acknowledged, at the latest.
    IntervalMsec(u64),
}

impl<'de> Deserialize<'de> for SyncPolicy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // By hand: an untagged enum would buffer the value and forget what was wrong with it.
        deserializer.deserialize_any(SyncPolicyVisitor)
    }
}

struct SyncPolicyVisitor;

impl<'de> Visitor<'de> for SyncPolicyVisitor {
    type Value = SyncPolicy;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"always\", \"never\" or { \"interval_msec\": N }")
    }

    fn visit_unit<E: de::Error>(self) -> Result<SyncPolicy, E> {
        Ok(SyncPolicy::default())
    }

    fn visit_str<E: de::Error>(self, word: &str) -> Result<SyncPolicy, E> {
        match word {
            "always" => Ok(SyncPolicy::Always),
            "never" => Ok(SyncPolicy::Never),
            _ => Err(E::invalid_value(Unexpected::Str(word), &self)),
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, object: A) -> Result<SyncPolicy, A::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Interval {
            interval_msec: u64,
        }
        let Interval { interval_msec } =
            Deserialize::deserialize(MapAccessDeserializer::new(object))?;
        Ok(SyncPolicy::IntervalMsec(interval_msec))
    }
}

/// When what is stored is compared with its checksums.
///
/// ```
/// use margo_provider_kv::{Integrity, StoreConfig, StoreKind};
///
/// let mut config = StoreConfig::new(StoreKind::Redb, "/data/kv.redb");
/// config.integrity = Integrity::Open;
/// assert_eq!(serde_json::to_value(&config)?["integrity"], "open");
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Integrity {
    /// Each record when it is read.
    #[default]
    Get,
    /// Likewise, and the whole store when it is opened, which takes as long as reading it.
    Open,
}

/// How a database is stored.
///
/// ```
/// use margo_provider_kv::{StoreConfig, StoreKind};
///
/// let mut config = StoreConfig::new(StoreKind::Redb, "/data/kv.redb");
/// config.max_bytes = Some(10 << 30);
/// assert!(config.check("config.store").is_empty());
/// config.max_key_bytes = 0;
/// let wrong = config.check("config.store");
/// assert!(wrong[0].to_string().starts_with("config.store.max_key_bytes: "));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct StoreConfig {
    /// `kind`: `"redb"` (default), `"fjall"`, `"memory"`, or `"lmdb"` in a build with that feature.
    pub kind: StoreKind,
    /// `path`: the file (redb) or directory (fjall, lmdb). Made if it is missing. Required on disk.
    /// One database at a time may use it.
    pub path: Option<PathBuf>,
    /// `order`: `"hashed"` (default) or `"ordered"`, in memory only.
    pub order: MemoryOrder,
    /// `sync`: `"always"` (default), `"never"` or `{ "interval_msec": N }`.
    pub sync: SyncPolicy,
    /// `integrity`: `"get"` (default) or `"open"`.
    pub integrity: Integrity,
    /// `max_key_bytes`: the longest key, from 1 to 2^15. Default 4096; in lmdb never more than 510.
    pub max_key_bytes: usize,
    /// `max_value_bytes`: the longest value, up to 2^31. Default 1 GiB.
    pub max_value_bytes: usize,
    /// `max_queued_requests`: how many requests may wait for the thread that writes; more are
    /// answered that it is busy. Default 8192.
    pub max_queued_requests: usize,
    /// `max_queued_bytes`: how many bytes of keys and values may wait likewise; what is being
    /// written comes on top. Default 64 MiB.
    pub max_queued_bytes: usize,
    /// `max_bytes`: how much the database may hold: bytes of keys and values, or with fjall of the
    /// disk. Default none.
    pub max_bytes: Option<u64>,
    /// `cache_bytes`: memory for what was read from the disk, which lmdb leaves to the kernel.
    /// Default 256 MiB.
    pub cache_bytes: usize,
    /// `id`: the id of the database among those of a [cluster](crate::KvClient::cluster). Default:
    /// a random one, which a database on disk keeps, and one in memory does not.
    pub id: Option<u64>,
}

impl Default for StoreConfig {
    fn default() -> Self {
        Self {
            kind: StoreKind::default(),
            path: None,
            order: MemoryOrder::default(),
            sync: SyncPolicy::default(),
            integrity: Integrity::default(),
            max_key_bytes: 4096,
            max_value_bytes: 1 << 30,
            max_queued_requests: 8192,
            max_queued_bytes: 64 << 20,
            max_bytes: None,
            cache_bytes: 256 << 20,
            id: None,
        }
    }
}

impl StoreConfig {
    /// The defaults for a store on disk.
    pub fn new(kind: StoreKind, path: impl Into<PathBuf>) -> Self {
        Self { kind, path: Some(path.into()), ..Self::default() }
    }

    /// The defaults for a store in memory.
    pub fn memory(order: MemoryOrder) -> Self {
        Self { kind: StoreKind::Memory, order, ..Self::default() }
    }

    /// The settings of each of several shards, which have the bounds together. The first one is
    /// made last: once it is there, all are.
    ///
    /// # Errors
    ///
    /// [`KvError::Failed`] if the files on the disk were made with another number of shards.
    pub(crate) fn of_shards(&self, shards: usize) -> Result<Vec<Self>, KvError> {
        let numbered = |shard: usize| {
            let mut path = self.path.clone()?.into_os_string();
            path.push(format!(".{shard}"));
            Some(PathBuf::from(path))
        };
        let is_there = |path: Option<PathBuf>| path.is_some_and(|path| path.exists());
        let (whole, first) = (is_there(self.path.clone()), is_there(numbered(0)));
        let fits = match shards {
            1 => whole || !first,
            _ => {
                let all = (1..shards).all(|shard| is_there(numbered(shard)));
                !whole && (all || !first) && !is_there(numbered(shards))
            }
        };
        if !fits {
            let path = self.path.clone().unwrap_or_default();
            let text = format!("{}: was made with another number of `shards`", path.display());
            return Err(KvError::Failed(text));
        }
        if shards == 1 {
            return Ok(vec![self.clone()]);
        }
        let share = |figure: usize| (figure / shards).max(1);
        let of = |shard| Self {
            path: numbered(shard),
            max_queued_requests: share(self.max_queued_requests),
            max_queued_bytes: share(self.max_queued_bytes),
            max_bytes: self.max_bytes.map(|bytes| bytes / shards as u64),
            cache_bytes: share(self.cache_bytes).max(CACHE_BYTES_MIN),
            ..self.clone()
        };
        Ok((0..shards).map(of).collect())
    }

    /// All that is wrong with the settings and that their types do not exclude. `place` is the path
    /// of the object in the document.
    pub fn check(&self, place: &str) -> Vec<Error> {
        let mut wrong = Vec::new();
        let mut add = |is_wrong: bool, key: &str, message: String| {
            if is_wrong {
                wrong.push(Error::new(format!("{place}.{key}"), message));
            }
        };
        let is_in_memory = self.kind == StoreKind::Memory;
        let is_missing = self.kind == StoreKind::Lmdb && cfg!(not(feature = "lmdb"));
        add(is_missing, "kind", WITHOUT_LMDB.into());
        match &self.path {
            None => add(!is_in_memory, "path", "missing; it says where to keep the data".into()),
            Some(path) => {
                let bytes = path.as_os_str().as_encoded_bytes();
                add(is_in_memory, "path", "given, but a store in memory has none".into());
                add(bytes.is_empty() || bytes.contains(&0), "path", "is no path".into());
            }
        }
        let is_ordered = self.order != MemoryOrder::default();
        add(is_ordered && !is_in_memory, "order", "given, but it is of stores in memory".into());
        if let SyncPolicy::IntervalMsec(msec) = self.sync {
            let message = out_of(msec, &INTERVAL_MSEC);
            add(!INTERVAL_MSEC.contains(&msec), "sync.interval_msec", message);
        }
        for (key, value, range) in [
            ("max_key_bytes", self.max_key_bytes, MAX_KEY_BYTES),
            ("max_value_bytes", self.max_value_bytes, MAX_VALUE_BYTES),
            ("max_queued_requests", self.max_queued_requests, 1..=usize::MAX),
            ("max_queued_bytes", self.max_queued_bytes, 1..=usize::MAX),
            ("cache_bytes", self.cache_bytes, CACHE_BYTES_MIN..=usize::MAX),
        ] {
            add(!range.contains(&value), key, out_of(value, &range));
        }
        wrong
    }

    /// The JSON Schema of the object.
    pub(crate) fn schema() -> Value {
        let Self { max_key_bytes, max_value_bytes, cache_bytes, .. } = Self::default();
        let Self { max_queued_requests, max_queued_bytes, .. } = Self::default();
        let (key_max, value_max) = (*MAX_KEY_BYTES.end() as u64, *MAX_VALUE_BYTES.end() as u64);
        json!({
            "type": "object",
            "properties": {
                "kind": {
                    "enum": ["redb", "fjall", "lmdb", "memory", null],
                    "default": "redb",
                    "description": "The store: a B-tree in one file, fast to read, scan and open; \
                                    a log-structured merge tree in a directory, fast to write; \
                                    LMDB in a directory, in builds with that feature; or the \
                                    memory of the process."
                },
                "path": {
                    "type": ["string", "null"],
                    "minLength": 1,
                    "description": "The file (redb) or directory (fjall, lmdb). Made if it is \
                                    missing. Required on disk. One database at a time may use it."
                },
                "order": words(["hashed", "ordered"], "In memory: a hash table, whose scans sort, \
                                                       or a tree."),
                "sync": {
                    "anyOf": [
                        { "enum": ["always", "never", null] },
                        {
                            "type": "object",
                            "properties": { "interval_msec": {
                                "type": "integer",
                                "minimum": INTERVAL_MSEC.start(),
                                "maximum": INTERVAL_MSEC.end()
                            } },
                            "required": ["interval_msec"],
                            "additionalProperties": false
                        }
                    ],
                    "default": "always",
                    "description": "When changes are written through to the disk: before they are \
                                    acknowledged; only when asked for; or so long after they were \
                                    acknowledged."
                },
                "integrity": words(["get", "open"], "When checksums are compared: of each record \
                                                     when it is read; or also of the whole store \
                                                     when it is opened."),
                "max_key_bytes": count(1, Some(key_max), max_key_bytes, "The longest key; in lmdb \
                    never more than 510."),
                "max_value_bytes": count(0, Some(value_max), max_value_bytes, "The longest value."),
                "max_queued_requests": count(1, None, max_queued_requests, "How many requests may \
                    wait for the thread that writes; more are answered that it is busy."),
                "max_queued_bytes": count(1, None, max_queued_bytes, "How many bytes of keys and \
                    values may wait likewise; what is being written comes on top."),
                "max_bytes": {
                    "type": ["integer", "null"],
                    "minimum": 0,
                    "description": "How much the database may hold: bytes of keys and values, or \
                                    with fjall of the disk. Default none."
                },
                "cache_bytes": count(CACHE_BYTES_MIN as u64, None, cache_bytes, "Memory for what \
                    was read from the disk."),
                "id": {
                    "type": ["integer", "null"],
                    "minimum": 0,
                    "maximum": u64::MAX,
                    "description": "The id of the database in a cluster of servers. Default: a \
                                    random one, which a database on disk keeps, and one in memory \
                                    does not."
                }
            },
            "additionalProperties": false
        })
    }
}

/// The schema of one of two words, of which the first is the default.
fn words([default, other]: [&str; 2], text: &str) -> Value {
    json!({ "enum": [default, other, null], "default": default, "description": text })
}

/// The schema of a number.
fn count(min: u64, max: Option<u64>, default: usize, text: &str) -> Value {
    let mut schema = json!({
        "type": ["integer", "null"], "minimum": min, "default": default, "description": text
    });
    if let Some(max) = max {
        schema["maximum"] = max.into();
    }
    schema
}

fn out_of<T: std::fmt::Display>(value: T, range: &RangeInclusive<T>) -> String {
    format!("{value} is not from {} to {}", range.start(), range.end())
}

#[cfg(test)]
mod tests {
    use super::*;
    use margo::config::provider_config;

    fn read(value: &Value) -> Result<StoreConfig, String> {
        let config: StoreConfig = provider_config(value).map_err(|error| error.to_string())?;
        match &config.check("config")[..] {
            [] => Ok(config),
            [first, ..] => Err(first.to_string()),
        }
    }

    #[test]
    fn what_is_taken_by_the_schema_as_well() {
        let validator = jsonschema::validator_for(&StoreConfig::schema()).unwrap();
        for value in [
            json!({ "path": "x" }),
            json!({ "kind": "memory" }),
            json!({ "kind": "memory", "order": "ordered", "max_bytes": 0 }),
            json!({ "kind": "memory", "id": u64::MAX }),
            json!({ "kind": "memory", "id": -1 }),
            json!({ "kind": "fjall", "path": "x", "sync": { "interval_msec": 10 } }),
            json!({ "path": "x", "sync": "never", "integrity": "open", "max_key_bytes": 1 }),
            json!({ "path": "x", "sync": null, "integrity": null, "kind": null, "order": null }),
            json!({ "path": "x", "kind": "rocks" }),
            json!({ "path": "x", "sync": "sometimes" }),
            json!({ "path": "x", "sync": { "interval_msec": 0 } }),
            json!({ "path": "x", "sync": { "interval": 1 } }),
            json!({ "path": "x", "max_key_bytes": 0 }),
            json!({ "path": "x", "max_value_bytes": (2u64 << 30) + 1 }),
            json!({ "path": "x", "cache_bytes": 0 }),
            json!({ "path": "", }),
            json!({ "path": "x", "paht": "y" }),
            json!([]),
        ] {
            let config = read(&value);
            assert_eq!(validator.is_valid(&value), config.is_ok(), "{value}: {config:?}");
            if let Ok(config) = config {
                let printed = serde_json::to_value(&config).unwrap();
                assert!(validator.is_valid(&printed), "{printed}");
                assert_eq!(read(&printed).unwrap(), config);
            }
        }
    }

    #[test]
    fn errors_name_the_key() {
        for (value, message) in [
            (json!({}), "config.path: missing"),
            (json!({ "path": "" }), "config.path: is no path"),
            (json!({ "kind": "memory", "path": "x" }), "config.path: given, but"),
            (json!({ "path": "x", "order": "ordered" }), "config.order: given, but"),
            (json!({ "path": "x", "kind": "rocks" }), "config.kind: "),
            (json!({ "path": "x", "sync": "sometimes" }), "config.sync: "),
            (json!({ "path": "x", "sync": { "interval": 1 } }), "config.sync"),
            (
                json!({ "path": "x", "sync": { "interval_msec": 0 } }),
                "config.sync.interval_msec: 0 is not from 1 to 3600000",
            ),
            (json!({ "path": "x", "max_key_bytes": 0 }), "config.max_key_bytes: 0 is not from 1"),
            (json!({ "path": "x", "cache_bytes": 1 }), "config.cache_bytes: 1 is not from"),
            (json!({ "path": "x", "paht": "y" }), "config.paht: unknown key"),
        ] {
            let error = read(&value).unwrap_err();
            assert!(error.starts_with(message), "{value}: {error}");
        }
    }
}
