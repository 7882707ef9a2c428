//! The RPC core: the rules that all operations have in common.
//!
//! # Who may call what
//!
//! Everything that starts, answers or cancels may be called from any thread. [`Core::progress`],
//! [`Core::trigger`] and [`Core::prepare_wait`] have one caller, the progress ULT, because the
//! order of events is that of its calls.
//!
//! | state | touched by | under |
//! |---|---|---|
//! | `State` (operations, events, tags, receives) | everybody, briefly | `Core::state` |
//! | `Releases` (answers that are over) | who answers, in a cell of its thread | see `releases.rs` |
//! | `arrived` (completions not acted on) | progress, trigger | `Core::arrived` |
//! | the registry | registrations; shards keep a copy | see `registry.rs` |
//! | builds of peers | calls, and answers to what they ask | their own lock, see `builds.rs` |
//! | sessions with members | requests that prove something | see `members.rs` |
//! | own sessions with members | calls | their own lock, see `own_sessions.rs` |
//! | message buffers | everybody | see `buffers.rs` |
//! | the endpoint | everybody | never under `Core::state` |
//!
//! `Core::state` is the lock that a call pays for: it is taken once to start a call and once for
//! its end, and once for a request that arrives. Its answer takes it only if the transport does not
//! send that at once.
//!
//! # Shards
//!
//! A [`Core`] is one *shard*, on an endpoint of its own. [`Core::group`] makes several of them, on
//! a group of endpoints behind one address, which run in parallel, each driven by one thread at a
//! time. A shard serves the connections of its endpoint: requests are handed up by the shard where
//! they arrive, and a response comes to the shard that called. What shards share is in `class.rs`,
//! and a call that stays on its shard writes none of it.
//!
//! Shards meet where a thread of one cancels an operation of another, answers a call to ourselves
//! that another has made, or names the shard that is to handle such a call. What is queued for a
//! shard then is followed by a call of its [waker](Core::set_waker).
//!
//! # The parts of an operation
//!
//! | operation | network operations |
//! |---|---|
//! | call | send, receive of the response; get of the result if that overflowed |
//! | one-way call | send; receive of an acknowledgement if the request overflowed |
//! | answer | send; receive of an acknowledgement if the response overflowed |
//! | arrived request | get of the arguments if they overflowed |
//! | bulk transfer | puts or gets, several at a time |
//! | call to ourselves | none |
//!
//! An operation counts its parts before it starts them, so a part that ends at once in another
//! thread finds the right count. Its token goes back when its outcome is known; its slot, and the
//! memory that it exposes, go when no part is in flight any more.
//!
//! # Shutdown
//!
//! [`Core::close`] closes the endpoint, which ends every part with an error, and ends the calls to
//! ourselves, which have none. Nothing starts afterwards. [`Core::in_flight`] is zero when all
//! tokens have gone back through `trigger`.

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use na::{Addr, Completion, Endpoint, LargeBuffers, Limits};
use prim::lock::{BiasedGuard, BiasedLock};
use prim::sync::lock;

use crate::base::counters::Counts;
use crate::base::log::log;
use crate::core::class::Class;
use crate::core::own_sessions::OwnSessions;
use crate::core::receives::Receives;
use crate::core::releases::Releases;
use crate::core::state::State;
use crate::memory::Buffers;
use crate::ops::{Event, SHARDS_MAX, Space};
use crate::proc::WriterLimits;
use crate::wire::extension::USUAL_BYTES_MAX;
use crate::wire::format::Accept;
use crate::{Counters, Format, HgError, HgOptions, InHand, OpRef, ProcLimits};

