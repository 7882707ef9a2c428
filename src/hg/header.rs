//! Mercury's headers: core header, then HG header, in front of every request and response.
//!
//! ```text
//! request:  0xD7 | version 5 | RPC id (u64 big endian) | flags | cookie
//! response: return code (i8) | flags | cookie (u16 big endian) | 8 bytes unused
//! ```
//!
//! Builds of Mercury with checksum support append 4 bytes to either (a CRC that is filled in only
//! when checksums are switched on, which is not supported here) and set flag `0x80`. Then follows
//! the HG header: 4 bytes, a payload checksum or nothing.
//!
//! Bytes that C leaves unwritten are zero here, and ignored on receipt. A response carries no id:
//! its tag says which request it answers.

use super::error::WireError;
use super::{ReturnCode, RpcId};

/// Which of Mercury's builds to speak like. Both ends must agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Build {
    /// Without checksum support: Mercury's own default.
    #[default]
    Plain,
    /// With checksum support compiled in, which is the default of Spack. No checksum is computed or
    /// verified: this is checksum level `none`.
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

    /// Bytes of core and HG header.
    pub const fn header_bytes(self) -> usize {
        self.core_bytes() + 4
    }

    const fn flag(self) -> u8 {
        match self {
            Self::Plain => 0,
            Self::Checksum => flags::HAS_CHECKSUMS,
        }
    }
}

/// Bits of the flags byte.
pub mod flags {
    /// The payload is a descriptor of where the arguments are (overflow).
    pub const MORE_DATA: u8 = 1;
    /// The origin wants no response.
    pub const NO_RESPONSE: u8 = 2;
    /// Used by C within one process. Never sent; ignored on receipt, because it would let a peer
    /// claim to be us.
    pub const SELF_FORWARD: u8 = 4;
    /// The sender is a build with checksum support (Mercury 2.4.1 and later).
    pub const HAS_CHECKSUMS: u8 = 0x80;

    pub(super) const ALL: u8 = MORE_DATA | NO_RESPONSE | SELF_FORWARD | HAS_CHECKSUMS;
}

const MAGIC: u8 = 0xD7;
const VERSION: u8 = 0x05;

/// What a request's header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestHeader {
    /// Which RPC.
    pub id: RpcId,
    /// The arguments are elsewhere.
    pub more_data: bool,
    /// The origin wants no response.
    pub no_response: bool,
    /// The origin's context; to be echoed in the response.
    pub cookie: u8,
}

/// What a response's header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResponseHeader {
    /// What the RPC layer of the target says.
    pub code: ReturnCode,
    /// The result is elsewhere.
    pub more_data: bool,
    /// Echo of the request's cookie. Not checked by anyone.
    pub cookie: u16,
}

impl RequestHeader {
    /// A request for `id` with everything else at its default.
    pub const fn new(id: RpcId) -> Self {
        Self { id, more_data: false, no_response: false, cookie: 0 }
    }

    /// Writes both headers to the front of `out`.
    ///
    /// # Panics
    ///
    /// If `out` is shorter than [`Build::header_bytes`].
    pub fn write(&self, build: Build, out: &mut [u8]) {
        let out = &mut out[..build.header_bytes()];
        out.fill(0);
        out[0] = MAGIC;
        out[1] = VERSION;
        out[2..10].copy_from_slice(&self.id.0.to_be_bytes());
        out[10] = build.flag()
            | if self.more_data { flags::MORE_DATA } else { 0 }
            | if self.no_response { flags::NO_RESPONSE } else { 0 };
        out[11] = self.cookie;
    }

    /// Reads the core header alone. With it the sender can be answered, whatever else is wrong.
    ///
    /// # Errors
    ///
    /// [`WireError`] naming the field that is wrong.
    pub fn read_core(build: Build, message: &[u8]) -> Result<Self, WireError> {
        let header = front("request", message, build.core_bytes())?;
        if header[0] != MAGIC {
            return Err(WireError::Magic { found: header[0] });
        }
        if header[1] != VERSION {
            return Err(WireError::Version { found: header[1], expected: VERSION });
        }
        let flags = header[10];
        check_flags(build, flags)?;
        let mut id = [0; 8];
        id.copy_from_slice(&header[2..10]);
        Ok(Self {
            id: RpcId(u64::from_be_bytes(id)),
            more_data: flags & flags::MORE_DATA != 0,
            no_response: flags & flags::NO_RESPONSE != 0,
            cookie: header[11],
        })
    }

    /// Reads both headers; also returns what follows them.
    ///
    /// # Errors
    ///
    /// [`WireError`] naming the field that is wrong.
    pub fn read(build: Build, message: &[u8]) -> Result<(Self, &[u8]), WireError> {
        let header = Self::read_core(build, message)?;
        front("request", message, build.header_bytes())?;
        Ok((header, &message[build.header_bytes()..]))
    }
}

impl ResponseHeader {
    /// A response of that code to a request with that cookie.
    pub fn new(code: ReturnCode, request_cookie: u8) -> Self {
        Self { code, more_data: false, cookie: u16::from(request_cookie) }
    }

