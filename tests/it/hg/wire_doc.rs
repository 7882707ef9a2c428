//! Every example in `docs/wire.md` is what the code writes.

use std::collections::BTreeMap;
use std::time::Duration;

use margo::hg::header::{Build, Format, RequestHeader, ResponseHeader};
use margo::hg::proc::{self, Bytes, Raw, Writer, WriterLimits, Written};
use margo::hg::{ChecksumLevel, Extension, ProcError, Stamp, TraceParent, margo as prefix, wire};
use margo::{Bulk, ProviderId, ReturnCode, RpcId, encoding::ConstStr};
use na::MsgBuf;
use serde::Serialize;

/// Name and bytes of each example.
fn documented() -> BTreeMap<String, Vec<u8>> {
    let page = include_str!("../../../docs/wire.md");
    let mut examples = BTreeMap::new();
    let blocks = page.split("```wire\n").skip(1);
    for line in blocks.flat_map(|block| block.split("```").next().unwrap().lines()) {
        // Names are as long as they are; at least two spaces end them.
        let (name, hex) = line.split_once("  ").unwrap_or_else(|| panic!("{line}"));
        let bytes = hex.split_whitespace().filter(|byte| *byte != "-");
        let bytes = bytes.map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
        assert_eq!(examples.insert(name.to_owned(), bytes), None, "{name} twice");
    }
    examples
}

#[derive(Serialize)]
struct Struct {
    a: u8,
    b: u32,
}

#[derive(Serialize)]
enum Enum {
    Unit,
    Newtype(u8),
    Struct { a: u8, b: Option<u8> },
}

fn values() -> Vec<(&'static str, Vec<u8>)> {
    fn of<T: Serialize + ?Sized>(value: &T) -> Vec<u8> {
        proc::to_vec(value).unwrap()
    }
    vec![
        ("true", of(&true)),
        ("0x1122u16", of(&0x1122u16)),
        ("-2i64", of(&-2i64)),
        ("1.5f32", of(&1.5f32)),
        ("1.5f64", of(&1.5f64)),
        ("'é'", of(&'é')),
        ("\"hi\"", of("hi")),
        ("ConstStr(\"hi\")", of(&ConstStr("hi"))),
        ("\"\"", of("")),
        ("Bytes([7, 8])", of(&Bytes([7, 8]))),
        ("(1u8, Raw([7, 8]))", of(&(1u8, Raw([7, 8])))),
        ("Some(7u16)", of(&Some(7u16))),
        ("None", of(&None::<u16>)),
        ("(\"hi\", Some(7u16))", of(&("hi", Some(7u16)))),
        ("()", of(&())),
        ("[1u16, 2u16]", of(&[1u16, 2u16])),
        ("vec![1u16, 2u16]", of(&vec![1u16, 2u16])),
        ("{1u8: true, 2u8: false}", of(&BTreeMap::from([(1u8, true), (2u8, false)]))),
        ("Struct { a: 1u8, b: 2u32 }", of(&Struct { a: 1, b: 2 })),
        ("Enum::Unit, the first", of(&Enum::Unit)),
        ("Enum::Newtype(5u8), the second", of(&Enum::Newtype(5))),
        ("Enum::Struct { a: 1u8, b: Some(2u8) }", of(&Enum::Struct { a: 1, b: Some(2) })),
        ("a bulk handle of no memory", of(&Bulk::null())),
    ]
}

const OPEN: RpcId = RpcId::mercury("open");

fn request(
    id: RpcId,
    format: Format,
    encode: impl FnOnce(&mut Writer) -> Result<(), ProcError>,
) -> Vec<u8> {
    let header = RequestHeader::in_format(id, format);
    let buf = MsgBuf::with_capacity(256);
    match wire::encode_request(header, buf, 256, WriterLimits::default(), encode).unwrap() {
        Written::Fits(buf) => buf.as_slice().to_vec(),
        Written::Overflow(..) => panic!("does not fit"),
    }
}

