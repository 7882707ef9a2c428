//! Providers: groups of RPCs under one id.

use std::fmt;
use std::sync::Arc;

use hg::ProviderId;
use serde::de::DeserializeOwned;
use ult::{PoolRef, Priority};

use crate::serving::provider_rpcs::ProviderRpcs;
use crate::{Handle, Instance, RegisterError, Rpc, Serve};

/// RPCs that are served under one provider id, by handlers in one pool, with an object that they
/// share.
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
///
/// use margo::{Handle, Instance, ProviderHandle, ProviderId, Rpc};
///
/// const ADD: Rpc<u64, u64> = Rpc::new("counter_add");
///
/// struct Counter(AtomicU64);
///
/// impl Counter {
///     /// The answer is what it returns.
///     fn add(&self, call: &Handle<u64, u64>) -> u64 {
///         let n = *call.args();
///         self.0.fetch_add(n, Ordering::Relaxed) + n
///     }
/// }
///
/// let service = Instance::builder("na+sm://").start()?;
/// let id = ProviderId::new(7);
/// let pool = service.layout().rpc_pool();
/// let counter = service.provider_of(id, &pool, Counter(AtomicU64::new(40)));
/// counter.serve(ADD).returning_method(Counter::add)?;
///
/// let target = ProviderHandle::new(service.self_addr(), id);
/// assert_eq!(service.forward(ADD, &target, &2)?, 42);
/// drop(counter); // nobody serves ADD any more
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// An RPC of it is taken back with [`deregister`](Self::deregister). Dropping the provider
/// deregisters all and returns at once: requests that arrive afterwards are told that there is no
/// such RPC, handlers whose requests had arrived go on. They keep the object alive: it is dropped
/// when the last of them has ended, on that handler's ULT, or on another one in its pool if that
/// request was refused, or here if there is none. To know when that is, use [`close`](Self::close).
///
/// Counterpart: the provider convention of Mochi (`MARGO_REGISTER_PROVIDER`), Thallium's
/// `provider<T>`.
pub struct Provider<T = ()> {
    instance: Instance,
    id: ProviderId,
    object: Arc<T>,
    priority: Priority,
    rpcs: ProviderRpcs,
}

impl Instance {
    /// An empty provider with that id, whose handlers run in `pool`. The pool is not removed
    /// ([`remove_pool`](crate::groups::InstanceLayout::remove_pool)) while the provider lives and
    /// has
    /// [no other](Provider::set_pool).
    pub fn provider(&self, id: ProviderId, pool: &PoolRef) -> Provider {
        self.provider_of(id, pool, ())
    }

    /// Makes a provider with an object whose methods are to be handlers: a value, or an `Arc` of
    /// one that others have, too.
    pub fn provider_of<T>(
        &self,
        id: ProviderId,
        pool: &PoolRef,
        object: impl Into<Arc<T>>,
    ) -> Provider<T> {
        Provider {
            instance: self.clone(),
            id,
            object: object.into(),
            priority: Priority::Normal,
            rpcs: ProviderRpcs::new(pool.clone(), self.hold_for_provider(id, pool)),
        }
    }
}

impl<T> Provider<T> {
    /// The priority of RPCs that are registered from now on, unless they have one of their own; see
    /// [`Serve::priority`]. Default: [`Priority::Normal`].
    #[must_use]
    pub fn with_priority(mut self, priority: Priority) -> Self {
        self.priority = priority;
        self
    }

    /// Begins to describe how `rpc` is served under this provider's id: in its pool, by ULTs,
    /// unless said otherwise.
    pub fn serve<A, R>(&self, rpc: Rpc<A, R>) -> Serve<'_, A, R, T> {
        let serve = self.instance.serve(rpc).priority(self.priority);
        serve.of_provider(self.id, self.object.clone(), &self.rpcs)
    }

    /// Serves `rpc`, as [`Instance::register`] does, under this provider's id and in its pool. For
    /// methods of the object see [`serve`](Self::serve).
    ///
    /// # Errors
    ///
    /// [`RegisterError`].
    pub fn register<A, R, F>(&self, rpc: Rpc<A, R>, handler: F) -> Result<(), RegisterError>
    where
        A: DeserializeOwned + 'static,
        R: 'static,
        F: Fn(Handle<A, R>) + Send + Sync + 'static,
        T: Send + Sync + 'static,
    {
        self.serve(rpc).handler(handler)
    }

    /// Serves `rpc` no more under this provider's id, if this provider has registered it; the
    /// others stay. As [`Instance::deregister`].
    pub fn deregister<A, R>(&self, rpc: Rpc<A, R>) -> bool {
        if self.instance.inner().is_forked() {
            return false;
        }
        self.rpcs.take(rpc.id(self.id)).is_some_and(|own| own.deregister(&self.instance))
    }

    /// Moves the provider to another pool: its RPCs whose handlers run in its pool, its
    /// [identity](Self::set_identity) included, and all that are registered later. RPCs that were
    /// given another pool ([`Serve::pool`],
    /// [`InstanceLayout::set_handler_pool`](crate::groups::InstanceLayout::set_handler_pool)) stay
    /// there. Nothing is left then that keeps the old pool from being removed
    /// ([`InstanceLayout::remove_pool`](crate::groups::InstanceLayout::remove_pool)) but requests
    /// that are there.
    ///
    /// Requests that have arrived stay where they are; none is lost, refused or run twice. Bounds
    /// go with the RPCs as
    /// [`InstanceLayout::set_handler_pool`](crate::groups::InstanceLayout::set_handler_pool) has
    /// it.
    ///
    /// # Errors
    ///
    /// As [`InstanceLayout::set_handler_pool`](crate::groups::InstanceLayout::set_handler_pool), of
    /// the first RPC that cannot run there: all of them stay in the old pool then, and so does the
    /// provider. Where none is to move, the pool is refused as it would be for an RPC.
    ///
    /// Counterpart: `margo_rpc_set_pool` of each RPC.
    pub fn set_pool(&self, pool: &PoolRef) -> Result<(), RegisterError> {
        self.instance.move_provider(self.id, &self.rpcs, pool)
    }

    /// Requests that name one of so many parts are for the shard that has it.
    pub(crate) fn of_parts(mut self, parts: u8) -> Self {
        self.rpcs.parts = parts;
        self
    }

    pub(crate) fn deregister_all(&self) {
        for own in self.rpcs.take_all() {
            own.deregister(&self.instance);
        }
    }

    pub(crate) fn rpcs(&self) -> &ProviderRpcs {
        &self.rpcs
    }

    pub(crate) fn instance(&self) -> &Instance {
        &self.instance
    }

    /// The id.
    pub fn id(&self) -> ProviderId {
        self.id
    }

    /// Where the handlers run; in a child process that was forked off: where they ran at first.
    pub fn pool(&self) -> PoolRef {
        match self.instance.inner().is_forked() {
            true => self.rpcs.first_pool().clone(),
            false => self.rpcs.pool(),
        }
    }

    /// Returns the object that the handlers share.
    pub fn object(&self) -> &Arc<T> {
        &self.object
    }
}

impl<T> Drop for Provider<T> {
    fn drop(&mut self) {
        // They are its parent's.
        if !self.instance.inner().is_forked() {
            self.deregister_all();
        }
    }
}

impl<T> fmt::Debug for Provider<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Provider({} in pool {})", self.id, self.pool().name())
    }
}
