//! The beginning of connections: dialing, accepting, the hello in each direction, and time limits.
//!
//! The dialer speaks first; the other side answers with its own hello when it has read that one. A
//! side that has read the other's hello attaches the connection to the peer and may send at once. A
//! side that refuses a hello of this protocol answers it all the same, so that both know why the
//! connection ends.
//!
//! A peer has one connection. A peer that was looked up is dialed at its address, so that requests
//! reach the listener there. A connection that was accepted has a peer of its own, whatever address
//! its hello announces: nothing shows that the caller listens there. So the caller neither gets
//! what is sent to that address nor ends the connection between us and the listener.
//!
//! Where connections are private, a handshake of TLS comes before all this. Somebody else makes it
//! ([`Doorkeeper`](na_tls::Doorkeeper)); meanwhile the connection waits, and counts as one without
//! a hello.
//!
//! A connection that is to be with another endpoint of the group leaves between the dialer's hello
//! and the answer, see `group.rs`.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Weak;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData};

use crate::peers::group::caller_key;
use crate::peers::{Attempt, Conn, Handed, Link, Peer, PeerName, PeerPart, Phase, Stage};
use crate::progress::frame_handler::Lost;
use crate::progress::liveness;
use crate::state::{Core, EVENTS, Poller, flush};
use crate::stream::line::Line;
use crate::system::lack;
use crate::system::socket;
use crate::wire::address;
use crate::wire::frame::{BadHello, Hello, Kind, Refusal};
use na_core::group::placement::NotAdmitted;
use na_core::hosts::host_port::PeerKey;
use na_core::{Error, Principal, SessionChange};
use na_tls::{Failure, Job, Outcome, Role, Secured};
use prim::sync::{Arc, lock};

/// Accepted connections that may be without a hello; beyond, the one whose peer is late for longest
/// is dropped if it has had [`HALF_OPEN_PATIENCE`], else the others wait in the kernel's queue.
pub(crate) const HALF_OPEN_MAX: usize = 256;

/// How long the peer of an accepted connection may at least take for its hello, or for the next
/// word of its handshake. When thousands of peers dial at once, none of them is to be dropped for
/// being early, nor because we are slow.
const HALF_OPEN_PATIENCE: Duration = Duration::from_secs(1);

/// How bytes are sent to a connection that is turned away.
const SEND: rustix::net::SendFlags = rustix::net::SendFlags::NOSIGNAL;

/// Connections accepted in one poll.
const ACCEPTS_MAX: usize = 64;

/// How long to wait with accepting after running out of memory, or of descriptors where not even
/// the one that is kept for this can be had.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

impl Poller {
    /// Begins to connect to `peer`, starting with its address number `first`. Each address gets its
    /// part of the time that is left, so that one which does not answer, as behind a firewall, does
    /// not keep us from the others.
    pub(crate) fn dial(&mut self, core: &Core, peer: &Arc<Peer>, first: usize, deadline: Instant) {
        let mut failed = (0, io::Error::from(io::ErrorKind::AddrNotAvailable));
        for (at, address) in peer.dial.iter().enumerate().skip(first) {
            let now = Instant::now();
            let untried = (peer.dial.len() - at).try_into().unwrap_or(u32::MAX);
            let until = now + deadline.saturating_duration_since(now) / untried;
            let attempt = Attempt { peer: peer.clone(), next: at + 1, until, deadline };
            let stage = Stage::Connecting(attempt);
            match socket::connect(*address, core.class)
                .and_then(|socket| self.watch(core, socket, stage))
            {
                Ok(key) => {
                    peer.lock().conn = Some(key);
                    return;
                }
                Err(error) => failed = (at, error),
            }
        }
        let (at, error) = failed;
        self.dial_failed(core, peer, at, &error, deadline);
    }

    /// Connecting to `peer` failed at its address number `at`, the last one.
    fn dial_failed(
        &mut self,
        core: &Core,
        peer: &Arc<Peer>,
        at: usize,
        error: &io::Error,
        deadline: Instant,
    ) {
        if !self.redial(core, peer, error.kind(), deadline) {
            let reason = match peer.dial.get(at) {
                Some(address) => format!("connecting to {address}: {error}"),
                None => "it has no address".into(),
            };
            self.end_peer(core, peer, peer.unreachable(reason));
        }
    }

