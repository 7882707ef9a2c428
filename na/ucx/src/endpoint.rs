//! The endpoint: each call takes the lock, works on the [`Driver`], and leaves.
//!
//! # Locks, in the order in which they may be taken
//!
//! 1. `gate`: one poll at a time. Held while the sink runs.
//! 2. `driver`. Nothing foreign runs under it but UCX: memory is released, and sinks are called,
//!    after it.
//! 3. those of the loopback, and of the table of regions.

use std::cell::RefMut;
use std::collections::VecDeque;
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use ucx_sys::Ucp;

use crate::addressing::address::{self, Settings};
use crate::addressing::ip_family::{self, IpFamily};
use crate::addressing::reserved_port::ReservedPort;
use crate::operations::{inbox::Inbox, keys::Recalls, peer_ref::PeerRef};
use crate::state::driver::{Driver, Facts};
use crate::state::group::{Group, Member, PeerName};
use crate::ucp::{library, wait::Wait, worker::Worker};
use na_core::base::ran;
use na_core::endpoint::stats;
use na_core::group::SHARDS_MAX;
use na_core::group::directory::Identity;
use na_core::hosts::host_port;
use na_core::hosts::own_address::Wanted;
use na_core::limits::descriptors;
use na_core::loopback::{Loopback, Outcome, Queued};
use na_core::matching::{Kind, Matcher};
use na_core::{
    Access, Addr, Completion, Endpoint, EndpointStats, Error, LargeBuffers, Limits, LocalMem,
    Memory, MsgBuf, OpId, OpenOptions, Principal, Refused, RegionTable, RemoteKeys, Tag, Transfer,
    Uri,
};
use prim::fork::Process;
use prim::lock::BiasedLock;
use prim::sync::Arc;

/// Early messages that one peer may have here, bytes.
const EARLY_BYTES_MAX: usize = 256 << 10;

/// Messages of a kind that a peer may always have on the way or waiting here, however long.
pub(super) const WINDOW_MIN: usize = 4;

/// The most, however short.
pub(super) const WINDOW_MAX: usize = 64;

/// Bytes that one poll copies for transfers with ourselves.
const COPY_BYTES: u64 = 1 << 20;

/// An endpoint of the ucx transport.
pub(super) struct UcxEndpoint {
    id: u64,
    own: Addr,
    /// Keeps the number that `own` has with all endpoints of the group.
    _identity: Identity,
    protocol: String,
    bulk_path: String,
    message_bytes_max: usize,
    regions: RegionTable,
    loopback: Loopback,
    driver: BiasedLock<Driver>,
    /// Completions that were taken and not yet reported.
    gate: BiasedLock<VecDeque<Completion>>,
    /// `None`: nobody sleeps ([`OpenOptions::no_block`]).
    wait: Option<Wait>,
    process: Process,
}

impl UcxEndpoint {
    #[cfg(test)]
    pub(super) fn open(uri: &Uri<'_>, options: &OpenOptions) -> Result<Self, Error> {
        Self::open_group(uri, options, 1)?.pop().ok_or(Error::Closed)
    }

