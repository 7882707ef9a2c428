//! One waiting party of a sync object, on the stack of that party.
//!
//! All sync objects (mutex, eventual, channel, join and so on) keep lists of [`Waiter`]s and do not
//! know what stands behind one. A waiter is woken once: a ULT that waits suspends, an OS thread
//! sleeps on its futex, an async task returns and its waker is called.
//!
//! # How a wait ends
//!
//! | end | who decides | what the waiting party does |
//! |---|---|---|
//! | [`Wake::Woken`] | whoever unlinked the waiter | goes on; [`Waiter::note`] may tell more |
//! | [`Wake::TimedOut`] | the clock | unlinks the waiter and reports the timeout |
//! | [`Wake::Cancelled`] | who cancelled the ULT | unlinks the waiter and unwinds |
//!
//! If it cannot unlink it after a timeout or a cancel, because a waker has taken it, the wait has
//! been won: the party waits for the imminent wake-up and the win counts. [`Waiter::settle`] is all
//! of this in one place.
//!
//! # Who may touch what
//!
//! - The waiting party creates the waiter, links it into one object, and blocks.
//! - `links` belongs to the object (its lock, or the party that owns its list at that moment).
//! - The party that unlinks it from the object owns the right to wake it, exactly once
//!   ([`Waiter::wake`]).
//! - `woken` is the last thing that the waker touches: the waiting party may return, and its
//!   stack may be gone, as soon as it is set. So the waker first takes what it needs to wake the
//!   party: a count on the ULT's descriptor, on the thread's parker, or a clone of the waker. A ULT
//!   of the waker's own xstream cannot run meanwhile and needs no count.
//!
//! # Wakers of async tasks
//!
//! Wakers are foreign code, and run in the context of the party that happens to wake: the ULT that
//! makes progress, or a unit that has ended. So the effects are contained ([`as_bystander`]): a
//! panic is logged, and the code finds itself in no unit. And a waker may poll or drop its task at
//! once, with other futures that wait for the same object. So all waiters that are woken together
//! are marked as woken before the first waker is called ([`Deferred`]).

use std::ptr::NonNull;
use std::task::Waker;
use std::time::{Duration, Instant};

use crate::base::park_word::ThreadParker;
use crate::base::unwind::unwind;
use crate::base::wait_kind::WaitKind;
use crate::engine::model::waiter::{Links, Party, Waiter};
use crate::sync::atomic::AtomicUsize;
use crate::sync::atomic::Ordering::{Acquire, Release};
use crate::sync::{Arc, UnsafeCell};

#[cfg(not(loom))]
use crate::base::contain::{contained_alone, log};
#[cfg(not(loom))]
use crate::engine::model::unit::{UltPtr, UltRef};
#[cfg(not(loom))]
use crate::engine::model::xstream_shared::XstreamShared;
#[cfg(not(loom))]
use crate::engine::xstream::cancel;
#[cfg(not(loom))]
use crate::sync::atomic::Ordering::Relaxed;
#[cfg(not(loom))]
use prim::prefetch;

/// How a wait ended. See the module documentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(loom, allow(dead_code, reason = "nobody cancels in the models"))]
pub(crate) enum Wake {
    Woken,
    TimedOut,
    Cancelled,
}

/// The means to resume a party after its waiter is out of the waker's hands.
enum Call {
    /// A ULT of the waker's own xstream.
    #[cfg(not(loom))]
    Here(UltPtr),
    #[cfg(not(loom))]
    Ult(UltRef),
    Thread(Arc<ThreadParker>),
    Task(Waker),
}

/// The note of a plain [`Waiter::wake`].
const PLAIN: usize = 1;

impl Waiter {
    /// A waiter for the calling ULT, or for the calling thread if no ULT runs here or if the ULT
    /// must not be suspended because it is unwinding.
    pub(crate) fn new(kind: WaitKind) -> Self {
        Self::with_party(kind, Party::current())
    }

    /// A waiter for an async task: it never blocks, and its end calls `waker`.
    pub(crate) fn for_task(kind: WaitKind, waker: Waker) -> Self {
        Self::with_party(kind, Party::Task(waker))
    }