    /// Adds a connection, with its options set, to the set that is polled.
    fn watch(&mut self, core: &Core, socket: OwnedFd, stage: Stage) -> io::Result<u64> {
        socket::configure(&socket, &core.options, core.class)?;
        let mut conn = Conn::new(socket, stage, core.message_bytes_max);
        let is_accepted = matches!(conn.stage, Stage::Accepted { .. });
        conn.securing = (core.desk.is_some() && is_accepted).then(Arc::default);
        let key = self.enlist(core, conn)?;
        self.secure(core, key);
        Ok(key)
    }

    /// Has the handshake of a connection made that is to have one before anything is said.
    fn secure(&mut self, core: &Core, key: u64) {
        let Some(conn) = self.conns.get_mut(key) else { return };
        let Some(turn) = conn.securing.clone() else { return };
        let remote = socket::remote_address(&conn.socket).map(|address| address.ip());
        let role = match (&conn.stage, remote) {
            (Stage::Greeting(_), Ok(address)) => Role::Dialer(address),
            _ => Role::Acceptor,
        };
        if let Some((doorkeeper, desk)) = core.group.doorkeeper.as_ref().zip(core.desk.clone()) {
            doorkeeper.secure(Job { socket: conn.socket.clone(), role, key, desk, turn });
        }
    }

    /// Goes on with connections whose handshake has ended.
    pub(crate) fn take_secured(&mut self, core: &Core) {
        for Outcome { key, result } in core.desk.iter().flat_map(|desk| desk.take()) {
            // It may have been given up, and another one have its place: then this is no news.
            let Some(conn) = self.conns.get_mut(key).filter(|conn| conn.securing.is_some()) else {
                continue;
            };
            let went_on = match result {
                Ok(secured) => go_on(core, conn, secured),
                Err(failure) => {
                    self.unbelieved += u64::from(matches!(conn.stage, Stage::Accepted { .. }));
                    let reason = match &failure {
                        Failure::Ended(reason) | Failure::Refused(reason) => reason,
                    };
                    let remote = socket::remote_address(&conn.socket).ok();
                    if self.unbelieved.is_power_of_two() && conn.peer().is_none() {
                        let from = remote.map_or_else(|| "unknown".to_owned(), |a| a.to_string());
                        let so_far = self.unbelieved;
                        tracing::warn!(from, so_far, reason, "a caller was not let in");
                    }
                    Err(match failure {
                        Failure::Ended(reason) => Lost::Ended(reason),
                        Failure::Refused(reason) => Lost::Refused(reason),
                    })
                }
            };
            match went_on {
                Ok(()) => self.enqueue(key),
                Err(lost) => self.lose(core, key, lost),
            }
        }
    }

    /// Adds a connection to the set that is polled.
    fn enlist(&mut self, core: &Core, conn: Conn) -> io::Result<u64> {
        let (socket, deadline) = (conn.socket.clone(), conn.deadline());
        let key = self.conns.insert(conn);
        if let Err(errno) = epoll::add(&self.epoll, &socket, EventData::new_u64(key), EVENTS) {
            self.conns.remove(key);
            return Err(errno.into());
        }
        deadline.into_iter().for_each(|deadline| self.arm_steps(core, deadline));
        Ok(key)
    }

    /// Closes a connection of a peer that goes on without it.
    fn detach(&mut self, peer: &Peer, key: u64) {
        peer.lock().conn = None;
        self.drop_conn(key);
    }

    /// The kernel has decided about a connection that we began.
    pub(crate) fn connecting(&mut self, core: &Core, key: u64) {
        let Some(conn) = self.conns.get_mut(key) else { return };
        let Stage::Connecting(attempt) = &conn.stage else { return };
        if !conn.writable && !conn.hung_up {
            return;
        }
        let attempt = attempt.clone();
        let greeted = socket::connected(&conn.socket).and_then(|()| {
            conn.stage = Stage::Greeting(attempt.clone());
            conn.principal = host_of(&conn.socket);
            conn.securing = core.desk.is_some().then(Arc::default);
            if conn.securing.is_some() { Ok(()) } else { greet(core, conn) }
        });
        let Err(error) = greeted else {
            // Whatever the events said was about connecting.
            conn.writable = false;
            conn.readable = true;
            self.secure(core, key);
            return self.enqueue(key);
        };
        let Attempt { peer, next, deadline, .. } = attempt;
        self.detach(&peer, key);
        if next < peer.dial.len() {
            return self.dial(core, &peer, next, deadline);
        }
        self.dial_failed(core, &peer, next - 1, &error, deadline);
    }

