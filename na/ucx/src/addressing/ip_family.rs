//! The IP addresses between which UCX moves data, and the address family of an endpoint's data.
//!
//! UCX's transport over TCP has one address for each network interface: the first of the family
//! that stands first in `UCX_TCP_AF_PRIO`. It takes no link-local address of IPv6, and before 1.14
//! no loopback address of IPv6 (`ucs_netif_get_addr`, sock.c). UCX's connection manager takes any
//! connection. It then has the data go between the two interfaces that the connection leads
//! through, to the peer's address that the manager knows, without a look at the family
//! (`ucp_wireup_is_reachable`, wireup.c). Where that address is IPv6, and the interface's own
//! address is IPv4, UCX writes beyond the end of a structure (`uct_tcp_ep_set_dest_addr`, tcp_ep.c;
//! 1.21 as 1.13).
//!
//! So a context has one family, that of the address which its endpoint was opened with. A
//! connection for which the interface has no address of that family is refused by us, on whichever
//! side we are.

use std::net::{IpAddr, SocketAddr};

use super::address;
use na_core::hosts::interface;
use na_core::hosts::own_address;
use na_core::hosts::own_address::Wanted;
use na_core::{Error, Uri};

/// The first version that takes the loopback address of IPv6.
const LOOPBACK_V6: (u32, u32) = (1, 14);

/// The family of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IpFamily {
    is_v6: bool,
    has_loopback_v6: bool,
}

impl IpFamily {
    /// Returns the family of an endpoint of `protocol` which listens, or would, at `listen`; `None`
    /// for protocols over which no data goes by TCP. `version` is UCX's.
    pub(crate) fn of(protocol: &str, listen: SocketAddr, version: &str) -> Option<Self> {
        let mut numbers = version.split('.').map_while(|number| number.parse().ok());
        let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        let has_loopback_v6 = version >= LOOPBACK_V6;
        (!address::needs_rdma_cm(protocol))
            .then(|| Self { is_v6: listen.is_ipv6(), has_loopback_v6 })
    }

    /// Returns the value for `UCX_TCP_AF_PRIO`.
    pub(crate) fn priorities(self) -> &'static str {
        if self.is_v6 { "inet6,inet" } else { "inet,inet6" }
    }

    fn name(self) -> &'static str {
        if self.is_v6 { "IPv6" } else { "IPv4" }
    }

    /// Why UCX takes no such address for an interface, if it does not.
    fn objection(self, ip: IpAddr) -> Option<&'static str> {
        match ip {
            // Link-local ones of IPv4 are left out since 1.21: then UCX says so itself, or an
            // adapter carries the data.
            IpAddr::V4(_) => None,
            IpAddr::V6(v6) if interface::is_link_local(v6) => {
                Some("the link-local addresses of IPv6")
            }
            IpAddr::V6(v6) if v6.is_loopback() && !self.has_loopback_v6 => {
                Some("the loopback address of IPv6 (from 1.14 on it does)")
            }
            // IPv4 of a socket of both: the interface may have no address of IPv6.
            IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => Some("IPv4 in IPv6"),
            IpAddr::V6(_) => None,
        }
    }

    /// Returns whether data can go between this machine's `local` and the other end of a
    /// connection, of the same kind; else why not.
    fn check(self, local: IpAddr, all: &[(String, SocketAddr)]) -> Result<(), String> {
        if let Some(objection) = self.objection(local) {
            return Err(format!("UCX sends no data by {objection}; take another address"));
        }
        if local.is_ipv6() == self.is_v6 {
            return Ok(());
        }
        // The other family goes where the interface has none of ours.
        let name = all.iter().find(|(_, address)| address.ip() == local).map(|(name, _)| name);
        let is_ours = |address: &SocketAddr| {
            address.is_ipv6() == self.is_v6 && self.objection(address.ip()).is_none()
        };
        match name.map(|name| all.iter().any(|(other, at)| other == name && is_ours(at))) {
            Some(false) => Ok(()),
            _ => Err(format!(
                "this endpoint's data goes by {}, as the address that it was opened with says \
                 (or na_addr_format), and UCX has one address of each interface",
                self.name()
            )),
        }
    }

    /// Returns whether a connection from us to `peer` would carry data; else why not.
    pub(crate) fn check_peer(self, peer: SocketAddr) -> Result<(), String> {
        if let Some(objection) = self.objection(peer.ip()) {
            return Err(format!("UCX sends no data by {objection}; call {peer} otherwise"));
        }
        let local = own_address::towards(peer).map_err(|error| error.to_string())?;
        let all = interface::all_addresses(0).map_err(|error| error.to_string())?;
        self.check(local, &all)
    }

    /// Returns whether a connection from `client` to a listener of this family would carry data.
    pub(crate) fn takes(self, client: SocketAddr) -> bool {
        client.is_ipv6() == self.is_v6 && self.objection(client.ip()).is_none()
    }
}

/// Returns the address at which an endpoint of that URI listens. Instead of `[::]`, which takes
/// connections that carry no data, it is the address by which others call. May block on name
/// resolution.
///
/// # Errors
///
/// Those of [`address::listen_address`] and [`own_address::reachable`].
pub(crate) fn listen_address(uri: &Uri<'_>, wanted: &Wanted) -> Result<SocketAddr, Error> {
    let listen = address::listen_address(uri, wanted)?;
    let is_all = listen.is_ipv6() && listen.ip().is_unspecified();
    match is_all && !address::needs_rdma_cm(uri.protocol) {
        true => own_address::reachable("ucx", listen, wanted),
        false => Ok(listen),
    }
}

