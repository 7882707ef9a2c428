//! Rows `na.sm.*` beyond the round trip: bulk transfers, message rate, many peers.
//!
//! The peer has one endpoint, which it only polls; the row process measures. Both sides poll.
//!
//! - `na.sm.{get,put}.{alloc,any}.SIZE`: one transfer after the other between the row process and
//!   registered memory of the peer, both from `alloc` or both plain. Floor, alternating: a copy of
//!   that size within the row process. After each round the bytes are compared.
//! - `na.sm.rate64`: unexpected messages of 64 bytes to a peer that posts its receives again; up to
//!   [`WINDOW`] sends in flight. A sample is a batch of messages; a sender that is held back shares
//!   the receiver's pace. Floor: none.
//! - `na.sm.rtt.256` and `na.sm.rtt.256.each`: the round trip of `na.sm.rtt` to an endpoint with
//!   256 peers, by one of them or by each in turn. Floor, alternating: the same to an endpoint that
//!   has one peer.

use std::cell::RefCell;
use std::sync::Arc;

use na::{
    Access, Addr, AllocOptions, Completion, Endpoint, Error, LocalMem, Memory, MsgBuf, OpId,
    OpenOptions, Tag, Transfer,
};
use serde::{Deserialize, Serialize};

use crate::base::failure::{Doing, Failure, Result};
use crate::base::row::Figure;
use crate::base::stats::{Effort, Samples};
use crate::base::wait::Deadline;
use crate::floors::memcpy::{self, touched};
use crate::process::child;
use crate::process::context::Context;
use crate::process::peer::{self, Task};

/// Sends in flight of the rate row, and receives posted.
const WINDOW: usize = 64;

/// Messages of one sample of the rate row.
const BATCH: u32 = 4096;

/// Peers of the rows that have many.
const PEERS: usize = 256;

const TAG: Tag = Tag(7);
const URI: &str = "na+sm://";

/// The order that the peer of these rows gets.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) enum Target {
    /// Owns memory of that many bytes, from `alloc` or plain.
    Owner {
        /// From `alloc`.
        shared: bool,
        /// Bytes.
        bytes: usize,
    },
    /// Takes messages.
    Sink,
    /// Answers messages, at two endpoints.
    Echo,
}

/// The peer's part.
///
/// # Errors
///
/// When an operation fails, or the row process falls silent.
pub(crate) fn peer(target: Target, deadline: Deadline) -> Result<()> {
    let listen = || na::open(URI, &OpenOptions::listening(true)).doing(URI);
    let endpoint = listen()?;
    match target {
        Target::Owner { shared, bytes } => {
            let memory = register(&*endpoint, shared, bytes)?;
            let described = endpoint.mem_to_bytes(&memory);
            child::send(&(endpoint.self_addr().uri(), described))?;
            serve(&[&*endpoint], deadline, |_, _| Ok(()))
        }
        Target::Sink => {
            child::send(&endpoint.self_addr().uri())?;
            (0..WINDOW).try_for_each(|_| post(&*endpoint))?;
            serve(&[&*endpoint], deadline, |endpoint, completion| match completion {
                Completion::Recv { buf, result: Ok(_), .. } => again(endpoint, buf),
                _ => Ok(()),
            })
        }
        Target::Echo => {
            let other = listen()?;
            let uris = [&endpoint, &other].map(|endpoint| endpoint.self_addr().uri().to_owned());
            child::send(&uris)?;
            post(&*endpoint)?;
            post(&*other)?;
            serve(&[&*endpoint, &*other], deadline, |endpoint, completion| match completion {
                Completion::Recv { buf, result: Ok(arrival), .. } => {
                    let sent = endpoint.send_expected(OpId(2), &arrival.from, arrival.tag, buf);
                    sent.doing("answering")
                }
                Completion::Send { buf, .. } => again(endpoint, buf),
                _ => Ok(()),
            })
        }
    }
}

fn post(endpoint: &dyn Endpoint) -> Result<()> {
    again(endpoint, endpoint.alloc_msg())
}

fn again(endpoint: &dyn Endpoint, buf: MsgBuf) -> Result<()> {
    endpoint.recv_unexpected(OpId(1), buf).doing("posting a receive")
}

