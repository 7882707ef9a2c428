//! Peers: identities that outlive their connections.
//!
//! A peer that listens is known by its URI, whichever side connects first; another one exists as
//! long as its connection. Both sides may connect at the same time, so a peer can have two links;
//! all messages go through the first of them, in order.
//!
//! That holds between two endpoints that are alone. Where there is a group on either side, several
//! connections go between the same two names, and an answer on another one than its request would
//! reach another endpoint. So there each connection has a peer of its own, whoever has made it;
//! what the peers of one name have in common is their identity ([`PeerPart`]).

use std::collections::HashMap;
use std::sync::{OnceLock, Weak};

use crate::address::Name;
use crate::peers::tx::TxLink;
use na_core::group::directory::Identity;
use na_core::{Addr, Error, PeerLink, PeerStats, Principal};
use prim::OwnLine;
use prim::lock::{BiasedGuard, BiasedLock};
use prim::sync::Arc;
use prim::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

/// How to reach a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reach {
    /// The endpoint itself.
    Own,
    /// By connecting to this name.
    Name(Name),
    /// Only through the connection that it made.
    Connection,
}

/// The place of a peer among those of a group, ours or its own.
#[derive(Debug, Default)]
pub(crate) struct PeerPart {
    /// The number that it has with all endpoints of our group, behind that of the group. `None`:
    /// only this endpoint knows it.
    pub(crate) identity: Option<(u64, Identity)>,
    /// Connections with it are nobody else's: each side answers on the one that it was called by.
    pub(crate) is_apart: bool,
    /// The endpoint of its group that we would like to reach.
    pub(crate) wanted: Option<u8>,
}

/// One peer; the state of its [`Addr`].
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) id: u64,
    pub(crate) uri: String,
    pub(crate) reach: Reach,
    pub(crate) part: PeerPart,
    /// The user of its process, as the kernel says; for a peer that listens under a name, the owner
    /// of the name.
    user: OnceLock<u32>,
    /// It can never be reached again.
    gone: AtomicBool,
    /// `true` if its RPC layer is C Mercury's, as its address or its last handshake says.
    for_mercury: AtomicBool,
    /// The links, the one to send through first. This is the send lock.
    pub(crate) links: BiasedLock<Vec<TxLink>>,
    /// A send may be queued or a transfer open there. A cancel looks only at such peers, and reads
    /// this without a lock. Written under the send lock.
    cancelable: AtomicBool,
    /// Where the first of them was lately, only to ask the cache for it: where several threads
    /// send, its lines come together with that of the lock, and not one after the other.
    first_link: AtomicPtr<TxLink>,
    /// Counts the times that its last open link has ended, from one. Written under the send lock.
    session: AtomicU64,
    /// Bytes and messages that went through links that have ended. Written under the send lock.
    ended_bytes: AtomicU64,
    ended_messages: AtomicU64,
    /// Messages that have come. One writer: the poll; away from what senders read for each.
    received: OwnLine<AtomicU64>,
}

impl Peer {
    pub(crate) fn new(id: u64, uri: String, reach: Reach, part: PeerPart) -> Arc<Self> {
        Arc::new(Self {
            id,
            uri,
            reach,
            part,
            user: OnceLock::new(),
            gone: AtomicBool::new(false),
            for_mercury: AtomicBool::new(false),
            links: BiasedLock::default(),
            cancelable: AtomicBool::new(false),
            first_link: AtomicPtr::default(),
            session: AtomicU64::new(1),
            ended_bytes: AtomicU64::new(0),
            ended_messages: AtomicU64::new(0),
            received: OwnLine::default(),
        })
    }

    /// Returns whether its RPC layer is C Mercury's. Relaxed: what was written for another one is
    /// not sent (`connect.rs`).
    pub(crate) fn is_for_mercury(&self) -> bool {
        self.for_mercury.load(Ordering::Relaxed)
    }

    pub(crate) fn set_for_mercury(&self, is: bool) {
        self.for_mercury.store(is, Ordering::Relaxed);
    }

