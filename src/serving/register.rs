//! The handlers of RPC ids. The table is that of the RPC core (`hg/src/core/registry.rs`); an
//! [`RegisteredRpc`] is the data that it keeps for each RPC. `serve.rs` puts entries together.

use std::sync::Arc;

use hg::{HgError, ProviderId, Registration, RpcId};
use margo_config::{Admission, Overload};
use serde::de::DeserializeOwned;
use ult::{PoolKind, PoolRef, Priority};

use crate::admission::gates::Internal;
use crate::dispatch::registered_rpc::{RegisteredRpc, RequestGate, Run};
use crate::observe::monitor::Served;
use crate::serving::provider_rpcs::ProviderRpcs;
use crate::support::log::log;
use crate::{Handle, Instance, Load, PoolHold, RegisterError, Rpc};
use crate::{InstanceLayout, InstanceMonitoring};

/// The options of a registration beside the RPC and its handler.
pub(crate) struct Options {
    pub(crate) provider: ProviderId,
    pub(crate) pool: Option<PoolRef>,
    pub(crate) admission: Option<Admission>,
    pub(crate) tasklet: bool,
    pub(crate) one_way: bool,
    pub(crate) priority: Priority,
    /// It is of the runtime itself: the bounds of its pool are not for it.
    pub(crate) internal: Option<Internal>,
}

impl Instance {
    /// Serves an RPC no more, if it is one of this layer's users and `is_it`. What is the user's is
    /// dropped here, if no request has it; so this is not to be called with a lock held.
    pub(crate) fn deregister_if(&self, id: RpcId, is_it: impl Fn(&RegisteredRpc) -> bool) -> bool {
        let inner = self.inner();
        loop {
            let Some(there) = inner.core.registered(id) else { return false };
            let of_users = |entry: &&RegisteredRpc| inner.gates.internal_of(&entry.gate).is_none();
            if !there.data_as().filter(of_users).is_some_and(&is_it) {
                return false;
            }
            let gone = inner.monitoring.of_change(|| {
                let gone = inner.core.deregister_this(&there);
                let event = gone.is_some().then_some(Served::Deregistered { rpc_id: id });
                (gone, event)
            });
            // Otherwise it was moved to another pool meanwhile, or deregistered by somebody else.
            if let Some(gone) = gone {
                drop(gone);
                replaced(&there);
                return true;
            }
        }
    }
}

impl Instance {
    /// Serves `rpc` under the default provider id, in the default pool, until
    /// [`deregister`](Self::deregister) or the end of this instance. For other options see
    /// [`serve`](Self::serve), for a service with a provider id or a pool of its own
    /// [`provider`](Self::provider).
    ///
    /// `handler` runs once for each request, on a ULT of its own; it may block in everything that
    /// [`ult`] and this crate offer. It should answer with [`Handle::respond`]; if it returns
    /// without, or panics, the origin gets an error.
    ///
    /// # Errors
    ///
    /// [`RegisterError`].
    ///
    /// Counterpart: `MARGO_REGISTER`.
    pub fn register<A, R, F>(&self, rpc: Rpc<A, R>, handler: F) -> Result<(), RegisterError>
    where
        A: DeserializeOwned + 'static,
        R: 'static,
        F: Fn(Handle<A, R>) + Send + Sync + 'static,
    {
        self.serve(rpc).handler(handler)
    }

    fn may_register(&self) -> Result<(), RegisterError> {
        match (self.inner().is_forked(), self.is_finalizing()) {
            (true, _) => Err(RegisterError::Forked),
            (false, true) => Err(RegisterError::Closing),
            (false, false) => Ok(()),
        }
    }

