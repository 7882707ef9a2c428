//! Opening endpoints.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::time::{TimerfdClockId, TimerfdFlags};

use crate::address::{self, Name};
use crate::link::accepted::AcceptedPeers;
use crate::link::group::{Group, PeerName};
use crate::link::listener::Listener;
use crate::link::{RING_BYTES, capacity_for, total_bytes};
use crate::peers::{Peer, PeerPart, PeerTable, Reach};
use crate::state::SmEndpoint;
use crate::state::{INBOX, LISTENER, PollState, TIMER, WAKE};
use crate::transfer::cma::{self, Nonce};
use crate::wake::board::OwnBoard;
use crate::wake::ready::Ready;
use crate::wake::reports::Reports;
use na_core::base::ran;
use na_core::group::check_shards;
use na_core::loopback::Loopback;
use na_core::matching::Matcher;
use na_core::{Addr, Endpoint, Error, OpenOptions, PeerUsers, Plugin, Uri};
use prim::fork::Process;
use prim::lock::BiasedLock;
use prim::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use prim::sync::{Arc, Mutex, lock};

/// Bytes of early messages that are held per peer before its ring backs up.
const EARLY_BYTES_MAX: usize = 256 << 10;

/// Largest message that can be configured, bytes.
pub(crate) const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// The plugin.
///
/// ```
/// use na_core::{OpenOptions, Plugin, Uri};
/// use na_sm::Sm;
///
/// let endpoint = Sm.open(&Uri::parse(Sm.probe_uri())?, &OpenOptions::listening(true))?;
/// assert!(endpoint.self_addr().uri().starts_with("na+sm://"));
/// println!("bulk data: {}", endpoint.bulk_path());
/// # Ok::<(), na_core::Error>(())
/// ```
#[derive(Debug)]
pub struct Sm;

impl Plugin for Sm {
    fn name(&self) -> &'static str {
        "sm"
    }

    fn summary(&self) -> &'static str {
        "shared memory between processes of one host"
    }

    fn probe_uri(&self) -> &'static str {
        "na+sm://"
    }

    fn check(&self, uri: &Uri<'_>, options: &OpenOptions) -> Result<(), Error> {
        // Whose name it is depends on who opens it.
        Name::of(uri, address::own_uid())?;
        options.check_message_bytes(self.name(), 1, MESSAGE_BYTES_MAX)?;
        options.sm.check()
    }

    fn open(&self, uri: &Uri<'_>, options: &OpenOptions) -> Result<Arc<dyn Endpoint>, Error> {
        let mut one = self.open_group(uri, options, 1)?;
        one.pop().ok_or(Error::Closed)
    }

    fn open_group(
        &self,
        uri: &Uri<'_>,
        options: &OpenOptions,
        shards: usize,
    ) -> Result<Vec<Arc<dyn Endpoint>>, Error> {
        self.check(uri, options)?;
        check_shards(shards)?;
        let group = open_group(uri, options, shards)?;
        Ok(group.into_iter().map(|shard| shard as Arc<dyn Endpoint>).collect())
    }
}

/// The name to open as; a made-up one if the address says none.
fn own_name(uri: &Uri<'_>) -> Result<Name, Error> {
    let uid = address::own_uid();
    let mut name = Name::of(uri, uid)?;
    if name.uid != uid {
        let reason =
            format!("it is a name of user {}, and this process belongs to {uid}", name.uid);
        return Err(Error::BadUri { uri: uri.text.to_owned(), reason });
    }
    if name.name.is_empty() {
        name.name = address::fresh_name()?;
    }
    Ok(name)
}

/// Returns a conversion for errors of the system that occur while `what` is done.
fn failed(what: &str) -> impl Fn(Errno) -> Error + '_ {
    move |errno| {
        let advice = match errno {
            Errno::MFILE => " (raise the limit on descriptors: ulimit -n)",
            _ => "",
        };
        Error::io(format!("cannot {what}{advice}"), errno)
    }
}

/// Opens an endpoint alone.
#[cfg(test)]
pub(crate) fn open(uri: &Uri<'_>, options: &OpenOptions) -> Result<Arc<SmEndpoint>, Error> {
    Ok(open_group(uri, options, 1)?.remove(0))
}

