//! Addresses of endpoints: as libfabric has them (raw), as text, before messages, and as C Mercury
//! serialises them.
//!
//! | raw | text after `://` | before an unexpected message |
//! |---|---|---|
//! | `sockaddr_in`, 16 bytes | `1.2.3.4:port` | the same 16 bytes |
//! | `sockaddr_in6`, 28 bytes | `[::1]:port` | address and port, 18 bytes |
//! | string with an end | what follows `://` in it | the string in 128 bytes |
//! | Slingshot's, 8 bytes: u32 process and adapter, u16 virtual network, padding | the u32, `0x%08x` | the same bytes; before libfabric 1.20 the u32 |
//! | Omni-Path's, see [`opx`] | [`opx`] | 16 bytes, see [`opx`] |
//! | another fabric's own | hexadecimal, `0x…` | the same bytes |
//!
//! Source: `na_ofi_raw_addr_serialize`, `na_ofi_str_to_raw_addr` in `na_ofi.c`; for Slingshot
//! `struct cxip_addr` in `cxip.h`, `ofi_straddr` in libfabric's `common.c`, `na_ofi_str_to_cxi`;
//! `struct na_ofi_cxi_addr`, which C builds without the network before libfabric 1.20.

use std::net::{Ipv6Addr, SocketAddr};

use ofi_sys::Version;
use rustix::net::SocketAddrAny;

use super::opx;
use super::provider::{Format, Provider, named};
use na_core::hosts::{interface, names};
use na_core::{Addr, Error, Uri};

/// Bytes of the two kinds of socket addresses.
const IPV4_BYTES: usize = 16;
const IPV6_BYTES: usize = 28;

/// Bytes of a string before a message.
const TEXT_BYTES: usize = 128;

/// Longest raw address that is taken from anybody, bytes.
pub(crate) const RAW_BYTES_MAX: usize = 256;

/// Bytes of a Slingshot address that name the process; behind them is the virtual network.
const CXI_BYTES: usize = 4;

/// An address as libfabric has it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct RawAddr(Box<[u8]>);

pub(crate) fn bad(uri: &str, reason: impl Into<String>) -> Error {
    Error::BadUri { uri: uri.to_owned(), reason: reason.into() }
}

impl RawAddr {
    /// Makes an address of the bytes that libfabric returned.
    pub(crate) fn from_library(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }

    /// The source of a message, as libfabric tells it; `own` is our address.
    pub(crate) fn of_source(provider: &Provider, own: &Self, bytes: &[u8]) -> Self {
        match provider.format {
            Format::Cxi => Self::cxi(own, bytes).unwrap_or_else(|| Self::from_library(bytes)),
            _ => Self::from_library(bytes),
        }
    }

    /// The Slingshot address that begins with `bytes`, in our own virtual network: messages do not
    /// cross networks, and what names a peer (text, the source of a message) leaves it out or zero.
    /// So one peer has one address here. `None` if there are too few bytes.
    fn cxi(own: &Self, bytes: &[u8]) -> Option<Self> {
        let named = bytes.get(..CXI_BYTES)?;
        Some(Self([named, own.0.get(CXI_BYTES..)?].concat().into()))
    }