    /// Opens the endpoints of a group. If they are to listen, the first one does so at the address
    /// of the URI, the others at free ports of the same host.
    pub(super) fn open_group(
        uri: &Uri<'_>,
        options: &OpenOptions,
        shards: usize,
    ) -> Result<Vec<Self>, Error> {
        let mut settings = address::settings(uri, options);
        let wanted = Wanted::of(options)?;
        let listen = ip_family::listen_address(uri, &wanted)?;
        let ucp = library::library()?;
        let family = IpFamily::of(uri.protocol, listen, &library::version(ucp));
        settings.families = family.map(IpFamily::priorities);
        if options.listen {
            ip_family::check_listen(family, listen)?;
        }
        let mut listen = options.listen.then_some(listen);
        let reserve = |listen| ReservedPort::new(listen).ok();
        let mut reserved = listen.filter(|_| shards > 1).and_then(reserve);
        let (mut door, mut parts, mut members) = (None, Vec::new(), Vec::new());
        for shard in 0..shards {
            let open = |listen| Part::open(ucp, &settings, uri, options, listen);
            let at_reserved = reserved.as_ref().filter(|_| shard == 0).map(|port| port.address);
            let opened = match open(at_reserved.or(listen)) {
                // UCX was told not to listen where somebody else is bound.
                Err(_) if at_reserved.is_some() => {
                    reserved = None;
                    open(listen)
                }
                opened => opened,
            };
            let (part, bound) = opened?;
            // Only the port is another one, so that firewalls and networks treat all alike.
            listen.iter_mut().for_each(|listen| listen.set_port(0));
            door = door.or(bound);
            let bell = part.wait.as_ref().map(Wait::bell);
            let port = bound.map_or(0, |bound| bound.port());
            members.push(Member { port, bell });
            parts.push(part);
        }
        let group = Group::new(random()?, door, reserved, members);
        let uri_of_own = match door {
            Some(bound) => {
                if let Some(warning) = address::listens_in_vain(uri.protocol, bound) {
                    tracing::warn!("ucx: {warning}");
                }
                address::uri_of(uri.protocol, host_port::reachable("ucx", bound, &wanted)?)
            }
            None => {
                let number = group.directory.family();
                let name = format!("process-{}-{number}", std::process::id());
                address::origin_uri(uri.protocol, name)
            }
        };
        let opening = Opening {
            uri,
            options,
            uri_of_own,
            group,
            family,
            bulk_path: bulk_path(&library::version(ucp), &settings.tls, options),
            regions: options.regions.clone().unwrap_or_default(),
            ucp,
        };
        parts.into_iter().enumerate().map(|(shard, part)| opening.finish(shard, part)).collect()
    }

    /// Runs `work` on the driver, wakes a caller that sleeps, and lets go of memory afterwards.
    /// `None`: closed.
    pub(super) fn with<R>(&self, work: impl FnOnce(&mut Driver) -> R) -> Option<R> {
        self.with_item((), |driver, ()| work(driver)).ok()
    }

    /// Does the work of [`with`](Self::with) on `item`, or hands `item` back if the endpoint is
    /// closed.
    fn with_item<T, R>(&self, item: T, work: impl FnOnce(&mut Driver, T) -> R) -> Result<R, T> {
        let mut driver = self.driver.lock();
        if driver.worker.is_none() {
            return Err(item);
        }
        let result = work(&mut driver, item);
        self.wake(&mut driver);
        let memory = driver.take_memory();
        drop(driver);
        drop(memory);
        Ok(result)
    }

    fn wake(&self, driver: &mut Driver) {
        if std::mem::take(&mut driver.is_asleep)
            && let Some(wait) = &self.wait
        {
            wait.ring();
        }
    }

    fn send(&self, to: &Addr, message: Queued) -> Result<(), Refused> {
        let len = message.buf.len();
        if len > self.message_bytes_max {
            return refused(Error::TooLong { len, max: self.message_bytes_max }, message.buf);
        }
        let sent = self.with_item(message, |driver, message| {
            if *to == self.own {
                return self.loopback.send(message);
            }
            match driver.index_of(to) {
                Some(index) => driver.send(index, to, message),
                None => return refused(self.foreign(to), message.buf),
            }
            Ok(())
        });
        sent.unwrap_or_else(|message| refused(Error::Closed, message.buf))
    }

    /// Sends a message if that can be over at once.
    fn send_now(&self, kind: Kind, to: &Addr, tag: Tag, message: &[u8]) -> bool {
        let sent = self.with(|driver| match driver.index_of(to) {
            Some(index) if message.len() <= self.message_bytes_max => {
                driver.send_now(index, kind, to, tag, message)
            }
            _ => false,
        });
        sent == Some(true)
    }

    /// The peer behind a text, of its group the endpoint `wanted` if possible.
    fn peer_named(&self, uri: &str, wanted: Option<u16>) -> Result<Addr, Error> {
        let uri = na_core::address::composed::part_for(uri, "ucx");
        let parsed = Uri::parse(uri)?;
        if uri == self.own.uri() && !uri.ends_with("/origin") {
            return Ok(self.own.clone());
        }
        let (key, addresses) = address::peer(&parsed, &self.protocol)?;
        if key.uri(&address::head(&self.protocol)) == self.own.uri() {
            return Ok(self.own.clone());
        }
        self.with(|driver| driver.lookup(key, addresses, wanted)).ok_or(Error::Closed)
    }

