//! Row `timer.lateness.margo`: how late the callback of a `margo::timers::Timer` begins, on an
//! otherwise idle instance with default settings; the figure is the 99th percentile. Floor: as for
//! `timer.lateness`, an OS thread that sleeps as long, alternating.

use std::sync::mpsc::channel;
use std::time::Instant;

use margo::Instance;

use crate::base::{Doing, Figure, Result};
use crate::process::Context;
use crate::rows::ult::idle::{beside_a_thread, naps};

/// Row `timer.lateness.margo`.
pub(crate) fn lateness(context: &Context) -> Result<Figure> {
    let instance = Instance::builder("na+sm://").start().doing("starting margo")?;
    let (sender, late) = channel();
    let timer = instance.timer(move |tick| {
        // Nobody listens any more after a failure.
        let _ = sender.send(Instant::now().saturating_duration_since(tick.due()));
    });
    let figure = beside_a_thread(context, |count| {
        let arm = |nap| {
            timer.start(nap).doing("arming a timer")?;
            let late = late.recv_timeout(context.deadline.left());
            late.map_err(|_| context.deadline.late("a timer"))
        };
        naps(count).map(arm).collect()
    })?;
    instance.finalize_and_wait().doing("stopping margo")?;
    Ok(figure)
}
