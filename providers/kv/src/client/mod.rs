//! The origin side: keys and values as method calls.
//!
//! Read this file, then `cluster.rs` (which server has a key, and how keys that move are followed),
//! `member.rs` (a server), `start.rs` (calls that go on while their caller does), `batch.rs`
//! (several changes, and which bytes travel how), `entries.rs` (lists), `collection.rs`
//! (documents), `change_members.rs` (the administrator of servers).

mod batch;
mod change_members;
mod cluster;
mod collection;
mod entries;
mod member;
mod start;

use std::sync::Arc;
use std::time::Duration;

use margo::encoding::Bytes;
use margo::{Instance, ProviderHandle};

pub use self::batch::KvBatch;
pub use self::change_members::{MemberChange, MemberProgress};
use self::cluster::{Cluster, Known};
pub use self::collection::Collection;
pub use self::entries::Entries;
use self::member::{Clock, Member, result_of_key};
pub use self::start::KvRequest;
use crate::members::Membership;
use crate::model::{Batch, Change, Changed, Condition, Durability, KeyRange, Outcomes};
use crate::rpc::{
    COUNT, CountArgs, FLUSH, Found, GET, GET_MANY, GetArgs, GetManyArgs, IDENTITY, KvStat, MEASURE,
    Meta, PUT, PutArgs, STAT, Selection, WAIT, WaitArgs,
};
use crate::{ClientError, KvError};

/// Longest value that an answer carries, if it is not asked for otherwise. Up to here a copy at
/// each side takes less time than the further call does that fetches a long one without copies.
const ANSWER_BYTES: u64 = 256 << 10;

/// A key-value provider at a peer, or a [cluster](Self::cluster) of several. Cheap to clone.
///
/// Every method waits for its result, at most `limit` from its call: a ULT suspends, an OS thread
/// parks. Long values are not copied here: the target reads and writes the caller's slices
/// directly, and no method returns before it is done with them, time limit or not.
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
/// use margo_provider_kv::{Condition, KvClient};
///
/// let kv = KvClient::connect(&service, target, limit)?;
/// let version = kv.put(b"apple", b"red", limit)?;
/// let when = Condition::Version(version);
/// kv.put_if(b"apple", b"green", when, limit)?;
/// assert_eq!(kv.get(b"apple", limit)?.value.0, b"green");
/// assert!(kv.put_if(b"apple", b"blue", when, limit).is_err(), "it has another version now");
/// # drop(running);
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct KvClient {
    known: Arc<Known>,
    durability: Option<Durability>,
}

impl KvClient {
    /// Speaks to `target` through `instance`, after it has asked whether that is a key-value
    /// provider: a wrong number is found here, and not by what another provider makes of a call;
    /// how many shards it has, and with which others it shares out keys
    /// ([`change_members`](Self::change_members)), to which the client speaks then as well. Waits
    /// at most `limit` for each answer.
    ///
    /// # Errors
    ///
    /// [`Identity`](ClientError::Identity): it is another one, or says nothing, or did not answer;
    /// and others, as [`ClientError`].
    pub fn connect(
        instance: &Instance,
        target: ProviderHandle,
        limit: Duration,
    ) -> Result<Self, ClientError> {
        instance.network().check_identity_timed(&target, IDENTITY, limit)?;
        Self::cluster(instance, [target], limit)
    }

    /// Speaks to `target` through `instance`. Does not contact it. For a provider of several shards
    /// ([`KvConfig::shards`](crate::KvConfig::shards)), [`connect`](Self::connect) is the way:
    /// without it calls take a detour in the service, and lists are refused.
    pub fn new(instance: &Instance, target: ProviderHandle) -> Self {
        let member = Member { instance: instance.clone(), target, id: 0, shard: None };
        let known = Known::new(instance, Cluster::of_one(member));
        Self { known: Arc::new(known), durability: None }
    }

