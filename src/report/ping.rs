//! Pings: a call that every instance answers, to see whether it does, and how fast.
//!
//! The RPC is `__ping__` of the default provider; it returns the bytes that it was sent. Every
//! instance that listens serves it where progress runs, so a ping tells of the network and of
//! progress, not of the pools of handlers. `__identity__` of the default provider would be answered
//! as well, but without bytes, and instances count it as a request for an RPC that they have not.

use std::time::Duration;

use crate::admission::gates::Internal;
use crate::encoding::Bytes;
use crate::support::own_rpcs;
use crate::{Addr, ForwardError, Instance, InstanceNetwork, ProviderHandle, RegisterError, Rpc};

/// Most bytes of a ping: it is copied where progress runs.
const PING_BYTES_MAX: usize = 64 << 10;

const PING: Rpc<Bytes<Vec<u8>>, Bytes<Vec<u8>>> = Rpc::new(own_rpcs::PING);

/// Serves the RPC, if this instance serves any.
pub(crate) fn register(instance: &Instance) -> Result<(), RegisterError> {
    if !instance.inner().resolved.listen {
        return Ok(());
    }
    let pool = instance.layout().progress_pool();
    instance.serve(PING).pool(&pool).internal(Internal::Ping).handler(|request| {
        // Who is gone needs no answer.
        let _ = match request.args().0.len() {
            0..=PING_BYTES_MAX => request.respond(request.args()),
            bytes => {
                request.fail(&format!("a ping has {PING_BYTES_MAX} bytes at most, not {bytes}"))
            }
        };
    })
}

impl InstanceNetwork<'_> {
    /// Sends `payload` to the instance at `peer`, which sends it back, and waits for that like
    /// [`forward_timed`](crate::Instance::forward_timed), for `limit` at most.
    ///
    /// Any instance that listens answers, without leave and while its handlers are stuck. A peer
    /// that does not know pings, as one of C Margo, answers with an error of a few bytes, which is
    /// as good: it is there.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let service = margo::Instance::builder("na+sm://").start()?;
    /// let client = margo::Instance::builder("na+sm://").listen(false).start()?;
    /// let peer = client.lookup(service.self_addr().uri())?;
    /// client.network().ping(&peer, b"56 bytes, or none", std::time::Duration::from_secs(1))?;
    /// # client.finalize_and_wait()?;
    /// # service.finalize_and_wait()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ForwardError`]; [`ForwardError::TimedOut`] if there is no answer in time, and
    /// [`ForwardError::Failed`] for more than 64 KiB.
    pub fn ping(&self, peer: &Addr, payload: &[u8], limit: Duration) -> Result<(), ForwardError> {
        let target = ProviderHandle::from(peer.clone());
        match self.instance.forward_timed(PING, &target, &Bytes(payload.to_vec()), limit) {
            Ok(_) | Err(ForwardError::NotRegistered { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}
