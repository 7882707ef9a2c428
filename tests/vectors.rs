//! Our encoder and decoder against messages of C Margo and C Mercury.
//!
//! For each captured call: what we encode is what C sent, byte for byte, and what we decode is what
//! C meant. Masks and types are in `tests/vectors/README.md`. Then each message is cut at every
//! byte and flipped at every bit: that must end in an error or a value, in bounded memory.
#![allow(clippy::unwrap_used, reason = "a test says by panicking what went wrong")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use margo::hg::bulk::desc::{BulkDesc, Handles, Segment, flags};
use margo::hg::header::{Accept, Build, Format, RequestHeader, ResponseHeader};
use margo::hg::proc::{self, Writer, WriterLimits, Written};
use margo::hg::wire::{self, Body};
use margo::hg::{ChecksumLevel, ProcError, margo as prefix};
use margo::{Bulk, ProviderId, ReturnCode, RpcId, encoding::ConstStr};
use na::MsgBuf;
use serde::{Deserialize, Serialize};

#[path = "vectors/codes.rs"]
mod codes;
mod common;
#[path = "vectors/damage.rs"]
mod damage;
#[path = "vectors/live.rs"]
mod live;
#[path = "vectors/more.rs"]
mod more;
#[path = "vectors/origin.rs"]
mod origin;

/// Longest message of the captured endpoints, without what the network layer adds.
const MESSAGE_MAX: usize = 4096;

/// One captured call.
#[derive(Clone)]
struct Call {
    title: &'static str,
    /// The tag of both messages.
    tag: u32,
    request: Vec<u8>,
    response: Vec<u8>,
}

/// One file.
struct Capture {
    format: Format,
    level: ChecksumLevel,
    /// Over shared memory, whose memory handles are no secret.
    shared_memory: bool,
    calls: Vec<Call>,
}

