//! Omni-Path, whose addresses are laid out by the version of libfabric.

use super::*;
use crate::fake::{Device, Fake};

/// A fake library of that version, with addresses of so many bytes.
fn fake(major: u16, minor: u16, name_bytes: usize) -> Fake {
    Fake::of_version(major, minor, [Device { name_bytes, ..Device::opx() }])
}

#[test]
fn endpoints_of_every_version_name_and_reach_each_other() {
    for (major, minor, name_bytes, parts, header) in [
        (1, 17, 8, 6, 16),
        // Extended, of 1.17 and of later ones.
        (1, 17, 20, 0, 20),
        (1, 22, 16, 7, 16),
        (2, 0, 8, 6, 16),
        (2, 1, 8, 3, 16),
        (2, 5, 16, 4, 16),
        (2, 6, 40, 0, 40),
        (2, 6, 48, 0, 48),
    ] {
        let fake = fake(major, minor, name_bytes);
        let (a, b) = Node::pair(&fake, "ofi+opx://");
        let uri = a.endpoint.self_addr().uri().to_owned();
        let text = uri.strip_prefix("ofi+opx://").unwrap();
        match parts {
            0 => assert_eq!(text.len(), 2 + 2 * name_bytes, "{text}"),
            parts => assert_eq!(text.split('.').count(), parts, "{text}"),
        }
        assert_eq!(a.endpoint.limits().unexpected_bytes_max, 4096 - header);
        let bytes = a.endpoint.addr_to_bytes(&a.endpoint.self_addr()).unwrap();
        assert_eq!(bytes.len(), 8 + header);
        assert_eq!(b.endpoint.addr_from_bytes(&bytes).unwrap(), b.addr_of(&a));
        // Enough for slots to be used again, whose contexts the provider has written to.
        let (to_b, to_a) = (a.addr_of(&b), b.addr_of(&a));
        for number in 0..50u8 {
            let recv = a.recv_expected(&to_b, 1);
            b.send_expected(&to_a, 1, &[number; 500]);
            assert_eq!(received(both(&a, &b, &a, recv)), (1, vec![number; 500]));
        }
    }
}

/// `na_ofi_parse_opx_info`: adapter and number are asked for as an address.
#[test]
fn adapters_are_chosen_as_in_c() {
    for (uri, asked) in [
        ("ofi+opx://", None),
        ("ofi+opx://opx0", None),
        ("ofi+opx://ib0", Some((0, 0))),
        ("ofi+opx://:7", Some((0, 7))),
        ("ofi+opx://ib1:7", Some((1, 7))),
    ] {
        let fake = fake(1, 22, 8);
        drop(Node::open(&fake, uri));
        let source = fake.state().searches[0].source.clone();
        let wanted = asked.map(|(adapter, number)| {
            let mut bytes = vec![0; 16];
            (bytes[1], bytes[3]) = (adapter, number);
            bytes
        });
        assert_eq!(source, wanted, "{uri}");
    }
    let fake = fake(1, 22, 8);
    for uri in ["ofi+opx://ib0:x", "ofi+opx://opx1:7", "ofi+opx://ib999"] {
        assert!(fake.open(uri).is_err(), "{uri}");
    }
    let error = fake.open("ofi+opx://opx1:7").unwrap_err().to_string();
    assert!(error.contains("ib0:7"), "{error}");
}

#[test]
fn texts_of_another_version_are_refused() {
    let fake = fake(2, 1, 8);
    let node = Node::open(&fake, "ofi+opx://");
    for uri in ["ofi+opx://5678.1234.0d.0a.01.0c", "ofi+opx://0x12", "ofi+opx://x"] {
        let error = node.endpoint.lookup(uri).unwrap_err();
        assert!(matches!(error, Error::BadUri { .. }), "{error}");
    }
    node.endpoint.lookup("ofi+opx://00015678.34.01").unwrap();
    node.endpoint.lookup("ofi+opx://0x0001567800340001").unwrap();
}
