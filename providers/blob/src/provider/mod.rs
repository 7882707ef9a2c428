//! The target side: what each RPC does.
//!
//! A handler is a ULT of its own per request, in the provider's pool. It suspends while data moves
//! between the processes, and while a file is used: a thread for blocking work does that.
//!
//! Imports all but the client. Read this file, then `service.rs`, `transfer.rs`, `places.rs`.

mod places;
mod service;
mod transfer;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use margo::ult::PoolRef;
use margo::{
    Handle, Instance, Provider, component::Component, component::ProviderSpec,
    component::RunningProvider, errors::CloseError,
};
use rustix::io::Errno;
use serde::Serialize;

use self::service::Service;
use crate::rpc::{
    APPEND, CREATE, IDENTITY, LIST, PERSIST, PUT, READ, REMOVE, SCRUB, STAT, TRUNCATE, WRITE,
};
use crate::store;
use crate::{BlobConfig, StartError};

/// An error of a component, for people.
type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Starts blob providers from the configuration: `"type": "blob"`, with a `config` object as
/// [`BlobConfig`] describes it.
///
/// ```
/// use margo::{Instance, config::Config};
/// use margo_provider_blob::BlobComponent;
///
/// # let directory = tempfile::tempdir()?;
/// # let path = serde_json::to_string(directory.path())?;
/// let config = Config::from_json(&format!(r#"{{ "margo": {{ "providers": [
///     {{ "type": "blob", "provider_id": 1, "config": {{ "path": {path} }} }},
/// ] }} }}"#))?;
/// let service = Instance::from_config(&config)?;
/// let running = service.start_providers(&[&BlobComponent])?;
/// assert_eq!(running.names().collect::<Vec<_>>(), ["blob_1"]);
/// # drop(running);
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct BlobComponent;

impl Component for BlobComponent {
    fn type_name(&self) -> &'static str {
        "blob"
    }

    fn schema(&self) -> Option<serde_json::Value> {
        Some(BlobConfig::schema())
    }

    fn check(&self, config: &serde_json::Value) -> Result<(), BoxError> {
        Ok(BlobConfig::from_json(config)?.check()?)
    }

    fn start(
        &self,
        instance: &Instance,
        spec: &ProviderSpec,
    ) -> Result<Box<dyn RunningProvider>, BoxError> {
        let config = BlobConfig::from_json(&spec.config)?;
        let provider = spec.provider(instance);
        Ok(Box::new(BlobProvider::start(provider, &config)?))
    }
}

/// A running blob provider. Dropping it stops it; requests that are being handled are finished, and
/// the directory is free for another provider after the last of them. To wait for that, use
/// [`close`](Self::close).
///
/// ```
/// # use std::time::Duration;
/// # use margo::{Instance, ProviderId};
/// use margo_provider_blob::{BlobConfig, BlobProvider};
///
/// # let directory = tempfile::tempdir()?;
/// # let service = Instance::builder("na+sm://").start()?;
/// let provider = service.provider(ProviderId::new(1), &service.layout().rpc_pool());
/// let running = BlobProvider::start(provider, &BlobConfig::new(directory.path()))?;
/// // It serves until it is dropped or closed.
/// running.close(Duration::from_secs(10))?;
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct BlobProvider {
    provider: Provider,
    service: Arc<Service>,
    config: BlobConfig,
}

impl RunningProvider for BlobProvider {
    fn config(&self) -> Option<serde_json::Value> {
        Some(self.config.to_json())
    }

    fn drain(&self, limit: Duration) -> Result<(), BoxError> {
        RunningProvider::drain(&self.provider, limit)
    }

    fn move_to(&self, pool: &PoolRef) -> Result<(), BoxError> {
        RunningProvider::move_to(&self.provider, pool)
    }

