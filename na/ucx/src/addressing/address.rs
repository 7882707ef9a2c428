//! Addresses `[device/]host[:port]`, and the transports of UCX that a protocol stands for. The form
//! of `host:port` is described in `host_port.rs`; `mlx5_0:1/host:port` is the same over that device
//! (`UCX_NET_DEVICES`), for an endpoint, not for a peer.

use std::net::SocketAddr;

use na_core::hosts::host_port;
use na_core::hosts::host_port::PeerKey;
use na_core::hosts::own_address::Wanted;
use na_core::{Error, OpenOptions, RemoteKeys, Uri};

/// The class of all addresses of UCX.
const CLASS: &str = "ucx";

/// Protocols that are shared memory.
const SHARED: [&str; 6] = ["sm", "shm", "mm", "posix", "sysv", "xpmem"];

/// Settings of UCX for an endpoint.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// `UCX_TLS`.
    pub(crate) tls: String,
    /// `UCX_NET_DEVICES`, if one was named.
    pub(crate) device: Option<String>,
    /// True if the transports can tell that a peer fails (`UCP_ERR_HANDLING_MODE_PEER`). Those over
    /// shared memory cannot; there the connection over which they met tells it.
    pub(crate) detects_failure: bool,
    /// True if somebody will sleep: see `Worker::fd`.
    pub(crate) wakes: bool,
    /// Class of the packets of InfiniBand and RoCE, as their headers have it.
    pub(crate) class: Option<u8>,
    /// True if peers may get remote keys of memory here, see `keys.rs`.
    pub(crate) remote_keys: bool,
    /// `UCX_TCP_AF_PRIO`, see `ip_family.rs`; `None`: as the environment says.
    pub(crate) families: Option<&'static str>,
}

fn bad(uri: &Uri<'_>, reason: impl Into<String>) -> Error {
    Error::BadUri { uri: uri.text.to_owned(), reason: reason.into() }
}

/// Returns the part of a URI before `://`.
pub(crate) fn head(protocol: &str) -> String {
    format!("{CLASS}+{protocol}")
}

/// The text form of a listening address.
pub(crate) fn uri_of(protocol: &str, address: SocketAddr) -> String {
    format!("{CLASS}+{protocol}://{address}")
}

/// The text form of an end that does not listen: a name for people, which `lookup` refuses.
pub(crate) fn origin_uri(protocol: &str, name: impl std::fmt::Display) -> String {
    format!("{CLASS}+{protocol}://{name}/origin")
}

/// Returns the settings of UCX for the protocol and the device of a URI.
///
/// As in Mercury (`na_ucp_config_init`, na_ucx.c) the name goes to `UCX_TLS` as it is. Protocols
/// over shared memory get TCP as well: that is how two endpoints meet, and how each learns of the
/// other's end.
pub(crate) fn settings(uri: &Uri<'_>, options: &OpenOptions) -> Settings {
    let device = uri.rest.rsplit_once('/').map(|(device, _)| device);
    let device = device.filter(|device| !device.is_empty()).map(str::to_owned);
    let shared = SHARED.contains(&uri.protocol);
    let tls = match shared {
        true => format!("{},self,tcp", uri.protocol),
        false => uri.protocol.to_owned(),
    };
    let class = options.traffic_class.byte().filter(|_| may_have_classes(uri.protocol));
    let remote_keys = match options.ucx.remote_keys {
        RemoteKeys::Always => true,
        RemoteKeys::Never => false,
        _ => may_have_adapters(uri.protocol),
    };
    let wakes = !options.no_block;
    Settings { tls, device, detects_failure: !shared, wakes, class, remote_keys, families: None }
}

/// Returns whether UCX may use transports for that protocol whose packets have a class.
pub(crate) fn may_have_classes(protocol: &str) -> bool {
    may_have_adapters(protocol)
}

/// Returns whether UCX may use InfiniBand or RoCE for that protocol.
fn may_have_adapters(protocol: &str) -> bool {
    protocol != "tcp" && !SHARED.contains(&protocol)
}

/// Returns whether UCX can connect over that protocol by nothing but RDMA CM: the other connection
/// manager, over TCP, needs a device that is `lo` or `eth0`, which the protocol leaves out.
pub(crate) fn needs_rdma_cm(protocol: &str) -> bool {
    protocol != "all" && may_have_adapters(protocol)
}

/// Why a peer cannot be reached of which UCX says so.
pub(crate) fn unreachable(protocol: &str, text: String) -> String {
    match needs_rdma_cm(protocol) {
        true => format!(
            "{text}; over this protocol UCX connects by RDMA CM: the host must be the address of \
             an InfiniBand or RoCE interface, and UCX's module uct_rdmacm must be installed; \
             UCX_LOG_LEVEL=diag says more"
        ),
        false => text,
    }
}

