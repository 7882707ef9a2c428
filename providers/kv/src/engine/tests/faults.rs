//! Disks that fail, lose what was not synced, or are damaged.

use std::collections::BTreeMap;
use std::io::{Error, ErrorKind};
use std::sync::{Arc, Mutex, MutexGuard};

use redb::StorageBackend;

use super::*;
use crate::engine::Open;
use crate::engine::store::redb::RedbStore;
use crate::{Integrity, SyncPolicy};

const PAGE: usize = 512;

/// A disk in memory: what is synced, and what a crash may lose of the rest, page by page.
#[derive(Debug)]
struct Disk {
    synced: Vec<u8>,
    now: Vec<u8>,
    /// Pages that were written since the last sync.
    dirty: BTreeMap<usize, ()>,
    random: fastrand::Rng,
    /// Calls until one fails, and how.
    fails: Option<(u32, Fails)>,
    /// How many bytes it has room for.
    room: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fails {
    /// An error, and errors from then on.
    Broken,
    /// As if the process had ended in the middle of the call: half of a write is made.
    Crash,
}

impl Disk {
    fn new(seed: u64) -> Self {
        let (synced, now, dirty) = Default::default();
        let random = fastrand::Rng::with_seed(seed);
        Self { synced, now, dirty, random, fails: None, room: usize::MAX }
    }

    /// Counts a call. An error, once it is time.
    fn call(&mut self) -> Result<(), Error> {
        match &mut self.fails {
            Some((0, _)) => Err(Error::other("the disk is broken")),
            Some((calls, _)) => {
                *calls -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) {
        self.now[offset..offset + bytes.len()].copy_from_slice(bytes);
        let pages = offset / PAGE..=(offset + bytes.len().max(1) - 1) / PAGE;
        self.dirty.extend(pages.map(|page| (page, ())));
    }

    /// After a power cut: of the pages that were not synced some are there, some are not.
    fn lose_power(&mut self) {
        let dirty = std::mem::take(&mut self.dirty);
        let mut left = std::mem::take(&mut self.synced);
        left.resize(self.now.len(), 0);
        for (page, ()) in dirty {
            let bytes = page * PAGE..((page + 1) * PAGE).min(self.now.len());
            if self.random.bool() && bytes.start < bytes.end {
                left[bytes.clone()].copy_from_slice(&self.now[bytes]);
            }
        }
        (self.now, self.synced) = (left.clone(), left);
        self.fails = None;
    }
}

/// A file on such a disk.
#[derive(Debug, Clone)]
struct File(Arc<Mutex<Disk>>);

impl File {
    fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(Disk::new(seed))))
    }

    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.0.lock().unwrap()
    }

    fn opening(&self) -> Open {
        let file = self.clone();
        Box::new(move |health| {
            let open = |builder: &mut redb::Builder| {
                builder.set_cache_size(1 << 20).create_with_backend(file.clone())
            };
            Ok(Box::new(RedbStore::open_as("disk".into(), health, open)?))
        })
    }

    fn open(&self, sync: SyncPolicy) -> Result<Database, KvError> {
        let mut config = StoreConfig::new(StoreKind::Redb, "unused");
        config.sync = sync;
        Database::open_with(self.opening(), &config)
    }
}

