//! Changes, conditions and batches: the one place that knows what they mean, whatever the store.
//!
//! A [`Group`] is the batches that go into one commit. It applies them one after the other to
//! writes that lie over a view of the store, so each sees those before it, and the store sees only
//! what is left in the end. A change looks before it writes, so one that fails has done nothing; an
//! atomic batch that fails is taken back by what its changes have found.

use std::collections::btree_map::Entry;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

use margo::encoding::Bytes;

use super::store::interface::{Usage, Writes, Written};
use super::view::{Record, View, is_empty};
use crate::members::{Served, check_version};
use crate::model::{Batch, Change, Changed, Condition, KeyRange, Outcomes};
use crate::{KvError, StoreConfig};

/// A key and its record, as another database has it; none: the key is not there.
pub(crate) type TakenRecord = (Vec<u8>, Option<Written>);

/// The longest key and value, and the largest database.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    key_bytes: usize,
    value_bytes: usize,
    bytes: Option<u64>,
}

impl Limits {
    pub(super) fn new(config: &StoreConfig) -> Self {
        Self {
            key_bytes: config.max_key_bytes.min(config.kind.longest_key()),
            value_bytes: config.max_value_bytes,
            bytes: config.max_bytes,
        }
    }

    /// Returns whether the database may not hold more than some bytes.
    pub(super) fn bound_all(&self) -> bool {
        self.bytes.is_some()
    }

    /// Checks lengths; `more` is what a value has already.
    pub(super) fn check(&self, key: &[u8], value: &[u8], more: usize) -> Result<(), KvError> {
        check_length("a key", key.len(), self.key_bytes)?;
        check_length("a value", value.len().saturating_add(more), self.value_bytes)
    }
}

fn check_length(what: &str, len: usize, most: usize) -> Result<(), KvError> {
    let too_long =
        || KvError::TooLong { what: what.to_owned(), len: len as u64, most: most as u64 };
    if len <= most { Ok(()) } else { Err(too_long()) }
}

/// The write of a key before a change: none, an erasure, or a record.
type Before = Option<Option<Written>>;

/// Batches that become one commit.
pub(super) struct Group<'v> {
    view: &'v dyn View,
    limits: Limits,
    pub(super) writes: Writes,
    /// The version of the last write.
    pub(super) version: u64,
    /// Keys that were set or erased.
    pub(super) changes: u64,
    /// Others are moved.
    pub(super) served: Arc<Served>,
    /// Bytes of the database with the writes; kept if there is a bound.
    bytes: u64,
    /// The writes of keys as they were before an atomic batch changed them.
    undo: Option<Vec<(Vec<u8>, Before)>>,
}

impl<'v> Group<'v> {
    /// `version` and `usage` are of the database that `view` shows.
    pub(super) fn new(
        view: &'v dyn View,
        version: u64,
        usage: Usage,
        limits: Limits,
        served: Arc<Served>,
    ) -> Self {
        let (writes, bytes) = (Writes::new(), usage.bytes);
        Self { view, limits, writes, version, changes: 0, served, bytes, undo: None }
    }

    /// Has other keys served from here on. With `least` there is something to commit, and later
    /// changes have higher versions than that.
    pub(super) fn serve(&mut self, served: Arc<Served>, least: Option<u64>) {
        self.served = served;
        if let Some(least) = least {
            self.version = (self.version + 1).max(least);
        }
    }

    /// Makes keys what another database says that they are; of records those before an error.
    pub(super) fn take(&mut self, records: Vec<TakenRecord>) -> Result<(), KvError> {
        // There is something to commit, whatever versions come.
        self.version += 1;
        for (key, written) in records {
            match &written {
                Some(Written { version, value }) => {
                    check_version(*version)?;
                    self.limits.check(&key, value, 0)?;
                    self.make_room(&key, value.len())?;
                    self.version = self.version.max(*version);
                }
                None => self.free(&key),
            }
            self.changes += 1;
            self.writes.insert(key, written);
        }
        Ok(())
    }