    /// The user of its process, once that is known.
    pub(crate) fn principal(&self) -> Principal {
        match (&self.reach, self.user.get()) {
            (Reach::Own, _) | (_, None) => Principal::Unknown,
            (_, Some(uid)) => Principal::User(*uid),
        }
    }

    /// A connection with it belongs to that user: the same for all of them, as a name does.
    pub(crate) fn set_user(&self, uid: u32) {
        let _ = self.user.set(uid);
    }

    /// The send lock, by a caller that is about to send.
    #[inline]
    pub(crate) fn links_to_send(&self) -> BiasedGuard<'_, Vec<TxLink>> {
        TxLink::prefetch(self.first_link.load(Ordering::Relaxed));
        self.links.lock()
    }

    /// Something was queued or begun that can be canceled. Called with the send lock held.
    pub(crate) fn set_cancelable(&self, cancelable: bool) {
        self.cancelable.store(cancelable, Ordering::Relaxed);
    }

    /// Returns whether there may be something to cancel. Any thread that knows of the operation
    /// sees it.
    pub(crate) fn is_cancelable(&self) -> bool {
        self.cancelable.load(Ordering::Relaxed)
    }

    /// Adds a link to those of the peer.
    pub(crate) fn add_link(&self, links: &mut Vec<TxLink>, link: TxLink) {
        links.push(link);
        self.first_link.store(links.as_mut_ptr(), Ordering::Relaxed);
    }

    /// Returns whether it is the endpoint itself.
    #[inline]
    pub(crate) fn is_own(&self) -> bool {
        matches!(self.reach, Reach::Own)
    }

    /// The address of this peer at endpoint `endpoint`.
    pub(crate) fn addr(self: &Arc<Self>, endpoint: u64) -> Addr {
        let numbers = (endpoint, self.id);
        let identity = self.part.identity.as_ref().map(|(family, identity)| (*family, **identity));
        Addr::with_identity(self.uri.as_str(), numbers, identity, self.clone())
    }

    /// The number of our session with it, which it is called with by what comes in it.
    #[inline]
    pub(crate) fn session(&self) -> u64 {
        self.session.load(Ordering::Relaxed)
    }

    /// The last open link has ended. Under the send lock.
    pub(crate) fn end_session(&self) {
        self.session.store(self.session() + 1, Ordering::Relaxed);
    }

    /// Returns whether it can never be reached again. Checked under the matcher's lock, taken after
    /// the flag is set, so that no receive is posted for a peer that was just failed.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    pub(crate) fn set_gone(&self) {
        self.gone.store(true, Ordering::Relaxed);
    }

    /// Poll: a message has come.
    #[inline]
    pub(crate) fn count_received(&self) {
        let OwnLine(received) = &self.received;
        received.store(received.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// One of the `links` has ended; the traffic that went through it still counts. `None`: it is
    /// not there.
    pub(crate) fn remove_link(&self, links: &mut Vec<TxLink>, token: u64) -> Option<TxLink> {
        let at = links.iter().position(|link| link.conn.token == token)?;
        let link = links.remove(at);
        // Under the send lock, which `links` comes from.
        for (count, more) in
            [(&self.ended_bytes, link.sent_bytes()), (&self.ended_messages, link.sent_messages())]
        {
            count.store(count.load(Ordering::Relaxed) + more, Ordering::Relaxed);
        }
        Some(link)
    }

    /// Returns the peer's statistics, without the messages that are awaited from it.
    pub(crate) fn stats(&self) -> PeerStats {
        let links = self.links.lock();
        let link = match &links[..] {
            [] if self.is_gone() => PeerLink::Gone,
            [] => PeerLink::Idle,
            [first, ..] if first.is_open() => PeerLink::Connected,
            [..] => PeerLink::Connecting,
        };
        let bytes: u64 = links.iter().map(TxLink::sent_bytes).sum();
        let messages: u64 = links.iter().map(TxLink::sent_messages).sum();
        let mut stats = PeerStats::new(self.uri.clone(), "sm", link);
        stats.principal = self.principal();
        stats.sent_bytes = Some(bytes + self.ended_bytes.load(Ordering::Relaxed));
        stats.sent_messages = Some(messages + self.ended_messages.load(Ordering::Relaxed));
        stats.received_messages = Some(self.received.0.load(Ordering::Relaxed));
        stats
    }

    pub(crate) fn gone_error(&self) -> Error {
        Error::PeerGone { peer: self.uri.clone(), reason: "its connection has ended".into() }
    }
}

/// The peers that exist.
#[derive(Debug, Default)]
pub(crate) struct PeerTable {
    /// The peers that were looked up, by name and wanted endpoint, and those that listen and have
    /// called while there was no group.
    by_name: HashMap<(Name, Option<u8>), Weak<Peer>>,
    all: Vec<Weak<Peer>>,
    next_id: u64,
    sweep_at: usize,
}

impl PeerTable {
    /// The peer called `name`, through its endpoint `wanted` if possible; a new one has `part`.
    pub(crate) fn named(
        &mut self,
        name: &Name,
        wanted: Option<u8>,
        part: impl FnOnce() -> PeerPart,
    ) -> Arc<Peer> {
        let key = (name.clone(), wanted);
        if let Some(peer) = self.by_name.get(&key).and_then(Weak::upgrade) {
            return peer;
        }
        let peer = self.add(name.uri(), Reach::Name(name.clone()), part());
        self.by_name.insert(key, Arc::downgrade(&peer));
        peer
    }

    /// The peer called `name` that was looked up through no certain endpoint, if there is one.
    pub(crate) fn known(&self, name: &Name) -> Option<Arc<Peer>> {
        self.by_name.get(&(name.clone(), None)).and_then(Weak::upgrade)
    }

    /// Every peer.
    pub(crate) fn all(&self) -> Vec<Arc<Peer>> {
        self.all.iter().filter_map(Weak::upgrade).collect()
    }

    /// A peer that nobody has seen before.
    pub(crate) fn add(&mut self, uri: String, reach: Reach, part: PeerPart) -> Arc<Peer> {
        if self.all.len() >= self.sweep_at {
            self.all.retain(|peer| peer.strong_count() > 0);
            self.by_name.retain(|_, peer| peer.strong_count() > 0);
            self.sweep_at = 2 * self.all.len() + 16;
        }
        // Zero is the endpoint itself.
        self.next_id += 1;
        let peer = Peer::new(self.next_id, uri, reach, part);
        self.all.push(Arc::downgrade(&peer));
        peer
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use crate::api::open::open;
    use crate::peers::peer::Peer;
    use na_core::conformance::PATIENCE;
    use na_core::{Completion, Endpoint, Error, OpId, OpenOptions, Tag, Uri};

    #[test]
    fn who_cancels_takes_no_lock_of_a_peer_that_has_nothing_to_cancel() {
        let start = |listen| {
            let uri = Uri::parse("na+sm://").unwrap();
            open(&uri, &OpenOptions::listening(listen)).unwrap()
        };
        let (origin, quiet, busy) = (start(false), start(true), start(true));
        let to_quiet = origin.lookup(quiet.self_addr().uri()).unwrap();
        let to_busy = origin.lookup(busy.self_addr().uri()).unwrap();
        let locked = to_quiet.state::<Peer>().unwrap().links.lock();
        // Queued: there is no welcome yet.
        origin.send_unexpected(OpId(1), &to_busy, Tag(1), origin.alloc_msg()).unwrap();
        let (sender, canceled) = channel();
        let told = std::thread::scope(|scope| {
            scope.spawn(|| {
                origin.cancel(OpId(99));
                origin.cancel(OpId(1));
                sender.send(()).unwrap();
            });
            let told = canceled.recv_timeout(PATIENCE);
            drop(locked);
            told
        });
        told.expect("it waits for a lock that it has no need of");
        let busy = to_busy.state::<Peer>().unwrap();
        assert!(!busy.is_cancelable(), "what was canceled is no reason any more");
        let mut ended = Vec::new();
        origin.poll(8, &mut |completion| ended.push(completion)).unwrap();
        let [Completion::Send { op: OpId(1), result: Err(Error::Canceled), .. }] = &ended[..]
        else {
            panic!("not canceled: {ended:?}");
        };
    }
}
