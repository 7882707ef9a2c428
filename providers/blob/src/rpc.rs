//! The RPCs of a blob provider and what they carry. Both sides use these definitions.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use margo::service::{MethodDescription, ServiceDescription};
use margo::{Bulk, Rpc};
use serde::{Deserialize, Serialize};

use crate::BlobError;

/// The identity that a provider of this crate tells clients that ask.
pub const IDENTITY: &str = "blob";

/// Makes an empty blob; [`BlobError::AlreadyExists`] if there is one of that name.
pub const CREATE: Rpc<CreateArgs, Result<(), BlobError>> = Rpc::new("blob_create");

/// Makes or replaces a whole blob from the origin's memory; answers the number of bytes.
pub const WRITE: Rpc<WriteArgs, Result<u64, BlobError>> = Rpc::new("blob_write");

/// Copies a part of a blob into the origin's memory.
pub const READ: Rpc<ReadArgs, Result<ReadDone, BlobError>> = Rpc::new("blob_read");

/// Tells a blob's length, time and, if asked for, checksum.
pub const STAT: Rpc<StatArgs, Result<BlobStat, BlobError>> = Rpc::new("blob_stat");

/// Lists blobs in the order of their names, a page at a time.
pub const LIST: Rpc<ListArgs, Result<ListPage, BlobError>> = Rpc::new("blob_list");

/// Removes a blob.
pub const REMOVE: Rpc<RemoveArgs, Result<(), BlobError>> = Rpc::new("blob_remove");

/// The RPCs for callers without this crate: those that move data take memory that only a program
/// exposes.
pub(crate) fn description() -> ServiceDescription {
    let all = [
        MethodDescription::of(CREATE, &[]).about("Makes an empty blob."),
        MethodDescription::of(WRITE, &[]).about("Makes or replaces a blob from exposed memory."),
        MethodDescription::of(READ, &[]).about("Copies a part of a blob into exposed memory."),
        MethodDescription::of(STAT, &[]).about("A blob's length, time and, if wanted, checksum."),
        MethodDescription::of(LIST, &[]).about("Blobs in the order of their names, by pages."),
        MethodDescription::of(REMOVE, &[]).about("Removes a blob."),
    ];
    let service = ServiceDescription::new(IDENTITY).about("A store of blobs.");
    all.into_iter().fold(service, ServiceDescription::method)
}

/// Arguments of [`CREATE`]. `N`: names, owned at the target; an origin may [send](Rpc::sending)
/// `&str`.
///
/// ```
/// # use margo::{Instance, ProviderHandle, ProviderId};
/// # use margo_provider_blob::*;
/// # let (directory, limit) = (tempfile::tempdir()?, std::time::Duration::from_secs(10));
/// # let service = Instance::builder("na+sm://").start()?;
/// # let provider = service.provider(ProviderId::new(1), &service.layout().rpc_pool());
/// # let running = BlobProvider::start(provider, &BlobConfig::new(directory.path()))?;
/// # let target = ProviderHandle::new(service.self_addr(), ProviderId::new(1));
/// # let blobs = BlobClient::new(&service, target.clone());
/// use margo_provider_blob::{CREATE, CreateArgs};
///
/// service.forward(CREATE, &target, &CreateArgs { name: "empty".to_owned() })??;
/// // Without a copy of the name:
/// service.forward(CREATE.sending(), &target, &CreateArgs { name: "empty, too" })??;
/// assert_eq!(blobs.list("empty", limit)?.len(), 2);
/// # drop(running);
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CreateArgs<N = String> {
    /// The blob.
    pub name: N,
}

/// Arguments of [`WRITE`]. `N`: names, as in [`CreateArgs`].
///
/// ```
/// # use margo::{Instance, ProviderHandle, ProviderId};
/// # use margo_provider_blob::*;
/// # let (directory, limit) = (tempfile::tempdir()?, std::time::Duration::from_secs(10));
/// # let service = Instance::builder("na+sm://").start()?;
/// # let provider = service.provider(ProviderId::new(1), &service.layout().rpc_pool());
/// # let running = BlobProvider::start(provider, &BlobConfig::new(directory.path()))?;
/// # let target = ProviderHandle::new(service.self_addr(), ProviderId::new(1));
/// # let blobs = BlobClient::new(&service, target.clone());
/// use margo_provider_blob::{WRITE, WriteArgs};
///
/// let data = b"0123456789";
/// let written = service.memory().expose_ref(data, |bulk| {
///     let args = WriteArgs { name: "digits", bulk: bulk.clone(), len: 10, overwrite: false };
///     service.forward(WRITE.sending(), &target, &args)
/// })???;
/// assert_eq!((written, blobs.get("digits", limit)?), (10, data.to_vec()));
/// # drop(running);
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct WriteArgs<N = String> {
    /// The blob.
    pub name: N,
    /// The origin's memory, readable; its first `len` bytes become the blob.
    pub bulk: Bulk,
    /// Length of the blob, bytes.
    pub len: u64,
    /// Replace the blob of that name if there is one. Otherwise that is an error.
    pub overwrite: bool,
}