    /// An attempt has come to nothing for `lost`, after the kernel had connected, or too late:
    /// tries the next address, or the same ones again, or says `error`.
    fn attempt_lost(&mut self, core: &Core, attempt: &Attempt, lost: &Lost, error: Error) {
        let Attempt { peer, next, deadline, .. } = attempt;
        if *next < peer.dial.len() {
            return self.dial(core, peer, *next, *deadline);
        }
        // As a port does behind which a proxy or a supervisor waits for the target to start.
        let hung_up = matches!(lost, Lost::Ended(_));
        if !hung_up || !self.redial(core, peer, io::ErrorKind::ConnectionReset, *deadline) {
            self.end_peer(core, peer, error);
        }
    }

    /// Accepts what has come, and takes what other endpoints have handed over.
    pub(crate) fn accept(&mut self, core: &Core) {
        for handed in core.group.take(core.shard) {
            match handed {
                Handed::Conn(conn) => self.adopt(core, conn),
                Handed::Listener(listener) => self.take_over(listener),
            }
        }
        for _ in 0..ACCEPTS_MAX {
            if self.is_crowded() {
                return;
            }
            let Some(listener) = &self.listener else {
                self.accept_ready = false;
                return;
            };
            let since = Instant::now();
            let stage = Stage::Accepted { since, deadline: since + core.connect_timeout };
            let accepted = match socket::accept(listener) {
                Ok(socket) => self.watch(core, socket, stage).map(|key| self.admit(core, key)),
                Err(error) => match lack::missing_descriptor(&error) {
                    Some(limit) => {
                        let refusal = Some(Refusal::NoDescriptors { limit });
                        let hello = Hello { refusal, ..core.hello(limit, None) };
                        let told = self.lack.turn_away(listener, |socket| {
                            // It may be gone already; then it needs no answer. Nor does one that
                            // waits for a handshake understand it.
                            if core.desk.is_none() {
                                let _ = rustix::net::send(socket, &hello.encode(), SEND);
                            }
                        });
                        told.inspect(|()| self.lack.log(&error))
                    }
                    None => Err(error),
                },
            };
            let Err(error) = accepted else { continue };
            match error.kind() {
                io::ErrorKind::WouldBlock => {
                    self.accept_ready = false;
                    return;
                }
                io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted => {}
                _ => {
                    self.lack.log(&error);
                    let again_at = Instant::now() + ACCEPT_PAUSE;
                    self.accept_ready = false;
                    self.accept_again_at = Some(again_at);
                    self.arm(again_at);
                    return;
                }
            }
        }
    }

    /// The connection without a hello, by its place in `half_open`, whose peer is late for longest,
    /// and since when.
    fn latest(&mut self) -> Option<(usize, Instant)> {
        let keys = self.half_open.iter().enumerate();
        let owing = keys.filter_map(|(at, key)| {
            let owes_since = self.conns.get_mut(*key).and_then(|conn| conn.owes_since());
            Some((at, owes_since?))
        });
        owing.min_by_key(|(_, since)| *since)
    }

    /// Returns whether accepting has to wait for hellos; it goes on when one comes, or after the
    /// patience.
    fn is_crowded(&mut self) -> bool {
        let conns = &mut self.conns;
        let is_half_open = |conn: &mut Conn| matches!(conn.stage, Stage::Accepted { .. });
        if self.half_open.len() >= HALF_OPEN_MAX {
            self.half_open.retain(|key| conns.get_mut(*key).is_some_and(is_half_open));
        }
        if self.half_open.len() < HALF_OPEN_MAX {
            return false;
        }
        let now = Instant::now();
        // Where it is our turn everywhere, the end of a handshake goes on with accepting.
        let since = self.latest().map_or(now, |(_, since)| since);
        let until = since + HALF_OPEN_PATIENCE;
        if until <= now {
            return false;
        }
        self.accept_ready = false;
        self.accept_again_at = Some(until);
        self.arm(until);
        true
    }

