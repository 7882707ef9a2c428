//! Headers of both builds at every checksum level, byte by byte.

use crate::header::{Accept, Build, Format, RequestHeader, ResponseHeader, flags};
use crate::wire::{Body, decode_request, decode_response};
use crate::{ChecksumLevel, PayloadSum, ReturnCode, RpcId, WireError};

const REQUEST: RequestHeader = RequestHeader::new(RpcId(0x7c9b_d777));

/// Every format there is.
pub(super) const FORMATS: [Format; 5] = [
    Format::new(Build::Plain, ChecksumLevel::None),
    Format::new(Build::Checksum, ChecksumLevel::None),
    Format::new(Build::Checksum, ChecksumLevel::Headers),
    Format::new(Build::Checksum, ChecksumLevel::Payload),
    Format::new(Build::Checksum, ChecksumLevel::Payload64),
];

fn request(format: Format) -> RequestHeader {
    let payload_sum = format.level().payload_sum(b"payload");
    RequestHeader { payload_sum, ..RequestHeader::in_format(RpcId(0x7c9b_d777), format) }
}

fn written(header: &RequestHeader) -> Vec<u8> {
    let mut out = vec![0xAA; header.format.header_bytes()];
    header.write(&mut out);
    out
}

#[test]
fn request_as_mercury_writes_it() {
    let mut out = [0xAA; 16];
    REQUEST.write(&mut out);
    let expected = [0xd7, 5, 0, 0, 0, 0, 0x7c, 0x9b, 0xd7, 0x77, 0, 0, 0, 0, 0, 0];
    assert_eq!(out, expected);
    assert_eq!(RequestHeader::read(Build::Plain, &out), Ok((REQUEST, &[][..])));
}

#[test]
fn every_format_reads_what_it_writes() {
    for format in FORMATS {
        let request = RequestHeader {
            more_data: true,
            no_response: true,
            cookie: 9,
            ..self::request(format)
        };
        let bytes = written(&request);
        assert_eq!(RequestHeader::read(format, &bytes), Ok((request, &[][..])));
        for code in [ReturnCode::Success, ReturnCode::NoEntry] {
            let sum = request.payload_sum.filter(|_| code == ReturnCode::Success);
            let response = ResponseHeader {
                more_data: true,
                cookie: 513,
                payload_sum: sum,
                ..ResponseHeader::answering(&request, code)
            };
            let mut out = vec![0xAA; format.header_bytes()];
            response.write(&mut out);
            assert_eq!(ResponseHeader::read(format, &out), Ok((response, &[][..])));
        }
    }
}

