//! Rows `fabric.*`: our endpoints over libfabric and UCX, beside bare endpoints of the same
//! provider in the same two processes, alternating.
//!
//! - `fabric.*.rtt`, `fabric.*.hg.rtt`, `fabric.*.rpc.rtt`: a message and its answer, a call of the
//!   layer without ULTs, a null RPC of margo, as in the rows `na.*.rtt`, `hg.*.rtt` and
//!   `rpc.*.rtt.poll`. Floor: messages of 56 bytes by the library's own calls.
//! - `fabric.*.hg.rate16`: as `hg.*.rate16`. No floor.
//! - `fabric.*.{get,put}.1m`: one transfer after the other between registered memory of both.
//!   Floor: the library's own read and write of the same size; a write until it is there. After
//!   each round the bytes that have arrived are compared with what they must be.
//!
//! Where the machine lacks a library or its provider, the rows say so.

use na::{Access, LocalMem, Memory, Transfer};
use serde::{Deserialize, Serialize};

use crate::base::failure::{Doing, Failure, Result};
use crate::base::row::Figure;
use crate::base::stats::Effort;
use crate::base::wait::Deadline;
use crate::floors::channel::Transport;
use crate::floors::fabric::{Fabric, Side, Verb};
use crate::floors::memcpy::touched;
use crate::process::child;
use crate::process::context::Context;
use crate::process::peer::{self, Task};
use crate::rows::net::echo::Node;
use crate::rows::net::na_node::NaNode;

/// The order that the peer of the rows with transfers gets.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Target {
    fabric: Fabric,
    /// The address of the origin's bare endpoint.
    place: Vec<u8>,
    verb: Verb,
    bytes: usize,
    effort: Effort,
}

/// The peer's answer: how bare memory is named, where its endpoint is, the description of that
/// one's memory.
type Answer = (Vec<u8>, String, Vec<u8>);

/// The memory of a side that sends, or that receives.
fn memory(sends: bool, bytes: usize) -> Vec<u8> {
    if sends { touched(bytes) } else { vec![0; bytes] }
}

fn register(node: &NaNode, sends: bool, bytes: usize) -> Result<LocalMem> {
    let memory = Memory::from_vec(memory(sends, bytes));
    node.endpoint().register(memory, Access::ReadWrite).doing("registering memory")
}

/// Returns true if `memory` holds what the other side has sent.
fn has_arrived(memory: &LocalMem, bytes: usize) -> bool {
    let mut got = vec![0; bytes];
    memory.read_at(0, &mut got) && got == touched(bytes)
}

/// The peer's part: offers memory, bare and ours in turns.
///
/// # Errors
///
/// When the origin falls silent.
pub(crate) fn peer(target: &Target, deadline: Deadline) -> Result<()> {
    let Target { fabric, place, verb, bytes, effort } = target;
    let sends = *verb == Verb::Get;
    let mut side = Side::join(*fabric, place, deadline)?;
    let name = side.expose(memory(sends, *bytes))?;
    let mut node = NaNode::open(Transport::Fabric(*fabric), true, deadline)?;
    let memory = register(&node, sends, *bytes)?;
    let described = node.endpoint().mem_to_bytes(&memory);
    let answer: Answer = (name, node.endpoint().self_addr().uri().to_owned(), described);
    child::send(&answer)?;
    for _ in 0..effort.rounds {
        side.answer(deadline)?;
        node.answer()?;
    }
    while !child::finish_asked()? {
        node.poll()?;
        deadline.check("the end of the caller")?;
    }
    let arrived = side.exposed() == touched(*bytes) && has_arrived(&memory, *bytes);
    child::send(&arrived)?;
    node.close();
    child::wait_for_finish()
}

/// Rows `fabric.*.{get,put}.*`.
pub(crate) fn transfers(
    context: &Context,
    fabric: Fabric,
    verb: Verb,
    bytes: usize,
) -> Result<Figure> {
    let (effort, deadline) = (Effort::transfers(context.quick, bytes), context.deadline);
    let (mut floors, mut samples) = (effort.room(1), effort.room(1));
    let sends = verb == Verb::Put;
    let mut side = Side::offer(fabric)?;
    let order = Target { fabric, place: side.address()?, verb, bytes, effort };
    let mut peer = peer::start(context, Task::Fabric(order))?;
    side.wait_for_join(deadline, std::hint::spin_loop)?;
    let (name, address, described): Answer = peer.receive("the peer's addresses", deadline)?;
    side.expose(memory(sends, bytes))?;
    side.aim(&name)?;
    let mut node = NaNode::open(Transport::Fabric(fabric), false, deadline)?;
    let target = node.endpoint().lookup(&address).doing("looking the peer up")?;
    let remote = node.endpoint().mem_from_bytes(&described).doing("reading a description")?;
    let local = register(&node, sends, bytes)?;
    let (local_offset, remote_offset, len) = (0, 0, bytes as u64);
    let transfer = Transfer { local: local.clone(), local_offset, remote, remote_offset, len };
    for _ in 0..effort.rounds {
        while !side.greeted()? {
            deadline.check("the responder's hello")?;
        }
        effort.each(&mut floors, || side.transfer(verb, deadline))?;
        side.stop(deadline)?;
        effort.each(&mut samples, || node.transfer(sends, &target, transfer.clone()))?;
        node.call(&target, true)?;
        if sends {
            continue;
        }
        if side.exposed() != touched(bytes) || !has_arrived(&local, bytes) {
            return Err(Failure::new("the bytes are not the peer's"));
        }
        side.exposed().fill(0);
        let _ = local.write_at(0, &vec![0; bytes]);
    }
    peer.ask_to_finish();
    let arrived: bool = peer.receive("the peer's verdict", deadline)?;
    node.close();
    peer.finish(deadline)?;
    if !arrived {
        return Err(Failure::new("the bytes at the peer are not ours"));
    }
    let floor = floors.bandwidth(bytes).p50;
    Ok(Figure::median(samples.bandwidth(bytes), floor))
}
