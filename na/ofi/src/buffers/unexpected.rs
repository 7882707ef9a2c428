//! Buffers for unexpected messages, which libfabric fills, and messages that wait in them.
//!
//! Messages are copied from here to the receive that takes them, or are kept by the matcher up to
//! its bound. Beyond the bound they stay in their buffer, which is not posted again until they are
//! gone. So a receiver that posts no receives fills these buffers, and then libfabric holds its
//! senders back, as its provider can.
//!
//! # Errors in a buffer for many messages
//!
//! An error ends one message. A flag (`FI_MULTI_RECV`) tells whether it also ends the buffer, as it
//! does for a message. But `sockets`, and others before libfabric 2.1, leave the flag out though
//! they are done with the buffer (`na_ofi_cq_process_error` in `na_ofi.c`), while `tcp` goes on to
//! fill it. Such a buffer stays as it is, for ever if need be, and another one takes its place, up
//! to [`MULTI_BUFFERS_MAX`].

use std::collections::{HashMap, VecDeque};
use std::ops::Range;

use super::local::LocalBuffer;
use crate::fabrics::fabric::Mr;
use na_core::base::cheap::IntBuildHasher;
use na_core::{Addr, Tag};

/// Buffers, and messages of the greatest length for which each has room, where one takes many.
const MULTI_BUFFERS: usize = 4;
const MULTI_MESSAGES: usize = 64;

/// Most such buffers, with those in doubt.
const MULTI_BUFFERS_MAX: usize = 16;

/// Least bytes of such a buffer.
const MULTI_BYTES_MIN: usize = 256 << 10;

/// Buffers where each takes one message, unless the provider takes few receives.
const SINGLE_BUFFERS: usize = 256;

/// A buffer. Behind a pointer, because libfabric writes to one part while we read another.
struct Buffer {
    /// Registered, for providers that want that, from the first post on.
    memory: LocalBuffer,
    /// libfabric has it.
    posted: bool,
    /// libfabric may be done with it without a word.
    in_doubt: bool,
    /// Messages that wait in it.
    waiting: usize,
}

impl Buffer {
    fn new(bytes: usize) -> Self {
        let memory = LocalBuffer::unregistered(bytes);
        Self { memory, posted: false, in_doubt: false, waiting: 0 }
    }

    fn place(&self) -> (*mut u8, usize) {
        (self.memory.place(), self.memory.len())
    }

    /// The message at a place that [`Unexpected::locate`] has found.
    fn bytes(&self, place: &Range<usize>) -> &[u8] {
        let (memory, room) = self.place();
        debug_assert!(place.start <= place.end && place.end <= room);
        // SAFETY: inside the buffer, whose bytes were all written once; libfabric fills each place
        // of a posted buffer once, and none is posted again whose messages wait (`idle`), so nobody
        // writes there while `self` is borrowed.
        unsafe { std::slice::from_raw_parts(memory.wrapping_add(place.start), place.len()) }
    }
}

/// A message that waits in its buffer.
pub(crate) struct Waiting {
    pub(crate) buffer: u32,
    pub(crate) from: Addr,
    pub(crate) tag: Tag,
    pub(crate) place: Range<usize>,
}

/// All buffers.
pub(crate) struct Unexpected {
    /// One buffer takes many messages.
    pub(crate) multi: bool,
    /// The last buffer was refused, which is told once.
    pub(crate) refused: bool,
    bytes: usize,
    buffers: Vec<Buffer>,
    /// Buffers that are to be posted.
    idle: Vec<u32>,
    /// Messages that wait, by peer, in order; no queue is empty.
    waiting: HashMap<u64, VecDeque<Waiting>, IntBuildHasher>,
}

impl Unexpected {
    /// For a provider that takes `receives_max` receives at a time.
    pub(crate) fn new(multi: bool, message_bytes_max: usize, receives_max: usize) -> Self {
        let (count, bytes) = match multi {
            true => (MULTI_BUFFERS, (MULTI_MESSAGES * message_bytes_max).max(MULTI_BYTES_MIN)),
            // The rest is for answers.
            false => ((receives_max / 2).clamp(1, SINGLE_BUFFERS), message_bytes_max),
        };
        let buffers = (0..count).map(|_| Buffer::new(bytes)).collect();
        let idle = (0..count as u32).rev().collect();
        Self { multi, refused: false, bytes, buffers, idle, waiting: HashMap::default() }
    }

