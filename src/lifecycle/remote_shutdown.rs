//! Ending an instance from another process, where that is allowed.
//!
//! The RPC is C Margo's: `__shutdown__` of the default provider, without arguments; it returns a
//! 32-bit number, 0 for "I do", -1 for "not allowed". Every instance that listens serves it, so
//! that "not allowed" can be told from "no such peer".

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::InstanceNetwork;
use crate::admission::counters::Counters;
use crate::admission::gates::Internal;
use crate::observe::audit::AuditEvent;
use crate::support::log::log;
use crate::support::own_rpcs;
use crate::{Addr, Instance, ProviderHandle, RegisterError, Rpc, ShutdownRemoteError};

const SHUTDOWN: Rpc<(), i32> = Rpc::new(own_rpcs::SHUTDOWN);

const DONE: i32 = 0;
const NOT_ALLOWED: i32 = -1;

/// Serves the RPC, if this instance serves any.
pub(crate) fn register(instance: &Instance) -> Result<(), RegisterError> {
    if !instance.inner().resolved.listen {
        return Ok(());
    }
    // Where a handler may always run, whatever the pools of the document allow and have in hand.
    let pool = instance.layout().progress_pool();
    instance.serve(SHUTDOWN).pool(&pool).internal(Internal::Shutdown).handler(|request| {
        let (instance, origin, caller) =
            (request.instance(), request.origin(), request.principal());
        let log = &instance.inner().log;
        let done = instance.inner().remote_shutdown.load(Ordering::Relaxed);
        if let Some(audit) = &instance.inner().audit {
            let (caller, origin) = (caller.to_string(), origin.to_string());
            audit.record(|| AuditEvent::Shutdown { done, caller, origin });
        }
        if !done {
            let count = Counters::add(&instance.inner().counters.shutdowns_refused);
            // A peer that asks for nothing else must not fill the log.
            if count.is_power_of_two() {
                log!(log, WARN, %origin, %caller, count, "a peer may not shut this instance down");
            }
            let _ = request.respond(&NOT_ALLOWED);
            return;
        }
        log!(log, INFO, %origin, %caller, "shut down by a peer");
        // First, so that a peer that is gone does not decide.
        let _ = request.respond(&DONE);
        instance.finalize();
    })
}

impl InstanceNetwork<'_> {
    /// From now on lets any peer end this instance, with
    /// [`shutdown_remote`](Self::shutdown_remote) or C Margo's `margo_shutdown_remote_instance`.
    /// Default: as configured in `margo.remote_shutdown`, which is off.
    ///
    /// Any process that can reach the address can do it, unless there are rules
    /// (`margo.security`).
    ///
    /// Counterpart: `margo_enable_remote_shutdown`.
    pub fn enable_remote_shutdown(&self) {
        self.inner().remote_shutdown.store(true, Ordering::Relaxed);
    }

    /// Has the instance at `peer` [`finalize`](crate::Instance::finalize). Returns when it has
    /// agreed, not when it has ended.
    ///
    /// # Errors
    ///
    /// [`ShutdownRemoteError::NotEnabled`] if it does not allow that;
    /// [`ShutdownRemoteError::Forward`] if it was not reached or did not answer.
    ///
    /// Counterpart: `margo_shutdown_remote_instance`.
    pub fn shutdown_remote(&self, peer: &Addr) -> Result<(), ShutdownRemoteError> {
        agreed(peer, self.instance.forward(SHUTDOWN, &ProviderHandle::from(peer.clone()), &())?)
    }

    /// [`shutdown_remote`](Self::shutdown_remote) with a limit: ofi does not tell that a peer is
    /// gone (`docs/transports/ofi.md`), so that without a limit the call may wait for good. A peer
    /// that was too slow to answer may end all the same.
    ///
    /// # Errors
    ///
    /// [`ShutdownRemoteError`].
    pub fn shutdown_remote_timed(
        &self,
        peer: &Addr,
        limit: Duration,
    ) -> Result<(), ShutdownRemoteError> {
        let target = ProviderHandle::from(peer.clone());
        agreed(peer, self.instance.forward_timed(SHUTDOWN, &target, &(), limit)?)
    }
}

fn agreed(peer: &Addr, answer: i32) -> Result<(), ShutdownRemoteError> {
    match answer {
        DONE => Ok(()),
        _ => Err(ShutdownRemoteError::NotEnabled { peer: peer.to_string() }),
    }
}
