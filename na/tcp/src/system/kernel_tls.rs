//! The TLS of the kernel (kTLS), if it has one. Nothing uses it: see the page of the transport.

use std::io;
use std::os::fd::AsRawFd;

use rustix::net::{AddressFamily, SocketType};

/// Asks the kernel for TLS on a socket (`TCP_ULP`).
///
/// # Errors
///
/// The answer of a kernel that does not have it: mostly `ENOENT`, for a module that is not there.
pub fn kernel_tls() -> io::Result<()> {
    const NAME: &[u8] = b"tls";
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None)?;
    let (name, bytes) = (NAME.as_ptr().cast(), NAME.len() as libc::socklen_t);
    let (fd, level) = (socket.as_raw_fd(), libc::IPPROTO_TCP);
    // SAFETY: `NAME` is so many bytes, and lives longer than the call.
    let result = unsafe { libc::setsockopt(fd, level, libc::TCP_ULP, name, bytes) };
    answered(result, io::Error::last_os_error())
}

/// A kernel that has it wants a connection first.
fn answered(result: i32, error: io::Error) -> io::Result<()> {
    match error.raw_os_error() {
        _ if result == 0 => Ok(()),
        Some(libc::ENOTCONN) => Ok(()),
        _ => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_socket_without_a_connection_tells_as_much_as_one_with() {
        let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (fd, level, name) = (socket.as_raw_fd(), libc::IPPROTO_TCP, b"tls".as_ptr().cast());
        // SAFETY: three bytes, which live longer than the call.
        let result = unsafe { libc::setsockopt(fd, level, libc::TCP_ULP, name, 3) };
        let here = (result == 0).then_some(()).ok_or_else(io::Error::last_os_error);
        let kind = |answer: io::Result<()>| answer.map_err(|error| error.raw_os_error());
        assert_eq!(kind(kernel_tls()), kind(here));
        for (code, is_there) in [(libc::ENOTCONN, true), (libc::ENOENT, false)] {
            assert_eq!(answered(-1, io::Error::from_raw_os_error(code)).is_ok(), is_there);
        }
    }
}