    /// Goes on with a connection that another endpoint has accepted. Its hello is read again.
    fn adopt(&mut self, core: &Core, mut conn: Box<Conn>) {
        (conn.queued, conn.hot, conn.muted) = (false, false, false);
        conn.readable = true;
        match self.enlist(core, *conn) {
            Ok(key) => self.enqueue(key),
            // The dialer sees that the connection has ended.
            Err(error) => tracing::warn!(%error, "cannot take over a connection"),
        }
    }

    /// Accepts connections from now on: the endpoint that did is closed.
    fn take_over(&mut self, listener: OwnedFd) {
        match self.listen(listener) {
            Ok(()) => self.accept_ready = true,
            Err(errno) => tracing::warn!(%errno, "the group of a closed endpoint cannot listen"),
        }
    }

    /// Hands a connection over to the endpoint where its place is.
    fn hand_over(&mut self, core: &Core, key: u64) {
        let Some(mut conn) = self.release(key) else { return };
        conn.incoming.rest(&mut self.buffers);
        core.group.hand(Handed::Conn(conn));
    }

    fn admit(&mut self, core: &Core, key: u64) {
        if self.half_open.len() >= HALF_OPEN_MAX
            && let Some((at, _)) = self.latest()
            && let Some(latest) = self.half_open.remove(at)
        {
            let reason = "too many connections without a hello: dropping the one that is latest";
            tracing::debug!("{reason}");
            if let Some(conn) = self.conns.get_mut(latest) {
                tell_of_refusal(core, conn, reason);
            }
            self.drop_conn(latest);
        }
        self.half_open.push_back(key);
    }

    /// Reads the other side's hello, if it is complete, and attaches the connection to its peer.
    pub(crate) fn greeted(&mut self, core: &Core, conn: &mut Conn) -> Result<bool, Lost> {
        let dialed = match &conn.stage {
            Stage::Greeting(attempt) => Some(attempt.peer.clone()),
            Stage::Accepted { .. } => None,
            Stage::Connecting(_) | Stage::Up { .. } => return Ok(false),
        };
        let (hello, len) = match Hello::decode(conn.incoming.buffered()) {
            Ok(Some(decoded)) => decoded,
            Ok(None) => return Ok(false),
            Err(bad) => {
                if dialed.is_none() && bad != BadHello::Magic {
                    // It may be gone already; then it needs no answer.
                    let _ = line_of(conn).say(&core.hello(0, None).encode());
                }
                let speaks_tls = matches!(conn.incoming.buffered(), [20..=22, 3, 0..=4, ..]);
                return Err(Lost::Broke(match speaks_tls && conn.sealer.is_none() {
                    true => "it speaks TLS, and this endpoint does not: see `tcp.security`".into(),
                    false => bad.to_string(),
                }));
            }
        };
        if let Some(refusal) = hello.refusal {
            let reason = refusal.to_string();
            return Err(match refusal {
                // It may have some when it is tried again.
                Refusal::NoDescriptors { .. } => Lost::Ended(reason),
                Refusal::TooManyConnections | Refusal::Other(_) => Lost::Refused(reason),
            });
        }
        if dialed.is_none() && conn.permit.is_none() {
            if conn.principal == Principal::Unknown {
                conn.principal = host_of(&conn.socket);
            }
            place(core, conn, &hello)?;
        }
        conn.incoming.skip(len);
        let peer = match &dialed {
            Some(peer) => {
                check_rpc_layer(core, peer, &hello)?;
                peer.clone()
            }
            None => self.identify(core, conn, &hello),
        };
        core.note_rpc_layer(&peer, hello.is_for_mercury());
        self.attach(core, conn, &peer, &hello, dialed.is_none())
            .map_err(|error| Lost::Ended(format!("greeting it failed: {error}")))?;
        // Accepting may have waited for this.
        self.accept_ready |= self.accept_again_at.is_some();
        Ok(true)
    }

