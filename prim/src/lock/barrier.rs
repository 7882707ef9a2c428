//! Two halves of a full fence of which one costs nothing.
//!
//! Where two sides each store and then look whether the other has stored (Dekker), both need a full
//! fence in between. If one of them comes there often and the other hardly ever, the often one can
//! do with [`light`], which only keeps the compiler from exchanging the two, if the rare one does
//! [`heavy`]: that makes every other running thread of the process pass a full fence, so that it
//! pays for both. It is `membarrier(2)` with `MEMBARRIER_CMD_PRIVATE_EXPEDITED` (Linux 4.14), and
//! takes microseconds. Source: P. McKenney, M. Desnoyers, "sys_membarrier"; the same pair is in
//! liburcu and folly (`asymmetricThreadFenceLight`, `asymmetricThreadFenceHeavy`).
//!
//! Where the kernel lacks the call, or a filter forbids it, [`is_there`] returns `false`, and both
//! sides must use a fence.

#[cfg(not(loom))]
pub use self::imp::{heavy, is_there, light, thread_token};
#[cfg(loom)]
pub use self::model::{heavy, is_there, light, thread_token};

/// The kernel refuses what it granted when the process first asked ([`is_there`]).
///
/// ```
/// use prim::lock::barrier::{self, Refused};
///
/// fn fence() -> Result<(), Refused> {
///     if barrier::is_there() { barrier::heavy() } else { Ok(()) }
/// }
/// assert!(fence().is_ok());
/// ```
#[derive(Debug, thiserror::Error)]
#[error(
    "membarrier(2) worked earlier in this process and fails now ({}): permit it in the \
     system-call filter (seccomp) of this process, or install the filter before the first endpoint \
     is opened and the first channel of `spsc` made",
    std::io::Error::from_raw_os_error(*.0)
)]
pub struct Refused(i32);

#[cfg(not(loom))]
mod imp {
    use std::sync::OnceLock;

    use rustix::thread::{MembarrierCommand, membarrier};

    use crate::sync::atomic::{Ordering, compiler_fence, fence};

    /// Returns whether the pair may be used. The first call in a process registers it with the
    /// kernel, which may take milliseconds; a later one is a load.
    #[inline]
    pub fn is_there() -> bool {
        static REGISTERED: OnceLock<bool> = OnceLock::new();
        // An interpreter sees fences only.
        let possible = cfg!(all(target_os = "linux", not(miri)));
        possible
            && *REGISTERED
                .get_or_init(|| membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok())
    }

    /// The half that costs nothing.
    #[inline(always)]
    pub fn light() {
        // pair: BARRIER (with `heavy`)
        compiler_fence(Ordering::SeqCst);
    }

    /// The half that pays; only if [`is_there`].
    ///
    /// # Errors
    ///
    /// [`Refused`](super::Refused): the kernel granted it before.
    #[cold]
    pub fn heavy() -> Result<(), super::Refused> {
        // pair: BARRIER (with `light`)
        fence(Ordering::SeqCst);
        let done = membarrier(MembarrierCommand::PrivateExpedited);
        fence(Ordering::SeqCst);
        done.map_err(|error| super::Refused(error.raw_os_error()))
    }

    /// A number of the calling thread that no other living thread has: not 0, a multiple of eight.
    /// A thread may be given that of one which has ended: everything that one did is visible to it,
    /// because its memory was given back, and taken again, in between.
    #[inline(always)]
    pub fn thread_token() -> usize {
        #[cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
        {
            let token: usize;
            // A thread-local's address would be taken for a constant, which it is not in a frame
            // that goes on on another thread; an `asm!` that is not `pure` is done each time.
            // SAFETY: by the ELF ABI for x86-64 (TLS variant II) the word at `fs:0` holds the
            // thread pointer, its own address; reading it changes nothing.
            unsafe {
                std::arch::asm!(
                    "mov {}, qword ptr fs:[0]",
                    out(reg) token,
                    options(nostack, preserves_flags, readonly)
                );
            }
            token
        }
        #[cfg(not(all(target_arch = "x86_64", target_os = "linux", not(miri))))]
        {
            thread_local! {
                static HERE: u64 = const { 0 };
            }
            #[inline(never)]
            fn token() -> usize {
                HERE.with(|here| std::ptr::from_ref(here).addr())
            }
            token()
        }
    }
}

/// The pair as the models see it: both are full fences.
#[cfg(loom)]
mod model {
    use crate::sync::atomic::{Ordering, fence};

    /// Returns whether there is such a pair.
    pub fn is_there() -> bool {
        true
    }

    /// The half of the favoured thread.
    pub fn light() {
        // pair: BARRIER
        fence(Ordering::SeqCst);
    }

    /// The half of the others.
    pub fn heavy() -> Result<(), super::Refused> {
        // pair: BARRIER
        fence(Ordering::SeqCst);
        Ok(())
    }

    /// A number of the calling thread that no other living thread has.
    pub fn thread_token() -> usize {
        crate::sync::thread_local! {
            static HERE: u64 = 0;
        }
        HERE.with(|here| std::ptr::from_ref(here).addr())
    }
}
