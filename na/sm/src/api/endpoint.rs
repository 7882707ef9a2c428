//! The calls that start operations.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::PoisonError;
use std::time::Instant;

use crate::address::Name;
use crate::api::open::open_another;
use crate::link::Conn;
use crate::link::handshake::hand_over;
use crate::link::socket;
use crate::peers::{Peer, TxLink};
use crate::state::{Canceled, PollState, SmEndpoint};
use crate::transfer::offer::Going;
use crate::transfer::rma::ANSWER_LIMIT;
use crate::wake::doorbell::{RECORDS, settle};
use na_core::base::ran::RunClock;
use na_core::endpoint::stats;
use na_core::group::SHARDS_MAX;
use na_core::loopback::{Outcome, Queued};
use na_core::matching::Kind;
use na_core::memory::handed;
use na_core::{
    Access, Addr, Completion, Endpoint, EndpointStats, Error, LargeBuffers, Limits, LocalMem,
    MERCURY_CLASS, Memory, MsgBuf, OpId, Principal, Refused, RegionTable, Tag, Transfer, Uri,
};
use prim::lock::BiasedGuard;
use prim::sync::atomic::Ordering;
use prim::sync::{Arc, lock};

impl SmEndpoint {
    /// The peer behind `addr`.
    #[inline]
    fn peer<'a>(&self, addr: &'a Addr) -> Result<&'a Peer, Error> {
        match addr.state::<Peer>() {
            Some(peer) if addr.endpoint_id() == self.id && !self.is_closed() => Ok(peer),
            _ => Err(self.no_peer(addr)),
        }
    }

    #[cold]
    fn no_peer(&self, addr: &Addr) -> Error {
        if self.is_closed() {
            return Error::Closed;
        }
        Error::InvalidArgument(format!("{addr} is an address of another endpoint"))
    }

    /// The peer behind a text, through its endpoint `wanted` if possible.
    fn look_up(&self, uri: &str, wanted: Option<u8>) -> Result<Addr, Error> {
        let uri = na_core::address::composed::part_for_near(uri)?;
        let parsed = Uri::parse(uri)?;
        let for_mercury = parsed.class == Some(MERCURY_CLASS);
        let parsed = Uri { class: parsed.class.filter(|_| !for_mercury), ..parsed };
        let name = Name::of(&parsed, self.name.uid)?;
        if name.name.is_empty() {
            let reason = "it names no peer; expected `na+sm://name`".to_owned();
            return Err(Error::BadUri { uri: uri.to_owned(), reason });
        }
        if name == self.name {
            return Ok(self.own_addr.clone());
        }
        let peer = self.peer_named(&name, wanted);
        if for_mercury {
            self.note_rpc_layer(&peer, true);
        }
        Ok(peer.addr(self.id))
    }

    /// The link to send through, made if there is none.
    #[inline]
    fn link<'a>(
        &self,
        to: &Addr,
        peer: &Peer,
        links: &'a mut Vec<TxLink>,
    ) -> Result<&'a mut TxLink, Error> {
        if links.is_empty() {
            self.connect_to(to, peer, links)?;
        }
        Ok(&mut links[0])
    }

    #[cold]
    fn connect_to(&self, to: &Addr, peer: &Peer, links: &mut Vec<TxLink>) -> Result<(), Error> {
        let shared = to.shared_state().filter(|shared| std::ptr::eq(&**shared, peer));
        self.connect(&shared.ok_or_else(|| self.no_peer(to))?, links)
    }

    fn send(&self, kind: Kind, op: OpId, to: &Addr, tag: Tag, buf: MsgBuf) -> Result<(), Refused> {
        let max = self.options.message_bytes_max;
        if buf.len() > max {
            return Err(Refused { error: Error::TooLong { len: buf.len(), max }, buf });
        }
        let peer = match self.peer(to) {
            Ok(peer) => peer,
            Err(error) => return Err(Refused { error, buf }),
        };
        if peer.is_own() {
            self.loopback.send(Queued { op, kind, tag, buf })?;
            self.ready.wake_poll();
            return Ok(());
        }
        let mut links = peer.links.lock();
        let found = match is_late_answer(kind, to, peer) {
            true => Err(peer.gone_error()),
            false => self.link(to, peer, &mut links),
        };
        let link = match found {
            Ok(link) => link,
            Err(error) => {
                drop(links);
                self.ready.push(Completion::Send { op, buf, result: Err(error) });
                return Ok(());
            }
        };
        if link.send(op, kind, tag, buf) {
            peer.set_cancelable(true);
        }
        // One fence for both: the record for the peer, the flag for our poll.
        if link.conn.peer_sleeps() || self.ready.sleeps() {
            settle();
        }
        link.conn.wake_peer_settled(RECORDS);
        self.wake_poll_settled_for(&link.conn);
        drop(links);
        Ok(())
    }

    /// Sends if the ring of an open connection has room and nothing waits before.
    fn send_now(&self, kind: Kind, to: &Addr, tag: Tag, message: &[u8]) -> bool {
        let Ok(peer) = self.peer(to) else { return false };
        if peer.is_own() || message.len() > self.options.message_bytes_max {
            return false;
        }
        let mut links = peer.links_to_send();
        if is_late_answer(kind, to, peer) {
            return false;
        }
        let Some(link) = links.first_mut() else { return false };
        let sent = link.send_now(kind, tag, message);
        if sent {
            link.conn.wake_peer(RECORDS);
        }
        sent
    }

    /// Sends a request as [`send_now`](Self::send_now) does, and posts the receive of its answer.
    ///
    /// Both under the send lock: the end of the connection takes that lock to remove the link, and
    /// fails the peer's receives afterwards. So either there is no link any more and nothing is
    /// sent, or the receive is there when they are failed. The message goes first: the peer works
    /// on it while the receive is posted.
    #[inline]
    fn call(&self, op: OpId, to: &Addr, tag: Tag, mut buf: MsgBuf) -> Result<(), MsgBuf> {
        let Ok(peer) = self.peer(to) else { return Err(buf) };
        let too_long = buf.len() > self.options.message_bytes_max;
        if peer.is_own() || too_long || self.is_too_small(&buf) {
            return Err(buf);
        }
        let mut links = peer.links.lock();
        let Some(link) = links.first_mut() else { return Err(buf) };
        if !link.send_now(Kind::Unexpected, tag, buf.as_slice()) {
            return Err(buf);
        }
        link.conn.wake_peer(RECORDS);
        buf.clear();
        let mut matcher = self.matcher.lock();
        let early = matcher.post_expected(op, to, tag, buf);
        let refused = matcher.take_refused();
        drop(matcher);
        drop(links);
        self.posted(early, refused);
        Ok(())
    }

    #[inline]
    fn is_too_small(&self, buf: &MsgBuf) -> bool {
        buf.capacity() < self.options.message_bytes_max
    }

    #[cold]
    fn too_small(&self, buf: MsgBuf) -> Refused {
        let needed = self.options.message_bytes_max;
        let text = format!("a receive buffer of {} bytes, {needed} needed", buf.capacity());
        Refused { error: Error::InvalidArgument(text), buf }
    }

    #[inline]
    fn transfer(&self, put: bool, op: OpId, to: &Addr, transfer: Transfer) -> Result<(), Error> {
        let peer = self.peer(to)?;
        RegionTable::check_transfer(&transfer, put)?;
        let mut links = peer.links.lock();
        let mut measure = false;
        // There is none to ourselves.
        if let Some(link) = links.first_mut() {
            match link.offers.copy(&link.conn, put, &transfer) {
                Going::Ask { measure: wanted } => measure = wanted,
                Going::Done => {
                    drop(links);
                    self.report_done(op);
                    // Not under the lock: it may release memory.
                    drop(transfer);
                    return Ok(());
                }
            }
        }
        self.ask_for(put, op, to, transfer, (peer, links, measure))
    }

    /// Starts a transfer that its owner has to be asked for.
    #[inline(never)]
    fn ask_for(
        &self,
        put: bool,
        op: OpId,
        to: &Addr,
        transfer: Transfer,
        (peer, mut links, measure): (&Peer, BiasedGuard<'_, Vec<TxLink>>, bool),
    ) -> Result<(), Error> {
        if peer.is_own() {
            drop(links);
            self.loopback.start(op, put, transfer)?;
            self.ready.wake_poll();
            return Ok(());
        }
        let link = match self.link(to, peer, &mut links) {
            Ok(link) => link,
            Err(error) => {
                drop(links);
                self.ready.push(Completion::Transfer { op, result: Err(error) });
                return Ok(());
            }
        };
        let mut out = Outcome::default();
        link.start(op, put, transfer, measure);
        peer.set_cancelable(true);
        link.write_waiting(&mut out, &mut 0);
        self.wake_poll_for(&link.conn);
        drop(links);
        self.report(out);
        Ok(())
    }

    /// A receive was posted; `early` is its end if its message was there, `refused` what
    /// `Matcher::take_refused` said.
    fn posted(&self, early: Option<Completion>, refused: bool) {
        match early {
            Some(completion) => self.ready.push(completion),
            // It may be what a message waits for in a ring, or one to ourselves.
            None if refused || self.loopback.is_busy() => self.ready.wake_poll(),
            None => {}
        }
    }

    /// Reports a transfer that was done at once.
    #[inline]
    fn report_done(&self, op: OpId) {
        let place = self.poll.our_place();
        if !place.is_some_and(|place| self.reports.leave(place, op.0)) {
            return self.report_otherwise(op);
        }
        if self.ready.sleeps() {
            // A thread that polls knows whether it has announced a sleep, and whoever begins to
            // poll in its stead sees the report.
            if self.poll.our_place() != place {
                settle();
            }
            self.ready.wake_poll_settled();
        }
    }

    #[inline(never)]
    fn report_otherwise(&self, op: OpId) {
        self.ready.push(Completion::Transfer { op, result: Ok(()) });
    }

    /// Tells the poll that there is work on a connection.
    #[inline]
    fn wake_poll_for(&self, conn: &Conn) {
        if self.ready.sleeps() {
            settle();
        }
        self.wake_poll_settled_for(conn);
    }

    /// As [`wake_poll_for`](Self::wake_poll_for), after [`settle`] if the poll may sleep.
    #[inline]
    fn wake_poll_settled_for(&self, conn: &Conn) {
        if conn.is_left()
            && let Some(slot) = conn.slot()
        {
            self.board.mark(slot);
        }
        self.ready.wake_poll_settled();
    }

    /// Reports what a call outside the poll has ended. Needs no lock to be held.
    pub(crate) fn report(&self, out: Outcome) {
        for completion in out.completions {
            self.ready.push(completion);
        }
    }

    fn cancel_at(&self, peer: &Arc<Peer>, op: OpId) -> bool {
        let mut out = Outcome::default();
        let mut links = peer.links.lock();
        let found = links.iter_mut().any(|link| {
            if let Some(completion) = link.cancel_send(op) {
                out.completions.push(completion);
                return true;
            }
            let Some(cancels) = link.requests.cancel(op, &mut out) else { return false };
            cancels.into_iter().for_each(|cancel| link.push_control(cancel));
            link.write_waiting(&mut out, &mut 0);
            if link.requests.awaits(op) {
                let (peer, waited) = (Arc::downgrade(peer), RunClock::since(Instant::now()));
                lock(&self.canceled).push(Canceled { op, peer, waited });
            }
            self.wake_poll_for(&link.conn);
            true
        });
        if !links.iter().any(TxLink::waits_for_peer) {
            peer.set_cancelable(false);
        }
        drop(links);
        self.report(out);
        found
    }

    /// Tells the ends of canceled transfers whose owners had time enough to answer.
    pub(crate) fn leave_canceled(&self, state: &mut PollState, now: Instant) {
        let is_late = |canceled: &mut Canceled| canceled.waited.has_passed(now, ANSWER_LIMIT);
        let late: Vec<_> = lock(&self.canceled).extract_if(.., is_late).collect();
        let mut out = Outcome::default();
        for Canceled { op, peer, .. } in late {
            let Some(peer) = peer.upgrade() else { continue };
            peer.links.lock().iter_mut().for_each(|link| link.requests.leave(op, &mut out));
        }
        state.arrived.extend(out.completions);
    }

    /// When to look for such transfers again.
    pub(crate) fn next_leave(&self) -> Option<Instant> {
        let canceled = lock(&self.canceled);
        canceled.iter().filter_map(|canceled| canceled.waited.next_look(ANSWER_LIMIT)).min()
    }
}

