//! The tables and examples of `docs/wire-ucx.md` are those of the code.
#![allow(clippy::unwrap_used, reason = "a test says by panicking what went wrong")]

use crate::connections::bounds;
use crate::operations::keys;
use crate::state::driver;
use crate::traffic::{rendezvous, transfers};
use crate::wire::{
    CHUNK_HEADER_BYTES, Chunk, Control, GivenKey, Hello, PACKED_BYTES_MAX, Place, Shards,
    URI_BYTES_MAX, VERSION,
};
use crate::{MESSAGE_BYTES_MAX, endpoint, wire};
use na_core::wire_doc::{Field, Page};
use na_core::{Access, DeniedReason};

const KEY: u64 = 0x1122_3344_5566_7788;
const URI: &str = "ucx+tcp://127.0.0.1:7000";

fn bytes(control: &Control) -> Vec<u8> {
    let bytes = control.to_bytes();
    assert_eq!(Control::from_bytes(&bytes).as_ref(), Ok(control));
    bytes
}

fn hello(alive_every_ms: u32) -> Vec<u8> {
    bytes(&Control::Hello(Hello {
        queues: 513,
        message_bytes_max: 4096,
        window: 64,
        alive_every_ms,
        endpoint: 17,
        shards: Some(Shards { own: 1, count: 4, wanted: Some(2), token: 34 }),
        remote_keys: true,
        uri: URI.into(),
    }))
}

#[test]
fn the_page_says_what_the_code_does() {
    let mut page = Page::read(include_str!("../../../docs/wire-ucx.md"));
    page.check_layout(
        "ucx-hello",
        &hello(50),
        &[
            ("what", Field::Number(0)),
            ("version", Field::Number(VERSION.into())),
            ("queues", Field::Number(513)),
            ("groups", Field::Number(wire::GROUPS)),
            ("message_bytes_max", Field::Number(4096)),
            ("window", Field::Number(64)),
            ("alive_every_ms", Field::Number(50)),
            ("endpoint", Field::Number(17)),
            ("own", Field::Number(1)),
            ("count", Field::Number(4)),
            ("wanted", Field::Number(3)),
            ("token", Field::Number(34)),
            ("remote_keys", Field::Number(1)),
            ("address_bytes", Field::Number(URI.len() as u64)),
            ("address", Field::Bytes(URI.as_bytes())),
        ],
    );
    page.check_example("hello of a listener", &hello(0));
    let taken = bytes(&Control::Taken([32, 0]));
    page.check_example("32 unexpected taken", &taken);
    let ask = bytes(&Control::Ask { id: 5, key: KEY, offset: 32, len: 16, write: true });
    page.check_example("ask for a put of 16 bytes", &ask);
    let deny = bytes(&Control::Deny { id: 5, reason: DeniedReason::NoSuchKey });
    page.check_example("deny 5, no such key", &deny);
    let elsewhere = bytes(&Control::Elsewhere { port: 7001, token: 34 });
    page.check_example("elsewhere, at port 7001", &elsewhere);
    let named = [
        ("taken", taken),
        ("ask", ask),
        ("grant", bytes(&Control::Grant { id: 5 })),
        ("deny", deny),
        ("release", bytes(&Control::Release { id: 5 })),
        ("alive", bytes(&Control::Alive)),
        ("done", bytes(&Control::Done { id: 5 })),
        ("want", bytes(&Control::Want { key: KEY })),
        ("no key", bytes(&Control::NoKey { key: KEY })),
        ("revoke", bytes(&Control::Revoke { key: KEY })),
        ("returned", bytes(&Control::Returned { key: KEY })),
        ("elsewhere", elsewhere),
    ];
    let rows = page.table("ucx-control");
    assert_eq!(rows.len(), named.len());
    for (row, (name, bytes)) in rows.iter().zip(named) {
        let is = [bytes[0].to_string(), name.to_owned(), bytes.len().to_string()];
        assert_eq!([&row[0], &row[1], &row[3]], [&is[0], &is[1], &is[2]]);
    }
    given_key(&mut page);
    let said: Vec<_> = page.table("ucx-reasons").into_iter().map(|row| row[0].clone()).collect();
    let codes = (1u8..).map_while(|code| {
        let deny = [&[4][..], &5u64.to_le_bytes(), &[code]].concat();
        Control::from_bytes(&deny).ok().map(|_| code.to_string())
    });
    assert_eq!(said, codes.collect::<Vec<_>>());
    chunk(&mut page);
    limits(&mut page);
    page.finish();
}

fn chunk(page: &mut Page) {
    let chunk = Chunk { put: true, id: 5, offset: 65536 };
    let chunk = [&chunk.to_bytes()[..], b"abc"].concat();
    page.check_layout(
        "ucx-chunk",
        &chunk,
        &[
            ("put", Field::Number(1)),
            ("transfer", Field::Number(5)),
            ("place", Field::Number(65536)),
            ("data", Field::Bytes(b"abc")),
        ],
    );
}

/// The key of memory of one piece.
fn given_key(page: &mut Page) {
    let place = Place { address: 0x7f00_0000_1000, len: 65536, packed: vec![1, 2, 3] };
    let key = GivenKey { key: KEY, access: Access::ReadOnly, places: vec![place] };
    let key = bytes(&Control::Key(key));
    page.check_layout(
        "ucx-key",
        &key,
        &[
            ("what", Field::Number(9)),
            ("key", Field::Number(KEY)),
            ("access", Field::Number(1)),
            ("memory", Field::Number(0x7f00_0000_1000)),
            ("length", Field::Number(65536)),
            ("packed_bytes", Field::Number(3)),
            ("packed", Field::Bytes(&[1, 2, 3])),
        ],
    );
    page.check_example("key of 64 KiB to read", &key);
}

fn limits(page: &mut Page) {
    page.check(
        "ucx-messages",
        [0, 1],
        &[
            [&wire::AM_UNEXPECTED, &"unexpected message"],
            [&wire::AM_UNEXPECTED, &"hello (3)"],
            [&wire::AM_CONTROL, &"control (3)"],
            [&wire::AM_DATA, &"chunk (4.1)"],
            [&wire::AM_EXPECTED, &"expected message"],
            [&wire::AM_PIECE, &"piece (4.2)"],
        ],
    );
    page.check(
        "ucx-limits",
        [0, 1],
        &[
            [&"version", &VERSION],
            [&"transfers", &transfers::ASKED_MAX],
            [&"chunk_bytes", &wire::CHUNK_BYTES],
            [&"chunk_header_bytes", &CHUNK_HEADER_BYTES],
            [&"piece_bytes", &transfers::PIECE_BYTES],
            [&"pieces", &rendezvous::LANDINGS_MAX],
            [&"keys", &keys::KEYS_MAX],
            [&"packed_bytes_max", &PACKED_BYTES_MAX],
            [&"address_bytes_max", &URI_BYTES_MAX],
            [&"control_bytes_max", &wire::CONTROL_BYTES_MAX],
            [&"window_max", &endpoint::WINDOW_MAX],
            [&"window_min", &endpoint::WINDOW_MIN],
            [&"strangers", &driver::STRANGERS_MAX],
            [&"chunks", &bounds::CHUNKS_MAX],
            [&"told", &bounds::TOLD_MAX],
            [&"message_bytes_max", &MESSAGE_BYTES_MAX],
        ],
    );
}