    fn with_party(kind: WaitKind, party: Party) -> Self {
        Self {
            #[cfg(not(loom))]
            home: party.home(),
            links: UnsafeCell::new(Links::new()),
            tag: std::ptr::null_mut(),
            woken: AtomicUsize::new(0),
            kind,
            party,
        }
    }

    /// Sets the tag to a number.
    pub(crate) fn with_number(mut self, number: usize) -> Self {
        self.tag = std::ptr::without_provenance_mut(number);
        self
    }

    /// A wait of a ULT for another core that costs no suspension: the ULT looks for itself for as
    /// long as its xstream, which has nothing else to run, would look for work. `true`: `done` said
    /// yes. For who has made the waiter and not linked it.
    ///
    /// The cache line of `done` comes here, and nothing else does: a suspended ULT costs its waker
    /// that of the waiter, of the descriptor and of the inbox, and the way back of all three.
    ///
    /// No such wait where somebody watches the switches, beside idle waiters (see [`spin`]), and
    /// after `deadline`.
    #[cfg_attr(loom, allow(unused_variables, reason = "the models have no use for time"))]
    #[inline]
    pub(crate) fn spin_idle(&self, deadline: Option<Instant>, done: impl Fn() -> bool) -> bool {
        #[cfg(not(loom))]
        if let Party::Ult(ult) = self.party {
            // Others of its pool are the common case.
            //
            // SAFETY:
            // - valid: set when the ULT, which is the caller, settled on this xstream, and slots
            //   stay while a ULT that is at home here points to them.
            let slot = unsafe { &*ult.slot.get() };
            return slot.list.is_empty() && spin_alone(ult, deadline, &done);
        }
        done()
    }

    /// Waits until woken, until `deadline`, or until the ULT is cancelled. After the latter two the
    /// waiter is still linked, unless a waker has just taken it.
    pub(crate) fn block(&self, deadline: Option<Instant>) -> Wake {
        self.party.block(self.kind, deadline, true, || self.is_woken())
    }

    /// Waits until woken, whatever happens.
    pub(crate) fn block_fully(&self) {
        self.party.block(self.kind, None, false, || self.is_woken());
    }

    /// Waits like [`block`](Self::block) and settles what follows. `true`: woken. `false`: the
    /// deadline passed, and the waiter is not linked any more. Unwinds if the ULT is cancelled.
    ///
    /// `unlink` takes the waiter out of its object and tells whether it was still there.
    pub(crate) fn settle(&self, deadline: Option<Instant>, unlink: impl FnOnce() -> bool) -> bool {
        let wake = self.block(deadline);
        if wake == Wake::Woken {
            return true;
        }
        if !unlink() {
            // A waker has it and touches it once more.
            self.block_fully();
            return true;
        }
        if wake == Wake::Cancelled {
            unwind();
        }
        false
    }

    /// A further waiter of the same party, to be linked into another object.
    pub(crate) fn beside(&self) -> Self {
        Self::with_party(self.kind, self.party.clone())
    }

    /// Waits until one of `waiters` is woken, which are [`beside`](Self::beside) this one.
    pub(crate) fn block_any(&self, waiters: &[Option<Self>], deadline: Option<Instant>) -> Wake {
        let ready = || waiters.iter().flatten().any(Self::is_woken);
        self.party.block(self.kind, deadline, true, ready)
    }

    /// Returns whether the wait has been ended by a waker, which then touches it no more.
    pub(crate) fn is_woken(&self) -> bool {
        self.note() != 0
    }

    /// Returns the note of the waker: zero if there was none yet.
    pub(crate) fn note(&self) -> usize {
        self.woken.load(Acquire) // pair: WAITER-WOKEN
    }

    /// Ends the wait.
    ///
    /// # Safety
    ///
    /// - `waiter` is alive and not yet woken, and the caller unlinked it from its object.
    /// - The caller does not touch it, or anything it may own, afterwards.
    pub(crate) unsafe fn wake(waiter: NonNull<Self>) {
        // SAFETY: the same duties.
        unsafe { Self::wake_with(waiter, PLAIN) }
    }

