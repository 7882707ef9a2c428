//! The `config` object of a key-value provider in `margo.providers`. The only home of its defaults.

use std::ops::RangeInclusive;
use std::time::Duration;

use margo::config::{Error, Errors, provider_config};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::StoreConfig;
use crate::model::SHARDS_MAX;

/// Smallest and largest [`KvConfig::page_bytes`].
const PAGE_BYTES: RangeInclusive<u64> = 4096..=(64 << 20);

/// Smallest and largest [`KvConfig::shards`].
const SHARDS: RangeInclusive<u64> = 1..=SHARDS_MAX as u64;

/// Smallest and largest of the other figures.
const FIGURES: RangeInclusive<u64> = 1..=(1 << 40);

/// How a key-value provider stores its keys, and what it holds for its callers.
///
/// ```
/// let json = serde_json::json!({ "store": { "kind": "memory" }, "waiters": 100 });
/// let config = margo_provider_kv::KvConfig::from_json(&json)?;
/// assert_eq!(config.page_bytes, 1 << 20);
/// # Ok::<(), margo::config::Errors>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct KvConfig {
    /// `store`: where the keys are. Required.
    pub store: StoreConfig,
    /// `page_bytes`: most bytes of keys and values in one page of a list, and of values in the
    /// answer to a call for several keys. From 4096 to 2^26. Default 1 MiB.
    pub page_bytes: u64,
    /// `bulk_bytes`: memory for values that are moved by bulk transfer, of all requests together;
    /// so also the most that one batch may have of these, and the longest value that is read so.
    /// Others wait. A host or user has half of it, or one request. Default 1 GiB.
    pub bulk_bytes: u64,
    /// `views`: how many views of the database, or of each shard, are kept for lists that are under
    /// way, of all callers together; a host or user has an eighth, and at least one. Default 128.
    pub views: u64,
    /// `view_idle_ms`: how long the next page of a list may be waited for, in milliseconds. Default
    /// 30,000.
    pub view_idle_ms: u64,
    /// `waiters`: how many calls may wait for keys, of all callers together; a host or user has
    /// half of them, and at least one. Default 4,096.
    pub waiters: u64,
    /// `shards`: how many databases share out the keys, from 1 to 128. Each is written to on its
    /// own, so as many as the instance has shards (`margo.shards`) use as many cores: clients send
    /// a key to the shard with the number of its database. On disk each has a file of its own,
    /// `PATH.0`, `PATH.1` and so on, and there are always as many. Default 1.
    pub shards: u64,
}

/// The object as it is written.
#[derive(Deserialize)]
#[serde(default)]
struct Given {
    store: StoreConfig,
    page_bytes: u64,
    bulk_bytes: u64,
    views: u64,
    view_idle_ms: u64,
    waiters: u64,
    shards: u64,
}

impl Default for Given {
    fn default() -> Self {
        let config = KvConfig::new(StoreConfig::default());
        let KvConfig { store, page_bytes, bulk_bytes, views, view_idle_ms, waiters, shards } =
            config;
        Self { store, page_bytes, bulk_bytes, views, view_idle_ms, waiters, shards }
    }
}

impl KvConfig {
    /// The defaults for a store.
    pub fn new(store: StoreConfig) -> Self {
        Self {
            store,
            page_bytes: 1 << 20,
            bulk_bytes: 1 << 30,
            views: 128,
            view_idle_ms: 30_000,
            waiters: 4096,
            shards: 1,
        }
    }

    /// Reads the object. `null` counts as "not given", as in the rest of the configuration.
    ///
    /// # Errors
    ///
    /// All unknown keys, wrong types, and values out of range, by paths such as
    /// `config.page_bytes`.
    pub fn from_json(value: &Value) -> Result<Self, Errors> {
        let given: Given = provider_config(value)?;
        let Given { store, page_bytes, bulk_bytes, views, view_idle_ms, waiters, shards } = given;
        let config = Self { store, page_bytes, bulk_bytes, views, view_idle_ms, waiters, shards };
        config.check().map(|()| config)
    }

    /// The JSON Schema of the object.
    pub(crate) fn schema() -> Value {
        let Given { page_bytes, bulk_bytes, views, view_idle_ms, waiters, shards, .. } =
            Given::default();
        let figure = |range: RangeInclusive<u64>, default: u64, about: &str| {
            json!({
                "type": ["integer", "null"],
                "minimum": range.start(),
                "maximum": range.end(),
                "default": default,
                "description": about
            })
        };
        json!({
            "type": "object",
            "properties": {
                "store": StoreConfig::schema(),
                "page_bytes": figure(
                    PAGE_BYTES, page_bytes,
                    "Most bytes of keys and values in one page of a list, and of values in the \
                     answer to a call for several keys."
                ),
                "bulk_bytes": figure(
                    FIGURES, bulk_bytes,
                    "Memory for values that are moved by bulk transfer, of all requests together; \
                     so also the most that one batch may have of these, and the longest value that \
                     is read so. Others wait. A host or user has half of it, or one request."
                ),
                "views": figure(
                    FIGURES, views,
                    "How many views of the database, or of each shard, are kept for lists that \
                     are under way, of all callers together; a host or user has an eighth, and \
                     at least one."
                ),
                "view_idle_ms": figure(
                    FIGURES, view_idle_ms,
                    "How long the next page of a list may be waited for, in milliseconds."
                ),
                "waiters": figure(
                    FIGURES, waiters,
                    "How many calls may wait for keys, of all callers together; a host or user \
                     has half of them, and at least one."
                ),
                "shards": figure(
                    SHARDS, shards,
                    "How many databases share out the keys: as many as the instance has shards \
                     use as many cores. On disk each has a file of its own, and there are always \
                     as many."
                )
            },
            "required": ["store"],
            "additionalProperties": false
        })
    }

