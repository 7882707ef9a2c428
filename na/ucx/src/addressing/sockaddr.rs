//! Socket addresses as UCX has them.

use std::net::SocketAddr;

use rustix::net::SocketAddrAny;
use ucx_sys::ucs_sock_addr_t;

/// Returns an address in the form that UCX takes; it refers to `address`.
pub(crate) fn as_ucs(address: &SocketAddrAny) -> ucs_sock_addr_t {
    ucs_sock_addr_t { addr: address.as_ptr().cast(), addrlen: address.addr_len() }
}

/// Reads an IP address.
pub(crate) fn read(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    let place = &raw const *storage;
    let len = size_of::<libc::sockaddr_storage>() as u32;
    // SAFETY: so many bytes are there, all of which were written; the family says what they are.
    let address = unsafe { SocketAddrAny::read(place.cast(), len) };
    address.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive() {
        for text in ["10.1.2.3:7000", "[fe80::1%3]:9"] {
            let address: SocketAddr = text.parse().unwrap();
            let any = SocketAddrAny::from(address);
            let raw = as_ucs(&any);
            let len = raw.addrlen as usize;
            assert!(len <= size_of::<libc::sockaddr_storage>());
            // SAFETY: plain data, for which all zero is valid.
            let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
            // SAFETY: so many bytes are there on both sides, which do not overlap.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    raw.addr.cast::<u8>(),
                    (&raw mut storage).cast::<u8>(),
                    len,
                );
            }
            assert_eq!(read(&storage), Some(address));
        }
        // SAFETY: plain data, for which all zero is valid.
        assert_eq!(read(&unsafe { std::mem::zeroed() }), None);
    }
}