    /// Keeps the layout as it is while `rpc` is registered or moved.
    fn hold_still(&self, rpc: &'static str) -> Result<ult::MutexGuard<'_, ()>, RegisterError> {
        let still = self.inner().elastic.hold_still_if_may_wait();
        still.ok_or(RegisterError::Inline { rpc })
    }

    /// Registers `run` as the handler of the RPC of that name and number, which is one `of` those.
    pub(crate) fn register_entry(
        &self,
        rpc: &'static str,
        id: RpcId,
        options: Options,
        run: Arc<Run>,
        of: Option<&ProviderRpcs>,
    ) -> Result<(), RegisterError> {
        let Options { provider, pool, admission, tasklet, one_way, priority, internal } = options;
        if !self.inner().resolved.listen {
            return Err(RegisterError::NotListening { rpc });
        }
        self.may_register()?;
        // If it is refused, what is the user's is dropped after the layout was let go of.
        let handler = run.clone();
        // From here on the pool is not removed, and afterwards it has a user; nor does the provider
        // move.
        let _still = self.hold_still(rpc)?;
        let pool = pool.or_else(|| Some(of?.pool())).unwrap_or_else(|| self.layout().rpc_pool());
        self.may_serve_in(rpc, &pool, priority)?;
        let (pool_index, bounds) = self.bounds_of(&pool, internal);
        may_wait_in(rpc, &pool, [Some(bounds), admission])?;
        let gate = self.gate_of(&pool, internal, bounds);
        let own_gate = admission.map(|bounds| self.inner().gates.of_rpc(bounds));
        let instance = self.downgrade();
        let rules = self.inner().rules.as_ref();
        let callers = rules.map(|rules| Arc::new(rules.of(rpc, provider, internal.is_some())));
        let entry = RegisteredRpc {
            rpc,
            provider,
            pool,
            pool_index,
            run,
            instance,
            callers,
            gate,
            own_gate,
            tasklet,
            one_way,
            priority,
            parts: of.map_or(0, |of| of.parts),
            stealable: false,
            member: of.map(ProviderRpcs::member),
        };
        let pool = entry.pool.clone();
        let registered = self.inner().monitoring.of_change(|| {
            let registered = self.inner().core.register(self.registration_of(entry, id));
            if let (Ok(_), Some(of)) = (&registered, of) {
                of.push(rpc, id, &handler);
            }
            let event = Served::Registered { rpc, rpc_id: id, provider, pool };
            let event = registered.is_ok().then_some(event);
            (registered, event)
        });
        registered.map(|_| ()).map_err(|error| match error {
            HgError::Collision { id, other, .. } => {
                RegisterError::Collision { rpc, other, id: id.0 }
            }
            _ => RegisterError::Exists { rpc, provider },
        })
    }

    /// Serves `rpc` of that provider no more, whichever code has registered it. Returns at once:
    /// requests that arrive afterwards are told that there is no such RPC
    /// ([`ForwardError::NotRegistered`](crate::ForwardError::NotRegistered)), handlers whose
    /// requests had arrived go on, and the RPC may be registered again, also while they do. The
    /// handler is dropped, with all that it owns, when the last of them has ended, on that one's
    /// ULT, or here if there is none.
    ///
    /// `false`: it is not served here, or is one of the runtime itself; or the caller is in a child
    /// process that was forked off.
    ///
    /// Counterpart: `margo_deregister`.
    pub fn deregister<A, R>(&self, rpc: Rpc<A, R>, provider: ProviderId) -> bool {
        !self.inner().is_forked() && self.deregister_if(rpc.id(provider), |_| true)
    }

    fn may_serve_in(
        &self,
        rpc: &'static str,
        pool: &PoolRef,
        priority: Priority,
    ) -> Result<(), RegisterError> {
        if !self.inner().runtime.has_pool(pool) {
            let own: Vec<_> =
                self.layout().pools().iter().map(|own| format!("`{}`", own.name())).collect();
            let (pool, own) = (pool.name().to_owned(), own.join(", "));
            return Err(RegisterError::OtherRuntime { rpc, pool, own });
        }
        if pool.is_removed() {
            return Err(RegisterError::PoolRemoved { rpc, pool: pool.name().to_owned() });
        }
        if pool.access() == ult::Access::Private
            && self.layout().progress_pools().any(|progress| pool.xstreams() != progress.xstreams())
        {
            return Err(RegisterError::PrivatePool { rpc, pool: pool.name().to_owned() });
        }
        let knows_priorities = matches!(pool.kind(), PoolKind::PrioWait | PoolKind::Custom);
        if priority != Priority::Normal && !knows_priorities {
            return Err(RegisterError::NoPriorities { rpc, pool: pool.name().to_owned() });
        }
        if !self.is_served(pool) {
            let pool = pool.name();
            log!(
                self.inner().log,
                WARN,
                rpc,
                pool,
                "no xstream runs the pool: requests wait until one does"
            );
        }
        Ok(())
    }

    /// The registration of an entry. Handlers in the pool that is for those without one run in that
    /// of the shard at which their request has arrived, where shards have pools for them, or may
    /// start at another one (`margo.share_from`); those of a provider with parts only where there
    /// is a part.
    fn registration_of(&self, entry: RegisteredRpc, id: RpcId) -> Registration {
        let inner = self.inner();
        let entry = RegisteredRpc { stealable: false, ..entry };
        let is_internal = inner.gates.internal_of(&entry.gate).is_some();
        let pools = inner.shard_pools().unwrap_or_default();
        let [first, others @ ..] = &pools[..] else {
            return entry.registration(id, Vec::new());
        };
        if is_internal || entry.pool != *first {
            return entry.registration(id, Vec::new());
        }
        let others = match usize::from(entry.parts) {
            0 => others,
            parts => &others[..(parts - 1).min(others.len())],
        };
        let is_shared = inner.surplus.is_some() && entry.parts == 0 && !entry.tasklet;
        let is_stealable = |pool: &PoolRef| {
            is_shared && matches!(pool.kind(), PoolKind::Fifo | PoolKind::FifoWait)
        };
        let of_shard = |pool: &PoolRef| {
            let (pool_index, bounds) = self.bounds_of(pool, None);
            let (gate, stealable) = (self.gate_of(pool, None, bounds), is_stealable(pool));
            RegisteredRpc { pool: pool.clone(), pool_index, gate, stealable, ..entry.clone() }
        };
        let others = others.iter().map(of_shard).collect();
        let stealable = is_stealable(&entry.pool);
        RegisteredRpc { stealable, ..entry }.registration(id, others)
    }

    /// The pool's index, if it is one of the instance's, and its bounds, or those of an RPC of the
    /// runtime itself.
    fn bounds_of(&self, pool: &PoolRef, internal: Option<Internal>) -> (Option<usize>, Admission) {
        let inner = self.inner();
        let index = inner.pools.iter().position(|own| own == pool);
        let admission = &inner.resolved.admission;
        let bounds = match internal {
            Some(rpc) => inner.gates.internal(rpc).bounds(),
            None => index.map_or(admission.other, |index| admission.of(index)),
        };
        (index, bounds)
    }

    /// The pool's gate, or that of an RPC of the runtime itself.
    fn gate_of(
        &self,
        pool: &PoolRef,
        internal: Option<Internal>,
        bounds: Admission,
    ) -> Arc<RequestGate> {
        let gates = &self.inner().gates;
        internal.map_or_else(|| gates.of_pool(pool, bounds), |rpc| gates.internal(rpc).clone())
    }

    /// Returns the registration of `rpc` of that provider, if there is one. Nothing is served in a
    /// child process that was forked off, where the table may be locked for ever.
    fn served<A, R>(&self, rpc: Rpc<A, R>, provider: ProviderId) -> Option<Arc<Registration>> {
        let inner = self.inner();
        if inner.is_forked() { None } else { inner.core.registered(rpc.id(provider)) }
    }

    /// Moves an RPC's handlers while the layout is held still. The registration until then goes to
    /// `outdated`.
    pub(crate) fn move_handlers<A, R>(
        &self,
        rpc: Rpc<A, R>,
        provider: ProviderId,
        pool: &PoolRef,
        outdated: &mut Vec<Arc<Registration>>,
    ) -> Result<(), RegisterError> {
        let (name, id) = (rpc.name(), rpc.id(provider));
        let not_registered = RegisterError::NotRegistered { rpc: name, provider };
        let Some(registration) = self.inner().core.registered(id) else {
            return Err(not_registered);
        };
        outdated.push(registration.clone());
        let Some(entry) = registration.data_as::<RegisteredRpc>() else {
            return Err(not_registered);
        };
        let moved = self.moved(name, entry, pool)?;
        let new = self.registration_of(moved, id);
        self.inner().core.replace(&registration, new).map_err(|_| not_registered)?;
        replaced(&registration);
        Ok(())
    }

    /// The pools of shards have changed: handlers that run in them run in those of now. The
    /// registrations until then go to `outdated`. The layout is held still.
    pub(crate) fn renew_registrations(&self, outdated: &mut Vec<Arc<Registration>>) {
        let core = &self.inner().core;
        for old in core.registrations() {
            if let Some(entry) = old.data_as::<RegisteredRpc>().filter(|entry| entry.parts == 0) {
                let new = self.registration_of(entry.clone(), old.id());
                let gets_more = new.all_data::<RegisteredRpc>().count() > 1;
                // Unless it was deregistered meanwhile.
                if gets_more && core.replace(&old, new).is_ok() {
                    replaced(&old);
                }
            }
            outdated.push(old);
        }
    }

    /// Returns the entry of an RPC in another pool, if it may be served there.
    fn moved(
        &self,
        rpc: &'static str,
        entry: &RegisteredRpc,
        pool: &PoolRef,
    ) -> Result<RegisteredRpc, RegisterError> {
        self.may_serve_in(rpc, pool, entry.priority)?;
        let internal = self.inner().gates.internal_of(&entry.gate);
        let (pool_index, bounds) = self.bounds_of(pool, internal);
        let own_bounds = entry.own_gate.as_ref().map(|gate| gate.bounds());
        may_wait_in(rpc, pool, [Some(bounds), own_bounds])?;
        let gate = self.gate_of(pool, internal, bounds);
        Ok(RegisteredRpc { pool: pool.clone(), pool_index, gate, ..entry.clone() })
    }

    /// Moves a provider, and those of its RPCs that run in its pool: all of them, or none.
    pub(crate) fn move_provider(
        &self,
        id: ProviderId,
        rpcs: &ProviderRpcs,
        pool: &PoolRef,
    ) -> Result<(), RegisterError> {
        self.may_register()?;
        let (core, all) = (&self.inner().core, rpcs.all());
        // As in `set_handler_pool`.
        let mut outdated = Vec::new();
        let any = all.first().map_or("(none)", |own| own.rpc);
        let _still = self.hold_still(any)?;
        let (from, mut planned) = (rpcs.pool(), Vec::new());
        for own in rpcs.all() {
            let Some(old) = core.registered(own.id) else { continue };
            outdated.push(old.clone());
            let here = |entry: &&RegisteredRpc| own.is(entry) && entry.pool == from;
            if let Some(entry) = old.data_as().filter(here) {
                let new = self.registration_of(self.moved(own.rpc, entry, pool)?, own.id);
                planned.push((old, new));
            }
        }
        if planned.is_empty() {
            // Also what is registered later is to run there.
            self.may_serve_in(any, pool, Priority::Normal)?;
        }
        let hold = self.hold_for_provider(id, pool);
        for (old, new) in planned {
            // Unless it was deregistered meanwhile: then there is nothing to move.
            if core.replace(&old, new).is_ok() {
                replaced(&old);
            }
        }
        drop(rpcs.settle(pool.clone(), hold));
        Ok(())
    }

    /// Keeps the pool of a provider. None of a pool that the instance does not know: nothing is
    /// registered there.
    pub(crate) fn hold_for_provider(&self, id: ProviderId, pool: &PoolRef) -> Option<PoolHold> {
        self.layout().hold_pool(pool, format!("provider {id}")).ok()
    }
}

impl InstanceLayout<'_> {
    /// The pool in which handlers of `rpc` of that provider run; `None`: it is not served here.
    ///
    /// Counterpart: `margo_rpc_get_pool`.
    pub fn handler_pool<A, R>(&self, rpc: Rpc<A, R>, provider: ProviderId) -> Option<PoolRef> {
        let registration = self.instance.served(rpc, provider)?;
        registration.data_as::<RegisteredRpc>().map(|entry| entry.pool.clone())
    }

