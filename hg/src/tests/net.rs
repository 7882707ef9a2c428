//! Endpoints within one thread, with faults on request.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard};

use na::{
    Access, Addr, Arrival, Completion, Endpoint, Error, LargeBuffers, Limits, LocalMem, Memory,
    MsgBuf, OpId, Refused, RegionTable, RemoteMem, Tag, Transfer,
};

use prim::sync::lock;

/// Longest message here: small, so that overflow is easy to reach.
pub(super) const MESSAGE_MAX: usize = 512;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Unexpected,
    Expected,
}

/// The kind of operation that a node refuses to start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refuse {
    Send,
    Receive,
    Transfer,
}

/// The effect of a cancel on a send that is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum CancelHeld {
    /// Nothing: it hangs.
    #[default]
    Hangs,
    /// It has begun to leave, and ends at once.
    Leaves,
    /// It is taken back.
    Stays,
}

#[derive(Debug)]
struct Message {
    from: usize,
    tag: Tag,
    bytes: Vec<u8>,
}

#[derive(Debug)]
struct Send {
    op: OpId,
    kind: Kind,
    to: usize,
    tag: Tag,
    buf: MsgBuf,
}

#[derive(Debug)]
struct Move {
    op: OpId,
    put: bool,
    peer: usize,
    transfer: Transfer,
}

#[derive(Debug, Default)]
struct Node {
    endpoint: u64,
    /// The group that it is of, and the first node of that: itself, if it is alone.
    group: (u64, usize),
    dead: bool,
    done: VecDeque<Completion>,
    unexpected_posted: VecDeque<(OpId, MsgBuf)>,
    many_posted: VecDeque<(OpId, usize)>,
    unexpected_early: VecDeque<Message>,
    expected_posted: Vec<(OpId, usize, Tag, MsgBuf)>,
    expected_early: Vec<Message>,
    held_sends: Vec<Send>,
    /// Those of them whose end was told.
    leaving: Vec<Send>,
    moves: VecDeque<Move>,
    regions: RegionTable,
    // Faults.
    hold_sends: bool,
    cancel_held: CancelHeld,
    at_once: bool,
    /// Peers copy by themselves, so that slots help.
    direct: bool,
    /// Others take it for a peer that may be a C program.
    foreign: bool,
    /// Requests for it come to this node, whose answers seem to be its own.
    leads_to: Option<usize>,
    freeze_moves: bool,
    /// Transfers wait, and can be canceled.
    stall_moves: bool,
    /// Owners of memory are not asked.
    unasked: bool,
    /// The longest message that it takes of others; 0: `MESSAGE_MAX`. Whether they know before they
    /// send.
    takes: (usize, bool),
    refuse: Option<(Refuse, usize)>,
    damage: Option<usize>,
    damage_move: bool,
    before_a_move: Hook,
    // For looking at.
    sent: Vec<(Kind, Tag, Vec<u8>)>,
    moves_started: usize,
    moves_canceled: Vec<OpId>,
}

/// A step that a test wants to happen at a certain point.
#[derive(Default)]
struct Hook(Option<Box<dyn FnOnce() + std::marker::Send>>);

impl std::fmt::Debug for Hook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hook")
    }
}

/// All nodes of one test.
#[derive(Debug, Clone, Default)]
pub(super) struct Net {
    nodes: Arc<Mutex<Vec<Node>>>,
    idle_receives_max: Arc<Mutex<Option<usize>>>,
}

/// One endpoint.
#[derive(Debug)]
pub(super) struct NodeEndpoint {
    net: Net,
    index: usize,
}

impl Net {
    fn nodes(&self) -> MutexGuard<'_, Vec<Node>> {
        lock(&self.nodes)
    }

    /// Bounds the idle receives of endpoints to come and of those that are there.
    pub(super) fn set_idle_receives_max(&self, max: usize) {
        *lock(&self.idle_receives_max) = Some(max);
    }

    pub(super) fn node(&self) -> Arc<NodeEndpoint> {
        self.group(1).remove(0)
    }

    /// Nodes that are one peer. Each of them can be looked up by itself.
    pub(super) fn group(&self, count: usize) -> Vec<Arc<NodeEndpoint>> {
        let mut nodes = self.nodes();
        let (first, regions) = (nodes.len(), RegionTable::default());
        let family = Addr::unique_endpoint_id();
        let member = |index| {
            let (endpoint, regions) = (Addr::unique_endpoint_id(), regions.clone());
            nodes.push(Node { endpoint, group: (family, first), regions, ..Node::default() });
            Arc::new(NodeEndpoint { net: self.clone(), index })
        };
        (first..first + count).map(member).collect()
    }
}

