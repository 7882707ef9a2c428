//! Addresses of Omni-Path (`opx`), which are laid out by the version of libfabric.
//!
//! | libfabric | raw | text |
//! |---|---|---|
//! | before 2.1 | u8 receive context, u8 adapter, u8 reliability's context, u16 endpoint, u16 LID, u8 receive index | `lid.endpoint.index.context.adapter.reliability` |
//! | 2.1 to 2.5 | u8 adapter, u8 unused, u16 context, u32 LID | `lid.context.adapter` |
//! | 2.6 on | two of the above, each with a u64 GID; u8 which, 7 unused | as one number: the provider's own text leaves out what is needed |
//!
//! Numbers in the text are hexadecimal. Extended addresses, of several endpoints of one process,
//! have a u32 rank and a u32 instance behind the raw form and `.instance:rank` (the rank decimal)
//! behind the text. Before a message both are always there, before 2.6, as in C.
//!
//! Source: `fi_opx_addr.h`, `fi_opx_av_straddr`; `na_ofi_opx_addr`, `na_ofi_str_to_opx`,
//! `na_ofi_parse_opx_info` in `na_ofi.c`, which knows only the first form.

use ofi_sys::Version;

/// A layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Before 2.1.
    Endpoints,
    /// 2.1 to 2.5.
    Contexts,
    /// 2.6 and later.
    Planes,
}

/// Bytes of an address of the first two layouts, and of an extended one.
const BYTES: usize = 8;
const EXTENDED_BYTES: usize = 16;

/// Bytes of one of the third, without an extension.
const PLANES_BYTES: usize = 40;

/// Bytes behind an address at which the provider may look for the extension.
pub(crate) const EXTENSION_BYTES: usize = 16;

impl Layout {
    pub(crate) fn of(version: Version) -> Self {
        match version {
            Version { major: ..=1, .. } | Version { major: 2, minor: 0 } => Self::Endpoints,
            Version { major: 2, minor: ..=5 } => Self::Contexts,
            _ => Self::Planes,
        }
    }

    /// Returns the text behind `://`; `None` if the address has no such text.
    pub(crate) fn text(self, raw: &[u8]) -> Option<String> {
        let [a, b, c, d, e, f, g, h] = *raw.first_chunk::<BYTES>()?;
        let own = match self {
            Self::Endpoints => {
                let (endpoint, lid) = (u16::from_le_bytes([d, e]), u16::from_le_bytes([f, g]));
                format!("{lid:04x}.{endpoint:04x}.{h:02x}.{a:02x}.{b:02x}.{c:02x}")
            }
            Self::Contexts => {
                let (context, lid) = (u16::from_le_bytes([c, d]), u32::from_le_bytes([e, f, g, h]));
                format!("{lid:08x}.{context:04x}.{a:02x}")
            }
            Self::Planes => return None,
        };
        match raw.len() {
            BYTES => Some(own),
            EXTENDED_BYTES => {
                let word =
                    |at: usize| Some(u32::from_le_bytes(raw.get(at..at + 4)?.try_into().ok()?));
                Some(format!("{own}.{:04x}:{}", word(12)?, word(8)?))
            }
            _ => None,
        }
    }

    /// Reads [`text`](Self::text) into an address of `len` bytes.
    pub(crate) fn raw(self, text: &str, len: usize) -> Option<Vec<u8>> {
        let (text, rank) = match text.split_once(':') {
            Some((text, rank)) => (text, Some(rank.parse::<u32>().ok()?)),
            None => (text, None),
        };
        let parts: Vec<u32> = text.split('.').map(hexadecimal).collect::<Option<_>>()?;
        let count = if self == Self::Endpoints { 6 } else { 3 };
        let (own, instance) = match (parts.split_at_checked(count)?, rank) {
            ((own, []), None) => (own, 0),
            ((own, [instance]), Some(_)) => (own, *instance),
            _ => return None,
        };
        let byte = |value: u32| u8::try_from(value).ok();
        let short = |value: u32| Some(u16::try_from(value).ok()?.to_le_bytes());
        let mut raw = match (self, own) {
            (Self::Endpoints, [lid, endpoint, index, context, adapter, reliability]) => {
                let ([d, e], [f, g]) = (short(*endpoint)?, short(*lid)?);
                let bytes = [byte(*context)?, byte(*adapter)?, byte(*reliability)?];
                [&bytes[..], &[d, e, f, g, byte(*index)?]].concat()
            }
            (Self::Contexts, [lid, context, adapter]) => {
                let bytes = [byte(*adapter)?, 0];
                [&bytes[..], &short(*context)?, &lid.to_le_bytes()].concat()
            }
            _ => return None,
        };
        raw.extend(rank.unwrap_or_default().to_le_bytes());
        raw.extend(instance.to_le_bytes());
        raw.truncate(len);
        (raw.len() == len).then_some(raw)
    }

