//! How connections begin and end, and with them the sessions of peers.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use ucx_sys::{UCS_OK, ucp_conn_request_h, ucp_ep_h};

use super::address;
use super::driver::Driver;
use super::inbox::Link;
use super::liveness::{self, Silence};
use super::peer::Phase;
use super::remote::{Ended, EndedKeys};
use super::slots::Work;
use super::wire::{Control, Hello};
use super::worker::{self, Posted, Worker};
use crate::Error;
use crate::host_port::PeerKey;
use crate::ran::{self, Ran};

/// Connections that have not said hello, at most.
pub(super) const STRANGERS_MAX: usize = 256;

/// Who asks for a connection and waits, at most: each has a socket here.
const CALLERS_MAX: usize = 4096;

/// Connections that are taken in one turn, at most: each takes a while.
const ACCEPTS_PER_TURN: usize = 32;

/// Who has not said hello.
pub(super) struct Stranger {
    /// Where the connection comes from.
    client: Option<SocketAddr>,
    since: Ran,
}

impl Driver {
    /// Makes a connection, if there is none.
    pub(super) fn dial(&mut self, index: usize) {
        let Some(peer) = self.peers[index].as_mut() else { return };
        let Some(&address) = peer.addresses.get(peer.trying) else { return };
        if peer.phase != Phase::Idle {
            return;
        }
        let Some(worker) = &self.worker else { return };
        peer.phase = Phase::Connecting;
        peer.dialed.get_or_insert_with(|| Ran::since(Instant::now()));
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
        let alive_every_ms = ran::alive_every_ms(self.facts.liveness_limit);
        let endpoint = self.endpoint;
        let Some((session, peer)) = self.peer(index).map(|peer| (peer.told, peer.id)) else {
            return;
        };
        let hello = Hello {
            queues: self.queues(),
            session,
            message_bytes_max,
            window,
            alive_every_ms,
            endpoint,
            peer,
            remote_keys: self.worker.as_ref().is_some_and(Worker::gives_keys),
            uri,
        };
        self.tell_on(link, &Control::Hello(hello));
    }

    /// See [`Hello::queues`].
    fn queues(&self) -> u16 {
        self.worker.as_ref().map_or(0, Worker::queues)
    }

    /// Somebody asks for a connection, and gets it when there is room.
    pub(super) fn called(&mut self, request: ucp_conn_request_h) {
        if self.callers.len() < CALLERS_MAX {
            return self.callers.push_back(request);
        }
        tracing::warn!("ucx: too many ask for a connection at once; turned one away");
        if let Some(worker) = &self.worker {
            worker.reject(request);
        }
    }

    /// Whether somebody who asks for a connection can have it.
    pub(super) fn has_callers(&self) -> bool {
        !self.callers.is_empty() && self.strangers.len() < self.strangers_max
    }

    /// Takes connections that were asked for, as far as there is room for who says no hello.
    pub(super) fn accept_callers(&mut self) {
        for _ in 0..ACCEPTS_PER_TURN {
            if !self.has_callers() {
                return;
            }
            if let Some(request) = self.callers.pop_front() {
                self.accept(request);
            }
        }
    }

    /// Turns away who asks for a connection and waits.
    pub(super) fn reject_callers(&mut self) {
        let callers = std::mem::take(&mut self.callers);
        if let Some(worker) = &self.worker {
            callers.into_iter().for_each(|request| worker.reject(request));
        }
    }

