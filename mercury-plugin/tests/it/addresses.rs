//! Addresses: text, bytes, equality.

use std::ptr;

use na_plugin_margo::abi::NaInitInfo;

use super::mercury::{INVALID_ARG, OK, OVERFLOW, Side, call, pairs};

#[test]
fn addresses_are_read_as_they_were_written() {
    for (a, b) in pairs() {
        let own = b.self_addr();
        let text = b.text(own);
        let peer = a.look_up(&text);
        // Mercury passes what stands behind the first `+`, also of our own form.
        assert!(call!(addr_cmp(a.class(), peer, a.look_up(&text))));
        assert_eq!(a.text(peer), text);
        assert!(call!(addr_is_self(b.class(), own)) && !call!(addr_is_self(a.class(), peer)));
        let mut copy = ptr::null_mut();
        assert_eq!(call!(addr_dup(a.class(), peer, &raw mut copy)), OK);
        assert!(call!(addr_cmp(a.class(), peer, copy)));

        let size = call!(addr_get_serialize_size(b.class(), own));
        let mut bytes = vec![0xFF_u8; size + 8];
        let buf = bytes.as_mut_ptr().cast();
        assert_eq!(call!(addr_serialize(b.class(), buf, size - 1, own)), OVERFLOW);
        assert_eq!(call!(addr_serialize(b.class(), buf, size, own)), OK);
        // Mercury says how long its whole buffer is.
        bytes[size..].fill(0);
        let mut found = ptr::null_mut();
        let (buf, len) = (bytes.as_ptr().cast(), bytes.len());
        assert_eq!(call!(addr_deserialize(a.class(), &raw mut found, buf, len, 0)), OK);
        assert!(call!(addr_cmp(a.class(), peer, found)));
        a.free(&[peer, copy, found], &[]);
        b.free(&[own], &[]);
    }
}

#[test]
fn text_that_does_not_fit_is_not_written() {
    let a = Side::open("tcp");
    let own = a.self_addr();
    let mut buf = [7_u8; 8];
    let mut size = buf.len();
    let code = call!(addr_to_string(a.class(), buf.as_mut_ptr().cast(), &raw mut size, own));
    assert_eq!((code, buf), (OVERFLOW, [7; 8]));
    a.free(&[own], &[]);
}

#[test]
fn what_is_no_address_is_refused() {
    let a = Side::open("tcp");
    for text in ["", "tcp://", "tcp://nobody", "sm://x", "all://", "all://h#na+sm://x", "tcp://h:x"]
    {
        assert_eq!(a.try_look_up(text), Err(INVALID_ARG), "{text}");
    }
    for bytes in [&b"\0"[..], b"\x01", b"\x01na+tcp://", b"\x02na+tcp://1.2.3.4:5", b"\x01\xFF\xFF"]
    {
        let mut found = ptr::null_mut();
        let (buf, len) = (bytes.as_ptr().cast(), bytes.len());
        let code = call!(addr_deserialize(a.class(), &raw mut found, buf, len, 0));
        assert_eq!((code, found), (INVALID_ARG, ptr::null_mut()), "{bytes:?}");
    }
}

#[test]
fn an_endpoint_that_other_hosts_reach_does_not_open_without_saying_who_may() {
    assert_eq!(
        Side::open_with("tcp", "0.0.0.0:0", NaInitInfo::default(), true).err(),
        Some(INVALID_ARG)
    );
    assert_eq!(
        Side::open_with("all", "0.0.0.0:0", NaInitInfo::default(), true).err(),
        Some(INVALID_ARG)
    );
    // Who only calls need not say it.
    let caller = Side::open_with("tcp", "0.0.0.0:0", NaInitInfo::default(), false).unwrap();
    let own = caller.self_addr();
    assert!(caller.text(own).ends_with("/origin"), "nobody reaches it");
    caller.free(&[own], &[]);
    // On loopback it can be called, as in C.
    let caller = Side::open_with("tcp", "", NaInitInfo::default(), false).unwrap();
    let own = caller.self_addr();
    assert!(caller.text(own).starts_with("tcp://127.0.0.1:"));
    caller.free(&[own], &[]);
}
