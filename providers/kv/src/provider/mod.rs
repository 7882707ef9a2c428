//! The target side: what each RPC does.
//!
//! A handler is a ULT of its own per request, in the provider's pool. It suspends while data moves,
//! while the database writes, and while it waits for a key. All that callers can make grow is
//! bounded, in sum and for each caller: bytes under way (`budget.rs`), views that lists are read
//! from (`views.rs`), and calls that wait (`waiters.rs`).
//!
//! Imports all but the client. Read this file, `service.rs`, then `scan.rs` and the bounds.

mod budget;
mod hand_over;
mod members;
mod scan;
mod service;
mod shards;
mod views;
mod waiters;

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use margo::ult::PoolRef;
use margo::{
    Handle, Instance, Provider, RegisterError, Respondable, Rpc, component::Component,
    component::ProviderSpec, component::RunningProvider, errors::CloseError,
};
use serde::de::DeserializeOwned;

use self::service::{Service, say_if_untold};
use crate::rpc::{
    CHANGE, COUNT, FLUSH, GET, GET_MANY, IDENTITY, LIST, MEASURE, MEMBERS, PUT, READ, STAT, WAIT,
    description,
};
use crate::steps::CHANGE_MEMBERS;
use crate::{KvConfig, StartError};

/// The file of a shard's snapshot, in the folder that it is given.
fn snapshot_file(shard: usize) -> String {
    match shard {
        0 => "kv.redb".to_owned(),
        shard => format!("kv.{shard}.redb"),
    }
}

/// An error of a component, for people.
type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Starts key-value providers from the configuration: `"type": "kv"`, with a `config` object as
/// [`KvConfig`] describes it.
///
/// ```
/// use margo::{Instance, config::Config};
/// use margo_provider_kv::KvComponent;
///
/// let config = Config::from_json(r#"{ "margo": { "providers": [
///     { "type": "kv", "provider_id": 1, "config": { "store": { "kind": "memory" } } },
/// ] } }"#)?;
/// let service = Instance::from_config(&config)?;
/// let running = service.start_providers(&[&KvComponent])?;
/// assert_eq!(running.names().collect::<Vec<_>>(), ["kv_1"]);
/// # drop(running);
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct KvComponent;

impl Component for KvComponent {
    fn type_name(&self) -> &'static str {
        "kv"
    }

    fn schema(&self) -> Option<serde_json::Value> {
        Some(KvConfig::schema())
    }

    fn check(&self, config: &serde_json::Value) -> Result<(), BoxError> {
        KvConfig::from_json(config)?;
        Ok(())
    }

    fn start(
        &self,
        instance: &Instance,
        spec: &ProviderSpec,
    ) -> Result<Box<dyn RunningProvider>, BoxError> {
        let config = KvConfig::from_json(&spec.config)?;
        Ok(Box::new(KvProvider::start(spec.provider(instance), &config)?))
    }
}

/// A running key-value provider. Dropping it stops it: calls that wait for keys are told
/// ([`KvError::Closing`](crate::KvError::Closing)), other requests that are being handled are
/// finished. To wait for these, use [`close`](Self::close).
///
/// ```
/// # use std::time::Duration;
/// # use margo::{Instance, ProviderId};
/// use margo_provider_kv::{KvConfig, KvProvider, MemoryOrder, StoreConfig};
///
/// # let service = Instance::builder("na+sm://").start()?;
/// let provider = service.provider(ProviderId::new(1), &service.layout().rpc_pool());
/// let config = KvConfig::new(StoreConfig::memory(MemoryOrder::Ordered));
/// let running = KvProvider::start(provider, &config)?;
/// // It serves until it is dropped or closed.
/// running.close(Duration::from_secs(10))?;
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct KvProvider {
    // Before the provider: nobody waits any more when that ends.
    serving: Ending,
    provider: Provider,
    config: KvConfig,
}

/// The state of the handlers; when this is dropped, those that wait end.
struct Ending(Arc<Service>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.waiters.close();
    }
}

impl RunningProvider for KvProvider {
    fn config(&self) -> Option<serde_json::Value> {
        Some(self.config.to_json())
    }

    fn drain(&self, limit: Duration) -> Result<(), BoxError> {
        self.serving.0.waiters.close();
        RunningProvider::drain(&self.provider, limit)
    }

    fn move_to(&self, pool: &PoolRef) -> Result<(), BoxError> {
        RunningProvider::move_to(&self.provider, pool)
    }

