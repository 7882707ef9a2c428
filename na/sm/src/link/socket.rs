//! The abstract Unix sockets: rendezvous, peer credentials, doorbell, and notice of death.
//!
//! # What others send along
//!
//! Any process can send descriptors to a socket that it is connected with, and the last `close` of
//! what they stand for may wait without an end (`closer.rs`). Three things keep that from us:
//!
//! - **A user who may send none cannot.** A listener refuses descriptors. So does each socket that
//!   it accepts, until the user at the other end is known to be one that may come. A socket that
//!   dials refuses them until it has found its own user at the other end ([`permit_descriptors`],
//!   since Linux 6.16).
//! - **A packet is looked at before it is taken** ([`Socket::receive`]). Looking makes descriptors
//!   of our own for the same files, and leaves those in the queue, so nothing that we close then is
//!   the last. Only a packet whose files are all memory, which can always be closed, or, where its
//!   first byte says so, a device file of NVIDIA's driver, is taken; any other stays in the queue.
//! - **A socket is closed only when its queue is empty**, and parked otherwise.

use std::io::{IoSlice, IoSliceMut};
use std::mem::{ManuallyDrop, MaybeUninit};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{AtFlags, FileType, StatxFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketFlags, SocketType,
};
use rustix::process::{Pid, PidfdFlags};

use super::closer::Closer;
use super::handshake::{
    ANNOUNCE, ANNOUNCE_BYTES, DOORBELL, HAND_OVER, HAND_OVER_BYTES, PACKET_BYTES_MAX,
};
use super::record::word_at;
use super::segment::{self, RING_BYTES};
use crate::address::Name;
use na_core::Error;
use na_core::memory::handed::arrived;
use prim::lost;
use prim::sync::Arc;

/// Connections that the kernel holds until they are accepted.
const BACKLOG: i32 = 1024;

/// Packets that are read at once; more are left for the next look.
const DRAIN_MAX: usize = 64;

/// Descriptors that an honest packet has at most.
const DESCRIPTORS_MAX: usize = 2;

/// Memory whose pages are given back in no time worth mentioning: a segment.
const SMALL_BYTES: u64 = segment::total_bytes(*RING_BYTES.end()) as u64;

/// How a socket of ours is called, should it be lost.
const SOCKET: &str = "the socket of a connection over sm";

/// Major number of the device files of NVIDIA's driver, of which exported memory is one
/// (`/dev/nvidiactl`).
const NVIDIA_MAJOR: u32 = 195;

/// `SO_PASSRIGHTS` of Linux 6.16.
const SO_PASSRIGHTS: libc::c_int = 83;

/// The process at the other end, as the kernel names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Credentials {
    /// Process id in our pid namespace; zero if it has none there.
    pub(crate) pid: i32,
    /// Effective user id when it connected or listened.
    pub(crate) uid: u32,
}

/// A socket to another process. Closing it takes no longer than closing what is ours.
#[derive(Debug)]
pub(crate) struct Socket {
    fd: ManuallyDrop<OwnedFd>,
    closer: Arc<Closer>,
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // SAFETY: taken only here, once.
        let fd = unsafe { ManuallyDrop::take(&mut self.fd) };
        let socket = Looking(fd.as_fd());
        let mut found = Vec::new();
        if self.closer.is_of_parent() || socket.drain(&mut found) {
            return;
        }
        let uid = peer_credentials(&fd).map_or(u32::MAX, |of| of.uid);
        found.push(fd);
        self.closer.park(uid, found);
    }
}

/// A new socket, over which nobody can send descriptors yet if the kernel can forbid that.
pub(crate) fn new(closer: &Arc<Closer>) -> Result<Socket, Error> {
    let socket = Socket { fd: ManuallyDrop::new(new_bare()?), closer: closer.clone() };
    permit_descriptors(&socket, false);
    Ok(socket)
}

fn new_bare() -> Result<OwnedFd, Error> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(|errno| Error::io("cannot create a Unix socket", errno))
}

/// Lets the other side send descriptors, or not any more; accepted sockets do as their listener did
/// when the other side connected. `false`: the kernel always lets it (before Linux 6.16).
pub(crate) fn permit_descriptors(socket: impl AsFd, permit: bool) -> bool {
    let value = libc::c_int::from(permit);
    // SAFETY:
    // - the descriptor is open while it is borrowed;
    // - the pointer goes to a live variable of the size that is given.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PASSRIGHTS,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    result == 0
}

