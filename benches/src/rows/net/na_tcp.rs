//! Rows `na.tcp.*` beside [`echo`](super::echo)'s `na.tcp.rtt`: two endpoints of `na+tcp`, one in
//! each process, both polling.
//!
//! - `na.tcp.rate64`: messages of 64 bytes that arrive per second while the origin always has 256
//!   sends in flight; over the whole time. No floor.
//! - `na.tcp.{get,put}.*`: one transfer after the other between registered memory of both. Floor,
//!   alternating: chunks of that size over a bare TCP connection, each asked for with 64 bytes.
//!   After each round the bytes that have arrived are compared with what they must be.
//! - `na.tcp.rtt.idle1000`: `na.tcp.rtt` with a target to which 1,000 other peers are connected.
//!   Floor, alternating: the same with a target to which nobody else is connected.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use na::{Access, Addr, Completion, Endpoint, LocalMem, Memory, MsgBuf, OpId, OpenOptions};
use na::{Tag, Transfer};
use serde::{Deserialize, Serialize};

use crate::base::failure::{Doing, Failure, Result};
use crate::base::row::Figure;
use crate::base::stats::Effort;
use crate::base::wait::Deadline;
use crate::floors::channel::Transport::Tcp;
use crate::floors::memcpy::touched;
use crate::floors::stream::{self, Style};
use crate::floors::tcp;
use crate::process::child;
use crate::process::context::Context;
use crate::process::peer::{self, Task};
use crate::rows::net::echo::Node;
use crate::rows::net::na_node::NaNode;

/// Sends that the origin of `na.tcp.rate64` has in flight, and receives that the target has posted.
const IN_FLIGHT: u64 = 256;

/// Bytes of a message of `na.tcp.rate64`.
const MESSAGE_BYTES: usize = 64;

/// Peers of `na.tcp.rtt.idle1000` that are connected and silent.
const IDLE_PEERS: usize = 1000;

/// The order that the peer of these rows gets.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Target {
    /// Take so many messages, and tell how long that took.
    Rate {
        /// Messages.
        messages: u64,
    },
    /// Offer memory, floor and figure in turns.
    Transfers {
        /// True if the origin puts.
        put: bool,
        /// Bytes of a transfer.
        bytes: usize,
        /// Rounds.
        effort: Effort,
    },
    /// Answer at one endpoint, then at the other.
    Idle {
        /// Rounds.
        effort: Effort,
    },
}

/// The peer's part.
///
/// # Errors
///
/// When the origin falls silent.
pub(crate) fn peer(target: Target, deadline: Deadline) -> Result<()> {
    match target {
        Target::Rate { messages } => take_messages(messages, deadline),
        Target::Transfers { put, bytes, effort } => offer_memory(put, bytes, effort, deadline),
        Target::Idle { effort } => answer_in_turns(effort, deadline),
    }
}

fn open(listen: bool) -> Result<Arc<dyn Endpoint>> {
    na::open(Tcp.uri(), &OpenOptions::listening(listen)).doing("opening na+tcp")
}

/// Polls until the origin's process asks for the end.
fn serve(nodes: &mut [NaNode], deadline: Deadline) -> Result<()> {
    while !child::finish_asked()? {
        nodes.iter_mut().try_for_each(NaNode::poll)?;
        deadline.check("the end of the caller")?;
    }
    Ok(())
}

