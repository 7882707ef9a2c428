//! Providers: groups of RPCs under one id, and components that are started from the configuration.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use serde::Serialize;
use serde::de::DeserializeOwned;
use ult::PoolRef;

use crate::hg::{ProviderId, RpcId};
use crate::{Handle, Instance, ProviderError, RegisterError, Rpc};

/// RPCs that are served under one provider id, by handlers in one pool. Dropping it deregisters
/// them: requests that arrive afterwards are told that there is no such RPC; handlers that run go
/// on.
///
/// Counterpart: the provider convention of Mochi (`MARGO_REGISTER_PROVIDER`), Thallium's
/// `provider<T>`.
pub struct Provider {
    instance: Instance,
    id: ProviderId,
    pool: PoolRef,
    registered: Mutex<Vec<RpcId>>,
}

impl Instance {
    /// An empty provider with that id, whose handlers run in `pool`.
    pub fn provider(&self, id: ProviderId, pool: &PoolRef) -> Provider {
        Provider {
            instance: self.clone(),
            id,
            pool: pool.clone(),
            registered: Mutex::new(Vec::new()),
        }
    }
}

impl Provider {
    /// Serves `rpc`, as [`Instance::register`] does, under this provider's id and in its pool.
    ///
    /// # Errors
    ///
    /// [`RegisterError`].
    pub fn register<A, R, F>(&self, rpc: Rpc<A, R>, handler: F) -> Result<(), RegisterError>
    where
        A: DeserializeOwned + 'static,
        R: Serialize + 'static,
        F: Fn(Handle<A, R>) + Send + Sync + 'static,
    {
        self.instance.register_at(rpc, self.id, self.pool.clone(), handler)?;
        let mut registered = self.registered.lock().unwrap_or_else(PoisonError::into_inner);
        registered.push(rpc.id(self.id));
        Ok(())
    }

    pub(crate) fn instance(&self) -> &Instance {
        &self.instance
    }

    /// The id.
    pub fn id(&self) -> ProviderId {
        self.id
    }

    /// Where the handlers run.
    pub fn pool(&self) -> &PoolRef {
        &self.pool
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        let registered = self.registered.get_mut().unwrap_or_else(PoisonError::into_inner);
        for id in registered.drain(..) {
            drop(self.instance.inner().core.deregister(id));
        }
    }
}

impl fmt::Debug for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Provider({} in pool {})", self.id, self.pool.name())
    }
}

/// A kind of provider that can be started from `margo.providers` of the configuration.
///
/// Counterpart: Bedrock's component class.
pub trait Component: Send + Sync {
    /// What the configuration calls it in `type`.
    fn type_name(&self) -> &'static str;

    /// Starts one provider.
    ///
    /// # Errors
    ///
    /// Whatever keeps it from starting, in words that help whoever wrote the configuration.
    fn start(
        &self,
        instance: &Instance,
        spec: &ProviderSpec,
    ) -> Result<Box<dyn RunningProvider>, Box<dyn std::error::Error + Send + Sync>>;
}

/// One entry of `margo.providers`, resolved.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ProviderSpec {
    /// Its name; unique in the instance.
    pub name: String,
    /// Its id.
    pub id: ProviderId,
    /// Where its handlers are to run.
    pub pool: PoolRef,
    /// Its own configuration, for the component to check.
    pub config: serde_json::Value,
}

/// A provider that was started; dropping it stops it.
pub trait RunningProvider: Send + Sync {}

impl RunningProvider for Provider {}

/// The providers that [`Instance::start_providers`] started. Dropping it stops them, the last one
/// first.
#[must_use = "dropping this stops the providers"]
pub struct RunningProviders {
    running: Vec<(String, Box<dyn RunningProvider>)>,
}

impl RunningProviders {
    /// Names, in the order of the configuration.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.running.iter().map(|(name, _)| name.as_str())
    }
}

impl Drop for RunningProviders {
    fn drop(&mut self) {
        while let Some(last) = self.running.pop() {
            drop(last);
        }
    }
}

impl fmt::Debug for RunningProviders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}

impl Instance {
    /// Starts the providers that the configuration lists, in its order.
    ///
    /// # Errors
    ///
    /// [`ProviderError`]; the providers that had been started were stopped.
    pub fn start_providers(
        &self,
        components: &[&dyn Component],
    ) -> Result<RunningProviders, ProviderError> {
        let mut started = RunningProviders { running: Vec::new() };
        for wanted in &self.inner().resolved.providers {
            let component = components
                .iter()
                .find(|component| component.type_name() == wanted.type_name)
                .ok_or_else(|| ProviderError::UnknownType {
                    name: wanted.name.clone(),
                    type_name: wanted.type_name.clone(),
                    known: components
                        .iter()
                        .map(|component| component.type_name())
                        .collect::<Vec<_>>()
                        .join(", "),
                })?;
            let spec = ProviderSpec {
                name: wanted.name.clone(),
                id: ProviderId::new(wanted.provider_id),
                pool: self.inner().pools[wanted.pool].clone(),
                config: wanted.config.clone(),
            };
            let provider = component.start(self, &spec).map_err(|source| ProviderError::Start {
                name: wanted.name.clone(),
                type_name: wanted.type_name.clone(),
                source,
            })?;
            started.running.push((wanted.name.clone(), provider));
        }
        Ok(started)
    }
}
