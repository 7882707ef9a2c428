//! The instance that users hold, and its parts.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use hg::{Core, HgError, OpRef};
use margo_config::Resolved;
use na::fork::Process;
use prim::sync::lock;
use ult::{Eventual, PoolRef, Runtime};

use crate::admission::counters::Counters;
use crate::admission::gates::Gates;
use crate::admission::identities::Identities;
use crate::admission::moved_requests::MovedRequests;
use crate::admission::rules::Rules;
use crate::admission::waiting::Waiting;
use crate::elastic::{Elastic, RuntimeOwner};
use crate::error::LookupError;
use crate::instance::callbacks::Callbacks;
use crate::instance::descriptions::Descriptions;
use crate::instance::instance_tree::InstanceTree;
use crate::instance::provider_configs::ProviderConfigs;
use crate::instance::reply::Reply;
use crate::instance::shutdown::Shutdown;
use crate::memory::device::Devices;
use crate::memory::pool::Pools;
use crate::memory::releasing::NetworkEnds;
use crate::observe::audit::Audit;
use crate::observe::dump_signal::DumpOnSignal;
use crate::observe::metrics::{self, Noted};
use crate::observe::monitor::{Monitoring, Source};
use crate::observe::profile::Profile;
use crate::observe::trace::Recorded;
use crate::operation::cancel::Cancels;
use crate::operation::early::EndsEarly;
use crate::operation::standing_transfers::StandingTransfers;
use crate::operation::token::Token;
use crate::progress::shards::Shards;
use crate::progress::surplus::Surplus;
use crate::progress::when_needed::WhenNeeded;
use crate::support::log::Log;
use crate::timer::{Timer, Timers};
use crate::{Addr, AddressFile, Stats};
use crate::{InstanceMonitoring, InstanceNetwork};

/// A running margo: an address, an RPC layer, pools and execution streams. Cheap to clone.
///
/// Every method may be called from ULTs and from ordinary OS threads; what waits suspends the ULT
/// or parks the thread. Dropping the last clone begins [`finalize`](Self::finalize) without waiting
/// for it. A handler, timer or callback of the instance that owns a clone keeps it running: let it
/// own a [`WeakInstance`], or use the instance that it is given.
///
/// ```
/// use margo::Instance;
///
/// let instance = Instance::builder("na+sm://").start()?;
/// println!("listening at {}", instance.self_addr());
///
/// let clone = instance.clone();
/// drop(instance); // The clone keeps it running.
/// assert!(!clone.is_finalizing());
/// clone.finalize_and_wait()?;
/// assert!(clone.is_finalized());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Counterpart: `margo_instance_id`.
#[derive(Clone)]
pub struct Instance(Arc<Owner>);

/// Tells the users' clones from the runtime's own references: only when the former are gone does
/// the instance end by itself.
///
/// Apart from its counts, which each request changes: a reader that only wants the instance must
/// not wait for their cache line, which the thread that makes the handlers has as a rule.
#[repr(align(128))]
struct Owner {
    inner: Arc<Inner>,
    /// The clone that this stands for in many handlers of one shard; `None`: it is the users' own.
    lent_by: Option<Instance>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        if self.inner.is_forked() {
            // What it holds is the parent's: nothing of it is ended or given back here.
            std::mem::forget(self.inner.clone());
            return;
        }
        if self.lent_by.is_none() {
            self.inner.begin_shutdown();
        }
    }
}