/// Row `na.tcp.rate64`.
pub(crate) fn rate(context: &Context) -> Result<Figure> {
    let messages = if context.quick { 50_000 } else { 8_000_000 };
    let mut peer = peer::start(context, Task::NaTcp(Target::Rate { messages }))?;
    let address: String = peer.receive("the peer's address", context.deadline)?;
    let endpoint = open(false)?;
    let target = endpoint.lookup(&address).doing("looking the peer up")?;
    let message = |number| {
        let mut buf = endpoint.alloc_msg();
        let fits = buf.try_extend(&[1; MESSAGE_BYTES]);
        send(&endpoint, &target, number, buf).map(|()| fits)
    };
    (0..IN_FLIGHT).try_for_each(|number| message(number).map(|_| ()))?;
    let (mut begun, mut ended) = (IN_FLIGHT, 0);
    while ended < messages {
        let mut failed = None;
        let mut sink = |completion| {
            let Completion::Send { op, buf, result } = completion else { return };
            ended += 1;
            let mut outcome = result.doing("a message");
            if begun < messages && outcome.is_ok() {
                begun += 1;
                outcome = send(&endpoint, &target, op.0, buf);
            }
            failed = outcome.err().or(failed.take());
        };
        endpoint.poll(IN_FLIGHT as usize, &mut sink).doing("polling")?;
        failed.map_or(Ok(()), Err)?;
        context.deadline.check("the messages to leave")?;
    }
    let elapsed: f64 = peer.receive("the peer's time", context.deadline)?;
    peer.finish(context.deadline)?;
    endpoint.close();
    Ok(Figure::single((messages - 1) as f64 / elapsed, None))
}

fn send(endpoint: &Arc<dyn Endpoint>, to: &Addr, number: u64, buf: MsgBuf) -> Result<()> {
    endpoint.send_unexpected(OpId(number), to, Tag(7), buf).doing("sending")
}

/// Sends the seconds from the first message to the last.
fn take_messages(messages: u64, deadline: Deadline) -> Result<()> {
    let endpoint = open(true)?;
    child::send(&endpoint.self_addr().uri())?;
    for number in 0..IN_FLIGHT {
        let buf = endpoint.alloc_msg();
        endpoint.recv_unexpected(OpId(number), buf).doing("posting a receive")?;
    }
    let (mut start, mut arrived) = (None, 0);
    while arrived < messages {
        let mut failed = None;
        let mut sink = |completion| {
            let Completion::Recv { op, buf, result } = completion else { return };
            arrived += 1;
            start.get_or_insert_with(Instant::now);
            let posted = match result {
                Ok(_) if buf.len() != MESSAGE_BYTES => Err(Failure::new("a message is cut")),
                Ok(_) => endpoint.recv_unexpected(op, buf).doing("posting a receive"),
                Err(error) => Err(error).doing("a message"),
            };
            failed = posted.err().or(failed.take());
        };
        endpoint.poll(IN_FLIGHT as usize, &mut sink).doing("polling")?;
        failed.map_or(Ok(()), Err)?;
        deadline.check("the messages")?;
    }
    let elapsed = start.map_or(Duration::ZERO, |start: Instant| start.elapsed());
    child::send(&elapsed.as_secs_f64())?;
    child::wait_for_finish()?;
    endpoint.close();
    Ok(())
}