/// Returns whether that answers a message of an ended session.
#[inline]
fn is_late_answer(kind: Kind, to: &Addr, peer: &Peer) -> bool {
    kind == Kind::Expected && to.is_of_another_session(peer.session())
}

impl Endpoint for SmEndpoint {
    fn transport(&self) -> &'static str {
        "sm"
    }

    fn knows_who_transfers(&self) -> bool {
        true
    }

    fn knows_principals(&self, _peer: &Addr) -> bool {
        true
    }

    fn carries_extensions(&self, to: &Addr) -> bool {
        !self.peer(to).is_ok_and(|peer| peer.is_for_mercury())
    }

    fn may_meet_mercury(&self) -> bool {
        self.has_met_mercury.load(Ordering::Relaxed)
    }

    fn principal(&self, peer: &Addr) -> Principal {
        self.peer(peer).map_or(Principal::Unknown, |known| known.principal())
    }

    fn is_gone(&self, peer: &Addr) -> bool {
        let ended = |known: &Peer| known.is_gone() || peer.is_of_another_session(known.session());
        self.peer(peer).is_ok_and(ended)
    }

    fn limits(&self) -> Limits {
        let max = self.options.message_bytes_max;
        Limits { unexpected_bytes_max: max, expected_bytes_max: max }
    }

    fn self_addr(&self) -> Addr {
        self.own_addr.clone()
    }

    fn served(&self) -> u64 {
        self.regions.served()
    }

    fn stats(&self) -> EndpointStats {
        let known = lock(&self.peers).all();
        let mut peers: Vec<_> = known.iter().map(|peer| (peer.id, peer.stats())).collect();
        // No more than a copy under the lock that every message takes.
        let awaited: Vec<_> = self.matcher.lock().awaited().collect();
        stats::assign(&mut peers, awaited);
        let peers = peers.into_iter().map(|(_, stats)| stats).collect();
        EndpointStats::new(self.regions.totals(), peers)
    }

    fn lookup(&self, uri: &str) -> Result<Addr, Error> {
        self.look_up(uri, None)
    }

    fn lookup_shard(&self, uri: &str, shard: usize) -> Result<Addr, Error> {
        // No group has another one.
        self.look_up(uri, u8::try_from(shard).ok().filter(|_| shard < SHARDS_MAX))
    }

    fn retire(&self) -> Result<(), Error> {
        if self.is_closed() {
            return Err(Error::Closed);
        }
        self.leave_group(&mut self.poll.lock());
        Ok(())
    }

    fn open_another(&self) -> Result<Arc<dyn Endpoint>, Error> {
        open_another(self).map(|opened| opened as _)
    }

    fn send_unexpected(&self, op: OpId, to: &Addr, tag: Tag, buf: MsgBuf) -> Result<(), Refused> {
        self.send(Kind::Unexpected, op, to, tag, buf)
    }

    fn send_unexpected_now(&self, to: &Addr, tag: Tag, message: &[u8]) -> bool {
        self.send_now(Kind::Unexpected, to, tag, message)
    }

    fn recv_unexpected(&self, op: OpId, buf: MsgBuf) -> Result<(), Refused> {
        if self.is_too_small(&buf) {
            return Err(self.too_small(buf));
        }
        let mut matcher = self.matcher.lock();
        // Under the lock: closing sets the flag before it empties the matcher.
        if self.is_closed() {
            return Err(Refused { error: Error::Closed, buf });
        }
        let early = matcher.post_unexpected(op, buf);
        let refused = matcher.take_refused();
        drop(matcher);
        self.posted(early, refused);
        Ok(())
    }

    fn has_multi_recv(&self) -> bool {
        true
    }

    fn multi_recv_unexpected(
        &self,
        op: OpId,
        count: usize,
        buffers: &LargeBuffers,
    ) -> Result<(), Error> {
        LargeBuffers::check(count)?;
        let mut matcher = self.matcher.lock();
        // As for one message.
        if self.is_closed() {
            return Err(Error::Closed);
        }
        let early = matcher.post_many(op, count, buffers);
        let refused = matcher.take_refused();
        drop(matcher);
        early.into_iter().for_each(|completion| self.ready.push(completion));
        self.posted(None, refused);
        Ok(())
    }

    fn send_expected(&self, op: OpId, to: &Addr, tag: Tag, buf: MsgBuf) -> Result<(), Refused> {
        self.send(Kind::Expected, op, to, tag, buf)
    }

    fn send_expected_now(&self, to: &Addr, tag: Tag, message: &[u8]) -> bool {
        self.send_now(Kind::Expected, to, tag, message)
    }

    fn recv_expected(&self, op: OpId, from: &Addr, tag: Tag, buf: MsgBuf) -> Result<(), Refused> {
        if self.is_too_small(&buf) {
            return Err(self.too_small(buf));
        }
        let peer = match self.peer(from) {
            Ok(peer) => peer,
            Err(error) => return Err(Refused { error, buf }),
        };
        let mut matcher = self.matcher.lock();
        // Both under the lock: closing, and the end of a peer, set their flags before they fail
        // what is posted.
        if self.is_closed() {
            return Err(Refused { error: Error::Closed, buf });
        }
        let early = if peer.is_gone() {
            Some(Completion::Recv { op, buf, result: Err(peer.gone_error()) })
        } else {
            matcher.post_expected(op, from, tag, buf)
        };
        let refused = matcher.take_refused();
        drop(matcher);
        self.posted(early, refused);
        Ok(())
    }

    fn call_now(&self, op: OpId, to: &Addr, tag: Tag, buf: MsgBuf) -> Result<(), MsgBuf> {
        self.call(op, to, tag, buf)
    }

    fn register(&self, memory: Memory, access: Access) -> Result<LocalMem, Error> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(Error::Closed);
        }
        self.regions.register(memory, access)
    }

    fn register_local(&self, memory: Memory, access: Access) -> Result<LocalMem, Error> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(Error::Closed);
        }
        self.regions.register_local(memory, access)
    }

    fn put(&self, op: OpId, to: &Addr, transfer: Transfer) -> Result<(), Error> {
        self.transfer(true, op, to, transfer)
    }

    fn get(&self, op: OpId, from: &Addr, transfer: Transfer) -> Result<(), Error> {
        self.transfer(false, op, from, transfer)
    }

    fn cancel(&self, op: OpId) {
        let canceled = self.matcher.lock().cancel(op);
        if let Some(completion) = canceled {
            self.ready.push(completion);
            return;
        }
        let mut out = Outcome::default();
        if self.loopback.cancel(op, &mut out) {
            self.report(out);
            return;
        }
        let peers = lock(&self.peers).all();
        for peer in peers.iter().filter(|peer| peer.is_cancelable()) {
            if self.cancel_at(peer, op) {
                return;
            }
        }
    }

    fn poll(&self, budget: usize, sink: &mut dyn FnMut(Completion)) -> Result<usize, Error> {
        if self.process.is_other() {
            return Ok(0);
        }
        self.poll_once(budget, sink)
    }

    #[inline]
    fn may_find(&self) -> bool {
        self.has_work()
    }

    fn prepare_wait(&self) -> bool {
        !self.process.is_other() && self.try_sleep()
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        // Or somebody sleeps whom nobody wakes.
        self.ready.sleeps().then(|| self.epoll.as_fd())
    }

    fn close(&self) {
        if self.process.is_other() {
            // Sockets and epoll set are the parent's as well.
            return;
        }
        self.closed.store(true, Ordering::Relaxed);
        // Otherwise whoever polls sees the flag, at the latest when it has called its sink.
        if let Some(mut state) = self.poll.try_lock() {
            self.shut_down(&mut state);
        }
        self.ready.wake_poll();
    }

    fn keeps_memory(&self) -> bool {
        !lock(&self.kept).is_empty()
    }

    fn direct_bytes_max(&self, peer: &Addr) -> u64 {
        let Ok(peer) = self.peer(peer) else { return 0 };
        let shares = peer.links.lock().first().is_some_and(|link| link.conn.shares());
        if shares { crate::transfer::offer::AT_ONCE_BYTES } else { 0 }
    }

    fn hand_over(&self, to: &Addr, number: u64, fd: OwnedFd) -> Result<(), Error> {
        let peer = self.peer(to)?;
        if peer.is_own() {
            let _ = handed::arrived(number, fd);
            return Ok(());
        }
        let unavailable = |why: &str| {
            let reason = format!("{to} gets no descriptor: {why}");
            Error::Unavailable { transport: "sm", reason }
        };
        let links = peer.links.lock();
        let link = links.first().filter(|link| link.is_open());
        let link = link.ok_or_else(|| unavailable("it is not connected"))?;
        if !link.conn.shares() {
            return Err(unavailable("it is of another user"));
        }
        if !socket::may_be_handed_over(&fd) {
            return Err(unavailable("peers take no such file"));
        }
        socket::send_packet(&link.conn.socket, &hand_over(number), &[fd.as_fd()])
            .map_err(|errno| unavailable(&errno.to_string()))
    }

    fn bulk_path(&self) -> String {
        let unattached = self.unattached.load(Ordering::Relaxed);
        let other = match (self.attach, unattached) {
            (false, _) => "copy through the shared ring".into(),
            (true, 0) => "copy through the shared ring or cross-memory attach".into(),
            (true, peers) => format!(
                "copy through the shared ring or, but for {peers} of {} peers, cross-memory attach \
                 ({})",
                peers + self.attached.load(Ordering::Relaxed),
                crate::transfer::cma::why_not()
            ),
        };
        format!("memory of alloc mapped; other memory: {other}")
    }
}

impl Drop for SmEndpoint {
    fn drop(&mut self) {
        if self.process.is_other() {
            // Nobody copies to or from this process. What is kept is the parent's, and so may be
            // the lock around it, which nobody here would ever give back.
            let kept = self.kept.get_mut().unwrap_or_else(PoisonError::into_inner);
            std::mem::forget(std::mem::take(kept));
            return;
        }
        self.close();
        self.release_kept_or_leak(Instant::now() + crate::progress::teardown::KEPT_WAIT);
    }
}

impl fmt::Debug for SmEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SmEndpoint").field("name", &self.name.name).finish_non_exhaustive()
    }
}