    fn foreign(&self, addr: &Addr) -> Error {
        Error::InvalidArgument(format!("{addr} is not an address of this endpoint"))
    }

    fn recv(&self, op: OpId, from: Option<(&Addr, Tag)>, buf: MsgBuf) -> Result<(), Refused> {
        if let Err(error) = buf.check_room(self.message_bytes_max) {
            return refused(error, buf);
        }
        let posted = self.with_item(buf, |driver, buf| {
            let early = match from {
                None => driver.state().matcher.post_unexpected(op, buf),
                Some((from, tag)) if *from == self.own => {
                    driver.state().matcher.post_expected(op, from, tag, buf)
                }
                Some((from, tag)) => match driver.index_of(from) {
                    Some(index) => {
                        driver.receive(op, index, from, tag, buf);
                        return Ok(());
                    }
                    None => return refused(self.foreign(from), buf),
                },
            };
            if let Some(early) = early {
                let kind = if from.is_none() { Kind::Unexpected } else { Kind::Expected };
                driver.report_early(kind, early);
            }
            Ok(())
        });
        posted.unwrap_or_else(|buf| refused(Error::Closed, buf))
    }

    fn transfer(&self, op: OpId, put: bool, to: &Addr, transfer: Transfer) -> Result<(), Error> {
        RegionTable::check_transfer(&transfer, put)?;
        // What is refused is dropped without the lock: its memory may run the code of its owner.
        let started = self.with_item(transfer, |driver, transfer| {
            if *to == self.own {
                return (self.loopback.start(op, put, transfer), None);
            }
            match driver.index_of(to) {
                Some(index) => driver.start(op, put, index, transfer),
                None => return (Err(self.foreign(to)), Some(transfer)),
            }
            (Ok(()), None)
        });
        match started {
            Ok((result, _dropped_here)) => result,
            Err(_) => Err(Error::Closed),
        }
    }

    /// Moves the network and takes completions, in place of an empty batch.
    fn collect(&self, batch: &mut VecDeque<Completion>) {
        let mut driver = self.driver.lock();
        self.silence(&mut driver);
        driver.turn();
        let lent = self.loopback.is_busy().then(|| self.run_within(&driver));
        std::mem::swap(&mut driver.state().done, batch);
        let memory = driver.take_memory();
        drop(driver);
        drop((memory, lent));
    }

    /// Moves what goes on within the endpoint; the memory to drop without the lock.
    #[inline(never)]
    fn run_within(&self, driver: &Driver) -> Vec<LocalMem> {
        let matcher = || RefMut::map(driver.state(), |state| &mut state.matcher);
        let (mut bytes, mut out) = (COPY_BYTES, Outcome::default());
        self.loopback.run(&self.own, matcher, &self.regions, &mut bytes, &mut out);
        driver.state().done.extend(out.completions);
        out.memory
    }

    /// Ends a sleep.
    fn silence(&self, driver: &mut Driver) {
        if driver.has_slept {
            driver.has_slept = false;
            driver.is_asleep = false;
            if let Some(wait) = &self.wait {
                wait.silence();
            }
        }
    }

    fn close_and_collect(&self) {
        let mut out = Outcome::default();
        let mut driver = self.driver.lock();
        driver.close();
        self.loopback.fail_all(&Error::Closed, &mut out);
        driver.state().done.extend(out.completions);
        self.wake(&mut driver);
        let memory = driver.take_memory();
        drop(driver);
        drop((memory, out.memory));
    }
}

/// The part of an endpoint that is UCX's, before the group is there.
struct Part {
    worker: Worker,
    inbox: Owned,
    wait: Option<Wait>,
}