/// The state that all parts of an instance share.
pub(crate) struct Inner {
    /// As it was at the start; for pools and xstreams see `elastic`.
    pub(crate) resolved: Resolved,
    pub(crate) runtime: Runtime,
    /// Those of the document, in its order: a look-up without a lock.
    pub(crate) pools: Vec<PoolRef>,
    pub(crate) elastic: Arc<Elastic>,
    /// The RPC core of shard 0, for what concerns all shards.
    pub(crate) core: Arc<Core<Token>>,
    pub(crate) shards: Shards<Instance>,
    /// The pools of the shards' handlers, by shard, where handlers run in the pool of the shard at
    /// which their request has arrived; empty if they all run elsewhere.
    pub(crate) shard_pools: Mutex<Vec<PoolRef>>,
    /// The handlers that may start at another shard (`margo.share_from`).
    pub(crate) surplus: Option<Box<Surplus>>,
    pub(crate) shutdown: Shutdown,
    /// Begins the end, which `lifecycle/shutdown.rs` carries out.
    pub(crate) begin_end: fn(&Arc<Self>),
    pub(crate) callbacks: Arc<Callbacks>,
    pub(crate) counters: Counters,
    pub(crate) timers: Arc<Timers>,
    pub(crate) tree: InstanceTree,
    /// The owner of the pools and execution streams.
    pub(crate) runtime_owner: RuntimeOwner,
    /// The process that started it.
    pub(crate) process: Process,
    /// Peers may end it.
    pub(crate) remote_shutdown: AtomicBool,
    pub(crate) when_needed: WhenNeeded,
    /// The file that holds the address while the instance runs (`margo.address_file`).
    pub(crate) address_file: OnceLock<AddressFile>,
    pub(crate) metrics: metrics::MetricsState,
    /// The answer to the signal of `margo.dump_on_signal`.
    pub(crate) dump_on_signal: Option<DumpOnSignal>,
    pub(crate) log: Log,
    /// The rules of who may call what; `None`: everybody may call everything.
    pub(crate) rules: Option<Rules>,
    /// The record of refusals and administrative acts, if there is one.
    pub(crate) audit: Option<Arc<Audit>>,
    pub(crate) gates: Gates<Waiting>,
    pub(crate) standing_transfers: StandingTransfers,
    pub(crate) cancels: Cancels,
    pub(crate) moved_requests: MovedRequests<Reply>,
    pub(crate) identities: Identities,
    pub(crate) descriptions: Descriptions,
    pub(crate) provider_configs: ProviderConfigs,
    pub(crate) monitoring: Monitoring,
    /// The timer of the time series.
    pub(crate) sampling: OnceLock<Timer>,
    pub(crate) bulk_pools: Pools,
    /// Memory of devices.
    pub(crate) devices: Devices,
    pub(crate) profile: Profile,
}

impl Inner {
    /// Returns whether this process is a child that was forked off, where nothing of this works.
    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        self.process.is_other()
    }

    /// The pools of the handlers of several shards, where each has its own.
    pub(crate) fn shard_pools(&self) -> Option<Vec<PoolRef>> {
        Some(lock(&self.shard_pools).clone()).filter(|pools| pools.len() > 1)
    }

    /// Begins the shutdown if nobody has.
    pub(crate) fn begin_shutdown(self: &Arc<Self>) {
        (self.begin_end)(self);
    }

    /// Returns whether this process may start operations of the network.
    #[inline]
    pub(crate) fn may_start(&self) -> Result<(), HgError> {
        if self.is_forked() { Err(HgError::Forked) } else { Ok(()) }
    }

    pub(crate) fn stats(&self) -> Stats {
        let core = self.core.counters();
        let own = &self.counters;
        let (ended, requests_busy) = self.gates.sums();
        let no_ult = own.requests_no_ult.load(Ordering::Relaxed);
        Stats {
            requests_sent: core.rpc_req_sent,
            requests_received: core.rpc_req_recv,
            bulk_transfers: core.bulk_count,
            handlers_run: own.handlers_run(ended),
            handlers_panicked: own.handlers_panicked.load(Ordering::Relaxed),
            requests_refused: own.requests_closing.load(Ordering::Relaxed) + no_ult,
            requests_no_ult: no_ult,
            requests_busy,
            requests_not_allowed: own.requests_not_allowed.load(Ordering::Relaxed),
            requests_over_limit: own.requests_over_limit.load(Ordering::Relaxed),
            requests_abandoned: own.requests_abandoned.load(Ordering::Relaxed),
            arguments_undecodable: own.arguments_undecodable.load(Ordering::Relaxed),
            stalls: own.stalls.load(Ordering::Relaxed),
        }
    }

    /// The source of the reports of the statistics.
    pub(crate) fn statistics_source(&self) -> Source<'_> {
        Source {
            monitoring: &self.monitoring,
            options: self.resolved.monitor.as_ref(),
            address: self.core.self_addr().uri().to_owned(),
            is_forked: self.is_forked(),
        }
    }

    /// Takes an entry of each time series of the monitor.
    pub(crate) fn sample_series(&self) {
        let pools = self.elastic.pools();
        self.monitoring.sample(pools.iter());
    }
}

