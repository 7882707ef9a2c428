//! The abstract Unix sockets: rendezvous, peer credentials, doorbell, and notice of death.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketFlags, SocketType,
};
use rustix::process::{Pid, PidfdFlags};

use super::address::Name;
use super::block::{ANNOUNCE, ANNOUNCE_BYTES, PeerBlocks};
use super::handshake::{DOORBELL, PACKET_BYTES_MAX};
use crate::Error;

/// Connections that the kernel holds until they are accepted.
const BACKLOG: i32 = 1024;

/// Doorbell packets that are read at once; more are left for the next look.
const DRAIN_MAX: usize = 64;

/// Who is at the other end, as the kernel says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Credentials {
    /// Process id in our pid namespace; zero if it has none there.
    pub(super) pid: i32,
    /// Effective user id when it connected or listened.
    pub(super) uid: u32,
}

/// A new socket.
pub(super) fn new() -> Result<OwnedFd, Error> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(|errno| Error::io("cannot create a Unix socket", errno))
}

/// Listens as `name`.
pub(super) fn listen(name: &Name) -> Result<OwnedFd, Error> {
    let (socket, uri) = (new()?, name.uri());
    rustix::net::bind(&socket, &name.socket()?).map_err(|errno| {
        let why = match errno {
            Errno::ADDRINUSE => ": another endpoint of this user has that name",
            _ => "",
        };
        Error::io(format!("cannot listen as `{uri}`{why}"), errno)
    })?;
    rustix::net::listen(&socket, BACKLOG)
        .map_err(|errno| Error::io(format!("cannot listen as `{uri}`"), errno))?;
    Ok(socket)
}

/// Accepts a connection, if one waits.
pub(super) fn accept(listener: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    loop {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        match rustix::net::accept_with(listener, flags) {
            Err(Errno::INTR | Errno::CONNABORTED) => {}
            result => return result,
        }
    }
}

/// Who is at the other end.
pub(super) fn peer_credentials(socket: impl AsFd) -> Result<Credentials, Errno> {
    // Not through rustix, whose process id cannot be zero, as it is for another pid namespace.
    let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY:
    // - the descriptor is open while it is borrowed;
    // - the pointers go to live variables, and `len` is the size of the first.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &raw mut len,
        )
    };
    if result != 0 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL));
    }
    Ok(Credentials { pid: credentials.pid, uid: credentials.uid })
}

/// A descriptor of the process `of` at the other end, which names it also when its number is given
/// to another. `None`: the kernel has none (before Linux 5.3), or no descriptor is free.
///
/// # Errors
///
/// That process has ended: somebody else, who was forked off by it, holds the socket.
pub(super) fn peer_process(
    socket: impl AsFd,
    of: Credentials,
) -> Result<Option<OwnedFd>, &'static str> {
    const ENDED: &str = "its process has ended; another one, forked off by it, holds its socket";
    let mut fd: libc::c_int = -1;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY:
    // - the descriptor is open while it is borrowed;
    // - the pointers go to live variables, and `len` is the size of the first.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERPIDFD,
            (&raw mut fd).cast(),
            &raw mut len,
        )
    };
    if result == 0 && fd >= 0 {
        // SAFETY: the kernel has just made it for us, and nobody else knows it.
        let process = unsafe { OwnedFd::from_raw_fd(fd) };
        // The kernel names processes that have ended, too.
        return if has_ended(&process) { Err(ENDED) } else { Ok(Some(process)) };
    }
    // Before Linux 6.5. The number may have been given away in the meantime, which `cma::probe`
    // finds out after this.
    let Some(pid) = Pid::from_raw(of.pid) else { return Ok(None) };
    match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
        Ok(fd) => Ok(Some(fd)),
        Err(Errno::SRCH) => Err(ENDED),
        Err(_) => Ok(None),
    }
}

/// Sends a packet, with up to two descriptors to hand over.
pub(super) fn send_packet(
    socket: impl AsFd,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        let pushed = control.push(SendAncillaryMessage::ScmRights(fds));
        debug_assert!(pushed);
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags).map(drop)
}

/// What was received.
pub(super) struct Received {
    pub(super) bytes: Vec<u8>,
    pub(super) fds: Vec<OwnedFd>,
    /// There was no free descriptor for some that came along.
    pub(super) cut: bool,
}

