//! Message buffers: owned, reusable, moved into an operation and back.
//!
//! - Imports: `base`.
//! - Reading order: this file · `block.rs` (a large buffer that parts are carved out of) ·
//!   `carver.rs` (blocks for a receive of many messages).

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ptr::NonNull;

use self::block::BlockHead;
use crate::Error;

mod block;
mod carver;

pub(crate) use self::carver::Carver;
pub use self::carver::LargeBuffers;

/// A buffer for one message. Its capacity is fixed; its length is that of the message that was
/// written or received.
///
/// Obtain one from [`Endpoint::alloc_msg`](crate::Endpoint::alloc_msg), so that a transport which
/// needs registered memory can supply it, and reuse it: no operation allocates. Those that
/// [`multi_recv_unexpected`](crate::Endpoint::multi_recv_unexpected) brings are as long as their
/// message, most of them parts of a large buffer: drop them to give them back.
///
/// ```
/// # mod na { pub use na_core::*; pub use na_sim as sim; }
/// # let network = na::sim::Network::builder("doc-msg-buf").build()?;
/// # let a = network.open("a", &na::OpenOptions::listening(true))?;
/// # let b = network.open("b", &na::OpenOptions::listening(true))?;
/// let mut buf = a.alloc_msg();
/// assert!(buf.try_extend(b"head") && buf.try_extend(b" and body"));
/// assert_eq!(buf.as_slice(), b"head and body");
/// assert!(!buf.try_extend(&[0; 4096]), "more than a message may have");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Counterpart: `NA_Msg_buf_alloc`.
///
/// One word, because it moves through an operation a dozen times.
pub struct MsgBuf(NonNull<Head>);

/// The header before the bytes, in one piece of memory with them.
#[repr(C)]
struct Head {
    /// The block that it is a part of; `None`: memory of its own.
    home: Option<NonNull<BlockHead>>,
    capacity: u32,
    len: u32,
}

/// Bytes before the message.
const HEAD_BYTES: usize = size_of::<Head>();

// SAFETY: it owns its bytes alone, which are not tied to a thread; what counts the parts of a block
// is atomic.
unsafe impl Send for MsgBuf {}
// SAFETY: a shared reference only reads.
unsafe impl Sync for MsgBuf {}

impl MsgBuf {
    /// An empty buffer that can hold `capacity` bytes.
    ///
    /// # Panics
    ///
    /// From 4 GiB on.
    pub fn with_capacity(capacity: usize) -> Self {
        let stored = u32::try_from(capacity).expect("a message buffer is shorter than 4 GiB");
        let layout = layout(capacity);
        // SAFETY: it is not empty: the head is not.
        let memory = unsafe { alloc_zeroed(layout) };
        let Some(memory) = NonNull::new(memory) else { handle_alloc_error(layout) };
        let head = Head { home: None, capacity: stored, len: 0 };
        // SAFETY: fresh memory, with room for a head and `capacity` bytes, which are zero.
        unsafe { Self::place(memory, head) }
    }

    /// A buffer in `memory`.
    ///
    /// # Safety
    ///
    /// For writing and as long as the buffer lives, `memory` is aligned as a head is, and has room
    /// for one and for `head.capacity` bytes behind it, which were written once; nobody else uses
    /// any of that. Without a home, it was allocated with the layout of that capacity; else it is a
    /// part of that block, which counts it.
    #[inline]
    unsafe fn place(memory: NonNull<u8>, head: Head) -> Self {
        let place = memory.cast::<Head>();
        // SAFETY: contract of this function.
        unsafe { place.write(head) };
        Self(place)
    }

    #[inline]
    fn head(&self) -> &Head {
        // SAFETY: `place` has written it; only we have it.
        unsafe { self.0.as_ref() }
    }

    #[inline]
    fn head_mut(&mut self) -> &mut Head {
        // SAFETY: `place` has written it; only we have it.
        unsafe { self.0.as_mut() }
    }

    /// The bytes behind the head.
    #[inline]
    fn start(&self) -> NonNull<u8> {
        // SAFETY: they are in the same piece of memory (`place`).
        unsafe { self.0.add(1) }.cast()
    }

