//! The state of an endpoint, behind the endpoint's lock, and how work is given to UCX. What is done
//! with it is in `poll.rs`, `sessions.rs`, `messages.rs`, `transfers.rs` and so on.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use ucx_sys::{UCS_OK, Ucp, ucp_ep_h};

use super::discards::Discards;
use super::group::{Group, PeerName};
use super::peer::{Peer, PeerPart};
use crate::addressing::{address, ip_family::IpFamily};
use crate::operations::inbox::{ConnRequest, Inbox, InboxState};
use crate::operations::keys::Recalls;
use crate::operations::peer_ref::PeerRef;
use crate::operations::remote_key::Mapped;
use crate::operations::slots::{Slots, Work};
use crate::operations::transfer_state::{Moving, Stream};
use crate::ucp::worker::{Posted, Worker};
use crate::wire::{AM_CONTROL, AM_UNEXPECTED, Control, HELLO_TAG};
use na_core::base::cheap::IntBuildHasher;
use na_core::base::ran::RunClock;
use na_core::group::directory::Identity;
use na_core::hosts::host_port::PeerKey;
use na_core::limits::budget;
use na_core::limits::budget::Budget;
use na_core::matching::Kind;
use na_core::memory::region::RetiredMemory;
use na_core::{Addr, Completion, LocalMem, OpId, RegionTable, RemoteKeys};
use prim::fork::Process;
use prim::sync::Arc;

/// Connections that have not said hello, at most.
pub(crate) const STRANGERS_MAX: usize = 256;

/// How often something was logged, or would have been: of what others can do as often as they like
/// the first, the second, the fourth and so on are.
#[derive(Debug, Default)]
pub(crate) struct Notices {
    pub(crate) turned_away: u64,
    pub(crate) useless: u64,
    pub(crate) not_taken: u64,
    pub(crate) broke: u64,
    pub(crate) strange: u64,
}

/// A connection that has not said hello.
pub(crate) struct Stranger {
    /// Where the connection comes from.
    pub(crate) client: Option<SocketAddr>,
    pub(crate) came: Instant,
    pub(crate) since: RunClock,
    /// It has said hello, and was sent on to another endpoint of the group.
    pub(crate) is_sent_on: bool,
}

/// When to look after the peers.
#[derive(Debug)]
pub(crate) struct Watch {
    pub(crate) next: Instant,
    /// The interval that was wanted between two looks: of the time since the last look, no more
    /// than this counts.
    pub(crate) every: Duration,
    pub(crate) ran: RunClock,
}

/// Facts about an endpoint that do not change.
pub(crate) struct Facts {
    pub(crate) ucp: &'static Ucp,
    pub(crate) id: u64,
    pub(crate) group: Arc<Group>,
    /// The number in the group.
    pub(crate) shard: usize,
    pub(crate) protocol: String,
    pub(crate) own: Addr,
    pub(crate) listens: bool,
    pub(crate) message_bytes_max: usize,
    pub(crate) connect_timeout: Duration,
    pub(crate) regions: RegionTable,
    /// Longest time without a sign of life from a peer that owes something; zero: any.
    pub(crate) liveness_limit: Duration,
    /// See [`UcxOptions`](na_core::UcxOptions).
    pub(crate) rendezvous_bytes_min: Option<usize>,
    pub(crate) remote_keys: RemoteKeys,
    /// Connections that others may have to us.
    pub(crate) connections_max: usize,
    /// Bytes of answers that may wait for a peer, and for all.
    pub(crate) unread_answers: budget::BudgetLimits,
    /// `None`: whatever UCX connects can be used.
    pub(crate) family: Option<IpFamily>,
}

