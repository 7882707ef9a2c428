//! Entry points for bytes that a peer can send, for fuzzers and for the test that replays their
//! corpora.
//!
//! Each function takes any bytes. It panics if a rule does not hold, and must not hang nor allocate
//! without bound.

use std::collections::BTreeMap;

use na::MsgBuf;
use serde::{Deserialize, Serialize};

use crate::bulk::BulkDesc;
use crate::proc::{self, Bytes, ProcLimits, Raw, Writer, WriterLimits, Written};
use crate::wire::extension::Proof;
use crate::wire::format::{Accept, Build, Format};
use crate::wire::header::{RequestHeader, ResponseHeader};
use crate::wire::introduction::{Challenge, Introduction};
use crate::wire::{self, Body};
use crate::{Bulk, ChecksumLevel, ConstStr, ReturnCode};

const FORMATS: [Format; 5] = [
    Format::new(Build::Plain, ChecksumLevel::None),
    Format::new(Build::Checksum, ChecksumLevel::None),
    Format::new(Build::Checksum, ChecksumLevel::Headers),
    Format::new(Build::Checksum, ChecksumLevel::Payload),
    Format::new(Build::Checksum, ChecksumLevel::Payload64),
];

/// The first byte chooses how the rest is read.
fn chosen(data: &[u8]) -> Option<(usize, &[u8])> {
    data.split_first().map(|(choice, rest)| (usize::from(*choice), rest))
}

fn body(message: &[u8], body: &Body<'_>) {
    match body {
        Body::Inline(payload) => assert!(payload.len() <= message.len()),
        Body::Overflow(desc) => check(desc, message.len()),
    }
}

fn check(desc: &BulkDesc<'_>, len: usize) {
    let bytes = desc.to_bytes();
    assert!(bytes.len() <= len, "longer than what was read");
    assert_eq!(BulkDesc::from_bytes(&bytes).as_ref(), Ok(desc));
}

/// A request: what is read can be written again, and an error knows whom to answer.
///
/// # Panics
///
/// If a rule does not hold.
pub fn request(data: &[u8]) {
    let Some((choice, message)) = chosen(data) else { return };
    let (format, detect) = (FORMATS[choice % FORMATS.len()], choice & 0x80 != 0);
    let accept = Accept { format, detect };
    match wire::decode_request(accept, message) {
        Ok((header, rest)) => {
            body(message, &rest);
            extension(&header, message);
            let header = RequestHeader { extension_bytes: 0, ..header };
            let mut out = vec![0; header.format.header_bytes()];
            header.write(&mut out);
            assert_eq!(RequestHeader::read(header.format, &out), Ok((header, &[][..])));
        }
        Err(error) => {
            if let Some(header) = RequestHeader::to_answer(accept, message, &error) {
                let mut buf = MsgBuf::with_capacity(64);
                wire::encode_refusal(&header, ReturnCode::ProtocolError, &mut buf);
                let (read, _) = ResponseHeader::read(header.format, buf.as_slice())
                    .unwrap_or_else(|error| panic!("our own refusal: {error}"));
                assert_eq!(read.code, ReturnCode::ProtocolError);
            }
        }
    }
}

/// An introduction, its answer, and a request with a proof: all that members of a cluster say.
///
/// # Panics
///
/// If a rule does not hold.
pub fn introduction(data: &[u8]) {
    let Some((choice, message)) = chosen(data) else { return };
    if let Some(read) = Introduction::read(message) {
        assert!(message.ends_with(&read.to_bytes()));
    }
    if let Some(read) = Challenge::read(message) {
        assert_eq!(read.to_bytes(), *message);
    }
    let accept = Accept { format: FORMATS[choice % FORMATS.len()], detect: choice & 0x80 != 0 };
    let Ok((header, _)) = wire::decode_request(accept, message) else { return };
    let Some((proof, before, behind)) = Proof::in_message(&header, message) else { return };
    assert!(before.len() + 16 + behind.len() <= message.len());
    let mut sealed = message.to_vec();
    let code_of = |head: &[u8], rest: &[u8]| {
        assert_eq!((head, rest), (before, behind));
        [7; 16]
    };
    assert_eq!(proof.seal(&header, &mut sealed, code_of), Some(()));
    let again = Proof::in_message(&header, &sealed).map(|(proof, ..)| proof);
    assert_eq!(again, Some(Proof { code: [7; 16], ..proof }));
}