impl StorageBackend for File {
    fn len(&self) -> Result<u64, Error> {
        Ok(self.disk().now.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        let mut disk = self.disk();
        if disk.fails.is_some_and(|(calls, _)| calls == 0) {
            disk.call()?;
        }
        let bytes = disk.now.get(offset as usize..offset as usize + out.len());
        out.copy_from_slice(bytes.ok_or(ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> Result<(), Error> {
        let mut disk = self.disk();
        disk.call()?;
        if len as usize > disk.room {
            return Err(ErrorKind::StorageFull.into());
        }
        disk.now.resize(len as usize, 0);
        Ok(())
    }

    fn sync_data(&self) -> Result<(), Error> {
        let mut disk = self.disk();
        disk.call()?;
        disk.synced = disk.now.clone();
        disk.dirty.clear();
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let mut disk = self.disk();
        let called = disk.call();
        match (&called, disk.fails) {
            (Err(_), Some((_, Fails::Broken))) => {}
            (Err(_), _) => {
                let half = disk.random.usize(0..=bytes.len());
                disk.write(offset as usize, &bytes[..half]);
            }
            (Ok(()), _) => disk.write(offset as usize, bytes),
        }
        called
    }
}

/// Runs rounds until the disk fails, cuts the power, and looks what is left; three times.
fn crash(seed: u64, sync: SyncPolicy) {
    let file = File::new(seed);
    let mut random = fastrand::Rng::with_seed(!seed);
    let mut least = 0;
    for _ in 0..3 {
        let database = file.open(sync).unwrap();
        let mut made = rounds(&database, 0);
        assert!(made >= least, "seed {seed}: of {least} rounds {made} are left");
        let fails = if random.bool() { Fails::Broken } else { Fails::Crash };
        file.disk().fails = Some((random.u32(0..150), fails));
        for number in made + 1.. {
            let synced = random.u8(0..8) == 0;
            let durability = synced.then_some(Durability::Synced);
            if database.apply(round(0, number), 0, durability, None).is_err() {
                break;
            }
            made = number;
            if synced || sync == SyncPolicy::Always {
                least = made;
            }
        }
        // After an error it is closed, and says so.
        assert!(matches!(database.now(round(0, 0)), Err(KvError::Failed(_))));
        assert!(matches!(database.view().map(drop), Err(KvError::Failed(_))));
        drop(database);
        file.disk().lose_power();
    }
}

#[test]
fn nothing_acknowledged_is_lost_and_no_batch_is_half() {
    for seed in 0..times(60) {
        crash(seed, SyncPolicy::Always);
    }
}

#[test]
fn without_syncs_what_was_synced_is_there_and_no_batch_is_half() {
    for seed in 0..times(20) {
        crash(seed, SyncPolicy::Never);
    }
}

#[test]
fn a_full_disk_is_read_and_written_again_when_there_is_room() {
    let file = File::new(1);
    let database = file.open(SyncPolicy::Always).unwrap();
    database.now(round(0, 1)).unwrap();
    let full = file.disk().now.len();
    file.disk().room = full;
    let large = |number: u32| all(vec![put(format!("{number}"), vec![1; 10_000]), put("x", "")]);
    let mut number = 0;
    let error = loop {
        match database.now(large(number)) {
            Ok(_) => number += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, KvError::Full(_)), "{error}");
    // All that was acknowledged can be read, and nothing else.
    assert_eq!(
        database.all_records().unwrap().len(),
        2 + number as usize + usize::from(number > 0)
    );
    assert!(matches!(database.now(large(number)), Err(KvError::Full(_))));
    file.disk().room = usize::MAX;
    // It is tried again once in a second.
    let until = std::time::Instant::now() + std::time::Duration::from_secs(300);
    while let Err(error) = database.now(large(number)) {
        assert!(matches!(error, KvError::Full(_)), "{error}");
        assert!(std::time::Instant::now() < until);
        std::thread::yield_now();
    }
    drop(database);
    let database = file.open(SyncPolicy::Always).unwrap();
    assert_eq!(database.all_records().unwrap().len(), 4 + number as usize);
}

/// The files below a directory.
fn files(dir: &Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// How reads end after a flipped bit: right values, missing ones, errors, stores that do not open.
#[derive(Debug, Default)]
struct Ends {
    right: usize,
    missing: usize,
    failed: usize,
    refused: usize,
}

/// Flips a bit of a file and reads everything, many times.
fn damage(kind: StoreKind, integrity: Integrity) -> Ends {
    let dir = tempfile::tempdir().unwrap();
    let mut config = StoreConfig::new(kind, dir.path().join("whole"));
    config.integrity = integrity;
    config.cache_bytes = 1 << 20;
    let value = |number: usize| format!("{number:03}").repeat(30).into_bytes();
    let key = |number: usize| format!("key {number:03}");
    {
        let database = Database::open(&config).unwrap();
        for first in (0..200).step_by(20) {
            let changes = (first..first + 20).map(|number| put(key(number), value(number)));
            database.now(each(changes.collect())).unwrap();
        }
    }
    // Other files of fjall, when they are damaged, make its destructor panic while it panics.
    let is_data = |path: &std::path::PathBuf| kind == StoreKind::Redb || path.ends_with("0.jnl");
    let whole: Vec<_> = files(dir.path()).into_iter().filter(is_data).collect();
    let read = |path| {
        let mut bytes = std::fs::read(path).unwrap();
        if kind == StoreKind::Fjall {
            // A log is longer than what was written to it.
            bytes.truncate(bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1));
        }
        bytes
    };
    let whole: Vec<_> = whole.iter().map(|path| (path, read(path))).collect();
    let mut random = fastrand::Rng::with_seed(7);
    let mut ends = Ends::default();
    let rounds = if kind == StoreKind::Redb { 150 } else { 30 };
    for _ in 0..rounds {
        for (path, bytes) in &whole {
            std::fs::write(path, bytes).unwrap();
        }
        let (path, bytes) = &whole[random.usize(0..whole.len())];
        let mut bytes = bytes.clone();
        let at = random.usize(0..bytes.len());
        bytes[at] ^= 1 << random.u8(0..8);
        std::fs::write(path, &bytes).unwrap();
        let Ok(database) = Database::open(&config) else {
            ends.refused += 1;
            continue;
        };
        for number in 0..200 {
            match database.get(key(number)) {
                Ok(Some((_, found))) if found == value(number) => ends.right += 1,
                Ok(None) => ends.missing += 1,
                Ok(found) => panic!("a wrong value: {found:?}"),
                Err(_) => ends.failed += 1,
            }
        }
        for (key, _, value) in database.all_records().unwrap_or_default() {
            let number = String::from_utf8(key[4..].to_vec()).unwrap();
            assert_eq!(value, number.repeat(30).into_bytes());
        }
    }
    ends
}

#[test]
fn a_flipped_bit_never_comes_to_a_wrong_value() {
    let ends = damage(StoreKind::Redb, Integrity::Get);
    assert!(ends.right > 0 && ends.failed > 0, "{ends:?}");
}

#[test]
fn a_whole_check_finds_every_flipped_bit_that_matters() {
    let ends = damage(StoreKind::Redb, Integrity::Open);
    assert!(ends.right > 0 && ends.refused > 0, "{ends:?}");
    assert_eq!((ends.missing, ends.failed), (0, 0), "{ends:?}");
}

#[test]
fn a_flipped_bit_in_a_tree_of_logs_never_comes_to_a_wrong_value() {
    let ends = damage(StoreKind::Fjall, Integrity::Open);
    assert!(ends.right > 0, "{ends:?}");
}

fn refusal(config: &StoreConfig) -> String {
    let error = Database::open(config).map(drop).unwrap_err().to_string();
    let path = config.path.as_ref().unwrap().to_str().unwrap();
    assert!(error.contains(path), "{error}");
    error
}

#[test]
fn files_of_others_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name);
    let redb = |name: &str| StoreConfig::new(StoreKind::Redb, place(name));
    let fjall = |name: &str| StoreConfig::new(StoreKind::Fjall, place(name));

    std::fs::write(place("text"), "This is a text of another program, and long enough.").unwrap();
    assert!(refusal(&redb("text")).contains("is no database of redb"));
    assert!(refusal(&fjall("text")).contains("is a file"));
    std::fs::create_dir(place("folder")).unwrap();
    std::fs::write(place("folder/file"), "").unwrap();
    assert!(refusal(&fjall("folder")).contains("with other files than fjall's"));
    refusal(&redb("folder"));
    refusal(&redb("missing/file"));

    let table = redb::TableDefinition::<u64, u64>::new("other");
    let other = redb::Database::create(place("other")).unwrap();
    let change = other.begin_write().unwrap();
    change.open_table(table).unwrap();
    change.commit().unwrap();
    drop(other);
    assert!(refusal(&redb("other")).contains("of another program"));

    let newer = redb::Database::create(place("newer")).unwrap();
    let change = newer.begin_write().unwrap();
    let state = redb::TableDefinition::<&str, &[u8]>::new("margo_kv");
    change.open_table(state).unwrap().insert("state", &[3, 0, 0, 0, 0, 0, 0, 0][..]).unwrap();
    change.open_table(redb::TableDefinition::<&[u8], &[u8]>::new("records")).unwrap();
    change.commit().unwrap();
    drop(newer);
    assert!(refusal(&redb("newer")).contains("its format is 3, this one reads 2"));

    drop(Database::open(&redb("cut")).unwrap());
    let file = std::fs::File::options().write(true).open(place("cut")).unwrap();
    for len in [30_000, 4096, 100, 10] {
        file.set_len(len).unwrap();
        refusal(&redb("cut"));
    }

    drop(Database::open(&fjall("old")).unwrap());
    std::fs::write(place("old/version"), b"FJL\x02").unwrap();
    assert!(refusal(&fjall("old")).contains("another version of fjall"));
}

#[test]
fn one_at_a_time_has_it_open() {
    let dir = tempfile::tempdir().unwrap();
    for config in &every_store(dir.path())[2..] {
        let database = Database::open(config).unwrap();
        assert!(refusal(config).contains("is open already"), "{}", refusal(config));
        // A view keeps nobody out once the database is closed.
        let view = database.view().unwrap();
        drop(database);
        Database::open(config).unwrap();
        drop(view);
    }
}
