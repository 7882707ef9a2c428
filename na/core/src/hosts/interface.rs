//! Network interfaces by name.

use std::ffi::{CStr, CString};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};

/// The number of the interface `name`; `None` when there is no such interface.
pub fn index(name: &str) -> Option<u32> {
    let name = CString::new(name).ok()?;
    // SAFETY: `name` is a string with an end, and lives here.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    (index != 0).then_some(index)
}

/// The addresses of the interface `name` with `port`: IPv4 first, link-local IPv6 last.
///
/// # Errors
///
/// Those of `getifaddrs`.
pub fn addresses(name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    let list = List::new()?;
    let of_name = list.entries().filter(|entry| entry.name.to_bytes() == name.as_bytes());
    let mut found: Vec<_> = of_name.filter_map(|entry| entry.at(port)).collect();
    found.sort_by_key(rank);
    Ok(found)
}

/// The addresses of all interfaces that are up, with `port` and the interface's name, in the same
/// order.
///
/// # Errors
///
/// Those of `getifaddrs`.
pub fn all_addresses(port: u16) -> io::Result<Vec<(String, SocketAddr)>> {
    let list = List::new()?;
    let named =
        |entry: InterfaceAddr<'_>| Some((entry.name.to_string_lossy().into(), entry.at(port)?));
    let mut found: Vec<_> = list.entries().filter(|entry| entry.is_up).filter_map(named).collect();
    found.sort_by_key(|(_, address)| rank(address));
    Ok(found)
}

/// Returns whether this machine has the address `ip`.
pub fn has(ip: IpAddr) -> bool {
    UdpSocket::bind((ip, 0)).is_ok()
}

fn rank(address: &SocketAddr) -> u8 {
    match address {
        SocketAddr::V4(_) => 0,
        SocketAddr::V6(v6) if !is_link_local(*v6.ip()) => 1,
        SocketAddr::V6(_) => 2,
    }
}

/// Returns whether an address says nothing without the interface that leads to it.
pub fn is_link_local(ip: Ipv6Addr) -> bool {
    ip.segments()[0] & 0xFFC0 == 0xFE80
}

/// The system's list of its interfaces.
struct List {
    first: *mut libc::ifaddrs,
}

struct InterfaceAddr<'a> {
    name: &'a CStr,
    is_up: bool,
    address: Option<SocketAddr>,
}

impl InterfaceAddr<'_> {
    fn at(&self, port: u16) -> Option<SocketAddr> {
        let mut address = self.address?;
        address.set_port(port);
        Some(address)
    }
}

impl List {
    fn new() -> io::Result<Self> {
        let mut first = std::ptr::null_mut();
        // SAFETY: `first` is a valid place for the result.
        match unsafe { libc::getifaddrs(&mut first) } {
            0 => Ok(Self { first }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn entries(&self) -> impl Iterator<Item = InterfaceAddr<'_>> {
        let mut next = self.first;
        std::iter::from_fn(move || {
            // SAFETY: `next` is null, or an entry of the list, which `self` keeps.
            let entry = unsafe { next.as_ref() }?;
            next = entry.ifa_next;
            // SAFETY: the name of an entry is a string with an end, and lives as long as the list.
            let name = unsafe { CStr::from_ptr(entry.ifa_name) };
            let is_up = entry.ifa_flags & libc::IFF_UP as u32 != 0;
            Some(InterfaceAddr { name, is_up, address: address(entry) })
        })
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: the list came from `getifaddrs`, and nothing borrows from it any more.
        unsafe { libc::freeifaddrs(self.first) };
    }
}

/// The IP address of an entry, if it has one.
fn address(entry: &libc::ifaddrs) -> Option<SocketAddr> {
    // SAFETY: the pointer is null, or to an address of at least this size, which lives as long as
    // the entry.
    let family = unsafe { entry.ifa_addr.as_ref() }?.sa_family;
    match i32::from(family) {
        libc::AF_INET => {
            // SAFETY: an address of this family has this type; it is aligned as the C library's
            // own union of them.
            let v4 = unsafe { &*entry.ifa_addr.cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
            Some(SocketAddr::new(IpAddr::V4(ip), 0))
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let v6 = unsafe { &*entry.ifa_addr.cast::<libc::sockaddr_in6>() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            Some(SocketAddr::V6(SocketAddrV6::new(ip, 0, 0, v6.sin6_scope_id)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_has_its_number_and_address() {
        assert!(index("lo").is_some());
        let found = addresses("lo", 7).unwrap();
        // In a fresh network namespace it may be without addresses.
        assert!(found.iter().all(|address| address.ip().is_loopback() && address.port() == 7));
        let all = all_addresses(7).unwrap();
        assert!(all.iter().all(|(name, address)| !name.is_empty() && address.port() == 7));
        let of_lo = all.iter().filter(|(name, _)| name == "lo");
        assert!(of_lo.clone().all(|(_, address)| found.contains(address)), "{all:?}");
    }

    #[test]
    fn what_is_no_interface_is_told() {
        for name in ["no-such-interface", "", "a\0b", &"x".repeat(300)] {
            assert_eq!(index(name), None);
            assert_eq!(addresses(name, 7).unwrap(), []);
        }
    }
}
