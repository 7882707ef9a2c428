//! The tables and examples of `docs/wire-tcp.md` are those of the code.
#![allow(clippy::unwrap_used, reason = "a test says by panicking what went wrong")]

use super::MESSAGE_BYTES_MAX;
use crate::progress::greeting;
use crate::wire::frame::{
    CHUNK_BYTES_MAX, EXTENSION_BYTES_MAX, HEADER_BYTES, HELLO_BYTES, Header, Hello, Kind, Named,
    REQUEST_BYTES, Request, STATUS_BYTES, Shards, Status, TRANSFERS_MAX, URI_BYTES_MAX,
};
use na_core::DeniedReason;
use na_core::wire_doc::{Field, Page};

const SESSION: u64 = 0x0102_0304_0506_0708;
const KEY: u64 = 0x1122_3344_5566_7788;
const URI: &str = "na+tcp://127.0.0.1:7000";

fn hello(uri: &str, alive_every_ms: u32, shards: Option<Shards>) -> Vec<u8> {
    let named = Some(Named { endpoint: 17, peer: 34 });
    let hello = Hello { named, alive_every_ms, ..Hello::ours(4096, SESSION, uri.into()) };
    let hello = hello.with_shards(shards);
    let bytes = hello.encode();
    assert_eq!(Hello::decode(&bytes), Ok(Some((hello, bytes.len()))));
    bytes
}

fn frame(kind: Kind, number: u64, payload: &[u8]) -> Vec<u8> {
    let header = Header { kind, len: payload.len() as u32, number }.encode();
    assert!(Header::decode(&header, MESSAGE_BYTES_MAX).is_ok());
    [&header, payload].concat()
}

#[test]
fn the_page_says_what_the_code_does() {
    let mut page = Page::read(include_str!("../../../docs/wire-tcp.md"));
    hellos(&mut page);
    let message = frame(Kind::Unexpected, 7, b"abc");
    page.check_layout(
        "tcp-frame",
        &message,
        &[
            ("kind", Field::Number(1)),
            ("zero", Field::Number(0)),
            ("payload_bytes", Field::Number(3)),
            ("number", Field::Number(7)),
            ("payload", Field::Bytes(b"abc")),
        ],
    );
    page.check_example("unexpected \"abc\" with tag 7", &message);
    let request = Request { key: KEY, offset: 32, len: 16 };
    page.check_example("get 5 of 16 bytes from 32", &frame(Kind::Get, 5, &request.encode()));
    let denied = Status::Denied(DeniedReason::NoSuchKey).encode();
    page.check_example("no such key for 5", &frame(Kind::Done, 5, &denied));
    page.check_example("cancel 5", &frame(Kind::Cancel, 5, &[]));
    kinds(&mut page);

    let said: Vec<_> = page.table("tcp-status").into_iter().map(|row| row[0].clone()).collect();
    let codes = (0u32..)
        .map_while(|code| Status::decode(&code.to_le_bytes()).ok().map(|_| code.to_string()));
    assert_eq!(said, codes.collect::<Vec<_>>());
    page.check(
        "tcp-limits",
        [0, 1],
        &[
            [&"address_bytes_max", &URI_BYTES_MAX],
            [&"extension_bytes_max", &EXTENSION_BYTES_MAX],
            [&"data_bytes_max", &CHUNK_BYTES_MAX],
            [&"transfers", &TRANSFERS_MAX],
            [&"message_bytes_max", &MESSAGE_BYTES_MAX],
            [&"half_open", &greeting::HALF_OPEN_MAX],
        ],
    );
    page.finish();
}

/// Hellos, and what extends them.
fn hellos(page: &mut Page) {
    let bytes = hello(URI, 50, None);
    let extension = &bytes[bytes.len() - 16..];
    page.check_layout(
        "tcp-hello",
        &bytes,
        &[
            ("magic", Field::Bytes(b"MRGO")),
            ("version", Field::Number(1)),
            ("capabilities", Field::Number(1)),
            ("message_bytes_max", Field::Number(4096)),
            ("address_bytes", Field::Number(URI.len() as u64)),
            ("refusal", Field::Number(0)),
            ("session", Field::Number(SESSION)),
            ("alive_every_ms", Field::Number(50)),
            ("extension_bytes", Field::Number(16)),
            ("unused", Field::Number(0)),
            ("address", Field::Bytes(URI.as_bytes())),
            ("extension", Field::Bytes(extension)),
        ],
    );
    let shards = |map_version| Shards { own: 1, count: 4, wanted: Some(3), map_version };
    let bytes = hello("", 0, Some(shards(9)));
    page.check_layout(
        "tcp-extension",
        &bytes[HELLO_BYTES..],
        &[
            ("endpoint", Field::Number(17)),
            ("peer", Field::Number(34)),
            ("own", Field::Number(1)),
            ("shards", Field::Number(4)),
            ("wanted", Field::Number(4)),
            ("map", Field::Number(9)),
        ],
    );
    assert_eq!(extension, &bytes[HELLO_BYTES..][..16]);
    page.check_example("hello of a listener", &hello(URI, 0, None));
    page.check_example("hello of shard 1 of 4 for shard 3", &hello("", 0, Some(shards(0))));
    page.check_example("hello of who only calls, every 50 ms", &hello("", 50, None));
}

/// Each kind is there, with the lengths that are taken.
fn kinds(page: &mut Page) {
    let message = "0 to the receiver's message_bytes_max".to_owned();
    let data = format!("1 to {CHUNK_BYTES_MAX}");
    let (request, status, none) =
        (REQUEST_BYTES.to_string(), STATUS_BYTES.to_string(), "0".to_owned());
    page.check(
        "tcp-kinds",
        [0, 1, 3],
        &[
            [&(Kind::Unexpected as u8), &"unexpected", &message],
            [&(Kind::Expected as u8), &"expected", &message],
            [&(Kind::Get as u8), &"get", &request],
            [&(Kind::Put as u8), &"put", &request],
            [&(Kind::GetData as u8), &"get data", &data],
            [&(Kind::PutData as u8), &"put data", &data],
            [&(Kind::Done as u8), &"done", &status],
            [&(Kind::Cancel as u8), &"cancel", &none],
            [&(Kind::Alive as u8), &"alive", &none],
        ],
    );
    let takes = |kind: u8, len: u32| {
        let mut header = [0; HEADER_BYTES];
        header[0] = kind;
        header[4..8].copy_from_slice(&len.to_le_bytes());
        Header::decode(&header, 4096).is_ok()
    };
    let bounds = [(0, 4096), (0, 4096), (24, 24), (24, 24), (1, 1 << 20), (1, 1 << 20)];
    let bounds = bounds.into_iter().chain([(4, 4), (0, 0), (0, 0)]);
    for (kind, (least, most)) in (1..).zip(bounds) {
        assert!(takes(kind, least) && takes(kind, most) && !takes(kind, most + 1), "{kind}");
        assert!(least == 0 || !takes(kind, least - 1), "{kind}");
    }
    assert!(!takes(0, 0) && !takes(10, 0));
}