    /// A peer for a caller, which is known by this connection only. If the address that it
    /// announces is on the host that the connection comes from, the peer goes by that name, and is
    /// dialed there when the connection has ended.
    fn identify(&mut self, core: &Core, conn: &Conn, hello: &Hello) -> Arc<Peer> {
        let remote = socket::remote_address(&conn.socket).ok();
        let local = socket::local_address(&conn.socket).ok();
        let announced = address::announced(&hello.uri, remote).filter(|announced| {
            let [remote, local] = [remote, local].map(|address| address.map(|a| a.ip()));
            address::is_from_there(announced.ip(), remote, local)
        });
        // Ourselves, having called another address of ours, shall not be dialed by a name that
        // needs no connection.
        let key = caller_key(conn.principal, hello);
        let identity = key.map(|key| core.identity(PeerName::Caller(key)));
        let part = PeerPart { identity, wanted: None };
        match announced.filter(|announced| !core.listens_at(*announced)) {
            Some(address) => {
                self.test_predecessor(core, address, hello);
                core.new_peer(address::uri_of(address), vec![address], part)
            }
            None => {
                let name = remote.map_or_else(|| "unknown".to_owned(), |a| a.to_string());
                core.new_peer(address::origin_uri(name), Vec::new(), part)
            }
        }
    }

    /// Another endpoint than the one that we have dialed at `address` says that it listens there.
    /// If that is true, the dialed one has gone, and its host may have lost power before it could
    /// tell us. So its connection is tested by a sign of life, which a host that knows nothing of
    /// the connection answers with a reset; if the caller lies, the sign of life does no harm.
    fn test_predecessor(&mut self, core: &Core, address: SocketAddr, hello: &Hello) {
        let key = (PeerKey::Address(address), None);
        let known = lock(&core.peers).get(&key).and_then(Weak::upgrade);
        let Some(peer) = known else { return };
        self.with_peer(&peer, |state| {
            if let Phase::Up(link) = &state.phase
                && link.can_beat
                && (link.endpoint.is_none() || link.endpoint != hello.endpoint())
                // What waits to be sent is a test as well.
                && state.out.is_empty()
            {
                state.out.push_small(Kind::Alive, 0, &[]);
                flush(core, &peer, state);
            }
        });
    }

    /// Makes a connection that of `peer`, with our hello if it still has to be said.
    fn attach(
        &mut self,
        core: &Core,
        conn: &mut Conn,
        peer: &Arc<Peer>,
        hello: &Hello,
        greet: bool,
    ) -> io::Result<()> {
        socket::suit_if_local(&conn.socket)?;
        if conn.principal != Principal::Unknown {
            peer.set_host(conn.principal);
        }
        let message_bytes_max = core.message_bytes_max.min(hello.message_bytes_max as usize);
        let alive_every = liveness::alive_every(hello);
        let session = self.with_peer(peer, |state| {
            let mut line = line_of(conn);
            // Under the lock, so that no frame overtakes it.
            if greet {
                line.say(&core.hello(state.session, Some(peer)).encode())?;
            }
            state.conn = Some(conn.key);
            state.phase = Phase::Up(Link {
                line,
                endpoint: hello.endpoint(),
                message_bytes_max,
                alive_every,
                can_beat: liveness::can_beat(hello),
            });
            state.out.refuse_longer_than(message_bytes_max, &mut state.harvest);
            flush(core, peer, state);
            io::Result::Ok(state.session)
        })?;
        core.tell(&peer.uri, peer.host(), SessionChange::Begun { dialed: !greet });
        let addr = core.addr_of(peer).in_session(session);
        conn.stage = Stage::Up { peer: peer.clone(), addr };
        self.redials.retain(|redial| !Arc::ptr_eq(&redial.peer, peer));
        self.tick_within(liveness::tick_for(core, alive_every));
        Ok(())
    }

