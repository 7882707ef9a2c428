//! The `config` object of a blob provider in `margo.providers`. The only home of its defaults.

use std::path::PathBuf;

use margo::config::{Error, Errors, provider_config};
use serde::Deserialize;
use serde_json::{Value, json};

/// Smallest and largest [`BlobConfig::chunk_bytes`].
pub const CHUNK_BYTES: std::ops::RangeInclusive<usize> = (64 << 10)..=(1 << 30);

/// Smallest and largest [`BlobConfig::buffers`].
const BUFFERS: std::ops::RangeInclusive<usize> = 1..=1024;

/// Blobs of a store in memory unless [`BlobConfig::max_blobs`] says otherwise.
pub(crate) const MEMORY_BLOBS_MAX: u64 = 1 << 20;

/// Where a blob provider keeps its blobs.
///
/// ```
/// use margo_provider_blob::{BlobConfig, StoreKind};
///
/// let json = serde_json::json!({ "store": "memory", "max_bytes": 1 << 30 });
/// assert_eq!(BlobConfig::from_json(&json)?.store, StoreKind::Memory);
/// # Ok::<(), margo::config::Errors>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum StoreKind {
    /// `"files"`: below [`BlobConfig::path`].
    #[default]
    Files,
    /// `"memory"`: until the provider ends, [`BlobConfig::max_bytes`] at most.
    Memory,
}

/// How a blob provider stores and moves blobs.
///
/// ```
/// let json = serde_json::json!({ "path": "/data/blobs", "sync": true });
/// let config = margo_provider_blob::BlobConfig::from_json(&json)?;
/// assert_eq!(config.chunk_bytes, 1 << 20);
/// # Ok::<(), margo::config::Errors>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct BlobConfig {
    /// `store`: in files or in memory. Default `"files"`.
    pub store: StoreKind,
    /// `path`: the directory of the blobs. Made if it is missing. Required with files, and without
    /// meaning in memory. One provider at a time may use it.
    pub path: PathBuf,
    /// `sync`: wait for the disk before a change counts as done, so that it survives a power cut.
    /// Default `false`: it survives the death of the process, but not of the machine, unless the
    /// caller persists it.
    pub sync: bool,
    /// `chunk_bytes`: how much is moved at a time; the size of a buffer. From 65536 to 2^30, a
    /// multiple of 65536. Default 1 MiB.
    pub chunk_bytes: usize,
    /// `buffers`: buffers of all requests together, which is the bound of their memory. A request
    /// that moves data takes up to four of them, and waits for one. From 1 to 1024. Default 32.
    pub buffers: usize,
    /// `max_blob_bytes`: largest blob to accept, bytes. Default none: what the file system holds.
    pub max_blob_bytes: Option<u64>,
    /// `max_bytes`: bytes of all blobs together, holes and writes in progress included. Default
    /// none. Required in memory. A provider that has a bound lists its directory when it starts.
    pub max_bytes: Option<u64>,
    /// `max_blobs`: number of blobs. Default none; in memory 1,048,576.
    pub max_blobs: Option<u64>,
}

/// The object as it is written.
#[derive(Deserialize)]
#[serde(default)]
struct Given {
    store: StoreKind,
    path: Option<String>,
    sync: bool,
    chunk_bytes: usize,
    buffers: usize,
    max_blob_bytes: Option<u64>,
    max_bytes: Option<u64>,
    max_blobs: Option<u64>,
}

impl Default for Given {
    fn default() -> Self {
        let BlobConfig { store, path: _, sync, chunk_bytes, buffers, .. } = BlobConfig::new("");
        let (path, max_blob_bytes, max_bytes, max_blobs) = (None, None, None, None);
        Self { store, path, sync, chunk_bytes, buffers, max_blob_bytes, max_bytes, max_blobs }
    }
}

