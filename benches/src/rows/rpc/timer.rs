//! Row `timer.lateness.margo`: how late the callback of a `margo::Timer` begins, on an otherwise
//! idle instance with default settings; the figure is the 99th percentile. Floor: as for
//! `timer.lateness`, an OS thread that sleeps as long, alternating.

use std::sync::mpsc::channel;
use std::time::Instant;

use margo::Instance;

use crate::base::failure::{Doing, Failure, Result};
use crate::base::row::Figure;
use crate::base::stats::Samples;
use crate::process::context::Context;
use crate::rows::ult::idle::{late_by, naps, no_slack};

/// Row `timer.lateness.margo`.
pub(crate) fn lateness(context: &Context) -> Result<Figure> {
    let (rounds, count) = if context.quick { (2, 25) } else { (5, 400) };
    let instance = Instance::builder("na+sm://").start().doing("starting margo")?;
    let (sender, late) = channel();
    let timer = instance.timer(move |tick| {
        // Nobody listens any more after a failure.
        let _ = sender.send(Instant::now().saturating_duration_since(tick.due()));
    });
    let room = rounds * usize::try_from(count).unwrap_or(usize::MAX);
    let (mut floors, mut samples) = (Samples::new(room, 1), Samples::new(room, 1));
    for _ in 0..rounds {
        let thread = std::thread::spawn(move || {
            no_slack();
            late_by(count, std::thread::sleep)
        });
        let slept = thread.join().map_err(|_| Failure::new("the sleeping thread panicked"))?;
        slept.into_iter().for_each(|late| floors.push(late));
        for nap in naps(count) {
            timer.start(nap).doing("arming a timer")?;
            let late = late.recv_timeout(context.deadline.left());
            samples.push(late.map_err(|_| context.deadline.late("a timer"))?);
        }
    }
    instance.finalize_and_wait().doing("stopping margo")?;
    Ok(Figure::tail(samples.latency(), floors.quantile(990)))
}