    /// Speaks to several key-value providers as one key space: each key is at one of them, which
    /// the key and the ids of the databases decide ([`KvStat::id`]), and not the order or the
    /// addresses of `targets`. Asks all of them for their ids, at the same time.
    ///
    /// Calls go to the member that has the key, those for several keys to all that have some, at
    /// the same time. Where one does not answer, only its keys fail
    /// ([`Unanswered`](KvError::Unanswered) in calls that others have answered). A batch that is
    /// atomic, or has conditions of the whole, is for keys of one member, such as the documents of
    /// a [collection](Self::collection). Versions are those of the member.
    ///
    /// Servers that know with which others they share out keys
    /// ([`change_members`](Self::change_members)) are asked for those, so that one of them is
    /// enough here. Others have to be named as they were from their first key on. A database in
    /// memory has another id when it is started again.
    ///
    /// ```
    /// # use margo::{Instance, ProviderHandle, ProviderId};
    /// # use margo_provider_kv::*;
    /// # let limit = std::time::Duration::from_secs(10);
    /// # let service = Instance::builder("na+sm://").start()?;
    /// # let config = KvConfig::new(StoreConfig::memory(MemoryOrder::Ordered));
    /// # let start = |id| {
    /// #     let provider = service.provider(ProviderId::new(id), &service.layout().rpc_pool());
    /// #     KvProvider::start(provider, &config)
    /// # };
    /// # let running = [start(1)?, start(2)?, start(3)?];
    /// let there = service.self_addr();
    /// let targets = [1, 2, 3].map(|id| ProviderHandle::new(there.clone(), ProviderId::new(id)));
    /// let kv = KvClient::cluster(&service, targets, limit)?;
    /// for key in ["apple", "fig", "pear"] {
    ///     kv.put(key.as_bytes(), b"", limit)?;
    /// }
    /// let keys = kv.keys(Selection::default(), limit).map(|entry| Ok(entry?.key.0));
    /// let keys: Vec<_> = keys.collect::<Result<_, ClientError>>()?;
    /// assert_eq!(keys, [&b"apple"[..], b"fig", b"pear"]);
    /// # drop(running);
    /// # service.finalize_and_wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ClientError`] of the first one that does not answer;
    /// [`SameDatabase`](ClientError::SameDatabase) if two of them have the same id;
    /// [`NoMember`](ClientError::NoMember) if one stands alone, and another one has members.
    ///
    /// # Panics
    ///
    /// Without targets.
    pub fn cluster(
        instance: &Instance,
        targets: impl IntoIterator<Item = ProviderHandle>,
        limit: Duration,
    ) -> Result<Self, ClientError> {
        let known = Known::connect(instance, targets, limit)?;
        Ok(Self { known: Arc::new(known), durability: None })
    }

    /// The provider that has a key, as far as the client knows; of several shards, called through
    /// the one that has it.
    pub fn owner(&self, key: &[u8]) -> ProviderHandle {
        self.known.cluster().member(key).target.clone()
    }

    /// The providers that it speaks to, as far as it knows of them; while members change, those of
    /// before and those that follow.
    pub fn members(&self) -> Vec<ProviderHandle> {
        self.known.cluster().databases().map(|shards| shards[0].target.clone()).collect()
    }

    /// Asks who shares out the keys now, and follows them; `None`: the providers know of no others.
    /// Other calls do so by themselves when they find that a key has moved.
    ///
    /// # Errors
    ///
    /// [`ClientError`], if none answers.
    pub fn membership(&self, limit: Duration) -> Result<Option<Membership>, ClientError> {
        self.known.learn_from_any(limit)?;
        let cluster = self.known.cluster();
        Ok(Some(cluster.now().clone()).filter(|now| now.epoch > 0))
    }

    /// A client whose changes are at least so safe before they are acknowledged. The provider's own
    /// setting may be more.
    #[must_use]
    pub fn with_durability(&self, durability: Durability) -> Self {
        Self { durability: Some(durability), ..self.clone() }
    }

