//! Bulk transfer: large data moves straight between the memory of two processes.
//!
//! Memory that a peer may touch is not a Rust slice meanwhile. So there are three ways to lend
//! memory, which differ in who may touch it:
//!
//! - [`Exposed`](crate::Exposed) owns a vector or buffer; peers may touch it until it is released
//!   (`exposed.rs`);
//! - `expose_ref` and `expose_mut` borrow a slice, or several, for the duration of a closure, and
//!   do not return before no transfer can touch it any more;
//! - [`BulkBuffer`], or [`BulkSegments`](crate::BulkSegments), is the local side of our own
//!   transfers. Its key is never told to anyone, and a transfer holds it exclusively until its
//!   completion, so in between it is an ordinary slice. A peer that is stopped in the midst of a
//!   copy does not hold a transfer up: where it may write afterwards, the buffer takes other memory
//!   and leaves the old one to it (`replace`).
//!
//! A [`Bulk`] is a description that travels in arguments; it keeps nothing alive. Using it after
//! its memory was taken back is refused by the owner, not undefined.
//!
//! Memory that peers may only read ([`Access::ReadOnly`]), and that has room in the message, is
//! copied into it beside the description. A pull from such a handle needs no transfer and gives the
//! bytes as they were when the handle was sent, also after the memory was changed or taken back.
//! `mercury.no_bulk_eager` in the configuration turns this off.

use std::any::Any;
use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use hg::{Bulk, BulkOp, HgError, OpRef};
use na::{Access, Endpoint, LocalMem, Memory, RawSegment, RegionTable};
use ult::Eventual;

use crate::observe::monitor::{BulkWatch, Monitoring};
use crate::operation::call::{Deadline, is_past};
use crate::operation::deadline_timer::DeadlineTimer;
use crate::operation::early::EndsEarly;
use crate::operation::standing_transfers::StoodFor;
use crate::support::log::log;
use crate::support::why_over::{GaveUp, WhyOver};
use crate::{Addr, BulkError, Instance, operation::deadline};

/// A transfer in flight. As of a [`Call`](crate::operation::call::Call), the RPC layer has one
/// count of it, and the caller that started it the other.
pub(crate) struct BulkCall {
    pub(crate) done: Eventual<Result<u64, HgError>>,
    given_up: WhyOver,
    watch: BulkWatch,
    timed: Option<Box<Timed>>,
    /// It has no deadline.
    may_stand: bool,
    stood_for: StoodFor,
    /// The buffer of a transfer that is not waited for any more: it goes with the last count, and
    /// so not before the transfer is over.
    pub(crate) kept: std::sync::Mutex<Option<Box<dyn Any + Send>>>,
    /// The part of the buffer that moves, of a request.
    moved: Range<usize>,
}

/// The extra state of a transfer that has a deadline and may have no caller that waits for it.
struct Timed {
    term: Deadline,
    alarm: DeadlineTimer,
}

impl BulkCall {
    pub(crate) fn new() -> Self {
        let (done, given_up) = (Eventual::new(), WhyOver::default());
        let watch = BulkWatch::default();
        let (timed, may_stand, stood_for) = (None, true, StoodFor::default());
        let kept = std::sync::Mutex::new(None);
        Self { done, given_up, watch, timed, may_stand, stood_for, kept, moved: 0..0 }
    }

    /// One that may have an alarm.
    pub(crate) fn with_term(term: Option<Deadline>) -> Self {
        let timed = term.map(|term| Box::new(Timed { term, alarm: DeadlineTimer::default() }));
        Self { may_stand: timed.is_none(), timed, ..Self::new() }
    }

    /// Makes a call that moves that part of a buffer, and may have an alarm.
    pub(crate) fn of_part(term: Option<Deadline>, moved: Range<usize>) -> Self {
        Self { moved, ..Self::with_term(term) }
    }

    pub(crate) fn moved(&self) -> &Range<usize> {
        &self.moved
    }

    /// One whose caller does nothing else meanwhile.
    fn waited_for(may_stand: bool) -> Self {
        Self { watch: BulkWatch::waited_for(), may_stand, ..Self::new() }
    }

