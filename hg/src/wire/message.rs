//! Whole messages: headers and payload together, as they are handed to the network.
//!
//! A payload that does not fit into a message overflows: the message then carries, behind its
//! headers, the length and bytes of a bulk descriptor of the memory where the whole payload is.

use na::MsgBuf;

use crate::proc::descriptor::BulkDesc;
use crate::proc::{Writer, WriterLimits, Written};
use crate::wire::header::{Accept, Format, RequestHeader, ResponseHeader};
use crate::wire::introduction::INTRODUCTION;
use crate::{ChecksumLevel, Extension, PayloadSum, ProcError, ReturnCode, WireError};

/// A message that could not be encoded: why, and its buffer.
///
/// ```
/// use hg::proc::WriterLimits;
/// use hg::wire::header::RequestHeader;
/// use hg::wire::{Unencoded, encode_request};
/// use hg::{ProcError, RpcId};
/// use na::MsgBuf;
///
/// let limits = WriterLimits { bytes_max: 8, ..WriterLimits::default() };
/// let (header, buf) = (RequestHeader::new(RpcId(7)), MsgBuf::with_capacity(64));
/// match encode_request(header, buf, 64, limits, |out| out.put(&[0; 9])) {
///     Err(Unencoded { error: ProcError::TooLong { max: 8 }, buf }) => assert!(buf.is_empty()),
///     other => panic!("{other:?}"),
/// }
/// ```
#[derive(Debug)]
pub struct Unencoded {
    /// The reason why the payload cannot be encoded.
    pub error: ProcError,
    /// The buffer that was given, empty.
    pub buf: MsgBuf,
}

/// Encodes a request into `buf`, at most `message_max` bytes long. With [`Written::Overflow`] the
/// message is not finished: see [`finish_overflow`].
///
/// # Errors
///
/// [`Unencoded`], with whatever `encode` said.
#[inline]
pub fn encode_request(
    header: RequestHeader,
    buf: MsgBuf,
    message_max: usize,
    limits: WriterLimits,
    encode: impl FnOnce(&mut Writer) -> Result<(), ProcError>,
) -> Result<Written, Unencoded> {
    let finish = |more_data, payload_sum, out: &mut [u8]| {
        RequestHeader { more_data, payload_sum, ..header }.write(out);
    };
    let (start, level) = (header.payload_at(), header.format.level());
    encode_message((start, level), finish, buf, message_max, limits, encode)
}

/// Encodes a request with an extension between headers and payload, otherwise as
/// [`encode_request`].
///
/// # Errors
///
/// As [`encode_request`].
pub fn encode_extended_request(
    header: RequestHeader,
    extension: &Extension,
    buf: MsgBuf,
    message_max: usize,
    limits: WriterLimits,
    encode: impl FnOnce(&mut Writer) -> Result<(), ProcError>,
) -> Result<Written, Unencoded> {
    let format = header.format;
    // A few dozen bytes.
    let extension_bytes = extension.bytes(format) as u16;
    let header = RequestHeader { extension_bytes, ..header };
    let mut written = encode_request(header, buf, message_max, limits, encode)?;
    let (Written::Fits(buf) | Written::Overflow(buf, _)) = &mut written;
    if extension_bytes > 0 {
        extension.write(format, &mut buf.spare_mut()[format.header_bytes()..]);
    }
    Ok(written)
}

/// Encodes a response into `buf`, as [`encode_request`] does.
///
/// # Errors
///
/// As [`encode_request`].
#[inline]
pub fn encode_response(
    header: ResponseHeader,
    buf: MsgBuf,
    message_max: usize,
    limits: WriterLimits,
    encode: impl FnOnce(&mut Writer) -> Result<(), ProcError>,
) -> Result<Written, Unencoded> {
    let finish = |more_data, payload_sum, out: &mut [u8]| {
        ResponseHeader { more_data, payload_sum, ..header }.write(out);
    };
    let (start, level) = (header.format.header_bytes(), header.format.level());
    encode_message((start, level), finish, buf, message_max, limits, encode)
}

/// Encodes a payload that begins at `start`. `finish` writes the headers, given whether the payload
/// is elsewhere, and its checksum.
#[inline]
fn encode_message(
    (start, level): (usize, ChecksumLevel),
    finish: impl FnOnce(bool, Option<PayloadSum>, &mut [u8]),
    buf: MsgBuf,
    message_max: usize,
    limits: WriterLimits,
    encode: impl FnOnce(&mut Writer) -> Result<(), ProcError>,
) -> Result<Written, Unencoded> {
    if message_max < start || buf.capacity() < start {
        return Err(Unencoded { error: ProcError::TooLong { max: message_max }, buf });
    }
    let mut writer = Writer::new(buf, start, message_max, limits);
    if let Err(error) = encode(&mut writer) {
        return Err(Unencoded { error, buf: writer.into_buf() });
    }
    if let Some(buf) = writer.message() {
        finish(false, level.payload_sum(&buf.as_slice()[start..]), buf.spare_mut());
        return Ok(Written::Fits(writer.into_message()));
    }
    let mut written = writer.finish();
    if let Written::Overflow(buf, payload) = &mut written {
        finish(true, level.payload_sum(payload), buf.spare_mut());
    }
    Ok(written)
}

