//! Row `ult.blocking`: a ULT has an empty closure run by a thread, and waits for it.
//!
//! The figure is one closure: a hand-over to the thread and back. Floor: a thread asks another one
//! by a channel of `std` and is answered by a second one. All of it on one core.

use std::sync::mpsc::channel;
use std::thread;

use super::on_ult::{Streams, on_ult};
use crate::base::{Doing, Effort, Figure, Result, Round, Samples};
use crate::process::Context;

/// Row `ult.blocking`.
pub(crate) fn empty(context: &Context) -> Result<Figure> {
    let (effort, deadline) = (Effort::latency(context.quick), context.deadline);
    let streams = Streams::start(&[context.cores.origin])?;
    let closure = |samples: &mut Samples| {
        samples.each(|| {
            ult::blocking(|| ());
            Ok(())
        })
    };
    let mut floor = by_channels()?;
    let rounds = effort.in_turns([1, 1], &mut floor, |samples| {
        let mut taken = std::mem::replace(samples, Samples::new(0, 1));
        *samples = on_ult(&streams.pools[0], deadline, move || {
            closure(&mut taken)?;
            Ok(taken)
        })?;
        Ok(())
    })?;
    streams.stop()?;
    Ok(Figure::latency(rounds))
}

/// The thread ends with the sender.
fn by_channels() -> Result<Round> {
    let (ask, asked) = channel::<()>();
    let (answer, answered) = channel();
    let serve = move || asked.into_iter().try_for_each(|()| answer.send(()));
    drop(thread::Builder::new().spawn(serve).doing("starting a thread")?);
    Ok(Box::new(move |samples| {
        samples.each(|| {
            ask.send(()).doing("asking a thread")?;
            answered.recv().doing("hearing from a thread")
        })
    }))
}
