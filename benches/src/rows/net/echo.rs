//! Rows `na.*.rtt` and `hg.*.rtt`: a message to another process and its answer, at a layer below
//! ULTs.
//!
//! Measures one caller in a closed loop, both sides polling, nothing allocated or looked up in
//! between that the layer does not do by itself. Floor: the same round trip over bare cache lines
//! or a bare socket, in the same two processes, alternating; for a call with arguments over shared
//! memory, lines that carry as many bytes one way. From `na` to `hg` to `rpc.*.rtt.poll`
//! the differences are what each layer costs.

use na::Addr;
use serde::{Deserialize, Serialize};

use crate::base::failure::{Doing, Result};
use crate::base::row::Figure;
use crate::base::stats::Effort;
use crate::base::wait::Deadline;
use crate::floors::channel::{Offer, Place, Responder, Transport};
use crate::floors::rtt;
use crate::process::child;
use crate::process::context::Context;
use crate::process::peer::{self, Task};
use crate::rows::net::hg_node::HgNode;
use crate::rows::net::na_node::NaNode;

/// One side's view of a layer.
pub(crate) trait Node: Sized {
    /// Opens it.
    fn open(transport: Transport, listen: bool, deadline: Deadline) -> Result<Self>;
    /// Chooses what a call is.
    fn set_work(&mut self, work: Work);
    /// The endpoint underneath.
    fn endpoint(&self) -> &dyn na::Endpoint;
    /// One round trip to `target`, or as many at a time as were chosen; `last` tells it that the
    /// round is over.
    fn call(&mut self, target: &Addr, last: bool) -> Result<()>;
    /// Answers calls until the last one of the round.
    fn answer(&mut self) -> Result<()>;
    /// Moves the network forward.
    fn poll(&mut self) -> Result<()>;
    /// Ends it.
    fn close(self);
}

/// Which layer a row measures.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) enum Layer {
    /// The network layer.
    Na,
    /// The RPC layer on top of it, without ULTs.
    Hg,
}

/// Names of what a row is compared with: calls without arguments, with the most that fits into a
/// message, and the latter with a round trip of the floor.
pub(crate) const NULL: &str = "null";
pub(crate) const EAGER: &str = "eager";
pub(crate) const EAGER_AND_TRIP: &str = "eager+trip";

/// The work of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    /// Without arguments, one at a time.
    Null,
    /// With so many bytes of arguments.
    Bytes(usize),
    /// With as many bytes of arguments as fit into a message.
    Eager,
    /// With one byte more.
    Overflow,
    /// Without arguments, so many at a time.
    Many(usize),
}

impl Work {
    /// The row to compare with: the same call with nothing in it, or with as much as fits
    /// into a message.
    fn base(self) -> Option<(&'static str, Self)> {
        match self {
            Self::Null | Self::Many(_) | Self::Eager => None,
            Self::Bytes(_) => Some((NULL, Self::Null)),
            Self::Overflow => Some((EAGER, Self::Eager)),
        }
    }

    /// Calls at a time.
    pub(crate) fn in_flight(self) -> usize {
        if let Self::Many(count) = self { count } else { 1 }
    }
}

/// The order that the peer of these rows gets.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Target {
    layer: Layer,
    transport: Transport,
    place: Place,
    effort: Effort,
}

/// The peer's part: answers floor and figure in turns.
///
/// # Errors
///
/// When the caller falls silent.
pub(crate) fn peer(target: &Target, deadline: Deadline) -> Result<()> {
    match target.layer {
        Layer::Na => peer_of::<NaNode>(target, deadline),
        Layer::Hg => peer_of::<HgNode>(target, deadline),
    }
}

fn peer_of<N: Node>(target: &Target, deadline: Deadline) -> Result<()> {
    let mut floor = Responder::join(&target.place, deadline)?;
    let mut node = N::open(target.transport, true, deadline)?;
    child::send(&node.endpoint().self_addr().uri())?;
    for _ in 0..target.effort.rounds {
        floor.answer(deadline)?;
        node.answer()?;
    }
    // The last answer may still need our help to leave.
    while !child::finish_asked()? {
        node.poll()?;
        deadline.check("the end of the caller")?;
    }
    node.close();
    Ok(())
}

/// The row.
pub(crate) fn run(
    context: &Context,
    layer: Layer,
    transport: Transport,
    work: Work,
) -> Result<Figure> {
    match layer {
        Layer::Na => run_with::<NaNode>(context, layer, transport, work),
        Layer::Hg => run_with::<HgNode>(context, layer, transport, work),
    }
}

fn run_with<N: Node>(
    context: &Context,
    layer: Layer,
    transport: Transport,
    work: Work,
) -> Result<Figure> {
    let (effort, deadline) = (Effort::latency(context.quick), context.deadline);
    let (mut floors, mut samples) = (effort.room(1), effort.room(work.in_flight() as u32));
    let mut bases = effort.room(1);
    let offer = Offer::new(transport)?;
    let target = Target { layer, transport, place: offer.place()?, effort };
    let mut peer = peer::start(context, Task::Echo(target))?;
    let mut caller = offer.accept(deadline, std::hint::spin_loop)?;
    let address: String = peer.receive("the peer's address", deadline)?;
    if let Work::Bytes(bytes) = work {
        caller.carry(bytes);
    }
    let mut node = N::open(transport, false, deadline)?;
    let target = node.endpoint().lookup(&address).doing("looking the peer up")?;
    for _ in 0..effort.rounds {
        caller.wait_for_hello(deadline, std::hint::spin_loop)?;
        rtt::round(&mut caller, effort, &mut floors, deadline)?;
        if let Some((_, base)) = work.base() {
            node.set_work(base);
            effort.each(&mut bases, || node.call(&target, false))?;
        }
        node.set_work(work);
        effort.each(&mut samples, || node.call(&target, false))?;
        node.call(&target, true)?;
    }
    node.close();
    peer.finish(deadline)?;
    if let Work::Many(_) = work {
        return Ok(Figure::median(samples.rate(), None));
    }
    let (floor, base) = (floors.quantile(500), bases.quantile(500));
    let figure = Figure::median(samples.latency(), floor);
    let Some((name, _)) = work.base() else { return Ok(figure) };
    let more = (name == EAGER).then(|| base.zip(floor).map(|(base, trip)| base + trip));
    Ok(figure.beside(name, base).beside(EAGER_AND_TRIP, more.flatten()))
}
