//! The keys of stores that keep all in one tree, so that each of their commits is whole.
//!
//! | key | value |
//! |---|---|
//! | `r` and the key | the record, sealed |
//! | `m` | the numbers of the store, sealed |
//! | `n` | bytes of its owner, sealed, if there are any |

use std::ops::Bound;

use crate::engine::view::Bounds;

const RECORD: u8 = b'r';
pub(super) const STATE_KEY: &[u8] = b"m";
pub(super) const NOTE_KEY: &[u8] = b"n";

/// The key under which the record of `key` is kept.
pub(super) fn stored_key(key: &[u8]) -> Vec<u8> {
    let mut stored = Vec::with_capacity(1 + key.len());
    stored.push(RECORD);
    stored.extend_from_slice(key);
    stored
}

/// The key of the record that is kept under `stored`.
pub(super) fn key_of(stored: &[u8]) -> &[u8] {
    stored.get(1..).unwrap_or_default()
}

/// The first and the last key under which the records of a range are kept.
pub(super) fn stored_range(range: Bounds<'_>) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
    let (from, to) = (range.0.map(stored_key), range.1.map(stored_key));
    let from = if from == Bound::Unbounded { Bound::Included(vec![RECORD]) } else { from };
    let to = if to == Bound::Unbounded { Bound::Excluded(vec![RECORD + 1]) } else { to };
    (from, to)
}
