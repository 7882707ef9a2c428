//! The system calls on sockets: opening, options, and moving bytes without a Rust slice.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use crate::RawSegment;

/// Pieces of memory that one call sends or fills at most.
pub(super) const PIECES_MAX: usize = 64;

/// Connections that the kernel may hold for `accept`.
const BACKLOG: i32 = 1024;

fn open(address: SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    Ok(rustix::net::socket_with(family, SocketType::STREAM, flags, None)?)
}

/// A listening socket. A port that a dead process has just left can be taken again.
pub(super) fn listen(address: SocketAddr) -> io::Result<OwnedFd> {
    let socket = open(address)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Begins to connect; writable when decided, see [`connected`].
pub(super) fn connect(address: SocketAddr) -> io::Result<OwnedFd> {
    let socket = open(address)?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => Ok(socket),
        Err(errno) => Err(errno.into()),
    }
}

/// Whether the connection that was begun exists now.
pub(super) fn connected(socket: impl AsFd) -> io::Result<()> {
    sockopt::socket_error(socket.as_fd())??;
    let remote = remote_address(socket.as_fd())?;
    // Connecting to a free local port from that very port succeeds: TCP's simultaneous open with
    // oneself. Nobody listens there.
    if local_address(socket)? == remote {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    Ok(())
}

/// The next connection; `WouldBlock` when there is none.
pub(super) fn accept(listener: impl AsFd) -> io::Result<OwnedFd> {
    Ok(rustix::net::accept_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC)?)
}

/// Our end of a connection, or where a listener listens.
pub(super) fn local_address(socket: impl AsFd) -> io::Result<SocketAddr> {
    Ok(rustix::net::getsockname(socket)?.try_into()?)
}

/// The other end of a connection.
pub(super) fn remote_address(socket: impl AsFd) -> io::Result<SocketAddr> {
    let address = rustix::net::getpeername(socket)?;
    let address = address.ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected))?;
    Ok(address.try_into()?)
}

/// Options of every connection: no delay for small messages, and with a liveness limit, probes of
/// an idle peer and an end to unacknowledged data, both within about that limit.
pub(super) fn configure(socket: impl AsFd, liveness_limit: Duration) -> io::Result<()> {
    let socket = socket.as_fd();
    sockopt::set_tcp_nodelay(socket, true)?;
    if liveness_limit.is_zero() {
        return Ok(());
    }
    // The kernel counts in seconds: half of the limit idle, the rest in three probes.
    let seconds = liveness_limit.as_secs().max(2);
    // The most that the kernel takes: 2^31 - 1 ms, and 32767 s.
    let millis = liveness_limit.as_millis().clamp(1, i32::MAX as u128) as u32;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, Duration::from_secs((seconds / 2).clamp(1, 32_767)))?;
    sockopt::set_tcp_keepintvl(socket, Duration::from_secs((seconds / 6).clamp(1, 32_767)))?;
    sockopt::set_tcp_keepcnt(socket, 3)?;
    sockopt::set_tcp_user_timeout(socket, millis)?;
    Ok(())
}

/// Pieces of memory for one call, on the stack.
pub(super) struct Pieces {
    pieces: [libc::iovec; PIECES_MAX],
    count: usize,
    bytes: usize,
}

impl Pieces {
    pub(super) fn new() -> Self {
        let none = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        Self { pieces: [none; PIECES_MAX], count: 0, bytes: 0 }
    }

    pub(super) fn is_full(&self) -> bool {
        self.count == PIECES_MAX
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Bytes in all pieces.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Appends a piece; `false` when there is no place.
    #[must_use]
    pub(super) fn push(&mut self, piece: RawSegment) -> bool {
        if self.is_full() {
            return false;
        }
        self.pieces[self.count] = libc::iovec { iov_base: piece.ptr.cast(), iov_len: piece.len };
        self.count += 1;
        self.bytes += piece.len;
        true
    }

    /// Appends a slice to send; `false` when there is no place.
    #[must_use]
    pub(super) fn push_slice(&mut self, bytes: &[u8]) -> bool {
        // Sending does not write through the pointer.
        self.push(RawSegment { ptr: bytes.as_ptr().cast_mut(), len: bytes.len() })
    }
}

/// Sends what the kernel takes of `pieces`, without blocking and without a signal.
///
/// # Safety
///
/// Each piece must be valid for reads until this returns. It may change meanwhile.
pub(super) unsafe fn send(socket: impl AsFd, pieces: &mut Pieces) -> io::Result<usize> {
    // SAFETY: all-zero bytes are a valid `msghdr` without address, data and control data.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = pieces.pieces.as_mut_ptr();
    message.msg_iovlen = pieces.count as _;
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    loop {
        // SAFETY:
        // - `message` and the array that it points to live here and hold `count` set entries;
        // - the memory behind the entries is valid for reads (contract of this function).
        let sent = unsafe { libc::sendmsg(socket.as_fd().as_raw_fd(), &message, flags) };
        if let Ok(sent) = usize::try_from(sent) {
            return Ok(sent);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Fills `pieces` with what has arrived; zero at the end of the stream.
///
/// # Safety
///
/// Each piece must be valid for writes until this returns, and nobody may hold a reference to its
/// bytes.
pub(super) unsafe fn receive(socket: impl AsFd, pieces: &mut Pieces) -> io::Result<usize> {
    loop {
        // SAFETY:
        // - the array lives in `pieces` and holds `count` set entries;
        // - the memory behind the entries is valid for writes and nobody else's by reference
        //   (contract of this function).
        let received = unsafe {
            libc::readv(
                socket.as_fd().as_raw_fd(),
                pieces.pieces.as_ptr(),
                pieces.count as libc::c_int,
            )
        };
        if let Ok(received) = usize::try_from(received) {
            return Ok(received);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}
