//! Layouts: who runs what in a server with so many xstreams.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The roles of the server's xstreams, of which each is pinned to a core of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Layout {
    /// One makes progress, the others run the handlers of one pool. With one xstream it does both.
    Shared,
    /// All serve one pool, in which progress is made as well.
    All,
    /// Each has a shard of one instance; clients name theirs.
    Shards,
    /// As `Shards`, but all clients name the first one, and the others help it with the handlers.
    /// The floor is `Shards` with the same number.
    Skewed,
    /// Each has an instance.
    Instances,
}

/// The instances of a server, and where clients find it.
#[derive(Debug)]
pub(crate) struct Service {
    /// A document for each instance.
    pub(crate) documents: Vec<Value>,
    /// Clients take one of them each, in turns.
    pub(crate) entries: Vec<Entry>,
}

/// A provider of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The index of its instance.
    pub(crate) instance: usize,
    /// The pool of its handlers.
    pub(crate) pool: String,
    /// The shard at which its requests arrive; `None`: whichever has the connection.
    pub(crate) shard: Option<u8>,
}

/// Handlers that wait at a shard before those behind them go to others.
const SHARE_FROM: u32 = 4;

/// The pool of handlers that an instance has once.
const POOL: &str = "work";

impl Layout {
    /// The layouts in which calls are spread over the xstreams by themselves.
    pub(crate) const ALL: [Self; 4] = [Self::Shared, Self::All, Self::Shards, Self::Instances];

    /// The word in ids.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Shared => "shared",
            Self::All => "all",
            Self::Shards => "shards",
            Self::Skewed => "skewed",
            Self::Instances => "instances",
        }
    }

    /// A server at `uri` with an xstream on each of `cores`.
    pub(crate) fn service(self, uri: &str, cores: &[usize]) -> Service {
        let xstreams = || cores.iter().map(|core| (*core, POOL.to_owned()));
        let one = |xstreams: Vec<(usize, String)>, progress: &str| Service {
            documents: vec![document(uri, &xstreams, &[progress.to_owned()], POOL)],
            entries: vec![Entry { instance: 0, pool: POOL.into(), shard: None }],
        };
        match self {
            Self::Shared if cores.len() > 1 => {
                let progress = (cores[0], "progress".to_owned());
                one([progress].into_iter().chain(xstreams().skip(1)).collect(), "progress")
            }
            Self::Shared | Self::All => one(xstreams().collect(), POOL),
            Self::Shards | Self::Skewed => {
                let pools: Vec<_> = (0..cores.len()).map(|at| format!("work{at}")).collect();
                let xstreams: Vec<_> = cores.iter().copied().zip(pools.iter().cloned()).collect();
                // Handlers of the first pool run in that of the shard.
                let entry =
                    |at| Entry { instance: 0, pool: pools[0].clone(), shard: Some(at as u8) };
                let mut document = document(uri, &xstreams, &pools, &pools[0]);
                let entries = match self {
                    Self::Skewed => {
                        document["margo"]["share_from"] = SHARE_FROM.into();
                        vec![entry(0)]
                    }
                    _ => (0..cores.len()).map(entry).collect(),
                };
                Service { documents: vec![document], entries }
            }
            Self::Instances => Service {
                documents: xstreams()
                    .map(|xstream| document(uri, &[xstream], &[POOL.into()], POOL))
                    .collect(),
                entries: (0..cores.len())
                    .map(|instance| Entry { instance, pool: POOL.into(), shard: None })
                    .collect(),
            },
        }
    }
}

/// An instance with an xstream for each core and pool, that makes progress in the pools `progress`
/// and never sleeps.
fn document(uri: &str, xstreams: &[(usize, String)], progress: &[String], handlers: &str) -> Value {
    let mut names: Vec<&str> = xstreams.iter().map(|(_, pool)| pool.as_str()).collect();
    names.dedup();
    let pools: Vec<_> = names.iter().map(|name| json!({ "name": name })).collect();
    let xstream = |(at, (core, pool)): (usize, &(usize, String))| {
        let scheduler = json!({ "pools": [pool] });
        json!({ "name": format!("xstream{at}"), "cpubind": core, "scheduler": scheduler })
    };
    let xstreams: Vec<_> = xstreams.iter().enumerate().map(xstream).collect();
    json!({
        "margo": { "address": uri, "shards": progress },
        "progress_spindown_msec": SPIN_MSEC,
        "rpc_pool": handlers,
        "argobots": { "pools": pools, "xstreams": xstreams },
    })
}

/// For how long progress is made without sleeping: for longer than a step takes.
pub(crate) const SPIN_MSEC: u32 = 3_600_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_layout_uses_each_core_once() {
        let all = Layout::ALL.into_iter().chain([Layout::Skewed]);
        for (layout, count) in all.flat_map(|layout| [(layout, 1), (layout, 3)]) {
            let cores = &[4, 5, 7][..count];
            let Service { documents, entries } = layout.service("na+sm://", cores);
            let xstreams = documents.iter().flat_map(|document| {
                document["argobots"]["xstreams"].as_array().unwrap().iter().cloned()
            });
            let bound: Vec<_> = xstreams.map(|xstream| xstream["cpubind"].clone()).collect();
            assert_eq!(bound, cores, "{layout:?}");
            let expected = match layout {
                Layout::Shared | Layout::All | Layout::Skewed => [1, 1],
                Layout::Shards => [1, count],
                Layout::Instances => [count, count],
            };
            assert_eq!([documents.len(), entries.len()], expected, "{layout:?}");
        }
    }
}
