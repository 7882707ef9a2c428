//! The part of a handle's memory that is in this process: the segments at the owner, or data that
//! came embedded.

use std::ops::Range;

use na::{LocalMem, RawSegment};

use super::handle::Bulk;
use crate::HgError;

/// Bytes of a handle that are in this process.
///
/// ```
/// # use hg::*;
/// use na::{Access, Memory};
///
/// # let endpoint = na::open("na+sim://doc-local-bytes/a", &na::OpenOptions::listening(true))?;
/// # let core = Core::<u32>::new(endpoint, HgOptions::default())?;
/// # let own = core.self_addr();
/// let memory = core.endpoint().register(Memory::from_vec(b"data".to_vec()), Access::ReadOnly)?;
/// let bulk = core.bulk_handle(&memory);
/// match bulk.local(1, 2)? {
///     LocalBytes::Memory(part) => {
///         let mut bytes = [0; 2];
///         assert!(part.read_at(0, &mut bytes));
///         assert_eq!(&bytes, b"at");
///     }
///     LocalBytes::Embedded(bytes) => panic!("it did not come in a message: {bytes:?}"),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub enum LocalBytes<'a> {
    /// Registered memory. Peers may read or write it at any time, so these are not slices.
    Memory(LocalPart),
    /// Data that came inside the descriptor; it does not change.
    Embedded(&'a [u8]),
}

/// Part of the registered memory of this process, which it keeps registered: the owner that lent or
/// exposed the memory gets it back after this value is gone.
///
/// For reading: the memory may be that of a `&[u8]`. Its owner has what is writable.
///
/// ```
/// # use hg::*;
/// use na::{Access, Memory};
///
/// # let endpoint = na::open("na+sim://doc-local-part/a", &na::OpenOptions::listening(true))?;
/// # let core = Core::<u32>::new(endpoint, HgOptions::default())?;
/// # let own = core.self_addr();
/// let pieces = Memory::from_vecs(vec![b"one".to_vec(), b"another".to_vec()]);
/// let memory = core.endpoint().register(pieces, Access::ReadOnly)?;
/// let bulk = core.bulk_handle(&memory);
/// let LocalBytes::Memory(part) = bulk.local(1, 4)? else { panic!("it is here") };
/// let lengths: Vec<_> = part.segments().iter().map(|segment| segment.len).collect();
/// assert_eq!(lengths, [2, 2], "of both pieces");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct LocalPart {
    memory: LocalMem,
    range: Range<u64>,
    segments: Vec<RawSegment>,
}

impl LocalPart {
    /// The segments of the memory, in order; none of them is empty. They are valid for as long as
    /// this value. A caller that makes references of the pointers must know that no peer accesses
    /// the bytes meanwhile, and one that writes through them must know that the memory was not lent
    /// for reading.
    pub fn segments(&self) -> &[RawSegment] {
        &self.segments
    }

    /// Copies `out.len()` bytes from `offset` in this part, while peers may write them. `false`,
    /// and nothing copied, when they are not all inside.
    #[must_use]
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> bool {
        let first = self.range.start.checked_add(offset);
        let end = first.and_then(|first| first.checked_add(out.len() as u64));
        match first.filter(|_| end.is_some_and(|end| end <= self.range.end)) {
            Some(first) => self.memory.read_at(first, out),
            None => false,
        }
    }
}

impl Bulk {
    /// The `len` bytes from `offset`, where they are, without a copy.
    ///
    /// # Errors
    ///
    /// [`HgError::Bulk`] when the bytes are elsewhere (the handle is virtual, without embedded
    /// data), no longer registered, or not in its range.
    ///
    /// Counterpart: `HG_Bulk_access`.
    pub fn local(&self, offset: u64, len: u64) -> Result<LocalBytes<'_>, HgError> {
        let end = offset.checked_add(len).filter(|end| *end <= self.len()).ok_or_else(|| {
            HgError::Bulk(format!(
                "{len} bytes at offset {offset} leave the memory of {} bytes",
                self.len()
            ))
        })?;
        if let Some(data) = self.eager_data() {
            // No truncation: both are within a slice.
            return Ok(LocalBytes::Embedded(&data[offset as usize..end as usize]));
        }
        let Some(local) = self.0.as_ref().and_then(|described| described.local.as_ref()) else {
            return Err(HgError::Bulk("the memory is elsewhere; transfer its bytes".into()));
        };
        let memory = local
            .upgrade()
            .ok_or_else(|| HgError::Bulk("the memory is no longer registered".into()))?;
        if memory.elsewhere().is_some() {
            return Err(HgError::Bulk("the memory is that of a device; transfer its bytes".into()));
        }
        let segments = cut(memory.segments(), offset, end);
        Ok(LocalBytes::Memory(LocalPart { memory, range: offset..end, segments }))
    }
}

/// Returns the parts of `segments` that lie between byte `start` and byte `end`, counted over all
/// segments.
fn cut(segments: &[RawSegment], start: u64, end: u64) -> Vec<RawSegment> {
    let mut at = 0;
    let part = |segment: &RawSegment| {
        let (first, last) = (at, at + segment.len as u64);
        at = last;
        let (from, to) = (start.max(first), end.min(last));
        // No truncation: differences within a segment.
        (from < to).then(|| RawSegment {
            ptr: segment.ptr.wrapping_add((from - first) as usize),
            len: (to - from) as usize,
        })
    };
    segments.iter().filter_map(part).collect()
}