    /// Applies a batch of a caller who knows of the members of `epoch`.
    ///
    /// # Errors
    ///
    /// The first condition of the batch that does not hold, or the first error of an atomic one.
    /// Nothing of the batch is in the group then.
    pub(super) fn apply(&mut self, batch: Batch, epoch: u64) -> Result<Outcomes, KvError> {
        if batch.changes.iter().any(|change| change.key().is_none()) {
            self.served.knows(epoch)?;
        }
        for (key, when) in &batch.only_if {
            self.served.changes(key)?;
            self.check(key, when)?;
        }
        if !batch.is_atomic {
            return Ok(batch.changes.into_iter().map(|change| self.change(change)).collect());
        }
        // A single change that fails has written nothing.
        self.undo = (batch.changes.len() > 1).then(Vec::new);
        let (version, bytes, changes) = (self.version, self.bytes, self.changes);
        let outcomes = batch.changes.into_iter().map(|change| self.change(change).map(Ok));
        let outcomes: Result<Outcomes, KvError> = outcomes.collect();
        let undo = self.undo.take();
        if outcomes.is_err() {
            for (key, before) in undo.into_iter().flatten().rev() {
                match before {
                    Some(before) => drop(self.writes.insert(key, before)),
                    None => drop(self.writes.remove(&key)),
                }
            }
            (self.version, self.bytes, self.changes) = (version, bytes, changes);
        }
        outcomes
    }

    fn change(&mut self, change: Change) -> Result<Changed, KvError> {
        if let Some(key) = change.key() {
            self.served.changes(key)?;
        }
        match change {
            Change::Put { key, value, when } => {
                self.limits.check(&key, &value, 0)?;
                self.check(&key, &when)?;
                self.put(key.0, value.0)
            }
            Change::Append { key, value, when } => {
                self.limits.check(&key, &value, 0)?;
                self.check(&key, &when)?;
                self.append(key.0, &value)
            }
            Change::Erase { key, when, take } => {
                self.check(&key, &when)?;
                self.erase(key.0, when == Condition::Always, take)
            }
            Change::EraseRange(range) => self.erase_range(&range),
        }
    }

