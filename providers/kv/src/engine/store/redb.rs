//! A store in one file, by `redb`: a B-tree that is copied where it changes.
//!
//! | table | key | value |
//! |---|---|---|
//! | `records` | the key | the record, sealed |
//! | `margo_kv` | `state` | the numbers of the store, sealed |
//! | `margo_kv` | `note` | bytes of its owner, sealed, if there are any |
//!
//! `redb` itself looks at its checksums only when it repairs or is told to check. What protects
//! readers meanwhile is the checksum of each record; a page between them that is damaged may hide
//! keys, which [`Integrity::Open`] finds.
//!
//! A commit without a sync stays in the memory of the process until the next one with a sync, so
//! that the file is whole at every moment, also after a power cut.

use std::fs::File;
use std::io::Read;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use redb::{
    Builder, Database, DatabaseError, Durability, ReadOnlyTable, ReadableDatabase, ReadableTable,
    ReadableTableMetadata, StorageError, TableDefinition, TableHandle,
};

use super::interface::{Keeps, Store, Usage, Writes};
use crate::engine::contain::{Health, io_error};
use crate::engine::sealed::{HEADER_BYTES, StoreState, seal, seal_note, unseal, unseal_note};
use crate::engine::view::{Bounds, Record, View, is_empty};
use crate::{Integrity, KvError};

const RECORDS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("records");
const STATE: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("margo_kv");
const STATE_KEY: &str = "state";
const NOTE_KEY: &str = "note";

/// The first bytes of every file of `redb`.
const MAGIC: &[u8] = b"redb\x1A\x0A\xA9\x0D\x0A";

/// The store.
#[derive(Debug)]
pub(crate) struct RedbStore {
    database: Database,
    /// The name of the file, for errors.
    place: String,
    health: Health,
    id: u64,
    version: u64,
    usage: Usage,
    note: Option<Vec<u8>>,
    /// The note is not in the file yet.
    is_note_new: bool,
}

impl RedbStore {
    /// Opens a file, or makes it.
    pub(crate) fn open(
        path: &Path,
        cache_bytes: usize,
        integrity: Integrity,
        health: &Health,
    ) -> Result<Self, KvError> {
        let place = path.display().to_string();
        check_is_redb(path, &place)?;
        Self::open_as(place, health, |builder| {
            builder.set_cache_size(cache_bytes);
            builder.set_check_integrity_on_open(integrity == Integrity::Open);
            builder.create(path)
        })
    }

    /// Opens what `create` does.
    pub(crate) fn open_as(
        place: String,
        health: &Health,
        create: impl FnOnce(&mut Builder) -> Result<Database, DatabaseError>,
    ) -> Result<Self, KvError> {
        let health = health.clone();
        let open = || {
            let database = create(&mut Builder::new()).map_err(|error| error_of(&place, error))?;
            let (state, usage, note) = prepare(&place, &database)?;
            Ok((database, state, usage, note))
        };
        // A file that makes it panic is no reason to open no other one.
        let opened = Health::default().contain(open);
        let (database, StoreState { id, version, .. }, usage, note) =
            opened.map_err(|error| match error {
                KvError::Failed(why) if why.starts_with("it panicked") => {
                    KvError::Corrupted(format!("{place}: {why}"))
                }
                error => error,
            })?;
        Ok(Self { database, place, health, id, version, usage, note, is_note_new: false })
    }

    fn call<T>(&self, call: impl FnOnce() -> Result<T, redb::Error>) -> Result<T, KvError> {
        self.health.contain(|| call().map_err(|error| error_of(&self.place, error)))
    }
}

