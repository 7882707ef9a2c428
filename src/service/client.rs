//! The part that all clients of services share: [`service`](macro@crate::service) writes the rest.

use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{CallError, ForwardError, ForwardRequest, Instance, OneWay, ProviderHandle, Rpc};

/// A provider, who calls it, and a limit for calls.
#[derive(Debug, Clone)]
pub struct ServiceClient {
    instance: Instance,
    target: ProviderHandle,
    timeout: Option<Duration>,
}

impl ServiceClient {
    /// Without a limit.
    pub fn new(instance: &Instance, target: ProviderHandle) -> Self {
        Self { instance: instance.clone(), target, timeout: None }
    }

    /// Limits each call.
    #[must_use]
    pub fn with_timeout(self, limit: Duration) -> Self {
        Self { timeout: Some(limit), ..self }
    }

    /// The limit of each call.
    pub fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    /// The instance that calls.
    pub fn instance(&self) -> &Instance {
        &self.instance
    }

    /// The provider that is called.
    pub fn target(&self) -> &ProviderHandle {
        &self.target
    }

    /// Calls, for at most the client's limit, or that of the method, if one of them has any.
    ///
    /// # Errors
    ///
    /// [`ForwardError`].
    #[inline]
    pub fn forward<A: Serialize, R: DeserializeOwned>(
        &self,
        rpc: Rpc<A, R>,
        args: &A,
        deadline: Option<Duration>,
    ) -> Result<R, ForwardError> {
        match self.timeout.or(deadline) {
            None => self.instance.forward(rpc, &self.target, args),
            Some(limit) => self.instance.forward_timed(rpc, &self.target, args, limit),
        }
    }

    /// As [`forward`](Self::forward), for results of the service.
    ///
    /// # Errors
    ///
    /// [`CallError`].
    #[inline]
    pub fn call<A: Serialize, V: DeserializeOwned, E: DeserializeOwned>(
        &self,
        rpc: Rpc<A, Result<V, E>>,
        args: &A,
        deadline: Option<Duration>,
    ) -> Result<V, CallError<E>> {
        CallError::flatten(self.forward(rpc, args, deadline))
    }

    /// As [`forward`](Self::forward), and does not wait.
    ///
    /// # Errors
    ///
    /// [`ForwardError`], when nothing was sent.
    pub fn start<A: Serialize, R: DeserializeOwned>(
        &self,
        rpc: Rpc<A, R>,
        args: &A,
        deadline: Option<Duration>,
    ) -> Result<ForwardRequest<R>, ForwardError> {
        match self.timeout.or(deadline) {
            None => self.instance.rpc(rpc, &self.target, args).start(),
            Some(limit) => self.instance.rpc(rpc, &self.target, args).timeout(limit).start(),
        }
    }

    /// Sends a request that has no response.
    ///
    /// # Errors
    ///
    /// [`ForwardError`], when it was not sent.
    pub fn send<A: Serialize>(
        &self,
        rpc: OneWay<A>,
        args: &A,
        deadline: Option<Duration>,
    ) -> Result<(), ForwardError> {
        match self.timeout.or(deadline) {
            None => self.instance.send(rpc, &self.target, args),
            Some(limit) => self.instance.rpc(rpc, &self.target, args).timeout(limit).send(),
        }
    }

    /// As [`send`](Self::send), and does not wait.
    ///
    /// # Errors
    ///
    /// [`ForwardError`], when nothing was sent.
    pub fn start_sending<A: Serialize>(
        &self,
        rpc: OneWay<A>,
        args: &A,
        deadline: Option<Duration>,
    ) -> Result<ForwardRequest<()>, ForwardError> {
        match self.timeout.or(deadline) {
            None => self.instance.rpc(rpc, &self.target, args).start_send(),
            Some(limit) => self.instance.rpc(rpc, &self.target, args).timeout(limit).start_send(),
        }
    }
}
