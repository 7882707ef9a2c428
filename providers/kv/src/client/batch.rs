//! Several changes in one call, and how their bytes travel.
//!
//! | bytes | how |
//! |---|---|
//! | that the request has room for, as long as it is eager | in the request |
//! | such that are too many together | the runtime has the target fetch the request |
//! | longer than the eager size by themselves | the target pulls them from the caller's memory: no copy here, and one there |

use std::time::Duration;

use margo::encoding::Bytes;

use super::{KvClient, bad_answer};
use crate::ClientError;
use crate::model::{Batch, Change, Condition, KeyRange, Outcomes};
use crate::rpc::{CHANGE, ChangeArgs, Part};

/// Changes that are made in one call, in their order; from [`KvClient::batch`]. Each of them has a
/// result of its own, unless they are [`atomic`](Self::atomic).
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
/// use margo_provider_kv::Condition;
///
/// kv.put(b"from", b"7", limit)?;
/// let moved = kv.batch().atomic().only_if(b"to", Condition::Absent);
/// moved.erase(b"from").put(b"to", b"7").run(limit)?;
/// assert_eq!(kv.count(&Default::default(), limit)?, 1);
/// # drop(running);
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
#[must_use = "nothing is sent before `run`"]
pub struct KvBatch<'a> {
    client: &'a KvClient,
    batch: Batch<&'a [u8]>,
}

impl<'a> KvBatch<'a> {
    pub(super) fn new(client: &'a KvClient) -> Self {
        let batch = Batch { is_atomic: false, only_if: Vec::new(), changes: Vec::new() };
        Self { client, batch }
    }

    /// All changes are made, or none.
    pub fn atomic(mut self) -> Self {
        self.batch.is_atomic = true;
        self
    }

    /// Nothing is changed unless `key` is so before the first change.
    pub fn only_if(mut self, key: &'a [u8], when: Condition<&'a [u8]>) -> Self {
        self.batch.only_if.push((key, when));
        self
    }

    /// Sets the value of a key.
    pub fn put(self, key: &'a [u8], value: &'a [u8]) -> Self {
        self.put_if(key, value, Condition::Always)
    }

    /// Sets the value of a key that is so.
    pub fn put_if(self, key: &'a [u8], value: &'a [u8], when: Condition<&'a [u8]>) -> Self {
        self.change(Change::Put { key, value, when })
    }

    /// Adds bytes at the end of a value.
    pub fn append(self, key: &'a [u8], value: &'a [u8]) -> Self {
        self.change(Change::Append { key, value, when: Condition::Always })
    }

    /// Erases a key.
    pub fn erase(self, key: &'a [u8]) -> Self {
        self.erase_if(key, Condition::Always)
    }

    /// Erases a key that is so.
    pub fn erase_if(self, key: &'a [u8], when: Condition<&'a [u8]>) -> Self {
        self.change(Change::Erase { key, when, take: false })
    }

    /// Erases a key, and returns its value with the outcomes. Values that do not fit into an answer
    /// (`margo.overflow_bytes_max`) are lost: [`KvClient::take`] is for long ones.
    pub fn take(self, key: &'a [u8]) -> Self {
        self.change(Change::Erase { key, when: Condition::Always, take: true })
    }

    /// Erases the keys of a range.
    pub fn erase_range(self, range: KeyRange<&'a [u8]>) -> Self {
        self.change(Change::EraseRange(range))
    }

    /// Makes a change.
    pub fn change(mut self, change: Change<&'a [u8]>) -> Self {
        self.batch.changes.push(change);
        self
    }

    /// Returns how many changes there are.
    pub fn len(&self) -> usize {
        self.batch.changes.len()
    }

    /// Returns whether there are no changes.
    pub fn is_empty(&self) -> bool {
        self.batch.changes.is_empty()
    }

    /// Makes the changes. Returns the outcome of each.
    ///
    /// # Errors
    ///
    /// [`ClientError`] of the whole: no change was made because of a condition, or, of an atomic
    /// batch, because of the first change that failed. After a time-out or the loss of the target
    /// an atomic batch is made, or it is not; of others any part may be.
    pub fn run(self, limit: Duration) -> Result<Outcomes, ClientError> {
        let changes = self.len();
        let outcomes = self.client.apply(self.batch, limit)?;
        match outcomes.len() == changes {
            true => Ok(outcomes),
            false => Err(bad_answer(format!("{} outcomes of {changes}", outcomes.len()))),
        }
    }
}

impl KvClient {
    pub(super) fn apply(
        &self,
        batch: Batch<&[u8]>,
        limit: Duration,
    ) -> Result<Outcomes, ClientError> {
        // A request that is longer is fetched, which takes as long as to pull the bytes alone, and
        // copies them.
        let eager = self.instance.network().eager_bytes();
        let mut long = Vec::new();
        let batch = batch.try_map(|bytes: &[u8]| {
            if bytes.len() <= eager {
                return Ok::<_, ClientError>(Part::Here(Bytes(bytes)));
            }
            long.push(bytes);
            Ok(Part::There(bytes.len() as u64))
        })?;
        let mut args = ChangeArgs { batch, durability: self.durability, bulk: None };
        if long.is_empty() {
            return self.call(CHANGE.sending(), &args, limit);
        }
        self.instance.memory().expose_ref_segments(&long, |bulk| {
            args.bulk = Some(bulk.clone());
            self.call(CHANGE.sending(), &args, limit)
        })?
    }
}
