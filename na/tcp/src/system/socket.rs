//! The system calls on sockets: opening, options, and moving bytes without a Rust slice.

use std::io;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use na_core::{RawSegment, TcpOptions, TrafficClass};

/// Pieces of memory that one call sends or fills at most.
pub(crate) const PIECES_MAX: usize = 64;

/// Connections that the kernel may hold for `accept`.
const BACKLOG: i32 = 1024;

/// Size of the send buffer of a connection within this host, bytes.
const LOCAL_SEND_BYTES: usize = 512 << 10;

/// Congestion control of a connection within this host.
const LOCAL_CONGESTION: &str = "reno";

/// A socket whose packets are of that class from the first one on.
fn open(address: SocketAddr, class: TrafficClass) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    set_class(&socket, address.is_ipv6(), class)?;
    Ok(socket)
}

/// Sets the class of a socket's packets. One of IPv6 may carry IPv4, which has a byte of its own.
fn set_class(socket: impl AsFd, is_v6: bool, class: TrafficClass) -> io::Result<()> {
    let Some(byte) = class.byte() else { return Ok(()) };
    if is_v6 {
        sockopt::set_ipv6_tclass(&socket, byte.into())?;
    }
    Ok(sockopt::set_ip_tos(&socket, byte)?)
}

/// A listening socket. A port that a dead process has just left can be taken again. What is
/// accepted is of its class.
pub(crate) fn listen(address: SocketAddr, class: TrafficClass) -> io::Result<OwnedFd> {
    let socket = open(address, class)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if address.ip() == IpAddr::from(Ipv6Addr::UNSPECIFIED) {
        // All interfaces, whatever the system's default is.
        sockopt::set_ipv6_v6only(&socket, false)?;
    }
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// How many connections others may have of the `wanted` ones: each takes a descriptor.
pub(crate) fn connections_max(wanted: usize) -> usize {
    na_core::limits::descriptors::connections_max(wanted, 1)
}

/// Begins to connect; writable when decided, see [`connected`].
pub(crate) fn connect(address: SocketAddr, class: TrafficClass) -> io::Result<OwnedFd> {
    let socket = open(address, class)?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => Ok(socket),
        Err(errno) => Err(errno.into()),
    }
}

/// Returns whether the connection that was begun exists now.
pub(crate) fn connected(socket: impl AsFd) -> io::Result<()> {
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
pub(crate) fn accept(listener: impl AsFd) -> io::Result<OwnedFd> {
    Ok(rustix::net::accept_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC)?)
}

/// Our end of a connection, or where a listener listens.
pub(crate) fn local_address(socket: impl AsFd) -> io::Result<SocketAddr> {
    Ok(rustix::net::getsockname(socket)?.try_into()?)
}

/// The other end of a connection.
pub(crate) fn remote_address(socket: impl AsFd) -> io::Result<SocketAddr> {
    let address = rustix::net::getpeername(socket)?;
    let address = address.ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected))?;
    Ok(address.try_into()?)
}

/// Options of every connection: no delay for small messages; class, keep-alive and busy polling as
/// asked.
pub(crate) fn configure(
    socket: impl AsFd,
    options: &TcpOptions,
    class: TrafficClass,
) -> io::Result<()> {
    let socket = socket.as_fd();
    if class != TrafficClass::Unspec {
        // An accepted one may have the class that the dialer chose (`tcp_reflect_tos`).
        set_class(socket, local_family_is_v6(socket)?, class)?;
    }
    sockopt::set_tcp_nodelay(socket, true)?;
    if !options.keep_alive.is_zero() {
        // The most that the kernel takes.
        let seconds = |seconds: u64| Duration::from_secs(seconds.clamp(1, 32_767));
        let idle = options.keep_alive.as_secs();
        sockopt::set_socket_keepalive(socket, true)?;
        sockopt::set_tcp_keepidle(socket, seconds(idle))?;
        sockopt::set_tcp_keepintvl(socket, seconds(idle / 3))?;
        sockopt::set_tcp_keepcnt(socket, 3)?;
    }
    if !options.busy_poll.is_zero() {
        set_busy_poll(socket, options.busy_poll)?;
    }
    Ok(())
}

