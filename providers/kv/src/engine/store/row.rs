//! A record in memory: version, key and value in one piece, which readers keep while they look.

use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

use crate::KvError;
use crate::engine::view::{Bounds, Record, View};

const VERSION_BYTES: usize = 8;
const HEADER_BYTES: usize = VERSION_BYTES + 4;

/// A record with its key. Never changes.
#[derive(Debug, Clone)]
pub(super) struct Row(Arc<[u8]>);

impl Row {
    /// `scratch` is memory to put it together in.
    pub(super) fn new(key: &[u8], record: Record<'_>, scratch: &mut Vec<u8>) -> Self {
        let Record { version, value } = record;
        // Keys are shorter: `MAX_KEY_BYTES`.
        let key_len = u32::try_from(key.len()).unwrap_or(u32::MAX);
        scratch.clear();
        for part in [&version.to_le_bytes()[..], &key_len.to_le_bytes(), key, value] {
            scratch.extend_from_slice(part);
        }
        let row = Self(scratch.as_slice().into());
        // One long value does not stay twice.
        scratch.clear();
        scratch.shrink_to(64 << 10);
        row
    }

    pub(super) fn key(&self) -> &[u8] {
        self.parts().1
    }

    pub(super) fn record(&self) -> Record<'_> {
        let (version, _, value) = self.parts();
        Record { version, value }
    }

    /// Bytes of key and value.
    pub(super) fn bytes(&self) -> u64 {
        (self.0.len() - HEADER_BYTES) as u64
    }

    fn parts(&self) -> (u64, &[u8], &[u8]) {
        let (header, rest) = self.0.split_at(HEADER_BYTES);
        let (version, key_len) = header.split_at(VERSION_BYTES);
        let number =
            |bytes: &[u8]| bytes.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        let (key, value) = rest.split_at(number(key_len) as usize);
        (number(version), key, value)
    }
}

/// Records in their order, as they were at one moment.
#[derive(Debug)]
pub(super) struct Rows(Vec<Row>);

impl Rows {
    /// Puts rows in order.
    pub(super) fn sorted(mut rows: Vec<Row>) -> Self {
        rows.sort_unstable_by(|one, other| one.key().cmp(other.key()));
        Self(rows)
    }
}

impl View for Rows {
    fn get(&self, key: &[u8], found: &mut dyn FnMut(Record<'_>)) -> Result<bool, KvError> {
        let at = self.0.binary_search_by(|row| row.key().cmp(key));
        Ok(at.inspect(|at| found(self.0[*at].record())).is_ok())
    }

    fn scan(
        &self,
        (from, to): Bounds<'_>,
        backwards: bool,
        visit: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<(), KvError> {
        let first = self.0.partition_point(|row| match from {
            Bound::Included(from) => row.key() < from,
            Bound::Excluded(from) => row.key() <= from,
            Bound::Unbounded => false,
        });
        let end = self.0.partition_point(|row| match to {
            Bound::Included(to) => row.key() <= to,
            Bound::Excluded(to) => row.key() < to,
            Bound::Unbounded => true,
        });
        let mut rows = self.0.get(first..end).unwrap_or_default().iter();
        let mut show = |row: &Row| visit(row.key(), row.record());
        let _ =
            if backwards { rows.rev().try_for_each(show) } else { rows.try_for_each(&mut show) };
        Ok(())
    }
}
