//! A request in hand, which its handler and all who may answer share; see `dispatch/respond.rs`.

use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use hg::{CallKey, ProviderId, RawRequest, Registration, RpcId};
use na::claim::Claim;
use na::lock::Lock;

use crate::observe::monitor::RequestWatch;
use crate::observe::trace::TraceContext;
use crate::operation::cancel::CancelToken;
use crate::{Addr, Instance};

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
