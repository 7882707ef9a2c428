//! The tutorial provider: answers what it is sent.
//!
//! A provider crate has four parts. Read them in this order; `margo-provider-blob` is the same with
//! large data, errors of its own, and settings.
//!
//! 1. [`ECHO`], the *definition* of the RPC. Both sides use it, so they cannot disagree.
//! 2. [`EchoProvider`], the *target* side: what happens when a request arrives.
//! 3. [`EchoComponent`], which starts a provider from the *configuration*.
//! 4. [`EchoClient`], the *origin* side: the RPC as a method call.
//!
//! ```
//! use std::time::Duration;
//!
//! use margo::{Instance, ProviderHandle, ProviderId};
//! use margo_provider_echo::{EchoClient, EchoProvider};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // The target. In a real service this is another process.
//! let service = Instance::builder("na+sm://").start()?;
//! let id = ProviderId::new(1);
//! let running = EchoProvider::start(service.provider(id, &service.layout().rpc_pool()))?;
//!
//! // The origin: which process, which provider in it, then call.
//! let client = Instance::builder("na+sm://").listen(false).start()?;
//! let target = ProviderHandle::new(client.lookup(service.self_addr().uri())?, id);
//! let limit = Duration::from_secs(10);
//! let echo = EchoClient::connect(&client, target, limit)?;
//! assert_eq!(echo.echo("hello", limit)?, "hello");
//!
//! client.finalize_and_wait()?;
//! drop(running); // from here on a call would be answered with `ForwardError::NotRegistered`
//! service.finalize_and_wait()?;
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

use std::time::Duration;

use margo::config::provider_config;
use margo::service::{MethodDescription, ServiceDescription};
use margo::{
    ForwardError, Instance, Provider, ProviderHandle, RegisterError, Rpc, component::Component,
    component::ProviderSpec, component::RunningProvider, errors::IdentityError,
};
use serde::Deserialize;

// 1. The definition.

/// Answers its argument. The name goes over the wire (as a hash), so it begins with the provider's
/// name; the types are those of the argument and of the result. Anything that implements serde's
/// traits will do.
pub const ECHO: Rpc<String, String> = Rpc::new("echo_echo");

/// The identity that a provider of this crate tells clients that ask.
pub const IDENTITY: &str = "echo";

// 2. The target side.

/// A running echo provider. Dropping it stops it.
///
/// ```
/// use margo::{Instance, ProviderHandle, ProviderId};
/// use margo_provider_echo::{ECHO, EchoProvider};
///
/// let service = Instance::builder("na+sm://").start()?;
/// let id = ProviderId::new(1);
/// let running = EchoProvider::start(service.provider(id, &service.layout().rpc_pool()))?;
/// let target = ProviderHandle::new(service.self_addr(), id);
/// assert_eq!(service.forward(ECHO, &target, &"hello".to_owned())?, "hello");
/// # drop(running);
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct EchoProvider {
    // Holds the registrations: dropping a `Provider` takes them back.
    provider: Provider,
}

impl RunningProvider for EchoProvider {
    fn config(&self) -> Option<serde_json::Value> {
        Some(serde_json::json!({}))
    }

    fn drain(&self, limit: Duration) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        RunningProvider::drain(&self.provider, limit)
    }
}

impl EchoProvider {
    /// Serves [`ECHO`] under `provider`'s id, in its pool, and says that under this id is an echo
    /// provider. So give it an id of its own: an id has one identity, the one that was set last.
    ///
    /// # Errors
    ///
    /// [`RegisterError`], for example when that id already has an echo provider.
    pub fn start(provider: Provider) -> Result<Self, RegisterError> {
        // Called once for each request, each time on a new ULT. Blocking is fine here: waiting for
        // a lock, a timer or another RPC (all in `margo::ult` and `margo`) suspends this ULT only.
        // What blocks the operating system's thread, such as file I/O, stops the other ULTs of the
        // same execution stream too.
        provider.register(ECHO, |request| {
            // Whatever happens, the origin gets exactly one answer: this one, or an error if the
            // handler panics or returns without one.
            if let Err(error) = request.respond(request.args()) {
                tracing::debug!(origin = %request.origin(), %error, "no answer");
            }
        })?;
        // For people and programs without this crate: `margo describe`, `margo call`.
        let echo = MethodDescription::of(ECHO, &["text"]).about("Answers its argument.");
        provider.describe(ServiceDescription::new(IDENTITY).method(echo))?;
        // Last: who asks what serves under this id finds it serving.
        provider.set_identity(IDENTITY)?;
        Ok(Self { provider })
    }
}

