//! Making and accepting connections; the protocol is in `handshake.rs`.
//!
//! A sender connects: the first operation towards a peer makes the segment, connects and sends
//! hello, none of which waits. Everything after that happens in the poll. Only processes of the
//! users that the options allow are talked to, whichever side connects.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::io::Errno;

use super::address::{self, Name};
use super::block::{PeerBlocks, Unmapped};
use super::board::Board;
use super::cma;
use super::endpoint::SmEndpoint;
use super::handshake::{Kind, Packet};
use super::link::{Conn, TxLink};
use super::peer::{Peer, Reach};
use super::poll::{LISTENER, PROCESS, PollState};
use super::ring::payload_max;
use super::rx::{RxLink, Stage};
use super::segment::Segment;
use super::serve::Services;
use super::socket::{self, Credentials, Received};
use crate::ran::Ran;
use crate::sync::atomic::Ordering;
use crate::sync::{Arc, lock};
use crate::{Error, Uri};

/// Accepted sockets whose hello has not come. While there are so many, others wait in the kernel's
/// queue: who closed one of them instead would turn away dialers for being slower than a crowd.
const STRANGERS_MAX: usize = 128;

/// Of the time that connecting may take, the part after which a silent stranger makes room for
/// others: who never says hello must not keep them out for long.
const SILENT_PART: u32 = 4;

/// What is said of a peer that has gone before its welcome.
const CLOSED_EARLY: &str = "it closed the connection during the handshake";

/// How long not to accept when there is no room for strangers.
const CROWDED_PAUSE: Duration = Duration::from_millis(10);

/// Connections that one look accepts; the rest stays in the kernel's queue until the next.
const ACCEPT_MAX: usize = 64;

/// How long not to accept after descriptors had run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// An accepted socket before its hello.
#[derive(Debug)]
pub(super) struct Stranger {
    pub(super) token: u64,
    pub(super) waited: Ran,
    socket: OwnedFd,
    credentials: Credentials,
    /// It was told so, and is kept until it has had time to read that: a socket that is closed
    /// with its hello unread shows an error instead.
    refused: bool,
}

