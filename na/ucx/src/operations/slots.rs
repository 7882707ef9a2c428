//! Operations that UCX has in hand.
//!
//! A slot owns what UCX reads or writes until the callback: the buffer, the header, and its own
//! number, which the callback gets. It is free again when the driver has handled the callback's
//! event, or when the worker is gone.

use std::cell::Cell;
use std::ffi::c_void;
use std::rc::Rc;

use super::inbox::Inbox;
use super::keys::EndedKeys;
use super::remote_key::RemoteKey;
use super::transfer_state::{Landing, Stream};
use crate::wire::{CHUNK_HEADER_BYTES, Chunk};
use na_core::memory::region::Region;
use na_core::{Error, LocalMem, MsgBuf, OpId};

/// The part of a slot that UCX has a pointer to; only shared references are made of it.
pub(crate) struct Pinned {
    inbox: *const Inbox,
    slot: u32,
    /// The header of a message, or of a piece of a transfer.
    header: Cell<[u8; CHUNK_HEADER_BYTES]>,
    /// Where UCX fetches the data of a chunk; null: nowhere any more.
    source: Cell<Source>,
    /// Names the operation to UCX; null before the call returns and after the callback.
    request: Cell<*mut c_void>,
    finished: Cell<bool>,
}

impl Pinned {
    fn new(inbox: *const Inbox, slot: u32) -> Self {
        Self {
            inbox,
            slot,
            header: Cell::default(),
            source: Cell::default(),
            request: Cell::new(std::ptr::null_mut()),
            finished: Cell::new(false),
        }
    }

    pub(crate) fn inbox(&self) -> *const Inbox {
        self.inbox
    }

    pub(crate) fn slot(&self) -> u32 {
        self.slot
    }

    /// How long the chunk is, with its header.
    pub(crate) fn packed_bytes(&self) -> usize {
        CHUNK_HEADER_BYTES + self.source.get().len
    }

    /// Fills `out` with what is from `offset` on in the chunk; zeros for what was taken away.
    pub(crate) fn pack(&self, offset: usize, out: &mut [u8]) {
        let of_header = CHUNK_HEADER_BYTES.saturating_sub(offset).min(out.len());
        let (head, data) = out.split_at_mut(of_header);
        if of_header > 0 {
            head.copy_from_slice(&self.header.get()[offset..offset + of_header]);
        }
        let Source { region, at, .. } = self.source.get();
        let skipped = (offset + of_header - CHUNK_HEADER_BYTES.min(offset + of_header)) as u64;
        // SAFETY: null, or memory that whoever has set it holds until it is set anew.
        match unsafe { region.as_ref() } {
            Some(region) => {
                let read = region.read_at(at + skipped, data);
                debug_assert!(read, "checked when the transfer began");
            }
            None => data.fill(0),
        }
    }

    /// The callback was made: the request is gone.
    pub(crate) fn finish(&self) {
        self.finished.set(true);
        self.request.set(std::ptr::null_mut());
    }
}

/// Bytes of memory that is held elsewhere.
#[derive(Clone, Copy)]
struct Source {
    region: *const Region,
    at: u64,
    len: usize,
}

impl Default for Source {
    fn default() -> Self {
        Self { region: std::ptr::null(), at: 0, len: 0 }
    }
}