fn addr(nodes: &[Node], at: usize, peer: usize) -> Addr {
    let addr = Addr::new(format!("na+test://{peer}"), nodes[at].endpoint, peer as u64, ());
    addr.of_identity(nodes[at].group.0, nodes[peer].group.1 as u64)
}

fn gone(peer: usize) -> Error {
    Error::PeerGone { peer: format!("na+test://{peer}"), reason: "killed by the test".into() }
}

fn fill(mut buf: MsgBuf, op: OpId, message: &Message, from: Addr) -> Completion {
    buf.clear();
    assert!(buf.try_extend(&message.bytes), "message longer than the buffer");
    Completion::Recv { op, buf, result: Ok(Arrival { from, tag: message.tag }) }
}

/// Brings a message to its receive, or lets it wait for one.
fn arrive(nodes: &mut [Node], to: usize, kind: Kind, message: Message) {
    let from = addr(nodes, to, message.from);
    let node = &mut nodes[to];
    match kind {
        Kind::Unexpected => match node.next_receive(message.bytes.len()) {
            Some((op, buf)) => node.done.push_back(fill(buf, op, &message, from)),
            None => node.unexpected_early.push_back(message),
        },
        Kind::Expected => {
            let wanted =
                |posted: &(_, usize, Tag, _)| (posted.1, posted.2) == (message.from, message.tag);
            match node.expected_posted.iter().position(wanted) {
                Some(at) => {
                    let (op, _, _, buf) = node.expected_posted.remove(at);
                    node.done.push_back(fill(buf, op, &message, from));
                }
                None => node.expected_early.push(message),
            }
        }
    }
}

fn send_now(nodes: &mut [Node], at: usize, send: Send) {
    let Send { op, kind, mut to, tag, buf } = send;
    let mut from = at;
    match kind {
        Kind::Unexpected => to = nodes[to].leads_to.unwrap_or(to),
        Kind::Expected => {
            from = nodes.iter().position(|node| node.leads_to == Some(at)).unwrap_or(at);
        }
    }
    let result = match nodes[to].max() {
        _ if nodes[to].dead => Err(gone(to)),
        max if buf.len() > max => Err(Error::TooLong { len: buf.len(), max }),
        _ => Ok(()),
    };
    if result.is_ok() {
        let mut bytes = buf.as_slice().to_vec();
        if let Some(at) = nodes[at].damage.take() {
            bytes[at] ^= 1;
        }
        nodes[at].sent.push((kind, tag, bytes.clone()));
        arrive(nodes, to, kind, Message { from, tag, bytes });
    }
    nodes[at].done.push_back(Completion::Send { op, buf, result });
}

fn move_now(nodes: &mut [Node], at: usize, Move { op, put, peer, transfer }: Move) {
    let Transfer { local, local_offset, remote, remote_offset, len } = transfer;
    let lease = nodes[peer].regions.lease(remote.key, remote_offset, len, put);
    let result = match lease {
        _ if nodes[peer].dead => Err(gone(peer)),
        Err(reason) => Err(Error::Denied { peer: format!("na+test://{peer}"), reason }),
        Ok(lease) => {
            let mut bytes = vec![0; len as usize];
            let (from, from_at, to, to_at) = if put {
                (&local, local_offset, &lease, remote_offset)
            } else {
                (&lease, remote_offset, &local, local_offset)
            };
            assert!(from.read_at(from_at, &mut bytes));
            if std::mem::take(&mut nodes[at].damage_move) {
                bytes[0] ^= 1;
            }
            assert!(to.write_at(to_at, &bytes));
            Ok(())
        }
    };
    nodes[at].done.push_back(Completion::Transfer { op, result });
}

impl Node {
    /// The receive that the next request takes.
    fn next_receive(&mut self, len: usize) -> Option<(OpId, MsgBuf)> {
        if let Some(single) = self.unexpected_posted.pop_front() {
            return Some(single);
        }
        let (op, left) = self.many_posted.front_mut()?;
        let op = *op;
        *left -= 1;
        if *left == 0 {
            self.many_posted.pop_front();
        }
        Some((op, MsgBuf::with_capacity(len)))
    }

