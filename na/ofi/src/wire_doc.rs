//! The tables and examples of `docs/wire-ofi.md` are those of the code.
#![allow(clippy::unwrap_used, reason = "a test says by panicking what went wrong")]

use ofi_sys::Version;

use crate::buffers::memory;
use crate::providers::{address::RawAddr, provider};
use na_core::wire_doc::{Field, Page};
use na_core::{Access, Uri};

#[test]
fn the_page_says_what_the_code_does() {
    let mut page = Page::read(include_str!("../../../docs/wire-ofi.md"));
    let rows = page.table("ofi-source");
    let forms = [
        ("IPv4", "ofi+tcp://127.0.0.1:4711", 16, 20),
        ("IPv6", "ofi+tcp://[::1]:4711", 28, 20),
        ("text", "ofi+shm://1234:5:fi_ep", 0, 20),
        ("Slingshot", "ofi+cxi://0x00012345", 8, 20),
        ("Slingshot, before libfabric 1.20", "ofi+cxi://0x00012345", 8, 19),
        ("Omni-Path", "ofi+opx://5678.1234.0d.0a.01.0c", 8, 20),
    ];
    assert_eq!(rows.len(), forms.len() + 1);
    for (row, (form, uri, raw_bytes, minor)) in rows.iter().zip(forms) {
        let uri = Uri::parse(uri).unwrap();
        let version = Version { major: 1, minor };
        let provider = provider::named(uri.protocol).unwrap().in_version(version);
        let own = RawAddr::from_library(&vec![0; raw_bytes]);
        let raw = RawAddr::of_peer(provider, &uri, &own).unwrap();
        assert_eq!([&row[0][..], &row[1]], [form, &raw.header(provider).len().to_string()]);
        let serialised = raw.serialise(provider);
        assert_eq!(serialised.len(), 8 + raw.header(provider).len());
    }
    addresses(&mut page);
    let bytes = memory::described(7, Access::ReadOnly, (0x1000, 64));
    page.check_layout(
        "ofi-memory",
        &bytes,
        &[
            ("key", Field::Number(7)),
            ("length", Field::Number(64)),
            ("pieces", Field::Number(1)),
            ("access", Field::Number(1)),
            ("zero", Field::Number(0)),
            ("address", Field::Number(0x1000)),
            ("piece_length", Field::Number(64)),
        ],
    );
    let read = memory::remote(&bytes).unwrap();
    assert_eq!((read.key, read.len, read.access), (7, 64, Access::ReadOnly));
    let pieces = memory::pieces(&bytes, true).unwrap();
    assert_eq!((pieces.len(), pieces[0].addr, pieces[0].len), (1, 0x1000, 64));
    let from_c = memory::described(1, Access::ReadOnly, (0x55be_35b3_6b10, 64));
    page.check_example("64 bytes to read, from C", &from_c);
    let bytes = memory::described(u64::MAX, Access::ReadWrite, (0x7f00_0000_1000, 1 << 20));
    page.check_example("1 MiB to read and write", &bytes);
    page.finish();
}

/// Inside bulk descriptors; the same bytes behind the length go before messages.
fn addresses(page: &mut Page) {
    for (example, uri, raw_bytes) in [
        ("127.0.0.1:39797, before a message from C", "ofi+tcp;ofi_rxm://127.0.0.1:39797", 16),
        ("[fd00::1]:7000", "ofi+tcp://[fd00::1]:7000", 28),
        ("Slingshot's 0x00012345", "ofi+cxi://0x00012345", 8),
        ("5678.1234.0d.0a.01.0c.001f:7", "ofi+opx://5678.1234.0d.0a.01.0c.001f:7", 16),
    ] {
        let uri = Uri::parse(uri).unwrap();
        let version = Version { major: 1, minor: 20 };
        let provider = provider::named(uri.protocol).unwrap().in_version(version);
        let own = RawAddr::from_library(&vec![0; raw_bytes]);
        let raw = RawAddr::of_peer(provider, &uri, &own).unwrap();
        if example.contains("before a message") {
            page.check_example(example, &raw.header(provider));
        }
        let inside = example.split(',').next().unwrap().to_owned() + ", in a descriptor";
        page.check_example(&inside, &raw.serialise(provider));
        assert_eq!(RawAddr::deserialise(provider, &own, &raw.serialise(provider)), Some(raw));
    }
}
