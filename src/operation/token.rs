//! The token that the RPC layer keeps for each operation.

use std::sync::Arc;

use na::shared::Shared;

use crate::observe::monitor::SpanOfRequest;
use crate::operation::bulk_call::BulkCall;
use crate::operation::call::Call;
use crate::operation::pending_response::PendingResponse;

/// The token that the RPC layer gives back when an operation ends.
#[derive(Debug)]
pub(crate) enum Token {
    /// A call of ours.
    Forward(Shared<Call>),
    /// A bulk transfer of ours.
    Bulk(Arc<BulkCall>),
    /// An answer of ours that is not waited for.
    Respond(Option<SpanOfRequest>),
    /// One that somebody waits for.
    Awaited(Arc<PendingResponse>),
}

impl From<Shared<Call>> for Token {
    #[inline]
    fn from(call: Shared<Call>) -> Self {
        Self::Forward(call)
    }
}

impl From<Arc<BulkCall>> for Token {
    #[inline]
    fn from(call: Arc<BulkCall>) -> Self {
        Self::Bulk(call)
    }
}

impl Token {
    /// The transfer, if it is one.
    pub(crate) fn as_bulk(&self) -> Option<&Arc<BulkCall>> {
        if let Self::Bulk(call) = self { Some(call) } else { None }
    }
}
