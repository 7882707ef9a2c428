//! Rows `ult.idle_cpu` and `timer.lateness`: xstreams that have nothing to do.
//!
//! - `ult.idle_cpu`: share of one core that a process with four parked xstreams uses, after each
//!   of them has run something.
//! - `timer.lateness`: how much later than asked for `ult::sleep` returns, on an otherwise idle
//!   xstream; the figure is the 99th percentile. Floor: an OS thread with the same timer slack
//!   that sleeps as long, alternating.

use std::time::{Duration, Instant};

use super::on_ult::{Streams, on_each, on_ult};
use crate::base::{Failure, Figure, Result, Samples, cpu_time};
use crate::process::Context;

/// Row `ult.idle_cpu`.
pub(crate) fn idle_cpu(context: &Context) -> Result<Figure> {
    // Longer than an xstream waits before it gives back the pages of idle stacks.
    let (settle, window) = if context.quick { (100, 300) } else { (2_000, 5_000) };
    let streams = Streams::start(&[context.cores.origin; 4])?;
    on_each(&streams.pools, context.deadline, |_place, _gate| Ok(()))?;
    // The spin before the sleep comes to its end.
    std::thread::sleep(Duration::from_millis(settle));
    let used = cpu_time::share(&[std::process::id()], Duration::from_millis(window))?;
    streams.stop()?;
    Ok(Figure::single(used, None))
}

/// The lengths of the sleeps: not one value, so that no period of the machine hides in it.
pub(crate) fn naps(count: u64) -> impl Iterator<Item = Duration> {
    (0..count).map(|index| Duration::from_micros(700 + index * 37 % 600))
}

/// Row `timer.lateness`.
pub(crate) fn lateness(context: &Context) -> Result<Figure> {
    let streams = Streams::start(&[context.cores.origin])?;
    let figure = beside_a_thread(context, |count| {
        on_ult(&streams.pools[0], context.deadline, move || Ok(late_by(count, ult::sleep)))
    })?;
    streams.stop()?;
    Ok(figure)
}

/// The figure of a timer that is late by what `round` gives for so many [`naps`], alternating with
/// an OS thread that sleeps as long.
///
/// # Errors
///
/// Those of `round`.
pub(crate) fn beside_a_thread(
    context: &Context,
    round: impl Fn(u64) -> Result<Vec<Duration>>,
) -> Result<Figure> {
    let (rounds, count) = if context.quick { (2, 25) } else { (5, 400) };
    let room = || Samples::new(rounds * naps(count).count(), 1);
    let (mut floors, mut samples) = (room(), room());
    for _ in 0..rounds {
        let thread = std::thread::spawn(move || {
            no_slack();
            late_by(count, std::thread::sleep)
        });
        let late = thread.join().map_err(|_| Failure::new("the sleeping thread panicked"))?;
        late.into_iter().for_each(|late| floors.push(late));
        round(count)?.into_iter().for_each(|late| samples.push(late));
    }
    Ok(Figure::tail(samples.latency(), floors.quantile(990)))
}

fn late_by(count: u64, sleep: impl Fn(Duration)) -> Vec<Duration> {
    let late = |nap| {
        let start = Instant::now();
        sleep(nap);
        start.elapsed().saturating_sub(nap)
    };
    naps(count).map(late).collect()
}

/// Asks the kernel to end this thread's sleeps at once, as xstreams do.
fn no_slack() {
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
