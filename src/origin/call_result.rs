//! Calls whose result is not just a value: errors of the application, and no result at all.

use std::time::Duration;

use hg::ForwardOptions;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::operation::call::{Call, CallInfo};
use crate::operation::deadline::CallLimits;
use crate::{ForwardError, Instance, OneWay, ProviderHandle, Request, Rpc};

/// Why a [`call`](Instance::call) has no value: the service says so, or there is no answer of it.
///
/// Usually the two are handled at different places: the first is part of what the service promises,
/// the second is about networks and processes.
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

    /// Flattens an answer as [`call`](Instance::call) does, for answers that come in another way:
    /// from a [`Request`], one of several of them, or to a callback.
    ///
    /// ```
    /// # use margo::{CallError, Instance, ProviderHandle, Rpc};
    /// # const PARSE: Rpc<String, Result<i64, String>> = Rpc::new("parse");
    /// # let service = Instance::builder("na+sm://").start()?;
    /// # service
    /// #     .serve(PARSE)
    /// #     .returning(|call| call.args().parse::<i64>().map_err(|error| error.to_string()))?;
    /// # let target = ProviderHandle::from(service.self_addr());
    /// let request = service.iforward(PARSE, &target, &"x".to_owned())?;
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
    /// As [`forward`](Self::forward), for RPCs whose result is a `Result`: errors of the
    /// application and of the runtime come as one, told apart by [`CallError`].
    ///
    /// ```
    /// use margo::{CallError, Instance, ProviderHandle, Rpc};
    ///
    /// const PARSE: Rpc<String, Result<i64, String>> = Rpc::new("parse");
    ///
    /// let service = Instance::builder("na+sm://").start()?;
    /// service
    ///     .serve(PARSE)
    ///     .returning(|call| call.args().parse::<i64>().map_err(|error| error.to_string()))?;
    ///
    /// let target = ProviderHandle::from(service.self_addr());
    /// assert!(matches!(service.call(PARSE, &target, &"42".to_owned()), Ok(42)));
    /// let error = service.call(PARSE, &target, &"x".to_owned()).unwrap_err();
    /// assert!(matches!(error, CallError::Service(text) if text.contains("invalid digit")));
    /// # service.finalize_and_wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`CallError`].
    pub fn call<A, V, E>(
        &self,
        rpc: Rpc<A, Result<V, E>>,
        to: &ProviderHandle,
        args: &A,
    ) -> Result<V, CallError<E>>
    where
        A: Serialize,
        V: DeserializeOwned,
        E: DeserializeOwned,
    {
        CallError::flatten(self.forward(rpc, to, args))
    }

    /// As [`call`](Self::call), for at most `limit` from now: see
    /// [`forward_timed`](Self::forward_timed).
    ///
    /// # Errors
    ///
    /// [`CallError`]; [`ForwardError::TimedOut`] in it.
    pub fn call_timed<A, V, E>(
        &self,
        rpc: Rpc<A, Result<V, E>>,
        to: &ProviderHandle,
        args: &A,
        limit: Duration,
    ) -> Result<V, CallError<E>>
    where
        A: Serialize,
        V: DeserializeOwned,
        E: DeserializeOwned,
    {
        CallError::flatten(self.forward_timed(rpc, to, args, limit))
    }

    /// Sends the request of an RPC that has no response, and returns when the transport has taken
    /// it, or, for long arguments, when the target has fetched them. The caller does not learn
    /// whether it is handled: it may be lost when the target ends, refuses it, or has no such RPC.
    ///
    /// On the ULT of a handler it gives up at the deadline of the request, and sends nothing after
    /// it; see [`without_deadline`](crate::without_deadline). The target is not told of a deadline:
    /// no caller waits for its handler, so none gives up on it.
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

    /// As [`send`](Self::send), for at most `limit` from now, encoding included. A request that is
    /// late is not sent if that can be helped, and long arguments are not fetched any more. Zero is
    /// no time at all.
    ///
    /// # Errors
    ///
    /// As `send`, and [`ForwardError::TimedOut`].
    ///
    /// Counterpart: `margo_forward_timed` of such an RPC, for which zero is no limit.
    pub fn send_timed<A: Serialize>(
        &self,
        rpc: OneWay<A>,
        to: &ProviderHandle,
        args: &A,
        limit: Duration,
    ) -> Result<(), ForwardError> {
        self.send_within(rpc, to, args, CallLimits::of_caller(rpc.name(), Some(limit))?)
    }

    fn send_within<A: Serialize>(
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

    /// As [`send`](Self::send), and returns when the arguments have been encoded: they are not
    /// needed any more. Also for tasklets, which cannot wait. The [`Request`] is over when `send`
    /// would return. Dropping it cancels what is not sent yet; to send and forget,
    /// [`detach`](Request::detach) it.
    ///
    /// ```
    /// use margo::{Instance, OneWay, ProviderHandle};
    ///
    /// const LOG: OneWay<String> = OneWay::new("log");
    ///
    /// # let service = Instance::builder("na+sm://").start()?;
    /// # let log = ProviderHandle::from(service.self_addr());
    /// let mut lines = Vec::new();
    /// for line in ["one", "two"] {
    ///     lines.push(service.isend(LOG, &log, &line.to_owned())?);
    /// }
    /// service.isend(LOG, &log, &"three".to_owned())?.detach();
    /// for sent in margo::wait_all(lines) {
    ///     sent?;
    /// }
    /// # service.finalize_and_wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`iforward`](Self::iforward); [`ForwardError::TimedOut`] if the deadline of the request
    /// on whose behalf the caller runs has passed.
    ///
    /// Counterpart: `margo_iforward` of an RPC with `margo_registered_disable_response`.
    pub fn isend<A: Serialize>(
        &self,
        rpc: OneWay<A>,
        to: &ProviderHandle,
        args: &A,
    ) -> Result<Request<()>, ForwardError> {
        self.start_sending(rpc, to, args, CallLimits::of_starter(None))
    }

    /// As [`isend`](Self::isend), with a deadline `limit` from now, encoding included. Then the
    /// request ends with [`ForwardError::TimedOut`], whether or not a caller waits for it.
    ///
    /// # Errors
    ///
    /// As `isend`; [`ForwardError::TimedOut`] at once for a limit of zero.
    ///
    /// Counterpart: `margo_iforward_timed` of such an RPC, for which zero is no limit.
    pub fn isend_timed<A: Serialize>(
        &self,
        rpc: OneWay<A>,
        to: &ProviderHandle,
        args: &A,
        limit: Duration,
    ) -> Result<Request<()>, ForwardError> {
        self.start_sending(rpc, to, args, CallLimits::of_starter(Some(limit)))
    }

    fn start_sending<A: Serialize>(
        &self,
        rpc: OneWay<A>,
        to: &ProviderHandle,
        args: &A,
        bounds: CallLimits,
    ) -> Result<Request<()>, ForwardError> {
        CallInfo { rpc: rpc.name(), to, term: bounds.term }.is_in_time()?;
        let read = |call: &Call, _: &Self, site: CallInfo<'_>| call.sent(site);
        self.start_request(ForwardOptions::one_way(), rpc, to, args, bounds, read)
    }
}
