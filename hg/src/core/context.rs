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
//! | `arrived` (completions not acted on) | progress, trigger, other contexts | `Core::arrived` |
//! | the registry | registrations; contexts keep a copy | see `registry.rs` |
//! | builds of peers | calls, and answers to what they ask | their own lock, see `builds.rs` |
//! | message buffers | everybody | see `buffers.rs` |
//! | the endpoint | everybody | never under `Core::state` |
//!
//! `Core::state` is the lock that a call pays for: it is taken once to start a call and once for
//! its end, and once for a request that arrives. Its answer takes it only if the transport does not
//! send that at once.
//!
//! # Contexts
//!
//! A [`Core`] is one context; [`Core::context`] makes further ones on the same endpoint, which run
//! in parallel, each driven by one thread at a time. A call may name the context that shall handle
//! it at the target; one that names none, or one that is not there, goes to context 0, as in C. The
//! response comes to the context that called. Receives for requests belong to context 0.
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
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use na::{Addr, Completion, Endpoint, LargeBuffers, Limits};
use prim::lock::{BiasedGuard, BiasedLock};
use prim::sync::lock;

use crate::base::counters::Counts;
use crate::core::bell::Bell;
use crate::core::class::Class;
use crate::core::receives::Receives;
use crate::core::releases::Releases;
use crate::core::state::State;
use crate::memory::Buffers;
use crate::ops::{Event, Space};
use crate::proc::WriterLimits;
use crate::wire::format::Accept;
use crate::{Counters, Format, HgError, HgOptions, InHand, OpRef, ProcLimits};

/// A context of the RPC core on one endpoint. `T` is what callers give an operation and get back at
/// its end.
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
    /// Peers are asked for their build.
    pub(crate) asks: bool,
    pub(crate) buffers: Arc<Buffers>,
    /// Where requests are received; `None`: into buffers of their own. Those of all contexts.
    pub(crate) large: Option<LargeBuffers>,
    pub(crate) class: Arc<Class<T>>,
    pub(crate) id: u8,
    pub(crate) space: Space,
    /// Context 0, which has the receives for requests; `None`: this is it.
    primary: Option<Arc<Core<T>>>,
    /// How others wake it; context 0 has one as soon as there may be another.
    pub(crate) bell: Option<Bell>,
    state: BiasedLock<State<T>>,
    /// `State::events` is not empty; to look at without the lock. Only a hint: a thread that queues
    /// an event for a sleeping progress ULT wakes it, and `prepare_wait` looks under the lock.
    pub(crate) has_events: AtomicBool,
    /// Completions that `progress` collected, and those that other contexts have handed over.
    pub(crate) arrived: Mutex<VecDeque<Completion>>,
    /// `arrived` is not empty; written under its lock, and as much of a hint.
    pub(crate) has_arrived: AtomicBool,
    /// The answer of [`Receives::is_crowded`] in context 0 at the latest arrival, for the other
    /// contexts.
    pub(crate) crowded: AtomicBool,
    /// Requests that are done with, by thread; `None`: they are counted in `state` alone.
    pub(crate) releases: Option<Releases>,
    pub(crate) counts: Counts,
}

impl<T> Core<T> {
    /// Starts the RPC core on `endpoint`, with one context, and posts receives if it is to listen.
    ///
    /// # Errors
    ///
    /// [`HgError::Na`] when the endpoint refuses the receives, or carries messages too short for
    /// Mercury's headers; when checksums are asked for in a build without.
    pub fn new(endpoint: Arc<dyn Endpoint>, options: HgOptions) -> Result<Arc<Self>, HgError> {
        if options.format().level() != options.checksum_level {
            return Err(HgError::Na(na::Error::InvalidArgument(
                "checksums take `build: Build::Checksum`: the headers of a plain build have no \
                 room for them"
                    .to_owned(),
            )));
        }
        let limits = endpoint.limits();
        let least = limits.unexpected_bytes_max.min(limits.expected_bytes_max);
        if least < MESSAGE_BYTES_MIN {
            return Err(HgError::Na(na::Error::InvalidArgument(format!(
                "messages of at most {least} bytes are too short: headers and the description of \
                 an overflow take {MESSAGE_BYTES_MIN}"
            ))));
        }
        let class = Arc::new(Class::new(endpoint.clone()));
        let make = |id, generation| {
            Self::make((id, generation), endpoint, options.clone(), class.clone(), None)
        };
        let core = class.add(options.max_contexts, make)?;
        if core.options.listen {
            let first = core.state().receives.first();
            core.has_memory_for(&first)?;
            core.post_receives(first)?;
        }
        Ok(core)
    }

