//! The target side: what each RPC does.
//!
//! A handler is a ULT of its own per request, in the provider's pool. It suspends while data moves
//! between the processes; file I/O blocks its execution stream. So give the provider a pool, with
//! an execution stream, of its own where that matters, above all with `sync`.
//!
//! The data passes through a buffer of `chunk_bytes` that is registered for bulk transfer; buffers
//! are kept for the next requests, [`IDLE_BUFFERS_MAX`] at most. Requests that suspend with a file
//! open are bounded ([`PLACES`]), and so are files and buffers, however many ask at once.
//!
//! Imports all but the client. Read this file, then `places.rs`.

mod places;

use std::fmt;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use margo::{
    Handle, Instance, Provider, bulk_memory::BulkBuffer, cancel::CancelToken, component::Component,
    component::ProviderSpec, component::RunningProvider, errors::CloseError,
};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use serde::Serialize;

use self::places::{Place, Places};
use crate::error::{BlobError, given_up};
use crate::rpc::{
    BlobStat, CREATE, Checksum, CreateArgs, IDENTITY, LIST, ListArgs, ListPage, READ, REMOVE,
    ReadArgs, ReadDone, RemoveArgs, STAT, StatArgs, WRITE, WriteArgs,
};
use crate::store::Store;
use crate::{BlobConfig, BlobName, StartError};

/// Requests that may be under way with a file open while they suspend; others wait for their turn.
/// With what each thread opens for a moment they are a small part of the 1024 files that a process
/// may usually have open (`RLIMIT_NOFILE`): the rest is for connections, and for other providers.
/// Far more than a disk or a network needs to be busy.
const PLACES: usize = 128;

/// An error of a component, for people.
type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Buffers that are kept while no request uses them.
const IDLE_BUFFERS_MAX: usize = 8;

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
        Ok(Store::open(&self.like_this(from))?.copy_to(store)?)
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
        Ok(self.service.store.copy_to(&Store::open(&self.like_this(folder))?)?)
    }

    /// The settings of a store that is as durable as this one.
    fn like_this(&self, path: &Path) -> BlobConfig {
        BlobConfig { path: path.to_owned(), ..self.config.clone() }
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
        let own = service.clone();
        provider.register(CREATE, move |request| {
            let CreateArgs { name } = request.args();
            answer(&request, &own.create(name, &still_wanted(&request.cancel_token())));
        })?;
        let own = service.clone();
        provider.register(WRITE, move |request| answer(&request, &own.write(&request)))?;
        let own = service.clone();
        provider.register(READ, move |request| answer(&request, &own.read(&request)))?;
        let own = service.clone();
        provider.register(STAT, move |request| {
            let StatArgs { name, checksum } = request.args();
            let stat = match checksum {
                true => own.stat_with_checksum(name, &request.cancel_token()),
                false => own.stat(name),
            };
            answer(&request, &stat);
        })?;
        let own = service.clone();
        provider.register(LIST, move |request| {
            let ListArgs { prefix, after, max } = request.args();
            let max = usize::try_from(*max).unwrap_or(usize::MAX);
            answer(&request, &own.list(prefix, after, max, &request.cancel_token()));
        })?;
        let own = service.clone();
        provider.register(REMOVE, move |request| {
            let RemoveArgs { name } = request.args();
            answer(&request, &own.remove(name, &still_wanted(&request.cancel_token())));
        })?;
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

/// Tells if anybody still waits. To be asked with a token that was made before the work: not all
/// that ends a wait is seen by a later one.
fn still_wanted(token: &CancelToken) -> impl Fn() -> bool {
    || !token.is_canceled()
}

/// The state that the handlers share.
struct Service {
    store: Store,
    chunk_bytes: usize,
    max_blob_bytes: u64,
    places: Places,
    /// Locked for a push or a pop, never while a ULT suspends.
    idle_buffers: Mutex<Vec<BulkBuffer>>,
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service").field("store", &self.store).finish_non_exhaustive()
    }
}

impl Service {
    fn new(config: &BlobConfig) -> Result<Self, StartError> {
        config.check()?;
        Ok(Self {
            store: Store::open(config)?,
            chunk_bytes: config.chunk_bytes,
            max_blob_bytes: config.max_blob_bytes.unwrap_or(u64::MAX),
            places: Places::new(PLACES),
            idle_buffers: Mutex::new(Vec::new()),
        })
    }