    /// Returns whether it ends if it stands still, for want of a deadline
    /// (`standing_transfers.rs`).
    pub(crate) fn may_stand(&self) -> bool {
        self.may_stand
    }

    /// It is about to be ended because it has stood still for so long.
    pub(crate) fn stands_still(&self, limit: Duration) {
        self.stood_for.set(limit);
    }

    pub(crate) fn complete(&self, monitoring: &Monitoring, mut result: Result<u64, HgError>) {
        // The alarm may come later still, on an execution stream that is busy.
        if result.is_ok() && is_past(self.term().map(|term| term.at)) {
            self.given_up.is_first(GaveUp::TimedOut);
            result = Err(HgError::Canceled);
        }
        self.watch.over(monitoring, &self.given_up, &result);
        // The RPC layer gives a token back once, so nobody can have been first.
        let _ = self.done.set(result);
        if let Some(timed) = &self.timed {
            timed.alarm.end();
        }
    }

    /// Returns the term that [`with_term`](Self::with_term) was given.
    pub(crate) fn term(&self) -> Option<Deadline> {
        self.timed.as_ref().map(|timed| timed.term)
    }

    /// When it has to be ended, if it has.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.term().filter(|_| !self.given_up.is_given()).map(|term| term.at)
    }

    /// Sees to it that the transfer ends at its deadline, whether or not a caller waits.
    pub(crate) fn set_alarm(self: &Arc<Self>, instance: &Instance, op: OpRef) {
        let Some(timed) = self.timed.as_ref().filter(|_| !self.done.is_ready()) else { return };
        timed.alarm.set(instance, timed.term.at, || {
            // Not a count of the instance, which ends its transfers before it ends.
            let (call, inner) = (Arc::downgrade(self), Arc::downgrade(instance.inner()));
            move || {
                if let Some((call, inner)) = call.upgrade().zip(inner.upgrade()) {
                    call.give_up(&*inner, op, GaveUp::TimedOut);
                }
            }
        });
    }

    /// Ends the transfer early, unless it is over or is being ended already. It is over when the
    /// network no longer touches the memory.
    pub(crate) fn give_up(&self, by: &dyn EndsEarly, op: OpRef, why: GaveUp) {
        if !self.done.is_ready() && !by.is_forked() && self.given_up.is_first(why) {
            by.end(op);
        }
    }

    /// The result of one that is over. `limit`: the time that was allowed.
    pub(crate) fn result(&self, peer: &Addr, limit: Option<Duration>) -> Result<(), BulkError> {
        self.watch.resumed();
        let Err(error) = self.done.wait() else { return Ok(()) };
        let (peer, source) = (peer.to_string(), error.clone());
        if !matches!(error, HgError::Canceled) || !self.given_up.is_given() {
            return Err(BulkError::Transfer { peer, source });
        }
        if !self.given_up.timed_out() {
            return Err(BulkError::Canceled { peer });
        }
        match (limit, self.stood_for.get()) {
            (Some(limit), _) => Err(BulkError::TimedOut { peer, limit }),
            (None, Some(limit)) => Err(BulkError::StoodStill { peer, limit }),
            (None, None) => Err(BulkError::Canceled { peer }),
        }
    }
}

impl fmt::Debug for BulkCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BulkCall").field("is_over", &self.done.is_ready()).finish_non_exhaustive()
    }
}

/// One transfer, as the public methods describe it.
pub(crate) struct Plan<'a> {
    pub(crate) op: BulkOp,
    pub(crate) peer: &'a Addr,
    pub(crate) remote: &'a Bulk,
    pub(crate) remote_offset: u64,
    pub(crate) local: Range<usize>,
}

/// Panics in a tasklet that would have to wait for memory. The memory is left to the transfer that
/// uses it, which drops it at its end.
///
/// # Panics
///
/// In a tasklet, unless `done`. An error would have no buffer to give back.
#[track_caller]
pub(crate) fn assert_may_wait(done: bool) {
    assert!(done || !ult::is_tasklet(), "{}", BulkError::Tasklet);
}

/// The place where memory comes back to the caller that waits for it: set by the hook of its
/// revocation, with nothing if that is dropped uncalled.
pub(crate) type Back = Eventual<std::sync::Mutex<Option<Memory>>>;

