//! The port of a group, kept from others while none of its endpoints listens there: from the end of
//! the one that did until the next one does. In between, the system would give the port to whoever
//! asks for a free one.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

/// A socket that is bound and does not listen. Whoever names the port can listen there as well, as
/// UCX does with `UCX_CM_REUSEADDR=y`.
#[derive(Debug)]
pub(crate) struct ReservedPort {
    _socket: OwnedFd,
    pub(crate) address: SocketAddr,
}

impl ReservedPort {
    /// Reserves the port of `address`; 0: a free one.
    ///
    /// # Errors
    ///
    /// Somebody listens there, or the system refuses it.
    pub(crate) fn new(address: SocketAddr) -> io::Result<Self> {
        let family = match address {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let (stream, flags) = (SocketType::STREAM, SocketFlags::CLOEXEC);
        let socket = rustix::net::socket_with(family, stream, flags, None)?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        rustix::net::bind(&socket, &address)?;
        let address = rustix::net::getsockname(&socket)?.try_into()?;
        Ok(Self { _socket: socket, address })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn a_port_is_kept_from_others_and_can_be_listened_at() {
        let reserved = ReservedPort::new("127.0.0.1:0".parse().unwrap()).unwrap();
        // The standard library asks for `SO_REUSEADDR` as well.
        for _ in 0..2 {
            let listener = TcpListener::bind(reserved.address).unwrap();
            assert!(ReservedPort::new(reserved.address).is_err(), "somebody listens");
            drop(listener);
        }
        // None of those for whom any port will do gets it.
        let others: Vec<_> = (0..64).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let ports = others.iter().map(|other| other.local_addr().unwrap().port());
        assert!(ports.into_iter().all(|port| port != reserved.address.port()));
    }
}
