//! Rows `floor.sm.rtt` and `floor.tcp.rtt`: a message to another process and its answer.
//!
//! Measures one caller in a closed loop, both sides polling, each on its core: a 56-byte message in
//! one cache line of shared memory, or 64 bytes over a TCP connection on loopback. No queue, no
//! header, no matching: no RPC can be faster.

use super::channel::{Caller, Offer, Transport};
use crate::base::failure::Result;
use crate::base::row::Figure;
use crate::base::stats::{Effort, Samples};
use crate::base::wait::Deadline;
use crate::process::context::Context;
use crate::process::peer::{self, Task};

/// One round of round trips with a responder that is serving.
///
/// # Errors
///
/// When an answer does not come in time.
pub(crate) fn round(
    caller: &mut Caller,
    effort: Effort,
    samples: &mut Samples,
    deadline: Deadline,
) -> Result<()> {
    effort.each(samples, || caller.round_trip(deadline))?;
    caller.stop(deadline)
}

/// The row.
pub(crate) fn run(context: &Context, transport: Transport) -> Result<Figure> {
    let effort = Effort::latency(context.quick);
    let mut samples = effort.room(1);
    let offer = Offer::new(transport)?;
    let peer = peer::start(context, Task::Answer(offer.place()?))?;
    let mut caller = offer.accept(context.deadline, std::hint::spin_loop)?;
    caller.wait_for_hello(context.deadline, std::hint::spin_loop)?;
    for _ in 1..effort.rounds {
        effort.each(&mut samples, || caller.round_trip(context.deadline))?;
    }
    round(&mut caller, effort, &mut samples, context.deadline)?;
    peer.finish(context.deadline)?;
    Ok(Figure::median(samples.latency(), None))
}
