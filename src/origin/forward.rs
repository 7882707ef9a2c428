//! Calls: from typed arguments to a typed result, or to the reason why there is none.
//!
//! | the caller | file |
//! |---|---|
//! | waits: [`Instance::forward`] | this one |
//! | goes on, and waits, polls or awaits later: [`RpcCall::start`](crate::RpcCall::start) | `forward_request.rs` |
//! | goes on, and is called back: [`RpcCall::call_back`](crate::RpcCall::call_back) | `callback.rs` |
//!
//! All start here; `call.rs` has the object that they wait for, and how it ends.

use std::time::Duration;

use hg::{ForwardOptions, OpRef, margo, proc};
use na::shared::{Shared, UninitShared};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::observe::monitor::CallAbout;
use crate::operation::call::{Call, CallInfo, failure};
use crate::operation::deadline::CallLimits;
use crate::operation::early::EndsEarly;
use crate::operation::on_behalf;
use crate::{ForwardError, Instance, ProviderHandle, Rpc};

impl Instance {
    /// Calls `rpc` at `to` with `args` and waits for the result. A ULT suspends, so others of its
    /// execution stream run meanwhile; an OS thread parks.
    ///
    /// Waits as long as the peer lives: use [`forward_timed`](Self::forward_timed) where the
    /// handler may never answer. Arguments and results larger than the transport's message travel
    /// by a bulk transfer, which costs another round trip.
    ///
    /// A ULT that is cancelled while it waits cancels its call. So does the token of a handler's
    /// request, if the call is made in
    /// [`cancels_calls_in`](crate::cancel::CancelToken::cancels_calls_in).
    ///
    /// In a destructor, while its ULT unwinds, the caller cannot suspend: nothing else runs on its
    /// execution stream until the call is over, and handlers that are to run there cannot answer
    /// it. Give such calls a deadline.
    ///
    /// # Errors
    ///
    /// [`ForwardError`]; its [`never_ran`](ForwardError::never_ran) tells when a retry is harmless.
    ///
    /// Counterpart: `margo_provider_forward`, `margo_get_output`.
    pub fn forward<A, R>(
        &self,
        rpc: Rpc<A, R>,
        to: &ProviderHandle,
        args: &A,
    ) -> Result<R, ForwardError>
    where
        A: Serialize,
        R: DeserializeOwned,
    {
        self.forward_within(rpc, to, args, CallLimits::of_caller(rpc.name(), None)?)
    }

    /// Like [`forward`](Self::forward), for at most `limit` from now, encoding the arguments
    /// included (resolution about 0.1 ms when idle). Then the call is cancelled here, and its
    /// answer is dropped. A target of ours knows the time that is left: it does not start a handler
    /// whose caller waits no more, and tells one that runs
    /// ([`Handle::cancel_token`](crate::Handle::cancel_token)), which may go on all the same. Zero
    /// is no time at all.
    ///
    /// # Errors
    ///
    /// As `forward`, and [`ForwardError::TimedOut`].
    ///
    /// Counterpart: `margo_provider_forward_timed`, for which zero is no limit.
    pub fn forward_timed<A, R>(
        &self,
        rpc: Rpc<A, R>,
        to: &ProviderHandle,
        args: &A,
        limit: Duration,
    ) -> Result<R, ForwardError>
    where
        A: Serialize,
        R: DeserializeOwned,
    {
        self.forward_within(rpc, to, args, CallLimits::of_caller(rpc.name(), Some(limit))?)
    }

    #[inline]
    fn forward_within<A, R>(
        &self,
        rpc: Rpc<A, R>,
        to: &ProviderHandle,
        args: &A,
        bounds: CallLimits,
    ) -> Result<R, ForwardError>
    where
        A: Serialize,
        R: DeserializeOwned,
    {
        let site = CallInfo { rpc: rpc.name(), to, term: bounds.term };
        let flying = self.start_guarded(ForwardOptions::default(), rpc, site, args, bounds)?;
        flying.call.read(self.reading(), site)
    }

