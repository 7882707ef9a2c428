//! Several changes in one call, and how their bytes travel.
//!
//! | bytes | how |
//! |---|---|
//! | that the request has room for, as long as it is eager | in the request |
//! | such that are too many together | the runtime has the target fetch the request |
//! | longer than the eager size by themselves | the target pulls them from the caller's memory: no copy here, and one there |
//!
//! A batch for several members of a cluster is split, and all get their share at the same time;
//! their parts of the caller's memory lie one behind the other. Changes whose keys have moved are
//! sent again; those that are made as a whole together.

use std::convert::Infallible;
use std::time::Duration;

use margo::encoding::Bytes;
use margo::{Bulk, BulkError, Instance};

use super::cluster::{Cluster, Tries, is_moved};
use super::member::{Member, answers, result_of_key};
use super::{KvClient, bad_answer};
use crate::model::{Batch, Change, Changed, Condition, KeyRange, Outcomes};
use crate::rpc::{CHANGE, ChangeArgs, Part};
use crate::{ClientError, KvError};

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
    ///
    /// In a cluster, [`SeveralOwners`](ClientError::SeveralOwners) of a batch that is atomic or has
    /// conditions of the whole and is not for one member: nothing was sent. Of other batches for
    /// several members, a change of which the member does not answer has the outcome
    /// [`Unanswered`](crate::KvError::Unanswered), and may have been made. If keys change hands
    /// while ranges are erased together with other changes, the outcome of a range may be
    /// [`Moved`](crate::KvError::Moved): some of its keys may be there still.
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
        let has_range = batch.changes.iter().any(|change| change.key().is_none());
        if batch.is_atomic || !batch.only_if.is_empty() {
            self.apply_whole(batch, limit)
        } else if has_range {
            self.apply_with_ranges(&batch.changes, limit)
        } else {
            self.apply_each(&batch.changes, limit)
        }
    }

    /// Makes changes that are for one member.
    fn apply_whole(&self, batch: Batch<&[u8]>, limit: Duration) -> Result<Outcomes, ClientError> {
        let (mut tries, mut left) = (Tries::of(limit), limit);
        loop {
            let cluster = self.known.cluster();
            let owner = match cluster.members.len() {
                1 => Some(0),
                _ => batch.only_owner(|key| cluster.owner(key)),
            };
            let member = &cluster.members[owner.ok_or(ClientError::SeveralOwners)?];
            let answered = self.send_to(&cluster, member, batch.clone(), left);
            if !is_moved(&answered) || !self.known.try_again(member, &mut tries) {
                return answered;
            }
            left = tries.clock.left();
        }
    }

    /// Makes changes of keys, each on its own.
    fn apply_each(
        &self,
        changes: &[Change<&[u8]>],
        limit: Duration,
    ) -> Result<Outcomes, ClientError> {
        let mut tries = Tries::of(limit);
        let mut cluster = self.known.cluster();
        let mut outcomes = self.send(&cluster, changes, limit)?;
        loop {
            let is_moved = |(_, it): &(_, &Result<_, _>)| matches!(it, Err(KvError::Moved { .. }));
            let moved = outcomes.iter().enumerate().filter(is_moved).map(|(place, _)| place);
            let moved: Vec<_> = moved.collect();
            let key = moved.first().and_then(|place| changes[*place].key());
            let Some(member) = key.map(|key| cluster.member(key)) else { return Ok(outcomes) };
            if !self.known.try_again(member, &mut tries) {
                return Ok(outcomes);
            }
            cluster = self.known.cluster();
            let again: Vec<_> = moved.iter().map(|place| changes[*place].clone()).collect();
            let told = match self.send(&cluster, &again, tries.clock.left()) {
                // Others have been made: this is no error of the whole.
                Err(error) if again.len() < changes.len() => {
                    vec![Err(result_of_key(error)); again.len()]
                }
                told => told?,
            };
            for (place, told) in moved.into_iter().zip(told) {
                outcomes[place] = told;
            }
        }
    }

    /// Makes changes of which some are for ranges, which all members have. They can be made again
    /// unless there are others with them, of which one was made.
    fn apply_with_ranges(
        &self,
        changes: &[Change<&[u8]>],
        limit: Duration,
    ) -> Result<Outcomes, ClientError> {
        let mut tries = Tries::of(limit);
        let is_alone = changes.iter().all(|change| change.key().is_none());
        let mut erased = vec![0; changes.len()];
        loop {
            let cluster = self.known.cluster();
            let mut told = self.send(&cluster, changes, tries.clock.left())?;
            for (told, erased) in told.iter_mut().zip(&mut erased) {
                if let Ok(Changed::Erased { count }) = told {
                    *erased += *count;
                    *count = *erased;
                }
            }
            let moved = told.iter().find(|told| matches!(told, Err(KvError::Moved { .. })));
            let moved = moved.and_then(|told| told.clone().err());
            if moved.is_none() && self.known.was_steady(&cluster, tries.clock)? {
                return Ok(told);
            }
            let is_again = is_alone || told.iter().all(Result::is_err);
            if is_again && self.known.learn_from_all(&mut tries) {
                continue;
            }
            let ranges = told.iter_mut().zip(changes).filter(|(_, change)| change.key().is_none());
            for (told, _) in ranges.filter(|(told, _)| told.is_ok()) {
                let away = KvError::Moved {
                    epoch: cluster.epoch(),
                    address: cluster.members[0].target.addr().to_string(),
                    provider: cluster.members[0].target.id().get(),
                };
                *told = Err(moved.clone().unwrap_or(away));
            }
            return Ok(told);
        }
    }

    /// Sends a batch to one member.
    pub(super) fn send_to(
        &self,
        cluster: &Cluster,
        member: &Member,
        batch: Batch<&[u8]>,
        limit: Duration,
    ) -> Result<Outcomes, ClientError> {
        let mut long = LongParts::of(self);
        let mut args = self.args(cluster, batch, &mut long);
        long.expose(&self.known.instance, |bulk| {
            args.bulk = bulk.cloned();
            member.call(CHANGE.sending(), &args, limit)
        })?
    }

    /// Sends changes to the members that have them, all at the same time. Returns the outcome of
    /// each.
    fn send(
        &self,
        cluster: &Cluster,
        changes: &[Change<&[u8]>],
        limit: Duration,
    ) -> Result<Outcomes, ClientError> {
        let [only] = &*cluster.members else {
            return self.send_shares(cluster, changes, limit);
        };
        let batch = Batch { changes: changes.to_vec(), ..Batch::default() };
        match self.send_to(cluster, only, batch, limit) {
            Ok(told) if told.len() != changes.len() => {
                let (told, sent) = (told.len(), changes.len());
                Err(bad_answer(format!("{told} outcomes of {sent}")))
            }
            Err(ClientError::Kv(moved @ KvError::Moved { .. })) => {
                Ok(vec![Err(moved); changes.len()])
            }
            told => told,
        }
    }

    /// As [`send`](Self::send), to several members.
    fn send_shares(
        &self,
        cluster: &Cluster,
        changes: &[Change<&[u8]>],
        limit: Duration,
    ) -> Result<Outcomes, ClientError> {
        // A range is for all shards of a database, which then shares out the changes itself, so
        // that they keep their order. So the first shard of a database is all of them.
        let has_range = changes.iter().any(|change| change.key().is_none());
        let mut firsts = Vec::with_capacity(cluster.members.len());
        for shards in cluster.databases() {
            let first = firsts.len();
            let place = |shard| if has_range { first } else { first + shard };
            firsts.extend((0..shards.len()).map(place));
        }
        let mut outcomes = vec![None; changes.len()];
        let mut shares = vec![(Vec::new(), Batch::default()); cluster.members.len()];
        for (at, change) in changes.iter().enumerate() {
            let mut add = |member: usize| {
                shares[member].0.push(at);
                shares[member].1.changes.push(change.clone());
            };
            match change.key() {
                Some(key) => add(firsts[cluster.owner(key)]),
                None => (0..firsts.len()).filter(|at| firsts[*at] == *at).for_each(add),
            }
        }
        let mut long = LongParts::of(self);
        let shares = shares.into_iter().zip(&cluster.members);
        let shares = shares.filter(|((places, _), _)| !places.is_empty());
        let calls = shares.map(|((places, share), member)| {
            (places, member, self.args(cluster, share, &mut long), long.end)
        });
        let mut calls: Vec<_> = calls.collect();
        let is_whole = calls.len() == 1;
        let told: Vec<_> = long.expose(&self.known.instance, |bulk| {
            let started = calls.iter_mut().map(|(_, member, args, end)| {
                // To those who need it.
                args.bulk = bulk.filter(|_| args.skip < *end).cloned();
                member.start(CHANGE.sending(), args, limit)
            });
            answers(started.collect()).collect()
        })?;
        for (told, (places, ..)) in told.into_iter().zip(calls) {
            let told = told.and_then(|told| match told.len() == places.len() {
                true => Ok(told),
                false => Err(bad_answer(format!("{} outcomes of {}", told.len(), places.len()))),
            });
            let told = match told {
                Err(error)
                    if is_whole && !matches!(error, ClientError::Kv(KvError::Moved { .. })) =>
                {
                    return Err(error);
                }
                told => told,
            };
            let told = told.unwrap_or_else(|error| vec![Err(result_of_key(error)); places.len()]);
            for (place, told) in places.into_iter().zip(told) {
                outcomes[place] = Some(Changed::sum(outcomes[place].take(), told));
            }
        }
        Ok(outcomes.into_iter().flatten().collect())
    }

    /// The arguments of a call that makes these changes; its parts that are long are behind those
    /// that there are.
    fn args<'a>(
        &self,
        cluster: &Cluster,
        batch: Batch<&'a [u8]>,
        long: &mut LongParts<'a>,
    ) -> ChangeArgs<Bytes<&'a [u8]>> {
        let skip = long.end;
        let Ok(batch) = batch.try_map(|bytes| Ok::<_, Infallible>(long.part(bytes)));
        let (durability, epoch) = (self.durability, cluster.epoch());
        ChangeArgs { batch, durability, bulk: None, skip, epoch }
    }
}

