//! Takes the snapshot.
//!
//! Reads counters and takes locks that are only ever held briefly; asks no execution stream.

use std::collections::{BTreeMap, BTreeSet, btree_map};
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::Instant;

use hg::PeerCalls;
use na::PeerLink;
use ult::{PoolKind, PoolRef, Runtime, XstreamRef, XstreamState};

use crate::InstanceMonitoring;
use crate::dispatch::registered_rpc::RegisteredRpc;
use crate::instance::inner::Inner;
use crate::observe::metrics::{
    BegunTraffic, BlockingMetrics, CurrentUnit, GateKind, GateMetrics, Marks, MemoryMetrics,
    Metrics, NetworkCounters, PeerCount, PeerMetrics, PeersMetrics, Phase, PoolMetrics,
    ShardMetrics, XstreamMetrics, process,
};
use crate::{Instance, Load, Principal};

/// Peers that a snapshot names.
const PEERS_MAX: usize = 1000;

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
    /// [`reset_statistics`](crate::groups::InstanceMonitoring::reset_statistics) begins them anew,
    /// and a call whose result turns out to be undecodable goes over from the outcome `ok` to
    /// `decode`.
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
        collect(self.inner())
    }
}

impl InstanceMonitoring<'_> {
    /// Where the server of `margo.metrics.listen` listens: with port 0 in the configuration, this
    /// is the one that it got. `None`: there is no such server, or it has ended with the instance.
    pub fn metrics_addr(&self) -> Option<SocketAddr> {
        self.inner().metrics.server.address()
    }
}

pub(crate) fn collect(inner: &Inner) -> Metrics {
    if inner.is_forked() {
        // The parent's locks may be held for ever here.
        return Metrics { process: process::read_forked(), ..head(inner) };
    }
    // To the look at the peers, and not to that at pools of users, which may take long.
    let traffic = inner.metrics.traffic.begin();
    let mut endpoint = inner.core.endpoint().stats();
    let others = inner.shards.iter().skip(1);
    endpoint.peers.extend(others.flat_map(|shard| shard.core.endpoint().stats().peers));
    let in_hand = inner.core.in_hand();
    let (peers, [sent_bytes, received_bytes]) = peers(inner, endpoint.peers, traffic);
    let xstreams: Vec<_> = inner.runtime.xstreams().iter().map(xstream).collect();
    let (device_mappings, device_mapped_bytes) = inner.devices.mappings.totals();
    let metrics = Metrics {
        certificate_expires_unix_sec: endpoint.certificate_expires,
        handlers_running: inner.shutdown.handlers(),
        stats: inner.stats(),
        network: NetworkCounters { sent_bytes, received_bytes, ..network(inner) },
        shards: shards(inner),
        pools: inner.runtime.pools().iter().map(|one| pool(one, &inner.metrics.marks)).collect(),
        gates: gates(inner),
        rpcs: crate::observe::metrics::rpcs::rpcs(&inner.monitoring),
        blocking: blocking(&inner.runtime),
        statistics: Some(inner.monitoring.is_counting()),
        peers,
        memory: MemoryMetrics {
            stacks: xstreams.iter().map(|xstream| xstream.stacks).sum(),
            regions: endpoint.regions,
            region_bytes: endpoint.region_bytes,
            request_buffer_bytes: in_hand.large_buffer_bytes,
            result_bytes_kept: in_hand.result_bytes_kept,
            device_staged_bytes: inner.devices.moved.staged.load(Ordering::Relaxed),
            device_shared_bytes: inner.devices.moved.within.load(Ordering::Relaxed),
            device_mappings,
            device_mapped_bytes,
            bulk_pools: inner.bulk_pools.metrics(),
        },
        xstreams,
        process: process::read(),
        tables: inner.metrics.tables.look(&inner.log),
        ..head(inner)
    };
    // For who asks next.
    inner.metrics.marks.note(&inner.runtime, &inner.core);
    metrics
}

/// Returns the metrics that are known without a lock.
fn head(inner: &Inner) -> Metrics {
    Metrics {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        address: inner.core.self_addr().to_string(),
        phase: phase(inner),
        uptime_sec: inner.metrics.started.elapsed().as_secs_f64(),
        ..Metrics::default()
    }
}

pub(super) fn phase(inner: &Inner) -> Phase {
    match (inner.shutdown.has_begun(), inner.shutdown.is_done()) {
        (false, _) => Phase::Running,
        (true, false) => Phase::Finalizing,
        (true, true) => Phase::Finalized,
    }
}

fn blocking(runtime: &Runtime) -> BlockingMetrics {
    let stats = runtime.blocking_stats();
    let ult::BlockingStats { threads, running, queued, done, .. } = stats;
    BlockingMetrics { threads, running, queued, done }
}

