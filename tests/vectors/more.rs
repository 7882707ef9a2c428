//! Further captures of C: results that overflow, with the acknowledgement that follows, memory that
//! is written to (push), and requests that want no response.

use super::*;

/// One message, and whether it is an expected one.
type Message = (bool, Vec<u8>);

/// One file: calls with as many messages as each has, in their order.
pub(super) struct More {
    pub(super) format: Format,
    shared_memory: bool,
    calls: Vec<(&'static str, Vec<Message>)>,
}

fn parse(level: Option<ChecksumLevel>, source_bytes: usize, text: &'static str) -> More {
    let build = if level.is_some() { Build::Checksum } else { Build::Plain };
    let format = Format::new(build, level.unwrap_or_default());
    let mut calls: Vec<(&str, Vec<Message>)> = Vec::new();
    for line in text.lines() {
        if let Some(title) = line.strip_prefix("# ") {
            calls.push((title, Vec::new()));
            continue;
        }
        let [kind, tag, len, hex] = line.split(' ').collect::<Vec<_>>()[..] else {
            panic!("{line}")
        };
        // Each message of a call has the tag of its request; C counts its calls from 1.
        assert_eq!(tag, format!("tag={}", calls.len()));
        let bytes = unhex(hex);
        assert_eq!(len, format!("len={}", bytes.len()), "the capture is whole");
        let is_expected = kind == "expected";
        assert!(is_expected || kind == "unexpected", "{line}");
        let skip = if is_expected { 0 } else { source_bytes };
        calls.last_mut().unwrap().1.push((is_expected, bytes[skip..].to_vec()));
    }
    assert_eq!(calls.len(), 5, "every call is looked at");
    More { format, shared_memory: source_bytes == 0, calls }
}

pub(super) fn all() -> [More; 6] {
    use ChecksumLevel::{Headers, None, Payload};
    macro_rules! file {
        ($name:literal) => {
            include_str!(concat!($name, ".more.txt"))
        };
    }
    [
        parse(Option::None, 0, file!("plain-build-level-none-na+sm")),
        parse(Some(None), 0, file!("checksum-build-level-none-na+sm")),
        parse(Some(Headers), 0, file!("checksum-build-level-rpc_headers-na+sm")),
        parse(Some(Payload), 0, file!("checksum-build-level-rpc_payload-na+sm")),
        parse(Option::None, 16, file!("plain-build-level-none-ofi+tcp_rxm")),
        parse(Some(Payload), 16, file!("checksum-build-level-rpc_payload-ofi+tcp_rxm")),
    ]
}

impl More {
    /// The messages of a call: a request and `expected` other ones.
    pub(super) fn messages(&self, number: usize, title: &str, expected: usize) -> Vec<&[u8]> {
        let (found, messages) = &self.calls[number];
        assert!(found.starts_with(title), "{found} is not {title}");
        let kinds: Vec<_> = messages.iter().map(|(is_expected, _)| *is_expected).collect();
        assert_eq!(kinds, [vec![false], vec![true; expected]].concat(), "{title}");
        messages.iter().map(|(_, bytes)| bytes.as_slice()).collect()
    }

    fn header(&self, name: &str, no_response: bool) -> RequestHeader {
        let id = RpcId::margo(name, ProviderId::DEFAULT);
        RequestHeader { no_response, ..RequestHeader::in_format(id, self.format) }
    }

    fn request(&self, header: RequestHeader, args: &impl Serialize) -> Written {
        let encode = |writer: &mut Writer| -> Result<(), ProcError> {
            prefix::write_request_prefix(writer, prefix::NO_PARENT)?;
            proc::to_writer(writer, args)
        };
        let limits = WriterLimits::default();
        wire::encode_request(header, dirty(), MESSAGE_MAX, limits, encode).unwrap()
    }

    fn response(&self, result: &impl Serialize) -> Written {
        let header = ResponseHeader::answering(&self.header("", false), ReturnCode::Success);
        let encode = |writer: &mut Writer| -> Result<(), ProcError> {
            prefix::write_response_prefix(writer, ReturnCode::Success)?;
            proc::to_writer(writer, result)
        };
        let limits = WriterLimits::default();
        wire::encode_response(header, dirty(), MESSAGE_MAX, limits, encode).unwrap()
    }

    /// The arguments of a request whose header is `expected`.
    fn args<'a>(&self, sent: &'a [u8], expected: RequestHeader) -> &'a [u8] {
        let (header, body) = wire::decode_request(self.format, sent).unwrap();
        assert_eq!(RequestHeader { payload_sum: None, ..header }, expected);
        let Body::Inline(payload) = body else { panic!("overflowed") };
        let (parent, args) = prefix::split_request(payload).unwrap();
        assert_eq!(parent, prefix::NO_PARENT);
        args
    }

    /// A message whose payload, `stream`, is elsewhere: our descriptor of it is C's.
    fn check_overflow(&self, buf: MsgBuf, stream: &[u8], sent: &[u8]) -> BulkDesc<'static> {
        let found = descriptor(sent, self.format.header_bytes());
        let segment = Segment { base: bases(found, 1)[0], len: stream.len() as u64 };
        let handle: &'static [u8] = found[16 + 16 + 8..].to_vec().leak();
        if self.shared_memory {
            assert_eq!(handle, sm_handle(1, &[segment]));
        }
        let desc = BulkDesc {
            len: stream.len() as u64,
            flags: flags::READ,
            segments: vec![segment],
            handles: Handles::One(Some(handle)),
            sm_handles: None,
            binding: None,
            eager: None,
        };
        let bytes = desc.to_bytes();
        let buf = wire::finish_overflow(self.format, buf, MESSAGE_MAX, &bytes).unwrap();
        assert_eq!(buf.as_slice(), sent);
        desc
    }
}

