//! The acts of administration.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// An act of administration. See [`InstanceNetwork::administer`].
///
/// As JSON: `{"act": "start_provider", "provider": {"type": "blob", "provider_id": 3}}`.
///
/// ```
/// use margo::admin::AdminRequest;
///
/// let stop = r#"{"act": "stop_provider", "name": "blob_3", "limit_msec": 1000}"#;
/// let stop: AdminRequest = serde_json::from_str(stop)?;
/// assert!(stop.changes());
/// assert_eq!(stop.to_string(), "stop_provider blob_3");
/// # Ok::<(), serde_json::Error>(())
/// ```
///
/// [`InstanceNetwork::administer`]: crate::groups::InstanceNetwork::administer
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "act", rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum AdminRequest {
    /// Tells the address, and the names of providers, pools, execution streams, with what each
    /// refers to, and the number of shards.
    List {},
    /// Tells the configuration in effect, see [`Instance::config`](crate::Instance::config).
    Config {},
    /// Gives a setting another value: `margo.log_level`, `margo.metrics.remote`,
    /// `margo.progress_when_needed`, `margo.remote_shutdown`, or `statistics`, which are those of
    /// `margo.monitoring`, or its defaults, switched on or off.
    Set {
        /// The key of the document.
        key: String,
        /// As the document would have it.
        value: Value,
    },
    /// Starts a provider, of a type that the program has. It tells its name and its id.
    StartProvider {
        /// An entry as in `margo.providers`.
        provider: Value,
    },
    /// Has a provider take no more requests, waits for those in hand, and stops it. If some are
    /// left it goes on with these, and can be stopped again.
    StopProvider {
        /// The name.
        name: String,
        /// Also if others work with it. These find nothing in its place until one of its name and
        /// type is started, see [`Dependency`](crate::component::Dependency). Default false.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        needed: bool,
        /// How long to wait at most, milliseconds, and no longer than the caller. Default 10 s.
        #[serde(default = "limit_msec")]
        limit_msec: u64,
    },
    /// Has a provider take no more requests, and waits for those in hand.
    DrainProvider {
        /// The name.
        name: String,
        /// How long to wait at most, milliseconds, and no longer than the caller. Default 10 s.
        #[serde(default = "limit_msec")]
        limit_msec: u64,
    },
    /// Has the requests of a provider handled in another pool from now on.
    MoveProvider {
        /// The name.
        name: String,
        /// The name of the pool.
        pool: String,
    },
    /// Has a provider write what it holds to a folder on its host, which it makes.
    SnapshotProvider {
        /// The name.
        name: String,
        /// The folder.
        to: PathBuf,
    },
    /// Has a provider, which is empty, take over what a snapshot has.
    RestoreProvider {
        /// The name.
        name: String,
        /// The folder.
        from: PathBuf,
    },
    /// Adds a pool. It tells its name.
    AddPool {
        /// An entry as in `argobots.pools`.
        pool: Value,
    },
    /// Removes a pool that nothing uses.
    RemovePool {
        /// The name.
        name: String,
    },
    /// Adds an execution stream. It tells its name.
    AddXstream {
        /// An entry as in `argobots.xstreams`.
        xstream: Value,
    },
    /// Removes an execution stream, when it has ended what it runs.
    RemoveXstream {
        /// The name.
        name: String,
    },
    /// Adds a shard. It tells its number.
    AddShard {},
    /// Removes a shard.
    RemoveShard {
        /// The number.
        shard: usize,
    },
}

fn limit_msec() -> u64 {
    10_000
}

impl AdminRequest {
    /// Returns whether it changes something, or only looks.
    pub fn changes(&self) -> bool {
        !matches!(self, Self::List {} | Self::Config {})
    }
}

/// The act, and the name or number of its object.
impl fmt::Display for AdminRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name_of = |entry: &Value| match entry.get("name").or_else(|| entry.get("type")) {
            Some(Value::String(name)) => name.clone(),
            _ => "?".to_owned(),
        };
        let (act, object) = match self {
            Self::List {} => ("list", None),
            Self::Config {} => ("config", None),
            Self::Set { key, value } => ("set", Some(format!("{key} {value}"))),
            Self::StartProvider { provider } => ("start_provider", Some(name_of(provider))),
            Self::StopProvider { name, .. } => ("stop_provider", Some(name.clone())),
            Self::DrainProvider { name, .. } => ("drain_provider", Some(name.clone())),
            Self::MoveProvider { name, .. } => ("move_provider", Some(name.clone())),
            Self::SnapshotProvider { name, .. } => ("snapshot_provider", Some(name.clone())),
            Self::RestoreProvider { name, .. } => ("restore_provider", Some(name.clone())),
            Self::AddPool { pool } => ("add_pool", Some(name_of(pool))),
            Self::RemovePool { name } => ("remove_pool", Some(name.clone())),
            Self::AddXstream { xstream } => ("add_xstream", Some(name_of(xstream))),
            Self::RemoveXstream { name } => ("remove_xstream", Some(name.clone())),
            Self::AddShard {} => ("add_shard", None),
            Self::RemoveShard { shard } => ("remove_shard", Some(shard.to_string())),
        };
        write!(f, "{act}")?;
        // It may be of any length, and goes to logs.
        let shown = |object: String| object.chars().take(200).collect::<String>();
        object.map_or(Ok(()), |object| write!(f, " {}", shown(object).escape_debug()))
    }
}
