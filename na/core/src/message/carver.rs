//! Large buffers, and the carver that cuts the message buffers of an endpoint out of them.
//!
//! A large buffer is taken in blocks. A block is carved from its beginning to its end, and again
//! from its beginning when all of its parts are back. So a message that is held for long keeps one
//! block out of use, and not the whole buffer. Where few messages are held, they lie in few blocks,
//! which stay in the cache.
//!
//! When all blocks have parts out and none has room, a message gets memory of its own, just as long
//! as the message. Receiving goes on whatever is held, and such memory is free as soon as it is
//! given back.

use std::fmt;

use super::MsgBuf;
use super::block::Carved;
use crate::Error;
use prim::sync::Arc;
use prim::sync::atomic::{AtomicU64, Ordering};

/// Least bytes of a block, but of shorter large buffers.
const BLOCK_BYTES_MIN: usize = 64 << 10;

/// Messages of the greatest length for which a block has room.
const BLOCK_MESSAGES: usize = 16;

/// Messages that get memory of their own before blocks are looked through again; more where there
/// are more blocks.
const SCAN_PAUSE: usize = 64;

/// For each so many blocks, once more one is wanted before all are looked through again, that to
/// begin one stays cheap, however many there are.
const SCAN_BLOCKS: usize = 64;

/// Memory where [`Endpoint::multi_recv_unexpected`](crate::Endpoint::multi_recv_unexpected) puts
/// messages: a number of large buffers, each for many messages. A clone stands for the same
/// buffers.
///
/// An endpoint takes the memory when it needs it. It gives the memory back when the endpoint and
/// the last message are dropped.
///
/// ```
/// # mod na { pub use na_core::*; pub use na_sim as sim; }
/// # let network = na::sim::Network::builder("doc-large-buffers").build()?;
/// # let a = network.open("a", &na::OpenOptions::listening(true))?;
/// # let b = network.open("b", &na::OpenOptions::listening(true))?;
/// use na::{LargeBuffers, OpId, Tag};
///
/// assert!(b.has_multi_recv());
/// let buffers = LargeBuffers::new(4, 1 << 20, b.limits().unexpected_bytes_max);
/// b.multi_recv_unexpected(OpId(1), 100, &buffers)?; // the next hundred messages
/// a.send_unexpected(OpId(1), &a.lookup(b.self_addr().uri())?, Tag(0), a.alloc_msg())?;
/// let mut received = 0;
/// while received == 0 {
///     a.poll(16, &mut drop)?;
///     received += b.poll(16, &mut drop)?;
/// }
/// assert_eq!(buffers.copied(), 0, "there was room in a large buffer");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Counterpart: `NA_Msg_buf_alloc` with `NA_MULTI_RECV`.
#[derive(Clone)]
pub struct LargeBuffers(Arc<Shared>);

struct Shared {
    block_bytes: usize,
    blocks_max: usize,
    copied: AtomicU64,
    blocks: AtomicU64,
}

impl LargeBuffers {
    /// At most `count` buffers of `bytes` each, for messages of up to `message_bytes_max`. If they
    /// are all in use, or there are none, each message gets memory of its own.
    pub fn new(count: usize, bytes: usize, message_bytes_max: usize) -> Self {
        // What parts take beyond their message is part of the buffer.
        let bytes = bytes.clamp(1 << 10, u32::MAX as usize);
        let block_bytes =
            BLOCK_MESSAGES.saturating_mul(message_bytes_max).max(BLOCK_BYTES_MIN).min(bytes);
        let blocks_max = count.saturating_mul(bytes / block_bytes);
        let (copied, blocks) = (AtomicU64::new(0), AtomicU64::new(0));
        Self(Arc::new(Shared { block_bytes, blocks_max, copied, blocks }))
    }

    /// Returns whether a receive may be for so many messages.
    #[doc(hidden)]
    pub fn check(count: usize) -> Result<(), Error> {
        match count {
            0 => Err(Error::InvalidArgument("a receive for no message".to_owned())),
            _ => Ok(()),
        }
    }

    /// Messages so far that got memory of their own.
    ///
    /// Counterpart: `multi_recv_copy` among Mercury's counters.
    pub fn copied(&self) -> u64 {
        self.0.copied.load(Ordering::Relaxed)
    }

