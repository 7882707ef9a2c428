//! Mercury's headers: core header, then HG header, in front of every request and response.
//!
//! ```text
//! request:  0xD7 | version 5 | RPC id (u64 big endian) | flags | cookie
//! response: return code (i8) | flags | cookie (u16 big endian) | 8 bytes unused
//! ```
//!
//! Builds of Mercury with checksum support append 4 bytes to either and set flag `0x80`. The HG
//! header follows: 4 bytes. The [`ChecksumLevel`] decides which of its fields are filled in:
//!
//! | level | CRC16: request 12..14, response 4..6 | HG header, from 16 on |
//! |---|---|---|
//! | `None` | – | – |
//! | `Headers` | yes | – |
//! | `Payload` | yes | CRC32C |
//! | `Payload64` | yes | CRC64: 8 bytes; version `0x45`, response flag `0x40` |
//!
//! Bytes that C leaves unwritten are zero here, and ignored on receipt. A response carries no id:
//! its tag says which request it answers.
//!
//! A request says in which [`Format`] it is, as far as it can; its response is written in the same.

use na::MsgBuf;

use crate::base::error::WireError;
use crate::wire::checksum::{ChecksumLevel, PayloadSum, crc16};
use crate::wire::format::VERSION_WIDE;
use crate::{Extension, ReturnCode, RpcId};

pub use crate::wire::format::{Accept, Build, Format, flags};

/// Bytes of both headers in a plain build.
const PLAIN_BYTES: usize = Build::Plain.header_bytes();

const MAGIC: u8 = 0xD7;
const VERSION: u8 = 0x05;

/// The fields of a request's header.
///
/// ```
/// use hg::wire::header::RequestHeader;
/// use hg::{Build, ProviderId, RpcId};
///
/// let sum = RpcId::margo("sum", ProviderId::DEFAULT);
/// let header = RequestHeader { no_response: true, ..RequestHeader::new(sum) };
/// let mut message = *b"................1 2";
/// header.write(&mut message);
/// assert_eq!(RequestHeader::read(Build::Plain, &message)?, (header, &b"1 2"[..]));
/// # Ok::<(), hg::WireError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestHeader {
    /// The id of the RPC.
    pub id: RpcId,
    /// The arguments are elsewhere.
    pub more_data: bool,
    /// The origin wants no response.
    pub no_response: bool,
    /// The origin's context; to be echoed in the response.
    pub cookie: u8,
    /// The format of the request, and of its response.
    pub format: Format,
    /// The checksum of the arguments, if the format has one.
    pub payload_sum: Option<PayloadSum>,
    /// Bytes of the [`Extension`] behind the headers; 0: there is none.
    pub extension_bytes: u16,
}

/// The fields of a response's header.
///
/// ```
/// use hg::wire::header::{RequestHeader, ResponseHeader};
/// use hg::{Build, ReturnCode, RpcId};
///
/// let request = RequestHeader { cookie: 3, ..RequestHeader::new(RpcId(7)) };
/// let header = ResponseHeader::answering(&request, ReturnCode::Success);
/// let mut message = *b"................3";
/// header.write(&mut message);
/// let (read, result) = ResponseHeader::read(Build::Plain, &message)?;
/// assert_eq!((read.cookie, result), (3, &b"3"[..]));
/// # Ok::<(), hg::WireError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResponseHeader {
    /// The code that the RPC layer of the target answers with.
    pub code: ReturnCode,
    /// The result is elsewhere.
    pub more_data: bool,
    /// Echo of the request's cookie. Not checked by anyone.
    pub cookie: u16,
    /// The format of the response.
    pub format: Format,
    /// The checksum of the result, if the format has one and the code is `Success`.
    pub payload_sum: Option<PayloadSum>,
}

impl RequestHeader {
    /// A request for `id` with everything else at its default.
    pub const fn new(id: RpcId) -> Self {
        Self::in_format(id, Format::new(Build::Plain, ChecksumLevel::None))
    }

    /// A request for `id` in that format.
    pub const fn in_format(id: RpcId, format: Format) -> Self {
        let (more_data, no_response) = (false, false);
        let extension_bytes = 0;
        Self { id, more_data, no_response, cookie: 0, format, payload_sum: None, extension_bytes }
    }

    /// Returns where the payload begins.
    #[inline]
    pub fn payload_at(&self) -> usize {
        self.format.header_bytes() + usize::from(self.extension_bytes)
    }

