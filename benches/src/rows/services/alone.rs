//! Stores by themselves, without margo: what rows `services.kv.*` could do at best.

use std::collections::{BTreeMap, HashMap};
use std::hint::black_box;
use std::time::{Duration, Instant};

use margo_provider_kv::{MemoryOrder, StoreKind};
use redb::{Database, ReadableDatabase, TableDefinition};

use super::subject::{Picks, Spec, Store, VALUE, Work, key};
use crate::base::{Doing, Effort, Failure, Result};

const TABLE: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("values");

/// Calls of one sample.
const PER: u32 = 1_024;

/// Calls per second of one thread on the store that `spec` is about, filled with `keys` keys: a map
/// of the standard library, or a database of redb, which is read in one transaction. `None`: there
/// is nothing simple that does the same.
///
/// # Errors
///
/// When the file cannot be written or read.
pub(crate) fn rate(spec: Spec, keys: u64, effort: Effort) -> Result<Option<f64>> {
    let picks = Picks::new(keys);
    let all = (0..keys).map(|number| (key(number).to_vec(), VALUE.to_vec()));
    match (spec.store, spec.work) {
        (Store::Memory(order), Work::Get) => {
            let found = |value: Option<&Vec<u8>>| {
                black_box(value.cloned()).map(drop).ok_or_else(|| Failure::new("a key is missing"))
            };
            if order == MemoryOrder::Ordered {
                let map: BTreeMap<_, _> = all.collect();
                timed(effort, || found(map.get(&picks.key()[..])))
            } else {
                let map: HashMap<_, _, foldhash::fast::RandomState> = all.collect();
                timed(effort, || found(map.get(&picks.key()[..])))
            }
        }
        (Store::Memory(order), Work::Put) => {
            let value = || black_box(VALUE.to_vec());
            if order == MemoryOrder::Ordered {
                let mut map: BTreeMap<_, _> = all.collect();
                timed(effort, || {
                    map.insert(picks.key().to_vec(), value());
                    Ok(())
                })
            } else {
                let mut map: HashMap<_, _, foldhash::fast::RandomState> = all.collect();
                timed(effort, || {
                    map.insert(picks.key().to_vec(), value());
                    Ok(())
                })
            }
        }
        (Store::Disk(StoreKind::Redb), Work::Get) => redb_gets(all, &picks, effort),
        _ => Ok(None),
    }
}

fn redb_gets(
    all: impl Iterator<Item = (Vec<u8>, Vec<u8>)>,
    picks: &Picks,
    effort: Effort,
) -> Result<Option<f64>> {
    let folder = tempfile::tempdir().doing("making a folder for the store")?;
    let database = Database::create(folder.path().join("alone")).doing("making a database")?;
    let filling = database.begin_write().doing("writing to the database")?;
    {
        let mut table = filling.open_table(TABLE).doing("opening a table")?;
        for (key, value) in all {
            table.insert(&key[..], &value[..]).doing("writing to the database")?;
        }
    }
    filling.commit().doing("writing to the database")?;
    let reading = database.begin_read().doing("reading the database")?;
    let table = reading.open_table(TABLE).doing("opening a table")?;
    timed(effort, || {
        let found = table.get(&picks.key()[..]).doing("reading the database")?;
        let found = found.ok_or_else(|| Failure::new("a key is missing"))?;
        black_box(found.value().to_vec());
        Ok(())
    })
}

fn timed(effort: Effort, mut call: impl FnMut() -> Result<()>) -> Result<Option<f64>> {
    let mut some = || -> Result<Duration> {
        let begin = Instant::now();
        (0..PER).try_for_each(|_| call())?;
        Ok(begin.elapsed())
    };
    let mut samples = effort.alone(PER, |all| all.told(&mut some))?;
    Ok(samples.rate().p50)
}
