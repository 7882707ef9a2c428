//! Checksums of headers and payloads, as Mercury's (`mchecksum`) or wider.
//!
//! | what | by | over |
//! |---|---|---|
//! | core header | CRC-16/T10-DIF | the fields before it, multi-byte ones little endian |
//! | payload | CRC-32C | the encoded arguments or result, all of them if they overflowed |
//! | payload, between our own peers | CRC-64/XZ | the same |
//!
//! Counterpart: `hg_checksum_level_t`, `hg_proc_checksum_*`.

use crate::WireError;

/// The parts of a message that checksums protect. Both ends must be set alike: a level says which
/// checksums are filled in and which are verified, and a peer at a lower level leaves fields empty.
///
/// ```
/// use hg::{Build, ChecksumLevel, HgOptions};
///
/// let mut options = HgOptions::default();
/// options.build = Build::Checksum; // whose headers have room for them
/// options.checksum_level = ChecksumLevel::Payload;
/// assert!(ChecksumLevel::Headers < options.checksum_level, "which it includes");
/// ```
///
/// Counterpart: `hg_checksum_level_t`; [`Payload64`](Self::Payload64) is our own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[non_exhaustive]
pub enum ChecksumLevel {
    /// Nothing. The default.
    #[default]
    None,
    /// The headers of requests and responses (`HG_CHECKSUM_RPC_HEADERS`).
    Headers,
    /// Headers, arguments and results (`HG_CHECKSUM_RPC_PAYLOAD`).
    Payload,
    /// As `Payload`, with 64 bits for the payload. C peers do not take such requests; requests of
    /// C peers are read as at level `Payload`.
    Payload64,
}

impl ChecksumLevel {
    /// Returns whether headers are protected.
    #[inline]
    pub(crate) fn covers_headers(self) -> bool {
        self >= Self::Headers
    }

    /// The checksum of a payload at this level.
    #[inline]
    pub(crate) fn payload_sum(self, payload: &[u8]) -> Option<PayloadSum> {
        match self {
            Self::None | Self::Headers => None,
            Self::Payload => Some(PayloadSum::Crc32c(crc32c(payload))),
            Self::Payload64 => Some(PayloadSum::Crc64(crc64(payload))),
        }
    }
}

/// The checksum of a payload, as a header says it.
///
/// ```
/// use hg::{PayloadSum, WireError};
///
/// let sum = PayloadSum::Crc32c(0xE306_9283);
/// assert_eq!(sum.verify(b"123456789"), Ok(()));
/// assert!(matches!(sum.verify(b"123456780"), Err(WireError::PayloadChecksum { .. })));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PayloadSum {
    /// Mercury's.
    Crc32c(u32),
    /// Between our own peers.
    Crc64(u64),
}

impl PayloadSum {
    /// Compares with the payload that came.
    ///
    /// C leaves the field as it is where there is nothing to encode, so an empty payload has no
    /// CRC-32C to compare with.
    ///
    /// # Errors
    ///
    /// [`WireError::PayloadChecksum`] if the two differ.
    #[inline]
    pub fn verify(self, payload: &[u8]) -> Result<(), WireError> {
        let (said, found) = match self {
            Self::Crc32c(_) if payload.is_empty() => return Ok(()),
            Self::Crc32c(said) => (u64::from(said), u64::from(crc32c(payload))),
            Self::Crc64(said) => (said, crc64(payload)),
        };
        if said == found { Ok(()) } else { Err(WireError::PayloadChecksum { said, found }) }
    }
}

fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

fn crc64(bytes: &[u8]) -> u64 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Xz, bytes)
}

const T10_DIF: u16 = 0x8BB7;

/// `TABLES[n][byte]`: what `byte` contributes to the remainder when `n` bytes follow it in its
/// group of four.
const TABLES: [[u16; 256]; 4] = tables();

const fn tables() -> [[u16; 256]; 4] {
    let mut tables = [[0; 256]; 4];
    let mut byte = 0;
    while byte < 256 {
        let mut remainder = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            let carry = remainder & 0x8000 != 0;
            remainder = (remainder << 1) ^ if carry { T10_DIF } else { 0 };
            bit += 1;
        }
        tables[0][byte] = remainder;
        byte += 1;
    }
    let mut following = 1;
    while following < 4 {
        let mut byte = 0;
        while byte < 256 {
            let before = tables[following - 1][byte];
            tables[following][byte] = (before << 8) ^ tables[0][(before >> 8) as usize];
            byte += 1;
        }
        following += 1;
    }
    tables
}

/// CRC-16/T10-DIF of a header's fields, whose bytes are a multiple of four: four at a time, because
/// a general implementation takes longer to begin than this to end.
pub(crate) fn crc16<const N: usize>(fields: &[u8; N]) -> u16 {
    const { assert!(N & 3 == 0) };
    let (groups, _) = fields.as_chunks::<4>();
    groups.iter().fold(0, |crc: u16, &[a, b, c, d]| {
        let [high, low] = crc.to_be_bytes();
        TABLES[3][usize::from(a ^ high)]
            ^ TABLES[2][usize::from(b ^ low)]
            ^ TABLES[1][usize::from(c)]
            ^ TABLES[0][usize::from(d)]
    })
}

/// Returns the CRC16 of any number of bytes.
pub(crate) fn crc16_of(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc: u16, byte| {
        let [high, low] = crc.to_be_bytes();
        TABLES[0][usize::from(byte ^ high)] ^ u16::from(low) << 8
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_values_are_those_of_the_catalogue() {
        const CHECK: &[u8] = b"123456789";
        assert_eq!(crc32c(CHECK), 0xE306_9283);
        assert_eq!(crc64(CHECK), 0x995D_C9BB_DF19_39FA);
        // Leading zeros do not change a CRC that begins with zero.
        assert_eq!(crc16(b"\0\0\x00123456789"), 0xD0DB);
        assert_eq!(crc16_of(CHECK), 0xD0DB);
    }

    #[test]
    fn a_header_of_mercury() {
        let fields = [0xd7, 5, 0x77, 0xd7, 0x9b, 0x7c, 0, 0, 0, 0, 0x80, 0];
        assert_eq!(crc16(&fields), 0x4d5e);
    }

    #[test]
    fn levels_say_what_is_covered() {
        assert_eq!(ChecksumLevel::None.payload_sum(b"x"), None);
        assert_eq!(ChecksumLevel::Headers.payload_sum(b"x"), None);
        assert!(!ChecksumLevel::None.covers_headers() && ChecksumLevel::Headers.covers_headers());
        for level in [ChecksumLevel::Payload, ChecksumLevel::Payload64] {
            let sum = level.payload_sum(b"abc").unwrap();
            assert_eq!(sum.verify(b"abc"), Ok(()));
            assert!(matches!(sum.verify(b"abd"), Err(WireError::PayloadChecksum { .. })));
        }
        assert_eq!(PayloadSum::Crc32c(77).verify(b""), Ok(()), "C left it as it was");
        assert!(PayloadSum::Crc64(77).verify(b"").is_err(), "ours never does");
    }
}
