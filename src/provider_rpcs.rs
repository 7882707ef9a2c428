//! What a provider has registered, and where that runs.
//!
//! Registrations are found by their number in the registry, where others may have taken one back
//! and put another one in its place; so each is known by its handler, too.
//!
//! The pool, and what is registered, change while the layout is held still (`elastic/mod.rs`), so
//! that a provider that moves leaves nothing behind. The lock here is for a look.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use ult::PoolRef;

use crate::PoolHold;
use crate::hg::RpcId;
use crate::instance::Inner;
use crate::register::{Entry, Run};

/// See the module's documentation.
pub(crate) struct ProviderRpcs {
    /// For a child process that was forked off, where the lock may be held for ever.
    first_pool: PoolRef,
    state: Mutex<State>,
}

struct State {
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
        Self { first_pool, state: Mutex::new(State { pool, hold, own: Vec::new() }) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
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
}

impl Own {
    /// Whether that is it, in whatever pool.
    pub(crate) fn is(&self, entry: &Entry) -> bool {
        std::ptr::addr_eq(Arc::as_ptr(&entry.run), self.run.as_ptr())
    }

    /// Takes it back, if it is there.
    pub(crate) fn deregister(&self, inner: &Inner) -> bool {
        inner.deregister(self.id, |entry| self.is(entry))
    }
}
