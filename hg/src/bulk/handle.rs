//! Bulk handles, which name exposed memory in the arguments of an RPC.
//!
//! A [`Bulk`] is a description; it keeps no memory alive. At the owner it also remembers, weakly,
//! which memory it describes, so that small data that peers may only read can travel inside the
//! descriptor ("eager"): then the other side reads it without a transfer, as it was at that time.
//! At any other process it consists of the bytes that came, and is passed on unchanged.
//!
//! The owner alone decides how memory is cut into segments. A handle of ours describes one range,
//! whatever it consists of, so that it is small, and so that a transfer is one operation of the
//! network however many segments there are at either side (up to
//! [`HgOptions::bulk_chunk_bytes`](crate::HgOptions)). Handles of others may have many segments,
//! with one memory handle for all or one for each.

use std::any::type_name;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use na::{Access, Endpoint, LocalMem, MemPart, RemoteMem, WeakMem};
use serde::de::{self, Visitor};
use serde::ser::{self, SerializeTuple};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::attr::{MemoryAttr, MemoryKind};
use super::bind::{self, Bound};
use crate::proc::descriptor::{self as desc, Binding, BulkDesc, Handles};
use crate::proc::{BULK, Bytes};
use crate::{HgError, ProcError};

/// The direction of a transfer, seen from the process that asks for it.
///
/// ```
/// # use hg::*;
/// use na::{Access, Memory};
///
/// # #[derive(Default)]
/// # struct Notes { requests: Vec<RequestHandle<u32>>, ended: Vec<Result<Response, HgError>> }
/// # impl Sink<u32> for Notes {
/// #     fn request(&mut self, request: RequestHandle<u32>) { self.requests.push(request); }
/// #     fn response(&mut self, _: u32, end: Result<Response, HgError>) { self.ended.push(end); }
/// #     fn responded(&mut self, _: u32, _: Result<(), HgError>) {}
/// #     fn bulk(&mut self, _: u32, _: Result<u64, HgError>) {}
/// # }
/// # let mut notes = Notes::default();
/// # let endpoint = na::open("na+sim://doc-bulk-op/a", &na::OpenOptions::listening(true))?;
/// # let core = Core::<u32>::new(endpoint, HgOptions::default())?;
/// # let own = core.self_addr();
/// let theirs = core.endpoint().register(Memory::from_vec(b"data".to_vec()), Access::ReadOnly)?;
/// let local = core.endpoint().register(Memory::zeroed(4)?, Access::ReadWrite)?;
/// core.transfer(BulkOp::Pull, &own, &core.bulk_handle(&theirs), 0, &local, 0, 4, 7)
///     .map_err(|refused| refused.0)?;
/// while core.in_flight() > 0 {
///     core.poll(16, &mut notes)?;
/// }
/// let mut bytes = [0; 4];
/// assert!(local.read_at(0, &mut bytes));
/// assert_eq!(&bytes, b"data");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BulkOp {
    /// From the peer's memory into ours. `HG_BULK_PULL`.
    Pull,
    /// From our memory into the peer's. `HG_BULK_PUSH`.
    Push,
}

/// Names memory that its owner has exposed. Cheap to clone; travels inside RPC arguments and
/// results, and through this crate's encoding only.
///
/// ```
/// # use hg::*;
/// use hg::proc::{from_slice, to_vec};
/// use na::{Access, Memory};
///
/// # let endpoint = na::open("na+sim://doc-bulk/a", &na::OpenOptions::listening(true))?;
/// # let core = Core::<u32>::new(endpoint, HgOptions::default())?;
/// # let own = core.self_addr();
/// let memory = core.endpoint().register(Memory::zeroed(1 << 20)?, Access::ReadOnly)?;
/// let bulk = core.bulk_handle(&memory);
/// assert_eq!((bulk.len(), bulk.access()), (1 << 20, Some(Access::ReadOnly)));
///
/// // Among arguments it goes to a peer, which transfers the bytes by it.
/// let (name, there): (String, Bulk) = from_slice(&to_vec(&("data", &bulk))?)?;
/// assert_eq!((there.len(), there.is_virtual()), (1 << 20, true));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Counterpart: `hg_bulk_t`.
#[derive(Clone)]
pub struct Bulk(pub(super) Option<Arc<Described>>);

