//! Registered memory, its description for peers, and theirs for us.
//!
//! A description is C Mercury's (`na_ofi_mem_handle_serialize`), one for each segment, one after
//! the other: u64 key, u64 length, u64 number of pieces (ours: 1), u8 access, 7 zero bytes; for
//! each piece u64 address, u64 length. All little endian. Peers count from the address of the first
//! piece, or name addresses, as the provider wants it (`FI_MR_VIRT_ADDR`, the same on both sides).
//!
//! Keys are random where the provider leaves the choice to us.

use std::collections::{HashMap, HashSet};
use std::ffi::{c_int, c_void};

use ofi_sys::raw;

use super::fabric::{Domain, Ep, Mr, MrRequest, failed};
use crate::keys::Keys;
use crate::region::EndRegistration;
use crate::sync::{Arc, Mutex, lock};
use crate::{Access, Error, LocalMem, RemoteMem};

/// Bytes of a description before its pieces, and of each piece.
const HANDLE_BYTES: usize = 32;
const PIECE_BYTES: usize = 16;

/// How often another key is tried when one is taken.
const KEY_TRIES: usize = 64;

/// A registered segment.
struct Segment {
    mr: Mr,
    base: u64,
    len: u64,
}

/// A region as libfabric knows it.
pub(super) struct Registered {
    segments: Vec<Segment>,
    access: Access,
    len: u64,
    /// For a region without bytes, which libfabric does not know.
    key: u64,
}

impl Registered {
    /// The description of each segment, with its address and length.
    pub(super) fn handles(&self) -> impl Iterator<Item = (u64, u64, Vec<u8>)> + '_ {
        self.segments.iter().map(|segment| {
            let mut bytes = Vec::with_capacity(HANDLE_BYTES + PIECE_BYTES);
            for word in [segment.mr.key(), segment.len, 1, u64::from(self.access.bits())] {
                bytes.extend_from_slice(&word.to_le_bytes());
            }
            bytes.extend_from_slice(&segment.base.to_le_bytes());
            bytes.extend_from_slice(&segment.len.to_le_bytes());
            (segment.base, segment.len, bytes)
        })
    }

    /// The description of all segments.
    pub(super) fn describe(&self) -> Vec<u8> {
        if !self.segments.is_empty() {
            return self.handles().flat_map(|(.., bytes)| bytes).collect();
        }
        let words = [self.key, self.len, 0, u64::from(self.access.bits())];
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }
}

impl EndRegistration for Registered {
    fn end(self: Box<Self>) -> bool {
        // All of them, whatever the others say.
        let ended = self.segments.into_iter().map(|segment| segment.mr.end());
        ended.fold(true, |all, ended| all & ended)
    }
}

#[derive(Default)]
struct Table {
    by_region: HashMap<u64, Registered>,
    /// Regions whose registration did not end when the endpoint was closed.
    stuck: HashSet<u64>,
    /// The region that libfabric's key is of, and where in it the segment begins.
    regions: HashMap<u64, (u64, u64)>,
    keys: Keys,
    closed: bool,
}

/// What is registered with libfabric, by the keys of the regions.
#[derive(Clone, Default)]
pub(super) struct Registry(Arc<Mutex<Table>>);

/// Ends a registration.
struct Guard {
    registry: Registry,
    region: u64,
}

impl EndRegistration for Guard {
    fn end(self: Box<Self>) -> bool {
        let mut table = lock(&self.registry.0);
        let registered = table.by_region.remove(&self.region);
        for segment in registered.iter().flat_map(|registered| &registered.segments) {
            table.regions.remove(&segment.mr.key());
        }
        let is_stuck = table.stuck.remove(&self.region);
        drop(table);
        // A call into libfabric, which needs no lock of ours.
        !is_stuck && registered.is_none_or(|registered| Box::new(registered).end())
    }
}

