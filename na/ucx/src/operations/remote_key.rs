//! Remote keys as UCX has them, of peers' memory, and memory here of which peers have keys.

use ucx_sys::{Ucp, ucp_mem_h, ucp_rkey_h};

use crate::wire::Place;
use na_core::Access;

/// The remote key of a peer's memory. Dropped by the holder of the driver, when no transfer uses it
/// and before the worker is destroyed.
pub(crate) struct RemoteKey {
    /// `None`: nothing is to be destroyed.
    pub(crate) ucp: Option<&'static Ucp>,
    pub(crate) access: Access,
    pub(crate) places: Vec<RemotePlace>,
}

/// A piece of that memory.
pub(crate) struct RemotePlace {
    /// The offset at which it begins in the memory.
    pub(crate) at: u64,
    pub(crate) address: u64,
    pub(crate) len: u64,
    pub(crate) rkey: ucp_rkey_h,
}

/// Memory here of which peers have keys.
pub(crate) struct Mapped {
    pub(crate) pieces: Vec<ucp_mem_h>,
    pub(crate) places: Vec<Place>,
    /// How many have one.
    pub(crate) peers: usize,
}

/// Bytes of a peer's memory that lie in one piece.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reach {
    pub(crate) address: u64,
    pub(crate) rkey: ucp_rkey_h,
    /// How many.
    pub(crate) len: u64,
}

impl RemoteKey {
    /// Returns whether the owner lets us read so many bytes there, or write them.
    pub(crate) fn covers(&self, offset: u64, len: u64, write: bool) -> bool {
        let total = self.places.last().map_or(0, |last| last.at + last.len);
        let allowed = if write { self.access.writable() } else { self.access.readable() };
        allowed && offset.checked_add(len).is_some_and(|end| end <= total)
    }

    /// Returns the bytes that lie in one piece from `offset` on, `len` bytes at most. The bytes
    /// must be covered.
    pub(crate) fn reach(&self, offset: u64, len: u64) -> Option<Reach> {
        let next = self.places.partition_point(|place| place.at <= offset);
        let place = self.places.get(next.checked_sub(1)?)?;
        let skip = offset - place.at;
        let len = len.min(place.len.checked_sub(skip)?);
        Some(Reach { address: place.address + skip, rkey: place.rkey, len })
    }
}

impl Drop for RemoteKey {
    fn drop(&mut self) {
        let Some(ucp) = self.ucp else { return };
        for place in &self.places {
            // SAFETY: unpacked by `unpack`, destroyed once; the worker is there, and nothing uses
            // the key any more (see the type).
            unsafe { ucp.ucp_rkey_destroy(place.rkey) };
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test says by panicking what went wrong")]

    use std::ptr;

    use super::*;

    /// A key of pieces of these lengths, of which nothing is UCX's.
    fn key(access: Access, lens: &[u64]) -> RemoteKey {
        let mut at = 0;
        let place = |(index, len): (usize, &u64)| {
            let (begin, address) = (at, 1000 * (index as u64 + 1));
            at += len;
            RemotePlace { at: begin, address, len: *len, rkey: ptr::null_mut() }
        };
        let places = lens.iter().enumerate().map(place).collect();
        RemoteKey { ucp: None, access, places }
    }

    #[test]
    fn a_key_covers_what_was_granted_and_no_byte_more() {
        let reads = key(Access::ReadOnly, &[10, 20]);
        assert!(reads.covers(0, 30, false) && reads.covers(29, 1, false));
        assert!(!reads.covers(0, 31, false) && !reads.covers(30, 1, false));
        assert!(!reads.covers(u64::MAX, 2, false));
        assert!(!reads.covers(0, 1, true));
        let writes = key(Access::WriteOnly, &[10]);
        assert!(writes.covers(0, 10, true) && !writes.covers(0, 10, false));
    }

    #[test]
    fn bytes_are_reached_piece_by_piece() {
        let key = key(Access::ReadWrite, &[10, 20, 5]);
        let reached = |offset, len| {
            let reach = key.reach(offset, len).unwrap();
            (reach.address, reach.len)
        };
        assert_eq!(reached(0, 35), (1000, 10));
        assert_eq!(reached(9, 26), (1009, 1));
        assert_eq!(reached(10, 25), (2000, 20));
        assert_eq!(reached(12, 3), (2002, 3));
        assert_eq!(reached(34, 1), (3004, 1));
    }
}