    /// The object that comes to these settings, with all keys.
    pub(crate) fn to_json(&self) -> Value {
        let Self { store, page_bytes, bulk_bytes, views, view_idle_ms, waiters, shards } = self;
        json!({
            "store": store,
            "page_bytes": page_bytes,
            "bulk_bytes": bulk_bytes,
            "views": views,
            "view_idle_ms": view_idle_ms,
            "waiters": waiters,
            "shards": shards
        })
    }

    /// Checks what the types do not.
    pub(crate) fn check(&self) -> Result<(), Errors> {
        let figures = [
            ("page_bytes", self.page_bytes, PAGE_BYTES),
            ("bulk_bytes", self.bulk_bytes, FIGURES),
            ("views", self.views, FIGURES),
            ("view_idle_ms", self.view_idle_ms, FIGURES),
            ("waiters", self.waiters, FIGURES),
            ("shards", self.shards, SHARDS),
        ];
        let wrong = figures.into_iter().filter(|(_, figure, range)| !range.contains(figure));
        let wrong = wrong.map(|(key, figure, range)| {
            let message = format!("{figure} is not from {} to {}", range.start(), range.end());
            Error::new(format!("config.{key}"), message)
        });
        Errors::none_of(self.store.check("config.store").into_iter().chain(wrong))
    }

    pub(crate) fn view_idle(&self) -> Duration {
        Duration::from_millis(self.view_idle_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_takes_what_is_taken_and_no_other_types_and_keys() {
        let validator = jsonschema::validator_for(&KvConfig::schema()).unwrap();
        let with = |key: &str, value: Value| {
            let mut config = json!({ "store": { "kind": "memory" } });
            config[key] = value;
            config
        };
        for value in [
            json!({ "store": { "kind": "memory" } }),
            json!({ "store": { "path": "x" }, "views": null }),
            json!({ "store": { "kind": "memory" }, "page_bytes": 4096, "bulk_bytes": 1 }),
            json!({}),
            json!([]),
            with("views", json!(1)),
            with("view_idle_ms", json!(1)),
            with("waiters", json!(1)),
            with("store", json!({ "kind": "memory", "pth": "x" })),
            with("store", json!({ "kind": "paper" })),
            with("page_bytes", json!(4095)),
            with("bulk_bytes", json!(0)),
            with("views", json!(-1)),
            with("view_idle_ms", json!("1s")),
            with("waiters", json!((1_u64 << 40) + 1)),
            with("waiter", json!(1)),
            with("shards", json!(128)),
            with("shards", json!(0)),
        ] {
            let read = KvConfig::from_json(&value);
            assert_eq!(validator.is_valid(&value), read.is_ok(), "{value}: {read:?}");
            if let Ok(config) = read {
                let printed = config.to_json();
                assert!(validator.is_valid(&printed), "{printed}");
                assert_eq!(KvConfig::from_json(&printed).unwrap(), config);
            }
        }
    }

    #[test]
    fn all_errors_are_told_at_once_by_their_keys() {
        let value = json!({ "page_bytes": 1, "waiters": 0 });
        let errors = KvConfig::from_json(&value).unwrap_err();
        let paths: Vec<_> = errors.iter().map(|error| error.path.as_str()).collect();
        assert_eq!(paths, ["config.store.path", "config.page_bytes", "config.waiters"]);
        assert!(errors.to_string().contains("1 is not from 4096 to 67108864"), "{errors}");
    }

    #[test]
    fn the_manual_has_every_key() {
        let manual = include_str!("../../../docs/configuration.md");
        let schema = KvConfig::schema();
        let keys = |of: &Value, prefix: &str| -> Vec<String> {
            of["properties"]
                .as_object()
                .unwrap()
                .keys()
                .map(|key| format!("`{prefix}{key}`"))
                .collect()
        };
        let mut all = keys(&schema["properties"]["store"], "store.");
        all.extend(keys(&schema, "").into_iter().filter(|key| key != "`store`"));
        all.retain(|key| !manual.contains(key));
        assert_eq!(all, [""; 0]);
    }
}