    fn max(&self) -> usize {
        if self.takes.0 == 0 { MESSAGE_MAX } else { self.takes.0 }
    }
}

impl NodeEndpoint {
    pub(super) fn net(&self) -> &Net {
        &self.net
    }

    /// As over a network that asks no owner.
    pub(super) fn asks_nobody(&self) {
        self.with(|node| node.unasked = true);
    }

    /// Others may send it messages of up to `max` bytes. `known`: they are refused what is longer
    /// when they send it, and not only later.
    pub(super) fn takes(&self, max: usize, known: bool) {
        self.with(|node| node.takes = (max, known));
    }

    fn with<R>(&self, f: impl FnOnce(&mut Node) -> R) -> R {
        f(&mut self.net.nodes()[self.index])
    }

    /// Calls `then` when a transfer is asked for next, before it is started.
    pub(super) fn before_a_move(&self, then: impl FnOnce() + std::marker::Send + 'static) {
        self.with(|node| node.before_a_move = Hook(Some(Box::new(then))));
    }

    /// Sends complete only when released.
    pub(super) fn hold_sends(&self, on: bool) {
        let mut nodes = self.net.nodes();
        nodes[self.index].hold_sends = on;
        if !on {
            for send in std::mem::take(&mut nodes[self.index].leaving) {
                let Send { kind, to, tag, buf, .. } = send;
                let message = Message { from: self.index, tag, bytes: buf.as_slice().to_vec() };
                arrive(&mut nodes, to, kind, message);
            }
            for send in std::mem::take(&mut nodes[self.index].held_sends) {
                send_now(&mut nodes, self.index, send);
            }
        }
    }

    /// The messages of sends that are held.
    pub(super) fn held(&self) -> Vec<Vec<u8>> {
        self.with(|node| node.held_sends.iter().map(|send| send.buf.as_slice().to_vec()).collect())
    }

    /// Sets the effect of a cancel on sends that are held.
    pub(super) fn cancel_held(&self, how: CancelHeld) {
        self.with(|node| node.cancel_held = how);
    }

    /// Messages are taken at once and have no completion.
    pub(super) fn direct(&self) {
        self.with(|node| node.direct = true);
    }

    /// Others take it for a program of C from now on.
    pub(super) fn is_foreign_to_others(&self) {
        self.with(|node| node.foreign = true);
    }

    /// Somebody leads requests for it on to another one.
    pub(super) fn leads_to(&self, other: &Self) {
        self.with(|node| node.leads_to = Some(other.index));
    }

    pub(super) fn at_once(&self) {
        self.with(|node| node.at_once = true);
    }

    /// Transfers that we ask for wait, and do not react to cancel: as if the owner were hung.
    pub(super) fn freeze_moves(&self, on: bool) {
        self.with(|node| node.freeze_moves = on);
    }

    /// Lets transfers wait, as for an owner that is stopped. They can be canceled.
    pub(super) fn stall_moves(&self, on: bool) {
        self.with(|node| node.stall_moves = on);
    }

    /// Refuses to start the next operation of that kind.
    pub(super) fn refuse(&self, what: Refuse) {
        self.refuse_after(what, 0);
    }

    /// Refuses to start an operation of that kind, once, after so many more.
    pub(super) fn refuse_after(&self, what: Refuse, more: usize) {
        self.with(|node| node.refuse = Some((what, more)));
    }

    /// Flips a bit in that byte of the next message.
    pub(super) fn damage(&self, at: usize) {
        self.with(|node| node.damage = Some(at));
    }

    /// Flips a bit of what our next transfer moves.
    pub(super) fn damage_transfer(&self) {
        self.with(|node| node.damage_move = true);
    }

    fn refuses(&self, what: Refuse) -> bool {
        self.with(|node| match &mut node.refuse {
            Some((refuse, 0)) if *refuse == what => node.refuse.take().is_some(),
            Some((refuse, more)) if *refuse == what => {
                *more -= 1;
                false
            }
            _ => false,
        })
    }