#[test]
fn what_is_wrong_is_named() {
    let out = written(&REQUEST);
    let with = |at: usize, byte: u8| {
        let mut changed = out.clone();
        changed[at] = byte;
        RequestHeader::read(Build::Plain, &changed).map(|(header, _)| header)
    };
    assert_eq!(with(0, 1), Err(WireError::Magic { found: 1 }));
    assert_eq!(with(1, 4), Err(WireError::Version { found: 4, expected: 5 }));
    assert_eq!(with(1, 0x45), Err(WireError::Version { found: 0x45, expected: 5 }));
    assert_eq!(with(10, 0x80), Err(WireError::PeerHasChecksums));
    let said = WireError::PeerHasChecksums.to_string();
    assert!(said.contains(r#""mercury_build": "checksums""#), "{said}");
    assert_eq!(with(10, 0x18), Err(WireError::Flags { flags: 0x10 }));
    assert_eq!(with(10, flags::SELF_FORWARD), Ok(REQUEST), "masked");
    let short = RequestHeader::read(Build::Plain, &out[..15]).unwrap_err();
    assert_eq!(short, WireError::Short { what: "request", len: 15, need: 16 });
    assert_eq!(RequestHeader::read_core(Build::Plain, &out[..12]), Ok(REQUEST));
}

#[test]
fn only_an_error_response_may_lack_the_second_header() {
    let mut out = [0; 16];
    ResponseHeader::new(ReturnCode::NoEntry, 0).write(&mut out);
    assert!(ResponseHeader::read(Build::Plain, &out[..12]).is_ok());
    ResponseHeader::new(ReturnCode::Success, 0).write(&mut out);
    assert!(ResponseHeader::read(Build::Plain, &out[..12]).is_err());
    ResponseHeader::new(ReturnCode::Unknown(4000), 0).write(&mut out);
    let (read, _) = ResponseHeader::read(Build::Plain, &out).unwrap();
    assert_eq!(read.code, ReturnCode::Unknown(127), "never mistaken for success");
}

/// Returns the format that a target, configured so, recognizes in a request.
fn seen(configured: Format, detect: bool, bytes: &[u8]) -> Result<Format, WireError> {
    let accept = Accept { format: configured, detect };
    RequestHeader::read(accept, bytes).map(|(header, _)| header.format)
}

#[test]
fn the_flag_tells_the_build_and_the_version_the_width() {
    let [plain, none, headers, payload, wide] = FORMATS;
    for configured in [plain, none] {
        for format in [none, wide] {
            assert_eq!(seen(configured, true, &written(&request(format))), Ok(format));
        }
        // What is filled in but not asked for is not looked at: C cannot tell either.
        for format in [headers, payload] {
            assert_eq!(seen(configured, true, &written(&request(format))), Ok(none));
        }
    }
    assert_eq!(seen(plain, true, &written(&request(plain))), Ok(plain));
    let flagged = written(&request(none));
    assert_eq!(seen(plain, false, &flagged), Err(WireError::PeerHasChecksums));
    // Checksum builds before 2.4.1 have no flag.
    let mut unflagged = flagged;
    unflagged[10] = 0;
    assert_eq!(seen(none, true, &unflagged), Ok(none));
    // Of a peer whose checksums are narrower, those are verified.
    assert_eq!(seen(wide, true, &written(&request(payload))), Ok(payload));
    let error = seen(wide, true, &written(&request(none))).unwrap_err();
    assert!(matches!(error, WireError::HeaderChecksum { what: "request", .. }), "{error}");
}

#[test]
fn c_refuses_a_request_with_a_wide_checksum_by_its_version() {
    let bytes = written(&request(FORMATS[4]));
    assert_eq!(bytes[1], 0x45);
    assert_eq!(bytes.len(), 24);
    let sum = PayloadSum::Crc64(u64::from_be_bytes(bytes[16..].try_into().unwrap()));
    assert_eq!(sum.verify(b"payload"), Ok(()));
}

#[test]
fn every_flipped_bit_of_a_protected_header_is_found() {
    for format in &FORMATS[2..] {
        let accept = Accept { format: *format, detect: true };
        let header = request(*format);
        let good = written(&header);
        for bit in 0..14 * 8 {
            let mut bytes = good.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let error = RequestHeader::read(accept, &bytes).expect_err("a damaged header");
            // However the damage looks, the origin hears of it.
            let answered = RequestHeader::to_answer(accept, &bytes, &error);
            assert!(answered.is_some_and(|header| !header.no_response), "bit {bit}: {error}");
            assert!(error.is_checksum(), "bit {bit}: {error}");
        }
        let response = ResponseHeader::answering(&header, ReturnCode::Success);
        let mut good = vec![0; format.header_bytes()];
        response.write(&mut good);
        for bit in 0..6 * 8 {
            let mut bytes = good.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let error = ResponseHeader::read(*format, &bytes).expect_err("a damaged header");
            assert!(error.is_checksum(), "bit {bit}: {error}");
        }
    }
}

#[test]
fn what_is_quick_to_see_is_what_the_whole_check_finds() {
    let accepts = FORMATS.map(|format| [true, false].map(|detect| Accept { format, detect }));
    for accept in accepts.into_iter().flatten() {
        let mut seen = 0;
        for len in [0, 12, 15, 16, 19, 24] {
            for flags in 0..=u8::MAX {
                for (magic, version) in [(0xd7, 5), (0xd7, 0x45), (0xd7, 4), (0, 5)] {
                    let core = [magic, version, 1, 2, 3, 4, 5, 6, 7, 8, flags, 9];
                    let message: Vec<u8> = core.into_iter().chain([0; 12]).take(len).collect();
                    let Some(header) = RequestHeader::read_plain(accept, &message) else {
                        continue;
                    };
                    let whole = decode_request(accept, &message);
                    assert_eq!(whole, Ok((header, Body::Inline(&message[16..]))));
                    seen += 1;
                }
            }
        }
        // With and without two flags, in three lengths.
        assert_eq!(seen, if accept.format.build() == Build::Plain { 12 } else { 0 });
    }
    for format in FORMATS {
        for len in [0, 12, 15, 16, 24] {
            for (code, flags) in (0..=3).flat_map(|code| (0..=255).map(move |flags| (code, flags)))
            {
                let bytes = [code, flags, 1, 2].into_iter().chain([0; 20]);
                let message: Vec<u8> = bytes.take(len).collect();
                if ResponseHeader::is_plain_success(format, &message) {
                    let (header, body) = decode_response(format, &message).unwrap();
                    assert_eq!(header.code, ReturnCode::Success);
                    assert_eq!(body, Body::Inline(&message[format.header_bytes()..]));
                }
            }
        }
    }
    let message = written(&RequestHeader { no_response: true, ..REQUEST });
    assert!(RequestHeader::read_plain(Accept::from(Build::Plain), &message).is_some());
    assert!(ResponseHeader::is_plain_success(Format::default(), &[0; 16]));
}