// 3. The configuration.

/// Starts echo providers from the configuration: `{ "type": "echo", "provider_id": 1 }`.
///
/// ```
/// use margo::{Instance, config::Config};
/// use margo_provider_echo::EchoComponent;
///
/// let text = r#"{ "margo": { "providers": [{ "type": "echo", "provider_id": 1 }] } }"#;
/// let service = Instance::from_config(&Config::from_json(text)?)?;
/// let running = service.start_providers(&[&EchoComponent])?;
/// assert_eq!(running.names().collect::<Vec<_>>(), ["echo_1"]);
/// # drop(running);
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct EchoComponent;

/// The `config` object of an echo provider: it has no settings.
#[derive(Deserialize)]
struct EchoConfig {}

impl Component for EchoComponent {
    fn type_name(&self) -> &'static str {
        "echo"
    }

    fn schema(&self) -> Option<serde_json::Value> {
        // For editors, which complete keys and underline those that are none.
        Some(serde_json::json!({ "type": "object", "additionalProperties": false }))
    }

    fn check(
        &self,
        config: &serde_json::Value,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        // Each component checks its own settings. Silently ignoring a key would hide a mistake.
        let EchoConfig {} = provider_config(config)?;
        Ok(())
    }

    fn start(
        &self,
        instance: &Instance,
        spec: &ProviderSpec,
    ) -> Result<Box<dyn RunningProvider>, Box<dyn std::error::Error + Send + Sync>> {
        self.check(&spec.config)?;
        Ok(Box::new(EchoProvider::start(spec.provider(instance))?))
    }
}

// 4. The origin side.

/// An echo provider at a peer. Cheap to clone.
///
/// ```
/// # use std::time::Duration;
/// use margo::errors::IdentityError;
/// # use margo::{Instance, ProviderHandle, ProviderId};
/// # use margo_provider_echo::EchoProvider;
/// use margo_provider_echo::EchoClient;
///
/// # let service = Instance::builder("na+sm://").start()?;
/// # let provider = service.provider(ProviderId::new(1), &service.layout().rpc_pool());
/// # let running = EchoProvider::start(provider)?;
/// # let limit = Duration::from_secs(10);
/// let target = ProviderHandle::new(service.self_addr(), ProviderId::new(1));
/// let echo = EchoClient::connect(&service, target, limit)?;
/// assert_eq!(echo.echo("hello", limit)?, "hello");
///
/// // There is no provider 2.
/// let target = ProviderHandle::new(service.self_addr(), ProviderId::new(2));
/// let error = EchoClient::connect(&service, target, limit).unwrap_err();
/// assert!(matches!(error, IdentityError::None { .. }));
/// # drop(running);
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct EchoClient {
    instance: Instance,
    target: ProviderHandle,
}

impl EchoClient {
    /// Speaks to `target` through `instance`, after it has asked whether that is an echo provider:
    /// a wrong number is found here, and not by what another provider makes of a call. Waits at
    /// most `limit`.
    ///
    /// # Errors
    ///
    /// [`IdentityError`]: it is another one, or says nothing, or did not answer.
    pub fn connect(
        instance: &Instance,
        target: ProviderHandle,
        limit: Duration,
    ) -> Result<Self, IdentityError> {
        instance.network().check_identity_timed(&target, IDENTITY, limit)?;
        Ok(Self::new(instance, target))
    }

    /// Speaks to `target` through `instance`. Does not contact it.
    pub fn new(instance: &Instance, target: ProviderHandle) -> Self {
        Self { instance: instance.clone(), target }
    }

    /// Sends `text` and returns the answer. Waits at most `limit`: a ULT suspends, an OS thread
    /// parks.
    ///
    /// # Errors
    ///
    /// [`ForwardError`], which tells apart whatever can go wrong.
    pub fn echo(&self, text: &str, limit: Duration) -> Result<String, ForwardError> {
        // The target gets a `String`; what is sent need not be one.
        self.instance.forward_timed(ECHO.sending(), &self.target, &text, limit)
    }
}