    /// Dies: peers learn it, nothing else happens.
    pub(super) fn kill(&self) {
        let mut nodes = self.net.nodes();
        nodes[self.index].dead = true;
        for at in (0..nodes.len()).filter(|at| *at != self.index) {
            let node = &mut nodes[at];
            let (lost, kept) = std::mem::take(&mut node.expected_posted)
                .into_iter()
                .partition(|(_, from, _, _)| *from == self.index);
            node.expected_posted = kept;
            let failed = Vec::into_iter(lost).map(|(op, _, _, buf)| Completion::Recv {
                op,
                buf,
                result: Err(gone(self.index)),
            });
            node.done.extend(failed);
            for send in std::mem::take(&mut node.held_sends) {
                send_now(&mut nodes, at, send);
            }
        }
    }

    /// The messages sent so far.
    pub(super) fn sent(&self) -> Vec<(Kind, Tag, Vec<u8>)> {
        self.with(|node| node.sent.clone())
    }

    pub(super) fn moves_started(&self) -> usize {
        self.with(|node| node.moves_started)
    }

    /// Transfers that were to be canceled, as often as they were.
    pub(super) fn moves_canceled(&self) -> Vec<OpId> {
        self.with(|node| node.moves_canceled.clone())
    }

    /// Memory that peers can use now.
    pub(super) fn registered(&self) -> usize {
        self.with(|node| node.regions.len())
    }

    /// Receives posted for requests, and for expected messages.
    pub(super) fn posted(&self) -> (usize, usize) {
        self.with(|node| {
            let many: usize = node.many_posted.iter().map(|(_, left)| left).sum();
            (node.unexpected_posted.len() + many, node.expected_posted.len())
        })
    }

    fn peer(&self, peer: &Addr) -> Result<usize, Error> {
        let own = self.with(|node| node.endpoint);
        if peer.endpoint_id() == own {
            Ok(peer.peer_id() as usize)
        } else {
            Err(Error::InvalidArgument("foreign address".into()))
        }
    }

    fn send(&self, op: OpId, kind: Kind, to: &Addr, tag: Tag, buf: MsgBuf) -> Result<(), Refused> {
        if self.refuses(Refuse::Send) {
            return Err(Refused { error: Error::InvalidArgument("told to refuse".into()), buf });
        }
        if self.with(|node| node.dead) {
            return Err(Refused { error: Error::Closed, buf });
        }
        let to = match self.peer(to) {
            Ok(to) => to,
            Err(error) => return Err(Refused { error, buf }),
        };
        let mut nodes = self.net.nodes();
        let max = if nodes[to].takes.1 { nodes[to].max() } else { MESSAGE_MAX };
        if buf.len() > max {
            let error = Error::TooLong { len: buf.len(), max };
            return Err(Refused { error, buf });
        }
        let send = Send { op, kind, to, tag, buf };
        if nodes[self.index].hold_sends {
            nodes[self.index].held_sends.push(send);
        } else {
            send_now(&mut nodes, self.index, send);
        }
        Ok(())
    }

    fn take_at_once(&self, kind: Kind, to: &Addr, tag: Tag, message: &[u8]) -> bool {
        let Ok(to) = self.peer(to) else { return false };
        let mut nodes = self.net.nodes();
        let taken = nodes[self.index].at_once && !nodes[to].dead;
        if taken {
            let bytes = message.to_vec();
            nodes[self.index].sent.push((kind, tag, bytes.clone()));
            arrive(&mut nodes, to, kind, Message { from: self.index, tag, bytes });
        }
        taken
    }

    fn start_move(
        &self,
        op: OpId,
        put: bool,
        peer: &Addr,
        transfer: Transfer,
    ) -> Result<(), Error> {
        if self.refuses(Refuse::Transfer) {
            return Err(Error::InvalidArgument("told to refuse".into()));
        }
        if let Some(then) = self.with(|node| node.before_a_move.0.take()) {
            then();
        }
        RegionTable::check_transfer(&transfer, put)?;
        let peer = self.peer(peer)?;
        self.with(|node| {
            if node.dead {
                return Err(Error::Closed);
            }
            node.moves_started += 1;
            node.moves.push_back(Move { op, put, peer, transfer });
            Ok(())
        })
    }
}

