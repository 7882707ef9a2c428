//! Connections: how peers meet, what they tell each other, and how it ends. Behind the endpoint's
//! lock; messages are in `messages.rs`, transfers in `transfers.rs`.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use ucx_sys::{Ucp, ucp_ep_h, ucs_status_t};

use super::address;
use super::inbox::{Event, Inbox, Link, State};
use super::liveness::{self, Watch};
use super::messages::GivenUp;
use super::peer::{Peer, Phase};
use super::slots::{Slots, Work};
use super::transfers::{Moving, Stream};
use super::wire::{Control, Hello};
use super::worker::{self, AM_CONTROL, Posted, Worker};
use crate::cheap::Cheap;
use crate::matching::Kind;
use crate::{Addr, Completion, Error, LocalMem, RegionTable};

/// Looks at the network in one poll, at most.
const TURNS_PER_POLL: usize = 64;

/// Looks that find nothing, in a row, after which what a peer sent before its end has come.
const QUIET_TURNS: usize = 4;

/// Polls of a busy endpoint after which a failure is handled all the same.
const BUSY_TURNS: u32 = 100;

/// Connections that have not said hello, at most.
const STRANGERS_MAX: usize = 256;

/// What does not change.
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
    pub(super) by_address: HashMap<SocketAddr, usize>,
    sweep_at: usize,
    /// Connections that were taken and have not said who they are, with where they come from.
    pub(super) strangers: HashMap<usize, (Option<SocketAddr>, Instant), Cheap>,
    pub(super) connecting: usize,
    /// Connections that have failed, and how many polls more their last messages are waited for.
    pub(super) failing: Vec<(ucp_ep_h, ucs_status_t, u32)>,
    /// Who wants signs of life, and when.
    pub(super) watch: Watch,
    pub(super) given_up: VecDeque<GivenUp>,
    pub(super) transfers: HashMap<u64, Moving>,
    /// Transfers with chunks to send.
    pub(super) sending: VecDeque<Stream>,
    next: u64,
    /// Memory to drop without the lock.
    pub(super) memory: Vec<LocalMem>,
    /// Somebody sleeps, or is about to, and is to be woken for whatever is done here.
    pub(super) is_asleep: bool,
    /// There was a sleep since the last poll.
    pub(super) has_slept: bool,
    /// The timer is set.
    pub(super) has_timer: bool,
    /// The worker could not be destroyed, and is left behind with the inbox.
    pub(super) is_abandoned: bool,
}

// SAFETY: the handles of UCX and the inbox are used by whoever has the driver, one at a time
// (`UCS_THREAD_MODE_SERIALIZED`), and are tied to no thread.
unsafe impl Send for Driver {}

impl Driver {
    pub(super) fn new(facts: Facts, worker: Worker, inbox: NonNull<Inbox>, seed: u64) -> Self {
        Self {
            facts,
            worker: Some(worker),
            inbox,
            slots: Slots::new(inbox.as_ptr()),
            peers: Vec::new(),
            free: Vec::new(),
            by_address: HashMap::new(),
            sweep_at: 16,
            strangers: HashMap::default(),
            connecting: 0,
            failing: Vec::new(),
            watch: Watch::default(),
            given_up: VecDeque::new(),
            transfers: HashMap::new(),
            sending: VecDeque::new(),
            next: seed,
            memory: Vec::new(),
            is_asleep: false,
            has_slept: false,
            has_timer: false,
            is_abandoned: false,
        }
    }

    #[inline]
    pub(super) fn inbox(&self) -> &Inbox {
        // SAFETY: made by `Box::into_raw` for this driver, which frees it last; only shared
        // references are made of it.
        unsafe { self.inbox.as_ref() }
    }

    /// What callbacks have left; not across a call of the worker.
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

    /// A receive of any source has taken a message that was there.
    pub(super) fn report_early(&self, completion: Completion) {
        self.inbox().report(Kind::Unexpected, completion);
    }

    pub(super) fn peer(&mut self, index: usize) -> Option<&mut Peer> {
        self.peers.get_mut(index)?.as_mut()
    }

