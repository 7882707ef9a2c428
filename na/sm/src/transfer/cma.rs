//! Cross-memory attach: copying between address spaces without the other side's help.
//!
//! `process_vm_readv` and `process_vm_writev` need the right to trace the other process: the same
//! user, the same or an inner user namespace, and under Yama with `ptrace_scope` 1 the other's
//! leave, which [`permit`] gives. Whether it works is found out once per connection ([`probe`]).
//! Whether the number still means that process is asked of its pidfd and its socket (`alive.rs`).

use std::mem::MaybeUninit;

use rustix::io::Errno;
use rustix::process::PTracer;

use crate::link::record::Piece;
use na_core::memory::copy::{SPLIT_BYTES, skip_bytes};
use na_core::{CopyHelper, Error, RawSegment};
use prim::sync::atomic::{AtomicI32, AtomicU64, Ordering};

/// Vectors per system call, each side.
pub(crate) const VECTORS: usize = 64;

/// The word that a peer reads to see whether it can attach to us.
#[derive(Debug)]
pub(crate) struct Nonce(Box<AtomicU64>);

impl Nonce {
    /// A random one, which stays where it is while this value lives.
    pub(crate) fn new() -> Result<Self, Error> {
        let mut bytes = [0; 8];
        rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
            .map_err(|errno| Error::io("cannot get random bytes", errno))?;
        Ok(Self(Box::new(AtomicU64::new(u64::from_le_bytes(bytes)))))
    }

    pub(crate) fn addr(&self) -> u64 {
        (&raw const *self.0) as u64
    }

    pub(crate) fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Lets processes of the same user attach to this one where Yama forbids it by default.
pub(crate) fn permit() {
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope");
    if scope.is_ok_and(|scope| scope.trim() == "1") {
        // Refused only where nothing can be done about it; the probe will tell.
        let _ = rustix::process::set_ptracer(PTracer::Any);
    }
}

/// Returns the likely reason why a process of the same host cannot be attached to.
pub(crate) fn why_not() -> String {
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    match scope.trim() {
        scope @ ("2" | "3") => {
            format!("kernel.yama.ptrace_scope is {scope}: 0 or 1 permits it, or CAP_SYS_PTRACE")
        }
        _ => {
            "off at the peer, which is of another user, or not permitted between its container or \
              user namespace and ours: CAP_SYS_PTRACE permits the latter"
                .to_owned()
        }
    }
}

/// Returns whether `pid` is the process that has `nonce` at `addr`, and we may attach to it.
pub(crate) fn probe(pid: i32, addr: u64, nonce: u64) -> bool {
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

/// Returns whether attaching works at all here (a seccomp filter may forbid it).
pub(crate) fn works_here(nonce: &Nonce) -> bool {
    let own = rustix::process::getpid().as_raw_nonzero().get();
    probe(own, nonce.addr(), nonce.value())
}

/// Where the bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    ToPeer,
    FromPeer,
}

/// Copies between `local` and `piece` of process `pid`. Returns the bytes copied, which may be
/// fewer.
///
/// # Safety
///
/// As for [`copy`].
#[inline]
pub(crate) unsafe fn copy_piece(
    pid: i32,
    local: RawSegment,
    piece: Piece,
    direction: Direction,
) -> Result<u64, Errno> {
    let (ours, theirs) = (our_vector(local), their_vector(piece));
    // SAFETY: one live vector each; our memory: the caller's duty.
    unsafe { call(pid, (&raw const ours, 1), (&raw const theirs, 1), direction) }
}

/// Copies between `local` and `pieces` of process `pid`, of both the first [`VECTORS`] at most.
/// Returns the bytes copied, which may be fewer.
///
/// # Safety
///
/// `local` is valid for reads (to the peer) or writes (from the peer), and nobody holds a Rust
/// reference to those bytes.
#[inline]
pub(crate) unsafe fn copy(
    pid: i32,
    local: impl Iterator<Item = RawSegment>,
    pieces: impl Iterator<Item = Piece>,
    direction: Direction,
) -> Result<u64, Errno> {
    // Not zeroed first: two kibibytes, for which a short copy would wait.
    let mut ours = [const { MaybeUninit::uninit() }; VECTORS];
    let mut theirs = [const { MaybeUninit::uninit() }; VECTORS];
    let (mut ours_len, mut theirs_len) = (0, 0);
    for (vector, segment) in ours.iter_mut().zip(local) {
        vector.write(our_vector(segment));
        ours_len += 1;
    }
    for (vector, piece) in theirs.iter_mut().zip(pieces) {
        vector.write(their_vector(piece));
        theirs_len += 1;
    }
    let (ours, theirs) = (ours.as_ptr().cast(), theirs.as_ptr().cast());
    // SAFETY: live arrays, whose first so many entries were written above; our memory: the
    // caller's duty.
    unsafe { call(pid, (ours, ours_len), (theirs, theirs_len), direction) }
}

fn our_vector(segment: RawSegment) -> libc::iovec {
    libc::iovec { iov_base: segment.ptr.cast(), iov_len: segment.len }
}

fn their_vector(piece: Piece) -> libc::iovec {
    let iov_base = std::ptr::without_provenance_mut(piece.addr as usize);
    libc::iovec { iov_base, iov_len: piece.len as usize }
}

/// Where so many vectors of one side are.
type Vectors = (*const libc::iovec, libc::c_ulong);

/// # Safety
///
/// There are so many vectors; for what `ours` name: as for [`copy`].
#[inline]
unsafe fn call(
    pid: i32,
    (ours, ours_len): Vectors,
    (theirs, theirs_len): Vectors,
    direction: Direction,
) -> Result<u64, Errno> {
    let call = match direction {
        Direction::ToPeer => libc::process_vm_writev,
        Direction::FromPeer => libc::process_vm_readv,
    };
    // SAFETY: the caller's duty; the peer's memory is checked by the kernel.
    let result = unsafe { call(pid, ours, ours_len, theirs, theirs_len, 0) };
    u64::try_from(result).map_err(|_| last_errno())
}

#[cold]
fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)
}