/// That hook.
pub(crate) struct GiveBack(Arc<Back>);

impl GiveBack {
    pub(crate) fn to(back: &Arc<Back>) -> Self {
        Self(back.clone())
    }

    pub(crate) fn with(self, memory: Memory) {
        // Nobody else has set it: `drop` comes later.
        let _ = self.0.set(std::sync::Mutex::new(Some(memory)));
    }
}

impl Drop for GiveBack {
    fn drop(&mut self) {
        // Changes nothing if it was called.
        let _ = self.0.set(std::sync::Mutex::new(None));
    }
}

/// Why memory does not come back.
const LOST: &str = "exposed memory does not come back: the transport could not end its \
                    registration, or a peer that was stopped in the midst of a copy has it; they \
                    may go on using it, so it stays where it is for good (the log has the cause)";

/// Revokes `memory`, which comes back there.
pub(crate) fn revoke(memory: LocalMem) -> Arc<Back> {
    let back = Arc::new(Back::new());
    let hook = GiveBack::to(&back);
    memory.revoke(move |memory| hook.with(memory));
    back
}

/// Revokes `memory` and waits until no peer can touch it.
///
/// # Panics
///
/// In a tasklet, if it would wait. If the memory never comes back, see [`LOST`].
#[track_caller]
pub(crate) fn take_back(memory: LocalMem) -> Memory {
    comes_back(&revoke(memory)).expect(LOST)
}

/// Waits until memory is back. `None`: it never will be.
///
/// # Panics
///
/// In a tasklet, if it would wait.
#[track_caller]
fn comes_back(back: &Back) -> Option<Memory> {
    assert_may_wait(back.is_ready());
    // Not a cancellation point: peers use the memory until then, whoever has lent it.
    // In a child process that was forked off they do not, and the memory is there at once.
    back.wait_ready_fully();
    back.wait().lock().unwrap_or_else(std::sync::PoisonError::into_inner).take()
}

/// The local side of a transfer: a [`BulkBuffer`], [`BulkSegments`](crate::BulkSegments), or memory
/// that is exposed ([`Exposed`](crate::Exposed), also by a shared reference, and in an `Arc` for
/// several transfers at a time).
pub trait LocalBulk: sealed::Registered {}

impl LocalBulk for BulkBuffer {}

pub(crate) mod sealed {
    use std::ops::Range;

    use na::LocalMem;

    pub trait Registered {
        /// The memory. No Rust reference to its bytes may exist while `self` is borrowed mutably.
        fn memory(&self) -> &LocalMem;

        /// After a transfer of the bytes `moved`: leaves the memory to peers that may still write
        /// there, and goes on with other memory, which holds the same but for `moved`. Nothing is
        /// to be done for memory that is never seen as a slice.
        fn set_aside(&mut self, moved: &Range<usize>) {
            let _ = moved;
        }
    }

    impl Registered for super::BulkBuffer {
        fn memory(&self) -> &LocalMem {
            &self.memory
        }

        fn set_aside(&mut self, moved: &Range<usize>) {
            if self.memory.may_be_written() && !self.replace(moved) {
                super::wait_out(&mut self.memory, &self.endpoint);
                self.segment = self.memory.segments()[0];
            }
        }
    }
}

/// Copies the bytes of `memory` from `at` on to `fresh`, but for those of `moved`.
pub(crate) fn copy_rest(memory: &LocalMem, at: usize, fresh: &mut [u8], moved: &Range<usize>) {
    let within = |place: usize| place.clamp(at, at + fresh.len()) - at;
    let (before, after) = (within(moved.start), within(moved.end));
    let copied = memory.read_at(at as u64, &mut fresh[..before])
        && memory.read_at((at + after) as u64, &mut fresh[after..]);
    debug_assert!(copied, "it is as long");
}

