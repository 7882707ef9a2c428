//! Rows `na.*.rtt` and `hg.*.rtt`: a message to another process and its answer, at a layer below
//! ULTs. Rows `hg.*.rtt.1k` and `hg.*.rtt.overflow`: the same with 1 KiB of arguments beside that
//! without, and with one byte more than fits into a message beside the most that does. Rows
//! `hg.*.rate16`: 16 started, then all of their answers awaited.
//!
//! Measures one caller in a closed loop, both sides polling, nothing allocated or looked up in
//! between that the layer does not do by itself. Floor: the same round trip over bare cache lines
//! or a bare socket, in the same two processes, alternating; for a call with arguments over shared
//! memory, lines that carry as many bytes one way. From `na` to `hg` to `rpc.*.rtt.poll`
//! the differences are what each layer costs.

use na::Addr;

use crate::base::{Deadline, Doing, Effort, Figure, Result};
use crate::floors::channel;
use crate::floors::transport::{Offer, Transport, join};
use crate::process::{Context, child};

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

/// The peer's part: answers floor and figure in turns.
///
/// # Errors
///
/// When the caller falls silent.
pub(crate) fn peer<N: Node>(context: &Context, over: Transport, place: &[u8]) -> Result<()> {
    let deadline = context.deadline;
    let mut floor = join(over, place, deadline)?;
    let mut node = N::open(over, true, deadline)?;
    child::send(&node.endpoint().self_addr().uri())?;
    for _ in 0..Effort::latency(context.quick).rounds {
        floor.answer(deadline)?;
        node.answer()?;
    }
    child::poll_until_finish(deadline, || node.poll())?;
    node.close();
    Ok(())
}

/// The row.
pub(crate) fn run<N: Node>(context: &Context, over: Transport, work: Work) -> Result<Figure> {
    let (effort, deadline) = (Effort::latency(context.quick), context.deadline);
    let mut bases = effort.room(1);
    let offer = Offer::new(over)?;
    let mut peer = context.start_peer(offer.place()?)?;
    let mut caller = offer.accept(deadline)?;
    let address: String = peer.receive("the peer's address")?;
    if let Work::Bytes(bytes) = work {
        caller.carry(bytes);
    }
    let mut node = N::open(over, false, deadline)?;
    let target = node.endpoint().lookup(&address).doing("looking the peer up")?;
    let floor =
        |floors: &mut _| channel::round(&mut *caller, floors, deadline, std::hint::spin_loop);
    let [mut floors, mut samples] =
        effort.in_turns([1, work.in_flight() as u32], floor, |samples| {
            if let Some((_, base)) = work.base() {
                node.set_work(base);
                bases.each(|| node.call(&target, false))?;
            }
            node.set_work(work);
            samples.each(|| node.call(&target, false))?;
            node.call(&target, true)
        })?;
    node.close();
    peer.finish()?;
    if let Work::Many(_) = work {
        return Ok(Figure::median(samples.rate(), None));
    }
    let (floor, base) = (floors.quantile(500), bases.quantile(500));
    let figure = Figure::median(samples.latency(), floor);
    let Some((name, _)) = work.base() else { return Ok(figure) };
    let more = (name == EAGER).then(|| base.zip(floor).map(|(base, trip)| base + trip));
    Ok(figure.beside(name, base).beside(EAGER_AND_TRIP, more.flatten()))
}
