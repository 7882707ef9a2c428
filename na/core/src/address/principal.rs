//! The user or host behind a peer, as far as the kernel knows it: the key of every bound that a
//! crowd of connections must not multiply.
//!
//! A peer can open as many connections as it likes and announce any address in each. It cannot
//! choose the user that the kernel reports for a local socket, or the host that a TCP connection
//! comes from. Bounds are counted by these.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

/// The user or host behind a peer, as far as it is known.
///
/// Two peers with equal principals share one share of every bound that says "of a host or user".
///
/// ```
/// # use na_core as na;
/// use na::Principal;
///
/// let one = Principal::of_host("2001:db8:1:2::7".parse()?);
/// let other = Principal::of_host("2001:db8:1:2:ffff::1".parse()?);
/// assert_eq!(one, other, "a host has all addresses with these 64 bits");
/// assert_eq!(one.to_string(), "host 2001:db8:1:2::/64");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Principal {
    /// The host that a connection comes from: an IPv4 address, or the first 64 bits of an IPv6
    /// address (a host has as many addresses below those as it likes), the rest zero.
    Host(IpAddr),
    /// The user id of a process on this machine, as the kernel reports it.
    User(u32),
    /// Nothing is known that the peer could not have chosen (ofi, sim), or the peer is unknown.
    Unknown,
}

impl Principal {
    /// The host behind the remote address of a connection.
    ///
    /// An IPv4 address that is mapped into IPv6 counts as the IPv4 address.
    pub fn of_host(address: IpAddr) -> Self {
        Self::Host(match address.to_canonical() {
            IpAddr::V6(v6) if !v6.is_loopback() => {
                let [a, b, c, d, ..] = v6.segments();
                IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
            }
            other => other,
        })
    }
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(IpAddr::V6(v6)) if !v6.is_loopback() => write!(f, "host {v6}/64"),
            Self::Host(address) => write!(f, "host {address}"),
            Self::User(uid) => write!(f, "user {uid}"),
            Self::Unknown => f.write_str("an unknown principal"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(text: &str) -> Principal {
        Principal::of_host(text.parse().unwrap())
    }

    #[test]
    fn addresses_that_one_host_may_choose_among_are_one_principal() {
        assert_eq!(host("::ffff:10.1.2.3"), host("10.1.2.3"));
        assert_ne!(host("10.1.2.3"), host("10.1.2.4"));
        assert_eq!(host("2001:db8:1:2::1"), host("2001:db8:1:2:ffff::9"));
        assert_ne!(host("2001:db8:1:2::1"), host("2001:db8:1:3::1"));
        assert_ne!(host("::1"), host("::2"), "the loopback address is no prefix");
    }

    #[test]
    fn principals_are_shown_in_the_words_of_a_log_line() {
        assert_eq!(host("10.1.2.3").to_string(), "host 10.1.2.3");
        assert_eq!(host("2001:db8::1").to_string(), "host 2001:db8::/64");
        assert_eq!(host("::1").to_string(), "host ::1");
        assert_eq!(Principal::User(1000).to_string(), "user 1000");
    }
}