/// The bytes of calls that are too long for requests: the targets pull them from where they are.
struct LongParts<'a> {
    /// The most that a request carries of one.
    eager: usize,
    bytes: Vec<&'a [u8]>,
    /// Their sum.
    end: u64,
}

impl<'a> LongParts<'a> {
    fn of(client: &KvClient) -> Self {
        // A request that is longer is fetched, which takes as long as to pull the bytes alone, and
        // copies them.
        let eager = client.known.instance.network().eager_bytes();
        Self { eager, bytes: Vec::new(), end: 0 }
    }

    fn part(&mut self, bytes: &'a [u8]) -> Part<Bytes<&'a [u8]>> {
        if bytes.len() <= self.eager {
            return Part::Here(Bytes(bytes));
        }
        self.bytes.push(bytes);
        self.end += bytes.len() as u64;
        Part::There(bytes.len() as u64)
    }

    /// Makes calls while targets may read them, if there are any.
    fn expose<T>(
        &self,
        instance: &Instance,
        call: impl FnOnce(Option<&Bulk>) -> T,
    ) -> Result<T, BulkError> {
        match self.bytes.is_empty() {
            true => Ok(call(None)),
            false => instance.memory().expose_ref_segments(&self.bytes, |bulk| call(Some(bulk))),
        }
    }
}