    /// Ends the wait and leaves a note, which is not zero.
    ///
    /// # Safety
    ///
    /// As for [`wake`](Self::wake).
    pub(crate) unsafe fn wake_with(waiter: NonNull<Self>, note: usize) {
        // SAFETY:
        // - alive: first duty of the caller, and it stays so until `woken` is set below;
        // - shared access only.
        let this = unsafe { waiter.as_ref() };
        #[cfg(not(loom))]
        if let Party::Ult(ult) = this.party
            && {
                prefetch::for_write(this.home);
                ult.state.cell.claim()
            }
        {
            // It cannot run, and hence not end, before it is pushed: no count is needed, and its
            // cache lines come here once.
            this.woken.store(note, Release); // pair: WAITER-WOKEN
            return crate::engine::xstream::push::push_claimed(ult);
        }
        let call = this.party.prepare();
        this.woken.store(note, Release); // pair: WAITER-WOKEN
        if let Some(call) = call {
            call.fire();
        }
    }

    /// Ends the wait of one of several. If it is that of an async task, its waker is called later,
    /// by `deferred`.
    ///
    /// # Safety
    ///
    /// As for [`wake`](Self::wake).
    #[inline]
    pub(crate) unsafe fn wake_among(waiter: NonNull<Self>, deferred: &mut Deferred) {
        // SAFETY:
        // - alive: duty of the caller; shared access only.
        let this = unsafe { waiter.as_ref() };
        if let Party::Task(_) = this.party {
            let call = this.party.prepare();
            this.woken.store(PLAIN, Release); // pair: WAITER-WOKEN
            return deferred.0.extend(call);
        }
        // SAFETY: the same duties.
        unsafe { Self::wake(waiter) }
    }
}

/// The wakers of async tasks whose waits have ended, to be called when all others have been told.
#[must_use = "whoever ends the waits of tasks must call their wakers"]
pub(crate) struct Deferred(Vec<Call>);

impl Deferred {
    pub(crate) const fn new() -> Self {
        Self(Vec::new())
    }

    /// Calls all of them, in the order in which they were added.
    #[inline]
    pub(crate) fn fire(self) {
        self.0.into_iter().for_each(Call::fire);
    }
}

/// Calls into the waker of an async task, which is anybody's code. The unit that calls it may have
/// ended and be gone, so the code must not find itself in a unit: what waits there blocks the
/// thread. `None`: it panicked, and that has been logged.
#[cfg(not(loom))]
#[cold]
fn as_bystander<R>(code: impl FnOnce() -> R) -> Option<R> {
    let code = || crate::engine::xstream::current::in_no_unit(code);
    contained_alone("the waker of a future, whose task may never be polled,", code)
}

/// Runs `code`; a panic in a model is the model's own failure and is not caught.
#[cfg(loom)]
fn as_bystander<R>(code: impl FnOnce() -> R) -> Option<R> {
    Some(code())
}

#[cfg(loom)]
impl Drop for Waiter {
    fn drop(&mut self) {
        // The model then reports a waker that comes too late.
        self.woken.with_mut(|_| ());
    }
}

impl Party {
    #[cfg(not(loom))]
    fn home(&self) -> *const XstreamShared {
        match self {
            Self::Ult(ult) => ult.home.load(Relaxed),
            Self::Thread(_) | Self::Task(_) => std::ptr::null(),
        }
    }

    #[cfg(not(loom))]
    fn current() -> Self {
        match crate::engine::xstream::current::suspendable() {
            Some(ult) => Self::Ult(ult),
            None => Self::Thread(thread_parker()),
        }
    }

    #[cfg(loom)]
    fn current() -> Self {
        Self::Thread(Arc::new(ThreadParker::new()))
    }

    /// Waits until `ready`. With `is_point` the wait is a cancellation point.
    #[cfg_attr(loom, allow(unused_variables, reason = "there are no ULTs in the models"))]
    fn block(
        &self,
        kind: WaitKind,
        deadline: Option<Instant>,
        is_point: bool,
        ready: impl Fn() -> bool,
    ) -> Wake {
        if ready() {
            return Wake::Woken;
        }
        match self {
            #[cfg(not(loom))]
            Self::Ult(ult) => {
                announce(*ult, kind);
                let is_cancelled = || is_point && cancel::is_pending(*ult);
                let ended = crate::engine::xstream::switch::suspend_until(*ult, deadline, || {
                    ready() || is_cancelled()
                });
                match (ready(), ended) {
                    (true, _) => Wake::Woken,
                    (false, true) => Wake::Cancelled,
                    (false, false) => Wake::TimedOut,
                }
            }
            Self::Thread(parker) => block_thread(parker, kind, deadline, ready),
            Self::Task(_) => unreachable!("an async task is polled again, it does not block"),
        }
    }