    fn accept(&mut self, request: ucp_conn_request_h) {
        let Some(worker) = &self.worker else { return };
        let client = worker.client(request);
        match worker.accept(request) {
            Ok(link) => {
                let since = Ran::since(Instant::now());
                self.strangers.insert(link as usize, Stranger { client, since });
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

    /// A hello: now it is known who is at the other end.
    pub(super) fn greeted(&mut self, link: ucp_ep_h, hello: Hello) {
        if hello.queues != self.queues() {
            let rule = "its shared memory has other queues; set UCX_MM_FIFO_SIZE and \
                        UCX_MM_SEG_SIZE alike in both processes, or in neither";
            return self.broke(link, rule.into());
        }
        if self.greeted_peer(link).is_some() {
            return self.broke(link, "it says hello twice".into());
        }
        let stranger = self.strangers.remove(&(link as usize));
        let index = match (self.owner(link), &stranger) {
            (Some(index), _) => index,
            (None, Some(Stranger { client, .. })) => {
                let protocol = &self.facts.protocol;
                let listens = address::announced(&hello.uri, protocol, *client);
                let is_own = listens.is_some() && hello.uri == self.facts.own.uri();
                let protocol = protocol.clone();
                match listens.filter(|_| !is_own) {
                    Some(address) => self.caller_at(address, &hello),
                    None => self.add_peer(None, Vec::new(), || {
                        let name = client.map_or("unknown".into(), |client| client.to_string());
                        address::origin_uri(&protocol, name)
                    }),
                }
            }
            (None, None) => return,
        };
        let theirs = self.peer(index).and_then(|peer| peer.their_session);
        if theirs.is_some_and(|session| session != hello.session) {
            self.succeeded(index, link);
        }
        self.join(index, link, hello, stranger.is_some());
    }

    /// A successor under the same address: what was between us and the predecessor ends, but for
    /// this connection, which may be one that we have made.
    fn succeeded(&mut self, index: usize, link: ucp_ep_h) {
        let Some(peer) = self.peer(index) else { return };
        let is_ours = peer.links.contains(&link);
        let told = peer.told;
        peer.links.retain(|own| *own != link);
        self.end_session(index, "it has been restarted".into());
        // What was said there stays said.
        if let Some(peer) = self.peer(index).filter(|_| is_ours) {
            peer.told = told;
        }
    }

    /// Who has called and listens at `address`: the peer there, or one more if that is connected
    /// and calls us by another name this time.
    fn caller_at(&mut self, address: SocketAddr, hello: &Hello) -> usize {
        let index = self.peer_at(PeerKey::Address(address), vec![address]);
        let by_another_name = self.peer(index).is_some_and(|peer| {
            let (endpoint, own) = peer.their_numbers;
            peer.phase == Phase::Connected && endpoint == hello.endpoint && own != hello.peer
        });
        if !by_another_name {
            return index;
        }
        let protocol = self.facts.protocol.clone();
        self.add_peer(None, vec![address], || address::uri_of(&protocol, address))
    }

    /// The connection is one of this peer, and of this session.
    fn join(&mut self, index: usize, link: ucp_ep_h, hello: Hello, accepted: bool) {
        let endpoint = self.facts.id;
        let (lends_from, by_adapter) = (self.lends_from(link), self.is_by_adapter(link));
        let keys_from = self.keys_from(by_adapter, &hello);
        let Some(peer) = self.peers[index].as_mut() else { return };
        if peer.phase == Phase::Connecting {
            self.connecting -= 1;
        }
        (peer.dialed, peer.trying) = (None, 0);
        let first = peer.phase != Phase::Connected;
        peer.phase = Phase::Connected;
        peer.their_session = Some(hello.session);
        peer.links.retain(|known| *known != link);
        match first {
            // We send on what was there first.
            true => peer.links.insert(0, link),
            false => peer.links.push(link),
        }
        // Of several connections the peer may use any.
        peer.by_adapter = by_adapter && (first || peer.by_adapter);
        if first {
            let every = Duration::from_millis(u64::from(hello.alive_every_ms));
            peer.alive_every = (!every.is_zero()).then_some(every.max(liveness::EVERY_MIN));
            (peer.told_at, peer.silence) = (Instant::now(), Silence::default());
            peer.their_max = hello.message_bytes_max as usize;
            peer.their_numbers = (hello.endpoint, hello.peer);
            (peer.window, peer.credits) = (hello.window, [hello.window; 2]);
            (peer.lends_from, peer.keys_from) = (lends_from, keys_from);
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
    pub(super) fn failed(&mut self, link: ucp_ep_h, reason: String) {
        match self.owner(link) {
            Some(index) if self.is_spare(index, link) => {
                if let Some(peer) = self.peer(index) {
                    peer.links.retain(|own| *own != link);
                }
                self.drop_link(link);
            }
            Some(index) => self.end_session(index, reason),
            None if self.strangers.remove(&(link as usize)).is_some() => self.drop_link(link),
            None => {}
        }
    }

    /// Whether a connection that we began has not brought anything, and the peer is connected by
    /// one that it began: it does without.
    fn is_spare(&mut self, index: usize, link: ucp_ep_h) -> bool {
        self.greeted_peer(link).is_none()
            && self.peer(index).is_some_and(|peer| peer.phase == Phase::Connected)
    }

    /// The peer broke a rule: it loses its connections.
    pub(super) fn broke(&mut self, link: ucp_ep_h, rule: String) {
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
        self.drop_link_with(link, None);
    }

    /// Closes a connection, after which these keys are over, if it is the last one that has them.
    fn drop_link_with(&mut self, link: ucp_ep_h, ended: Option<Ended>) {
        let unseen = self.state().forget(link);
        drop(unseen);
        let slot = self.slots.add(Work::Close(ended));
        let pinned = self.slots.pinned(slot);
        let Some(worker) = &self.worker else { return };
        // SAFETY: it was in the lists of open connections, and has just left them.
        match unsafe { worker.close(link, true, pinned) } {
            Posted::Pending(request) => self.slots.started(slot, request),
            Posted::Done | Posted::Failed(_) => self.finished(slot, UCS_OK),
        }
    }

    /// UCX was told to end a connection. By force it does so later.
    pub(super) fn closed(&mut self, ended: Option<Ended>) {
        match ended {
            _ if self.worker.as_ref().is_some_and(Worker::detects_failure) => {
                self.discards.add(ended);
            }
            Some(ended) => self.end_all_given(ended),
            None => {}
        }
    }

    /// What is between us and the peer ends, for a reason that the network gave. Who could not be
    /// reached at one address is tried at the next.
    pub(super) fn end_session(&mut self, index: usize, reason: String) {
        if self.dial_next(index) {
            return;
        }
        self.end_session_for(index, reason);
    }

    fn end_session_for(&mut self, index: usize, reason: String) {
        let Some(peer) = self.peer(index) else { return };
        let uri = peer.uri.to_string();
        let error = match peer.their_session {
            None => Error::Unreachable { peer: uri, reason },
            Some(_) => Error::PeerGone { peer: uri, reason },
        };
        self.end_session_with(index, error);
    }

    /// Whether a peer that was dialed in vain has another address; that one is dialed.
    fn dial_next(&mut self, index: usize) -> bool {
        let Some(peer) = self.peers[index].as_mut() else { return false };
        if peer.phase != Phase::Connecting || peer.trying + 1 >= peer.addresses.len() {
            return false;
        }
        peer.trying += 1;
        peer.phase = Phase::Idle;
        self.connecting -= 1;
        let links = std::mem::take(&mut peer.links);
        links.into_iter().for_each(|link| self.drop_link(link));
        self.dial(index);
        true
    }

    fn end_session_with(&mut self, index: usize, error: Error) {
        let session = self.number();
        let Some(peer) = self.peers[index].as_mut() else { return };
        if peer.phase == Phase::Connecting {
            self.connecting -= 1;
        }
        (peer.session, peer.told) = (session, session);
        peer.their_session = None;
        peer.current = None;
        (peer.dialed, peer.trying) = (None, 0);
        peer.phase = match peer.addresses[..] {
            [] => Phase::Gone,
            _ => Phase::Idle,
        };
        peer.end = Some(error.clone());
        let id = peer.id;
        let links = std::mem::take(&mut peer.links);
        let queues = std::mem::take(&mut peer.queues);
        let waiting = std::mem::take(&mut peer.waiting);
        let leases = std::mem::take(&mut peer.leases);
        // Transfers that UCX has in hand keep theirs.
        let keys = std::mem::take(&mut peer.keys);
        let (given, by_adapter) = (peer.given.take(), peer.by_adapter);
        peer.keys_from = None;
        peer.asked = 0;
        peer.released.clear();
        self.state().begin(index, session);
        for message in queues.into_iter().flatten() {
            self.done(message.end(Err(error.clone())));
        }
        self.fail_transfers(index, waiting, &error);
        self.fail_sends(index, &error);
        drop(keys);
        let ended = (!given.is_empty()).then(|| Rc::new(EndedKeys { given, by_adapter }));
        links.into_iter().for_each(|link| self.drop_link_with(link, ended.clone()));
        ended.into_iter().for_each(|ended| self.end_all_given(ended));
        for lease in leases.into_values() {
            self.end_lease(lease);
        }
        let mut out = Vec::new();
        self.state().matcher.fail_peer(id, &error, &mut out);
        self.state().done.extend(out);
    }

    /// Looks at the limit of time of connections that are being made. As of every such limit, only
    /// time in which we run counts.
    pub(super) fn check_deadlines(&mut self) {
        let now = Instant::now();
        let limit = self.facts.connect_timeout;
        for index in 0..self.peers.len() {
            let dialed = self.peers[index].as_mut().and_then(|peer| peer.dialed.as_mut());
            if dialed.is_some_and(|dialed| dialed.has_passed(now, limit)) {
                self.end_session_for(index, format!("no connection within {limit:?}"));
            }
        }
        let mut late = Vec::new();
        self.strangers.retain(|link, stranger| {
            let is_late = stranger.since.has_passed(now, limit);
            late.extend(is_late.then_some(*link));
            !is_late
        });
        late.into_iter().for_each(|link| self.drop_link(link as ucp_ep_h));
    }

    /// When a poll has something to do at the latest.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let watched = self.watch.as_ref().map(|watch| watch.next);
        if self.connecting == 0 && self.strangers.is_empty() {
            return watched;
        }
        let limit = self.facts.connect_timeout;
        let peers = self.peers.iter().flatten().filter_map(|peer| peer.dialed.as_ref());
        let strangers = self.strangers.values().map(|stranger| &stranger.since);
        peers.chain(strangers).filter_map(|since| since.next_look(limit)).chain(watched).min()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::conformance::{Optional, PATIENCE};
    use crate::ucx::endpoint::UcxEndpoint;
    use crate::{Addr, Completion, Endpoint, MsgBuf, OpId, OpenOptions, Tag, Uri};

    const OPEN: Optional = Optional { variable: "MARGO_TEST_UCX", uri: "ucx+tcp://127.0.0.1:0" };

    /// One that gives up no connection because of the time that it takes.
    fn open(listen: bool) -> UcxEndpoint {
        let mut options = OpenOptions::listening(listen);
        options.connect_timeout = Duration::from_secs(3600);
        UcxEndpoint::open(&Uri::parse(OPEN.uri).unwrap(), &options).unwrap()
    }

    /// Polls both until one of them reports something that `wanted` takes.
    fn until<T>(ends: [&UcxEndpoint; 2], mut wanted: impl FnMut(Completion) -> Option<T>) -> T {
        let began = Instant::now();
        let mut found = None;
        while began.elapsed() < PATIENCE {
            for end in ends {
                end.poll(16, &mut |completion| found = found.take().or(wanted(completion)))
                    .unwrap();
            }
            if let Some(found) = found {
                return found;
            }
        }
        panic!("nothing happens");
    }

    fn send(from: &UcxEndpoint, to: &Addr) {
        let mut buf = MsgBuf::with_capacity(8);
        assert!(buf.try_extend(b"hello"));
        from.send_unexpected(OpId(1), to, Tag(7), buf).unwrap();
    }

    /// A name with several addresses, of which the first ones are in vain.
    #[test]
    fn who_is_not_at_the_first_addresses_is_found_at_the_next() {
        if let Some(lacks) = OPEN.lacks() {
            return println!("SKIPPED: {lacks}");
        }
        let (target, origin) = (open(true), open(false));
        let uri = target.self_addr().uri().to_owned();
        let there: SocketAddr = uri.rsplit('/').next().unwrap().parse().unwrap();
        // Other addresses of this host, at which nobody listens.
        let not_there = |ip: &str| SocketAddr::new(ip.parse().unwrap(), there.port());
        let all = vec![not_there("127.0.0.2"), not_there("127.0.0.3"), there];
        let name = PeerKey::Name("several".into(), there.port());
        let to = origin.with(|driver| driver.lookup(name, all)).unwrap();
        let room = MsgBuf::with_capacity(target.limits().unexpected_bytes_max);
        target.recv_unexpected(OpId(2), room).unwrap();
        send(&origin, &to);
        let mut sent = false;
        let came = until([&target, &origin], |completion| match completion {
            Completion::Recv { op: OpId(2), buf, result } => {
                result.unwrap();
                Some(buf.as_slice().to_vec())
            }
            Completion::Send { result, .. } => {
                result.unwrap();
                sent = true;
                None
            }
            other => panic!("{other:?}"),
        });
        assert_eq!(came, b"hello");
        // The third one is the one that is tried first from now on, no longer than the connection.
        let tried = origin.with(|driver| {
            let index = driver.index_of(&to).unwrap();
            let peer = driver.peer(index).unwrap();
            (peer.phase, peer.trying)
        });
        assert_eq!(tried, Some((Phase::Connected, 0)));
        if !sent {
            until([&target, &origin], |completion| match completion {
                Completion::Send { result, .. } => {
                    result.unwrap();
                    Some(())
                }
                _ => None,
            });
        }
    }

    /// Who called us in the meantime stays connected when our own attempt comes to nothing.
    #[test]
    fn a_call_in_vain_does_not_end_the_connection_that_the_peer_made() {
        if let Some(lacks) = OPEN.lacks() {
            return println!("SKIPPED: {lacks}");
        }
        let (peer, own) = (open(true), open(true));
        let there: SocketAddr = peer.self_addr().uri().rsplit('/').next().unwrap().parse().unwrap();
        // Takes connections, and says nothing.
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let instead = vec![silent.local_addr().unwrap()];
        let to = own.with(|driver| driver.lookup(PeerKey::Address(there), instead)).unwrap();
        let room = |of: &UcxEndpoint| MsgBuf::with_capacity(of.limits().unexpected_bytes_max);
        peer.recv_unexpected(OpId(2), room(&peer)).unwrap();
        own.recv_unexpected(OpId(3), room(&own)).unwrap();
        send(&own, &to);
        send(&peer, &peer.lookup(own.self_addr().uri()).unwrap());
        // Both messages have gone by the connection that the peer has made.
        let mut left = vec![1, 1, 2, 3];
        until([&peer, &own], |completion| {
            let op = match completion {
                Completion::Send { op, result, .. } => result.map(|()| op),
                Completion::Recv { op, result, .. } => result.map(|_arrival| op),
                other @ Completion::Transfer { .. } => panic!("{other:?}"),
            };
            let at = left.iter().position(|waited| *waited == op.as_ref().unwrap().0).unwrap();
            left.swap_remove(at);
            left.is_empty().then_some(())
        });
        let look = || {
            let phase_and_links = |driver: &mut Driver| {
                let index = driver.index_of(&to).unwrap();
                let peer = driver.peer(index).unwrap();
                (peer.phase, peer.links.len())
            };
            own.with(phase_and_links).unwrap()
        };
        assert_eq!(look(), (Phase::Connected, 2));
        // Resets the connection.
        drop(silent);
        let began = Instant::now();
        while look() == (Phase::Connected, 2) {
            assert!(began.elapsed() < PATIENCE, "the connection is not reset");
            own.poll(16, &mut |completion| panic!("{completion:?}")).unwrap();
        }
        assert_eq!(look(), (Phase::Connected, 1));
    }

    /// A host name and an address, say: each has a connection, and neither ends the other.
    #[test]
    fn calls_by_two_names_do_not_end_each_other() {
        if let Some(lacks) = OPEN.lacks() {
            return println!("SKIPPED: {lacks}");
        }
        let (target, origin) = (open(true), open(true));
        let uri = target.self_addr().uri().to_owned();
        let there: SocketAddr = uri.rsplit('/').next().unwrap().parse().unwrap();
        let name = PeerKey::Name("several".into(), there.port());
        let first = origin.with(|driver| driver.lookup(name, vec![there])).unwrap();
        let second = origin.lookup(&uri).unwrap();
        assert_ne!(first, second);
        let room = |of: &UcxEndpoint| MsgBuf::with_capacity(of.limits().unexpected_bytes_max);
        // A call by each, the second while the answer to the first is awaited.
        let mut callers = Vec::new();
        for (to, answer) in [(&first, OpId(3)), (&second, OpId(4))] {
            target.recv_unexpected(OpId(2), room(&target)).unwrap();
            origin.recv_expected(answer, to, Tag(7), room(&origin)).unwrap();
            send(&origin, to);
            callers.push(until([&target, &origin], |completion| match completion {
                Completion::Recv { op: OpId(2), result, .. } => Some(result.unwrap().from),
                Completion::Send { result, .. } => {
                    result.unwrap();
                    None
                }
                other => panic!("{other:?}"),
            }));
        }
        assert!(callers.iter().all(|caller| caller.uri() == origin.self_addr().uri()));
        for (caller, (to, answer)) in callers.iter().zip([(first, OpId(3)), (second, OpId(4))]) {
            target.send_expected(OpId(5), caller, Tag(7), room(&target)).unwrap();
            let from = until([&target, &origin], |completion| match completion {
                Completion::Recv { op, result, .. } if op == answer => Some(result.unwrap().from),
                Completion::Send { result, .. } => {
                    result.unwrap();
                    None
                }
                other => panic!("{other:?}"),
            });
            assert_eq!(from, to);
        }
    }

    #[test]
    fn who_calls_while_there_is_no_room_waits_for_it() {
        if let Some(lacks) = OPEN.lacks() {
            return println!("SKIPPED: {lacks}");
        }
        const CLIENTS: usize = 8;
        let target = open(true);
        target.with(|driver| driver.strangers_max = 1).unwrap();
        let origins: Vec<_> = (0..CLIENTS).map(|_| open(false)).collect();
        for origin in &origins {
            let room = MsgBuf::with_capacity(target.limits().unexpected_bytes_max);
            target.recv_unexpected(OpId(2), room).unwrap();
            send(origin, &origin.lookup(target.self_addr().uri()).unwrap());
        }
        let (mut came, mut most) = (0, 0);
        let began = Instant::now();
        while came < CLIENTS {
            assert!(began.elapsed() < PATIENCE, "{came} have come");
            for end in origins.iter().chain([&target]) {
                let mut sink = |completion| match completion {
                    Completion::Recv { result, .. } => came += usize::from(result.is_ok()),
                    Completion::Send { result, .. } => result.unwrap(),
                    other @ Completion::Transfer { .. } => panic!("{other:?}"),
                };
                end.poll(16, &mut sink).unwrap();
            }
            most = most.max(target.with(|driver| driver.strangers.len()).unwrap());
        }
        assert_eq!(most, 1);
    }

    #[test]
    fn who_waits_for_a_connection_is_turned_away_at_the_end() {
        if let Some(lacks) = OPEN.lacks() {
            return println!("SKIPPED: {lacks}");
        }
        let (target, origin) = (open(true), open(false));
        target.with(|driver| driver.strangers_max = 0).unwrap();
        send(&origin, &origin.lookup(target.self_addr().uri()).unwrap());
        let began = Instant::now();
        while target.with(|driver| driver.callers.len()) == Some(0) {
            assert!(began.elapsed() < PATIENCE, "nobody calls");
            for end in [&target, &origin] {
                end.poll(16, &mut |completion| panic!("{completion:?}")).unwrap();
            }
        }
        assert!(target.prepare_wait(), "there is nothing to do");
        target.close();
        let error = until([&target, &origin], |completion| match completion {
            Completion::Send { result, .. } => result.err(),
            _ => None,
        });
        assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    }

    /// It answers our call with its first hello while the connection of who was there before is up.
    #[test]
    fn a_successor_that_we_have_called_is_not_accused_of_a_second_hello() {
        if let Some(lacks) = OPEN.lacks() {
            return println!("SKIPPED: {lacks}");
        }
        let (before, own, successor) = (open(true), open(true), open(true));
        let at = |of: &UcxEndpoint| -> SocketAddr {
            of.self_addr().uri().rsplit('/').next().unwrap().parse().unwrap()
        };
        // The successor cannot take the port while its predecessor lives, so we call another one.
        let key = PeerKey::Address(at(&before));
        let to = own.with(|driver| driver.lookup(key, vec![at(&successor)])).unwrap();
        let room = |of: &UcxEndpoint| MsgBuf::with_capacity(of.limits().unexpected_bytes_max);
        before.recv_unexpected(OpId(2), room(&before)).unwrap();
        own.recv_expected(OpId(3), &to, Tag(7), room(&own)).unwrap();
        send(&own, &to);
        send(&before, &before.lookup(own.self_addr().uri()).unwrap());
        // Ours goes to the predecessor, which has called meanwhile.
        until([&before, &own], |completion| match completion {
            Completion::Recv { op: OpId(2), result, .. } => Some(drop(result.unwrap())),
            Completion::Send { result, .. } => {
                result.unwrap();
                None
            }
            other => panic!("{other:?}"),
        });
        let error = until([&successor, &own], |completion| match completion {
            Completion::Recv { op: OpId(3), result, .. } => result.err(),
            other => panic!("{other:?}"),
        });
        assert!(matches!(error, Error::PeerGone { .. }), "{error}");
        successor.recv_unexpected(OpId(2), room(&successor)).unwrap();
        send(&own, &to);
        until([&successor, &own], |completion| match completion {
            Completion::Recv { op: OpId(2), result, .. } => Some(drop(result.unwrap())),
            Completion::Send { result, .. } => {
                result.unwrap();
                None
            }
            other => panic!("{other:?}"),
        });
        let links = own.with(|driver| {
            let index = driver.index_of(&to).unwrap();
            driver.peer(index).map(|peer| peer.links.len())
        });
        assert_eq!(links, Some(Some(1)));
    }

    #[test]
    fn who_says_hello_twice_loses_its_connection() {
        if let Some(lacks) = OPEN.lacks() {
            return println!("SKIPPED: {lacks}");
        }
        let (target, origin) = (open(true), open(false));
        let to = origin.lookup(target.self_addr().uri()).unwrap();
        let room = |of: &UcxEndpoint| MsgBuf::with_capacity(of.limits().unexpected_bytes_max);
        target.recv_unexpected(OpId(2), room(&target)).unwrap();
        send(&origin, &to);
        let caller = until([&target, &origin], |completion| match completion {
            Completion::Recv { result, .. } => Some(result.unwrap().from),
            Completion::Send { result, .. } => {
                result.unwrap();
                None
            }
            other => panic!("{other:?}"),
        });
        target.recv_expected(OpId(3), &caller, Tag(7), room(&target)).unwrap();
        // Of the same session.
        origin.with(|driver| {
            let index = driver.index_of(&to).unwrap();
            let link = driver.peer(index).unwrap().links[0];
            driver.greet(index, link);
        });
        let error = until([&target, &origin], |completion| match completion {
            Completion::Recv { op: OpId(3), result, .. } => result.err(),
            Completion::Send { result, .. } => {
                result.unwrap();
                None
            }
            other => panic!("{other:?}"),
        });
        assert!(matches!(error, Error::Protocol { .. }), "{error}");
    }

    #[test]
    fn who_is_at_no_address_is_unreachable() {
        if let Some(lacks) = OPEN.lacks() {
            return println!("SKIPPED: {lacks}");
        }
        let (target, origin) = (open(true), open(false));
        let uri = target.self_addr().uri().to_owned();
        let port = uri.rsplit(':').next().unwrap().parse().unwrap();
        let all = ["127.0.0.2", "127.0.0.3"].map(|ip| SocketAddr::new(ip.parse().unwrap(), port));
        let name = PeerKey::Name("nowhere".into(), port);
        let to = origin.with(|driver| driver.lookup(name, all.to_vec())).unwrap();
        send(&origin, &to);
        let error = until([&target, &origin], |completion| match completion {
            Completion::Send { result, .. } => result.err(),
            _ => None,
        });
        assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    }
}