fn messages() -> Vec<(&'static str, Vec<u8>)> {
    let nothing = |_: &mut Writer| Ok(());
    let level = |level| Format::new(Build::Checksum, level);
    let asked = RequestHeader::new(OPEN);
    let mut success = vec![0; 16];
    ResponseHeader::answering(&asked, ReturnCode::Success).write(&mut success);
    let mut refusal = MsgBuf::with_capacity(64);
    wire::encode_refusal(&asked, ReturnCode::NoEntry, &mut refusal);

    let payload = level(ChecksumLevel::Payload);
    let sum = RpcId::margo("sum", ProviderId::DEFAULT);
    let call = request(sum, payload, |writer| {
        prefix::write_request_prefix(writer, prefix::NO_PARENT)?;
        proc::to_writer(writer, &(40u32, 2u32))
    });
    let header =
        ResponseHeader::answering(&RequestHeader::in_format(sum, payload), ReturnCode::Success);
    let limits = WriterLimits::default();
    let answer = wire::encode_response(header, MsgBuf::with_capacity(256), 256, limits, |writer| {
        prefix::write_response_prefix(writer, ReturnCode::Success)?;
        proc::to_writer(writer, &42u64)
    });
    let Written::Fits(answer) = answer.unwrap() else { panic!("does not fit") };
    let wide = level(ChecksumLevel::Payload64);
    vec![
        (
            "request header, plain build, id of \"open\"",
            request(OPEN, Build::Plain.into(), nothing),
        ),
        (
            "request header, checksum build, level none",
            request(OPEN, Build::Checksum.into(), nothing),
        ),
        ("request header, level headers", request(OPEN, level(ChecksumLevel::Headers), nothing)),
        ("response header, plain build, success", success),
        ("refusal, plain build, HG_NOENTRY", refusal.as_slice().to_vec()),
        ("sum 40 2, level payload, from C", call),
        ("its response 42", answer.as_slice().to_vec()),
        ("\"abc\" to \"open\", level payload 64", request(OPEN, wide, |writer| writer.put(b"abc"))),
    ]
}

/// Requests with something beside their header.
fn extended() -> Vec<(&'static str, Vec<u8>)> {
    let second = Extension { remaining: Some(Duration::from_secs(1)), ..Extension::default() };
    let sent = Some(Stamp { clock: 0x0403_0201, nanos: 2_000_000_000 });
    let stamped = Extension { sent, ..second.clone() };
    let cancel = Extension { cancel: true, ..Extension::default() };
    let unread = Extension { unread: true, ..Extension::default() };
    let trace_id = 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736_u128.to_be_bytes();
    let span_id = 0x00f0_67aa_0ba9_02b7_u64.to_be_bytes();
    let trace = Some(TraceParent { trace_id, span_id });
    let traced = Extension { trace, ..Extension::default() };
    let on_behalf_of = Some(Box::new(margo::hg::OnBehalfOf::User(1000)));
    let behalf = Extension { on_behalf_of, ..Extension::default() };
    let summed = Format::new(Build::Checksum, ChecksumLevel::Headers);
    let request = |id, format, no_response, extension: &Extension, payload: &[u8]| {
        let header = RequestHeader { no_response, ..RequestHeader::in_format(id, format) };
        let (buf, limits) = (MsgBuf::with_capacity(256), WriterLimits::default());
        let put = |writer: &mut Writer| writer.put(payload);
        let written = wire::encode_extended_request(header, extension, buf, 256, limits, put);
        let Ok(Written::Fits(message)) = written else { panic!("does not fit") };
        let (header, body) = wire::decode_request(format, message.as_slice()).unwrap();
        assert_eq!(header.read_extension(message.as_slice()), Ok(extension.clone()));
        assert_eq!(body, wire::Body::Inline(payload));
        message.as_slice().to_vec()
    };
    let plain = Build::Plain.into();
    vec![
        ("\"abc\" to \"open\", 1 s left", request(OPEN, plain, false, &second, b"abc")),
        (
            "\"abc\" to \"open\", 1 s left, sent at 2 s",
            request(OPEN, plain, false, &stamped, b"abc"),
        ),
        ("\"abc\" to \"open\", in a trace", request(OPEN, plain, false, &traced, b"abc")),
        (
            "\"abc\" to \"open\", 1 s left, level headers",
            request(OPEN, summed, false, &second, b"abc"),
        ),
        (
            "\"abc\" to \"open\", on behalf of user 1000",
            request(OPEN, plain, false, &behalf, b"abc"),
        ),
        ("the call of this tag is canceled", request(RpcId(0), plain, true, &cancel, b"")),
        (
            "the response to this tag's call came damaged",
            request(RpcId(0), plain, true, &unread, b""),
        ),
    ]
}

#[test]
fn the_examples_are_what_is_written() {
    let mut documented = documented();
    for (name, bytes) in values().into_iter().chain(messages()).chain(extended()) {
        let Some(example) = documented.remove(name) else { panic!("{name} is not there") };
        assert_eq!(format!("{example:02x?}"), format!("{bytes:02x?}"), "{name}");
    }
    assert!(documented.is_empty(), "examples that nothing checks: {documented:x?}");
}