    /// Returns whether it is a part of a large buffer, which waits for it. Such a buffer is to be
    /// dropped as soon as the message is not needed any more, and not used for another one.
    #[inline]
    pub fn is_part(&self) -> bool {
        self.head().home.is_some()
    }

    /// Bytes it can hold.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.head().capacity as usize
    }

    /// Bytes of the message.
    #[inline]
    pub fn len(&self) -> usize {
        self.head().len as usize
    }

    /// Returns whether the message is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The message.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: at most `capacity` bytes (`set_len`), all of which were written once (`place`),
        // and which only we have.
        unsafe { std::slice::from_raw_parts(self.start().as_ptr(), self.len()) }
    }

    /// The message, to change in place.
    #[inline]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        let len = self.len();
        &mut self.spare_mut()[..len]
    }

    /// The whole capacity, to write into; follow with [`set_len`](Self::set_len).
    #[inline]
    pub fn spare_mut(&mut self) -> &mut [u8] {
        // SAFETY: so many bytes are there, all of which were written once (`place`), and which only
        // we have.
        unsafe { std::slice::from_raw_parts_mut(self.start().as_ptr(), self.capacity()) }
    }

    /// Sets the message's length.
    ///
    /// # Panics
    ///
    /// If `len` exceeds the capacity.
    #[inline]
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.capacity(), "message length beyond the buffer's capacity");
        self.head_mut().len = len as u32;
    }

    /// Makes the message empty.
    pub fn clear(&mut self) {
        self.head_mut().len = 0;
    }

    /// Returns whether a receive of messages of up to `needed` bytes may have it.
    #[doc(hidden)]
    #[inline]
    pub fn check_room(&self, needed: usize) -> Result<(), Error> {
        let capacity = self.capacity();
        match capacity < needed {
            true => Err(Error::InvalidArgument(format!(
                "a receive buffer of {capacity} bytes, {needed} needed"
            ))),
            false => Ok(()),
        }
    }

    /// Appends `bytes`; `false` (and no change) when they do not fit.
    #[must_use]
    pub fn try_extend(&mut self, bytes: &[u8]) -> bool {
        let start = self.len();
        let end = start + bytes.len();
        let Some(room) = self.spare_mut().get_mut(start..end) else { return false };
        room.copy_from_slice(bytes);
        self.set_len(end);
        true
    }
}

/// The memory of a buffer of its own.
fn layout(capacity: usize) -> Layout {
    let size = HEAD_BYTES + capacity;
    Layout::from_size_align(size, align_of::<Head>()).expect("far below the address space")
}

impl Drop for MsgBuf {
    #[inline]
    fn drop(&mut self) {
        match self.head().home {
            // SAFETY: a part of that block, which nobody uses from now on.
            Some(home) => unsafe { BlockHead::give_back(home) },
            None => {
                let layout = layout(self.capacity());
                // SAFETY: allocated by `with_capacity`, with this layout; nobody uses it from now
                // on.
                unsafe { dealloc(self.0.cast().as_ptr(), layout) };
            }
        }
    }
}

impl fmt::Debug for MsgBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MsgBuf({} of {} bytes)", self.len(), self.capacity())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_holds_what_fits() {
        for capacity in [0, 1, 15, 64, 4096] {
            let mut buf = MsgBuf::with_capacity(capacity);
            assert_eq!((buf.len(), buf.capacity(), buf.is_empty()), (0, capacity, true));
            assert!(buf.spare_mut().iter().all(|byte| *byte == 0));
            let bytes: Vec<u8> = (0..capacity).map(|at| at as u8).collect();
            assert!(buf.try_extend(&bytes));
            assert!(!buf.try_extend(b"x"), "it is full");
            assert_eq!(buf.as_slice(), bytes);
            assert_eq!(buf.as_mut_slice(), bytes);
            buf.clear();
            assert!(buf.is_empty() && buf.try_extend(&[]));
            assert_eq!(buf.spare_mut(), bytes, "what was there stays");
        }
    }

    #[test]
    #[should_panic(expected = "beyond the buffer's capacity")]
    fn a_length_beyond_the_capacity_panics() {
        MsgBuf::with_capacity(4).set_len(5);
    }

    #[test]
    fn a_buffer_is_one_word() {
        assert_eq!(size_of::<Option<MsgBuf>>(), size_of::<usize>());
    }
}
