//! Making and accepting connections; the protocol is in `handshake.rs`.
//!
//! A sender connects: the first operation towards a peer makes the segment, connects and sends
//! hello, none of which waits. Everything after that happens in the poll. Only processes of the
//! users that the options allow are talked to, whichever side connects.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::io::Errno;

use crate::address::{self, Name};
use crate::link::accepted::{Place, Silent, place_for};
use crate::link::group::{Handed, Met, PeerName, Stranger, caller_key};
use crate::link::handshake::{Kind, Packet, Shards};
use crate::link::listener::Listener;
use crate::link::socket::{self, Credentials, Received, Socket, Unheard};
use crate::link::{Conn, Segment, check_ring_bytes, payload_max, total_bytes};
use crate::mapping::Unmapped;
use crate::peers::{ConnectionStage, Peer, PeerPart, Reach, RxLink, TxLink};
use crate::state::{LISTENER, PROCESS, PollState, SmEndpoint};
use crate::transfer::block::PeerBlocks;
use crate::transfer::cma;
use crate::transfer::serve::Services;
use crate::wake::board::Board;
use na_core::base::plain;
use na_core::base::ran::RunClock;
use na_core::limits::descriptors;
use na_core::{Error, Principal, SessionChange};
use prim::sync::atomic::Ordering;
use prim::sync::{Arc, lock};

/// The part of the time that connecting may take, one in this many, after which a silent stranger
/// makes room for others. One that never says hello must not keep them out for long.
const SILENT_PART: u32 = 4;

/// The reason that is given for a peer that has gone before its welcome.
const CLOSED_EARLY: &str = "it closed the connection during the handshake";

/// The reason that is given for a peer that accepted the connection and did not answer in time.
const NO_ANSWER: &str = "it listens, but did not answer in time";

/// The reason that is given for a peer whose queue of connections is full for too long.
const NO_PLACE: &str = "it listens, but accepts no connections";

/// Connections that one look accepts; the rest stays in the kernel's queue until the next.
const ACCEPT_MAX: usize = 64;

/// How long not to accept after descriptors had run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

