//! What a handler gets.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use crate::hg::{ProviderId, ReturnCode, RpcId};
use crate::respond::Reply;
use crate::{Addr, Bulk, BulkError, Instance, LocalBulk, RespondError};

/// A request that is being handled: its arguments, where it came from, and the duty to answer.
///
/// It may be answered early and worked on afterwards, or moved into another ULT and answered there.
/// Dropped without an answer, it answers with an error ([`ForwardError::Failed`] at the origin).
///
/// Counterpart: `hg_handle_t` at the target; Thallium's `request`.
///
/// [`ForwardError::Failed`]: crate::ForwardError::Failed
pub struct Handle<A, R> {
    args: A,
    reply: Arc<Reply>,
    result: std::marker::PhantomData<fn(R)>,
}

impl<A, R> Handle<A, R> {
    pub(crate) fn new(args: A, reply: Arc<Reply>) -> Self {
        Self { args, reply, result: std::marker::PhantomData }
    }

    /// The arguments.
    pub fn args(&self) -> &A {
        &self.args
    }

    /// Who called. Bulk handles among the arguments belong to this peer.
    pub fn origin(&self) -> &Addr {
        self.reply.origin()
    }

    /// The instance that serves this request; for nested calls.
    pub fn instance(&self) -> &Instance {
        self.reply.instance()
    }

    /// The RPC's name.
    pub fn rpc_name(&self) -> &'static str {
        self.reply.rpc()
    }

    /// The provider that was called.
    pub fn provider_id(&self) -> ProviderId {
        self.reply.provider()
    }

    /// The RPC in whose handler the call was made, at the origin: what
    /// [`current_rpc_id`](crate::current_rpc_id) said there. `None`: outside of any.
    ///
    /// Counterpart: `parent_rpc_id` of Margo's monitoring.
    pub fn parent(&self) -> Option<RpcId> {
        self.reply.parent()
    }

    /// The context of this instance that took the request: the one that the origin asked for
    /// ([`ProviderHandle::in_context`](crate::ProviderHandle::in_context)), or 0.
    ///
    /// Counterpart: `context_id` of `HG_Get_info`.
    pub fn context(&self) -> u8 {
        self.reply.context()
    }

    /// Copies from the origin's exposed memory into `into[local]`; suspends until it is there.
    ///
    /// # Errors
    ///
    /// As [`Instance::pull`].
    pub fn pull(
        &self,
        remote: &Bulk,
        remote_offset: u64,
        into: &mut impl LocalBulk,
        local: Range<usize>,
    ) -> Result<(), BulkError> {
        self.instance().pull(self.origin(), remote, remote_offset, into, local)
    }

    /// Copies `from[local]` into the origin's exposed memory; suspends until it is there.
    ///
    /// # Errors
    ///
    /// As [`Instance::push`].
    pub fn push(
        &self,
        remote: &Bulk,
        remote_offset: u64,
        from: &mut impl LocalBulk,
        local: Range<usize>,
    ) -> Result<(), BulkError> {
        self.instance().push(self.origin(), remote, remote_offset, from, local)
    }

    /// As [`pull`](Self::pull), for at most `limit` from now.
    ///
    /// # Errors
    ///
    /// As [`Instance::pull_timed`].
    pub fn pull_timed(
        &self,
        remote: &Bulk,
        remote_offset: u64,
        into: &mut impl LocalBulk,
        local: Range<usize>,
        limit: Duration,
    ) -> Result<(), BulkError> {
        self.instance().pull_timed(self.origin(), remote, remote_offset, into, local, limit)
    }

    /// As [`push`](Self::push), for at most `limit` from now.
    ///
    /// # Errors
    ///
    /// As [`Instance::push_timed`].
    pub fn push_timed(
        &self,
        remote: &Bulk,
        remote_offset: u64,
        from: &mut impl LocalBulk,
        local: Range<usize>,
        limit: Duration,
    ) -> Result<(), BulkError> {
        self.instance().push_timed(self.origin(), remote, remote_offset, from, local, limit)
    }

    /// Answers that the handler failed, with a text for people. For failures that the origin's
    /// program should tell apart, make the RPC's result a `Result` instead.
    ///
    /// # Errors
    ///
    /// [`RespondError::Answered`] if there was an answer.
    pub fn fail(&self, detail: &str) -> Result<(), RespondError> {
        if self.reply.fail(ReturnCode::OtherError, detail) {
            Ok(())
        } else {
            Err(RespondError::Answered { rpc: self.reply.rpc() })
        }
    }
}

impl<A, R: Serialize> Handle<A, R> {
    /// Answers. Returns when the answer is on its way; does not wait for its delivery.
    ///
    /// # Errors
    ///
    /// [`RespondError::Answered`] on the second call, which changes nothing; others when the answer
    /// could not be encoded or sent.
    ///
    /// Counterpart: `margo_respond`.
    pub fn respond(&self, result: &R) -> Result<(), RespondError> {
        self.reply.respond(result)
    }
}

impl<A, R> Drop for Handle<A, R> {
    fn drop(&mut self) {
        self.reply.request_dropped();
    }
}

impl<A: fmt::Debug, R> fmt::Debug for Handle<A, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("args", &self.args).field("reply", &self.reply).finish()
    }
}
