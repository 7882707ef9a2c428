//! The state of an endpoint and its work in a poll, behind the endpoint's lock. How connections
//! begin and end is in `sessions.rs`, messages are in `messages.rs`, transfers in `transfers.rs`.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use ucx_sys::{Ucp, ucp_conn_request_h, ucp_ep_h, ucs_status_t};

use super::address;
use super::discards::Discards;
use super::inbox::{ConnEvent, Event, Failing, Inbox, State};
use super::ip_family::IpFamily;
use super::keys::Due;
use super::liveness::Watch;
use super::peer::Peer;
use super::remote::Mapped;
use super::sessions::{Notices, STRANGERS_MAX, Stranger};
use super::slots::{Slots, Work};
use super::transfers::{Moving, Stream};
use super::wire::{Chunk, Control};
use super::worker::{AM_CONTROL, AM_UNEXPECTED, HELLO_TAG, Posted, Worker};
use crate::base::cheap::IntBuildHasher;
use crate::hosts::host_port::PeerKey;
use crate::limits::budget;
use crate::limits::budget::Budget;
use crate::matching::Kind;
use crate::memory::region::RetiredMemory;
use crate::{Addr, Completion, LocalMem, OpId, RegionTable, RemoteKeys};
use prim::fork::Process;
use prim::sync::Arc;

/// Looks at the network in one poll, at most.
const TURNS_PER_POLL: usize = 64;

/// Looks that find nothing, in a row, after which what a peer sent before its end has come.
const QUIET_TURNS: usize = 4;

/// Turns of a busy endpoint after which a failure is handled all the same; of those that bring
/// messages every other one counts.
const BUSY_TURNS: u32 = 100;

/// Facts about an endpoint that do not change.
pub(super) struct Facts {
    pub(super) ucp: &'static Ucp,
    pub(super) id: u64,
    pub(super) protocol: String,
    pub(super) own: Addr,
    pub(super) listens: bool,
    pub(super) message_bytes_max: usize,
    pub(super) connect_timeout: Duration,
    pub(super) regions: RegionTable,
    /// Longest time without a sign of life from a peer that owes something; zero: any.
    pub(super) liveness_limit: Duration,
    /// See [`UcxOptions`](crate::UcxOptions).
    pub(super) rendezvous_bytes_min: Option<usize>,
    pub(super) remote_keys: RemoteKeys,
    /// Connections that others may have to us.
    pub(super) connections_max: usize,
    /// Bytes of answers that may wait for a peer, and for all.
    pub(super) unread_answers: budget::BudgetLimits,
    /// `None`: whatever UCX connects can be used.
    pub(super) family: Option<IpFamily>,
}

/// The state of an endpoint.
pub(super) struct Driver {
    pub(super) facts: Facts,
    /// `None` once closed. Before `inbox`, which it refers to.
    pub(super) worker: Option<Worker>,
    pub(super) inbox: NonNull<Inbox>,
    pub(super) slots: Slots,
    pub(super) peers: Vec<Option<Peer>>,
    pub(super) free: Vec<usize>,
    pub(super) by_key: HashMap<PeerKey, usize>,
    sweep_at: usize,
    /// Connections that were accepted and have not said hello.
    pub(super) strangers: HashMap<usize, Stranger, IntBuildHasher>,
    pub(super) strangers_max: usize,
    /// Open connections that others began, strangers included.
    pub(super) accepted: usize,
    /// When to look whether a stranger has to make room, if somebody waits.
    pub(super) room_at: Option<Instant>,
    pub(super) notices: Notices,
    /// Requests for a connection that wait while there is no room for more connections.
    pub(super) callers: VecDeque<ucp_conn_request_h>,
    pub(super) connecting: usize,
    /// When to look at the limits of time of those and of the strangers: not after any of them is
    /// due. `None`: never.
    pub(super) deadline_at: Option<Instant>,
    /// `None`: nobody wants a sign of life, nor do we.
    pub(super) watch: Option<Watch>,
    pub(super) transfers: HashMap<u64, Moving, IntBuildHasher>,
    /// The numbers of those, by their operations.
    pub(super) transfer_of: HashMap<OpId, u64, IntBuildHasher>,
    /// Messages in the queues of all peers.
    pub(super) queued: usize,
    /// Counts the answers that wait.
    pub(super) answers: Arc<Budget>,
    /// Transfers with chunks to send.
    pub(super) sending: VecDeque<Stream>,
    next: u64,
    /// A random number that no other endpoint has.
    pub(super) endpoint: u64,
    /// Transfers by remote keys with pieces to move.
    pub(super) reaching: VecDeque<u64>,
    /// Memory of which peers have keys, by its own.
    pub(super) mapped: HashMap<u64, Mapped, IntBuildHasher>,
    /// Keys that peers have, and those that are to be taken back.
    pub(super) given: usize,
    pub(super) due: Arc<Due>,
    /// Connections that were closed.
    pub(super) discards: Discards,
    /// Memory to drop without the lock.
    pub(super) memory: Vec<LocalMem>,
    pub(super) held: Vec<RetiredMemory>,
    /// Somebody sleeps, or is about to, and is to be woken for whatever is done here.
    pub(super) is_asleep: bool,
    /// True if the last turn has brought something of which only messages were handled.
    is_behind: bool,
    /// There was a sleep since the last poll.
    pub(super) has_slept: bool,
    /// When the timer fires, if it is set.
    pub(super) timer_at: Option<Instant>,
    /// The worker could not be destroyed, and is left behind with the inbox.
    pub(super) is_abandoned: bool,
    pub(super) process: Process,
    /// Looks at all peers, or all that UCX has in hand, for what concerns one or none of them.
    #[cfg(test)]
    pub(super) walks: usize,
}

