//! One block of memory, carved into message buffers.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

use super::{HEAD_BYTES, Head, MsgBuf};
use prim::parts::ReturnedParts;

/// The alignment of a part: a cache line, so that threads which use neighbouring parts do not
/// disturb each other.
const PART_ALIGN: usize = 64;

/// The head of a block, at its beginning.
#[repr(C)]
pub(super) struct BlockHead {
    parts: ReturnedParts,
    /// Where the memory begins, which need not be aligned, and how long it is.
    memory: NonNull<u8>,
    bytes: usize,
}

/// Where the first part is.
const FIRST: usize = size_of::<BlockHead>().next_multiple_of(PART_ALIGN);

impl BlockHead {
    fn layout(bytes: usize) -> Layout {
        Layout::from_size_align(bytes, align_of::<Head>()).expect("far below the address space")
    }

    /// A part is not used any more.
    ///
    /// # Safety
    ///
    /// It was carved from this block, and comes back once.
    #[inline]
    pub(super) unsafe fn give_back(this: NonNull<Self>) {
        // SAFETY: the block lives as long as it has parts; the borrow ends before it is freed, here
        // or, by the count, in another thread.
        let is_last = unsafe { (*this.as_ptr()).parts.come_back() };
        if is_last {
            // SAFETY: the count says so.
            unsafe { Self::free(this) };
        }
    }

    /// # Safety
    ///
    /// Nobody uses the block, nor a part of it, from now on.
    #[cold]
    unsafe fn free(this: NonNull<Self>) {
        // SAFETY: it is still there.
        let Self { memory, bytes, .. } = unsafe { this.read() };
        // SAFETY: allocated by `Carved::new` with this layout; its own head needs no drop.
        unsafe { dealloc(memory.as_ptr(), Self::layout(bytes)) };
    }
}

/// A block as the carver sees it. Dropped, it lives on until its last part is given back.
pub(super) struct Carved {
    block: NonNull<BlockHead>,
    /// Parts that were given out.
    given: u64,
    /// Where the next part is, and where the block ends, from its beginning.
    at: usize,
    end: usize,
}

// SAFETY: it owns the block together with the parts, whose count is atomic; it alone carves. None
// of that is tied to a thread.
unsafe impl Send for Carved {}

impl Carved {
    /// A block with room for `bytes` of parts.
    pub(super) fn new(bytes: usize) -> Self {
        let end = FIRST + bytes;
        // Aligned by hand: so much zeroed memory comes untouched from the system, unless an
        // alignment is asked for.
        let bytes = end + PART_ALIGN;
        let layout = BlockHead::layout(bytes);
        // SAFETY: it is not empty.
        let memory = unsafe { alloc_zeroed(layout) };
        let Some(memory) = NonNull::new(memory) else { handle_alloc_error(layout) };
        let aside = memory.align_offset(PART_ALIGN);
        debug_assert!(aside < PART_ALIGN);
        // SAFETY: less than the alignment, for which there is room.
        let block = unsafe { memory.add(aside) }.cast::<BlockHead>();
        // SAFETY: aligned, and inside of fresh memory.
        unsafe { block.write(BlockHead { parts: ReturnedParts::new(), memory, bytes }) };
        Self { block, given: 0, at: FIRST, end }
    }

    fn parts(&self) -> &ReturnedParts {
        // SAFETY: the block stays until it was left; nobody has it mutably.
        unsafe { &(*self.block.as_ptr()).parts }
    }

    /// Bytes of a block that a message of `len` bytes takes.
    #[inline]
    pub(super) fn part_bytes(len: usize) -> usize {
        // No overflow: a message is far shorter than the address space.
        (HEAD_BYTES + len).next_multiple_of(PART_ALIGN)
    }

    /// Returns whether no part is out.
    #[inline]
    pub(super) fn is_whole(&self) -> bool {
        self.parts().are_back(self.given)
    }

