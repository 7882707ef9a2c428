//! Registered memory, its description for peers, and the descriptions that peers send.
//!
//! A description is C Mercury's (`na_ofi_mem_handle_serialize`), one for each segment, one after
//! the other: u64 key, u64 length, u64 number of pieces (ours: 1), u8 access, 7 zero bytes; for
//! each piece u64 address, u64 length. All little endian. Peers count from the address of the first
//! piece, or name addresses, as the provider wants it (`FI_MR_VIRT_ADDR`, the same on both sides).
//!
//! Keys are random where the provider leaves the choice to us.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::ffi::{c_int, c_void};
use std::sync::PoisonError;

use ofi_sys::raw;

use crate::fabrics::fabric::{Domain, Ep, Mr, MrRequest, Place, failed};
use na_core::memory::keys::Keys;
use na_core::memory::region::EndRegistration;
use na_core::{Access, DevicePieces, Error, LocalMem, RemoteMem};
use prim::sync::{Arc, Mutex, RwLock, lock};

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

impl Segment {
    /// Returns the key of the segment in [`MemoryTable::places`].
    fn place(&self) -> (u64, u64) {
        (self.mr.key(), self.base)
    }
}

/// The description of one segment.
pub(crate) fn described(key: u64, access: Access, (base, len): (u64, u64)) -> Vec<u8> {
    let words = [key, len, 1, u64::from(access.bits()), base, len];
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// A region as libfabric knows it.
pub(crate) struct Registered {
    segments: Vec<Segment>,
    access: Access,
    len: u64,
    /// The key of a region without bytes, which libfabric does not know.
    key: u64,
}

impl Registered {
    /// The description of each segment, with its address and length.
    pub(crate) fn handles(&self) -> impl Iterator<Item = (u64, u64, Vec<u8>)> + '_ {
        self.segments.iter().map(|segment| {
            let Segment { mr, base, len } = segment;
            (*base, *len, described(mr.key(), self.access, (*base, *len)))
        })
    }

    /// The description of all segments.
    pub(crate) fn describe(&self) -> Vec<u8> {
        if !self.segments.is_empty() {
            return self.handles().flat_map(|(.., bytes)| bytes).collect();
        }
        let words = [self.key, self.len, 0, u64::from(self.access.bits())];
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// Returns whether `described` is what peers are told of the segment that begins at `start`,
    /// and of those behind it.
    fn is_described_by(&self, start: u64, described: &[u8]) -> bool {
        let (mut at, mut rest) = (0, described);
        for (_, len, handle) in self.handles() {
            if at >= start && !rest.is_empty() {
                let Some(behind) = rest.strip_prefix(&*handle) else { return false };
                rest = behind;
            }
            at += len;
        }
        rest.is_empty()
    }

    /// Returns the descriptor that libfabric wants with an operation on the memory at that address;
    /// `None` if that is not of this region.
    pub(crate) fn desc(&self, ptr: *const u8) -> Option<*mut c_void> {
        let at = ptr.addr() as u64;
        let holds = |segment: &&Segment| (segment.base..segment.base + segment.len).contains(&at);
        self.segments.iter().find(holds).map(|own| own.mr.desc())
    }

    /// The address of a byte of the region, and how many of `len` follow it in one piece. For
    /// memory of a device, which the region itself has no segments of.
    pub(crate) fn place(&self, offset: u64, len: u64) -> Option<(*mut u8, usize)> {
        let mut start = 0;
        for Segment { base, len: own, .. } in &self.segments {
            if let Some(within) = offset.checked_sub(start).filter(|within| within < own) {
                // No truncation: no longer than a part.
                let len = len.min(own - within) as usize;
                return Some((std::ptr::without_provenance_mut((base + within) as usize), len));
            }
            start += own;
        }
        None
    }

    /// Ends the registration; `false`: not all of it ends.
    fn end(self) -> bool {
        // All of them, whatever the others say.
        let ended = self.segments.into_iter().map(|segment| segment.mr.end());
        ended.fold(true, |all, ended| all & ended)
    }
}

/// Lets go of a registration, which its last holder ends. `None`: another one holds it; else
/// whether it has ended.
fn release(registered: Arc<Registered>) -> Option<bool> {
    Arc::into_inner(registered).map(Registered::end)
}

/// Lets go of a registration at the end of a transfer of that memory, which still keeps the region.
pub(crate) fn release_of(registered: Arc<Registered>, memory: &LocalMem) {
    if release(registered) == Some(false) {
        memory.region().keep_for_good();
    }
}

#[derive(Default)]
struct MemoryTable {
    by_region: HashMap<u64, Arc<Registered>>,
    /// Regions whose registration did not end when the endpoint was closed.
    stuck: HashSet<u64>,
    /// The segments, by libfabric's key and their address: for each the region, and where in it the
    /// segment begins. A provider that caches registrations gives one key to all memory that one of
    /// them covers (`vrb_mr_cache_reg` in `verbs_mr.c`), and memory may be registered twice.
    places: HashMap<(u64, u64), Vec<(u64, u64)>>,
    keys: Keys,
    closed: bool,
}

/// Memory that is registered with libfabric, by the keys of the regions.
#[derive(Clone, Default)]
pub(crate) struct Registry {
    table: Arc<Mutex<MemoryTable>>,
    /// Shared by threads that end registrations, which takes its time, so that they do not hold the
    /// table's lock meanwhile. [`close`](Self::close) waits for them: registrations that are bound
    /// to the endpoint have to end before it. Taken before the table's.
    ending: Arc<RwLock<()>>,
}

/// Ends a registration.
struct Guard {
    registry: Registry,
    region: u64,
}

impl EndRegistration for Guard {
    fn end(self: Box<Self>) -> bool {
        let Self { registry, region } = *self;
        let _ending = registry.ending.read().unwrap_or_else(PoisonError::into_inner);
        let mut table = lock(&registry.table);
        let registered = table.by_region.remove(&region);
        for segment in registered.iter().flat_map(|registered| &registered.segments) {
            if let Entry::Occupied(mut places) = table.places.entry(segment.place()) {
                places.get_mut().retain(|(own, _)| *own != region);
                if places.get().is_empty() {
                    places.remove();
                }
            }
        }
        let is_stuck = table.stuck.remove(&region);
        drop(table);
        // If a transfer of ours works on the memory, that ends it, and keeps the memory until then.
        !is_stuck && registered.and_then(release).unwrap_or(true)
    }
}

/// Ends a registration of which nobody was told.
fn end_of(registered: Registered, memory: &LocalMem) {
    if !registered.end() {
        memory.region().keep_for_good();
    }
}

/// Ends a registration because libfabric has refused `len` bytes of it, and returns the error.
fn undone(
    domain: &Domain,
    registered: Registered,
    memory: &LocalMem,
    len: usize,
    errno: c_int,
) -> Error {
    end_of(registered, memory);
    failed(domain.lib, format!("cannot register {len} bytes of memory"), errno)
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
    /// Registers a region's memory with the domain, for [`add`](Self::add). The system may have to
    /// find and pin all of it, so the caller holds no lock.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] when libfabric refuses a segment.
    pub(crate) fn register(
        &self,
        domain: &Arc<Domain>,
        memory: &LocalMem,
    ) -> Result<Registered, Error> {
        let pieces = memory.segments().iter().map(|piece| (piece.ptr, piece.len));
        let bits = access_bits(memory.access());
        // SAFETY: the region keeps its memory valid for the access it was registered with until
        // this is ended, by the guard or when it fails, or for good.
        unsafe { self.register_pieces(domain, memory, pieces, (bits, Place::Host)) }
    }

    /// As [`register`](Self::register), of memory of a device that the region stands for.
    ///
    /// # Errors
    ///
    /// As there; [`Error::InvalidArgument`] when the pieces are not all of the region.
    ///
    /// # Safety
    ///
    /// As of [`Endpoint::register_device`](na_core::Endpoint::register_device).
    pub(crate) unsafe fn register_device(
        &self,
        domain: &Arc<Domain>,
        memory: &LocalMem,
        told: &DevicePieces,
    ) -> Result<Registered, Error> {
        let bytes = told.pieces.iter().try_fold(0u64, |sum, (at, len)| {
            at.checked_add(*len as u64).and_then(|_end| sum.checked_add(*len as u64))
        });
        if bytes != Some(memory.len()) || memory.elsewhere().is_none() {
            return Err(Error::InvalidArgument("pieces of other memory of a device".into()));
        }
        let pieces = told.pieces.iter();
        let pieces = pieces.map(|(at, len)| (std::ptr::without_provenance_mut(*at as usize), *len));
        // Our own transfers may read and write it, whatever peers may do.
        let bits = access_bits(memory.access()) | raw::FI_READ | raw::FI_WRITE;
        let place = Place::Device(told.kind, told.device);
        // SAFETY: by the caller's word it is the device's memory until the region gives it back,
        // which it does only after this has ended, or never; that it is to be reached by way of the
        // device, and not by the host's processor, is what the place tells the library.
        unsafe { self.register_pieces(domain, memory, pieces, (bits, place)) }
    }

    /// # Safety
    ///
    /// As for [`Mr::register`], of each piece until the result is ended.
    unsafe fn register_pieces(
        &self,
        domain: &Arc<Domain>,
        memory: &LocalMem,
        pieces: impl Iterator<Item = (*mut u8, usize)>,
        (bits, place): (u64, Place),
    ) -> Result<Registered, Error> {
        let (access, len, key) = (memory.access(), memory.len(), memory.key());
        let mut registered = Registered { segments: Vec::new(), access, len, key };
        for (ptr, len) in pieces.filter(|(_, len)| *len > 0) {
            let request = MrRequest { ptr, len, access: bits, place, key: 0 };
            // SAFETY: the caller's.
            match unsafe { self.new_mr(domain, request) } {
                Ok(mr) => {
                    let base = ptr.addr() as u64;
                    registered.segments.push(Segment { mr, base, len: len as u64 });
                }
                Err(errno) => return Err(undone(domain, registered, memory, len, errno)),
            }
        }
        Ok(registered)
    }

    /// Binds a registration to the endpoint, if it shall be, and keeps it until the region's key is
    /// taken back. With an endpoint the caller sees to it that nobody closes it meanwhile.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] when libfabric refuses it, [`Error::Closed`] when there are to be no more; the
    /// registration has ended then.
    pub(crate) fn add(
        &self,
        domain: &Arc<Domain>,
        ep: Option<&Ep>,
        registered: Registered,
        memory: &LocalMem,
    ) -> Result<(), Error> {
        let region = memory.key();
        for segment in &registered.segments {
            if let Some(errno) = ep.and_then(|ep| segment.mr.bind_to(ep).err()) {
                let len = segment.len as usize;
                return Err(undone(domain, registered, memory, len, errno));
            }
        }
        let mut table = lock(&self.table);
        if table.closed {
            drop(table);
            end_of(registered, memory);
            return Err(Error::Closed);
        }
        let mut start = 0;
        for segment in &registered.segments {
            table.places.entry(segment.place()).or_default().push((region, start));
            start += segment.len;
        }
        table.by_region.insert(region, Arc::new(registered));
        drop(table);
        let guard = Guard { registry: self.clone(), region };
        memory.region().hold_registration(Box::new(guard));
        Ok(())
    }

    /// Registers a piece of memory with libfabric, under a key that nobody else has; where
    /// registrations are bound to the endpoint ([`Mr::bind_to`]) it is of no use before that. The
    /// number of libfabric's error on failure.
    ///
    /// # Safety
    ///
    /// As for [`Mr::register`].
    pub(crate) unsafe fn new_mr(
        &self,
        domain: &Arc<Domain>,
        mut request: MrRequest,
    ) -> Result<Mr, c_int> {
        let mut tries = 0;
        loop {
            if !domain.has_mr_mode(raw::FI_MR_PROV_KEY) {
                request.key = self.new_key(domain).map_err(|_no_random_bytes| libc::EIO)?;
            }
            // SAFETY: the caller's.
            match unsafe { Mr::register(domain, &request) } {
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

    fn new_key(&self, domain: &Domain) -> Result<u64, Error> {
        let bytes = domain.info.domain_attr().mr_key_size;
        let key = lock(&self.table).keys.next_key()?;
        // `FI_KEY_NOTAVAIL` is no key.
        Ok(match bytes {
            0 | 8.. => key & (u64::MAX >> 1),
            bytes => key & (u64::MAX >> (64 - 8 * bytes)),
        })
    }

    /// Calls `read` with a region, if it is registered, and returns the result. The call is under
    /// the lock: only the table and [transfers](Self::hold) keep registrations, so that
    /// [`close`](Self::close) ends them all.
    pub(crate) fn with<T>(&self, region: u64, read: impl FnOnce(&Registered) -> T) -> Option<T> {
        lock(&self.table).by_region.get(&region).map(|registered| read(registered))
    }

    /// The registration of a region, if there is one, for a transfer, which has to
    /// [release](release_of) it: before it lets go of the region, and when the endpoint is closed.
    pub(crate) fn hold(&self, region: u64) -> Option<Arc<Registered>> {
        lock(&self.table).by_region.get(&region).cloned()
    }

    /// The region that `described` was told of, which begins with a segment's `key`, and where that
    /// segment begins in it. A key that is no segment's is that of a region without bytes, or of
    /// none.
    pub(crate) fn region_of(&self, key: u64, described: &[u8]) -> (u64, u64) {
        let table = lock(&self.table);
        let base = word(described, HANDLE_BYTES);
        let places = base.and_then(|base| table.places.get(&(key, base)));
        let places = places.map_or(&[][..], Vec::as_slice);
        let is_it = |(region, start): &&(u64, u64)| {
            let registered = table.by_region.get(region);
            registered.is_some_and(|own| own.is_described_by(*start, described))
        };
        // One is not compared: nearly always it is the only one that there ever was.
        let found = match places {
            [] => None,
            [one] => Some(one),
            several => several.iter().find(is_it),
        };
        found.copied().unwrap_or((key, 0))
    }

    /// Ends every registration but those of the regions `kept`, which stay for good with their
    /// memory; there will be no more.
    pub(crate) fn close(&self, kept: &HashSet<u64>) {
        // Whoever has begun to end one has done so.
        let _ending = self.ending.write().unwrap_or_else(PoisonError::into_inner);
        let mut table = lock(&self.table);
        table.closed = true;
        table.places.clear();
        // Under the lock: whoever gives the memory back asks the table first.
        for (region, registered) in std::mem::take(&mut table.by_region) {
            let ended = match kept.contains(&region) {
                true => {
                    std::mem::forget(registered);
                    false
                }
                false => release(registered).unwrap_or(true),
            };
            if !ended {
                table.stuck.insert(region);
            }
        }
    }
}

/// A contiguous part of a peer's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RemotePiece {
    pub(crate) key: u64,
    /// The address of its first byte in the form that libfabric wants.
    pub(crate) addr: u64,
    pub(crate) len: u64,
    /// The offset at which it begins in the whole.
    pub(crate) start: u64,
}

/// The parts of a peer's memory; `None` if `bytes` are not a description.
pub(crate) fn pieces(bytes: &[u8], virtual_addresses: bool) -> Option<Vec<RemotePiece>> {
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

/// The key of the first segment in a description.
pub(crate) fn first_key(bytes: &[u8]) -> Option<u64> {
    word(bytes, 0)
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes)
}

/// Reads a description.
pub(crate) fn remote(bytes: &[u8]) -> Option<RemoteMem> {
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

/// See [`crate::fuzzing::bytes`].
pub(crate) fn fuzz(bytes: &[u8]) {
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

    /// A description of two segments.
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
