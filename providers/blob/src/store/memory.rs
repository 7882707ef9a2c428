//! Blobs in memory, which end with the provider.
//!
//! A blob's blocks are allocated when something is written to them, and as far as it is; all others
//! are zeros.
//!
//! | state | touched by | under |
//! |---|---|---|
//! | the blobs' names | everybody, briefly | `blobs` |
//! | the bytes of a blob | readers together, a writer alone, for one piece at a time | `Version::content` |
//!
//! In this order.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::SystemTime;

use super::{
    BLOCK_BYTES, Blob, Found, Incoming, PAGE_BYTES_MAX, PAGE_ENTRIES_MAX, Quota, Stat, Store,
    Wanted,
};
use crate::error::given_up;
use crate::{BlobConfig, BlobEntry, BlobError, BlobName, ListPage};

#[derive(Debug)]
pub(crate) struct MemoryStore(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    blobs: RwLock<BTreeMap<String, Arc<Version>>>,
    quota: Quota,
    #[cfg(test)]
    publishing: RwLock<()>,
}

impl MemoryStore {
    pub(crate) fn new(config: &BlobConfig) -> Self {
        Self(Arc::new(Shared {
            blobs: RwLock::default(),
            quota: Quota::of(config),
            #[cfg(test)]
            publishing: RwLock::default(),
        }))
    }
}

impl Shared {
    fn read(&self) -> RwLockReadGuard<'_, BTreeMap<String, Arc<Version>>> {
        self.blobs.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, BTreeMap<String, Arc<Version>>> {
        self.blobs.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, name: &BlobName) -> Result<Arc<Version>, BlobError> {
        let found = self.read().get(name.as_str()).cloned();
        found.ok_or_else(|| BlobError::NotFound { name: name.to_string() })
    }
}

impl Store for MemoryStore {
    fn open(&self, name: &BlobName) -> Result<Arc<dyn Blob>, BlobError> {
        Ok(self.0.find(name)?)
    }

    fn begin(&self, name: &BlobName) -> Result<Box<dyn Incoming>, BlobError> {
        Ok(Box::new(IncomingVersion(Arc::new(Version::new(&self.0, name)))))
    }

    fn remove(&self, name: &BlobName, still_wanted: Wanted<'_>) -> Result<(), BlobError> {
        let mut blobs = self.0.write();
        if !still_wanted() {
            return Err(given_up(name.as_str()));
        }
        let Some(old) = blobs.remove(name.as_str()) else {
            return Err(BlobError::NotFound { name: name.to_string() });
        };
        self.0.quota.remove_blob();
        drop(blobs);
        old.write().is_over = true;
        Ok(())
    }

    fn list(
        &self,
        prefix: &str,
        after: &str,
        max: usize,
        _still_wanted: Wanted<'_>,
    ) -> Result<ListPage, BlobError> {
        let max = max.clamp(1, PAGE_ENTRIES_MAX);
        let blobs = self.0.read();
        let start = if prefix > after { Bound::Included(prefix) } else { Bound::Excluded(after) };
        let mut rest = blobs
            .range::<str, _>((start, Bound::Unbounded))
            .take_while(|(name, _)| name.starts_with(prefix));
        let (mut page, mut bytes) = (ListPage { blobs: Vec::new(), more: false }, 0);
        for (name, version) in &mut rest {
            if page.blobs.len() == max || bytes > PAGE_BYTES_MAX {
                page.more = true;
                break;
            }
            bytes += name.len();
            page.blobs.push(BlobEntry { name: name.clone(), len: version.read().len });
        }
        Ok(page)
    }

    fn refuse_existing(&self, name: &BlobName) -> Result<(), BlobError> {
        match self.0.find(name) {
            Ok(_) => Err(BlobError::AlreadyExists { name: name.to_string() }),
            Err(_) => Ok(()),
        }
    }

    fn blocks(&self) -> bool {
        false
    }

    #[cfg(test)]
    fn hold_publishing(&self) -> RwLockWriteGuard<'_, ()> {
        self.0.publishing.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A version that is being written.
#[derive(Debug)]
struct IncomingVersion(Arc<Version>);

impl Incoming for IncomingVersion {
    fn blob(&self) -> Arc<dyn Blob> {
        self.0.clone()
    }