/// Polls, the endpoints in turn, until the row process asks for the end. An endpoint has its turn
/// for as long as the row process takes for its side, so an idle one costs next to nothing.
fn serve(
    endpoints: &[&dyn Endpoint],
    deadline: Deadline,
    mut act: impl FnMut(&dyn Endpoint, Completion) -> Result<()>,
) -> Result<()> {
    let mut failed = Ok(());
    let mut current = 0;
    loop {
        let mut idle = 0;
        // An endpoint keeps its turn while it is busy.
        while idle < 4096 {
            let endpoint = endpoints[current];
            let polled = endpoint.poll(WINDOW, &mut |completion| {
                let acted = act(endpoint, completion);
                if failed.is_ok() {
                    failed = acted;
                }
            });
            idle = if polled.doing("polling")? > 0 { 0 } else { idle + 1 };
        }
        std::mem::replace(&mut failed, Ok(()))?;
        current = (current + 1) % endpoints.len();
        if child::finish_asked()? {
            return Ok(());
        }
        deadline.check("the end of the row process")?;
    }
}

fn register(endpoint: &dyn Endpoint, shared: bool, bytes: usize) -> Result<LocalMem> {
    let memory = match shared {
        true => Memory::alloc(bytes, &AllocOptions::default()).doing("allocating")?,
        false => Memory::from_vec(touched(bytes)),
    };
    let memory = endpoint.register(memory, Access::ReadWrite).doing("registering")?;
    if memory.write_at(0, &touched(bytes)) { Ok(memory) } else { Err(Failure::new("too short")) }
}

/// Polls until `done`; gives completions to `act`.
fn until(
    endpoint: &dyn Endpoint,
    deadline: Deadline,
    mut act: impl FnMut(Completion) -> bool,
) -> Result<()> {
    let (mut outcome, mut done) = (Ok(()), false);
    deadline.spin_until("a completion", || {
        let polled = endpoint.poll(WINDOW, &mut |completion| done |= act(completion));
        outcome = polled.map(drop);
        outcome.is_err() || done
    })?;
    outcome.doing("polling")
}

/// A row of transfers.
pub(crate) fn transfer(context: &Context, put: bool, shared: bool, bytes: usize) -> Result<Figure> {
    let (effort, deadline) = (Effort::transfers(context.quick, bytes), context.deadline);
    let (mut floors, mut samples) = (effort.room(1), effort.room(1));
    let mut peer = peer::start(context, Task::NaSm(Target::Owner { shared, bytes }))?;
    let (uri, described): (String, Vec<u8>) = peer.receive("the peer's address", deadline)?;
    let endpoint = na::open(URI, &OpenOptions::default()).doing(URI)?;
    let to = endpoint.lookup(&uri).doing("looking the peer up")?;
    let remote = endpoint.mem_from_bytes(&described).doing("reading a description")?;
    let local = register(&*endpoint, shared, bytes)?;
    let mut copy = memcpy::Copy::new(bytes);
    let (local_offset, remote_offset, len) = (0, 0, bytes as u64);
    let transfer = Transfer { local: local.clone(), local_offset, remote, remote_offset, len };
    let move_all = |put: bool| {
        let (op, transfer) = (OpId(1), transfer.clone());
        match put {
            true => endpoint.put(op, &to, transfer),
            false => endpoint.get(op, &to, transfer),
        }
        .doing("starting a transfer")?;
        let mut result: std::result::Result<(), Error> = Ok(());
        until(&*endpoint, deadline, |completion| {
            if let Completion::Transfer { result: ended, .. } = completion {
                result = ended;
            }
            true
        })?;
        result.doing("a transfer")
    };
    for round in 0..effort.rounds {
        copy.round(effort, &mut floors)?;
        // What is put differs from round to round, and is fetched back.
        let wanted: Vec<u8> = match put {
            true => touched(bytes).iter().map(|byte| byte.wrapping_add(round as u8)).collect(),
            false => touched(bytes),
        };
        let zero = vec![0; bytes];
        let mut is_right = local.write_at(0, if put { &wanted } else { &zero });
        effort.each(&mut samples, || move_all(put))?;
        if put {
            is_right &= local.write_at(0, &zero);
            move_all(false)?;
        }
        let mut got = zero;
        is_right &= local.read_at(0, &mut got) && got == wanted;
        if !is_right {
            return Err(Failure::new("the bytes did not arrive"));
        }
    }
    endpoint.close();
    peer.finish(deadline)?;
    let floor = floors.bandwidth(bytes).p50;
    Ok(Figure::median(samples.bandwidth(bytes), floor))
}