/// libfabric's bits for what peers may do; with them goes what operations of ours need, as in C.
fn access_bits(access: Access) -> u64 {
    match access {
        Access::ReadOnly => raw::FI_REMOTE_READ | raw::FI_WRITE,
        Access::WriteOnly => raw::FI_REMOTE_WRITE | raw::FI_READ,
        Access::ReadWrite => {
            raw::FI_REMOTE_READ | raw::FI_REMOTE_WRITE | raw::FI_READ | raw::FI_WRITE
        }
    }
}

impl Registry {
    /// Registers a region's memory, until the region's key is taken back.
    pub(super) fn register(
        &self,
        domain: &Arc<Domain>,
        ep: Option<&Ep>,
        memory: &LocalMem,
    ) -> Result<(), Error> {
        let mut segments = Vec::with_capacity(memory.segments().len());
        let mut result = Ok(());
        for piece in memory.segments().iter().filter(|piece| piece.len > 0) {
            let access = access_bits(memory.access());
            // SAFETY: the region keeps its memory valid for the access it was registered with until
            // the guard, which holds the result, has ended it, or for good.
            match unsafe { self.new_mr(domain, ep, (piece.ptr, piece.len), access) } {
                Ok(mr) => {
                    let (base, len) = (piece.ptr.addr() as u64, piece.len as u64);
                    segments.push(Segment { mr, base, len });
                }
                Err(errno) => {
                    let what = format!("cannot register {} bytes of memory", piece.len);
                    result = Err(failed(domain.lib, what, errno));
                    break;
                }
            }
        }
        let (access, len, region) = (memory.access(), memory.len(), memory.key());
        let registered = Registered { segments, access, len, key: region };
        let mut table = lock(&self.0);
        if table.closed {
            result = Err(Error::Closed);
        }
        if result.is_err() {
            drop(table);
            memory.region().hold_registration(Box::new(registered));
            return result;
        }
        let mut start = 0;
        for segment in &registered.segments {
            table.regions.insert(segment.mr.key(), (region, start));
            start += segment.len;
        }
        table.by_region.insert(region, registered);
        drop(table);
        let guard = Guard { registry: self.clone(), region };
        memory.region().hold_registration(Box::new(guard));
        Ok(())
    }

    /// Registers a piece of memory with libfabric, under a key that nobody else has. `ep` is needed
    /// where registrations are bound to the endpoint. The number of libfabric's error on failure.
    ///
    /// # Safety
    ///
    /// As for [`Mr::register`].
    pub(super) unsafe fn new_mr(
        &self,
        domain: &Arc<Domain>,
        ep: Option<&Ep>,
        (ptr, len): (*mut u8, usize),
        access: u64,
    ) -> Result<Mr, c_int> {
        let ep = ep.filter(|_| domain.has_mr_mode(raw::FI_MR_ENDPOINT));
        let mut request = MrRequest { ptr, len, access, key: 0 };
        let mut tries = 0;
        loop {
            if !domain.has_mr_mode(raw::FI_MR_PROV_KEY) {
                request.key = self.new_key(domain).map_err(|_no_random_bytes| libc::EIO)?;
            }
            // SAFETY: the caller's.
            match unsafe { Mr::register(domain, ep, &request) } {
                Ok(mr) => return Ok(mr),
                // Another one has it, or nobody can.
                Err(errno)
                    if [raw::FI_ENOKEY, raw::FI_EKEYREJECTED].contains(&(errno as u32))
                        && tries < KEY_TRIES
                        && !domain.has_mr_mode(raw::FI_MR_PROV_KEY) =>
                {
                    tries += 1;
                }
                Err(errno) => return Err(errno),
            }
        }
    }

    /// What libfabric wants with an operation on memory of that region at that address; `None` if
    /// it is not registered here.
    pub(super) fn desc(&self, region: u64, ptr: *const u8) -> Option<*mut c_void> {
        let at = ptr.addr() as u64;
        let holds = |segment: &&Segment| (segment.base..segment.base + segment.len).contains(&at);
        let find = |registered: &Registered| {
            registered.segments.iter().find(holds).map(|own| own.mr.desc())
        };
        self.with(region, find).flatten()
    }

