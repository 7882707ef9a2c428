//! Registered regions and their keys.
//!
//! A key is a random 64-bit number, so a peer can only use keys that it was told. The table holds
//! weak references: a region lives as long as its [`LocalMem`] clones and the transfers that have
//! begun. A transfer looks its key up once ([`RegionTable::lease`]), checks bounds and access
//! there, and then holds the region until it is over. Revoking removes the key and leaves those
//! holders alone; the last of them hands the memory back.
//!
//! All of this belongs to the process that has registered the memory. A child that was forked off
//! has a copy of the memory and of the table, but no thread that ends transfers or releases locks
//! that others held. So in a child a region is given back at once, and nothing else is touched:
//! neither the key, nor offers, nor the registration with a library.

mod entry;
mod registration;

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::sync::PoisonError;

use self::entry::RegionEntry;
pub use self::registration::EndRegistration;
use self::registration::Registration;
use crate::base::cheap::IntBuildHasher;
use crate::memory::alloc::Block;
use crate::memory::copy_bytes;
use crate::memory::handles::Elsewhere;
use crate::memory::keys::Keys;
use crate::{
    Access, DeniedReason, Error, LocalMem, Memory, Principal, RawSegment, RemoteMem, Terms,
};
use prim::fork::Process;
use prim::lock::BiasedLock;
use prim::prefetch;
use prim::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use prim::sync::{Arc, Mutex, lock};

type Released = Box<dyn FnOnce(Memory) + Send>;

/// A peer's permission to copy in a region without asking each time. For transports.
///
/// ```
/// # use na_core::{Access, Memory, RegionTable, memory::region::{Offer, RetiredMemory}};
/// struct Permission { stands: std::sync::Mutex<bool> }
/// impl Offer for Permission {
///     fn withdraw(&self) { *self.stands.lock().unwrap() = false }
///     fn stands(&self) -> bool { *self.stands.lock().unwrap() }
///     fn is_used(&self) -> bool { false }
///     fn keep(&self, _: RetiredMemory) { unreachable!("no peer copies") }
/// }
/// let memory = RegionTable::new().register(Memory::zeroed(8)?, Access::ReadOnly)?;
/// let permission = std::sync::Arc::new(Permission { stands: true.into() });
/// assert!(memory.region().offer(permission.clone()));
/// memory.revoke(drop);
/// assert!(!permission.stands());
/// # Ok::<(), na_core::Error>(())
/// ```
pub trait Offer: Send + Sync {
    /// Takes it back: the peer begins no copy under it any more.
    fn withdraw(&self);

    /// Returns whether it was not withdrawn and its connection exists.
    fn stands(&self) -> bool;

    /// After [`withdraw`](Self::withdraw): whether a copy that began before may be under way.
    fn is_used(&self) -> bool;

    /// Drops `held` when that is over.
    fn keep(&self, held: RetiredMemory);
}

/// Memory whose region is gone. It is handed back when this is dropped, or later, if a peer still
/// copies there.
///
/// ```
/// # use na_core::memory::region::RetiredMemory;
/// // What a connection keeps while its peer may still copy there.
/// let mut kept: Vec<RetiredMemory> = Vec::new();
/// kept.clear(); // it has stopped: the owners get their memory back
/// # assert!(kept.is_empty());
/// ```
pub struct RetiredMemory {
    memory: Option<Memory>,
    released: Option<Released>,
    /// Those that may still be used, withdrawn.
    offers: Vec<Arc<dyn Offer>>,
}

impl RetiredMemory {
    /// Keeps the memory for as long as this process lives, because the peer may go on using it:
    /// nobody gets it back. A function that would be called with it is dropped.
    pub fn keep_for_good(mut self) {
        std::mem::forget(self.memory.take());
        self.offers.clear();
    }
}

