//! The endpoint: each call takes the core's lock, works on its state, and leaves.
//!
//! # Locks, in the order in which they may be taken
//!
//! 1. `gate`: one poll at a time. Held while the sink runs.
//! 2. `core`. Nothing foreign runs under it: memory is released, and sinks are called, after it.
//! 3. those of `loopback` and of the registry of memory.

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ofi_sys::{Library, raw};
use rustix::event::{EventfdFlags, epoll};

use crate::buffers::memory::{self, Registered, Registry};
use crate::fabrics::cxi::AuthKey;
use crate::fabrics::fabric::{self, Domain, Ep, Info};
use crate::fabrics::nearest::this_machine;
use crate::fabrics::search;
use crate::providers::address::{self, RawAddr};
use crate::providers::provider::{self, Format, Provider};
use crate::state::core::{Core, CoreInit};
use crate::state::peers::{IDLE_MAX, Peer};
use na_core::endpoint::stats;
use na_core::hosts::own_address::Wanted;
use na_core::loopback::{Loopback, Outcome, Queued};
use na_core::matching::Kind;
use na_core::{
    Access, Addr, Completion, DevicePieces, Endpoint, EndpointStats, Error, LargeBuffers, Limits,
    LocalMem, MemPart, Memory, MsgBuf, OpId, OpenOptions, PeerLink, PeerStats, Refused,
    RegionTable, RemoteMem, Tag, Transfer, Uri,
};
use prim::fork::Process;
use prim::lock::{BiasedGuard, BiasedLock};
use prim::lost;
use prim::sync::Arc;

/// The largest value of [`OpenOptions::message_bytes_max`] that this transport takes, bytes.
const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// The least: what goes before a message must leave room for it.
const MESSAGE_BYTES_MIN: usize = 512;

/// Data within the endpoint that one poll copies, bytes.
const COPY_BYTES: u64 = 256 << 10;

/// An open endpoint.
pub(super) struct OfiEndpoint {
    core: BiasedLock<Core>,
    /// Operations on our own address.
    loopback: Loopback,
    regions: RegionTable,
    /// Completions that were taken and not yet reported.
    gate: BiasedLock<VecDeque<Completion>>,
    own: Addr,
    provider: &'static Provider,
    limits: Limits,
    idle_receives_max: usize,
    bulk_path: String,
    /// Memory of devices may be registered.
    hmem: bool,
    wait: Option<Wait>,
    process: Process,
}

/// Settings that only tests change.
#[derive(Debug, Clone, Copy)]
pub(super) struct Setup {
    /// All memory is registered, whether or not the provider wants that: no software provider does.
    pub(super) registers_all: bool,
    /// See [`IDLE_MAX`].
    pub(super) idle_peers_max: usize,
}

impl Default for Setup {
    fn default() -> Self {
        Self { registers_all: false, idle_peers_max: IDLE_MAX }
    }
}

/// The descriptors that a sleeper waits on: libfabric's, and a bell of our own.
struct Wait {
    epoll: OwnedFd,
    bell: OwnedFd,
}

/// How the bell is called, should it be lost.
const BELL_NAME: &str = "the eventfd that wakes the progress of an ofi endpoint";

impl Wait {
    fn new(ep: &Ep) -> Result<Option<Self>, Error> {
        let Some(fd) = ep.wait_fd() else { return Ok(None) };
        let failed = |what: &str, errno| Error::io(format!("cannot create {what}"), errno);
        let bell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| failed("an eventfd", errno))?;
        let set = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|errno| failed("an epoll set", errno))?;
        for fd in [fd, bell.as_fd()] {
            let data = epoll::EventData::new_u64(0);
            epoll::add(&set, fd, data, epoll::EventFlags::IN)
                .map_err(|errno| failed("an epoll set of libfabric's wait descriptor", errno))?;
        }
        Ok(Some(Self { epoll: set, bell }))
    }

    fn ring(&self) {
        lost::ring(&self.bell, BELL_NAME);
    }

    fn silence(&self) {
        lost::silence(&self.bell, BELL_NAME);
    }
}