    fn new_key(&self, domain: &Domain) -> Result<u64, Error> {
        let bytes = domain.info.domain_attr().mr_key_size;
        let key = lock(&self.0).keys.next()?;
        // `FI_KEY_NOTAVAIL` is no key.
        Ok(match bytes {
            0 | 8.. => key & (u64::MAX >> 1),
            bytes => key & (u64::MAX >> (64 - 8 * bytes)),
        })
    }

    /// What `read` makes of a region, if it is registered. Under the lock: nobody but the table
    /// keeps registrations, so that [`close`](Self::close) ends them all.
    pub(super) fn with<T>(&self, region: u64, read: impl FnOnce(&Registered) -> T) -> Option<T> {
        lock(&self.0).by_region.get(&region).map(read)
    }

    /// The key of the region in which a peer would name a segment by `key`, and where the segment
    /// begins in it. A key that is no segment's is that of a region without bytes, or of none.
    pub(super) fn region_of(&self, key: u64) -> (u64, u64) {
        lock(&self.0).regions.get(&key).copied().unwrap_or((key, 0))
    }

    /// Ends every registration but those of the regions `kept`, which stay for good with their
    /// memory; there will be no more.
    pub(super) fn close(&self, kept: &HashSet<u64>) {
        let mut table = lock(&self.0);
        table.closed = true;
        table.regions.clear();
        // Under the lock: whoever gives the memory back asks the table first.
        for (region, registered) in std::mem::take(&mut table.by_region) {
            let ended = match kept.contains(&region) {
                true => {
                    std::mem::forget(registered);
                    false
                }
                false => Box::new(registered).end(),
            };
            if !ended {
                table.stuck.insert(region);
            }
        }
    }
}

/// A contiguous part of a peer's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RemotePiece {
    pub(super) key: u64,
    /// What libfabric wants to have as the address of its first byte.
    pub(super) addr: u64,
    pub(super) len: u64,
    /// Where it begins in the whole.
    pub(super) start: u64,
}

/// The parts of a peer's memory; `None` if `bytes` are not a description.
pub(super) fn pieces(bytes: &[u8], virtual_addresses: bool) -> Option<Vec<RemotePiece>> {
    let mut pieces = Vec::new();
    let mut rest = bytes;
    let mut start = 0u64;
    while !rest.is_empty() {
        let (head, tail) = rest.split_at_checked(HANDLE_BYTES)?;
        let (key, len, count) = (word(head, 0)?, word(head, 8)?, word(head, 16)?);
        let size = usize::try_from(count).ok()?.checked_mul(PIECE_BYTES)?;
        let (iov, tail) = tail.split_at_checked(size)?;
        let first = if count > 0 { word(iov, 0)? } else { 0 };
        let before = start;
        for piece in iov.chunks(PIECE_BYTES) {
            let (base, len) = (word(piece, 0)?, word(piece, 8)?);
            let addr = if virtual_addresses { base } else { base.wrapping_sub(first) };
            addr.checked_add(len)?;
            pieces.push(RemotePiece { key, addr, len, start });
            start = start.checked_add(len)?;
        }
        if start - before != len {
            return None;
        }
        rest = tail;
    }
    Some(pieces)
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes)
}

/// Reads a description.
pub(super) fn remote(bytes: &[u8]) -> Option<RemoteMem> {
    let pieces = pieces(bytes, true)?;
    let access = Access::from_bits(*bytes.get(24)?)?;
    let mut at = 0;
    while at < bytes.len() {
        // All of them say the same; C leaves the padding as it is.
        if bytes[at + 24] != bytes[24] {
            return None;
        }
        at += HANDLE_BYTES + usize::try_from(word(bytes, at + 16)?).ok()? * PIECE_BYTES;
    }
    let len = pieces.last().map_or(0, |piece| piece.start + piece.len);
    Some(RemoteMem { key: word(bytes, 0)?, len, access, native: Some(bytes.into()) })
}

