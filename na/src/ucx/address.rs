//! `[device/]host[:port]`, and the transports of UCX that a protocol stands for.
//!
//! | text after `://` | listening endpoint | `lookup` |
//! |---|---|---|
//! | empty | `127.0.0.1`, a free port | refused |
//! | `:port` | `127.0.0.1` | `127.0.0.1` |
//! | `host`, `host:0` | that host, a free port | refused: no port |
//! | `host:port`, `1.2.3.4:port`, `[::1]:port` | that address | that address |
//! | `eth0:port` | the first address of that interface | the same, of this machine |
//! | `mlx5_0:1/host:port` | the same, over that device (`UCX_NET_DEVICES`) | refused |
//!
//! Names are resolved where they are given, which may block: in `open` and `lookup`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};

use super::worker::Settings;
use crate::{Error, Uri, interface};

/// The class of all addresses of UCX.
const CLASS: &str = "ucx";

fn bad(uri: &Uri<'_>, reason: impl Into<String>) -> Error {
    Error::BadUri { uri: uri.text.to_owned(), reason: reason.into() }
}

/// The text form of a listening address.
pub(super) fn uri_of(protocol: &str, address: SocketAddr) -> String {
    format!("{CLASS}+{protocol}://{address}")
}

/// The text form of an end that does not listen: a name for people, which `lookup` refuses.
pub(super) fn origin_uri(protocol: &str, name: impl std::fmt::Display) -> String {
    format!("{CLASS}+{protocol}://{name}/origin")
}

/// What UCX is to use for a protocol, and the device.
///
/// As in Mercury (`na_ucp_config_init`, na_ucx.c) the name goes to `UCX_TLS` as it is. Those of
/// shared memory get TCP as well: that is how two endpoints meet, and how each learns of the
/// other's end.
pub(super) fn settings(uri: &Uri<'_>) -> Settings {
    let device = uri.rest.rsplit_once('/').map(|(device, _)| device);
    let device = device.filter(|device| !device.is_empty()).map(str::to_owned);
    let shared = ["sm", "shm", "mm", "posix", "sysv", "xpmem"].contains(&uri.protocol);
    let tls = match shared {
        true => format!("{},self,tcp", uri.protocol),
        false => uri.protocol.to_owned(),
    };
    Settings { tls, device, detects_failure: !shared }
}

/// Splits `host[:port]`; an absent host is empty, an absent port zero.
fn split<'a>(uri: &Uri<'a>, rest: &'a str) -> Result<(&'a str, u16), Error> {
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

fn resolve(uri: &Uri<'_>, host: &str, port: u16) -> Result<SocketAddr, Error> {
    if host.is_empty() {
        return Ok((Ipv4Addr::LOCALHOST, port).into());
    }
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(SocketAddr::new(ip, port));
    }
    let found = match interface::index(host) {
        Some(_) => interface::addresses(host, port)
            .map_err(|error| Error::io("cannot list the network interfaces", error))?
            .first()
            .copied(),
        None => (host, port)
            .to_socket_addrs()
            .map_err(|error| {
                bad(uri, format!("`{host}` is no interface here, and no host: {error}"))
            })?
            .next(),
    };
    found.ok_or_else(|| bad(uri, format!("`{host}` has no IP address")))
}

/// Where an endpoint of that URI listens. May block on name resolution.
pub(super) fn listen_address(uri: &Uri<'_>) -> Result<SocketAddr, Error> {
    let rest = uri.rest.rsplit_once('/').map_or(uri.rest, |(_, rest)| rest);
    let (host, port) = split(uri, rest)?;
    resolve(uri, host, port)
}

/// Who is meant by that URI, for an endpoint of `protocol`. May block on name resolution.
pub(super) fn peer_address(uri: &Uri<'_>, protocol: &str) -> Result<SocketAddr, Error> {
    if uri.class != Some(CLASS) || uri.protocol != protocol {
        return Err(bad(uri, format!("this endpoint reaches `{CLASS}+{protocol}://host:port`")));
    }
    if uri.rest.ends_with("/origin") {
        return Err(bad(uri, "it names an endpoint that does not listen, so it cannot be called"));
    }
    let (host, port) = split(uri, uri.rest)?;
    if port == 0 {
        let text = format!("it has no port; expected `{CLASS}+{protocol}://host:port`");
        return Err(bad(uri, text));
    }
    let address = resolve(uri, host, port)?;
    if address.ip().is_unspecified() {
        return Err(bad(uri, "it stands for all interfaces and names no host"));
    }
    Ok(address)
}