/// The purpose of an operation.
pub(crate) enum Work {
    /// A message; without a number its end was reported already. `end`: what was between us and
    /// the peer has ended, with that; else `answer` bytes of it are counted there.
    Send { op: Option<OpId>, buf: MsgBuf, peer: usize, end: Option<Error>, answer: usize },
    /// Our hello to the peer of that number, which no other peer has. Owns what UCX has a pointer
    /// to.
    Hello(#[allow(dead_code, reason = "kept for UCX")] Vec<u8>, u64),
    /// The word to a caller that it is sent on. Owns what UCX has a pointer to.
    Elsewhere(#[allow(dead_code, reason = "kept for UCX")] Vec<u8>),
    /// A control message to the peer of that number in that session. Owns what UCX has a pointer
    /// to.
    Told(#[allow(dead_code, reason = "kept for UCX")] Vec<u8>, usize, u64),
    /// A sign of life to the peer of that number in that session. Owns what UCX has a pointer to.
    Alive(#[allow(dead_code, reason = "kept for UCX")] Vec<u8>, usize, u64),
    /// A piece of a transfer. Owns what UCX has a pointer to.
    Chunk(Stream, #[allow(dead_code, reason = "kept for UCX")] Vec<u8>),
    /// A piece of a transfer that UCX fetches when it has room; it keeps this memory if it has to
    /// wait for that.
    Packed(Stream, Option<LocalMem>),
    /// A piece of a transfer that UCX reads out of this memory.
    Lent(Stream, LocalMem),
    /// A piece of a transfer that UCX writes.
    Landing(Landing),
    /// A piece of a transfer by this key, which UCX reads out of this memory or writes there.
    Reached(Stream, LocalMem, Rc<RemoteKey>),
    /// A flush, which ends when everything that such a transfer has written has arrived.
    Flushed(Stream),
    /// The end of a connection, after which these keys are over.
    Close(Option<EndedKeys>),
    /// A flush, which ends when connections that were closed have ended: then these keys are over.
    Discarded(Vec<EndedKeys>),
}

impl Work {
    /// The peer whose number it refers to.
    pub(crate) fn peer(&self) -> Option<usize> {
        match self {
            Self::Send { peer, .. } => Some(*peer),
            Self::Packed(stream, _)
            | Self::Lent(stream, _)
            | Self::Landing(Landing { stream, .. })
            | Self::Reached(stream, ..)
            | Self::Flushed(stream) => Some(stream.peer),
            // They say in which session they were given.
            Self::Hello(..)
            | Self::Elsewhere(_)
            | Self::Told(..)
            | Self::Alive(..)
            | Self::Chunk(..)
            | Self::Close(_)
            | Self::Discarded(_) => None,
        }
    }
}

struct OpSlot {
    pinned: Box<Pinned>,
    work: Option<Work>,
}

/// The operations in hand.
pub(crate) struct Slots {
    inbox: *const Inbox,
    slots: Vec<OpSlot>,
    free: Vec<u32>,
    /// How many are sends.
    sends: usize,
}

impl Slots {
    pub(crate) fn new(inbox: *const Inbox) -> Self {
        Self { inbox, slots: Vec::new(), free: Vec::new(), sends: 0 }
    }

    /// Takes a slot for `work`.
    #[inline]
    pub(crate) fn add(&mut self, work: Work) -> u32 {
        self.sends += usize::from(matches!(work, Work::Send { .. }));
        let Some(index) = self.free.pop() else {
            let index = self.slots.len() as u32;
            let pinned = Box::new(Pinned::new(self.inbox, index));
            self.slots.push(OpSlot { pinned, work: Some(work) });
            return index;
        };
        let slot = &mut self.slots[index as usize];
        slot.pinned.finished.set(false);
        slot.work = Some(work);
        index
    }

    /// Returns the pointer that UCX is given.
    #[inline]
    pub(crate) fn pinned(&self, slot: u32) -> *const Pinned {
        &raw const *self.slots[slot as usize].pinned
    }

    /// Sets the header, which stays where it is until the slot is free again.
    #[inline]
    pub(crate) fn set_header(&self, slot: u32, header: &[u8]) -> (*const u8, usize) {
        let place = &self.slots[slot as usize].pinned.header;
        let mut bytes = [0; CHUNK_HEADER_BYTES];
        bytes[..header.len()].copy_from_slice(header);
        place.set(bytes);
        (place.as_ptr().cast(), header.len())
    }

    /// Sets the header of the chunk of a slot, and where its data is. The caller holds that memory
    /// until UCX has fetched it, or the source is set anew.
    #[inline]
    pub(crate) fn set_source(
        &self,
        slot: u32,
        chunk: Chunk,
        source: Option<(&LocalMem, u64, u64)>,
    ) {
        let pinned = &self.slots[slot as usize].pinned;
        pinned.header.set(chunk.to_bytes());
        pinned.source.set(match source {
            Some((memory, at, len)) => {
                Source { region: &raw const **memory.region(), at, len: len as usize }
            }
            None => Source::default(),
        });
    }

    /// UCX goes on with the operation.
    pub(crate) fn started(&self, slot: u32, request: *mut c_void) {
        let pinned = &self.slots[slot as usize].pinned;
        if !pinned.finished.get() {
            pinned.request.set(request);
        }
    }

    /// How UCX knows the operation, if it has not ended.
    pub(crate) fn request(&self, slot: u32) -> Option<*mut c_void> {
        let request = self.slots[slot as usize].pinned.request.get();
        (!request.is_null()).then_some(request)
    }

    /// Returns whether the callback was made, and not handled yet.
    pub(crate) fn is_finished(&self, slot: u32) -> bool {
        self.slots[slot as usize].pinned.finished.get()
    }

    /// Frees a slot whose operation has ended.
    #[inline]
    pub(crate) fn take(&mut self, slot: u32) -> Option<Work> {
        let work = self.slots.get_mut(slot as usize)?.work.take()?;
        self.sends -= usize::from(matches!(work, Work::Send { .. }));
        self.slots[slot as usize].pinned.request.set(std::ptr::null_mut());
        self.free.push(slot);
        Some(work)
    }

    /// How many operations in hand are sends.
    pub(crate) fn sends(&self) -> usize {
        self.sends
    }

    /// The work in a slot.
    pub(crate) fn work(&mut self, slot: u32) -> Option<&mut Work> {
        self.slots.get_mut(slot as usize)?.work.as_mut()
    }

    /// Every operation in hand.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut Work)> {
        let used = self.slots.iter_mut().enumerate();
        used.filter_map(|(index, slot)| Some((index as u32, slot.work.as_mut()?)))
    }

    /// Every operation in hand, to look at.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Work)> {
        let used = self.slots.iter().enumerate();
        used.filter_map(|(index, slot)| Some((index as u32, slot.work.as_ref()?)))
    }

    /// For a worker that is left behind: memory that UCX has in hand stays valid for ever, and
    /// callers that wait for it get another buffer.
    pub(crate) fn abandon(&mut self) {
        for slot in &mut self.slots {
            if slot.pinned.request.get().is_null() {
                continue;
            }
            match &mut slot.work {
                Some(Work::Send { buf, .. }) => {
                    let other = copy_of(buf);
                    std::mem::forget(std::mem::replace(buf, other));
                }
                // UCX moves nothing more of the memory, which is its owner's again.
                Some(Work::Reached(_, _, key)) => std::mem::forget(key.clone()),
                Some(Work::Close(_) | Work::Discarded(_)) => {}
                work => std::mem::forget(work.take()),
            }
            let (inbox, index) = (slot.pinned.inbox, slot.pinned.slot);
            std::mem::forget(std::mem::replace(
                &mut slot.pinned,
                Box::new(Pinned::new(inbox, index)),
            ));
        }
    }

    /// Takes out everything; for when the worker is gone.
    pub(crate) fn drain(&mut self) -> Vec<Work> {
        self.free.clear();
        self.sends = 0;
        self.slots.drain(..).filter_map(|slot| slot.work).collect()
    }
}

/// A buffer like this one, with the same message.
pub(crate) fn copy_of(buf: &MsgBuf) -> MsgBuf {
    let mut copy = MsgBuf::with_capacity(buf.capacity());
    copy.spare_mut()[..buf.len()].copy_from_slice(buf.as_slice());
    copy.set_len(buf.len());
    copy
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test says by panicking what went wrong")]

    use super::*;
    use na_core::{Access, Memory, RegionTable};

    #[test]
    fn a_chunk_is_packed_from_any_byte_on_and_is_zeros_once_it_was_taken_away() {
        let memory = Memory::from_vec((0..100).collect());
        let memory = RegionTable::default().register(memory, Access::ReadOnly).unwrap();
        let mut slots = Slots::new(std::ptr::null());
        let slot = slots.add(Work::Close(None));
        let chunk = Chunk { put: true, id: 5, offset: 6 };
        slots.set_source(slot, chunk, Some((&memory, 10, 40)));
        let pinned = &slots.slots[slot as usize].pinned;
        let data: Vec<u8> = (10..50).collect();
        let whole = [&chunk.to_bytes()[..], &data].concat();
        assert_eq!(pinned.packed_bytes(), whole.len());
        for from in 0..whole.len() {
            for to in from..whole.len() {
                let mut out = vec![0xff; to - from];
                pinned.pack(from, &mut out);
                assert_eq!(out, whole[from..to], "{from}..{to}");
            }
        }
        slots.set_source(slot, chunk, None);
        let mut out = vec![0xff; whole.len()];
        pinned.pack(0, &mut out);
        assert_eq!(out, [&chunk.to_bytes()[..], &[0; 40]].concat());
    }
}