/// The row of the message rate.
pub(crate) fn rate(context: &Context) -> Result<Figure> {
    let (effort, deadline) =
        (Effort::transfers(context.quick, BATCH as usize * 64), context.deadline);
    let mut samples = effort.room(BATCH);
    let mut peer = peer::start(context, Task::NaSm(Target::Sink))?;
    let uri: String = peer.receive("the peer's address", deadline)?;
    let endpoint = na::open(URI, &OpenOptions::default()).doing(URI)?;
    let to = endpoint.lookup(&uri).doing("looking the peer up")?;
    let mut free: Vec<MsgBuf> = (0..WINDOW).map(|_| endpoint.alloc_msg()).collect();
    for buf in &mut free {
        buf.set_len(64);
    }
    let free = RefCell::new(free);
    for _ in 0..effort.rounds {
        effort.batched(&mut samples, || {
            while free.borrow().is_empty() {
                until(&*endpoint, deadline, |completion| {
                    if let Completion::Send { buf, .. } = completion {
                        free.borrow_mut().push(buf);
                    }
                    true
                })?;
            }
            let buf = free.borrow_mut().pop();
            let buf = buf.ok_or_else(|| Failure::new("no buffer"))?;
            endpoint.send_unexpected(OpId(1), &to, TAG, buf).doing("sending")
        })?;
    }
    until(&*endpoint, deadline, |_| true)?;
    endpoint.close();
    peer.finish(deadline)?;
    Ok(Figure::median(samples.rate(), None))
}

/// One of the endpoints that call.
struct Client {
    endpoint: Arc<dyn Endpoint>,
    to: Addr,
    buffers: RefCell<Option<(MsgBuf, MsgBuf)>>,
}

impl Client {
    fn new(uri: &str) -> Result<Self> {
        let endpoint = na::open(URI, &OpenOptions::default()).doing(URI)?;
        let to = endpoint.lookup(uri).doing("looking the peer up")?;
        let (mut outgoing, incoming) = (endpoint.alloc_msg(), endpoint.alloc_msg());
        outgoing.set_len(56);
        Ok(Self { endpoint, to, buffers: RefCell::new(Some((outgoing, incoming))) })
    }

    fn call(&self, deadline: Deadline) -> Result<()> {
        let buffers = self.buffers.borrow_mut().take();
        let (outgoing, incoming) = buffers.ok_or_else(|| Failure::new("no buffers"))?;
        let receiving = self.endpoint.recv_expected(OpId(2), &self.to, TAG, incoming);
        receiving.doing("posting a receive")?;
        self.endpoint.send_unexpected(OpId(1), &self.to, TAG, outgoing).doing("sending")?;
        let (mut sent, mut received) = (None, None);
        until(&*self.endpoint, deadline, |completion| {
            match completion {
                Completion::Send { buf, .. } => sent = Some(buf),
                Completion::Recv { buf, .. } => received = Some(buf),
                Completion::Transfer { .. } => {}
            }
            sent.is_some() && received.is_some()
        })?;
        *self.buffers.borrow_mut() = sent.zip(received);
        Ok(())
    }
}

/// A row of many peers.
pub(crate) fn peers(context: &Context, each: bool) -> Result<Figure> {
    let (effort, deadline) = (Effort::latency(context.quick), context.deadline);
    let (mut floors, mut samples): (Samples, Samples) = (effort.room(1), effort.room(1));
    let mut peer = peer::start(context, Task::NaSm(Target::Echo))?;
    let [one, many]: [String; 2] = peer.receive("the peer's addresses", deadline)?;
    let alone = Client::new(&one)?;
    let clients: Vec<_> = (0..PEERS).map(|_| Client::new(&many)).collect::<Result<_>>()?;
    for client in clients.iter().chain([&alone]) {
        client.call(deadline)?;
    }
    let mut turn = 0;
    for _ in 0..effort.rounds {
        effort.each(&mut floors, || alone.call(deadline))?;
        effort.each(&mut samples, || {
            turn = if each { (turn + 1) % PEERS } else { 0 };
            clients[turn].call(deadline)
        })?;
    }
    for client in clients.iter().chain([&alone]) {
        client.endpoint.close();
    }
    peer.finish(deadline)?;
    Ok(Figure::median(samples.latency(), floors.quantile(500)))
}