/// Listens as `name`.
pub(crate) fn listen(name: &Name) -> Result<OwnedFd, Error> {
    let (socket, uri) = (new_bare()?, name.uri());
    permit_descriptors(&socket, false);
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
pub(crate) fn accept(listener: BorrowedFd<'_>, closer: &Arc<Closer>) -> Result<Socket, Errno> {
    loop {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        match rustix::net::accept_with(listener, flags) {
            Err(Errno::INTR | Errno::CONNABORTED) => {}
            result => {
                let socket = |fd| Socket { fd: ManuallyDrop::new(fd), closer: closer.clone() };
                return result.map(socket);
            }
        }
    }
}

/// Returns the process and user at the other end.
pub(crate) fn peer_credentials(socket: impl AsFd) -> Result<Credentials, Errno> {
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
pub(crate) fn peer_process(
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
pub(crate) fn send_packet(
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
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags)
        .map(drop)
        .inspect_err(|errno| lost::check(*errno, SOCKET))
}

/// A packet that was received.
pub(crate) struct Received {
    pub(crate) bytes: Vec<u8>,
    /// Descriptors that came along, all of memory.
    pub(crate) fds: Vec<OwnedFd>,
    /// There was no free descriptor for some that came along.
    pub(crate) cut: bool,
}

/// Why a packet was not received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unheard {
    /// The kernel says so.
    Errno(Errno),
    /// More or other descriptors came along than any honest packet has. It stays in the queue, and
    /// nothing behind it can be heard.
    Foreign,
}

impl std::fmt::Display for Unheard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Errno(errno) => errno.fmt(f),
            Self::Foreign => f.write_str(
                "a packet with descriptors that do not belong there (too many, or no memory that \
                 can be sealed)",
            ),
        }
    }
}

/// A packet that is still in the queue.
struct Seen {
    len: usize,
    /// Longer than the place for it.
    is_longer: bool,
    /// There are more descriptors than were handed over.
    cut: bool,
    /// There is a packet. Without `SO_PASSCRED`, an empty one cannot be told from the end.
    is_there: bool,
}

/// A socket whose queue is looked at.
struct Looking<'a>(BorrowedFd<'a>);

impl Looking<'_> {
    /// Looks at the first packet, with `SO_PASSCRED` or without. Descriptors of the files that lie
    /// in it are added to `fds`, few more at most than there may be.
    fn look(&self, passes: bool, bytes: &mut [u8], fds: &mut Vec<OwnedFd>) -> Result<Seen, Errno> {
        const RIGHTS: usize = rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX + 1));
        const BOTH: usize = RIGHTS + rustix::cmsg_space!(ScmCredentials(1));
        let mut space = [MaybeUninit::uninit(); BOTH];
        let space = &mut space[..if passes { BOTH } else { RIGHTS }];
        let mut control = RecvAncillaryBuffer::new(space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC | RecvFlags::PEEK;
        let mut slices = [IoSliceMut::new(bytes)];
        let message = rustix::net::recvmsg(self.0, &mut slices, &mut control, flags)
            .inspect_err(|errno| lost::check(*errno, SOCKET))?;
        let mut is_there = message.bytes > 0;
        for ancillary in control.drain() {
            match ancillary {
                RecvAncillaryMessage::ScmRights(found) => fds.extend(found),
                _ => is_there = true,
            }
        }
        let (is_longer, cut) = (ReturnFlags::TRUNC, ReturnFlags::CTRUNC);
        let [is_longer, cut] = [is_longer, cut].map(|flag| message.flags.contains(flag));
        Ok(Seen { len: message.bytes, is_longer, cut, is_there: is_there || cut })
    }

    /// Takes the packet that was looked at. What lies in it is not closed by that: it was found to
    /// be memory, or there is nothing.
    fn take(&self) {
        let _ = rustix::net::recv(self.0, &mut [0; 1][..], RecvFlags::DONTWAIT);
    }

    /// Ends the connection and empties the queue. `false`: something is left there that closing
    /// might wait for; `found` has descriptors of it.
    fn drain(&self, found: &mut Vec<OwnedFd>) -> bool {
        // Nothing can be added any more.
        let shut = rustix::net::shutdown(self.0, Shutdown::Both);
        if shut.and(rustix::net::sockopt::set_socket_passcred(self.0, true)).is_err() {
            return false;
        }
        for _ in 0..DRAIN_MAX {
            match self.look(true, &mut [0; 1], found) {
                Ok(seen) if !seen.is_there => return true,
                Ok(seen) if !seen.cut && are_memory(found, SMALL_BYTES) => self.take(),
                // Was noted before, and is over with this.
                Err(Errno::CONNRESET | Errno::INTR) => {}
                // Nobody can have sent anything.
                Err(Errno::NOTCONN) => return true,
                Ok(_) | Err(_) => return false,
            }
            found.clear();
        }
        false
    }
}

