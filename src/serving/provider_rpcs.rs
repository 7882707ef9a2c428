//! The registrations of a provider, and where they run.
//!
//! Registrations are found by their number in the registry. Other code may have taken one back and
//! put another one in its place there, so each is known by its handler, too.
//!
//! The pool and the registrations change while the layout is held still (`elastic/mod.rs`), so that
//! a provider that moves leaves nothing behind. The lock here is held only for a look-up.
//!
//! A request keeps the registration of its RPC, and so the handler. Closing a provider waits until
//! no registration is left: each [`RegisteredRpc`] has a [`Member`], which goes after the handler.
//! So registering and moving cost something, and a request nothing.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use hg::RpcId;
use ult::PoolRef;

use crate::Instance;
use crate::PoolHold;
use crate::dispatch::member::{Living, Member};
use crate::dispatch::registered_rpc::{RegisteredRpc, Run};

/// See the module's documentation.
pub(crate) struct ProviderRpcs {
    /// For a child process that was forked off, where the lock may be held for ever.
    first_pool: PoolRef,
    state: Mutex<RpcsState>,
    living: Arc<Living>,
    /// Requests may name one of so many parts, and are for the shard that has it.
    pub(crate) parts: u8,
}

struct RpcsState {
    pool: PoolRef,
    /// Also without RPCs a provider keeps its pool.
    hold: Option<PoolHold>,
    own: Vec<Own>,
}

/// An RPC of a provider.
#[derive(Clone)]
pub(crate) struct Own {
    pub(crate) rpc: &'static str,
    pub(crate) id: RpcId,
    /// Whatever else changes, the handler is the same. As long as this is here, it has its address.
    run: Weak<Run>,
}

impl ProviderRpcs {
    /// None yet, to run in that pool.
    pub(crate) fn new(pool: PoolRef, hold: Option<PoolHold>) -> Self {
        let first_pool = pool.clone();
        let state = Mutex::new(RpcsState { pool, hold, own: Vec::new() });
        Self { first_pool, state, living: Living::new(), parts: 0 }
    }

    fn lock(&self) -> MutexGuard<'_, RpcsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where they run that have no pool of their own.
    pub(crate) fn pool(&self) -> PoolRef {
        self.lock().pool.clone()
    }

    /// Where they ran at first.
    pub(crate) fn first_pool(&self) -> &PoolRef {
        &self.first_pool
    }

    /// They run there from now on. Returns what has kept the pool before.
    pub(crate) fn settle(&self, pool: PoolRef, hold: Option<PoolHold>) -> Option<PoolHold> {
        let mut state = self.lock();
        state.pool = pool;
        std::mem::replace(&mut state.hold, hold)
    }

    /// One more; one of the same number is not there any more.
    pub(crate) fn push(&self, rpc: &'static str, id: RpcId, run: &Arc<Run>) {
        let mut state = self.lock();
        state.own.retain(|own| own.id != id);
        state.own.push(Own { rpc, id, run: Arc::downgrade(run) });
    }

    pub(crate) fn take(&self, id: RpcId) -> Option<Own> {
        let own = &mut self.lock().own;
        let at = own.iter().position(|own| own.id == id)?;
        Some(own.swap_remove(at))
    }

    pub(crate) fn take_all(&self) -> Vec<Own> {
        std::mem::take(&mut self.lock().own)
    }

    pub(crate) fn all(&self) -> Vec<Own> {
        self.lock().own.clone()
    }

    /// For one more that is registered.
    pub(crate) fn member(&self) -> Member {
        Member::of(&self.living)
    }

    /// Waits until no handler is left, all having been taken back; for at most so long.
    ///
    /// # Errors
    ///
    /// How many requests keep some.
    pub(crate) fn wait(&self, limit: Duration) -> Result<(), usize> {
        self.living.wait(limit)
    }
}

impl Own {
    /// Returns whether that is it, in whatever pool.
    pub(crate) fn is(&self, entry: &RegisteredRpc) -> bool {
        std::ptr::addr_eq(Arc::as_ptr(&entry.run), self.run.as_ptr())
    }

    /// Takes it back, if it is there.
    pub(crate) fn deregister(&self, instance: &Instance) -> bool {
        instance.deregister_if(self.id, |entry| self.is(entry))
    }
}
