//! The endpoint over both, and how it is opened.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, epoll, eventfd};

use super::many;
use super::many::Many;
use super::memory;
use super::receives::{Added, Receives, Side};
use super::turns::FarPolling;
use crate::{
    Access, Addr, Completion, Endpoint, EndpointStats, Error, LargeBuffers, Limits, LocalMem,
    MemPart, Memory, MsgBuf, OpId, OpenOptions, PeerUsers, Plugin, Principal, Refused, RegionTable,
    RemoteMem, Tag, Transfer, Uri,
};
use na_core::address::composed::{self, Host};
use prim::sync::atomic::{AtomicBool, Ordering};
use prim::sync::{Arc, Mutex, lock};

/// See the module documentation.
struct AutoSm {
    id: u64,
    /// The number of the group.
    family: u64,
    own_addr: Addr,
    host: Host,
    users: PeerUsers,
    near: Part,
    far: Part,
    turns: FarPolling,
    shared: Mutex<Shared>,
    /// `Shared::ready` is not empty. A hint: the thread that sets it wakes a sleeper under the
    /// lock.
    has_ready: AtomicBool,
    /// Somebody has prepared to wait since the last poll. Only `poll` and `prepare_wait` touch it,
    /// which have one caller.
    prepared: AtomicBool,
    /// Readable when `ready` is to be looked at.
    event: OwnedFd,
    /// All three; `None` if one of the endpoints can only be polled.
    epoll: Option<OwnedFd>,
}

/// One of the two endpoints.
struct Part {
    endpoint: Arc<dyn Endpoint>,
    own: Addr,
}

impl Part {
    fn new(endpoint: Arc<dyn Endpoint>) -> Self {
        Self { own: endpoint.self_addr(), endpoint }
    }
}

#[derive(Debug, Default)]
struct Shared {
    receives: Receives,
    many: Many,
    /// Completions of operations that ended in neither of the two endpoints.
    ready: Vec<Completion>,
    /// The poll's caller sleeps, or is about to.
    asleep: bool,
}

/// Reads the address of the part for peers on this host.
///
/// # Errors
///
/// [`Error::BadUri`] if it is not shared memory.
pub(crate) fn near(uri: &str) -> Result<Uri<'_>, Error> {
    let near = Uri::parse(uri)?;
    match near.protocol {
        "sm" => Ok(near),
        _ => Err(Error::BadUri {
            uri: uri.to_owned(),
            reason: "the part for peers on this host must be shared memory, `na+sm://`".into(),
        }),
    }
}