    /// Bytes that endpoints have taken now, to put messages there.
    pub fn bytes_taken(&self) -> u64 {
        self.0.blocks.load(Ordering::Relaxed) * self.0.block_bytes as u64
    }
}

impl fmt::Debug for LargeBuffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shared { block_bytes, blocks_max, .. } = *self.0;
        write!(f, "LargeBuffers({} of {blocks_max} x {block_bytes} bytes)", self.bytes_taken())
    }
}

impl PartialEq for LargeBuffers {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// Gives messages their memory, for one endpoint.
#[derive(Default)]
pub(crate) struct Carver {
    /// `None`: each message gets its own.
    buffers: Option<LargeBuffers>,
    current: Option<Carved>,
    others: Vec<Carved>,
    /// The others from here on have not been looked at since the last time from their beginning.
    from: usize,
    /// So often a block is wanted before that is done again.
    pause: usize,
}

impl Carver {
    /// Messages go to `buffers` from now on.
    pub(crate) fn use_buffers(&mut self, buffers: &LargeBuffers) {
        if self.buffers.as_ref() != Some(buffers) {
            *self = Self::default();
            self.buffers = Some(buffers.clone());
        }
    }

    /// A buffer for a message of `len` bytes.
    #[inline(always)]
    pub(crate) fn carve(&mut self, len: usize) -> MsgBuf {
        if let Some(current) = &mut self.current
            && let Some(buf) = current.carve(len)
        {
            return buf;
        }
        self.carve_elsewhere(len)
    }

    #[cold]
    fn carve_elsewhere(&mut self, len: usize) -> MsgBuf {
        let Some(LargeBuffers(buffers)) = self.buffers.clone() else {
            return MsgBuf::with_capacity(len);
        };
        if Carved::part_bytes(len) <= buffers.block_bytes
            && self.begin_another(&buffers)
            && let Some(current) = &mut self.current
            && let Some(buf) = current.carve(len)
        {
            return buf;
        }
        buffers.copied.fetch_add(1, Ordering::Relaxed);
        MsgBuf::with_capacity(len)
    }

    /// Goes on with a block that has no part out: an early one, so that the last ones rest, or a
    /// new one. `false`: there is none.
    fn begin_another(&mut self, buffers: &Shared) -> bool {
        let others = self.others.len();
        let anew = self.pause == 0;
        if anew {
            (self.from, self.pause) = (0, others / SCAN_BLOCKS);
        } else {
            self.pause -= 1;
        }
        while let Some(other) = self.others.get_mut(self.from) {
            if other.is_whole()
                && let Some(current) = &mut self.current
            {
                std::mem::swap(other, current);
                return true;
            }
            self.from += 1;
        }
        if self.made() < buffers.blocks_max {
            buffers.blocks.fetch_add(1, Ordering::Relaxed);
            let last = self.current.replace(Carved::new(buffers.block_bytes));
            self.others.extend(last);
            return true;
        }
        if anew {
            self.pause = others.max(SCAN_PAUSE);
        }
        false
    }