/// Arguments of [`READ`]. `N`: names, as in [`CreateArgs`].
///
/// ```
/// # use margo::{Instance, ProviderHandle, ProviderId};
/// # use margo_provider_blob::*;
/// # let (directory, limit) = (tempfile::tempdir()?, std::time::Duration::from_secs(10));
/// # let service = Instance::builder("na+sm://").start()?;
/// # let provider = service.provider(ProviderId::new(1), &service.layout().rpc_pool());
/// # let running = BlobProvider::start(provider, &BlobConfig::new(directory.path()))?;
/// # let target = ProviderHandle::new(service.self_addr(), ProviderId::new(1));
/// # let blobs = BlobClient::new(&service, target.clone());
/// use margo_provider_blob::{READ, ReadArgs};
///
/// blobs.put("digits", b"0123456789", limit)?;
/// let mut part = [0; 4];
/// let done = service.memory().expose_mut(&mut part, |bulk| {
///     let args = ReadArgs { name: "digits", offset: 3, len: 4, bulk: bulk.clone() };
///     service.forward(READ.sending(), &target, &args)
/// })???;
/// assert_eq!((&part, done.bytes, done.total), (b"3456", 4, 10));
/// # drop(running);
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ReadArgs<N = String> {
    /// The blob.
    pub name: N,
    /// First byte to read; at most the blob's length.
    pub offset: u64,
    /// Bytes to read; fewer are if the blob ends before.
    pub len: u64,
    /// The origin's memory, writable; filled from its beginning.
    pub bulk: Bulk,
}

/// Result of [`READ`].
///
/// ```
/// # use margo::{Instance, ProviderHandle, ProviderId};
/// # use margo_provider_blob::*;
/// # let (directory, limit) = (tempfile::tempdir()?, std::time::Duration::from_secs(10));
/// # let service = Instance::builder("na+sm://").start()?;
/// # let provider = service.provider(ProviderId::new(1), &service.layout().rpc_pool());
/// # let running = BlobProvider::start(provider, &BlobConfig::new(directory.path()))?;
/// # let target = ProviderHandle::new(service.self_addr(), ProviderId::new(1));
/// # let blobs = BlobClient::new(&service, target);
/// use margo_provider_blob::ReadDone;
///
/// blobs.put("digits", b"0123456789", limit)?;
/// let mut room = [0; 64];
/// let done = blobs.read("digits", 7, &mut room, limit)?;
/// assert_eq!(done, ReadDone { bytes: 3, total: 10 });
/// assert_eq!(&room[..3], b"789");
/// # drop(running);
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadDone {
    /// Bytes that are in the origin's memory now.
    pub bytes: u64,
    /// Length of the whole blob that they were read from, bytes.
    pub total: u64,
}

/// Arguments of [`STAT`]. `N`: names, as in [`CreateArgs`].
///
/// ```
/// # use margo::{Instance, ProviderHandle, ProviderId};
/// # use margo_provider_blob::*;
/// # let (directory, limit) = (tempfile::tempdir()?, std::time::Duration::from_secs(10));
/// # let service = Instance::builder("na+sm://").start()?;
/// # let provider = service.provider(ProviderId::new(1), &service.layout().rpc_pool());
/// # let running = BlobProvider::start(provider, &BlobConfig::new(directory.path()))?;
/// # let target = ProviderHandle::new(service.self_addr(), ProviderId::new(1));
/// # let blobs = BlobClient::new(&service, target.clone());
/// use margo_provider_blob::{STAT, StatArgs};
///
/// blobs.put("digits", b"0123456789", limit)?;
/// let args = StatArgs { name: "digits", checksum: false };
/// let stat = service.forward(STAT.sending(), &target, &args)??;
/// assert_eq!((stat.len, stat.checksum), (10, None));
/// # drop(running);
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StatArgs<N = String> {
    /// The blob.
    pub name: N,
    /// Compute the checksum too, which reads the whole blob.
    pub checksum: bool,
}