    /// Makes a further context. It lasts until the last clone of what this returns is dropped;
    /// whatever it has in flight then ends unnoticed, so wait for [`in_flight`](Self::in_flight) to
    /// be zero before.
    ///
    /// # Errors
    ///
    /// [`HgError::Contexts`] beyond [`HgOptions::max_contexts`]; [`HgError::Closed`].
    ///
    /// Counterpart: `HG_Context_create`.
    pub fn context(self: &Arc<Self>) -> Result<Arc<Self>, HgError> {
        let primary = self.primary.as_ref().unwrap_or(self).clone();
        if self.is_closed() {
            return Err(HgError::Closed);
        }
        let (endpoint, options, class) =
            (self.endpoint.clone(), self.options.clone(), self.class.clone());
        self.class.add(self.options.max_contexts, |id, generation| {
            Self::make((id, generation), endpoint, options, class, Some(primary))
        })
    }

    fn make(
        (id, generation): (u8, u32),
        endpoint: Arc<dyn Endpoint>,
        options: HgOptions,
        class: Arc<Class<T>>,
        primary: Option<Arc<Self>>,
    ) -> Result<Self, HgError> {
        let (first, more) = (options.request_post_init, options.request_post_incr);
        let limits = endpoint.limits();
        let large = match &primary {
            Some(primary) => primary.large.clone(),
            None => Some(options.large_buffers(limits.unexpected_bytes_max)?)
                .filter(|_| options.multi_recv && options.listen && endpoint.has_multi_recv()),
        };
        let receives = Receives::new(first, more, options.requests_max, large.is_some());
        let is_apart = options.max_contexts <= 1 && receives.may_collect();
        let releases = is_apart.then(Releases::new).flatten();
        let space = Space::new(id, options.max_contexts);
        // Half is for watched origins.
        let given_up_max =
            endpoint.idle_receives_max() / 2 / usize::from(options.max_contexts.max(1));
        let given_up_max = given_up_max.clamp(1, GIVEN_UP_MAX);
        let bell = match options.max_contexts {
            0 | 1 => None,
            _ => Some(Bell::new(endpoint.wait_fd())?),
        };
        Ok(Self {
            self_addr: endpoint.self_addr(),
            limits,
            large,
            buffers: Buffers::new(endpoint.clone()),
            endpoint,
            asks: options.ask_build && options.format() == Format::default(),
            accept: options.accept(),
            options,
            class,
            id,
            space,
            primary,
            bell,
            state: BiasedLock::new(State::new((id, generation), given_up_max, space, receives)),
            has_events: AtomicBool::new(false),
            arrived: Mutex::new(VecDeque::new()),
            has_arrived: AtomicBool::new(false),
            crowded: AtomicBool::new(false),
            releases,
            counts: Counts::default(),
        })
    }

    /// The number of this context. Counterpart: `HG_Context_get_id`.
    pub fn id(&self) -> u8 {
        self.id
    }

    /// Context 0.
    #[inline]
    pub(crate) fn primary(&self) -> &Self {
        self.primary.as_deref().unwrap_or(self)
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
        for context in self.class.all() {
            let mut hot = context.state().hot;
            hot.rpc_resp_sent += context.releases.as_ref().map_or(0, Releases::answered);
            context.counts.add_to(hot, &mut sum);
        }
        sum.multi_recv_copy = self.copied();
        sum
    }

    /// Requests that got memory of their own.
    pub(crate) fn copied(&self) -> u64 {
        self.large.as_ref().map_or(0, LargeBuffers::copied)
    }

    /// Returns the operations and memory that are in hand now.
    pub fn in_hand(&self) -> InHand {
        let mut sum = InHand::default();
        for context in self.class.all() {
            context.collected_state().add_to(&mut sum);
        }
        let taken = self.large.as_ref().map_or(0, LargeBuffers::bytes_taken);
        sum.large_buffer_bytes = taken as usize;
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

    #[inline]
    pub(crate) fn is_primary(&self) -> bool {
        self.primary.is_none()
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
        if let Some(bell) = &self.bell {
            bell.announce(&self.class.sleepers);
        }
        // What a closed endpoint does to wake sleepers, another context may have taken away.
        let is_idle = |state: &State<T>| !state.closed && state.events.is_empty();
        let quiet = lock(&self.arrived).is_empty()
            && is_idle(&self.state())
            && self.endpoint.prepare_wait();
        if let Some(bell) = self.bell.as_ref().filter(|_| !quiet) {
            bell.retract(&self.class.sleepers);
        }
        quiet
    }

    /// Readable when there is work, see [`prepare_wait`](Self::prepare_wait). `None`: the transport
    /// can only be polled.
    ///
    /// Counterpart: `HG_Event_get_wait_fd`.
    pub fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        let endpoint = self.endpoint.wait_fd()?;
        Some(self.bell.as_ref().map_or(endpoint, Bell::fd))
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
pub const MESSAGE_BYTES_MIN: usize = 24 + crate::wire::extension::BYTES_MAX + 8 + 40 + 64;