    /// Makes a call, and waits until it is over; the term of `bounds` is that of `site`.
    #[inline]
    pub(crate) fn start_guarded<'a, A: Serialize, R>(
        &'a self,
        options: ForwardOptions,
        rpc: Rpc<A, R>,
        site: CallInfo<'a>,
        args: &A,
        bounds: CallLimits,
    ) -> Result<CallGuard<'a>, ForwardError> {
        let is_tied = bounds.canceled_by.is_some();
        let (call, token) = match is_tied {
            false => UninitShared::new().fill_pair(Call::waited_for()),
            true => UninitShared::new().fill_pair(Call::waited_for_within(bounds)),
        };
        let op = self.start(options, rpc, site, args, token)?;
        if is_tied {
            Call::tie(&call, self.inner(), op, site.to);
        }
        let flying = CallGuard { by: &**self.inner(), call, op, to: site.to };
        let done = flying.call.done();
        self.inner().stand_in(&|| done.is_ready());
        if !self.inner().wait_for(done, site.term.map(|term| term.at)) {
            flying.call.time_out(&**self.inner(), flying.op);
            // The reply may have won the race against that; then it is a reply.
            self.inner().wait_for(done, None);
        }
        Ok(flying)
    }

    /// Starts a call, which ends through `call`; not if this returns an error. The shard at the
    /// target is that of the provider handle.
    #[inline]
    pub(crate) fn start<A: Serialize, R>(
        &self,
        options: ForwardOptions,
        rpc: Rpc<A, R>,
        site: CallInfo<'_>,
        args: &A,
        call: Shared<Call>,
    ) -> Result<OpRef, ForwardError> {
        let to = site.to;
        self.inner().may_start().map_err(|error| failure(site, error))?;
        call.is_wanted(site)?;
        let (parent, trace) = self.inner().monitoring.of_call();
        let starting = self.inner().monitoring.call_starts(
            &call.watch,
            CallAbout {
                rpc: site.rpc,
                id: rpc.id(to.id()),
                provider: to.id(),
                parent,
                peer: to.addr(),
                one_way: options.no_response,
                trace: trace.as_ref().and_then(|trace| trace.span.as_ref()),
            },
        );
        let mut forward = ForwardOptions::default();
        forward.no_response = options.no_response;
        forward.target_context = to.shard();
        // The RPC's type says what a registration would.
        forward.undeclared = true;
        // The deadline of a one-way call is for its sender: nobody waits for the handler.
        forward.deadline = site.term.filter(|_| !options.no_response).map(|term| term.at);
        forward.trace = trace.as_ref().and_then(|trace| trace.said);
        let inner = self.inner();
        let (shard, addr) = inner.shards.route(&inner.runtime, to);
        let on_behalf_of = on_behalf::of_caller();
        let started = shard.core.forward_on_behalf(
            &addr,
            rpc.id(to.id()),
            (forward, on_behalf_of.as_deref()),
            |writer| {
                starting.encoding();
                margo::write_request_prefix(writer, parent)?;
                proc::to_writer(writer, args)?;
                starting.encoded(writer.len());
                Ok(())
            },
            call.into(),
        );
        starting.end(started.as_ref().err().map(|refused| &refused.0));
        shard.kick_if_queued();
        inner.operation_started(shard);
        started.map_err(|refused| failure(site, refused.0))
    }
}

/// A call whose caller waits for it, and cancels it if its ULT unwinds.
pub(crate) struct CallGuard<'a> {
    by: &'a dyn EndsEarly,
    call: Shared<Call>,
    op: OpRef,
    to: &'a ProviderHandle,
}

impl CallGuard<'_> {
    pub(crate) fn call(&self) -> &Call {
        &self.call
    }
}

impl Drop for CallGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        if !self.call.is_over() {
            self.call.cancel(self.by, self.op, self.to);
        }
    }
}
