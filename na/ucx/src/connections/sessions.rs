//! The beginning and the end of connections, and with them of the sessions of peers.
//!
//! A peer has one connection. To a peer that was looked up, we made the connection, to its address.
//! A connection that somebody else made has a peer of its own, whatever address its hello
//! announces: nothing shows that the caller listens there.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use ucx_sys::{UCS_ERR_UNREACHABLE, UCS_OK, ucp_ep_h, ucs_status_t};

use super::liveness;
use crate::addressing::address;
use crate::operations::inbox::{ConnRequest, Link};
use crate::operations::{keys::EndedKeys, slots::Work};
use crate::state::driver::{Driver, Stranger};
use crate::state::group::{PeerName, caller_key};
use crate::state::peer::{PeerPart, Phase, SentOn, Silence};
use crate::ucp::lanes::{names_only_rc, names_rdma};
use crate::ucp::library;
use crate::ucp::worker::Worker;
use crate::wire::{Control, Hello, Shards};
use na_core::Error;
use na_core::base::ran;
use na_core::base::ran::RunClock;

/// Requests for a connection that wait, at most: each has a socket here.
const CALLERS_MAX: usize = 4096;

/// Connections that are taken in one turn, at most: each takes a while.
const ACCEPTS_PER_TURN: usize = 32;

/// The reason that is given when a peer was reached and did not answer a hello in time.
const NO_HELLO: &str = "it takes connections of UCX and says no hello, as C Mercury does, which \
     speaks another protocol (towards C processes use ofi+tcp), or as a stopped process; none came";

/// Bytes from which memory is worth the two messages more of a rendezvous, where a device moves it.
const LENT_BYTES_MIN: usize = 64 << 10;

/// How long a connection without a hello keeps a place that somebody else waits for.
const ROOM_PATIENCE: Duration = Duration::from_secs(1);

/// Once more; whether it is to be logged, and as which one.
fn next_notice(count: &mut u64) -> Option<u64> {
    *count += 1;
    count.is_power_of_two().then_some(*count)
}

impl Driver {
    /// Makes a connection, if there is none.
    pub(crate) fn dial(&mut self, index: usize) {
        let Some(peer) = self.peers[index].as_mut() else { return };
        let Some(&(mut address)) = peer.addresses.get(peer.trying) else { return };
        if let Some(SentOn { port, .. }) = peer.sent_on {
            address.set_port(port);
        }
        if peer.phase != Phase::Idle {
            return;
        }
        if self.worker.is_none() {
            return;
        }
        (peer.phase, peer.hello_sent) = (Phase::Connecting, false);
        let dialed = *peer.dialed.get_or_insert_with(|| RunClock::since(Instant::now()));
        self.connecting += 1;
        self.look_in_time(&dialed);
        if let Some(Err(reason)) = self.facts.family.map(|family| family.check_peer(address)) {
            return self.end_session(index, reason);
        }
        let Some(worker) = &self.worker else { return };
        match worker.connect(address) {
            Ok(link) => {
                self.state().links.insert(link as usize, Link::default());
                if let Some(peer) = self.peer(index) {
                    peer.link = Some(link);
                }
                self.greet(index, link);
            }
            Err(status) => self.end_session(index, self.why_not(status)),
        }
    }

    /// Why a connection was not made, or has ended.
    pub(crate) fn why_not(&self, status: ucs_status_t) -> String {
        let text = library::text(self.facts.ucp, status);
        match status {
            UCS_ERR_UNREACHABLE => address::unreachable(&self.facts.protocol, text),
            _ => text,
        }
    }

    /// Says hello on a connection.
    fn greet(&mut self, index: usize, link: ucp_ep_h) {
        let window = self.inbox().window;
        let uri = match self.facts.listens {
            true => self.facts.own.uri().to_owned(),
            false => String::new(),
        };
        let message_bytes_max = self.facts.message_bytes_max as u32;
        let alive_every_ms = ran::alive_every_ms(self.facts.liveness_limit);
        let endpoint = self.facts.group.number;
        let (own, count) = (self.facts.shard as u8, self.facts.group.count() as u8);
        let Some(peer) = self.peer(index) else { return };
        let token = peer.sent_on.map_or(0, |sent_on| sent_on.token);
        let shards = Shards { own, count, wanted: peer.part.wanted, token };
        let id = peer.id;
        let hello = Hello {
            queues: self.queues(),
            message_bytes_max,
            window,
            alive_every_ms,
            endpoint,
            shards: Some(shards),
            remote_keys: self.worker.as_ref().is_some_and(Worker::gives_keys),
            uri,
        };
        self.tell_as(link, &Control::Hello(hello), |bytes| Work::Hello(bytes, id));
    }

