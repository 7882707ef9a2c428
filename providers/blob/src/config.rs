//! The `config` object of a blob provider in `margo.providers`. The only home of its defaults.

use std::path::PathBuf;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// Smallest and largest [`BlobConfig::chunk_bytes`].
pub const CHUNK_BYTES: std::ops::RangeInclusive<usize> = 4096..=(1 << 30);

/// How a blob provider stores and moves blobs.
///
/// ```
/// let json = serde_json::json!({ "path": "/data/blobs", "sync": true });
/// let config = margo_provider_blob::BlobConfig::from_json(&json)?;
/// assert_eq!(config.chunk_bytes, 1 << 20);
/// # Ok::<(), margo_provider_blob::ConfigError>(())
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

/// What is wrong with the `config` object.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("config{}{key}: {message}", if .key.is_empty() { "" } else { "." })]
pub struct ConfigError {
    /// The key; empty for the object as a whole.
    pub key: String,
    /// What is wrong.
    pub message: String,
}

impl ConfigError {
    fn new(key: &str, message: impl Into<String>) -> Self {
        Self { key: key.to_owned(), message: message.into() }
    }
}

impl BlobConfig {
    const KEYS: [&str; 4] = ["path", "sync", "chunk_bytes", "max_blob_bytes"];

    /// The defaults for a directory.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), sync: false, chunk_bytes: 1 << 20, max_blob_bytes: None }
    }

    /// Reads the object. `null` counts as "not given", as in the rest of the configuration.
    ///
    /// # Errors
    ///
    /// [`ConfigError`]: an unknown key, a wrong type, or a value out of range.
    pub fn from_json(value: &Value) -> Result<Self, ConfigError> {
        let Value::Object(object) = value else {
            return Err(ConfigError::new("", "expected an object, such as { \"path\": \"…\" }"));
        };
        if let Some(key) = object.keys().find(|key| !Self::KEYS.contains(&key.as_str())) {
            let known = Self::KEYS.join(", ");
            return Err(ConfigError::new(key, format!("unknown key (known: {known})")));
        }
        let path: String = key(object, "path", "a string, the directory of the blobs")?
            .ok_or_else(|| ConfigError::new("path", "missing; it says where to keep the blobs"))?;
        if path.is_empty() || path.contains('\0') {
            return Err(ConfigError::new("path", "is no path"));
        }
        let mut config = Self::new(path);
        if let Some(sync) = key(object, "sync", "true or false")? {
            config.sync = sync;
        }
        if let Some(bytes) = key(object, "chunk_bytes", "a number of bytes")? {
            config.chunk_bytes = bytes;
        }
        config.max_blob_bytes = key(object, "max_blob_bytes", "a number of bytes")?;
        config.check()?;
        Ok(config)
    }

    /// Checks what the types do not.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let (min, max) = (CHUNK_BYTES.start(), CHUNK_BYTES.end());
        if !CHUNK_BYTES.contains(&self.chunk_bytes) {
            let message = format!("{} is not from {min} to {max}", self.chunk_bytes);
            return Err(ConfigError::new("chunk_bytes", message));
        }
        Ok(())
    }
}

/// The value of `key`, if it is given.
fn key<T: DeserializeOwned>(
    object: &Map<String, Value>,
    key: &str,
    expected: &str,
) -> Result<Option<T>, ConfigError> {
    match object.get(key) {
        None => Ok(None),
        Some(value) => Option::<T>::deserialize(value).map_err(|_| {
            let found = shortened(value);
            ConfigError::new(key, format!("expected {expected}, found {found}"))
        }),
    }
}

fn shortened(value: &Value) -> String {
    const CHARS_MAX: usize = 40;
    let text = value.to_string();
    match text.char_indices().nth(CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

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
    fn errors_name_the_key() {
        for (value, message) in [
            (json!([]), "config: expected an object"),
            (json!({}), "config.path: missing"),
            (json!({ "path": null }), "config.path: missing"),
            (json!({ "path": "" }), "config.path: is no path"),
            (json!({ "path": "a\0" }), "config.path: is no path"),
            (
                json!({ "path": 7 }),
                "config.path: expected a string, the directory of the blobs, found 7",
            ),
            (
                json!({ "path": "x", "sync": "yes" }),
                "config.sync: expected true or false, found \"yes\"",
            ),
            (json!({ "path": "x", "chunk_bytes": -1 }), "config.chunk_bytes: expected a number"),
            (
                json!({ "path": "x", "chunk_bytes": 4095 }),
                "config.chunk_bytes: 4095 is not from 4096",
            ),
            (json!({ "path": "x", "chunk_bytes": (1u64 << 30) + 1 }), "config.chunk_bytes: "),
            (json!({ "path": "x", "max_blob_bytes": 1.5 }), "config.max_blob_bytes: expected"),
            (json!({ "path": "x", "paht": "y" }), "config.paht: unknown key (known: path, sync"),
            (json!({ "path": ["x".repeat(1000)] }), "config.path: expected"),
        ] {
            let error = BlobConfig::from_json(&value).unwrap_err().to_string();
            assert!(error.starts_with(message), "{value}: {error}");
            assert!(error.len() < 200, "{error}");
        }
    }
}