impl SmEndpoint {
    /// Starts a connection to `peer` and adds its link. Called with the send lock held.
    pub(super) fn connect(&self, peer: &Arc<Peer>, links: &mut Vec<TxLink>) -> Result<(), Error> {
        // Under the lock: closing sets the flag before it takes the links apart.
        if self.is_closed() {
            return Err(Error::Closed);
        }
        let unreachable =
            |reason: &str| Error::Unreachable { peer: peer.uri.clone(), reason: reason.to_owned() };
        let Reach::Name(_) = peer.reach else {
            return Err(unreachable("it does not listen, and its connection has ended"));
        };
        let socket = socket::new()?;
        let connected = self.dial(peer, &socket)?;
        let listener = match connected {
            true => {
                let checked = self.check_listener(&socket, &peer.reach);
                Some(checked.map_err(|reason| unreachable(&reason))?)
            }
            false => None,
        };
        let (segment, memfd) = Segment::create(self.ring_bytes)?;
        let token = self.next_token.fetch_add(1, Ordering::Relaxed);
        let conn = Arc::new(Conn::new(token, socket, Arc::new(segment)));
        if let Some((credentials, process)) = listener {
            peer.set_user(credentials.uid);
            conn.set_credentials(credentials, process);
        }
        let waited = Ran::since(Instant::now());
        let mut link =
            RxLink::new(conn.clone(), peer.clone(), peer.addr(self.id), Stage::Dialing { waited });
        let greeted =
            connected && self.greet(&conn, &memfd).map_err(|reason| unreachable(&reason))?;
        if greeted {
            link.stage = Stage::Greeting { waited };
        } else {
            link.memfd = Some(memfd);
        }
        peer.add_link(links, TxLink::new(conn));
        lock(&self.opened).push(link);
        self.has_opened.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Connects. `false`: the listener's queue is full, try again.
    fn dial(&self, peer: &Peer, socket: &OwnedFd) -> Result<bool, Error> {
        let Reach::Name(name) = &peer.reach else { return Ok(false) };
        let address = name.socket()?;
        let reason = match rustix::net::connect(socket, &address) {
            // Connected before, when the hello could not be sent.
            Ok(()) | Err(Errno::ISCONN) => return Ok(true),
            Err(Errno::AGAIN | Errno::INTR) => return Ok(false),
            Err(Errno::CONNREFUSED) => "nobody listens there".to_owned(),
            Err(errno) => errno.to_string(),
        };
        Err(Error::Unreachable { peer: peer.uri.clone(), reason })
    }

    /// Tries again to connect. `late`: this is the last time.
    pub(super) fn dial_again(&self, link: &mut RxLink, late: bool) {
        let Stage::Dialing { waited } = link.stage else { return };
        let connected = match self.dial(&link.peer, &link.conn.socket) {
            Ok(connected) => connected,
            Err(error) => {
                link.end = Some(error);
                return;
            }
        };
        if !connected {
            if late {
                link.gone("it listens, but accepts no connections");
            }
            return;
        }
        let greeted = self.check_listener(&link.conn.socket, &link.peer.reach).and_then(
            |(credentials, process)| {
                let memfd = link.memfd.as_ref().ok_or("the segment is lost")?;
                link.peer.set_user(credentials.uid);
                link.conn.set_credentials(credentials, process);
                self.greet(&link.conn, memfd)
            },
        );
        match greeted {
            Ok(true) => {
                link.memfd = None;
                link.stage = Stage::Greeting { waited };
            }
            Ok(false) if late => link.gone(
                "the system lets this user have no more descriptors on their way to processes \
                 that have not taken them (RLIMIT_NOFILE)",
            ),
            Ok(false) => {}
            Err(reason) => link.gone(&reason),
        }
    }

    /// Sends hello and watches the socket. `false`: too many descriptors of this user are on their
    /// way to processes that have not taken them yet, try again.
    fn greet(&self, conn: &Conn, memfd: &OwnedFd) -> Result<bool, String> {
        let hello = Packet { slot: self.take_slot(conn), ..self.packet(Kind::Hello) };
        let fds = [memfd.as_fd(), self.board.fd()];
        let fds = if hello.slot.is_some() { &fds } else { &fds[..1] };
        match socket::send_packet(&conn.socket, &hello.encode(), fds) {
            Ok(()) => {
                let watched = self.watch(&conn.socket, conn.token);
                watched.map(|()| true).inspect_err(|_| self.give_slot_back(conn))
            }
            Err(errno) => {
                self.give_slot_back(conn);
                match errno {
                    Errno::TOOMANYREFS => Ok(false),
                    errno => Err(format!("cannot send the handshake: {errno}")),
                }
            }
        }
    }

    fn give_slot_back(&self, conn: &Conn) {
        if let Some(slot) = conn.slot() {
            conn.clear_slot();
            self.board.free_slot(slot);
        }
    }

    /// A place on our board for the peer, if it may have one.
    fn take_slot(&self, conn: &Conn) -> Option<u32> {
        let slot = if conn.shares() { self.board.take_slot() } else { None };
        slot.inspect(|slot| conn.set_slot(*slot))
    }

    fn watch(&self, socket: &OwnedFd, token: u64) -> Result<(), String> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP;
        epoll::add(&self.epoll, socket, epoll::EventData::new_u64(token), flags)
            .map_err(|errno| format!("cannot watch its socket: {errno}"))
    }

    /// A child that the peer's process has forked off keeps the socket, so its end is not the end
    /// of the socket.
    fn watch_process(&self, conn: &Conn) {
        let Some(process) = conn.process() else { return };
        let data = epoll::EventData::new_u64(conn.token | PROCESS);
        if let Err(errno) = epoll::add(&self.epoll, process, data, epoll::EventFlags::IN) {
            tracing::warn!("cannot watch process {}: {errno}", conn.pid());
        }
    }

    fn packet(&self, kind: Kind) -> Packet {
        let ring_bytes = if kind == Kind::Hello { self.ring_bytes as u32 } else { 0 };
        Packet {
            kind,
            message_bytes_max: self.options.message_bytes_max as u32,
            listens: self.options.listen,
            attach: self.attach,
            never_sleeps: self.options.no_block,
            ring_bytes,
            nonce_addr: if self.attach { self.nonce.addr() } else { 0 },
            nonce: if self.attach { self.nonce.value() } else { 0 },
            slot: None,
            text: self.own_addr.uri().to_owned(),
        }
    }

    /// Whether we may copy in the memory of the process that sent `packet`. Only if we shall know
    /// when it ends: then its number may be given to another. And only if it is of our user: where
    /// privileges allow more, the pages of another's memory could hold this poll up for as long as
    /// he likes (a page of a file system of his), and he would learn addresses of ours.
    fn may_attach(&self, packet: &Packet, conn: &Conn) -> bool {
        let both = self.attach && packet.attach;
        let wanted = both && conn.shares() && conn.process().is_some();
        wanted && cma::probe(conn.pid(), packet.nonce_addr, packet.nonce)
    }

