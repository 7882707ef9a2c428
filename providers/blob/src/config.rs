//! The `config` object of a blob provider in `margo.providers`. The only home of its defaults.

use std::path::PathBuf;

use margo::config::{Error, Errors, provider_config};
use serde::Deserialize;
use serde_json::{Value, json};

/// Smallest and largest [`BlobConfig::chunk_bytes`].
pub const CHUNK_BYTES: std::ops::RangeInclusive<usize> = 4096..=(1 << 30);

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
    /// `path`: the directory of the blobs. Made if it is missing. Required. One provider at a time
    /// may use it.
    pub path: PathBuf,
    /// `sync`: wait for the disk before a change counts as done, so that it survives a power cut.
    /// Default `false`: it survives the death of the process, but not of the machine.
    pub sync: bool,
    /// `chunk_bytes`: how much is moved at a time; also the memory that each request in progress
    /// uses, of which there are 128 at a time. From 4096 to 2^30. Default 1 MiB.
    pub chunk_bytes: usize,
    /// `max_blob_bytes`: largest blob to accept, bytes. Default none: what the file system holds.
    pub max_blob_bytes: Option<u64>,
}

/// The object as it is written.
#[derive(Deserialize)]
#[serde(default)]
struct Given {
    path: Option<String>,
    sync: bool,
    chunk_bytes: usize,
    max_blob_bytes: Option<u64>,
}

impl Default for Given {
    fn default() -> Self {
        let BlobConfig { sync, chunk_bytes, max_blob_bytes, .. } = BlobConfig::new("");
        Self { path: None, sync, chunk_bytes, max_blob_bytes }
    }
}

impl BlobConfig {
    /// The defaults for a directory.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), sync: false, chunk_bytes: 1 << 20, max_blob_bytes: None }
    }

    /// Reads the object. `null` counts as "not given", as in the rest of the configuration.
    ///
    /// # Errors
    ///
    /// All unknown keys, wrong types, and values out of range, by paths such as `config.path`.
    pub fn from_json(value: &Value) -> Result<Self, Errors> {
        let Given { path, sync, chunk_bytes, max_blob_bytes } = provider_config(value)?;
        let is_given = path.is_some();
        let path = path.unwrap_or_default();
        let mut wrong = Vec::new();
        if !is_given {
            wrong.push(wrong_key("path", "missing; it says where to keep the blobs"));
        } else if path.is_empty() || path.contains('\0') {
            wrong.push(wrong_key("path", "is no path"));
        }
        let config = Self { path: path.into(), sync, chunk_bytes, max_blob_bytes };
        wrong.extend(config.check().err().into_iter().flatten());
        Errors::none_of(wrong).map(|()| config)
    }

    /// The JSON Schema of the object.
    pub(crate) fn schema() -> Value {
        let Given { sync, chunk_bytes, .. } = Given::default();
        json!({
            "type": "object",
            "properties": {
                "path": {
                    "type": "string",
                    "minLength": 1,
                    "description": "The directory of the blobs. Made if it is missing. Required. \
                                    One provider at a time may use it."
                },
                "sync": {
                    "type": ["boolean", "null"],
                    "default": sync,
                    "description": "Wait for the disk before a change counts as done, so that it \
                                    survives a power cut. Default false: it survives the death of \
                                    the process, but not of the machine."
                },
                "chunk_bytes": {
                    "type": ["integer", "null"],
                    "minimum": CHUNK_BYTES.start(),
                    "maximum": CHUNK_BYTES.end(),
                    "default": chunk_bytes,
                    "description": "How much is moved at a time; also the memory that each request \
                                    in progress uses, of which there are 128 at a time."
                },
                "max_blob_bytes": {
                    "type": ["integer", "null"],
                    "minimum": 0,
                    "description": "Largest blob to accept, bytes. Default none: what the file \
                                    system holds."
                }
            },
            "required": ["path"],
            "additionalProperties": false
        })
    }

    /// The object that comes to these settings, with all keys.
    pub(crate) fn to_json(&self) -> Value {
        let Self { path, sync, chunk_bytes, max_blob_bytes } = self;
        json!({
            "path": path.to_string_lossy(),
            "sync": sync,
            "chunk_bytes": chunk_bytes,
            "max_blob_bytes": max_blob_bytes
        })
    }

    /// Checks what the types do not.
    pub(crate) fn check(&self) -> Result<(), Errors> {
        let (min, max) = (CHUNK_BYTES.start(), CHUNK_BYTES.end());
        if CHUNK_BYTES.contains(&self.chunk_bytes) {
            return Ok(());
        }
        let message = format!("{} is not from {min} to {max}", self.chunk_bytes);
        Err(wrong_key("chunk_bytes", &message).into())
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
            "path": "x", "sync": true, "chunk_bytes": 4096, "max_blob_bytes": 0
        }))
        .unwrap();
        assert_eq!((config.sync, config.chunk_bytes, config.max_blob_bytes), (true, 4096, Some(0)));
        let config = BlobConfig::from_json(&json!({ "path": "x", "sync": null })).unwrap();
        assert!(!config.sync);
    }

    #[test]
    fn the_schema_takes_what_is_taken_and_no_other_types_and_keys() {
        let validator = jsonschema::validator_for(&BlobConfig::schema()).unwrap();
        for value in [
            json!({ "path": "x" }),
            json!({ "path": "x", "sync": true, "chunk_bytes": 4096, "max_blob_bytes": 0 }),
            json!({ "path": "x", "sync": null, "chunk_bytes": null, "max_blob_bytes": null }),
            json!({}),
            json!([]),
            json!({ "path": null }),
            json!({ "path": "" }),
            json!({ "path": 7 }),
            json!({ "path": "x", "sync": "yes" }),
            json!({ "path": "x", "chunk_bytes": 4095 }),
            json!({ "path": "x", "chunk_bytes": (1u64 << 30) + 1 }),
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
                json!({ "path": "x", "chunk_bytes": 4095 }),
                "config.chunk_bytes: 4095 is not from 4096",
            ),
            (json!({ "path": "x", "chunk_bytes": (1u64 << 30) + 1 }), "config.chunk_bytes: "),
            (json!({ "path": "x", "max_blob_bytes": 1.5 }), "config.max_blob_bytes: expected"),
            (
                json!({ "path": "x", "paht": "y" }),
                "config.paht: unknown key (allowed: path, sync, chunk_bytes, max_blob_bytes); did \
                 you mean \"path\"?",
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
