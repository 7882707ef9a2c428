//! The RPC core: what holds for all operations.
//!
//! # Who may call what
//!
//! Everything that starts, answers or cancels may be called from any thread. [`Core::progress`],
//! [`Core::trigger`] and [`Core::prepare_wait`] have one caller, the progress ULT, because the
//! order of events is that of its calls.
//!
//! | state | touched by | under |
//! |---|---|---|
//! | `State` (operations, events, tags) | everybody, briefly | `Core::state` |
//! | `arrived` (completions not acted on) | progress and trigger | `Core::arrived` |
//! | the endpoint | everybody | never under `Core::state` |
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
use std::sync::{Arc, Mutex, MutexGuard};

use na::{Addr, Completion, Endpoint, Limits, LocalMem};

use super::buffers::{Buffers, lock};
use super::checksum::ChecksumLevel;
use super::context::Event;
use super::counters::{Counters, Counts};
use super::format::{Accept, Build, Format};
use super::forward::Forward;
use super::handle::Respond;
use super::ops::{OPS_MAX, OpRef, Role, Slab, Tags, tag_of};
use super::overflow::Fetch;
use super::proc::{ProcLimits, WriterLimits};
use super::receives::Receives;
use super::transfer::BulkTransfer;
use super::{Bulk, HgError};

/// How a [`Core`] behaves.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct HgOptions {
    /// Which of Mercury's builds to speak like. Default: without checksum support.
    pub build: Build,
    /// Take requests of the other build as well, if they say so: builds with checksum support of
    /// Mercury 2.4.1 and later do, and our own. They are answered in kind. Default: yes.
    pub detect_build: bool,
    /// What is protected by checksums; other than `None` it takes [`Build::Checksum`]. Both ends
    /// must be set alike. Default: nothing.
    pub checksum_level: ChecksumLevel,
    /// Receive requests. Default: yes. The endpoint must have been opened to listen as well.
    pub listen: bool,
    /// Receives for requests kept posted. Each takes a message buffer (4 KiB by default). Default
    /// 256, as in Margo.
    pub request_post_init: usize,
    /// Most requests taken in whose arguments have not been read, posted receives included. Beyond
    /// it the transport holds senders back. Default 16384.
    pub requests_max: usize,
    /// Longest payload that may overflow a message, bytes, in both directions. Default 256 MiB.
    pub overflow_bytes_max: usize,
    /// Bounds of what is encoded. Default: see there.
    pub proc: ProcLimits,
    /// Let small bulk data travel inside its descriptor. Default: yes.
    pub bulk_eager: bool,
    /// Longest single put or get, bytes; longer transfers take several. Default 64 MiB.
    pub bulk_chunk_bytes: u64,
    /// Puts or gets of one transfer in flight at a time, at most 32. Default 8.
    pub bulk_window: u32,
    /// Hand calls to ourselves over without the network. Default: yes.
    pub loopback: bool,
}

impl Default for HgOptions {
    fn default() -> Self {
        Self {
            build: Build::Plain,
            detect_build: true,
            checksum_level: ChecksumLevel::None,
            listen: true,
            request_post_init: 256,
            requests_max: 16 << 10,
            overflow_bytes_max: 256 << 20,
            proc: ProcLimits::default(),
            bulk_eager: true,
            bulk_chunk_bytes: 64 << 20,
            bulk_window: 8,
            loopback: true,
        }
    }
}

impl HgOptions {
    /// How requests are written.
    pub(super) fn format(&self) -> Format {
        Format::new(self.build, self.checksum_level)
    }

    /// How requests are read.
    pub(super) fn accept(&self) -> Accept {
        Accept { format: self.format(), detect: self.detect_build }
    }
}

/// An operation in flight.
#[derive(Debug)]
pub(super) enum Op<T> {
    /// A call of ours.
    Forward(Forward<T>),
    /// A call to ourselves; nothing but its token.
    Local(T),
    /// An answer of ours.
    Respond(Respond<T>),
    /// A request whose arguments are being fetched.
    Fetch(Fetch),
    /// A bulk transfer of ours.
    Transfer(BulkTransfer<T>),
}

/// What everybody touches, briefly.
#[derive(Debug)]
pub(super) struct State<T> {
    pub(super) ops: Slab<Op<T>>,
    /// What ended, or arrived, without the network.
    pub(super) events: VecDeque<Event<T>>,
    /// Tokens in `ops` and `events`.
    pub(super) tokens: usize,
    /// Calls that were canceled while they waited for their response, oldest first; may name calls
    /// that are over.
    given_up: VecDeque<OpRef>,
    tags: Tags,
    pub(super) closed: bool,
}