impl Drop for RetiredMemory {
    fn drop(&mut self) {
        while let Some(offer) = self.offers.pop() {
            if offer.is_used() {
                let (memory, released) = (self.memory.take(), self.released.take());
                let offers = std::mem::take(&mut self.offers);
                // What it drops then asks the other offers.
                return offer.keep(RetiredMemory { memory, released, offers });
            }
        }
        if let (Some(memory), Some(released)) = (self.memory.take(), self.released.take()) {
            released(memory);
        }
    }
}

impl fmt::Debug for RetiredMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RetiredMemory(..)")
    }
}

/// The memory of a get that has ended although a peer may still write there. It stays alive
/// meanwhile, and [`LocalMem::may_be_written`] says so.
///
/// ```
/// # use na_core::{Access, Memory, RegionTable, memory::region::LingeringMemory};
/// let memory = RegionTable::new().register(Memory::zeroed(8)?, Access::ReadWrite)?;
/// let lingering = LingeringMemory::new(&memory);
/// assert!(memory.may_be_written());
/// drop(lingering); // the peer has said that it stopped
/// assert!(!memory.may_be_written());
/// # Ok::<(), na_core::Error>(())
/// ```
#[derive(Debug)]
pub struct LingeringMemory(Arc<Region>);

impl LingeringMemory {
    /// Marks `memory`, before the end of the get is told.
    pub fn new(memory: &LocalMem) -> Self {
        let region = memory.region().clone();
        region.late.fetch_add(1, Ordering::Relaxed);
        Self(region)
    }

    /// The peer may go on for as long as this process lives: nobody gets the memory back, and what
    /// would be called with it is dropped.
    pub fn keep_for_good(self) {
        self.0.keep_for_good();
        // The mark stays.
        self.0.late.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for LingeringMemory {
    fn drop(&mut self) {
        // pair: LATE-OVER (nobody writes there any more)
        self.0.late.fetch_sub(1, Ordering::Release);
    }
}

/// The outcome of writing bytes to registered memory.
///
/// ```
/// # use na_core::{Access, Memory, RegionTable, memory::region::Filled};
/// let memory = RegionTable::new().register(Memory::zeroed(8)?, Access::ReadWrite)?;
/// assert_eq!(memory.region().fill_at(4, b"data"), Filled::All);
/// assert_eq!(memory.region().fill_at(5, b"data"), Filled::Outside);
/// # Ok::<(), na_core::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Filled {
    /// They are there.
    All,
    /// They leave the memory; nothing was written.
    Outside,
    /// Pages of a mapped file are gone; a part may have been written.
    Gone,
}

/// The offers of a region.
#[derive(Default)]
struct RegionOffers {
    revoked: bool,
    list: Vec<Arc<dyn Offer>>,
}

/// Keys are random, so that a cheap hash spreads them; a peer can only look them up.
type Regions = HashMap<u64, RegionEntry, IntBuildHasher>;

#[derive(Debug, Default)]
struct Table {
    regions: Regions,
    keys: Keys,
}

/// A key that [`Keys`] never gives out.
const NO_KEY: u64 = 0;

/// The keys of one endpoint. For transports.
///
/// ```
/// # use na_core::{self as na, Access, DeniedReason, Memory, RegionTable};
/// let table = RegionTable::new();
/// let memory = table.register(Memory::zeroed(8)?, Access::ReadOnly)?;
/// assert!(table.lease(memory.key(), 0, 8, false).is_ok());
/// assert_eq!(table.lease(memory.key(), 0, 9, false).err(), Some(DeniedReason::OutOfRange));
/// # Ok::<(), na::Error>(())
/// ```
#[derive(Debug, Default, Clone)]
pub struct RegionTable {
    /// Transfers of peers come from the thread that polls.
    table: Arc<BiasedLock<Table>>,
    /// See [`Endpoint::served`](crate::Endpoint::served).
    served: Arc<AtomicU64>,
    process: Process,
}

/// Two are equal if they are the same table, whatever it contains.
impl PartialEq for RegionTable {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.table, &other.table)
    }
}