/// Opens a group of endpoints for the second address, a network, and one of shared memory beside
/// it, for the first, which [`near`] has read. Each endpoint of the one goes with one of the other.
pub(crate) fn open_group(
    (near, near_uri): (&dyn Plugin, &Uri<'_>),
    (far, far_uri): (&dyn Plugin, &Uri<'_>),
    options: &OpenOptions,
    shards: usize,
) -> Result<Vec<Arc<dyn Endpoint>>, Error> {
    let mut options = options.clone();
    options.auto_sm = None;
    options.regions.get_or_insert_with(RegionTable::new);
    let host = Host::own()?;
    let near = near.open_group(near_uri, &options, shards)?;
    let far = far.open_group(far_uri, &options, shards)?;
    let family = Addr::unique_endpoint_id();
    let parts = near.into_iter().zip(far);
    parts
        .map(|(near, far)| {
            let (near, far) = (Part::new(near), Part::new(far));
            let shard = AutoSm::new(family, host.clone(), options.peer_users.clone(), near, far)?;
            Ok(Arc::new(shard) as Arc<dyn Endpoint>)
        })
        .collect()
}

fn watch_all(near: &Part, far: &Part, event: &OwnedFd) -> Result<Option<OwnedFd>, Error> {
    let (Some(near), Some(far)) = (near.endpoint.wait_fd(), far.endpoint.wait_fd()) else {
        return Ok(None);
    };
    let failed = |errno| Error::io("cannot watch both endpoints", errno);
    let all = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
    for fd in [near, far, event.as_fd()] {
        let data = epoll::EventData::new_u64(0);
        epoll::add(&all, fd, data, epoll::EventFlags::IN).map_err(failed)?;
    }
    Ok(Some(all))
}

impl AutoSm {
    /// An endpoint over both, one of the group with the number `family`.
    fn new(
        family: u64,
        host: Host,
        users: PeerUsers,
        near: Part,
        far: Part,
    ) -> Result<Self, Error> {
        let id = Addr::unique_endpoint_id();
        let own_uri = composed::format(&host, near.own.uri(), far.own.uri());
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| Error::io("cannot make an event descriptor", errno))?;
        let epoll = watch_all(&near, &far, &event)?;
        Ok(Self {
            id,
            family,
            own_addr: Addr::new(own_uri, id, 0, ()).of_identity(family, 0),
            host,
            users,
            near,
            far,
            turns: FarPolling::default(),
            shared: Mutex::default(),
            has_ready: AtomicBool::new(false),
            prepared: AtomicBool::new(false),
            event,
            epoll,
        })
    }

    /// The peer of that name, as `look_up` says it of the endpoint that reaches it.
    fn look_up_by(
        &self,
        uri: &str,
        look_up: impl Fn(&dyn Endpoint, &str) -> Result<Addr, Error>,
    ) -> Result<Addr, Error> {
        let (near, far) = (&*self.near.endpoint, &*self.far.endpoint);
        let found = match composed::parse(uri).transpose()? {
            Some(composed) if self.host.reaches(&composed.host, &self.users) => {
                look_up(near, composed.near)?
            }
            Some(composed) => look_up(far, composed.far)?,
            None if Uri::parse(uri)?.protocol == "sm" => look_up(near, uri)?,
            None => look_up(far, uri)?,
        };
        let found = self.found(found);
        Ok(if found == self.own_addr || found.uri() == uri { found } else { found.with_uri(uri) })
    }

    /// Where operations with `addr` go, and the name that it has there.
    fn route<'a>(&'a self, addr: &'a Addr) -> Result<(Side, &'a Part, &'a Addr), Error> {
        let id = addr.endpoint_id();
        if id == self.near.own.endpoint_id() {
            Ok((Side::Near, &self.near, addr))
        } else if id == self.far.own.endpoint_id() {
            Ok((Side::Far, &self.far, addr))
        } else if id == self.id {
            Ok((Side::Near, &self.near, &self.near.own))
        } else {
            let text = format!("{addr} is an address of another endpoint");
            Err(Error::InvalidArgument(text))
        }
    }

    /// Starts an operation with a message buffer.
    fn start(
        &self,
        addr: &Addr,
        buf: MsgBuf,
        start: impl FnOnce(&dyn Endpoint, &Addr, MsgBuf) -> Result<(), Refused>,
    ) -> Result<(), Refused> {
        match self.route(addr) {
            Ok((Side::Near, part, addr)) => start(&*part.endpoint, addr, buf),
            Ok((Side::Far, part, addr)) => {
                self.turns.begin();
                start(&*part.endpoint, addr, buf).inspect_err(|_| self.turns.end())
            }
            Err(error) => Err(Refused { error, buf }),
        }
    }

    fn start_transfer(
        &self,
        addr: &Addr,
        transfer: Transfer,
        start: impl FnOnce(&dyn Endpoint, &Addr, Transfer) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let (side, part, addr) = self.route(addr)?;
        if side == Side::Near {
            return start(&*part.endpoint, addr, memory::for_near(transfer)?);
        }
        self.turns.begin();
        start(&*part.endpoint, addr, transfer).inspect_err(|_| self.turns.end())
    }

    /// Returns the address to hand to the caller for one that either endpoint has found: the own
    /// address of either is that of this endpoint.
    fn found(&self, found: Addr) -> Addr {
        if found == self.near.own || found == self.far.own { self.own_addr.clone() } else { found }
    }

    /// Reports `completion` in the next poll.
    fn report(&self, shared: &mut Shared, completion: Completion) {
        shared.ready.push(completion);
        self.has_ready.store(true, Ordering::Relaxed);
        if std::mem::take(&mut shared.asleep) {
            // It is full only if it is readable already.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }

    /// Returns the completion to report when an operation of one of the endpoints has ended; `None`
    /// if there is none to report yet.
    fn translate(&self, side: Side, completion: Completion) -> Option<Completion> {
        match completion {
            Completion::Recv { op, buf, result } if Receives::is_ours(op) || Many::is_ours(op) => {
                let result = result.map(|mut arrival| {
                    if side == Side::Near && arrival.from == self.near.own {
                        arrival.from = self.own_addr.clone();
                    }
                    arrival
                });
                let mut shared = lock(&self.shared);
                match result {
                    result if Receives::is_ours(op) => shared.receives.ended(side, op, buf, result),
                    Ok(arrival) => shared.many.arrived(side, op, buf, arrival),
                    Err(error) => {
                        let ended = shared.many.failed(side, op, &error);
                        ended.into_iter().for_each(|ended| self.report(&mut shared, ended));
                        None
                    }
                }
            }
            mut completion => {
                if side == Side::Far {
                    self.turns.end();
                } else if let Completion::Recv { result: Ok(arrival), .. } = &mut completion
                    && arrival.from == self.near.own
                {
                    arrival.from = self.own_addr.clone();
                }
                Some(completion)
            }
        }
    }

    fn poll_part(
        &self,
        side: Side,
        budget: usize,
        sink: &mut dyn FnMut(Completion),
    ) -> Result<usize, Error> {
        let part = if side == Side::Near { &self.near } else { &self.far };
        let mut told = 0;
        part.endpoint.poll(budget, &mut |completion| {
            if let Some(completion) = self.translate(side, completion) {
                told += 1;
                sink(completion);
            }
        })?;
        Ok(told)
    }

    fn poll_ready(&self, budget: usize, sink: &mut dyn FnMut(Completion)) -> usize {
        let mut shared = lock(&self.shared);
        let count = shared.ready.len().min(budget);
        let rest = shared.ready.split_off(count);
        let ready = std::mem::replace(&mut shared.ready, rest);
        self.has_ready.store(!shared.ready.is_empty(), Ordering::Relaxed);
        drop(shared);
        ready.into_iter().for_each(sink);
        count
    }

    /// Ends what `prepare_wait` announced.
    fn stay_awake(&self) {
        self.prepared.store(false, Ordering::Relaxed);
        lock(&self.shared).asleep = false;
        // Nothing to read if nobody has written.
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
    }
}

impl Endpoint for AutoSm {
    fn transport(&self) -> &'static str {
        self.far.endpoint.transport()
    }

    fn asks_owners(&self) -> bool {
        self.near.endpoint.asks_owners() && self.far.endpoint.asks_owners()
    }

    fn knows_who_transfers(&self) -> bool {
        self.near.endpoint.knows_who_transfers() && self.far.endpoint.knows_who_transfers()
    }

    fn carries_extensions(&self, to: &Addr) -> bool {
        self.route(to).is_ok_and(|(_, part, to)| part.endpoint.carries_extensions(to))
    }

    fn principal(&self, peer: &Addr) -> Principal {
        let known = self.route(peer).map(|(_, part, peer)| part.endpoint.principal(peer));
        known.unwrap_or(Principal::Unknown)
    }

    fn knows_principals(&self, peer: &Addr) -> bool {
        self.route(peer).is_ok_and(|(_, part, peer)| part.endpoint.knows_principals(peer))
    }

    fn is_at(&self, peer: &Addr, address: &str) -> bool {
        self.route(peer).is_ok_and(|(_, part, peer)| part.endpoint.is_at(peer, address))
    }

    fn look_at_secrets(&self) {
        self.far.endpoint.look_at_secrets();
    }

    fn may_meet_mercury(&self) -> bool {
        self.far.endpoint.may_meet_mercury() || self.near.endpoint.may_meet_mercury()
    }

    fn is_gone(&self, peer: &Addr) -> bool {
        self.route(peer).is_ok_and(|(_, part, peer)| part.endpoint.is_gone(peer))
    }

    fn limits(&self) -> Limits {
        let (near, far) = (self.near.endpoint.limits(), self.far.endpoint.limits());
        Limits {
            unexpected_bytes_max: near.unexpected_bytes_max.min(far.unexpected_bytes_max),
            expected_bytes_max: near.expected_bytes_max.min(far.expected_bytes_max),
        }
    }

    fn idle_receives_max(&self) -> usize {
        self.near.endpoint.idle_receives_max().min(self.far.endpoint.idle_receives_max())
    }

    fn self_addr(&self) -> Addr {
        self.own_addr.clone()
    }

    fn lookup(&self, uri: &str) -> Result<Addr, Error> {
        self.look_up_by(uri, |endpoint, uri| endpoint.lookup(uri))
    }

    fn lookup_shard(&self, uri: &str, shard: usize) -> Result<Addr, Error> {
        self.look_up_by(uri, |endpoint, uri| endpoint.lookup_shard(uri, shard))
    }

    fn addr_to_bytes(&self, addr: &Addr) -> Result<Vec<u8>, Error> {
        // What we are called is the text of both; so are peers that were found by it.
        if addr.endpoint_id() == self.id || composed::parse(addr.uri()).is_some() {
            return addr.to_bytes();
        }
        let (_, part, addr) = self.route(addr)?;
        part.endpoint.addr_to_bytes(addr)
    }

    fn addr_from_bytes(&self, bytes: &[u8]) -> Result<Addr, Error> {
        match Addr::text_in(bytes) {
            Ok(text) => self.lookup(text),
            // The network may have a form of its own.
            Err(_) => self.far.endpoint.addr_from_bytes(bytes).map(|found| self.found(found)),
        }
    }

    fn has_made(&self, addr: &Addr) -> bool {
        self.route(addr).is_ok()
    }

    fn retire(&self) -> Result<(), Error> {
        self.far.endpoint.retire()?;
        self.near.endpoint.retire()
    }

    fn open_another(&self) -> Result<Arc<dyn Endpoint>, Error> {
        // First the one that may have no groups.
        let far = Part::new(self.far.endpoint.open_another()?);
        let near = Part::new(self.near.endpoint.open_another()?);
        let shard = Self::new(self.family, self.host.clone(), self.users.clone(), near, far)?;
        Ok(Arc::new(shard))
    }

    fn send_unexpected(&self, op: OpId, to: &Addr, tag: Tag, buf: MsgBuf) -> Result<(), Refused> {
        self.start(to, buf, |endpoint, to, buf| endpoint.send_unexpected(op, to, tag, buf))
    }

    fn send_unexpected_now(&self, to: &Addr, tag: Tag, message: &[u8]) -> bool {
        let route = self.route(to);
        route.is_ok_and(|(_, part, to)| part.endpoint.send_unexpected_now(to, tag, message))
    }

    fn recv_unexpected(&self, op: OpId, buf: MsgBuf) -> Result<(), Refused> {
        if let Err(error) = buf.check_room(self.limits().unexpected_bytes_max) {
            return Err(Refused { error, buf });
        }
        let mut shared = lock(&self.shared);
        let posts = match shared.receives.add(op, buf) {
            Added::Ended(completion) => {
                self.report(&mut shared, completion);
                return Ok(());
            }
            Added::Post(posts) => posts,
        };
        drop(shared);
        let mut outcome = Ok(());
        for (side, name, buf) in posts {
            let part = if side == Side::Near { &self.near } else { &self.far };
            let buf = buf.unwrap_or_else(|| self.alloc_msg());
            if let Err(refused) = part.endpoint.recv_unexpected(name, buf) {
                let mut shared = lock(&self.shared);
                if shared.receives.refused(side, name, op) {
                    outcome = Err(refused);
                } else {
                    shared.receives.put_spare(refused.buf);
                }
            }
        }
        outcome
    }

    fn has_multi_recv(&self) -> bool {
        self.near.endpoint.has_multi_recv() && self.far.endpoint.has_multi_recv()
    }

    fn multi_recv_unexpected(
        &self,
        op: OpId,
        count: usize,
        buffers: &LargeBuffers,
    ) -> Result<(), Error> {
        LargeBuffers::check(count)?;
        let mut shared = lock(&self.shared);
        let (ended, posts) = shared.many.add(op, count);
        ended.into_iter().for_each(|ended| self.report(&mut shared, ended));
        drop(shared);
        let mut outcome = Ok(());
        for (side, name, count) in posts {
            let part = if side == Side::Near { &self.near } else { &self.far };
            if let Err(error) = part.endpoint.multi_recv_unexpected(name, count, buffers)
                && lock(&self.shared).many.refused(side, name, op)
            {
                outcome = Err(error);
            }
        }
        outcome
    }

    fn send_expected(&self, op: OpId, to: &Addr, tag: Tag, buf: MsgBuf) -> Result<(), Refused> {
        self.start(to, buf, |endpoint, to, buf| endpoint.send_expected(op, to, tag, buf))
    }

    fn send_expected_now(&self, to: &Addr, tag: Tag, message: &[u8]) -> bool {
        let route = self.route(to);
        route.is_ok_and(|(_, part, to)| part.endpoint.send_expected_now(to, tag, message))
    }

    fn recv_expected(&self, op: OpId, from: &Addr, tag: Tag, buf: MsgBuf) -> Result<(), Refused> {
        self.start(from, buf, |endpoint, from, buf| endpoint.recv_expected(op, from, tag, buf))
    }

    fn call_now(&self, op: OpId, to: &Addr, tag: Tag, buf: MsgBuf) -> Result<(), MsgBuf> {
        let Ok((side, part, to)) = self.route(to) else { return Err(buf) };
        if side == Side::Near {
            return part.endpoint.call_now(op, to, tag, buf);
        }
        self.turns.begin();
        let called = part.endpoint.call_now(op, to, tag, buf);
        called.inspect_err(|_| self.turns.end())
    }

    fn register(&self, memory: Memory, access: Access) -> Result<LocalMem, Error> {
        // The table of keys is that of both.
        self.far.endpoint.register(memory, access)
    }

    fn register_local(&self, memory: Memory, access: Access) -> Result<LocalMem, Error> {
        self.far.endpoint.register_local(memory, access)
    }

    fn mem_to_bytes(&self, memory: &LocalMem) -> Vec<u8> {
        memory::whole(&*self.far.endpoint, memory)
    }

    fn mem_parts(&self, memory: &LocalMem) -> Option<Vec<MemPart>> {
        memory::parts(&*self.far.endpoint, memory)
    }

    fn mem_from_bytes(&self, bytes: &[u8]) -> Result<RemoteMem, Error> {
        memory::read(&*self.far.endpoint, bytes)
    }

    fn put(&self, op: OpId, to: &Addr, transfer: Transfer) -> Result<(), Error> {
        self.start_transfer(to, transfer, |endpoint, to, transfer| endpoint.put(op, to, transfer))
    }

    fn get(&self, op: OpId, from: &Addr, transfer: Transfer) -> Result<(), Error> {
        let start =
            |endpoint: &dyn Endpoint, from: &Addr, transfer| endpoint.get(op, from, transfer);
        self.start_transfer(from, transfer, start)
    }

    fn cancel(&self, op: OpId) {
        let mut shared = lock(&self.shared);
        if shared.receives.remove(op) {
            let buf = shared.receives.take_spare().unwrap_or_else(|| self.alloc_msg());
            let completion = Completion::Recv { op, buf, result: Err(Error::Canceled) };
            self.report(&mut shared, completion);
            return;
        }
        if shared.many.cancel(op) {
            self.report(&mut shared, many::ended(op, &Error::Canceled));
            return;
        }
        drop(shared);
        self.near.endpoint.cancel(op);
        self.far.endpoint.cancel(op);
    }

    fn poll(&self, budget: usize, sink: &mut dyn FnMut(Completion)) -> Result<usize, Error> {
        let slept = self.prepared.load(Ordering::Relaxed);
        if slept {
            self.stay_awake();
        }
        let mut told = 0;
        if self.has_ready.load(Ordering::Relaxed) {
            told += self.poll_ready(budget, sink);
        }
        // What ended a sleep may be far.
        let far_is_due = self.turns.take() || slept;
        let order = match far_is_due && self.turns.far_is_first() {
            true => [Side::Far, Side::Near],
            false => [Side::Near, Side::Far],
        };
        // Both, also if one of them fails: the other has operations to end.
        let mut result = Ok(());
        for side in order {
            if side == Side::Far && !far_is_due {
                continue;
            }
            let left = budget - told;
            let before = self.far.endpoint.served();
            let polled = self.poll_part(side, left, sink);
            let count = *polled.as_ref().unwrap_or(&0);
            told += count;
            if side == Side::Far {
                let served = self.far.endpoint.served() != before;
                self.turns.found(count, served, left);
            }
            result = result.and(polled.map(drop));
        }
        result.map(|()| told)
    }

    fn prepare_wait(&self) -> bool {
        self.prepared.store(true, Ordering::Relaxed);
        let mut shared = lock(&self.shared);
        if !shared.ready.is_empty() {
            return false;
        }
        shared.asleep = true;
        drop(shared);
        self.near.endpoint.prepare_wait() && self.far.endpoint.prepare_wait()
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.epoll.as_ref().map(AsFd::as_fd)
    }

    fn close(&self) {
        self.near.endpoint.close();
        self.far.endpoint.close();
    }

    fn keeps_memory(&self) -> bool {
        self.near.endpoint.keeps_memory() || self.far.endpoint.keeps_memory()
    }

    fn hand_over(&self, to: &Addr, number: u64, fd: OwnedFd) -> Result<(), Error> {
        let (_, part, to) = self.route(to)?;
        part.endpoint.hand_over(to, number, fd)
    }

    fn direct_bytes_max(&self, peer: &Addr) -> u64 {
        let route = self.route(peer);
        route.map_or(0, |(_, part, peer)| part.endpoint.direct_bytes_max(peer))
    }

    fn served(&self) -> u64 {
        // The table of regions is that of both.
        self.far.endpoint.served()
    }

    fn stats(&self) -> EndpointStats {
        // The table of regions is that of both.
        let mut stats = self.far.endpoint.stats();
        stats.peers.extend(self.near.endpoint.stats().peers);
        stats
    }

    fn bulk_path(&self) -> String {
        let (near, far) = (self.near.endpoint.bulk_path(), self.far.endpoint.bulk_path());
        format!("on this host: {near}; elsewhere: {far}")
    }
}

impl fmt::Debug for AutoSm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AutoSm")
            .field("near", &self.near.endpoint)
            .field("far", &self.far.endpoint)
            .finish_non_exhaustive()
    }
}
