//! The service `template_name`: keys and their values, in memory.
//!
//! Read it in this order:
//!
//! 1. [`TemplateName`], the *service*. margo makes its RPCs and a client of the trait.
//! 2. [`TemplateNameStore`], the *provider*: what each method does.
//! 3. [`component`], which starts a provider from a *document*.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use margo::Instance;
use margo::component::{Component, ProviderSpec, RunningProvider};
use margo::config::{Error, Errors, provider_config};
use margo::encoding::Bytes;
use margo::ult::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

// 1. The service, which both sides know.

/// The reason why there is no result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum TemplateNameError {
    /// No value was stored.
    #[error("there is no key `{key}`")]
    NoKey {
        /// The key that was asked for.
        key: String,
    },
    /// The settings of the provider do not allow it.
    #[error("{len} bytes are more than the {max} that a value may have")]
    TooLarge {
        /// Bytes of the value.
        len: u64,
        /// Bytes that it may have.
        max: u64,
    },
}

/// Keys and their values.
#[margo::service(name = "template_name")]
pub trait TemplateName {
    /// Stores a value, in place of the one that was there.
    fn put(&self, key: &str, value: Bytes) -> Result<(), TemplateNameError>;

    /// The value of a key.
    fn get(&self, key: &str) -> Result<Bytes, TemplateNameError>;
}

// 2. The provider.

/// The values of one provider. Requests come at the same time, each on a ULT of its own.
#[derive(Debug)]
pub struct TemplateNameStore {
    settings: Settings,
    values: Mutex<BTreeMap<String, Bytes>>,
}

impl TemplateName for TemplateNameStore {
    fn put(&self, key: &str, value: Bytes) -> Result<(), TemplateNameError> {
        let (len, max) = (value.0.len() as u64, self.settings.value_bytes_max);
        if len > max {
            return Err(TemplateNameError::TooLarge { len, max });
        }
        self.values.lock().insert(key.to_owned(), value);
        Ok(())
    }

    fn get(&self, key: &str) -> Result<Bytes, TemplateNameError> {
        let found = self.values.lock().get(key).cloned();
        found.ok_or_else(|| TemplateNameError::NoKey { key: key.to_owned() })
    }
}

// 3. The document.

/// Starts providers from `margo.providers` of a document, where their `type` is `template_name`.
pub fn component() -> Box<dyn Component> {
    Box::new(TemplateNameComponent)
}

struct TemplateNameComponent;

/// The `config` object of a provider.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default)]
struct Settings {
    /// Largest value to accept, bytes.
    value_bytes_max: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self { value_bytes_max: 1 << 20 }
    }
}

impl Settings {
    /// Reads the object. Errors have the path of their key, so that whoever wrote the document is
    /// told where each one stands.
    fn from_json(config: &Value) -> Result<Self, Errors> {
        let settings: Self = provider_config(config)?;
        match settings.value_bytes_max {
            0 => Err(Error::new("config.value_bytes_max", "0 bytes leave no value").into()),
            _ => Ok(settings),
        }
    }
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

impl Component for TemplateNameComponent {
    fn type_name(&self) -> &'static str {
        "template_name"
    }

    fn schema(&self) -> Option<Value> {
        Some(json!({
            "type": "object",
            "properties": {
                "value_bytes_max": {
                    "type": ["integer", "null"],
                    "minimum": 1,
                    "default": Settings::default().value_bytes_max,
                    "description": "Largest value to accept, bytes."
                }
            },
            "additionalProperties": false
        }))
    }

    fn check(&self, config: &Value) -> Result<(), BoxError> {
        Settings::from_json(config)?;
        Ok(())
    }

    fn start(
        &self,
        instance: &Instance,
        spec: &ProviderSpec,
    ) -> Result<Box<dyn RunningProvider>, BoxError> {
        let settings = Settings::from_json(&spec.config)?;
        let store = TemplateNameStore { settings, values: Mutex::default() };
        let provider = spec.provider_of(instance, store);
        TemplateNameService::serve_on(&provider)?;
        Ok(Box::new(provider))
    }
}