impl RegionTable {
    /// An empty table.
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers `memory` under a fresh key.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] when the system has no random numbers, [`Error::InvalidArgument`] when the
    /// segments' total length does not fit 64 bits.
    pub fn register(&self, memory: Memory, access: Access) -> Result<LocalMem, Error> {
        let mut region = self.region(memory, access)?;
        let mut table = self.table.lock();
        loop {
            let key = table.keys.next_key()?;
            if table.regions.contains_key(&key) {
                continue;
            }
            region.key = key;
            let region = Arc::new(region);
            table.regions.insert(key, RegionEntry::of(&region));
            return Ok(LocalMem::new(region));
        }
    }

    /// Memory for the local side of transfers, under no key: no peer can name it.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] when the segments' total length does not fit 64 bits.
    pub fn register_local(&self, memory: Memory, access: Access) -> Result<LocalMem, Error> {
        self.region(memory, access).map(|region| LocalMem::new(Arc::new(region)))
    }

    /// A region without a key.
    fn region(&self, memory: Memory, access: Access) -> Result<Region, Error> {
        let len = memory
            .segments()
            .iter()
            .try_fold(0u64, |sum, segment| sum.checked_add(segment.len as u64))
            .ok_or_else(|| Error::InvalidArgument("segments exceed 2^64 bytes".into()))?;
        let ends = match memory.segments() {
            [_] => Box::default(),
            segments => segments
                .iter()
                .scan(0, |end, segment| {
                    *end += segment.len as u64;
                    Some(*end)
                })
                .collect(),
        };
        Ok(Region {
            key: NO_KEY,
            access,
            len,
            elsewhere: memory.place_elsewhere().cloned(),
            ends,
            segments: memory.segments().into(),
            block: memory.block().cloned(),
            is_raw: memory.is_raw(),
            memory: Mutex::new(Some(memory)),
            released: Mutex::new(None),
            offers: Mutex::default(),
            registration: Mutex::default(),
            late: AtomicUsize::new(0),
            has_terms: AtomicBool::new(false),
            table: self.table.clone(),
            process: self.process,
        })
    }

    /// Starts a peer's transfer: the region under `key`, if `write` and the range are allowed. The
    /// region stays alive, and its memory with its owner, for as long as the result is held.
    ///
    /// # Errors
    ///
    /// Which check failed.
    #[inline]
    pub fn lease(
        &self,
        key: u64,
        offset: u64,
        len: u64,
        write: bool,
    ) -> Result<LocalMem, DeniedReason> {
        self.lease_by(key, offset, len, write, || Principal::Unknown)
    }

    /// As [`lease`](Self::lease), of a transport that knows whose transfer it is; asked if the
    /// memory has [`Terms`] that name a peer, under a lock. `lease` leases none such.
    ///
    /// # Errors
    ///
    /// Which check failed.
    #[inline]
    pub fn lease_by(
        &self,
        key: u64,
        offset: u64,
        len: u64,
        write: bool,
        peer: impl FnOnce() -> Principal,
    ) -> Result<LocalMem, DeniedReason> {
        let mut table = self.table.lock();
        let entry = table.regions.get_mut(&key).ok_or(DeniedReason::NoSuchKey)?;
        let region = entry.lease(offset, len, write, peer)?;
        drop(table);
        self.has_served();
        Ok(LocalMem::new(region))
    }

    /// The memory under `key`, if there is some, and it has no terms: whether a peer may use it is
    /// not asked.
    #[doc(hidden)]
    pub fn find(&self, key: u64) -> Option<LocalMem> {
        let region = self.table.lock().regions.get(&key)?.lend()?;
        Some(LocalMem::new(region))
    }

    /// Something was done for a transfer of a peer.
    #[inline]
    #[doc(hidden)]
    pub fn has_served(&self) {
        // A sign of life and no more: nothing is read because of it.
        self.served.fetch_add(1, Ordering::Relaxed);
    }

    /// How often something was.
    #[doc(hidden)]
    pub fn served(&self) -> u64 {
        self.served.load(Ordering::Relaxed)
    }

    /// Registered regions, for tests and statistics.
    pub fn len(&self) -> usize {
        self.table.lock().regions.len()
    }

    /// Registered regions, and their bytes. Looks at each.
    #[doc(hidden)]
    pub fn totals(&self) -> (usize, u64) {
        let table = self.table.lock();
        let regions = table.regions.values();
        let regions: Vec<_> = regions.filter_map(|entry| entry.region.upgrade()).collect();
        drop(table);
        (regions.len(), regions.iter().fold(0, |sum, region| sum.saturating_add(region.len())))
    }

    /// Returns whether nothing is registered.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Registered memory; shared by its `LocalMem` clones and the transfers in flight.