impl BlobConfig {
    /// The defaults for a directory.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            store: StoreKind::Files,
            path: path.into(),
            sync: false,
            chunk_bytes: 1 << 20,
            buffers: 32,
            max_blob_bytes: None,
            max_bytes: None,
            max_blobs: None,
        }
    }

    /// The defaults for memory, of which blobs may have so many bytes.
    pub fn in_memory(max_bytes: u64) -> Self {
        Self { store: StoreKind::Memory, max_bytes: Some(max_bytes), ..Self::new("") }
    }

    /// Reads the object. `null` counts as "not given", as in the rest of the configuration.
    ///
    /// # Errors
    ///
    /// All unknown keys, wrong types, and values out of range, by paths such as `config.path`.
    pub fn from_json(value: &Value) -> Result<Self, Errors> {
        let given: Given = provider_config(value)?;
        let Given { store, sync, chunk_bytes, buffers, .. } = given;
        let Given { path, max_blob_bytes, max_bytes, max_blobs, .. } = given;
        let wrong = match (&path, store) {
            (None, StoreKind::Files) => Some("missing; it says where to keep the blobs"),
            (Some(path), _) if path.is_empty() || path.contains('\0') => Some("is no path"),
            _ => None,
        };
        let mut wrong: Vec<_> = wrong.map(|text| wrong_key("path", text)).into_iter().collect();
        let path = path.unwrap_or_default().into();
        let config =
            Self { store, path, sync, chunk_bytes, buffers, max_blob_bytes, max_bytes, max_blobs };
        wrong.extend(config.check().err().into_iter().flatten());
        Errors::none_of(wrong).map(|()| config)
    }

    /// The JSON Schema of the object.
    pub(crate) fn schema() -> Value {
        let Given { sync, chunk_bytes, buffers, .. } = Given::default();
        let kind = ["integer", "null"];
        let bound = |about: &str| json!({ "type": kind, "minimum": 0, "description": about });
        json!({
            "type": "object",
            "properties": {
                "store": {
                    "enum": ["files", "memory", null],
                    "default": "files",
                    "description": "Where the blobs are: in files below `path`, or in memory until \
                                    the provider ends, `max_bytes` at most."
                },
                "path": {
                    "type": ["string", "null"],
                    "minLength": 1,
                    "description": "The directory of the blobs. Made if it is missing. Required \
                                    with files. One provider at a time may use it."
                },
                "sync": {
                    "type": ["boolean", "null"],
                    "default": sync,
                    "description": "Wait for the disk before a change counts as done, so that it \
                                    survives a power cut. Default false: it survives the death of \
                                    the process, but not of the machine, unless the caller \
                                    persists it."
                },
                "chunk_bytes": {
                    "type": ["integer", "null"],
                    "minimum": CHUNK_BYTES.start(),
                    "maximum": CHUNK_BYTES.end(),
                    "multipleOf": CHUNK_BYTES.start(),
                    "default": chunk_bytes,
                    "description": "How much is moved at a time; the size of a buffer. A multiple \
                                    of 65536."
                },
                "buffers": {
                    "type": ["integer", "null"],
                    "minimum": BUFFERS.start(),
                    "maximum": BUFFERS.end(),
                    "default": buffers,
                    "description": "Buffers of all requests together, which is the bound of their \
                                    memory. A request that moves data takes up to four of them, \
                                    and waits for one."
                },
                "max_blob_bytes": bound(
                    "Largest blob to accept, bytes. Default none: what the file system holds."
                ),
                "max_bytes": bound(
                    "Bytes of all blobs together, holes and writes in progress included. Default \
                     none. Required in memory. A provider that has a bound lists its directory \
                     when it starts."
                ),
                "max_blobs": bound("Number of blobs. Default none; in memory 1048576.")
            },
            "if": { "properties": { "store": { "const": "memory" } }, "required": ["store"] },
            "then": {
                "properties": { "max_bytes": { "type": "integer" } },
                "required": ["max_bytes"]
            },
            "else": { "properties": { "path": { "type": "string" } }, "required": ["path"] },
            "minProperties": 1,
            "additionalProperties": false
        })
    }

    /// The object that comes to these settings, with all keys.
    pub(crate) fn to_json(&self) -> Value {
        let Self { store, path, sync, chunk_bytes, buffers, max_blob_bytes, max_bytes, max_blobs } =
            self;
        let (store, path) = match store {
            StoreKind::Files => ("files", Some(path.to_string_lossy())),
            StoreKind::Memory => ("memory", None),
        };
        json!({
            "store": store,
            "path": path,
            "sync": sync,
            "chunk_bytes": chunk_bytes,
            "buffers": buffers,
            "max_blob_bytes": max_blob_bytes,
            "max_bytes": max_bytes,
            "max_blobs": max_blobs
        })
    }

    /// Checks what the types do not.
    pub(crate) fn check(&self) -> Result<(), Errors> {
        let mut wrong = Vec::new();
        let (bytes, unit) = (self.chunk_bytes, *CHUNK_BYTES.start());
        if !CHUNK_BYTES.contains(&bytes) || !bytes.is_multiple_of(unit) {
            let max = CHUNK_BYTES.end();
            let message = format!("{bytes} is not a multiple of {unit} up to {max}");
            wrong.push(wrong_key("chunk_bytes", &message));
        }
        if !BUFFERS.contains(&self.buffers) {
            let (min, max) = (BUFFERS.start(), BUFFERS.end());
            let message = format!("{} is not from {min} to {max}", self.buffers);
            wrong.push(wrong_key("buffers", &message));
        }
        if self.store == StoreKind::Memory && self.max_bytes.is_none() {
            wrong.push(wrong_key("max_bytes", "missing; blobs in memory need a bound"));
        }
        Errors::none_of(wrong)
    }
}

