//! Rows `na.sm.rtt` and `na.tcp.rtt`: an unexpected message of 56 bytes, and the expected one that
//! answers it. Receives are posted before their messages arrive. See [`echo`](super::echo) for how
//! it is measured.

use std::sync::Arc;

use na::{Addr, Arrival, Completion, Endpoint, MsgBuf, OpId, OpenOptions, Tag, Transfer};

use crate::base::failure::{Doing, Failure, Result};
use crate::base::wait::Deadline;
use crate::floors::channel::Transport;
use crate::rows::net::echo::{Node, Work};

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
    /// Our message buffer, holding `kind` throughout.
    fn message(&mut self, kind: u8) -> Result<MsgBuf> {
        let mut buf = self.outgoing.take().ok_or_else(|| Failure::new("a send is in flight"))?;
        buf.clear();
        if buf.try_extend(&[kind; MESSAGE_BYTES]) {
            Ok(buf)
        } else {
            Err(Failure::new("a message holds less than 56 bytes"))
        }
    }

    fn receive_buffer(&mut self) -> Result<MsgBuf> {
        self.arrival = None;
        self.incoming.take().ok_or_else(|| Failure::new("a receive is in flight"))
    }

    /// One put or get.
    pub(crate) fn transfer(&mut self, put: bool, peer: &Addr, transfer: Transfer) -> Result<()> {
        let wanted = self.transfers + 1;
        match put {
            true => self.endpoint.put(TRANSFER, peer, transfer),
            false => self.endpoint.get(TRANSFER, peer, transfer),
        }
        .doing("starting a transfer")?;
        self.poll_until(|node| node.transfers == wanted)
    }

    fn poll_until(&mut self, mut done: impl FnMut(&Self) -> bool) -> Result<()> {
        let (deadline, mut outcome) = (self.deadline, Ok(()));
        deadline.spin_until("a message", || {
            outcome = self.poll();
            outcome.is_err() || done(self)
        })?;
        outcome
    }
}

impl Node for NaNode {
    fn open(transport: Transport, listen: bool, deadline: Deadline) -> Result<Self> {
        let uri = transport.uri();
        let mut options = OpenOptions::listening(listen);
        options.no_block = true;
        let endpoint = na::open(uri, &options).doing(uri)?;
        let (outgoing, incoming) = (Some(endpoint.alloc_msg()), Some(endpoint.alloc_msg()));
        Ok(Self { endpoint, outgoing, incoming, arrival: None, transfers: 0, deadline })
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
            let arrival = self.arrival.take().ok_or_else(|| Failure::new("no arrival"))?;
            let incoming = self.receive_buffer()?;
            let kind = incoming.as_slice().first().copied().unwrap_or(LAST);
            if kind == LAST {
                self.incoming = Some(incoming);
            } else {
                self.endpoint.recv_unexpected(RECEIVE, incoming).doing("posting a receive")?;
            }
            let answer = self.message(kind)?;
            let Arrival { from, tag } = arrival;
            self.endpoint.send_expected(SEND, &from, tag, answer).doing("answering")?;
            if kind == LAST {
                return self.poll_until(|node| node.outgoing.is_some());
            }
        }
    }

    fn poll(&mut self) -> Result<()> {
        let Self { endpoint, outgoing, incoming, arrival, transfers, .. } = self;
        let mut failed = None;
        endpoint
            .poll(BUDGET, &mut |completion| match completion {
                Completion::Send { buf, result, .. } => {
                    *outgoing = Some(buf);
                    failed = result.err().or(failed.take());
                }
                Completion::Recv { buf, result, .. } => {
                    *incoming = Some(buf);
                    match result {
                        Ok(from) => *arrival = Some(from),
                        Err(error) => failed = Some(error),
                    }
                }
                Completion::Transfer { result, .. } => {
                    *transfers += 1;
                    failed = result.err().or(failed.take());
                }
            })
            .doing("polling")?;
        match failed {
            Some(error) => Err(error).doing("a message"),
            None => Ok(()),
        }
    }

    fn close(self) {
        self.endpoint.close();
    }
}