///
/// ```
/// # use na_core::{Access, Memory, RegionTable};
/// let memory = RegionTable::new().register(Memory::zeroed(8)?, Access::ReadOnly)?;
/// assert!(memory.region().contains(2, 6) && !memory.region().contains(2, 7));
/// # Ok::<(), na_core::Error>(())
/// ```
pub struct Region {
    key: u64,
    access: Access,
    /// Bytes of all segments.
    len: u64,
    /// Bytes that are in no segment, and so out of range of all that copies.
    elsewhere: Option<Elsewhere>,
    /// Cumulative end of each segment, for finding the one that holds an offset; empty if there is
    /// only one.
    ends: Box<[u64]>,
    segments: Box<[RawSegment]>,
    /// The block that holds the only segment, if peers on this host can map it.
    block: Option<Arc<Block>>,
    /// See [`Memory::from_raw`].
    is_raw: bool,
    /// Always `Some` until `reclaim` or `drop`, but where a registration does not end.
    memory: Mutex<Option<Memory>>,
    released: Mutex<Option<Released>>,
    offers: Mutex<RegionOffers>,
    registration: Mutex<Registration>,
    /// Gets that have ended although a peer may still write here for them.
    late: AtomicUsize,
    /// Relaxed: set before its key is told to anybody.
    has_terms: AtomicBool,
    table: Arc<BiasedLock<Table>>,
    /// The process that registered it.
    process: Process,
}

// SAFETY:
// - the raw segments point into memory that `memory` keeps alive until `drop`, which is not tied
//   to a thread (contract of `Memory::from_raw`);
// - they are used only by copies through raw pointers; no Rust reference to the bytes exists while
//   the region is registered (same contract), so no thread's assumption is broken.
unsafe impl Send for Region {}
// SAFETY: as for `Send`; everything else in it is `Sync` by itself.
unsafe impl Sync for Region {}

impl Region {
    /// The number by which peers name the region.
    #[inline]
    pub fn key(&self) -> u64 {
        self.key
    }

    /// The access that peers have.
    #[inline]
    pub fn access(&self) -> Access {
        self.access
    }

    pub(crate) fn len(&self) -> u64 {
        self.elsewhere.as_ref().map_or(self.len, |elsewhere| elsewhere.len)
    }

    #[inline]
    pub(crate) fn elsewhere(&self) -> Option<&std::sync::Arc<dyn Any + Send + Sync>> {
        self.elsewhere.as_ref().map(|elsewhere| &elsewhere.place)
    }

    /// The pieces of memory.
    #[inline]
    pub fn segments(&self) -> &[RawSegment] {
        &self.segments
    }

    /// The block that holds the only segment, if peers on this host can map it.
    #[inline]
    pub fn block(&self) -> Option<&Arc<Block>> {
        self.block.as_ref()
    }

    /// The description of the region for peers.
    pub fn describe(&self) -> RemoteMem {
        RemoteMem { key: self.key, len: self.len(), access: self.access, native: None }
    }

