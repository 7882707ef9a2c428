//! `host:port` as text, as socket addresses, and as the identity of a peer; for transports whose
//! endpoints listen at an IP address.
//!
//! | text | listening endpoint | `lookup` |
//! |---|---|---|
//! | empty | the address in the subnet that is asked for, else loopback; a free port | refused |
//! | `:port` | the same with that port | loopback |
//! | `host`, `host:0` | that host, a free port | refused: no port |
//! | `host:port`, `1.2.3.4:port`, `[::1]:port` | that address | that address |
//! | `eth0:port` | the first address of that interface | the same, of this machine |
//! | `[fe80::1%eth0]:port`, `[fe80::1%2]:port` | that address of that link | that one |
//! | `0.0.0.0:port`, `[::]:port` | all interfaces | refused: names no host |
//!
//! Loopback is `127.0.0.1`, or `[::1]` where there is nothing else. `[::]` takes both families.
//!
//! A name that an interface of this machine has is that interface, else a host. Among the addresses
//! of an interface, IPv4 goes before IPv6, and link-local addresses come last. For a listening
//! endpoint, family and subnet decide before that (`own_address.rs`).
//!
//! Names are resolved where they are given, which may block: in `open` and `lookup`, never while
//! polling. A name with one address is that address; one with several stays a peer of its own,
//! whose addresses are tried in order.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

use crate::Error;
use crate::hosts::own_address::Wanted;
pub use crate::hosts::own_address::reachable;
use crate::hosts::{interface, names};

/// The key by which a peer is found when it is looked up again.
///
/// ```
/// use na_core::hosts::host_port::PeerKey;
///
/// let key = PeerKey::Address("[::1]:7000".parse()?);
/// assert_eq!(key.uri("na+tcp"), "na+tcp://[::1]:7000");
/// let key = PeerKey::Name("node7".to_owned(), 7000);
/// assert_eq!(key.uri("na+tcp"), "na+tcp://node7:7000");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum PeerKey {
    /// One address.
    Address(SocketAddr),
    /// A name with several addresses, and the port.
    Name(String, u16),
}

impl PeerKey {
    /// The peer's address as text; `head` stands before `://`.
    pub fn uri(&self, head: &str) -> String {
        match self {
            Self::Address(address) => format!("{head}://{address}"),
            Self::Name(name, port) => format!("{head}://{name}:{port}"),
        }
    }
}

fn bad(uri: &str, reason: impl Into<String>) -> Error {
    Error::BadUri { uri: uri.to_owned(), reason: reason.into() }
}

/// Splits `host[:port]`; an absent host is empty, an absent port zero.
fn split<'a>(uri: &str, rest: &'a str) -> Result<(&'a str, u16), Error> {
    if rest.ends_with("/origin") {
        return Err(bad(uri, "it names an endpoint that does not listen, so it cannot be called"));
    }
    if let Some(odd) = rest.chars().find(|c| c.is_control() || c.is_whitespace() || *c == '/') {
        return Err(bad(uri, format!("{odd:?} does not belong into `host:port`")));
    }
    let (host, port) = match rest.strip_prefix('[') {
        Some(inner) => match inner.split_once(']') {
            Some((host, "")) => (host, None),
            Some((host, port)) => (host, Some(port.strip_prefix(':').unwrap_or("?"))),
            None => return Err(bad(uri, "`[` without `]`; expected `[IPv6]:port`")),
        },
        None => match rest.rsplit_once(':') {
            Some((host, _)) if host.contains(':') => {
                return Err(bad(uri, "an IPv6 address needs brackets: `[IPv6]:port`"));
            }
            Some((host, port)) => (host, Some(port)),
            None => (rest, None),
        },
    };
    let port = port.map_or(Ok(0), str::parse);
    let port = port.map_err(|_| bad(uri, "the port must be a number from 0 to 65535"))?;
    Ok((host, port))
}