/// The address that a peer at `client` announced, if it is written in numbers (so that nothing has
/// to be resolved) and the peer's own: at the host that it called from, or on this host as well.
pub(super) fn announced(
    text: &str,
    protocol: &str,
    client: Option<SocketAddr>,
) -> Option<SocketAddr> {
    let rest = text.strip_prefix(CLASS)?.strip_prefix('+')?.strip_prefix(protocol)?;
    let address: SocketAddr = rest.strip_prefix("://")?.parse().ok()?;
    let client = client?;
    let is_own =
        address.ip() == client.ip() || (address.ip().is_loopback() && client.ip().is_loopback());
    (is_own && address.port() != 0).then_some(address)
}

/// The address under which others reach a listener that is bound to all interfaces: the one that
/// the system would use towards the outside, else loopback.
pub(super) fn reachable(bound: SocketAddr) -> SocketAddr {
    if !bound.ip().is_unspecified() {
        return bound;
    }
    let (any, outside, own): (IpAddr, &str, IpAddr) = match bound {
        // Addresses reserved for documentation: connecting a UDP socket chooses a route and sends
        // nothing.
        SocketAddr::V4(_) => (bound.ip(), "192.0.2.1:9", Ipv4Addr::LOCALHOST.into()),
        SocketAddr::V6(_) => (bound.ip(), "[2001:db8::1]:9", std::net::Ipv6Addr::LOCALHOST.into()),
    };
    let route = std::net::UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect(outside)?;
        socket.local_addr()
    });
    let ip = route.map_or(own, |address| address.ip());
    SocketAddr::new(if ip.is_unspecified() { own } else { ip }, bound.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Uri<'_> {
        Uri::parse(text).unwrap()
    }

    #[test]
    fn forms_of_addresses() {
        for (text, address) in [
            ("ucx+tcp://", "127.0.0.1:0"),
            ("ucx+tcp://:7", "127.0.0.1:7"),
            ("ucx+all://10.0.0.1", "10.0.0.1:0"),
            ("ucx+all://mlx5_0:1/10.0.0.1:7", "10.0.0.1:7"),
            ("ucx+all://[::1]:7", "[::1]:7"),
            ("ucx+all://lo:7", "127.0.0.1:7"),
        ] {
            assert_eq!(listen_address(&parse(text)).unwrap().to_string(), address, "{text}");
        }
        assert_eq!(settings(&parse("ucx+rc://mlx5_0:1/h:7")).device.unwrap(), "mlx5_0:1");
        assert_eq!(settings(&parse("ucx+rc://h:7")).tls, "rc");
        assert!(settings(&parse("ucx+rc://h:7")).detects_failure);
        assert!(!settings(&parse("ucx+sm://")).detects_failure);
    }

    #[test]
    fn what_names_no_peer_is_told() {
        for (text, reason) in [
            ("ucx+tcp://127.0.0.1", "no port"),
            ("ucx+tcp://0.0.0.0:7", "names no host"),
            ("ucx+tcp://127.0.0.1:70000", "0 to 65535"),
            ("ucx+tcp://::1:7", "brackets"),
            ("ucx+tcp://[::1:7", "without `]`"),
            ("ucx+sm://127.0.0.1:7", "ucx+tcp"),
            ("na+tcp://127.0.0.1:7", "ucx+tcp"),
            ("ucx+tcp://1.2.3.4:5/origin", "does not listen"),
        ] {
            let error = peer_address(&parse(text), "tcp").unwrap_err().to_string();
            assert!(error.contains(reason) && error.contains(text), "{error}");
        }
    }

    #[test]
    fn a_peer_cannot_pass_for_another_host() {
        let from = |ip: &str| Some(SocketAddr::new(ip.parse().unwrap(), 9));
        let uri = "ucx+tcp://10.0.0.1:7";
        assert!(announced(uri, "tcp", from("10.0.0.1")).is_some());
        assert_eq!(announced(uri, "tcp", from("10.0.0.2")), None);
        assert_eq!(announced(uri, "tcp", None), None);
        assert_eq!(announced("ucx+tcp://127.0.0.1:7", "tcp", from("10.0.0.2")), None);
        assert_eq!(announced("ucx+tcp://name:7", "tcp", from("10.0.0.1")), None);
        assert_eq!(announced(uri, "sm", from("10.0.0.1")), None);
    }
}
