//! Rows `ult.wake.spin` and `ult.wake.parked`: a ULT wakes one of another xstream by setting the
//! eventual that it waits for.
//!
//! Two ULTs do so in turns. A sample is a round trip, and the figure half of it: one wake-up, from
//! the set to the other ULT running.
//!
//! - `ult.wake.spin`: xstreams spin while they have nothing to do. Floor: one way of a cache line
//!   between threads on the same cores, alternating, while the xstreams sleep.
//! - `ult.wake.parked`: xstreams never spin, so each wake-up goes through the kernel. Floor: the
//!   same exchange between two threads with bare futexes.

use std::sync::Arc;
use std::time::Duration;

use ult::{Eventual, Runtime};

use super::on_ult::{Streams, on_ult};
use crate::base::{Doing, Effort, Failure, Figure, OrFail, Result, Samples};
use crate::floors::{futex, lines};
use crate::process::Context;

/// An eventual in a cache line of its own, as in most programs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Alone<T>(T);

/// One exchange. `true` asks for one more, `false` ends.
#[derive(Debug, Default)]
struct Turn {
    ping: Alone<Eventual<bool>>,
    pong: Alone<Eventual<()>>,
}

/// Longer than any exchange, so that no xstream goes to sleep during a round, and short enough that
/// both sleep soon after it.
const SPIN: Duration = Duration::from_millis(1);

/// Row `ult.wake.spin`.
pub(crate) fn spin(context: &Context) -> Result<Figure> {
    run(context, SPIN, |floors| {
        std::thread::sleep(2 * SPIN);
        lines::round(context.cores, floors, context.deadline)
    })
}

/// Row `ult.wake.parked`.
pub(crate) fn parked(context: &Context) -> Result<Figure> {
    run(context, Duration::ZERO, |floors| futex::round(context.cores, floors, context.deadline))
}

fn run(
    context: &Context,
    spin_max: Duration,
    floor: impl FnMut(&mut Samples) -> Result<()>,
) -> Result<Figure> {
    let effort = Effort::latency(context.quick);
    // The row's process is pinned to the first; its xstreams may use what it may use.
    let cores = context.cores.take(2)?;
    let streams = Streams::start_with(&cores, Runtime::builder().spin_max(spin_max))?;
    let rounds =
        effort.in_turns([2, 2], floor, |samples| round(context, &streams, effort, samples))?;
    streams.stop()?;
    Ok(Figure::latency(rounds))
}

/// One round of exchanges.
fn round(
    context: &Context,
    streams: &Streams,
    effort: Effort,
    samples: &mut Samples,
) -> Result<()> {
    let count = effort.warmup + effort.samples + 1;
    let turns: Arc<[Turn]> = std::iter::repeat_with(Turn::default).take(count).collect();
    let theirs = turns.clone();
    let answering = streams.pools[1].spawn(move || {
        for turn in theirs.iter().take_while(|turn| *turn.ping.0.wait()) {
            // Set once, here only.
            let _ = turn.pong.0.set(());
        }
    })?;
    let mut taken = std::mem::replace(samples, Samples::new(0, 1));
    *samples = on_ult(&streams.pools[0], context.deadline, move || {
        let mut rest = turns.iter();
        let mut next = || rest.next().or_fail("more turns than planned");
        let say = |turn: &Turn, more| {
            turn.ping.0.set(more).map_err(|_| Failure::new("a turn was taken twice"))
        };
        let result = taken.each(|| {
            let turn = next()?;
            say(turn, true)?;
            turn.pong.0.wait();
            Ok(())
        });
        say(next()?, false)?;
        result.map(|()| taken)
    })?;
    answering.join().doing("joining")
}