fn check_is_redb(path: &Path, place: &str) -> Result<(), KvError> {
    let mut first = Vec::new();
    let read = File::open(path).and_then(|file| file.take(9).read_to_end(&mut first));
    match read {
        Ok(0) => Ok(()),
        Ok(_) if first == MAGIC => Ok(()),
        Ok(_) => Err(KvError::Failed(format!("{place}: is no database of redb"))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(io_error(place, &error)),
    }
}

/// Checks that it is a database of ours, or makes it one if it is new. Returns its numbers, and the
/// note.
fn prepare(
    place: &str,
    database: &Database,
) -> Result<(StoreState, Usage, Option<Vec<u8>>), KvError> {
    let find = || -> Result<_, redb::Error> {
        let tables = database.begin_read()?;
        let mut names = tables.list_tables()?;
        if names.any(|table| table.name() == STATE.name()) {
            let keys = tables.open_table(RECORDS)?.len()?;
            let table = tables.open_table(STATE)?;
            let of = |key: &str| -> Result<_, redb::Error> {
                Ok(table.get_owned(key)?.map(|found| found.value().to_vec()))
            };
            return Ok(Some((keys, of(STATE_KEY)?.unwrap_or_default(), of(NOTE_KEY)?)));
        }
        if tables.list_tables()?.next().is_some() {
            return Ok(None);
        }
        let (new, state) = (database.begin_write()?, StoreState::new().seal());
        new.open_table(RECORDS)?;
        new.open_table(STATE)?.insert(STATE_KEY, state.as_slice())?;
        new.commit()?;
        Ok(Some((0, state, None)))
    };
    let other = || KvError::Failed(format!("{place}: is a database of another program"));
    let (keys, state, note) = find().map_err(|error| error_of(place, error))?.ok_or_else(other)?;
    let state = StoreState::unseal(place, &state)?;
    let note = note.map(|note| unseal_note(place, &note)).transpose()?;
    Ok((state, Usage { keys, bytes: state.bytes }, note))
}

fn error_of(place: &str, error: impl Into<redb::Error>) -> KvError {
    match error.into() {
        redb::Error::Io(error) => io_error(place, &error),
        redb::Error::Corrupted(what) => KvError::Corrupted(format!("{place}: {what}")),
        redb::Error::DatabaseAlreadyOpen => {
            KvError::Failed(format!("{place}: is open already, here or in another process"))
        }
        redb::Error::UpgradeRequired(format) => KvError::Failed(format!(
            "{place}: was written by another version of redb, in its format {format}"
        )),
        error => KvError::Failed(format!("{place}: {error}")),
    }
}

impl Store for RedbStore {
    fn version(&self) -> u64 {
        self.version
    }

    fn usage(&self) -> Usage {
        self.usage
    }

    fn id(&self) -> Option<u64> {
        Some(self.id)
    }

    fn set_id(&mut self, id: u64) {
        self.id = id;
    }

    fn note(&self) -> Option<&[u8]> {
        self.note.as_deref()
    }

    fn set_note(&mut self, note: Vec<u8>) {
        (self.note, self.is_note_new) = (Some(note), true);
    }

    fn view(&self) -> Result<Arc<dyn View>, KvError> {
        let records = self.call(|| Ok(self.database.begin_read()?.open_table(RECORDS)?))?;
        let (place, health) = (self.place.clone(), self.health.clone());
        Ok(Arc::new(RedbView { records, place, health }))
    }

    fn commit(&mut self, writes: Writes, version: u64, synced: bool) -> Result<(), KvError> {
        let usage = self.call(|| {
            let mut usage = self.usage;
            let mut transaction = self.database.begin_write()?;
            transaction.set_durability(durability(synced))?;
            transaction.set_quick_repair(synced);
            let mut records = transaction.open_table(RECORDS)?;
            let mut sealed = Vec::new();
            for (key, written) in &writes {
                let key = key.as_slice();
                let bytes = |sealed: &[u8]| (key.len() + sealed.len()).saturating_sub(HEADER_BYTES);
                let old = match written {
                    Some(written) => {
                        sealed.clear();
                        seal(&mut sealed, key, written.record());
                        usage.add(Some(bytes(&sealed) as u64));
                        records.insert(key, sealed.as_slice())?
                    }
                    None => records.remove(key)?,
                };
                usage.remove(old.map(|old| bytes(old.value()) as u64));
            }
            drop(records);
            let state = StoreState { id: self.id, version, bytes: usage.bytes }.seal();
            let mut table = transaction.open_table(STATE)?;
            table.insert(STATE_KEY, state.as_slice())?;
            if let Some(note) = self.note.as_ref().filter(|_| self.is_note_new) {
                table.insert(NOTE_KEY, seal_note(note).as_slice())?;
            }
            drop(table);
            transaction.commit()?;
            Ok(usage)
        })?;
        (self.version, self.usage, self.is_note_new) = (version, usage, false);
        Ok(())
    }

    fn sync(&mut self) -> Result<(), KvError> {
        self.call(|| {
            let mut transaction = self.database.begin_write()?;
            transaction.set_quick_repair(true);
            Ok(transaction.commit()?)
        })
    }

    fn keeps(&self) -> Keeps {
        Keeps::Synced
    }
}

fn durability(synced: bool) -> Durability {
    if synced { Durability::Immediate } else { Durability::None }
}

/// A read transaction.
struct RedbView {
    records: ReadOnlyTable<&'static [u8], &'static [u8]>,
    place: String,
    health: Health,
}

impl RedbView {
    fn call<T>(&self, call: impl FnOnce() -> Result<T, StorageError>) -> Result<T, KvError> {
        self.health.contain(|| call().map_err(|error| error_of(&self.place, error)))
    }
}

impl View for RedbView {
    fn get(&self, key: &[u8], found: &mut dyn FnMut(Record<'_>)) -> Result<bool, KvError> {
        let get = || ReadableTable::get(&self.records, key);
        let Some(sealed) = self.call(get)? else { return Ok(false) };
        let bytes = self.call(|| Ok(sealed.value()))?;
        found(unseal(key, bytes)?);
        Ok(true)
    }

    fn scan(
        &self,
        range: Bounds<'_>,
        backwards: bool,
        visit: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<(), KvError> {
        if is_empty(range) {
            return Ok(());
        }
        let mut records = self.call(|| self.records.range_owned::<&[u8]>(range))?;
        let mut next = || {
            let next = if backwards { records.next_back() } else { records.next() };
            next.transpose()
        };
        while let Some((key, sealed)) = self.call(&mut next)? {
            let (key, bytes) = self.call(|| Ok((key.value(), sealed.value())))?;
            if visit(key, unseal(key, bytes)?).is_break() {
                break;
            }
        }
        Ok(())
    }
}