    /// A connection cannot go on: ends its peer, or the attempt to make it.
    pub(crate) fn lose(&mut self, core: &Core, key: u64, lost: Lost) {
        if matches!(lost, Lost::Moves) {
            return self.hand_over(core, key);
        }
        let Some(conn) = self.conns.get_mut(key) else { return };
        let name = match conn.peer() {
            Some(peer) => peer.uri.to_string(),
            None => match socket::remote_address(&conn.socket) {
                Ok(address) => address.to_string(),
                Err(_) => "unknown".into(),
            },
        };
        let (reason, protocol) = match &lost {
            Lost::Ended(reason) | Lost::Refused(reason) => (reason.clone(), false),
            Lost::Broke(reason) => (reason.clone(), true),
            Lost::Moves => return,
        };
        if protocol {
            tracing::warn!(peer = name, reason, "protocol broken, connection closed");
        }
        let error = |otherwise: Error| match protocol {
            true => Error::Protocol { peer: name.clone(), reason: reason.clone() },
            false => otherwise,
        };
        match &conn.stage {
            Stage::Up { peer, .. } => {
                let peer = peer.clone();
                let error = error(peer.gone(&reason));
                self.abandon(core, key, &error);
                self.end_peer(core, &peer, error);
                // An end that raced with a close is in no peer's list any more.
                self.drop_conn(key);
            }
            Stage::Connecting(attempt) | Stage::Greeting(attempt) => {
                let attempt = attempt.clone();
                if conn.securing.is_some() && matches!(lost, Lost::Refused(_)) {
                    tell_of_refusal(core, conn, &reason);
                }
                let error = error(attempt.peer.unreachable(&reason));
                self.detach(&attempt.peer, key);
                self.attempt_lost(core, &attempt, &lost, error);
            }
            Stage::Accepted { .. } => {
                tell_of_refusal(core, conn, &reason);
                self.drop_conn(key);
            }
        }
    }

    /// A connection has not come further in time.
    pub(crate) fn timed_out(&mut self, core: &Core, key: u64) {
        let limit = core.connect_timeout;
        let Some(conn) = self.conns.get_mut(key) else { return };
        let waiting = match &conn.stage {
            Stage::Connecting(_) => "connection",
            Stage::Greeting(_) | Stage::Accepted { .. } if conn.securing.is_some() => {
                "TLS handshake"
            }
            Stage::Greeting(_) | Stage::Accepted { .. } => "hello",
            Stage::Up { .. } => return,
        };
        self.lose(core, key, Lost::Ended(format!("no {waiting} within {limit:?}")));
    }
}

/// Refuses a peer of C Mercury that was taken for one of ours: what waits for it may be such that
/// only ours understand. From now on it is known, so what is written later is right.
fn check_rpc_layer(core: &Core, peer: &Peer, hello: &Hello) -> Result<(), Lost> {
    if !hello.is_for_mercury() || peer.is_for_mercury() || core.for_mercury {
        return Ok(());
    }
    core.note_rpc_layer(peer, true);
    Err(Lost::Refused(na_core::for_mercury_unknown(&peer.uri)))
}

/// Finds a place for a connection whose dialer has said `hello`; where there is none, tells it so.
fn place(core: &Core, conn: &mut Conn, hello: &Hello) -> Result<(), Lost> {
    let most = core.options.connections_max;
    let reason = match core.group.admit(conn.principal, hello, most) {
        Ok(permit) => {
            let is_here = permit.shard() == core.shard;
            conn.permit = Some(permit);
            return if is_here { Ok(()) } else { Err(Lost::Moves) };
        }
        Err(NotAdmitted::Closed) => return Err(Lost::Ended("the endpoint is closed".into())),
        Err(NotAdmitted::TooMany) => "there are too many connections",
        Err(NotAdmitted::TooManyOfCaller) => "it has too many connections",
    };
    let refusal = Some(Refusal::TooManyConnections);
    // It may be gone already; then it needs no answer.
    let _ = line_of(conn).say(&Hello { refusal, ..core.hello(0, None) }.encode());
    Err(Lost::Ended(reason.into()))
}

/// A connection has come to nothing before its peer was known.
fn tell_of_refusal(core: &Core, conn: &Conn, reason: &str) {
    let remote = socket::remote_address(&conn.socket);
    let address = remote.map_or_else(|_| "unknown".into(), |at| format!("na+tcp://{at}"));
    let principal = match conn.principal {
        Principal::Unknown => host_of(&conn.socket),
        known => known,
    };
    core.tell(&address, principal, SessionChange::Refused { reason });
}

/// The host that a connection comes from.
fn host_of(socket: &OwnedFd) -> Principal {
    let remote = socket::remote_address(socket);
    remote.map_or(Principal::Unknown, |remote| Principal::of_host(remote.ip()))
}

/// The line on which hellos are said, and then frames.
fn line_of(conn: &mut Conn) -> Line {
    Line::new(conn.socket.clone(), conn.sealer.take())
}