/// Takes memory that `fresh` makes in the place of `memory`, where a peer may still write and which
/// stays alive for that. `false`: the system has none.
pub(crate) fn replace(
    memory: &mut LocalMem,
    endpoint: &Weak<dyn Endpoint>,
    fresh: impl Fn(&LocalMem) -> Result<Memory, na::Error>,
) -> bool {
    let Ok(made) = fresh(memory) else { return false };
    let registered = match endpoint.upgrade().map(|own| own.register(made, Access::ReadWrite)) {
        Some(Ok(registered)) => Some(registered),
        // It is closed, and no transfer will use the memory.
        _ => fresh(memory).ok().and_then(|made| register_nowhere(made).ok()),
    };
    let Some(registered) = registered else { return false };
    *memory = registered;
    true
}

fn register_nowhere(memory: Memory) -> Result<LocalMem, na::Error> {
    RegionTable::new().register_local(memory, Access::ReadWrite)
}

/// Where there is no memory to take instead: waits until no peer writes to `memory`. If that never
/// comes about, none is left.
pub(crate) fn wait_out(memory: &mut LocalMem, endpoint: &Weak<dyn Endpoint>) {
    let empty = || Memory::from_vec(Vec::new());
    let nothing = register_nowhere(empty()).expect("no bytes need no memory");
    let old = std::mem::replace(memory, nothing);
    let back = comes_back(&revoke(old));
    let registered = match (back, endpoint.upgrade()) {
        (None, _) => return,
        (Some(back), Some(endpoint)) => endpoint.register(back, Access::ReadWrite),
        (Some(back), None) => register_nowhere(back),
    };
    if let Ok(registered) = registered {
        *memory = registered;
    }
}

/// A buffer for the local side of transfers: registered once, used often, a slice in between.
///
/// A pull that fails because its peer is stopped in the midst of a copy gives the buffer other
/// memory, as the peer may still write to the old one: references are short-lived, and pointers to
/// the bytes are not to be kept across a transfer.
///
/// Counterpart: an element of Margo's bulk pool.
pub struct BulkBuffer {
    memory: LocalMem,
    segment: RawSegment,
    /// Where other memory is registered. Does not keep it open.
    endpoint: Weak<dyn Endpoint>,
}

impl BulkBuffer {
    /// Takes other memory, which holds the same but for `moved`. `false`: there is none.
    pub(crate) fn replace(&mut self, moved: &Range<usize>) -> bool {
        let fresh = |old: &LocalMem| {
            let zeroed = Memory::zeroed(old.len() as usize)?.into_owner::<Vec<u8>>();
            let mut bytes = zeroed.expect("that is the owner of zeroed memory");
            copy_rest(old, 0, &mut bytes, moved);
            Ok(Memory::from_vec(bytes))
        };
        let replaced = replace(&mut self.memory, &self.endpoint, fresh);
        self.segment = self.memory.segments()[0];
        replaced
    }
}

// SAFETY:
// - `segment` points into memory that `memory` keeps alive and that is not tied to a thread;
// - access to it follows Rust's borrow rules, see `deref`.
unsafe impl Send for BulkBuffer {}
// SAFETY: as for `Send`; shared access only reads, through `deref`.
unsafe impl Sync for BulkBuffer {}

impl Deref for BulkBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY:
        // - valid: `self.memory` keeps the allocation of exactly this segment alive;
        // - initialised: it was zeroed, and transfers only write bytes;
        // - no writer: the key of this memory is in no descriptor, so no peer can name it, and our
        //   own transfers write only while they hold `&mut self`: `transfer` returns or unwinds
        //   only after the completion, see `wait_for`; or while a request owns the buffer, which
        //   gives it back, or drops it, only after the completion, see `request.rs`;
        // - nor a late one: after each transfer `set_aside` leaves memory where a peer may still
        //   write.
        unsafe { std::slice::from_raw_parts(self.segment.ptr, self.segment.len) }
    }
}

impl DerefMut for BulkBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; `&mut self` excludes every other slice and every transfer.
        unsafe { std::slice::from_raw_parts_mut(self.segment.ptr, self.segment.len) }
    }
}

impl AsMut<[u8]> for BulkBuffer {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl fmt::Debug for BulkBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BulkBuffer({} bytes)", self.segment.len)
    }
}