    /// Returns the bytes in the form that libfabric takes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub(crate) fn from_socket(address: SocketAddr) -> Self {
        let address = SocketAddrAny::from(address);
        let (start, len) = (address.as_ptr().cast::<u8>(), address.addr_len() as usize);
        // SAFETY: so many bytes of it were written.
        Self(unsafe { std::slice::from_raw_parts(start, len) }.into())
    }

    /// The socket address, if it is one.
    pub(crate) fn socket(&self) -> Option<SocketAddr> {
        let family = u16::from_ne_bytes(*self.0.first_chunk()?);
        let form = (i32::from(family), self.0.len());
        // rustix panics for an IPv6 address that is too short.
        if ![(libc::AF_INET, IPV4_BYTES), (libc::AF_INET6, IPV6_BYTES)].contains(&form) {
            return None;
        }
        // SAFETY: so many bytes are there, which are copied; the family says what they are.
        let address = unsafe { SocketAddrAny::read(self.0.as_ptr().cast(), form.1 as u32) };
        address.try_into().ok()
    }

    /// The string without its end, if it is one.
    fn text(&self) -> Option<&str> {
        let end = self.0.iter().position(|byte| *byte == 0).unwrap_or(self.0.len());
        str::from_utf8(&self.0[..end]).ok()
    }

    /// The URI.
    pub(crate) fn uri(&self, provider: &Provider) -> String {
        let rest = match provider.format {
            Format::Socket => match self.socket() {
                Some(address) => address.to_string(),
                None => hexadecimal(&self.0),
            },
            Format::Text => {
                let text = self.text().unwrap_or_default();
                text.split_once("://").map_or(text, |(_, rest)| rest).to_owned()
            }
            Format::Cxi => hexadecimal(self.0.get(..CXI_BYTES).unwrap_or(&self.0)),
            Format::Opx(layout) => layout.text(&self.0).unwrap_or_else(|| hexadecimal(&self.0)),
            Format::Fabric(_) => hexadecimal(&self.0),
        };
        format!("ofi+{}://{rest}", provider.name)
    }

    /// The peer that a URI names; `own` is our address. May block on name resolution.
    pub(crate) fn of_peer(provider: &Provider, uri: &Uri<'_>, own: &Self) -> Result<Self, Error> {
        let len = own.0.len();
        let expected = || format!("expected `ofi+{}://…`", provider.name);
        if uri.rest.is_empty() {
            return Err(bad(uri.text, format!("it names no peer; {}", expected())));
        }
        if let Some(odd) = uri.rest.chars().find(|c| c.is_control() || c.is_whitespace()) {
            return Err(bad(uri.text, format!("{odd:?} does not belong into an address")));
        }
        match provider.format {
            Format::Socket => {
                let Node { host, port, .. } = Node::parse(uri)?;
                if port == 0 || host.is_empty() {
                    return Err(bad(
                        uri.text,
                        format!("expected `ofi+{}://host:port`", provider.name),
                    ));
                }
                let is_v6 = len == IPV6_BYTES;
                let found = resolve(uri.text, &host, port)?;
                let fits = |address: &SocketAddr| address.is_ipv6() == is_v6;
                let address = found.into_iter().find(fits).ok_or_else(|| {
                    let wanted = if is_v6 { 6 } else { 4 };
                    bad(uri.text, format!("`{host}` has no IPv{wanted} address, as this endpoint"))
                })?;
                match address.ip().is_unspecified() {
                    true => Err(bad(uri.text, "it stands for all interfaces and names no host")),
                    false => Ok(Self::from_socket(address)),
                }
            }
            Format::Text => {
                let text = format!("fi_{}://{}\0", provider.name, uri.rest);
                match text.len() <= TEXT_BYTES {
                    true => Ok(Self(text.into_bytes().into())),
                    false => Err(bad(uri.text, "it is too long")),
                }
            }
            Format::Opx(layout) if !uri.rest.starts_with("0x") => {
                let raw = layout.raw(uri.rest, len).ok_or_else(|| {
                    let reason = "expected what an endpoint of the same version of libfabric calls \
                                  itself";
                    bad(uri.text, reason)
                })?;
                Ok(Self(raw.into()))
            }
            Format::Cxi | Format::Opx(_) | Format::Fabric(_) => {
                let named = if provider.format == Format::Cxi { CXI_BYTES } else { len };
                let bytes = from_hexadecimal(uri.rest).filter(|bytes| bytes.len() == named);
                let bytes = bytes.ok_or_else(|| {
                    let digits = 2 * named;
                    bad(uri.text, format!("expected `0x` and {digits} hexadecimal digits"))
                })?;
                Ok(Self::of_source(provider, own, &bytes))
            }
        }
    }

    /// Returns the bytes that go before each unexpected message to say who sends it.
    pub(crate) fn header(&self, provider: &Provider) -> Box<[u8]> {
        match provider.format {
            Format::Socket if self.0.len() == IPV6_BYTES => {
                [&self.0[8..24], &self.0[2..4]].concat().into()
            }
            Format::Text => {
                let mut bytes = vec![0; TEXT_BYTES];
                let len = self.0.len().min(TEXT_BYTES - 1);
                bytes[..len].copy_from_slice(&self.0[..len]);
                bytes.into()
            }
            Format::Opx(layout) => layout.header(&self.0).into(),
            // Where the provider tells the source, nothing goes before messages, but addresses are
            // serialised.
            Format::Cxi if !provider.source => self.0.iter().take(CXI_BYTES).copied().collect(),
            _ => self.0.clone(),
        }
    }

    /// Reads a header of the same length as ours; `None` if it names nobody. `own` is our address.
    pub(crate) fn from_header(provider: &Provider, own: &Self, header: &[u8]) -> Option<Self> {
        match provider.format {
            Format::Socket => {
                let address: SocketAddr = if own.0.len() == IPV6_BYTES {
                    let ip: [u8; 16] = header.get(..16)?.try_into().ok()?;
                    let port = u16::from_be_bytes(header.get(16..18)?.try_into().ok()?);
                    (Ipv6Addr::from(ip), port).into()
                } else {
                    Self::from_library(header).socket()?
                };
                let named = address.port() != 0 && !address.ip().is_unspecified();
                named.then(|| Self::from_socket(address))
            }
            Format::Text => {
                let end = header.iter().position(|byte| *byte == 0)?;
                let text = str::from_utf8(&header[..end]).ok()?;
                let rest = text.strip_prefix("fi_")?.strip_prefix(provider.name)?;
                let named = rest.strip_prefix("://").is_some_and(|name| !name.is_empty());
                named.then(|| Self(header[..=end].into()))
            }
            Format::Cxi => Self::cxi(own, header),
            Format::Opx(_) => {
                opx::Layout::from_header(header, own.0.len()).map(|raw| Self(raw.into()))
            }
            Format::Fabric(_) => Some(Self::from_library(header)),
        }
    }

    /// C's serialised form: u64 length, then what goes before messages (`na_ofi_addr_serialize`).
    pub(crate) fn serialise(&self, provider: &Provider) -> Vec<u8> {
        let header = self.header(provider);
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(&header);
        bytes
    }

    /// Reads [`serialise`](Self::serialise).
    pub(crate) fn deserialise(provider: &Provider, own: &Self, bytes: &[u8]) -> Option<Self> {
        if bytes.len() > Addr::BYTES_MAX {
            return None;
        }
        let (len, header) = bytes.split_first_chunk::<8>()?;
        let fits = u64::from_le_bytes(*len) == header.len() as u64
            && header.len() == own.header(provider).len();
        fits.then(|| Self::from_header(provider, own, header)).flatten()
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    // As one number: the fabrics' own text forms begin with the most significant digit.
    bytes.iter().rev().fold("0x".to_owned(), |text, byte| text + &format!("{byte:02x}"))
}

