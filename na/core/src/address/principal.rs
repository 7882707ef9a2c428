//! The user, host or name behind a peer, as far as it is proven: the key of every bound that a
//! crowd of connections must not multiply, and of every rule about who may call.
//!
//! A peer can open as many connections as it likes and announce any address in each. It cannot
//! choose the user that the kernel reports for a local socket, the host that a TCP connection comes
//! from, or the name in a certificate. Bounds are counted by these.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use prim::sync::{Mutex, lock};

/// The user, host or name behind a peer, as far as it is proven.
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
    /// A peer that has proven that it knows the secret of our cluster
    /// ([`TcpSecurity::ClusterSecret`](crate::TcpSecurity), or by messages over transports that do
    /// not tell who a peer is), and its host, as in `Host`; over a fabric whose addresses name none
    /// it is `0.0.0.0`.
    Member(IpAddr),
    /// The name in the certificate of a peer ([`TcpSecurity::MutualTls`](crate::TcpSecurity)).
    Name(PeerName),
    /// Nothing is known that the peer could not have chosen (ofi; sim, unless the
    /// test says more), or the peer is unknown.
    Unknown,
}

/// A name that a peer has proven, as in its certificate: a URI such as `spiffe://…` if there is
/// one, else the first DNS name, else `key:` and the SHA-256 of its public key.
///
/// A process keeps each name that it has met until it ends. Who issues certificates says which
/// names there are.
///
/// ```
/// # use na_core as na;
/// use na::PeerName;
///
/// let name = PeerName::new("node7.storage.example");
/// assert_eq!(name, PeerName::new("node7.storage.example"));
/// assert_eq!(name.as_str(), "node7.storage.example");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerName {
    number: u32,
    text: &'static str,
}

/// All names that this process has met, by text.
static NAMES: Mutex<Option<HashMap<&'static str, u32>>> = Mutex::new(None);

impl PeerName {
    /// The name with that text.
    pub fn new(text: &str) -> Self {
        let mut names = lock(&NAMES);
        let names = names.get_or_insert_default();
        if let Some((text, number)) = names.get_key_value(text) {
            return Self { number: *number, text };
        }
        let text: &'static str = Box::leak(text.into());
        // There is no memory for as many.
        let number = names.len() as u32;
        names.insert(text, number);
        Self { number, text }
    }

    /// The text.
    pub fn as_str(self) -> &'static str {
        self.text
    }

    /// A number that no other name has in this process: they are counted from 0.
    pub fn number(self) -> u32 {
        self.number
    }
}

impl Principal {
    /// The host behind the remote address of a connection.
    ///
    /// An IPv4 address that is mapped into IPv6 counts as the IPv4 address.
    pub fn of_host(address: IpAddr) -> Self {
        Self::Host(host_part(address))
    }

    /// A peer behind this remote address that knows our cluster's secret.
    pub fn member_at(address: IpAddr) -> Self {
        Self::Member(host_part(address))
    }
}

/// An address without the part that a host may choose.
fn host_part(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) if !v6.is_loopback() => {
            let [a, b, c, d, ..] = v6.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
        other => other,
    }
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let member = if let Self::Member(_) = self { "member " } else { "" };
        match self {
            Self::Member(host) if host.is_unspecified() => f.write_str("member"),
            Self::Host(IpAddr::V6(v6)) | Self::Member(IpAddr::V6(v6)) if !v6.is_loopback() => {
                write!(f, "{member}host {v6}/64")
            }
            Self::Host(address) | Self::Member(address) => write!(f, "{member}host {address}"),
            Self::Name(name) => write!(f, "name {}", name.text),
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
        let member = Principal::member_at("2001:db8::1".parse().unwrap());
        assert_eq!(member.to_string(), "member host 2001:db8::/64");
        assert_eq!(Principal::Name(PeerName::new("a.b")).to_string(), "name a.b");
    }

    #[test]
    fn a_name_has_one_number() {
        let [one, other] = ["names.one", "names.other"].map(PeerName::new);
        assert_ne!(one.number(), other.number());
        assert_eq!(one.number(), PeerName::new("names.one").number());
    }
}
