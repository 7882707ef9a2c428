//! Pieces of memory, and what peers may do with them.

/// The access that peers have to registered memory. Counterpart: `NA_MEM_READ_ONLY` …
///
/// ```
/// # use na_core as na;
/// use na::Access;
///
/// assert!(Access::ReadOnly.readable() && !Access::ReadOnly.writable());
/// assert_eq!(Access::from_bits(3), Some(Access::ReadWrite), "as Mercury writes it");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Peers may get.
    ReadOnly,
    /// Peers may put.
    WriteOnly,
    /// Peers may do both.
    ReadWrite,
}

impl Access {
    /// Mercury's bits: 1 read, 2 write.
    pub fn bits(self) -> u8 {
        match self {
            Self::ReadOnly => 1,
            Self::WriteOnly => 2,
            Self::ReadWrite => 3,
        }
    }

    /// The reverse of [`bits`](Self::bits).
    pub fn from_bits(bits: u8) -> Option<Self> {
        match bits {
            1 => Some(Self::ReadOnly),
            2 => Some(Self::WriteOnly),
            3 => Some(Self::ReadWrite),
            _ => None,
        }
    }

    /// Returns whether peers may read.
    pub fn readable(self) -> bool {
        self != Self::WriteOnly
    }

    /// Returns whether peers may write.
    pub fn writable(self) -> bool {
        self != Self::ReadOnly
    }
}

/// One contiguous piece of memory.
///
/// ```
/// # use na_core as na;
/// use na::{Memory, RawSegment};
///
/// let mut bytes = vec![7_u8; 16];
/// let half = RawSegment { ptr: bytes.as_mut_ptr(), len: 8 };
/// // SAFETY: the vector is the owner: its bytes stay where they are, and nobody borrows them.
/// let memory = unsafe { Memory::from_raw(vec![half], bytes) };
/// assert_eq!(memory.segments(), [half]);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawSegment {
    /// First byte. May dangle when `len` is zero.
    pub ptr: *mut u8,
    /// Bytes.
    pub len: usize,
}

/// The maker of a device, and so the library that knows its memory.
///
/// ```
/// # use na_core as na;
/// use na::DeviceKind;
///
/// assert_ne!(DeviceKind::Cuda, DeviceKind::Rocm);
/// ```
///
/// Counterpart: `na_mem_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceKind {
    /// NVIDIA.
    Cuda,
    /// AMD.
    Rocm,
    /// Intel.
    LevelZero,
}

/// The place of memory of a device, for a transport whose library moves such memory by itself
/// ([`Endpoint::register_device`](crate::Endpoint::register_device)).
///
/// ```
/// # use na_core as na;
/// use na::{DeviceKind, DevicePieces};
///
/// let pieces = vec![(0x7f00_0000_0000, 4096), (0x7f00_0010_0000, 100)];
/// let place = DevicePieces { kind: DeviceKind::Cuda, device: 0, pieces };
/// assert_eq!(place.pieces.iter().map(|(_, len)| len).sum::<usize>(), 4196);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DevicePieces {
    /// The maker of the device.
    pub kind: DeviceKind,
    /// Number of the device.
    pub device: u32,
    /// Address and length of each piece. The host can read none of them.
    pub pieces: Vec<(u64, usize)>,
}