    /// Returns whether it may be a mapped file, whose pages can go away.
    #[inline]
    pub fn is_raw(&self) -> bool {
        self.is_raw
    }

    /// Returns what [`LocalMem::may_be_written`] does.
    #[inline]
    pub fn is_late(&self) -> bool {
        // pair: LATE-OVER
        self.late.load(Ordering::Acquire) > 0
    }

    /// Returns whether these bytes are part of the region.
    #[inline]
    pub fn contains(&self, offset: u64, len: u64) -> bool {
        offset.checked_add(len).is_some_and(|end| end <= self.len)
    }

    /// See [`LocalMem::impose`].
    pub(crate) fn impose(&self, terms: Terms) {
        self.has_terms.store(true, Ordering::Relaxed);
        if let Some(entry) = self.table.lock().regions.get_mut(&self.key) {
            entry.impose(terms);
        }
    }

    /// Returns whether there are terms on which peers may use it, so that they have to ask each
    /// time.
    #[inline]
    pub fn has_terms(&self) -> bool {
        self.has_terms.load(Ordering::Relaxed)
    }

    /// No peer finds it any more.
    fn forget_key(&self) {
        if self.key != NO_KEY {
            self.table.lock().regions.remove(&self.key);
        }
    }

    /// See [`LocalMem::revoke`].
    pub fn revoke(&self, released: Released) {
        if self.process.is_other() {
            return self.give_copy(released);
        }
        self.forget_key();
        *lock(&self.released) = Some(released);
        self.withdraw_offers();
        self.end_registration();
    }

    /// In a child that was forked off: gives its copy of the memory away, whatever transfers of its
    /// parent's refer to it. None of them goes on here, as endpoints do nothing in a child.
    #[cold]
    fn give_copy(&self, released: Released) {
        // It is locked if somebody was about to keep it for good when the child came about.
        let memory = self.memory.try_lock().ok().and_then(|mut memory| memory.take());
        if let Some(memory) = memory {
            released(memory);
        }
    }