impl Instance {
    /// Lets peers read `data` while `f` runs, without copying it. Does not return, not even when
    /// `f` panics, before the transfers that have begun are over; a peer that dies ends its own. A
    /// peer that is stopped in the midst of a copy holds it up for as long, and a fabric that fails
    /// to end a registration for ever, which an error in the log tells. In a child process that `f`
    /// forks off it returns at once, as no peer uses that process's copy of `data`.
    ///
    /// # Errors
    ///
    /// [`BulkError::Register`], [`BulkError::Tasklet`]; `f` was not called.
    pub fn expose_ref<T>(&self, data: &[u8], f: impl FnOnce(&Bulk) -> T) -> Result<T, BulkError> {
        let segment = RawSegment { ptr: data.as_ptr().cast_mut(), len: data.len() };
        // SAFETY:
        // - valid for reads at a fixed address: `data` is borrowed until this function ends, and
        //   `expose_scope` does not end before no transfer holds the memory;
        // - only read: registered `ReadOnly`, and never handed out as a destination;
        // - references to the bytes exist, but nobody can change them.
        let memory = unsafe { Memory::from_raw(vec![segment], ()) };
        self.expose_scope(memory, Access::ReadOnly, f)
    }

    /// Lets peers write into `data` (and not read it) while `f` runs, without copying it. Does not
    /// return before the transfers that have begun are over, as [`expose_ref`](Self::expose_ref).
    ///
    /// # Errors
    ///
    /// [`BulkError::Register`], [`BulkError::Tasklet`]; `f` was not called.
    pub fn expose_mut<T>(
        &self,
        data: &mut [u8],
        f: impl FnOnce(&Bulk) -> T,
    ) -> Result<T, BulkError> {
        let segment = RawSegment { ptr: data.as_mut_ptr(), len: data.len() };
        // SAFETY:
        // - valid for reads and writes at a fixed address: `data` is borrowed until this function
        //   ends, and `expose_scope` does not end before no transfer holds the memory;
        // - no other reference: `data` is a mutable borrow that is not used meanwhile.
        let memory = unsafe { Memory::from_raw(vec![segment], ()) };
        self.expose_scope(memory, Access::WriteOnly, f)
    }

    pub(crate) fn expose_scope<T>(
        &self,
        memory: Memory,
        access: Access,
        f: impl FnOnce(&Bulk) -> T,
    ) -> Result<T, BulkError> {
        if ult::is_tasklet() {
            return Err(BulkError::Tasklet);
        }
        let memory = self.register_memory(memory, access)?;
        let bulk = self.inner().core.bulk_handle(&memory);
        // Not in a destructor: one that runs because of a panic cannot suspend its ULT, and would
        // hold up the execution stream that has to end the transfers.
        let result = catch_unwind(AssertUnwindSafe(|| f(&bulk)));
        if comes_back(&revoke(memory)).is_none() {
            // It is borrowed: its owner goes on using it as soon as this returns, or unwinds.
            log!(self.inner().log, ERROR, "the caller of a scope waits for ever: {LOST}");
            Eventual::<()>::new().wait_ready_fully();
        }
        result.map_err(|panic| resume_unwind(panic))
    }

    /// A zeroed buffer for [`pull`](Self::pull) and [`push`](Self::push).
    ///
    /// # Errors
    ///
    /// [`BulkError::Alloc`] when there is no such memory, so that a length that a peer has given
    /// does no harm; [`BulkError::Register`].
    pub fn bulk_buffer(&self, bytes: usize) -> Result<BulkBuffer, BulkError> {
        let memory = Memory::zeroed(bytes).map_err(|error| BulkError::Alloc(HgError::Na(error)))?;
        let segment = memory.segments()[0];
        let memory = self.register_memory(memory, Access::ReadWrite)?;
        let endpoint = Arc::downgrade(self.inner().core.endpoint());
        Ok(BulkBuffer { memory, segment, endpoint })
    }

