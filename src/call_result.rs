//! Calls whose result is not just a value: errors of the application, and no result at all.

use na::shared::Vacant;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::call::{Call, Site, failure};
use crate::hg::ForwardOptions;
use crate::{ForwardError, Instance, OneWay, ProviderHandle, Rpc, deadline};

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
        self.forward(rpc, to, args)?.map_err(CallError::Service)
    }

    /// Sends the request of an RPC that has no response, and returns when the transport has taken
    /// it, or, for long arguments, when the target has fetched them. Whether it is handled, nobody
    /// tells: it may be lost when the target ends, refuses it, or has no such RPC.
    ///
    /// # Errors
    ///
    /// [`ForwardError`], when the request was certainly not sent or not fetched.
    ///
    /// Counterpart: `margo_forward` of an RPC with `margo_registered_disable_response`.
    pub fn send<A: Serialize>(
        &self,
        rpc: OneWay<A>,
        to: &ProviderHandle,
        args: &A,
    ) -> Result<(), ForwardError> {
        let _no_limit = deadline::of_caller(rpc.name())?;
        let (call, token) = Vacant::new().fill_pair(Call::waited_for());
        let site = Site { rpc: rpc.name(), to, term: None };
        self.start_with(ForwardOptions::one_way(), rpc, site, args, token)?;
        match call.done().wait() {
            Ok(_) => Ok(()),
            Err(error) => Err(failure(site, error.clone())),
        }
    }
}