    /// The welcome has come, or what else the peer says.
    pub(super) fn hear_welcome(&self, link: &mut RxLink) {
        let received = match socket::recv_packet(&link.conn.socket) {
            Ok(received) => received,
            Err(Errno::AGAIN | Errno::INTR) => return,
            Err(Errno::CONNRESET) => return link.gone(CLOSED_EARLY),
            Err(errno) => return link.gone(&errno.to_string()),
        };
        if received.bytes.is_empty() {
            return link.gone(CLOSED_EARLY);
        }
        let packet = match Packet::decode(&received.bytes) {
            Ok(packet) => packet,
            Err(reason) => return link.breach(reason),
        };
        match packet.kind {
            Kind::Welcome => {
                match peer_board(&packet, received.fds.first(), received.cut) {
                    Ok(Some((board, slot))) if link.conn.shares() => {
                        link.conn.set_peer_board(board, slot);
                    }
                    Ok(_) => {}
                    Err(Unmapped::Breach(reason)) => return link.breach(reason),
                    Err(Unmapped::Lack(reason)) => return link.gone(&reason),
                }
                self.bring_up(link, &packet);
                link.with_link(|tx| tx.open(link.limit));
            }
            Kind::Refused => link.gone(&format!("refused: {}", packet.text)),
            Kind::Hello => link.breach("a hello in answer to ours"),
        }
    }

    fn bring_up(&self, link: &mut RxLink, packet: &Packet) {
        let ours = self.options.message_bytes_max;
        let records = payload_max(link.rx.capacity());
        link.limit = ours.min(packet.message_bytes_max as usize).min(records);
        if packet.never_sleeps {
            link.conn.set_peer_never_sleeps();
        }
        link.blocks = PeerBlocks::up_to(self.options.sm.mapped_bytes_per_peer_max);
        self.watch_process(&link.conn);
        let attach = self.may_attach(packet, &link.conn);
        link.services = Services::new(attach, self.options.copy_helper.clone());
        link.began_attached = attach;
        (link.addr, link.spare) = (link.peer.addr(self.id).in_session(link.peer.session()), None);
        link.stage = Stage::Up;
        link.silent = Ran::since(Instant::now());
        let by_path = if attach { &self.attached } else { &self.unattached };
        by_path.fetch_add(1, Ordering::Relaxed);
        tracing::debug!("connected with {}, cross-memory attach: {attach}", link.peer.uri);
    }

    /// Takes new connections.
    pub(super) fn accept(&self, state: &mut PollState) {
        for _ in 0..ACCEPT_MAX {
            if !self.make_room(state) {
                return self.pause_accepting(state, CROWDED_PAUSE);
            }
            let Some(listener) = &state.listener else { return };
            let socket = match socket::accept(listener.as_fd()) {
                Ok(socket) => socket,
                Err(Errno::AGAIN) => return,
                Err(errno) => {
                    state.crowd.refuse(format_args!("cannot accept others: {errno}; pausing"));
                    return self.pause_accepting(state, ACCEPT_PAUSE);
                }
            };
            let checked = self.check_user(&socket);
            let refused = checked.is_err();
            let credentials = checked.unwrap_or_else(|reason| {
                state.crowd.refuse(reason);
                refuse(&socket, "it does not talk with processes of this user");
                Credentials { pid: 0, uid: u32::MAX }
            });
            let token = self.next_token.fetch_add(1, Ordering::Relaxed);
            if let Err(reason) = self.watch(&socket, token) {
                state.crowd.refuse(reason);
                continue;
            }
            let waited = Ran::since(Instant::now());
            state.strangers.push(Stranger { token, waited, socket, credentials, refused });
        }
    }

    /// Whether there is room for a stranger; closes one for that who has been told that he is
    /// refused, or has been silent for long.
    fn make_room(&self, state: &mut PollState) -> bool {
        let strangers = &mut state.strangers;
        if strangers.len() < STRANGERS_MAX {
            return true;
        }
        let (now, limit) = (Instant::now(), self.options.connect_timeout / SILENT_PART);
        let refused = strangers.iter().position(|stranger| stranger.refused);
        let leaves = refused
            .or_else(|| strangers.iter_mut().position(|one| one.waited.has_passed(now, limit)));
        if let Some(at) = leaves {
            self.drop_stranger(&strangers.remove(at));
        }
        leaves.is_some()
    }