/// A part of a copy that several threads make.
struct CopyPart {
    copied: AtomicU64,
    /// The system's error if the part ended early; 0: none. At first [`NOT_RUN`].
    errno: AtomicI32,
}

const NOT_RUN: i32 = -1;

/// A copy between `ours` and `theirs`, in parts.
struct Split<'a> {
    pid: i32,
    ours: &'a [RawSegment],
    theirs: &'a [Piece],
    direction: Direction,
    bytes: u64,
    parts: Vec<CopyPart>,
}

// SAFETY: the pointers are valid for the whole call (contract of `copy_split`), in any thread.
unsafe impl Sync for Split<'_> {}

impl Split<'_> {
    fn run(&self, index: usize) {
        let Some(part) = self.parts.get(index) else { return };
        let from = (index * SPLIT_BYTES) as u64;
        let len = (self.bytes - from).min(SPLIT_BYTES as u64);
        let (mut copied, mut errno) = (0, 0);
        while copied < len && errno == 0 {
            let ours = skip_bytes(self.ours, from + copied);
            let theirs = part_of(self.theirs, from + copied, len - copied);
            // SAFETY: the contract of `copy_split`.
            match unsafe { copy(self.pid, ours, theirs, self.direction) } {
                Ok(0) => break,
                Ok(more) => copied += more,
                Err(error) => errno = error.raw_os_error(),
            }
        }
        part.copied.store(copied, Ordering::Relaxed);
        // pair: ATTACH-PART (the bytes are there, and how many)
        part.errno.store(errno, Ordering::Release);
    }
}

/// `len` bytes of `pieces`, which begin `skip` bytes after their start.
fn part_of(pieces: &[Piece], mut skip: u64, mut len: u64) -> impl Iterator<Item = Piece> + '_ {
    pieces.iter().filter_map(move |piece| {
        let over = skip.min(piece.len);
        skip -= over;
        let taken = (piece.len - over).min(len);
        len -= taken;
        (taken > 0).then(|| Piece { addr: piece.addr + over, len: taken, ..*piece })
    })
}