impl<T> State<T> {
    /// The number of a new call, which gives its tag.
    pub(super) fn number(&mut self) -> u64 {
        let Self { tags, ops, .. } = self;
        tags.next(|| {
            ops.iter().filter_map(|(_, op)| match op {
                Op::Forward(forward) => Some(forward.number),
                _ => None,
            })
        })
    }

    /// What the last step of an operation means: what is to be told, and the operation itself when
    /// it is over, to be dropped outside of the lock.
    pub(super) fn settle(&mut self, op: OpRef) -> (Option<Event<T>>, Option<Op<T>>) {
        let (event, over) = match self.ops.get_mut(op) {
            Some(Op::Forward(forward)) => forward.settle(),
            Some(Op::Respond(respond)) => respond.settle(),
            Some(Op::Transfer(transfer)) => transfer.settle(),
            Some(Op::Local(_) | Op::Fetch(_)) | None => (None, false),
        };
        (event, if over { self.ops.remove(op) } else { None })
    }

    /// Remembers a canceled call, whose receive stays posted: a late response that overflowed must
    /// be acknowledged, or its sender would keep the result for as long as it lives. Returns the
    /// receive of an older one to cancel when there are too many.
    fn give_up(&mut self, op: OpRef) -> Option<(OpRef, Role)> {
        self.given_up.push_back(op);
        if self.given_up.len() <= GIVEN_UP_MAX {
            return None;
        }
        let oldest = self.given_up.pop_front()?;
        match self.ops.get_mut(oldest) {
            Some(Op::Forward(call)) => Some((oldest, call.reply_role())),
            _ => None,
        }
    }

    /// Admits an operation, unless the core is closed or full; gives it back then.
    pub(super) fn admit(&mut self, op: Op<T>) -> Result<OpRef, Box<(HgError, Op<T>)>> {
        if self.closed {
            return Err(Box::new((HgError::Closed, op)));
        }
        self.ops.insert(op).map_err(|op| Box::new((HgError::Busy(OPS_MAX), op)))
    }
}

/// The RPC core on one endpoint. `T` is what callers give an operation and get back at its end.
///
/// Counterpart: `hg_class_t` and `hg_context_t`.
#[derive(Debug)]
pub struct Core<T> {
    pub(super) endpoint: Arc<dyn Endpoint>,
    pub(super) self_addr: Addr,
    pub(super) limits: Limits,
    pub(super) options: HgOptions,
    pub(super) buffers: Arc<Buffers>,
    pub(super) receives: Receives,
    state: Mutex<State<T>>,
    /// `State::events` is not empty; to look at without the lock. Only a hint: whoever queues an
    /// event for a sleeping progress ULT wakes it, and `prepare_wait` looks under the lock.
    pub(super) has_events: AtomicBool,
    pub(super) arrived: Mutex<VecDeque<Completion>>,
    pub(super) counts: Counts,
}

impl<T> Core<T> {
    /// Starts the RPC core on `endpoint`, and posts receives if it is to listen.
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
        let need = MESSAGE_BYTES_MIN;
        let least = limits.unexpected_bytes_max.min(limits.expected_bytes_max);
        if least < need {
            return Err(HgError::Na(na::Error::InvalidArgument(format!(
                "messages of at most {least} bytes are too short: headers and the description of \
                 an overflow take {need}"
            ))));
        }
        let core = Arc::new(Self {
            self_addr: endpoint.self_addr(),
            limits,
            buffers: Buffers::new(endpoint.clone()),
            receives: Receives::new(options.request_post_init, options.requests_max),
            endpoint,
            options,
            state: Mutex::new(State {
                ops: Slab::new(),
                events: VecDeque::new(),
                tokens: 0,
                given_up: VecDeque::new(),
                tags: Tags::new(),
                closed: false,
            }),
            has_events: AtomicBool::new(false),
            arrived: Mutex::new(VecDeque::new()),
            counts: Counts::default(),
        });
        core.post_receives()?;
        Ok(core)
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State<T>> {
        lock(&self.state)
    }

    /// Queues what trigger is to deliver.
    pub(super) fn queue(&self, state: &mut State<T>, event: Event<T>) {
        state.events.push_back(event);
        self.has_events.store(true, Ordering::Relaxed);
    }