fn wrong_key(key: &str, message: &str) -> Error {
    Error::new(format!("config.{key}"), message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_and_all_keys() {
        let config = BlobConfig::from_json(&json!({ "path": "x" })).unwrap();
        assert_eq!(config, BlobConfig::new("x"));
        assert_eq!(
            (config.sync, config.chunk_bytes, config.max_blob_bytes),
            (false, 1 << 20, None)
        );
        let config = BlobConfig::from_json(&json!({
            "path": "x", "sync": true, "chunk_bytes": 65536, "max_blob_bytes": 0
        }))
        .unwrap();
        assert_eq!(
            (config.sync, config.chunk_bytes, config.max_blob_bytes),
            (true, 65536, Some(0))
        );
        let config = BlobConfig::from_json(&json!({ "path": "x", "sync": null })).unwrap();
        assert!(!config.sync);
    }

    #[test]
    fn the_schema_takes_what_is_taken_and_no_other_types_and_keys() {
        let validator = jsonschema::validator_for(&BlobConfig::schema()).unwrap();
        for value in [
            json!({ "path": "x" }),
            json!({ "path": "x", "sync": true, "chunk_bytes": 65536, "max_blob_bytes": 0 }),
            json!({ "path": "x", "sync": null, "chunk_bytes": null, "max_blob_bytes": null }),
            json!({ "path": "x", "store": null, "buffers": 1, "max_bytes": 7, "max_blobs": null }),
            json!({ "path": "x", "store": "files", "buffers": 1025 }),
            json!({ "path": "x", "buffers": 0 }),
            json!({ "path": "x", "max_blobs": -1 }),
            json!({ "path": "x", "store": "disk" }),
            json!({ "store": "memory" }),
            json!({ "store": "memory", "max_bytes": null }),
            json!({ "store": "memory", "max_bytes": 0 }),
            json!({ "store": "memory", "max_bytes": 1, "path": "" }),
            json!({}),
            json!([]),
            json!({ "path": null }),
            json!({ "path": "" }),
            json!({ "path": 7 }),
            json!({ "path": "x", "sync": "yes" }),
            json!({ "path": "x", "chunk_bytes": 65535 }),
            json!({ "path": "x", "chunk_bytes": 65537 }),
            json!({ "path": "x", "chunk_bytes": (1u64 << 30) + 65536 }),
            json!({ "path": "x", "max_blob_bytes": 1.5 }),
            json!({ "path": "x", "paht": "y" }),
        ] {
            let read = BlobConfig::from_json(&value);
            assert_eq!(validator.is_valid(&value), read.is_ok(), "{value}: {read:?}");
            if let Ok(config) = read {
                let printed = config.to_json();
                assert!(validator.is_valid(&printed), "{printed}");
                assert_eq!(BlobConfig::from_json(&printed).unwrap(), config);
            }
        }
    }

    #[test]
    fn errors_name_the_key() {
        for (value, message) in [
            (json!([]), "config: expected an object"),
            (json!({}), "config.path: missing"),
            (json!({ "path": null }), "config.path: missing"),
            (json!({ "path": "" }), "config.path: is no path"),
            (json!({ "path": "a\0" }), "config.path: is no path"),
            (json!({ "path": 7 }), "config.path: expected a string, found the number 7"),
            (
                json!({ "path": "x", "sync": "yes" }),
                "config.sync: expected true or false, found the string \"yes\"",
            ),
            (json!({ "path": "x", "chunk_bytes": -1 }), "config.chunk_bytes: expected an integer"),
            (
                json!({ "path": "x", "chunk_bytes": 65537 }),
                "config.chunk_bytes: 65537 is not a multiple of 65536",
            ),
            (json!({ "path": "x", "chunk_bytes": (1u64 << 30) + 1 }), "config.chunk_bytes: "),
            (json!({ "path": "x", "buffers": 0 }), "config.buffers: 0 is not from 1 to 1024"),
            (json!({ "store": "memory" }), "config.max_bytes: missing"),
            (json!({ "store": "disk" }), "config.store: "),
            (json!({ "path": "x", "max_blob_bytes": 1.5 }), "config.max_blob_bytes: expected"),
            (
                json!({ "path": "x", "paht": "y" }),
                "config.paht: unknown key (allowed: store, path, sync, chunk_bytes, buffers, \
                 max_blob_bytes, max_bytes, max_blobs); did you mean \"path\"?",
            ),
            (json!({ "path": ["x".repeat(1000)] }), "config.path: expected"),
        ] {
            let error = BlobConfig::from_json(&value).unwrap_err().to_string();
            assert!(error.starts_with(message), "{value}: {error}");
            assert!(error.len() < 200, "{error}");
        }
    }
    #[test]
    fn all_errors_are_told_at_once() {
        let value = json!({ "sync": 1, "chunk_bytes": -1, "paht": "x" });
        let errors = BlobConfig::from_json(&value).unwrap_err();
        let paths: Vec<_> = errors.iter().map(|error| error.path.as_str()).collect();
        assert_eq!(paths, ["config.chunk_bytes", "config.paht", "config.sync"]);
        assert!(errors.iter().all(|error| error.line.is_none()), "{errors}");
        let errors = BlobConfig::from_json(&json!({ "chunk_bytes": 1 })).unwrap_err();
        let paths: Vec<_> = errors.iter().map(|error| error.path.as_str()).collect();
        assert_eq!(paths, ["config.path", "config.chunk_bytes"]);
    }
}