impl OfiEndpoint {
    /// Opens an endpoint through the library that `library` returns, which is called once it is
    /// needed.
    pub(super) fn open_through(
        uri: &Uri<'_>,
        options: &OpenOptions,
        setup: Setup,
        library: impl FnOnce() -> Result<&'static Library, Error>,
    ) -> Result<Self, Error> {
        let (provider, auth_key) = check(uri, options)?;
        let message_bytes_max = options.message_bytes_max;
        let library = library()?;
        let provider = provider.in_version(library.version());
        let mut info = find(library, provider, uri, options)?;
        info.set_class(options.traffic_class, provider.classes);
        let longest = info.ep_attr().max_msg_size;
        if message_bytes_max > longest {
            let name = provider.name;
            let reason =
                format!("{message_bytes_max} bytes; provider {name} takes up to {longest}");
            return Err(Error::BadOption { option: "message_bytes_max", reason });
        }
        let multi =
            provider.multi_recv(library.version()) && info.first().caps & raw::FI_MULTI_RECV != 0;
        let device = fabric::text(info.domain_attr().name);
        let hmem = options.request_mem_device && search::moves_device_memory(info.first());
        if options.request_mem_device && !hmem {
            let name = provider.name;
            tracing::info!(domain = device, "{name} moves no memory of GPUs by itself here");
        }
        let environment = |name: &str| std::env::var(name).ok();
        let auth_key = auth_key.map(|key| key.resolve(&device, environment)).transpose()?;
        if provider.keeps_registrations(environment) {
            told_kept(provider, &device);
        }
        let domain = Domain::open(library, info, auth_key.map(Box::from), options.traffic_class)?;
        let wait_fd = provider.wait_fd && !options.no_block;
        let ep = Ep::open(&domain, wait_fd, multi.then_some(message_bytes_max))?;
        let wait = Wait::new(&ep)?;
        let registers_all = setup.registers_all || domain.has_mr_mode(raw::FI_MR_LOCAL);
        let mut core = Core::new(CoreInit {
            ep,
            domain,
            provider,
            endpoint: Addr::unique_endpoint_id(),
            multi,
            registers_all,
            message_bytes_max,
            connect_timeout: options.connect_timeout,
            left_bytes_max: options.left_bytes_max,
            unread_answers: options.unread_answers_bounds()?,
            idle_peers_max: setup.idle_peers_max,
        })?;
        if let Err(error) = core.post_first_buffers() {
            core.close(&error);
            return Err(error);
        }
        Ok(Self {
            loopback: Loopback::default(),
            regions: options.regions.clone().unwrap_or_default(),
            gate: BiasedLock::new(VecDeque::new()),
            own: core.own.clone(),
            provider,
            limits: Limits {
                unexpected_bytes_max: core.bytes_max(Kind::Unexpected),
                expected_bytes_max: core.bytes_max(Kind::Expected),
            },
            idle_receives_max: core.idle_receives_max,
            bulk_path: format!(
                "libfabric {}, provider {}{}",
                library.version(),
                provider.name,
                if hmem { ", also of GPUs (FI_HMEM)" } else { "" }
            ),
            hmem,
            wait,
            process: Process::current(),
            core: BiasedLock::new(core),
        })
    }