impl Part {
    /// Makes a worker, which listens at `listen`. Returns also where that is, for a free port.
    fn open(
        ucp: &'static Ucp,
        settings: &Settings,
        uri: &Uri<'_>,
        options: &OpenOptions,
        listen: Option<SocketAddr>,
    ) -> Result<(Self, Option<SocketAddr>), Error> {
        let matcher = Matcher::new(EARLY_BYTES_MAX, options.left_bytes_max);
        let window = window(options) as u32;
        let inbox = Inbox::new(ucp, options.message_bytes_max, window, matcher);
        let inbox = Owned(NonNull::from(Box::leak(Box::new(inbox))));
        // SAFETY: the inbox is freed after the worker: by `Owned`, which is dropped after it, or by
        // the driver; and nobody borrows its state across a call of the worker.
        let mut worker = unsafe { Worker::open(ucp, settings, inbox.0.as_ptr()) }?;
        let bound = listen.map(|listen| worker.listen(listen, uri.text)).transpose()?;
        let wait = if options.no_block { None } else { Some(Wait::new(&worker)?) };
        Ok((Self { worker, inbox, wait }, bound))
    }
}

/// The facts that the endpoints of a group have in common while they are opened.
struct Opening<'a> {
    uri: &'a Uri<'a>,
    options: &'a OpenOptions,
    uri_of_own: String,
    group: Arc<Group>,
    family: Option<IpFamily>,
    bulk_path: String,
    regions: RegionTable,
    ucp: &'static Ucp,
}

impl Opening<'_> {
    /// Makes the endpoint number `shard` of the group.
    fn finish(&self, shard: usize, part: Part) -> Result<UcxEndpoint, Error> {
        let Self { uri, options, group, .. } = self;
        // In this order the worker is dropped before its inbox.
        let Part { inbox, worker, wait } = part;
        let id = Addr::unique_endpoint_id();
        let directory = &group.directory;
        let identity = directory.identity(PeerName::Own);
        let own = Addr::new(self.uri_of_own.clone(), id, 0, ());
        let own = own.of_identity(directory.family(), *identity);
        let facts = Facts {
            ucp: self.ucp,
            id,
            group: group.clone(),
            shard,
            protocol: uri.protocol.to_owned(),
            own: own.clone(),
            listens: options.listen,
            message_bytes_max: options.message_bytes_max,
            connect_timeout: options.connect_timeout,
            regions: self.regions.clone(),
            liveness_limit: ran::limit(options.liveness_limit),
            rendezvous_bytes_min: options.ucx.rendezvous_bytes_min,
            remote_keys: options.ucx.remote_keys,
            connections_max: connections_max(uri.protocol, options),
            unread_answers: options.unread_answers_bounds()?,
            family: self.family,
        };
        let recalls = Recalls::new(wait.as_ref().map(Wait::bell));
        let seed = random()?;
        let inbox = std::mem::ManuallyDrop::new(inbox).0;
        Ok(UcxEndpoint {
            id,
            own,
            _identity: identity,
            protocol: uri.protocol.to_owned(),
            bulk_path: self.bulk_path.clone(),
            message_bytes_max: options.message_bytes_max,
            regions: self.regions.clone(),
            loopback: Loopback::default(),
            driver: BiasedLock::new(Driver::new(facts, worker, inbox, seed, recalls)),
            gate: BiasedLock::new(VecDeque::new()),
            wait,
            process: Process::current(),
        })
    }
}

/// Messages of a kind that a peer may have on the way or waiting here.
fn window(options: &OpenOptions) -> usize {
    (EARLY_BYTES_MAX / options.message_bytes_max.max(1)).clamp(WINDOW_MIN, WINDOW_MAX)
}

/// Returns the result of an operation that was not started, with its buffer.
fn refused(error: Error, buf: MsgBuf) -> Result<(), Refused> {
    Err(Refused { error, buf })
}

/// Descriptors that UCX takes for a connection: its manager's, and two for data over TCP.
fn descriptors_each(protocol: &str) -> u64 {
    // Where there are adapters `all` uses those.
    if protocol == "tcp" { 3 } else { 1 }
}

/// How many connections others may have.
fn connections_max(protocol: &str, options: &OpenOptions) -> usize {
    match options.listen {
        true => {
            descriptors::connections_max(options.ucx.connections_max, descriptors_each(protocol))
        }
        // Nobody calls.
        false => options.ucx.connections_max,
    }
}