    /// UCX has sent our hello, or never will.
    pub(crate) fn hello_sent(&mut self, peer: u64, status: ucs_status_t) {
        let mut peers = self.peers.iter_mut().flatten();
        if let Some(peer) = peers.find(|of| of.id == peer) {
            peer.hello_sent |= status == UCS_OK;
        }
    }

    /// See [`Hello::queues`].
    fn queues(&self) -> u16 {
        self.worker.as_ref().map_or(0, Worker::queues)
    }

    /// Somebody asks for a connection, and gets it when there is room.
    pub(crate) fn called(&mut self, request: ConnRequest) {
        let (waiting, max) = (self.callers.len(), self.facts.connections_max);
        if waiting < CALLERS_MAX && self.accepted + waiting < max {
            return self.callers.push_back(request);
        }
        self.turned_away("there are as many as this endpoint takes, or too many wait for one");
        if let Some(worker) = &self.worker {
            worker.reject(request);
        }
    }

    /// A connection was turned away.
    pub(crate) fn turned_away(&mut self, reason: &str) {
        if let Some(count) = next_notice(&mut self.notices.turned_away) {
            let (accepted, waiting) = (self.accepted, self.callers.len());
            let max = self.facts.connections_max;
            tracing::warn!(
                count,
                accepted,
                waiting,
                "ucx: turned a connection away: {reason} (ucx.connections_max, {max})"
            );
        }
    }

    /// Returns whether a waiting request for a connection can be accepted.
    pub(crate) fn has_callers(&self) -> bool {
        !self.callers.is_empty() && self.strangers.len() < self.strangers_max
    }

    /// Accepts connections that were asked for, as far as there is room for connections without a
    /// hello.
    pub(crate) fn accept_callers(&mut self) {
        for _ in 0..ACCEPTS_PER_TURN {
            if self.callers.is_empty() || !(self.has_callers() || self.make_room()) {
                return;
            }
            if let Some(request) = self.callers.pop_front() {
                self.accept(request);
            }
        }
    }

    /// Ends the oldest connection of those without a hello, if it has had its time; whether it did.
    fn make_room(&mut self) -> bool {
        let now = Instant::now();
        if self.room_at.is_some_and(|at| now < at) {
            return false;
        }
        let oldest = self.strangers.iter_mut().min_by_key(|(_, stranger)| stranger.came);
        let Some((&link, stranger)) = oldest else { return false };
        if !stranger.since.has_passed(now, ROOM_PATIENCE) {
            self.room_at = stranger.since.next_look(ROOM_PATIENCE);
            return false;
        }
        self.room_at = None;
        self.strangers.remove(&link);
        tracing::debug!("ucx: too many connections without a hello: ending the oldest");
        self.drop_link(link as ucp_ep_h);
        true
    }

    /// Turns away all requests for a connection that wait.
    pub(crate) fn reject_callers(&mut self) {
        let callers = std::mem::take(&mut self.callers);
        if let Some(worker) = &self.worker {
            callers.into_iter().for_each(|request| worker.reject(request));
        }
    }

    fn accept(&mut self, request: ConnRequest) {
        let Some(worker) = &self.worker else { return };
        let client = worker.client(request);
        if let (Some(family), Some(client)) = (self.facts.family, client)
            && !family.takes(client)
        {
            if let Some(count) = next_notice(&mut self.notices.useless) {
                let what = "turned a connection away that could carry no data";
                tracing::warn!(count, %client, "ucx: {what}");
            }
            return worker.reject(request);
        }
        match worker.accept(request) {
            Ok(link) => {
                let came = Instant::now();
                let since = RunClock::since(came);
                self.look_in_time(&since);
                self.accepted += 1;
                let stranger = Stranger { client, came, since, is_sent_on: false };
                self.strangers.insert(link as usize, stranger);
                let known = Link::accepted();
                self.state().links.insert(link as usize, known);
            }
            Err(status) => {
                if let Some(count) = next_notice(&mut self.notices.not_taken) {
                    let reason = library::text(self.facts.ucp, status);
                    tracing::warn!(count, reason, "ucx: could not take a connection");
                }
            }
        }
    }

