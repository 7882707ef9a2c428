//! Calls that go on while their caller does.

use std::time::Duration;

use margo::{Bulk, ForwardError, ForwardRequest, Rpc};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::BlobClient;
use crate::BlobError;
use crate::rpc::{
    APPEND, AppendArgs, BlobStat, CREATE, CreateArgs, Extent, LIST, ListArgs, ListPage, PERSIST,
    PUT, PersistArgs, PutArgs, READ, REMOVE, ReadArgs, ReadDone, RemoveArgs, STAT, StatArgs,
    TRUNCATE, TruncateArgs, WRITE, WriteArgs,
};

/// A call of a [`BlobClient`] in flight: to wait for, to await, to cancel.
///
/// The memory of the data is the caller's, exposed for as long as the call may take: it is not
/// to be changed, or read, before that. Dropping the request cancels the call; taking the memory
/// back waits for what the target has begun with it.
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
/// use margo::Access;
///
/// let data = service.expose(b"0123456789".to_vec(), Access::ReadOnly)?;
/// let (one, two) =
///     (blobs.start_put("one", data.bulk(), limit)?, blobs.start_put("two", data.bulk(), limit)?);
/// // Both are on their way.
/// assert_eq!((one.wait()??, two.wait()??), (10, 10));
///
/// let into = service.expose(vec![0; 4], Access::WriteOnly)?;
/// let read = blobs.start_read("two", &[Extent::new(6, 4)], into.bulk(), limit)?;
/// // In async code: `read.await`.
/// assert_eq!(read.wait()??.bytes, 4);
/// assert_eq!(into.release()?, b"6789");
/// # drop(running);
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type BlobRequest<T> = ForwardRequest<Result<T, BlobError>>;

/// Calls that go on while their caller does. Each returns when its arguments are sent, with the
/// meaning, limits and errors of the method whose name it has behind `start_`; that the answer fits
/// the call is for the caller to check.
impl BlobClient {
    /// Starts [`create_sparse`](Self::create_sparse).
    ///
    /// # Errors
    ///
    /// [`ForwardError`] when nothing was sent, as of all that follow.
    pub fn start_create(
        &self,
        name: &str,
        len: u64,
        limit: Duration,
    ) -> Result<BlobRequest<()>, ForwardError> {
        self.start(CREATE.sending(), &CreateArgs { name, len }, limit)
    }

    /// Starts [`put`](Self::put) of all memory of `data`. The answer is the number of bytes.
    ///
    /// # Errors
    ///
    /// [`ForwardError`]: nothing was sent.
    pub fn start_put(
        &self,
        name: &str,
        data: &Bulk,
        limit: Duration,
    ) -> Result<BlobRequest<u64>, ForwardError> {
        let (len, bulk) = (data.len(), data.clone());
        let extents = &[Extent::new(0, len)][..];
        self.start(PUT.sending(), &PutArgs { name, len, extents, bulk, overwrite: true }, limit)
    }

    /// Starts [`create_write`](Self::create_write). The answer is the number of bytes.
    ///
    /// # Errors
    ///
    /// [`ForwardError`]: nothing was sent.
    pub fn start_create_write(
        &self,
        name: &str,
        len: u64,
        extents: &[Extent],
        data: &Bulk,
        limit: Duration,
    ) -> Result<BlobRequest<u64>, ForwardError> {
        let bulk = data.clone();
        self.start(PUT.sending(), &PutArgs { name, len, extents, bulk, overwrite: false }, limit)
    }

    /// Starts [`write_extents`](Self::write_extents). The answer is the number of bytes.
    ///
    /// # Errors
    ///
    /// [`ForwardError`]: nothing was sent.
    pub fn start_write(
        &self,
        name: &str,
        extents: &[Extent],
        data: &Bulk,
        limit: Duration,
    ) -> Result<BlobRequest<u64>, ForwardError> {
        let args = WriteArgs { name, extents, bulk: data.clone(), persist: false };
        self.start(WRITE.sending(), &args, limit)
    }

    /// Starts [`append`](Self::append) of all memory of `data`. The answer is where that is.
    ///
    /// # Errors
    ///
    /// [`ForwardError`]: nothing was sent.
    pub fn start_append(
        &self,
        name: &str,
        data: &Bulk,
        limit: Duration,
    ) -> Result<BlobRequest<u64>, ForwardError> {
        let args = AppendArgs { name, len: data.len(), bulk: data.clone(), persist: false };
        self.start(APPEND.sending(), &args, limit)
    }

    /// Starts [`read_extents`](Self::read_extents).
    ///
    /// # Errors
    ///
    /// [`ForwardError`]: nothing was sent.
    pub fn start_read(
        &self,
        name: &str,
        extents: &[Extent],
        into: &Bulk,
        limit: Duration,
    ) -> Result<BlobRequest<ReadDone>, ForwardError> {
        self.start(READ.sending(), &ReadArgs { name, extents, bulk: into.clone() }, limit)
    }

    /// Starts [`truncate`](Self::truncate).
    ///
    /// # Errors
    ///
    /// [`ForwardError`]: nothing was sent.
    pub fn start_truncate(
        &self,
        name: &str,
        len: u64,
        limit: Duration,
    ) -> Result<BlobRequest<()>, ForwardError> {
        self.start(TRUNCATE.sending(), &TruncateArgs { name, len }, limit)
    }

    /// Starts [`persist`](Self::persist).
    ///
    /// # Errors
    ///
    /// [`ForwardError`]: nothing was sent.
    pub fn start_persist(
        &self,
        name: &str,
        limit: Duration,
    ) -> Result<BlobRequest<()>, ForwardError> {
        self.start(PERSIST.sending(), &PersistArgs { name }, limit)
    }

    /// Starts [`stat`](Self::stat).
    ///
    /// # Errors
    ///
    /// [`ForwardError`]: nothing was sent.
    pub fn start_stat(
        &self,
        name: &str,
        limit: Duration,
    ) -> Result<BlobRequest<BlobStat>, ForwardError> {
        self.start(STAT.sending(), &StatArgs { name, checksum: false }, limit)
    }

    /// Starts [`list_page`](Self::list_page).
    ///
    /// # Errors
    ///
    /// [`ForwardError`]: nothing was sent.
    pub fn start_list_page(
        &self,
        prefix: &str,
        after: &str,
        max: u32,
        limit: Duration,
    ) -> Result<BlobRequest<ListPage>, ForwardError> {
        self.start(LIST.sending(), &ListArgs { prefix, after, max }, limit)
    }

    /// Starts [`remove`](Self::remove).
    ///
    /// # Errors
    ///
    /// [`ForwardError`]: nothing was sent.
    pub fn start_remove(
        &self,
        name: &str,
        limit: Duration,
    ) -> Result<BlobRequest<()>, ForwardError> {
        self.start(REMOVE.sending(), &RemoveArgs { name }, limit)
    }

    fn start<A: Serialize, T: DeserializeOwned>(
        &self,
        rpc: Rpc<A, Result<T, BlobError>>,
        args: &A,
        limit: Duration,
    ) -> Result<BlobRequest<T>, ForwardError> {
        self.instance.rpc(rpc, &self.target, args).timeout(limit).start()
    }
}
