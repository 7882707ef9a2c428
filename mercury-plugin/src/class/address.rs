//! Addresses and tags, as programs of Mercury see them.
//!
//! Mercury writes the class before an address, and takes everything up to the first `+` away from
//! one that it looks up. So the endpoint's `na+tcp://10.0.0.1:7000` is `margo+tcp://10.0.0.1:7000`
//! to a program, and both are the same to this plugin: it gets `tcp://10.0.0.1:7000`.
//!
//! A composed address, `uid://host#na+sm://name#na+tcp://10.0.0.1:7000`, is
//! `margo+all://host#margo+sm://name#margo+tcp://10.0.0.1:7000`. Without that change, Mercury would
//! take the host away, too. The class tells programs of ours which RPC layer they will meet there.
//!
//! Bit 31 of a tag says among peers of ours that a message is for no certain shard. Programs of
//! Mercury count tags from 0, so the bit is turned around on the way in and on the way out.

use std::borrow::Cow;

use na::{Addr, Tag};

use crate::c::abi::NaAddr;

/// An address for a program, which frees it.
pub(crate) fn lend(addr: Addr) -> *mut NaAddr {
    Box::into_raw(Box::new(addr)).cast()
}

/// The address that a program has.
///
/// # Safety
///
/// It is of [`lend`], and not freed while the result is used.
pub(crate) unsafe fn lent<'a>(addr: *mut NaAddr) -> &'a Addr {
    // SAFETY: contract of this function.
    unsafe { &*addr.cast::<Addr>() }
}

/// Frees an address that a program had.
///
/// # Safety
///
/// It is of [`lend`], and nobody uses it any more.
pub(crate) unsafe fn free(addr: *mut NaAddr) {
    // SAFETY: contract of this function.
    drop(unsafe { Box::from_raw(addr.cast::<Addr>()) });
}

/// The largest tag that a program may use.
pub(crate) const TAG_MAX: u32 = ANY_SHARD - 1;

const ANY_SHARD: u32 = 1 << 31;

/// The tag of a message on the wire.
#[inline]
pub(crate) fn wire_tag(tag: u32) -> Tag {
    Tag(tag ^ ANY_SHARD)
}

/// The tag that a program sees.
#[inline]
pub(crate) fn program_tag(tag: Tag) -> u32 {
    tag.0 ^ ANY_SHARD
}

/// The text that stands behind the class: `tcp://…` of `na+tcp://…`.
pub(crate) fn to_text(uri: &str) -> Cow<'_, str> {
    match uri.strip_prefix("uid://") {
        Some(rest) => format!("all://{}", rest.replace("#na+", "#margo+")).into(),
        None => uri.strip_prefix("na+").unwrap_or(uri).into(),
    }
}

/// The address of the text that a program looks up.
pub(crate) fn to_uri(text: &str) -> Cow<'_, str> {
    if let Some(rest) = text.strip_prefix("all://") {
        return format!("uid://{}", rest.replace("#margo+", "#na+")).into();
    }
    // What Mercury has left of a composed address: which host it is of cannot be known any more.
    let text = text.split_once('#').map_or(text, |(_, far)| far);
    match text.split_once('+') {
        None => format!("na+{text}").into(),
        Some(("margo", text)) => format!("na+{text}").into(),
        Some(_) => text.into(),
    }
}

/// The address that a buffer begins with: a byte for the form, and a text.
///
/// Mercury knows how long the address is and does not say so. What it may write behind one is a
/// number below 32 (how long an address of its shared memory is, or a context), and an address has
/// no such byte.
pub(crate) fn serialised(buffer: &[u8]) -> &[u8] {
    let text = buffer.get(1..).unwrap_or_default();
    let end = text.iter().position(|byte| *byte < b' ').unwrap_or(text.len());
    &buffer[..buffer.len().min(1 + end)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_read_what_they_write() {
        for (uri, text) in [
            ("na+tcp://10.0.0.1:7000", "tcp://10.0.0.1:7000"),
            ("na+sm://12-0", "sm://12-0"),
            (
                "uid://a-1-2#na+sm://12-0#na+tcp://h:1",
                "all://a-1-2#margo+sm://12-0#margo+tcp://h:1",
            ),
        ] {
            assert_eq!(to_text(uri), text);
            assert_eq!(to_uri(text), uri);
        }
    }

    #[test]
    fn of_a_composed_address_the_network_is_left() {
        // Mercury has taken `uid://host#na+` away.
        assert_eq!(to_uri("sm://12-0#na+tcp://10.0.0.1:7"), "na+tcp://10.0.0.1:7");
        assert_eq!(to_uri("sm://12-0#margo+tcp://10.0.0.1:7"), "na+tcp://10.0.0.1:7");
    }

    #[test]
    fn an_address_ends_where_its_text_does() {
        let address = b"\x01na+tcp://10.0.0.1:7";
        for behind in [&b""[..], b"\0", b"\x05", b"\x0c\0\0\0\0\0\0\0data"] {
            assert_eq!(serialised(&[&address[..], behind].concat()), address);
        }
        assert_eq!((serialised(b""), serialised(b"\x01")), (&b""[..], &b"\x01"[..]));
    }

    #[test]
    fn tags_of_programs_name_no_shard() {
        assert_eq!(wire_tag(0), Tag(1 << 31));
        assert_eq!(program_tag(wire_tag(TAG_MAX)), TAG_MAX);
        assert_eq!(wire_tag(program_tag(Tag(7))), Tag(7), "an answer has the tag of its call");
    }
}