fn from_hexadecimal(text: &str) -> Option<Vec<u8>> {
    let digits = text.strip_prefix("0x")?;
    if !digits.is_ascii() || digits.len() % 2 != 0 || digits.len() > 2 * RAW_BYTES_MAX {
        return None;
    }
    let pairs = digits.as_bytes().chunks(2).rev();
    pairs.map(|pair| u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok()).collect()
}

/// The text behind `://` of an endpoint to be opened: `[domain/][host][:port]`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Node {
    /// Which device, as libfabric names it.
    pub(crate) domain: Option<String>,
    /// Name, address or interface; empty when absent.
    pub(crate) host: String,
    /// Zero when absent.
    pub(crate) port: u16,
}

impl Node {
    pub(crate) fn parse(uri: &Uri<'_>) -> Result<Self, Error> {
        let (domain, rest) = match uri.rest.split_once('/') {
            Some((domain, rest)) if !domain.is_empty() => (Some(domain.to_owned()), rest),
            Some(_) => return Err(bad(uri.text, "expected `domain/host:port`")),
            None => (None, uri.rest),
        };
        if let Some(odd) = rest.chars().find(|c| c.is_control() || c.is_whitespace() || *c == '/') {
            return Err(bad(uri.text, format!("{odd:?} does not belong into `host:port`")));
        }
        let (host, port) = match rest.strip_prefix('[') {
            Some(inner) => match inner.split_once(']') {
                Some((host, "")) => (host, None),
                Some((host, port)) => (host, Some(port.strip_prefix(':').unwrap_or("?"))),
                None => return Err(bad(uri.text, "`[` without `]`; expected `[IPv6]:port`")),
            },
            None => match rest.rsplit_once(':') {
                Some((host, _)) if host.contains(':') => {
                    return Err(bad(uri.text, "an IPv6 address needs brackets: `[IPv6]:port`"));
                }
                Some((host, port)) => (host, Some(port)),
                None => (rest, None),
            },
        };
        let port = port.map_or(Ok(0), str::parse);
        let port = port.map_err(|_| bad(uri.text, "the port must be a number from 0 to 65535"))?;
        Ok(Self { domain, host: host.to_owned(), port })
    }
}

/// The addresses of a host or an interface of this machine. May block on name resolution.
pub(crate) fn resolve(uri: &str, host: &str, port: u16) -> Result<Vec<SocketAddr>, Error> {
    if interface::index(host).is_some() {
        let found = interface::addresses(host, port)
            .map_err(|error| Error::io("cannot list the network interfaces", error))?;
        return match found.is_empty() {
            true => Err(bad(uri, format!("interface `{host}` has no IP address"))),
            false => Ok(found),
        };
    }
    // One in numbers needs no resolver.
    if let Ok(ip) = host.parse() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    names::addresses_of(host, port)
        .map_err(|error| bad(uri, format!("`{host}` is no interface here, and no host: {error}")))
}

