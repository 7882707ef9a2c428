//! The RPCs of a blob provider and what they carry. Both sides use these definitions.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use margo::service::{MethodDescription, ServiceDescription};
use margo::{Bulk, Rpc};
use serde::{Deserialize, Serialize};

use crate::BlobError;

/// The identity that a provider of this crate tells clients that ask.
pub const IDENTITY: &str = "blob";

/// Makes a blob of zeros, which take no space; [`BlobError::AlreadyExists`] if there is one of that
/// name.
pub const CREATE: Rpc<CreateArgs, Result<(), BlobError>> = Rpc::new("blob_create");

/// Makes or replaces a whole blob from the origin's memory, in one step; answers the number of
/// bytes that were copied.
pub const PUT: Rpc<PutArgs, Result<u64, BlobError>> = Rpc::new("blob_put");

/// Copies the origin's memory into a blob that is there; answers the number of bytes.
pub const WRITE: Rpc<WriteArgs, Result<u64, BlobError>> = Rpc::new("blob_write");

/// Copies the origin's memory behind the end of a blob; answers where that was.
pub const APPEND: Rpc<AppendArgs, Result<u64, BlobError>> = Rpc::new("blob_append");

/// Cuts a blob off, or makes it longer by zeros.
pub const TRUNCATE: Rpc<TruncateArgs, Result<(), BlobError>> = Rpc::new("blob_truncate");

/// Waits until a blob and its name are on the disk.
pub const PERSIST: Rpc<PersistArgs, Result<(), BlobError>> = Rpc::new("blob_persist");

/// Copies parts of a blob into the origin's memory.
pub const READ: Rpc<ReadArgs, Result<ReadDone, BlobError>> = Rpc::new("blob_read");

/// Tells a blob's length, time and, if asked for, checksum.
pub const STAT: Rpc<StatArgs, Result<BlobStat, BlobError>> = Rpc::new("blob_stat");

/// Lists blobs in the order of their names, a page at a time.
pub const LIST: Rpc<ListArgs, Result<ListPage, BlobError>> = Rpc::new("blob_list");

/// Removes a blob.
pub const REMOVE: Rpc<RemoveArgs, Result<(), BlobError>> = Rpc::new("blob_remove");

/// Checks blocks of a blob against their checksums.
pub const SCRUB: Rpc<ScrubArgs, Result<Scrubbed, BlobError>> = Rpc::new("blob_scrub");

/// Most extents of a request.
pub const EXTENTS_MAX: usize = 1024;

