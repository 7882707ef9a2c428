//! The network layer as a [`Node`]: an unexpected message of 56 bytes, and the expected one that
//! answers it. Receives are posted before their messages arrive.

use std::sync::Arc;

use na::{
    Access, Addr, AllocOptions, Arrival, Completion, Endpoint, LocalMem, Memory, MsgBuf, OpId,
    OpenOptions, Tag, Transfer,
};

use super::echo::{Node, Work};
use crate::base::{Deadline, Doing, OrFail, Result, ensure};
use crate::floors::fabric::Verb;
use crate::floors::transport::Transport;

const SEND: OpId = OpId(1);
const RECEIVE: OpId = OpId(2);
const TRANSFER: OpId = OpId(3);
const TAG: Tag = Tag(7);

/// As much as fits a cache line with its number.
const MESSAGE_BYTES: usize = 56;
const CALL: u8 = 0;
const LAST: u8 = 1;

/// Completions taken in one poll.
const BUDGET: usize = 8;

/// Opens an endpoint over `transport`; `no_block`: nobody ever waits for it without polling.
pub(crate) fn open(
    transport: Transport,
    listen: bool,
    no_block: bool,
) -> Result<Arc<dyn Endpoint>> {
    let mut options = OpenOptions::listening(listen);
    options.no_block = no_block;
    na::open(transport.uri(), &options).doing(transport.uri())
}

/// Registers memory that holds `bytes`, from `alloc` or plain.
pub(crate) fn register(
    endpoint: &dyn Endpoint,
    shared: bool,
    access: Access,
    bytes: &[u8],
) -> Result<LocalMem> {
    let memory = match shared {
        true => Memory::alloc(bytes.len(), &AllocOptions::default())?,
        false => Memory::from_vec(bytes.to_vec()),
    };
    let memory = endpoint.register(memory, access).doing("registering memory")?;
    ensure!(memory.write_at(0, bytes), "memory cannot be filled");
    Ok(memory)
}

/// Returns true if `memory` holds `bytes`.
pub(crate) fn holds(memory: &LocalMem, bytes: &[u8]) -> bool {
    let mut got = vec![0; bytes.len()];
    memory.read_at(0, &mut got) && got == bytes
}

/// An endpoint with one send and one receive in flight at most. A buffer that is not in its slot is
/// with the transport.
pub(crate) struct NaNode {
    endpoint: Arc<dyn Endpoint>,
    outgoing: Option<MsgBuf>,
    incoming: Option<MsgBuf>,
    arrival: Option<Arrival>,
    /// Puts and gets that have ended.
    transfers: u64,
    deadline: Deadline,
}

impl NaNode {
    /// A node on this endpoint.
    pub(crate) fn new(endpoint: Arc<dyn Endpoint>, deadline: Deadline) -> Self {
        let (outgoing, incoming) = (Some(endpoint.alloc_msg()), Some(endpoint.alloc_msg()));
        Self { endpoint, outgoing, incoming, arrival: None, transfers: 0, deadline }
    }

    /// Our message buffer, holding `kind` throughout.
    fn message(&mut self, kind: u8) -> Result<MsgBuf> {
        let mut buf = self.outgoing.take().or_fail("a send is in flight")?;
        buf.clear();
        ensure!(buf.try_extend(&[kind; MESSAGE_BYTES]), "a message holds less than 56 bytes");
        Ok(buf)
    }

    fn receive_buffer(&mut self) -> Result<MsgBuf> {
        self.arrival = None;
        self.incoming.take().or_fail("a receive is in flight")
    }

    /// One put or get.
    pub(crate) fn transfer(&mut self, verb: Verb, peer: &Addr, transfer: Transfer) -> Result<()> {
        let wanted = self.transfers + 1;
        match verb {
            Verb::Put => self.endpoint.put(TRANSFER, peer, transfer),
            Verb::Get => self.endpoint.get(TRANSFER, peer, transfer),
        }
        .doing("starting a transfer")?;
        self.poll_until(|node| node.transfers == wanted)
    }

    fn poll_until(&mut self, mut done: impl FnMut(&Self) -> bool) -> Result<()> {
        let deadline = self.deadline;
        deadline.spin_for("a message", || {
            self.poll()?;
            Ok(done(self).then_some(()))
        })
    }
}

impl Node for NaNode {
    fn open(transport: Transport, listen: bool, deadline: Deadline) -> Result<Self> {
        Ok(Self::new(open(transport, listen, true)?, deadline))
    }

    fn set_work(&mut self, _work: Work) {}

    fn endpoint(&self) -> &dyn Endpoint {
        &*self.endpoint
    }

    fn call(&mut self, target: &Addr, last: bool) -> Result<()> {
        let buf = self.receive_buffer()?;
        self.endpoint.recv_expected(RECEIVE, target, TAG, buf).doing("posting a receive")?;
        let buf = self.message(if last { LAST } else { CALL })?;
        self.endpoint.send_unexpected(SEND, target, TAG, buf).doing("sending")?;
        self.poll_until(|node| node.arrival.is_some() && node.outgoing.is_some())
    }

    fn answer(&mut self) -> Result<()> {
        let buf = self.receive_buffer()?;
        self.endpoint.recv_unexpected(RECEIVE, buf).doing("posting a receive")?;
        loop {
            self.poll_until(|node| node.arrival.is_some() && node.outgoing.is_some())?;
            let Arrival { from, tag } = self.arrival.take().or_fail("no arrival")?;
            let incoming = self.receive_buffer()?;
            let kind = incoming.as_slice().first().copied().unwrap_or(LAST);
            if kind == LAST {
                self.incoming = Some(incoming);
            } else {
                self.endpoint.recv_unexpected(RECEIVE, incoming).doing("posting a receive")?;
            }
            let answer = self.message(kind)?;
            self.endpoint.send_expected(SEND, &from, tag, answer).doing("answering")?;
            if kind == LAST {
                return self.poll_until(|node| node.outgoing.is_some());
            }
        }
    }

    fn poll(&mut self) -> Result<()> {
        let Self { endpoint, outgoing, incoming, arrival, transfers, .. } = self;
        let mut failed = None;
        let mut sink = |completion| match completion {
            Completion::Send { buf, result, .. } => {
                *outgoing = Some(buf);
                failed = result.err().or(failed.take());
            }
            Completion::Recv { buf, result, .. } => {
                *incoming = Some(buf);
                *arrival = result.map_err(|error| failed = Some(error)).ok();
            }
            Completion::Transfer { result, .. } => {
                *transfers += 1;
                failed = result.err().or(failed.take());
            }
        };
        endpoint.poll(BUDGET, &mut sink).doing("polling")?;
        failed.map_or(Ok(()), Err).doing("a message")
    }

    fn close(self) {
        self.endpoint.close();
    }
}
