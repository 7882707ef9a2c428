//! The runtime that users hold.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use margo_config::{Config, Resolved};
use ult::{PoolRef, Runtime};

use crate::contexts::Context;
use crate::error::LookupError;
use crate::hg::Core;
use crate::identity::Identities;
use crate::progress::{Progress, Token};
use crate::shutdown::Shutdown;
use crate::{Addr, FinalizeError};

/// A running margo: an address, an RPC layer, pools and execution streams. Cheap to clone.
///
/// Every method may be called from ULTs and from ordinary OS threads; what waits suspends the ULT
/// or parks the thread. Dropping the last clone begins [`finalize`](Self::finalize) without waiting
/// for it (a handler that holds a clone keeps the instance running).
///
/// Counterpart: `margo_instance_id`.
#[derive(Clone)]
pub struct Instance(Arc<Owner>);

/// Tells the users' clones from the runtime's own references: only when the former are gone does
/// the instance end by itself.
struct Owner(Arc<Inner>);

impl Drop for Owner {
    fn drop(&mut self) {
        crate::shutdown::begin(&self.0);
    }
}

/// What all parts of an instance share.
pub(crate) struct Inner {
    pub(crate) config: Config,
    pub(crate) resolved: Resolved,
    pub(crate) runtime: Runtime,
    pub(crate) pools: Vec<PoolRef>,
    /// Context 0.
    pub(crate) core: Arc<Core<Token>>,
    /// Of context 0.
    pub(crate) progress: OnceLock<Progress>,
    /// Contexts 1, 2 and so on.
    pub(crate) more_contexts: Box<[Context]>,
    pub(crate) shutdown: Shutdown,
    pub(crate) counters: Counters,
    pub(crate) identities: Identities,
}

impl Inner {
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

/// Counted by this layer; the rest of [`Stats`] comes from the RPC layer.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) handlers_run: AtomicU64,
    pub(crate) handlers_panicked: AtomicU64,
    pub(crate) requests_refused: AtomicU64,
    pub(crate) arguments_undecodable: AtomicU64,
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// What an instance has done since it started. A snapshot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Requests sent.
    pub requests_sent: u64,
    /// Requests received.
    pub requests_received: u64,
    /// Bulk transfers that this instance asked for.
    pub bulk_transfers: u64,
    /// Handlers that ran to their end or panicked.
    pub handlers_run: u64,
    /// Handlers that panicked.
    pub handlers_panicked: u64,
    /// Requests refused because the instance was shutting down or no ULT could be made.
    pub requests_refused: u64,
    /// Requests whose arguments could not be decoded.
    pub arguments_undecodable: u64,
}

impl Instance {
    pub(crate) fn new(inner: Arc<Inner>) -> Self {
        Self(Arc::new(Owner(inner)))
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.0.0
    }

    pub(crate) fn downgrade(&self) -> WeakInstance {
        WeakInstance(Arc::downgrade(&self.0))
    }

    /// This instance's address, as peers can look it up if it listens.
    ///
    /// Counterpart: `margo_addr_self`.
    pub fn self_addr(&self) -> Addr {
        self.inner().core.self_addr()
    }

    /// The peer of that name, for example `na+tcp://host:port`. Does not contact it: an address
    /// that nobody listens on fails at the first call. A host name is resolved here, which may
    /// block the calling thread for as long as the system's resolver does.
    ///
    /// # Errors
    ///
    /// [`LookupError`] when the text is not an address of this instance's transport.
    ///
    /// Counterpart: `margo_addr_lookup`.
    pub fn lookup(&self, uri: &str) -> Result<Addr, LookupError> {
        self.inner().core.lookup(uri).map_err(|source| LookupError { uri: uri.to_owned(), source })
    }

    /// The effective configuration: complete, with all defaults filled in, itself valid input.
    ///
    /// Counterpart: `margo_get_config`.
    pub fn config(&self) -> &Config {
        &self.inner().config
    }

    /// All pools, in the order of the configuration.
    pub fn pools(&self) -> Vec<PoolRef> {
        self.inner().pools.clone()
    }

    /// The pool of that name. Counterpart: `margo_find_pool_by_name`.
    pub fn pool(&self, name: &str) -> Option<PoolRef> {
        self.inner().pools.iter().find(|pool| pool.name() == name).cloned()
    }

    /// Where handlers run that were registered without a pool. Counterpart:
    /// `margo_get_handler_pool`.
    pub fn rpc_pool(&self) -> PoolRef {
        self.inner().pools[self.inner().resolved.rpc_pool].clone()
    }

    /// Where the progress ULT of context 0 runs. Counterpart: `margo_get_progress_pool`.
    pub fn progress_pool(&self) -> PoolRef {
        self.inner().pools[self.inner().resolved.progress_pool].clone()
    }

    /// Where the progress ULTs run: those of context 0, context 1 and so on.
    pub fn progress_pools(&self) -> impl Iterator<Item = PoolRef> + '_ {
        self.inner().resolved.progress_pools().map(|pool| self.inner().pools[pool].clone())
    }

    /// The execution streams and pools, for spawning ULTs and for diagnosis.
    pub fn runtime(&self) -> &Runtime {
        &self.inner().runtime
    }

    /// How bulk data moves on this transport, in words; for people.
    pub fn bulk_path(&self) -> String {
        self.inner().core.endpoint().bulk_path()
    }

    /// What it has done so far.
    pub fn stats(&self) -> Stats {
        let core = self.inner().core.counters();
        let own = &self.inner().counters;
        Stats {
            requests_sent: core.rpc_req_sent,
            requests_received: core.rpc_req_recv,
            bulk_transfers: core.bulk_count,
            handlers_run: own.handlers_run.load(Ordering::Relaxed),
            handlers_panicked: own.handlers_panicked.load(Ordering::Relaxed),
            requests_refused: own.requests_refused.load(Ordering::Relaxed),
            arguments_undecodable: own.arguments_undecodable.load(Ordering::Relaxed),
        }
    }

    /// Begins to shut down and returns at once. Safe from anywhere, any number of times, also from
    /// a handler.
    ///
    /// From now on peers' requests are refused. Handlers that run have
    /// [`InstanceBuilder::grace`](crate::InstanceBuilder::grace) to end, and may still make calls;
    /// then the network is closed, which ends all calls and transfers with errors; then the
    /// execution streams end.
    ///
    /// Counterpart: `margo_finalize`.
    pub fn finalize(&self) {
        crate::shutdown::begin(self.inner());
    }

    /// Waits until this instance has been finalized, by whomever. From an OS thread: until
    /// everything has ended, execution streams included. From one of its own ULTs: until the
    /// network is closed (its execution stream cannot end before that ULT does). Typical last line
    /// of a service's `main`.
    ///
    /// # Errors
    ///
    /// [`FinalizeError`] when something did not end; it names what.
    ///
    /// Counterpart: `margo_wait_for_finalize`.
    pub fn wait_for_finalize(&self) -> Result<(), FinalizeError> {
        crate::shutdown::wait(self.inner())
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

    /// Whether [`finalize`](Self::finalize) has begun.
    pub fn is_finalizing(&self) -> bool {
        self.inner().shutdown.has_begun()
    }
}

/// An [`Instance`] that does not keep it running.
#[derive(Clone)]
pub(crate) struct WeakInstance(std::sync::Weak<Owner>);

impl WeakInstance {
    pub(crate) fn upgrade(&self) -> Option<Instance> {
        self.0.upgrade().map(Instance)
    }
}

impl fmt::Debug for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Instance({})", self.self_addr())
    }
}