/// Libraries whose forms of addresses differ, and what an endpoint of each form has as its own: the
/// provider and the length.
const VERSIONS: [(u16, u16); 4] = [(1, 19), (1, 22), (2, 1), (2, 6)];
const FORMS: [(&str, usize); 7] =
    [("tcp", 16), ("tcp", 28), ("shm", 0), ("cxi", 8), ("opx", 8), ("opx", 16), ("efa", 32)];

/// See [`crate::fuzzing::bytes`].
pub(crate) fn fuzz(choice: u8, bytes: &[u8]) {
    let (choice, of_form) = (usize::from(choice) / FORMS.len(), usize::from(choice) % FORMS.len());
    let (major, minor) = VERSIONS[choice % VERSIONS.len()];
    let (name, len) = FORMS[of_form];
    let Some(provider) = named(name) else { return };
    let provider = provider.in_version(Version { major, minor });
    let own = RawAddr::from_library(&vec![0xa5; len]);
    let same = |read: RawAddr| {
        assert_eq!(RawAddr::deserialise(provider, &own, &read.serialise(provider)), Some(read));
    };
    if let Some(header) = bytes.get(..own.header(provider).len())
        && let Some(read) = RawAddr::from_header(provider, &own, header)
    {
        let again = RawAddr::from_header(provider, &own, &read.header(provider));
        assert_eq!(again.as_ref(), Some(&read));
        let text = read.uri(provider);
        // Names of hosts would be resolved.
        if provider.format != Format::Socket
            && let Ok(uri) = Uri::parse(&text)
            && let Ok(named) = RawAddr::of_peer(provider, &uri, &own)
        {
            assert_eq!(named.uri(provider), text);
        }
        same(read);
    }
    if let Some(read) = RawAddr::deserialise(provider, &own, bytes) {
        same(read);
    }
    let _ = RawAddr::of_source(provider, &own, bytes).uri(provider);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The peer of that URI, where our address has `len` bytes.
    fn peer(uri: &str, len: usize) -> Result<RawAddr, Error> {
        let uri = Uri::parse(uri).unwrap();
        let own = RawAddr::from_library(&vec![0xa5; len]);
        RawAddr::of_peer(named(uri.protocol).unwrap(), &uri, &own)
    }

    #[test]
    fn raw_addresses_text_and_headers_mean_the_same() {
        for (uri, len, header) in [
            ("ofi+tcp://127.0.0.1:4711", 16, 16),
            ("ofi+verbs;ofi_rxm://10.1.2.3:4", 16, 16),
            ("ofi+tcp://[::1]:4711", 28, 18),
            ("ofi+shm://1234:5:fi_ep", 0, 128),
            ("ofi+cxi://0x00012345", 8, 8),
            ("ofi+opx://5678.1234.0d.0a.01.0c", 8, 16),
            ("ofi+opx://5678.1234.0d.0a.01.0c.001f:7", 16, 16),
            ("ofi+opx://0x0000000000000000000000000000000000000017", 20, 20),
            ("ofi+efa://0x0001234500000006", 8, 8),
        ] {
            let provider = named(Uri::parse(uri).unwrap().protocol).unwrap();
            let raw = peer(uri, len).unwrap();
            assert_eq!(raw.uri(provider), uri);
            assert_eq!(raw.header(provider).len(), header, "{uri}");
            let own = peer(uri, len).unwrap();
            let again = RawAddr::from_header(provider, &own, &raw.header(provider));
            assert_eq!(again.as_ref(), Some(&raw), "{uri}");
            let bytes = raw.serialise(provider);
            assert_eq!(RawAddr::deserialise(provider, &own, &bytes).as_ref(), Some(&raw));
            assert_eq!(RawAddr::deserialise(provider, &own, &bytes[..bytes.len() - 1]), None);
            assert_eq!(RawAddr::deserialise(provider, &own, &[]), None);
        }
    }

    #[test]
    fn an_ipv4_header_is_cs_socket_address() {
        let provider = named("tcp").unwrap();
        let raw = peer("ofi+tcp://1.2.3.4:258", 16).unwrap();
        let wanted = [2, 0, 1, 2, 1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(raw.header(provider)[..], wanted);
        let mut garbled = wanted;
        garbled[15] = 7;
        let read = RawAddr::from_header(provider, &raw, &garbled);
        assert_eq!(read, Some(raw.clone()), "the padding is nobody's business");
        for (at, byte) in [(0, 9), (2, 0)] {
            let mut wrong = wanted;
            wrong[at..at + 2].fill(byte);
            assert_eq!(RawAddr::from_header(provider, &raw, &wrong), None);
        }
    }

    /// Before each request of C Margo 0.24 over Mercury 2.4.1, provider `tcp;ofi_rxm`.
    #[test]
    fn what_c_sent_is_read() {
        let sent = [2, 0, 0x9b, 0x75, 0x7f, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0];
        let provider = named("tcp_rxm").unwrap();
        let own = peer("ofi+tcp;ofi_rxm://127.0.0.1:1", 16).unwrap();
        let from = RawAddr::from_header(provider, &own, &sent).unwrap();
        assert_eq!(from.uri(provider), "ofi+tcp;ofi_rxm://127.0.0.1:39797");
        assert_eq!(from.header(provider)[..], sent);
    }

    /// C and libfabric write the first four bytes as one number, and nothing of the network.
    #[test]
    fn a_slingshot_peer_is_one_however_it_is_named() {
        let provider = named("cxi").unwrap();
        let own = RawAddr::from_library(&[0x01, 0x02, 0x03, 0x04, 0x39, 0x05, 0, 0]);
        assert_eq!(own.uri(provider), "ofi+cxi://0x04030201");
        let uri = Uri::parse("ofi+cxi://0x00012345").unwrap();
        let looked_up = RawAddr::of_peer(provider, &uri, &own).unwrap();
        assert_eq!(looked_up.bytes(), [0x45, 0x23, 0x01, 0, 0x39, 0x05, 0, 0]);
        assert_eq!(looked_up.uri(provider), uri.text);
        // The source of a message has no network (`cxip_recv_cb` in `cxip_msg.c`), a description
        // may have another one.
        for network in [[0, 0], [0x39, 0x05], [7, 7]] {
            let told = [&[0x45, 0x23, 0x01, 0], &network[..], &[0, 0]].concat();
            assert_eq!(RawAddr::of_source(provider, &own, &told), looked_up);
            assert_eq!(RawAddr::from_header(provider, &own, &told).as_ref(), Some(&looked_up));
        }
        assert_eq!(RawAddr::from_header(provider, &own, &[1, 2, 3]), None);
    }

    #[test]
    fn says_what_is_wrong() {
        for (uri, hint) in [
            ("ofi+tcp://", "names no peer"),
            ("ofi+tcp://127.0.0.1", "host:port"),
            ("ofi+tcp://127.0.0.1:x", "number"),
            ("ofi+tcp://::1:80", "brackets"),
            ("ofi+tcp://0.0.0.0:80", "all interfaces"),
            ("ofi+tcp://no-such-host.invalid:80", "no host"),
            ("ofi+tcp://[::1]:80", "no IPv4 address"),
            ("ofi+tcp:///x:1", "domain"),
            ("ofi+cxi://12", "hexadecimal"),
            ("ofi+cxi://0x12", "8 hexadecimal"),
            ("ofi+cxi://0x0000000000012345", "8 hexadecimal"),
        ] {
            let len = if uri.contains("cxi") { 8 } else { 16 };
            let error = peer(uri, len).unwrap_err().to_string();
            assert!(error.contains(hint), "{uri}: {error}");
        }
        let long = format!("ofi+shm://{}", "x".repeat(200));
        assert!(peer(&long, 0).unwrap_err().to_string().contains("too long"));
    }

    #[test]
    fn endpoints_are_named_by_device_host_and_port() {
        let node = |uri| Node::parse(&Uri::parse(uri).unwrap());
        let made = |domain: Option<&str>, host: &str, port| Node {
            domain: domain.map(str::to_owned),
            host: host.to_owned(),
            port,
        };
        assert_eq!(node("ofi+tcp://").unwrap(), made(None, "", 0));
        assert_eq!(node("ofi+tcp://:80").unwrap(), made(None, "", 80));
        assert_eq!(node("ofi+tcp://lo").unwrap(), made(None, "lo", 0));
        assert_eq!(node("ofi+verbs://mlx5_0/ib0:80").unwrap(), made(Some("mlx5_0"), "ib0", 80));
        assert_eq!(node("ofi+tcp://lo/:80").unwrap(), made(Some("lo"), "", 80));
        assert_eq!(node("ofi+tcp://[::1]:80").unwrap(), made(None, "::1", 80));
        assert!(node("ofi+tcp://a/b/c").is_err() && node("ofi+tcp://a b").is_err());
    }
}