/// Checks that a listener at `listen`, which is no `[::]`, can be reached.
///
/// # Errors
///
/// [`Error::Unavailable`] if UCX sends no data from there.
pub(crate) fn check_listen(family: Option<IpFamily>, listen: SocketAddr) -> Result<(), Error> {
    let objection = family.and_then(|family| family.objection(listen.ip()));
    objection.map_or(Ok(()), |objection| {
        let reason = format!(
            "nobody could call `{listen}`: this UCX sends no data by {objection}; listen at \
             another address"
        );
        Err(Error::Unavailable { transport: "ucx", reason })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn family(listen: &str, version: &str) -> IpFamily {
        IpFamily::of("tcp", listen.parse().unwrap(), version).unwrap()
    }

    #[test]
    fn the_address_decides() {
        assert_eq!(family("10.0.0.1:7", "1.13.1").priorities(), "inet,inet6");
        assert_eq!(family("[fd00::1]:7", "1.13.1").priorities(), "inet6,inet");
        assert_eq!(IpFamily::of("rc", "10.0.0.1:7".parse().unwrap(), "1.13.1"), None);
        assert!(IpFamily::of("all", "10.0.0.1:7".parse().unwrap(), "1.13.1").is_some());
        assert!(IpFamily::of("sm", "10.0.0.1:7".parse().unwrap(), "1.13.1").is_some());
    }

    #[test]
    fn what_ucx_has_no_data_for_is_refused_from_either_side() {
        for (listen, version, address, taken) in [
            ("10.0.0.1:7", "1.13.1", "10.0.0.2:9", true),
            ("10.0.0.1:7", "1.13.1", "127.0.0.1:9", true),
            ("10.0.0.1:7", "1.13.1", "169.254.1.1:9", true),
            ("10.0.0.1:7", "1.13.1", "[fd00::2]:9", false),
            ("[fd00::1]:7", "1.13.1", "[fd00::2]:9", true),
            ("[fd00::1]:7", "1.13.1", "[fe80::2]:9", false),
            ("[fd00::1]:7", "1.13.1", "[::ffff:10.0.0.2]:9", false),
            ("[fd00::1]:7", "1.13.1", "10.0.0.2:9", false),
            ("[::1]:7", "1.13.1", "[::1]:9", false),
            ("[::1]:7", "1.14.0", "[::1]:9", true),
            ("[::1]:7", "1.20.1", "[::1]:9", true),
            ("[::1]:7", "2.0", "[::1]:9", true),
            ("[::1]:7", "odd", "[::1]:9", false),
        ] {
            let takes = family(listen, version).takes(address.parse().unwrap());
            assert_eq!(takes, taken, "{listen} of {version} from {address}");
        }
        let listens = |listen: &str, version| {
            check_listen(Some(family(listen, version)), listen.parse().unwrap())
        };
        let error = listens("[::1]:7", "1.13.1").unwrap_err().to_string();
        assert!(error.contains("[::1]:7") && error.contains("from 1.14 on"), "{error}");
        assert!(listens("[::1]:7", "1.15.0").is_ok());
        assert!(listens("[fe80::1]:7", "1.15.0").is_err());
        assert!(listens("127.0.0.1:7", "1.13.1").is_ok());
    }

    #[test]
    fn an_interface_has_one_address_of_the_first_family_that_it_has() {
        let all: Vec<(String, SocketAddr)> = [
            ("lo", "127.0.0.1:0"),
            ("eth0", "10.0.0.1:0"),
            ("eth1", "10.1.0.1:0"),
            ("eth0", "[fd00::1]:0"),
            ("lo", "[::1]:0"),
            ("eth1", "[fe80::1]:0"),
        ]
        .into_iter()
        .map(|(name, address)| (name.to_owned(), address.parse().unwrap()))
        .collect();
        for (listen, version, local, serves) in [
            ("0.0.0.0:0", "1.13.1", "10.0.0.1", true),
            ("0.0.0.0:0", "1.13.1", "fd00::1", false),
            ("[fd00::1]:0", "1.13.1", "fd00::1", true),
            ("[fd00::1]:0", "1.13.1", "10.0.0.1", false),
            // These have no address of IPv6 that it takes.
            ("[fd00::1]:0", "1.13.1", "10.1.0.1", true),
            ("[fd00::1]:0", "1.13.1", "127.0.0.1", true),
            ("[fd00::1]:0", "1.14.0", "127.0.0.1", false),
            ("[fd00::1]:0", "1.13.1", "::1", false),
            ("[fd00::1]:0", "1.14.0", "::1", true),
            ("[fd00::1]:0", "1.13.1", "fe80::1", false),
            // Nobody knows whose that is.
            ("[fd00::1]:0", "1.13.1", "10.9.0.1", false),
        ] {
            let said = family(listen, version).check(local.parse().unwrap(), &all);
            assert_eq!(said.is_ok(), serves, "{listen} of {version} from {local}: {said:?}");
        }
    }
}