    /// A part for `len` bytes; `None`: there is no room. Begins anew where no part is out, so that
    /// a lone message finds the memory of the one before in the cache.
    #[inline(always)]
    pub(super) fn carve(&mut self, len: usize) -> Option<MsgBuf> {
        if self.is_whole() {
            self.at = FIRST;
        }
        let size = Self::part_bytes(len);
        if size > self.end - self.at {
            return None;
        }
        // SAFETY: inside of the block.
        let place = unsafe { self.block.cast::<u8>().add(self.at) };
        self.at += size;
        self.given += 1;
        // A message fits into a block, whose length fits.
        let head = Head { home: Some(self.block), capacity: len as u32, len: 0 };
        // SAFETY:
        // - so many bytes are there from `place` on, aligned more than a head has to be, and zero
        //   or what an earlier part has left behind;
        // - nobody else has them: parts lie one behind the other since the last time that none was
        //   out, and what was done with those before is over (`is_whole`);
        // - it is counted.
        Some(unsafe { MsgBuf::place(place, head) })
    }
}

impl Drop for Carved {
    fn drop(&mut self) {
        if self.parts().leave(self.given) {
            // SAFETY: no part is out, and we are the only other one.
            unsafe { BlockHead::free(self.block) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(carved: &mut Carved, len: usize, with: u8) -> Option<MsgBuf> {
        let mut buf = carved.carve(len)?;
        buf.spare_mut().fill(with);
        buf.set_len(len);
        Some(buf)
    }

    #[test]
    fn parts_lie_apart_and_are_aligned() {
        let mut carved = Carved::new(4096);
        let sizes = [0, 1, 47, 48, 49, 500];
        let parts: Vec<MsgBuf> = sizes
            .iter()
            .zip(1..)
            .map(|(len, with)| filled(&mut carved, *len, with).expect("room"))
            .collect();
        for ((buf, len), with) in parts.iter().zip(sizes).zip(1..) {
            assert_eq!((buf.len(), buf.capacity()), (len, len));
            assert!(buf.as_slice().iter().all(|byte| *byte == with));
            assert_eq!(buf.0.addr().get() % PART_ALIGN, 0);
        }
        assert!(!carved.is_whole());
        drop(parts);
        assert!(carved.is_whole());
    }

    #[test]
    fn a_full_block_begins_anew_when_all_parts_are_back() {
        let mut carved = Carved::new(256);
        let mut parts: Vec<MsgBuf> = std::iter::from_fn(|| filled(&mut carved, 48, 1)).collect();
        assert_eq!(parts.len(), 4);
        let first = parts[0].0;
        // In any order; until the last one, nothing is used again.
        for at in [2, 0, 1] {
            parts.remove(at);
            assert!(carved.carve(1).is_none());
        }
        parts.clear();
        assert_eq!(carved.carve(1).map(|buf| buf.0), Some(first));
    }

    #[test]
    fn a_block_lives_as_long_as_its_parts() {
        let mut carved = Carved::new(256);
        let parts = [7, 8].map(|with| filled(&mut carved, 30, with).expect("room"));
        drop(carved);
        let [one, two] = parts;
        assert_eq!(one.as_slice(), [7; 30]);
        drop(one);
        let ended = std::thread::spawn(move || {
            assert_eq!(two.as_slice(), [8; 30]);
        });
        ended.join().expect("the last part frees the block");
    }

    #[test]
    fn parts_come_back_from_any_thread() {
        let mut carved = Carved::new(64 * 32);
        let (send, receive) = std::sync::mpsc::channel::<MsgBuf>();
        let other = std::thread::spawn(move || {
            receive.into_iter().filter(|buf| buf.as_slice() == [9; 40]).count()
        });
        let mut given = 0;
        while given < if cfg!(miri) { 100 } else { 10_000 } {
            let Some(buf) = filled(&mut carved, 40, 9) else {
                std::thread::yield_now();
                continue;
            };
            given += 1;
            send.send(buf).expect("it listens");
        }
        drop(send);
        assert_eq!(other.join().expect("no panic"), given);
        assert!(carved.is_whole());
    }
}
