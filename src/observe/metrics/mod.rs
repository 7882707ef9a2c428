//! The metrics of an instance: [`Metrics`], and the ways out of the process.
//!
//! | part | file |
//! |---|---|
//! | one snapshot of everything, from counters that are kept anyway | `collect.rs`, `process.rs` |
//! | RPCs, from the statistics if these are on | `rpcs.rs` |
//! | how old calls are, although none notes when it began | `marks.rs` |
//! | bytes exchanged with peers | `traffic.rs` |
//! | tables of the program's own figures | `tables.rs`, `publish.rs` |
//! | Prometheus text | `text.rs`, `families.rs` |
//! | the HTTP server (`margo.metrics.listen`), a thread of its own | `http.rs`, `http_request.rs` |
//! | the live page of that server | `page.rs`, `page.html` |
//! | the RPC (`margo.metrics.remote`) | `remote.rs` |
//!
//! [`StateDump`](crate::metrics::StateDump) is the same snapshot with facts that take longer to
//! find out.
//!
//! Nothing here runs on an execution stream, asks one, or waits for one: it works while all of
//! them are stuck, which is when people look. The exception is the RPC: its requests come in by
//! the progress ULT, as all do, and a thread answers.

mod families;
mod http;
mod http_request;
mod marks;
pub(crate) mod page;
pub(crate) mod process;
pub(crate) mod rpcs;
mod tables;
mod text;
mod traffic;
mod types;

pub(crate) use self::http::{Listener, Server};
pub(crate) use self::http_request::{Body, Content};
pub(crate) use self::marks::{Marks, Noted, Watched};
pub(crate) use self::tables::PublishedTables;
pub use self::tables::{
    Column, ColumnKind, ColumnMetrics, PublishedTable, RowMetrics, TableMetrics, TableSpec,
};
pub(crate) use self::traffic::{BegunTraffic, Traffic};
pub use self::types::{
    BlockingMetrics, BulkPoolMetrics, CurrentUnit, GateKind, GateMetrics, MemoryMetrics, Metrics,
    NetworkCounters, PeerCount, PeerMetrics, PeersMetrics, Phase, PhaseMetrics, PoolMetrics,
    ProcessMetrics, RpcEnd, RpcMetrics, ShardMetrics, Stats, XstreamMetrics,
};

/// The state that an instance keeps for its metrics.
pub(crate) struct MetricsState {
    pub(crate) started: std::time::Instant,
    pub(crate) marks: std::sync::Arc<Marks>,
    /// The instances whose calls the stall detector notes: this one, and its children.
    pub(crate) watched: std::sync::Arc<Watched>,
    pub(crate) server: Server,
    /// Bytes exchanged with peers.
    pub(crate) traffic: Traffic,
    /// Tables of the program.
    pub(crate) tables: std::sync::Arc<PublishedTables>,
    /// Peers may ask.
    pub(crate) remote: std::sync::atomic::AtomicBool,
}

impl MetricsState {
    pub(crate) fn new(watched: std::sync::Arc<Watched>, remote: bool) -> Self {
        Self {
            started: std::time::Instant::now(),
            marks: std::sync::Arc::default(),
            watched,
            server: Server::default(),
            traffic: Traffic::default(),
            tables: std::sync::Arc::default(),
            remote: std::sync::atomic::AtomicBool::new(remote),
        }
    }
}
