//! The state of an endpoint, under one lock: operations that were started, and results that are to
//! be reported.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::c_int;
use std::time::{Duration, Instant};

use libc::ssize_t;
use ofi_sys::raw;

use super::bounds::PeerLimits;
use super::peers::{Peer, Peers};
use super::sinks::Sinks;
use super::slots::{OpSlot, Slots, copy_of};
use super::transfer_state::Running;
use crate::buffers::{local::LocalBuffers, memory::Registry, unexpected::Unexpected};
use crate::fabrics::fabric::{Domain, Ep};
use crate::providers::{address::RawAddr, provider::Provider};
use na_core::base::cheap::IntBuildHasher;
use na_core::limits::budget;
use na_core::loopback::Outcome;
use na_core::matching::{Kind, Matcher};
use na_core::{Addr, Completion, Error, LocalMem, MsgBuf, OpId, Tag};
use prim::sync::Arc;

/// Early messages of one peer that are kept, bytes.
const EARLY_BYTES_MAX: usize = 256 << 10;

/// An operation that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QueuedOp {
    /// A message, in that slot.
    Send(u32),
    /// The next parts of a transfer.
    Transfer(u64),
}

/// Operations that wait for one peer.
pub(crate) struct Queue {
    pub(crate) to: Addr,
    pub(crate) entries: VecDeque<QueuedOp>,
    /// Since when nothing was taken.
    pub(crate) since: Instant,
}

/// The answer of libfabric to an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Posted {
    Taken,
    /// Some of it; the rest not now.
    Partly,
    /// Not now.
    Again,
    /// Never, with the number of the error.
    Failed(c_int),
}

impl Posted {
    pub(crate) fn of(result: ssize_t) -> Self {
        match -result {
            0 => Self::Taken,
            again if again == raw::FI_EAGAIN as ssize_t => Self::Again,
            errno => Self::Failed(errno as c_int),
        }
    }
}

/// See [the module](super).
pub(crate) struct Core {
    /// `None`: closed. Before everything that libfabric has addresses of, so that it is dropped
    /// first.
    pub(crate) ep: Option<Ep>,
    pub(crate) slots: Slots,
    pub(crate) unexpected: Unexpected,
    /// libfabric works on registered memory only, and is told its descriptors (`FI_MR_LOCAL`).
    pub(crate) registers_all: bool,
    pub(crate) locals: LocalBuffers,
    pub(crate) domain: Arc<Domain>,
    pub(crate) provider: &'static Provider,
    pub(crate) own: Addr,
    pub(crate) own_raw: RawAddr,
    /// Goes before unexpected messages; empty if the provider tells who sends.
    pub(crate) header: Box<[u8]>,
    pub(crate) message_bytes_max: usize,
    pub(crate) connect_timeout: Duration,
    pub(crate) inject_bytes_max: usize,
    /// A message and the address before it are sent as one piece: the provider takes no two.
    pub(crate) joins: bool,
    pub(crate) peers: Peers,
    pub(crate) matcher: Matcher,
    pub(crate) registry: Registry,
    /// Operations that libfabric did not take yet, by peer.
    pub(crate) queues: HashMap<u64, Queue, IntBuildHasher>,
    /// The peers in `queues`, each once, in the order of their turns. During a retry, without those
    /// that had their turn.
    pub(crate) turns: VecDeque<u64>,
    /// Receives that it did not take yet.
    pub(crate) recvs: VecDeque<u32>,
    next_receive: u64,
    pub(crate) sinks: Sinks,
    pub(crate) idle_receives_max: usize,
    /// Bytes of all answers to all peers that have not left.
    answers: usize,
    pub(crate) bounds: PeerLimits,
    pub(crate) transfers: HashMap<u64, Running, IntBuildHasher>,
    pub(crate) next_transfer: u64,
    /// To be reported.
    pub(crate) done: VecDeque<Completion>,
    /// To be dropped without the lock: that may run the code of their owners.
    pub(crate) memories: Vec<LocalMem>,
    /// Somebody is about to sleep on the descriptors.
    pub(crate) sleeping: bool,
    /// The sleeper's bell has been rung, and not silenced since.
    pub(crate) rung: bool,
}