    /// Writes both headers, without the extension behind them, to the front of `out`.
    ///
    /// # Panics
    ///
    /// If `out` is shorter than [`Format::header_bytes`].
    #[inline]
    pub fn write(&self, out: &mut [u8]) {
        if self.format.build() == Build::Plain
            && let Some(out) = out.first_chunk_mut::<PLAIN_BYTES>()
        {
            let [a, b, c, d, e, f, g, h] = self.id.0.to_be_bytes();
            let [flags, cookie] = [self.flags(), self.cookie];
            *out = [MAGIC, VERSION, a, b, c, d, e, f, g, h, flags, cookie, 0, 0, 0, 0];
            return;
        }
        self.write_any(out);
    }

    /// Writes a request without arguments that either build reads as one of its own: with room for
    /// the longer headers, and their checksum, but not the flag, at which the other build takes
    /// offence.
    pub(crate) fn write_for_any_build(&self, buf: &mut MsgBuf) {
        let len = Build::Checksum.header_bytes();
        let out = &mut buf.spare_mut()[..len];
        out.fill(0);
        self.write(out);
        if let Some((core, rest)) = out.split_first_chunk_mut::<12>() {
            rest[..2].copy_from_slice(&request_sum(core).to_be_bytes());
        }
        buf.set_len(len);
    }

    fn flags(&self) -> u8 {
        self.format.build().flag()
            | if self.more_data { flags::MORE_DATA } else { 0 }
            | if self.no_response { flags::NO_RESPONSE } else { 0 }
            | if self.extension_bytes > 0 { flags::EXTENSION } else { 0 }
    }

    #[inline(never)]
    fn write_any(&self, out: &mut [u8]) {
        let format = self.format;
        let out = &mut out[..format.header_bytes()];
        out.fill(0);
        out[0] = MAGIC;
        out[1] = if format.is_wide() { VERSION_WIDE } else { VERSION };
        out[2..10].copy_from_slice(&self.id.0.to_be_bytes());
        out[10] = self.flags();
        out[11] = self.cookie;
        if format.level().covers_headers()
            && let Some((core, rest)) = out.split_first_chunk_mut::<12>()
        {
            rest[..2].copy_from_slice(&request_sum(core).to_be_bytes());
        }
        write_payload_sum(self.payload_sum, format, out);
    }

    /// Reads, on a short path, the headers that nearly all requests have: plain ones without a
    /// fault, with the arguments behind them. The result is that of [`read`](Self::read). `None`:
    /// ask `read`.
    #[inline]
    pub(crate) fn read_plain(accept: Accept, message: &[u8]) -> Option<Self> {
        let format = accept.format;
        let front = message.first_chunk::<PLAIN_BYTES>()?;
        let &[magic, version, a, b, c, d, e, f, g, h, flags, cookie, ..] = front;
        let plain = format.build() == Build::Plain
            && magic == MAGIC
            && version == VERSION
            && flags & !(flags::NO_RESPONSE | flags::SELF_FORWARD) == 0;
        plain.then(|| Self {
            id: RpcId(u64::from_be_bytes([a, b, c, d, e, f, g, h])),
            more_data: false,
            no_response: flags & flags::NO_RESPONSE != 0,
            cookie,
            format,
            payload_sum: None,
            extension_bytes: 0,
        })
    }

    /// Reads the core header alone. With it the sender can be answered, whatever else is wrong.
    ///
    /// # Errors
    ///
    /// [`WireError`] naming the field that is wrong.
    #[inline]
    pub fn read_core(accept: impl Into<Accept>, message: &[u8]) -> Result<Self, WireError> {
        let (header, core) = Self::parse(accept.into(), message)?;
        if header.format.level().covers_headers() {
            compare("request", &message[12..14], request_sum(core))?;
        }
        if core[0] != MAGIC {
            return Err(WireError::Magic { found: core[0] });
        }
        if core[1] != VERSION && !header.format.is_wide() {
            return Err(WireError::Version { found: core[1], expected: VERSION });
        }
        check_flags(header.format.build(), core[10], flags::ALL | flags::EXTENSION)?;
        Ok(header)
    }

    /// Returns the header of a request that cannot be read because of `error`, if its origin can be
    /// told. If the header was damaged, nothing in it is believed, so an origin that seems to want
    /// no response is told as well. The tag is the network's, which makes that harmless.
    pub fn to_answer(accept: impl Into<Accept>, message: &[u8], error: &WireError) -> Option<Self> {
        let accept = accept.into();
        match error {
            WireError::HeaderChecksum { .. } => {
                let (header, _) = Self::parse(accept, message).ok()?;
                Some(Self { no_response: false, ..header })
            }
            _ => Self::read_core(accept, message).ok(),
        }
    }

