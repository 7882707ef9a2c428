//! Reads of a database.

use std::ops::{Bound, ControlFlow};

use crate::KvError;

/// A value and its version.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Record<'a> {
    pub(crate) version: u64,
    pub(crate) value: &'a [u8],
}

/// The first and the last key of a range.
pub(crate) type Bounds<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>);

/// A database at one moment. Of a store in memory, which keeps no old versions, it is the database
/// as it is: each `get` shows the record of its own moment.
pub(crate) trait View: Send + Sync {
    /// Shows the record of `key`, if it is there. Returns whether it is.
    fn get(&self, key: &[u8], found: &mut dyn FnMut(Record<'_>)) -> Result<bool, KvError>;

    /// Shows the records of keys that are there, each with the number that stands before its key,
    /// or an error in its place. A lock may be held meanwhile, so `found` is to be quick.
    fn get_each(
        &self,
        keys: &[(usize, &[u8])],
        found: &mut dyn FnMut(usize, Result<Record<'_>, KvError>),
    ) {
        get_one_by_one(self, keys, found);
    }

    /// Shows the records of a range in their order, or backwards, until `visit` breaks. No lock is
    /// held meanwhile, so it may take its time.
    fn scan(
        &self,
        range: Bounds<'_>,
        backwards: bool,
        visit: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<(), KvError>;
}

/// Returns whether no key can be in a range: it ends before it begins. Maps of others panic then.
pub(super) fn is_empty(range: Bounds<'_>) -> bool {
    match range {
        (Bound::Included(from), Bound::Included(to)) => from > to,
        (Bound::Included(from) | Bound::Excluded(from), Bound::Excluded(to))
        | (Bound::Excluded(from), Bound::Included(to)) => from >= to,
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
    }
}

/// As [`View::get_each`], with a lookup of its own for each key.
pub(crate) fn get_one_by_one(
    view: &(impl View + ?Sized),
    keys: &[(usize, &[u8])],
    found: &mut dyn FnMut(usize, Result<Record<'_>, KvError>),
) {
    for (number, key) in keys {
        if let Err(error) = view.get(key, &mut |record| found(*number, Ok(record))) {
            found(*number, Err(error));
        }
    }
}
