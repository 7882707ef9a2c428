//! Memory of devices: how it is registered, and what copies it to memory of the host and back.
//!
//! It is registered in a table of the instance's own, which gives it a key, bounds, access rights
//! and terms as other memory has; `bulk/staged` moves the bytes, through pinned buffers of the host
//! that each device has here. A transport whose library moves such memory by itself has it
//! registered as well, unless it has terms, and is what moves it then.
//!
//! | state | touched by | under |
//! |---|---|---|
//! | regions of the table | whoever exposes, and requests of peers | the table's lock |
//! | what a device has | whoever needs it first makes it | `stagings`, a lock that ULTs wait for |

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use device::{Copies, Device, DeviceMemory, DriverKind};
use hg::{MemoryAttr, MemoryKind};
use na::{DeviceKind, DevicePieces, Endpoint, LocalMem, RegionTable};

use crate::memory::lending::{LentPieces, PeerMappings};
use crate::memory::pool::BulkPool;

/// Device memory as one range of bytes: what a region of the table has in place of segments.
pub(crate) struct DeviceSegments {
    /// With the offset of each.
    pieces: Vec<(u64, DeviceMemory)>,
    len: u64,
    /// The peers that have pieces mapped.
    pub(crate) lent: LentPieces,
    /// The transport moves it by itself. Set before anybody else has the memory.
    by_transport: AtomicBool,
}

/// A part of a range that is in one piece.
pub(crate) struct DevicePart<'a> {
    pub(crate) memory: &'a DeviceMemory,
    /// In the piece.
    pub(crate) offset: usize,
    /// In the range.
    pub(crate) at: usize,
    pub(crate) len: usize,
}

impl DeviceSegments {
    pub(crate) fn new(memories: &[DeviceMemory]) -> Self {
        let mut len = 0;
        let piece = |memory: &DeviceMemory| {
            len += memory.len() as u64;
            (len - memory.len() as u64, memory.clone())
        };
        let pieces = memories.iter().map(piece).collect();
        Self { pieces, len, lent: LentPieces::default(), by_transport: AtomicBool::new(false) }
    }

    /// Returns whether the transport moves it by itself.
    pub(crate) fn is_by_transport(&self) -> bool {
        // Relaxed: whoever has the memory got it from whoever has set this.
        self.by_transport.load(Ordering::Relaxed)
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// The device; `None`: there is no memory.
    pub(crate) fn device(&self) -> Option<&Device> {
        self.pieces.first().map(|(_, memory)| memory.device())
    }

    /// The parts of a range that lies inside.
    pub(crate) fn parts(&self, range: Range<u64>) -> impl Iterator<Item = DevicePart<'_>> {
        self.pieces.iter().filter_map(move |(start, memory)| {
            let from = range.start.max(*start);
            let to = range.end.min(start + memory.len() as u64);
            // No truncation: differences within a piece, and within a range of a buffer.
            (from < to).then(|| DevicePart {
                memory,
                offset: (from - start) as usize,
                at: (from - range.start) as usize,
                len: (to - from) as usize,
            })
        })
    }
}

/// The device memory that registered memory stands for, if it does.
pub(crate) fn segments_of(memory: &LocalMem) -> Option<&DeviceSegments> {
    memory.elsewhere()?.downcast_ref()
}

/// Registers device memory with the transport, if that moves such memory by itself. `false`:
/// buffers are the way.
pub(crate) fn register(endpoint: &dyn Endpoint, memory: &LocalMem) -> bool {
    let Some(segments) = segments_of(memory) else { return false };
    let Some(device) = segments.device() else { return false };
    let info = device.info();
    // A completion tells the host; else nobody would know when the device has the bytes.
    if !endpoint.moves_device_memory() || !info.orders_writes {
        return false;
    }
    let pieces = segments.pieces.iter();
    let place = DevicePieces {
        kind: kind_of(device.driver().kind()),
        device: info.index,
        pieces: pieces.map(|(_, memory)| (memory.address(), memory.len())).collect(),
    };
    // SAFETY: each piece is memory of the device for as long as its `DeviceMemory`, which the
    // segments hold, and the region that `memory` is of holds them; whoever has exposed it has
    // agreed to that access, and to transfers of its own.
    let registered = unsafe { endpoint.register_device(memory, &place) };
    if let Err(error) = &registered {
        tracing::debug!(device = info.index, %error, "memory of a device goes through buffers");
    }
    // Relaxed: nobody else has the memory yet.
    segments.by_transport.store(registered.is_ok(), Ordering::Relaxed);
    registered.is_ok()
}