    /// No buffers, for an endpoint that is left open.
    pub(crate) fn none() -> Self {
        let (buffers, idle, waiting) = (Vec::new(), Vec::new(), HashMap::default());
        Self { multi: false, refused: false, bytes: 0, buffers, idle, waiting }
    }

    /// Returns the place and the length of a buffer that is to be posted.
    pub(crate) fn place(&self, number: u32) -> (*mut u8, usize) {
        self.buffers[number as usize].place()
    }

    /// The registration of a buffer, which `register` makes of its place if there is none.
    pub(crate) fn registration<E>(
        &mut self,
        number: u32,
        register: impl FnOnce((*mut u8, usize)) -> Result<Mr, E>,
    ) -> Result<&Mr, E> {
        let buffer = &mut self.buffers[number as usize];
        let place = buffer.place();
        match &mut buffer.memory.mr {
            Some(mr) => Ok(mr),
            none => Ok(none.insert(register(place)?)),
        }
    }

    /// Ends the registrations, before the endpoint is closed to which they are bound.
    pub(crate) fn end_registrations(&mut self) {
        self.buffers.iter_mut().for_each(|buffer| buffer.memory.end_registration());
    }

    /// Returns whether there are buffers to be posted.
    pub(crate) fn has_idle(&self) -> bool {
        !self.idle.is_empty()
    }

    /// Returns whether a descriptor will tell when more can be posted: there are none, or
    /// libfabric, which did not take more by the last poll, has some, which end.
    pub(crate) fn may_sleep(&self) -> bool {
        !self.has_idle() || self.refused || self.has_posted()
    }

    /// Returns whether libfabric has any.
    pub(crate) fn has_posted(&self) -> bool {
        self.buffers.iter().any(|buffer| buffer.posted)
    }

    /// Takes a buffer to be posted: [`posted`](Self::posted) or [`put_back`](Self::put_back)
    /// follows.
    pub(crate) fn next_idle(&mut self) -> Option<u32> {
        self.idle.pop()
    }

    pub(crate) fn posted(&mut self, number: u32) {
        self.buffers[number as usize].posted = true;
    }

    pub(crate) fn put_back(&mut self, number: u32) {
        self.idle.push(number);
    }

    /// libfabric is done with a buffer.
    pub(crate) fn given_back(&mut self, number: u32) {
        let buffer = &mut self.buffers[number as usize];
        (buffer.posted, buffer.in_doubt) = (false, false);
        if buffer.waiting == 0 {
            self.idle.push(number);
        }
    }

    /// libfabric may be done with a buffer, and does not say so: one more is posted.
    pub(crate) fn doubt(&mut self, number: u32) {
        if std::mem::replace(&mut self.buffers[number as usize].in_doubt, true) {
            return;
        }
        if self.buffers.len() < MULTI_BUFFERS_MAX {
            self.idle.push(self.buffers.len() as u32);
            self.buffers.push(Buffer::new(self.bytes));
        }
    }