    /// Copies from the memory behind `remote`, which belongs to `from`, into `into[local]`. The
    /// fastest destination on one host is memory of [`alloc`](Self::alloc) that is exposed.
    ///
    /// Small memory that peers may only read comes as it was when `remote` was sent, which has the
    /// bytes with it.
    ///
    /// On the ULT of a handler it gives up at the deadline of the request, as calls do, unless in
    /// [`without_deadline`](crate::without_deadline). Without a deadline it gives up when it stands
    /// still for a minute (`margo.bulk.timeout_msec` in the configuration), with
    /// [`BulkError::StoodStill`]: a peer that serves nothing does not hold a handler for good.
    ///
    /// A peer that is stopped in the midst of the copy does not hold up what ends the transfer
    /// early (its limit, a cancel, the end of the instance). It may then write when it goes on. A
    /// buffer takes other memory for that reason, and leaves the old one to the peer. Memory that
    /// is [exposed](crate::Exposed) stays: `into[local]` may change until the peer has gone on or
    /// ended, another pull into it is refused meanwhile, and it is released after that.
    ///
    /// # Errors
    ///
    /// [`BulkError`]; `into[local]` then holds no particular bytes.
    ///
    /// Counterpart: `margo_bulk_transfer` with `HG_BULK_PULL`.
    pub fn pull(
        &self,
        from: &Addr,
        remote: &Bulk,
        remote_offset: u64,
        into: &mut impl LocalBulk,
        local: Range<usize>,
    ) -> Result<(), BulkError> {
        let plan = Plan { op: BulkOp::Pull, peer: from, remote, remote_offset, local };
        self.transfer(plan, into, None)
    }

    /// As [`pull`](Self::pull), for at most `limit` from now. Then the transfer is cancelled, and
    /// this returns as soon as the peer has said that it no longer touches the buffer, or a tenth
    /// of a second later if it does not answer.
    ///
    /// # Errors
    ///
    /// As `pull`, and [`BulkError::TimedOut`].
    ///
    /// Counterpart: `margo_bulk_transfer_timed`, for which zero is no limit.
    pub fn pull_timed(
        &self,
        from: &Addr,
        remote: &Bulk,
        remote_offset: u64,
        into: &mut impl LocalBulk,
        local: Range<usize>,
        limit: Duration,
    ) -> Result<(), BulkError> {
        let plan = Plan { op: BulkOp::Pull, peer: from, remote, remote_offset, local };
        self.transfer(plan, into, Some(limit))
    }

    /// Copies `from[local]` into the memory behind `remote`, which belongs to `to`. For deadlines
    /// see [`pull`](Self::pull).
    ///
    /// # Errors
    ///
    /// [`BulkError`]; the peer's memory then holds no particular bytes in that range.
    ///
    /// Counterpart: `margo_bulk_transfer` with `HG_BULK_PUSH`.
    pub fn push(
        &self,
        to: &Addr,
        remote: &Bulk,
        remote_offset: u64,
        from: &mut impl LocalBulk,
        local: Range<usize>,
    ) -> Result<(), BulkError> {
        let plan = Plan { op: BulkOp::Push, peer: to, remote, remote_offset, local };
        self.transfer(plan, from, None)
    }

    /// As [`push`](Self::push), for at most `limit` from now. Then the transfer is cancelled, as by
    /// [`pull_timed`](Self::pull_timed).
    ///
    /// # Errors
    ///
    /// As `push`, and [`BulkError::TimedOut`].
    ///
    /// Counterpart: `margo_bulk_transfer_timed`, for which zero is no limit.
    pub fn push_timed(
        &self,
        to: &Addr,
        remote: &Bulk,
        remote_offset: u64,
        from: &mut impl LocalBulk,
        local: Range<usize>,
        limit: Duration,
    ) -> Result<(), BulkError> {
        let plan = Plan { op: BulkOp::Push, peer: to, remote, remote_offset, local };
        self.transfer(plan, from, Some(limit))
    }

    /// A [`BulkBuffer`] is borrowed mutably by all callers, for both directions: the transfer has
    /// it for itself. Exposed memory is never seen as a slice.
    fn transfer(
        &self,
        plan: Plan<'_>,
        lent: &mut impl LocalBulk,
        limit: Option<Duration>,
    ) -> Result<(), BulkError> {
        if ult::is_tasklet() {
            return Err(BulkError::Tasklet);
        }
        let term = Deadline::of_call(limit, deadline::of_starter());
        let (peer, local) = (plan.peer, plan.local.clone());
        let call = Arc::new(BulkCall::waited_for(term.is_none()));
        let op = self.start_transfer(plan, lent.memory(), &call)?;
        let waited = self.wait_for(op, &call, term.map(|term| term.at));
        lent.set_aside(&local);
        if let Err(unwind) = waited {
            resume_unwind(unwind);
        }
        call.result(peer, term.map(|term| term.limit))
    }