/// The RPC core on one endpoint: alone, or one shard of a group. `T` is what callers give an
/// operation and get back at its end.
///
/// ```
/// # use hg::*;
/// # #[derive(Default)]
/// # struct Notes { requests: Vec<RequestHandle<u32>>, ended: Vec<Result<Response, HgError>> }
/// # impl Sink<u32> for Notes {
/// #     fn request(&mut self, request: RequestHandle<u32>) { self.requests.push(request); }
/// #     fn response(&mut self, _: u32, end: Result<Response, HgError>) { self.ended.push(end); }
/// #     fn responded(&mut self, _: u32, _: Result<(), HgError>) {}
/// #     fn bulk(&mut self, _: u32, _: Result<u64, HgError>) {}
/// # }
/// # let mut notes = Notes::default();
/// # let endpoint = na::open("na+sim://doc-core/a", &na::OpenOptions::listening(true))?;
/// # let core = Core::<u32>::new(endpoint, HgOptions::default())?;
/// # let own = core.self_addr();
/// let id = core.register(Registration::margo("sum", ProviderId::DEFAULT))?;
/// core.forward(&own, id, ForwardOptions::default(), |out| out.put(b"1 2"), 7)
///     .map_err(|refused| refused.0)?;
/// while notes.ended.is_empty() {
///     core.poll(16, &mut notes)?;
///     for request in notes.requests.drain(..) {
///         assert_eq!(request.payload(), b"1 2");
///         let _sent = request.respond(|out| out.put(b"3"), 8).map_err(|refused| refused.0)?;
///     }
/// }
/// assert_eq!(notes.ended.remove(0)?.payload(), b"3");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Counterpart: `hg_class_t` and `hg_context_t`. There is no need for `HG_Create`, `HG_Reset` and
/// `HG_Destroy` of a handle: a call owns nothing that outlives it, its slot, tag and buffers are
/// reused by themselves, and starting one allocates nothing.
#[derive(Debug)]
pub struct Core<T> {
    pub(crate) endpoint: Arc<dyn Endpoint>,
    pub(crate) self_addr: Addr,
    pub(crate) limits: Limits,
    pub(crate) options: HgOptions,
    /// How requests are read, and in which format messages are written; `options` say so.
    pub(crate) accept: Accept,
    /// Peers that may be C programs are asked for their build.
    pub(crate) may_ask: bool,
    pub(crate) buffers: Arc<Buffers>,
    /// Where requests are received; `None`: into buffers of their own. Those of this shard.
    pub(crate) large: Option<LargeBuffers>,
    pub(crate) class: Arc<Class<T>>,
    /// Sessions with the targets of this shard.
    pub(crate) own_sessions: OwnSessions,
    pub(crate) id: u8,
    pub(crate) space: Space,
    /// How a thread of another shard wakes the one that drives this.
    waker: OnceLock<Waker>,
    state: BiasedLock<State<T>>,
    /// `State::events` is not empty; to look at without the lock. Only a hint: a thread that queues
    /// an event for a sleeping progress ULT wakes it, and `prepare_wait` looks under the lock.
    pub(crate) has_events: AtomicBool,
    /// Completions that `progress` collected.
    pub(crate) arrived: Mutex<VecDeque<Completion>>,
    /// `arrived` is not empty; written under its lock, and as much of a hint.
    pub(crate) has_arrived: AtomicBool,
    /// Requests that are done with, by thread; `None`: they are counted in `state` alone.
    pub(crate) releases: Option<Releases>,
    pub(crate) counts: Counts,
}

/// The call that wakes the thread which drives a shard.
struct Waker(Box<dyn Fn() + Send + Sync>);

impl fmt::Debug for Waker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Waker")
    }
}

impl<T> Core<T> {
    /// Starts the RPC core on `endpoint`, and posts receives if it is to listen.
    ///
    /// # Errors
    ///
    /// [`HgError::Na`] when the endpoint refuses the receives, or carries messages too short for
    /// Mercury's headers; when checksums are asked for in a build without.
    pub fn new(endpoint: Arc<dyn Endpoint>, options: HgOptions) -> Result<Arc<Self>, HgError> {
        Ok(Self::group(vec![endpoint], options)?.remove(0))
    }

