//! Descriptions of memory that serve both endpoints.
//!
//! Over our own transports and UCX a description is the key, and both endpoints share one table of
//! keys. libfabric has a description of its own: one handle for each segment, with a key of that
//! segment. Peers that know no shared memory, those in C too, must be able to read it alone. So the
//! part that the near endpoint needs follows it, in the form of two such handles of no bytes, which
//! mean nothing to readers of libfabric's. The first has the region's key; the second has, in place
//! of a key, the first byte that the description names in the region.

use crate::{Access, Endpoint, Error, LocalMem, MemPart, RemoteMem, Transfer};

/// Bytes of a handle of no bytes: u64 key, u64 length, u64 number of pieces, u8 access, 7 zero
/// bytes.
const HANDLE_BYTES: usize = 32;

/// Returns the two handles that the near endpoint needs.
fn tail(key: u64, start: u64, access: Access) -> impl Iterator<Item = u8> {
    let words = [[key, 0, 0, u64::from(access.bits())], [start, 0, 0, u64::from(access.bits())]];
    words.into_iter().flatten().flat_map(u64::to_le_bytes)
}

/// Key and first byte, as [`tail`] wrote them last; `None`: it is not there.
fn read_tail(native: &[u8], access: Access) -> Option<(u64, u64)> {
    let at = native.len().checked_sub(2 * HANDLE_BYTES)?;
    let word = |from: usize| native.get(from..from + 8)?.try_into().ok().map(u64::from_le_bytes);
    let (key, start) = (word(at)?, word(at + HANDLE_BYTES)?);
    tail(key, start, access).eq(native[at..].iter().copied()).then_some((key, start))
}

/// All of `memory`, for the peers of both.
pub(super) fn whole(far: &dyn Endpoint, memory: &LocalMem) -> Vec<u8> {
    let mut bytes = far.mem_to_bytes(memory);
    if bytes != memory.region().describe().to_bytes() {
        bytes.extend(tail(memory.key(), 0, memory.access()));
    }
    bytes
}

/// The parts, for the peers of both.
pub(super) fn parts(far: &dyn Endpoint, memory: &LocalMem) -> Option<Vec<MemPart>> {
    let mut parts = far.mem_parts(memory)?;
    let mut start = 0;
    for part in &mut parts {
        part.handle.extend(tail(memory.key(), start, memory.access()));
        start += part.len;
    }
    Some(parts)
}

/// Reads what a peer of either endpoint wrote.
pub(super) fn read(far: &dyn Endpoint, bytes: &[u8]) -> Result<RemoteMem, Error> {
    match RemoteMem::from_bytes(bytes) {
        // Also of a peer that knows shared memory only.
        Some(plain) => Ok(plain),
        None => far.mem_from_bytes(bytes),
    }
}

/// Returns the transfer as the near endpoint needs it.
///
/// # Errors
///
/// [`Error::InvalidArgument`] if the peer's memory is described for the network only.
pub(super) fn for_near(mut transfer: Transfer) -> Result<Transfer, Error> {
    let remote = &mut transfer.remote;
    let Some(native) = remote.native.take() else { return Ok(transfer) };
    let tail = read_tail(&native, remote.access).and_then(|(key, start)| {
        let end = start.checked_add(remote.len)?;
        Some((key, end, start.checked_add(transfer.remote_offset)?))
    });
    // Whether it stays within the part is checked as ever, against `end`.
    let Some((key, end, offset)) = tail else {
        return Err(Error::InvalidArgument(
            "the remote memory is not described for shared memory, through which its owner is \
             reached"
                .into(),
        ));
    };
    (remote.key, remote.len) = (key, end);
    transfer.remote_offset = offset;
    Ok(transfer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Memory, RegionTable};

    fn near(len: u64, offset: u64, native: Option<Vec<u8>>) -> Result<Transfer, Error> {
        let regions = RegionTable::new();
        let local = regions.register(Memory::from_vec(vec![0; 8]), Access::ReadWrite).unwrap();
        let access = Access::ReadOnly;
        let remote = RemoteMem { key: 1, len, access, native: native.map(Into::into) };
        for_near(Transfer { local, local_offset: 0, remote, remote_offset: offset, len: 8 })
    }

    #[test]
    fn the_near_endpoint_is_told_the_region_and_where_in_it() {
        let native = |start| {
            let network = [7; 48].into_iter();
            Some(network.chain(tail(9, start, Access::ReadOnly)).collect())
        };
        let read = near(100, 5, native(1000)).unwrap();
        let RemoteMem { key, len, access, native: left } = read.remote;
        assert_eq!((key, len, access, left), (9, 1100, Access::ReadOnly, None));
        assert_eq!(read.remote_offset, 1005);
        // Offsets that no memory has.
        assert!(near(100, 5, native(u64::MAX - 99)).is_err());
        assert!(near(1, u64::MAX, native(1)).is_err());
    }

    #[test]
    fn what_was_written_for_one_endpoint_is_told_apart() {
        let plain = near(100, 5, None).unwrap();
        assert_eq!((plain.remote.key, plain.remote_offset), (1, 5));
        let whole: Vec<u8> = tail(9, 0, Access::ReadOnly).collect();
        for native in [vec![], vec![7; 48], vec![0; 63], whole[..63].to_vec()] {
            let error = near(100, 5, Some(native)).unwrap_err();
            assert!(error.to_string().contains("shared memory"), "{error}");
        }
        let other: Vec<u8> = tail(9, 0, Access::WriteOnly).collect();
        assert!(near(100, 5, Some(other)).is_err(), "of another access");
    }
}
