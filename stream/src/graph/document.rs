//! The JSON document that cuts a graph into groups: [`GraphDocument`].

use std::collections::BTreeMap;
use std::path::Path;

use margo::config::{
    Error, Errors, MetricsOptions, TcpSecurityMode, TcpSecurityOptions, document_from_json,
};
use serde::{Deserialize, Serialize};

use super::error::GraphError;

/// How a graph is cut into groups, each of which is a process: as JSON.
///
/// Every stage is in one group, or its replicas are in several. Comments are allowed; unknown keys
/// are errors.
///
/// ```
/// use margo_stream::graph::{Graph, GraphDocument};
///
/// let graph = Graph::new();
/// graph.source("read", 0..9u32).key_by(|n| n % 3).farm("count", 4).pairs().for_each(drop);
/// let document = GraphDocument::from_json(
///     r#"{ "groups": {
///         "G1": { "stages": ["read", "count[0..2]"],
///                 "endpoints": [{ "address": "na+tcp://127.0.0.1:7001" }] },
///         "G2": { "stages": ["count[2..4]"],
///                 "endpoints": [{ "address": "na+sm://" }] }
///     } }"#,
/// )?;
/// let cut = document.resolve(&graph.plan())?;
/// assert_eq!(cut.group("G2").unwrap().receives[0].peer, "G1");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GraphDocument {
    /// The program that groups run which do not name their own, and its arguments:
    /// `["./word_count", "docs"]`. For launchers, such as `margo stream run`, which add
    /// `--group NAME FILE`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub program: Vec<String>,
    /// How groups are started that do not say it themselves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub launcher: Option<Launcher>,
    /// The name of the graph, with which the names of its streams begin. Default: `graph`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Milliseconds that groups wait for others to start. Default: a minute.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_within_msec: Option<u64>,
    /// The proof that groups ask of each other over `na+tcp`, as `margo.security.tcp` of a
    /// document. With the mode `"cluster_secret"` and no file, each run has a secret of its own,
    /// which `margo stream run` makes. Default: none, and then groups cannot be reached from other
    /// hosts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub security: Option<TcpSecurityOptions>,
    /// The groups by name.
    pub groups: BTreeMap<String, Group>,
    /// Settings of single edges, by the stages that they join: `"read->count"`.
    pub channels: BTreeMap<String, ChannelOptions>,
}

/// A group: a process that runs some of the stages. See [`GraphDocument`].
///
/// ```
/// use margo_stream::graph::{Group, GroupEndpoint};
///
/// let endpoint = GroupEndpoint { address: "na+sm://".to_owned(), ..GroupEndpoint::default() };
/// let group = Group {
///     stages: vec!["read".to_owned(), "count[0..2]".to_owned()],
///     endpoints: vec![endpoint],
///     cpus: Some("0-3".to_owned()),
///     ..Group::default()
/// };
/// let json = serde_json::json!({
///     "stages": ["read", "count[0..2]"],
///     "endpoints": [{ "address": "na+sm://" }],
///     "cpus": "0-3"
/// });
/// assert_eq!(serde_json::to_value(&group)?, json);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Group {
    /// The stages that it runs: a name, or some of the replicas: `"count[0..2]"`, `"count[3]"`.
    pub stages: Vec<String>,
    /// The program that it runs, and its arguments. Default: that of the document.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub program: Vec<String>,
    /// The host on which it is started, by its [launcher](Self::launcher). Default: that on which
    /// `margo stream run` was called.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The addresses at which it receives. May be empty if it receives nothing.
    pub endpoints: Vec<GroupEndpoint>,
    /// The endpoints at which it calls other groups: the endpoint's name, by that of the group.
    /// Default: the first one.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub via: BTreeMap<String, String>,
    /// The CPUs that it runs on, such as `"0-3,8"`: one execution stream for each. Default: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<String>,
    // Not a flattened `ChannelOptions`, with which unknown keys of a group would be passed over.
    /// Bytes that travel together on the edges that lead to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch_bytes: Option<usize>,
    /// Items that travel together there, at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch_items: Option<usize>,
    /// Bytes that it has of a sender, at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credit_bytes: Option<u64>,
    /// How it is started. Default: as the document says, or as a process of this host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub launcher: Option<Launcher>,
}

/// An address at which a group receives. See [`GraphDocument`].
///
/// ```
/// use margo_stream::graph::GraphDocument;
///
/// // Whoever starts first waits for the file, which has the port.
/// let document = GraphDocument::from_json(
///     r#"{ "groups": { "G1": { "stages": ["count"], "endpoints": [
///         { "name": "near", "address": "na+sm://" },
///         { "name": "far", "address": "na+tcp://0.0.0.0:0", "file": "g1.address" }
///     ] } } }"#,
/// )?;
/// let [near, far] = &document.groups["G1"].endpoints[..] else { panic!("two") };
/// assert_eq!((near.name.as_deref(), far.file.as_deref()), (Some("near"), Some("g1.address")));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GroupEndpoint {
    /// A name, by which other groups choose it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The address to listen on, such as `na+tcp://10.0.0.1:7000` or `na+sm://`.
    pub address: String,
    /// A file by which the other groups find it: the group writes its address there when it starts.
    /// Default: they call `address`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The ways to its metrics, with the figures of the group's edges: as `margo.metrics` of an
    /// instance. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics: Option<MetricsOptions>,
}

impl GroupEndpoint {
    /// The transport of its address.
    pub(crate) fn transport(&self) -> &str {
        self.address.split_once("://").map_or(&self.address, |(transport, _)| transport)
    }