/// Opens the endpoints of a group. The first one listens, if one is to.
pub(crate) fn open_group(
    uri: &Uri<'_>,
    options: &OpenOptions,
    shards: usize,
) -> Result<Vec<Arc<SmEndpoint>>, Error> {
    let name = own_name(uri)?;
    let mut options = options.clone();
    options.liveness_limit = ran::limit(options.liveness_limit);
    if shards > 1 {
        options.regions.get_or_insert_default();
    }
    let ring_bytes = capacity_for(options.message_bytes_max).max(*RING_BYTES.start());
    let crowd = AcceptedPeers::new(&options.sm, total_bytes(ring_bytes));
    let group = Group::new(shards, crowd)?;
    let mut listener = match options.listen {
        true => Some(Listener::open(&name, &group.closer)?),
        false => None,
    };
    let mut opened = Vec::with_capacity(shards);
    for shard in 0..shards {
        let part = (group.clone(), shard);
        match open_shard(&name, &options, ring_bytes, listener.take(), part) {
            Ok(endpoint) => opened.push(endpoint),
            Err(error) => {
                // Nothing is left to those that there will not be.
                (shard..shards).for_each(|missing| drop(group.close(missing)));
                return Err(error);
            }
        }
    }
    Ok(opened)
}

/// Opens the next endpoint of the group that `one` is of.
pub(crate) fn open_another(one: &SmEndpoint) -> Result<Arc<SmEndpoint>, Error> {
    if one.is_closed() {
        return Err(Error::Closed);
    }
    let group = &one.group;
    let _one_at_a_time = lock(&group.growing);
    let shard = group.count();
    check_shards(shard + 1)?;
    group.bells.add(|bell| {
        let token = epoll::EventData::new_u64(INBOX);
        epoll::add(&one.epoll, bell, token, epoll::EventFlags::IN)
            .map_err(failed("watch a descriptor in the endpoint's epoll set"))
    })?;
    let mut options = one.options.clone();
    options.regions = Some(one.regions.clone());
    let part = (group.clone(), shard);
    let opened = open_shard(&one.name, &options, one.ring_bytes, None, part);
    let grown = opened.and_then(|opened| group.grow().map(|_| opened));
    grown.inspect_err(|_| group.bells.keep(shard))
}

/// Opens the endpoint number `shard` of a group.
fn open_shard(
    name: &Name,
    options: &OpenOptions,
    ring_bytes: usize,
    listener: Option<Listener>,
    (group, shard): (Arc<Group>, usize),
) -> Result<Arc<SmEndpoint>, Error> {
    let nonce = Nonce::new()?;
    let attach = options.sm.cross_memory_attach && cma::works_here(&nonce);
    if attach {
        cma::permit();
    }
    let ready = Ready::new(!options.no_block)?;
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
        .map_err(failed("create the endpoint's epoll set"))?;
    let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
    let timer = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)
        .map_err(failed("create the endpoint's timerfd"))?;
    let watch = |fd: BorrowedFd<'_>, token| {
        let token = epoll::EventData::new_u64(token);
        epoll::add(&epoll, fd, token, epoll::EventFlags::IN)
            .map_err(failed("watch a descriptor in the endpoint's epoll set"))
    };
    watch(ready.event().as_fd(), WAKE)?;
    watch(timer.as_fd(), TIMER)?;
    if let Some(listener) = &listener {
        watch(listener.as_fd(), LISTENER)?;
    }
    if let Some(bell) = group.bells.get(shard) {
        watch(bell.as_fd(), INBOX)?;
    }
    let id = Addr::unique_endpoint_id();
    let uri = if options.peer_users == PeerUsers::Own { name.uri() } else { name.full_uri() };
    let identity = Some(group.identity(PeerName::Listening(name.clone())));
    let own = Peer::new(0, uri, Reach::Own, PeerPart { identity, ..PeerPart::default() });
    let board = OwnBoard::new()?;
    Ok(Arc::new_cyclic(|itself| SmEndpoint {
        itself: itself.clone(),
        id,
        name: name.clone(),
        own_addr: own.addr(id),
        ring_bytes,
        attach,
        nonce,
        regions: options.regions.clone().unwrap_or_default(),
        board,
        matcher: BiasedLock::new(
            Matcher::new(EARLY_BYTES_MAX, options.left_bytes_max)
                .of_all_at_most(options.early_bytes_max),
        ),
        options: options.clone(),
        ready,
        reports: Reports::new(),
        loopback: Loopback::default(),
        peers: Mutex::new(PeerTable::default()),
        epoll,
        timer,
        next_token: AtomicU64::new(crate::state::FIRST_TOKEN),
        opened: Mutex::new(Vec::new()),
        has_opened: AtomicBool::new(false),
        kept: Mutex::new(Vec::new()),
        canceled: Mutex::default(),
        poll: BiasedLock::new(PollState::new(listener)),
        group,
        shard,
        closed: AtomicBool::new(false),
        process: Process::current(),
        has_met_mercury: AtomicBool::new(false),
        attached: AtomicUsize::new(0),
        unattached: AtomicUsize::new(0),
    }))
}
