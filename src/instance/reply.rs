//! A request in hand, which its handler and all who may answer share. It is made, handled and
//! answered in `dispatch/run_handler.rs`; `dispatch/error_response.rs` sees to it that it is.

use std::any::Any;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use hg::{CallKey, Core, OnBehalfOf, ProviderId, RawRequest, Registration, RpcId};
use na::claim::Claim;
use na::lock::Lock;

use crate::instance::inner::Inner;
use crate::observe::monitor::RequestWatch;
use crate::observe::parent;
use crate::observe::trace::TraceContext;
use crate::operation::cancel::{CancelToken, Wanted};
use crate::operation::token::Token;
use crate::progress::shards::Shard;
use crate::support::log::log;
use crate::{Addr, Instance, Principal};

/// No unit has this address, and no OS thread says it.
pub(crate) const NO_UNIT: usize = 1;

/// The duty to answer one request, and what its handler needs.
pub(crate) struct Reply {
    pub(crate) instance: Instance,
    pub(crate) rpc: &'static str,
    pub(crate) provider: ProviderId,
    pub(crate) origin: Addr,
    /// The shard that the request came by.
    pub(crate) shard: u8,
    pub(crate) wants_response: bool,
    /// When the origin gives up, if it has said so.
    pub(crate) deadline: Option<Instant>,
    /// Made when it is asked for, with the name of the call then.
    pub(crate) cancel: OnceLock<(CancelToken, Option<CallKey>)>,
    pub(crate) watch: RequestWatch,
    /// The trace that it is part of, across processes.
    pub(crate) trace: Option<TraceContext>,
    /// The parent that the request names, once it was decoded; see `parent.rs`.
    pub(crate) parent: RpcId,
    /// The key that names the call to its origin.
    pub(crate) call: Option<CallKey>,
    /// The count of the request at its caller's limits, until this is dropped.
    pub(crate) charge: Option<Box<dyn Any + Send + Sync>>,
    /// The caller on whose behalf the request is made, as its origin says.
    pub(crate) on_behalf_of: Option<Box<OnBehalfOf>>,
    /// The principal that the request has proven, where the transport does not tell.
    pub(crate) proven: Option<Principal>,
    /// The request, for the unit that answers.
    pub(crate) request: Claim<RawRequest>,
    /// The request is answered, or about not to be. Written by the handler's unit, or under the
    /// lock of `ends`.
    pub(crate) is_over: AtomicBool,
    /// The handler's unit, as long as it runs.
    pub(crate) unit: AtomicUsize,
    pub(crate) ends: Lock<Ends>,
}

/// The state that decides which comes last, the handler's unit or the answer, and which of them
/// tells of a panic.
pub(crate) struct Ends {
    /// The user's request was dropped by a panic in the handler's unit, unanswered.
    pub(crate) lost_to_panic: bool,
    /// The handler has ended before the answer, which is to give its places back.
    pub(crate) left: Option<Arc<Registration>>,
}

impl Reply {
    pub(crate) fn instance(&self) -> &Instance {
        &self.instance
    }

    pub(crate) fn inner(&self) -> &Inner {
        self.instance.inner()
    }

    pub(crate) fn rpc(&self) -> &'static str {
        self.rpc
    }

    pub(crate) fn provider(&self) -> ProviderId {
        self.provider
    }

    pub(crate) fn origin(&self) -> &Addr {
        &self.origin
    }

    pub(crate) fn shard(&self) -> u8 {
        self.shard
    }

    pub(crate) fn wants_response(&self) -> bool {
        self.wants_response
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    pub(crate) fn trace(&self) -> Option<TraceContext> {
        self.trace
    }

    /// The RPC in whose handler the call was made.
    pub(crate) fn parent(&self) -> Option<RpcId> {
        parent::from_wire(self.parent.0)
    }

    /// Returns the shard that the request came by.
    pub(crate) fn of_shard(&self) -> &Shard<Instance> {
        self.inner().shards.get(self.shard)
    }

    /// Returns the core that the request came by.
    pub(crate) fn core(&self) -> &Core<Token> {
        &self.of_shard().core
    }

    /// Returns who is behind the origin.
    pub(crate) fn principal(&self) -> Principal {
        self.proven.unwrap_or_else(|| self.core().endpoint().principal(&self.origin))
    }

    pub(crate) fn is_answered(&self) -> bool {
        !self.wants_response || self.request.is_claimed()
    }

    /// Returns the token that fires when the answer is not waited for any more.
    pub(crate) fn cancel_token(&self) -> &CancelToken {
        let (token, _) = self.cancel.get_or_init(|| {
            let inner = self.inner();
            // There the locks may be held for ever.
            if inner.is_forked() {
                return (CancelToken::of_parent(inner.process), None);
            }
            let call = self.call.filter(|_| !self.is_answered());
            let (origin, deadline) = (&self.origin, self.deadline);
            let wanted = Wanted { origin, call, deadline, by: inner };
            let (token, is_new) = inner.cancels.token(&wanted);
            if is_new && *origin != inner.core.self_addr() {
                match self.core().watch_peer(origin) {
                    Ok(watch) => inner.cancels.watched(origin, watch),
                    Err(error) => {
                        log!(inner.log, DEBUG, %origin, %error, "an origin cannot be watched");
                        inner.cancels.not_watched(origin);
                    }
                }
            }
            (token, call)
        });
        token
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reply({} to {})", self.rpc, self.origin)
    }
}