    /// Without looking whether any of it can be.
    fn parse(accept: Accept, message: &[u8]) -> Result<(Self, &[u8; 12]), WireError> {
        let len = message.len();
        let core = message.first_chunk::<12>();
        let core = core.ok_or(WireError::Short { what: "request", len, need: 12 })?;
        let format = accept.format_of(core);
        front("request", message, format.core_bytes())?;
        let &[_, _, a, b, c, d, e, f, g, h, flags, cookie] = core;
        let header = Self {
            id: RpcId(u64::from_be_bytes([a, b, c, d, e, f, g, h])),
            more_data: flags & flags::MORE_DATA != 0,
            no_response: flags & flags::NO_RESPONSE != 0,
            cookie,
            format,
            payload_sum: None,
            extension_bytes: 0,
        };
        Ok((header, core))
    }

    /// Reads both headers; also returns what follows them and the extension.
    ///
    /// # Errors
    ///
    /// [`WireError`] naming the field that is wrong.
    #[inline]
    pub fn read(accept: impl Into<Accept>, message: &[u8]) -> Result<(Self, &[u8]), WireError> {
        let mut header = Self::read_core(accept, message)?;
        let headers = front("request", message, header.format.header_bytes())?;
        header.payload_sum = read_payload_sum(header.format, headers);
        if message[10] & flags::EXTENSION != 0 {
            let len = Extension::measure(header.format, &message[headers.len()..])?;
            // A byte's worth of fields, and a few bytes more.
            header.extension_bytes = len as u16;
        }
        Ok((header, &message[header.payload_at()..]))
    }

    /// Reads the extension of a message of which this is the header. Empty if there is none.
    ///
    /// # Errors
    ///
    /// [`WireError`] naming what is wrong.
    #[inline]
    pub fn read_extension(&self, message: &[u8]) -> Result<Extension, WireError> {
        if self.extension_bytes == 0 {
            return Ok(Extension::default());
        }
        let need = self.payload_at();
        let block = &front("request", message, need)?[self.format.header_bytes()..];
        Extension::read(self.format, block)
    }

    /// Compares the payload with its checksum, if there is one.
    ///
    /// # Errors
    ///
    /// [`WireError::PayloadChecksum`] if it was damaged.
    #[inline]
    pub fn verify(&self, payload: &[u8]) -> Result<(), WireError> {
        self.payload_sum.map_or(Ok(()), |sum| sum.verify(payload))
    }
}

impl ResponseHeader {
    /// A response of that code to a request with that cookie, in the default format.
    #[inline]
    pub fn new(code: ReturnCode, request_cookie: u8) -> Self {
        let (cookie, format) = (u16::from(request_cookie), Format::default());
        Self { code, more_data: false, cookie, format, payload_sum: None }
    }

    /// A response of that code to that request, in its format.
    #[inline]
    pub fn answering(request: &RequestHeader, code: ReturnCode) -> Self {
        Self { format: request.format, ..Self::new(code, request.cookie) }
    }

