//! The choice among this machine's IP addresses for an endpoint, by
//! [`OpenOptions::addr_format`](crate::OpenOptions::addr_format) and
//! [`OpenOptions::ip_subnet`](crate::OpenOptions::ip_subnet).
//!
//! Source: `na_ip_parse_subnet`, `na_ip_pref_addr` and `na_ip_check_interface` in `na_ip.c`, and
//! `na_ofi_parse_hostname_info` in `na_ofi.c`: the subnet counts where no host is named. Beyond
//! that, IPv6 subnets are taken as well, and of a host, an interface or a device with several
//! addresses one in the subnet goes first.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use crate::hosts::interface;
use crate::{AddrFormat, Error, OpenOptions, Subnet};

const LOOPBACK_V4: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const LOOPBACK_V6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);

/// Addresses reserved for documentation, to find the route to the outside: connecting a UDP socket
/// chooses a route and sends nothing.
const OUTSIDE_V4: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const OUTSIDE_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1));

/// The requirements on an address of ours.
///
/// ```
/// use na_core::hosts::own_address::Wanted;
/// use na_core::{AddrFormat, Error, OpenOptions, Subnet};
///
/// let mut options = OpenOptions::listening(true);
/// options.ip_subnet = Subnet::new("10.0.0.0".parse()?, 8);
/// assert!(Wanted::of(&options)?.prefers("10.1.2.3".parse()?));
///
/// options.addr_format = AddrFormat::Ipv6;
/// let error = Wanted::of(&options).unwrap_err();
/// assert!(matches!(error, Error::BadOption { option: "ip_subnet", .. }));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct Wanted {
    format: AddrFormat,
    subnet: Option<Subnet>,
}

impl Wanted {
    /// # Errors
    ///
    /// [`Error::BadOption`] if no address could have both.
    pub fn of(options: &OpenOptions) -> Result<Self, Error> {
        let (format, subnet) = (options.addr_format, options.ip_subnet);
        match subnet.filter(|subnet| !format.allows(subnet.first())) {
            None => Ok(Self { format, subnet }),
            Some(subnet) => {
                let family = format.family();
                let reason = format!("{subnet} has no {family} address, as addr_format wants it");
                Err(Error::BadOption { option: "ip_subnet", reason })
            }
        }
    }

    /// The form that is asked for.
    pub fn format(&self) -> AddrFormat {
        self.format
    }

    /// Returns whether a subnet is asked for that has this address.
    pub fn prefers(&self, ip: IpAddr) -> bool {
        self.subnet.is_some_and(|subnet| subnet.contains(ip))
    }

    /// The address of this machine in the subnet; `None` if no subnet is asked for.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] if no interface that is up has one, with what there is.
    pub fn in_subnet(
        &self,
        transport: &'static str,
        port: u16,
    ) -> Result<Option<SocketAddr>, Error> {
        let Some(subnet) = self.subnet else { return Ok(None) };
        let all = interface::all_addresses(port)
            .map_err(|error| Error::io("cannot list the network interfaces", error))?;
        let found = all.iter().map(|(_, address)| *address);
        found.clone().find(|address| subnet.contains(address.ip())).map(Some).ok_or_else(|| {
            let there: Vec<_> =
                all.iter().map(|(name, address)| format!("{name} {}", address.ip())).collect();
            let reason = format!(
                "no interface of this machine that is up has an address in ip_subnet {subnet}; \
                 there is {}",
                if there.is_empty() { "none".to_owned() } else { there.join(", ") }
            );
            Error::Unavailable { transport, reason }
        })
    }

    /// Returns whether an address in the subnet can be reached at `any`, if that means all
    /// interfaces.
    ///
    /// # Errors
    ///
    /// [`Error::BadOption`] if not: at `0.0.0.0` nothing of IPv6 is.
    pub(crate) fn check_all_interfaces(&self, any: IpAddr) -> Result<(), Error> {
        match self.subnet {
            Some(subnet) if any == Ipv4Addr::UNSPECIFIED && subnet.first().is_ipv6() => {
                let reason =
                    format!("{subnet} has no IPv4 address, and 0.0.0.0 no other; use [::]");
                Err(Error::BadOption { option: "ip_subnet", reason })
            }
            _ => Ok(()),
        }
    }