/// As [`copy`], `bytes` bytes in parts, which other threads take part in. Returns the bytes before
/// the first that could not be copied; some behind it may have been.
///
/// # Safety
///
/// As for [`copy`], until the call returns.
pub(crate) unsafe fn copy_split(
    pid: i32,
    (ours, theirs, bytes): (&[RawSegment], &[Piece], u64),
    direction: Direction,
    helper: &CopyHelper,
) -> Result<u64, Errno> {
    let part = || CopyPart { copied: AtomicU64::new(0), errno: AtomicI32::new(NOT_RUN) };
    let parts = (bytes as usize).div_ceil(SPLIT_BYTES);
    let parts = std::iter::repeat_with(part).take(parts).collect();
    let split = Split { pid, ours, theirs, direction, bytes, parts };
    helper.run(split.parts.len(), &|index| split.run(index));
    let mut before = 0;
    for (index, part) in split.parts.iter().enumerate() {
        // pair: ATTACH-PART (what a helper left out is done here)
        if part.errno.load(Ordering::Acquire) == NOT_RUN {
            split.run(index);
        }
        let copied = part.copied.load(Ordering::Relaxed);
        before += copied;
        let whole = (bytes - (index * SPLIT_BYTES) as u64).min(SPLIT_BYTES as u64);
        match part.errno.load(Ordering::Relaxed) {
            0 if copied == whole => {}
            errno if before == 0 && errno > 0 => return Err(Errno::from_raw_os_error(errno)),
            _ => return Ok(before),
        }
    }
    Ok(before)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    /// From this process to itself, where the kernel copies as between two.
    fn copied_in_parts(helper: &CopyHelper, direction: Direction) {
        const BYTES: usize = 5 * SPLIT_BYTES + 77;
        let pattern: Vec<u8> = (0..BYTES).map(|at| (at % 251) as u8).collect();
        let (mut ours, mut theirs) = match direction {
            Direction::ToPeer => (pattern.clone(), vec![0; BYTES]),
            Direction::FromPeer => (vec![0; BYTES], pattern.clone()),
        };
        // Cut at other places on each side, one side into more pieces than a call takes.
        let mut at = 0;
        let mut cut = |len: usize, base: *mut u8| {
            let piece = RawSegment { ptr: base.wrapping_add(at), len: len.min(BYTES - at) };
            at = if at + piece.len == BYTES { 0 } else { at + piece.len };
            piece
        };
        let locals: Vec<_> =
            (0..BYTES.div_ceil(100_000)).map(|_| cut(100_000, ours.as_mut_ptr())).collect();
        let remotes: Vec<_> = (0..BYTES.div_ceil(1000))
            .map(|_| cut(1000, theirs.as_mut_ptr()))
            .map(|piece| Piece { addr: piece.ptr as u64, len: piece.len as u64, block: 0 })
            .collect();
        let own = std::process::id() as i32;
        let all = (&locals[..], &remotes[..], BYTES as u64);
        // SAFETY: pieces of the two live vectors, which nobody refers to meanwhile.
        let copied = unsafe { copy_split(own, all, direction, helper) };
        assert_eq!(copied, Ok(BYTES as u64));
        assert!(ours == pattern && theirs == pattern);
        // With a hole behind two parts and a half: what is before it has been copied.
        let mut holed = remotes.clone();
        holed[330].addr = 8;
        // SAFETY: as before; nothing is mapped at address 8, which the kernel says.
        let copied = unsafe { copy_split(own, (&locals, &holed, BYTES as u64), direction, helper) };
        let copied = copied.unwrap();
        assert!(copied <= 330_000 && copied >= 2 * SPLIT_BYTES as u64, "{copied}");
        holed[0].addr = 8;
        // SAFETY: as before.
        let copied = unsafe { copy_split(own, (&locals, &holed, BYTES as u64), direction, helper) };
        assert_eq!(copied, Err(Errno::FAULT));
    }

    #[test]
    fn parts_that_others_take_are_copied_once_and_those_left_out_too() {
        let all = CopyHelper::new(|parts, part| {
            std::thread::scope(|scope| {
                (0..parts).for_each(|index| drop(scope.spawn(move || part(index))));
            });
        });
        let taken = std::sync::Arc::new(AtomicUsize::new(0));
        let count = taken.clone();
        let some = CopyHelper::new(move |parts, part| {
            count.fetch_add(1, Ordering::Relaxed);
            part(parts - 1);
        });
        for direction in [Direction::ToPeer, Direction::FromPeer] {
            copied_in_parts(&all, direction);
            copied_in_parts(&some, direction);
        }
        assert_eq!(taken.load(Ordering::Relaxed), 6);
    }

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