    /// Returns where in a buffer a message is by libfabric's word; `None` if that is not in the
    /// buffer.
    pub(crate) fn locate(&self, number: u32, start: *const u8, len: usize) -> Option<Range<usize>> {
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
    pub(crate) fn bytes(&self, number: u32, place: &Range<usize>) -> &[u8] {
        self.buffers[number as usize].bytes(place)
    }

    /// Leaves a message where it is.
    pub(crate) fn keep(&mut self, message: Waiting) {
        self.buffers[message.buffer as usize].waiting += 1;
        self.waiting.entry(message.from.peer_id()).or_default().push_back(message);
    }

    /// Returns whether a message of that peer waits: later ones go behind it.
    pub(crate) fn holds(&self, peer: u64) -> bool {
        self.waiting.contains_key(&peer)
    }

    /// Returns whether any message waits.
    pub(crate) fn holds_any(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Hands out what waits, of each peer in order, until `take` does not take it.
    pub(crate) fn deliver(&mut self, mut take: impl FnMut(&Addr, Tag, &[u8]) -> bool) {
        let Self { waiting, buffers, idle, .. } = self;
        waiting.retain(|_, messages| {
            while let Some(Waiting { buffer: number, from, tag, place }) = messages.front() {
                let buffer = &mut buffers[*number as usize];
                if !take(from, *tag, buffer.bytes(place)) {
                    break;
                }
                buffer.waiting -= 1;
                if buffer.waiting == 0 && !buffer.posted {
                    idle.push(*number);
                }
                messages.pop_front();
            }
            !messages.is_empty()
        });
    }

    /// Forgets what waits: nobody will take it.
    pub(crate) fn forget_waiting(&mut self) {
        self.waiting.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(buffer: u32, peer: u64, place: Range<usize>) -> Waiting {
        let from = Addr::with_state(format!("ofi+tcp://{peer}"), 1, peer, prim::sync::Arc::new(()));
        Waiting { buffer, from, tag: Tag(place.start as u32), place }
    }

    /// All that are idle.
    fn posted(unexpected: &mut Unexpected) -> Vec<u32> {
        let all: Vec<u32> = std::iter::from_fn(|| unexpected.next_idle()).collect();
        all.iter().for_each(|number| unexpected.posted(*number));
        all
    }

    #[test]
    fn a_buffer_comes_back_when_libfabric_and_its_messages_are_done() {
        let mut unexpected = Unexpected::new(false, 64, usize::MAX);
        assert_eq!(posted(&mut unexpected).len(), SINGLE_BUFFERS);
        assert!(!unexpected.has_idle() && unexpected.has_posted());
        unexpected.keep(message(3, 7, 0..10));
        unexpected.given_back(3);
        assert!(!unexpected.has_idle(), "a message waits in it");
        unexpected.given_back(4);
        assert_eq!(posted(&mut unexpected), [4]);
        unexpected.deliver(|_, _, _| false);
        assert!(unexpected.holds(7) && !unexpected.has_idle());
        unexpected.deliver(|_, _, bytes| bytes.len() == 10);
        assert!(!unexpected.holds_any());
        assert_eq!(posted(&mut unexpected), [3]);
    }

    #[test]
    fn messages_wait_for_those_of_their_peer_only() {
        let mut unexpected = Unexpected::new(true, 512, usize::MAX);
        posted(&mut unexpected);
        for (peer, start) in [(1, 0), (2, 10), (1, 20), (2, 30)] {
            unexpected.keep(message(0, peer, start..start + 10));
        }
        unexpected.given_back(0);
        let mut taken = Vec::new();
        unexpected.deliver(|from, tag, _| {
            let takes = from.peer_id() == 2;
            taken.extend(takes.then_some(tag.0));
            takes
        });
        assert_eq!(taken, [10, 30]);
        assert!(unexpected.holds(1) && !unexpected.holds(2) && !unexpected.has_idle());
        unexpected.deliver(|_, tag, _| {
            taken.push(tag.0);
            true
        });
        assert_eq!(taken, [10, 30, 0, 20]);
        assert_eq!(posted(&mut unexpected), [0]);
    }

    #[test]
    fn a_buffer_in_doubt_stays_and_is_replaced_within_a_bound() {
        let mut unexpected = Unexpected::new(true, 512, usize::MAX);
        posted(&mut unexpected);
        let (start, len) = unexpected.place(0);
        unexpected.doubt(0);
        unexpected.doubt(0);
        let fresh = posted(&mut unexpected);
        assert_eq!(fresh, [MULTI_BUFFERS as u32], "one more, once");
        assert!(
            unexpected.locate(0, start.wrapping_add(len - 1), 1).is_some(),
            "it is still there"
        );
        for number in 1..MULTI_BUFFERS_MAX as u32 {
            unexpected.doubt(number);
            posted(&mut unexpected);
        }
        assert_eq!(unexpected.buffers.len(), MULTI_BUFFERS_MAX);
        // libfabric was not done with it, and is now.
        unexpected.given_back(0);
        assert_eq!(posted(&mut unexpected), [0]);
    }

    #[test]
    fn a_message_outside_of_its_buffer_is_noticed() {
        let unexpected = Unexpected::new(false, 64, usize::MAX);
        let (start, len) = unexpected.place(0);
        assert_eq!(unexpected.locate(0, std::ptr::null(), 5), Some(0..5));
        assert_eq!(unexpected.locate(0, start, len), Some(0..len));
        for (start, len) in [
            (start, len + 1),
            (start.wrapping_sub(1), 1),
            (start.wrapping_add(len), 1),
            (start.wrapping_add(1), usize::MAX),
        ] {
            assert_eq!(unexpected.locate(0, start, len), None);
        }
    }
}