pub(super) struct Described {
    /// The descriptor: without embedded data if it is ours, else as it came.
    bytes: Box<[u8]>,
    len: u64,
    access: Access,
    attr: MemoryAttr,
    /// As its owner counts them, if that is told.
    segments: usize,
    /// Memory handles in `bytes`, each with the part of the memory that it covers.
    handles: Vec<Covered>,
    /// Embedded data in `bytes`.
    eager: Option<Range<usize>>,
    /// The owner, if it is told.
    pub(super) bound: Option<Bound>,
    /// At the owner: the memory.
    pub(super) local: Option<WeakMem>,
}

#[derive(Debug, PartialEq, Eq)]
struct Covered {
    start: u64,
    len: u64,
    handle: Range<usize>,
}

impl Covered {
    /// As they stand in the descriptor of [`BulkDesc::of_parts`].
    fn of_parts(parts: &[MemPart]) -> Vec<Self> {
        let (mut start, mut at) = (0, desc::part_handles_at(parts.len()));
        let cover = |part: &MemPart| {
            let covered = Self { start, len: part.len, handle: at..at + part.handle.len() };
            (start, at) = (start + part.len, covered.handle.end);
            covered
        };
        parts.iter().map(cover).collect()
    }
}

/// A part of a peer's memory that one memory handle covers.
#[derive(Debug, Clone)]
pub(crate) struct RemotePart {
    /// Where it begins in the whole.
    pub(crate) start: u64,
    /// Bytes.
    pub(crate) len: u64,
    /// The first byte is the first of this.
    pub(crate) memory: RemoteMem,
}

impl Described {
    /// Takes a descriptor apart.
    fn parse(bytes: &[u8]) -> Result<Self, ProcError> {
        let desc = BulkDesc::from_bytes(bytes)?;
        let access = Access::from_bits((desc.flags & 3) as u8).ok_or(ProcError::Unsupported(
            "a bulk descriptor allows neither reading nor writing",
        ))?;
        // Where a part stands, as a position that survives the copy below.
        let place = |part: &[u8]| {
            let start = part.as_ptr().addr() - bytes.as_ptr().addr();
            start..start + part.len()
        };
        let handles = match &desc.handles {
            Handles::One(None) => Vec::new(),
            Handles::One(Some(handle)) => {
                vec![Covered { start: 0, len: desc.len, handle: place(handle) }]
            }
            Handles::PerSegment(handles) => {
                let mut end = 0;
                let covered = desc.segments.iter().zip(handles).map(|(segment, handle)| {
                    end += segment.len;
                    let start = end - segment.len;
                    handle.map(|handle| Covered { start, len: segment.len, handle: place(handle) })
                });
                covered.flatten().filter(|covered| covered.len > 0).collect()
            }
        };
        let attr = MemoryAttr::from_flags(desc.flags).ok_or(ProcError::Unsupported(
            "a bulk descriptor names a kind of memory that this version does not know",
        ))?;
        let bound = desc.binding.map(|Binding { address, context }| {
            bind::network_address(address).map(|address| Bound { address: place(address), context })
        });
        Ok(Self {
            len: desc.len,
            access,
            attr,
            segments: desc.segments.len(),
            handles,
            bound: bound.transpose()?,
            eager: desc.eager.map(place),
            bytes: bytes.into(),
            local: None,
        })
    }
}

impl Bulk {
    /// The handle of no memory. Counterpart: `HG_BULK_NULL`.
    pub const fn null() -> Self {
        Self(None)
    }