fn unhex(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

/// `source_bytes`: what the network layer puts before each request.
fn parse(level: Option<ChecksumLevel>, source_bytes: usize, text: &'static str) -> Capture {
    let build = if level.is_some() { Build::Checksum } else { Build::Plain };
    let format = Format::new(build, level.unwrap_or_default());
    let message = |line: &str, kind: &str, tag: u32, skip: usize| {
        let [found, of, len, hex] = line.split(' ').collect::<Vec<_>>()[..] else {
            panic!("{line}")
        };
        assert_eq!((found, of), (kind, &*format!("tag={tag}")));
        let bytes = unhex(hex);
        assert_eq!(len, format!("len={}", bytes.len()), "the capture is whole");
        bytes[skip..].to_vec()
    };
    let lines: Vec<_> = text.lines().collect();
    // C counts its calls from 1.
    let calls = lines.chunks(3).zip(1..).map(|(lines, tag)| Call {
        title: lines[0].strip_prefix("# ").unwrap(),
        tag,
        request: message(lines[1], "unexpected", tag, source_bytes),
        response: message(lines[2], "expected", tag, 0),
    });
    let level = level.unwrap_or_default();
    Capture { format, level, shared_memory: source_bytes == 0, calls: calls.collect() }
}

fn shared_memory() -> [Capture; 4] {
    use ChecksumLevel::{Headers, None, Payload};
    [
        parse(Option::None, 0, include_str!("vectors/plain-build-level-none-na+sm.txt")),
        parse(Some(None), 0, include_str!("vectors/checksum-build-level-none-na+sm.txt")),
        parse(Some(Headers), 0, include_str!("vectors/checksum-build-level-rpc_headers-na+sm.txt")),
        parse(Some(Payload), 0, include_str!("vectors/checksum-build-level-rpc_payload-na+sm.txt")),
    ]
}

fn libfabric() -> Capture {
    let text = include_str!("vectors/plain-build-level-none-ofi+tcp_rxm.txt");
    parse(None, 16, text)
}

fn all() -> impl Iterator<Item = Capture> {
    shared_memory().into_iter().chain([libfabric()])
}

impl Capture {
    fn call(&self, number: usize, title: &str) -> &Call {
        let call = &self.calls[number];
        assert!(call.title.starts_with(title), "{} is not {title}", call.title);
        call
    }

    fn request_bytes(&self, name: &str, provider: ProviderId, args: &impl Serialize) -> Vec<u8> {
        match self.request(name, provider, args) {
            Written::Fits(buf) => buf.as_slice().to_vec(),
            Written::Overflow(..) => panic!("{name} overflows"),
        }
    }

    fn request(&self, name: &str, provider: ProviderId, args: &impl Serialize) -> Written {
        let header = RequestHeader::in_format(RpcId::margo(name, provider), self.format);
        let encode = |writer: &mut Writer| -> Result<(), ProcError> {
            prefix::write_request_prefix(writer, prefix::NO_PARENT)?;
            proc::to_writer(writer, args)
        };
        let limits = WriterLimits::default();
        wire::encode_request(header, dirty(), MESSAGE_MAX, limits, encode).unwrap()
    }

    fn response_bytes(&self, result: &impl Serialize) -> Vec<u8> {
        let request = RequestHeader::in_format(RpcId(0), self.format);
        let header = ResponseHeader::answering(&request, ReturnCode::Success);
        let encode = |writer: &mut Writer| -> Result<(), ProcError> {
            prefix::write_response_prefix(writer, ReturnCode::Success)?;
            proc::to_writer(writer, result)
        };
        let limits = WriterLimits::default();
        let written = wire::encode_response(header, dirty(), MESSAGE_MAX, limits, encode);
        match written.unwrap() {
            Written::Fits(buf) => buf.as_slice().to_vec(),
            Written::Overflow(..) => panic!("the response overflows"),
        }
    }

    /// The arguments of a request, after its headers were looked at.
    fn args<'a>(&self, call: &'a Call, name: &str, provider: ProviderId) -> &'a [u8] {
        let (header, body) = wire::decode_request(self.format, &call.request).unwrap();
        let expected = RequestHeader::in_format(RpcId::margo(name, provider), self.format);
        assert_eq!(RequestHeader { payload_sum: None, ..header }, expected);
        let Body::Inline(payload) = body else { panic!("{name} overflowed") };
        let (parent, args) = prefix::split_request(payload).unwrap();
        assert_eq!(parent, prefix::NO_PARENT);
        args
    }

    fn result<'a>(&self, call: &'a Call) -> &'a [u8] {
        let (header, body) = wire::decode_response(self.format, &call.response).unwrap();
        assert_eq!((header.code, header.more_data), (ReturnCode::Success, false));
        let Body::Inline(payload) = body else { panic!("{} overflowed", call.title) };
        let (code, result) = prefix::split_response(payload).unwrap();
        assert_eq!(code, ReturnCode::Success);
        result
    }

    /// A call whose messages have nothing to mask: both ways, both messages.
    fn check<'a, A, R>(&'a self, number: usize, name: &str, provider: u16, args: A, result: R)
    where
        A: Serialize + Deserialize<'a> + PartialEq + std::fmt::Debug,
        R: Serialize + Deserialize<'a> + PartialEq + std::fmt::Debug,
    {
        let call = self.call(number, name.trim_matches('_'));
        let provider = ProviderId::new(provider);
        assert_eq!(self.request_bytes(name, provider, &args), call.request, "{}", call.title);
        assert_eq!(self.response_bytes(&result), call.response, "{}", call.title);
        assert_eq!(proc::from_slice::<A>(self.args(call, name, provider)).unwrap(), args);
        assert_eq!(proc::from_slice::<R>(self.result(call)).unwrap(), result);
    }
}

/// A buffer that was used before: what we do not write must not be sent.
fn dirty() -> MsgBuf {
    let mut buf = MsgBuf::with_capacity(MESSAGE_MAX);
    buf.spare_mut().fill(0xAA);
    buf
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct AllTypes<'a> {
    a: u8,
    b: i16,
    c: u32,
    d: i64,
    #[serde(borrow)]
    s: ConstStr<&'a str>,
    flag: bool,
}

const DEFAULT: u16 = 0xFFFF;

#[test]
fn calls_with_small_arguments() {
    for capture in &all().collect::<Vec<_>>() {
        assert_eq!(capture.calls.len(), 9, "every call is looked at");
        capture.check(0, "sum", DEFAULT, (40u32, 2u32), 42u64);
        capture.check(1, "sum", 42, (u32::MAX, 1u32), 1u64 << 32);
        let s = ConstStr("hello");
        let args =
            AllTypes { a: 0xab, b: -2, c: 0xdead_beef, d: -1_234_567_890_123, s, flag: true };
        capture.check(2, "all_types", DEFAULT, args, (-7i32, "pong"));
        capture.check(3, "null_rpc", DEFAULT, (), ());
        capture.check(8, "__shutdown__", DEFAULT, (), 0i32);
    }
}