    /// Returns the bytes that go before messages.
    pub(crate) fn header(self, raw: &[u8]) -> Vec<u8> {
        let mut header = raw.to_vec();
        if self != Self::Planes && header.len() < EXTENDED_BYTES {
            header.resize(EXTENDED_BYTES, 0);
        }
        header
    }

    /// Reads a header into an address of `len` bytes. What C has behind a short one is rubbish.
    pub(crate) fn from_header(header: &[u8], len: usize) -> Option<Vec<u8>> {
        header.get(..len).map(<[u8]>::to_vec)
    }

    /// The address to ask for, of an adapter and a number of our own, as in C.
    pub(crate) fn wanted(self, adapter: u8, number: u32) -> Vec<u8> {
        // As the provider takes it apart (`opx_open_hfi_and_context` and before).
        let [a, b, c, d] = number.to_le_bytes();
        match self {
            Self::Endpoints => {
                let mut raw = vec![0, adapter, 0, a, b, c, d];
                raw.resize(EXTENDED_BYTES, 0);
                raw
            }
            Self::Contexts | Self::Planes => {
                let mut raw = vec![adapter, 0, a, 0, b, c, d, 0];
                match self {
                    Self::Planes => {
                        // The adapter has one plane: the other is what the provider calls none.
                        raw.resize(16, 0);
                        raw.resize(32, 0xff);
                        raw.resize(PLANES_BYTES, 0);
                    }
                    _ => raw.resize(EXTENDED_BYTES, 0),
                }
                raw
            }
        }
    }
}

/// A number of hexadecimal digits alone: a sign is none.
fn hexadecimal(digits: &str) -> Option<u32> {
    let are_digits = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    u32::from_str_radix(digits, 16).ok().filter(|_| are_digits)
}