/// Returns whether these may be sent: memory alone, which waits for nobody when it is closed, and
/// not too much, which takes its time.
fn are_memory(fds: &[OwnedFd], bytes_max: u64) -> bool {
    // In this order: the size of a file may be another process's to say.
    let is_memory = |fd: &OwnedFd| {
        let has_seals = rustix::fs::fcntl_get_seals(fd).is_ok();
        has_seals
            && (bytes_max == u64::MAX
                || rustix::fs::fstat(fd).is_ok_and(|of| of.st_size.unsigned_abs() <= bytes_max))
    };
    fds.len() <= DESCRIPTORS_MAX && fds.iter().all(is_memory)
}

/// Returns whether a peer takes this descriptor as one of device memory: that of a driver for tests
/// is memory of the host.
pub(crate) fn may_be_handed_over(fd: &OwnedFd) -> bool {
    rustix::fs::fcntl_get_seals(fd).is_ok() || is_device_memory(fd)
}

/// Returns whether this is memory of a device. Asks nobody: the files of a file system in user
/// space are another process's to describe.
fn is_device_memory(fd: &OwnedFd) -> bool {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    rustix::fs::statx(fd, "", flags, StatxFlags::TYPE).is_ok_and(|of| {
        FileType::from_raw_mode(of.stx_mode.into()).is_char_device()
            && of.stx_rdev_major == NVIDIA_MAJOR
    })
}

impl Socket {
    /// A socket of a test.
    #[cfg(test)]
    pub(crate) fn of(fd: OwnedFd) -> Self {
        Self { fd: ManuallyDrop::new(fd), closer: Arc::default() }
    }

    /// Closes what came along with a packet of this socket and is of no use.
    pub(crate) fn give_up(&self, fds: Vec<OwnedFd>) {
        let uid = peer_credentials(self).map_or(u32::MAX, |of| of.uid);
        self.closer.park(uid, fds);
    }

    /// Receives a packet of the handshake; empty at end of file.
    pub(crate) fn recv_packet(&self) -> Result<Received, Unheard> {
        // One byte more, so that an oversized packet is seen as such.
        let mut bytes = vec![0; PACKET_BYTES_MAX + 1];
        let mut fds = Vec::new();
        let (len, cut) = self.receive(&mut bytes, &mut fds, false)?;
        bytes.truncate(len);
        Ok(Received { bytes, fds, cut })
    }

    /// Receives a packet. Descriptors that come with it replace those in `fds`. Returns its length,
    /// and whether there was no free descriptor for further ones. `devices`: that of device memory
    /// may be handed over.
    fn receive(
        &self,
        bytes: &mut [u8],
        fds: &mut Vec<OwnedFd>,
        devices: bool,
    ) -> Result<(usize, bool), Unheard> {
        fds.clear();
        let socket = Looking(self.as_fd());
        let seen = socket.look(false, bytes, fds).map_err(Unheard::Errno)?;
        let is_handed = devices && seen.len == HAND_OVER_BYTES && bytes[0] == HAND_OVER;
        let is_of_device = is_handed && matches!(&fds[..], [fd] if is_device_memory(fd));
        if !is_of_device && !are_memory(fds, u64::MAX) {
            self.give_up(std::mem::take(fds));
            return Err(Unheard::Foreign);
        }
        if seen.is_longer {
            return Err(Unheard::Errno(Errno::MSGSIZE));
        }
        // What could not be looked at may be anything: the caller decides.
        if !seen.cut {
            socket.take();
        }
        Ok((seen.len, seen.cut))
    }

    /// Takes a packet whose descriptors could not be looked at, see [`receive`](Self::receive).
    fn take_unseen(&self) {
        Looking(self.as_fd()).take();
    }

