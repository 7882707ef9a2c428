//! The instance that users hold, and its parts.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use hg::{Core, HgError, OpRef};
use margo_config::Resolved;
use na::fork::Process;
use ult::{Eventual, PoolRef, Runtime};

use crate::admission::counters::Counters;
use crate::admission::gates::Gates;
use crate::admission::moved_requests::MovedRequests;
use crate::admission::request_shares::RequestShares;
use crate::dispatch::handler::Waiting;
use crate::elastic::{Elastic, RuntimeOwner};
use crate::error::LookupError;
use crate::lifecycle::child::InstanceTree;
use crate::lifecycle::shutdown::Shutdown;
use crate::memory::releasing::NetworkEnds;
use crate::observe::dump_signal::DumpOnSignal;
use crate::observe::monitor::Monitoring;
use crate::observe::monitor::api::Source;
use crate::observe::profile::Profile;
use crate::observe::trace::Recorded;
use crate::operation::cancel::Cancels;
use crate::operation::early::EndsEarly;
use crate::operation::standing_transfers::StandingTransfers;
use crate::operation::token::Token;
use crate::polling::driver::Progress;
use crate::progress::contexts::Context;
use crate::progress::when_needed::WhenNeeded;
use crate::serving::identity::Identities;
use crate::support::log::Log;
use crate::timer::Timers;
use crate::{Addr, AddressFile, FinalizeError, observe::metrics};

/// A running margo: an address, an RPC layer, pools and execution streams. Cheap to clone.
///
/// Every method may be called from ULTs and from ordinary OS threads; what waits suspends the ULT
/// or parks the thread. Dropping the last clone begins [`finalize`](Self::finalize) without waiting
/// for it. A handler, timer or callback of the instance that owns a clone keeps it running: let it
/// own a [`WeakInstance`], or use the instance that it is given.
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
struct Owner(Arc<Inner>);

impl Drop for Owner {
    fn drop(&mut self) {
        if self.0.is_forked() {
            // What it holds is the parent's: nothing of it is ended or given back here.
            std::mem::forget(self.0.clone());
            return;
        }
        crate::lifecycle::shutdown::begin(&self.0);
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
    /// Context 0.
    pub(crate) core: Arc<Core<Token>>,
    /// The progress of context 0.
    pub(crate) progress: OnceLock<Progress>,
    /// Contexts 1, 2 and so on.
    pub(crate) more_contexts: Box<[Context]>,
    pub(crate) shutdown: Shutdown,
    pub(crate) counters: Counters,
    pub(crate) timers: Arc<Timers>,
    pub(crate) family: InstanceTree,
    /// The owner of the pools and execution streams.
    pub(crate) landlord: RuntimeOwner,
    /// The process that started it.
    pub(crate) process: Process,
    /// Peers may end it.
    pub(crate) remote_shutdown: AtomicBool,
    pub(crate) when_needed: WhenNeeded,
    /// The file that holds the address while the instance runs (`margo.address_file`).
    pub(crate) address_file: OnceLock<AddressFile>,
    pub(crate) metrics: metrics::State,
    /// The answer to the signal of `margo.dump_on_signal`.
    pub(crate) dump_on_signal: Option<DumpOnSignal>,
    pub(crate) log: Log,
    pub(crate) gates: Gates<Waiting>,
    pub(crate) request_shares: RequestShares,
    pub(crate) standing_transfers: StandingTransfers,
    pub(crate) cancels: Cancels,
    pub(crate) unanswered: MovedRequests,
    pub(crate) identities: Identities,
    pub(crate) monitoring: Monitoring,
    pub(crate) profile: Profile,
}

impl Inner {
    /// Returns whether this process is a child that was forked off, where nothing of this works.
    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        self.process.is_other()
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

    /// Wakes the progress ULT if it sleeps and what was just done in the RPC layer is for it; what
    /// the network is to do wakes it by itself.
    #[inline]
    pub(crate) fn kick_if_queued(&self) {
        if !self.more_contexts.is_empty() {
            self.kick_several();
        } else if self.core.has_queued() {
            self.kick();
        }
    }

