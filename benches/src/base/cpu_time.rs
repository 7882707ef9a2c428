//! The processor time that a process has used.

use std::time::Duration;

use crate::base::failure::{Failure, Result};

/// Processor time of all threads of `pid`, this process or another of the same user, since its
/// start. Resolution of nanoseconds, which `/proc` does not have.
///
/// # Errors
///
/// When there is no such process.
pub(crate) fn of(pid: u32) -> Result<Duration> {
    let failed = |error: std::io::Error| Failure::new(format!("processor time of {pid}: {error}"));
    let pid =
        libc::pid_t::try_from(pid).map_err(|_| Failure::new(format!("{pid} is no process")))?;
    let mut clock = 0;
    // SAFETY: `clock` is a live clock id to write to.
    let errno = unsafe { libc::clock_getcpuclockid(pid, &mut clock) };
    if errno != 0 {
        return Err(failed(std::io::Error::from_raw_os_error(errno)));
    }
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a live timespec to write to; a clock that is gone is an error.
    if unsafe { libc::clock_gettime(clock, &mut time) } != 0 {
        return Err(failed(std::io::Error::last_os_error()));
    }
    match (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec)) {
        (Ok(seconds), Ok(nanoseconds)) => Ok(Duration::new(seconds, nanoseconds)),
        _ => Err(Failure::new(format!("processor time of {pid} is negative"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn our_own_time_grows_while_we_compute() {
        let pid = std::process::id();
        let before = of(pid).unwrap();
        let start = Instant::now();
        while of(pid).unwrap() <= before {
            assert!(start.elapsed() < Duration::from_secs(60), "the clock stands still");
        }
    }

    #[test]
    fn no_process_has_no_time() {
        assert!(of(u32::MAX).is_err());
        // One more than the largest that the kernel hands out.
        assert!(of(1 << 22).is_err());
    }
}
