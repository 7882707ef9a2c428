//! The bytes of a bulk descriptor.
//!
//! All numbers are little endian:
//!
//! ```text
//! u64 length | u32 segments | u32 flags | segments x { u64 base, u64 length }
//! one memory handle (flag REGV, or one segment):   u64 size, handle
//!                                     flag SM:     u64 size, handle
//! otherwise:                   segments x u64 size, handles of the segments that have one
//!                              flag SM: the same block again
//! flag BIND:   u64 size, address, u8 context
//! flag EAGER:  the data of all segments
//! ```
//!
//! A segment with base 0 (C's NULL) has no handle. The single handle of one segment with base 0 is
//! left out altogether, its size included, unless flag REGV is set.

use crate::ProcError;

/// Where the flags stand.
pub(crate) const FLAGS_AT: usize = 12;

/// Where the memory handle of [`BulkDesc::opaque`] stands: behind length, number of segments,
/// flags, one segment, and its own length.
pub(crate) const OPAQUE_HANDLE_AT: usize = 8 + 4 + 4 + 16 + 8;

/// Where the memory handles of [`BulkDesc::of_parts`] begin: behind length, number of segments,
/// flags, segments, and the lengths of the handles.
pub(crate) const fn part_handles_at(parts: usize) -> usize {
    8 + 4 + 4 + parts * (16 + 8)
}

/// Bits of the flags word. The upper half is ours: bits 16 to 19 are the kind of the memory, 20 to
/// 31 the number of its device (see [`MemoryAttr`](crate::MemoryAttr)); both are 0 for host memory,
/// and C peers do not look at them.
pub mod flags {
    /// Peers may read.
    pub const READ: u32 = 1;
    /// Peers may write.
    pub const WRITE: u32 = 2;
    /// The data itself is at the end of the descriptor.
    pub const EAGER: u32 = 4;
    /// A second handle, for shared memory, follows the first.
    pub const SM: u32 = 8;
    /// The owner's address travels with the descriptor.
    pub const BIND: u32 = 32;
    /// One memory handle covers all segments.
    pub const REGV: u32 = 64;
}

/// One segment, as its owner describes it.
///
/// ```
/// use hg::proc::descriptor::{BulkDesc, Segment, flags};
///
/// let descriptor = BulkDesc::opaque(4096, flags::READ, b"handle");
/// assert_eq!(descriptor.segments, [Segment { base: 0, len: 4096 }], "no peer is told an address");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// The beginning of the segment: an address at C owners. 0 means that there is no memory.
    pub base: u64,
    /// Bytes.
    pub len: u64,
}

/// The way in which memory handles are attached. The bytes of each belong to the transport.
///
/// ```
/// use hg::proc::descriptor::{BulkDesc, Handles, flags};
///
/// let parts = [1, 2].map(|n| na::MemPart { base: n << 12, len: 4096, handle: vec![n as u8; 24] });
/// match BulkDesc::of_parts(&parts, flags::READ, None).handles {
///     Handles::PerSegment(handles) => assert_eq!(handles[1], Some(&[2; 24][..])),
///     Handles::One(handle) => panic!("one for both: {handle:?}"),
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Handles<'a> {
    /// One for all segments; `None` when there is no memory.
    One(Option<&'a [u8]>),
    /// One for each segment; `None` for a segment with base 0.
    PerSegment(Vec<Option<&'a [u8]>>),
}

/// The owner's address, so that a third party can transfer.
///
/// ```
/// use hg::proc::descriptor::{Binding, BulkDesc, flags};
///
/// let parts = [na::MemPart { base: 1 << 12, len: 4096, handle: vec![1; 24] }];
/// // A length, an address, and none for shared memory.
/// let address = [&10_u64.to_le_bytes(), &b"an address"[..], &[0; 8]].concat();
/// let binding = Binding { address: &address, context: 2 };
/// let bytes = BulkDesc::of_parts(&parts, flags::READ, Some(binding)).to_bytes();
/// assert_eq!(BulkDesc::from_bytes(&bytes)?.binding, Some(binding));
/// # Ok::<(), hg::ProcError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Binding<'a> {
    /// The address, as C's `HG_Addr_serialize` writes it: u64 length and the network layer's bytes,
    /// then the same for shared memory if its Mercury was built with that.
    pub address: &'a [u8],
    /// The context.
    pub context: u8,
}

