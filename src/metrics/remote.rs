//! Metrics for another process, where that is allowed.
//!
//! The RPC is `__metrics__` of the default provider, without arguments. It returns a 32-bit number,
//! 0 for "here they are" and -1 for "not allowed", and the snapshot as JSON: who reads it may be of
//! another version, or no program of ours. Every instance that listens serves it, so that "not
//! allowed" can be told from "does not know that RPC", which C processes and old versions say.

use std::sync::atomic::Ordering;

use ult::PoolRef;

use super::Metrics;
use crate::log::log;
use crate::{Addr, ForwardError, Instance, MetricsError, ProviderHandle, ProviderId};
use crate::{RegisterError, Rpc};

/// Of the RPC.
pub(crate) const NAME: &str = "__metrics__";

const METRICS: Rpc<(), (i32, String)> = Rpc::new(NAME);

const ALLOWED: i32 = 0;
const NOT_ALLOWED: i32 = -1;

/// Serves the RPC, if this instance serves any.
pub(crate) fn register(instance: &Instance) -> Result<(), RegisterError> {
    if !instance.inner().resolved.listen {
        return Ok(());
    }
    // Not in the pool of handlers, which may be what somebody wants to look at.
    let pool = instance.progress_pool();
    instance.serve(METRICS).pool(&pool).handler(|request| {
        let instance = request.instance();
        let answer = match instance.inner().metrics.remote.load(Ordering::Relaxed) {
            true => (ALLOWED, serde_json::to_string(&instance.metrics()).unwrap_or_default()),
            false => {
                let (log, origin) = (&instance.inner().log, request.origin());
                log!(log, DEBUG, %origin, "a peer may not read the metrics");
                (NOT_ALLOWED, String::new())
            }
        };
        // Who is gone needs no answer.
        let _ = request.respond(&answer);
    })
}

/// Progress has moved: the pool that it left may be removed.
pub(crate) fn follow_progress(instance: &Instance, pool: &PoolRef) {
    // Not served by an instance that does not listen.
    let _ = instance.move_handlers(METRICS, ProviderId::DEFAULT, pool);
}

impl Instance {
    /// From now on lets any peer read [`metrics`](Self::metrics) with
    /// [`metrics_of`](Self::metrics_of), as `margo top` does. Default: as configured in
    /// `margo.metrics.remote`, which is off.
    ///
    /// Whoever can reach the address can do it: there is no check of who asks.
    pub fn enable_remote_metrics(&self) {
        self.inner().metrics.remote.store(true, Ordering::Relaxed);
    }

    /// The [`metrics`](Self::metrics) of the instance at `peer`. Waits for the answer like
    /// [`forward`](Self::forward), and as long: an instance whose progress is stuck does not
    /// answer (its `margo.metrics.listen` does), so [`metrics_of_timed`](Self::metrics_of_timed)
    /// is better for who does not know.
    ///
    /// # Errors
    ///
    /// [`MetricsError`].
    pub fn metrics_of(&self, peer: &Addr) -> Result<Metrics, MetricsError> {
        let target = ProviderHandle::from(peer.clone());
        read(peer, self.forward(METRICS, &target, &()))
    }

    /// [`metrics_of`](Self::metrics_of) with a limit.
    ///
    /// # Errors
    ///
    /// [`MetricsError`].
    pub fn metrics_of_timed(
        &self,
        peer: &Addr,
        limit: std::time::Duration,
    ) -> Result<Metrics, MetricsError> {
        let target = ProviderHandle::from(peer.clone());
        read(peer, self.forward_timed(METRICS, &target, &(), limit))
    }
}

fn read(peer: &Addr, answer: Result<(i32, String), ForwardError>) -> Result<Metrics, MetricsError> {
    let peer = || peer.to_string();
    match answer {
        Ok((ALLOWED, json)) => serde_json::from_str(&json).map_err(|source| {
            MetricsError::Unreadable { peer: peer(), reason: source.to_string() }
        }),
        Ok(_) => Err(MetricsError::NotEnabled { peer: peer() }),
        Err(ForwardError::NotRegistered { .. }) => Err(MetricsError::Unknown { peer: peer() }),
        Err(error) => Err(MetricsError::Forward(error)),
    }
}
