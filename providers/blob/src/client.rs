//! The origin side: blobs as method calls.

use std::time::{Duration, Instant};

use margo::{Instance, ProviderHandle, errors::IdentityError};

use crate::rpc::{
    BlobEntry, BlobStat, CREATE, CreateArgs, IDENTITY, LIST, ListArgs, ListPage, READ, REMOVE,
    ReadArgs, ReadDone, RemoveArgs, STAT, StatArgs, WRITE, WriteArgs,
};
use crate::{BlobName, ClientError};

/// Blobs to ask for in one page; the target has its own limit.
const PAGE_ENTRIES: u32 = 1000;

/// A blob provider at a peer. Cheap to clone.
///
/// Every method waits for its result, at most `limit` from its call: a ULT suspends, an OS thread
/// parks. Data is not copied here: the target reads and writes the caller's slices directly, and
/// no method returns before it is done with them, time limit or not.
///
/// ```
/// # use margo::{Instance, ProviderHandle, ProviderId};
/// # use margo_provider_blob::*;
/// # let (directory, limit) = (tempfile::tempdir()?, std::time::Duration::from_secs(10));
/// # let service = Instance::builder("na+sm://").start()?;
/// # let provider = service.provider(ProviderId::new(1), &service.layout().rpc_pool());
/// # let running = BlobProvider::start(provider, &BlobConfig::new(directory.path()))?;
/// # let target = ProviderHandle::new(service.self_addr(), ProviderId::new(1));
/// use margo_provider_blob::BlobClient;
///
/// let blobs = BlobClient::connect(&service, target, limit)?;
/// blobs.put("runs/7/log", b"started, finished", limit)?;
/// let mut end = [0; 8];
/// assert_eq!(blobs.read("runs/7/log", 9, &mut end, limit)?.bytes, 8);
/// assert_eq!(&end, b"finished");
/// # drop(running);
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct BlobClient {
    instance: Instance,
    target: ProviderHandle,
}

impl BlobClient {
    /// Speaks to `target` through `instance`, after it has asked whether that is a blob provider: a
    /// wrong number is found here, and not by what another provider makes of a call. Waits at most
    /// `limit`.
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

    /// The provider it speaks to.
    pub fn target(&self) -> &ProviderHandle {
        &self.target
    }

    /// Makes an empty blob.
    ///
    /// # Errors
    ///
    /// [`AlreadyExists`](crate::BlobError::AlreadyExists) and others, as [`ClientError`].
    pub fn create(&self, name: &str, limit: Duration) -> Result<(), ClientError> {
        let args = CreateArgs { name };
        Ok(self.instance.forward_timed(CREATE.sending(), &self.target, &args, limit)??)
    }

    /// Makes `data` the blob `name`, in place of the blob of that name if there is one. Readers
    /// get the old blob or the new one, nothing in between.
    ///
    /// # Errors
    ///
    /// [`ClientError`]. After a time-out or the loss of the target, the blob is the old one or the
    /// new one. After a time-out the target looks, as the last thing before it names the new one,
    /// whether the call was given up: so a later `put` or [`remove`](Self::remove) that succeeds is
    /// not undone, unless the target's thread is held up for as long as that takes between the look
    /// and the system call behind it, microseconds otherwise, or the later one reaches the target
    /// faster than any message before the call did. Over `ofi+…` cancels are not told, and it may
    /// be undone.
    pub fn put(&self, name: &str, data: &[u8], limit: Duration) -> Result<(), ClientError> {
        self.write(name, data, true, limit)
    }

    /// Makes `data` the blob `name`, unless there is a blob of that name.
    ///
    /// # Errors
    ///
    /// [`AlreadyExists`](crate::BlobError::AlreadyExists), and as [`put`](Self::put).
    pub fn put_new(&self, name: &str, data: &[u8], limit: Duration) -> Result<(), ClientError> {
        self.write(name, data, false, limit)
    }

    fn write(
        &self,
        name: &str,
        data: &[u8],
        overwrite: bool,
        limit: Duration,
    ) -> Result<(), ClientError> {
        let len = data.len() as u64;
        let written = self.instance.memory().expose_ref(data, |bulk| {
            let args = WriteArgs { name, bulk: bulk.clone(), len, overwrite };
            self.instance.forward_timed(WRITE.sending(), &self.target, &args, limit)
        })???;
        if written != len {
            return Err(bad_answer(name, format!("{written} bytes written of {len}")));
        }
        Ok(())
    }