/// How bulk data moves.
fn bulk_path(version: &str, tls: &str, options: &OpenOptions) -> String {
    let by_key = match options.ucx.remote_keys {
        RemoteKeys::Always => "remote keys; or ",
        RemoteKeys::Never => "",
        _ => "remote keys over rc, ",
    };
    format!(
        "UCX {version}: {by_key}rendezvous over InfiniBand and RoCE, else copied in active \
         messages (UCX_TLS={tls})"
    )
}

fn random() -> Result<u64, Error> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|errno| Error::io("cannot get random bytes for an endpoint", errno))?;
    Ok(u64::from_ne_bytes(bytes))
}

/// An inbox until the driver has it.
struct Owned(NonNull<Inbox>);

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: it was leaked from a box; the worker, made after it, is gone.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

impl Endpoint for UcxEndpoint {
    fn transport(&self) -> &'static str {
        "ucx"
    }

    /// Only endpoints of ours get past the hello.
    fn carries_extensions(&self, _to: &Addr) -> bool {
        true
    }

    fn principal(&self, peer: &Addr) -> Principal {
        let host = self.with(|driver| {
            let index = driver.index_of(peer)?;
            let known = driver.peer(index)?;
            let dialed = known.addresses.get(known.trying).copied();
            known.caller.or(dialed).map(|address| Principal::of_host(address.ip()))
        });
        host.flatten().unwrap_or(Principal::Unknown)
    }

    /// A listener has several addresses, and says the one by which others reach it; peers may have
    /// been named by host. One that is known by its connection alone was not called by an address.
    fn is_at(&self, peer: &Addr, address: &str) -> bool {
        let dialed = self.with(|driver| {
            let index = driver.index_of(peer)?;
            driver.peer(index).map(|known| known.addresses.clone())
        });
        match dialed.flatten() {
            None => false,
            Some(dialed) if dialed.is_empty() => true,
            Some(dialed) => address::said(address).is_some_and(|said| dialed.contains(&said)),
        }
    }

    fn is_gone(&self, peer: &Addr) -> bool {
        let known = peer.state::<PeerRef>().filter(|_| peer.endpoint_id() == self.id);
        known.is_some_and(|known| peer.is_of_another_session(known.session()))
    }

    fn limits(&self) -> Limits {
        let max = self.message_bytes_max;
        Limits { unexpected_bytes_max: max, expected_bytes_max: max }
    }

    fn self_addr(&self) -> Addr {
        self.own.clone()
    }

    fn lookup(&self, uri: &str) -> Result<Addr, Error> {
        self.peer_named(uri, None)
    }

    fn lookup_shard(&self, uri: &str, shard: usize) -> Result<Addr, Error> {
        // No group has so many.
        let wanted = (shard < SHARDS_MAX).then_some(shard as u16);
        self.peer_named(uri, wanted)
    }

    fn send_unexpected(&self, op: OpId, to: &Addr, tag: Tag, buf: MsgBuf) -> Result<(), Refused> {
        self.send(to, Queued { op, kind: Kind::Unexpected, tag, buf })
    }

    fn recv_unexpected(&self, op: OpId, buf: MsgBuf) -> Result<(), Refused> {
        self.recv(op, None, buf)
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
        let posted = self.with_item((), |driver, ()| {
            let early = driver.state().matcher.post_many(op, count, buffers);
            early.into_iter().for_each(|early| driver.report_early(Kind::Unexpected, early));
        });
        posted.map_err(|()| Error::Closed)
    }

    fn send_expected(&self, op: OpId, to: &Addr, tag: Tag, buf: MsgBuf) -> Result<(), Refused> {
        self.send(to, Queued { op, kind: Kind::Expected, tag, buf })
    }

    fn recv_expected(&self, op: OpId, from: &Addr, tag: Tag, buf: MsgBuf) -> Result<(), Refused> {
        self.recv(op, Some((from, tag)), buf)
    }

    fn send_unexpected_now(&self, to: &Addr, tag: Tag, message: &[u8]) -> bool {
        self.send_now(Kind::Unexpected, to, tag, message)
    }

    fn send_expected_now(&self, to: &Addr, tag: Tag, message: &[u8]) -> bool {
        self.send_now(Kind::Expected, to, tag, message)
    }

    fn call_now(&self, op: OpId, to: &Addr, tag: Tag, buf: MsgBuf) -> Result<(), MsgBuf> {
        if buf.check_room(self.message_bytes_max).is_err() {
            return Err(buf);
        }
        let called = self.with_item(buf, |driver, buf| {
            let own = driver.index_of(to).filter(|_| buf.len() <= self.message_bytes_max);
            let Some(index) = own else { return Err(buf) };
            if !driver.send_now(index, Kind::Unexpected, to, tag, buf.as_slice()) {
                return Err(buf);
            }
            driver.receive(op, index, to, tag, buf);
            Ok(())
        });
        called.unwrap_or_else(Err)
    }

    fn register(&self, memory: Memory, access: Access) -> Result<LocalMem, Error> {
        match self.with(|_| ()) {
            Some(()) => self.regions.register(memory, access),
            None => Err(Error::Closed),
        }
    }

    fn put(&self, op: OpId, to: &Addr, transfer: Transfer) -> Result<(), Error> {
        self.transfer(op, true, to, transfer)
    }

    fn get(&self, op: OpId, from: &Addr, transfer: Transfer) -> Result<(), Error> {
        self.transfer(op, false, from, transfer)
    }

    /// A send that UCX has taken ends well; UCX may go on with it.
    fn cancel(&self, op: OpId) {
        let mut out = Outcome::default();
        self.with(|driver| {
            if self.loopback.cancel(op, &mut out) {
                driver.state().done.append(&mut std::mem::take(&mut out.completions).into());
                return;
            }
            let posted = driver.state().matcher.cancel(op);
            match posted {
                Some(completion) => driver.done(completion),
                None => {
                    let _ = driver.cancel_transfer(op) || driver.cancel_send(op);
                }
            }
        });
        drop(out.memory);
    }

    fn poll(&self, budget: usize, sink: &mut dyn FnMut(Completion)) -> Result<usize, Error> {
        let mut gate = self.gate.lock();
        // What a panic of the sink has left over comes first.
        if gate.is_empty() && budget > 0 {
            self.collect(&mut gate);
        }
        let mut reported = 0;
        while reported < budget
            && let Some(completion) = gate.pop_front()
        {
            reported += 1;
            sink(completion);
        }
        Ok(reported)
    }

    fn prepare_wait(&self) -> bool {
        let Some(wait) = &self.wait else { return false };
        let gate = self.gate.lock();
        if !gate.is_empty() {
            return false;
        }
        let mut driver = self.driver.lock();
        if driver.is_busy() || self.loopback.is_due() {
            return false;
        }
        if driver.worker.as_ref().is_some_and(|worker| !worker.arm()) {
            return false;
        }
        let deadline = driver.next_deadline();
        if deadline != driver.timer_at {
            driver.timer_at = deadline;
            wait.set_timer(deadline);
        }
        driver.has_slept = true;
        driver.is_asleep = true;
        true
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.wait.as_ref()?.fd())
    }

    /// Gives what was sent up to 50 ms to leave.
    fn close(&self) {
        // In a child the connections are the parent's.
        if !self.process.is_other() {
            self.close_and_collect();
        }
    }

    fn served(&self) -> u64 {
        self.regions.served()
    }

    fn stats(&self) -> EndpointStats {
        let peers = self.with(|driver| {
            let peers = driver.peers.iter().flatten();
            let mut peers: Vec<_> = peers.map(|peer| (peer.id, peer.stats())).collect();
            let awaited: Vec<_> = driver.state().matcher.awaited().collect();
            stats::assign(&mut peers, awaited);
            peers.into_iter().map(|(_, stats)| stats).collect()
        });
        EndpointStats::new(self.regions.totals(), peers.unwrap_or_default())
    }

    fn bulk_path(&self) -> String {
        self.bulk_path.clone()
    }
}

impl Drop for UcxEndpoint {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for UcxEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UcxEndpoint({}, {})", self.own, self.id)
    }
}