    /// Makes a folder with a file for each shard, `kv.redb`, `kv.1.redb` and so on, whatever the
    /// store is. Each shows a moment of its shard. Others are served meanwhile.
    fn snapshot(&self, to: &Path) -> Result<(), BoxError> {
        let failed = |error| format!("{}: {error}", to.display());
        std::fs::create_dir(to).map_err(failed)?;
        let databases = self.serving.0.databases.iter().enumerate();
        let mut files = databases.map(|(shard, one)| (one, to.join(snapshot_file(shard))));
        let written = files.try_for_each(|(database, file)| database.snapshot_to(&file).map(drop));
        if written.is_err() {
            // It would be in the way of the next one, and half of it is none.
            let _ = std::fs::remove_dir_all(to);
        }
        Ok(written?)
    }

    /// Fills the database, which must be empty, and have as many shards. Other changes wait
    /// meanwhile.
    fn restore(&self, from: &Path) -> Result<(), BoxError> {
        let databases = &self.serving.0.databases;
        let files = (0..).take_while(|shard| from.join(snapshot_file(*shard)).exists()).count();
        if files > 0 && files != databases.len() {
            let own = databases.len();
            return Err(format!("the snapshot is of {files} shards, the provider has {own}").into());
        }
        for (shard, database) in databases.iter().enumerate() {
            database.restore(&from.join(snapshot_file(shard)))?;
        }
        Ok(self.serving.0.members.reload(databases)?)
    }
}

impl KvProvider {
    /// Serves a database under `provider`'s id, in its pool, and says that under this id is a
    /// key-value provider. So give it an id of its own: an id has one identity, the one that was
    /// set last.
    ///
    /// # Errors
    ///
    /// [`StartError`]: the configuration or the database cannot be used, or the RPCs cannot be
    /// registered.
    pub fn start(provider: Provider, config: &KvConfig) -> Result<Self, StartError> {
        let service = Arc::new(Service::new(config)?);
        let serving = Serving { provider: &provider, service: &service };
        serving.serve(READ, Service::read)?;
        serving.serve(MEASURE, Service::measure)?;
        serving.serve(COUNT, Service::count)?;
        serving.serve(LIST, Service::list)?;
        serving.serve(WAIT, Service::wait)?;
        serving.serve(FLUSH, Service::flush)?;
        serving.serve(MEMBERS, |service, _| Ok(service.tell_members()))?;
        serving.serve(CHANGE_MEMBERS, Service::change_members)?;
        serving.serve(STAT, |service, request| Ok(service.stat(request.instance())))?;
        let own = service.clone();
        provider.serve(GET).in_place(move |(), args, request| own.get(args, &request))?;
        let own = service.clone();
        provider.serve(GET_MANY).in_place(move |(), args, request| own.get_many(args, &request))?;
        let own = service.clone();
        if own.is_in_memory {
            provider.serve(PUT).in_place(move |(), args, request| {
                say_if_untold(&request, request.respond(&own.put(args, &request)));
            })?;
        } else {
            // A disk is waited for: not with a receive buffer in hand.
            provider.register(PUT, move |request| {
                let (args, request) = request.take_args();
                say_if_untold(&request, request.respond(&own.put_by_batch(args, &request)));
            })?;
        }
        let own = service.clone();
        provider.register(CHANGE, move |request| {
            let (args, request) = request.take_args();
            say_if_untold(&request, request.respond(&own.change(args, &request)));
        })?;
        provider.describe(description())?;
        // Last: who asks what serves under this id finds it serving.
        provider.set_identity(IDENTITY)?;
        Ok(Self { serving: Ending(service), provider, config: config.clone() })
    }

    /// Stops it, and waits until the requests that were being handled are finished, for at most
    /// `limit`.
    ///
    /// # Errors
    ///
    /// [`CloseError`]: some are not. As [`Provider::close`].
    pub fn close(self, limit: Duration) -> Result<(), CloseError<()>> {
        let Self { serving, provider, .. } = self;
        drop(serving);
        provider.close(limit).map(drop)
    }
}

impl fmt::Debug for KvProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KvProvider")
            .field("provider", &self.provider)
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

/// A provider whose RPCs are being registered.
struct Serving<'a> {
    provider: &'a Provider,
    service: &'a Arc<Service>,
}

impl Serving<'_> {
    fn serve<A, R>(
        &self,
        rpc: Rpc<A, R>,
        method: fn(&Service, &Handle<A, R>) -> R,
    ) -> Result<(), RegisterError>
    where
        A: DeserializeOwned + 'static,
        R: Respondable + 'static,
    {
        let service = self.service.clone();
        self.provider.serve(rpc).returning(move |request| method(&service, request))
    }
}