    /// The core, unless it is closed.
    fn open_core(&self) -> Result<BiasedGuard<'_, Core>, Error> {
        let core = self.core.lock();
        match core.ep {
            Some(_) if !self.process.is_other() => Ok(core),
            _ => Err(Error::Closed),
        }
    }

    /// Leaves the core: wakes a sleeper, and drops what may run the code of others.
    fn leave(&self, mut core: BiasedGuard<'_, Core>) {
        let memories = core.take_memories();
        // Once: until the sleeper runs, there may be thousands of operations. Under the lock, so
        // that whoever finds that it was rung can silence it.
        if core.sleeping
            && !std::mem::replace(&mut core.rung, true)
            && let Some(wait) = &self.wait
        {
            wait.ring();
        }
        drop(core);
        drop(memories);
    }

    /// How often the bell was rung since it was last looked at.
    #[cfg(test)]
    pub(super) fn rings(&self) -> u64 {
        let mut count = [0; 8];
        let bell = self.wait.as_ref().map(|wait| &wait.bell);
        let read = bell.map(|bell| rustix::io::read(bell, &mut count));
        read.filter(Result::is_ok).map_or(0, |_| u64::from_ne_bytes(count))
    }

    /// Bytes of messages that it keeps for receives to come.
    #[cfg(test)]
    pub(super) fn early_bytes(&self) -> usize {
        self.core.lock().matcher.early_bytes()
    }

    /// How often it has looked through all operations for one, and whether it has a table now.
    #[cfg(test)]
    pub(super) fn lookups(&self) -> (usize, bool) {
        let lookup = &self.core.lock().slots.lookup;
        (lookup.tables(), lookup.is_there())
    }

    fn is_own(&self, addr: &Addr) -> bool {
        *addr == self.own
    }

    fn send(&self, kind: Kind, op: OpId, to: &Addr, tag: Tag, buf: MsgBuf) -> Result<(), Refused> {
        let len = buf.len();
        let may = self.open_core().and_then(|core| {
            core.peer_of(to)?;
            match core.bytes_max(kind) {
                max if len > max => Err(Error::TooLong { len, max }),
                _ => Ok(core),
            }
        });
        self.begin(may, buf, |core, buf| {
            if self.is_own(to) {
                return self.loopback.send(Queued { op, kind, tag, buf });
            }
            core.send(op, kind, to, tag, buf);
            Ok(())
        })
    }

    /// Begins an operation with the core, if it may begin; else the buffer goes back.
    fn begin(
        &self,
        may: Result<BiasedGuard<'_, Core>, Error>,
        buf: MsgBuf,
        work: impl FnOnce(&mut Core, MsgBuf) -> Result<(), Refused>,
    ) -> Result<(), Refused> {
        match may {
            Ok(mut core) => {
                work(&mut core, buf)?;
                self.leave(core);
                Ok(())
            }
            Err(error) => Err(Refused { error, buf }),
        }
    }

    fn send_now(&self, kind: Kind, to: &Addr, tag: Tag, message: &[u8]) -> bool {
        let Ok(mut core) = self.open_core() else { return false };
        // Who sends a request shall hear of it if that is lost, and there is nothing else to tell.
        let is_told = kind == Kind::Unexpected && self.provider.tells_lost;
        let may = !is_told && self.may_send_now(&core, kind, to, message.len());
        let sent = may && core.inject(kind, to, tag, message, None);
        if sent {
            self.leave(core);
        }
        sent
    }

    /// Returns whether a message of `len` bytes may be sent past all that waits.
    fn may_send_now(&self, core: &Core, kind: Kind, to: &Addr, len: usize) -> bool {
        core.peer_of(to).is_ok()
            && !self.is_own(to)
            && len <= core.bytes_max(kind)
            && !core.queues.contains_key(&to.peer_id())
    }

    fn check_recv(&self, kind: Kind, buf: &MsgBuf) -> Result<(), Error> {
        let needed = match kind {
            Kind::Unexpected => self.limits.unexpected_bytes_max,
            Kind::Expected => self.limits.expected_bytes_max,
        };
        buf.check_room(needed)
    }

    fn transfer(&self, op: OpId, with: &Addr, transfer: Transfer, put: bool) -> Result<(), Error> {
        let mut core = self.open_core()?;
        core.peer_of(with)?;
        RegionTable::check_transfer(&transfer, put)?;
        if self.is_own(with) {
            if transfer.local.elsewhere().is_some() {
                let reason = "memory of a device is not copied within an endpoint".to_owned();
                return Err(Error::InvalidArgument(reason));
            }
            let mut transfer = transfer;
            let Transfer { remote, .. } = &transfer;
            let described = remote.native.as_deref().unwrap_or_default();
            let (region, start) = core.registry.region_of(remote.key, described);
            transfer.remote.key = region;
            transfer.remote_offset =
                start.checked_add(transfer.remote_offset).ok_or_else(|| {
                    Error::InvalidArgument("the remote offset is beyond any memory".into())
                })?;
            self.loopback.start(op, put, transfer)?;
        } else {
            core.start_transfer(op, put, with, transfer)?;
        }
        self.leave(core);
        Ok(())
    }

    /// Moves what goes on within the endpoint.
    fn run_within(&self, core: &mut Core) {
        if !self.loopback.is_busy() {
            return;
        }
        let (mut left, mut outcome) = (COPY_BYTES, Outcome::default());
        let own = core.own.clone();
        let matcher = &mut core.matcher;
        self.loopback.run(&own, || matcher, &self.regions, &mut left, &mut outcome);
        core.absorb(outcome);
    }

    /// Looks at everything once.
    fn progress(&self, core: &mut Core, budget: usize) -> Result<(), Error> {
        core.sleeping = false;
        if std::mem::take(&mut core.rung)
            && let Some(wait) = &self.wait
        {
            wait.silence();
        }
        self.run_within(core);
        // Before what comes next: there is room since a receive was posted.
        if core.unexpected.holds_any() {
            core.deliver_waiting();
        }
        // Not after it: what has arrived would wait for that. The others are still posted.
        if core.unexpected.has_idle() {
            core.repost_buffers();
        }
        let result = core.progress(budget);
        if let Err(error) = &result {
            let mut outcome = Outcome::default();
            self.loopback.fail_all(error, &mut outcome);
            core.absorb(outcome);
        }
        core.retry();
        result
    }
}