    /// Leaves dialers in the kernel's queue for a while.
    fn pause_accepting(&self, state: &mut PollState, pause: Duration) {
        let Some(listener) = &state.listener else { return };
        let _ = epoll::delete(&self.epoll, listener);
        state.accept_again = Some(Instant::now() + pause);
    }

    /// Whose process it is, if we talk with it.
    fn check_user(&self, socket: &OwnedFd) -> Result<Credentials, String> {
        let credentials = socket::peer_credentials(socket)
            .map_err(|errno| format!("the kernel does not say whose it is: {errno}"))?;
        let own = address::own_uid();
        if self.options.peer_users.allows(credentials.uid, own) {
            return Ok(credentials);
        }
        let uid = credentials.uid;
        Err(format!(
            "the process there belongs to user {uid}, this one to {own}, and the endpoint's \
             peer_users do not include {uid}"
        ))
    }

    /// The same for who listens there: he must be the one whose name it is.
    fn check_listener(
        &self,
        socket: &OwnedFd,
        reach: &Reach,
    ) -> Result<(Credentials, Option<OwnedFd>), String> {
        let credentials = self.check_user(socket)?;
        match reach {
            Reach::Name(name) if name.uid != credentials.uid => Err(format!(
                "it is a name of user {}, and a process of user {} listens there",
                name.uid, credentials.uid
            )),
            _ => Ok((credentials, socket::peer_process(socket, credentials)?)),
        }
    }

    /// Accepts again after a pause.
    pub(super) fn resume_accepting(&self, state: &mut PollState) {
        state.accept_again = None;
        if let Some(listener) = &state.listener {
            let token = epoll::EventData::new_u64(LISTENER);
            if epoll::add(&self.epoll, listener, token, epoll::EventFlags::IN).is_err() {
                state.accept_again = Some(Instant::now() + ACCEPT_PAUSE);
            }
        }
    }

    /// A stranger has said something.
    pub(super) fn hear_stranger(&self, state: &mut PollState, at: usize) {
        let received = match socket::recv_packet(&state.strangers[at].socket) {
            Err(Errno::AGAIN | Errno::INTR) => return,
            received => received,
        };
        // From here on it is either a connection or closed.
        let stranger = state.strangers.swap_remove(at);
        if let Some(left) = self.meet(state, stranger, received) {
            self.drop_stranger(&left);
        }
    }

    /// Ends the watch over a stranger who is about to be closed. Closing alone does not, if a child
    /// that was forked off has the file as well: then its end could be heard for ever, and the
    /// other side would not see ours.
    pub(super) fn drop_stranger(&self, stranger: &Stranger) {
        socket::say_goodbye(&stranger.socket);
        let _ = epoll::delete(&self.epoll, &stranger.socket);
    }

    /// A stranger has sent his first packet, or none will come. Returns who is not let in.
    fn meet(
        &self,
        state: &mut PollState,
        stranger: Stranger,
        received: Result<Received, Errno>,
    ) -> Option<Stranger> {
        let pid = stranger.credentials.pid;
        let received = match received {
            Ok(received) if received.bytes.is_empty() || stranger.refused => return Some(stranger),
            Ok(received) => received,
            Err(errno) => {
                state.crowd.refuse(format_args!("process {pid} sent no handshake: {errno}"));
                return Some(stranger);
            }
        };
        let process = match socket::peer_process(&stranger.socket, stranger.credentials) {
            Ok(process) => process,
            // Nobody is there to be told.
            Err(reason) => {
                state.crowd.refuse(format_args!("process {pid}: {reason}"));
                return Some(stranger);
            }
        };
        let hello = Packet::decode(&received.bytes).and_then(|packet| {
            if packet.kind != Kind::Hello {
                return Err("the first packet is not a hello".to_owned());
            }
            let fd = received.fds.first().ok_or_else(|| match received.cut {
                true => Unmapped::no_descriptor("the segment").into_reason(),
                false => "the hello carries no memory".into(),
            })?;
            let segment = Segment::attach(fd, packet.ring_bytes as usize)?;
            let board = peer_board(&packet, received.fds.get(1), received.cut)
                .map_err(Unmapped::into_reason)?;
            Ok((segment, board, packet))
        });
        match hello {
            Ok((segment, board, packet)) => {
                let uid = stranger.credentials.uid;
                match state.crowd.admit(uid, &self.options.sm) {
                    Ok(()) => {
                        self.welcome(state, stranger, process, segment, board, &packet);
                        return None;
                    }
                    Err(reason) => {
                        refuse(&stranger.socket, &reason);
                        state.crowd.refuse(reason);
                    }
                }
            }
            Err(reason) => {
                refuse(&stranger.socket, &reason);
                state.crowd.refuse(format_args!("process {pid}: {reason}"));
            }
        }
        Some(stranger)
    }