    /// The value of a key, and its version.
    ///
    /// # Errors
    ///
    /// [`NotFound`](KvError::NotFound) and others, as [`ClientError`].
    pub fn get(&self, key: &[u8], limit: Duration) -> Result<Found, ClientError> {
        let args = GetArgs { key: Bytes(key), most: ANSWER_BYTES };
        self.known.follow(key, limit, |_, member, left, clock| {
            match member.call(GET.sending(), &args, left) {
                Err(ClientError::Kv(KvError::TooSmall { need })) => {
                    member.fetch(key, None, need, clock)
                }
                answered => answered,
            }
        })
    }

    /// Copies the value of a key into memory of the caller. Returns how many bytes that are.
    ///
    /// # Errors
    ///
    /// [`TooSmall`](KvError::TooSmall) with the length of the value if it does not fit, and others,
    /// as [`ClientError`]. `into` then holds no particular bytes.
    pub fn get_into(
        &self,
        key: &[u8],
        into: &mut [u8],
        limit: Duration,
    ) -> Result<Meta, ClientError> {
        self.known.follow(key, limit, |_, member, left, _| member.read(key, None, into, left))
    }

    /// The values of keys, each with its own result, in their order. Those of a database on disk
    /// are of one moment, but for long ones (more than 256 KiB, or more than the provider's
    /// `page_bytes` together), which are fetched by a call for each.
    ///
    /// # Errors
    ///
    /// [`ClientError`] of the whole; that of a key, such as [`NotFound`](KvError::NotFound), is its
    /// result. Where the keys have several owners, the result of those of which one does not answer
    /// is [`Unanswered`](KvError::Unanswered).
    pub fn get_many(
        &self,
        keys: &[&[u8]],
        limit: Duration,
    ) -> Result<Vec<Result<Found, KvError>>, ClientError> {
        let clock = Clock::of(limit);
        let args = |keys| GetManyArgs { keys, most: ANSWER_BYTES };
        let is_moved = |found: &Result<_, _>| matches!(found, Err(KvError::Moved { .. }));
        let mut answers = self.known.ask_owners(GET_MANY.sending(), keys, args, is_moved, limit);
        let is_whole = answers.len() == 1;
        if is_whole && let Some((_, Err(error))) = answers.pop_if(|(_, answer)| answer.is_err()) {
            return Err(error);
        }
        let mut results = match (is_whole, answers.pop()) {
            // Of all keys, in their order.
            (true, Some((_, Ok(found)))) => found,
            (_, last) => {
                answers.extend(last);
                vec![Err(KvError::NotFound); keys.len()]
            }
        };
        for (places, answer) in answers {
            let found = answer.unwrap_or_else(|error| {
                let error = result_of_key(error);
                vec![Err(error); places.len()]
            });
            for (place, found) in places.into_iter().zip(found) {
                results[place] = found;
            }
        }
        for (result, key) in results.iter_mut().zip(keys) {
            if let Err(KvError::TooSmall { need }) = *result {
                let fetched = self.known.follow(key, clock.left(), |_, member, _, clock| {
                    member.fetch(key, None, need, clock)
                });
                *result = match fetched {
                    Err(ClientError::Kv(error)) => Err(error),
                    Err(error) if !is_whole => Err(result_of_key(error)),
                    fetched => Ok(fetched?),
                };
            }
        }
        Ok(results)
    }

