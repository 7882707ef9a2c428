//! Socket addresses as C has them.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use ucx_sys::ucs_sock_addr_t;

/// An address to hand over.
pub(super) enum RawAddress {
    V4(libc::sockaddr_in),
    V6(libc::sockaddr_in6),
}

impl RawAddress {
    pub(super) fn new(address: SocketAddr) -> Self {
        match address {
            SocketAddr::V4(v4) => Self::V4(libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from(*v4.ip()).to_be() },
                sin_zero: [0; 8],
            }),
            SocketAddr::V6(v6) => Self::V6(libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: v6.scope_id(),
            }),
        }
    }

    /// Returns the address in the form that UCX takes; it refers to `self`.
    pub(super) fn as_ucs(&self) -> ucs_sock_addr_t {
        let (addr, len) = match self {
            Self::V4(v4) => ((&raw const *v4).cast(), size_of_val(v4)),
            Self::V6(v6) => ((&raw const *v6).cast(), size_of_val(v6)),
        };
        ucs_sock_addr_t { addr, addrlen: len as libc::socklen_t }
    }

    /// Reads an IP address.
    pub(super) fn read(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
        let place = &raw const *storage;
        match i32::from(storage.ss_family) {
            libc::AF_INET => {
                // SAFETY: a storage has room and alignment for every kind of address, and its
                // family says that it is this one.
                let v4 = unsafe { place.cast::<libc::sockaddr_in>().read() };
                let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
                Some(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into())
            }
            libc::AF_INET6 => {
                // SAFETY: as above.
                let v6 = unsafe { place.cast::<libc::sockaddr_in6>().read() };
                let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
                let port = u16::from_be(v6.sin6_port);
                Some(SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id).into())
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive() {
        for text in ["10.1.2.3:7000", "[fe80::1%3]:9"] {
            let address: SocketAddr = text.parse().unwrap();
            let raw = RawAddress::new(address);
            let len = raw.as_ucs().addrlen as usize;
            assert!(len <= size_of::<libc::sockaddr_storage>());
            // SAFETY: plain data, for which all zero is valid.
            let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
            // SAFETY: so many bytes are there on both sides, which do not overlap.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    raw.as_ucs().addr.cast::<u8>(),
                    (&raw mut storage).cast::<u8>(),
                    len,
                );
            }
            assert_eq!(RawAddress::read(&storage), Some(address));
        }
        // SAFETY: plain data, for which all zero is valid.
        assert_eq!(RawAddress::read(&unsafe { std::mem::zeroed() }), None);
    }
}