    /// Loopback, for a URI that names no host and options that name no subnet: of IPv4, unless this
    /// machine has it of IPv6 alone.
    pub fn loopback(&self, port: u16) -> SocketAddr {
        let is_v6 = match self.format {
            AddrFormat::Ipv6 => true,
            AddrFormat::Ipv4 => false,
            AddrFormat::Unspec | AddrFormat::Native => {
                !interface::has(LOOPBACK_V4) && interface::has(LOOPBACK_V6)
            }
        };
        SocketAddr::new(if is_v6 { LOOPBACK_V6 } else { LOOPBACK_V4 }, port)
    }

    /// Which of the addresses of `host` it is: of the right family, in the subnet if any is, else
    /// the first.
    ///
    /// # Errors
    ///
    /// [`Error::BadOption`] if none is of the family.
    pub fn among(
        &self,
        uri: &str,
        host: &str,
        addresses: &[SocketAddr],
    ) -> Result<SocketAddr, Error> {
        let fits = |address: &&SocketAddr| self.format.allows(address.ip());
        let in_subnet =
            |address: &&SocketAddr| self.subnet.is_none_or(|net| net.contains(address.ip()));
        let found = addresses.iter().filter(fits).find(in_subnet);
        found.or_else(|| addresses.iter().find(fits)).copied().ok_or_else(|| {
            let family = self.format.family();
            let reason = format!("`{host}` of `{uri}` has no {family} address, which it asks for");
            Error::BadOption { option: "addr_format", reason }
        })
    }
}

/// The address under which others reach a socket that is bound to `bound`: for all interfaces, the
/// one in the subnet that is asked for, else the one of `outside`, else loopback, which a warning
/// says. For `[::]`, which takes connections of both families, it may be of IPv4.
///
/// # Errors
///
/// As [`Wanted::in_subnet`]; [`Error::BadOption`] if `0.0.0.0` shall have an address of an IPv6
/// subnet.
pub fn reachable(
    transport: &'static str,
    bound: SocketAddr,
    wanted: &Wanted,
) -> Result<SocketAddr, Error> {
    if !bound.ip().is_unspecified() {
        return Ok(bound);
    }
    wanted.check_all_interfaces(bound.ip())?;
    let in_subnet = wanted.in_subnet(transport, bound.port())?;
    if let Some(address) = in_subnet {
        return Ok(address);
    }
    let takes = |ip: &IpAddr| wanted.format.allows(*ip) && (ip.is_ipv4() || bound.ip().is_ipv6());
    let all = || interface::all_addresses(0).unwrap_or_default();
    let ip = outside(takes, routed, all).unwrap_or_else(|| {
        let loopback = [LOOPBACK_V6, LOOPBACK_V4].into_iter().filter(takes);
        let ip = loopback.clone().find(|ip| interface::has(*ip)).or(loopback.min());
        let ip = ip.unwrap_or(LOOPBACK_V4);
        tracing::warn!(
            "{transport}: listens on all interfaces ({bound}), but tells others to call {ip}, \
             which only this machine reaches: no interface that is up has another address here. \
             Start when the network is up, or listen at the address that others are to call"
        );
        ip
    });
    Ok(SocketAddr::new(ip, bound.port()))
}