/// See [`super::fuzzing::bytes`].
pub(super) fn fuzz(bytes: &[u8]) {
    let read = remote(bytes);
    for virtual_addresses in [false, true] {
        let Some(pieces) = pieces(bytes, virtual_addresses) else {
            // Offsets may overflow where addresses do not.
            assert!(read.is_none() || !virtual_addresses);
            continue;
        };
        let mut end = 0;
        for piece in &pieces {
            assert_eq!(piece.start, end, "one behind the other");
            assert!(piece.addr.checked_add(piece.len).is_some());
            end = piece.start + piece.len;
        }
        assert!(read.as_ref().is_none_or(|read| read.len == end));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of two segments.
    fn description() -> Vec<u8> {
        let mut bytes = Vec::new();
        for (key, base, len) in [(7u64, 0x1000u64, 10u64), (8, 0x2000, 20)] {
            for word in [key, len, 1, 3, base, len] {
                bytes.extend(word.to_le_bytes());
            }
        }
        bytes
    }

    #[test]
    fn segments_are_named_by_offset_or_address() {
        let bytes = description();
        let offsets = pieces(&bytes, false).unwrap();
        assert_eq!(offsets[1], RemotePiece { key: 8, addr: 0, len: 20, start: 10 });
        let addresses = pieces(&bytes, true).unwrap();
        assert_eq!(addresses[0], RemotePiece { key: 7, addr: 0x1000, len: 10, start: 0 });
        let remote = remote(&bytes).unwrap();
        assert_eq!((remote.key, remote.len, remote.access), (7, 30, Access::ReadWrite));
    }

    #[test]
    fn one_handle_may_have_several_pieces() {
        let words = [7u64, 30, 2, 1, 0x1000, 10, 0x1800, 20];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let pieces = pieces(&bytes, false).unwrap();
        assert_eq!(pieces[1], RemotePiece { key: 7, addr: 0x800, len: 20, start: 10 });
        assert_eq!(remote(&bytes).unwrap().access, Access::ReadOnly);
    }

    /// Sent by C Margo 0.24 over Mercury 2.4.1, provider `tcp;ofi_rxm`: the handle of 64 bytes that
    /// may be read, key 1.
    const FROM_C: [u8; 48] = [
        1, 0, 0, 0, 0, 0, 0, 0, 0x40, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0,
        0, 0, 0, 0x10, 0x6b, 0xb3, 0x35, 0xbe, 0x55, 0, 0, 0x40, 0, 0, 0, 0, 0, 0, 0,
    ];

    #[test]
    fn what_c_sent_is_read() {
        let read = remote(&FROM_C).unwrap();
        assert_eq!((read.key, read.len, read.access), (1, 64, Access::ReadOnly));
        let base = 0x55be_35b3_6b10;
        let wanted = |addr| [RemotePiece { key: 1, addr, len: 64, start: 0 }];
        assert_eq!(pieces(&FROM_C, true).unwrap(), wanted(base));
        assert_eq!(pieces(&FROM_C, false).unwrap(), wanted(0));
    }

    #[test]
    fn hostile_descriptions_are_refused() {
        let good = description();
        for len in 0..good.len() {
            assert!(remote(&good[..len]).is_none() || len == good.len() / 2, "{len}");
        }
        for (at, bytes) in [(8, [0xff; 8]), (16, [0xff; 8]), (24, [0; 8]), (32, [0xff; 8])] {
            let mut wrong = good.clone();
            wrong[at..at + 8].copy_from_slice(&bytes);
            assert!(remote(&wrong).is_none(), "{at}");
        }
        let mut other_access = good;
        other_access[48 + 24] = 1;
        assert!(remote(&other_access).is_none());
    }
}