/// Options of a connection within this host, if it is one.
///
/// What was sent and not read is bounded. Left alone, the system lets it grow to several megabytes,
/// which leave the caches before they are read: bare sockets then move 4 MiB and more at three
/// quarters of the speed. To another host, the same bytes must cover the time of a round trip, and
/// the system knows best.
///
/// There is no way that could be congested, so the congestion control is the plainest. Some that
/// systems have by default spread their packets over time (BBR), which only costs here.
pub(crate) fn suit_if_local(socket: impl AsFd) -> io::Result<()> {
    let (local, remote) = (local_address(&socket)?.ip(), remote_address(&socket)?.ip());
    if local != remote && !remote.is_loopback() {
        return Ok(());
    }
    // Every system has it, and every process may choose it. What forbids that costs only time.
    let _ = sockopt::set_tcp_congestion(&socket, LOCAL_CONGESTION);
    // A process without privileges may be held to less, which would cost more than it brings.
    if send_bytes_possible() >= LOCAL_SEND_BYTES {
        // The kernel doubles it, for its own needs.
        sockopt::set_socket_send_buffer_size(&socket, LOCAL_SEND_BYTES)?;
    }
    Ok(())
}

fn send_bytes_possible() -> usize {
    static POSSIBLE: OnceLock<usize> = OnceLock::new();
    *POSSIBLE.get_or_init(|| {
        let limit = std::fs::read_to_string("/proc/sys/net/core/wmem_max");
        limit.ok().and_then(|limit| limit.trim().parse().ok()).unwrap_or(0)
    })
}

