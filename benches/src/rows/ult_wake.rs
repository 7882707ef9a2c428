//! Row `ult.wake`: two ULTs on two xstreams wake each other in turns, each waiting for an eventual
//! that the other sets.
//!
//! Measures the round trip: two wake-ups across cores, both xstreams awake. Floor: the round trip
//! of a cache line between threads on the same cores, alternating, while the xstreams sleep.

use std::sync::Arc;

use ult::Eventual;

use super::on_ult::on_ult;
use super::ult_switch::Streams;
use crate::context::Context;
use crate::failure::{Doing, Failure, Result};
use crate::machine::{line_round, pin_to_any};
use crate::row::Figure;
use crate::stats::{Effort, Samples};

/// One exchange. `true` asks for one more, `false` ends.
#[derive(Debug, Default)]
struct Turn {
    ping: Eventual<bool>,
    pong: Eventual<()>,
}

/// Row `ult.wake`.
pub(crate) fn run(context: &Context) -> Result<Figure> {
    let effort = Effort::latency(context.quick);
    let cores = [context.cores.origin, context.cores.target()?];
    // The row's process is pinned to the first; its xstreams may use what it may use.
    pin_to_any(&cores)?;
    let streams = Streams::start(&cores)?;
    let (mut floors, mut samples) = (effort.room(1), effort.room(1));
    for _ in 0..effort.rounds {
        line_round(context.cores, effort, &mut floors, context.deadline)?;
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