impl SmEndpoint {
    /// Starts a connection to `peer` and adds its link. Called with the send lock held.
    pub(crate) fn connect(&self, peer: &Arc<Peer>, links: &mut Vec<TxLink>) -> Result<(), Error> {
        // Under the lock: closing sets the flag before it takes the links apart.
        if self.is_closed() {
            return Err(Error::Closed);
        }
        let unreachable =
            |reason: &str| Error::Unreachable { peer: peer.uri.clone(), reason: reason.to_owned() };
        let Reach::Name(_) = peer.reach else {
            return Err(unreachable("it does not listen, and its connection has ended"));
        };
        let socket = socket::new(&self.group.closer)?;
        let connected = self.dial(peer, &socket)?;
        let (segment, memfd) = Segment::create(self.ring_bytes)?;
        let token = self.next_token.fetch_add(1, Ordering::Relaxed);
        let mut conn = Conn::new(token, socket, Arc::new(segment));
        // Under the lock as well: who looks for a shared connection there sees it, or has seen the
        // group grow before.
        conn.is_apart = peer.part.is_apart || self.group.count() > 1;
        let conn = Arc::new(conn);
        let waited = RunClock::since(Instant::now());
        let mut link = RxLink::new(
            conn.clone(),
            peer.clone(),
            peer.addr(self.id),
            ConnectionStage::Dialing { waited },
        );
        let greeted = match connected {
            true => self.introduce(&conn, peer, &memfd).map_err(|reason| unreachable(&reason))?,
            false => Greeted::NotYet(NO_PLACE),
        };
        match greeted {
            Greeted::Yes => link.stage = ConnectionStage::Greeting { waited },
            Greeted::NotYet(_) => link.memfd = Some(memfd),
        }
        peer.add_link(links, TxLink::new(conn));
        lock(&self.opened).push(link);
        self.has_opened.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Connects. `false`: the listener's queue is full, try again.
    fn dial(&self, peer: &Peer, socket: &Socket) -> Result<bool, Error> {
        let Reach::Name(name) = &peer.reach else { return Ok(false) };
        let address = name.socket()?;
        let reason = match rustix::net::connect(socket, &address) {
            // Connected before, when the hello could not be sent.
            Ok(()) | Err(Errno::ISCONN) => return Ok(true),
            Err(Errno::AGAIN | Errno::INTR) => return Ok(false),
            Err(Errno::CONNREFUSED) => name.nobody_listens(),
            Err(errno) => errno.to_string(),
        };
        Err(Error::Unreachable { peer: peer.uri.clone(), reason })
    }

    /// Tries again to connect. `late`: this is the last time.
    pub(crate) fn dial_again(&self, link: &mut RxLink, late: bool) {
        let ConnectionStage::Dialing { waited } = link.stage else { return };
        let connected = match self.dial(&link.peer, &link.conn.socket) {
            Ok(connected) => connected,
            Err(error) => {
                link.end = Some(error);
                return;
            }
        };
        let greeted = match &link.memfd {
            Some(memfd) if connected => self.introduce(&link.conn, &link.peer, memfd),
            _ => Ok(Greeted::NotYet(NO_PLACE)),
        };
        match greeted {
            Ok(Greeted::Yes) => {
                link.memfd = None;
                link.stage = ConnectionStage::Greeting { waited };
            }
            Ok(Greeted::NotYet(why)) if late => link.gone(why),
            Ok(Greeted::NotYet(_)) => {}
            Err(reason) => link.gone(&reason),
        }
    }

    /// Checks who listens there, and sends hello if that can be done yet.
    fn introduce(&self, conn: &Conn, peer: &Peer, memfd: &OwnedFd) -> Result<Greeted, String> {
        let (credentials, process) = self.check_listener(&conn.socket, &peer.reach)?;
        peer.set_user(credentials.uid);
        conn.set_credentials(credentials, process);
        self.greet(conn, peer, memfd)
    }

    /// Watches the socket and sends hello, if that can be done yet.
    fn greet(&self, conn: &Conn, peer: &Peer, memfd: &OwnedFd) -> Result<Greeted, String> {
        // Its answer, or that it is ready for the hello.
        self.watch(&conn.socket, conn.token)?;
        if conn.shares() {
            // For its board and its memory.
            socket::permit_descriptors(&conn.socket, true);
        }
        let hello = Packet { slot: self.take_slot(conn), ..self.hello(conn, peer) };
        let fds = [memfd.as_fd(), self.board.fd()];
        let fds = if hello.slot.is_some() { &fds } else { &fds[..1] };
        let sent = socket::send_packet(&conn.socket, &hello.encode(), fds);
        if sent.is_err() {
            self.give_slot_back(conn);
        }
        match sent {
            // It has refused us without waiting for a hello, and the reason can be read.
            Ok(()) | Err(Errno::PIPE | Errno::CONNRESET) => Ok(Greeted::Yes),
            // The kernel refuses descriptors in its name until it knows who we are.
            Err(Errno::PERM) => Ok(Greeted::NotYet(NO_ANSWER)),
            Err(Errno::TOOMANYREFS) => Ok(Greeted::NotYet(
                "the system lets this user have no more descriptors on their way to processes \
                 that have not taken them (RLIMIT_NOFILE)",
            )),
            Err(errno) => Err(format!("cannot send the handshake: {errno}")),
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

    fn watch(&self, socket: &Socket, token: u64) -> Result<(), String> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP;
        match epoll::add(&self.epoll, socket, epoll::EventData::new_u64(token), flags) {
            // Since the last time that it was greeted.
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(errno) => Err(format!("cannot watch its socket: {errno}")),
        }
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

    fn hello(&self, conn: &Conn, peer: &Peer) -> Packet {
        let shards = conn.is_apart.then(|| self.shards(peer.part.wanted));
        // Who listens is known by name, and by earlier versions answered on any connection.
        let listens = self.options.listen && !conn.is_apart;
        let ring_bytes = self.ring_bytes as u32;
        Packet { shards, listens, ring_bytes, ..self.packet(Kind::Hello) }
    }

    /// Our number in our group, and the one that we would like to reach in another.
    fn shards(&self, wanted: Option<u8>) -> Shards {
        // There are 128 at most.
        Shards { own: self.shard as u8, last: (self.group.count() - 1) as u8, wanted }
    }

    fn packet(&self, kind: Kind) -> Packet {
        Packet {
            kind,
            message_bytes_max: self.options.message_bytes_max as u32,
            listens: self.options.listen,
            attach: self.attach,
            never_sleeps: self.options.no_block,
            for_mercury: self.options.for_mercury,
            shards: (self.group.count() > 1).then(|| self.shards(None)),
            ring_bytes: 0,
            nonce_addr: if self.attach { self.nonce.addr() } else { 0 },
            nonce: if self.attach { self.nonce.value() } else { 0 },
            slot: None,
            text: self.own_addr.uri().to_owned(),
        }
    }

    /// Returns whether we may copy in the memory of the process that sent `packet`. Only if we
    /// shall know when it ends: then its number may be given to another. And only if it is of our
    /// user: where privileges allow more, the pages of another's memory could hold this poll up for
    /// as long as he likes (a page of a file system of his), and he would learn addresses of ours.
    fn may_attach(&self, packet: &Packet, conn: &Conn) -> bool {
        let both = self.attach && packet.attach;
        let wanted = both && conn.shares() && conn.process().is_some();
        wanted && cma::probe(conn.pid(), packet.nonce_addr, packet.nonce)
    }

    /// The welcome has come, or what else the peer says.
    pub(crate) fn hear_welcome(&self, link: &mut RxLink) {
        let socket = &link.conn.socket;
        let received = match socket.recv_packet() {
            // It closed the connection with our hello unread. What it said before comes after that.
            Err(Unheard::Errno(Errno::CONNRESET)) => socket.recv_packet(),
            received => received,
        };
        let received = match received {
            Ok(received) => received,
            Err(Unheard::Errno(Errno::AGAIN | Errno::INTR)) => return,
            Err(Unheard::Errno(Errno::CONNRESET)) => return link.gone(CLOSED_EARLY),
            Err(Unheard::Errno(errno)) => return link.gone(&errno.to_string()),
            Err(reason @ Unheard::Foreign) => return link.breach(reason),
        };
        if received.bytes.is_empty() && !received.cut {
            return link.gone(CLOSED_EARLY);
        }
        let packet = match Packet::decode(&received.bytes) {
            Ok(packet) => packet,
            Err(reason) => return link.breach(reason),
        };
        match packet.kind {
            Kind::Welcome if link.memfd.is_none() => {
                if self.is_mistaken(link, &packet) {
                    return link.gone(&na_core::for_mercury_unknown(&link.peer.uri));
                }
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
            Kind::Refused => link.gone(&format!("refused: {}", plain::text(&packet.text))),
            // Where the hello could not be sent yet, that is tried again after each look.
            Kind::Ready => {}
            Kind::Welcome => link.breach("a welcome before our hello"),
            Kind::Hello => link.breach("a hello in answer to ours"),
        }
    }

    /// Returns whether a peer of C Mercury was taken for one of ours: what waits for it may be such
    /// that only ours understand. From now on it is known, so what is written later is right.
    fn is_mistaken(&self, link: &RxLink, packet: &Packet) -> bool {
        let mistaken = packet.for_mercury && !link.for_mercury && !self.options.for_mercury;
        if mistaken {
            self.note_rpc_layer(&link.peer, true);
        }
        mistaken
    }

    fn bring_up(&self, link: &mut RxLink, packet: &Packet) {
        let ours = self.options.message_bytes_max;
        let records = payload_max(link.rx.capacity());
        link.limit = ours.min(packet.message_bytes_max as usize).min(records);
        self.note_rpc_layer(&link.peer, packet.for_mercury);
        if packet.never_sleeps {
            link.conn.set_peer_never_sleeps();
        }
        link.blocks = PeerBlocks::up_to(self.options.sm.mapped_bytes_per_peer_max);
        self.watch_process(&link.conn);
        let attach = self.may_attach(packet, &link.conn);
        link.services = Services::new(attach, self.options.copy_helper.clone());
        link.began_attached = attach;
        let dialed = link.admission.is_none();
        link.addr = link.peer.addr(self.id).in_session(link.peer.session());
        link.spares = Default::default();
        link.stage = ConnectionStage::Up;
        link.silent = RunClock::since(Instant::now());
        let by_path = if attach { &self.attached } else { &self.unattached };
        by_path.fetch_add(1, Ordering::Relaxed);
        self.tell(&link.peer.uri, link.peer.principal(), SessionChange::Begun { dialed });
        tracing::debug!("connected with {}, cross-memory attach: {attach}", link.peer.uri);
    }

    /// Takes new connections.
    pub(crate) fn accept(&self, state: &mut PollState) {
        for _ in 0..ACCEPT_MAX {
            if self.group.closer.is_full() {
                self.group.refuse("too much that others sent waits to be closed; pausing");
                return self.pause_accepting(state, ACCEPT_PAUSE);
            }
            let Some(listener) = &state.listener else { return };
            let accepted = match listener.accept() {
                Ok(socket) => {
                    self.take_stranger(state, socket);
                    Ok(())
                }
                Err(Errno::MFILE | Errno::NFILE) => self.accept_to_refuse(state),
                Err(errno) => Err(errno),
            };
            match accepted {
                Ok(()) => {}
                Err(Errno::AGAIN) => return,
                Err(errno) => {
                    self.group.refuse(format_args!("cannot accept others: {errno}; pausing"));
                    return self.pause_accepting(state, ACCEPT_PAUSE);
                }
            }
        }
    }

    /// Accepts a connection in place of the reserve, only to say why it cannot be.
    fn accept_to_refuse(&self, state: &mut PollState) -> Result<(), Errno> {
        let Some(listener) = &mut state.listener else { return Err(Errno::MFILE) };
        let reason = descriptors::last_refusal();
        listener.accept_to_refuse(|socket| refuse(socket, &reason))?;
        self.group.refuse(reason);
        Ok(())
    }

    /// Waits for the hello of a process that has connected, if its user may come.
    fn take_stranger(&self, state: &mut PollState, socket: Socket) {
        let refused = match self.check_user(&socket) {
            Err(reason) => Err((reason, "it does not talk with processes of this user".to_owned())),
            Ok(credentials) => match self.room_for(state, &socket, credentials.uid) {
                Err(reason) => Err((reason.clone(), reason)),
                Ok(()) => Ok(credentials),
            },
        };
        let credentials = match refused {
            Ok(credentials) => credentials,
            Err((logged, told)) => {
                refuse(&socket, &told);
                self.tell_of_refusal(socket::peer_credentials(&socket).ok(), &logged);
                return self.group.refuse(logged);
            }
        };
        let token = self.next_token.fetch_add(1, Ordering::Relaxed);
        if let Err(reason) = self.watch(&socket, token) {
            return self.group.refuse(reason);
        }
        if socket::permit_descriptors(&socket, true) {
            // It may have gone, which shows when it is heard.
            let _ = socket::send_packet(&socket, &Packet::ready().encode(), &[]);
        }
        let waited = RunClock::since(Instant::now());
        state.strangers.push(Stranger { token, waited, socket, credentials });
    }

    /// Makes room for a stranger of user `uid`.
    ///
    /// # Errors
    ///
    /// There is none: why.
    fn room_for(&self, state: &mut PollState, socket: &Socket, uid: u32) -> Result<(), String> {
        let lack = descriptors::refusal(socket).or_else(|| self.group.closer.refusal(uid));
        if let Some(reason) = lack {
            return Err(reason);
        }
        let (now, limit) = (Instant::now(), self.options.connect_timeout / SILENT_PART);
        let silent = state.strangers.iter_mut().map(|stranger| Silent {
            uid: stranger.credentials.uid,
            token: stranger.token,
            is_old: stranger.waited.has_passed(now, limit),
        });
        let silent: Vec<_> = silent.collect();
        match place_for(uid, &silent, state.strangers_max) {
            Place::Free => {}
            Place::Of(at) => {
                let leaves = state.strangers.swap_remove(at);
                let reason = "it said nothing for long, and others need its place";
                refuse(&leaves.socket, reason);
                self.tell_of_refusal(Some(leaves.credentials), reason);
                self.drop_stranger(&leaves);
            }
            Place::None(silent) => {
                return Err(format!(
                    "{silent} other processes of user {uid} have just connected and not said \
                     hello; try again"
                ));
            }
        }
        Ok(())
    }

    /// Tells of a change in the session with a peer, if that is to be told.
    pub(crate) fn tell(&self, address: &str, principal: Principal, change: SessionChange<'_>) {
        if let Some(observer) = &self.options.sessions {
            observer.tell("sm", address, principal, change);
        }
    }

    /// A process is not let in.
    pub(crate) fn tell_of_refusal(&self, who: Option<Credentials>, reason: &str) {
        let principal = who.map_or(Principal::Unknown, |who| Principal::User(who.uid));
        let address =
            who.map_or_else(|| "unknown".into(), |who| format!("na+sm://?pid={}", who.pid));
        self.tell(&address, principal, SessionChange::Refused { reason });
    }

    /// Leaves dialers in the kernel's queue for a while.
    fn pause_accepting(&self, state: &mut PollState, pause: Duration) {
        let Some(listener) = &state.listener else { return };
        let _ = epoll::delete(&self.epoll, listener);
        state.accept_again = Some(Instant::now() + pause);
    }

    /// Returns the credentials of the process at the other end, if this endpoint talks with its
    /// user.
    fn check_user(&self, socket: &Socket) -> Result<Credentials, String> {
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

    /// Checks the process that listens there as [`check_user`](Self::check_user) does; it must also
    /// belong to the user whose name this is.
    fn check_listener(
        &self,
        socket: &Socket,
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
    pub(crate) fn resume_accepting(&self, state: &mut PollState) {
        state.accept_again = None;
        if let Some(listener) = &state.listener {
            let token = epoll::EventData::new_u64(LISTENER);
            if epoll::add(&self.epoll, listener, token, epoll::EventFlags::IN).is_err() {
                state.accept_again = Some(Instant::now() + ACCEPT_PAUSE);
            }
        }
    }

    /// A stranger has said something.
    pub(crate) fn hear_stranger(&self, state: &mut PollState, at: usize) {
        let received = match state.strangers[at].socket.recv_packet() {
            Err(Unheard::Errno(Errno::AGAIN | Errno::INTR)) => return,
            received => received,
        };
        // From here on it is either a connection or closed.
        let stranger = state.strangers.swap_remove(at);
        match self.meet(&stranger, received) {
            Ok(met) if met.admission.shard() == self.shard => {
                return self.welcome(state, stranger, met);
            }
            Ok(met) => return self.hand_over(stranger, met),
            Err(Some(reason)) => {
                let pid = stranger.credentials.pid;
                refuse(&stranger.socket, &reason);
                self.tell_of_refusal(Some(stranger.credentials), &reason);
                self.group.refuse(format_args!("process {pid}: {reason}"));
            }
            Err(None) => {}
        }
        self.drop_stranger(&stranger);
    }

    /// A stranger who is about to be closed. Closing alone is not enough if a child that was forked
    /// off has the file as well: then its end could be heard for ever, and the other side would not
    /// see ours.
    pub(crate) fn drop_stranger(&self, stranger: &Stranger) {
        socket::say_goodbye(&stranger.socket);
        self.forget_stranger(stranger);
    }

    /// Ends the watch over a stranger.
    pub(crate) fn forget_stranger(&self, stranger: &Stranger) {
        let _ = epoll::delete(&self.epoll, &stranger.socket);
    }

    /// Leaves a stranger who has said hello to the endpoint of the group where his place is. If he
    /// has gone meanwhile, that one finds out.
    fn hand_over(&self, stranger: Stranger, met: Met) {
        self.forget_stranger(&stranger);
        self.group.hand(Handed::Met(Box::new((stranger, met))));
    }

    /// Takes what other endpoints of the group have handed over to us.
    #[cold]
    pub(crate) fn take_handed(&self, state: &mut PollState) {
        self.group.bells.silence(self.shard);
        if self.is_closed() {
            // The end of this poll leaves it to the others.
            return;
        }
        for handed in self.group.take(self.shard) {
            match handed {
                Handed::Met(met) => {
                    let (mut stranger, met) = *met;
                    if self.take_over(&mut stranger) {
                        self.welcome(state, stranger, met);
                    }
                }
                Handed::Stranger(mut stranger) => {
                    if self.take_over(&mut stranger) {
                        state.strangers.push(stranger);
                    }
                }
                Handed::Listener(listener) => self.listen(state, listener),
            }
        }
    }

    /// Watches over somebody whom another endpoint has accepted. `false`: that cannot be, and the
    /// dialer sees that the connection has ended.
    fn take_over(&self, stranger: &mut Stranger) -> bool {
        stranger.token = self.next_token.fetch_add(1, Ordering::Relaxed);
        let watched = self.watch(&stranger.socket, stranger.token);
        watched.inspect_err(|reason| self.group.refuse(reason)).is_ok()
    }

    /// Accepts connections from now on: the endpoint that did is closed.
    fn listen(&self, state: &mut PollState, listener: Listener) {
        state.listener = Some(listener);
        self.resume_accepting(state);
    }

    /// A stranger has sent his first packet, or none will come.
    ///
    /// # Errors
    ///
    /// He is not let in: why, if somebody may be there to be told.
    fn meet(
        &self,
        stranger: &Stranger,
        received: Result<Received, Unheard>,
    ) -> Result<Met, Option<String>> {
        let Received { bytes, fds, cut } =
            received.map_err(|unheard| Some(format!("no handshake: {unheard}")))?;
        let read = match bytes.is_empty() && !cut {
            true => Err(None),
            false => self.read_hello(stranger, &bytes, (&fds, cut)).map_err(Some),
        };
        // The files of a segment and a board that are mapped have the size that they should.
        let unused = if read.is_ok() { Vec::new() } else { fds };
        stranger.socket.give_up(unused);
        read
    }

    fn read_hello(
        &self,
        stranger: &Stranger,
        bytes: &[u8],
        (fds, cut): (&[OwnedFd], bool),
    ) -> Result<Met, String> {
        let Credentials { uid, .. } = stranger.credentials;
        let process = socket::peer_process(&stranger.socket, stranger.credentials)?;
        let packet = Packet::decode(bytes)?;
        if packet.kind != Kind::Hello {
            return Err("the first packet is not a hello".to_owned());
        }
        let ring_bytes = packet.ring_bytes as usize;
        check_ring_bytes(ring_bytes)?;
        let fd = fds.first().ok_or_else(|| match cut {
            true => Unmapped::no_descriptor("the segment").into_reason(),
            false => "the hello carries no memory".into(),
        })?;
        // Nothing of it is used before it is known that there is room.
        let bytes = total_bytes(ring_bytes);
        let mut admission = self.group.admit(stranger.credentials, &packet, bytes)?;
        // Asked when the place is known: a connection that is shared and not seen here was made
        // before the place could be elsewhere.
        if admission.shard() != self.shard
            && packet.shards.is_none()
            && Name::said_by(uid, &packet.text).is_some_and(|name| self.shares_with(&name))
        {
            admission.stay_at(self.shard);
        }
        let shares = uid == address::own_uid();
        if !shares {
            // It has sent all that it may.
            socket::permit_descriptors(&stranger.socket, false);
        }
        let segment = Segment::attach(fd, ring_bytes, shares && ring_bytes <= self.ring_bytes)?;
        let board = match shares {
            true => peer_board(&packet, fds.get(1), cut).map_err(Unmapped::into_reason)?,
            false => None,
        };
        Ok(Met { process, segment, board, admission, packet })
    }

    fn welcome(&self, state: &mut PollState, from: Stranger, met: Met) {
        let Met { process, segment, board, admission, packet } = met;
        let conn = Conn::new(from.token, from.socket, Arc::new(segment));
        conn.set_credentials(from.credentials, process);
        if let Some((board, slot)) = board {
            conn.set_peer_board(board, slot);
        }
        let mut welcome = Packet { slot: self.take_slot(&conn), ..self.packet(Kind::Welcome) };
        let fds = [self.board.fd()];
        let fds = if welcome.slot.is_some() { &fds[..] } else { &[] };
        let mut sent = socket::send_packet(&conn.socket, &welcome.encode(), fds);
        if let Err(Errno::TOOMANYREFS | Errno::PERM) = sent {
            // As to a peer that gets no place on the board.
            self.give_slot_back(&conn);
            welcome.slot = None;
            sent = socket::send_packet(&conn.socket, &welcome.encode(), &[]);
        }
        if sent.is_err() {
            // It has left already.
            let _ = epoll::delete(&self.epoll, &conn.socket);
            return self.give_slot_back(&conn);
        }
        let peer = self.identify(state, &packet, from.credentials);
        peer.set_user(from.credentials.uid);
        let conn = Arc::new(conn);
        let addr = peer.addr(self.id);
        let mut link = RxLink::new(
            conn.clone(),
            peer.clone(),
            addr,
            ConnectionStage::Greeting { waited: from.waited },
        );
        link.admission = Some(admission);
        self.bring_up(&mut link, &packet);
        let mut tx = TxLink::new(conn);
        tx.open(link.limit);
        peer.add_link(&mut peer.links.lock(), tx);
        state.links.push(link);
    }

    /// Returns the peer whose connection this is. A name belongs to the process that listens there,
    /// and only a connection from that process is taken for it; any other one works as an unnamed
    /// peer. One endpoint that another one alone has called shares its peer with what it calls
    /// itself. Where there is a group on either side, each connection has a peer of its own.
    fn identify(&self, state: &mut PollState, packet: &Packet, from: Credentials) -> Arc<Peer> {
        let Some(name) = Name::said_by(from.uid, &packet.text) else {
            let uri = format!("na+sm://?pid={}", from.pid);
            return lock(&self.peers).add(uri, Reach::Connection, PeerPart::default());
        };
        let says_so = packet.listens || packet.shards.is_some();
        if !says_so || name == self.name || !self.listens_as(&name, from) {
            if packet.listens {
                tracing::warn!("process {} is not the one that listens as {name:?}", from.pid);
            }
            let key = caller_key(from, packet).map(PeerName::Caller);
            let identity = key.map(|key| self.group.identity(key));
            let part = PeerPart { identity, ..PeerPart::default() };
            return lock(&self.peers).add(name.uri(), Reach::Connection, part);
        }
        let is_shared = || self.group.count() == 1 || self.shares_with(&name);
        let peer = if packet.shards.is_none() && is_shared() {
            self.peer_named(&name, None)
        } else {
            let identity = Some(self.group.identity(PeerName::Listening(name.clone())));
            let part = PeerPart { identity, is_apart: true, wanted: None };
            lock(&self.peers).add(name.uri(), Reach::Name(name.clone()), part)
        };
        let reach = Reach::Name(name);
        for link in state.links.iter_mut().filter(|link| link.peer.reach == reach) {
            if link.stage == ConnectionStage::Up && !link.conn.is_alive() {
                link.gone("it ended, and another process has its name");
            }
        }
        state.links.sweep();
        // The predecessor ends first, so that nothing is sent to it any more.
        self.reap_ended(state);
        peer
    }

    /// Returns whether the process that connected is the one that listens as `name`.
    fn listens_as(&self, name: &Name, from: Credentials) -> bool {
        let found = name.socket().and_then(|address| {
            let socket = socket::new(&self.group.closer)?;
            let asked = rustix::net::connect(&socket, &address).and_then(|()| {
                // Closed again at once, which a listener takes for somebody who changed his mind.
                socket::peer_credentials(&socket)
            });
            asked.map_err(|errno| Error::io("cannot ask who listens", errno))
        });
        found.is_ok_and(|found| found == from)
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

/// The outcome of sending a hello.
enum Greeted {
    Yes,
    /// To be tried again; the reason to give if there is no time for that.
    NotYet(&'static str),
}

fn refuse(socket: &Socket, reason: &str) {
    // It may have left; there is nobody else to tell.
    let _ = socket::send_packet(socket, &Packet::refused(reason).encode(), &[]);
}
