//! Bounds on what a store holds.
//!
//! Bytes are those of the blobs' lengths, holes included, so that what was granted can be written.
//! A blob that is to replace another one counts beside it until it has.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::files::LEN_MAX;
use crate::config::{MEMORY_BLOBS_MAX, StoreKind};
use crate::{BlobConfig, BlobError, BlobName};

/// The bounds of a store, and what counts against them.
#[derive(Debug)]
pub(crate) struct Quota {
    blob_bytes_max: u64,
    bytes_max: u64,
    blobs_max: u64,
    used: Mutex<Used>,
}

#[derive(Debug, Default)]
struct Used {
    bytes: u64,
    blobs: u64,
}

impl Quota {
    pub(crate) fn of(config: &BlobConfig) -> Self {
        let blobs_max = match config.store {
            StoreKind::Files => u64::MAX,
            // What a blob takes beside its bytes is memory, too.
            StoreKind::Memory => MEMORY_BLOBS_MAX,
        };
        Self {
            blob_bytes_max: config.max_blob_bytes.unwrap_or(u64::MAX).min(LEN_MAX),
            bytes_max: config.max_bytes.unwrap_or(u64::MAX),
            blobs_max: config.max_blobs.unwrap_or(blobs_max),
            used: Mutex::default(),
        }
    }

    /// Returns true if what there is has to be known.
    pub(crate) fn counts(&self) -> bool {
        self.bytes_max < u64::MAX || self.blobs_max < u64::MAX
    }

    fn used(&self) -> MutexGuard<'_, Used> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a blob that is there already.
    pub(crate) fn found(&self, len: u64) {
        let mut used = self.used();
        used.bytes = used.bytes.saturating_add(len);
        used.blobs += 1;
    }

    /// Allows a blob to become `new` bytes long, and counts that.
    pub(crate) fn grow(&self, name: &BlobName, old: u64, new: u64) -> Result<(), BlobError> {
        let max = self.blob_bytes_max;
        // One that is too long already may be used, and become shorter.
        if new > max.max(old) {
            return Err(BlobError::TooLarge { len: new, max });
        }
        let (mut used, more) = (self.used(), new.saturating_sub(old));
        let then = used.bytes.saturating_add(more);
        if more > 0 && then > self.bytes_max {
            let (what, name) = ("bytes".to_owned(), name.to_string());
            return Err(BlobError::OverQuota { name, what, needed: then, max: self.bytes_max });
        }
        used.bytes = then;
        Ok(())
    }

    pub(crate) fn shrink(&self, bytes: u64) {
        let mut used = self.used();
        used.bytes = used.bytes.saturating_sub(bytes);
    }

    /// Allows one more blob, and counts it.
    pub(crate) fn add_blob(&self, name: &BlobName) -> Result<(), BlobError> {
        let mut used = self.used();
        if used.blobs >= self.blobs_max {
            let (what, name, needed) = ("blobs".to_owned(), name.to_string(), used.blobs + 1);
            return Err(BlobError::OverQuota { name, what, needed, max: self.blobs_max });
        }
        used.blobs += 1;
        Ok(())
    }

    pub(crate) fn remove_blob(&self) {
        let mut used = self.used();
        used.blobs = used.blobs.saturating_sub(1);
    }
}