    fn add_peer(&mut self, uri: String, address: Option<SocketAddr>) -> usize {
        self.sweep();
        let (id, session) = (self.number(), self.number());
        let source = self.number() as u32;
        let peer = Peer::new(id, uri, address, session, source);
        let index = self.free.pop().unwrap_or(self.peers.len());
        if index == self.peers.len() {
            self.peers.push(None);
        }
        self.peers[index] = Some(peer);
        self.by_address.extend(address.map(|address| (address, index)));
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
                if let Some(address) = self.peers[index].take().and_then(|peer| peer.address) {
                    self.by_address.remove(&address);
                }
                self.free.push(index);
            }
        }
        self.sweep_at = 2 * (self.peers.len() - self.free.len()) + 16;
    }

    /// The peer that listens at `address`.
    pub(super) fn lookup(&mut self, address: SocketAddr) -> Addr {
        let index = match self.by_address.get(&address) {
            Some(index) => *index,
            None => self.add_peer(address::uri_of(&self.facts.protocol, address), Some(address)),
        };
        let endpoint = self.facts.id;
        self.peers[index].as_mut().map_or(self.facts.own.clone(), |p| p.addr(endpoint, index, 0))
    }

    /// Makes a connection, if there is none.
    pub(super) fn dial(&mut self, index: usize) {
        let timeout = self.facts.connect_timeout;
        let Some(peer) = self.peers[index].as_mut() else { return };
        let (Phase::Idle, Some(address)) = (peer.phase, peer.address) else { return };
        let Some(worker) = &self.worker else { return };
        peer.phase = Phase::Connecting;
        peer.deadline = Instant::now().checked_add(timeout);
        self.connecting += 1;
        match worker.connect(address) {
            Ok(link) => {
                self.state().links.insert(link as usize, Link::default());
                if let Some(peer) = self.peer(index) {
                    peer.links.push(link);
                }
                self.greet(index, link);
            }
            Err(status) => {
                let reason = worker::text(self.facts.ucp, status);
                self.end_session(index, reason);
            }
        }
    }

    /// Says who we are.
    fn greet(&mut self, index: usize, link: ucp_ep_h) {
        let window = self.inbox().window();
        let uri = match self.facts.listens {
            true => self.facts.own.uri().to_owned(),
            false => String::new(),
        };
        let message_bytes_max = self.facts.message_bytes_max as u32;
        let alive_every_ms = liveness::alive_every_ms(self.facts.liveness_limit);
        let Some(peer) = self.peer(index) else { return };
        let (session, source) = (peer.session, peer.source);
        let hello = Hello { session, message_bytes_max, source, window, alive_every_ms, uri };
        self.tell_on(link, &Control::Hello(hello));
    }

    /// Tells the peer something.
    pub(super) fn tell(&mut self, index: usize, control: &Control) {
        if let Some(link) = self.peer(index).and_then(|peer| peer.links.first().copied()) {
            self.tell_on(link, control);
        }
    }

    fn tell_on(&mut self, link: ucp_ep_h, control: &Control) {
        let bytes = control.to_bytes();
        let data = (bytes.as_ptr(), bytes.len());
        let slot = self.slots.add(Work::Bytes(bytes));
        let pinned = self.slots.pinned(slot);
        let Some(worker) = &self.worker else { return };
        // SAFETY: `link` is in the list of a peer, which it leaves when it is closed; the slot owns
        // the data until the callback.
        let posted =
            unsafe { worker.send_am(link, AM_CONTROL, (std::ptr::null(), 0), data, pinned) };
        // What fails is told by the end of the connection.
        self.posted(slot, posted);
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

    /// Moves the network, and handles what that has brought.
    pub(super) fn turn(&mut self, wanted: usize) {
        let (mut quiet, mut turns) = (false, 0);
        while let Some(worker) = &self.worker {
            let moved = worker.progress();
            turns += 1;
            if !moved || turns >= TURNS_PER_POLL || self.state().done.len() >= wanted {
                quiet = !moved;
                break;
            }
        }
        self.handle_events();
        if !self.failing.is_empty() {
            self.handle_failures(quiet);
        }
        self.send_chunks();
        self.look_after_peers();
        if self.connecting > 0 || !self.strangers.is_empty() {
            self.check_deadlines();
        }
        self.return_credits();
    }

    fn handle_events(&mut self) {
        loop {
            let Some(event) = self.state().events.pop_front() else { return };
            match event {
                Event::Connection(request) => self.accept(request),
                Event::Failed(link, status) => self.failing.push((link, status, BUSY_TURNS)),
                Event::Broke(link, rule) => self.broke(link, rule),
                Event::Control(link, bytes) => self.heard(link, &bytes),
                Event::Data(link, bytes) => self.data_came(link, &bytes),
                Event::Message(link, tag, bytes) => self.inbox().message(link, tag, &bytes),
                Event::Finished { slot, status, len } => self.finished(slot, status, len),
            }
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
        for (link, status, turns) in std::mem::take(&mut self.failing) {
            match quiet || turns == 0 {
                true => self.failed(link, worker::text(self.facts.ucp, status)),
                false => self.failing.push((link, status, turns - 1)),
            }
        }
    }

    fn accept(&mut self, request: ucx_sys::ucp_conn_request_h) {
        let deadline = Instant::now() + self.facts.connect_timeout.min(Duration::from_secs(3600));
        let Some(worker) = &self.worker else { return };
        if self.strangers.len() >= STRANGERS_MAX {
            tracing::warn!("ucx: too many connections that say no hello; turned one away");
            return worker.reject(request);
        }
        let client = worker.client(request);
        match worker.accept(request) {
            Ok(link) => {
                self.strangers.insert(link as usize, (client, deadline));
                self.state().links.insert(link as usize, Link::default());
            }
            Err(status) => {
                let reason = worker::text(self.facts.ucp, status);
                tracing::warn!(reason, "ucx: could not take a connection");
            }
        }
    }

    /// Whose connection it is.
    fn owner(&self, link: ucp_ep_h) -> Option<usize> {
        let greeted = self.state().links.get(&(link as usize))?.peer.as_ref().map(|(at, _)| *at);
        greeted.or_else(|| {
            self.peers
                .iter()
                .position(|peer| peer.as_ref().is_some_and(|peer| peer.links.contains(&link)))
        })
    }

    fn heard(&mut self, link: ucp_ep_h, bytes: &[u8]) {
        if !self.state().links.contains_key(&(link as usize)) {
            // What was on its way when the connection ended.
            return;
        }
        match Control::from_bytes(bytes) {
            Err(rule) => self.broke(link, rule.to_owned()),
            Ok(Control::Hello(hello)) => self.greeted(link, hello),
            Ok(control) => {
                let known = self.state().links[&(link as usize)].peer.as_ref().map(|(at, _)| *at);
                match known {
                    None => self.broke(link, "it speaks before it says hello".into()),
                    Some(index) => self.told(index, link, control),
                }
            }
        }
    }

    fn told(&mut self, index: usize, link: ucp_ep_h, control: Control) {
        self.is_alive(index);
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
        };
        if let Err(rule) = result {
            self.broke(link, rule.to_owned());
        }
    }

    fn is_alive(&mut self, index: usize) {
        let is_watched = !self.facts.liveness_limit.is_zero();
        if let Some(peer) = self.peer(index).filter(|_| is_watched) {
            peer.heard_at = Instant::now();
        }
    }

    fn data_came(&mut self, link: ucp_ep_h, bytes: &[u8]) {
        let known = match self.state().links.get(&(link as usize)) {
            // What was on its way when the connection ended.
            None => return,
            Some(known) => known.peer.as_ref().map(|(at, _)| *at),
        };
        let result = match known {
            None => Err("it sends data before it says hello"),
            Some(index) => {
                self.is_alive(index);
                self.data(index, bytes)
            }
        };
        if let Err(rule) = result {
            self.broke(link, rule.to_owned());
        }
    }

    /// A hello: now it is known who is at the other end.
    fn greeted(&mut self, link: ucp_ep_h, hello: Hello) {
        let stranger = self.strangers.remove(&(link as usize));
        let index = match (self.owner(link), &stranger) {
            (Some(index), _) => index,
            (None, Some((client, _))) => {
                let protocol = &self.facts.protocol;
                let listens = address::announced(&hello.uri, protocol, *client);
                let is_own = listens.is_some() && hello.uri == self.facts.own.uri();
                match listens.filter(|_| !is_own) {
                    Some(address) => {
                        let known = self.by_address.get(&address).copied();
                        known.unwrap_or_else(|| {
                            let uri = address::uri_of(&self.facts.protocol, address);
                            self.add_peer(uri, Some(address))
                        })
                    }
                    None => {
                        let name = client.map_or("unknown".into(), |client| client.to_string());
                        self.add_peer(address::origin_uri(&self.facts.protocol, name), None)
                    }
                }
            }
            (None, None) => return,
        };
        let theirs = self.peer(index).and_then(|peer| peer.their_session);
        if theirs.is_some_and(|session| session != hello.session) {
            // A successor under the same address; what was between us and the predecessor ends.
            let keep = self.peer(index).is_some_and(|peer| peer.links.contains(&link));
            if keep {
                return self.broke(link, "it says hello twice".into());
            }
            self.end_session(index, "it has been restarted".into());
        }
        self.join(index, link, hello, stranger.is_some());
    }

    /// The connection is one of this peer, and of this session.
    fn join(&mut self, index: usize, link: ucp_ep_h, hello: Hello, accepted: bool) {
        let endpoint = self.facts.id;
        let Some(peer) = self.peers[index].as_mut() else { return };
        if peer.phase == Phase::Connecting {
            self.connecting -= 1;
        }
        peer.deadline = None;
        let first = peer.phase != Phase::Connected;
        peer.phase = Phase::Connected;
        peer.their_session = Some(hello.session);
        peer.links.retain(|known| *known != link);
        match first {
            // We send on what was there first.
            true => peer.links.insert(0, link),
            false => peer.links.push(link),
        }
        if first {
            let every = Duration::from_millis(u64::from(hello.alive_every_ms));
            peer.alive_every = (!every.is_zero()).then_some(every.max(liveness::EVERY_MIN));
            (peer.told_at, peer.heard_at) = (Instant::now(), Instant::now());
            peer.their_source = hello.source;
            peer.their_max = hello.message_bytes_max as usize;
            (peer.window, peer.credits) = (hello.window, [hello.window; 2]);
        }
        let id = peer.id;
        let addr = match &peer.current {
            Some(addr) => addr.clone(),
            None => peer.addr(endpoint, index, peer.session),
        };
        peer.current = Some(addr.clone());
        // What it may leave here is bounded by its window.
        self.state().matcher.lift_bound(id);
        if let Some(known) = self.state().links.get_mut(&(link as usize)) {
            known.peer = Some((index, addr));
        }
        if accepted {
            self.greet(index, link);
        }
        self.watch_over(index);
        self.pump(index);
        self.ask_more(index);
    }

    /// A connection has ended by itself.
    fn failed(&mut self, link: ucp_ep_h, reason: String) {
        match self.owner(link) {
            Some(index) => self.end_session(index, reason),
            None if self.strangers.remove(&(link as usize)).is_some() => self.drop_link(link),
            None => {}
        }
    }

    /// The peer broke a rule: it loses its connections.
    fn broke(&mut self, link: ucp_ep_h, rule: String) {
        match self.owner(link) {
            Some(index) => {
                let Some(peer) = self.peer(index) else { return };
                let peer = peer.uri.to_string();
                tracing::warn!(peer, rule, "ucx: a peer broke the protocol");
                let error = Error::Protocol { peer, reason: rule };
                self.end_session_with(index, error);
            }
            None if self.strangers.remove(&(link as usize)).is_some() => {
                tracing::warn!(rule, "ucx: somebody who is no endpoint of ours connected");
                self.drop_link(link);
            }
            None => {}
        }
    }

    pub(super) fn drop_link(&mut self, link: ucp_ep_h) {
        self.state().links.remove(&(link as usize));
        let slot = self.slots.add(Work::Close);
        let pinned = self.slots.pinned(slot);
        let Some(worker) = &self.worker else { return };
        // SAFETY: it was in the lists of open connections, and has just left them.
        let posted = unsafe { worker.close(link, true, pinned) };
        self.posted(slot, posted);
    }

    /// What is between us and the peer ends, for a reason that the network gave.
    pub(super) fn end_session(&mut self, index: usize, reason: String) {
        let Some(peer) = self.peer(index) else { return };
        let uri = peer.uri.to_string();
        let error = match peer.their_session {
            None => Error::Unreachable { peer: uri, reason },
            Some(_) => Error::PeerGone { peer: uri, reason },
        };
        self.end_session_with(index, error);
    }

    fn end_session_with(&mut self, index: usize, error: Error) {
        let (session, source) = (self.number(), self.number() as u32);
        let Some(peer) = self.peers[index].as_mut() else { return };
        if peer.phase == Phase::Connecting {
            self.connecting -= 1;
        }
        let old_source = std::mem::replace(&mut peer.source, source);
        peer.session = session;
        peer.their_session = None;
        peer.current = None;
        peer.deadline = None;
        peer.phase = match peer.address {
            Some(_) => Phase::Idle,
            None => Phase::Gone,
        };
        peer.end = Some(error.clone());
        let id = peer.id;
        let links = std::mem::take(&mut peer.links);
        let queues = std::mem::take(&mut peer.queues);
        let waiting = std::mem::take(&mut peer.waiting);
        let leases = std::mem::take(&mut peer.leases);
        peer.asked = 0;
        self.state().begin(index, session);
        for message in queues.into_iter().flatten() {
            self.done(message.end(Err(error.clone())));
        }
        self.fail_transfers(index, waiting, &error);
        self.fail_receives(index, &error);
        self.fail_sends(index, &error);
        links.into_iter().for_each(|link| self.drop_link(link));
        self.drain_source(old_source);
        for lease in leases.into_values() {
            self.end_lease(lease);
        }
        let mut out = Vec::new();
        self.state().matcher.fail_peer(id, &error, &mut out);
        self.state().done.extend(out);
    }

    fn check_deadlines(&mut self) {
        let now = Instant::now();
        let late = |deadline: Option<Instant>| deadline.is_some_and(|deadline| deadline <= now);
        for index in 0..self.peers.len() {
            if self.peers[index].as_ref().is_some_and(|peer| late(peer.deadline)) {
                let limit = self.facts.connect_timeout;
                self.end_session(index, format!("no connection within {limit:?}"));
            }
        }
        let strangers = self.strangers.iter().filter(|(_, (_, deadline))| *deadline <= now);
        let late: Vec<usize> = strangers.map(|(link, _)| *link).collect();
        for link in late {
            self.strangers.remove(&link);
            self.drop_link(link as ucp_ep_h);
        }
    }

    /// Whether a poll has something to do at once.
    pub(super) fn is_busy(&self) -> bool {
        self.state().is_busy() || !self.failing.is_empty() || !self.sending.is_empty()
    }

    /// When a poll has something to do at the latest.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        if self.connecting == 0 && self.strangers.is_empty() {
            return self.watch.next;
        }
        let peers = self.peers.iter().flatten().filter_map(|peer| peer.deadline);
        let strangers = self.strangers.values().map(|(_, at)| *at);
        peers.chain(strangers).chain(self.watch.next).min()
    }

    fn return_credits(&mut self) {
        loop {
            let mut state = self.state();
            let Some(index) = state.due.pop() else { return };
            let counts = state.settle(index);
            drop(state);
            if counts != [0; 2] {
                self.tell(index, &Control::Taken(counts));
            }
        }
    }

    /// An operation in a slot is over.
    fn finished(&mut self, slot: u32, status: ucs_status_t, len: usize) {
        let Some(work) = self.slots.take(slot) else { return };
        if matches!(work, Work::Receive { op: None, .. }) {
            self.given_up.retain(|own| own.slot != slot);
        }
        match work {
            Work::Send { op, buf, peer } => self.sent(op, buf, peer, status),
            Work::Receive { op, buf, peer, tag, end } => {
                self.received(op, buf, peer, tag, end, (status, len));
            }
            Work::Bytes(_) | Work::Close => {}
            Work::Chunk(stream, _) => self.chunk_sent(stream, status),
        }
    }
}
