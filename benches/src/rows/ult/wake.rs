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

use ult::Eventual;

use crate::base::failure::{Doing, Failure, Result};
use crate::base::row::Figure;
use crate::base::stats::{Effort, Samples};
use crate::floors::futex;
use crate::process::context::Context;
use crate::report::machine::{line_round, pin_to_any};
use crate::rows::ult::on_ult::on_ult;
use crate::rows::ult::switch::Streams;

/// One exchange. `true` asks for one more, `false` ends.
#[derive(Debug, Default)]
struct Turn {
    ping: Eventual<bool>,
    pong: Eventual<()>,
}

/// Longer than any exchange, so that no xstream goes to sleep during a round, and short enough that
/// both sleep soon after it.
const SPIN: Duration = Duration::from_millis(1);

type FloorRound = fn(&Context, Effort, &mut Samples) -> Result<()>;

/// Row `ult.wake.spin`.
pub(crate) fn spin(context: &Context) -> Result<Figure> {
    run(context, SPIN, |context, effort, samples| {
        std::thread::sleep(2 * SPIN);
        line_round(context.cores, effort, samples, context.deadline)
    })
}

/// Row `ult.wake.parked`.
pub(crate) fn parked(context: &Context) -> Result<Figure> {
    run(context, Duration::ZERO, |context, effort, samples| {
        futex::round(context.cores, effort, samples, context.deadline)
    })
}

fn run(context: &Context, spin_max: Duration, floor: FloorRound) -> Result<Figure> {
    let effort = Effort::latency(context.quick);
    let cores = [context.cores.origin, context.cores.target()?];
    // The row's process is pinned to the first; its xstreams may use what it may use.
    pin_to_any(&cores)?;
    let streams = Streams::start_with(&cores, |builder| builder.spin_max(spin_max))?;
    let (mut floors, mut samples) = (effort.room(2), effort.room(2));
    for _ in 0..effort.rounds {
        floor(context, effort, &mut floors)?;
        samples = round(context, &streams, effort, samples)?;
    }
    streams.stop()?;
    Ok(Figure::median(samples.latency(), floors.quantile(500)))
}

/// One round of exchanges; gives the samples back.
fn round(
    context: &Context,
    streams: &Streams,
    effort: Effort,
    mut samples: Samples,
) -> Result<Samples> {
    let count = effort.warmup + effort.samples + 1;
    let turns: Arc<[Turn]> = std::iter::repeat_with(Turn::default).take(count).collect();
    let theirs = turns.clone();
    let answering = streams.pools[1].spawn(move || {
        for turn in theirs.iter().take_while(|turn| *turn.ping.wait()) {
            // Set once, here only.
            let _ = turn.pong.set(());
        }
    });
    let answering = answering.doing("spawning")?;
    let samples = on_ult(&streams.pools[0], context.deadline, move || {
        let mut rest = turns.iter();
        let mut next = || rest.next().ok_or_else(|| Failure::new("more turns than planned"));
        let say = |turn: &Turn, more| {
            turn.ping.set(more).map_err(|_| Failure::new("a turn was taken twice"))
        };
        let result = effort.each(&mut samples, || {
            let turn = next()?;
            say(turn, true)?;
            turn.pong.wait();
            Ok(())
        });
        say(next()?, false)?;
        result.map(|()| samples)
    })?;
    answering.join().doing("joining")?;
    Ok(samples)
}