    /// The whole blob.
    ///
    /// # Errors
    ///
    /// [`NotFound`](crate::BlobError::NotFound) and others, as [`ClientError`].
    pub fn get(&self, name: &str, limit: Duration) -> Result<Vec<u8>, ClientError> {
        let begun = Instant::now();
        let left = || limit.saturating_sub(begun.elapsed());
        let mut len = self.stat(name, left())?.len;
        loop {
            let mut data = Vec::new();
            let room = usize::try_from(len).unwrap_or(usize::MAX);
            data.try_reserve_exact(room)
                .map_err(|_| ClientError::NoMemory { name: name.to_owned(), bytes: len })?;
            data.resize(room, 0);
            let done = self.read(name, 0, &mut data, left())?;
            // Overwritten between the two calls: what was read is not the whole blob, or the
            // buffer was too long for it. One read is always of one blob.
            if done.total == len {
                return Ok(data);
            }
            len = done.total;
        }
    }

    /// Reads the blob from `offset` into `into`, as much as there is and fits. All bytes are of
    /// one version of the blob, even if it is overwritten meanwhile.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`](crate::BlobError::OutOfRange) if `offset` is behind the blob's end, and
    /// others, as [`ClientError`]. `into` then holds no particular bytes.
    pub fn read(
        &self,
        name: &str,
        offset: u64,
        into: &mut [u8],
        limit: Duration,
    ) -> Result<ReadDone, ClientError> {
        let len = into.len() as u64;
        let done = self.instance.memory().expose_mut(into, |bulk| {
            let args = ReadArgs { name, offset, len, bulk: bulk.clone() };
            self.instance.forward_timed(READ.sending(), &self.target, &args, limit)
        })???;
        let expected = done.total.checked_sub(offset).map(|rest| rest.min(len));
        if expected != Some(done.bytes) {
            let detail = format!("{done:?} for {len} bytes at {offset}");
            return Err(bad_answer(name, detail));
        }
        Ok(done)
    }

    /// Length and time of a blob.
    ///
    /// # Errors
    ///
    /// [`NotFound`](crate::BlobError::NotFound) and others, as [`ClientError`].
    pub fn stat(&self, name: &str, limit: Duration) -> Result<BlobStat, ClientError> {
        self.stat_with(name, false, limit)
    }

    /// Length and time of a blob, and a checksum that the target computes from its contents.
    ///
    /// # Errors
    ///
    /// As [`stat`](Self::stat).
    pub fn checksum(&self, name: &str, limit: Duration) -> Result<BlobStat, ClientError> {
        self.stat_with(name, true, limit)
    }

    fn stat_with(
        &self,
        name: &str,
        checksum: bool,
        limit: Duration,
    ) -> Result<BlobStat, ClientError> {
        let args = StatArgs { name, checksum };
        Ok(self.instance.forward_timed(STAT.sending(), &self.target, &args, limit)??)
    }

    /// One page of the blobs whose names begin with `prefix` and sort behind `after`; at most
    /// `max`.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub fn list_page(
        &self,
        prefix: &str,
        after: &str,
        max: u32,
        limit: Duration,
    ) -> Result<ListPage, ClientError> {
        let args = ListArgs { prefix, after, max };
        let page = self.instance.forward_timed(LIST.sending(), &self.target, &args, limit)??;
        // Names that somebody prints, or makes files of.
        match page.blobs.iter().find_map(|entry| BlobName::new(&entry.name).err()) {
            None => Ok(page),
            Some(error) => Err(bad_answer(prefix, error.to_string())),
        }
    }

    /// All blobs whose names begin with `prefix`, sorted. With many, `limit` is for each page.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub fn list(&self, prefix: &str, limit: Duration) -> Result<Vec<BlobEntry>, ClientError> {
        let mut all: Vec<BlobEntry> = Vec::new();
        loop {
            let after = all.last().map_or("", |last| last.name.as_str());
            let page = self.list_page(prefix, after, PAGE_ENTRIES, limit)?;
            let advances = page.blobs.first().is_some_and(|first| first.name.as_str() > after);
            if page.more && !advances {
                return Err(bad_answer(prefix, "a page that does not advance".to_owned()));
            }
            all.extend(page.blobs);
            if !page.more {
                return Ok(all);
            }
        }
    }

    /// Removes a blob.
    ///
    /// # Errors
    ///
    /// [`NotFound`](crate::BlobError::NotFound) and others, as [`ClientError`].
    pub fn remove(&self, name: &str, limit: Duration) -> Result<(), ClientError> {
        let args = RemoveArgs { name };
        Ok(self.instance.forward_timed(REMOVE.sending(), &self.target, &args, limit)??)
    }
}

fn bad_answer(name: &str, detail: String) -> ClientError {
    ClientError::BadAnswer { name: name.to_owned(), detail }
}