impl EndsEarly for Inner {
    fn is_forked(&self) -> bool {
        self.is_forked()
    }

    fn end(&self, op: OpRef) {
        if let Some(shard) = self.shards.of_op(op) {
            shard.core.cancel(op);
            shard.kick();
        }
    }

    fn end_call(&self, op: OpRef, to: &Addr) {
        if let Some(shard) = self.shards.of_op(op) {
            shard.core.cancel_call(op, &self.shards.addr_at(shard, to));
            shard.kick();
        }
    }

    fn log(&self) -> &Log {
        &self.log
    }

    fn timer_pools(&self) -> impl Iterator<Item = PoolRef> {
        self.pools_for_units([Self::progress_pool, Self::rpc_pool])
    }
}

impl Noted for Inner {
    fn note(&self) {
        self.metrics.marks.note(&self.runtime, &self.core);
    }
}

impl NetworkEnds for Inner {
    fn network_ends(&self) -> [&Eventual<()>; 2] {
        self.shutdown.network_ends()
    }
}

impl Recorded for Weak<Inner> {
    fn xstream_name(&self, index: usize) -> Option<String> {
        self.upgrade().and_then(|inner| inner.runtime.xstream_name(index))
    }

    fn stop_recording(&self) {
        if let Some(inner) = self.upgrade() {
            inner.monitoring.stop_tracing();
        }
    }
}

impl Instance {
    pub(crate) fn new(inner: Arc<Inner>) -> Self {
        Self(Arc::new(Owner { inner, lent_by: None }))
    }

    /// A clone whose own clones change a count of their own.
    pub(crate) fn lent(self) -> Self {
        Self(Arc::new(Owner { inner: self.inner().clone(), lent_by: Some(self) }))
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.0.inner
    }

    /// The RPC core and the monitors, which reading the result of a call takes.
    #[inline]
    pub(crate) fn reading(&self) -> (&Core<Token>, &Monitoring) {
        (&self.inner().core, &self.inner().monitoring)
    }

    /// A reference that does not keep this instance running.
    ///
    /// Counterpart: none; a `margo_instance_id` without `margo_instance_ref_incr` may dangle.
    #[must_use]
    pub fn downgrade(&self) -> WeakInstance {
        WeakInstance(Arc::downgrade(&self.0.lent_by.as_ref().unwrap_or(self).0))
    }

    /// This instance's address, as peers can look it up if it listens.
    ///
    /// Counterpart: `margo_addr_self`.
    pub fn self_addr(&self) -> Addr {
        self.inner().core.self_addr()
    }

    /// The peer of that name, for example `na+tcp://host:port`. Does not contact it: an address at
    /// which no process listens fails at the first call. A host name is resolved here, which takes
    /// as long as the system's resolver does, some seconds for an unknown name. A ULT suspends
    /// meanwhile, and others run on its execution stream; a few names are resolved at a time, the
    /// others wait. A thread blocks.
    ///
    /// # Errors
    ///
    /// [`LookupError`] when the text is not an address of this instance's transport, and in a child
    /// process that was forked off.
    ///
    /// Counterpart: `margo_addr_lookup`.
    pub fn lookup(&self, uri: &str) -> Result<Addr, LookupError> {
        let core = &self.inner().core;
        let found = match self.inner().may_start() {
            Ok(()) => core.lookup(uri),
            Err(forked) => Err(na::Error::Unavailable {
                transport: core.endpoint().transport(),
                reason: forked.to_string(),
            }),
        };
        found.map_err(|source| LookupError { uri: uri.to_owned(), source })
    }

    /// The execution streams and pools, for spawning ULTs and for diagnosis.
    pub fn runtime(&self) -> &Runtime {
        &self.inner().runtime
    }