/// A descriptor, taken apart.
///
/// ```
/// use hg::proc::descriptor::{BulkDesc, flags};
///
/// let descriptor = BulkDesc::opaque(4096, flags::READ | flags::WRITE, b"handle");
/// let bytes = descriptor.to_bytes();
/// assert_eq!(BulkDesc::from_bytes(&bytes)?, descriptor);
/// assert!(BulkDesc::from_bytes(&bytes[..20]).is_err());
/// # Ok::<(), hg::ProcError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BulkDesc<'a> {
    /// Bytes in all segments.
    pub len: u64,
    /// See [`flags`].
    pub flags: u32,
    /// The segments.
    pub segments: Vec<Segment>,
    /// Memory handles.
    pub handles: Handles<'a>,
    /// Memory handles for shared memory (flag `SM`).
    pub sm_handles: Option<Handles<'a>>,
    /// The owner (flag `BIND`).
    pub binding: Option<Binding<'a>>,
    /// The data (flag `EAGER`).
    pub eager: Option<&'a [u8]>,
}

impl<'a> BulkDesc<'a> {
    /// Memory of one segment with one handle, as our own transports describe it: the handle covers
    /// all of it, and addresses are told to no peer. `access` in the bits of [`flags`].
    pub fn opaque(len: u64, access: u32, handle: &'a [u8]) -> Self {
        // REGV, because base 0 alone would say that there is no handle.
        let regv = if len > 0 { flags::REGV } else { 0 };
        Self {
            len,
            flags: access | regv,
            segments: vec![Segment { base: 0, len }],
            handles: Handles::One((len > 0).then_some(handle)),
            sm_handles: None,
            binding: None,
            eager: None,
        }
    }

    /// Memory whose parts have a handle each, as C describes it where its transport has no handle
    /// for several. `access` in the bits of [`flags`].
    pub fn of_parts(parts: &'a [na::MemPart], access: u32, binding: Option<Binding<'a>>) -> Self {
        let handle = |part: &'a na::MemPart| Some(&part.handle[..]);
        let handles = match parts {
            [part] => Handles::One(handle(part)),
            parts => Handles::PerSegment(parts.iter().map(handle).collect()),
        };
        let bind = if binding.is_some() { flags::BIND } else { 0 };
        Self {
            len: parts.iter().map(|part| part.len).sum(),
            flags: access | bind,
            segments: parts.iter().map(|part| Segment { base: part.base, len: part.len }).collect(),
            handles,
            sm_handles: None,
            binding,
            eager: None,
        }
    }

    /// Encodes it. The optional parts must agree with the flags, or it cannot be decoded.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64 + self.eager.map_or(0, <[u8]>::len));
        out.extend(self.len.to_le_bytes());
        out.extend((self.segments.len() as u32).to_le_bytes());
        out.extend(self.flags.to_le_bytes());
        for segment in &self.segments {
            out.extend(segment.base.to_le_bytes());
            out.extend(segment.len.to_le_bytes());
        }
        put_handles(&mut out, &self.handles);
        if let Some(handles) = &self.sm_handles {
            put_handles(&mut out, handles);
        }
        if let Some(binding) = &self.binding {
            put_sized(&mut out, binding.address);
            out.push(binding.context);
        }
        out.extend(self.eager.unwrap_or_default());
        out
    }

    /// Decodes what a peer sent; it must take all of `bytes`.
    ///
    /// # Errors
    ///
    /// [`ProcError`] with the offset from the start of the descriptor.
    pub fn from_bytes(bytes: &'a [u8]) -> Result<Self, ProcError> {
        let mut reader = Reader { bytes, at: 0 };
        let len = reader.u64()?;
        let count = reader.u32()?;
        let flags = reader.u32()?;
        if flags & (flags::READ | flags::WRITE) == 0 {
            return Err(reader.invalid("a bulk descriptor allows neither reading nor writing"));
        }
        let segments = reader.segments(count as usize, len)?;
        let one = flags & flags::REGV != 0 || count == 1;
        let handles = reader.handles(&segments, flags, one)?;
        let sm_handles = match flags & flags::SM {
            0 => None,
            _ => Some(reader.handles(&segments, flags, one)?),
        };
        let binding = match flags & flags::BIND {
            0 => None,
            _ => Some(Binding { address: reader.sized()?, context: reader.take(1)?[0] }),
        };
        let eager = match flags & flags::EAGER {
            0 => None,
            _ => Some(reader.take(len)?),
        };
        match reader.left() {
            0 => Ok(Self { len, flags, segments, handles, sm_handles, binding, eager }),
            left => Err(ProcError::Trailing { at: reader.at, left }),
        }
    }
}

