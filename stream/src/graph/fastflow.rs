//! Group files of FastFlow's distributed runtime, read as documents of ours.

use std::collections::BTreeMap;

use margo::config::{Error, Errors, document_from_json};
use serde::Deserialize;

use super::document::{GraphDocument, Group, GroupEndpoint, Launcher};

/// A file as FastFlow has it.
#[derive(Default, Deserialize)]
#[serde(default)]
struct FastFlowFile {
    protocol: Option<String>,
    groups: Vec<FastFlowGroup>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
#[allow(non_snake_case, reason = "the keys of the file")]
struct FastFlowGroup {
    name: String,
    endpoint: Option<String>,
    batchSize: Option<usize>,
    internalMessageOTF: Option<u64>,
    messageOTF: Option<u64>,
    threadMapping: Option<String>,
    preCmd: Option<String>,
}

impl GraphDocument {
    /// Reads a group file of FastFlow's distributed runtime. There the program says which stages a
    /// group has, so `stages` tells it here, by the name of the group.
    ///
    /// `endpoint` becomes an address of `na+tcp://`, `batchSize` the items that travel together,
    /// `threadMapping` the CPUs, and `preCmd` what stands before the command. `messageOTF` and
    /// `internalMessageOTF` count messages in flight, which are bounded in bytes here: they have no
    /// effect.
    ///
    /// ```
    /// use margo_stream::graph::GraphDocument;
    ///
    /// let text = r#"{ "protocol": "TCP", "groups": [
    ///     { "name": "G1", "endpoint": "node1:8004", "batchSize": 64 },
    ///     { "name": "G2", "endpoint": "node2:8005", "threadMapping": "0,2,4" }
    /// ] }"#;
    /// let document = GraphDocument::from_fastflow(text, |group| match group {
    ///     "G1" => vec!["read".to_owned()],
    ///     _ => vec!["count".to_owned()],
    /// })?;
    /// assert_eq!(document.groups["G2"].endpoints[0].address, "na+tcp://node2:8005");
    /// # Ok::<(), margo::config::Errors>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Syntax errors, wrong types, unknown keys, and a protocol other than TCP.
    pub fn from_fastflow(text: &str, stages: impl Fn(&str) -> Vec<String>) -> Result<Self, Errors> {
        let file: FastFlowFile = document_from_json(text)?;
        let mut found = Vec::new();
        let protocol = file.protocol.as_deref().unwrap_or("TCP");
        if protocol != "TCP" {
            let what = format!("\"{protocol}\" has no counterpart (allowed: TCP)");
            found.push(Error::new("protocol", what));
        }
        let mut groups = BTreeMap::new();
        for (place, group) in file.groups.into_iter().enumerate() {
            let (name, group) = group.convert(&stages);
            if name.is_empty() {
                found.push(Error::new(format!("groups[{place}].name"), "there is none"));
            } else if groups.insert(name.clone(), group).is_some() {
                let what = format!("two groups are called \"{name}\"");
                found.push(Error::new(format!("groups[{place}].name"), what));
            }
        }
        Errors::none_of(found)?;
        Ok(Self { groups, ..Self::default() })
    }
}

impl FastFlowGroup {
    fn convert(self, stages: impl Fn(&str) -> Vec<String>) -> (String, Group) {
        let Self { name, endpoint, batchSize: batch_items, threadMapping: cpus, preCmd, .. } = self;
        // Bounds of another kind.
        let _ = (self.internalMessageOTF, self.messageOTF);
        let host = endpoint.as_deref().and_then(|endpoint| endpoint.rsplit_once(':'));
        let host = host.map(|(host, _)| host.to_owned());
        let endpoints = endpoint.into_iter().map(|endpoint| GroupEndpoint {
            address: format!("na+tcp://{endpoint}"),
            ..GroupEndpoint::default()
        });
        let launcher = preCmd.map(|command| Launcher {
            before: command.split_whitespace().map(str::to_owned).collect(),
            ..Launcher::default()
        });
        let (stages, endpoints) = (stages(&name), endpoints.collect());
        (name, Group { stages, host, endpoints, cpus, batch_items, launcher, ..Group::default() })
    }
}