/// Rows `na.tcp.{get,put}.*`.
pub(crate) fn transfers(context: &Context, put: bool, bytes: usize) -> Result<Figure> {
    let (effort, deadline) = (Effort::transfers(context.quick, bytes), context.deadline);
    let (mut floors, mut samples) = (effort.room(1), effort.room(1));
    let order = Target::Transfers { put, bytes, effort };
    let mut peer = peer::start(context, Task::NaTcp(order))?;
    let (bare, address, key): (String, String, Vec<u8>) =
        peer.receive("the peer's addresses", deadline)?;
    let mut node = NaNode::open(Tcp, false, deadline)?;
    let target = node.endpoint().lookup(&address).doing("looking the peer up")?;
    let remote = node.endpoint().mem_from_bytes(&key).doing("reading a description of memory")?;
    let local = if put { touched(bytes) } else { vec![0; bytes] };
    let local = node.endpoint().register(Memory::from_vec(local), Access::ReadWrite);
    let local = local.doing("registering memory")?;
    let transfer = |local: &LocalMem| Transfer {
        local: local.clone(),
        local_offset: 0,
        remote: remote.clone(),
        remote_offset: 0,
        len: bytes as u64,
    };
    for _ in 0..effort.rounds {
        let mut reader = stream::Reader::connect(&bare, Style::Get, bytes, deadline)?;
        reader.round(effort, &mut floors)?;
        drop(reader);
        effort.each(&mut samples, || node.transfer(put, &target, transfer(&local)))?;
        node.call(&target, true)?;
        if put {
            continue;
        }
        let mut got = vec![0; bytes];
        if !local.read_at(0, &mut got) || got != touched(bytes) {
            return Err(Failure::new("the bytes are not the peer's"));
        }
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

fn offer_memory(put: bool, bytes: usize, effort: Effort, deadline: Deadline) -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").doing("listening on loopback")?;
    let bare = listener.local_addr().doing("asking for the port")?.to_string();
    let mut node = NaNode::open(Tcp, true, deadline)?;
    let memory = if put { vec![0; bytes] } else { touched(bytes) };
    let memory = node.endpoint().register(Memory::from_vec(memory), Access::ReadWrite);
    let memory = memory.doing("registering memory")?;
    let key = node.endpoint().mem_to_bytes(&memory);
    child::send(&(bare, node.endpoint().self_addr().uri(), key))?;
    for _ in 0..effort.rounds {
        let stream = tcp::accept(&listener, deadline, std::hint::spin_loop)?;
        stream::write_until_closed(stream, Style::Get, bytes, deadline)?;
        node.answer()?;
    }
    let mut nodes = [node];
    serve(&mut nodes, deadline)?;
    let mut got = vec![0; bytes];
    child::send(&(memory.read_at(0, &mut got) && got == touched(bytes)))?;
    nodes.into_iter().for_each(Node::close);
    child::wait_for_finish()
}

/// Row `na.tcp.rtt.idle1000`.
pub(crate) fn idle_peers(context: &Context) -> Result<Figure> {
    let (effort, deadline) = (Effort::latency(context.quick), context.deadline);
    let (mut floors, mut samples) = (effort.room(1), effort.room(1));
    let mut peer = peer::start(context, Task::NaTcp(Target::Idle { effort }))?;
    let (alone, crowded): (String, String) = peer.receive("the peer's addresses", deadline)?;
    let connect = |address: &str| {
        let node = NaNode::open(Tcp, false, deadline)?;
        let target = node.endpoint().lookup(address).doing("looking the peer up")?;
        Result::Ok((node, target))
    };
    let (mut to_alone, alone) = connect(&alone)?;
    let mut idle = Vec::new();
    for _ in 0..IDLE_PEERS {
        let (mut node, target) = connect(&crowded)?;
        node.call(&target, true)?;
        idle.push(node);
    }
    let (mut to_crowded, crowded) = connect(&crowded)?;
    for _ in 0..effort.rounds {
        effort.each(&mut floors, || to_alone.call(&alone, false))?;
        to_alone.call(&alone, true)?;
        effort.each(&mut samples, || to_crowded.call(&crowded, false))?;
        to_crowded.call(&crowded, true)?;
    }
    idle.into_iter().chain([to_alone, to_crowded]).for_each(Node::close);
    peer.finish(deadline)?;
    Ok(Figure::median(samples.latency(), floors.quantile(500)))
}

fn answer_in_turns(effort: Effort, deadline: Deadline) -> Result<()> {
    let mut nodes = [NaNode::open(Tcp, true, deadline)?, NaNode::open(Tcp, true, deadline)?];
    let uri = |node: &NaNode| node.endpoint().self_addr().uri().to_owned();
    child::send(&(uri(&nodes[0]), uri(&nodes[1])))?;
    for _ in 0..IDLE_PEERS {
        nodes[1].answer()?;
    }
    for _ in 0..effort.rounds {
        nodes.iter_mut().try_for_each(Node::answer)?;
    }
    serve(&mut nodes, deadline)?;
    nodes.into_iter().for_each(Node::close);
    Ok(())
}
