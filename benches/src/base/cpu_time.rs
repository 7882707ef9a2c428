//! The processor time that processes use.

use std::time::{Duration, Instant};

use super::failure::{Result, ensure};

/// Processor time of all threads of `pid`, this process or another of the same user, since its
/// start. Resolution of nanoseconds, which `/proc` does not have.
///
/// # Errors
///
/// When there is no such process.
pub(crate) fn of(pid: u32) -> Result<Duration> {
    let mut clock = 0;
    // SAFETY: `clock` is a live clock id to write to.
    let errno = unsafe { libc::clock_getcpuclockid(libc::pid_t::try_from(pid)?, &mut clock) };
    ensure!(errno == 0, "processor time of {pid}: error {errno}");
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a live timespec to write to; a clock that is gone is an error.
    let result = unsafe { libc::clock_gettime(clock, &mut time) };
    ensure!(result == 0, "processor time of {pid}: {}", std::io::Error::last_os_error());
    Ok(Duration::new(u64::try_from(time.tv_sec)?, u32::try_from(time.tv_nsec)?))
}

/// Percent of one core that the busiest of these processes uses while the caller sleeps for
/// `window`.
///
/// # Errors
///
/// When one of them is gone.
pub(crate) fn share(pids: &[u32], window: Duration) -> Result<f64> {
    let used = || pids.iter().map(|pid| of(*pid)).collect::<Result<Vec<_>>>();
    let (start, before) = (Instant::now(), used()?);
    std::thread::sleep(window);
    let (elapsed, after) = (start.elapsed(), used()?);
    let used = before.iter().zip(&after).map(|(before, after)| after.saturating_sub(*before));
    Ok(used.max().unwrap_or_default().as_secs_f64() * 100.0 / elapsed.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

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