fn bytes_of(written: Written) -> Vec<u8> {
    match written {
        Written::Fits(buf) => buf.as_slice().to_vec(),
        Written::Overflow(..) => panic!("overflows"),
    }
}

#[test]
fn a_result_that_overflows_is_fetched_and_acknowledged() {
    for capture in all() {
        let messages = capture.messages(0, "big_out", 2);
        let [request, response, ack] = messages[..] else { unreachable!() };
        let header = capture.header("big_out", false);
        assert_eq!(bytes_of(capture.request(header, &10_000u64)), request);
        let args = capture.args(request, header);
        assert_eq!(proc::from_slice::<u64>(args).unwrap(), 10_000);

        let text = "y".repeat(10_000);
        let written = capture.response(&ConstStr(text.as_str()));
        let Written::Overflow(buf, stream) = written else { panic!("fits") };
        let desc = capture.check_overflow(buf, &stream, response);
        let (header, body) = wire::decode_response(capture.format, response).unwrap();
        assert!(header.more_data && header.code == ReturnCode::Success);
        assert_eq!(body, Body::Overflow(desc));
        // The checksum is that of what is fetched.
        header.verify(&stream).unwrap();
        let (code, result) = prefix::split_response(&stream).unwrap();
        assert_eq!(code, ReturnCode::Success);
        assert_eq!(proc::from_slice::<ConstStr<&str>>(result).unwrap().0, text);
        if capture.format.level() == ChecksumLevel::Payload {
            let mut other = stream.to_vec();
            other[5000] ^= 1;
            assert!(header.verify(&other).unwrap_err().is_checksum());
        }
        assert_eq!(ack.len(), 1);
    }
}

#[test]
fn memory_that_is_written_to() {
    for capture in all() {
        for (number, n, lens) in [(1, 64u64, &[64u64][..]), (2, 8192, &[4096, 4096])] {
            let messages = capture.messages(number, "push", 1);
            let [request, response] = messages[..] else { unreachable!() };
            let header = capture.header("push", false);
            let args = capture.args(request, header);
            let (count, bulk) = proc::from_slice::<(u64, Bulk)>(args).unwrap();
            // What may not be read does not travel inside its handle.
            assert_eq!((count, bulk.len(), bulk.eager_data()), (n, n, None));
            assert_eq!(bytes_of(capture.request(header, &(count, &bulk))), request);

            let sent = descriptor(request, capture.format.header_bytes() + 8 + 8);
            let found = bases(sent, lens.len()).into_iter().zip(lens);
            let segments: Vec<_> = found.map(|(base, &len)| Segment { base, len }).collect();
            let desc = BulkDesc::from_bytes(sent).unwrap();
            let regv = if capture.shared_memory && lens.len() > 1 { flags::REGV } else { 0 };
            assert_eq!((desc.len, desc.flags), (n, flags::WRITE | regv));
            assert_eq!(desc.segments, segments);
            match &desc.handles {
                Handles::One(handle) if capture.shared_memory => {
                    assert_eq!(*handle, Some(&sm_handle(2, &segments)[..]));
                }
                Handles::One(Some(handle)) => assert_eq!((handle.len(), lens.len()), (48, 1)),
                Handles::PerSegment(handles) => assert_eq!(handles.len(), lens.len()),
                other => panic!("{other:?}"),
            }
            assert_eq!(desc.to_bytes(), sent);

            assert_eq!(bytes_of(capture.response(&0u64)), response);
            let (header, body) = wire::decode_response(capture.format, response).unwrap();
            assert_eq!((header.code, header.more_data), (ReturnCode::Success, false));
            let Body::Inline(payload) = body else { panic!("overflowed") };
            let (code, result) = prefix::split_response(payload).unwrap();
            let result = proc::from_slice::<u64>(result).unwrap();
            assert_eq!((code, result), (ReturnCode::Success, 0));
        }
    }
}

#[test]
fn requests_that_want_no_response() {
    for capture in all() {
        let header = capture.header("oneway", true);
        let [request] = capture.messages(3, "oneway", 0)[..] else { unreachable!() };
        assert_eq!(bytes_of(capture.request(header, &ConstStr("abc"))), request);
        let args = capture.args(request, header);
        assert_eq!(proc::from_slice::<ConstStr<&str>>(args).unwrap().0, "abc");

        // One that overflows is acknowledged, so that the origin can let go of the arguments.
        let messages = capture.messages(4, "oneway", 1);
        let [request, ack] = messages[..] else { unreachable!() };
        let text = "x".repeat(10_000);
        let written = capture.request(header, &ConstStr(text.as_str()));
        let Written::Overflow(buf, stream) = written else { panic!("fits") };
        let desc = capture.check_overflow(buf, &stream, request);
        let (header, body) = wire::decode_request(capture.format, request).unwrap();
        assert!(header.more_data && header.no_response);
        assert_eq!(body, Body::Overflow(desc));
        header.verify(&stream).unwrap();
        let (_, args) = prefix::split_request(&stream).unwrap();
        assert_eq!(proc::from_slice::<ConstStr<&str>>(args).unwrap().0, text);
        assert_eq!(ack.len(), 1);
    }
}

#[test]
fn these_too_survive_every_cut_and_every_flipped_bit() {
    let formats: Vec<Format> = all().map(|capture| capture.format).into();
    for capture in all() {
        for (_, message) in capture.calls.iter().flat_map(|(_, messages)| messages) {
            for message in damaged(message) {
                formats.iter().for_each(|format| check_survival(*format, &message));
            }
        }
    }
}