/// The state of an endpoint.
pub(crate) struct Driver {
    pub(crate) facts: Facts,
    /// `None` once closed. Before `inbox`, which it refers to.
    pub(crate) worker: Option<Worker>,
    pub(crate) inbox: NonNull<Inbox>,
    pub(crate) slots: Slots,
    pub(crate) peers: Vec<Option<Peer>>,
    pub(crate) free: Vec<usize>,
    /// Peers that were looked up, by key and wanted shard.
    pub(crate) by_key: HashMap<(PeerKey, Option<u16>), usize>,
    sweep_at: usize,
    /// Connections that were accepted and have not said hello.
    pub(crate) strangers: HashMap<usize, Stranger, IntBuildHasher>,
    pub(crate) strangers_max: usize,
    /// Open connections that others began, strangers included.
    pub(crate) accepted: usize,
    /// When to look whether a stranger has to make room, if somebody waits.
    pub(crate) room_at: Option<Instant>,
    pub(crate) notices: Notices,
    /// Requests for a connection that wait while there is no room for more connections.
    pub(crate) callers: VecDeque<ConnRequest>,
    pub(crate) connecting: usize,
    /// When to look at the limits of time of those and of the strangers: not after any of them is
    /// due. `None`: never.
    pub(crate) deadline_at: Option<Instant>,
    /// `None`: nobody wants a sign of life, nor do we.
    pub(crate) watch: Option<Watch>,
    pub(crate) transfers: HashMap<u64, Moving, IntBuildHasher>,
    /// The numbers of those, by their operations.
    pub(crate) transfer_of: HashMap<OpId, u64, IntBuildHasher>,
    /// Messages in the queues of all peers.
    pub(crate) queued: usize,
    /// Counts the answers that wait.
    pub(crate) answers: Arc<Budget>,
    /// Transfers with chunks to send.
    pub(crate) sending: VecDeque<Stream>,
    next: u64,
    /// True if this one listens at the address of the group.
    pub(crate) has_door: bool,
    /// When it tries that again: somebody else was there.
    pub(crate) door_at: Option<Instant>,
    /// Transfers by remote keys with pieces to move.
    pub(crate) reaching: VecDeque<u64>,
    /// Memory of which peers have keys, by its own.
    pub(crate) mapped: HashMap<u64, Mapped, IntBuildHasher>,
    /// Keys that peers have, and those that are to be taken back.
    pub(crate) given: usize,
    pub(crate) recalls: Arc<Recalls>,
    /// Connections that were closed.
    pub(crate) discards: Discards,
    /// Memory to drop without the lock.
    pub(crate) memory: Vec<LocalMem>,
    pub(crate) held: Vec<RetiredMemory>,
    /// Somebody sleeps, or is about to, and is to be woken for whatever is done here.
    pub(crate) is_asleep: bool,
    /// True if the last turn has brought something of which only messages were handled.
    pub(crate) is_behind: bool,
    /// There was a sleep since the last poll.
    pub(crate) has_slept: bool,
    /// When the timer fires, if it is set.
    pub(crate) timer_at: Option<Instant>,
    /// The worker could not be destroyed, and is left behind with the inbox.
    pub(crate) is_abandoned: bool,
    pub(crate) process: Process,
    /// Looks at all peers, or all that UCX has in hand, for what concerns one or none of them.
    #[cfg(test)]
    pub(crate) walks: usize,
}

// SAFETY: the handles of UCX and the inbox are used by whoever has the driver, one at a time
// (`UCS_THREAD_MODE_SERIALIZED`), and are tied to no thread.
unsafe impl Send for Driver {}

impl Driver {
    pub(crate) fn new(
        facts: Facts,
        worker: Worker,
        inbox: NonNull<Inbox>,
        seed: u64,
        recalls: Recalls,
    ) -> Self {
        // No two peers are known to be on one host.
        let bounds = budget::BudgetLimits { of_host: usize::MAX, ..facts.unread_answers };
        let answers = Budget::new(bounds);
        let has_door = facts.listens && facts.shard == 0;
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
            has_door,
            door_at: None,
            reaching: VecDeque::new(),
            mapped: HashMap::default(),
            given: 0,
            recalls: Arc::new(recalls),
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
    pub(crate) fn inbox(&self) -> &Inbox {
        // SAFETY: made by `Box::into_raw` for this driver, which frees it last; only shared
        // references are made of it.
        unsafe { self.inbox.as_ref() }
    }

    /// Returns the state that callbacks have left. It must not be held across a call of the worker.
    #[inline]
    pub(crate) fn state(&self) -> std::cell::RefMut<'_, InboxState> {
        self.inbox().state()
    }

    pub(crate) fn done(&self, completion: Completion) {
        self.state().done.push_back(completion);
    }

    /// A number that was not used before.
    pub(crate) fn number(&mut self) -> u64 {
        self.next = self.next.wrapping_add(1);
        self.next
    }

    /// A receive of `kind` has taken a message that was there.
    pub(crate) fn report_early(&self, kind: Kind, completion: Completion) {
        self.inbox().report_early(kind, completion);
    }

    /// Tests count how often everything is looked at.
    pub(crate) fn walk(&mut self) {
        #[cfg(test)]
        {
            self.walks += 1;
        }
    }

    pub(crate) fn peer(&mut self, index: usize) -> Option<&mut Peer> {
        self.peers.get_mut(index)?.as_mut()
    }

    /// The number that the peer of that name has with all endpoints of the group, behind that of
    /// the group.
    pub(crate) fn identity(&self, name: PeerName) -> (u64, Identity) {
        let directory = &self.facts.group.directory;
        (directory.family(), directory.identity(name))
    }