    /// Starts a transfer, which ends through `call`; not if this returns an error.
    ///
    /// From then on until the end only the transfer may use `memory`, unless it is exposed.
    pub(crate) fn start_transfer(
        &self,
        plan: Plan<'_>,
        memory: &LocalMem,
        call: &Arc<BulkCall>,
    ) -> Result<OpRef, BulkError> {
        let Plan { op, peer, remote, remote_offset, local } = plan;
        let len = usize::try_from(memory.len()).unwrap_or(usize::MAX);
        if local.start > local.end || local.end > len {
            return Err(BulkError::LocalRange { start: local.start, end: local.end, len });
        }
        let failed = |source| BulkError::Transfer { peer: peer.to_string(), source };
        // Of a handler whose caller has given up.
        if deadline::of_starter().is_some_and(|deadline| deadline <= Instant::now()) {
            return Err(BulkError::TimedOut { peer: peer.to_string(), limit: Duration::ZERO });
        }
        self.inner().may_start().map_err(failed)?;
        let bytes = local.len() as u64;
        self.inner().monitoring.transfer_starts(&call.watch, op, peer, bytes);
        let started = self.inner().core_here().transfer(
            op,
            peer,
            remote,
            remote_offset,
            memory,
            local.start as u64,
            bytes,
            call.clone().into(),
        );
        call.watch.started();
        self.inner().kick();
        self.inner().operation_started();
        if call.may_stand && !call.done.is_ready() {
            self.inner().standing_transfers.begun(self);
        }
        started.map_err(|refused| {
            let source = refused.0;
            call.watch.over(&self.inner().monitoring, &call.given_up, &Err(source.clone()));
            failed(source)
        })
    }

    /// Waits for the end of a transfer. A ULT that is cancelled cancels its transfer, and unwinds
    /// when that is over, as this returns: the buffer is only lent to it.
    fn wait_for(
        &self,
        op: OpRef,
        call: &BulkCall,
        deadline: Option<Instant>,
    ) -> std::thread::Result<()> {
        // Whoever polls in progress's stead may meet a panic of the program's, of what takes the
        // log say, and the buffer is still lent then.
        let wait = || {
            self.inner().stand_in(&|| call.done.is_ready());
            self.inner().wait_for(&call.done, deadline)
        };
        let waited = catch_unwind(AssertUnwindSafe(wait));
        let why = match waited {
            Ok(true) => return Ok(()),
            Ok(false) => GaveUp::TimedOut,
            Err(_) => GaveUp::Canceled,
        };
        call.give_up(&**self.inner(), op, why);
        if waited.is_ok() && std::thread::panicking() {
            self.inner().bring_on(&|| call.done.is_ready(), None);
        }
        call.done.wait_ready_fully();
        waited.map(drop)
    }

    pub(crate) fn register_memory(
        &self,
        memory: Memory,
        access: Access,
    ) -> Result<LocalMem, BulkError> {
        self.inner().may_start().map_err(BulkError::Register)?;
        self.inner()
            .core
            .endpoint()
            .register(memory, access)
            .map_err(|error| BulkError::Register(HgError::Na(error)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_never_comes_back_is_told() {
        let comes_back = |tell: fn(GiveBack)| {
            let back = Arc::new(Back::new());
            tell(GiveBack::to(&back));
            comes_back(&back)
        };
        let back = comes_back(|hook| hook.with(Memory::from_vec(vec![7; 4])));
        assert_eq!(back.expect("it is here").into_owner::<Vec<u8>>().unwrap(), [7; 4]);
        assert!(comes_back(drop).is_none());
        // Later, and by another thread.
        let later = comes_back(|hook| drop(std::thread::spawn(move || drop(hook))));
        assert!(later.is_none());
    }
}
