//! The types that make up a snapshot.
//!
//! All of it can be read back from the output of another version: a field that is missing there has
//! its default here, a field that is not known here is passed over, and a word that is not known is
//! `Unknown`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The work that an instance has done since it started. A snapshot.
///
/// ```
/// use margo::{Instance, Rpc};
///
/// const PING: Rpc<(), ()> = Rpc::new("ping");
///
/// let instance = Instance::builder("na+sm://").start()?;
/// instance.serve(PING).function(|()| ())?;
/// instance.forward(PING, &instance.self_addr().into(), &())?;
/// let stats = instance.monitoring().stats();
/// assert_eq!((stats.requests_sent, stats.requests_received), (1, 1));
/// assert_eq!(stats.handlers_panicked, 0);
/// # instance.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Stats {
    /// Requests sent.
    pub requests_sent: u64,
    /// Requests received.
    pub requests_received: u64,
    /// Bulk transfers that this instance asked for.
    pub bulk_transfers: u64,
    /// Handlers that ran to their end or panicked; those that left their request to another ULT
    /// count when it is answered. Not those whose [arguments](Self::arguments_undecodable) could
    /// not be decoded.
    pub handlers_run: u64,
    /// Handlers that panicked.
    pub handlers_panicked: u64,
    /// Requests refused because the instance was shutting down or no ULT could be made.
    pub requests_refused: u64,
    /// Those of them for whose handler no ULT could be made: its pool had been removed, or there
    /// was no memory for a stack.
    pub requests_no_ult: u64,
    /// Requests refused because a bound on requests in hand was reached.
    pub requests_busy: u64,
    /// Requests refused because no rule of `margo.security` allows them, or one denies them.
    pub requests_not_allowed: u64,
    /// Requests refused because their caller was over its limit (`margo.security.limits`).
    pub requests_over_limit: u64,
    /// Requests whose handler was not run because their origin waited no more: the deadline had
    /// passed, the origin had canceled the call, or was gone. (Requests without a response are
    /// handled for an origin that is gone, too.)
    pub requests_abandoned: u64,
    /// Requests whose arguments could not be decoded.
    pub arguments_undecodable: u64,
    /// Times that the stall detector (`margo.stall_limit_msec`) found a unit which held its
    /// execution stream, or a pool whose units waited, too long. With a parent, it counts there; in
    /// a runtime of the program's, at the first of its instances.
    pub stalls: u64,
}

