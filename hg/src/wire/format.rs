//! The variants in which a message can be written.
//!
//! Mercury's headers come in two lengths, by how Mercury was built, and protect more or less of a
//! message. The origin writes requests as it is configured. The target reads a request in the
//! variant that the request names, as far as it names one, and answers in the same.

use crate::wire::checksum::ChecksumLevel;

/// Bits of the flags byte.
pub mod flags {
    /// The payload is a descriptor of where the arguments are (overflow).
    pub const MORE_DATA: u8 = 1;
    /// The origin wants no response.
    pub const NO_RESPONSE: u8 = 2;
    /// Used by C within one process. Never sent; ignored on receipt, because it would let a peer
    /// claim to be us.
    pub const SELF_FORWARD: u8 = 4;
    /// In requests between our own peers: an [`Extension`](crate::Extension) follows the
    /// headers.
    pub const EXTENSION: u8 = 8;
    /// In responses to requests of version `0x45` only: the HG header has a CRC64. Our own.
    pub const WIDE_CHECKSUM: u8 = 0x40;
    /// The sender is a build with checksum support (Mercury 2.4.1 and later).
    pub const HAS_CHECKSUMS: u8 = 0x80;

    pub(crate) const ALL: u8 = MORE_DATA | NO_RESPONSE | SELF_FORWARD | HAS_CHECKSUMS;
}

/// A request whose HG header has a CRC64. C takes no version but its own.
pub(crate) const VERSION_WIDE: u8 = 0x45;

/// The build of Mercury to speak like. Both ends must agree.
///
/// ```
/// use hg::Build;
///
/// assert_eq!((Build::Plain.header_bytes(), Build::Checksum.header_bytes()), (16, 20));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Build {
    /// Without checksum support: Mercury's own default.
    #[default]
    Plain,
    /// With checksum support compiled in, which is the default of Spack. The [`ChecksumLevel`]
    /// decides which parts are protected.
    Checksum,
}

impl Build {
    /// Bytes of the core header, in both directions.
    pub const fn core_bytes(self) -> usize {
        match self {
            Self::Plain => 12,
            Self::Checksum => 16,
        }
    }

    /// Bytes of core and HG header, except at level [`ChecksumLevel::Payload64`].
    pub const fn header_bytes(self) -> usize {
        self.core_bytes() + 4
    }

    pub(crate) const fn flag(self) -> u8 {
        match self {
            Self::Plain => 0,
            Self::Checksum => flags::HAS_CHECKSUMS,
        }
    }
}

/// The format of a message: the build whose headers it has, and what is protected.
///
/// ```
/// use hg::{Build, ChecksumLevel, Format};
///
/// let format = Format::new(Build::Checksum, ChecksumLevel::Payload64);
/// assert_eq!((format.core_bytes(), format.header_bytes()), (16, 24));
/// let plain = Format::new(Build::Plain, ChecksumLevel::Payload64);
/// assert_eq!(plain.level(), ChecksumLevel::None, "it has no room for them");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Format {
    build: Build,
    level: ChecksumLevel,
}

impl Format {
    /// Makes the format of that build at that level. A plain build has no room for checksums: its
    /// level is `None`.
    pub const fn new(build: Build, level: ChecksumLevel) -> Self {
        match build {
            Build::Plain => Self { build, level: ChecksumLevel::None },
            Build::Checksum => Self { build, level },
        }
    }

    /// Returns the build whose headers these are.
    pub const fn build(self) -> Build {
        self.build
    }

    /// Returns the checksum level: the parts of a message that are protected.
    pub const fn level(self) -> ChecksumLevel {
        self.level
    }

    /// Bytes of the core header.
    pub const fn core_bytes(self) -> usize {
        self.build.core_bytes()
    }

    /// Bytes of core and HG header: where the payload begins.
    pub const fn header_bytes(self) -> usize {
        match self.level {
            ChecksumLevel::Payload64 => self.core_bytes() + 8,
            _ => self.build.header_bytes(),
        }
    }

    #[inline]
    pub(crate) fn is_wide(self) -> bool {
        self.level == ChecksumLevel::Payload64
    }

    /// As this one, for a message that does not say that its checksum is wide.
    pub(crate) fn unmarked(self) -> Self {
        Self::new(self.build, self.level.min(ChecksumLevel::Payload))
    }
}

impl From<Build> for Format {
    fn from(build: Build) -> Self {
        Self::new(build, ChecksumLevel::None)
    }
}

/// The formats in which requests are read.
///
/// ```
/// use hg::wire::header::RequestHeader;
/// use hg::{Accept, Build, Format, RpcId};
///
/// let other = RequestHeader::in_format(RpcId(7), Build::Checksum.into());
/// let mut message = [0; 64];
/// other.write(&mut message);
/// let either = Accept { format: Format::default(), detect: true };
/// assert_eq!(RequestHeader::read(either, &message)?.0.format.build(), Build::Checksum);
/// assert!(RequestHeader::read(Build::Plain, &message).is_err());
/// # Ok::<(), hg::WireError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Accept {
    /// The format where the request names none.
    pub format: Format,
    /// Believe flag `0x80` and the mark of wide checksums. Without, a request that has them and
    /// does not agree with `format` is an error.
    pub detect: bool,
}

impl Accept {
    /// The format of the request that begins with `core`.
    pub(crate) fn format_of(self, core: &[u8; 12]) -> Format {
        let Self { format, detect } = self;
        let flagged = core[10] & flags::HAS_CHECKSUMS != 0;
        // Builds with checksum support set their flag since Mercury 2.4.1 only, so its absence
        // proves nothing; its presence does.
        let build = if detect && flagged { Build::Checksum } else { format.build };
        let format = Format::new(build, format.level);
        let wide = Format::new(build, ChecksumLevel::Payload64);
        if core[1] == VERSION_WIDE && wide.is_wide() && (detect || format.is_wide()) {
            wide
        } else {
            format.unmarked()
        }
    }
}

impl<F: Into<Format>> From<F> for Accept {
    fn from(format: F) -> Self {
        Self { format: format.into(), detect: false }
    }
}