fn kind_of(driver: DriverKind) -> DeviceKind {
    match driver {
        DriverKind::Hip => DeviceKind::Rocm,
        DriverKind::LevelZero => DeviceKind::LevelZero,
        _ => DeviceKind::Cuda,
    }
}

/// The attributes of device memory, which is all of one device.
pub(crate) fn attr_of(memories: &[DeviceMemory]) -> Result<MemoryAttr, String> {
    let Some(first) = memories.first() else {
        return Err("no piece of device memory: there is no device to name".to_owned());
    };
    let (one, index) = (first.device(), first.device().info().index);
    if let Some(other) = memories.iter().find(|memory| memory.device() != one) {
        let other = other.device().info().index;
        return Err(format!(
            "pieces of device {index} and of device {other}: expose each by itself"
        ));
    }
    let kind = match kind_of(one.driver().kind()) {
        DeviceKind::Cuda => MemoryKind::Cuda,
        DeviceKind::Rocm => MemoryKind::Rocm,
        DeviceKind::LevelZero => MemoryKind::LevelZero,
    };
    let attr = u16::try_from(index).ok().and_then(|index| MemoryAttr::new(kind, index));
    attr.ok_or_else(|| {
        format!("device {index}, beyond the last number that travels, {}", MemoryAttr::DEVICE_MAX)
    })
}

/// The staging of a device, between it and the network: streams, and pinned buffers.
#[derive(Debug)]
pub(crate) struct Staging {
    pub(crate) copies: Copies,
    /// The buffers for our own transfers, and those for what peers ask for. Apart, or two processes
    /// could each wait for buffers that wait for the other.
    pub(crate) own: BulkPool,
    pub(crate) served: BulkPool,
    /// Bytes of a buffer.
    pub(crate) chunk: usize,
}

/// The device memory of an instance.
#[derive(Default)]
pub(crate) struct Devices {
    /// The memory that peers may use.
    pub(crate) regions: RegionTable,
    /// The memory of peers that is mapped here.
    pub(crate) mappings: PeerMappings,
    /// Bytes of device memory that this instance has moved.
    pub(crate) moved: Moved,
    stagings: ult::Mutex<Vec<Arc<Staging>>>,
}

impl Devices {
    /// Returns the staging of the device of that number, if there is one.
    pub(crate) fn staging_of(&self, index: u32) -> Option<Arc<Staging>> {
        let stagings = self.stagings.lock();
        stagings.iter().find(|there| there.copies.device().info().index == index).cloned()
    }

    /// Returns the staging of that device; made by `make` if there is none yet.
    pub(crate) fn staging<E>(
        &self,
        device: &Device,
        make: impl FnOnce() -> Result<Staging, E>,
    ) -> Result<Arc<Staging>, E> {
        let mut stagings = self.stagings.lock();
        if let Some(there) = stagings.iter().find(|there| there.copies.device() == device) {
            return Ok(there.clone());
        }
        let made = Arc::new(make()?);
        stagings.push(made.clone());
        Ok(made)
    }
}

/// Counts of bytes.
#[derive(Default)]
pub(crate) struct Moved {
    /// By copies between a device and buffers.
    pub(crate) staged: AtomicU64,
    /// By copies of a device alone.
    pub(crate) within: AtomicU64,
}

impl fmt::Debug for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Devices").field("regions", &self.regions.len()).finish_non_exhaustive()
    }
}