/// Checks that an extension which could be read can be written again, in no more bytes.
fn extension(header: &RequestHeader, message: &[u8]) {
    let Ok(extension) = header.read_extension(message) else { return };
    let bytes = extension.bytes(header.format);
    assert!(bytes <= usize::from(header.extension_bytes));
    let header = RequestHeader { extension_bytes: bytes as u16, ..*header };
    let mut out = vec![0; header.payload_at()];
    header.write(&mut out);
    if bytes > 0 {
        extension.write(header.format, &mut out[header.format.header_bytes()..]);
    }
    assert_eq!(RequestHeader::read(header.format, &out), Ok((header, &[][..])));
    assert_eq!(header.read_extension(&out), Ok(extension));
}

/// A response.
///
/// # Panics
///
/// If a rule does not hold.
pub fn response(data: &[u8]) {
    let Some((choice, message)) = chosen(data) else { return };
    let format = FORMATS[choice % FORMATS.len()];
    if let Ok((header, rest)) = wire::decode_response(format, message) {
        body(message, &rest);
        let mut out = vec![0; header.format.header_bytes()];
        header.write(&mut out);
        assert_eq!(ResponseHeader::read(format, &out), Ok((header, &[][..])));
    }
}

/// A bulk descriptor: what is read can be written again, and a handle passes it on as it came.
///
/// # Panics
///
/// If a rule does not hold.
pub fn descriptor(data: &[u8]) {
    if let Ok(desc) = BulkDesc::from_bytes(data) {
        check(&desc, data.len());
    }
    let mut argument = (data.len() as u64).to_le_bytes().to_vec();
    argument.extend(data);
    if let Ok(bulk) = proc::from_slice::<Bulk>(&argument) {
        assert_eq!(encoded(&bulk, ProcLimits::default()), argument);
        assert!(bulk.eager_data().is_none_or(|eager| eager.len() <= data.len()));
    }
}

#[derive(Debug, Serialize, Deserialize)]
enum Choice {
    Nothing,
    One(u16),
    Two(i64, bool),
    Named { text: String, more: Option<Box<Choice>> },
}

#[derive(Debug, Serialize, Deserialize)]
struct All<'a> {
    numbers: (u8, i16, u32, i64, u128),
    floats: (f32, f64),
    letter: char,
    flag: bool,
    #[serde(borrow)]
    text: &'a str,
    #[serde(borrow)]
    fixed: ConstStr<&'a str>,
    #[serde(borrow)]
    bytes: Bytes<&'a [u8]>,
    list: Vec<Choice>,
    map: BTreeMap<String, Vec<u8>>,
    units: Vec<()>,
    bulk: Bulk,
    #[serde(borrow)]
    rest: Raw<&'a [u8]>,
}

fn encoded<T: Serialize>(value: &T, limits: ProcLimits) -> Vec<u8> {
    let limits = WriterLimits { proc: limits, ..WriterLimits::default() };
    let mut writer = Writer::new(MsgBuf::with_capacity(0), 0, 0, limits);
    if let Err(error) = proc::to_writer(&mut writer, value) {
        panic!("what was read cannot be written: {error}");
    }
    match writer.finish() {
        Written::Fits(_) => Vec::new(),
        Written::Overflow(_, bytes) => bytes,
    }
}

/// Reads a value, writes it, and does both again. A macro, because the types borrow.
macro_rules! again {
    ($type:ty, $bytes:expr, $limits:expr) => {
        if let Ok(value) = proc::from_slice_within::<$type>($bytes, $limits) {
            let bytes = encoded(&value, $limits);
            match proc::from_slice_within::<$type>(&bytes, $limits) {
                Ok(value) => assert_eq!(encoded(&value, $limits), bytes),
                Err(error) => panic!("what was written cannot be read: {error}"),
            }
        }
    };
}

/// An encoding: what may be read may be written, and reads as the same.
///
/// # Panics
///
/// If a rule does not hold.
pub fn values(data: &[u8]) {
    let Some((choice, bytes)) = chosen(data) else { return };
    let depth_max = if choice & 0x80 != 0 { 6 } else { proc::DEPTH_MAX };
    let limits = ProcLimits { depth_max, ..ProcLimits::default() };
    match choice % 8 {
        0 => again!(All<'_>, bytes, limits),
        1 => again!(Vec<Choice>, bytes, limits),
        2 => again!((String, Vec<String>), bytes, limits),
        3 => again!(Vec<Vec<()>>, bytes, limits),
        4 => again!(BTreeMap<u16, Option<Vec<u32>>>, bytes, limits),
        5 => again!((u64, Bulk), bytes, limits),
        6 => again!((u64, u32, &str), bytes, limits),
        _ => again!((Bytes, Option<char>, [bool; 3]), bytes, limits),
    }
}
