//! Asking for an act of administration.

use std::time::Duration;

use serde_json::Value;

use super::{ADMIN, DONE, FAILED, NOT_ALLOWED};
use crate::admin::AdminRequest;
use crate::{Addr, ForwardError, InstanceNetwork, ProviderHandle};

/// The reason why a peer was not administered.
///
/// ```
/// use std::time::Duration;
///
/// use margo::Instance;
/// use margo::admin::{AdminError, AdminRequest};
///
/// let instance = Instance::builder("na+sm://").start()?;
/// let (peer, limit) = (instance.self_addr(), Duration::from_secs(10));
/// match instance.network().administer(&peer, &AdminRequest::List {}, limit) {
///     Ok(told) => println!("{told:#}"),
///     Err(AdminError::Unknown { peer }) => println!("{peer} cannot be administered"),
///     Err(error) => println!("{error}"),
/// }
/// # instance.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdminError {
    /// The peer does not have the RPC: its program does not call
    /// [`administer`](crate::Instance::administer), or is one of C.
    #[error("{peer} cannot be administered: its program does not offer it, or is a C program")]
    Unknown {
        /// The peer's address.
        peer: String,
    },
    /// The peer does not allow it to this caller.
    #[error("{peer} does not allow it: {reason}")]
    NotAllowed {
        /// The peer's address.
        peer: String,
        /// The key of its document that says so.
        reason: String,
    },
    /// The act was not done; nothing has changed, unless the reason says so.
    #[error("{act}: {reason}")]
    Failed {
        /// The act.
        act: String,
        /// The reason.
        reason: String,
    },
    /// The answer does not mean anything here: the peer is of a later version.
    #[error("the answer of {peer} cannot be read: {reason}")]
    Unreadable {
        /// The peer's address.
        peer: String,
        /// The reason why not.
        reason: String,
    },
    /// The peer was not reached, or did not answer. It may have been changed all the same, unless
    /// [`never_ran`](ForwardError::never_ran).
    #[error("cannot administer a peer: {0}")]
    Forward(#[from] ForwardError),
}

impl InstanceNetwork<'_> {
    /// Has the instance at `peer` do that, for at most `limit`, and returns what it tells: see
    /// [`margo::admin`](crate::admin).
    ///
    /// # Errors
    ///
    /// [`AdminError`].
    ///
    /// Counterpart: Bedrock's `ServiceHandle`.
    pub fn administer(
        &self,
        peer: &Addr,
        request: &AdminRequest,
        limit: Duration,
    ) -> Result<Value, AdminError> {
        let target = ProviderHandle::from(peer.clone());
        let name = || peer.to_string();
        let unreadable = |reason: &dyn ToString| AdminError::Unreadable {
            peer: name(),
            reason: reason.to_string(),
        };
        let text = serde_json::to_string(request).map_err(|error| unreadable(&error))?;
        match self.instance.forward_timed(ADMIN, &target, &text, limit) {
            Ok((DONE, told)) => serde_json::from_str(&told).map_err(|error| unreadable(&error)),
            Ok((NOT_ALLOWED, reason)) => Err(AdminError::NotAllowed { peer: name(), reason }),
            Ok((FAILED, reason)) => Err(AdminError::Failed { act: request.to_string(), reason }),
            Ok((code, _)) => Err(unreadable(&format!("code {code}"))),
            Err(ForwardError::Permission { .. }) => {
                let reason = "no rule of its `margo.security.allow` lets this caller".to_owned();
                Err(AdminError::NotAllowed { peer: name(), reason })
            }
            Err(ForwardError::NotRegistered { .. }) => Err(AdminError::Unknown { peer: name() }),
            Err(error) => Err(error.into()),
        }
    }
}