    /// Wakes the progress ULT if it sleeps; for after giving the RPC layer something to do.
    #[inline]
    pub(crate) fn kick(&self) {
        if !self.more_contexts.is_empty() {
            self.kick_several();
        } else if let Some(progress) = self.progress.get() {
            progress.kick();
        }
    }
}

impl EndsEarly for Inner {
    fn is_forked(&self) -> bool {
        self.is_forked()
    }

    fn end(&self, op: OpRef) {
        self.core.cancel(op);
        self.kick();
    }

    fn end_call(&self, op: OpRef, to: &Addr) {
        self.core.cancel_call(op, to);
        self.kick();
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

/// The work that an instance has done since it started. A snapshot.
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

impl Instance {
    pub(crate) fn new(inner: Arc<Inner>) -> Self {
        Self(Arc::new(Owner(inner)))
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.0.0
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
        WeakInstance(Arc::downgrade(&self.0))
    }

    /// Returns whether peers can call it: it was started to listen ([`InstanceBuilder::listen`],
    /// `margo.listen`). That does not change when it ends; see
    /// [`is_finalizing`](Self::is_finalizing).
    ///
    /// Counterpart: `margo_is_listening`.
    ///
    /// [`InstanceBuilder::listen`]: crate::InstanceBuilder::listen
    pub fn is_listening(&self) -> bool {
        self.inner().resolved.listen
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

    /// Returns how bulk data moves on this transport, in words; for people.
    pub fn bulk_path(&self) -> String {
        self.inner().core.endpoint().bulk_path()
    }

    /// Returns the counts of the work that it has done so far.
    pub fn stats(&self) -> Stats {
        self.inner().stats()
    }

    /// Begins to shut down and returns at once. Safe from anywhere, any number of times, also from
    /// a handler.
    ///
    /// From now on peers' requests are refused. In this order:
    ///
    /// - instances that have this one as their [parent](crate::InstanceBuilder::parent) end;
    /// - handlers that run, and ULTs to which they have moved their [`Handle`](crate::Handle), have
    ///   [`InstanceBuilder::grace`](crate::InstanceBuilder::grace) to end or answer, and may still
    ///   make calls;
    /// - the callbacks of [`on_prefinalize`](Self::on_prefinalize) run, the last one first;
    /// - timers are disarmed, and do not fire; see [`Timer`](crate::Timer);
    /// - the network is closed, which ends all calls and transfers with errors;
    /// - the callbacks of [`on_finalize`](Self::on_finalize) run;
    /// - the execution streams end, unless they are a parent's or
    ///   [the program's](crate::InstanceBuilder::runtime).
    ///
    /// Each step, and each of those callbacks, has the grace period, so this comes to its end
    /// whatever handlers and peers do. From a signal handler use
    /// [`signal_finalizer`](Self::signal_finalizer). In a child process that was forked off this
    /// does nothing: the instance is the parent's.
    ///
    /// Counterpart: `margo_finalize`.
    pub fn finalize(&self) {
        crate::lifecycle::shutdown::begin(self.inner());
    }

    /// Waits until this instance has been finalized, by whomever. From an OS thread: until
    /// everything has ended, execution streams included. From one of its own ULTs: until the
    /// callbacks have run (its execution stream cannot end before that ULT does). Typical last line
    /// of a service's `main`.
    ///
    /// # Errors
    ///
    /// [`FinalizeError`] when something did not end, and names what; or when the caller must not
    /// wait: a tasklet, a child process that was forked off, or a callback that the end waits for
    /// ([`FinalizeError::OwnCallback`]).
    ///
    /// Counterpart: `margo_wait_for_finalize`.
    pub fn wait_for_finalize(&self) -> Result<(), FinalizeError> {
        crate::lifecycle::shutdown::wait(self.inner())
    }

    /// [`finalize`](Self::finalize), then [`wait_for_finalize`](Self::wait_for_finalize). In a
    /// handler this uses up the grace period, because the handler waits for itself: call `finalize`
    /// there.
    ///
    /// # Errors
    ///
    /// As `wait_for_finalize`.
    ///
    /// Counterpart: `margo_finalize_and_wait`.
    pub fn finalize_and_wait(&self) -> Result<(), FinalizeError> {
        self.finalize();
        self.wait_for_finalize()
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
///     println!("{} requests so far", instance.stats().requests_received);
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