    /// After a step of an operation within trigger: what is to be told to the sink now.
    pub(super) fn settle(
        &self,
        mut state: MutexGuard<'_, State<T>>,
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

    /// The limits of an encoding.
    pub(super) fn writer_limits(&self) -> WriterLimits {
        WriterLimits {
            bytes_max: self.options.overflow_bytes_max,
            bulk_eager: self.options.bulk_eager,
            proc: self.options.proc,
        }
    }

    /// Bounds within which arguments and results are to be decoded; see
    /// [`proc::from_slice_within`](super::proc::from_slice_within).
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

    /// What was done so far.
    pub fn counters(&self) -> Counters {
        self.counts.snapshot()
    }

    /// A handle to registered memory, for peers. It does not keep the memory registered.
    ///
    /// Counterpart: `HG_Bulk_create`.
    pub fn bulk_handle(&self, memory: &LocalMem) -> Bulk {
        Bulk::of_local(&*self.endpoint, memory)
    }

    /// Keeps the configured number of receives for requests posted.
    pub(super) fn post_receives(&self) -> Result<(), HgError> {
        if !self.options.listen {
            return Ok(());
        }
        while let Some(number) = self.receives.claim() {
            let op = OpRef::single(Role::Request, number);
            if let Err(refused) = self.endpoint.recv_unexpected(op, self.buffers.take()) {
                self.receives.failed();
                self.buffers.put(refused.buf);
                return Err(refused.error.into());
            }
        }
        Ok(())
    }

    /// The arguments of a request have been read.
    pub(super) fn request_released(&self) {
        self.receives.released();
        if let Err(error) = self.post_receives() {
            tracing::debug!(%error, "cannot receive further requests");
        }
    }

    /// Gives up a call or transfer. It ends through the sink as always, once: with
    /// [`HgError::Canceled`] unless it had ended before. An operation that is over is ignored.
    ///
    /// A call ends at once, whatever the peer does; the peer may handle it all the same. A transfer
    /// ends as soon as the network no longer touches our memory.
    ///
    /// Counterpart: `HG_Cancel`, `HG_Bulk_cancel`; there, calls to oneself cannot be canceled.
    pub fn cancel(&self, op: OpRef) {
        let mut state = self.state();
        let (parts, forgotten) = match state.ops.get_mut(op) {
            Some(Op::Forward(call)) => (call.cancel(), state.give_up(op)),
            Some(Op::Transfer(transfer)) => (transfer.cancel(), None),
            Some(Op::Local(_)) => {
                if let Some(Op::Local(token)) = state.ops.remove(op) {
                    let result = Err(HgError::Canceled);
                    self.queue(&mut state, Event::Response { token, result });
                }
                return;
            }
            Some(Op::Respond(_) | Op::Fetch(_)) | None => return,
        };
        let (event, gone) = state.settle(op);
        if let Some(event) = event {
            self.queue(&mut state, event);
        }
        drop(state);
        drop(gone);
        for role in parts {
            self.endpoint.cancel(op.part(role));
        }
        if let Some((forgotten, role)) = forgotten {
            self.endpoint.cancel(forgotten.part(role));
        }
    }

    /// Operations whose token has not gone back. For the caller of [`trigger`](Self::trigger).
    pub fn in_flight(&self) -> usize {
        self.state().tokens
    }

    /// Announces that the caller is about to sleep on [`wait_fd`](Self::wait_fd); `false`: there is
    /// work. See [`Endpoint::prepare_wait`]. What other threads queue here afterwards (calls to
    /// ourselves, cancels) does not make the descriptor readable: they wake the sleeper themselves.
    pub fn prepare_wait(&self) -> bool {
        lock(&self.arrived).is_empty()
            && self.state().events.is_empty()
            && self.endpoint.prepare_wait()
    }

    /// See [`Endpoint::wait_fd`].
    pub fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.endpoint.wait_fd()
    }

    /// Ends every operation with an error; see the module's documentation. Idempotent. Keep calling
    /// `progress` and `trigger` until nothing is in flight.
    ///
    /// Counterpart: `HG_Context_destroy`.
    pub fn close(&self) {
        let mut state = self.state();
        if state.closed {
            return;
        }
        state.closed = true;
        let is_local = |(name, op): (OpRef, &Op<T>)| matches!(op, Op::Local(_)).then_some(name);
        let local = state.ops.iter().filter_map(is_local).collect::<Vec<_>>();
        for op in local {
            if let Some(Op::Local(token)) = state.ops.remove(op) {
                self.queue(&mut state, Event::Response { token, result: Err(HgError::Closed) });
            }
        }
        drop(state);
        self.endpoint.close();
    }

    pub(super) fn tag(number: u64) -> na::Tag {
        tag_of(number)
    }
}

/// Most canceled calls whose response is still waited for; each takes a message buffer.
pub(super) const GIVEN_UP_MAX: usize = 1024;

/// Headers of any format, the length of a descriptor, and a descriptor of one segment with a
/// memory handle of 64 bytes.
const MESSAGE_BYTES_MIN: usize = 24 + 8 + 40 + 64;