    /// `None`: the party cannot be called, which has been logged.
    fn prepare(&self) -> Option<Call> {
        Some(match self {
            #[cfg(not(loom))]
            Self::Ult(ult) if crate::engine::xstream::current::is_home_of(*ult) => Call::Here(*ult),
            #[cfg(not(loom))]
            Self::Ult(ult) => Call::Ult(UltRef::share(*ult)),
            Self::Thread(parker) => Call::Thread(parker.clone()),
            Self::Task(waker) => return as_bystander(|| waker.clone()).map(Call::Task),
        })
    }
}

#[cfg_attr(loom, allow(unused_variables, reason = "there are no ULTs in the models"))]
fn block_thread(
    parker: &ThreadParker,
    kind: WaitKind,
    deadline: Option<Instant>,
    ready: impl Fn() -> bool,
) -> Wake {
    #[cfg(not(loom))]
    let mut hold_up = HoldUp::begin();
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return if ready() { Wake::Woken } else { Wake::TimedOut };
        }
        #[cfg(not(loom))]
        let left = hold_up.as_ref().map_or(left, |hold_up| Some(hold_up.limit(left)));
        parker.park(left);
        if ready() {
            return Wake::Woken;
        }
        #[cfg(not(loom))]
        if hold_up.as_ref().is_some_and(|hold_up| hold_up.report(kind)) {
            hold_up = None;
        }
    }
}

/// A wait of a ULT that cannot be suspended because it is unwinding. If what it waits for is to
/// come from a unit of its own xstream, it never comes, and nothing else tells why.
#[cfg(not(loom))]
struct HoldUp {
    ult: UltPtr,
    since: Instant,
}

#[cfg(not(loom))]
impl HoldUp {
    /// So long a wait for another thread is no reason to worry.
    const PATIENCE: Duration = Duration::from_millis(100);

    fn begin() -> Option<Self> {
        let ult = crate::engine::xstream::current::ult().filter(|ult| !ult.is_tasklet())?;
        Some(Self { ult, since: Instant::now() })
    }

    /// How long to sleep before a look at the time.
    fn limit(&self, left: Option<Duration>) -> Duration {
        let patience = Self::PATIENCE.saturating_sub(self.since.elapsed());
        left.map_or(patience, |left| left.min(patience))
    }

    /// Reports it if it lasts. `true`: that has been done.
    fn report(&self, kind: WaitKind) -> bool {
        if self.since.elapsed() < Self::PATIENCE {
            return false;
        }
        let (id, name, pool) = (self.ult.id.get(), self.ult.name(), &*self.ult.pool().name);
        log!(
            ERROR,
            id,
            name,
            pool,
            waits_for = kind.as_str(),
            "a ULT waits in a destructor and holds up its xstream: it is unwinding because of a \
             panic, a cancel or an exit, and cannot be suspended; if it waits for a unit of the \
             same xstream, this never ends"
        );
        true
    }
}

impl Call {
    fn fire(self) {
        match self {
            #[cfg(not(loom))]
            Self::Here(ult) => crate::engine::xstream::push::resume(ult),
            #[cfg(not(loom))]
            Self::Ult(ult) => crate::engine::xstream::push::resume(ult.ptr()),
            Self::Thread(parker) => parker.unpark(),
            Self::Task(waker) => {
                as_bystander(|| waker.wake());
            }
        }
    }
}

/// Every wait of a ULT for a sync object passes here before it suspends.
#[cfg(not(loom))]
#[inline]
fn announce(ult: UltPtr, kind: WaitKind) {
    ult.state.waits.set(kind);
}

