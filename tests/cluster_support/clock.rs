//! The clock of this test program: the kernel's, or one that stands still until it is set.
//!
//! Everything here reads the time with `Instant::now`, which calls `clock_gettime` of the C
//! library. This program has one of its own, which the linker takes in its stead. So deadlines,
//! timers and what requests tell of their deadlines are in virtual time, without a seam in the
//! runtime. What sleeps in the kernel for a time sleeps for real time, and looks at this clock
//! then.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The time at which the clock stands still, in nanoseconds. Zero: it runs.
static STANDS_AT: AtomicU64 = AtomicU64::new(0);
/// The lead over the kernel's clock while this one runs, modulo 2^64: this clock never goes back.
static AHEAD: AtomicU64 = AtomicU64::new(0);

fn kernel(clock: libc::clockid_t, time: &mut libc::timespec) -> libc::c_int {
    // SAFETY:
    // - the system call writes one `timespec`, for which there is room.
    let result = unsafe { libc::syscall(libc::SYS_clock_gettime, clock, std::ptr::from_mut(time)) };
    result as libc::c_int
}

/// The kernel's monotonic clock.
pub(crate) fn real() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    assert_eq!(kernel(libc::CLOCK_MONOTONIC, &mut time), 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// In place of the C library's.
///
/// # Safety
///
/// `time` is valid for writes.
// SAFETY: of this name and signature is the C library's, and it does the same, but for what the
// monotonic clock shows.
#[unsafe(no_mangle)]
unsafe extern "C" fn clock_gettime(
    clock: libc::clockid_t,
    time: *mut libc::timespec,
) -> libc::c_int {
    // SAFETY:
    // - duty of the caller.
    let time = unsafe { &mut *time };
    let result = kernel(clock, time);
    if clock == libc::CLOCK_MONOTONIC && result == 0 {
        let shown = match STANDS_AT.load(Ordering::Relaxed) {
            0 => {
                let real = Duration::new(time.tv_sec as u64, time.tv_nsec as u32);
                nanos(real).wrapping_add(AHEAD.load(Ordering::Relaxed))
            }
            stands => stands,
        };
        time.tv_sec = (shown / 1_000_000_000) as libc::time_t;
        time.tv_nsec = (shown % 1_000_000_000) as libc::c_long;
    }
    result
}

/// While there is one, the clock stands. One at a time.
pub(crate) struct Stopped {
    since: u64,
}

impl Stopped {
    pub(crate) fn now() -> Self {
        let since = nanos(real()).wrapping_add(AHEAD.load(Ordering::Relaxed));
        STANDS_AT.store(since, Ordering::Relaxed);
        Self { since }
    }

    /// So much after it was stopped.
    pub(crate) fn set(&self, after: Duration) {
        STANDS_AT.fetch_max(self.since + nanos(after), Ordering::Relaxed);
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let stood = STANDS_AT.load(Ordering::Relaxed);
        AHEAD.store(stood.wrapping_sub(nanos(real())), Ordering::Relaxed);
        STANDS_AT.store(0, Ordering::Relaxed);
    }
}
