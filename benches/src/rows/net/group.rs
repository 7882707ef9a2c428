//! Rows `na.sm.group2` and `na.tcp.group2`: messages of 64 bytes that two endpoints of one group
//! take on two cores. The floor is the same with two endpoints that have nothing in common.
//!
//! Each core drives one target, and an origin that sends to it and always has 32 sends in flight.
//! Rounds of both kinds alternate; the best one of each counts.

use std::sync::Arc;
use std::time::Instant;

use na::{Addr, Completion, Endpoint, MsgBuf, OpId, OpenOptions, Tag};

use super::na_node::open;
use crate::base::{Deadline, Doing, Figure, OrFail, Result, ensure};
use crate::floors::transport::Transport;
use crate::process::Context;

/// Sends in flight on each core, and receives posted.
const WINDOW: usize = 32;

const MESSAGE_BYTES: usize = 64;
const ROUNDS: usize = 5;

/// One core's part: an origin, and the target that it sends to.
struct Lane {
    origin: Arc<dyn Endpoint>,
    target: Arc<dyn Endpoint>,
    to: Addr,
}

impl Lane {
    /// A lane that sends to the endpoint number `shard` behind the address of `target`.
    fn new(over: Transport, target: Arc<dyn Endpoint>, shard: usize) -> Result<Self> {
        let origin = open(over, false, true)?;
        let uri = target.self_addr().uri().to_owned();
        let to = origin.lookup_shard(&uri, shard).doing("looking the target up")?;
        Ok(Self { origin, target, to })
    }

    fn send(&self, buf: MsgBuf) -> Result<()> {
        self.origin.send_unexpected(OpId(1), &self.to, Tag(7), buf).doing("sending")
    }

    fn post(&self, buf: MsgBuf) -> Result<()> {
        self.target.recv_unexpected(OpId(2), buf).doing("posting a receive")
    }

    /// Begins: a window of receives and of sends.
    fn fill(&self) -> Result<()> {
        for _ in 0..WINDOW {
            self.post(self.target.alloc_msg())?;
            let mut buf = self.origin.alloc_msg();
            ensure!(buf.try_extend(&[1; MESSAGE_BYTES]), "a message holds less than 64 bytes");
            self.send(buf)?;
        }
        Ok(())
    }

    /// Polls both ends until so many messages have come.
    fn run(&self, messages: usize, deadline: &Deadline) -> Result<()> {
        let (mut came, mut looks) = (0, 0_u32);
        while came < messages {
            let mut failed = Ok(());
            let mut sink = |completion| {
                let done = match completion {
                    Completion::Send { buf, result, .. } => {
                        result.doing("a send").and_then(|()| self.send(buf))
                    }
                    Completion::Recv { buf, result, .. } => {
                        came += 1;
                        result.doing("a message").and_then(|_| self.post(buf))
                    }
                    Completion::Transfer { .. } => Ok(()),
                };
                failed = std::mem::replace(&mut failed, Ok(())).and(done);
            };
            self.origin.poll(WINDOW, &mut sink).doing("polling")?;
            self.target.poll(WINDOW, &mut sink).doing("polling")?;
            failed?;
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(4096) {
                deadline.check("the messages")?;
            }
        }
        Ok(())
    }
}

/// Opens two targets, one for each core.
fn lanes(over: Transport, grouped: bool) -> Result<[Lane; 2]> {
    let mut options = OpenOptions::listening(true);
    options.no_block = true;
    let mut targets = match grouped {
        true => na::open_group(over.uri(), &options, 2).doing("opening a group")?,
        false => vec![open(over, true, true)?, open(over, true, true)?],
    };
    let second = targets.pop().or_fail("no second target")?;
    let first = targets.pop().or_fail("no first target")?;
    let lanes = [Lane::new(over, first, 0)?, Lane::new(over, second, usize::from(grouped))?];
    lanes.iter().try_for_each(Lane::fill)?;
    Ok(lanes)
}

/// Messages per second that both cores take together.
fn round(context: &Context, [first, second]: &[Lane; 2], messages: usize) -> Result<f64> {
    let timed = |lane: &Lane| {
        // The first shard accepts for the second, so each is polled from the beginning.
        lane.run(WINDOW, &context.deadline)?;
        let begin = Instant::now();
        lane.run(messages, &context.deadline)?;
        Ok(messages as f64 / begin.elapsed().as_secs_f64())
    };
    let (first, second) = context.cores.run_on_both(|| timed(first), || timed(second))?;
    Ok(first + second)
}

/// Row `na.sm.group2` or `na.tcp.group2`.
pub(crate) fn group2(context: &Context, over: Transport) -> Result<Figure> {
    let messages = if context.quick { 20_000 } else { 1_000_000 };
    let (separate, grouped) = (lanes(over, false)?, lanes(over, true)?);
    let (mut floor, mut best) = (0.0, 0.0);
    for _ in 0..ROUNDS {
        floor = f64::max(floor, round(context, &separate, messages)?);
        best = f64::max(best, round(context, &grouped, messages)?);
    }
    Ok(Figure::single(best, Some(floor)))
}