/// The parts that a core is made of.
pub(crate) struct CoreInit {
    pub(crate) ep: Ep,
    pub(crate) domain: Arc<Domain>,
    pub(crate) provider: &'static Provider,
    pub(crate) endpoint: u64,
    /// One buffer takes many messages.
    pub(crate) multi: bool,
    pub(crate) registers_all: bool,
    pub(crate) message_bytes_max: usize,
    pub(crate) connect_timeout: Duration,
    pub(crate) left_bytes_max: usize,
    pub(crate) unread_answers: budget::BudgetLimits,
    pub(crate) idle_peers_max: usize,
}

impl Core {
    pub(crate) fn new(parts: CoreInit) -> Result<Self, Error> {
        let CoreInit { ep, domain, provider, endpoint, message_bytes_max, .. } = parts;
        let own_raw = ep.name()?;
        let mut peers = Peers::new(endpoint, provider, parts.idle_peers_max);
        let own = peers.at(&domain, &own_raw)?;
        let tells_source = domain.info.first().caps & raw::FI_SOURCE_ERR != 0;
        let header = match tells_source {
            true => Box::default(),
            false => own_raw.header(provider),
        };
        let receives_max = match domain.info.rx_attr().size {
            // Not told.
            0 => usize::MAX,
            size => size,
        };
        Ok(Self {
            ep: Some(ep),
            slots: Slots::default(),
            unexpected: Unexpected::new(parts.multi, message_bytes_max, receives_max),
            registers_all: parts.registers_all,
            locals: LocalBuffers::default(),
            provider,
            own,
            own_raw,
            header,
            message_bytes_max,
            connect_timeout: parts.connect_timeout,
            inject_bytes_max: domain.info.tx_attr().inject_size,
            joins: domain.info.tx_attr().iov_limit < 2,
            peers,
            // Nobody tells who is gone, and some providers not who somebody is.
            matcher: Matcher::new(EARLY_BYTES_MAX, parts.left_bytes_max)
                .of_all_at_most(parts.left_bytes_max.max(EARLY_BYTES_MAX)),
            registry: Registry::default(),
            queues: HashMap::default(),
            turns: VecDeque::new(),
            recvs: VecDeque::new(),
            next_receive: 0,
            sinks: Sinks::new(receives_max),
            answers: 0,
            bounds: PeerLimits::new(domain.info.tx_attr().size, parts.unread_answers),
            // With the sinks, half of all.
            idle_receives_max: receives_max / 4,
            transfers: HashMap::default(),
            next_transfer: 0,
            done: VecDeque::new(),
            memories: Vec::new(),
            sleeping: false,
            rung: false,
            domain,
        })
    }

    /// Longest message of a kind, without what goes before it.
    pub(crate) fn bytes_max(&self, kind: Kind) -> usize {
        match kind {
            Kind::Unexpected => self.message_bytes_max.saturating_sub(self.header.len()),
            Kind::Expected => self.message_bytes_max,
        }
    }