/// The address of this machine by which other machines most likely reach it, among those that
/// `takes` allows: the one that the system calls the outside from, which `routed` finds for an
/// address there, else one of an interface, which are `all`.
///
/// IPv6 goes first if it leads outside or is global, else IPv4: many hosts have addresses of IPv6
/// on bridges that lead nowhere.
fn outside(
    takes: impl Fn(&IpAddr) -> bool,
    routed: impl Fn(IpAddr) -> Option<IpAddr>,
    all: impl FnOnce() -> Vec<(String, SocketAddr)>,
) -> Option<IpAddr> {
    let is_ours = |ip: &IpAddr| {
        let says_nothing = ip.is_loopback()
            || ip.is_unspecified()
            || matches!(ip, IpAddr::V6(v6) if interface::is_link_local(*v6));
        takes(ip) && !says_nothing
    };
    let by_route = |outside: IpAddr| routed(outside).filter(is_ours);
    if let Some(v6) = by_route(OUTSIDE_V6) {
        return Some(v6);
    }
    let all: Vec<IpAddr> = all().iter().map(|(_, at)| at.ip()).filter(is_ours).collect();
    let is_global = |ip: &&IpAddr| matches!(ip, IpAddr::V6(v6) if v6.segments()[0] >> 13 == 1);
    let global_v6 = all.iter().find(is_global).copied();
    global_v6.or_else(|| by_route(OUTSIDE_V4)).or_else(|| all.first().copied())
}

/// The address from which the system would call `peer`, if it would.
fn routed(peer: IpAddr) -> Option<IpAddr> {
    towards((peer, 9).into()).ok()
}