fn set_busy_poll(socket: BorrowedFd<'_>, time: Duration) -> io::Result<()> {
    let micros = time.as_micros().clamp(1, i32::MAX as u128) as libc::c_int;
    for (option, value) in [(libc::SO_BUSY_POLL, micros), (libc::SO_PREFER_BUSY_POLL, 1)] {
        let bytes = size_of_val(&value) as libc::socklen_t;
        // SAFETY: `value` is an integer of `bytes` bytes, and lives here.
        let result = unsafe {
            let value = (&raw const value).cast();
            libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, value, bytes)
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

fn local_family_is_v6(socket: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(rustix::net::getsockname(socket)?.address_family() == AddressFamily::INET6)
}

/// Returns whether the system lets us set these options, tried on a socket of its own.
pub(crate) fn may_configure(options: &TcpOptions, class: TrafficClass) -> io::Result<()> {
    configure(open(SocketAddr::from(([127, 0, 0, 1], 0)), class)?, options, class)
}

/// Bytes that one call sends from copies; see [`Pieces::push_copy`].
pub(crate) const COPIES_BYTES: usize = 8 << 10;

/// Room for copies, on the stack; not initialised, since most calls need little of it.
pub(crate) type Copies = [MaybeUninit<u8>; COPIES_BYTES];

/// Pieces of memory for one call, on the stack.
///
/// A piece costs the kernel more than copying some hundred bytes, so short ones are copied one
/// behind the other into one piece, as long as there is room in `'a`.
pub(crate) struct Pieces<'a> {
    /// The pieces, of which the first `count` are set.
    pieces: [MaybeUninit<libc::iovec>; PIECES_MAX],
    count: usize,
    bytes: usize,
    /// Room for copies, of which the first `copied` bytes are set.
    room: *mut u8,
    room_bytes: usize,
    copied: usize,
    /// The last piece ends where the copies end.
    copying: bool,
    /// Pages of some piece may be gone.
    may_be_gone: bool,
    _room: PhantomData<&'a mut [MaybeUninit<u8>]>,
}

impl<'a> Pieces<'a> {
    /// No pieces, and no room for copies.
    pub(crate) fn new() -> Self {
        Self::with_room(&mut [])
    }

    /// No pieces; short ones are copied to `room`.
    pub(crate) fn with_room(room: &'a mut [MaybeUninit<u8>]) -> Self {
        Self {
            pieces: [const { MaybeUninit::uninit() }; PIECES_MAX],
            count: 0,
            bytes: 0,
            room: room.as_mut_ptr().cast(),
            room_bytes: room.len(),
            copied: 0,
            copying: false,
            may_be_gone: false,
            _room: PhantomData,
        }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.count == PIECES_MAX
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Bytes in all pieces.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Appends a piece; `false` when there is no place.
    #[must_use]
    pub(crate) fn push(&mut self, piece: RawSegment) -> bool {
        if self.is_full() {
            return false;
        }
        let piece_len = piece.len;
        let piece = libc::iovec { iov_base: piece.ptr.cast(), iov_len: piece_len };
        self.pieces[self.count].write(piece);
        self.count += 1;
        self.bytes += piece_len;
        self.copying = false;
        true
    }

    /// Appends a slice to send; `false` when there is no place.
    #[must_use]
    pub(crate) fn push_slice(&mut self, bytes: &[u8]) -> bool {
        // Sending does not write through the pointer.
        self.push(RawSegment { ptr: bytes.as_ptr().cast_mut(), len: bytes.len() })
    }

    /// Notes that pages of some piece may be gone, as those of a mapped file that was cut off.
    pub(crate) fn note_gone(&mut self, may_be: bool) {
        self.may_be_gone |= may_be;
    }

    pub(crate) fn may_be_gone(&self) -> bool {
        self.may_be_gone
    }

    /// The pieces.
    pub(crate) fn as_slice(&self) -> &[libc::iovec] {
        // SAFETY: the first `count` entries are set, and an entry that may be unset has the layout
        // of one that is set.
        unsafe { std::slice::from_raw_parts(self.pieces.as_ptr().cast(), self.count) }
    }

    /// Appends a copy of `bytes` to send; `false` when there is no place.
    #[must_use]
    pub(crate) fn push_copy(&mut self, bytes: &[u8]) -> bool {
        let piece = RawSegment { ptr: bytes.as_ptr().cast_mut(), len: bytes.len() };
        // SAFETY: a slice is valid for reads.
        unsafe { self.push_copy_of(piece) }
    }

    /// Appends a copy of `piece` to send; `false` when there is no place.
    ///
    /// # Safety
    ///
    /// The piece must be valid for reads, and lie outside the room. It may change meanwhile.
    #[must_use]
    pub(crate) unsafe fn push_copy_of(&mut self, piece: RawSegment) -> bool {
        let RawSegment { ptr: from, len } = piece;
        if len == 0 {
            return true;
        }
        if len > self.room_bytes - self.copied || (!self.copying && self.is_full()) {
            return false;
        }
        // SAFETY: `copied` is at most `room_bytes`, so this is inside the room or at its end.
        let to = unsafe { self.room.add(self.copied) };
        // SAFETY:
        // - source: valid for reads and outside the room (contract of this function);
        // - destination: so many bytes are left in the room, which `self` borrows mutably for `'a`.
        unsafe { na_core::memory::copy_bytes::copy_shared(from, to, len) };
        self.copied += len;
        if self.copying {
            // SAFETY: while copying, there is a last piece, and it is set.
            let last = unsafe { self.pieces[self.count - 1].assume_init_mut() };
            last.iov_len += len;
            self.bytes += len;
            return true;
        }
        let pushed = self.push(RawSegment { ptr: to, len });
        self.copying = pushed;
        pushed
    }
}

/// Sends what the kernel takes of `pieces`, without blocking and without a signal.
///
/// # Safety
///
/// Each piece must be valid for reads until this returns. It may change meanwhile.
pub(crate) unsafe fn send(socket: impl AsFd, pieces: &mut Pieces<'_>) -> io::Result<usize> {
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    if let [piece] = pieces.as_slice() {
        // A tenth of a microsecond faster than `sendmsg`.
        return retried(|| {
            // SAFETY: the memory behind the entry is valid for reads (contract of this function).
            unsafe { libc::send(socket.as_fd().as_raw_fd(), piece.iov_base, piece.iov_len, flags) }
        });
    }
    // SAFETY: all-zero bytes are a valid `msghdr` without address, data and control data.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = pieces.as_slice().as_ptr().cast_mut();
    message.msg_iovlen = pieces.count as _;
    retried(|| {
        // SAFETY:
        // - `message` and the array that it points to live here and hold `count` set entries;
        // - the memory behind the entries is valid for reads (contract of this function).
        unsafe { libc::sendmsg(socket.as_fd().as_raw_fd(), &message, flags) }
    })
}

/// Runs a system call again when a signal broke it off.
fn retried(mut call: impl FnMut() -> libc::ssize_t) -> io::Result<usize> {
    loop {
        if let Ok(count) = usize::try_from(call()) {
            return Ok(count);
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::EINTR) {
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
pub(crate) unsafe fn receive(socket: impl AsFd, pieces: &mut Pieces<'_>) -> io::Result<usize> {
    if let [piece] = pieces.as_slice() {
        return retried(|| {
            let (socket, flags) = (socket.as_fd().as_raw_fd(), libc::MSG_DONTWAIT);
            // SAFETY: the memory behind the entry is valid for writes and nobody else's by
            // reference (contract of this function).
            unsafe { libc::recv(socket, piece.iov_base, piece.iov_len, flags) }
        });
    }
    retried(|| {
        // SAFETY:
        // - the array lives in `pieces` and holds `count` set entries;
        // - the memory behind the entries is valid for writes and nobody else's by reference
        //   (contract of this function).
        unsafe {
            libc::readv(
                socket.as_fd().as_raw_fd(),
                pieces.as_slice().as_ptr(),
                pieces.count as libc::c_int,
            )
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    fn plain() -> OwnedFd {
        open(SocketAddr::from(([127, 0, 0, 1], 0)), TrafficClass::Unspec).unwrap()
    }

    #[test]
    fn a_connection_is_kept_alive_as_asked() {
        for (asked, idle, between) in [(90, 90, 30), (1, 1, 1), (1 << 40, 32_767, 32_767)] {
            let socket = plain();
            let mut options = TcpOptions::default();
            options.keep_alive = Duration::from_secs(asked);
            configure(&socket, &options, TrafficClass::Unspec).unwrap();
            assert!(sockopt::tcp_nodelay(&socket).unwrap());
            assert!(sockopt::socket_keepalive(&socket).unwrap());
            assert_eq!(sockopt::tcp_keepidle(&socket).unwrap(), Duration::from_secs(idle));
            assert_eq!(sockopt::tcp_keepintvl(&socket).unwrap(), Duration::from_secs(between));
            assert_eq!(sockopt::tcp_keepcnt(&socket).unwrap(), 3);
        }
        let socket = plain();
        let mut options = TcpOptions::default();
        options.keep_alive = Duration::ZERO;
        configure(&socket, &options, TrafficClass::Unspec).unwrap();
        assert!(!sockopt::socket_keepalive(&socket).unwrap());
    }

    #[test]
    fn a_connection_within_this_host_is_not_paced_and_holds_little() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let dialed = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        for socket in [dialed, accepted] {
            suit_if_local(&socket).unwrap();
            assert_eq!(sockopt::tcp_congestion(&socket).unwrap(), LOCAL_CONGESTION);
            if send_bytes_possible() >= LOCAL_SEND_BYTES {
                let bytes = sockopt::socket_send_buffer_size(&socket).unwrap();
                assert_eq!(bytes, 2 * LOCAL_SEND_BYTES);
            }
        }
    }
}