/// Receives a packet of the handshake; empty at end of file.
pub(super) fn recv_packet(socket: impl AsFd) -> Result<Received, Errno> {
    // One byte more, so that an oversized packet is seen as such.
    let mut bytes = vec![0; PACKET_BYTES_MAX + 1];
    let mut fds = Vec::new();
    let (len, cut) = recv_with_fds(socket, &mut bytes, &mut fds)?;
    bytes.truncate(len);
    Ok(Received { bytes, fds, cut })
}

/// Receives a packet. Descriptors that come with it, four at most, replace those in `fds`. Returns
/// its length, and whether further ones could not be handed over.
fn recv_with_fds(
    socket: impl AsFd,
    bytes: &mut [u8],
    fds: &mut Vec<OwnedFd>,
) -> Result<(usize, bool), Errno> {
    fds.clear();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let mut slices = [IoSliceMut::new(bytes)];
    let message = rustix::net::recvmsg(socket, &mut slices, &mut control, flags)?;
    for ancillary in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = ancillary {
            fds.extend(received);
        }
    }
    if message.flags.contains(ReturnFlags::TRUNC) {
        return Err(Errno::MSGSIZE);
    }
    Ok((message.bytes, message.flags.contains(ReturnFlags::CTRUNC)))
}

/// Rings the peer's bell. A full socket means that it rings already; a broken one shows elsewhere.
pub(super) fn ring(socket: impl AsFd) {
    let _ = rustix::net::send(socket, &[DOORBELL], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

/// What the socket said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Heard {
    /// Bells, or nothing.
    Bells,
    /// End of file or a broken connection.
    Gone,
}

/// Silences the bell and takes the blocks that the peer announces; `None`: it may announce none.
pub(super) fn hear(
    socket: impl AsFd,
    mut blocks: Option<&mut PeerBlocks>,
) -> Result<Heard, String> {
    let mut fds = Vec::new();
    for _ in 0..DRAIN_MAX {
        let mut bytes = [0; ANNOUNCE_BYTES + 1];
        match recv_with_fds(&socket, &mut bytes, &mut fds) {
            Ok((0, _)) => return Ok(Heard::Gone),
            Ok((1, _)) if bytes[0] == DOORBELL => {}
            Ok((ANNOUNCE_BYTES, cut)) if bytes[0] == ANNOUNCE => {
                let blocks = blocks.as_deref_mut().ok_or("memory of another user")?;
                blocks.announced(&bytes[..ANNOUNCE_BYTES], fds.first(), cut)?;
            }
            Ok(_) => return Err("a packet that is no doorbell".into()),
            Err(Errno::AGAIN) => return Ok(Heard::Bells),
            Err(Errno::INTR) => {}
            Err(_) => return Ok(Heard::Gone),
        }
    }
    Ok(Heard::Bells)
}

/// Whether a process, which [`peer_process`] gave, has ended.
fn has_ended(process: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(process, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
}

/// Whether the peer still holds its end, and its process, if we have it, has not ended.
pub(super) fn is_alive(socket: impl AsFd, process: Option<&OwnedFd>) -> bool {
    let ends = PollFlags::HUP | PollFlags::ERR;
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let socket = PollFd::new(&socket, PollFlags::empty());
    let Some(process) = process else {
        let mut fds = [socket];
        let polled = rustix::event::poll(&mut fds, Some(&now));
        return polled.is_err() || !fds[0].revents().intersects(ends);
    };
    // A process that has ended is readable.
    let mut fds = [socket, PollFd::new(process, PollFlags::IN)];
    let polled = rustix::event::poll(&mut fds, Some(&now));
    polled.is_err() || (!fds[0].revents().intersects(ends) && fds[1].revents().is_empty())
}

/// Tells the peer that we are gone, while we still see whether it is.
pub(super) fn say_goodbye(socket: impl AsFd) {
    let _ = rustix::net::shutdown(socket, Shutdown::Write);
}

/// A duration for timers and waits.
pub(super) fn timespec(duration: Duration) -> Timespec {
    let tv_sec = i64::try_from(duration.as_secs()).unwrap_or(i64::MAX);
    Timespec { tv_sec, tv_nsec: i64::from(duration.subsec_nanos()) as _ }
}