    /// Adds a peer, which is found by its key and reached at these addresses; without a key it is
    /// known by its connection, and has that address as text.
    pub(crate) fn add_peer(
        &mut self,
        key: Option<PeerKey>,
        addresses: Vec<SocketAddr>,
        part: PeerPart,
        text: impl FnOnce() -> String,
    ) -> usize {
        self.sweep();
        let (id, session) = (self.number(), self.number());
        let protocol = &self.facts.protocol;
        let uri = match &key {
            Some(key) => key.uri(&address::head(protocol)),
            None => text(),
        };
        let wanted = part.wanted;
        let mut peer = Peer::new(id, uri, key.clone(), addresses, session);
        peer.part = part;
        let index = self.free.pop().unwrap_or(self.peers.len());
        if index == self.peers.len() {
            self.peers.push(None);
        }
        self.peers[index] = Some(peer);
        self.by_key.extend(key.map(|key| ((key, wanted), index)));
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
                if let Some(Peer { key: Some(key), part, .. }) = self.peers[index].take() {
                    self.by_key.remove(&(key, part.wanted));
                }
                self.free.push(index);
            }
        }
        self.sweep_at = 2 * (self.peers.len() - self.free.len()) + 16;
    }

    /// The peer under `key`, which listens at `addresses`, of its group the endpoint `wanted` if
    /// possible.
    pub(crate) fn lookup(
        &mut self,
        key: PeerKey,
        addresses: Vec<SocketAddr>,
        wanted: Option<u16>,
    ) -> Addr {
        let index = self.peer_at(key, addresses, wanted);
        let endpoint = self.facts.id;
        self.peers[index].as_mut().map_or(self.facts.own.clone(), |p| p.addr(endpoint, index, 0))
    }

    /// Returns the number of the peer that [`lookup`](Self::lookup) names.
    fn peer_at(&mut self, key: PeerKey, addresses: Vec<SocketAddr>, wanted: Option<u16>) -> usize {
        let name = (key, wanted);
        if let Some(index) = self.by_key.get(&name) {
            return *index;
        }
        let identity = Some(self.identity(PeerName::LookedUp(name.0.clone())));
        self.add_peer(Some(name.0), addresses, PeerPart { identity, wanted }, String::new)
    }

    /// Returns whether something moves that belongs to what is between us and the peer now.
    pub(crate) fn is_current(&self, stream: Stream) -> bool {
        let peer = self.peers.get(stream.peer).and_then(Option::as_ref);
        peer.is_some_and(|peer| peer.session == stream.session)
    }

    /// Returns the peer at the other end of a connection, once it has greeted.
    pub(crate) fn greeted_peer(&self, link: ucp_ep_h) -> Option<usize> {
        self.state().links.get(&(link as usize))?.peer.as_ref().map(|(at, _)| *at)
    }

    /// The sender of an address of this endpoint, as a number.
    pub(crate) fn index_of(&self, addr: &Addr) -> Option<usize> {
        let own = addr.state::<PeerRef>().filter(|_| addr.endpoint_id() == self.facts.id)?;
        let peer = self.peers.get(own.index)?.as_ref()?;
        (peer.id == addr.peer_id()).then_some(own.index)
    }

    /// Tells the peer something.
    pub(crate) fn tell(&mut self, index: usize, control: &Control) {
        let Some(peer) = self.peer(index) else { return };
        let (Some(link), session) = (peer.link, peer.session) else { return };
        peer.load.told += 1;
        self.tell_as(link, control, |bytes| Work::Told(bytes, index, session));
    }

    /// Sends a control message over a connection, as that work. What fails is told by the end of
    /// the connection.
    pub(crate) fn tell_as(
        &mut self,
        link: ucp_ep_h,
        control: &Control,
        work: impl FnOnce(Vec<u8>) -> Work,
    ) {
        let bytes = control.to_bytes();
        let data = (bytes.as_ptr(), bytes.len());
        let (id, header) = match control {
            // Nobody knows yet who is there.
            Control::Hello(_) => (AM_UNEXPECTED, (HELLO_TAG.as_ptr(), HELLO_TAG.len())),
            _ => (AM_CONTROL, (std::ptr::null(), 0)),
        };
        self.post(work(bytes), |worker, slots, slot| {
            // SAFETY: `link` is that of a peer, which loses it when it is closed; the slot owns the
            // data until the callback, and the header stays for ever.
            unsafe { worker.send_am(link, id, header, data, slots.pinned(slot)) }
        });
    }

    /// Gives work to UCX by `call`, for which it gets a slot. The slot, if UCX goes on with it;
    /// what is over at once is [finished](Self::finished) here.
    #[inline]
    pub(crate) fn post(
        &mut self,
        work: Work,
        call: impl FnOnce(&Worker, &mut Slots, u32) -> Posted,
    ) -> Option<u32> {
        let slot = self.slots.add(work);
        let worker = self.worker.as_ref()?;
        let status = match call(worker, &mut self.slots, slot) {
            Posted::Pending(request) => {
                self.slots.started(slot, request);
                return Some(slot);
            }
            Posted::Done => UCS_OK,
            Posted::Failed(status) => status,
        };
        self.finished(slot, status);
        None
    }

    /// Takes the memory that is to be dropped without the lock; nearly always there is none.
    #[inline]
    pub(crate) fn take_memory(&mut self) -> Option<(Vec<LocalMem>, Vec<RetiredMemory>)> {
        let is_some = !self.memory.is_empty() || !self.held.is_empty();
        is_some.then(|| (std::mem::take(&mut self.memory), std::mem::take(&mut self.held)))
    }
}
