//! Which handler serves which RPC id.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Arc, PoisonError, RwLock};

use serde::Serialize;
use serde::de::DeserializeOwned;
use ult::PoolRef;

use crate::hg::{ProviderId, RpcId};
use crate::respond::Reply;
use crate::{Instance, RegisterError, Request, Rpc};

/// What runs on the handler's ULT: decodes, calls the user's function, sees to an answer.
type Run = dyn Fn(&Arc<Reply>, Instance) + Send + Sync;

/// A registered RPC.
pub(crate) struct Entry {
    pub(crate) rpc: &'static str,
    pub(crate) provider: ProviderId,
    pub(crate) pool: PoolRef,
    pub(crate) run: Box<Run>,
    pub(crate) instance: crate::instance::WeakInstance,
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Entry({} of provider {})", self.rpc, self.provider)
    }
}

/// All registered RPCs of an instance.
#[derive(Debug, Default)]
pub(crate) struct Handlers {
    by_id: RwLock<HashMap<RpcId, Arc<Entry>, BuildHasherDefault<IdHasher>>>,
}

/// An RPC id is a hash already; its two halves only have to be brought together. A peer chooses
/// which ids it asks for, but not which ones are in the table.
#[derive(Default)]
struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0 ^ word ^ word >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

impl Handlers {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn get(&self, id: RpcId) -> Option<Arc<Entry>> {
        self.by_id.read().unwrap_or_else(PoisonError::into_inner).get(&id).cloned()
    }

    fn insert(&self, id: RpcId, entry: Entry) -> Result<(), RegisterError> {
        let mut by_id = self.by_id.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(there) = by_id.get(&id) {
            return Err(if there.rpc == entry.rpc {
                RegisterError::Exists { rpc: entry.rpc, provider: entry.provider }
            } else {
                let other = there.rpc.to_owned();
                RegisterError::Collision { rpc: entry.rpc, other, id: id.0 }
            });
        }
        by_id.insert(id, Arc::new(entry));
        Ok(())
    }

    pub(crate) fn remove(&self, id: RpcId) {
        // Dropped outside the lock: a handler's destructor is the user's code.
        let removed = self.by_id.write().unwrap_or_else(PoisonError::into_inner).remove(&id);
        drop(removed);
    }

    pub(crate) fn clear(&self) {
        let all = std::mem::take(&mut *self.by_id.write().unwrap_or_else(PoisonError::into_inner));
        drop(all);
    }
}

impl Instance {
    /// Serves `rpc` under the default provider id, in the default pool, for as long as this
    /// instance lives. For a service with a provider id or a pool of its own see
    /// [`provider`](Self::provider).
    ///
    /// `handler` runs once for each request, on a ULT of its own; it may block in everything that
    /// [`ult`] and this crate offer. It should answer with [`Request::respond`]; if it returns
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
        R: Serialize + 'static,
        F: Fn(Request<A, R>) + Send + Sync + 'static,
    {
        self.register_at(rpc, ProviderId::DEFAULT, self.rpc_pool(), handler)
    }

    pub(crate) fn register_at<A, R, F>(
        &self,
        rpc: Rpc<A, R>,
        provider: ProviderId,
        pool: PoolRef,
        handler: F,
    ) -> Result<(), RegisterError>
    where
        A: DeserializeOwned + 'static,
        R: Serialize + 'static,
        F: Fn(Request<A, R>) + Send + Sync + 'static,
    {
        if !self.inner().resolved.listen {
            return Err(RegisterError::NotListening { rpc: rpc.name() });
        }
        if self.is_finalizing() {
            return Err(RegisterError::Closing);
        }
        if pool.access() == ult::Access::Private
            && pool.xstreams() != self.progress_pool().xstreams()
        {
            return Err(RegisterError::PrivatePool {
                rpc: rpc.name(),
                pool: pool.name().to_owned(),
            });
        }
        let run = move |reply: &Arc<Reply>, instance: Instance| {
            if let Some(args) = reply.decode::<A>() {
                handler(Request::new(args, reply.clone(), instance));
            }
        };
        let entry = Entry {
            rpc: rpc.name(),
            provider,
            pool,
            run: Box::new(run),
            instance: self.downgrade(),
        };
        self.inner().handlers.insert(rpc.id(provider), entry)
    }
}