/// The properties of a blob.
///
/// ```
/// # use margo::{Instance, ProviderHandle, ProviderId};
/// # use margo_provider_blob::*;
/// # let (directory, limit) = (tempfile::tempdir()?, std::time::Duration::from_secs(10));
/// # let service = Instance::builder("na+sm://").start()?;
/// # let provider = service.provider(ProviderId::new(1), &service.layout().rpc_pool());
/// # let running = BlobProvider::start(provider, &BlobConfig::new(directory.path()))?;
/// # let target = ProviderHandle::new(service.self_addr(), ProviderId::new(1));
/// # let blobs = BlobClient::new(&service, target);
/// use std::time::SystemTime;
///
/// blobs.put("digits", b"0123456789", limit)?;
/// let stat = blobs.stat("digits", limit)?;
/// assert_eq!(stat.len, 10);
/// assert!(stat.modified() > SystemTime::UNIX_EPOCH);
/// # drop(running);
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlobStat {
    /// Bytes.
    pub len: u64,
    /// When it was written, by the target's clock: whole seconds since 1970.
    pub modified_secs: i64,
    /// Nanoseconds on top of that.
    pub modified_nanos: u32,
    /// Checksum of its contents, if it was asked for.
    pub checksum: Option<Checksum>,
}

impl BlobStat {
    pub(crate) fn new(len: u64, modified: SystemTime, checksum: Option<Checksum>) -> Self {
        let (modified_secs, modified_nanos) = match modified.duration_since(UNIX_EPOCH) {
            Ok(after) => (after.as_secs().try_into().unwrap_or(i64::MAX), after.subsec_nanos()),
            // A time before 1970 is no time at which this store wrote; the fraction is no loss.
            Err(before) => {
                (before.duration().as_secs().try_into().map_or(i64::MIN, |secs: i64| -secs), 0)
            }
        };
        Self { len, modified_secs, modified_nanos, checksum }
    }

    /// When the blob was written, by the target's clock.
    pub fn modified(&self) -> SystemTime {
        let whole = Duration::from_secs(self.modified_secs.unsigned_abs());
        let base = if self.modified_secs < 0 {
            UNIX_EPOCH.checked_sub(whole)
        } else {
            UNIX_EPOCH.checked_add(whole)
        };
        let fraction = Duration::from_nanos(self.modified_nanos.into());
        base.and_then(|base| base.checked_add(fraction)).unwrap_or(UNIX_EPOCH)
    }
}

/// BLAKE3 of a blob's contents. Prints as 64 hexadecimal digits.
///
/// ```
/// # use margo::{Instance, ProviderHandle, ProviderId};
/// # use margo_provider_blob::*;
/// # let (directory, limit) = (tempfile::tempdir()?, std::time::Duration::from_secs(10));
/// # let service = Instance::builder("na+sm://").start()?;
/// # let provider = service.provider(ProviderId::new(1), &service.layout().rpc_pool());
/// # let running = BlobProvider::start(provider, &BlobConfig::new(directory.path()))?;
/// # let target = ProviderHandle::new(service.self_addr(), ProviderId::new(1));
/// # let blobs = BlobClient::new(&service, target);
/// use margo_provider_blob::Checksum;
///
/// blobs.put("digits", b"0123456789", limit)?;
/// // The target reads its file for that.
/// let there = blobs.checksum("digits", limit)?.checksum;
/// assert_eq!(there, Some(Checksum::of(b"0123456789")));
/// # drop(running);
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Checksum(pub [u8; 32]);

impl Checksum {
    /// The checksum of `data`.
    pub fn of(data: &[u8]) -> Self {
        Self(blake3::hash(data).into())
    }
}

impl fmt::Display for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Checksum({self})")
    }
}

/// Arguments of [`LIST`]. `N`: names, as in [`CreateArgs`].
///
/// ```
/// # use margo::{Instance, ProviderHandle, ProviderId};
/// # use margo_provider_blob::*;
/// # let (directory, limit) = (tempfile::tempdir()?, std::time::Duration::from_secs(10));
/// # let service = Instance::builder("na+sm://").start()?;
/// # let provider = service.provider(ProviderId::new(1), &service.layout().rpc_pool());
/// # let running = BlobProvider::start(provider, &BlobConfig::new(directory.path()))?;
/// # let target = ProviderHandle::new(service.self_addr(), ProviderId::new(1));
/// # let blobs = BlobClient::new(&service, target.clone());
/// use margo_provider_blob::{LIST, ListArgs};
///
/// for name in ["a/1", "a/2", "b/1"] {
///     blobs.create(name, limit)?;
/// }
/// let args = ListArgs { prefix: "a/", after: "a/1", max: 10 };
/// let page = service.forward(LIST.sending(), &target, &args)??;
/// assert_eq!((page.blobs[0].name.as_str(), page.blobs.len()), ("a/2", 1));
/// # drop(running);
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ListArgs<N = String> {
    /// Only names that begin so. Any text; empty for all. Need not end at a `/`.
    pub prefix: N,
    /// Only names that sort behind this one: the last name of the page before. Empty to begin.
    pub after: N,
    /// Most blobs to list. The target may send fewer.
    pub max: u32,
}