    /// Takes a place, which allows this ULT to suspend with a file open. Waits for its turn, as
    /// long as the origin waits for the answer.
    fn place(&self, name: &str, token: &CancelToken) -> Result<Place<'_>, BlobError> {
        self.places.take(token.event()).ok_or_else(|| given_up(name))
    }

    fn create(&self, name: &str, still_wanted: &dyn Fn() -> bool) -> Result<(), BlobError> {
        let name = BlobName::new(name)?;
        let incoming = self.store.incoming(&name)?;
        self.store.publish(incoming, &name, false, still_wanted)
    }

    fn write(&self, request: &Handle<WriteArgs, Result<u64, BlobError>>) -> Result<u64, BlobError> {
        let token = request.cancel_token();
        let WriteArgs { name, bulk, len, overwrite } = request.args();
        let (name, len) = (BlobName::new(name)?, *len);
        check_memory(0, len, bulk.len())?;
        if len > self.max_blob_bytes {
            return Err(BlobError::TooLarge { len, max: self.max_blob_bytes });
        }
        file_limit_allows(name.as_str(), len)?;
        // Before any data moves, so that a refusal is cheap; `publish` decides.
        if !overwrite {
            self.store.refuse_existing(&name)?;
        }
        let _place = self.place(name.as_str(), &token)?;
        let incoming = self.store.incoming(&name)?;
        let mut buffer = self.buffer(request.instance(), &name)?;
        let mut done = 0;
        while done < len {
            let part = self.part(len - done);
            request
                .pull(bulk, done, &mut buffer, 0..part)
                .map_err(|error| BlobError::transfer(name.as_str(), &error))?;
            incoming
                .file()
                .write_all_at(&buffer[..part], done)
                .map_err(|error| BlobError::from_io(name.as_str(), "write", &error))?;
            done += part as u64;
        }
        self.give_back(buffer);
        self.store.publish(incoming, &name, *overwrite, &still_wanted(&token))?;
        Ok(len)
    }

    fn read(
        &self,
        request: &Handle<ReadArgs, Result<ReadDone, BlobError>>,
    ) -> Result<ReadDone, BlobError> {
        let ReadArgs { name, offset, len, bulk } = request.args();
        let (name, offset) = (BlobName::new(name)?, *offset);
        let _place = self.place(name.as_str(), &request.cancel_token())?;
        let blob = self.store.open_blob(&name)?;
        let Some(rest) = blob.len.checked_sub(offset) else {
            let (len, size) = (*len, blob.len);
            return Err(BlobError::OutOfRange { offset, len, size, what: "the blob".to_owned() });
        };
        let len = rest.min(*len);
        check_memory(0, len, bulk.len())?;
        let mut buffer = self.buffer(request.instance(), &name)?;
        let mut done = 0;
        while done < len {
            let part = self.part(len - done);
            blob.file
                .read_exact_at(&mut buffer[..part], offset + done)
                .map_err(|error| BlobError::from_io(name.as_str(), "read", &error))?;
            request
                .push(bulk, done, &mut buffer, 0..part)
                .map_err(|error| BlobError::transfer(name.as_str(), &error))?;
            done += part as u64;
        }
        self.give_back(buffer);
        Ok(ReadDone { bytes: len, total: blob.len })
    }

    fn stat(&self, name: &str) -> Result<BlobStat, BlobError> {
        let blob = self.store.open_blob(&BlobName::new(name)?)?;
        Ok(BlobStat::new(blob.len, blob.modified, None))
    }

    fn stat_with_checksum(&self, name: &str, token: &CancelToken) -> Result<BlobStat, BlobError> {
        let name = BlobName::new(name)?;
        let _place = self.place(name.as_str(), token)?;
        let blob = self.store.open_blob(&name)?;
        let checksum = self.checksum(&name, &blob.file, &still_wanted(token))?;
        Ok(BlobStat::new(blob.len, blob.modified, Some(checksum)))
    }

    fn checksum(
        &self,
        name: &BlobName,
        mut file: &std::fs::File,
        still_wanted: &dyn Fn() -> bool,
    ) -> Result<Checksum, BlobError> {
        let mut hasher = blake3::Hasher::new();
        let mut chunk = vec![0; self.chunk_bytes];
        loop {
            match file.read(&mut chunk) {
                Ok(0) => return Ok(Checksum(hasher.finalize().into())),
                Ok(bytes) => hasher.update(&chunk[..bytes]),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(BlobError::from_io(name.as_str(), "read", &error)),
            };
            // Nothing here suspends: give the other requests their turn.
            margo::ult::yield_now();
            if !still_wanted() {
                return Err(given_up(name.as_str()));
            }
        }
    }

    fn list(
        &self,
        prefix: &str,
        after: &str,
        max: usize,
        token: &CancelToken,
    ) -> Result<ListPage, BlobError> {
        let _place = self.place(prefix, token)?;
        self.store.list(prefix, after, max, &still_wanted(token))
    }

    fn remove(&self, name: &str, still_wanted: &dyn Fn() -> bool) -> Result<(), BlobError> {
        self.store.remove(&BlobName::new(name)?, still_wanted)
    }

    /// How much of `rest` to move next.
    fn part(&self, rest: u64) -> usize {
        usize::try_from(rest).map_or(self.chunk_bytes, |rest| rest.min(self.chunk_bytes))
    }

    fn idle_buffers(&self) -> std::sync::MutexGuard<'_, Vec<BulkBuffer>> {
        self.idle_buffers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn buffer(&self, instance: &Instance, name: &BlobName) -> Result<BulkBuffer, BlobError> {
        let idle = self.idle_buffers().pop();
        match idle {
            Some(buffer) => Ok(buffer),
            None => instance
                .memory()
                .bulk_buffer(self.chunk_bytes)
                .map_err(|error| BlobError::transfer(name.as_str(), &error)),
        }
    }

    /// Keeps a buffer for the next request. After an error it is freed instead.
    fn give_back(&self, buffer: BulkBuffer) {
        let mut idle = self.idle_buffers();
        if idle.len() < IDLE_BUFFERS_MAX {
            idle.push(buffer);
        }
    }
}

/// Refuses what would be longer than the process may make a file: the kernel would end it.
fn file_limit_allows(name: &str, len: u64) -> Result<(), BlobError> {
    match getrlimit(Resource::Fsize).current {
        Some(max) if len > max => Err(BlobError::Io {
            name: name.to_owned(),
            what: "write".to_owned(),
            detail: format!(
                "{len} bytes are more than the {max} bytes to which files of the service's process \
                 are limited: raise that with `ulimit -f` where the service is started"
            ),
        }),
        _ => Ok(()),
    }
}

/// Refuses ranges that leave the origin's memory.
fn check_memory(offset: u64, len: u64, size: u64) -> Result<(), BlobError> {
    if offset.checked_add(len).is_some_and(|end| end <= size) {
        return Ok(());
    }
    Err(BlobError::OutOfRange { offset, len, size, what: "the origin's memory".to_owned() })
}

#[cfg(test)]
mod tests;