    /// The peer behind an address of this endpoint.
    pub(crate) fn peer_of<'a>(&self, addr: &'a Addr) -> Result<&'a Peer, Error> {
        let peer = addr.state().filter(|_| addr.endpoint_id() == self.own.endpoint_id());
        peer.ok_or_else(|| {
            Error::InvalidArgument(format!("address {addr} belongs to another endpoint"))
        })
    }

    /// Starts a message to a peer that is not ourselves. It is never [injected](Self::inject): a
    /// caller that names an operation wants to hear of its end, and nobody hears of an injected
    /// message that is lost.
    pub(crate) fn send(&mut self, op: OpId, kind: Kind, to: &Addr, tag: Tag, buf: MsgBuf) {
        let to_peer = to.clone();
        let of_answer = to.state::<Peer>().filter(|_| kind == Kind::Expected);
        if let Some(peer) = of_answer {
            self.answers += peer.load.answer_waits(buf.capacity());
        }
        let (posted, given_up, again) = (false, false, None);
        let send = OpSlot::Send { op, kind, to: to_peer, tag, buf, posted, given_up, again };
        let slot = self.slots.add(send);
        self.enqueue(to, QueuedOp::Send(slot));
        if let Some(peer) = of_answer {
            if let Some(bytes) = peer.load.excess(&self.bounds) {
                self.lose(to, format!("it takes no answers: {bytes} bytes wait"));
            }
            self.lose_largest();
        }
    }

    /// Gives up the peer for which most answers wait, if more wait for all peers than may.
    fn lose_largest(&mut self) {
        if self.bounds.is_kept_by(self.answers) {
            return;
        }
        let waiting = |peer: &Addr| peer.state::<Peer>().map_or(0, |peer| peer.load.waiting());
        let largest = self.peers.all().max_by_key(|peer| waiting(peer)).cloned();
        // What libfabric has is not ours to take back, and bounded for each peer.
        let Some(largest) = largest.filter(|peer| waiting(peer) > 0) else { return };
        let bytes = waiting(&largest);
        self.lose(&largest, format!("it takes no answers: {bytes} bytes wait, most of all peers"));
    }

    /// Sends a request at once, and starts the receive of its answer in the same buffer; the buffer
    /// if the request was not sent.
    pub(crate) fn call(
        &mut self,
        op: OpId,
        to: &Addr,
        tag: Tag,
        mut buf: MsgBuf,
    ) -> Result<(), MsgBuf> {
        // The number that the receive will have.
        let answer = Some(self.next_receive + 1);
        if !self.inject(Kind::Unexpected, to, tag, buf.as_slice(), answer) {
            return Err(buf);
        }
        buf.clear();
        self.recv(op, to, tag, buf);
        Ok(())
    }

    /// Starts a receive from a peer that is not ourselves.
    pub(crate) fn recv(&mut self, op: OpId, from: &Addr, tag: Tag, buf: MsgBuf) {
        let from = from.clone();
        self.next_receive += 1;
        let (number, posted, given_up) = (self.next_receive, false, false);
        let slot = self.slots.add(OpSlot::Recv { op, from, tag, buf, number, posted, given_up });
        self.recvs.push_back(slot);
        self.post_receives();
    }

    /// Ends the operation `op` early, if it is not libfabric's to end.
    pub(crate) fn cancel(&mut self, op: OpId) {
        if let Some(completion) = self.matcher.cancel(op) {
            self.done.push_back(completion);
            return;
        }
        match self.slots.slot_of(op) {
            Some(index) => self.cancel_slot(index, &Error::Canceled),
            None => self.cancel_transfer(op),
        }
    }

    /// Ends the receive of that number, if it is there, because of `error`.
    pub(crate) fn cancel_receive(&mut self, wanted: u64, error: &Error) {
        let found = self.slots.iter().find(|(_, slot)| match slot {
            OpSlot::Recv { number, given_up, .. } => *number == wanted && !given_up,
            _ => false,
        });
        if let Some((index, _)) = found {
            self.cancel_slot(index, error);
        }
    }

    /// Ends a message or receive early, because of `error`.
    pub(crate) fn cancel_slot(&mut self, index: u32, error: &Error) {
        match self.slots.get(index) {
            OpSlot::Send { posted: true, given_up: false, op, buf, to, .. } => {
                if let Some(peer) = to.state::<Peer>() {
                    peer.load.count_loose(true);
                }
                // libfabric keeps the buffer until it has sent it or the endpoint is closed, and
                // most providers cannot cancel: the caller gets a copy. The message leaves all the
                // same, and may be answered.
                let (op, buf, result) = (*op, copy_of(buf), Ok(()));
                self.slots.give_up(index);
                self.done.push_back(Completion::Send { op, buf, result });
            }
            OpSlot::Recv { posted: true, given_up: false, op, buf, number, .. } => {
                let (bytes, result) = (buf.capacity(), Err(error.clone()));
                let (op, buf) = (*op, MsgBuf::with_capacity(bytes));
                self.sinks.add(*number, index, bytes);
                self.slots.give_up(index);
                self.done.push_back(Completion::Recv { op, buf, result });
                self.drain_sinks();
            }
            OpSlot::Send { given_up: true, .. } | OpSlot::Recv { given_up: true, .. } => {}
            OpSlot::Send { to, .. } => {
                let peer = to.peer_id();
                self.dequeue(peer, index);
                self.end_slot(index, Err(error.clone()));
            }
            OpSlot::Recv { .. } => {
                self.recvs.retain(|waiting| *waiting != index);
                self.end_slot(index, Err(error.clone()));
            }
            OpSlot::Free
            | OpSlot::Injected { .. }
            | OpSlot::Part { .. }
            | OpSlot::Unexpected { .. } => {}
        }
    }

    /// Asks libfabric to end the oldest sinks if there are too many.
    fn drain_sinks(&mut self) {
        while let Some(index) = self.sinks.excess() {
            let context = self.slots.context(index);
            if let Some(ep) = &self.ep {
                ep.cancel(context);
            }
        }
    }

    /// A message of `from` came to a sink: the receive that it is for, if there is one. If that is
    /// with libfabric, it is a sink from now on.
    pub(crate) fn heir(&mut self, from: &Addr, tag: Tag) -> Option<OpId> {
        if !self.slots.is_awaited(from, tag) {
            return None;
        }
        let of_receive = |(index, slot): (u32, &OpSlot)| match slot {
            OpSlot::Recv { from: own, tag: its, number, given_up: false, .. } => {
                (own == from && *its == tag).then_some((*number, index))
            }
            _ => None,
        };
        let (number, index) = self.slots.iter().filter_map(of_receive).min()?;
        let OpSlot::Recv { op, buf, posted, .. } = self.slots.get(index) else { return None };
        let (op, bytes) = (*op, buf.capacity());
        if *posted {
            self.slots.give_up(index);
            self.sinks.add(number, index, bytes);
            self.drain_sinks();
        } else {
            self.recvs.retain(|waiting| *waiting != index);
            self.slots.take(index);
        }
        Some(op)
    }

    /// Reports a message or receive that ended without a message.
    pub(crate) fn end_slot(&mut self, index: u32, result: Result<(), Error>) {
        let slot = self.slots.take(index);
        match &slot {
            OpSlot::Recv { number, given_up: true, .. } => self.sinks.remove(*number),
            OpSlot::Send { to, kind, buf, posted, given_up, .. } => {
                if let Some(peer) = to.state::<Peer>() {
                    if *given_up {
                        peer.load.count_loose(false);
                    }
                    if *kind == Kind::Expected {
                        self.answers -= peer.load.answer_ended(buf.capacity(), *posted);
                    }
                }
            }
            OpSlot::Injected { to, .. } => {
                if let Some(peer) = to.state::<Peer>() {
                    peer.load.count_loose(false);
                }
            }
            _ => {}
        }
        if let Some(completion) = ended(slot, result) {
            self.done.push_back(completion);
        }
    }

    /// Ends everything, with that error, and closes the endpoint.
    pub(crate) fn close(&mut self, error: &Error) {
        let Some(ep) = self.ep.take() else { return };
        // Registrations that are bound to the endpoint end before it. Others after it, because it
        // may look at those of what is under way until it is closed.
        let is_bound = self.domain.has_mr_mode(raw::FI_MR_ENDPOINT);
        if is_bound {
            self.end_registrations(&HashSet::new());
            self.locals.end_registrations();
            self.unexpected.end_registrations();
        }
        let mut kept = HashSet::new();
        if self.is_deadly_to_close() {
            tracing::warn!(
                provider = self.provider.name,
                "an endpoint is not given back: it was closed while data was under way, which its \
                 provider does not survive"
            );
            std::mem::forget(ep);
            kept = self.abandon();
        } else if !ep.close() {
            kept = self.abandon();
        }
        if !is_bound {
            self.end_registrations(&kept);
        }
        let mut ended_receives = Vec::new();
        self.matcher.fail_all(error, &mut ended_receives);
        self.done.extend(ended_receives);
        self.queues.clear();
        self.turns.clear();
        self.recvs.clear();
        self.unexpected.forget_waiting();
        for slot in self.slots.drain() {
            self.done.extend(ended(slot, Err(error.clone())));
        }
        for (_, running) in std::mem::take(&mut self.transfers) {
            let Running { op, transfer, .. } = running;
            self.done.push_back(Completion::Transfer { op, result: Err(error.clone()) });
            self.memories.push(transfer.local);
        }
        self.locals = LocalBuffers::default();
    }

    /// Ends the registrations of all memory but of the regions `kept`.
    fn end_registrations(&mut self, kept: &HashSet<u64>) {
        for running in self.transfers.values_mut() {
            running.release(kept.contains(&running.transfer.local.key()));
        }
        self.registry.close(kept);
    }

    /// Every posted expected receive, with the peer that it is from.
    pub(crate) fn awaited(&self) -> impl Iterator<Item = (u64, OpId)> {
        self.slots.iter().filter_map(|(_, slot)| match slot {
            OpSlot::Recv { op, from, given_up: false, .. } => Some((from.peer_id(), *op)),
            _ => None,
        })
    }

    /// Returns whether the endpoint must be left open. RxM (of 1.17) accesses memory that it has
    /// freed when an endpoint is closed while data is under way, in transfers or in messages that
    /// the receiver reads by itself, and neither can be canceled.
    fn is_deadly_to_close(&self) -> bool {
        // What RxM sends whole it can also inject (`rxm_buffer_size` in `rxm_init.c`).
        let is_long = |slot: &OpSlot| match slot {
            OpSlot::Send { posted: true, buf, .. } => {
                self.header.len() + buf.len() > self.inject_bytes_max
            }
            _ => false,
        };
        self.provider.protocol == raw::FI_PROTO_RXM
            && (self.transfers.values().any(Running::is_in_flight)
                || self.slots.iter().any(|(_, slot)| is_long(slot)))
    }

    /// After this libfabric may go on with everything that it has, for as long as the process
    /// lives: none of it is freed, and callers get other buffers. The memory of transfers does not
    /// come back. Software moves data in calls of ours only, of which there will be none, but an
    /// adapter does it by itself. Peers see a process that does not answer.
    ///
    /// The keys of the regions whose registrations it may look at.
    fn abandon(&mut self) -> HashSet<u64> {
        std::mem::forget(std::mem::replace(&mut self.unexpected, Unexpected::none()));
        std::mem::forget(std::mem::take(&mut self.header));
        std::mem::forget(std::mem::take(&mut self.locals));
        self.slots.abandon();
        let mut named = HashSet::new();
        for running in self.transfers.values().filter(|running| running.is_in_flight()) {
            std::mem::forget(running.transfer.local.clone());
            if self.registers_all {
                named.insert(running.transfer.local.key());
            }
        }
        named
    }

    /// Takes the memory that is to be dropped without the lock; nearly always there is none.
    #[inline]
    pub(crate) fn take_memories(&mut self) -> Option<Vec<LocalMem>> {
        (!self.memories.is_empty()).then(|| std::mem::take(&mut self.memories))
    }

    /// Takes over what messages and transfers within the endpoint came to.
    pub(crate) fn absorb(&mut self, outcome: Outcome) {
        self.done.extend(outcome.completions);
        self.memories.extend(outcome.memory);
    }
}

/// The completion of a slot; of a receive only without a message.
fn ended(slot: OpSlot, result: Result<(), Error>) -> Option<Completion> {
    match slot {
        OpSlot::Send { given_up: true, .. } | OpSlot::Recv { given_up: true, .. } => None,
        OpSlot::Send { op, buf, .. } => Some(Completion::Send { op, buf, result }),
        OpSlot::Recv { op, mut buf, .. } => {
            buf.clear();
            let error = result.err().unwrap_or(Error::Canceled);
            Some(Completion::Recv { op, buf, result: Err(error) })
        }
        OpSlot::Free
        | OpSlot::Injected { .. }
        | OpSlot::Part { .. }
        | OpSlot::Unexpected { .. } => None,
    }
}