/// Says our hello to the peer that was dialed.
fn greet(core: &Core, conn: &mut Conn) -> io::Result<()> {
    let Stage::Greeting(attempt) = &conn.stage else { return Ok(()) };
    let hello = core.hello(attempt.peer.lock().session, Some(&attempt.peer));
    let mut line = line_of(conn);
    line.say(&hello.encode())?;
    conn.sealer = line.into_sealer();
    Ok(())
}

/// The handshake of a connection has ended well: now hellos are said.
fn go_on(core: &Core, conn: &mut Conn, secured: Box<Secured>) -> Result<(), Lost> {
    let Secured { sealer, opener, left, principal } = *secured;
    conn.securing = None;
    if let Stage::Accepted { since, .. } = &mut conn.stage {
        *since = Instant::now();
    }
    conn.sealer = Some(sealer);
    conn.principal = principal;
    conn.incoming.open_by(opener, left);
    conn.readable = true;
    greet(core, conn).map_err(|error| Lost::Ended(format!("greeting it failed: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::endpoint::TcpEndpoint;
    use na_core::{Completion, Endpoint, OpId, OpenOptions, Tag, Uri};

    fn endpoint(options: &OpenOptions) -> TcpEndpoint {
        TcpEndpoint::open(&Uri::parse("na+tcp://127.0.0.1:0").unwrap(), options).unwrap()
    }

    /// A listener that answers nobody any more, and what fills its queue.
    fn mute() -> (OwnedFd, Vec<OwnedFd>) {
        let address: std::net::SocketAddr = "127.0.0.1:0".parse().unwrap();
        let listener = socket::listen(address, Default::default()).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let address = socket::local_address(&listener).unwrap();
        let connect = |_| socket::connect(address, Default::default()).unwrap();
        let queue: Vec<_> = (0..8).map(connect).collect();
        (listener, queue)
    }

    #[test]
    fn an_address_that_does_not_answer_leaves_time_for_the_next() {
        let (silent, _queue) = mute();
        reaches_the_next(socket::local_address(&silent).unwrap(), || ());
    }

    #[test]
    fn an_address_that_does_not_greet_leaves_time_for_the_next() {
        use std::io::Write;
        let listening = || std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        // It accepts and is silent, for the kernel accepts.
        let silent = listening();
        reaches_the_next(silent.local_addr().unwrap(), || ());
        // Whatever is there is no target of ours, or none yet.
        for says in [&b"SSH-2.0-OpenSSH\r\n"[..], b""] {
            let other = listening();
            other.set_nonblocking(true).unwrap();
            let mut accepted = None;
            reaches_the_next(other.local_addr().unwrap(), || {
                if let Ok((mut stream, _)) = other.accept() {
                    stream.write_all(says).unwrap();
                    accepted = (!says.is_empty()).then_some(stream);
                }
            });
            assert_eq!(accepted.is_some(), !says.is_empty());
        }
    }

    /// A message to a peer with two addresses, `first` and that of a target, arrives.
    fn reaches_the_next(first: std::net::SocketAddr, mut meanwhile: impl FnMut()) {
        let target = endpoint(&OpenOptions::listening(true));
        let listening = target.self_addr.uri().strip_prefix("na+tcp://").unwrap();
        let mut options = OpenOptions::listening(false);
        // Far more than the second one needs, of which the first one gets half.
        options.connect_timeout = Duration::from_secs(4);
        let origin = endpoint(&options);
        let dial = vec![first, listening.parse().unwrap()];
        let to_target = origin.core.addr_of(&origin.core.new_peer(
            "na+tcp://two:1".into(),
            dial,
            PeerPart::default(),
        ));
        let mut buf = origin.alloc_msg();
        assert!(buf.try_extend(b"x"));
        target.recv_unexpected(OpId(1), target.alloc_msg()).unwrap();
        origin.send_unexpected(OpId(2), &to_target, Tag(1), buf).unwrap();
        let (mut sent, mut came) = (None, false);
        while sent.is_none() || (!came && matches!(sent, Some(Ok(())))) {
            let mut ended = |completion| match completion {
                Completion::Send { result, .. } => sent = Some(result),
                other => panic!("{other:?}"),
            };
            origin.poll(64, &mut ended).unwrap();
            target.poll(64, &mut |_| came = true).unwrap();
            meanwhile();
        }
        assert!(came, "{sent:?}");
    }
}