    /// Returns whether [`finalize`](Self::finalize) has begun. So it seems as well in a child
    /// process that was forked off.
    pub fn is_finalizing(&self) -> bool {
        self.inner().shutdown.has_begun() || self.inner().is_forked()
    }

    /// Returns whether finalize has come to its end. The object stays usable for as long as a clone
    /// is held: address, configuration and statistics can be read; calls end with an error.
    ///
    /// Clones are the reference count that C programs keep with `margo_instance_ref_incr` and
    /// `margo_instance_release`.
    ///
    /// Counterpart: `margo_instance_is_finalized`.
    pub fn is_finalized(&self) -> bool {
        self.inner().shutdown.is_done()
    }
}

impl InstanceMonitoring<'_> {
    /// Returns the counts of the work that it has done so far.
    pub fn stats(&self) -> Stats {
        self.inner().stats()
    }
}

impl InstanceNetwork<'_> {
    /// Returns whether peers can call it: it was started to listen ([`InstanceBuilder::listen`],
    /// `margo.listen`). That does not change when it ends; see
    /// [`is_finalizing`](crate::Instance::is_finalizing).
    ///
    /// Counterpart: `margo_is_listening`.
    ///
    /// [`InstanceBuilder::listen`]: crate::InstanceBuilder::listen
    pub fn is_listening(&self) -> bool {
        self.inner().resolved.listen
    }

    /// Returns the bytes of encoded arguments that travel in the request itself
    /// (`margo.eager_size`); the target fetches longer ones.
    ///
    /// Counterpart: `HG_Class_get_input_eager_size`.
    pub fn eager_bytes(&self) -> usize {
        self.inner().core.input_eager_bytes()
    }

    /// Returns how bulk data moves on this transport, in words; for people.
    pub fn bulk_path(&self) -> String {
        self.inner().core.endpoint().bulk_path()
    }
}

/// An [`Instance`] that does not keep it running: for values that the instance itself owns, such as
/// handlers, the callbacks of timers, and objects that these share. Made by
/// [`Instance::downgrade`].
///
/// ```
/// use std::time::Duration;
///
/// use margo::Instance;
///
/// let instance = Instance::builder("na+sm://").start()?;
/// let weak = instance.downgrade();
/// let timer = instance.timer(move |_| {
///     let Some(instance) = weak.upgrade() else { return };
///     println!("{} requests so far", instance.monitoring().stats().requests_received);
/// });
/// timer.start_every(Duration::from_secs(10))?;
/// drop(instance); // ends by itself; a timer that owned a clone would keep it for ever
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct WeakInstance(Weak<Owner>);

impl WeakInstance {
    /// The instance, which runs on at least as long as this clone lives; `None`: its last clone was
    /// dropped, so that it ends or has ended.
    pub fn upgrade(&self) -> Option<Instance> {
        self.0.upgrade().map(Instance)
    }
}

impl fmt::Debug for WeakInstance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.upgrade() {
            Some(instance) => write!(f, "WeakInstance({})", instance.self_addr()),
            None => f.write_str("WeakInstance(gone)"),
        }
    }
}

impl fmt::Debug for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Instance({})", self.self_addr())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As of a transfer whose bytes came with its descriptor, and whose end is only to be told.
    #[test]
    fn an_operation_that_is_over_from_the_start_can_be_ended() {
        for shards in [1, 2] {
            let document =
                format!(r#"{{ "margo": {{ "address": "na+sim://", "shards": {shards} }} }}"#);
            let instance = crate::init(&document).unwrap();
            instance.inner().end(OpRef::NONE);
            instance.inner().end_call(OpRef::NONE, &instance.self_addr());
            instance.finalize_and_wait().unwrap();
        }
    }

    #[test]
    fn the_count_of_handlers_never_goes_back() {
        let counters = Counters::default();
        assert_eq!(counters.handlers_run(10), 10);
        counters.handler_not_run();
        assert_eq!(counters.handlers_run(10), 10, "its place is about to be given back");
        assert_eq!(counters.handlers_run(11), 10);
        assert_eq!(counters.handlers_run(13), 12);
    }
}