    /// Returns how long the value of a key is, and its version; `None`: the key is not there.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub fn measure(&self, key: &[u8], limit: Duration) -> Result<Option<Meta>, ClientError> {
        Ok(self.measure_many(&[key], limit)?.pop().flatten())
    }

    /// As [`measure`](Self::measure), of keys in their order.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub fn measure_many(
        &self,
        keys: &[&[u8]],
        limit: Duration,
    ) -> Result<Vec<Option<Meta>>, ClientError> {
        let mut lengths = vec![None; keys.len()];
        let known = &self.known;
        for (places, answer) in
            known.ask_owners(MEASURE.sending(), keys, |keys| keys, |_| false, limit)
        {
            for (place, length) in places.into_iter().zip(answer?) {
                lengths[place] = length;
            }
        }
        Ok(lengths)
    }

    /// Returns whether a key is there.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub fn exists(&self, key: &[u8], limit: Duration) -> Result<bool, ClientError> {
        Ok(self.measure(key, limit)?.is_some())
    }

    /// Waits until a key is there with a version above `above`; 0 is below all. Returns its value.
    ///
    /// # Errors
    ///
    /// [`Busy`](KvError::Busy) if too many wait, [`Closing`](KvError::Closing) if the provider
    /// ends, and others, as [`ClientError`].
    pub fn wait(&self, key: &[u8], above: u64, limit: Duration) -> Result<Found, ClientError> {
        let args = WaitArgs { key: Bytes(key), above, most: ANSWER_BYTES };
        self.known.follow(key, limit, |_, member, left, clock| {
            match member.call(WAIT.sending(), &args, left) {
                Err(ClientError::Kv(KvError::TooSmall { need })) => {
                    member.fetch(key, None, need, clock)
                }
                answered => answered,
            }
        })
    }

    /// Sets the value of a key. Returns its version.
    ///
    /// # Errors
    ///
    /// [`ClientError`]. After a time-out or the loss of the target, the key has the old value or
    /// the new one.
    pub fn put(&self, key: &[u8], value: &[u8], limit: Duration) -> Result<u64, ClientError> {
        self.put_if(key, value, Condition::Always, limit)
    }

    /// As [`put`](Self::put), under a condition.
    ///
    /// # Errors
    ///
    /// [`Exists`](KvError::Exists), [`NotFound`](KvError::NotFound) or
    /// [`Conflict`](KvError::Conflict) if the key is not as `when` says, and others, as
    /// [`ClientError`].
    pub fn put_if(
        &self,
        key: &[u8],
        value: &[u8],
        when: Condition<&[u8]>,
        limit: Duration,
    ) -> Result<u64, ClientError> {
        let eager = self.known.instance.network().eager_bytes();
        let is_short = |bytes: &[u8]| bytes.len() <= eager;
        if !is_short(value) || matches!(when, Condition::Value(old) if !is_short(old)) {
            return version(self.change(Change::Put { key, value, when }, limit)?);
        }
        let args = self.put_args(key, value, when);
        self.known.follow(key, limit, |_, member, left, _| member.call(PUT.sending(), &args, left))
    }

    /// Adds bytes at the end of a value, which is empty where the key is not there. Returns the
    /// version.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub fn append(&self, key: &[u8], value: &[u8], limit: Duration) -> Result<u64, ClientError> {
        version(self.change(Change::Append { key, value, when: Condition::Always }, limit)?)
    }

    /// Erases a key. Returns whether it was there.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub fn erase(&self, key: &[u8], limit: Duration) -> Result<bool, ClientError> {
        self.erase_if(key, Condition::Always, limit)
    }

    /// As [`erase`](Self::erase), under a condition.
    ///
    /// # Errors
    ///
    /// As [`put_if`](Self::put_if).
    pub fn erase_if(
        &self,
        key: &[u8],
        when: Condition<&[u8]>,
        limit: Duration,
    ) -> Result<bool, ClientError> {
        Ok(count(self.change(Change::Erase { key, when, take: false }, limit)?)? > 0)
    }

    /// Erases a key, and returns the value that it had. Of several callers one gets it.
    ///
    /// # Errors
    ///
    /// [`NotFound`](KvError::NotFound) and others, as [`ClientError`].
    pub fn take(&self, key: &[u8], limit: Duration) -> Result<Found, ClientError> {
        let clock = Clock::of(limit);
        // In two steps, as a long value would not fit into the answer that it is erased with.
        loop {
            let found = self.get(key, clock.left())?;
            match self.erase_if(key, Condition::Version(found.version), clock.left()) {
                Ok(_) => return Ok(found),
                Err(ClientError::Kv(KvError::Conflict { .. })) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Erases the keys of a range, such as `b"a"..b"b"`. Returns how many there were. In a cluster
    /// each member erases its own ones, also if another one fails.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub fn erase_range<'a>(
        &self,
        range: impl std::ops::RangeBounds<&'a [u8]>,
        limit: Duration,
    ) -> Result<u64, ClientError> {
        let (from, to) = (range.start_bound().cloned(), range.end_bound().cloned());
        count(self.change(Change::EraseRange(KeyRange { from, to }), limit)?)
    }

    /// Several changes, in one call.
    pub fn batch(&self) -> KvBatch<'_> {
        KvBatch::new(self)
    }

    /// Returns how many keys there are.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub fn count(&self, selection: &Selection, limit: Duration) -> Result<u64, ClientError> {
        self.count_at(None, selection, limit)
    }

    /// Counts the keys of a selection that are all at the owner of `only`, if that is given.
    fn count_at(
        &self,
        only: Option<&[u8]>,
        selection: &Selection,
        limit: Duration,
    ) -> Result<u64, ClientError> {
        self.known.steadily(limit, |cluster, clock| {
            let args = CountArgs { selection: selection.clone(), epoch: cluster.epoch() };
            match only {
                Some(key) => cluster.member(key).call(COUNT, &args, clock.left()),
                None => Ok(cluster.ask_all(COUNT, &args, clock.left())?.into_iter().sum()),
            }
        })
    }

    /// The keys of a selection, with their values. `limit` is for each page, of which an iteration
    /// may fetch several; all of them show the database as it was when the first one was. In memory
    /// a list of several pages costs a walk over all keys for that. A list of a cluster is merged
    /// from those of its members, each of which shows a moment of its own.
    pub fn entries(&self, selection: Selection, limit: Duration) -> Entries {
        Entries::new(self, None, selection, true, limit)
    }

    /// As [`entries`](Self::entries), without values.
    pub fn keys(&self, selection: Selection, limit: Duration) -> Entries {
        Entries::new(self, None, selection, false, limit)
    }

    /// A collection of documents: a name, under which documents have numbers.
    pub fn collection(&self, name: impl Into<String>) -> Collection {
        Collection::new(self, name.into())
    }

    /// Returns when all that was acknowledged before is on the disk.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub fn flush(&self, limit: Duration) -> Result<(), ClientError> {
        self.known.cluster().ask_all(FLUSH, &(), limit).map(drop)
    }

    /// Returns what each provider has and holds for its callers, in the order of
    /// [`members`](Self::members).
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub fn stat(&self, limit: Duration) -> Result<Vec<KvStat>, ClientError> {
        self.known.cluster().ask_all(STAT, &(), limit)
    }

    fn put_args<'a>(
        &self,
        key: &'a [u8],
        value: &'a [u8],
        when: Condition<&'a [u8]>,
    ) -> PutArgs<Bytes<&'a [u8]>> {
        let (key, value, when) = (Bytes(key), Bytes(value), when.map(Bytes));
        PutArgs { key, value, when, durability: self.durability }
    }

    /// Makes one change.
    fn change(&self, change: Change<&[u8]>, limit: Duration) -> Result<Changed, ClientError> {
        let only = |mut outcomes: Outcomes| match outcomes.pop() {
            Some(outcome) if outcomes.is_empty() => Ok(outcome?),
            _ => Err(bad_answer("not one outcome".to_owned())),
        };
        let batch = || Batch { changes: vec![change.clone()], ..Batch::default() };
        match change.key() {
            None => only(self.apply(batch(), limit)?),
            Some(key) => self.known.follow(key, limit, |cluster, member, left, _| {
                only(self.send_to(cluster, member, batch(), left)?)
            }),
        }
    }
}

/// The version that a change has led to.
fn version(changed: Changed) -> Result<u64, ClientError> {
    match changed {
        Changed::Put { version } => Ok(version),
        other => Err(bad_answer(format!("{other:?} for a put"))),
    }
}

/// The number of keys that a change has erased.
fn count(changed: Changed) -> Result<u64, ClientError> {
    match changed {
        Changed::Erased { count } => Ok(count),
        other => Err(bad_answer(format!("{other:?} for keys that are erased"))),
    }
}

fn bad_answer(detail: String) -> ClientError {
    ClientError::BadAnswer(detail)
}