/// The address of this machine's from which the system would call `peer`. Sends nothing.
///
/// # Errors
///
/// The error of a socket that cannot be connected.
pub fn towards(peer: SocketAddr) -> std::io::Result<IpAddr> {
    let any: IpAddr = match peer {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(peer)?;
    Ok(socket.local_addr()?.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(format: AddrFormat, subnet: Option<(&str, u8)>) -> Wanted {
        let subnet = subnet.map(|(net, bits)| Subnet::new(net.parse().unwrap(), bits).unwrap());
        let mut options = OpenOptions { addr_format: format, ..OpenOptions::default() };
        options.ip_subnet = subnet;
        Wanted::of(&options).unwrap()
    }

    fn addresses(texts: &[&str]) -> Vec<SocketAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn a_family_that_the_subnet_has_not_is_told() {
        let net = Subnet::new("10.0.0.0".parse().unwrap(), 8);
        let mut options = OpenOptions { ip_subnet: net, ..OpenOptions::default() };
        options.addr_format = AddrFormat::Ipv6;
        let error = Wanted::of(&options).unwrap_err().to_string();
        assert!(error.contains("10.0.0.0/8") && error.contains("no IPv6 address"), "{error}");
        options.addr_format = AddrFormat::Native;
        assert!(Wanted::of(&options).is_ok());
    }

    #[test]
    fn of_several_addresses_the_family_decides_and_then_the_subnet() {
        let all = addresses(&["10.0.0.1:7", "192.168.0.1:7", "[fd00::1]:7", "[fe80::1%3]:7"]);
        let chosen = |format, subnet| wanted(format, subnet).among("u", "eth0", &all).unwrap();
        assert_eq!(chosen(AddrFormat::Unspec, None), all[0]);
        assert_eq!(chosen(AddrFormat::Ipv6, None), all[2]);
        assert_eq!(chosen(AddrFormat::Unspec, Some(("192.168.0.0", 16))), all[1]);
        assert_eq!(chosen(AddrFormat::Ipv4, Some(("192.168.0.0", 16))), all[1]);
        assert_eq!(chosen(AddrFormat::Native, Some(("fe80::", 10))), all[3]);
        // Who names a host means it.
        assert_eq!(chosen(AddrFormat::Unspec, Some(("172.16.0.0", 12))), all[0]);
        let only_v4 = wanted(AddrFormat::Ipv6, None).among("na+tcp://eth0", "eth0", &all[..2]);
        let error = only_v4.unwrap_err().to_string();
        let said = "addr_format: `eth0` of `na+tcp://eth0` has no IPv6 address";
        assert!(error.contains(said), "{error}");
    }

    #[test]
    fn an_interface_is_found_by_its_subnet() {
        let up = interface::all_addresses(0).unwrap();
        for (name, address) in &up {
            let bits = if address.is_ipv4() { 32 } else { 128 };
            let net = Subnet::new(address.ip(), bits);
            let wanted = Wanted { format: AddrFormat::Unspec, subnet: net };
            let found = wanted.in_subnet("tcp", 9).unwrap().unwrap();
            assert_eq!((found.ip(), found.port()), (address.ip(), 9), "{name}");
        }
        let nowhere = wanted(AddrFormat::Unspec, Some(("240.1.2.0", 24)));
        let error = nowhere.in_subnet("tcp", 0).unwrap_err().to_string();
        assert!(error.contains("240.1.2.0/24"), "{error}");
        assert!(up.iter().all(|(name, _)| error.contains(name.as_str())), "{error}");
        assert_eq!(Wanted::default().in_subnet("tcp", 0).unwrap(), None);
    }

    #[test]
    fn all_interfaces_are_called_by_their_address_in_the_subnet_of_either_family() {
        let reached = |bound: &str, net: (&str, u8)| {
            reachable("tcp", bound.parse().unwrap(), &wanted(AddrFormat::Unspec, Some(net)))
        };
        let loopback: SocketAddr = "127.0.0.1:7".parse().unwrap();
        assert_eq!(reached("0.0.0.0:7", ("127.0.0.0", 8)).unwrap(), loopback);
        assert_eq!(reached("[::]:7", ("127.0.0.0", 8)).unwrap(), loopback);
        let error = reached("0.0.0.0:7", ("fd00::", 8)).unwrap_err();
        assert!(matches!(error, Error::BadOption { option: "ip_subnet", .. }), "{error}");
        assert!(error.to_string().contains("fd00::/8 has no IPv4 address"), "{error}");
    }

    #[test]
    fn what_others_reach_is_told_to_them() {
        let chosen = |takes: &str, routes: &[&str], all: &[&str]| {
            let routes: Vec<IpAddr> = routes.iter().map(|ip| ip.parse().unwrap()).collect();
            let found = outside(
                |ip| takes == "both" || ip.is_ipv4() == (takes == "v4"),
                |to| routes.iter().find(|ip| ip.is_ipv4() == to.is_ipv4()).copied(),
                || addresses(all).into_iter().map(|at| ("eth0".into(), at)).collect(),
            );
            found.map(|ip| ip.to_string()).unwrap_or_default()
        };
        let (v4, ula, global) = ("10.0.0.1:0", "[fd00::1]:0", "[2a00::1]:0");
        let lo = ["127.0.0.1:0", "[::1]:0", "[fe80::1%3]:0"];
        assert_eq!(chosen("both", &["10.0.0.2", "fd00::2"], &[v4, ula]), "fd00::2");
        assert_eq!(chosen("both", &["10.0.0.2"], &[v4, ula, global]), "2a00::1");
        assert_eq!(chosen("both", &["10.0.0.2"], &[v4, ula]), "10.0.0.2", "a bridge, say");
        assert_eq!(chosen("both", &["10.0.0.2", "fe80::2"], &[v4]), "10.0.0.2", "of which link?");
        assert_eq!(chosen("both", &[], &[lo[0], v4, ula]), "10.0.0.1", "no way outside");
        assert_eq!(chosen("both", &[], &[lo[0], ula]), "fd00::1");
        assert_eq!(chosen("v4", &["fd00::2"], &[lo[0], v4, global]), "10.0.0.1");
        assert_eq!(chosen("v6", &["10.0.0.2"], &[lo[0], v4, ula]), "fd00::1");
        assert_eq!(chosen("both", &["127.0.0.1", "::1"], &lo), "", "nothing but loopback");
    }

    #[test]
    fn all_interfaces_become_an_address_to_call() {
        for text in ["0.0.0.0:7", "[::]:7", "127.0.0.1:7"] {
            let bound = text.parse().unwrap();
            let address = reachable("tcp", bound, &Wanted::default()).unwrap();
            assert!(!address.ip().is_unspecified());
            assert_eq!(address.port(), 7);
        }
    }
}
