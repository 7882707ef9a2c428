//! Addresses `na+tcp://host:port`; what stands behind `://` is in `host_port.rs`.

use std::net::{IpAddr, SocketAddr};

/// The part of a URI before `://`.
pub(crate) const HEAD: &str = "na+tcp";

/// The text form of a listening address.
pub(crate) fn uri_of(address: SocketAddr) -> String {
    format!("na+tcp://{address}")
}

/// The text form of an end that does not listen: a name for people, which `lookup` refuses.
pub(crate) fn origin_uri(name: impl std::fmt::Display) -> String {
    format!("na+tcp://{name}/origin")
}

/// The address in a URI that a peer announced, if it is written in numbers (so that nothing has to
/// be resolved) and names a host. The number of a link is the peer's: `from` has ours.
pub(crate) fn announced(uri: &str, from: Option<SocketAddr>) -> Option<SocketAddr> {
    let mut address: SocketAddr = uri.strip_prefix("na+tcp://")?.parse().ok()?;
    // Of one peer there shall be one address; others stay as they are, links included.
    address.set_ip(address.ip().to_canonical());
    if let (SocketAddr::V6(address), Some(SocketAddr::V6(from))) = (&mut address, from) {
        address.set_scope_id(from.scope_id());
    }
    (address.port() != 0 && !address.ip().is_unspecified()).then_some(address)
}

/// Returns whether a caller from `remote` to our `local` can be the endpoint that listens at
/// `announced`: it is on that host, which for a loopback address is ours. A listener on `[::]` sees
/// callers of IPv4 under IPv6 addresses that stand for theirs.
pub(crate) fn is_from_there(
    announced: IpAddr,
    remote: Option<IpAddr>,
    local: Option<IpAddr>,
) -> bool {
    let plain = |ip: Option<IpAddr>| ip.map(|ip| ip.to_canonical());
    let (remote, local) = (plain(remote), plain(local));
    let on_that_host = remote == Some(announced.to_canonical());
    on_that_host || (announced.to_canonical().is_loopback() && remote == local)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_of_ipv4_are_known_at_a_listener_for_both() {
        let is_from = |announced: &str, remote: &str, local: &str| {
            let [remote, local] = [remote, local].map(|ip| ip.parse().ok());
            is_from_there(announced.parse().unwrap(), remote, local)
        };
        for [remote, local] in [["10.1.2.3", "10.1.2.9"], ["::ffff:10.1.2.3", "::ffff:10.1.2.9"]] {
            assert!(
                is_from("10.1.2.3", remote, local) && is_from("::ffff:10.1.2.3", remote, local)
            );
            assert!(!is_from("10.1.2.4", remote, local) && !is_from("127.0.0.1", remote, local));
            assert!(is_from("127.0.0.1", remote, remote), "on one host");
        }
        assert!(is_from("127.0.0.1", "::ffff:127.0.0.1", "127.0.0.1"));
        assert!(is_from("fd00::1", "fd00::1", "fd00::2") && !is_from("fd00::1", "10.0.0.1", "::1"));
        assert!(!is_from_there("10.1.2.3".parse().unwrap(), None, None));
    }

    #[test]
    fn announcements_are_numbers_that_name_a_host() {
        let address: SocketAddr = "10.1.2.3:4".parse().unwrap();
        assert_eq!(announced(&uri_of(address), None), Some(address));
        assert_eq!(announced("na+tcp://[::ffff:10.1.2.3]:4", None), Some(address), "one peer");
        for text in ["", "na+tcp://localhost:4", "na+tcp://0.0.0.0:4", "na+tcp://1.2.3.4:0", "x"] {
            assert_eq!(announced(text, None), None, "{text}");
        }
        assert_eq!(announced(&origin_uri("1.2.3.4:5"), None), None);
        let link = |number: u32| format!("[fe80::7%{number}]:4").parse::<SocketAddr>().unwrap();
        assert_eq!(announced(&uri_of(link(3)), Some(link(9))), Some(link(9)));
    }
}
