//! Growing files and memory under the process's limit on file sizes (`ulimit -f`, RLIMIT_FSIZE).
//!
//! Linux counts a memfd as a file, so the limit concerns shared memory too. Growing a file beyond
//! it fails with `EFBIG`, and besides sends SIGXFSZ to the calling thread, which by default ends
//! the process. The program decides how the process takes that signal. A library therefore holds it
//! back from its own thread for its own call (`held`), and returns an error that names the limit.

use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::process::{Resource, getrlimit};

use crate::Error;

/// Runs `work`, which makes files longer, without the signal of the limit. Also tells whether it
/// has met the limit.
///
/// `work` must end on the thread on which it began. It costs five system calls more, so it is not
/// for the path of every message. Threads that it starts have the signal blocked for good, and get
/// `EFBIG` only.
pub fn held<R>(work: impl FnOnce() -> R) -> (R, bool) {
    let held = BlockedSignal::new();
    let done = work();
    let exceeded = held.take();
    (done, exceeded)
}

/// Runs `work` as [`held`] does; an error that it has because of the limit names the limit.
///
/// # Errors
///
/// Those of `work`.
pub fn grow<T>(work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    match held(work) {
        (Err(_), true) => Err(exceeded()),
        (done, _) => done,
    }
}

/// The error of a file that the limit keeps from growing.
pub fn exceeded() -> io::Error {
    // `None`: another thread has raised it since.
    let limit = getrlimit(Resource::Fsize).current.map(|bytes| format!(" of {bytes} bytes"));
    let text = format!(
        "it would be longer than the limit on file sizes{} allows (RLIMIT_FSIZE, for shared memory \
         too): raise it with `ulimit -f`",
        limit.unwrap_or_default()
    );
    io::Error::new(io::ErrorKind::FileTooLarge, text)
}

/// When a memfd gets its pages.
///
/// ```
/// use na_core::limits::file_limit::{Pages, memfd};
///
/// let file = memfd(c"example", "an example", 4096, Pages::Later)?;
/// assert_eq!(std::fs::File::from(file).metadata()?.len(), 4096);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pages {
    /// With its size.
    Now,
    /// Through its mapping.
    Later,
}

/// A file of `len` bytes in memory, without a name in any file system, which keeps that length.
///
/// # Errors
///
/// [`Error::Io`], with the length and `what` it was for.
pub fn memfd(name: &CStr, what: &str, len: usize, pages: Pages) -> Result<OwnedFd, Error> {
    let make = || {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create(name, flags)?;
        let bytes = len as u64;
        grow(|| match pages {
            Pages::Now => Ok(rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, bytes)?),
            Pages::Later => Ok(rustix::fs::ftruncate(&fd, bytes)?),
        })?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok(fd)
    };
    make()
        .map_err(|error: io::Error| Error::io(format!("cannot make {len} bytes of {what}"), error))
}

/// SIGXFSZ blocked for the calling thread; back as it was when this is dropped.
struct BlockedSignal {
    before: libc::sigset_t,
    /// One waits already, from before: it is the program's.
    pending: bool,
}

fn signal_set() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: initialises the set, for which there is room.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: an initialised set (above) and a signal that there is, so this cannot fail.
    unsafe { libc::sigaddset(set.as_mut_ptr(), libc::SIGXFSZ) };
    // SAFETY: initialised above.
    unsafe { set.assume_init() }
}

impl BlockedSignal {
    fn new() -> Self {
        let (mut before, mut pending) = (signal_set(), signal_set());
        let set = signal_set();
        // SAFETY: both sets are initialised, and live during the call.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, &raw mut before) };
        // SAFETY: writes to an initialised set, which lives during the call.
        unsafe { libc::sigpending(&raw mut pending) };
        // SAFETY: an initialised set, and a signal that there is.
        let pending = unsafe { libc::sigismember(&raw const pending, libc::SIGXFSZ) } == 1;
        Self { before, pending }
    }

    /// Takes the signal, if it has come meanwhile; ends the holding.
    fn take(self) -> bool {
        !self.pending && taken()
    }
}

/// Takes a signal that waits for this thread.
fn taken() -> bool {
    let set = signal_set();
    let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    loop {
        // SAFETY: an initialised set and a time, which live during the call; nobody asks for more
        // about the signal.
        let signal =
            unsafe { libc::sigtimedwait(&raw const set, std::ptr::null_mut(), &raw const at_once) };
        if signal == libc::SIGXFSZ {
            return true;
        }
        if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return false;
        }
    }
}

impl Drop for BlockedSignal {
    fn drop(&mut self) {
        if !self.pending {
            // Work that has panicked has left it.
            taken();
        }
        // SAFETY: the mask that `new` was given, which lives during the call.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut())
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn send_to_oneself() {
        // SAFETY: sends a signal to this thread.
        assert_eq!(unsafe { libc::raise(libc::SIGXFSZ) }, 0);
    }

    fn is_blocked() -> bool {
        let mut now = signal_set();
        // SAFETY: asks only; the set is initialised, and lives during the call.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &raw mut now) };
        // SAFETY: an initialised set, and a signal that there is.
        unsafe { libc::sigismember(&raw const now, libc::SIGXFSZ) == 1 }
    }

    #[test]
    fn the_signal_of_the_limit_is_taken_and_others_are_left() {
        // Else this ends the process.
        assert_eq!(held(send_to_oneself), ((), true));
        assert_eq!(held(|| held(send_to_oneself)), (((), true), false));
        assert_eq!(held(is_blocked), (true, false));
        let unwound = std::panic::catch_unwind(|| {
            held(|| {
                send_to_oneself();
                std::panic::resume_unwind(Box::new("work that panics"));
            })
        });
        assert!(unwound.is_err() && !is_blocked());
        // One that the program holds back itself is its own.
        let program = BlockedSignal::new();
        send_to_oneself();
        assert_eq!(held(|| ()), ((), false));
        assert!(taken());
        drop(program);
        assert!(!is_blocked());
    }

    #[test]
    fn an_error_that_the_limit_has_not_made_is_left() {
        let other = || Err::<(), _>(io::Error::other("something else"));
        assert_eq!(grow(other).unwrap_err().to_string(), "something else");
        let limited = || {
            send_to_oneself();
            Err::<(), _>(io::Error::from(rustix::io::Errno::FBIG))
        };
        let error = grow(limited).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
        assert!(error.to_string().contains("`ulimit -f`"), "{error}");
    }
}