/// Declares plain data of a snapshot.
macro_rules! plain {
    ($($(#[$meta:meta])* $name:ident {
        $($(#[$field_meta:meta])* $field:ident: $type:ty,)*
    })*) => {$(
        $(#[$meta])*
        #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
        #[serde(default)]
        #[non_exhaustive]
        pub struct $name {
            $($(#[$field_meta])* pub $field: $type,)*
        }
    )*};
}

/// The phase of an instance's life.
///
/// ```
/// use margo::{Instance, metrics::Phase};
///
/// let instance = Instance::builder("na+sm://").start()?;
/// assert_eq!(instance.metrics().phase, Phase::Running);
/// instance.finalize_and_wait()?;
/// assert_eq!(instance.metrics().phase, Phase::Finalized);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Phase {
    /// It takes requests, if it listens.
    #[default]
    Running,
    /// [`Instance::finalize`](crate::Instance::finalize) has begun.
    Finalizing,
    /// It has come to its end.
    Finalized,
    /// A version that is not known here says something else.
    #[serde(other)]
    Unknown,
}

/// The pool or RPC that a gate is in front of.
///
/// ```
/// # use margo::{Instance, Rpc, config::Admission, metrics::GateKind};
/// # const PING: Rpc<(), ()> = Rpc::new("ping");
/// let instance = Instance::builder("na+sm://").start()?;
/// instance.serve(PING).admission(Admission::new(8)).function(|()| ())?;
/// for gate in instance.metrics().gates {
///     match gate.kind {
///         GateKind::Rpc => assert_eq!(gate.name, "ping"),
///         _ => println!("pool {}", gate.name),
///     }
/// }
/// # instance.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum GateKind {
    /// A pool.
    #[default]
    Pool,
    /// One RPC, in addition to the gate of its pool.
    Rpc,
    /// A version that is not known here says something else.
    #[serde(other)]
    Unknown,
}

/// The side of an RPC: its origin or its target.
///
/// ```
/// use margo::{Instance, Rpc, metrics::RpcEnd};
///
/// const PING: Rpc<(), ()> = Rpc::new("ping");
///
/// let instance = Instance::builder("na+sm://").start()?;
/// instance.monitoring().start_statistics(1);
/// instance.serve(PING).function(|()| ())?;
/// instance.forward(PING, &instance.self_addr().into(), &())?;
/// let rpcs = instance.metrics().rpcs;
/// // It has called itself, so it has both ends.
/// assert!(rpcs.iter().any(|rpc| rpc.name == "ping" && rpc.end == RpcEnd::Origin));
/// assert!(rpcs.iter().any(|rpc| rpc.name == "ping" && rpc.end == RpcEnd::Target));
/// # instance.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RpcEnd {
    /// Requests that this instance handles.
    #[default]
    Target,
    /// Calls that it makes.
    Origin,
    /// A version that is not known here says something else.
    #[serde(other)]
    Unknown,
}

plain! {
    /// Counts of the threads for [`ult::blocking`] and of their work; see [`ult::BlockingStats`].
    ///
    /// ```
    /// let instance = margo::Instance::builder("na+sm://").start()?;
    /// let handler = instance.layout().rpc_pool().spawn(|| ult::blocking(|| 6 * 7))?;
    /// assert_eq!(handler.join()?, 42);
    /// let blocking = instance.metrics().blocking;
    /// println!("{} threads, {} closures done", blocking.threads, blocking.done);
    /// assert_eq!(blocking.queued, 0);
    /// # instance.finalize_and_wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    BlockingMetrics {
        /// Threads that exist.
        threads: usize,
        /// Closures that run.
        running: usize,
        /// Closures that wait for a thread.
        queued: usize,
        /// Closures that have run to their end.
        done: u64,
    }

    /// An instance at about one moment; see [`Instance::metrics`](crate::Instance::metrics).
    ///
    /// ```
    /// use margo::{Instance, Metrics};
    ///
    /// let instance = Instance::builder("na+sm://").start()?;
    /// let metrics = instance.metrics();
    /// assert_eq!(metrics.address, instance.self_addr().uri());
    /// println!("{} handlers run, for {} s", metrics.handlers_running, metrics.uptime_sec);
    ///
    /// // A collector elsewhere reads the JSON again.
    /// let json = serde_json::to_string(&metrics)?;
    /// assert_eq!(serde_json::from_str::<Metrics>(&json)?.address, metrics.address);
    /// # instance.finalize_and_wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    Metrics {
        /// Version of margo.
        version: String,
        /// Address of the instance.
        address: String,
        /// Where it is in its life.
        phase: Phase,
        /// Seconds since its start.
        uptime_sec: f64,
        /// The end of its certificate (`margo.security.tcp`), seconds since 1970; `None`: it has
        /// none.
        certificate_expires_unix_sec: Option<u64>,
        /// Handlers that have begun and not ended.
        handlers_running: usize,
        /// The work that it has done.
        stats: Stats,
        /// Closures of [`ult::blocking`] in its runtime.
        blocking: BlockingMetrics,
        /// The work that its RPC layer has done.
        network: NetworkCounters,
        /// One for each shard, in the order of their numbers.
        shards: Vec<ShardMetrics>,
        /// In the order of the configuration, then those added since.
        pools: Vec<PoolMetrics>,
        /// In the order of the configuration, then those added since.
        xstreams: Vec<XstreamMetrics>,
        /// Bounds on requests in hand (`margo.admission`).
        gates: Vec<GateMetrics>,
        /// RPCs by name and provider, those that it serves and those that it calls; empty as long
        /// as the [`statistics`](crate::groups::InstanceMonitoring::statistics) have not been on.
        /// Their counts stay when the statistics are switched off.
        rpcs: Vec<RpcMetrics>,
        /// True if those are on; `None`: it is of a version that does not say.
        statistics: Option<bool>,
        /// Whom it is connected with.
        peers: PeersMetrics,
        /// Memory of the instance.
        memory: MemoryMetrics,
        /// The process that it is in.
        process: ProcessMetrics,
        /// Figures that the program has [published](crate::groups::InstanceMonitoring::publish).
        tables: Vec<super::TableMetrics>,
    }

    /// The work that the RPC layer has done, over all shards.
    ///
    /// ```
    /// use margo::{Instance, Rpc};
    ///
    /// const PING: Rpc<(), ()> = Rpc::new("ping");
    ///
    /// let instance = Instance::builder("na+sm://").start()?;
    /// instance.serve(PING).function(|()| ())?;
    /// instance.forward(PING, &instance.self_addr().into(), &())?;
    /// let network = instance.metrics().network;
    /// assert_eq!((network.requests_sent, network.responses_received), (1, 1));
    /// assert_eq!((network.malformed, network.not_registered), (0, 0));
    /// # instance.finalize_and_wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Counterpart: `HG_Class_get_counters`.
    NetworkCounters {
        /// Requests sent.
        requests_sent: u64,
        /// Requests received.
        requests_received: u64,
        /// Responses sent.
        responses_sent: u64,
        /// Responses received.
        responses_received: u64,
        /// Requests, sent or received, that did not fit into a message.
        requests_overflowed: u64,
        /// Responses, sent or received, that did not fit into a message.
        responses_overflowed: u64,
        /// Bulk transfers asked for here.
        bulk_transfers: u64,
        /// Bytes that these have moved, either way.
        bulk_bytes: u64,
        /// Bytes handed over to peers by connections that count them, with all that goes around the
        /// messages. Bulk data is in it where it passes through the connection. What went to a
        /// peer that is not known any more counts as far as the last snapshot had it.
        sent_bytes: u64,
        /// Bytes that have come from peers; likewise. Over sm they are not counted.
        received_bytes: u64,
        /// Messages of peers that could not be read or fetched.
        malformed: u64,
        /// Malformed messages whose checksum was wrong.
        checksum_errors: u64,
        /// Requests that got memory of their own because too many held the large buffers.
        requests_beyond_buffers: u64,
        /// Responses of ours that were damaged when they arrived, as their origins said.
        responses_unread: u64,
        /// Introductions and requests of peers whose proof that they are members of our cluster was
        /// not right (`margo.security.fabrics`).
        proofs_refused: u64,
        /// Requests refused because their RPC is not registered, or not served, here.
        not_registered: u64,
        /// Calls and answers given up.
        canceled: u64,
    }

    /// One shard and its progress ULT.
    ///
    /// ```
    /// let instance = margo::init(r#"{ "margo": { "address": "na+sm://", "shards": 2 } }"#)?;
    /// for shard in instance.metrics().shards {
    ///     println!("{}: {} polls in {}", shard.index, shard.polls, shard.progress_pool);
    ///     assert!(!shard.removed && shard.in_flight == 0);
    /// }
    /// # instance.finalize_and_wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ShardMetrics {
        /// The number of the shard.
        index: usize,
        /// It was removed, and goes on for the connections that it has.
        removed: bool,
        /// Pool of its progress ULT.
        progress_pool: String,
        /// Operations that callers wait for, and answers on their way.
        in_flight: usize,
        /// Requests that hold the place of a receive: arrived and not decoded.
        requests_held: usize,
        /// Receives that wait for requests.
        receives_posted: usize,
        /// Rounds of its progress loop, to some hundred.
        polls: u64,
        /// Completions that it has found.
        events: u64,
        /// Times that it had nothing to do and gave its execution stream up, perhaps to sleep.
        sleeps: u64,
    }

    /// One pool.
    ///
    /// ```
    /// let instance = margo::Instance::builder("na+sm://").start()?;
    /// instance.layout().rpc_pool().spawn(|| ())?.join()?;
    /// let pool = &instance.metrics().pools[0];
    /// assert_eq!((&*pool.name, &*pool.xstreams[0]), ("__primary__", "__primary__"));
    /// println!("{} of {} ULTs suspended", pool.blocked, pool.alive);
    /// assert!(pool.created >= 1);
    /// # instance.finalize_and_wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    PoolMetrics {
        /// The name.
        name: String,
        /// In which order units leave, as in the configuration.
        kind: String,
        /// Runnable units that wait for their turn.
        waiting: usize,
        /// Seconds for which the oldest of them has waited, at least; as precise as
        /// [`PeerMetrics::oldest_call_sec`]. `None`: none has waited for longer than that. Units
        /// that were moved from here to other pools count as if they waited here.
        oldest_wait_sec: Option<f64>,
        /// Units that have not ended: waiting, running or suspended.
        alive: u64,
        /// ULTs that are suspended: they wait for something.
        blocked: u64,
        /// Units spawned into it.
        created: u64,
        /// Units that ran to their end.
        finished: u64,
        /// Times that a unit was switched to.
        executed: u64,
        /// Times that a ULT yielded.
        yields: u64,
        /// The xstreams that serve it.
        xstreams: Vec<String>,
    }

    /// One execution stream.
    ///
    /// ```
    /// let instance = margo::Instance::builder("na+sm://").start()?;
    /// let xstream = &instance.metrics().xstreams[0];
    /// assert_eq!((&*xstream.name, &*xstream.pools[0]), ("__primary__", "__primary__"));
    /// println!("{}, has slept for {} s", xstream.state, xstream.slept_sec);
    /// # instance.finalize_and_wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    XstreamMetrics {
        /// The name.
        name: String,
        /// `running`, `idle`, `joining`, `terminated`, `removed`.
        state: String,
        /// CPUs that it stays on; empty: any.
        cpus: Vec<usize>,
        /// Pools that it serves, most urgent first.
        pools: Vec<String>,
        /// ULTs at home here.
        ults: usize,
        /// Stacks that exist here, in use or kept for reuse.
        stacks: usize,
        /// Times that a unit has run here until it yielded, suspended or ended.
        executed: u64,
        /// Times that it slept.
        sleeps: u64,
        /// Seconds that it has slept. The rest of the time it has run units, polled the network, or
        /// looked for work.
        slept_sec: f64,
        /// The unit that it runs, if that is known: see [`ult::XstreamRef::current_unit`].
        current: Option<CurrentUnit>,
    }

    /// The unit that an execution stream runs.
    ///
    /// ```
    /// let instance = margo::Instance::builder("na+sm://").start()?;
    /// for xstream in instance.metrics().xstreams {
    ///     if let Some(unit) = xstream.current {
    ///         let name = unit.name.as_deref().unwrap_or("a unit");
    ///         println!("{} runs {name} (number {}, pool {})", xstream.name, unit.id, unit.pool);
    ///     }
    /// }
    /// # instance.finalize_and_wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    CurrentUnit {
        /// The number.
        id: u64,
        /// The name of its RPC, if it is a handler.
        name: Option<String>,
        /// The pool.
        pool: String,
    }

    /// A gate of admission control and the requests at it.
    ///
    /// ```
    /// use margo::{Instance, Rpc, config::Admission, metrics::GateKind};
    ///
    /// const PING: Rpc<(), ()> = Rpc::new("ping");
    ///
    /// let instance = Instance::builder("na+sm://").start()?;
    /// instance.serve(PING).admission(Admission::new(8)).function(|()| ())?;
    /// let gates = instance.metrics().gates;
    /// let ping = gates.iter().find(|gate| gate.kind == GateKind::Rpc && gate.name == "ping");
    /// let ping = ping.expect("it has a bound of its own");
    /// assert_eq!((ping.handlers_max, ping.in_hand, ping.refused), (8, 0, 0));
    /// # instance.finalize_and_wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    GateMetrics {
        /// The kind of thing that it is in front of.
        kind: GateKind,
        /// The name of the pool, or of the RPC.
        name: String,
        /// The provider of the RPC.
        provider: Option<u16>,
        /// Handlers that have been made and have not ended.
        in_hand: usize,
        /// Most of these at once.
        handlers_max: usize,
        /// Requests that wait in front of it.
        waiting: usize,
        /// Requests that were refused at it.
        refused: u64,
    }

    /// One end of an RPC: all peers and call paths of
    /// [`statistics`](crate::groups::InstanceMonitoring::statistics) together.
    ///
    /// ```
    /// use margo::{Instance, Rpc, metrics::RpcEnd};
    ///
    /// const PING: Rpc<(), ()> = Rpc::new("ping");
    ///
    /// let instance = Instance::builder("na+sm://").start()?;
    /// instance.monitoring().start_statistics(1);
    /// instance.serve(PING).function(|()| ())?;
    /// instance.forward(PING, &instance.self_addr().into(), &())?;
    /// let rpcs = instance.metrics().rpcs;
    /// let calls = rpcs.iter().find(|rpc| rpc.end == RpcEnd::Origin).expect("it made one");
    /// assert_eq!((&*calls.name, calls.begun, calls.outcomes["ok"]), ("ping", 1, 1));
    /// # instance.finalize_and_wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    RpcMetrics {
        /// Which end.
        end: RpcEnd,
        /// The name; its number, if the name is not known here.
        name: String,
        /// The provider.
        provider: u16,
        /// Calls that have begun; requests that were admitted or refused.
        begun: u64,
        /// Those that have not ended.
        in_flight: u64,
        /// Those that have, by outcome: `ok`, `busy`, `timed_out` …
        outcomes: BTreeMap<String, u64>,
        /// Times. Of a call: `network`, `wake`, `total`; of a request: `queue`, `run`, `bulk`,
        /// `respond`, `total`; see [`OriginFigures`](crate::observe::monitor::OriginFigures) and
        /// [`TargetFigures`](crate::observe::monitor::TargetFigures).
        phases: BTreeMap<String, PhaseMetrics>,
    }

    /// How long a phase of calls took, since the statistics were switched on. Where not each call
    /// is timed, these are estimates for all.
    ///
    /// ```
    /// # use margo::{Instance, Rpc, metrics::RpcEnd};
    /// # const PING: Rpc<(), ()> = Rpc::new("ping");
    /// # let instance = Instance::builder("na+sm://").start()?;
    /// instance.monitoring().start_statistics(1);
    /// # instance.serve(PING).function(|()| ())?;
    /// instance.forward(PING, &instance.self_addr().into(), &())?;
    /// let rpcs = instance.metrics().rpcs;
    /// let calls = rpcs.iter().find(|rpc| rpc.end == RpcEnd::Origin).expect("it made one");
    /// let total = &calls.phases["total"];
    /// assert_eq!(total.count, 1);
    /// println!("99 % within {} s, mean {} s", total.p99_sec, total.sum_sec / total.count as f64);
    /// # instance.finalize_and_wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    PhaseMetrics {
        /// How many there were.
        count: u64,
        /// All of them together, seconds.
        sum_sec: f64,
        /// Half of them took no longer.
        p50_sec: f64,
        /// 99 % of them took no longer.
        p99_sec: f64,
        /// The longest that was seen.
        max_sec: f64,
        /// How many took no longer than so many seconds, for growing times.
        buckets: Vec<(f64, u64)>,
    }

    /// The peers of an instance.
    ///
    /// ```
    /// # use margo::{Instance, Rpc};
    /// # const PING: Rpc<(), ()> = Rpc::new("ping");
    /// # let service = Instance::builder("na+sm://").start()?;
    /// # service.serve(PING).function(|()| ())?;
    /// # let client = Instance::builder("na+sm://").listen(false).start()?;
    /// # let target = client.lookup(service.self_addr().uri())?.into();
    /// client.forward(PING, &target, &())?;
    /// let peers = client.metrics().peers;
    /// assert_eq!((peers.total(), peers.calls_in_flight), (1, 0));
    /// assert_eq!(peers.connected()["sm"], 1);
    /// # client.finalize_and_wait()?;
    /// # service.finalize_and_wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    PeersMetrics {
        /// How many there are of each kind.
        counts: Vec<PeerCount>,
        /// Some of them: those with the oldest calls first, and not more than 1000.
        list: Vec<PeerMetrics>,
        /// Calls whose response has not come, to all of them.
        calls_in_flight: usize,
        /// Seconds since the oldest of these calls began, at least; see
        /// [`PeerMetrics::oldest_call_sec`].
        oldest_call_sec: Option<f64>,
    }

    /// Peers of one kind.
    ///
    /// ```
    /// # use margo::{Instance, Rpc};
    /// # const PING: Rpc<(), ()> = Rpc::new("ping");
    /// # let service = Instance::builder("na+sm://").start()?;
    /// # service.serve(PING).function(|()| ())?;
    /// # let client = Instance::builder("na+sm://").listen(false).start()?;
    /// # let target = client.lookup(service.self_addr().uri())?.into();
    /// client.forward(PING, &target, &())?;
    /// for kind in client.metrics().peers.counts {
    ///     println!("{} peers over {} are {}", kind.count, kind.transport, kind.link);
    ///     assert_eq!((kind.count, &*kind.transport, &*kind.link), (1, "sm", "connected"));
    /// }
    /// # client.finalize_and_wait()?;
    /// # service.finalize_and_wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    PeerCount {
        /// The transport that reaches them: `sm`, `tcp` …
        transport: String,
        /// `idle`, `connecting`, `connected`, `gone`.
        link: String,
        /// How many.
        count: usize,
    }

    /// One peer.
    ///
    /// ```
    /// # use margo::{Instance, Rpc};
    /// # const PING: Rpc<(), ()> = Rpc::new("ping");
    /// # let service = Instance::builder("na+sm://").start()?;
    /// # service.serve(PING).function(|()| ())?;
    /// # let client = Instance::builder("na+sm://").listen(false).start()?;
    /// # let target = client.lookup(service.self_addr().uri())?.into();
    /// client.forward(PING, &target, &())?;
    /// let peer = &client.metrics().peers.list[0];
    /// assert_eq!((&*peer.address, &*peer.transport), (service.self_addr().uri(), "sm"));
    /// assert!(peer.principal.as_ref().is_some_and(|who| who.starts_with("user ")));
    /// assert!(peer.calls_in_flight == 0 && peer.oldest_call_sec.is_none());
    /// # client.finalize_and_wait()?;
    /// # service.finalize_and_wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    PeerMetrics {
        /// The address.
        address: String,
        /// The transport that reaches it.
        transport: String,
        /// `idle`: there is no connection; `connecting`, `connected`, `gone`.
        link: String,
        /// The user, host or name behind it, in the words of [`Principal`](crate::Principal).
        /// `None`: not known, or not the same for all that say that they have this address.
        principal: Option<String>,
        /// Calls to it whose response has not come.
        calls_in_flight: usize,
        /// Seconds since the oldest of these calls began, at least. The truth is higher by an
        /// eighth at most, and by a fourth of `margo.stall_limit_msec` (250 ms at most); for a
        /// stall limit of 0, and in a runtime of the program's that has a
        /// [monitor](ult::RuntimeBuilder::monitor) of its own, by the time since the snapshot
        /// before. `None`: none is older than that.
        oldest_call_sec: Option<f64>,
        /// Bytes handed over for it, with everything around the messages, while it is known;
        /// `None`: not counted. Bulk data in shared memory is not in it.
        sent_bytes: Option<u64>,
        /// Bytes that have come from it.
        received_bytes: Option<u64>,
        /// Messages handed over for it, while it is known: requests, responses, and what goes
        /// with them; `None`: not counted.
        sent_messages: Option<u64>,
        /// Messages that have come from it.
        received_messages: Option<u64>,
    }

    /// Memory of an instance.
    ///
    /// ```
    /// use margo::{Access, Instance};
    ///
    /// let instance = Instance::builder("na+sm://").start()?;
    /// let before = instance.metrics().memory;
    /// let exposed = instance.expose(vec![0; 1000], Access::ReadOnly)?;
    /// let memory = instance.metrics().memory;
    /// assert_eq!(memory.regions, before.regions + 1);
    /// assert_eq!(memory.region_bytes, before.region_bytes + 1000);
    /// # drop(exposed);
    /// # instance.finalize_and_wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    MemoryMetrics {
        /// Stacks of ULTs that exist, in use or kept.
        stacks: usize,
        /// Registrations of memory for bulk transfers, the instance's own included.
        regions: usize,
        /// Bytes of these; what is registered twice counts twice.
        region_bytes: u64,
        /// Taken so far for the large buffers that requests share, bytes.
        request_buffer_bytes: usize,
        /// Bytes of long results that are kept until their origins have fetched them, cancel or are
        /// gone, or, after 60 s, until others need the room; `margo.overflow_held_max` bounds them,
        /// but for up to 16 MiB of answers to
        /// [`InstanceNetwork::metrics_of`](crate::groups::InstanceNetwork::metrics_of).
        result_bytes_kept: usize,
        /// Bytes of device memory that this side has copied through buffers of the host.
        device_staged_bytes: u64,
        /// Bytes that it has copied between device memories, of its own or mapped ones of other
        /// processes (`margo.device.share`).
        device_shared_bytes: u64,
        /// Pieces of such memory that are mapped.
        device_mappings: usize,
        /// Bytes of these.
        device_mapped_bytes: u64,
        /// The classes of all [`BulkPool`](crate::bulk_memory::BulkPool)s.
        bulk_pools: Vec<BulkPoolMetrics>,
    }

    /// A class of buffers of a [`BulkPool`](crate::bulk_memory::BulkPool).
    ///
    /// ```
    /// use margo::{Instance, bulk_memory::BulkPoolSpec};
    ///
    /// let instance = Instance::builder("na+sm://").start()?;
    /// let pool = instance.memory().bulk_pool(&BulkPoolSpec::new().class(4096, 8))?;
    /// let buffer = pool.get(100)?;
    /// let class = &instance.metrics().memory.bulk_pools[0];
    /// assert_eq!((class.buffer_bytes, class.buffers, class.free), (4096, 8, 7));
    /// # drop(buffer);
    /// # instance.finalize_and_wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    BulkPoolMetrics {
        /// Which pool, in the order in which they were made.
        pool: u64,
        /// Bytes of each buffer.
        buffer_bytes: usize,
        /// Buffers.
        buffers: usize,
        /// Buffers that are free.
        free: usize,
        /// Callers that wait for a buffer.
        waiting: usize,
        /// Buffers given out.
        gets: u64,
        /// Those of them that were waited for.
        waits: u64,
    }

    /// The process that an instance is in.
    ///
    /// ```
    /// let instance = margo::Instance::builder("na+sm://").start()?;
    /// let process = instance.metrics().process;
    /// assert_eq!(process.id, std::process::id());
    /// println!("{} bytes resident, {} s of CPU time", process.resident_bytes, process.cpu_sec);
    /// # instance.finalize_and_wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ProcessMetrics {
        /// The number.
        id: u32,
        /// When it started, seconds since 1970; 0: the system does not tell.
        start_sec: f64,
        /// CPU time that it has used, seconds.
        cpu_sec: f64,
        /// Bytes of memory that it occupies; 0: the system does not tell.
        resident_bytes: u64,
        /// Bytes of its address space; 0: the system does not tell.
        virtual_bytes: u64,
        /// File descriptors that it has open; `None`: the system does not tell.
        open_fds: Option<u64>,
        /// Descriptors that it may have open.
        max_fds: Option<u64>,
        /// OS threads; 0: the system does not tell.
        threads: u64,
    }
}