    /// The address as others call it.
    pub(crate) fn address_to_call(&self) -> String {
        self.file.as_ref().map_or_else(|| self.address.clone(), |file| format!("@{file}"))
    }
}

/// Settings of an edge between groups. See [`GraphDocument`].
///
/// ```
/// use margo_stream::graph::{ChannelOptions, GraphDocument};
///
/// let mut document = GraphDocument::default();
/// let large = ChannelOptions { batch_bytes: Some(1 << 20), ..ChannelOptions::default() };
/// document.channels.insert("read->count".to_owned(), large);
/// let json = serde_json::to_value(&document)?;
/// assert_eq!(json["channels"]["read->count"], serde_json::json!({ "batch_bytes": 1 << 20 }));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ChannelOptions {
    /// Bytes that travel together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch_bytes: Option<usize>,
    /// Items that travel together, at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch_items: Option<usize>,
    /// Bytes that a receiver has of a sender, at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credit_bytes: Option<u64>,
}

impl ChannelOptions {
    /// These settings, and others where there are none.
    fn or(self, other: Self) -> Self {
        Self {
            batch_bytes: self.batch_bytes.or(other.batch_bytes),
            batch_items: self.batch_items.or(other.batch_items),
            credit_bytes: self.credit_bytes.or(other.credit_bytes),
        }
    }
}

/// How a group is started by `margo stream run`. See [`GraphDocument`].
///
/// ```
/// use margo_stream::graph::GraphDocument;
///
/// let document = GraphDocument::from_json(
///     r#"{ "program": ["./word_count", "docs"],
///         "launcher": { "before": ["srun", "-n1", "-w", "{host}"],
///                       "environment": { "RUST_LOG": "warn" } },
///         "groups": { "G1": { "stages": ["read"], "host": "node7" } } }"#,
/// )?;
/// let launcher = document.launcher.expect("it is there");
/// assert_eq!((launcher.before.len(), &*launcher.environment["RUST_LOG"]), (4, "warn"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Launcher {
    /// Words before the command of the program, such as `["srun", "-n1", "-w", "{host}"]` or
    /// `["ssh", "{host}"]`. `{host}` and `{group}` stand for those of the group.
    pub before: Vec<String>,
    /// Variables of its environment.
    pub environment: BTreeMap<String, String>,
    /// The last word of [`before`](Self::before) gives the command to a shell, which gets it as one
    /// word with quotes, and goes to the launcher's folder first. Default: `true` if the first word
    /// is `ssh` or a path to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shell: Option<bool>,
}

impl Group {
    /// Settings of the edges that lead to it.
    pub(crate) fn channel(&self) -> ChannelOptions {
        let Self { batch_bytes, batch_items, credit_bytes, .. } = *self;
        ChannelOptions { batch_bytes, batch_items, credit_bytes }
    }
}

impl GraphDocument {
    /// Reads a document. A group file of FastFlow's is one too, if its groups are called as the
    /// stages, or parts of stages, that they run; for others there is
    /// [`from_fastflow`](Self::from_fastflow).
    ///
    /// # Errors
    ///
    /// Syntax errors, wrong types, unknown and repeated keys, with positions in `text`.
    pub fn from_json(text: &str) -> Result<Self, Errors> {
        let is_wrong = |errors: &Errors| errors.iter().any(|error| error.path == "groups");
        let read = document_from_json(text);
        if read.as_ref().is_err_and(is_wrong) {
            // FastFlow has a list of groups.
            let other = Self::from_fastflow(text, |group| vec![group.to_owned()]);
            if !other.as_ref().is_err_and(is_wrong) {
                return other;
            }
        }
        read
    }

    /// The variable with the path of the secret of a run that has one of its own; see
    /// [`security`](Self::security).
    pub const SECRET: &str = "MARGO_STREAM_SECRET";

    /// Returns true if each run is to have a secret of its own.
    pub fn wants_secret(&self) -> bool {
        self.security.as_ref().is_some_and(|security| {
            security.mode == TcpSecurityMode::ClusterSecret && security.secret.is_none()
        })
    }

    /// The proof that groups ask for, with the secret of this run.
    pub(crate) fn security_of_run(&self) -> Option<TcpSecurityOptions> {
        let mut security = self.security.clone()?;
        if self.wants_secret() {
            security.secret = std::env::var(Self::SECRET).ok();
        }
        Some(security)
    }

    /// Reads a document from a file.
    ///
    /// # Errors
    ///
    /// [`GraphError::Document`]: the file cannot be read, and as [`from_json`](Self::from_json).
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, GraphError> {
        let path = path.as_ref();
        let text = std::fs::read_to_string(path).map_err(|error| {
            let error = Error::new(path.display().to_string(), error.to_string());
            GraphError::Document(Errors::from(error))
        })?;
        Self::from_json(&text).map_err(GraphError::Document)
    }

    /// The place of the endpoint at which a group calls another one.
    pub(crate) fn endpoint_for(&self, caller: &str, group: &str) -> usize {
        let named = self.groups[caller].via.get(group);
        let endpoints = &self.groups[group].endpoints;
        let is_it = |endpoint: &GroupEndpoint| named.is_some() && endpoint.name.as_ref() == named;
        endpoints.iter().position(is_it).unwrap_or(0)
    }

    /// Settings of an edge to a group.
    pub(crate) fn options(&self, edge: &str, group: &str) -> ChannelOptions {
        let own = self.channels.get(edge).copied().unwrap_or_default();
        own.or(self.groups[group].channel())
    }
}