/// The device for an endpoint, as [`check`] has found the rest good.
pub(super) fn find(
    library: &'static Library,
    provider: &'static Provider,
    uri: &Uri<'_>,
    options: &OpenOptions,
) -> Result<Info, Error> {
    let own = Wanted::of(options)?;
    search::find(library, provider, uri, &own, &this_machine(), options.request_mem_device)
}

/// Taking back a key will not end access.
fn told_kept(provider: &Provider, device: &str) {
    tracing::warn!(
        domain = device,
        "{}: memory stays within reach of peers after its key was taken back, unless \
         FI_MR_CACHE_MAX_COUNT=0 or FI_MR_CACHE_MONITOR=disabled is in the environment",
        provider.name
    );
}

/// Checks the part of opening that needs neither the library nor the machine. Returns the provider,
/// and the authorisation in the form that it takes.
pub(super) fn check(
    uri: &Uri<'_>,
    options: &OpenOptions,
) -> Result<(&'static Provider, Option<AuthKey>), Error> {
    let provider = provider::named(uri.protocol).ok_or_else(|| {
        let known = provider::names();
        address::bad(uri.text, format!("there is no provider of that name; known are {known}"))
    })?;
    options.check_message_bytes("ofi", MESSAGE_BYTES_MIN, MESSAGE_BYTES_MAX)?;
    options.unread_answers_bounds()?;
    search::check(provider, uri, &Wanted::of(options)?)?;
    Ok((provider, auth_key(provider, options.auth_key.as_deref())?))
}

/// Reads the authorisation that a provider takes.
fn auth_key(provider: &Provider, text: Option<&str>) -> Result<Option<AuthKey>, Error> {
    let Some(text) = text else { return Ok(None) };
    match provider.format {
        Format::Cxi => AuthKey::parse(text).map(Some),
        _ => {
            let reason = format!("provider {} takes none; only cxi does", provider.name);
            Err(Error::BadOption { option: "auth_key", reason })
        }
    }
}