    /// Starts the RPC core on a group of endpoints behind one address
    /// ([`na::Plugin::open_group`]): a shard on each of them, in their order. They have one
    /// registry. Bounds about receives and requests ([`HgOptions::request_post_init`],
    /// [`HgOptions::request_post_incr`], [`HgOptions::requests_max`]) are for all of them
    /// together, and each has its part; bounds in bytes are those of all of them. Whoever lets go
    /// of one shard lets go of all: what a shard has in flight when its last clone is dropped ends
    /// unnoticed, so wait for [`in_flight`](Self::in_flight) to be zero before.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new), and [`HgError::Na`] for no endpoint and for more than 128.
    ///
    /// Counterpart: `HG_Context_create`, whose contexts share one endpoint.
    pub fn group(
        endpoints: Vec<Arc<dyn Endpoint>>,
        options: HgOptions,
    ) -> Result<Vec<Arc<Self>>, HgError> {
        if options.format().level() != options.checksum_level {
            return Err(invalid(
                "checksums take `build: Build::Checksum`: the headers of a plain build have no \
                 room for them"
                    .to_owned(),
            ));
        }
        let count = endpoints.len();
        let Some(first) = endpoints.first().filter(|_| count <= SHARDS_MAX) else {
            return Err(invalid(format!("{count} endpoints; 1 to {SHARDS_MAX} are possible")));
        };
        let options = options.of_one_shard(count);
        let class = Arc::new(Class::new(first.clone()));
        let make = |(id, endpoint): (usize, Arc<dyn Endpoint>)| {
            Self::make((id as u8, count), endpoint, options.clone(), class.clone()).map(Arc::new)
        };
        let shards: Vec<_> =
            endpoints.into_iter().enumerate().map(make).collect::<Result<_, _>>()?;
        shards.iter().for_each(|shard| class.introduce(shard));
        shards.iter().try_for_each(|shard| shard.begin_to_receive())?;
        Ok(shards)
    }

    /// Adds a shard on one more endpoint of the group ([`Endpoint::open_another`]), with the next
    /// number. It has the same registry, and as large a part of each bound as the shards have that
    /// were made first.
    ///
    /// # Errors
    ///
    /// As [`group`](Self::group). The endpoint is closed then.
    pub fn add_shard(&self, endpoint: Arc<dyn Endpoint>) -> Result<Arc<Self>, HgError> {
        let class = &self.class;
        let _one_at_a_time = lock(&class.growing);
        let id = class.count();
        let make = || {
            if id >= SHARDS_MAX {
                return Err(invalid(format!("one more endpoint than the {SHARDS_MAX} possible")));
            }
            let part = (id as u8, id + 1);
            let shard = Self::make(part, endpoint.clone(), self.options.clone(), class.clone())?;
            let shard = Arc::new(shard);
            shard.begin_to_receive()?;
            class.introduce(&shard);
            Ok(shard)
        };
        make().inspect_err(|_| endpoint.close())
    }

    /// Posts the first receives, if it is to listen.
    fn begin_to_receive(&self) -> Result<(), HgError> {
        if !self.options.listen {
            return Ok(());
        }
        let first = self.state().receives.first();
        self.has_memory_for(&first)?;
        self.post_receives(first)
    }

    fn make(
        (id, shards): (u8, usize),
        endpoint: Arc<dyn Endpoint>,
        options: HgOptions,
        class: Arc<Class<T>>,
    ) -> Result<Self, HgError> {
        let limits = endpoint.limits();
        let least = limits.unexpected_bytes_max.min(limits.expected_bytes_max);
        if least < MESSAGE_BYTES_MIN {
            return Err(invalid(format!(
                "messages of at most {least} bytes are too short: headers and the description of \
                 an overflow take {MESSAGE_BYTES_MIN}"
            )));
        }
        let (first, more) = (options.request_post_init, options.request_post_incr);
        let large = Some(options.large_buffers(limits.unexpected_bytes_max)?)
            .filter(|_| options.multi_recv && options.listen && endpoint.has_multi_recv());
        let receives = Receives::new(first, more, options.requests_max, large.is_some());
        let releases = receives.may_collect().then(Releases::new).flatten();
        let space = Space::new(id, shards);
        // Half is for watched origins.
        let given_up_max = (endpoint.idle_receives_max() / 2).clamp(1, GIVEN_UP_MAX);
        Ok(Self {
            self_addr: endpoint.self_addr(),
            limits,
            large,
            buffers: Buffers::new(endpoint.clone()),
            endpoint,
            may_ask: options.ask_build && options.format() == Format::default(),
            accept: options.accept(),
            options,
            class,
            own_sessions: OwnSessions::default(),
            id,
            space,
            waker: OnceLock::new(),
            state: BiasedLock::new(State::new((id, shards), given_up_max, space, receives)),
            has_events: AtomicBool::new(false),
            arrived: Mutex::new(VecDeque::new()),
            has_arrived: AtomicBool::new(false),
            releases,
            counts: Counts::default(),
        })
    }

