//! Calls whose result is not just a value: errors of the application, and no result at all.

use hg::ForwardOptions;
use serde::Serialize;

use crate::operation::call::{Call, CallInfo};
use crate::operation::deadline::CallLimits;
use crate::{ForwardError, ForwardRequest, Instance, OneWay, ProviderHandle};

/// Why a [`call`](crate::RpcCall::call) has no value: the service says so, or there is no answer of
/// it.
///
/// Usually the two are handled at different places: the first is part of what the service promises,
/// the second is about networks and processes.
///
/// ```
/// use margo::{CallError, Instance, ProviderHandle, Rpc};
///
/// const ROOT: Rpc<f64, Result<f64, String>> = Rpc::new("root");
///
/// # let service = Instance::builder("na+sm://").start()?;
/// service.serve(ROOT).function(|of| match of < 0.0 {
///     true => Err("it is negative".to_owned()),
///     false => Ok(of.sqrt()),
/// })?;
/// # let target = ProviderHandle::from(service.self_addr());
/// match service.rpc(ROOT, &target, &-1.0).call() {
///     Ok(root) => println!("{root}"),
///     Err(CallError::Service(reason)) => assert_eq!(reason, "it is negative"),
///     Err(CallError::Forward(error)) => panic!("no answer: {error}"),
/// }
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, thiserror::Error)]
pub enum CallError<E> {
    /// The service's own error. The handler ran and returned it.
    #[error(transparent)]
    Service(E),
    /// There is no answer, for this reason.
    #[error(transparent)]
    Forward(#[from] ForwardError),
}

impl<E> CallError<E> {
    /// The service's own error, if that is what it is.
    pub fn service(self) -> Option<E> {
        match self {
            Self::Service(error) => Some(error),
            Self::Forward(_) => None,
        }
    }

    /// Flattens an answer as [`call`](crate::RpcCall::call) does, for answers that come in another
    /// way: from a [`ForwardRequest`], one of several of them, or to a callback.
    ///
    /// ```
    /// # use margo::{CallError, Instance, ProviderHandle, Rpc};
    /// # const PARSE: Rpc<String, Result<i64, String>> = Rpc::new("parse");
    /// # let service = Instance::builder("na+sm://").start()?;
    /// # service
    /// #     .serve(PARSE)
    /// #     .returning(|call| call.args().parse::<i64>().map_err(|error| error.to_string()))?;
    /// # let target = ProviderHandle::from(service.self_addr());
    /// let request = service.rpc(PARSE, &target, &"x".to_owned()).start()?;
    /// let parsed = CallError::flatten(request.wait());
    /// assert!(matches!(parsed, Err(CallError::Service(_))));
    /// # service.finalize_and_wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// That of the service, or that there is no answer.
    pub fn flatten<V>(answer: Result<Result<V, E>, ForwardError>) -> Result<V, Self> {
        answer?.map_err(Self::Service)
    }
}

impl Instance {
    /// Sends the request of an RPC that has no response, and returns when the transport has taken
    /// it, or, for long arguments, when the target has fetched them. The caller does not learn
    /// whether it is handled: it may be lost when the target ends, refuses it, or has no such RPC.
    ///
    /// On the ULT of a handler it gives up at the deadline of the request, and sends nothing after
    /// it; see [`without_deadline`](crate::cancel::without_deadline). The target is not told of a
    /// deadline: no caller waits for its handler, so none gives up on it.
    ///
    /// A ULT that is cancelled while it waits cancels the request.
    ///
    /// # Errors
    ///
    /// [`ForwardError`], when the request was not sent or not fetched: certainly, unless it was
    /// ended early ([`TimedOut`](ForwardError::TimedOut), [`Canceled`](ForwardError::Canceled)).
    ///
    /// Counterpart: `margo_forward` of an RPC with `margo_registered_disable_response`.
    pub fn send<A: Serialize>(
        &self,
        rpc: OneWay<A>,
        to: &ProviderHandle,
        args: &A,
    ) -> Result<(), ForwardError> {
        self.send_within(rpc, to, args, CallLimits::of_caller(rpc.name(), None)?)
    }

    pub(super) fn send_within<A: Serialize>(
        &self,
        rpc: OneWay<A>,
        to: &ProviderHandle,
        args: &A,
        bounds: CallLimits,
    ) -> Result<(), ForwardError> {
        let site = CallInfo { rpc: rpc.name(), to, term: bounds.term };
        site.is_in_time()?;
        let flying = self.start_guarded(ForwardOptions::one_way(), rpc, site, args, bounds)?;
        flying.call().sent(site)
    }

    pub(super) fn start_sending<A: Serialize>(
        &self,
        rpc: OneWay<A>,
        to: &ProviderHandle,
        args: &A,
        bounds: CallLimits,
    ) -> Result<ForwardRequest<()>, ForwardError> {
        CallInfo { rpc: rpc.name(), to, term: bounds.term }.is_in_time()?;
        let read = |call: &Call, _: &Self, site: CallInfo<'_>| call.sent(site);
        self.start_request(ForwardOptions::one_way(), rpc, to, args, bounds, read)
    }
}