    /// Describes registered memory of this process, with its attributes and its owner's address: in
    /// parts where C peers of the transport expect that form.
    pub(crate) fn describe(
        endpoint: &dyn Endpoint,
        memory: &LocalMem,
        attr: MemoryAttr,
        binding: Option<Binding<'_>>,
    ) -> Self {
        let flags = u32::from(memory.access().bits()) | attr.to_flags();
        // Of what the transport does not move, the owner is told the key.
        let is_here = memory.elsewhere().is_none();
        let may_move = is_here || endpoint.moves_device_memory();
        let parts = if may_move { endpoint.mem_parts(memory) } else { None }
            .filter(|parts| !parts.is_empty());
        let handle;
        let (desc, handles) = match &parts {
            Some(parts) => (BulkDesc::of_parts(parts, flags, binding), Covered::of_parts(parts)),
            None => {
                handle = match is_here {
                    true => endpoint.mem_to_bytes(memory),
                    false => memory.key().to_le_bytes().to_vec(),
                };
                let mut desc = BulkDesc::opaque(memory.len(), flags, &handle);
                if binding.is_some() {
                    (desc.flags, desc.binding) = (desc.flags | desc::flags::BIND, binding);
                }
                let place = desc::OPAQUE_HANDLE_AT..desc::OPAQUE_HANDLE_AT + handle.len();
                let all = Covered { start: 0, len: desc.len, handle: place };
                (desc, if all.len > 0 { vec![all] } else { Vec::new() })
            }
        };
        let bytes = desc.to_bytes();
        Self(Some(Arc::new(Described {
            len: desc.len,
            access: memory.access(),
            attr,
            segments: memory.segments().len(),
            handles,
            eager: None,
            bound: binding.map(|binding| Bound::at_the_end_of(&bytes, &binding)),
            local: Some(memory.downgrade()),
            bytes: bytes.into(),
        })))
    }

    /// Reads a descriptor that a peer sent.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self, ProcError> {
        match bytes.is_empty() {
            true => Ok(Self::null()),
            false => Ok(Self(Some(Arc::new(Described::parse(bytes)?)))),
        }
    }

    /// The memory, at its owner and while it is registered.
    pub(crate) fn memory(&self) -> Option<LocalMem> {
        self.0.as_ref()?.local.as_ref()?.upgrade()
    }

    /// Returns whether this is the handle of no memory. A handle of empty memory is not.
    pub fn is_null(&self) -> bool {
        self.0.is_none()
    }

    /// Bytes of memory. Counterpart: `HG_Bulk_get_size`.
    pub fn len(&self) -> u64 {
        self.0.as_ref().map_or(0, |described| described.len)
    }

    /// Returns whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the access that the owner allows; `None` for the null handle. Counterpart:
    /// `HG_Bulk_get_flags`.
    pub fn access(&self) -> Option<Access> {
        self.0.as_ref().map(|described| described.access)
    }

    /// Returns the kind of memory; `None` for the null handle.
    pub fn attr(&self) -> Option<MemoryAttr> {
        self.0.as_ref().map(|described| described.attr)
    }

    /// Returns whether the memory is that of a device.
    #[doc(hidden)]
    #[inline]
    pub fn is_of_device(&self) -> bool {
        self.0.as_ref().is_some_and(|described| described.attr.kind() != MemoryKind::Host)
    }

    /// Returns the key of memory of a device, by which its owner knows it, whom one has to ask for
    /// a transfer. `None`: its transport moves it.
    #[doc(hidden)]
    pub fn device_key(&self) -> Option<u64> {
        let described = self.0.as_ref().filter(|_| self.is_of_device())?;
        let [Covered { start: 0, len, handle }] = &*described.handles else { return None };
        let key = described.bytes[handle.clone()].try_into().ok()?;
        (*len == described.len).then(|| u64::from_le_bytes(key))
    }

    /// As [`device_key`](Self::device_key), also of memory of our own that our transport moves for
    /// others.
    #[doc(hidden)]
    pub fn own_device_key(&self, endpoint: &dyn Endpoint) -> Option<u64> {
        let of_transport = || {
            let described = self.0.as_ref()?;
            let first = &described.bytes[described.handles.first()?.handle.clone()];
            let (key, start) = endpoint.region_told_by(first)?;
            (start == 0).then_some(key)
        };
        self.device_key().or_else(of_transport)
    }

    /// Segments: at the owner, those that the memory was made of, empty ones included; elsewhere,
    /// those of the descriptor (one, when the owner is of this crate: how it cuts its memory is not
    /// told). Counterpart: `HG_Bulk_get_segment_count`.
    pub fn segment_count(&self) -> usize {
        self.0.as_ref().map_or(0, |described| described.segments)
    }

    /// Returns whether the memory is elsewhere: the handle came in a message. Counterpart:
    /// `HG_BULK_VIRT`.
    pub fn is_virtual(&self) -> bool {
        self.0.as_ref().is_some_and(|described| described.local.is_none())
    }

    /// The data, if it came inside the descriptor: reading it needs no transfer.
    pub fn eager_data(&self) -> Option<&[u8]> {
        let described = self.0.as_ref()?;
        described.eager.clone().map(|range| &described.bytes[range])
    }

    /// The descriptor, as it is sent when no data is embedded; empty for the null handle.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_ref().map_or(&[], |described| &described.bytes)
    }

    /// Returns the parts that a transfer needs. They cover the memory in its order, and none of
    /// them is empty.
    pub(crate) fn remote_parts(&self, endpoint: &dyn Endpoint) -> Result<Vec<RemotePart>, HgError> {
        let Some(described) = &self.0 else { return Ok(Vec::new()) };
        let mut parts = Vec::with_capacity(described.handles.len());
        let mut end = 0;
        for Covered { start, len, handle } in &described.handles {
            if *start != end {
                break;
            }
            let memory = endpoint.mem_from_bytes(&described.bytes[handle.clone()])?;
            parts.push(RemotePart { start: *start, len: *len, memory });
            end += len;
        }
        if end != described.len {
            return Err(HgError::Bulk(format!(
                "the peer's descriptor has no memory handle for byte {end} of {}",
                described.len
            )));
        }
        Ok(parts)
    }
}

