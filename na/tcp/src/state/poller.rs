//! State that the poll alone touches. Its work on that is in `poll.rs` and the files beside it.

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::time::{TimerfdClockId, TimerfdFlags};

use crate::peers::{Conns, Peer};
use crate::stream::frame_reader::Buffers;
use crate::system::lack::Lack;
use crate::system::leaving::Leaving;
use na_core::base::cheap::IntBuildHasher;
use na_core::base::ran::RunClock;
use na_core::{Completion, Error, LocalMem};
use prim::sync::Arc;

/// Keys of the descriptors that are not connections.
pub(crate) const LISTENER: u64 = u64::MAX;
pub(crate) const BELL: u64 = u64::MAX - 1;
pub(crate) const TIMER: u64 = u64::MAX - 2;
/// Other endpoints of the group have handed something over.
pub(crate) const INBOX: u64 = u64::MAX - 3;

/// Handshakes of TLS have ended.
pub(crate) const DESK: u64 = u64::MAX - 4;

/// How the timer is called, should it be lost.
pub(crate) const TIMER_NAME: &str = "the timer of a tcp endpoint";

/// The events that a connection is registered for in the epoll set.
pub(crate) const EVENTS: EventFlags =
    EventFlags::IN.union(EventFlags::OUT).union(EventFlags::RDHUP).union(EventFlags::ET);

/// When to tick.
#[derive(Debug, Default)]
pub(crate) struct Ticks {
    pub(crate) every: Option<Duration>,
    pub(crate) ran: Option<RunClock>,
    pub(crate) next: Option<Instant>,
}

/// A peer to be dialed again.
pub(crate) struct Redial {
    pub(crate) peer: Arc<Peer>,
    pub(crate) at: Instant,
    pub(crate) pause: Duration,
    pub(crate) deadline: Instant,
}

/// The connections that are not read for what their peers do not read.
#[derive(Default)]
pub(crate) struct Unread {
    /// Connections that are paused, by the number of the peer.
    pub(crate) paused: HashMap<u64, u64, IntBuildHasher>,
    /// Peers that were given up so far.
    pub(crate) given_up: u64,
    pub(crate) trimmed_at: Option<Instant>,
    /// When memory is to be given back to the system.
    pub(crate) trim_at: Option<Instant>,
}

/// The state that the poll alone touches, behind its lock.
pub(crate) struct Poller {
    pub(crate) epoll: Arc<OwnedFd>,
    pub(crate) timer: OwnedFd,
    /// When the timer fires.
    pub(crate) timer_at: Option<Instant>,
    /// It has fired: limits are looked at when this poll has read what there is.
    pub(crate) timer_fired: bool,
    pub(crate) listener: Option<OwnedFd>,
    /// Handshakes of TLS may have ended.
    pub(crate) desk_ready: bool,
    /// Callers that were refused in a handshake so far.
    pub(crate) unbelieved: u64,
    /// There may be connections to accept, from the listener or from other endpoints.
    pub(crate) accept_ready: bool,
    pub(crate) lack: Lack,
    /// After accepting has failed: when to try again.
    pub(crate) accept_again_at: Option<Instant>,
    pub(crate) conns: Conns,
    /// Connections to look at, in this order.
    pub(crate) queue: VecDeque<u64>,
    pub(crate) hot: Vec<u64>,
    pub(crate) paused: Vec<u64>,
    pub(crate) unread: Unread,
    pub(crate) leaving: Leaving,
    /// Accepted connections without a hello, oldest first; may name some that have gone on.
    pub(crate) half_open: VecDeque<u64>,
    pub(crate) ticks: Ticks,
    pub(crate) redials: Vec<Redial>,
    /// Peers to which sending failed.
    pub(crate) broken: Vec<Arc<Peer>>,
    pub(crate) polls: u32,
    /// Polls since the last sleep was prepared.
    pub(crate) polls_awake: u32,
    /// For the connections that read.
    pub(crate) buffers: Buffers,
    /// Completions to report.
    pub(crate) batch: VecDeque<Completion>,
    /// Memory to drop once the lock is released.
    pub(crate) memories: Vec<LocalMem>,
    pub(crate) mail: Vec<Arc<Peer>>,
}

/// Has the polls with that epoll set see the bell of their endpoint's inbox.
pub(crate) fn watch_inbox(epoll: &OwnedFd, bell: &OwnedFd) -> Result<(), Error> {
    epoll::add(epoll, bell, EventData::new_u64(INBOX), EventFlags::IN)
        .map_err(|errno| Error::io("cannot watch a descriptor", errno))
}

impl Poller {
    /// A poller that listens on `listener`, woken by `bell`, by `inbox` if it has a group, and by
    /// `desk` if it has handshakes of TLS made.
    pub(crate) fn new(
        listener: Option<OwnedFd>,
        bell: &OwnedFd,
        inbox: Option<&OwnedFd>,
        desk: Option<&OwnedFd>,
        message_bytes_max: usize,
    ) -> Result<Self, Error> {
        let failed = |what| move |errno| Error::io(what, errno);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(failed("cannot create an epoll instance"))?;
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)
            .map_err(failed("cannot create a timerfd"))?;
        let watch = |fd: &OwnedFd, key| {
            epoll::add(&epoll, fd, EventData::new_u64(key), EventFlags::IN)
                .map_err(failed("cannot watch a descriptor"))
        };
        watch(bell, BELL)?;
        watch(&timer, TIMER)?;
        if let Some(desk) = desk {
            watch(desk, DESK)?;
        }
        if let Some(inbox) = inbox {
            watch_inbox(&epoll, inbox)?;
        }
        let mut this = Self {
            epoll: Arc::new(epoll),
            timer,
            timer_at: None,
            timer_fired: false,
            listener: None,
            desk_ready: false,
            unbelieved: 0,
            accept_ready: false,
            lack: Lack::default(),
            accept_again_at: None,
            conns: Conns::default(),
            queue: VecDeque::new(),
            hot: Vec::new(),
            paused: Vec::new(),
            unread: Unread::default(),
            leaving: Leaving::default(),
            half_open: VecDeque::new(),
            ticks: Ticks::default(),
            redials: Vec::new(),
            broken: Vec::new(),
            polls: 0,
            polls_awake: 0,
            buffers: Buffers::new(message_bytes_max),
            batch: VecDeque::new(),
            memories: Vec::new(),
            mail: Vec::new(),
        };
        if let Some(listener) = listener {
            this.listen(listener).map_err(failed("cannot watch a descriptor"))?;
        }
        Ok(this)
    }

    /// Accepts what comes to `listener` from now on.
    pub(crate) fn listen(&mut self, listener: OwnedFd) -> rustix::io::Result<()> {
        let flags = EventFlags::IN | EventFlags::ET;
        epoll::add(&self.epoll, &listener, EventData::new_u64(LISTENER), flags)?;
        self.lack = Lack::prepared();
        self.listener = Some(listener);
        Ok(())
    }
}