/// Returns the reason why nobody can connect to a listener at `bound`, if that is so.
pub(crate) fn listens_in_vain(protocol: &str, bound: SocketAddr) -> Option<String> {
    (needs_rdma_cm(protocol) && bound.ip().is_loopback()).then(|| {
        format!(
            "nobody can connect with {}: over this protocol UCX connects by RDMA CM, which takes \
             the address of an InfiniBand or RoCE interface",
            uri_of(protocol, bound)
        )
    })
}

/// Returns the address at which an endpoint of that URI listens. May block on name resolution.
pub(crate) fn listen_address(uri: &Uri<'_>, wanted: &Wanted) -> Result<SocketAddr, Error> {
    host_port::listen_address((CLASS, uri.text, host_and_port(uri)), wanted)
}

/// Returns the text behind the device.
pub(crate) fn host_and_port<'a>(uri: &Uri<'a>) -> &'a str {
    uri.rest.rsplit_once('/').map_or(uri.rest, |(_, rest)| rest)
}

/// Returns the peer that a URI names, for an endpoint of `protocol`, and the addresses to connect
/// to. May block on name resolution.
pub(crate) fn peer(uri: &Uri<'_>, protocol: &str) -> Result<(PeerKey, Vec<SocketAddr>), Error> {
    let head = head(protocol);
    if uri.class != Some(CLASS) || uri.protocol != protocol {
        return Err(bad(uri, format!("this endpoint reaches `{head}://host:port`")));
    }
    host_port::peer_addresses(uri.text, &head, uri.rest)
}

/// The address in the text of a listening endpoint.
pub(crate) fn said(text: &str) -> Option<SocketAddr> {
    text.split_once("://")?.1.parse().ok()
}

/// The address that a peer at `client` announced, if it is written in numbers (so that nothing has
/// to be resolved) and the peer's own: at the host that it called from, or on this host as well.
pub(crate) fn announced(
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

#[cfg(test)]
mod tests {
    use super::*;
    use na_core::TrafficClass;

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
            let found = listen_address(&parse(text), &Wanted::default()).unwrap();
            assert_eq!(found.to_string(), address, "{text}");
        }
        let of = |text| settings(&parse(text), &OpenOptions::default());
        assert_eq!(of("ucx+rc://mlx5_0:1/h:7").device.unwrap(), "mlx5_0:1");
        assert_eq!(of("ucx+rc://h:7").tls, "rc");
        assert!(of("ucx+rc://h:7").detects_failure);
        assert!(!of("ucx+sm://").detects_failure);
    }

    #[test]
    fn only_what_may_be_infiniband_gets_a_class() {
        let traffic_class = TrafficClass::BulkData;
        let mut options = OpenOptions::default();
        options.traffic_class = traffic_class;
        for (text, class) in [
            ("ucx+rc://h:7", Some(40)),
            ("ucx+all://h:7", Some(40)),
            ("ucx+tcp://h:7", None),
            ("ucx+posix://", None),
        ] {
            assert_eq!(settings(&parse(text), &options).class, class, "{text}");
            assert_eq!(settings(&parse(text), &OpenOptions::default()).class, None, "{text}");
        }
    }

    #[test]
    fn who_needs_an_adapter_to_connect_is_told() {
        let said = || "Destination is unreachable".to_owned();
        for (text, tells, warns) in [
            ("ucx+rc://127.0.0.1", true, true),
            ("ucx+dc://[::1]:7", true, true),
            ("ucx+ud://10.0.0.1:7", true, false),
            ("ucx+ib://", true, true),
            ("ucx+all://127.0.0.1", false, false),
            ("ucx+tcp://127.0.0.1", false, false),
            ("ucx+sm://", false, false),
        ] {
            let uri = parse(text);
            let told = unreachable(uri.protocol, said());
            assert!(told.starts_with(&said()), "{told}");
            assert_eq!(told.contains("uct_rdmacm"), tells, "{text}: {told}");
            let bound = listen_address(&uri, &Wanted::default()).unwrap();
            let warning = listens_in_vain(uri.protocol, bound);
            let names = |warning: &String| warning.contains(&uri_of(uri.protocol, bound));
            assert_eq!(warning.as_ref().is_some_and(names), warns, "{text}: {warning:?}");
            assert_eq!(warning.is_some(), warns, "{text}");
        }
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
            let error = peer(&parse(text), "tcp").unwrap_err().to_string();
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