/// Adapter and number of what stands behind `://` of an endpoint to be opened: `ib0:7`, `ib0`,
/// `:7`, as in C; `None` for a device by libfabric's name. What is wrong with it on failure.
pub(crate) fn parse_own(text: &str) -> Result<Option<(u8, u32)>, &'static str> {
    let (node, number) = text.split_once(':').unwrap_or((text, ""));
    let adapter = match node.strip_prefix("ib") {
        Some(adapter) if !adapter.is_empty() => adapter.parse().ok(),
        None if node.is_empty() && !number.is_empty() => Some(0),
        _ => None,
    };
    match (adapter, number) {
        (Some(adapter), "") => Ok(Some((adapter, 0))),
        (Some(adapter), number) => {
            let number = number.parse().map_err(|_| "the number must be one of 32 bits")?;
            Ok(Some((adapter, number)))
        }
        (None, "") if !text.contains(':') => Ok(None),
        (None, _) => Err("expected `ib<adapter>:<number>`, `ib0:7`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_library_has_its_layout() {
        let of = |major, minor| Layout::of(Version { major, minor });
        assert_eq!([of(1, 13), of(1, 22), of(2, 0)], [Layout::Endpoints; 3]);
        assert_eq!([of(2, 1), of(2, 5)], [Layout::Contexts; 2]);
        assert_eq!([of(2, 6), of(3, 0)], [Layout::Planes; 2]);
    }

    /// The formats of `fi_opx_av_straddr`, which C sends to others as text.
    #[test]
    fn texts_are_those_of_the_provider() {
        let raw = [0x0a, 1, 0x0c, 0x34, 0x12, 0x78, 0x56, 0x0d];
        assert_eq!(Layout::Endpoints.text(&raw).unwrap(), "5678.1234.0d.0a.01.0c");
        let extended = [&raw[..], &7u32.to_le_bytes(), &0x1fu32.to_le_bytes()].concat();
        assert_eq!(Layout::Endpoints.text(&extended).unwrap(), "5678.1234.0d.0a.01.0c.001f:7");
        let raw = [1, 0, 0x34, 0x02, 0x78, 0x56, 0x01, 0];
        assert_eq!(Layout::Contexts.text(&raw).unwrap(), "00015678.0234.01");
        assert_eq!(Layout::Planes.text(&[0; 40]), None);
        assert_eq!(Layout::Endpoints.text(&[0; 20]), None, "libfabric 1.17 has longer ones");
    }

    #[test]
    fn texts_are_read_back() {
        for (layout, text, len) in [
            (Layout::Endpoints, "5678.1234.0d.0a.01.0c", 8),
            (Layout::Endpoints, "ffff.ffff.ff.ff.ff.ff.001f:4294967295", 16),
            (Layout::Contexts, "00015678.0234.01", 8),
            (Layout::Contexts, "00015678.0234.01.0000:7", 16),
        ] {
            let raw = layout.raw(text, len).unwrap();
            assert_eq!((raw.len(), layout.text(&raw).as_deref()), (len, Some(text)));
        }
        // libfabric 2.1 writes the context in two digits.
        let raw = Layout::Contexts.raw("00015678.34.01", 8);
        assert_eq!(raw, Layout::Contexts.raw("00015678.0034.01", 8));
        // An endpoint without extended addresses is told one, and the reverse.
        let short = Layout::Endpoints.raw("5678.1234.0d.0a.01.0c.001f:7", 8).unwrap();
        assert_eq!(short, Layout::Endpoints.raw("5678.1234.0d.0a.01.0c", 8).unwrap());
        let long = Layout::Endpoints.raw("5678.1234.0d.0a.01.0c", 16).unwrap();
        assert_eq!((&long[..8], &long[8..]), (&short[..], &[0; 8][..]));
        for (layout, wrong) in [
            (Layout::Endpoints, ""),
            (Layout::Endpoints, "5678.1234.0d.0a.01"),
            (Layout::Endpoints, "15678.1234.0d.0a.01.0c"),
            (Layout::Endpoints, "5678.1234.0d.0a.01.0c.001f"),
            (Layout::Endpoints, "5678.1234.0d.0a.01.0c:7"),
            (Layout::Endpoints, "5678.1234.0d.0a.01.0c.1:-7"),
            (Layout::Endpoints, "+678.1234.0d.0a.01.0c"),
            (Layout::Endpoints, "00015678.0234.01"),
            (Layout::Contexts, "5678.1234.0d.0a.01.0c"),
            (Layout::Planes, "00015678.0234.01"),
        ] {
            assert_eq!(layout.raw(wrong, 8), None, "{wrong}");
        }
    }

    /// `struct na_ofi_opx_addr`, 16 bytes, of which the last 8 mean nothing in short addresses.
    #[test]
    fn headers_are_cs() {
        let raw = [1, 2, 3, 4, 5, 6, 7, 8];
        let header = Layout::Endpoints.header(&raw);
        assert_eq!(header, [1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0]);
        let from_c = [&raw[..], &[0xa5; 8]].concat();
        assert_eq!(Layout::from_header(&from_c, 8).unwrap(), raw);
        assert_eq!(Layout::from_header(&from_c, 16).unwrap(), from_c);
        assert_eq!(Layout::from_header(&raw, 16), None);
        assert_eq!(Layout::Planes.header(&[7; 40]), [7; 40]);
    }

    #[test]
    fn own_addresses_are_asked_for_as_c_does() {
        assert_eq!(parse_own("ib1:258"), Ok(Some((1, 258))));
        assert_eq!(parse_own("ib0"), Ok(Some((0, 0))));
        assert_eq!(parse_own(":7"), Ok(Some((0, 7))));
        assert_eq!(parse_own("opx0"), Ok(None));
        for wrong in ["ib0:x", "ib0:4294967296", "ib256:1", "opx0:7", ":"] {
            assert!(parse_own(wrong).is_err(), "{wrong}");
        }
        let wanted = Layout::Endpoints.wanted(1, 0x0403_0201);
        assert_eq!(wanted, [0, 1, 0, 1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        // The provider makes the number of it: LID << 8 | context.
        let wanted = Layout::Contexts.wanted(1, 0x0403_0201);
        assert_eq!(wanted[..8], [1, 0, 1, 0, 2, 3, 4, 0]);
        let wanted = Layout::Planes.wanted(1, 0x0403_0201);
        assert_eq!((wanted.len(), &wanted[..8]), (40, &[1, 0, 1, 0, 2, 3, 4, 0][..]));
    }
}
