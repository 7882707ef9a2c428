//! Memory in several segments that moves as one.
//!
//! A transfer counts bytes from an offset on, at either side; only the owner of memory knows how it
//! is cut (`transfer/pieces.rs` of hg). So a row of a matrix at one side can fill scattered buffers
//! at the other in one operation of the network.
//!
//! | who touches it | kept | lent for a closure |
//! |---|---|---|
//! | peers may | `Instance::expose` of a `Vec<Vec<u8>>` | `expose_ref_segments`, `expose_mut_segments` |
//! | our own transfers only | [`BulkSegments`] | |

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Weak};

use na::{Endpoint, LocalMem, Memory, RawSegment};

use crate::memory::buffer::{
    LocalBulk, copy_rest, replace, sealed::Registered, take_back, wait_out,
};
use crate::memory::exposed::owner_of;

/// Several vectors as the local side of transfers: registered once, used often, slices in between.
/// The segmented form of [`BulkBuffer`](crate::bulk_memory::BulkBuffer).
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use margo::{Access, Instance};
///
/// let instance = Instance::builder("na+sm://").start()?;
/// # let exposed = instance.expose(vec![7; 10], Access::ReadOnly)?;
/// # let (from, remote) = (instance.self_addr(), exposed.bulk());
/// let mut rows = instance.memory().bulk_segments(vec![vec![0; 4], vec![0; 6]])?;
/// // `from` has the memory that `remote` describes. The first bytes go into the first row.
/// instance.pull(&from, remote, 0, &mut rows, 0..10)?;
/// assert_eq!(rows.segment(1), [7; 6]);
/// let rows: Vec<Vec<u8>> = rows.into_segments();
/// # assert_eq!(rows.concat(), [7; 10]);
/// # instance.finalize_and_wait()?;
/// # Ok(())
/// # }
/// ```
pub struct BulkSegments {
    memory: LocalMem,
    /// As of a [`BulkBuffer`](crate::bulk_memory::BulkBuffer).
    endpoint: Weak<dyn Endpoint>,
}

impl LocalBulk for BulkSegments {}

impl Registered for BulkSegments {
    fn memory(&self) -> &LocalMem {
        &self.memory
    }

    fn set_aside(&mut self, moved: &Range<usize>) {
        if self.memory.may_be_written() && !self.replace(moved) {
            wait_out(&mut self.memory, &self.endpoint);
        }
    }
}

impl BulkSegments {
    pub(crate) fn new(memory: LocalMem, endpoint: &Arc<dyn Endpoint>) -> Self {
        Self { memory, endpoint: Arc::downgrade(endpoint) }
    }

    /// Takes other memory, which holds the same but for `moved`. `false`: there is none.
    fn replace(&mut self, moved: &Range<usize>) -> bool {
        let fresh = |old: &LocalMem| {
            let mut at = 0;
            let segments = old.segments().iter().map(|segment| {
                let zeroed = Memory::zeroed(segment.len)?.into_owner::<Vec<u8>>();
                let mut bytes = zeroed.expect("that is the owner of zeroed memory");
                copy_rest(old, at, &mut bytes, moved);
                at += bytes.len();
                Ok(bytes)
            });
            segments.collect::<Result<_, na::Error>>().map(Memory::from_vecs)
        };
        replace(&mut self.memory, &self.endpoint, fresh)
    }

    /// Bytes in all segments.
    pub fn len(&self) -> usize {
        // No truncation: it is all in this process.
        self.memory.len() as usize
    }

    /// Returns whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.memory.is_empty()
    }

    /// Returns how many segments there are.
    pub fn count(&self) -> usize {
        self.memory.segments().len()
    }

    /// A segment, without a copy.
    ///
    /// # Panics
    ///
    /// If there is no segment of that number.
    pub fn segment(&self, index: usize) -> &[u8] {
        slice(self, self.memory.segments()[index])
    }

    /// A segment, without a copy.
    ///
    /// # Panics
    ///
    /// If there is no segment of that number.
    pub fn segment_mut(&mut self, index: usize) -> &mut [u8] {
        let segment = self.memory.segments()[index];
        slice_mut(self, segment)
    }

    /// All segments, in order.
    pub fn segments(&self) -> impl ExactSizeIterator<Item = &[u8]> + '_ {
        self.memory.segments().iter().map(|segment| slice(self, *segment))
    }

    /// Calls `f` with the number and the bytes of each segment, in order.
    pub fn for_each_mut(&mut self, mut f: impl FnMut(usize, &mut [u8])) {
        for index in 0..self.count() {
            f(index, self.segment_mut(index));
        }
    }

    /// The vectors. No transfer has them any more, so this does not wait.
    pub fn into_segments(self) -> Vec<Vec<u8>> {
        owner_of(take_back(self.memory))
    }
}

/// A segment of `whole`, which it borrows.
fn slice(whole: &BulkSegments, segment: RawSegment) -> &[u8] {
    debug_assert!(whole.memory.segments().contains(&segment));
    // SAFETY:
    // - valid: `segment` is one of `whole.memory`, which keeps the vectors alive;
    // - initialised: it is the elements of a vector, and transfers only write bytes;
    // - no writer: the key of this memory is in no descriptor, so no peer can name it, and our own
    //   transfers write only while they hold `&mut BulkSegments`: `transfer` returns or unwinds
    //   only after the completion, see `Instance::wait_for`; or while a request owns them, which
    //   gives them back, or drops them, only after the completion, see `bulk_request.rs`; memory
    //   where a peer may still write then is left to it by `set_aside`;
    //   `segment_mut` borrows it mutably too.
    unsafe { std::slice::from_raw_parts(segment.ptr, segment.len) }
}

/// A segment of `whole`, which it borrows mutably.
fn slice_mut(whole: &mut BulkSegments, segment: RawSegment) -> &mut [u8] {
    debug_assert!(whole.memory.segments().contains(&segment));
    // SAFETY: as in `slice`; `&mut BulkSegments` excludes every other slice and every transfer.
    unsafe { std::slice::from_raw_parts_mut(segment.ptr, segment.len) }
}

impl fmt::Debug for BulkSegments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BulkSegments({} bytes in {})", self.len(), self.count())
    }
}