    /// Takes the key back, and the memory out if nothing else refers to the region.
    pub fn reclaim(region: &mut Arc<Self>) -> Option<Memory> {
        if region.process.is_other() {
            return None;
        }
        // The table's reference must go before ours can be the only one.
        region.forget_key();
        region.end_registration();
        let region = Arc::get_mut(region)?;
        let offers = region.offers.get_mut().unwrap_or_else(PoisonError::into_inner);
        offers.list.retain(|offer| offer.stands() || offer.is_used());
        if !offers.list.is_empty() {
            return None;
        }
        // There is no key any more to remove.
        offers.revoked = true;
        region.memory.get_mut().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Notes an offer, to withdraw it in time. `false`: the region was revoked, or has terms.
    pub fn offer(&self, offer: Arc<dyn Offer>) -> bool {
        let mut offers = lock(&self.offers);
        if offers.revoked || self.has_terms() {
            return false;
        }
        // Whoever still copies under one that was withdrawn is waited for.
        offers.list.retain(|offer| offer.stands() || offer.is_used());
        offers.list.push(offer);
        true
    }

    /// Keeps what the memory is registered as elsewhere until its key is taken back or nothing
    /// refers to the region any more; then `registration` is ended, and after that the memory is
    /// given back. If it does not end, the memory stays where it is for good: nobody gets it back,
    /// and what would be called with it is dropped.
    pub fn hold_registration(&self, registration: Box<dyn EndRegistration>) {
        let mut own = lock(&self.registration);
        // Ended without the lock, if it comes too late.
        let late = match own.revoked {
            true => Some(registration),
            false => own.held.replace(registration),
        };
        drop(own);
        self.end(late);
    }

    fn end_registration(&self) {
        let mut own = lock(&self.registration);
        own.revoked = true;
        let held = own.held.take();
        drop(own);
        self.end(held);
    }

    fn end(&self, registration: Option<Box<dyn EndRegistration>>) {
        if registration.is_some_and(|registration| !registration.end()) {
            self.keep_for_good();
        }
    }

    /// As [`RetiredMemory::keep_for_good`], when nothing refers to the region any more.
    pub fn keep_for_good(&self) {
        std::mem::forget(lock(&self.memory).take());
    }

    fn withdraw_offers(&self) {
        let mut offers = lock(&self.offers);
        offers.revoked = true;
        offers.list.iter().for_each(|offer| offer.withdraw());
    }

    /// All of its memory, if that is one piece.
    #[inline]
    pub fn whole(&self) -> Option<RawSegment> {
        let mut pieces = self.pieces(0, self.len);
        pieces.next().filter(|_| pieces.next().is_none())
    }

    /// The memory that holds `len` bytes from `offset`, if the region is one segment. The range
    /// must lie inside the region, as `contains` says.
    #[inline]
    pub fn lone_piece(&self, offset: u64, len: u64) -> Option<RawSegment> {
        let [segment] = &*self.segments else { return None };
        let (ptr, len) = (segment.ptr.wrapping_add(offset as usize), len as usize);
        Some(RawSegment { ptr, len })
    }

    /// The pieces of memory that hold `len` bytes from `offset`, in order, none of them empty.
    ///
    /// The range must lie inside the region, as `contains` says; otherwise the pieces end early.
    #[inline]
    pub fn pieces(&self, offset: u64, len: u64) -> impl Iterator<Item = RawSegment> + '_ {
        let mut index = match self.ends.is_empty() {
            true => usize::from(offset >= self.len),
            false => self.ends.partition_point(|end| *end <= offset),
        };
        let mut at = offset;
        let mut left = len;
        std::iter::from_fn(move || {
            while left > 0 {
                let segment = *self.segments.get(index)?;
                let start = self.ends.get(index).map_or(0, |end| end - segment.len as u64);
                index += 1;
                if segment.len == 0 {
                    continue;
                }
                let skip = (at - start) as usize;
                let len = (segment.len - skip).min(usize::try_from(left).unwrap_or(usize::MAX));
                at += len as u64;
                left -= len as u64;
                return Some(RawSegment { ptr: segment.ptr.wrapping_add(skip), len });
            }
            None
        })
    }

    /// See [`LocalMem::read_at`].
    #[inline]
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> bool {
        if !self.contains(offset, out.len() as u64) {
            return false;
        }
        let mut done = 0;
        for piece in self.pieces(offset, out.len() as u64) {
            let room = &mut out[done..done + piece.len];
            // SAFETY:
            // - source: `pieces` stays inside a segment, which `self.memory` keeps valid for reads;
            // - destination: `room` is a live mutable slice of exactly `piece.len` bytes;
            // - no overlap: nobody holds a reference to registered bytes, and `room` is one.
            unsafe { copy_bytes::copy_shared(piece.ptr, room.as_mut_ptr(), piece.len) };
            done += piece.len;
        }
        true
    }

    /// Appends `len` bytes from `offset` to `out`; `false`, and nothing, if not all are inside.
    #[inline]
    pub fn append_to(&self, offset: u64, len: usize, out: &mut Vec<u8>) -> bool {
        if !self.contains(offset, len as u64) {
            return false;
        }
        out.reserve(len);
        let room = out.spare_capacity_mut();
        let mut done = 0;
        for piece in self.pieces(offset, len as u64) {
            let room = &mut room[done..done + piece.len];
            // SAFETY: as in `read_at`; `room` is as long as the piece, and need not be initialised
            // to be written to.
            unsafe {
                copy_bytes::copy_shared(piece.ptr, room.as_mut_ptr().cast(), piece.len);
            }
            done += piece.len;
        }
        let end = out.len() + done;
        // SAFETY: there is room for them (`reserve`), and all up to there were just written.
        unsafe { out.set_len(end) };
        true
    }