/// Finishes an overflowed message, whose headers are there, with the descriptor of where its
/// payload is.
///
/// # Errors
///
/// [`Unencoded`] with [`ProcError::TooLong`] when not even that fits.
pub fn finish_overflow(
    format: impl Into<Format>,
    buf: MsgBuf,
    message_max: usize,
    descriptor: &[u8],
) -> Result<MsgBuf, Unencoded> {
    finish_overflow_at(format.into().header_bytes(), buf, message_max, descriptor)
}

/// Finishes an overflowed message whose payload begins at `start`.
pub(crate) fn finish_overflow_at(
    start: usize,
    buf: MsgBuf,
    message_max: usize,
    descriptor: &[u8],
) -> Result<MsgBuf, Unencoded> {
    let limits =
        WriterLimits { bytes_max: message_max, bulk_eager: false, ..WriterLimits::default() };
    let mut writer = Writer::new(buf, start, message_max, limits);
    let written =
        writer.put(&(descriptor.len() as u64).to_le_bytes()).and_then(|()| writer.put(descriptor));
    if let Err(error) = written {
        return Err(Unencoded { error, buf: writer.into_buf() });
    }
    match writer.finish() {
        Written::Fits(buf) => Ok(buf),
        Written::Overflow(buf, _) => {
            Err(Unencoded { error: ProcError::TooLong { max: message_max }, buf })
        }
    }
}

/// Ends each error response of our own peers. Nothing else in one tells whose it is, and codes of C
/// peers mean less: a handler of C that has run answers with whichever it likes.
pub(crate) const OWN: [u8; 8] = *b"margo-rs";

/// Writes a response that has no payload because the RPC layer refuses the request. Like C's, it
/// has two core headers, the second of them zero; `OWN` follows.
pub fn encode_refusal(request: &RequestHeader, code: ReturnCode, buf: &mut MsgBuf) {
    let at = 2 * request.format.core_bytes();
    let out = &mut buf.spare_mut()[..at + OWN.len()];
    out.fill(0);
    ResponseHeader::answering(request, code).write(out);
    out[at..].copy_from_slice(&OWN);
    buf.set_len(at + OWN.len());
}

/// Returns whether an error response without a payload is of one of our own peers. C's end before
/// the mark.
pub fn is_own_refusal(format: impl Into<Format>, message: &[u8]) -> bool {
    message.get(2 * format.into().core_bytes()..) == Some(&OWN)
}

/// The payload that follows the headers.
///
/// ```
/// use hg::proc::{WriterLimits, Written};
/// use hg::wire::header::RequestHeader;
/// use hg::wire::{Body, decode_request, encode_request};
/// use hg::{Build, RpcId};
/// use na::MsgBuf;
///
/// let (header, buf) = (RequestHeader::new(RpcId(7)), MsgBuf::with_capacity(64));
/// let written = encode_request(header, buf, 64, WriterLimits::default(), |out| out.put(b"1 2"));
/// let Ok(Written::Fits(message)) = written else { panic!("{written:?}") };
/// match decode_request(Build::Plain, message.as_slice())?.1 {
///     Body::Inline(payload) => assert_eq!(payload, b"1 2"),
///     Body::Overflow(descriptor) => panic!("it is elsewhere: {descriptor:?}"),
/// }
/// # Ok::<(), hg::WireError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body<'a> {
    /// The payload.
    Inline(&'a [u8]),
    /// Where the payload is.
    Overflow(BulkDesc<'a>),
}

/// Reads a request. A payload that is here is compared with its checksum; one that overflowed is
/// for the caller to compare when it is.
///
/// # Errors
///
/// [`WireError`] naming what is wrong. [`RequestHeader::to_answer`] tells whether its sender can be
/// answered nevertheless.
#[inline]
pub fn decode_request(
    accept: impl Into<Accept>,
    message: &[u8],
) -> Result<(RequestHeader, Body<'_>), WireError> {
    let (header, rest) = RequestHeader::read(accept, message)?;
    let body = body(header.more_data, rest)?;
    // An introduction is written for any build, and has a code.
    if let Body::Inline(payload) = body
        && header.id != INTRODUCTION
    {
        header.verify(payload)?;
    }
    Ok((header, body))
}

/// Reads a response to a request of that format, as [`decode_request`] does. Whatever follows the
/// headers of an error response is ignored.
///
/// # Errors
///
/// [`WireError`] naming what is wrong.
#[inline]
pub fn decode_response(
    format: impl Into<Format>,
    message: &[u8],
) -> Result<(ResponseHeader, Body<'_>), WireError> {
    let (header, rest) = ResponseHeader::read(format, message)?;
    if header.code != ReturnCode::Success {
        return Ok((header, Body::Inline(&[])));
    }
    let body = body(header.more_data, rest)?;
    if let Body::Inline(payload) = body {
        header.verify(payload)?;
    }
    Ok((header, body))
}

fn body(more_data: bool, rest: &[u8]) -> Result<Body<'_>, WireError> {
    if !more_data {
        return Ok(Body::Inline(rest));
    }
    let end = || ProcError::End { at: 0, need: 8, left: rest.len() };
    let (len, rest) = rest.split_first_chunk::<8>().ok_or_else(end)?;
    let need = u64::from_le_bytes(*len);
    let left = rest.len();
    let descriptor = usize::try_from(need).ok().and_then(|len| rest.get(..len));
    // Whatever follows the descriptor is ignored, as C does.
    let descriptor = descriptor.ok_or(ProcError::End { at: 8, need, left })?;
    Ok(Body::Overflow(BulkDesc::from_bytes(descriptor)?))
}
