//! Dependencies of a provider of the document on other providers.

use serde::{Deserialize, Deserializer, Serialize};

use super::ListOrText;

/// The value of a key of [`Provider::dependencies`](crate::Provider::dependencies): one provider,
/// or several.
///
/// ```
/// use margo_config::{Config, Dependency};
///
/// let config = Config::from_json(r#"{ "margo": { "providers": [
///     { "type": "blob", "provider_id": 1 },
///     { "type": "index", "provider_id": 2, "dependencies": { "data": "blob:1" } },
/// ] } }"#)?;
/// let data = &config.margo.providers[1].dependencies["data"];
/// assert_eq!(data, &Dependency::One("blob:1".to_owned()));
/// assert_eq!(data.texts(), ["blob:1"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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
        deserializer.deserialize_any(ListOrText {
            expected: "a provider (\"name\", \"type:id\" or \"type:id@address\"), or a list of \
                       providers",
            list: Self::Many,
            text: |text| Some(Self::One(text.to_owned())),
        })
    }
}