impl Endpoint for NodeEndpoint {
    fn transport(&self) -> &'static str {
        "test"
    }

    fn asks_owners(&self) -> bool {
        !self.with(|node| node.unasked)
    }

    fn may_meet_mercury(&self) -> bool {
        true
    }

    fn carries_extensions(&self, to: &Addr) -> bool {
        let peer = self.peer(to);
        peer.is_ok_and(|peer| !self.net.nodes()[peer].foreign)
    }

    fn limits(&self) -> Limits {
        Limits { unexpected_bytes_max: MESSAGE_MAX, expected_bytes_max: MESSAGE_MAX }
    }

    fn idle_receives_max(&self) -> usize {
        lock(&self.net.idle_receives_max).unwrap_or(usize::MAX)
    }

    fn self_addr(&self) -> Addr {
        addr(&self.net.nodes(), self.index, self.index)
    }

    fn lookup(&self, uri: &str) -> Result<Addr, Error> {
        let bad = || Error::BadUri { uri: uri.into(), reason: "no node of the test".into() };
        let peer = uri.strip_prefix("na+test://").and_then(|n| n.parse().ok()).ok_or_else(bad)?;
        let nodes = self.net.nodes();
        if peer < nodes.len() { Ok(addr(&nodes, self.index, peer)) } else { Err(bad()) }
    }

    fn send_unexpected(&self, op: OpId, to: &Addr, tag: Tag, buf: MsgBuf) -> Result<(), Refused> {
        self.send(op, Kind::Unexpected, to, tag, buf)
    }

    fn send_expected(&self, op: OpId, to: &Addr, tag: Tag, buf: MsgBuf) -> Result<(), Refused> {
        self.send(op, Kind::Expected, to, tag, buf)
    }

    fn send_unexpected_now(&self, to: &Addr, tag: Tag, message: &[u8]) -> bool {
        self.take_at_once(Kind::Unexpected, to, tag, message)
    }

    fn send_expected_now(&self, to: &Addr, tag: Tag, message: &[u8]) -> bool {
        self.take_at_once(Kind::Expected, to, tag, message)
    }

    fn recv_unexpected(&self, op: OpId, buf: MsgBuf) -> Result<(), Refused> {
        if self.with(|node| node.dead) {
            return Err(Refused { error: Error::Closed, buf });
        }
        let mut nodes = self.net.nodes();
        match nodes[self.index].unexpected_early.pop_front() {
            Some(message) => {
                let from = addr(&nodes, self.index, message.from);
                nodes[self.index].done.push_back(fill(buf, op, &message, from));
            }
            None => nodes[self.index].unexpected_posted.push_back((op, buf)),
        }
        Ok(())
    }

    fn has_multi_recv(&self) -> bool {
        true
    }

    fn multi_recv_unexpected(
        &self,
        op: OpId,
        count: usize,
        _buffers: &LargeBuffers,
    ) -> Result<(), Error> {
        if self.with(|node| node.dead) {
            return Err(Error::Closed);
        }
        let mut nodes = self.net.nodes();
        nodes[self.index].many_posted.push_back((op, count));
        let early = std::mem::take(&mut nodes[self.index].unexpected_early);
        for message in early {
            arrive(&mut nodes, self.index, Kind::Unexpected, message);
        }
        Ok(())
    }

    fn recv_expected(&self, op: OpId, from: &Addr, tag: Tag, buf: MsgBuf) -> Result<(), Refused> {
        if self.refuses(Refuse::Receive) {
            return Err(Refused { error: Error::InvalidArgument("told to refuse".into()), buf });
        }
        let from = match self.peer(from) {
            Ok(from) => from,
            Err(error) => return Err(Refused { error, buf }),
        };
        let mut nodes = self.net.nodes();
        if nodes[from].dead {
            let failed = Completion::Recv { op, buf, result: Err(gone(from)) };
            nodes[self.index].done.push_back(failed);
            return Ok(());
        }
        let early = &nodes[self.index].expected_early;
        match early.iter().position(|early| (early.from, early.tag) == (from, tag)) {
            Some(at) => {
                let message = nodes[self.index].expected_early.remove(at);
                let from = addr(&nodes, self.index, from);
                nodes[self.index].done.push_back(fill(buf, op, &message, from));
            }
            None => nodes[self.index].expected_posted.push((op, from, tag, buf)),
        }
        Ok(())
    }

    fn call_now(&self, op: OpId, to: &Addr, tag: Tag, mut buf: MsgBuf) -> Result<(), MsgBuf> {
        // Refusing a receive is for who posts it in turn.
        let refuses = self.with(|node| matches!(node.refuse, Some((Refuse::Receive, _))));
        if refuses || !self.take_at_once(Kind::Unexpected, to, tag, buf.as_slice()) {
            return Err(buf);
        }
        buf.clear();
        self.recv_expected(op, to, tag, buf).map_err(|refused| refused.buf)
    }

    fn register(&self, memory: Memory, access: Access) -> Result<LocalMem, Error> {
        self.with(|node| node.regions.register(memory, access))
    }

    fn mem_to_bytes(&self, memory: &LocalMem) -> Vec<u8> {
        RemoteMem { key: memory.key(), len: memory.len(), access: memory.access(), native: None }
            .to_bytes()
            .to_vec()
    }

    fn mem_from_bytes(&self, bytes: &[u8]) -> Result<RemoteMem, Error> {
        RemoteMem::from_bytes(bytes)
            .ok_or_else(|| Error::InvalidArgument("not a memory description".into()))
    }

    fn put(&self, op: OpId, to: &Addr, transfer: Transfer) -> Result<(), Error> {
        self.start_move(op, true, to, transfer)
    }

    fn get(&self, op: OpId, from: &Addr, transfer: Transfer) -> Result<(), Error> {
        self.start_move(op, false, from, transfer)
    }

    fn cancel(&self, op: OpId) {
        self.with(|node| {
            if let Some(at) = node.expected_posted.iter().position(|posted| posted.0 == op) {
                let (op, _, _, buf) = node.expected_posted.remove(at);
                node.done.push_back(Completion::Recv { op, buf, result: Err(Error::Canceled) });
            }
            if let Some(at) = node.moves.iter().position(|pending| pending.op == op) {
                node.moves_canceled.push(op);
                if !node.freeze_moves {
                    node.moves.remove(at);
                    node.done.push_back(Completion::Transfer { op, result: Err(Error::Canceled) });
                }
            }
            if let Some(at) = node.held_sends.iter().position(|held| held.op == op) {
                let result = match node.cancel_held {
                    CancelHeld::Hangs => return,
                    CancelHeld::Leaves => Ok(()),
                    CancelHeld::Stays => Err(Error::Canceled),
                };
                let send = node.held_sends.remove(at);
                let mut buf = MsgBuf::with_capacity(send.buf.capacity());
                assert!(buf.try_extend(send.buf.as_slice()));
                if result.is_ok() {
                    node.leaving.push(send);
                }
                node.done.push_back(Completion::Send { op, buf, result });
            }
        });
    }

    fn poll(&self, budget: usize, sink: &mut dyn FnMut(Completion)) -> Result<usize, Error> {
        let mut nodes = self.net.nodes();
        let waits = |node: &Node| node.freeze_moves || node.stall_moves;
        while !waits(&nodes[self.index])
            && let Some(pending) = nodes[self.index].moves.pop_front()
        {
            move_now(&mut nodes, self.index, pending);
        }
        let count = budget.min(nodes[self.index].done.len());
        let done: Vec<_> = nodes[self.index].done.drain(..count).collect();
        drop(nodes);
        done.into_iter().for_each(sink);
        Ok(count)
    }

    fn prepare_wait(&self) -> bool {
        self.with(|node| node.done.is_empty() && node.moves.is_empty())
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn close(&self) {
        self.kill();
        self.with(|node| {
            let result = || Err(Error::Closed);
            let many = node.many_posted.drain(..).map(|(op, _)| (op, MsgBuf::with_capacity(0)));
            let requests = node.unexpected_posted.drain(..).chain(many);
            let replies = node.expected_posted.drain(..).map(|(op, _, _, buf)| (op, buf));
            let receives = requests.chain(replies).map(|(op, buf)| Completion::Recv {
                op,
                buf,
                result: Err(Error::Closed),
            });
            node.done.extend(receives);
            let sends = node.held_sends.drain(..);
            node.done.extend(sends.map(|send| Completion::Send {
                op: send.op,
                buf: send.buf,
                result: result(),
            }));
            let moves = node.moves.drain(..);
            node.done.extend(
                moves.map(|pending| Completion::Transfer { op: pending.op, result: result() }),
            );
        });
    }

    fn direct_bytes_max(&self, _peer: &Addr) -> u64 {
        if self.with(|node| node.direct) { 1 << 20 } else { 0 }
    }

    fn bulk_path(&self) -> String {
        "copies within the process".into()
    }
}