fn put_sized(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend((bytes.len() as u64).to_le_bytes());
    out.extend(bytes);
}

fn put_handles(out: &mut Vec<u8>, handles: &Handles<'_>) {
    match handles {
        Handles::One(None) => {}
        Handles::One(Some(handle)) => put_sized(out, handle),
        Handles::PerSegment(handles) => {
            for handle in handles {
                out.extend((handle.map_or(0, <[u8]>::len) as u64).to_le_bytes());
            }
            handles.iter().flatten().for_each(|handle| out.extend(*handle));
        }
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    fn invalid(&self, what: &str) -> ProcError {
        ProcError::Invalid { at: self.at, what: what.to_owned() }
    }

    fn take(&mut self, len: u64) -> Result<&'a [u8], ProcError> {
        let end = usize::try_from(len).ok().and_then(|len| self.at.checked_add(len));
        let taken = end.and_then(|end| self.bytes.get(self.at..end));
        let taken = taken.ok_or(ProcError::End { at: self.at, need: len, left: self.left() })?;
        self.at += taken.len();
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], ProcError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N as u64)?);
        Ok(array)
    }

    fn u64(&mut self) -> Result<u64, ProcError> {
        self.array().map(u64::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, ProcError> {
        self.array().map(u32::from_le_bytes)
    }

    fn sized(&mut self) -> Result<&'a [u8], ProcError> {
        let len = self.u64()?;
        self.take(len)
    }

    fn segments(&mut self, count: usize, len: u64) -> Result<Vec<Segment>, ProcError> {
        if count > self.left() / 16 {
            let (at, left) = (self.at, self.left());
            return Err(ProcError::Count { at, count: count as u64, left });
        }
        let mut segments = Vec::with_capacity(count);
        let mut sum = 0u64;
        for _ in 0..count {
            let segment = Segment { base: self.u64()?, len: self.u64()? };
            sum = sum.checked_add(segment.len).ok_or_else(|| {
                self.invalid("the segments of a bulk descriptor exceed 2^64 bytes")
            })?;
            segments.push(segment);
        }
        if sum != len {
            let what = "the length of a bulk descriptor is not the sum of its segments";
            return Err(self.invalid(what));
        }
        Ok(segments)
    }

    fn handles(
        &mut self,
        segments: &[Segment],
        flags: u32,
        one: bool,
    ) -> Result<Handles<'a>, ProcError> {
        if one {
            let regv = flags & flags::REGV != 0;
            let memory = regv || segments.first().is_some_and(|first| first.base != 0);
            return Ok(Handles::One(if memory { Some(self.sized()?) } else { None }));
        }
        let mut sizes = Vec::with_capacity(segments.len().min(self.left() / 8));
        for segment in segments {
            let size = self.u64()?;
            if segment.base == 0 && size != 0 {
                return Err(self.invalid("a bulk segment without memory has a memory handle"));
            }
            sizes.push((segment.base != 0).then_some(size));
        }
        let take = |size: Option<u64>| size.map(|size| self.take(size)).transpose();
        sizes.into_iter().map(take).collect::<Result<_, _>>().map(Handles::PerSegment)
    }
}

