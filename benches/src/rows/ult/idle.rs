//! Rows `ult.idle_cpu` and `timer.lateness`: xstreams that have nothing to do.
//!
//! - `ult.idle_cpu`: share of one core that a process with four parked xstreams uses, after each
//!   of them has run something.
//! - `timer.lateness`: how much later than asked for `ult::sleep` returns, on an otherwise idle
//!   xstream; the figure is the 99th percentile. Floor: an OS thread with the same timer slack
//!   that sleeps as long, alternating.

use std::time::{Duration, Instant};

use crate::base::cpu_time;
use crate::base::failure::{Failure, Result};
use crate::base::row::Figure;
use crate::base::stats::Samples;
use crate::process::context::Context;
use crate::rows::ult::on_ult::{on_each, on_ult};
use crate::rows::ult::switch::Streams;

/// Row `ult.idle_cpu`.
pub(crate) fn idle_cpu(context: &Context) -> Result<Figure> {
    let (settle, window) = if context.quick {
        (Duration::from_millis(100), Duration::from_millis(300))
    } else {
        // Longer than an xstream waits before it gives back the pages of idle stacks.
        (Duration::from_secs(2), Duration::from_secs(5))
    };
    let streams = Streams::start(&[context.cores.origin; 4])?;
    on_each(&streams.pools, context.deadline, |_place, _gate| Ok(()))?;
    std::thread::sleep(settle); // the spin before the sleep comes to its end
    let own = std::process::id();
    let (start, before) = (Instant::now(), cpu_time::of(own)?);
    std::thread::sleep(window);
    let (elapsed, after) = (start.elapsed(), cpu_time::of(own)?);
    streams.stop()?;
    let used = after.saturating_sub(before);
    Ok(Figure::single(used.as_secs_f64() * 100.0 / elapsed.as_secs_f64(), None))
}

/// The lengths of the sleeps: not one value, so that no period of the machine hides in it.
pub(crate) fn naps(count: u64) -> impl Iterator<Item = Duration> {
    (0..count).map(|index| Duration::from_micros(700 + index * 37 % 600))
}

/// Row `timer.lateness`.
pub(crate) fn lateness(context: &Context) -> Result<Figure> {
    let (rounds, count) = if context.quick { (2, 25) } else { (5, 400) };
    let streams = Streams::start(&[context.cores.origin])?;
    let room = rounds * usize::try_from(count).unwrap_or(usize::MAX);
    let (mut floors, mut samples) = (Samples::new(room, 1), Samples::new(room, 1));
    for _ in 0..rounds {
        let thread = std::thread::spawn(move || {
            no_slack();
            late_by(count, std::thread::sleep)
        });
        let late = thread.join().map_err(|_| Failure::new("the sleeping thread panicked"))?;
        late.into_iter().for_each(|late| floors.push(late));
        let late =
            on_ult(&streams.pools[0], context.deadline, move || Ok(late_by(count, ult::sleep)))?;
        late.into_iter().for_each(|late| samples.push(late));
    }
    streams.stop()?;
    Ok(Figure::tail(samples.latency(), floors.quantile(990)))
}

pub(crate) fn late_by(count: u64, sleep: impl Fn(Duration)) -> Vec<Duration> {
    let late = |nap| {
        let start = Instant::now();
        sleep(nap);
        start.elapsed().saturating_sub(nap)
    };
    naps(count).map(late).collect()
}

/// Asks the kernel to end this thread's sleeps at once, as xstreams do.
pub(crate) fn no_slack() {
    // SAFETY: changes the timer slack of this thread; no memory is involved.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lateness_is_what_a_sleep_takes_too_long() {
        let late = late_by(3, |nap| std::thread::sleep(nap + Duration::from_millis(2)));
        assert_eq!(late.len(), 3);
        assert!(late.iter().all(|late| *late >= Duration::from_millis(2)), "{late:?}");
        assert!(naps(1_000).all(|nap| (700..1_300).contains(&nap.as_micros())));
    }
}