    /// Takes a descriptor that was handed over.
    fn handed(&self, packet: &[u8], mut fds: Vec<OwnedFd>, cut: bool) -> Result<(), String> {
        let (zero, number) = (word_at(packet, 0), word_at(packet, 1));
        if zero != Some(HAND_OVER.into()) || (fds.len() != 1 && !cut) {
            return Err("a packet that hands nothing over".into());
        }
        if cut {
            // As of an announcement: who expects it goes another way in time.
            self.take_unseen();
        }
        if let (Some(fd), Some(number), false) = (fds.pop(), number, cut)
            && let Err(fd) = arrived(number, fd)
        {
            // Nobody expects it, or not any more.
            self.give_up(vec![fd]);
        }
        Ok(())
    }

    /// Silences the bell and takes the blocks that the peer announces; `None`: it may announce
    /// none.
    pub(crate) fn hear(&self, mut blocks: Option<&mut dyn Announcements>) -> Result<Heard, String> {
        let mut fds = Vec::new();
        for _ in 0..DRAIN_MAX {
            let mut bytes = [0; ANNOUNCE_BYTES + 1];
            match self.receive(&mut bytes, &mut fds, blocks.is_some()) {
                Ok((0, _)) => return Ok(Heard::Gone),
                Ok((1, false)) if bytes[0] == DOORBELL && fds.is_empty() => {}
                Ok((ANNOUNCE_BYTES, cut)) if bytes[0] == ANNOUNCE => {
                    let blocks = blocks.as_deref_mut().ok_or("memory of another user")?;
                    blocks.announced(&bytes[..ANNOUNCE_BYTES], fds.first(), cut)?;
                    if cut {
                        // From our own user, who could stop us with a signal as well; and an honest
                        // peer is not to lose its connection for what we lack.
                        self.take_unseen();
                    }
                }
                Ok((HAND_OVER_BYTES, cut)) if bytes[0] == HAND_OVER => {
                    blocks.as_deref().ok_or("a descriptor of another user")?;
                    self.handed(&bytes[..HAND_OVER_BYTES], std::mem::take(&mut fds), cut)?;
                }
                Ok(_) => return Err("a packet that is no doorbell".into()),
                Err(Unheard::Errno(Errno::AGAIN)) => return Ok(Heard::Bells),
                Err(Unheard::Errno(Errno::INTR)) => {}
                Err(Unheard::Errno(Errno::MSGSIZE)) => {
                    return Err("a packet that is no doorbell".into());
                }
                Err(Unheard::Errno(_)) => return Ok(Heard::Gone),
                Err(reason @ Unheard::Foreign) => return Err(reason.to_string()),
            }
        }
        Ok(Heard::Bells)
    }
}

/// Rings the peer's bell. A full socket means that it rings already; a broken one shows elsewhere.
pub(crate) fn ring(socket: impl AsFd) {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    if let Err(errno) = rustix::net::send(socket, &[DOORBELL], flags) {
        lost::check(errno, SOCKET);
    }
}

/// The blocks that a peer announces by packets (`block.rs`).
pub(crate) trait Announcements {
    /// Takes an announcement, whose descriptor has come, or could not (`cut`).
    ///
    /// # Errors
    ///
    /// The rule that the peer broke.
    fn announced(&mut self, bytes: &[u8], fd: Option<&OwnedFd>, cut: bool) -> Result<(), String>;
}

/// The outcome of reading a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Heard {
    /// Bells, or nothing.
    Bells,
    /// End of file or a broken connection.
    Gone,
}

/// Returns whether a process, which [`peer_process`] gave, has ended.
fn has_ended(process: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(process, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
}

/// Returns whether the peer still holds its end, and its process, if we have it, has not ended.
pub(crate) fn is_alive(socket: impl AsFd, process: Option<&OwnedFd>) -> bool {
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
pub(crate) fn say_goodbye(socket: impl AsFd) {
    let _ = rustix::net::shutdown(socket, Shutdown::Write);
}

/// A duration for timers and waits.
pub(crate) fn timespec(duration: Duration) -> Timespec {
    let tv_sec = i64::try_from(duration.as_secs()).unwrap_or(i64::MAX);
    Timespec { tv_sec, tv_nsec: i64::from(duration.subsec_nanos()) as _ }
}
