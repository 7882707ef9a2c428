//! The kind of memory that a handle describes.

use std::fmt;

use crate::HgError;

/// The kind of device that memory is on. Counterpart: `hg_mem_type_t`.
///
/// ```
/// # mod margo { pub mod bulk_memory { pub use hg::*; } }
/// use margo::bulk_memory::{MemoryAttr, MemoryKind};
///
/// assert_eq!(MemoryAttr::default().kind(), MemoryKind::Host);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum MemoryKind {
    /// Memory of the processors.
    #[default]
    Host,
    /// NVIDIA.
    Cuda,
    /// AMD.
    Rocm,
    /// Intel.
    LevelZero,
}

/// The attributes of memory: its kind, and its device. Travels inside the descriptor.
///
/// ```
/// # mod margo { pub mod bulk_memory { pub use hg::*; } }
/// use margo::bulk_memory::{MemoryAttr, MemoryKind};
///
/// assert!(MemoryAttr::default().check().is_ok(), "memory of the processors");
/// let of_a_card = MemoryAttr::new(MemoryKind::Cuda, 1).ok_or("no such device")?;
/// assert!(of_a_card.check().is_err(), "no transport moves it by itself");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Counterpart: the `hg_bulk_attr` of `HG_Bulk_create_attr`, which does not travel there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemoryAttr {
    kind: MemoryKind,
    device: u16,
}

/// By their numbers in the flags.
const KINDS: [MemoryKind; 4] =
    [MemoryKind::Host, MemoryKind::Cuda, MemoryKind::Rocm, MemoryKind::LevelZero];

const KIND_SHIFT: u32 = 16;
const DEVICE_SHIFT: u32 = 20;

impl MemoryAttr {
    /// Largest number of a device.
    pub const DEVICE_MAX: u16 = (1 << (32 - DEVICE_SHIFT)) - 1;

    /// `None`: the number of the device is above [`DEVICE_MAX`](Self::DEVICE_MAX).
    pub fn new(kind: MemoryKind, device: u16) -> Option<Self> {
        (device <= Self::DEVICE_MAX).then_some(Self { kind, device })
    }

    /// The kind of memory.
    #[inline]
    pub fn kind(self) -> MemoryKind {
        self.kind
    }

    /// The number of the device.
    #[inline]
    pub fn device(self) -> u16 {
        self.device
    }

    pub(super) fn to_flags(self) -> u32 {
        (self.kind as u32) << KIND_SHIFT | u32::from(self.device) << DEVICE_SHIFT
    }

    pub(super) fn from_flags(flags: u32) -> Option<Self> {
        let kind = *KINDS.get((flags >> KIND_SHIFT & 0xf) as usize)?;
        Some(Self { kind, device: (flags >> DEVICE_SHIFT) as u16 })
    }

    /// Checks that transports move memory of this kind by themselves.
    ///
    /// # Errors
    ///
    /// [`HgError::Bulk`], which names the kind, for memory of a device: instances move that through
    /// memory of the host.
    pub fn check(self) -> Result<(), HgError> {
        if self.kind == MemoryKind::Host {
            return Ok(());
        }
        Err(HgError::Bulk(format!(
            "{self} cannot be moved: this transport moves host memory only, and an instance what \
             a device::DeviceMemory describes; expose that, or copy the bytes to host memory"
        )))
    }
}

impl fmt::Display for MemoryAttr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} memory of device {}", self.kind, self.device)
    }
}