fn network(inner: &Inner) -> NetworkCounters {
    let counters = inner.core.counters();
    NetworkCounters {
        requests_sent: counters.rpc_req_sent,
        requests_received: counters.rpc_req_recv,
        responses_sent: counters.rpc_resp_sent,
        responses_received: counters.rpc_resp_recv,
        requests_overflowed: counters.req_extra,
        responses_overflowed: counters.resp_extra,
        bulk_transfers: counters.bulk_count,
        bulk_bytes: counters.bulk_bytes,
        malformed: counters.malformed,
        checksum_errors: counters.checksum_errors,
        requests_beyond_buffers: counters.multi_recv_copy,
        responses_unread: counters.resp_unread,
        proofs_refused: counters.not_proven,
        not_registered: counters.not_registered,
        canceled: counters.canceled,
        ..NetworkCounters::default()
    }
}

fn shards(inner: &Inner) -> Vec<ShardMetrics> {
    let one = |(index, pool): (usize, PoolRef)| {
        let shard = inner.shards.find(index as u8)?;
        let in_hand = shard.core.in_hand_here();
        let progress = shard.progress.get();
        let [polls, events, sleeps] = progress.map(|own| own.tally.read()).unwrap_or_default();
        Some(ShardMetrics {
            index,
            removed: shard.is_removed(),
            progress_pool: pool.name().to_owned(),
            in_flight: in_hand.operations,
            requests_held: in_hand.requests_held,
            receives_posted: in_hand.receives_posted,
            polls,
            events,
            sleeps,
        })
    };
    inner.elastic.all_progress().into_iter().filter_map(one).collect()
}

fn pool(pool: &PoolRef, marks: &Marks) -> PoolMetrics {
    // In this order, see `oldest_wait`.
    let waiting = pool.len();
    let stats = pool.stats();
    let oldest_wait = marks.oldest_wait(pool, waiting, stats.pushed, Instant::now());
    PoolMetrics {
        name: pool.name().to_owned(),
        kind: kind(pool.kind()).to_owned(),
        waiting,
        oldest_wait_sec: oldest_wait.map(|age| age.as_secs_f64()),
        // Read at different moments, so what cannot be may seem to be.
        alive: stats.alive().max(waiting as u64),
        // One that goes to another pool in between is blocked here and alive there.
        blocked: stats.blocked().min(stats.alive()),
        created: stats.created,
        finished: stats.finished,
        executed: stats.executed,
        yields: stats.yields,
        xstreams: pool.xstreams(),
    }
}

/// As in a document.
fn kind(kind: PoolKind) -> &'static str {
    match kind {
        PoolKind::Fifo => "fifo",
        PoolKind::FifoWait => "fifo_wait",
        PoolKind::PrioWait => "prio_wait",
        PoolKind::EarliestFirst => "earliest_first",
        PoolKind::RandWs => "randws",
        _ => "custom",
    }
}

fn xstream(xstream: &XstreamRef) -> XstreamMetrics {
    let stats = xstream.stats();
    let current = xstream.current_unit().map(|unit| CurrentUnit {
        id: unit.id,
        name: unit.name.map(str::to_owned),
        pool: unit.pool,
    });
    XstreamMetrics {
        name: xstream.name().to_owned(),
        state: match xstream.state() {
            XstreamState::Running => "running",
            XstreamState::Idle => "idle",
            XstreamState::Joining => "joining",
            XstreamState::Terminated => "terminated",
            XstreamState::Removed => "removed",
            _ => "unknown",
        }
        .to_owned(),
        cpus: xstream.cpus(),
        pools: xstream.pools(),
        ults: stats.ults,
        stacks: stats.stacks,
        executed: stats.executed,
        sleeps: stats.sleeps,
        slept_sec: stats.slept.as_secs_f64(),
        current,
    }
}

fn gates(inner: &Inner) -> Vec<GateMetrics> {
    let gate = |kind, name: &str, provider, load: Load| GateMetrics {
        kind,
        name: name.to_owned(),
        provider,
        in_hand: load.in_hand,
        handlers_max: load.bounds.handlers_max,
        waiting: load.waiting,
        refused: load.refused,
    };
    let pools = inner.gates.loads();
    let mut gates: Vec<_> =
        pools.iter().map(|(pool, load)| gate(GateKind::Pool, pool.name(), None, *load)).collect();
    let registrations = inner.core.registrations();
    let mut rpcs: Vec<_> = registrations
        .iter()
        .filter_map(|registration| {
            let entry = registration.data_as::<RegisteredRpc>()?;
            let load = entry.own_gate.as_ref()?.load();
            Some(gate(GateKind::Rpc, entry.rpc, Some(entry.provider.get()), load))
        })
        .collect();
    rpcs.sort_by(|a, b| (&a.name, a.provider).cmp(&(&b.name, b.provider)));
    gates.append(&mut rpcs);
    gates
}