// SAFETY: the handles of UCX and the inbox are used by whoever has the driver, one at a time
// (`UCS_THREAD_MODE_SERIALIZED`), and are tied to no thread.
unsafe impl Send for Driver {}

impl Driver {
    pub(super) fn new(
        facts: Facts,
        worker: Worker,
        inbox: NonNull<Inbox>,
        seed: u64,
        due: Due,
    ) -> Self {
        // No two peers are known to be on one host.
        let bounds = budget::BudgetLimits { of_host: usize::MAX, ..facts.unread_answers };
        let answers = Budget::new(bounds);
        Self {
            facts,
            worker: Some(worker),
            inbox,
            slots: Slots::new(inbox.as_ptr()),
            peers: Vec::new(),
            free: Vec::new(),
            by_key: HashMap::new(),
            sweep_at: 16,
            strangers: HashMap::default(),
            strangers_max: STRANGERS_MAX,
            accepted: 0,
            room_at: None,
            notices: Notices::default(),
            callers: VecDeque::new(),
            connecting: 0,
            deadline_at: None,
            watch: None,
            transfers: HashMap::default(),
            transfer_of: HashMap::default(),
            queued: 0,
            answers,
            sending: VecDeque::new(),
            next: seed,
            endpoint: seed,
            reaching: VecDeque::new(),
            mapped: HashMap::default(),
            given: 0,
            due: Arc::new(due),
            discards: Discards::default(),
            memory: Vec::new(),
            held: Vec::new(),
            is_asleep: false,
            is_behind: false,
            has_slept: false,
            timer_at: None,
            is_abandoned: false,
            process: Process::current(),
            #[cfg(test)]
            walks: 0,
        }
    }

    #[inline]
    pub(super) fn inbox(&self) -> &Inbox {
        // SAFETY: made by `Box::into_raw` for this driver, which frees it last; only shared
        // references are made of it.
        unsafe { self.inbox.as_ref() }
    }

