//! Addresses `na+tcp://host:port`; what stands behind `://` is in `host_port.rs`.

use std::net::SocketAddr;

/// What stands before `://`.
pub(super) const HEAD: &str = "na+tcp";

/// The text form of a listening address.
pub(super) fn uri_of(address: SocketAddr) -> String {
    format!("na+tcp://{address}")
}

/// The text form of an end that does not listen: a name for people, which `lookup` refuses.
pub(super) fn origin_uri(name: impl std::fmt::Display) -> String {
    format!("na+tcp://{name}/origin")
}

/// The address in a URI that a peer announced, if it is written in numbers (so that nothing has to
/// be resolved) and names a host. The number of a link is the peer's: `from` has ours.
pub(super) fn announced(uri: &str, from: Option<SocketAddr>) -> Option<SocketAddr> {
    let mut address: SocketAddr = uri.strip_prefix("na+tcp://")?.parse().ok()?;
    if let (SocketAddr::V6(address), Some(SocketAddr::V6(from))) = (&mut address, from) {
        address.set_scope_id(from.scope_id());
    }
    (address.port() != 0 && !address.ip().is_unspecified()).then_some(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn announcements_are_numbers_that_name_a_host() {
        let address: SocketAddr = "10.1.2.3:4".parse().unwrap();
        assert_eq!(announced(&uri_of(address), None), Some(address));
        for text in ["", "na+tcp://localhost:4", "na+tcp://0.0.0.0:4", "na+tcp://1.2.3.4:0", "x"] {
            assert_eq!(announced(text, None), None, "{text}");
        }
        assert_eq!(announced(&origin_uri("1.2.3.4:5"), None), None);
        let link = |number: u32| format!("[fe80::7%{number}]:4").parse::<SocketAddr>().unwrap();
        assert_eq!(announced(&uri_of(link(3)), Some(link(9))), Some(link(9)));
    }
}
