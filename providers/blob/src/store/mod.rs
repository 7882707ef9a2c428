//! Blobs by their names: as files (`files/`), or in memory (`memory.rs`).
//!
//! All of this blocks the calling thread for as long as the file system does, or another caller
//! that changes the same blob; nothing here waits for a peer.
//!
//! # Who sees what
//!
//! A [`Blob`] is one version of a blob. Replacing a blob makes another version of it; who has the
//! old one open goes on reading that, and can no longer change it. Within a version each call of
//! [`read_at`](Blob::read_at), [`write_at`](Blob::write_at), [`append`](Blob::append) and
//! [`set_len`](Blob::set_len) is one step: it sees, or changes, all that it is about or nothing.
//!
//! Imports the files at the top but those of the two sides. Read this file, then `files/mod.rs`.

mod files;
mod memory;
mod quota;

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

pub(crate) use self::files::{BLOCK_BYTES, FileStore, Found, LEN_MAX};
pub(crate) use self::memory::MemoryStore;
use self::quota::Quota;
use crate::config::StoreKind;
use crate::{BlobConfig, BlobEntry, BlobError, BlobName, ListPage, OpenError};

/// Most entries of a page, whatever is asked for.
pub(crate) const PAGE_ENTRIES_MAX: usize = 1000;

/// A page ends when its names have this many bytes.
const PAGE_BYTES_MAX: usize = 64 << 10;

/// Bytes that are copied at a time between stores.
const COPY_BYTES: usize = 16 * BLOCK_BYTES as usize;

/// Tells if a caller still waits for what is being done.
pub(crate) type Wanted<'a> = &'a (dyn Fn() -> bool + 'a);

/// Blobs by their names.
pub(crate) trait Store: fmt::Debug + Send + Sync {
    /// Opens a blob. It stays the same version, even if it is replaced or removed.
    fn open(&self, name: &BlobName) -> Result<Arc<dyn Blob>, BlobError>;

    /// Begins a version of a blob, empty, that nobody sees yet.
    fn begin(&self, name: &BlobName) -> Result<Box<dyn Incoming>, BlobError>;

    /// Removes a blob, if that is `still_wanted`.
    fn remove(&self, name: &BlobName, still_wanted: Wanted<'_>) -> Result<(), BlobError>;

    /// The first `max` blobs whose names begin with `prefix` and sort behind `after`.
    fn list(
        &self,
        prefix: &str,
        after: &str,
        max: usize,
        still_wanted: Wanted<'_>,
    ) -> Result<ListPage, BlobError>;

    /// Fails if there is a blob of that name, or something else.
    fn refuse_existing(&self, name: &BlobName) -> Result<(), BlobError>;

    /// Returns false if its calls never wait for a disk.
    fn blocks(&self) -> bool;

    #[cfg(test)]
    fn hold_publishing(&self) -> std::sync::RwLockWriteGuard<'_, ()>;
}

/// A version of a blob.
pub(crate) trait Blob: fmt::Debug + Send + Sync {
    fn stat(&self) -> Result<Stat, BlobError>;

    /// Fills `into` with what is at `offset`; with zeros behind the end.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), BlobError>;

    /// Writes `data` at `offset`. What is between the end and that reads as zeros.
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), BlobError>;

    /// Makes the blob `len` bytes longer, of which `data` are the first and the others zeros.
    /// Returns where they begin.
    fn append(&self, data: &[u8], len: u64) -> Result<u64, BlobError>;

    /// Cuts the blob off, or makes it longer by zeros.
    fn set_len(&self, len: u64) -> Result<(), BlobError>;

    /// Cuts off what is behind `len`, if the blob still ends at `end`.
    fn take_back(&self, len: u64, end: u64) -> Result<(), BlobError>;

    /// Waits until the blob and its name are on the disk.
    fn persist(&self) -> Result<(), BlobError>;

    /// Checks the blocks from `first` on, `count` at most.
    fn scrub(&self, first: u64, count: u64) -> Result<Found, BlobError>;
}

/// A version that is being written. Dropped before it is published, nothing is left of it.
pub(crate) trait Incoming: fmt::Debug + Send + Sync {
    fn blob(&self) -> Arc<dyn Blob>;

    /// Makes it the blob of its name, in one step, if it is `still_wanted` when all else is done.
    fn publish(self: Box<Self>, overwrite: bool, still_wanted: Wanted<'_>)
    -> Result<(), BlobError>;
}

/// The properties of a version.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stat {
    pub(crate) len: u64,
    /// Bytes that it takes of the disk, or of memory.
    pub(crate) allocated: u64,
    pub(crate) modified: SystemTime,
}

/// Opens the store that a configuration describes.
pub(crate) fn open(config: &BlobConfig) -> Result<Arc<dyn Store>, OpenError> {
    Ok(match config.store {
        StoreKind::Files => Arc::new(FileStore::open(config)?),
        StoreKind::Memory => Arc::new(MemoryStore::new(config)),
    })
}

/// Copies each blob to another store, which has none of these names. What is replaced or removed
/// meanwhile is copied or not, but each blob is of one version, and checked.
pub(crate) fn copy(from: &dyn Store, to: &dyn Store) -> Result<(), BlobError> {
    let mut after = String::new();
    loop {
        let page = from.list("", &after, PAGE_ENTRIES_MAX, &|| true)?;
        for BlobEntry { name, .. } in page.blobs {
            match copy_blob(&BlobName::new(&name)?, from, to) {
                Ok(()) | Err(BlobError::NotFound { .. }) => after = name,
                Err(error) => return Err(error),
            }
        }
        if !page.more {
            return Ok(());
        }
    }
}

fn copy_blob(name: &BlobName, from: &dyn Store, to: &dyn Store) -> Result<(), BlobError> {
    let (blob, incoming) = (from.open(name)?, to.begin(name)?);
    let (len, copy) = (blob.stat()?.len, incoming.blob());
    copy.set_len(len)?;
    let mut bytes = vec![0; COPY_BYTES];
    for offset in (0..len).step_by(COPY_BYTES) {
        let part = &mut bytes[..files::within(offset, COPY_BYTES, len)];
        blob.read_at(offset, part)?;
        // Holes stay holes.
        if part.iter().any(|byte| *byte != 0) {
            copy.write_at(offset, part)?;
        }
    }
    incoming.publish(false, &|| true)
}

#[cfg(test)]
mod tests;