    /// As [`read_at`](Self::read_at), where pages may be gone: `false` also for that.
    pub fn read_at_checked(&self, offset: u64, out: &mut [u8]) -> bool {
        if !self.is_raw || !self.contains(offset, out.len() as u64) {
            return self.read_at(offset, out);
        }
        let mut done = 0;
        self.pieces(offset, out.len() as u64).all(|piece| {
            let room = &mut out[done..done + piece.len];
            done += piece.len;
            // SAFETY: as in `read_at`, but that pages may be gone.
            unsafe { copy_bytes::copy_checked(piece.ptr, room.as_mut_ptr(), piece.len) }
        })
    }

    /// As [`write_at`](Self::write_at), where pages may be gone.
    pub fn fill_at(&self, offset: u64, bytes: &[u8]) -> Filled {
        if !self.contains(offset, bytes.len() as u64) {
            return Filled::Outside;
        }
        if !self.is_raw {
            let _ = self.write_at(offset, bytes);
            return Filled::All;
        }
        let mut done = 0;
        let is_there = self.pieces(offset, bytes.len() as u64).all(|piece| {
            let from = &bytes[done..done + piece.len];
            done += piece.len;
            // SAFETY: as in `write_at`, but that pages may be gone.
            unsafe { copy_bytes::copy_checked(from.as_ptr(), piece.ptr, piece.len) }
        });
        if is_there { Filled::All } else { Filled::Gone }
    }

    /// See [`LocalMem::prepare_write`].
    pub(crate) fn prepare_write(&self, offset: u64, len: u64) {
        if !self.contains(offset, len) {
            return;
        }
        for piece in self.pieces(offset, len) {
            for line in (0..piece.len).step_by(prefetch::LINE_BYTES) {
                prefetch::for_write(piece.ptr.wrapping_add(line));
            }
        }
    }

    /// See [`LocalMem::write_at`].
    #[inline]
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> bool {
        if !self.contains(offset, bytes.len() as u64) {
            return false;
        }
        let mut done = 0;
        for piece in self.pieces(offset, bytes.len() as u64) {
            let from = &bytes[done..done + piece.len];
            // SAFETY:
            // - source: `from` is a live slice of exactly `piece.len` bytes;
            // - destination: `pieces` stays inside a segment, which `self.memory` keeps valid for
            //   writes (contract of `Memory::from_raw`);
            // - no overlap: nobody holds a reference to registered bytes, and `from` is one.
            unsafe { copy_bytes::copy_shared(from.as_ptr(), piece.ptr, piece.len) };
            done += piece.len;
        }
        true
    }
}

impl Region {
    /// In a child that was forked off: frees its copy of the memory. Everything that its parent has
    /// told peers and libraries stays as it is. So does memory that a library knows of, of which a
    /// child need not have a copy at all.
    #[cold]
    fn drop_copy(&mut self) {
        let offers = self.offers.get_mut().unwrap_or_else(PoisonError::into_inner);
        std::mem::forget(std::mem::take(&mut offers.list));
        let registration = self.registration.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(registration) = registration.held.take() {
            std::mem::forget(registration);
            let memory = self.memory.get_mut().unwrap_or_else(PoisonError::into_inner);
            std::mem::forget(memory.take());
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if self.process.is_other() {
            return self.drop_copy();
        }
        // Nobody else can reach it: its locks are not needed.
        let offers = self.offers.get_mut().unwrap_or_else(PoisonError::into_inner);
        let revoked = offers.revoked;
        let offers = std::mem::take(&mut offers.list);
        if !revoked {
            self.forget_key();
            offers.iter().for_each(|offer| offer.withdraw());
        }
        self.end_registration();
        let memory = self.memory.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let released = self.released.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        drop(RetiredMemory { memory, released, offers });
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region({} bytes, {:?})", self.len(), self.access)
    }
}

#[cfg(test)]
mod forked;

#[cfg(test)]
mod tests;
