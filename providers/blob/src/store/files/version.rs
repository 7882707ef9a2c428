//! An open version of a blob: its file, with the lock and the quota that changes need.

use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, PoisonError, RwLock, RwLockWriteGuard};

use rustix::process::{Resource, getrlimit};

use super::super::{Blob, Stat};
use super::blocks::{BlockFile, Fault, Found, Order, file_len};
use super::{Directory, STRIPES};
use crate::{BlobError, BlobName};

#[derive(Debug)]
pub(super) struct FileBlob {
    directory: Arc<Directory>,
    file: File,
    name: BlobName,
    /// The file's lock of `contents`.
    stripe: usize,
    /// The file has a name, or had one.
    is_seen: bool,
}

impl FileBlob {
    /// A version that has a name.
    pub(super) fn seen(
        directory: &Arc<Directory>,
        file: File,
        metadata: &Metadata,
        name: &BlobName,
    ) -> Self {
        // The remainder is small.
        let stripe = (metadata.ino() % STRIPES as u64) as usize;
        Self { directory: directory.clone(), file, name: name.clone(), stripe, is_seen: true }
    }

    /// A version that only its writer knows.
    pub(super) fn unseen(directory: &Arc<Directory>, file: File, name: &BlobName) -> Self {
        let (directory, name) = (directory.clone(), name.clone());
        Self { directory, file, name, stripe: 0, is_seen: false }
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Gives back what it took of the quota, when it is no blob any more.
    pub(super) fn give_back(&self) {
        let _alone = self.lock().write().unwrap_or_else(PoisonError::into_inner);
        if let Ok(len) = self.blocks().len() {
            self.directory.quota.shrink(len);
        }
    }

    fn blocks(&self) -> BlockFile<'_, File> {
        BlockFile(&self.file)
    }

    fn lock(&self) -> &RwLock<()> {
        &self.directory.contents[self.stripe]
    }

    fn order(&self) -> Order {
        match (self.is_seen, self.directory.sync) {
            (false, _) => Order::Unseen,
            (true, false) => Order::InMemory,
            (true, true) => Order::OnDisk,
        }
    }

    /// Excludes others, and fails if this is no blob any more: what is given back to the quota
    /// then does not grow again.
    fn alone(&self) -> Result<RwLockWriteGuard<'_, ()>, BlobError> {
        let alone = self.lock().write().unwrap_or_else(PoisonError::into_inner);
        let is_gone = |metadata: Metadata| self.is_seen && metadata.nlink() == 0;
        match self.file.metadata().map(is_gone) {
            Ok(false) => Ok(alone),
            Ok(true) => Err(BlobError::NotFound { name: self.name.to_string() }),
            Err(error) => Err(self.failed("stat", error.into())),
        }
    }

    fn len(&self) -> Result<u64, BlobError> {
        self.blocks().len().map_err(|error| self.failed("stat", error.into()))
    }

    fn failed(&self, what: &str, fault: Fault) -> BlobError {
        super::fault_of(&self.name, what, fault)
    }

    /// Refuses what would be longer than the process may make a file: the kernel would end it.
    fn file_limit_allows(&self, len: u64) -> Result<(), BlobError> {
        match getrlimit(Resource::Fsize).current {
            Some(max) if len > max => Err(BlobError::Io {
                name: self.name.to_string(),
                what: "write".to_owned(),
                detail: format!(
                    "a file of {len} bytes is more than the {max} bytes to which files of the \
                     service's process are limited: raise that with `ulimit -f` where the service \
                     is started"
                ),
            }),
            _ => Ok(()),
        }
    }

    /// Makes a change after which the blob is to be `len` bytes long. The lock is held.
    fn change(
        &self,
        what: &str,
        len: u64,
        change: impl FnOnce(&BlockFile<'_, File>) -> Result<(), Fault>,
    ) -> Result<(), BlobError> {
        let (old, quota) = (self.len()?, &self.directory.quota);
        quota.grow(&self.name, old, len)?;
        if len > old
            && let Err(error) = self.file_limit_allows(file_len(len))
        {
            quota.shrink(len - old);
            return Err(error);
        }
        let changed = change(&self.blocks()).map_err(|fault| self.failed(what, fault));
        // Also after a failure in the midst of it.
        quota.shrink(old.max(len).saturating_sub(self.len().unwrap_or(len)));
        changed
    }
}

impl Blob for FileBlob {
    fn stat(&self) -> Result<Stat, BlobError> {
        let _shared = self.lock().read().unwrap_or_else(PoisonError::into_inner);
        let found = self.file.metadata().and_then(|found| Ok((found.modified()?, found)));
        let (modified, found) = found.map_err(|error| self.failed("stat", error.into()))?;
        // Units of 512 bytes, whatever the file system's own are.
        let allocated = found.blocks().saturating_mul(512);
        Ok(Stat { len: super::blob_len(found.len()).unwrap_or(0), allocated, modified })
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), BlobError> {
        let _shared = self.lock().read().unwrap_or_else(PoisonError::into_inner);
        self.blocks().read_at(offset, into).map_err(|fault| self.failed("read", fault))
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), BlobError> {
        let _alone = self.alone()?;
        let len = self.len()?.max(offset + data.len() as u64);
        self.change("write", len, |blocks| blocks.write_at(offset, data, self.order()))
    }

    fn append(&self, data: &[u8], more: u64) -> Result<u64, BlobError> {
        let _alone = self.alone()?;
        let old = self.len()?;
        self.change("append to", old.saturating_add(more), |blocks| {
            let appended = blocks
                .write_at(old, data, self.order())
                .and_then(|()| blocks.set_len(old + more, self.order()));
            if appended.is_err() {
                // All of it or nothing; a disk that is full allows that.
                let _ = blocks.set_len(old, self.order());
            }
            appended
        })?;
        Ok(old)
    }

    fn set_len(&self, len: u64) -> Result<(), BlobError> {
        let _alone = self.alone()?;
        self.change("truncate", len, |blocks| blocks.set_len(len, self.order()))
    }

    fn take_back(&self, len: u64, end: u64) -> Result<(), BlobError> {
        let _alone = self.alone()?;
        if self.len()? != end {
            return Ok(());
        }
        self.change("truncate", len, |blocks| blocks.set_len(len, self.order()))
    }

    fn persist(&self) -> Result<(), BlobError> {
        self.file.sync_data().map_err(|error| self.failed("sync", error.into()))?;
        self.directory.persist_name(&self.name)
    }

    fn scrub(&self, first: u64, count: u64) -> Result<Found, BlobError> {
        // Blocks without a sum get one.
        let _alone = self.lock().write().unwrap_or_else(PoisonError::into_inner);
        self.blocks().scrub(first, count).map_err(|fault| self.failed("scrub", fault))
    }
}