    /// The number of this shard in its group. Counterpart: `HG_Context_get_id`.
    pub fn shard(&self) -> u8 {
        self.id
    }

    /// Sets what wakes the thread that drives this shard, should it sleep: called whenever a thread
    /// of another shard has queued something here. The first one stays. `wake` must neither panic
    /// nor wait, nor call this shard.
    pub fn set_waker(&self, wake: impl Fn() + Send + Sync + 'static) {
        let _ = self.waker.set(Waker(Box::new(wake)));
    }

    /// Something was queued for this shard by a thread of another one.
    pub(crate) fn wake(&self) {
        if let Some(Waker(wake)) = self.waker.get() {
            wake();
        }
    }

    /// Reads the files of secrets and certificates again if they have changed, as the next
    /// connection, or session with a member, would. The log says if they cannot be used.
    pub fn look_at_secrets(&self) {
        if let Some(membership) = &self.options.membership {
            membership.look(&self.options.log);
        }
        self.endpoint.look_at_secrets();
    }

    /// Runs `work` while the lock is held, as by another thread; for tests.
    #[doc(hidden)]
    pub fn while_locked<V>(&self, work: impl FnOnce() -> V) -> V {
        let _held = self.state();
        work()
    }

    #[inline]
    pub(crate) fn state(&self) -> BiasedGuard<'_, State<T>> {
        self.state.lock()
    }

    /// Queues what trigger is to deliver.
    pub(crate) fn queue(&self, state: &mut State<T>, event: Event<T>) {
        state.events.push_back(event);
        self.has_events.store(true, Ordering::Relaxed);
    }

    /// After a step of an operation within trigger: what is to be told to the sink now.
    #[inline]
    pub(crate) fn settle(
        &self,
        mut state: BiasedGuard<'_, State<T>>,
        op: OpRef,
    ) -> Option<Event<T>> {
        let (event, gone) = state.settle(op);
        if event.is_some() {
            state.tokens -= 1;
        }
        drop(state);
        drop(gone);
        event
    }

    /// After a step of an operation outside of trigger: what is to be told waits for it.
    pub(crate) fn settle_and_queue(&self, mut state: BiasedGuard<'_, State<T>>, op: OpRef) {
        let (event, gone) = state.settle(op);
        if let Some(event) = event {
            self.queue(&mut state, event);
        }
        drop(state);
        drop(gone);
    }

    /// The limits of an encoding into a message of at most `message_max` bytes.
    #[inline]
    pub(crate) fn writer_limits(&self, message_max: usize) -> WriterLimits {
        let bytes_max = match self.options.overflow {
            true => self.options.overflow_bytes_max,
            false => message_max.saturating_sub(self.accept.format.header_bytes()),
        };
        WriterLimits { bytes_max, bulk_eager: self.options.bulk_eager, proc: self.options.proc }
    }

    /// Bounds within which arguments and results are to be decoded; see
    /// [`proc::from_slice_within`](crate::proc::from_slice_within).
    pub fn proc_limits(&self) -> ProcLimits {
        self.options.proc
    }

    /// The endpoint underneath.
    pub fn endpoint(&self) -> &Arc<dyn Endpoint> {
        &self.endpoint
    }

    /// The number of the endpoint, which the addresses have that it makes.
    #[inline]
    pub fn endpoint_id(&self) -> u64 {
        self.self_addr.endpoint_id()
    }

    /// Our own address.
    pub fn self_addr(&self) -> Addr {
        self.self_addr.clone()
    }

    /// The peer of that name. Does not contact it.
    ///
    /// # Errors
    ///
    /// As [`Endpoint::lookup`].
    pub fn lookup(&self, uri: &str) -> Result<Addr, na::Error> {
        self.endpoint.lookup(uri)
    }

    /// A target has taken a request of ours for expired before it was: its notion of our clock is
    /// wrong, as after a suspend of this host. All targets begin anew with the next request.
    pub fn clock_is_misjudged(&self) {
        self.class.clock.rename();
    }

    /// Returns the counts of what this core has done so far.
    pub fn counters(&self) -> Counters {
        let mut sum = Counters::default();
        for shard in self.class.all() {
            shard.add_counters_to(&mut sum);
        }
        sum
    }

    /// Adds what this shard has done.
    fn add_counters_to(&self, sum: &mut Counters) {
        let mut hot = self.state().hot;
        hot.rpc_resp_sent += self.releases.as_ref().map_or(0, Releases::answered);
        self.counts.add_to(hot, sum);
        // Requests that got memory of their own.
        sum.multi_recv_copy += self.large.as_ref().map_or(0, LargeBuffers::copied);
    }

    /// Returns the operations and memory that are in hand now.
    pub fn in_hand(&self) -> InHand {
        let mut sum = InHand::default();
        for shard in self.class.all() {
            shard.collected_state().add_to(&mut sum);
            let taken = shard.large.as_ref().map_or(0, LargeBuffers::bytes_taken);
            sum.large_buffer_bytes += taken as usize;
        }
        sum.result_bytes_kept = (self.class.kept.bytes() + self.class.kept_apart.bytes()) as usize;
        sum
    }

    /// Payload bytes that fit into a request. Counterpart: `HG_Class_get_input_eager_size`.
    pub fn input_eager_bytes(&self) -> usize {
        self.limits.unexpected_bytes_max - self.options.build.header_bytes()
    }

    /// Payload bytes that fit into a response. Counterpart: `HG_Class_get_output_eager_size`.
    pub fn output_eager_bytes(&self) -> usize {
        self.limits.expected_bytes_max - self.options.build.header_bytes()
    }

    /// Operations whose token has not gone back. For the caller of [`trigger`](Self::trigger).
    pub fn in_flight(&self) -> usize {
        self.state().tokens
    }

    /// Returns whether something waits for [`trigger`](Self::trigger). Events that this thread has
    /// queued here are seen, unless they were taken meanwhile; so a thread that has started,
    /// answered or canceled something need wake a sleeping progress ULT only if this is true.
    #[inline]
    pub fn has_queued(&self) -> bool {
        self.has_events.load(Ordering::Relaxed)
    }

    /// Announces that the caller is about to sleep on [`wait_fd`](Self::wait_fd); `false`: there is
    /// work, or this core is closed. See [`Endpoint::prepare_wait`]. Events that other threads
    /// queue here afterwards (calls to ourselves, cancels) do not make the descriptor readable:
    /// those threads wake the sleeper themselves.
    ///
    /// Counterpart: `HG_Event_ready`.
    pub fn prepare_wait(&self) -> bool {
        let is_idle = |state: &State<T>| !state.closed && state.events.is_empty();
        lock(&self.arrived).is_empty() && is_idle(&self.state()) && self.endpoint.prepare_wait()
    }

    /// Readable when there is work, see [`prepare_wait`](Self::prepare_wait). `None`: the transport
    /// can only be polled.
    ///
    /// Counterpart: `HG_Event_get_wait_fd`.
    pub fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.endpoint.wait_fd()
    }

    /// Origins that may stay watched without a need: each takes a receive. These are half of the
    /// receives that the network has for such uses; the other half is for canceled calls.
    pub fn idle_watches_max(&self) -> usize {
        self.endpoint.idle_receives_max() / 2
    }

    /// Grows while transfers of peers are served, of which [`poll`](Self::poll) tells nothing.
    pub fn served(&self) -> u64 {
        self.endpoint.served()
    }
}

/// Most canceled calls whose response is still waited for; each takes a message buffer. Fewer where
/// the network [takes few receives](na::Endpoint::idle_receives_max).
pub(crate) const GIVEN_UP_MAX: usize = 1024;

/// Headers of any format, what is said beside them, the length of a descriptor, and a descriptor of
/// one segment with a memory handle of 64 bytes.
pub const MESSAGE_BYTES_MIN: usize = 24 + USUAL_BYTES_MAX + 8 + 40 + 64;

fn invalid(text: String) -> HgError {
    HgError::Na(na::Error::InvalidArgument(text))
}

impl<T> Drop for Core<T> {
    fn drop(&mut self) {
        if self.options.stats {
            let mut sum = Counters::default();
            self.add_counters_to(&mut sum);
            log!(self.options.log, INFO, shard = self.id, counters = ?sum, "RPC layer");
        }
    }
}
