//! Metrics for another process, where that is allowed.
//!
//! The RPC is `__metrics__` of the default provider, without arguments. It returns a 32-bit number,
//! 0 for "here they are" and -1 for "not allowed", and the snapshot as JSON: its reader may be of
//! another version, or no program of ours. Every instance that listens serves it, so that "not
//! allowed" can be told from "does not know that RPC", which C processes and old versions say.
//!
//! A snapshot may take some milliseconds, for which progress must not stand still: so a thread
//! takes it, which lives while there are requests for one. It takes one snapshot for all requests
//! that have come before.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use crate::InstanceNetwork;
use crate::admission::gates::Internal;
use crate::instance::inner::Inner;
use crate::report::collect::collect;
use crate::support::contain::contain;
use crate::support::log::log;
use crate::support::own_rpcs;
use crate::{Addr, ForwardError, Handle, Instance, Metrics, MetricsError, ProviderHandle};
use crate::{RegisterError, Rpc};

const METRICS: Rpc<(), Answer> = Rpc::new(own_rpcs::METRICS);

type Answer = (i32, String);

const ALLOWED: i32 = 0;
const NOT_ALLOWED: i32 = -1;

/// Serves the RPC, if this instance serves any.
pub(crate) fn register(instance: &Instance) -> Result<(), RegisterError> {
    if !instance.inner().resolved.listen {
        return Ok(());
    }
    // Not in the pool of handlers, nor within its bounds: these may be what somebody wants to look
    // at.
    let (pool, asked) = (instance.layout().progress_pool(), Arc::new(SnapshotCallers::default()));
    instance.serve(METRICS).pool(&pool).internal(Internal::Metrics).handler(move |request| {
        let inner = request.instance().inner().clone();
        if !inner.metrics.remote.load(Ordering::Relaxed) {
            let (log, origin, caller) = (&inner.log, request.origin(), request.principal());
            log!(log, DEBUG, %origin, %caller, "a peer may not read the metrics");
            // Who is gone needs no answer.
            let _ = request.respond(&(NOT_ALLOWED, String::new()));
            return;
        }
        if !asked.enter(request) {
            return;
        }
        let (own, there) = (inner.clone(), asked.clone());
        let thread = std::thread::Builder::new().name("margo-metrics-of".to_owned());
        let run = move || {
            // It begins with the processors of the execution stream that makes progress. If others
            // are not to be had, these are as good.
            let _ = ult::topology::bind_this_thread(own.runtime.cpus());
            answer(&own, &there);
        };
        if thread.spawn(run).is_err() {
            // The process is out of threads.
            answer(&inner, &asked);
        }
    })
}

/// The calls that wait for a snapshot, and whether there is a thread that takes one.
#[derive(Default)]
struct SnapshotCallers(Mutex<(Vec<Handle<(), Answer>>, bool)>);

impl SnapshotCallers {
    /// Returns whether the caller has to see to a thread.
    fn enter(&self, request: Handle<(), Answer>) -> bool {
        let mut asked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        asked.0.push(request);
        !std::mem::replace(&mut asked.1, true)
    }

    /// All who have asked; none: the thread ends.
    fn take(&self) -> Vec<Handle<(), Answer>> {
        let mut asked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        asked.1 = !asked.0.is_empty();
        std::mem::take(&mut asked.0)
    }
}

/// Answers until no request is left.
fn answer(inner: &Inner, asked: &SnapshotCallers) {
    loop {
        let requests = asked.take();
        if requests.is_empty() {
            return;
        }
        // Pools and schedulers of users are asked how they are.
        let take = || serde_json::to_string(&collect(inner)).unwrap_or_default();
        let Some(json) = contain(&inner.log, "what is asked for metrics", take) else {
            // Whose request is dropped gets an error.
            continue;
        };
        let answer = (ALLOWED, json);
        for request in requests {
            // Who is gone needs no answer.
            let _ = request.respond(&answer);
        }
    }
}

impl InstanceNetwork<'_> {
    /// From now on lets any peer read [`metrics`](crate::Instance::metrics) with
    /// [`metrics_of`](Self::metrics_of), as `margo top` does. Default: as configured in
    /// `margo.metrics.remote`, which is off.
    ///
    /// Any process that can reach the address can do it, unless there are rules
    /// (`margo.security`).
    pub fn enable_remote_metrics(&self) {
        self.inner().metrics.remote.store(true, Ordering::Relaxed);
    }

    /// The [`metrics`](crate::Instance::metrics) of the instance at `peer`. Waits for the answer
    /// like [`forward`](crate::Instance::forward), and as long: an instance whose progress is stuck
    /// does not answer (its `margo.metrics.listen` does), so
    /// [`metrics_of_timed`](Self::metrics_of_timed) is better if that may be the case.
    ///
    /// # Errors
    ///
    /// [`MetricsError`].
    pub fn metrics_of(&self, peer: &Addr) -> Result<Metrics, MetricsError> {
        let target = ProviderHandle::from(peer.clone());
        read(peer, self.instance.forward(METRICS, &target, &()))
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
        read(peer, self.instance.forward_timed(METRICS, &target, &(), limit))
    }
}

fn read(peer: &Addr, answer: Result<Answer, ForwardError>) -> Result<Metrics, MetricsError> {
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