#[test]
fn an_unknown_rpc_is_refused() {
    for capture in &all().collect::<Vec<_>>() {
        let name = "not_registered_at_server";
        let call = capture.call(4, name);
        let bytes = capture.request_bytes(name, ProviderId::DEFAULT, &(1u32, 2u32));
        assert_eq!(bytes, call.request);
        let mut buf = dirty();
        let request = wire::decode_request(capture.format, &call.request).unwrap().0;
        wire::encode_refusal(&request, ReturnCode::NoEntry, &mut buf);
        // Behind the core header C sends what was in its buffer; ours ends with a mark.
        let written = capture.format.core_bytes();
        assert_eq!(&buf.as_slice()[call.response.len()..], b"margo-rs");
        assert!(wire::is_own_refusal(capture.format, buf.as_slice()));
        assert!(!wire::is_own_refusal(capture.format, &call.response));
        assert_eq!(buf.as_slice()[..written], call.response[..written]);
        let (header, _) = wire::decode_response(capture.format, &call.response).unwrap();
        assert_eq!(header, ResponseHeader::answering(&request, ReturnCode::NoEntry));
    }
}

/// A memory handle of Mercury's shared-memory transport.
fn sm_handle(access: u8, segments: &[Segment]) -> Vec<u8> {
    let words = |words: &[u64]| -> Vec<u8> { words.iter().flat_map(|w| w.to_le_bytes()).collect() };
    let len = segments.iter().map(|segment| segment.len).sum();
    let mut handle = words(&[segments.len() as u64, len]);
    handle.extend([access, 0, 0, 0, 0, 0, 0, 0]);
    segments.iter().for_each(|segment| handle.extend(words(&[segment.base, segment.len])));
    handle
}

/// The descriptor at `at`, behind its length, to the end of the message.
fn descriptor(message: &[u8], at: usize) -> &[u8] {
    let (len, rest) = message[at..].split_first_chunk::<8>().unwrap();
    assert_eq!(u64::from_le_bytes(*len), rest.len() as u64);
    rest
}

fn with_length(descriptor: &[u8]) -> Vec<u8> {
    [&(descriptor.len() as u64).to_le_bytes(), descriptor].concat()
}

/// The masks: where each segment was in C's process.
fn bases(descriptor: &[u8], count: usize) -> Vec<u64> {
    let word = |at: usize| u64::from_le_bytes(descriptor[at..at + 8].try_into().unwrap());
    let bases: Vec<_> = (0..count).map(|segment| word(16 + 16 * segment)).collect();
    assert!(bases.iter().all(|base| *base > 4096), "addresses: {bases:x?}");
    bases
}

#[test]
fn bulk_handles_over_shared_memory() {
    for capture in shared_memory() {
        let headers = capture.format.header_bytes();
        let data: Vec<u8> = (0..64).collect();
        for (number, n, lens, access, eager) in
            [(5, 64u64, &[64u64][..], 1u8, Some(&data[..])), (6, 8192, &[4096, 4096], 3, None)]
        {
            let call = capture.call(number, "bulk_sum");
            let sent = descriptor(&call.request, headers + 8 + 8);
            let segments: Vec<_> = bases(sent, lens.len())
                .into_iter()
                .zip(lens)
                .map(|(base, &len)| Segment { base, len })
                .collect();
            let handle = sm_handle(access, &segments);
            let eager_flag = if eager.is_some() { flags::EAGER } else { 0 };
            let regv_flag = if lens.len() > 1 { flags::REGV } else { 0 };
            let desc = BulkDesc {
                len: n,
                flags: u32::from(access) | eager_flag | regv_flag,
                segments,
                handles: Handles::One(Some(&handle)),
                sm_handles: None,
                binding: None,
                eager,
            };
            assert_eq!(BulkDesc::from_bytes(sent).unwrap(), desc);
            assert_eq!(desc.to_bytes(), sent);
            check_bulk_args(&capture, call, n, eager);
        }
    }
}

/// Checks bulk handles as arguments: those that C sent are understood, and passed on as they came.
fn check_bulk_args(capture: &Capture, call: &Call, n: u64, eager: Option<&[u8]>) {
    let provider = ProviderId::DEFAULT;
    let args = capture.args(call, "bulk_sum", provider);
    let (count, bulk) = proc::from_slice::<(u64, Bulk)>(args).unwrap();
    assert_eq!((count, bulk.len()), (n, n));
    assert_eq!(bulk.eager_data(), eager);
    assert_eq!(capture.request_bytes("bulk_sum", provider, &(count, &bulk)), call.request);
    let sum: u64 = (0..n).map(|byte| byte % 256).sum();
    assert_eq!(proc::from_slice::<u64>(capture.result(call)).unwrap(), sum);
    assert_eq!(capture.response_bytes(&sum), call.response);
}