/// Returns how many bytes of data could be embedded behind the plain descriptor `bytes`. It is none
/// if the descriptor does not allow reading, or has its data already; nor if peers may write the
/// memory, for a peer that has written there is to read what it wrote. (C embeds such data too. To
/// a reader of either kind a descriptor without data is one like any other.)
pub(super) fn embeddable(bytes: &[u8]) -> Option<u64> {
    let (len, rest) = bytes.split_first_chunk::<8>()?;
    let bits = u32::from(*rest.get(FLAGS_AT - 8)?);
    let len = u64::from_le_bytes(*len);
    // Only host memory is ever embedded: a handle of other memory cannot be made here.
    let telling = flags::READ | flags::WRITE | flags::EAGER;
    let plain = bits & telling == flags::READ;
    (plain && len > 0).then_some(len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn hostile_counts_and_sums_are_refused() {
        let ok = BulkDesc::opaque(64, flags::READ, &[7; 24]).to_bytes();
        assert_eq!(ok.len(), 64);
        assert!(BulkDesc::from_bytes(&ok).is_ok());
        let with = |at: usize, bytes: &[u8]| {
            let mut changed = ok.clone();
            changed[at..at + bytes.len()].copy_from_slice(bytes);
            BulkDesc::from_bytes(&changed).map(|desc| desc.len)
        };
        assert!(matches!(with(8, &[0xff; 4]), Err(ProcError::Count { .. })), "segments");
        assert!(matches!(with(0, &[0xff; 8]), Err(ProcError::Invalid { .. })), "length");
        assert!(matches!(with(24, &[0xff; 8]), Err(ProcError::Invalid { .. })), "segment length");
        assert!(matches!(with(32, &[0xff; 8]), Err(ProcError::End { .. })), "handle size");
        assert!(matches!(with(12, &[0; 4]), Err(ProcError::Invalid { .. })), "no access");
    }

    /// As C Margo 0.24 over Mercury 2.4.1 described two segments of 4096 bytes, which may be read
    /// and written, to a peer over `ofi+tcp;ofi_rxm`.
    #[test]
    fn parts_are_described_as_c_does() {
        const BASES: [u64; 2] = [0x55be_35c1_4190, 0x55be_35c1_5190];
        let parts: Vec<na::MemPart> = BASES
            .iter()
            .zip([2u64, 3])
            .map(|(base, key)| na::MemPart {
                base: *base,
                len: 4096,
                handle: [key, 4096, 1, 3, *base, 4096]
                    .iter()
                    .flat_map(|w| w.to_le_bytes())
                    .collect(),
            })
            .collect();
        let ours = BulkDesc::of_parts(&parts, flags::READ | flags::WRITE, None).to_bytes();
        let text = include_str!("../../../tests/vectors/plain-build-level-none-ofi+tcp_rxm.txt");
        let hex: String = ours.iter().map(|byte| format!("{byte:02x}")).collect();
        let request = text.lines().find(|line| line.starts_with("unexpected tag=7 len=216 "));
        assert!(request.expect("the captured request").ends_with(&hex), "{hex}");

        let one = BulkDesc::of_parts(&parts[..1], flags::READ, None).to_bytes();
        let read = BulkDesc::from_bytes(&one).unwrap();
        assert_eq!((read.len, read.flags, read.segments.len()), (4096, flags::READ, 1));
        assert_eq!(read.handles, Handles::One(Some(&parts[0].handle)));
    }

    #[test]
    fn empty_memory_has_no_handle() {
        let bytes = BulkDesc::opaque(0, flags::READ, &[7; 24]).to_bytes();
        assert_eq!(bytes.len(), 32);
        assert_eq!(BulkDesc::from_bytes(&bytes).unwrap().handles, Handles::One(None));
    }

    #[derive(Debug, Clone)]
    struct Parts {
        segments: Vec<Segment>,
        handle: Vec<u8>,
        regv: bool,
        bind: bool,
        sm: bool,
        eager: bool,
    }

    fn parts() -> impl Strategy<Value = Parts> {
        let segment = (0u64..3, 0u64..100).prop_map(|(base, len)| Segment { base, len });
        (
            proptest::collection::vec(segment, 0..6),
            proptest::collection::vec(any::<u8>(), 1..40),
            any::<[bool; 4]>(),
        )
            .prop_map(|(segments, handle, [regv, bind, sm, eager])| Parts {
                segments,
                handle,
                regv,
                bind,
                sm,
                eager,
            })
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(parts in parts()) {
            let Parts { segments, handle, regv, bind, sm, eager } = &parts;
            let len = segments.iter().map(|segment| segment.len).sum::<u64>();
            let data = vec![7; len as usize];
            let handles = if *regv || segments.len() == 1 {
                let memory = *regv || segments[0].base != 0;
                Handles::One(memory.then_some(&handle[..]))
            } else {
                let each = |segment: &Segment| (segment.base != 0).then_some(&handle[..]);
                Handles::PerSegment(segments.iter().map(each).collect())
            };
            let flag = |on: bool, flag: u32| if on { flag } else { 0 };
            let desc = BulkDesc {
                len,
                flags: flags::READ
                    | flag(*regv, flags::REGV)
                    | flag(*bind, flags::BIND)
                    | flag(*sm, flags::SM)
                    | flag(*eager, flags::EAGER),
                segments: segments.clone(),
                sm_handles: sm.then(|| handles.clone()),
                handles,
                binding: bind.then_some(Binding { address: b"address", context: 3 }),
                eager: eager.then_some(&data[..]),
            };
            let bytes = desc.to_bytes();
            prop_assert_eq!(BulkDesc::from_bytes(&bytes).unwrap(), desc);
            for cut in 0..bytes.len() {
                prop_assert!(BulkDesc::from_bytes(&bytes[..cut]).is_err());
            }
        }

        #[test]
        fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = BulkDesc::from_bytes(&bytes);
        }
    }
}