    /// Lets handlers of `rpc` of that provider run in another pool from now on. Requests that have
    /// arrived stay where they are; none is lost, refused or run twice. Bounds of the RPC's own
    /// ([`Serve::admission`](crate::Serve::admission)) go with it, and count those in both pools.
    /// Requests that wait for one of its places then may go into a pool beyond the bounds of that.
    ///
    /// # Errors
    ///
    /// [`RegisterError::NotRegistered`]; `PrivatePool`; `PrivateWait`; `NoPriorities`;
    /// `OtherRuntime`; `PoolRemoved`; [`RegisterError::Inline`]; `Closing`; `Forked`.
    ///
    /// Counterpart: `margo_rpc_set_pool`, with [`rpc_pool`](Self::rpc_pool) in the place of NULL.
    pub fn set_handler_pool<A, R>(
        &self,
        rpc: Rpc<A, R>,
        provider: ProviderId,
        pool: &PoolRef,
    ) -> Result<(), RegisterError> {
        self.instance.may_register()?;
        // Dropped after the layout was let go of: if the RPC is deregistered meanwhile, which takes
        // no lock of the layout, it is the last of a handler of the user's.
        let mut outdated = Vec::new();
        let _still = self.instance.hold_still(rpc.name())?;
        self.instance.move_handlers(rpc, provider, pool, &mut outdated)
    }
}

