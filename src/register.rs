//! Which handler serves which RPC id. The table is that of the RPC core (`src/hg/registry.rs`); an
//! [`Entry`] is the data that it keeps for each RPC.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use ult::PoolRef;

use crate::hg::{HgError, ProviderId, Registration};
use crate::respond::Reply;
use crate::{Handle, Instance, RegisterError, Rpc};

/// What runs on the handler's ULT: decodes, calls the user's function, sees to an answer.
type Run = dyn Fn(&Arc<Reply>) + Send + Sync;

/// A registered RPC.
pub(crate) struct Entry {
    pub(crate) rpc: &'static str,
    pub(crate) provider: ProviderId,
    pub(crate) pool: PoolRef,
    /// Which of the instance's pools that is, if it is one.
    pub(crate) pool_index: Option<usize>,
    pub(crate) run: Box<Run>,
    pub(crate) instance: crate::instance::WeakInstance,
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Entry({} of provider {})", self.rpc, self.provider)
    }
}

impl Instance {
    /// Serves `rpc` under the default provider id, in the default pool, for as long as this
    /// instance lives. For a service with a provider id or a pool of its own see
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
        R: Serialize + 'static,
        F: Fn(Handle<A, R>) + Send + Sync + 'static,
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
        F: Fn(Handle<A, R>) + Send + Sync + 'static,
    {
        if !self.inner().resolved.listen {
            return Err(RegisterError::NotListening { rpc: rpc.name() });
        }
        if self.is_finalizing() {
            return Err(RegisterError::Closing);
        }
        // From here on the pool is not removed, and afterwards it has a user.
        let _still = self.inner().elastic.hold_still();
        if pool.is_removed() {
            return Err(RegisterError::PoolRemoved {
                rpc: rpc.name(),
                pool: pool.name().to_owned(),
            });
        }
        if pool.access() == ult::Access::Private
            && self.progress_pools().any(|progress| pool.xstreams() != progress.xstreams())
        {
            return Err(RegisterError::PrivatePool {
                rpc: rpc.name(),
                pool: pool.name().to_owned(),
            });
        }
        if pool.xstreams().is_empty() {
            let (rpc, pool) = (rpc.name(), pool.name());
            tracing::warn!(rpc, pool, "no xstream runs the pool: requests wait until one does");
        }
        let run = move |reply: &Arc<Reply>| {
            if let Some(args) = reply.decode::<A>() {
                handler(Handle::new(args, reply.clone()));
            }
        };
        let pool_index = self.inner().pools.iter().position(|own| *own == pool);
        let entry = Entry {
            rpc: rpc.name(),
            provider,
            pool,
            pool_index,
            run: Box::new(run),
            instance: self.downgrade(),
        };
        let registration = Registration::with_id(rpc.id(provider), rpc.name());
        let registered = self.inner().core.register(registration.data(Arc::new(entry)));
        registered.map(|_| ()).map_err(|error| match error {
            HgError::Collision { id, other, .. } => {
                RegisterError::Collision { rpc: rpc.name(), other, id: id.0 }
            }
            _ => RegisterError::Exists { rpc: rpc.name(), provider },
        })
    }
}