/// The RPCs for callers without this crate: those that move data take memory that only a program
/// exposes.
pub(crate) fn description() -> ServiceDescription {
    let all = [
        MethodDescription::of(CREATE, &[]).about("Makes a blob of zeros."),
        MethodDescription::of(PUT, &[]).about("Makes or replaces a blob from exposed memory."),
        MethodDescription::of(WRITE, &[]).about("Copies exposed memory into a blob."),
        MethodDescription::of(APPEND, &[]).about("Copies exposed memory behind a blob's end."),
        MethodDescription::of(TRUNCATE, &[]).about("Cuts a blob off, or makes it longer."),
        MethodDescription::of(PERSIST, &[]).about("Waits until a blob is on the disk."),
        MethodDescription::of(READ, &[]).about("Copies parts of a blob into exposed memory."),
        MethodDescription::of(STAT, &[]).about("A blob's length, time and, if wanted, checksum."),
        MethodDescription::of(LIST, &[]).about("Blobs in the order of their names, by pages."),
        MethodDescription::of(REMOVE, &[]).about("Removes a blob."),
        MethodDescription::of(SCRUB, &[]).about("Checks blocks of a blob."),
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
/// service.forward(CREATE, &target, &CreateArgs { name: "empty".to_owned(), len: 0 })??;
/// // Without a copy of the name:
/// service.forward(CREATE.sending(), &target, &CreateArgs { name: "empty, too", len: 0 })??;
/// assert_eq!(blobs.list("empty", limit)?.len(), 2);
/// # drop(running);
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CreateArgs<N = String> {
    /// The blob.
    pub name: N,
    /// Length of the blob, bytes.
    pub len: u64,
}

/// A part of a blob.
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
/// use margo_provider_blob::Extent;
///
/// blobs.put("digits", b"0123456789", limit)?;
/// let ends = [Extent::new(0, 2), Extent::new(8, 2)];
/// let mut both = [0; 4];
/// blobs.read_extents("digits", &ends, &mut both, limit)?;
/// assert_eq!(&both, b"0189");
/// # drop(running);
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
}

impl Extent {
    /// The `len` bytes from `offset` on.
    pub const fn new(offset: u64, len: u64) -> Self {
        Self { offset, len }
    }
}

/// Arguments of [`PUT`]. `N`: names, as in [`CreateArgs`]; `E`: extents, so that an origin may send
/// `&[Extent]`.
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
/// use margo_provider_blob::{Extent, PUT, PutArgs};
///
/// let data = b"0123456789";
/// let put = service.memory().expose_ref(data, |bulk| {
///     let (extents, bulk) = (&[Extent::new(0, 10)][..], bulk.clone());
///     let args = PutArgs { name: "digits", len: 10, extents, bulk, overwrite: false };
///     service.forward(PUT.sending(), &target, &args)
/// })???;
/// assert_eq!((put, blobs.get("digits", limit)?), (10, data.to_vec()));
/// # drop(running);
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PutArgs<N = String, E = Vec<Extent>> {
    /// The blob.
    pub name: N,
    /// Length of the blob, bytes; those outside of the extents are zeros and take no space.
    pub len: u64,
    /// Places in the blob, in the order of the memory. Where they overlap, the later one counts.
    pub extents: E,
    /// The origin's memory, readable: the bytes of the extents, one after the other.
    pub bulk: Bulk,
    /// Replace the blob of that name if there is one. Otherwise that is an error.
    pub overwrite: bool,
}

/// Arguments of [`WRITE`]. `N` and `E`: as in [`PutArgs`].
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
/// use margo_provider_blob::{Extent, WRITE, WriteArgs};
///
/// blobs.put("digits", b"0123456789", limit)?;
/// service.memory().expose_ref(b"abcd", |bulk| {
///     let (extents, bulk) = (&[Extent::new(0, 1), Extent::new(8, 3)][..], bulk.clone());
///     let args = WriteArgs { name: "digits", extents, bulk, persist: true };
///     service.forward(WRITE.sending(), &target, &args)
/// })???;
/// assert_eq!(blobs.get("digits", limit)?, b"a1234567bcd");
/// # drop(running);
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct WriteArgs<N = String, E = Vec<Extent>> {
    /// The blob.
    pub name: N,
    /// Places in the blob, in the order of the memory, and written in this order. One behind the
    /// end makes the blob longer.
    pub extents: E,
    /// The origin's memory, readable: the bytes of the extents, one after the other.
    pub bulk: Bulk,
    /// Answer when it is on the disk.
    pub persist: bool,
}

/// Arguments of [`APPEND`]. `N`: names, as in [`CreateArgs`].
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
/// use margo_provider_blob::{APPEND, AppendArgs};
///
/// blobs.put("log", b"started\n", limit)?;
/// let at = service.memory().expose_ref(b"finished\n", |bulk| {
///     let args = AppendArgs { name: "log", len: 9, bulk: bulk.clone(), persist: false };
///     service.forward(APPEND.sending(), &target, &args)
/// })???;
/// assert_eq!((at, blobs.stat("log", limit)?.len), (8, 17));
/// # drop(running);
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct AppendArgs<N = String> {
    /// The blob.
    pub name: N,
    /// Number of bytes.
    pub len: u64,
    /// The origin's memory, readable; its first `len` bytes are appended.
    pub bulk: Bulk,
    /// Answer when it is on the disk.
    pub persist: bool,
}

/// Arguments of [`TRUNCATE`]. `N`: names, as in [`CreateArgs`].
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
/// use margo_provider_blob::{TRUNCATE, TruncateArgs};
///
/// blobs.put("digits", b"0123456789", limit)?;
/// service.forward(TRUNCATE.sending(), &target, &TruncateArgs { name: "digits", len: 3 })??;
/// assert_eq!(blobs.get("digits", limit)?, b"012");
/// # drop(running);
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TruncateArgs<N = String> {
    /// The blob.
    pub name: N,
    /// Length that it is to have, bytes.
    pub len: u64,
}

/// Arguments of [`PERSIST`]. `N`: names, as in [`CreateArgs`].
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
/// use margo_provider_blob::{PERSIST, PersistArgs};
///
/// blobs.put("digits", b"0123456789", limit)?;
/// service.forward(PERSIST.sending(), &target, &PersistArgs { name: "digits" })??;
/// # drop(running);
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PersistArgs<N = String> {
    /// The blob.
    pub name: N,
}

/// Arguments of [`READ`]. `N` and `E`: as in [`PutArgs`].
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
/// use margo_provider_blob::{Extent, READ, ReadArgs};
///
/// blobs.put("digits", b"0123456789", limit)?;
/// let mut part = [0; 4];
/// let done = service.memory().expose_mut(&mut part, |bulk| {
///     let (extents, bulk) = (&[Extent::new(3, 4)][..], bulk.clone());
///     let args = ReadArgs { name: "digits", extents, bulk };
///     service.forward(READ.sending(), &target, &args)
/// })???;
/// assert_eq!((&part, done.bytes, done.total), (b"3456", 4, 10));
/// # drop(running);
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ReadArgs<N = String, E = Vec<Extent>> {
    /// The blob.
    pub name: N,
    /// Parts of the blob, in the order of the memory. Each begins inside the blob or at its end; of
    /// one that leaves it, the bytes that there are are read.
    pub extents: E,
    /// The origin's memory, writable, for the bytes of the extents, one after the other. It is left
    /// as it is where the blob has no bytes for it.
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
    /// Bytes that it takes of the disk, or of memory, its checksums included: fewer where it is
    /// sparse.
    pub allocated: u64,
    /// When it was written, by the target's clock: whole seconds since 1970.
    pub modified_secs: i64,
    /// Nanoseconds on top of that.
    pub modified_nanos: u32,
    /// Checksum of its contents, if it was asked for.
    pub checksum: Option<Checksum>,
}

impl BlobStat {
    pub(crate) fn new(
        len: u64,
        allocated: u64,
        modified: SystemTime,
        checksum: Option<Checksum>,
    ) -> Self {
        let (modified_secs, modified_nanos) = match modified.duration_since(UNIX_EPOCH) {
            Ok(after) => (after.as_secs().try_into().unwrap_or(i64::MAX), after.subsec_nanos()),
            // A time before 1970 is no time at which this store wrote; the fraction is no loss.
            Err(before) => {
                (before.duration().as_secs().try_into().map_or(i64::MIN, |secs: i64| -secs), 0)
            }
        };
        Self { len, allocated, modified_secs, modified_nanos, checksum }
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

/// Arguments of [`SCRUB`]. `N`: names, as in [`CreateArgs`].
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
/// use margo_provider_blob::{SCRUB, ScrubArgs};
///
/// blobs.put("digits", b"0123456789", limit)?;
/// let args = ScrubArgs { name: "digits", first: 0 };
/// let found = service.forward(SCRUB.sending(), &target, &args)??;
/// assert_eq!((found.blocks, found.next), (1, None));
/// # drop(running);
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ScrubArgs<N = String> {
    /// The blob.
    pub name: N,
    /// First block to check.
    pub first: u64,
}

/// Result of [`SCRUB`].
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
/// blobs.put("digits", b"0123456789", limit)?;
/// let found = blobs.scrub("digits", limit)?;
/// assert_eq!((found.blocks, found.sealed, found.damaged), (1, 0, vec![]));
/// # drop(running);
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scrubbed {
    /// Blocks that were read.
    pub blocks: u64,
    /// Blocks without a checksum, which a process was writing when it was killed, that have one
    /// now: of the bytes that they have.
    pub sealed: u64,
    /// The numbers of those that are damaged, in order.
    pub damaged: Vec<u64>,
    /// The block to go on at, when there are more than were checked in one call.
    pub next: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_survive_the_wire_form() {
        let now = SystemTime::now();
        assert_eq!(BlobStat::new(0, 0, now, None).modified(), now);
        let early = UNIX_EPOCH - Duration::from_secs(86_400);
        assert_eq!(BlobStat::new(0, 0, early, None).modified(), early);
        let whole = BlobStat::new(0, 0, now, None);
        let broken = BlobStat { modified_secs: i64::MIN, modified_nanos: u32::MAX, ..whole };
        let _does_not_panic = broken.modified();
    }

    #[test]
    fn a_checksum_prints_as_hexadecimal() {
        let text = Checksum::of(b"").to_string();
        assert_eq!(text, "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262");
    }
}
