//! The CPUs or the part of the machine that an xstream may run on.

use serde::{Deserialize, Deserializer, Serialize};

use super::ListOrText;

/// CPUs that an xstream stays on: `[0, 1]`, or `"numa:0"`.
///
/// ```
/// use margo_config::{Affinity, Xstream};
///
/// let text = r#"{ "affinity": "numa:0", "scheduler": { "pools": ["work"] } }"#;
/// assert_eq!(Xstream::from_json(text)?.affinity, Affinity::from("numa:0"));
///
/// let text = r#"{ "affinity": [0, 1], "scheduler": { "pools": ["work"] } }"#;
/// assert_eq!(Xstream::from_json(text)?.affinity, Affinity::Cpus(vec![0, 1]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum Affinity {
    /// These CPUs, by the numbers that the operating system gives them; none: anywhere.
    Cpus(Vec<u32>),
    /// A part of the machine by name: `cpu:0-3`, `core:2`, `numa:1` (or `node:1`), `package:0` (or
    /// `socket:0`), `l3:0`, `all`, or several joined with `&` for what they have in common.
    /// Whether there is such a part is seen when the instance starts. Not known to C Margo.
    Place(String),
}

impl Affinity {
    /// Returns true if it leaves the xstream free.
    pub fn is_empty(&self) -> bool {
        matches!(self, Self::Cpus(cpus) if cpus.is_empty())
    }
}

impl Default for Affinity {
    fn default() -> Self {
        Self::Cpus(Vec::new())
    }
}

impl From<Vec<u32>> for Affinity {
    fn from(cpus: Vec<u32>) -> Self {
        Self::Cpus(cpus)
    }
}

impl From<&str> for Affinity {
    fn from(place: &str) -> Self {
        Self::Place(place.to_owned())
    }
}

impl<'de> Deserialize<'de> for Affinity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ListOrText {
            expected: r#"CPUs (array of integers from 0) or a place (string such as "numa:0")"#,
            list: Self::Cpus,
            text: |place| Some(Self::Place(place.to_owned())),
        })
    }
}