impl Endpoint for OfiEndpoint {
    fn transport(&self) -> &'static str {
        "ofi"
    }

    fn may_meet_mercury(&self) -> bool {
        true
    }

    fn asks_owners(&self) -> bool {
        false
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn idle_receives_max(&self) -> usize {
        self.idle_receives_max
    }

    fn self_addr(&self) -> Addr {
        self.own.clone()
    }

    fn lookup(&self, uri: &str) -> Result<Addr, Error> {
        let text = na_core::address::composed::part_for(uri, "ofi");
        let parsed = Uri::parse(text)?;
        let provider = provider::named(parsed.protocol)
            .filter(|_| na_core::Plugin::serves(&crate::Ofi, &parsed));
        if provider.is_none_or(|provider| provider.name != self.provider.name) {
            let name = self.provider.name;
            let reason = format!("this endpoint has addresses of the form `ofi+{name}://…`");
            return Err(address::bad(uri, reason));
        }
        let own = {
            let core = self.core.lock();
            if core.ep.is_none() {
                return Err(Error::Closed);
            }
            core.own_raw.clone()
        };
        // May block on name resolution, so without the lock.
        let raw = RawAddr::of_peer(self.provider, &parsed, &own)?;
        let mut core = self.open_core()?;
        let Core { peers, domain, .. } = &mut *core;
        peers.at(domain, &raw)
    }

    fn addr_to_bytes(&self, addr: &Addr) -> Result<Vec<u8>, Error> {
        let core = self.core.lock();
        Ok(core.peer_of(addr)?.raw.serialise(self.provider))
    }

    fn addr_from_bytes(&self, bytes: &[u8]) -> Result<Addr, Error> {
        let mut core = self.open_core()?;
        let Core { peers, domain, own_raw, .. } = &mut *core;
        if let Some(raw) = RawAddr::deserialise(self.provider, own_raw, bytes) {
            return peers.at(domain, &raw);
        }
        drop(core);
        self.lookup(Addr::text_in(bytes)?)
    }

    fn send_unexpected(&self, op: OpId, to: &Addr, tag: Tag, buf: MsgBuf) -> Result<(), Refused> {
        self.send(Kind::Unexpected, op, to, tag, buf)
    }

    fn send_unexpected_now(&self, to: &Addr, tag: Tag, message: &[u8]) -> bool {
        self.send_now(Kind::Unexpected, to, tag, message)
    }

    fn recv_unexpected(&self, op: OpId, buf: MsgBuf) -> Result<(), Refused> {
        let may = self.check_recv(Kind::Unexpected, &buf).and_then(|()| self.open_core());
        self.begin(may, buf, |core, buf| {
            let early = core.matcher.post_unexpected(op, buf);
            core.done.extend(early);
            Ok(())
        })
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
        let mut core = self.open_core()?;
        let early = core.matcher.post_many(op, count, buffers);
        core.done.extend(early);
        self.leave(core);
        Ok(())
    }

    fn send_expected(&self, op: OpId, to: &Addr, tag: Tag, buf: MsgBuf) -> Result<(), Refused> {
        self.send(Kind::Expected, op, to, tag, buf)
    }

    fn send_expected_now(&self, to: &Addr, tag: Tag, message: &[u8]) -> bool {
        self.send_now(Kind::Expected, to, tag, message)
    }

    fn recv_expected(&self, op: OpId, from: &Addr, tag: Tag, buf: MsgBuf) -> Result<(), Refused> {
        let may = self.check_recv(Kind::Expected, &buf).and_then(|()| {
            let core = self.open_core()?;
            core.peer_of(from)?;
            Ok(core)
        });
        self.begin(may, buf, |core, buf| {
            if self.is_own(from) {
                let early = core.matcher.post_expected(op, from, tag, buf);
                core.done.extend(early);
            } else {
                core.recv(op, from, tag, buf);
            }
            Ok(())
        })
    }

    /// Both under the lock, without which no end of the peer is noticed. The message goes first:
    /// the peer works on it while the receive is posted.
    fn call_now(&self, op: OpId, to: &Addr, tag: Tag, buf: MsgBuf) -> Result<(), MsgBuf> {
        if self.check_recv(Kind::Expected, &buf).is_err() {
            return Err(buf);
        }
        let Ok(mut core) = self.open_core() else { return Err(buf) };
        if !self.may_send_now(&core, Kind::Unexpected, to, buf.len()) {
            return Err(buf);
        }
        core.call(op, to, tag, buf)?;
        self.leave(core);
        Ok(())
    }

    fn register(&self, memory: Memory, access: Access) -> Result<LocalMem, Error> {
        let (registry, domain) = {
            let core = self.open_core()?;
            (core.registry.clone(), core.domain.clone())
        };
        let memory = self.regions.register(memory, access)?;
        let registered = registry.register(&domain, &memory)?;
        self.add(&registry, &domain, registered, &memory)?;
        Ok(memory)
    }

    fn moves_device_memory(&self) -> bool {
        self.hmem
    }

    unsafe fn register_device(
        &self,
        memory: &LocalMem,
        pieces: &DevicePieces,
    ) -> Result<(), Error> {
        if !self.hmem {
            let reason = format!("provider {} moves no memory of devices here", self.provider.name);
            return Err(Error::Unavailable { transport: "ofi", reason });
        }
        let (registry, domain) = {
            let core = self.open_core()?;
            (core.registry.clone(), core.domain.clone())
        };
        // SAFETY: the caller's.
        let registered = unsafe { registry.register_device(&domain, memory, pieces) }?;
        self.add(&registry, &domain, registered, memory)
    }

    fn region_told_by(&self, bytes: &[u8]) -> Option<(u64, u64)> {
        let registry = self.core.lock().registry.clone();
        memory::first_key(bytes).map(|key| registry.region_of(key, bytes))
    }

    fn mem_to_bytes(&self, memory: &LocalMem) -> Vec<u8> {
        let registry = self.core.lock().registry.clone();
        registry.with(memory.key(), Registered::describe).unwrap_or_default()
    }

    fn mem_parts(&self, memory: &LocalMem) -> Option<Vec<MemPart>> {
        let registry = self.core.lock().registry.clone();
        let part = |(base, len, handle)| MemPart { base, len, handle };
        registry.with(memory.key(), |registered| registered.handles().map(part).collect())
    }

    fn mem_from_bytes(&self, bytes: &[u8]) -> Result<RemoteMem, Error> {
        memory::remote(bytes).ok_or_else(|| {
            Error::InvalidArgument(format!("{} bytes do not describe memory", bytes.len()))
        })
    }

    fn put(&self, op: OpId, to: &Addr, transfer: Transfer) -> Result<(), Error> {
        self.transfer(op, to, transfer, true)
    }

    fn get(&self, op: OpId, from: &Addr, transfer: Transfer) -> Result<(), Error> {
        self.transfer(op, from, transfer, false)
    }

    fn cancel(&self, op: OpId) {
        let Ok(mut core) = self.open_core() else { return };
        let mut outcome = Outcome::default();
        if !self.loopback.cancel(op, &mut outcome) {
            core.cancel(op);
        }
        core.absorb(outcome);
        self.leave(core);
    }

    fn poll(&self, budget: usize, sink: &mut dyn FnMut(Completion)) -> Result<usize, Error> {
        if self.process.is_other() {
            return Ok(0);
        }
        let mut gate = self.gate.lock();
        let mut result = Ok(());
        if gate.is_empty() {
            let mut core = self.core.lock();
            result = self.progress(&mut core, budget);
            std::mem::swap(&mut *gate, &mut core.done);
            let memories = core.take_memories();
            drop(core);
            drop(memories);
        }
        let mut reported = 0;
        while reported < budget
            && let Some(completion) = gate.pop_front()
        {
            reported += 1;
            sink(completion);
        }
        result.map(|()| reported)
    }

    fn prepare_wait(&self) -> bool {
        let gate = self.gate.lock();
        let mut core = self.core.lock();
        // What waits for room is tried again by polls, and given up by one when it has waited too
        // long; no descriptor tells when. Without one there
        // is no sleep at all, and nothing to ask libfabric, which need not survive the question.
        let idle = self.wait.is_some()
            && gate.is_empty()
            && core.done.is_empty()
            && core.queues.is_empty()
            && core.recvs.is_empty()
            && core.unexpected.may_sleep()
            && !self.loopback.is_due()
            && core.ep.as_ref().is_none_or(Ep::may_wait);
        core.sleeping = idle;
        idle
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.wait.as_ref().map(|wait| wait.epoll.as_fd())
    }

    fn close(&self) {
        if self.process.is_other() {
            return;
        }
        let mut core = self.core.lock();
        let mut outcome = Outcome::default();
        self.loopback.fail_all(&Error::Closed, &mut outcome);
        core.close(&Error::Closed);
        core.absorb(outcome);
        self.leave(core);
    }

    fn served(&self) -> u64 {
        self.regions.served()
    }

    fn stats(&self) -> EndpointStats {
        let core = self.core.lock();
        let mut peers: Vec<_> = core
            .peers
            .all()
            .filter(|addr| !self.is_own(addr))
            .map(|addr| (addr.peer_id(), self.peer_stats(&core, addr)))
            .collect();
        let awaited: Vec<_> = core.awaited().collect();
        drop(core);
        stats::assign(&mut peers, awaited);
        let peers = peers.into_iter().map(|(_, stats)| stats).collect();
        EndpointStats::new(self.regions.totals(), peers)
    }

    fn bulk_path(&self) -> String {
        self.bulk_path.clone()
    }
}

impl OfiEndpoint {
    /// Keeps a registration, which is bound to the endpoint where it has to be.
    fn add(
        &self,
        registry: &Registry,
        domain: &Arc<Domain>,
        registered: Registered,
        memory: &LocalMem,
    ) -> Result<(), Error> {
        if !domain.has_mr_mode(raw::FI_MR_ENDPOINT) {
            return registry.add(domain, None, registered, memory);
        }
        // The endpoint is not closed meanwhile.
        let core = self.core.lock();
        registry.add(domain, core.ep.as_ref(), registered, memory)
    }

    fn peer_stats(&self, core: &Core, addr: &Addr) -> PeerStats {
        let reached = addr.state::<Peer>().is_some_and(Peer::was_reached);
        let link = match (reached, core.queues.contains_key(&addr.peer_id())) {
            (true, _) => PeerLink::Connected,
            (false, true) => PeerLink::Connecting,
            (false, false) => PeerLink::Idle,
        };
        PeerStats::new(addr.uri().to_owned(), "ofi", link)
    }
}

impl Drop for OfiEndpoint {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for OfiEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OfiEndpoint({})", self.own)
    }
}
