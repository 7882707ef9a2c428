//! Opening an endpoint.

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::time::{TimerfdClockId, TimerfdFlags};

use crate::address::{self, Name};
use crate::link::accepted::AcceptedPeers;
use crate::link::socket;
use crate::link::{RING_BYTES, capacity_for, total_bytes};
use crate::peers::{Peer, PeerTable, Reach};
use crate::state::SmEndpoint;
use crate::state::{LISTENER, PollState, TIMER, WAKE};
use crate::transfer::cma::{self, Nonce};
use crate::wake::board::OwnBoard;
use crate::wake::ready::Ready;
use crate::wake::reports::Reports;
use na_core::base::ran;
use na_core::loopback::Loopback;
use na_core::matching::Matcher;
use na_core::{Addr, Endpoint, Error, OpenOptions, PeerUsers, Plugin, Uri};
use prim::fork::Process;
use prim::lock::BiasedLock;
use prim::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use prim::sync::{Arc, Mutex};

/// Bytes of early messages that are held per peer before its ring backs up.
const EARLY_BYTES_MAX: usize = 256 << 10;

/// Largest message that can be configured, bytes.
pub(crate) const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// The plugin.
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
        self.check(uri, options)?;
        Ok(open(uri, options)?)
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

pub(crate) fn open(uri: &Uri<'_>, options: &OpenOptions) -> Result<Arc<SmEndpoint>, Error> {
    let name = own_name(uri)?;
    let nonce = Nonce::new()?;
    let attach = options.sm.cross_memory_attach && cma::works_here(&nonce);
    if attach {
        cma::permit();
    }
    let listener = match options.listen {
        true => Some(socket::listen(&name)?),
        false => None,
    };
    let mut options = options.clone();
    options.liveness_limit = ran::limit(options.liveness_limit);
    let ready = Ready::new(!options.no_block)?;
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
        .map_err(failed("create the endpoint's epoll set"))?;
    let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
    let timer = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)
        .map_err(failed("create the endpoint's timerfd"))?;
    let watch = |fd, token| {
        let token = epoll::EventData::new_u64(token);
        epoll::add(&epoll, fd, token, epoll::EventFlags::IN)
            .map_err(failed("watch a descriptor in the endpoint's epoll set"))
    };
    watch(ready.event(), WAKE)?;
    watch(&timer, TIMER)?;
    if let Some(listener) = &listener {
        watch(listener, LISTENER)?;
    }
    let id = Addr::unique_endpoint_id();
    let uri = if options.peer_users == PeerUsers::Own { name.uri() } else { name.full_uri() };
    let own = Peer::new(0, uri, Reach::Own);
    let board = OwnBoard::new()?;
    let ring_bytes = capacity_for(options.message_bytes_max).max(*RING_BYTES.start());
    let crowd = AcceptedPeers::new(&options.sm, total_bytes(ring_bytes));
    Ok(Arc::new_cyclic(|itself| SmEndpoint {
        itself: itself.clone(),
        id,
        name,
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
        options,
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
        poll: BiasedLock::new(PollState::new(listener, crowd)),
        closer: Arc::default(),
        closed: AtomicBool::new(false),
        process: Process::current(),
        attached: AtomicUsize::new(0),
        unattached: AtomicUsize::new(0),
    }))
}
