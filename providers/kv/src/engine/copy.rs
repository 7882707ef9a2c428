//! Snapshots: a database of redb, in a file of its own, whatever the store was.

use std::fs::File;
use std::ops::{Bound, ControlFlow};
use std::path::{Path, PathBuf};

use super::contain::{Health, io_error};
use super::store::interface::{Store, Writes, Written};
use super::store::redb::RedbStore;
use super::view::View;
use crate::{Integrity, KvError};

/// Bytes of keys and values that are committed at a time.
const BYTES_AT_ONCE: usize = 1 << 20;

/// Memory for what was read and will be written.
const CACHE_BYTES: usize = 16 << 20;

/// Writes all that a view shows to a new file, with the id of the database and its note.
pub(super) fn snapshot_to(
    view: &dyn View,
    (id, note): (u64, Option<&[u8]>),
    path: &Path,
) -> Result<u64, KvError> {
    let place = path.display().to_string();
    if path.exists() {
        return Err(KvError::Failed(format!("{place}: is there already")));
    }
    let part = PathBuf::from(format!("{place}.part"));
    // One that was not finished.
    let _ = std::fs::remove_file(&part);
    let copied = RedbStore::open(&part, CACHE_BYTES, Integrity::Get, &Health::default())
        .and_then(|mut store| copy(view, (id, note), &mut store))
        .and_then(|records| {
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            let renamed = std::fs::rename(&part, path)
                .and_then(|()| File::open(parent.unwrap_or(Path::new(".")))?.sync_all());
            renamed.map(|()| records).map_err(|error| io_error(&place, &error))
        });
    if copied.is_err() {
        let _ = std::fs::remove_file(&part);
    }
    copied
}

/// Opens what [`snapshot_to`] has written, and checks all of it.
pub(super) fn open(snapshot: &Path) -> Result<RedbStore, KvError> {
    let place = snapshot.display();
    // It would be made.
    if !snapshot.is_file() {
        return Err(KvError::Failed(format!("{place}: there is no such file")));
    }
    RedbStore::open(snapshot, CACHE_BYTES, Integrity::Open, &Health::default())
}

/// Copies all records, with their versions, and takes the id and the note over.
pub(super) fn copy(
    from: &dyn View,
    (id, note): (u64, Option<&[u8]>),
    to: &mut dyn Store,
) -> Result<u64, KvError> {
    to.set_id(id);
    if let Some(note) = note {
        to.set_note(note.to_vec());
    }
    let (mut writes, mut bytes, mut records, mut version) = (Writes::new(), 0, 0, to.version());
    let mut end = Ok(());
    from.scan((Bound::Unbounded, Bound::Unbounded), false, &mut |key, record| {
        version = version.max(record.version);
        records += 1;
        bytes += key.len() + record.value.len();
        let written = Written { version: record.version, value: record.value.to_vec() };
        writes.insert(key.to_vec(), Some(written));
        if bytes >= BYTES_AT_ONCE {
            bytes = 0;
            end = to.commit(std::mem::take(&mut writes), version, true);
        }
        if end.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    end?;
    to.commit(writes, version, true)?;
    Ok(records)
}
