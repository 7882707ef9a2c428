//! Documents in collections: a layer over keys.
//!
//! | key | value |
//! |---|---|
//! | the name, NUL | the number of the next document, 8 bytes, the highest first |
//! | the name, NUL, the number of a document, 8 bytes, the highest first | the document |
//!
//! A document is added in an atomic batch under the condition that the next number is still what it
//! was; numbers are not used again. In a cluster all keys of a collection have one owner
//! (`members.rs`).

use std::time::Duration;

use margo::encoding::Bytes;

use super::entries::Entries;
use super::member::Clock;
use super::{KvClient, bad_answer};
use crate::model::{Condition, KeyRange};
use crate::rpc::{Found, Meta, Selection};
use crate::{ClientError, KvError};

/// A collection of documents, each of which has a number; from [`KvClient::collection`]. It is
/// there as soon as it has a document.
///
/// ```
/// # use margo::{Instance, ProviderHandle, ProviderId};
/// # use margo_provider_kv::*;
/// # let limit = std::time::Duration::from_secs(10);
/// # let service = Instance::builder("na+sm://").start()?;
/// # let provider = service.provider(ProviderId::new(1), &service.layout().rpc_pool());
/// # let config = KvConfig::new(StoreConfig::memory(MemoryOrder::Ordered));
/// # let running = KvProvider::start(provider, &config)?;
/// # let target = ProviderHandle::new(service.self_addr(), ProviderId::new(1));
/// # let kv = KvClient::new(&service, target);
/// let events = kv.collection("events");
/// assert_eq!(events.append(&[b"begun", b"read"], limit)?, 0..2);
/// events.update(1, b"written", limit)?;
/// let all: Result<Vec<_>, _> = events.documents(0, limit).collect();
/// assert_eq!(all?, [(0, b"begun".to_vec()), (1, b"written".to_vec())]);
/// # drop(running);
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Collection {
    client: KvClient,
    /// The name and NUL.
    prefix: Vec<u8>,
    name: String,
}

impl Collection {
    pub(super) fn new(client: &KvClient, name: String) -> Self {
        let mut prefix = name.clone().into_bytes();
        prefix.push(0);
        Self { client: client.clone(), prefix, name }
    }

    /// Adds documents. Returns their numbers.
    ///
    /// # Errors
    ///
    /// [`Invalid`](KvError::Invalid) for a name with NUL, and others, as [`ClientError`]. After a
    /// time-out or the loss of the target, all of them are there, or none.
    pub fn append(
        &self,
        documents: &[&[u8]],
        limit: Duration,
    ) -> Result<std::ops::Range<u64>, ClientError> {
        if self.name.contains('\0') {
            return Err(KvError::Invalid("the name of a collection has a NUL".to_owned()).into());
        }
        let clock = Clock::of(limit);
        loop {
            let (first, when) = match self.client.get(&self.prefix, clock.left()) {
                Err(ClientError::Kv(KvError::NotFound)) => (0, Condition::Absent),
                found => {
                    let Found { version, value: Bytes(next) } = found?;
                    (number(&next)?, Condition::Version(version))
                }
            };
            let past = first.checked_add(documents.len() as u64);
            let past = past.ok_or_else(|| KvError::Full("no numbers are left".to_owned()))?;
            let keys: Vec<_> = (first..past).map(|id| self.key(id)).collect();
            let next = past.to_be_bytes();
            let mut batch = self.client.batch().atomic().put_if(&self.prefix, &next, when);
            for (key, document) in keys.iter().zip(documents) {
                batch = batch.put(key, document);
            }
            match batch.run(clock.left()) {
                // Another caller has added some meanwhile.
                Err(ClientError::Kv(
                    KvError::Conflict { .. } | KvError::Exists | KvError::NotFound,
                )) => {}
                outcomes => return outcomes.map(|_| first..past),
            }
        }
    }

    /// A document.
    ///
    /// # Errors
    ///
    /// [`NotFound`](KvError::NotFound) and others, as [`ClientError`].
    pub fn load(&self, id: u64, limit: Duration) -> Result<Found, ClientError> {
        self.client.get(&self.key(id), limit)
    }

    /// Replaces a document that is there.
    ///
    /// # Errors
    ///
    /// [`NotFound`](KvError::NotFound) and others, as [`ClientError`].
    pub fn update(&self, id: u64, document: &[u8], limit: Duration) -> Result<u64, ClientError> {
        self.client.put_if(&self.key(id), document, Condition::Present, limit)
    }

    /// Erases a document. Returns whether it was there.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub fn erase(&self, id: u64, limit: Duration) -> Result<bool, ClientError> {
        self.client.erase(&self.key(id), limit)
    }

    /// Returns how long a document is, and its version; `None`: it is not there.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub fn measure(&self, id: u64, limit: Duration) -> Result<Option<Meta>, ClientError> {
        self.client.measure(&self.key(id), limit)
    }

    /// Returns how many documents there are.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub fn count(&self, limit: Duration) -> Result<u64, ClientError> {
        self.client.count_at(Some(&self.prefix), &self.selection(0), limit)
    }

    /// The documents from a number on, as they are when the first one is asked for. `limit` as of
    /// [`KvClient::entries`].
    pub fn documents(
        &self,
        from: u64,
        limit: Duration,
    ) -> impl Iterator<Item = Result<(u64, Vec<u8>), ClientError>> + use<> {
        let len = self.prefix.len();
        let only = Some(self.prefix.clone());
        Entries::new(&self.client, only, self.selection(from), true, limit).map(move |entry| {
            let entry = entry?;
            let id = number(entry.key.get(len..).unwrap_or_default())?;
            Ok((id, entry.value.unwrap_or_default().0))
        })
    }

    /// Erases all documents, and starts again with number 0.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub fn clear(&self, limit: Duration) -> Result<(), ClientError> {
        let last = self.key(u64::MAX);
        self.client.erase_range(&*self.prefix..=&*last, limit).map(drop)
    }

    fn selection(&self, from: u64) -> Selection {
        let len = self.prefix.len() as u64 + 8;
        Selection {
            range: KeyRange::of(self.key(from)..),
            ..Selection::prefix(self.prefix.clone()).key_bytes(len..=len)
        }
    }

    fn key(&self, id: u64) -> Vec<u8> {
        [&*self.prefix, &id.to_be_bytes()].concat()
    }
}

fn number(bytes: &[u8]) -> Result<u64, ClientError> {
    let bytes = bytes.try_into().map_err(|_| bad_answer("a number of no 8 bytes".to_owned()))?;
    Ok(u64::from_be_bytes(bytes))
}