    /// Returns the peer that a connection belongs to.
    pub(crate) fn owner(&self, link: ucp_ep_h) -> Option<usize> {
        self.greeted_peer(link).or_else(|| {
            self.peers
                .iter()
                .position(|peer| peer.as_ref().is_some_and(|peer| peer.link == Some(link)))
        })
    }

    /// Handles a hello, which names the peer at the other end.
    ///
    /// # Errors
    ///
    /// The rule that it breaks.
    pub(crate) fn greeted(&mut self, link: ucp_ep_h, hello: Hello) -> Result<(), &'static str> {
        if hello.queues != self.queues() {
            return Err("its shared memory has other queues; set UCX_MM_FIFO_SIZE and \
                        UCX_MM_SEG_SIZE alike in both processes, or in neither");
        }
        if self.greeted_peer(link).is_some() {
            return Err("it says hello twice");
        }
        let stranger = self.strangers.remove(&(link as usize));
        let index = match (self.owner(link), &stranger) {
            (Some(index), _) => index,
            (None, Some(stranger)) if stranger.is_sent_on => {
                self.drop_link(link);
                return Ok(());
            }
            (None, Some(stranger)) => {
                let Some(permit) = self.place(link, stranger, &hello) else { return Ok(()) };
                let index = self.add_caller(stranger.client, &hello);
                if let Some(peer) = self.peer(index) {
                    (peer.caller, peer.permit) = (stranger.client, Some(permit));
                }
                index
            }
            (None, None) => return Ok(()),
        };
        self.join(index, link, &hello, stranger.is_some());
        Ok(())
    }

    /// Adds the peer that has called from `client`: one of its own. What is sent to it when its
    /// connection has ended goes to who listens where it said.
    fn add_caller(&mut self, client: Option<SocketAddr>, hello: &Hello) -> usize {
        let protocol = self.facts.protocol.clone();
        let listens = address::announced(&hello.uri, &protocol, client);
        let is_own = listens.is_some() && hello.uri == self.facts.own.uri();
        let name = caller_key(client, hello).map(PeerName::Caller);
        let part = PeerPart { identity: name.map(|name| self.identity(name)), wanted: None };
        match listens.filter(|_| !is_own) {
            Some(address) => {
                self.add_peer(None, vec![address], part, || address::uri_of(&protocol, address))
            }
            None => self.add_peer(None, Vec::new(), part, || {
                let name = client.map_or("unknown".into(), |client| client.to_string());
                address::origin_uri(&protocol, name)
            }),
        }
    }

    /// The connection is that of this peer.
    fn join(&mut self, index: usize, link: ucp_ep_h, hello: &Hello, accepted: bool) {
        let endpoint = self.facts.id;
        let Some(worker) = &self.worker else { return };
        let (detects, gives) = (worker.detects_failure(), worker.gives_keys());
        let lanes = if detects || gives { worker.lanes(link) } else { String::new() };
        let lends_from = match self.facts.rendezvous_bytes_min {
            _ if !detects => None,
            Some(least) => Some(least.max(1)),
            None => names_rdma(&lanes).then_some(LENT_BYTES_MIN),
        };
        let by_adapter = gives && names_only_rc(&lanes);
        let keys_from = self.keys_from(by_adapter, hello);
        let Some(peer) = self.peers[index].as_mut() else { return };
        if peer.phase == Phase::Connecting {
            self.connecting -= 1;
        }
        (peer.dialed, peer.trying) = (None, 0);
        (peer.sent_on, peer.detours) = (None, 0);
        peer.phase = Phase::Connected;
        (peer.link, peer.by_adapter) = (Some(link), by_adapter);
        let every = Duration::from_millis(u64::from(hello.alive_every_ms));
        peer.alive_every = (!every.is_zero()).then_some(every.max(liveness::EVERY_MIN));
        (peer.told_at, peer.silence) = (Some(Instant::now()), Silence::default());
        peer.their_max = hello.message_bytes_max as usize;
        (peer.window, peer.credits) = (hello.window, [hello.window; 2]);
        (peer.lends_from, peer.keys_from) = (lends_from, keys_from);
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
    pub(crate) fn failed(&mut self, link: ucp_ep_h, reason: String) {
        match self.owner(link) {
            Some(index) => self.end_session(index, reason),
            None if self.strangers.remove(&(link as usize)).is_some() => self.drop_link(link),
            None => {}
        }
    }

    /// The peer broke a rule: it loses its connections.
    pub(crate) fn broke(&mut self, link: ucp_ep_h, rule: String) {
        match self.owner(link) {
            Some(index) => {
                let Some(peer) = self.peer(index) else { return };
                let peer = peer.uri.to_string();
                if let Some(count) = next_notice(&mut self.notices.broke) {
                    tracing::warn!(count, peer, rule, "ucx: a peer broke the protocol");
                }
                let error = Error::Protocol { peer, reason: rule };
                self.end_session_with(index, error);
            }
            None if self.strangers.remove(&(link as usize)).is_some() => {
                if let Some(count) = next_notice(&mut self.notices.strange) {
                    let what = "somebody who is no endpoint of ours connected";
                    tracing::warn!(count, rule, "ucx: {what}");
                }
                self.drop_link(link);
            }
            None => {}
        }
    }

    pub(crate) fn drop_link(&mut self, link: ucp_ep_h) {
        self.drop_link_with(link, None);
    }

    /// Closes a connection, after which these keys are over.
    fn drop_link_with(&mut self, link: ucp_ep_h, ended: Option<EndedKeys>) {
        let accepted = self.state().links.get(&(link as usize)).is_some_and(|own| own.accepted);
        self.accepted -= usize::from(accepted);
        let unseen = self.state().forget(link);
        drop(unseen);
        self.post(Work::Close(ended), |worker, slots, slot| {
            // SAFETY: it was among the open connections, and has just left them.
            unsafe { worker.close(link, true, slots.pinned(slot)) }
        });
    }

    /// UCX was told to end a connection. By force it does so later.
    pub(crate) fn closed(&mut self, ended: Option<EndedKeys>) {
        match ended {
            _ if self.worker.as_ref().is_some_and(Worker::detects_failure) => {
                self.discards.add(ended);
            }
            Some(ended) => self.end_all_given(ended),
            None => {}
        }
    }

    /// The network was looked at after connections were closed. `quiet`: the last look has found
    /// nothing.
    pub(crate) fn settle_discards(&mut self, quiet: bool) {
        let links = self.state().links.len();
        let (over, flushed) = self.discards.look(quiet, links);
        over.into_iter().for_each(|ended| self.end_all_given(ended));
        if flushed.is_empty() {
            return;
        }
        let slot = self.post(Work::Discarded(flushed), |worker, slots, slot| {
            // SAFETY: the slot stays until the callback, or until the worker is gone.
            unsafe { worker.flush_all(slots.pinned(slot)) }
        });
        if slot.is_some() {
            self.discards.flushing(links);
        }
    }

    /// A flush has ended for which these keys have waited.
    pub(crate) fn discarded(&mut self, ended: Vec<EndedKeys>, status: ucs_status_t) {
        let (over, left) = match status {
            UCS_OK => (ended, Vec::new()),
            _ => (Vec::new(), ended),
        };
        self.discards.flushed(left);
        over.into_iter().for_each(|ended| self.end_all_given(ended));
    }

    /// Ends the session with a peer, for a reason that the network gave. A peer that could not be
    /// reached at one address is dialed at the next.
    pub(crate) fn end_session(&mut self, index: usize, reason: String) {
        if self.dial_next(index) {
            return;
        }
        self.end_session_for(index, reason);
    }

    pub(crate) fn end_session_for(&mut self, index: usize, reason: String) {
        let Some(peer) = self.peer(index) else { return };
        let uri = peer.uri.to_string();
        let error = match peer.phase {
            Phase::Connected => Error::PeerGone { peer: uri, reason },
            _ => Error::Unreachable { peer: uri, reason },
        };
        self.end_session_with(index, error);
    }

    /// Returns whether a peer that was dialed in vain has another address; that one is dialed. If
    /// we were sent on, it is the one from which we were: there it is known who is left.
    fn dial_next(&mut self, index: usize) -> bool {
        let Some(peer) = self.peers[index].as_mut() else { return false };
        if peer.phase != Phase::Connecting {
            return false;
        }
        if peer.sent_on.take().is_none() {
            if peer.trying + 1 >= peer.addresses.len() {
                return false;
            }
            peer.trying += 1;
        }
        self.dial_anew(index);
        true
    }

    /// Dials a peer that is being dialed at another place, where it is known by now.
    pub(crate) fn dial_anew(&mut self, index: usize) {
        let Some(peer) = self.peer(index) else { return };
        let link = peer.link.take();
        peer.phase = Phase::Idle;
        self.connecting -= 1;
        if let Some(link) = link {
            self.drop_link(link);
        }
        self.dial(index);
    }

    fn end_session_with(&mut self, index: usize, error: Error) {
        let session = self.number();
        let Some(peer) = self.peers[index].as_mut() else { return };
        if peer.phase == Phase::Connecting {
            self.connecting -= 1;
        }
        let mut ended = peer.begin_session(session, &error);
        self.queued -= ended.queues.iter().map(VecDeque::len).sum::<usize>();
        self.state().begin(index, session);
        for message in std::mem::take(&mut ended.queues).into_iter().flatten() {
            self.done(message.end(Err(error.clone())));
        }
        self.fail_transfers(index, &error);
        self.fail_sends(index, &error);
        // Transfers that UCX has in hand keep theirs.
        drop(ended.keys);
        let given = EndedKeys { given: ended.given.take(), by_adapter: ended.by_adapter };
        let given = (!given.given.is_empty()).then_some(given);
        match ended.link {
            Some(link) => self.drop_link_with(link, given),
            None => given.into_iter().for_each(|given| self.end_all_given(given)),
        }
        for lease in ended.leases.into_values() {
            self.end_lease(lease);
        }
        let mut out = Vec::new();
        self.state().matcher.fail_peer(ended.id, &error, &mut out);
        self.state().done.extend(out);
    }

    /// Somebody connects: the limit of time is looked at when it is due for this one, too.
    fn look_in_time(&mut self, since: &RunClock) {
        let next = since.next_look(self.facts.connect_timeout);
        self.deadline_at = self.deadline_at.into_iter().chain(next).min();
    }

    /// Looks at the limit of time of connections that are being made, when one is due. As of every
    /// such limit, only time in which we run counts.
    pub(crate) fn check_deadlines(&mut self) {
        let now = Instant::now();
        if self.deadline_at.is_none_or(|at| now < at) {
            return;
        }
        self.walk();
        let limit = self.facts.connect_timeout;
        for index in 0..self.peers.len() {
            let dialed = self.peers[index].as_mut().and_then(|peer| peer.dialed.as_mut());
            if dialed.is_some_and(|dialed| dialed.has_passed(now, limit)) {
                let answered = self.peer(index).is_some_and(|peer| peer.hello_sent);
                let reason = match answered {
                    true => NO_HELLO,
                    false => "no connection",
                };
                self.end_session_for(index, format!("{reason} within {limit:?}"));
            }
        }
        let mut late = Vec::new();
        self.strangers.retain(|link, stranger| {
            let is_late = stranger.since.has_passed(now, limit);
            late.extend(is_late.then_some(*link));
            !is_late
        });
        late.into_iter().for_each(|link| self.drop_link(link as ucp_ep_h));
        let peers = self.peers.iter().flatten().filter_map(|peer| peer.dialed.as_ref());
        let strangers = self.strangers.values().map(|stranger| &stranger.since);
        let next = peers.chain(strangers).filter_map(|since| since.next_look(limit)).min();
        self.deadline_at = next;
    }

    /// When a poll has something to do at the latest.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let watched = self.watch.as_ref().map(|watch| watch.next);
        let room = self.room_at.filter(|_| !self.callers.is_empty());
        let watched = watched.into_iter().chain(room).chain(self.door_at).min();
        match self.connecting > 0 || !self.strangers.is_empty() {
            true => self.deadline_at.into_iter().chain(watched).min(),
            false => watched,
        }
    }
}

#[cfg(test)]
mod mercury_tests;
#[cfg(test)]
mod tests;
