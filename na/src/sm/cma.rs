//! Cross-memory attach: copying between address spaces without the other side's help.
//!
//! `process_vm_readv` and `process_vm_writev` need the right to trace the other process: the same
//! user, the same or an inner user namespace, and under Yama with `ptrace_scope` 1 the other's
//! leave, which [`permit`] gives. Whether it works is found out once per connection ([`probe`]).
//! Whether the number still means that process is asked of its pidfd and its socket, before copies
//! at most once in some microseconds (`Conn::was_alive`).

use std::mem::MaybeUninit;

use rustix::io::Errno;
use rustix::process::PTracer;

use super::record::Piece;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::{Error, RawSegment};

/// Vectors per system call, each side.
pub(super) const VECTORS: usize = 64;

/// The word that a peer reads to see whether it can attach to us.
#[derive(Debug)]
pub(super) struct Nonce(Box<AtomicU64>);

impl Nonce {
    /// A random one, which stays where it is while this value lives.
    pub(super) fn new() -> Result<Self, Error> {
        let mut bytes = [0; 8];
        rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
            .map_err(|errno| Error::io("cannot get random bytes", errno))?;
        Ok(Self(Box::new(AtomicU64::new(u64::from_le_bytes(bytes)))))
    }

    pub(super) fn addr(&self) -> u64 {
        (&raw const *self.0) as u64
    }

    pub(super) fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Lets processes of the same user attach to this one where Yama forbids it by default.
pub(super) fn permit() {
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope");
    if scope.is_ok_and(|scope| scope.trim() == "1") {
        // Refused only where nothing can be done about it; the probe will tell.
        let _ = rustix::process::set_ptracer(PTracer::Any);
    }
}

/// What may be the reason that a process of the same host cannot be attached to.
pub(super) fn why_not() -> String {
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    match scope.trim() {
        scope @ ("2" | "3") => {
            format!("kernel.yama.ptrace_scope is {scope}: 0 or 1 permits it, or CAP_SYS_PTRACE")
        }
        _ => "off at the peer, or not permitted between its container, user namespace or user and \
              ours: CAP_SYS_PTRACE permits it"
            .to_owned(),
    }
}

/// Whether `pid` is the process that has `nonce` at `addr`, and we may attach to it.
pub(super) fn probe(pid: i32, addr: u64, nonce: u64) -> bool {
    if pid <= 0 {
        return false;
    }
    let mut word = [0u8; 8];
    let local = std::iter::once(RawSegment { ptr: word.as_mut_ptr(), len: word.len() });
    let theirs = std::iter::once(Piece { addr, len: 8, block: 0 });
    // SAFETY: `local` is the live variable above.
    let copied = unsafe { copy(pid, local, theirs, Direction::FromPeer) };
    copied == Ok(8) && u64::from_le_bytes(word) == nonce
}

/// Whether attaching works at all here (a seccomp filter may forbid it).
pub(super) fn works_here(nonce: &Nonce) -> bool {
    let own = rustix::process::getpid().as_raw_nonzero().get();
    probe(own, nonce.addr(), nonce.value())
}

/// Where the bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    ToPeer,
    FromPeer,
}

/// Copies between `local` and `pieces` of process `pid`, of both the first [`VECTORS`] at most.
/// Returns the bytes copied, which may be fewer.
///
/// # Safety
///
/// `local` is valid for reads (to the peer) or writes (from the peer), and nobody holds a Rust
/// reference to those bytes.
pub(super) unsafe fn copy(
    pid: i32,
    local: impl Iterator<Item = RawSegment>,
    pieces: impl Iterator<Item = Piece>,
    direction: Direction,
) -> Result<u64, Errno> {
    // Not zeroed first: two kibibytes, for which a short copy would wait.
    type Vectors = [MaybeUninit<libc::iovec>; VECTORS];
    let mut ours: Vectors = [MaybeUninit::uninit(); VECTORS];
    let mut theirs = ours;
    let (mut ours_len, mut theirs_len) = (0, 0);
    for (vector, segment) in ours.iter_mut().zip(local) {
        vector.write(libc::iovec { iov_base: segment.ptr.cast(), iov_len: segment.len });
        ours_len += 1;
    }
    for (vector, piece) in theirs.iter_mut().zip(pieces) {
        let iov_base = std::ptr::without_provenance_mut(piece.addr as usize);
        vector.write(libc::iovec { iov_base, iov_len: piece.len as usize });
        theirs_len += 1;
    }
    let (ours, theirs) = (ours.as_ptr().cast(), theirs.as_ptr().cast());
    let call = match direction {
        Direction::ToPeer => libc::process_vm_writev,
        Direction::FromPeer => libc::process_vm_readv,
    };
    // SAFETY:
    // - the vectors are live arrays, whose first so many entries were written above;
    // - our memory: the caller's duty; the peer's memory is checked by the kernel.
    let result = unsafe { call(pid, ours, ours_len, theirs, theirs_len, 0) };
    u64::try_from(result)
        .map_err(|_| Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_needs_the_right_word_and_process() {
        let nonce = Nonce::new().unwrap();
        let own = std::process::id() as i32;
        assert!(works_here(&nonce), "attaching to oneself needs no permission");
        assert!(!probe(own, nonce.addr(), nonce.value() ^ 1));
        assert!(!probe(own, 8, nonce.value()), "nothing is mapped there");
        assert!(!probe(0, nonce.addr(), nonce.value()));
        assert!(!probe(-1, nonce.addr(), nonce.value()));
    }
}