    /// Writes both headers to the front of `out`.
    ///
    /// # Panics
    ///
    /// If `out` is shorter than [`Format::header_bytes`].
    #[inline]
    pub fn write(&self, out: &mut [u8]) {
        if self.format.build() == Build::Plain
            && let Some(out) = out.first_chunk_mut::<PLAIN_BYTES>()
        {
            let [high, low] = self.cookie.to_be_bytes();
            *out = [self.code_byte(), self.flags(), high, low, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
            return;
        }
        self.write_any(out);
    }

    fn code_byte(&self) -> u8 {
        // A code that does not fit must not become success.
        i8::try_from(self.code.number()).unwrap_or(i8::MAX).cast_unsigned()
    }

    fn flags(&self) -> u8 {
        self.format.build().flag()
            | if self.format.is_wide() { flags::WIDE_CHECKSUM } else { 0 }
            | if self.more_data { flags::MORE_DATA } else { 0 }
    }

    #[inline(never)]
    fn write_any(&self, out: &mut [u8]) {
        let format = self.format;
        let out = &mut out[..format.header_bytes()];
        out.fill(0);
        out[0] = self.code_byte();
        out[1] = self.flags();
        out[2..4].copy_from_slice(&self.cookie.to_be_bytes());
        if format.level().covers_headers()
            && let Some((core, rest)) = out.split_first_chunk_mut::<4>()
        {
            rest[..2].copy_from_slice(&response_sum(core).to_be_bytes());
        }
        write_payload_sum(self.payload_sum, format, out);
    }

    /// Returns whether [`read`](Self::read) finds plain headers without a fault, success, and the
    /// result behind them; for nearly all responses that is quick to see.
    #[inline]
    pub(crate) fn is_plain_success(format: Format, message: &[u8]) -> bool {
        let Some([code, flags, ..]) = message.first_chunk::<PLAIN_BYTES>() else { return false };
        format.build() == Build::Plain
            && *code == 0
            && flags & !(flags::NO_RESPONSE | flags::SELF_FORWARD) == 0
    }

    /// Reads both headers; also returns what follows them. An error response may end behind the
    /// core header.
    ///
    /// # Errors
    ///
    /// [`WireError`] naming the field that is wrong.
    #[inline]
    pub fn read(format: impl Into<Format>, message: &[u8]) -> Result<(Self, &[u8]), WireError> {
        let asked = format.into();
        let core = front("response", message, asked.core_bytes())?;
        let marked = asked.is_wide() && core[1] & flags::WIDE_CHECKSUM != 0;
        let format = if marked { asked } else { asked.unmarked() };
        if format.level().covers_headers()
            && let Some(fields) = core.first_chunk::<4>()
        {
            compare("response", &core[4..6], response_sum(fields))?;
        }
        let known = flags::ALL | if marked { flags::WIDE_CHECKSUM } else { 0 };
        check_flags(format.build(), core[1], known)?;
        let mut header = Self {
            code: ReturnCode::from_number(i32::from(core[0].cast_signed())),
            more_data: core[1] & flags::MORE_DATA != 0,
            cookie: u16::from_be_bytes([core[2], core[3]]),
            format,
            payload_sum: None,
        };
        if header.code == ReturnCode::Success {
            let headers = front("response", message, format.header_bytes())?;
            header.payload_sum = read_payload_sum(format, headers);
        }
        Ok((header, message.get(format.header_bytes()..).unwrap_or_default()))
    }

    /// Compares the payload with its checksum, if there is one.
    ///
    /// # Errors
    ///
    /// [`WireError::PayloadChecksum`] if it was damaged.
    #[inline]
    pub fn verify(&self, payload: &[u8]) -> Result<(), WireError> {
        self.payload_sum.map_or(Ok(()), |sum| sum.verify(payload))
    }
}

/// C computes it over the values in its memory, which is little endian: not over the bytes on the
/// wire.
fn request_sum(core: &[u8; 12]) -> u16 {
    let &[magic, version, a, b, c, d, e, f, g, h, flags, cookie] = core;
    crc16(&[magic, version, h, g, f, e, d, c, b, a, flags, cookie])
}

fn response_sum(core: &[u8; 4]) -> u16 {
    let &[code, flags, high, low] = core;
    crc16(&[code, flags, low, high])
}

fn compare(what: &'static str, said: &[u8], found: u16) -> Result<(), WireError> {
    if said == found.to_be_bytes() {
        return Ok(());
    }
    let said = said.iter().fold(0, |said, byte| said << 8 | u16::from(*byte));
    Err(WireError::HeaderChecksum { what, said, found })
}

fn write_payload_sum(sum: Option<PayloadSum>, format: Format, out: &mut [u8]) {
    let field = &mut out[format.core_bytes()..];
    match sum {
        Some(PayloadSum::Crc32c(sum)) if !format.is_wide() => {
            field.copy_from_slice(&sum.to_be_bytes());
        }
        Some(PayloadSum::Crc64(sum)) if format.is_wide() => {
            field.copy_from_slice(&sum.to_be_bytes());
        }
        _ => {}
    }
}

fn read_payload_sum(format: Format, headers: &[u8]) -> Option<PayloadSum> {
    let field = headers.get(format.core_bytes()..)?;
    match format.level() {
        ChecksumLevel::None | ChecksumLevel::Headers => None,
        ChecksumLevel::Payload => {
            field.first_chunk().map(|sum| PayloadSum::Crc32c(u32::from_be_bytes(*sum)))
        }
        ChecksumLevel::Payload64 => {
            field.first_chunk().map(|sum| PayloadSum::Crc64(u64::from_be_bytes(*sum)))
        }
    }
}

fn front<'a>(what: &'static str, message: &'a [u8], need: usize) -> Result<&'a [u8], WireError> {
    message.get(..need).ok_or(WireError::Short { what, len: message.len(), need })
}

fn check_flags(build: Build, flags: u8, known: u8) -> Result<(), WireError> {
    if build == Build::Plain && flags & flags::HAS_CHECKSUMS != 0 {
        return Err(WireError::PeerHasChecksums);
    }
    match flags & !known {
        0 => Ok(()),
        flags => Err(WireError::Flags { flags }),
    }
}
