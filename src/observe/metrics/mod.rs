//! The metrics of an instance: [`Metrics`], and the ways out of the process.
//!
//! | part | file |
//! |---|---|
//! | one snapshot of everything, from counters that are kept anyway | `collect.rs`, `process.rs` |
//! | RPCs, from the statistics if these are on | `rpcs.rs` |
//! | how old calls are, although none notes when it began | `marks.rs` |
//! | Prometheus text | `text.rs`, `families.rs` |
//! | the HTTP server (`margo.metrics.listen`), a thread of its own | `http.rs`, `request.rs` |
//! | the RPC (`margo.metrics.remote`) | `remote.rs` |
//!
//! [`StateDump`](crate::StateDump) is the same snapshot with facts that take longer to find out.
//!
//! Nothing here runs on an execution stream, asks one, or waits for one: it works while all of
//! them are stuck, which is when people look. The exception is the RPC: its requests come in by
//! the progress ULT, as all do, and a thread answers.

mod families;
mod http;
mod marks;
pub(crate) mod process;
mod request;
pub(crate) mod rpcs;
mod text;
mod types;

use std::net::SocketAddr;

pub(crate) use self::http::{Listener, Server};
pub(crate) use self::marks::{Marks, Watched};
pub use self::types::{
    BulkPoolMetrics, ContextMetrics, CurrentUnit, GateKind, GateMetrics, MemoryMetrics, Metrics,
    NetworkCounters, PeerCount, PeerMetrics, PeersMetrics, Phase, PhaseMetrics, PoolMetrics,
    ProcessMetrics, RpcEnd, RpcMetrics, XstreamMetrics,
};
use crate::Instance;

impl Instance {
    /// Returns the metrics of this instance, at the moment and since its start: gauges and counters
    /// of pools, execution streams, progress, admission, peers, memory and the process.
    ///
    /// May be called from anywhere but signal handlers, at any time, also while execution streams
    /// are stuck and after the end. Takes some tens of microseconds, most of them for figures that
    /// the operating system keeps, about one more for each peer, and some for each call path of
    /// statistics. The parts are not of one moment: the instance goes on meanwhile. In a child
    /// process that was forked off there are address, phase and process only: the rest is the
    /// parent's.
    ///
    /// Counters never go back, but for those of RPCs, which are the statistics':
    /// [`reset_statistics`](Instance::reset_statistics) begins them anew, and a call whose result
    /// turns out to be undecodable goes over from the outcome `ok` to `decode`.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let instance = margo::Instance::builder("na+sm://").start()?;
    /// let metrics = instance.metrics();
    /// assert_eq!(metrics.pools[0].name, "__primary__");
    /// println!("{}", metrics.prometheus());
    /// # instance.finalize_and_wait()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Counterpart: none in one call; parts are in `margo_get_num_progress_calls`,
    /// `HG_Class_get_counters` and `ABT_info_print_all_xstreams`.
    pub fn metrics(&self) -> Metrics {
        crate::report::collect::collect(self.inner())
    }

    /// Where the server of `margo.metrics.listen` listens: with port 0 in the configuration, this
    /// is the one that it got. `None`: there is no such server, or it has ended with the instance.
    pub fn metrics_addr(&self) -> Option<SocketAddr> {
        self.inner().metrics.server.address()
    }
}

/// The state that an instance keeps for its metrics.
pub(crate) struct State {
    pub(crate) started: std::time::Instant,
    pub(crate) marks: std::sync::Arc<Marks>,
    /// The instances whose calls the stall detector notes: this one, and its children.
    pub(crate) watched: std::sync::Arc<Watched>,
    pub(crate) server: Server,
    /// Peers may ask.
    pub(crate) remote: std::sync::atomic::AtomicBool,
    pub(crate) asked: crate::report::remote::Asked,
    pub(crate) bulk_pools: crate::memory::pool::Pools,
}

impl State {
    pub(crate) fn new(watched: std::sync::Arc<Watched>, remote: bool) -> Self {
        Self {
            started: std::time::Instant::now(),
            marks: std::sync::Arc::default(),
            watched,
            server: Server::default(),
            remote: std::sync::atomic::AtomicBool::new(remote),
            asked: crate::report::remote::Asked::default(),
            bulk_pools: crate::memory::pool::Pools::default(),
        }
    }
}