    /// Makes a folder of blobs, as the provider's own is. It has another name until it is whole, so
    /// that what a full disk or a kill leaves is not taken for a snapshot.
    fn snapshot(&self, to: &Path) -> Result<(), BoxError> {
        let failed = |at: &Path, error: std::io::Error| format!("{}: {error}", at.display());
        if to.symlink_metadata().is_ok() {
            return Err(failed(to, Errno::EXIST.into()).into());
        }
        let name = to.file_name().ok_or_else(|| format!("{}: no name", to.display()))?;
        let part = to.with_file_name(format!(".{}.part", name.to_string_lossy()));
        std::fs::create_dir(&part).map_err(|error| failed(&part, error))?;
        let copied = self
            .copy_into(&part)
            .and_then(|()| Ok(std::fs::rename(&part, to).map_err(|error| failed(to, error))?));
        if copied.is_err() {
            let _ = std::fs::remove_dir_all(&part);
        }
        copied
    }

    fn restore(&self, from: &Path) -> Result<(), BoxError> {
        // Opening a store makes its folder.
        std::fs::read_dir(from).map_err(|error| format!("{}: {error}", from.display()))?;
        let store = &self.service.store;
        if let Some(first) = store.list("", "", 1, &|| true)?.blobs.first() {
            let text = "the provider has blobs, of which the first is";
            return Err(format!("{text} `{}`; restore into an empty directory", first.name).into());
        }
        let from = store::open(&self.like_this(from))?;
        Ok(store::copy(&*from, &**store)?)
    }
}

impl BlobProvider {
    /// Serves blobs under `provider`'s id, in its pool, and says that under this id is a blob
    /// provider. So give it an id of its own: an id has one identity, the one that was set last.
    ///
    /// # Errors
    ///
    /// [`StartError`]: the configuration or the directory cannot be used, or the RPCs cannot be
    /// registered.
    pub fn start(provider: Provider, config: &BlobConfig) -> Result<Self, StartError> {
        Self::serve(provider, Arc::new(Service::new(config)?), config.clone())
    }

    /// Copies all blobs into a folder that is empty.
    fn copy_into(&self, folder: &Path) -> Result<(), BoxError> {
        let to = store::open(&self.like_this(folder))?;
        Ok(store::copy(&*self.service.store, &*to)?)
    }

    /// The settings of a store in files that is as durable as this one.
    fn like_this(&self, path: &Path) -> BlobConfig {
        BlobConfig { sync: self.config.sync, ..BlobConfig::new(path) }
    }

    /// Stops it, and waits until the directory is free for another provider: until the requests
    /// that were being handled are finished, for at most `limit`.
    ///
    /// # Errors
    ///
    /// [`CloseError`]: some are not. As [`Provider::close`].
    pub fn close(self, limit: Duration) -> Result<(), CloseError<()>> {
        let Self { provider, service, .. } = self;
        drop(service);
        provider.close(limit).map(drop)
    }

    fn serve(
        provider: Provider,
        service: Arc<Service>,
        config: BlobConfig,
    ) -> Result<Self, StartError> {
        // Each handler is a method of the service, which answers what that returns.
        macro_rules! serve {
            ($($rpc:ident: $method:ident),+ $(,)?) => {$(
                let own = service.clone();
                provider.register($rpc, move |request| answer(&request, &own.$method(&request)))?;
            )+};
        }
        serve! {
            CREATE: create, PUT: put, WRITE: write, APPEND: append, TRUNCATE: truncate,
            PERSIST: persist, READ: read, STAT: stat, LIST: list, REMOVE: remove, SCRUB: scrub,
        }
        provider.describe(crate::rpc::description())?;
        // Last: who asks what serves under this id finds it serving.
        provider.set_identity(IDENTITY)?;
        Ok(Self { provider, service, config })
    }
}

fn answer<A, R: Serialize>(request: &Handle<A, R>, result: &R) {
    if let Err(error) = request.respond(result) {
        // Nobody to tell: the origin is gone, or this instance is closed.
        tracing::debug!(rpc = request.rpc_name(), %error, "no answer");
    }
}

#[cfg(test)]
mod tests;