    /// Returns the state that callbacks have left. It must not be held across a call of the worker.
    #[inline]
    pub(super) fn state(&self) -> std::cell::RefMut<'_, State> {
        self.inbox().state()
    }

    pub(super) fn done(&self, completion: Completion) {
        self.state().done.push_back(completion);
    }

    /// A number that was not used before.
    pub(super) fn number(&mut self) -> u64 {
        self.next = self.next.wrapping_add(1);
        self.next
    }

    /// A receive of `kind` has taken a message that was there.
    pub(super) fn report_early(&self, kind: Kind, completion: Completion) {
        self.inbox().report_early(kind, completion);
    }

    /// Tests count how often everything is looked at.
    pub(super) fn walk(&mut self) {
        #[cfg(test)]
        {
            self.walks += 1;
        }
    }

    pub(super) fn peer(&mut self, index: usize) -> Option<&mut Peer> {
        self.peers.get_mut(index)?.as_mut()
    }

    /// Adds a peer, which is found by its key and reached at these addresses; without a key it is
    /// known by its connection, and has that address as text.
    pub(super) fn add_peer(
        &mut self,
        key: Option<PeerKey>,
        addresses: Vec<SocketAddr>,
        text: impl FnOnce() -> String,
    ) -> usize {
        self.sweep();
        let (id, session) = (self.number(), self.number());
        let protocol = &self.facts.protocol;
        let uri = match &key {
            Some(key) => key.uri(&address::head(protocol)),
            None => text(),
        };
        let peer = Peer::new(id, uri, key.clone(), addresses, session);
        let index = self.free.pop().unwrap_or(self.peers.len());
        if index == self.peers.len() {
            self.peers.push(None);
        }
        self.peers[index] = Some(peer);
        self.by_key.extend(key.map(|key| (key, index)));
        self.state().begin(index, session);
        index
    }

    /// Forgets peers that nothing refers to, now and then.
    fn sweep(&mut self) {
        if self.peers.len() - self.free.len() < self.sweep_at {
            return;
        }
        for index in 0..self.peers.len() {
            let awaited = || {
                self.slots.iter().any(|(_, work)| work.peer() == Some(index))
                    || self.transfers.values().any(|own| own.peer == index)
            };
            let forgotten = self.peers[index].as_ref().is_some_and(Peer::is_forgotten);
            if forgotten && !awaited() {
                if let Some(key) = self.peers[index].take().and_then(|peer| peer.key) {
                    self.by_key.remove(&key);
                }
                self.free.push(index);
            }
        }
        self.sweep_at = 2 * (self.peers.len() - self.free.len()) + 16;
    }

    /// The peer under `key`, which listens at `addresses`.
    pub(super) fn lookup(&mut self, key: PeerKey, addresses: Vec<SocketAddr>) -> Addr {
        let index = self.peer_at(key, addresses);
        let endpoint = self.facts.id;
        self.peers[index].as_mut().map_or(self.facts.own.clone(), |p| p.addr(endpoint, index, 0))
    }

    /// Returns the number of the peer under `key`, which listens at `addresses`.
    pub(super) fn peer_at(&mut self, key: PeerKey, addresses: Vec<SocketAddr>) -> usize {
        match self.by_key.get(&key) {
            Some(index) => *index,
            None => self.add_peer(Some(key), addresses, String::new),
        }
    }

    /// Tells the peer something.
    pub(super) fn tell(&mut self, index: usize, control: &Control) {
        let Some(peer) = self.peer(index) else { return };
        let (link, session) = (peer.links.first().copied(), peer.session);
        let Some(link) = link else { return };
        let goes_on = self.tell_as(link, control, |bytes| Work::Told(bytes, index, session));
        if let Some(peer) = self.peer(index) {
            peer.load.told += u32::from(goes_on);
        }
    }

    /// Sends a control message over a connection, as that work. Returns whether UCX goes on with
    /// it.
    pub(super) fn tell_as(
        &mut self,
        link: ucp_ep_h,
        control: &Control,
        work: impl FnOnce(Vec<u8>) -> Work,
    ) -> bool {
        let bytes = control.to_bytes();
        let data = (bytes.as_ptr(), bytes.len());
        let slot = self.slots.add(work(bytes));
        let pinned = self.slots.pinned(slot);
        let Some(worker) = &self.worker else { return false };
        let (id, header) = match control {
            // Nobody knows yet who is there.
            Control::Hello(_) => (AM_UNEXPECTED, (HELLO_TAG.as_ptr(), HELLO_TAG.len())),
            _ => (AM_CONTROL, (std::ptr::null(), 0)),
        };
        // SAFETY: `link` is in the list of a peer, which it leaves when it is closed; the slot owns
        // the data until the callback, and the header stays for ever.
        let posted = unsafe { worker.send_am(link, id, header, data, pinned) };
        // What fails is told by the end of the connection.
        self.posted(slot, posted)
    }

    /// Keeps a slot that goes on, and frees one that does not; whether it goes on.
    pub(super) fn posted(&mut self, slot: u32, posted: Posted) -> bool {
        match posted {
            Posted::Pending(request) => {
                self.slots.started(slot, request);
                true
            }
            Posted::Done | Posted::Failed(_) => {
                self.slots.take(slot);
                false
            }
        }
    }

    /// Moves the network, and handles what that has brought: in the next turn, if this one has
    /// brought messages, which would wait for it.
    #[inline]
    pub(super) fn turn(&mut self) {
        let (mut quiet, mut turns, mut has_brought) = (false, 0, false);
        while let Some(worker) = &self.worker {
            let moved = worker.progress();
            turns += 1;
            has_brought = !self.state().done.is_empty();
            // What has come is reported first: over TCP another look is a system call, and whoever
            // polls looks again.
            if !moved || turns >= TURNS_PER_POLL || has_brought {
                quiet = !moved;
                break;
            }
        }
        if self.discards.is_waiting() {
            self.settle_discards(quiet);
        }
        // Every other turn at the latest, whatever comes.
        self.is_behind = has_brought && !self.is_behind;
        if !self.is_behind {
            self.handle_all(quiet);
        }
    }

    /// Handles what turns have brought but messages. `quiet`: the network has nothing more.
    fn handle_all(&mut self, quiet: bool) {
        self.handle_events();
        if self.answers.calls() && self.answers.take_call() {
            self.end_overfull();
        }
        if std::mem::take(&mut self.state().has_written) {
            self.facts.regions.has_served();
        }
        if !self.state().failing.is_empty() {
            self.handle_failures(quiet);
        }
        self.send_chunks();
        self.reach();
        self.take_keys_back();
        self.look_after_peers();
        if self.connecting > 0 || !self.strangers.is_empty() {
            self.check_deadlines();
        }
        self.accept_callers();
        self.return_credits();
    }

    fn handle_events(&mut self) {
        loop {
            // Not in the loop's condition, which would borrow the state for its body.
            let Some(event) = self.state().events.pop_front() else { return };
            match event {
                Event::Connection(request) => self.called(request),
                Event::Conn(link, news) => self.came(link, news),
                Event::Finished(slot, status) => self.finished(slot, status),
            }
        }
    }

    /// An open connection has brought something.
    pub(super) fn came(&mut self, link: ucp_ep_h, news: ConnEvent) {
        match news {
            ConnEvent::Failed(status) => {
                self.state().failing.push(Failing { link, status, turns: BUSY_TURNS });
            }
            ConnEvent::Broke(rule) => self.broke(link, rule),
            ConnEvent::Control(bytes) => self.heard(link, &bytes),
            ConnEvent::Whole(chunk) => self.is_whole(link, chunk),
            ConnEvent::Stray(chunk) => self.strayed(link, chunk),
            ConnEvent::Piece(piece, offer) => self.piece_came(link, piece, offer),
            ConnEvent::Message(kind, tag, bytes) => self.inbox().message(link, kind, tag, &bytes),
        }
    }

    /// Ends the connections that have failed, once all that was sent before has come: over shared
    /// memory the news may overtake it. Nobody else's traffic can hold that up for ever.
    fn handle_failures(&mut self, mut quiet: bool) {
        for _ in 0..QUIET_TURNS {
            let Some(worker) = self.worker.as_ref().filter(|_| quiet) else { break };
            quiet = !worker.progress();
            self.handle_events();
        }
        let is_over = |failing: &Failing| quiet || failing.turns == 0;
        // One at a time: the end of one may end others, whose handles may then be in use again.
        loop {
            let mut state = self.state();
            let Some(at) = state.failing.iter().position(is_over) else { break };
            let Failing { link, status, .. } = state.failing.swap_remove(at);
            drop(state);
            self.failed(link, self.why_not(status));
        }
        self.state().failing.iter_mut().for_each(|failing| failing.turns -= 1);
    }

    /// Returns the peer at the other end of a connection, once it has greeted.
    pub(super) fn greeted_peer(&self, link: ucp_ep_h) -> Option<usize> {
        self.state().links.get(&(link as usize))?.peer.as_ref().map(|(at, _)| *at)
    }

    fn heard(&mut self, link: ucp_ep_h, bytes: &[u8]) {
        match Control::from_bytes(bytes) {
            Err(rule) => self.broke(link, rule.to_owned()),
            Ok(Control::Hello(hello)) => self.greeted(link, hello),
            Ok(control) => match self.greeted_peer(link) {
                None => self.broke(link, "it speaks before it says hello".into()),
                Some(index) => self.told(index, link, control),
            },
        }
    }

    fn told(&mut self, index: usize, link: ucp_ep_h, control: Control) {
        if self.ends_deaf(index) {
            return;
        }
        let result = match control {
            Control::Hello(_) | Control::Alive => Ok(()),
            Control::Taken(counts) => {
                if let Some(peer) = self.peer(index) {
                    for (credit, count) in peer.credits.iter_mut().zip(counts) {
                        *credit = credit.saturating_add(count).min(peer.window);
                    }
                }
                self.pump(index);
                Ok(())
            }
            Control::Ask { id, key, offset, len, write } => {
                self.asked(index, id, (key, offset, len), write)
            }
            Control::Grant { id } => self.granted(index, id),
            Control::Done { id } => self.owner_done(index, id),
            Control::Deny { id, reason } => {
                self.denied(index, id, reason);
                Ok(())
            }
            Control::Release { id } => {
                self.released(index, id);
                Ok(())
            }
            Control::Want { key } => self.wanted(index, key),
            Control::Key(given) => self.key_came(index, &given),
            Control::NoKey { key } => self.no_key_came(index, key),
            Control::Revoke { key } => self.key_revoked(index, key),
            Control::Returned { key } => self.returned(index, key),
        };
        if let Err(rule) = result {
            self.broke(link, rule.to_owned());
        }
    }

    /// All of a transfer is there.
    fn is_whole(&mut self, link: ucp_ep_h, chunk: Chunk) {
        match self.greeted_peer(link) {
            Some(index) if chunk.put => self.check_lease(index, chunk.id),
            Some(index) => self.check_own(chunk.id, index),
            None => {}
        }
    }

    fn strayed(&mut self, link: ucp_ep_h, chunk: Chunk) {
        let Some(index) = self.greeted_peer(link) else { return };
        if let Err(rule) = self.stray(index, chunk) {
            self.broke(link, rule.to_owned());
        }
    }

    /// Returns whether a poll has something to do at once.
    pub(super) fn is_busy(&self) -> bool {
        self.state().is_busy()
            || !self.sending.is_empty()
            || self.is_behind
            || self.discards.is_busy()
            || self.has_callers()
            || self.has_keys_due()
    }

    /// Takes the memory that is to be dropped without the lock; nearly always there is none.
    #[inline]
    pub(super) fn take_memory(&mut self) -> Option<(Vec<LocalMem>, Vec<RetiredMemory>)> {
        let is_some = !self.memory.is_empty() || !self.held.is_empty();
        is_some.then(|| (std::mem::take(&mut self.memory), std::mem::take(&mut self.held)))
    }

    fn return_credits(&mut self) {
        loop {
            let mut state = self.state();
            let Some(index) = state.due.pop() else { return };
            let counts = state.settle(index);
            drop(state);
            if counts != [0; 2] {
                self.tell(index, &Control::Taken(counts));
                self.ends_deaf(index);
            }
        }
    }

    /// An operation in a slot is over.
    pub(super) fn finished(&mut self, slot: u32, status: ucs_status_t) {
        match self.slots.take(slot) {
            Some(Work::Send { op, buf, peer, end, answer }) => {
                if end.is_none() {
                    self.answer_left(peer, answer);
                }
                self.sent(op, buf, peer, end, status);
            }
            Some(Work::Chunk(stream, _)) => {
                self.chunk_left(stream);
                self.chunk_sent(stream, status);
            }
            Some(Work::Packed(stream, memory)) => {
                self.chunk_left(stream);
                self.packed(stream, memory, status);
            }
            Some(Work::Lent(stream, memory)) => {
                self.memory.push(memory);
                self.piece_sent(stream, status);
            }
            Some(Work::Landing(landing)) => self.landed(landing, status),
            Some(Work::Reached(name, memory, _key)) => {
                self.memory.push(memory);
                self.reached(name, false, status);
            }
            Some(Work::Flushed(name)) => self.reached(name, true, status),
            Some(Work::Close(ended)) => self.closed(ended),
            Some(Work::Discarded(ended)) => self.discarded(ended, status),
            Some(Work::Alive(_, peer, session)) => self.alive_sent(peer, session),
            Some(Work::Told(_, peer, session)) => self.told_sent(peer, session),
            Some(Work::Hello(_, peer)) => self.hello_sent(peer, status),
            None => {}
        }
    }
}