#[test]
fn bulk_handles_over_libfabric_have_a_handle_for_each_segment() {
    let capture = libfabric();
    let call = capture.call(5, "bulk_sum");
    check_bulk_args(&capture, call, 64, Some(&(0..64).collect::<Vec<u8>>()));
    let call = capture.call(6, "bulk_sum");
    let sent = descriptor(&call.request, 16 + 8 + 8);
    // libfabric's part is opaque here: 48 bytes for each segment, at the end.
    let (one, two) = sent[sent.len() - 96..].split_at(48);
    let segments = bases(sent, 2).into_iter().map(|base| Segment { base, len: 4096 }).collect();
    let desc = BulkDesc {
        len: 8192,
        flags: flags::READ | flags::WRITE,
        segments,
        handles: Handles::PerSegment(vec![Some(one), Some(two)]),
        sm_handles: None,
        binding: None,
        eager: None,
    };
    assert_eq!(BulkDesc::from_bytes(sent).unwrap(), desc);
    assert_eq!(desc.to_bytes(), sent);
    check_bulk_args(&capture, call, 8192, None);
}

#[test]
fn an_overflowed_request() {
    for capture in &all().collect::<Vec<_>>() {
        let call = capture.call(7, "big_string");
        let text = "x".repeat(10_000);
        let written = capture.request("big_string", ProviderId::DEFAULT, &text);
        let Written::Overflow(buf, stream) = written else { panic!("fits") };
        // The whole stream is elsewhere, Margo's prefix included.
        let (parent, args) = prefix::split_request(&stream).unwrap();
        assert_eq!(parent, prefix::NO_PARENT);
        assert_eq!(proc::from_slice::<&str>(args).unwrap(), text);

        let sent = descriptor(&call.request, capture.format.header_bytes());
        let segment = Segment { base: bases(sent, 1)[0], len: stream.len() as u64 };
        let handle_at = 16 + 16 + 8;
        let desc = BulkDesc {
            len: stream.len() as u64,
            flags: flags::READ,
            segments: vec![segment],
            handles: Handles::One(Some(&sent[handle_at..])),
            sm_handles: None,
            binding: None,
            eager: None,
        };
        if capture.shared_memory {
            assert_eq!(sent[handle_at..], sm_handle(1, &[segment]));
        }
        let bytes = desc.to_bytes();
        let buf = wire::finish_overflow(capture.format, buf, MESSAGE_MAX, &bytes).unwrap();
        assert_eq!(buf.as_slice(), call.request);
        let (header, body) = wire::decode_request(capture.format, &call.request).unwrap();
        assert!(header.more_data && !header.no_response);
        assert_eq!(body, Body::Overflow(desc));
        assert_eq!(capture.response_bytes(&10_000u64), call.response);
        assert_eq!(proc::from_slice::<u64>(capture.result(call)).unwrap(), 10_000);
        assert_eq!(with_length(sent), call.request[capture.format.header_bytes()..]);
    }
}

/// Decodes `message` as far as it goes, as every type that was captured.
fn survive(format: Format, message: &[u8]) {
    let in_bounds = |len: usize| assert!(len <= message.len(), "{len} bytes out of {message:?}");
    if let Ok((_, body)) = wire::decode_request(format, message) {
        match body {
            Body::Inline(payload) => {
                let Ok((_, args)) = prefix::split_request(payload) else { return };
                let _ = proc::from_slice::<(u32, u32)>(args);
                if let Ok(all) = proc::from_slice::<AllTypes<'_>>(args) {
                    in_bounds(all.s.len());
                }
                if let Ok((_, bulk)) = proc::from_slice::<(u64, Bulk)>(args) {
                    in_bounds(bulk.eager_data().map_or(0, <[u8]>::len));
                    in_bounds(bulk.as_bytes().len());
                }
                if let Ok(text) = proc::from_slice::<String>(args) {
                    in_bounds(text.capacity());
                }
                if let Ok(list) = proc::from_slice::<Vec<u64>>(args) {
                    in_bounds(list.capacity() * 8);
                }
            }
            Body::Overflow(desc) => {
                in_bounds(desc.segments.capacity() * size_of::<Segment>());
                assert!(desc.to_bytes().len() <= message.len());
            }
        }
    }
    match wire::decode_response(format, message) {
        Ok((_, Body::Inline(payload))) => {
            let Ok((_, result)) = prefix::split_response(payload) else { return };
            let _ = proc::from_slice::<u64>(result);
            if let Ok((_, text)) = proc::from_slice::<(i32, String)>(result) {
                in_bounds(text.len());
            }
        }
        Ok((_, Body::Overflow(desc))) => assert!(desc.to_bytes().len() <= message.len()),
        Err(_) => {}
    }
}