    fn welcome(
        &self,
        state: &mut PollState,
        from: Stranger,
        process: Option<OwnedFd>,
        segment: Segment,
        board: Option<(Board, u32)>,
        packet: &Packet,
    ) {
        let conn = Conn::new(from.token, from.socket, Arc::new(segment));
        conn.set_credentials(from.credentials, process);
        if let Some((board, slot)) = board.filter(|_| conn.shares()) {
            conn.set_peer_board(board, slot);
        }
        let mut welcome = Packet { slot: self.take_slot(&conn), ..self.packet(Kind::Welcome) };
        let fds = [self.board.fd()];
        let fds = if welcome.slot.is_some() { &fds[..] } else { &[] };
        let mut sent = socket::send_packet(&conn.socket, &welcome.encode(), fds);
        if let Err(Errno::TOOMANYREFS) = sent {
            // As to a peer that gets no place on the board.
            self.give_slot_back(&conn);
            welcome.slot = None;
            sent = socket::send_packet(&conn.socket, &welcome.encode(), &[]);
        }
        if sent.is_err() {
            // It has left already.
            let _ = epoll::delete(&self.epoll, &conn.socket);
            state.crowd.leave(from.credentials.uid);
            return self.give_slot_back(&conn);
        }
        let peer = self.identify(state, packet, from.credentials);
        peer.set_user(from.credentials.uid);
        let conn = Arc::new(conn);
        let addr = peer.addr(self.id);
        let mut link =
            RxLink::new(conn.clone(), peer.clone(), addr, Stage::Greeting { waited: from.waited });
        link.guest_of = Some(from.credentials.uid);
        self.bring_up(&mut link, packet);
        let mut tx = TxLink::new(conn);
        tx.open(link.limit);
        peer.add_link(&mut peer.links.lock(), tx);
        state.links.push(link);
    }

    /// Whose connection this is. A name belongs to the process that listens there, and only a
    /// connection from that process is taken for it; any other one works as an unnamed peer.
    fn identify(&self, state: &mut PollState, packet: &Packet, from: Credentials) -> Arc<Peer> {
        let name = Uri::parse(&packet.text).and_then(|uri| Name::of(&uri, from.uid));
        let name = name.ok().filter(|name| !name.name.is_empty() && name.uid == from.uid);
        let Some(name) = name else {
            let uri = format!("na+sm://?pid={}", from.pid);
            return lock(&self.peers).unnamed(uri);
        };
        if !packet.listens || name == self.name || !listens_as(&name, from) {
            if packet.listens {
                tracing::warn!("process {} is not the one that listens as {name:?}", from.pid);
            }
            return lock(&self.peers).unnamed(name.uri());
        }
        let peer = lock(&self.peers).named(&name);
        for link in state.links.iter_mut().filter(|link| link.peer.id == peer.id) {
            if link.stage == Stage::Up && !link.conn.is_alive() {
                link.gone("it ended, and another process has its name");
            }
        }
        state.links.sweep();
        // The predecessor ends first, so that nothing is sent to it any more.
        self.reap_ended(state);
        peer
    }
}

/// The board that came with a packet, and our slot there.
fn peer_board(
    packet: &Packet,
    fd: Option<&OwnedFd>,
    cut: bool,
) -> Result<Option<(Board, u32)>, Unmapped> {
    let Some(slot) = packet.slot else { return Ok(None) };
    let fd = fd.ok_or_else(|| match cut {
        true => Unmapped::no_descriptor("the board"),
        false => "a slot without a board".into(),
    })?;
    Ok(Some((Board::attach(fd)?, slot)))
}

/// Whether the process that connected is the one that listens as `name`.
fn listens_as(name: &Name, from: Credentials) -> bool {
    let found = name.socket().and_then(|address| {
        let socket = socket::new()?;
        let asked = rustix::net::connect(&socket, &address).and_then(|()| {
            // Closed again at once, which a listener takes for somebody who changed his mind.
            socket::peer_credentials(&socket)
        });
        asked.map_err(|errno| Error::io("cannot ask who listens", errno))
    });
    found.is_ok_and(|found| found == from)
}

fn refuse(socket: &OwnedFd, reason: &str) {
    // It may have left; there is nobody else to tell.
    let _ = socket::send_packet(socket, &Packet::refused(reason).encode(), &[]);
}
