//! Buffers for unexpected messages, which libfabric fills, and what waits in them.
//!
//! Messages are copied from here to the receive that takes them, or are kept by the matcher up to
//! its bound; beyond, they stay in their buffer, which is not posted again until they are gone. So
//! a receiver that posts no receives fills these buffers, and then libfabric holds its senders
//! back, as its provider can.

use std::collections::VecDeque;
use std::ops::Range;
use std::ptr::NonNull;

use crate::{Addr, Tag};

/// Buffers, and messages of the greatest length for which each has room, where one takes many.
const MULTI_BUFFERS: usize = 4;
const MULTI_MESSAGES: usize = 64;

/// Least bytes of such a buffer.
const MULTI_BYTES_MIN: usize = 256 << 10;

/// Buffers where each takes one message.
const SINGLE_BUFFERS: usize = 256;

/// A buffer. Behind a pointer, because libfabric writes to one part while we read another.
pub(super) struct Buffer {
    memory: NonNull<[u8]>,
    /// libfabric has it.
    pub(super) posted: bool,
    /// Messages that wait in it.
    waiting: usize,
}

// SAFETY: it owns its memory, which is not tied to a thread.
unsafe impl Send for Buffer {}

impl Buffer {
    fn new(bytes: usize) -> Self {
        let memory = NonNull::from(Box::leak(vec![0; bytes].into_boxed_slice()));
        Self { memory, posted: false, waiting: 0 }
    }

    pub(super) fn place(&self) -> (*mut u8, usize) {
        (self.memory.as_ptr().cast(), self.memory.len())
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: leaked by `new`; the endpoint, which had the address, is closed before (the order
        // of the fields in `Core`).
        drop(unsafe { Box::from_raw(self.memory.as_ptr()) });
    }
}

/// A message that waits in its buffer.
pub(super) struct Waiting {
    pub(super) buffer: u32,
    pub(super) from: Addr,
    pub(super) tag: Tag,
    pub(super) place: Range<usize>,
}

/// All buffers.
pub(super) struct Unexpected {
    pub(super) multi: bool,
    buffers: Vec<Buffer>,
    pub(super) waiting: VecDeque<Waiting>,
}

impl Unexpected {
    pub(super) fn new(multi: bool, message_bytes_max: usize) -> Self {
        let (count, bytes) = match multi {
            true => (MULTI_BUFFERS, (MULTI_MESSAGES * message_bytes_max).max(MULTI_BYTES_MIN)),
            false => (SINGLE_BUFFERS, message_bytes_max),
        };
        let buffers = (0..count).map(|_| Buffer::new(bytes)).collect();
        Self { multi, buffers, waiting: VecDeque::new() }
    }

    pub(super) fn buffer(&mut self, number: u32) -> &mut Buffer {
        &mut self.buffers[number as usize]
    }

    /// Those to be posted.
    pub(super) fn idle(&self) -> Vec<u32> {
        let buffers = self.buffers.iter().enumerate();
        let idle = buffers.filter(|(_, buffer)| !buffer.posted && buffer.waiting == 0);
        idle.map(|(number, _)| number as u32).collect()
    }

    pub(super) fn has_idle(&self) -> bool {
        self.buffers.iter().any(|buffer| !buffer.posted && buffer.waiting == 0)
    }

    /// Where in a buffer libfabric says that a message is; `None` if that is not in it.
    pub(super) fn locate(&self, number: u32, start: *const u8, len: usize) -> Option<Range<usize>> {
        let (memory, room) = self.buffers.get(number as usize)?.place();
        // Providers that fill a buffer once may leave the place out.
        let offset = match start.is_null() {
            true => 0,
            false => start.addr().checked_sub(memory.addr())?,
        };
        let end = offset.checked_add(len)?;
        (end <= room).then_some(offset..end)
    }

    /// The message at a place that [`locate`](Self::locate) has found.
    pub(super) fn bytes(&self, number: u32, place: &Range<usize>) -> &[u8] {
        let (memory, room) = self.buffers[number as usize].place();
        debug_assert!(place.start <= place.end && place.end <= room);
        // SAFETY: inside the buffer, whose bytes were all written once; libfabric fills each place
        // of a posted buffer once, and posts none again whose messages wait (`idle`), so nobody
        // writes there while `self` is borrowed.
        unsafe { std::slice::from_raw_parts(memory.wrapping_add(place.start), place.len()) }
    }

    /// Leaves a message where it is.
    pub(super) fn keep(&mut self, message: Waiting) {
        self.buffers[message.buffer as usize].waiting += 1;
        self.waiting.push_back(message);
    }

    /// A message was taken.
    pub(super) fn release(&mut self, number: u32) {
        self.buffers[number as usize].waiting -= 1;
    }

    /// Whether a message of that peer waits: later ones go behind it.
    pub(super) fn holds(&self, peer: u64) -> bool {
        self.waiting.iter().any(|message| message.from.peer_id() == peer)
    }
}