    /// Shows the record of a key as it is now.
    fn look<R>(
        &self,
        key: &[u8],
        look: impl FnOnce(Option<Record<'_>>) -> R,
    ) -> Result<R, KvError> {
        if let Some(written) = self.writes.get(key) {
            return Ok(look(written.as_ref().map(Written::record)));
        }
        let (mut look, mut seen) = (Some(look), None);
        self.view.get(key, &mut |record| seen = look.take().map(|look| look(Some(record))))?;
        match (seen, look) {
            (Some(seen), _) => Ok(seen),
            (None, Some(look)) => Ok(look(None)),
            (None, None) => unreachable!("what has been called has returned"),
        }
    }

    fn check(&self, key: &[u8], when: &Condition) -> Result<(), KvError> {
        if *when == Condition::Always {
            return Ok(());
        }
        self.look(key, |record| match (when, record) {
            (Condition::Absent, Some(_)) => Err(KvError::Exists),
            (Condition::Absent, None) | (Condition::Always | Condition::Present, Some(_)) => Ok(()),
            (_, None) => Err(KvError::NotFound),
            (Condition::Version(wanted), Some(record)) if *wanted == record.version => Ok(()),
            (Condition::Value(wanted), Some(record)) if **wanted == *record.value => Ok(()),
            (_, Some(Record { version, .. })) => Err(KvError::Conflict { version }),
        })?
    }

    fn put(&mut self, key: Vec<u8>, value: Vec<u8>) -> Result<Changed, KvError> {
        self.make_room(&key, value.len())?;
        Ok(Changed::Put { version: self.write(key, Some(value)) })
    }

    fn append(&mut self, key: Vec<u8>, more: &[u8]) -> Result<Changed, KvError> {
        let limits = self.limits;
        let value = self.look(&key, |record| {
            let value = record.map_or(&[][..], |record| record.value);
            limits.check(&key, more, value.len())?;
            Ok([value, more].concat())
        })?;
        self.put(key, value?)
    }

    fn erase(&mut self, key: Vec<u8>, always: bool, take: bool) -> Result<Changed, KvError> {
        let found = self.look(&key, |record| {
            record.map(|it| (it.version, if take { it.value.to_vec() } else { Vec::new() }))
        });
        let found = match found {
            // To erase it is the way to get rid of a damaged record.
            Err(KvError::Corrupted(_)) if always && !take => Some(Default::default()),
            found => found?,
        };
        match found {
            None if take => Err(KvError::NotFound),
            None => Ok(Changed::Erased { count: 0 }),
            Some((version, value)) => {
                self.free(&key);
                self.write(key, None);
                let taken = || Changed::Taken { version, value: Bytes(value) };
                Ok(if take { taken() } else { Changed::Erased { count: 1 } })
            }
        }
    }

    fn erase_range(&mut self, range: &KeyRange) -> Result<Changed, KvError> {
        let KeyRange { from, to } = range;
        let bounds = (from.as_ref().map(|key| &key[..]), to.as_ref().map(|key| &key[..]));
        if is_empty(bounds) {
            return Ok(Changed::Erased { count: 0 });
        }
        let written = self.writes.range::<[u8], (Bound<&[u8]>, Bound<&[u8]>)>(bounds);
        let mut keys: Vec<_> =
            written.filter(|(_, it)| it.is_some()).map(|(key, _)| key.clone()).collect();
        self.view.scan(bounds, false, &mut |key, _| {
            if !self.writes.contains_key(key) {
                keys.push(key.to_vec());
            }
            ControlFlow::Continue(())
        })?;
        keys.retain(|key| self.served.reads(key).is_ok());
        keys.iter().try_for_each(|key| self.served.changes(key))?;
        let count = keys.len() as u64;
        for key in keys {
            self.free(&key);
            self.write(key, None);
        }
        Ok(Changed::Erased { count })
    }

    /// Counts a record that is to be put in place of what is there, if there is a bound.
    fn make_room(&mut self, key: &[u8], value_bytes: usize) -> Result<(), KvError> {
        let Some(most) = self.limits.bytes else { return Ok(()) };
        let rest = self.bytes.saturating_sub(self.stored_bytes(key));
        let bytes = rest + (key.len() + value_bytes) as u64;
        if bytes > most && bytes > self.bytes {
            return Err(KvError::Full(format!("it may have {most} bytes")));
        }
        self.bytes = bytes;
        Ok(())
    }

    /// Counts a record no longer, if there is a bound.
    fn free(&mut self, key: &[u8]) {
        if self.limits.bytes.is_some() {
            self.bytes = self.bytes.saturating_sub(self.stored_bytes(key));
        }
    }

    fn stored_bytes(&self, key: &[u8]) -> u64 {
        let bytes = self.look(key, |record| record.map_or(0, |it| key.len() + it.value.len()));
        bytes.unwrap_or_default() as u64
    }

    /// Sets or erases a record, which gets the next version.
    fn write(&mut self, key: Vec<u8>, value: Option<Vec<u8>>) -> u64 {
        self.version += 1;
        self.changes += 1;
        let version = self.version;
        let written = value.map(|value| Written { version, value });
        match (self.writes.entry(key), &mut self.undo) {
            (Entry::Occupied(mut old), undo) => {
                let key = undo.is_some().then(|| old.key().clone());
                let old = old.insert(written);
                if let (Some(undo), Some(key)) = (undo, key) {
                    undo.push((key, Some(old)));
                }
            }
            (Entry::Vacant(place), undo) => {
                if let Some(undo) = undo {
                    undo.push((place.key().clone(), None));
                }
                place.insert(written);
            }
        }
        version
    }
}
