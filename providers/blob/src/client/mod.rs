//! The origin side: blobs as method calls, which wait, or go on while their caller does
//! (`start.rs`).
//!
//! Imports the RPCs, names and errors.

mod start;

use std::time::{Duration, Instant};

use margo::{Instance, ProviderHandle, Rpc, errors::IdentityError};
use serde::Serialize;
use serde::de::DeserializeOwned;

pub use self::start::BlobRequest;
use crate::rpc::{
    APPEND, AppendArgs, BlobEntry, BlobStat, CREATE, CreateArgs, Extent, IDENTITY, LIST, ListArgs,
    ListPage, PERSIST, PUT, PersistArgs, PutArgs, READ, REMOVE, ReadArgs, ReadDone, RemoveArgs,
    SCRUB, STAT, ScrubArgs, Scrubbed, StatArgs, TRUNCATE, TruncateArgs, WRITE, WriteArgs,
};
use crate::{BlobError, BlobName, ClientError};

/// Blobs to ask for in one page; the target has its own limit.
const PAGE_ENTRIES: u32 = 1000;

/// A blob provider at a peer. Cheap to clone.
///
/// Every method waits for its result, at most `limit` from its call: a ULT suspends, an OS thread
/// parks. Data is not copied here: the target reads and writes the caller's slices directly, and no
/// method returns before it is done with them, time limit or not. Those that begin with `start_`
/// give a [`BlobRequest`] instead.
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
        self.create_sparse(name, 0, limit)
    }

    /// Makes a blob of `len` zeros, which take no space at the target before something is written
    /// over them.
    ///
    /// # Errors
    ///
    /// As [`create`](Self::create).
    pub fn create_sparse(&self, name: &str, len: u64, limit: Duration) -> Result<(), ClientError> {
        self.call(CREATE.sending(), &CreateArgs { name, len }, limit)
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
        let len = data.len() as u64;
        self.put_extents(name, len, &[Extent::new(0, len)], data, true, limit)
    }

    /// Makes `data` the blob `name`, unless there is a blob of that name.
    ///
    /// # Errors
    ///
    /// [`AlreadyExists`](crate::BlobError::AlreadyExists), and as [`put`](Self::put).
    pub fn put_new(&self, name: &str, data: &[u8], limit: Duration) -> Result<(), ClientError> {
        let len = data.len() as u64;
        self.create_write(name, len, &[Extent::new(0, len)], data, limit)
    }

    /// Makes the blob `name` of `len` bytes, unless there is a blob of that name, with `data` in
    /// its `extents`, one after the other, and zeros elsewhere, which take no space. In one step:
    /// nobody finds the blob without the data.
    ///
    /// # Errors
    ///
    /// [`AlreadyExists`](crate::BlobError::AlreadyExists), and as [`write`](Self::write).
    pub fn create_write(
        &self,
        name: &str,
        len: u64,
        extents: &[Extent],
        data: &[u8],
        limit: Duration,
    ) -> Result<(), ClientError> {
        self.put_extents(name, len, extents, data, false, limit)
    }

    fn put_extents(
        &self,
        name: &str,
        len: u64,
        extents: &[Extent],
        data: &[u8],
        overwrite: bool,
        limit: Duration,
    ) -> Result<(), ClientError> {
        let put = self.instance.memory().expose_ref(data, |bulk| {
            let args = PutArgs { name, len, extents, bulk: bulk.clone(), overwrite };
            self.call(PUT.sending(), &args, limit)
        })??;
        check_bytes(name, put, extents)
    }

    /// Writes `data` into the blob at `offset`, in place. A blob that ends before becomes longer,
    /// with zeros in between.
    ///
    /// Concurrent calls see pieces: the data is written in pieces of the target's `chunk_bytes`,
    /// cut where blocks of 64 KiB end. A call that reads sees of each piece nothing or all, and
    /// earlier pieces before later ones, as far as its own pieces allow. Of two writes of the same
    /// bytes, each piece is one's or the other's.
    ///
    /// # Errors
    ///
    /// [`NotFound`](crate::BlobError::NotFound), also if the blob is removed or replaced meanwhile;
    /// [`Damaged`](crate::BlobError::Damaged) if it would keep some bytes of a block that is; and
    /// others, as [`ClientError`]. Earlier pieces may have been written, and after a time-out or
    /// the loss of the target later ones still may be.
    pub fn write(
        &self,
        name: &str,
        offset: u64,
        data: &[u8],
        limit: Duration,
    ) -> Result<(), ClientError> {
        self.write_extents(name, &[Extent::new(offset, data.len() as u64)], data, limit)
    }

    /// Writes `data` into the `extents` of the blob, one after the other;
    /// [`EXTENTS_MAX`](crate::EXTENTS_MAX) of them at most. As [`write`](Self::write) of each.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write), and [`BadExtents`](crate::BlobError::BadExtents).
    pub fn write_extents(
        &self,
        name: &str,
        extents: &[Extent],
        data: &[u8],
        limit: Duration,
    ) -> Result<(), ClientError> {
        let written = self.instance.memory().expose_ref(data, |bulk| {
            let args = WriteArgs { name, extents, bulk: bulk.clone(), persist: false };
            self.call(WRITE.sending(), &args, limit)
        })??;
        check_bytes(name, written, extents)
    }

    /// Writes `data` behind the end of the blob, and returns where that was. No two appends get the
    /// same place.
    ///
    /// Data of at most one piece ([`write`](Self::write)) is there as a whole or not at all. Of
    /// more, the blob has its full length, with zeros at the end, as soon as the first piece is
    /// there.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write). If the data is more than one piece and its transfer fails, its
    /// place is cut off again, unless something was appended behind it: then zeros are left where
    /// no data came.
    pub fn append(&self, name: &str, data: &[u8], limit: Duration) -> Result<u64, ClientError> {
        let len = data.len() as u64;
        self.instance.memory().expose_ref(data, |bulk| {
            let args = AppendArgs { name, len, bulk: bulk.clone(), persist: false };
            self.call(APPEND.sending(), &args, limit)
        })?
    }

    /// Makes the blob `len` bytes long: cuts it off, or adds zeros, which take no space.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write).
    pub fn truncate(&self, name: &str, len: u64, limit: Duration) -> Result<(), ClientError> {
        self.call(TRUNCATE.sending(), &TruncateArgs { name, len }, limit)
    }

    /// Returns when all that was done to the blob before, and its name, are on the target's disk,
    /// so that they survive a power cut. In memory there is nothing to do.
    ///
    /// # Errors
    ///
    /// [`NotFound`](crate::BlobError::NotFound) and others, as [`ClientError`].
    pub fn persist(&self, name: &str, limit: Duration) -> Result<(), ClientError> {
        self.call(PERSIST.sending(), &PersistArgs { name }, limit)
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
    /// one version of the blob, even if it is replaced or removed meanwhile. What others
    /// [write](Self::write) in place meanwhile is seen by pieces; where the blob is cut off
    /// meanwhile, zeros are.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`](crate::BlobError::OutOfRange) if `offset` is behind the blob's end;
    /// [`Damaged`](crate::BlobError::Damaged); and others, as [`ClientError`]. `into` then holds no
    /// particular bytes.
    pub fn read(
        &self,
        name: &str,
        offset: u64,
        into: &mut [u8],
        limit: Duration,
    ) -> Result<ReadDone, ClientError> {
        self.read_extents(name, &[Extent::new(offset, into.len() as u64)], into, limit)
    }

    /// Reads the `extents` of the blob into `into`, one after the other. As [`read`](Self::read) of
    /// each; what is behind the blob's end leaves its bytes of `into` as they were.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read), and [`BadExtents`](crate::BlobError::BadExtents).
    pub fn read_extents(
        &self,
        name: &str,
        extents: &[Extent],
        into: &mut [u8],
        limit: Duration,
    ) -> Result<ReadDone, ClientError> {
        let done = self.instance.memory().expose_mut(into, |bulk| {
            let args = ReadArgs { name, extents, bulk: bulk.clone() };
            self.call(READ.sending(), &args, limit)
        })??;
        let there = |extent: &Extent| Some(done.total.checked_sub(extent.offset)?.min(extent.len));
        let expected = extents.iter().try_fold(0u64, |sum, extent| sum.checked_add(there(extent)?));
        if expected != Some(done.bytes) {
            return Err(bad_answer(name, format!("{done:?} for {extents:?}")));
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
        self.call(STAT.sending(), &StatArgs { name, checksum }, limit)
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
        let page = self.call(LIST.sending(), &args, limit)?;
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
        self.call(REMOVE.sending(), &RemoveArgs { name }, limit)
    }

    /// Checks all blocks of a blob against their checksums. Blocks that have none, because a
    /// process was killed while it wrote them, get one. `limit` is for each gibibyte.
    ///
    /// # Errors
    ///
    /// [`NotFound`](crate::BlobError::NotFound) and others, as [`ClientError`]. Damage is no error:
    /// it is in the result.
    pub fn scrub(&self, name: &str, limit: Duration) -> Result<Scrubbed, ClientError> {
        let mut all = Scrubbed { blocks: 0, sealed: 0, damaged: Vec::new(), next: Some(0) };
        while let Some(first) = all.next {
            let found = self.call(SCRUB.sending(), &ScrubArgs { name, first }, limit)?;
            if found.next.is_some_and(|next| next <= first) {
                return Err(bad_answer(name, "a check that does not advance".to_owned()));
            }
            all.blocks = all.blocks.saturating_add(found.blocks);
            all.sealed = all.sealed.saturating_add(found.sealed);
            all.damaged.extend(found.damaged);
            all.next = found.next;
        }
        Ok(all)
    }

    fn call<A: Serialize, T: DeserializeOwned>(
        &self,
        rpc: Rpc<A, Result<T, BlobError>>,
        args: &A,
        limit: Duration,
    ) -> Result<T, ClientError> {
        Ok(self.instance.forward_timed(rpc, &self.target, args, limit)??)
    }
}

fn check_bytes(name: &str, bytes: u64, extents: &[Extent]) -> Result<(), ClientError> {
    let all: u64 = extents.iter().map(|extent| extent.len).sum();
    match bytes == all {
        true => Ok(()),
        false => Err(bad_answer(name, format!("{bytes} bytes written of {all}"))),
    }
}

fn bad_answer(name: &str, detail: String) -> ClientError {
    ClientError::BadAnswer { name: name.to_owned(), detail }
}