    fn publish(
        self: Box<Self>,
        overwrite: bool,
        still_wanted: Wanted<'_>,
    ) -> Result<(), BlobError> {
        let (store, name) = (&self.0.store, &self.0.name);
        #[cfg(test)]
        let _held = store.publishing.read().unwrap_or_else(PoisonError::into_inner);
        let mut blobs = store.write();
        let is_there = blobs.contains_key(name.as_str());
        if is_there && !overwrite {
            return Err(BlobError::AlreadyExists { name: name.to_string() });
        }
        if !still_wanted() {
            return Err(given_up(name.as_str()));
        }
        if !is_there {
            store.quota.add_blob(name)?;
        }
        let old = blobs.insert(name.to_string(), self.0.clone());
        drop(blobs);
        old.iter().for_each(|old| old.write().is_over = true);
        Ok(())
    }
}

/// A version of a blob. The quota has its bytes until nobody reads it any more.
#[derive(Debug)]
struct Version {
    store: Arc<Shared>,
    name: BlobName,
    content: RwLock<Content>,
}

#[derive(Debug)]
struct Content {
    len: u64,
    /// By number; each as long as what was written to it.
    blocks: BTreeMap<u64, Vec<u8>>,
    modified: SystemTime,
    /// Replaced or removed.
    is_over: bool,
}

impl Drop for Version {
    fn drop(&mut self) {
        let len = self.read().len;
        self.store.quota.shrink(len);
    }
}

impl Version {
    fn new(store: &Arc<Shared>, name: &BlobName) -> Self {
        let (len, blocks, is_over) = (0, BTreeMap::new(), false);
        let content = Content { len, blocks, modified: SystemTime::now(), is_over };
        Self { store: store.clone(), name: name.clone(), content: RwLock::new(content) }
    }

    fn read(&self) -> RwLockReadGuard<'_, Content> {
        self.content.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Content> {
        self.content.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Excludes others for a change, and fails if this is no blob any more.
    fn alone(&self) -> Result<RwLockWriteGuard<'_, Content>, BlobError> {
        let mut content = self.write();
        if content.is_over {
            return Err(BlobError::NotFound { name: self.name.to_string() });
        }
        content.modified = SystemTime::now();
        Ok(content)
    }

    /// Makes it `len` bytes long.
    fn resize(&self, content: &mut Content, len: u64) -> Result<(), BlobError> {
        let old = content.len;
        self.store.quota.grow(&self.name, old, len)?;
        self.store.quota.shrink(old.saturating_sub(len));
        content.len = len;
        if len < old {
            drop(content.blocks.split_off(&len.div_ceil(BLOCK_BYTES)));
            if let Some(last) = content.blocks.get_mut(&(len / BLOCK_BYTES)) {
                // No truncation: less than a block.
                last.truncate((len % BLOCK_BYTES) as usize);
                last.shrink_to_fit();
            }
        }
        Ok(())
    }
}

/// The parts of a range that are in one block each: number, place in the block, place in the range.
fn parts(offset: u64, count: usize) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset + done as u64;
        let place = (at % BLOCK_BYTES) as usize;
        let len = (count - done).min(BLOCK_BYTES as usize - place);
        let range = done..done + len;
        done += len;
        (len > 0).then_some((at / BLOCK_BYTES, place, range))
    })
}

impl Content {
    /// Writes to where the blob is long enough.
    fn fill(&mut self, offset: u64, data: &[u8]) {
        for (block, place, range) in parts(offset, data.len()) {
            let (bytes, end) = (self.blocks.entry(block).or_default(), place + range.len());
            if bytes.len() < end {
                // Never more than a block, and not for each byte that is appended.
                bytes.reserve_exact(end.next_power_of_two() - bytes.len());
                bytes.resize(end, 0);
            }
            bytes[place..end].copy_from_slice(&data[range]);
        }
    }
}

impl Blob for Version {
    fn stat(&self) -> Result<Stat, BlobError> {
        let content = self.read();
        let allocated = content.blocks.values().map(|block| block.capacity() as u64).sum();
        Ok(Stat { len: content.len, allocated, modified: content.modified })
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), BlobError> {
        let content = self.read();
        for (block, place, range) in parts(offset, into.len()) {
            let block = content.blocks.get(&block).map_or(&[][..], Vec::as_slice);
            let there = block.get(place..).unwrap_or_default();
            let into = &mut into[range];
            let (held, beyond) = into.split_at_mut(into.len().min(there.len()));
            held.copy_from_slice(&there[..held.len()]);
            beyond.fill(0);
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), BlobError> {
        let mut content = self.alone()?;
        if !data.is_empty() {
            let len = content.len.max(offset + data.len() as u64);
            self.resize(&mut content, len)?;
            content.fill(offset, data);
        }
        Ok(())
    }

    fn append(&self, data: &[u8], more: u64) -> Result<u64, BlobError> {
        let mut content = self.alone()?;
        let old = content.len;
        self.resize(&mut content, old.saturating_add(more))?;
        content.fill(old, data);
        Ok(old)
    }

    fn set_len(&self, len: u64) -> Result<(), BlobError> {
        self.resize(&mut *self.alone()?, len)
    }

    fn take_back(&self, len: u64, end: u64) -> Result<(), BlobError> {
        let mut content = self.alone()?;
        if content.len == end {
            self.resize(&mut content, len)?;
        }
        Ok(())
    }

    fn persist(&self) -> Result<(), BlobError> {
        Ok(())
    }

    fn scrub(&self, first: u64, count: u64) -> Result<Found, BlobError> {
        let blocks = self.read().len.div_ceil(BLOCK_BYTES).saturating_sub(first).min(count);
        Ok(Found { blocks, ..Found::default() })
    }
}
