//! Requirements on an IP network or a fabric: which of the machine's addresses an endpoint takes,
//! and which class its traffic is of.

use std::fmt;
use std::net::IpAddr;

/// The class of an endpoint's traffic, for networks that treat classes apart.
///
/// | class | tcp: DSCP (name, number) | source |
/// |---|---|---|
/// | `Unspec` | what the system does, which is 0 | |
/// | `BestEffort` | DF, 0 | RFC 4594, standard |
/// | `LowLatency` | AF21, 18 | RFC 4594, low-latency data |
/// | `BulkData` | AF11, 10 | RFC 4594, high-throughput data |
/// | `DedicatedAccess` | EF, 46 | RFC 3246: bandwidth that is assured, as of a line of one's own |
/// | `Scavenger` | LE, 1 | RFC 8622 |
/// | `NetworkCtrl` | CS6, 48 | RFC 4594, network control |
///
/// The effect is up to those who run the network; many networks ignore the class, or erase it at
/// their border. See `docs/transports.md` for what each transport does with it.
///
/// ```
/// # use na_core as na;
/// use na::{OpenOptions, TrafficClass};
///
/// let mut options = OpenOptions::listening(true);
/// options.traffic_class = TrafficClass::LowLatency;
/// assert_eq!(options.traffic_class.dscp(), Some(18), "AF21");
/// ```
///
/// Counterpart: `enum na_traffic_class`; the classes are those of libfabric (`FI_TC_…`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum TrafficClass {
    /// The transport chooses. The default.
    #[default]
    Unspec,
    /// Ordinary traffic.
    BestEffort,
    /// Short and urgent.
    LowLatency,
    /// Long transfers.
    BulkData,
    /// Bandwidth of its own.
    DedicatedAccess,
    /// Traffic that takes only the bandwidth which others leave over.
    Scavenger,
    /// Control of the network itself.
    NetworkCtrl,
}

impl TrafficClass {
    /// The differentiated services code point (RFC 2474), 6 bits; `None`: not set.
    pub fn dscp(self) -> Option<u8> {
        match self {
            Self::Unspec => None,
            Self::BestEffort => Some(0),
            Self::LowLatency => Some(18),
            Self::BulkData => Some(10),
            Self::DedicatedAccess => Some(46),
            Self::Scavenger => Some(1),
            Self::NetworkCtrl => Some(48),
        }
    }

    /// The byte of an IP header, or InfiniBand's traffic class, with that code point.
    #[doc(hidden)]
    pub fn byte(self) -> Option<u8> {
        self.dscp().map(|dscp| dscp << 2)
    }
}

/// Form of an endpoint's own address. Counterpart: `enum na_addr_format`.
///
/// ```
/// # use na_core as na;
/// use na::{AddrFormat, OpenOptions};
///
/// let mut options = OpenOptions::listening(true);
/// assert_eq!(options.addr_format, AddrFormat::Unspec);
/// options.addr_format = AddrFormat::Ipv6;
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum AddrFormat {
    /// The transport chooses: IPv4, unless an IPv6 address or subnet is asked for. The default.
    #[default]
    Unspec,
    /// IPv4.
    Ipv4,
    /// IPv6.
    Ipv6,
    /// The fabric's own; where that is IP, as `Unspec`.
    Native,
}

impl AddrFormat {
    /// Returns whether an endpoint with an address of that form may have `ip`.
    #[doc(hidden)]
    pub fn allows(self, ip: IpAddr) -> bool {
        match self {
            Self::Unspec | Self::Native => true,
            Self::Ipv4 => ip.is_ipv4(),
            Self::Ipv6 => ip.is_ipv6(),
        }
    }

    /// For messages to people: the family, if one is asked for.
    #[doc(hidden)]
    pub fn family(self) -> &'static str {
        match self {
            Self::Unspec | Self::Native => "IP",
            Self::Ipv4 => "IPv4",
            Self::Ipv6 => "IPv6",
        }
    }
}

/// IP addresses that begin with the same bits.
///
/// ```
/// # use na_core as na;
/// use na::{OpenOptions, Subnet};
///
/// let subnet = Subnet::new("10.1.2.3".parse()?, 8).ok_or("no such subnet")?;
/// assert_eq!(subnet.to_string(), "10.0.0.0/8");
/// assert!(subnet.contains("10.200.0.1".parse()?) && !subnet.contains("11.0.0.1".parse()?));
///
/// let mut options = OpenOptions::listening(true);
/// options.ip_subnet = Some(subnet);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Subnet {
    first: IpAddr,
    bits: u8,
}

impl Subnet {
    /// The subnet of `ip`, whose first `bits` bits are the subnet's. `None` unless there are 1 to
    /// 32 of these for IPv4, or 1 to 128 for IPv6.
    pub fn new(ip: IpAddr, bits: u8) -> Option<Self> {
        let all = if ip.is_ipv4() { 32 } else { 128 };
        let first = match ip {
            _ if !(1..=all).contains(&bits) => return None,
            IpAddr::V4(v4) => IpAddr::V4((v4.to_bits() & (u32::MAX << (all - bits))).into()),
            IpAddr::V6(v6) => IpAddr::V6((v6.to_bits() & (u128::MAX << (all - bits))).into()),
        };
        Some(Self { first, bits })
    }

    /// The first address, which tells the family.
    pub fn first(self) -> IpAddr {
        self.first
    }

    /// Returns whether `ip` is one of its addresses.
    pub fn contains(self, ip: IpAddr) -> bool {
        Self::new(ip, self.bits) == Some(self)
    }
}

impl fmt::Display for Subnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first, self.bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_subnet_has_the_addresses_that_begin_like_it() {
        for (net, bits, inside, outside) in [
            ("10.1.2.3", 8, "10.255.0.1", "11.0.0.1"),
            ("10.1.2.3", 32, "10.1.2.3", "10.1.2.2"),
            ("192.168.4.0", 22, "192.168.7.255", "192.168.8.0"),
            ("128.0.0.0", 1, "255.0.0.1", "127.0.0.1"),
            ("::1", 128, "::1", "::2"),
            ("fd00::", 8, "fdff::1", "fe80::1"),
            ("10.0.0.0", 8, "10.0.0.1", "::ffff:10.0.0.1"),
            ("::", 1, "7fff::", "0.0.0.0"),
        ] {
            let subnet = Subnet::new(ip(net), bits).unwrap();
            assert!(subnet.contains(ip(inside)), "{subnet} {inside}");
            assert!(!subnet.contains(ip(outside)), "{subnet} {outside}");
        }
        assert_eq!(Subnet::new(ip("10.1.2.3"), 8).unwrap().to_string(), "10.0.0.0/8");
        for (net, bits) in [("10.0.0.0", 0), ("10.0.0.0", 33), ("::", 0), ("::", 129)] {
            assert_eq!(Subnet::new(ip(net), bits), None, "{net}/{bits}");
        }
    }

    #[test]
    fn classes_have_the_code_points_of_the_standards() {
        use TrafficClass::*;
        let all = [BestEffort, LowLatency, BulkData, DedicatedAccess, Scavenger, NetworkCtrl];
        assert_eq!(all.map(|class| class.byte().unwrap()), [0, 72, 40, 184, 4, 192]);
        assert_eq!(Unspec.byte(), None);
    }
}