impl InstanceMonitoring<'_> {
    /// How many requests `pool` has in hand; `None`: no handler was ever registered there, or the
    /// pool was removed.
    pub fn load(&self, pool: &PoolRef) -> Option<Load> {
        let inner = self.inner();
        if inner.is_forked() { None } else { inner.gates.find(pool).map(|gate| gate.load()) }
    }

    /// How many requests of `rpc` of that provider are in hand; `None`: it is not served here with
    /// bounds of its own.
    pub fn rpc_load<A, R>(&self, rpc: Rpc<A, R>, provider: ProviderId) -> Option<Load> {
        let registration = self.instance.served(rpc, provider)?;
        Some(registration.data_as::<RegisteredRpc>()?.own_gate.as_ref()?.load())
    }
}

/// That is not in the registry any more.
fn replaced(registration: &Arc<Registration>) {
    if let Some(member) =
        registration.data_as().and_then(|entry: &RegisteredRpc| entry.member.as_ref())
    {
        member.replaced(registration);
    }
}

/// Returns whether requests of `rpc` that wait for a place can be let into the pool: the unit that
/// answers one does that, from wherever it is.
fn may_wait_in(
    rpc: &'static str,
    pool: &PoolRef,
    bounds: [Option<Admission>; 2],
) -> Result<(), RegisterError> {
    let waits = bounds.into_iter().flatten().any(|bounds| bounds.overload == Overload::Wait);
    if waits && pool.access() == ult::Access::Private {
        return Err(RegisterError::PrivateWait { rpc, pool: pool.name().to_owned() });
    }
    Ok(())
}