    fn made(&self) -> usize {
        self.others.len() + usize::from(self.current.is_some())
    }
}

impl Drop for Carver {
    fn drop(&mut self) {
        if let Some(buffers) = &self.buffers {
            buffers.0.blocks.fetch_sub(self.made() as u64, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2 buffers of 2 blocks, each with room for 16 messages.
    fn small() -> LargeBuffers {
        LargeBuffers::new(2, 128 << 10, 4096 - 16)
    }

    fn carver(buffers: &LargeBuffers) -> Carver {
        let mut carver = Carver::default();
        carver.use_buffers(buffers);
        carver
    }

    fn carve(carver: &mut Carver, count: usize) -> Vec<MsgBuf> {
        (0..count).map(|_| carver.carve(4096 - 16)).collect()
    }

    #[test]
    fn the_bounds_are_those_of_all_buffers_together() {
        let buffers = small();
        let mut carver = carver(&buffers);
        assert_eq!(buffers.bytes_taken(), 0, "nothing is taken before it is needed");
        let mut held = carve(&mut carver, 64);
        assert!(held.iter().all(MsgBuf::is_part));
        assert_eq!((buffers.bytes_taken(), buffers.copied()), (256 << 10, 0));
        held.extend(carve(&mut carver, 5));
        assert!(held[64..].iter().all(|buf| !buf.is_part() && buf.capacity() == 4096 - 16));
        assert_eq!((buffers.bytes_taken(), buffers.copied()), (256 << 10, 5));
        drop(carver);
        assert_eq!(buffers.bytes_taken(), 0, "its messages have the rest");
    }

    #[test]
    fn a_message_held_for_ever_keeps_its_block_alone() {
        let buffers = small();
        let mut carver = carver(&buffers);
        let mut all = carve(&mut carver, 64);
        let kept = all.swap_remove(17);
        drop(all);
        for _ in 0..10 {
            // One block has no room; the other three are enough.
            assert!(carve(&mut carver, 48).iter().all(MsgBuf::is_part));
        }
        assert_eq!((buffers.bytes_taken(), buffers.copied()), (256 << 10, 0));
        drop(kept);
        assert!(carve(&mut carver, 64).iter().all(MsgBuf::is_part));
    }

    #[test]
    fn where_all_blocks_are_held_messages_go_on_and_blocks_come_back() {
        let buffers = small();
        let mut carver = carver(&buffers);
        let mut all = carve(&mut carver, 64);
        // One of each block stays.
        let kept: Vec<MsgBuf> = [63, 47, 31, 15].map(|at| all.swap_remove(at)).into();
        drop(all);
        assert!(!carve(&mut carver, 100).iter().any(MsgBuf::is_part));
        drop(kept);
        let again = carve(&mut carver, 2 * SCAN_PAUSE);
        assert!(again.iter().any(MsgBuf::is_part));
    }

    #[test]
    fn very_many_blocks_come_back_as_well() {
        let buffers = LargeBuffers::new(300, 1 << 10, 1000);
        let mut carver = carver(&buffers);
        let fill = |carver: &mut Carver, count: usize| -> Vec<MsgBuf> {
            (0..count).map(|_| carver.carve(1000)).collect()
        };
        let held = fill(&mut carver, 290);
        assert_eq!((buffers.bytes_taken(), buffers.copied()), (290 << 10, 0));
        drop(held);
        // A few new ones at most, until the others are looked through.
        let held = fill(&mut carver, 280);
        assert!(held.iter().all(MsgBuf::is_part));
        assert!(buffers.bytes_taken() <= 295 << 10, "{buffers:?}");
        let all = fill(&mut carver, 20);
        assert_eq!(all.iter().filter(|buf| buf.is_part()).count(), 20);
        assert_eq!((buffers.bytes_taken(), buffers.copied()), (300 << 10, 0));
        // Looked through once for as many messages as there are blocks.
        assert!(!fill(&mut carver, 1000).iter().any(MsgBuf::is_part));
        drop((held, all));
        assert!(fill(&mut carver, 400).iter().any(MsgBuf::is_part));
    }

    #[test]
    fn what_is_longer_than_a_block_gets_memory_of_its_own() {
        let buffers = LargeBuffers::new(4, 8 << 10, 4096);
        let mut carver = carver(&buffers);
        let buf = carver.carve(100_000);
        assert!(!buf.is_part() && buf.capacity() == 100_000);
        assert!(carver.carve(100).is_part());
        assert_eq!(buffers.copied(), 1);
    }

    #[test]
    fn without_buffers_each_message_has_its_own() {
        for buffers in [LargeBuffers::new(0, 1 << 20, 4096), LargeBuffers::new(0, 0, usize::MAX)] {
            let mut carver = carver(&buffers);
            assert!(!carve(&mut carver, 100).iter().any(MsgBuf::is_part));
            assert_eq!((buffers.bytes_taken(), buffers.copied()), (0, 100));
        }
    }

    #[test]
    fn a_lone_message_has_the_memory_of_the_one_before() {
        let buffers = small();
        let mut carver = carver(&buffers);
        let first = carver.carve(100).spare_mut().as_ptr();
        for _ in 0..1000 {
            assert_eq!(carver.carve(100).spare_mut().as_ptr(), first);
        }
    }
}