/// The peers, and the bytes that were exchanged with all of them so far: sent, received.
fn peers(
    inner: &Inner,
    known: Vec<na::PeerStats>,
    traffic: BegunTraffic<'_>,
) -> (PeersMetrics, [u64; 2]) {
    let known = by_address(inner.core.peer_calls(known));
    // Where transports know a host at most.
    let proven = inner.core.proven_members();
    let now = Instant::now();
    let mut counts = BTreeMap::<_, usize>::new();
    for PeerCalls { peer, .. } in &known {
        *counts.entry((peer.transport, link(peer.link))).or_default() += 1;
    }
    let marks = &inner.metrics.marks;
    let mut list: Vec<_> = known
        .into_iter()
        .map(|PeerCalls { peer, calls, .. }| {
            let oldest = calls.iter().filter_map(|call| marks.age(*call, now)).max();
            let principal = proven.get(&*peer.uri).copied().unwrap_or(peer.principal);
            PeerMetrics {
                address: peer.uri,
                transport: peer.transport.to_owned(),
                link: link(peer.link).to_owned(),
                principal: known_text(principal),
                calls_in_flight: calls.len(),
                oldest_call_sec: oldest.map(|age| age.as_secs_f64()),
                sent_bytes: peer.sent_bytes,
                received_bytes: peer.received_bytes,
                sent_messages: peer.sent_messages,
                received_messages: peer.received_messages,
            }
        })
        .collect();
    let traffic = traffic.add(&list);
    let age = |peer: &PeerMetrics| peer.oldest_call_sec.unwrap_or(-1.0);
    list.sort_by(|a, b| {
        let by_age = age(b).total_cmp(&age(a));
        by_age.then(b.calls_in_flight.cmp(&a.calls_in_flight)).then(a.address.cmp(&b.address))
    });
    let (calls_in_flight, oldest_call_sec) = (
        list.iter().map(|peer| peer.calls_in_flight).sum(),
        list.first().and_then(|peer| peer.oldest_call_sec),
    );
    list.truncate(PEERS_MAX);
    let count = |((transport, link), count): ((&str, &str), usize)| PeerCount {
        transport: transport.to_owned(),
        link: link.to_owned(),
        count,
    };
    let counts = counts.into_iter().map(count).collect();
    (PeersMetrics { counts, list, calls_in_flight, oldest_call_sec }, traffic)
}

/// A principal in words, if it is known.
fn known_text(principal: Principal) -> Option<String> {
    (principal != Principal::Unknown).then(|| principal.to_string())
}

/// The peers with one row for each address, under which there may be several: one that was called,
/// and those that have called. Nobody is behind an address that is not known to be the same for all
/// who say that they have it: any peer may say so.
fn by_address(known: Vec<PeerCalls>) -> Vec<PeerCalls> {
    let mut rows = BTreeMap::<_, (PeerCalls, BTreeSet<Principal>)>::new();
    for one in known {
        match rows.entry((one.peer.transport, one.peer.uri.clone())) {
            btree_map::Entry::Vacant(row) => {
                let principals = BTreeSet::from([one.peer.principal]);
                row.insert((one, principals));
            }
            btree_map::Entry::Occupied(mut row) => {
                let (row, principals) = row.get_mut();
                principals.insert(one.peer.principal);
                row.calls.extend(one.calls);
                let (peer, more) = (&mut row.peer, one.peer);
                let is_up = |link| (link == PeerLink::Connected, link == PeerLink::Connecting);
                if is_up(more.link) > is_up(peer.link) {
                    peer.link = more.link;
                }
                for (sum, more) in [
                    (&mut peer.sent_bytes, more.sent_bytes),
                    (&mut peer.received_bytes, more.received_bytes),
                    (&mut peer.sent_messages, more.sent_messages),
                    (&mut peer.received_messages, more.received_messages),
                ] {
                    *sum = sum.zip(more).map(|(sum, more)| sum + more);
                }
            }
        }
    }
    let row = |(mut row, mut principals): (PeerCalls, BTreeSet<Principal>)| {
        principals.remove(&Principal::Unknown);
        row.peer.principal = match (principals.pop_first(), principals.pop_first()) {
            (Some(only), None) => only,
            _ => Principal::Unknown,
        };
        row
    };
    rows.into_values().map(row).collect()
}

fn link(link: PeerLink) -> &'static str {
    match link {
        PeerLink::Idle => "idle",
        PeerLink::Connecting => "connecting",
        PeerLink::Connected => "connected",
        PeerLink::Gone => "gone",
        _ => "unknown",
    }
}