fn resolve(uri: &str, host: &str, port: u16) -> Result<Vec<SocketAddr>, Error> {
    if host.is_empty() {
        return Ok(vec![Wanted::default().loopback(port)]);
    }
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    if let Some((ip, link)) = host.split_once('%') {
        return scoped(uri, ip, link, port).map(|address| vec![address]);
    }
    if interface::index(host).is_some() {
        let found = interface::addresses(host, port)
            .map_err(|error| Error::io("cannot list the network interfaces", error))?;
        if found.is_empty() {
            return Err(bad(uri, format!("interface `{host}` has no IP address")));
        }
        return Ok(found);
    }
    let found = names::addresses_of(host, port).map_err(|error| {
        let reason = format!("`{host}` is no interface here, and no host: {error}");
        bad(uri, reason)
    })?;
    let mut addresses: Vec<SocketAddr> = Vec::new();
    for address in found {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    if addresses.is_empty() {
        return Err(bad(uri, format!("host `{host}` has no address")));
    }
    Ok(addresses)
}

/// An IPv6 address of the link that `link` names, by interface or number.
fn scoped(uri: &str, ip: &str, link: &str, port: u16) -> Result<SocketAddr, Error> {
    let ip = scoped_ip(uri, ip)?;
    let number = link.parse().ok().or_else(|| interface::index(link));
    let number = number.ok_or_else(|| bad(uri, format!("there is no interface `{link}`")))?;
    Ok(SocketAddr::V6(SocketAddrV6::new(ip, port, 0, number)))
}

fn scoped_ip(uri: &str, ip: &str) -> Result<Ipv6Addr, Error> {
    ip.parse().map_err(|_| bad(uri, format!("`{ip}%…` is not an IPv6 address")))
}

/// Refuses what [`listen_address`] would refuse on any machine: a text of another form, or an
/// address in numbers that is of another family than is wanted. Names are not resolved.
///
/// # Errors
///
/// [`Error::BadUri`] or [`Error::BadOption`].
pub fn check_listen(uri: &str, rest: &str, wanted: &Wanted) -> Result<(), Error> {
    let (host, port) = split(uri, rest)?;
    let ip = match host.split_once('%') {
        Some((ip, _)) => Some(scoped_ip(uri, ip)?.into()),
        None => host.parse().ok(),
    };
    match ip {
        Some(ip) => {
            wanted.check_all_interfaces(ip)?;
            wanted.among(uri, host, &[SocketAddr::new(ip, port)]).map(drop)
        }
        None => Ok(()),
    }
}

/// The address at which an endpoint of that URI listens. May block on name resolution.
///
/// # Errors
///
/// As [`check_listen`], and when this machine has no such address.
pub fn listen_address(
    (transport, uri, rest): (&'static str, &str, &str),
    wanted: &Wanted,
) -> Result<SocketAddr, Error> {
    let (host, port) = split(uri, rest)?;
    if host.is_empty() {
        let in_subnet = wanted.in_subnet(transport, port)?;
        return Ok(in_subnet.unwrap_or_else(|| wanted.loopback(port)));
    }
    let address = wanted.among(uri, host, &resolve(uri, host, port)?)?;
    // Many systems give their own name an address of loopback, in /etc/hosts.
    let is_meant = host.parse::<IpAddr>().is_ok()
        || host.eq_ignore_ascii_case("localhost")
        || host.contains('%')
        || interface::index(host).is_some();
    if address.ip().is_loopback() && !is_meant {
        tracing::warn!(
            "{transport}: `{host}` is {} here, so others are told to call an address which only \
             this machine reaches. Listen on an interface, such as `eth0:{port}`, on 0.0.0.0, or \
             at the address that others are to call",
            address.ip()
        );
    }
    Ok(address)
}

/// Returns the peer that the URI means and the addresses to connect to. `rest` is what stands
/// behind `head` and `://`. May block on name resolution.
///
/// # Errors
///
/// [`Error::BadUri`], or [`Error::Unreachable`] for a name that cannot be resolved.
pub fn peer_addresses(
    uri: &str,
    head: &str,
    rest: &str,
) -> Result<(PeerKey, Vec<SocketAddr>), Error> {
    let (host, port) = split(uri, rest)?;
    if port == 0 {
        return Err(bad(uri, format!("it has no port; expected `{head}://host:port`")));
    }
    let mut addresses = resolve(uri, host, port)?;
    if interface::index(host).is_some() {
        // The others are other ways to the same interface.
        addresses.truncate(1);
    }
    if addresses.iter().any(|address| address.ip().is_unspecified()) {
        return Err(bad(uri, "it stands for all interfaces and names no host"));
    }
    let key = match addresses[..] {
        [address] => PeerKey::Address(address),
        _ => PeerKey::Name(host.to_ascii_lowercase(), port),
    };
    Ok((key, addresses))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(rest: &str) -> Result<(PeerKey, Vec<SocketAddr>), Error> {
        peer_addresses(&format!("na+tcp://{rest}"), "na+tcp", rest)
    }

    fn listen(rest: &str) -> Result<SocketAddr, Error> {
        listen_address(("tcp", "", rest), &Wanted::default())
    }

    #[test]
    fn reads_the_usual_forms() {
        let v4: SocketAddr = "127.0.0.1:80".parse().unwrap();
        let v6: SocketAddr = "[::1]:80".parse().unwrap();
        assert_eq!(peer("127.0.0.1:80").unwrap(), (PeerKey::Address(v4), vec![v4]));
        assert_eq!(peer(":80").unwrap(), (PeerKey::Address(v4), vec![v4]));
        assert_eq!(peer("[::1]:80").unwrap(), (PeerKey::Address(v6), vec![v6]));
        assert_eq!(listen("").unwrap(), "127.0.0.1:0".parse().unwrap());
        assert_eq!(listen("[::]").unwrap(), "[::]:0".parse().unwrap());
        assert_eq!(listen("0.0.0.0:7").unwrap(), "0.0.0.0:7".parse().unwrap());
    }

    #[test]
    fn interfaces_and_links_have_names() {
        let lo = interface::index("lo").unwrap();
        let link: SocketAddr = format!("[fe80::1%{lo}]:80").parse().unwrap();
        assert_eq!(peer("[fe80::1%lo]:80").unwrap(), (PeerKey::Address(link), vec![link]));
        assert_eq!(peer(&format!("[fe80::1%{lo}]:80")).unwrap().1, [link]);
        if interface::addresses("lo", 0).unwrap().is_empty() {
            println!("not tested: the loopback interface is without addresses here");
            return;
        }
        assert!(listen("lo:7").unwrap().ip().is_loopback());
        assert!(listen("lo").unwrap().ip().is_loopback());
        assert!(matches!(peer("lo:80").unwrap().0, PeerKey::Address(_)));
    }

    #[test]
    fn says_what_is_wrong() {
        for (rest, hint) in [
            ("", "no port"),
            ("127.0.0.1", "no port"),
            ("127.0.0.1:0", "no port"),
            ("127.0.0.1:http", "number"),
            ("127.0.0.1:65536", "number"),
            ("::1:80", "brackets"),
            ("[::1:80", "without"),
            ("[::1]80", "number"),
            ("0.0.0.0:80", "all interfaces"),
            ("[::]:80", "all interfaces"),
            ("a b:80", "belong"),
            ("10.0.0.1:80/origin", "does not listen"),
            ("no-such-host.invalid:80", "no host"),
            ("[fe80::1%no-such-link]:80", "no interface"),
            ("[1.2.3.4%lo]:80", "IPv6"),
        ] {
            let error = peer(rest).unwrap_err();
            assert!(matches!(error, Error::BadUri { .. }));
            assert!(error.to_string().contains(hint), "{rest}: {error}");
        }
    }

    #[test]
    fn a_name_with_several_addresses_is_a_peer_of_its_own() {
        let name = PeerKey::Name("node7".into(), 80);
        assert_eq!(name.uri("ucx+all"), "ucx+all://node7:80");
        let Ok((key, addresses)) = peer("LOCALHOST:80") else { return };
        match &addresses[..] {
            [address] => assert_eq!(key, PeerKey::Address(*address)),
            _ => assert_eq!(key, PeerKey::Name("localhost".into(), 80)),
        }
    }
}