/// Result of [`LIST`].
///
/// ```
/// # use margo::{Instance, ProviderHandle, ProviderId};
/// # use margo_provider_blob::*;
/// # let (directory, limit) = (tempfile::tempdir()?, std::time::Duration::from_secs(10));
/// # let service = Instance::builder("na+sm://").start()?;
/// # let provider = service.provider(ProviderId::new(1), &service.layout().rpc_pool());
/// # let running = BlobProvider::start(provider, &BlobConfig::new(directory.path()))?;
/// # let target = ProviderHandle::new(service.self_addr(), ProviderId::new(1));
/// # let blobs = BlobClient::new(&service, target);
/// for name in ["a/1", "a/2", "a/3"] {
///     blobs.create(name, limit)?;
/// }
/// let first = blobs.list_page("a/", "", 2, limit)?;
/// assert!(first.more);
/// let rest = blobs.list_page("a/", &first.blobs[1].name, 2, limit)?;
/// assert_eq!((rest.blobs[0].name.as_str(), rest.more), ("a/3", false));
/// # drop(running);
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListPage {
    /// Blobs, sorted by the bytes of their names.
    pub blobs: Vec<BlobEntry>,
    /// There are more behind these.
    pub more: bool,
}

/// A listed blob.
///
/// ```
/// # use margo::{Instance, ProviderHandle, ProviderId};
/// # use margo_provider_blob::*;
/// # let (directory, limit) = (tempfile::tempdir()?, std::time::Duration::from_secs(10));
/// # let service = Instance::builder("na+sm://").start()?;
/// # let provider = service.provider(ProviderId::new(1), &service.layout().rpc_pool());
/// # let running = BlobProvider::start(provider, &BlobConfig::new(directory.path()))?;
/// # let target = ProviderHandle::new(service.self_addr(), ProviderId::new(1));
/// # let blobs = BlobClient::new(&service, target);
/// use margo_provider_blob::BlobEntry;
///
/// blobs.put("digits", b"0123456789", limit)?;
/// let all = blobs.list("", limit)?;
/// assert_eq!(all, [BlobEntry { name: "digits".to_owned(), len: 10 }]);
/// # drop(running);
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlobEntry {
    /// The name of the blob.
    pub name: String,
    /// Bytes.
    pub len: u64,
}

/// Arguments of [`REMOVE`]. `N`: names, as in [`CreateArgs`].
///
/// ```
/// # use margo::{Instance, ProviderHandle, ProviderId};
/// # use margo_provider_blob::*;
/// # let (directory, limit) = (tempfile::tempdir()?, std::time::Duration::from_secs(10));
/// # let service = Instance::builder("na+sm://").start()?;
/// # let provider = service.provider(ProviderId::new(1), &service.layout().rpc_pool());
/// # let running = BlobProvider::start(provider, &BlobConfig::new(directory.path()))?;
/// # let target = ProviderHandle::new(service.self_addr(), ProviderId::new(1));
/// # let blobs = BlobClient::new(&service, target.clone());
/// use margo_provider_blob::{BlobError, REMOVE, RemoveArgs};
///
/// blobs.create("old", limit)?;
/// let args = RemoveArgs { name: "old" };
/// service.forward(REMOVE.sending(), &target, &args)??;
/// let again = service.forward(REMOVE.sending(), &target, &args)?;
/// assert!(matches!(again, Err(BlobError::NotFound { .. })));
/// # drop(running);
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RemoveArgs<N = String> {
    /// The blob.
    pub name: N,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_survive_the_wire_form() {
        let now = SystemTime::now();
        assert_eq!(BlobStat::new(0, now, None).modified(), now);
        let early = UNIX_EPOCH - Duration::from_secs(86_400);
        assert_eq!(BlobStat::new(0, early, None).modified(), early);
        let broken =
            BlobStat { len: 0, modified_secs: i64::MIN, modified_nanos: u32::MAX, checksum: None };
        let _does_not_panic = broken.modified();
    }

    #[test]
    fn a_checksum_prints_as_hexadecimal() {
        let text = Checksum::of(b"").to_string();
        assert_eq!(text, "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262");
    }
}