impl fmt::Debug for Bulk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(described) => write!(f, "Bulk({} bytes, {:?})", described.len, described.access),
            None => f.write_str("Bulk(null)"),
        }
    }
}

/// Two elements under a reserved name: the plain descriptor, then the data. The encoder takes the
/// second only if the message has room, and corrects the first accordingly.
impl Serialize for Bulk {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // Other formats would see two byte strings and lose their meaning. This name is only
        // compared within one build, so it need not be unique or stable beyond that.
        if type_name::<S::Error>() != type_name::<ProcError>() {
            return Err(ser::Error::custom(
                "a bulk handle can only be encoded in RPC arguments and results",
            ));
        }
        serializer.serialize_newtype_struct(BULK, &Forms(self))
    }
}

struct Forms<'a>(&'a Bulk);

impl Serialize for Forms<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut forms = serializer.serialize_tuple(2)?;
        forms.serialize_element(&Bytes(self.0.as_bytes()))?;
        forms.serialize_element(&Data(self.0))?;
        forms.end()
    }
}

struct Data<'a>(&'a Bulk);

impl Serialize for Data<'_> {
    /// Called only when [`embeddable`](desc::embeddable) bytes have room in a message.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // Of memory with terms no copy is given away.
        let memory = self.0.memory().filter(|memory| !memory.region().has_terms());
        let data = memory.and_then(|memory| {
            let mut data = vec![0; usize::try_from(self.0.len()).ok()?];
            memory.read_at(0, &mut data).then_some(data)
        });
        match data {
            Some(data) => serializer.serialize_bytes(&data),
            None => serializer.serialize_unit(),
        }
    }
}

impl<'de> Deserialize<'de> for Bulk {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct BulkVisitor;
        impl Visitor<'_> for BulkVisitor {
            type Value = Bulk;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "a bulk handle, which can only be decoded from RPC arguments and results",
                )
            }

            fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<Bulk, E> {
                Bulk::from_bytes(bytes)
                    .map_err(|error| E::custom(format_args!("bad bulk descriptor: {error}")))
            }
        }
        deserializer.deserialize_newtype_struct(BULK, BulkVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_of_parts_are_where_a_peer_finds_them() {
        let part = |len: u64, handle: &[u8]| MemPart { base: 4096, len, handle: handle.to_vec() };
        let all = [part(10, &[1; 24]), part(20, &[2; 24]), part(1, &[3; 7])];
        // A length, an address, and none for shared memory.
        let address = [&10u64.to_le_bytes(), &b"an address"[..], &[0; 8]].concat();
        let binding = Binding { address: &address, context: 2 };
        for parts in [&all[..1], &all[..2], &all] {
            for binding in [None, Some(binding)] {
                let bytes = BulkDesc::of_parts(parts, desc::flags::READ, binding).to_bytes();
                let parsed = Described::parse(&bytes).unwrap();
                assert_eq!(parsed.handles, Covered::of_parts(parts));
                assert_eq!(
                    parsed.bound.map(|bound| (bytes[bound.address].to_vec(), bound.context)),
                    binding.map(|_| (b"an address".to_vec(), 2))
                );
                for (part, covered) in parts.iter().zip(&parsed.handles) {
                    assert_eq!(bytes[covered.handle.clone()], part.handle);
                }
            }
        }
    }
}