/// Counts what this thread allocates.
struct Counting;

thread_local! {
    static ALLOCATED: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call goes on to the system's allocator, with the arguments that came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // The thread may be ending; nothing is measured then.
        let _ = ALLOCATED.try_with(|sum| sum.set(sum.get() + layout.size()));
        // SAFETY: the caller keeps to the rules of `GlobalAlloc::alloc`, which are the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: `memory` came from `alloc` above with this layout, so from `System`.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// [`survive`], in bounded memory.
fn check_survival(format: Format, message: &[u8]) {
    let before = ALLOCATED.get();
    survive(format, message);
    let allocated = ALLOCATED.get() - before;
    // Some types are tried, and errors have texts.
    let bound = 20 * message.len() + 2000;
    assert!(allocated <= bound, "{allocated} bytes for {message:x?}");
}

/// Every message, whole, cut at every byte and flipped at every bit.
fn damaged(message: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let cuts = (0..message.len()).map(|cut| message[..cut].to_vec());
    let flips = (0..message.len() * 8).map(|bit| {
        let mut message = message.to_vec();
        message[bit / 8] ^= 1 << (bit % 8);
        message
    });
    cuts.chain(flips)
}

#[test]
fn every_cut_and_every_flipped_bit_is_survived_in_bounded_memory() {
    // As every format, whichever the message was written in.
    let formats: Vec<Format> = all().map(|capture| capture.format).collect();
    for capture in &all().collect::<Vec<_>>() {
        for Call { request, response, .. } in &capture.calls {
            for message in damaged(request).chain(damaged(response)) {
                formats.iter().for_each(|format| check_survival(*format, &message));
            }
        }
    }
}

#[test]
fn with_checksums_every_damage_is_found() {
    let [_, _, headers, payload] = shared_memory();
    for capture in [headers, payload] {
        let format = capture.format;
        let covers_payload = format.level() == ChecksumLevel::Payload;
        for Call { request, response, title, .. } in &capture.calls {
            let overflowed = wire::decode_request(format, request).unwrap().0.more_data;
            for bit in 0..request.len() * 8 {
                let mut message = request.clone();
                message[bit / 8] ^= 1 << (bit % 8);
                // The descriptor of what overflowed, and its checksum, are looked at with it.
                let covered = match bit / 8 {
                    0..14 => true,
                    14..16 => false,
                    _ => covers_payload && !overflowed,
                };
                let result = wire::decode_request(format, &message);
                let found = matches!(&result, Err(error) if error.is_checksum());
                assert!(found == covered || result.is_err(), "{title}, bit {bit}");
            }
            let failed = response[0] != 0;
            for bit in 0..response.len() * 8 {
                let mut message = response.clone();
                message[bit / 8] ^= 1 << (bit % 8);
                let covered = match bit / 8 {
                    0..6 => true,
                    6..16 => false,
                    _ => covers_payload && !failed,
                };
                let result = wire::decode_response(format, &message);
                let found = matches!(&result, Err(error) if error.is_checksum());
                assert_eq!(found, covered, "{title}, bit {bit}");
            }
        }
    }
}

#[test]
fn a_plain_target_recognises_requests_of_the_other_build() {
    let accept = Accept { format: Build::Plain.into(), detect: true };
    for capture in all() {
        let written = Format::from(capture.format.build());
        for call in &capture.calls {
            let (header, _) = wire::decode_request(accept, &call.request).unwrap();
            assert_eq!(header.format, written, "{}", call.title);
        }
    }
}

#[test]
fn a_cut_request_is_never_taken_for_a_whole_one() {
    for capture in shared_memory() {
        for (number, name) in [(0, "sum"), (2, "all_types"), (5, "bulk_sum"), (7, "big_string")] {
            let Call { request, .. } = capture.call(number, name);
            for cut in 0..request.len() {
                let whole =
                    wire::decode_request(capture.format, &request[..cut]).is_ok_and(|(_, body)| {
                        match body {
                            Body::Overflow(_) => true,
                            Body::Inline(payload) => {
                                prefix::split_request(payload).is_ok_and(|(_, args)| match name {
                                    "sum" => proc::from_slice::<(u32, u32)>(args).is_ok(),
                                    "all_types" => proc::from_slice::<AllTypes<'_>>(args).is_ok(),
                                    _ => proc::from_slice::<(u64, Bulk)>(args).is_ok(),
                                })
                            }
                        }
                    });
                assert!(!whole, "{name} cut at {cut}");
            }
        }
    }
}