    /// Writes both headers to the front of `out`.
    ///
    /// # Panics
    ///
    /// If `out` is shorter than [`Build::header_bytes`].
    pub fn write(&self, build: Build, out: &mut [u8]) {
        let out = &mut out[..build.header_bytes()];
        out.fill(0);
        // A code that does not fit must not become success.
        out[0] = i8::try_from(self.code.number()).unwrap_or(i8::MAX).cast_unsigned();
        out[1] = build.flag() | if self.more_data { flags::MORE_DATA } else { 0 };
        out[2..4].copy_from_slice(&self.cookie.to_be_bytes());
    }

    /// Reads both headers; also returns what follows them. An error response may end behind the
    /// core header.
    ///
    /// # Errors
    ///
    /// [`WireError`] naming the field that is wrong.
    pub fn read(build: Build, message: &[u8]) -> Result<(Self, &[u8]), WireError> {
        let bytes = front("response", message, build.core_bytes())?;
        check_flags(build, bytes[1])?;
        let header = Self {
            code: ReturnCode::from_number(i32::from(bytes[0].cast_signed())),
            more_data: bytes[1] & flags::MORE_DATA != 0,
            cookie: u16::from_be_bytes([bytes[2], bytes[3]]),
        };
        if header.code == ReturnCode::Success {
            front("response", message, build.header_bytes())?;
        }
        Ok((header, message.get(build.header_bytes()..).unwrap_or_default()))
    }
}

fn front<'a>(what: &'static str, message: &'a [u8], need: usize) -> Result<&'a [u8], WireError> {
    message.get(..need).ok_or(WireError::Short { what, len: message.len(), need })
}

/// Builds with checksum support set their flag since Mercury 2.4.1 only, so its absence proves
/// nothing; its presence does.
fn check_flags(build: Build, flags: u8) -> Result<(), WireError> {
    if build == Build::Plain && flags & flags::HAS_CHECKSUMS != 0 {
        return Err(WireError::PeerHasChecksums);
    }
    match flags & !flags::ALL {
        0 => Ok(()),
        flags => Err(WireError::Flags { flags }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: RequestHeader = RequestHeader::new(RpcId(0x7c9b_d777));

    #[test]
    fn request_as_mercury_writes_it() {
        let mut out = [0xAA; 16];
        REQUEST.write(Build::Plain, &mut out);
        let expected = [0xd7, 5, 0, 0, 0, 0, 0x7c, 0x9b, 0xd7, 0x77, 0, 0, 0, 0, 0, 0];
        assert_eq!(out, expected);
        assert_eq!(RequestHeader::read(Build::Plain, &out), Ok((REQUEST, &[][..])));
    }

    #[test]
    fn both_builds_read_what_they_write() {
        for build in [Build::Plain, Build::Checksum] {
            let request =
                RequestHeader { more_data: true, no_response: true, cookie: 9, ..REQUEST };
            let mut out = [0; 21];
            request.write(build, &mut out);
            let (read, rest) = RequestHeader::read(build, &out).unwrap();
            assert_eq!((read, rest.len()), (request, 21 - build.header_bytes()));
            let response =
                ResponseHeader { code: ReturnCode::NoEntry, more_data: true, cookie: 513 };
            response.write(build, &mut out);
            assert_eq!(ResponseHeader::read(build, &out).unwrap().0, response);
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let mut out = [0; 16];
        REQUEST.write(Build::Plain, &mut out);
        let with = |at: usize, byte: u8| {
            let mut changed = out;
            changed[at] = byte;
            RequestHeader::read(Build::Plain, &changed).map(|(header, _)| header)
        };
        assert_eq!(with(0, 1), Err(WireError::Magic { found: 1 }));
        assert_eq!(with(1, 4), Err(WireError::Version { found: 4, expected: 5 }));
        assert_eq!(with(10, 0x80), Err(WireError::PeerHasChecksums));
        assert_eq!(with(10, 0x18), Err(WireError::Flags { flags: 0x18 }));
        assert_eq!(with(10, flags::SELF_FORWARD), Ok(REQUEST), "masked");
        let short = RequestHeader::read(Build::Plain, &out[..15]).unwrap_err();
        assert_eq!(short, WireError::Short { what: "request", len: 15, need: 16 });
        assert_eq!(RequestHeader::read_core(Build::Plain, &out[..12]), Ok(REQUEST));
    }

    #[test]
    fn only_an_error_response_may_lack_the_second_header() {
        let mut out = [0; 16];
        ResponseHeader::new(ReturnCode::NoEntry, 0).write(Build::Plain, &mut out);
        assert!(ResponseHeader::read(Build::Plain, &out[..12]).is_ok());
        ResponseHeader::new(ReturnCode::Success, 0).write(Build::Plain, &mut out);
        assert!(ResponseHeader::read(Build::Plain, &out[..12]).is_err());
        ResponseHeader::new(ReturnCode::Unknown(4000), 0).write(Build::Plain, &mut out);
        let (read, _) = ResponseHeader::read(Build::Plain, &out).unwrap();
        assert_eq!(read.code, ReturnCode::Unknown(127), "never mistaken for success");
    }
}