/// The parker of the calling OS thread. One per thread, and a fresh one while the thread is
/// running its last destructors.
#[cfg(not(loom))]
pub(crate) fn thread_parker() -> Arc<ThreadParker> {
    thread_local! {
        static PARKER: Arc<ThreadParker> = Arc::new(ThreadParker::new());
    }
    PARKER.try_with(Arc::clone).unwrap_or_else(|_| Arc::new(ThreadParker::new()))
}

/// The end of a timeout that starts now. `None`: beyond the range of the clock, hence never.
pub(crate) fn after(timeout: Duration) -> Option<Instant> {
    Instant::now().checked_add(timeout)
}

/// The patience of a spin while this xstream has other units to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SpinFor {
    /// For a fraction of a microsecond, which is what a suspension costs.
    Holder,
    /// Not at all: another unit of this xstream may be what the caller waits for.
    Other,
}

/// A wait of a few microseconds at most for another core, before the caller really waits. Returns
/// what `done` said last.
///
/// On an xstream with idle waiters it is as short as if there were other units to run: they watch
/// the outside, and a spin here would be blind to it.
#[cfg(not(loom))]
pub(crate) fn spin(what: SpinFor, mut done: impl FnMut() -> bool) -> bool {
    const ROUNDS: u32 = 10;
    const ROUNDS_IF_BUSY: u32 = 4;
    const PAUSES_MAX: u32 = 32;
    let patient_rounds = if what == SpinFor::Holder { ROUNDS_IF_BUSY } else { 0 };
    let is_watching =
        crate::engine::xstream::current::xstream().is_some_and(|here| !here.idle.is_empty());
    let rounds = if is_watching { patient_rounds } else { ROUNDS };
    for round in 0..rounds {
        if done() {
            return true;
        }
        if round >= patient_rounds && crate::engine::xstream::runnable::has_runnable() {
            return false;
        }
        for _ in 0..(2 << round).min(PAUSES_MAX) {
            crate::sync::hint::spin_loop();
        }
    }
    done()
}

/// See [`Waiter::spin_idle`].
#[cfg(not(loom))]
#[cold]
fn spin_alone(ult: UltPtr, deadline: Option<Instant>, done: &dyn Fn() -> bool) -> bool {
    let Some(xstream) = crate::engine::xstream::current::xstream() else { return done() };
    let is_busy = || xstream.has_runnable() || xstream.has_jobs();
    let is_over = || done() || is_busy() || cancel::is_pending(ult);
    if !xstream.idle.is_empty() || xstream.is_watched() || is_over() {
        return done();
    }
    let limit = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    xstream.spin.spin(limit.unwrap_or(Duration::MAX), is_over);
    done()
}

/// One look: the models have no use for time.
#[cfg(loom)]
pub(crate) fn spin(_what: SpinFor, mut done: impl FnMut() -> bool) -> bool {
    done()
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::{PoolSpec, Runtime, XstreamSpec};

    /// How often a spin in vain looks.
    fn looks(what: SpinFor) -> usize {
        let mut looks = 0;
        let is_done = spin(what, || {
            looks += 1;
            false
        });
        assert!(!is_done);
        looks
    }

    #[test]
    fn nobody_spins_beside_an_idle_waiter() -> Result<(), Box<dyn std::error::Error>> {
        let runtime = Runtime::builder()
            .pool(PoolSpec::new("p"))
            .xstream(XstreamSpec::new("x").pools(["p"]))
            .start()?;
        let pool = runtime.pool("p").ok_or("defined above")?;
        let inner = pool.clone();
        let run = move || {
            let (_writer, reader) = UnixStream::pair()?;
            let watches =
                inner.spawn(move || crate::integration::idle(reader.as_fd(), None, || true));
            // It runs first, and nothing ends its wait before this one has run.
            let spins = inner.spawn(|| [SpinFor::Other, SpinFor::Holder].map(looks));
            let looks = spins.map_err(std::io::Error::other)?.join();
            drop(watches);
            looks.map_err(std::io::Error::other)
        };
        let alone = pool.spawn(|| looks(SpinFor::Other))?.join()?;
        assert!(alone > 5, "otherwise it spins: {alone}");
        assert_eq!(pool.spawn(run)?.join()??, [1, 5]);
        runtime.shutdown()?;
        Ok(())
    }
}