impl PeersMetrics {
    /// Peers in all.
    pub fn total(&self) -> usize {
        self.counts.iter().fold(0, |sum, kind| sum.saturating_add(kind.count))
    }

    /// Connections by transport: those of `counts` whose link is `connected`.
    pub fn connected(&self) -> BTreeMap<&str, usize> {
        let connected = self.counts.iter().filter(|kind| kind.link == "connected");
        connected.map(|kind| (kind.transport.as_str(), kind.count)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_later_version_says_is_readable() {
        let text = r#"{ "phase": "hibernating", "new": [{}],
            "gates": [{ "kind": "peer", "name": "x" }],
            "rpcs": [{ "end": "relay", "begun": 7 }] }"#;
        let metrics: Metrics = serde_json::from_str(text).unwrap();
        assert_eq!(metrics.phase, Phase::Unknown);
        assert_eq!((metrics.gates[0].kind, &*metrics.gates[0].name), (GateKind::Unknown, "x"));
        assert_eq!((metrics.rpcs[0].end, metrics.rpcs[0].begun), (RpcEnd::Unknown, 7));
        let text = metrics.prometheus();
        assert!(text.contains(r#"margo_admission_in_hand{gate="unknown",name="x""#), "{text}");
        assert!(!text.contains("margo_phase{phase=\"unknown\"}") && !text.contains("margo_rpc_"));
        let again: Metrics =
            serde_json::from_str(&serde_json::to_string(&metrics).unwrap()).unwrap();
        assert_eq!(again, metrics);
    }
}
