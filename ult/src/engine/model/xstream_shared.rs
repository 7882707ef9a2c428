//! The part of an xstream that every thread may use.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::ptr;
use std::time::Duration;

use crate::base::inbox::{Closed, Inbox};
use crate::base::park_word::{ParkMode, ParkWord};
use crate::engine::model::interfaces::OwnScheduler;
use crate::engine::model::pool::{PoolCounters, PoolShared};
use crate::engine::model::unit::{Ult, UltPtr};
use crate::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use crate::sync::atomic::{
    AtomicBool, AtomicI32, AtomicIsize, AtomicU8, AtomicU64, AtomicUsize, fence,
};
use crate::sync::{Arc, Mutex, lock, thread};
use prim::lost;

/// How the eventfd is called, should it be lost.
pub(crate) const EVENTFD_NAME: &str = "the eventfd that wakes an execution stream";

/// Something that an xstream does on its own stack, between units; see
/// [`ask`](XstreamShared::ask).
pub(crate) type Request = Box<dyn FnOnce() + Send>;

/// Where an xstream is in its life; see [`XstreamState`](crate::XstreamState).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum State {
    Running = 0,
    /// Asked to leave when its pools are empty and no ULT calls it home.
    Joining = 1,
    /// Gives up what it has.
    Leaving = 2,
    Terminated = 3,
    Removed = 4,
}

impl State {
    fn from_u8(state: u8) -> Self {
        match state {
            0 => Self::Running,
            1 => Self::Joining,
            2 => Self::Leaving,
            3 => Self::Terminated,
            _ => Self::Removed,
        }
    }
}

/// See the module documentation. Lives as long as its runtime's shared part, also after the xstream
/// has been removed.
#[repr(C, align(128))]
pub(crate) struct XstreamShared {
    pub(crate) inbox: Inbox<Ult>,
    word: ParkWord,
    /// The phase has changed, or there are requests.
    signalled: AtomicBool,
    state: AtomicU8,
    /// See [`lives_ended`](Self::lives_ended).
    lives_ended: AtomicU64,
    /// The stacked schedulers shall look whether their pools have units.
    wakes_stacks: AtomicBool,
    /// The last phase word that the xstream has seen.
    seen: AtomicU64,
    requests: Mutex<VecDeque<Request>>,
    /// For a wake from `poll`. `None`: it has been removed. One that runs has a count of its own.
    eventfd: Mutex<Option<Arc<OwnedFd>>>,
    /// Totals of its slots in pools that have been removed since; see
    /// [`RuntimeCore::forget_pool`](crate::engine::model::runtime_core::RuntimeCore::forget_pool).
    pub(crate) past: PoolCounters,
    /// Statistics as of its own removal.
    pub(crate) last_stats: Mutex<Option<XstreamStats>>,
    pub(crate) name: Box<str>,
    pub(crate) index: usize,
    rank: AtomicUsize,
    /// Stacks that exist here. One writer: the xstream.
    pub(crate) stacks: AtomicUsize,
    pub(crate) cpus: Mutex<Vec<usize>>,
    /// The pools that it serves, in the scheduler's order. Changed under the lock of the layout.
    pub(crate) pools: Mutex<Vec<Arc<PoolShared>>>,
    /// The pools while it is cancelled, for the revival.
    pub(crate) parked_pools: Mutex<Vec<Arc<PoolShared>>>,
    /// ULTs that have started here and not ended. One writer: the xstream.
    pub(crate) ults: AtomicUsize,
    /// Timers that stand for nothing any more; see [`timed_unit`](crate::time::timed_unit). May be
    /// negative for a moment: the xstream may be faster to count one out than another to count it.
    pub(crate) stale_timers: AtomicIsize,
    /// Times that it went to sleep. One writer: the xstream.
    pub(crate) sleeps: AtomicU64,
    pub(crate) slept: Slept,
    /// It is the thread that started the runtime.
    primary: AtomicBool,
    pub(crate) thread: Mutex<Option<thread::JoinHandle<()>>>,
    pub(crate) diag: crate::engine::pulse::Pulse,
    /// The scheduler that it shall have from the next round on.
    scheduler: Mutex<Option<OwnScheduler>>,
    /// The number that the system has for the thread; 0: none yet. One writer: the xstream.
    pub(crate) system_thread: AtomicI32,
}

/// How long an xstream has slept, the sleep that goes on included. One writer: the xstream.
///
/// One word, so that what is read never goes back: while awake the time slept; while asleep, under
/// `ASLEEP`, the time not slept, which is what does not change then. Nanoseconds since the epoch of
/// the runtime.
#[derive(Debug, Default)]
pub(crate) struct Slept(AtomicU64);

const ASLEEP: u64 = 1 << 63;

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX) & !ASLEEP
}

impl Slept {
    /// Falls asleep.
    pub(crate) fn begin(&self, now: Duration) {
        let slept = self.0.load(Relaxed) & !ASLEEP;
        // After the clock was read, for who reads it between two looks.
        self.0.store(ASLEEP | nanos(now).saturating_sub(slept), Release); // pair: SLEPT
    }

    /// Ends the sleep: the xstream is awake again.
    pub(crate) fn end(&self, now: Duration) {
        let awake = self.0.load(Relaxed) & !ASLEEP;
        self.0.store(nanos(now).saturating_sub(awake), Release); // pair: SLEPT
    }

    /// The clock is read between two looks at the word: before the beginning of a sleep it would
    /// give too little, and after its end too much.
    pub(crate) fn total(&self, now: impl Fn() -> Duration) -> Duration {
        loop {
            let word = self.0.load(Relaxed);
            if word & ASLEEP == 0 {
                return Duration::from_nanos(word);
            }
            let now = now();
            // The second look is not taken before the clock.
            fence(Acquire); // pair: SLEPT
            if self.0.load(Relaxed) == word {
                return Duration::from_nanos(nanos(now).saturating_sub(word & !ASLEEP));
            }
        }
    }
}

impl XstreamShared {
    pub(crate) fn new(name: &str, index: usize, rank: usize) -> io::Result<Self> {
        use rustix::event::{EventfdFlags, eventfd};
        let eventfd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self {
            inbox: Inbox::new(),
            word: ParkWord::new(),
            signalled: AtomicBool::new(false),
            state: AtomicU8::new(State::Running as u8),
            lives_ended: AtomicU64::new(0),
            wakes_stacks: AtomicBool::new(false),
            seen: AtomicU64::new(0),
            requests: Mutex::default(),
            eventfd: Mutex::new(Some(Arc::new(eventfd))),
            past: PoolCounters::default(),
            last_stats: Mutex::default(),
            name: name.into(),
            index,
            rank: AtomicUsize::new(rank),
            stacks: AtomicUsize::new(0),
            cpus: Mutex::default(),
            pools: Mutex::default(),
            parked_pools: Mutex::default(),
            ults: AtomicUsize::new(0),
            sleeps: AtomicU64::new(0),
            slept: Slept::default(),
            stale_timers: AtomicIsize::new(0),
            primary: AtomicBool::new(false),
            thread: Mutex::default(),
            system_thread: AtomicI32::new(0),
            diag: crate::engine::pulse::Pulse::default(),
            scheduler: Mutex::default(),
        })
    }

    pub(crate) fn rank(&self) -> usize {
        self.rank.load(Relaxed)
    }

    pub(crate) fn set_rank(&self, rank: usize) {
        self.rank.store(rank, Relaxed);
    }

    pub(crate) fn state(&self) -> State {
        State::from_u8(self.state.load(Acquire)) // pair: XSTREAM-STATE
    }

    pub(crate) fn set_state(&self, state: State) {
        self.state.store(state as u8, Release); // pair: XSTREAM-STATE
    }

    /// How often its thread has ended.
    pub(crate) fn lives_ended(&self) -> u64 {
        self.lives_ended.load(Acquire) // pair: XSTREAM-LIFE
    }

    /// The thread ends: the last thing that is said of this life.
    pub(crate) fn end_life(&self) {
        self.lives_ended.fetch_add(1, Release); // pair: XSTREAM-LIFE
    }

    /// Changes the state unless somebody else has.
    pub(crate) fn change_state(&self, from: State, to: State) -> bool {
        // pair: XSTREAM-STATE
        self.state.compare_exchange(from as u8, to as u8, AcqRel, Relaxed).is_ok()
    }

    pub(crate) fn is_primary(&self) -> bool {
        self.primary.load(Relaxed)
    }

    pub(crate) fn set_primary(&self) {
        self.primary.store(true, Relaxed);
    }

    /// The descriptor for its sleep; for its thread.
    pub(crate) fn eventfd(&self) -> Option<Arc<OwnedFd>> {
        lock(&self.eventfd).clone()
    }

    /// It has been removed: gives back what the system has for it, and drops what it was asked and
    /// will not come to. A wake that comes late, for a sleep that is over, finds nothing to write
    /// to.
    pub(crate) fn set_removed(&self) {
        *lock(&self.eventfd) = None;
        self.set_state(State::Removed);
        self.drop_requests();
    }

    fn drop_requests(&self) {
        let requests = std::mem::take(&mut *lock(&self.requests));
        // Not under the lock: there are units in some.
        drop(requests);
    }

    pub(crate) fn is_removed(&self) -> bool {
        self.state() == State::Removed
    }

    /// Leaves a scheduler for the next start, or for the next reconfiguration. Returns the one that
    /// nobody has taken, which is not to be dropped while a lock is held: it is the user's.
    pub(crate) fn put_scheduler(&self, scheduler: OwnScheduler) -> Option<OwnScheduler> {
        lock(&self.scheduler).replace(scheduler)
    }

    pub(crate) fn take_scheduler(&self) -> Option<OwnScheduler> {
        lock(&self.scheduler).take()
    }

    /// In place of the home of a migratable ULT that is queued where any xstream may take it. Only
    /// compared.
    pub(crate) fn nowhere() -> *mut Self {
        ptr::without_provenance_mut(align_of::<Self>())
    }

    /// Returns whether the inbox or the signal wants attention. Two loads.
    #[inline]
    pub(crate) fn has_mail(&self) -> bool {
        !self.inbox.is_empty() || self.signalled.load(Relaxed)
    }

    /// Hands a unit to this xstream: a resumed ULT that is at home here, or an unstarted unit of
    /// a pool that it owns. The unit's queue membership passes to the inbox.
    ///
    /// The caller keeps the shared part of the runtime alive.
    ///
    /// # Errors
    ///
    /// [`Closed`] if the xstream has left; the unit is still the caller's. Never for a ULT that is
    /// at home here: an xstream with such ULTs does not leave.
    pub(crate) fn send(&self, ult: UltPtr) -> Result<(), Closed> {
        // SAFETY:
        // - in no queue: its membership is handed over;
        // - valid until taken: it has not ended, so the runtime keeps it.
        let was_empty = unsafe { self.inbox.push(ult.as_non_null()) }?;
        // Otherwise an earlier sender is about to look.
        if was_empty {
            fence(SeqCst); // pair: PARK-DEKKER
            self.wake_after_fence();
        }
        Ok(())
    }

    /// Makes the xstream look at phase, state and requests.
    pub(crate) fn signal(&self) {
        self.signalled.store(true, Release); // pair: SIGNAL
        fence(SeqCst); // pair: PARK-DEKKER
        self.wake_after_fence();
    }

    pub(crate) fn take_signal(&self) -> bool {
        // pair: SIGNAL
        self.signalled.load(Relaxed) && self.signalled.swap(false, AcqRel)
    }

    /// Makes the stacked schedulers that sleep there look whether their pools have units.
    pub(crate) fn wake_stacks(&self) {
        // If it is set already, the signal of who has set it is still to be taken.
        // pair: WAKES-STACKS
        if !self.wakes_stacks.swap(true, AcqRel) {
            self.signal();
        }
    }

    /// Returns whether somebody has asked for that since the last time. Comes after the signal is
    /// taken.
    pub(crate) fn take_stack_wake(&self) -> bool {
        self.wakes_stacks.swap(false, AcqRel) // pair: WAKES-STACKS
    }

    /// Leaves `request` for the xstream.
    pub(crate) fn put_request(&self, request: Request) {
        lock(&self.requests).push_back(request);
        self.signal();
    }

    /// How many there are to take. Only the xstream takes them.
    pub(crate) fn requests(&self) -> usize {
        lock(&self.requests).len()
    }

    pub(crate) fn take_request(&self) -> Option<Request> {
        lock(&self.requests).pop_front()
    }

    /// Drops what it was asked and given and will not come to; the runtime has ended.
    pub(crate) fn bury(&self) {
        self.drop_requests();
        drop(self.take_scheduler());
    }

    /// Wakes the xstream if it sleeps, and tells whether it did. The caller has published work and
    /// put a `fence(SeqCst)` behind it.
    pub(crate) fn wake_after_fence(&self) -> bool {
        if !self.word.looks_asleep() {
            return false;
        }
        match self.word.notify() {
            None => return false,
            Some(ParkMode::Futex) => self.word.wake_futex(),
            Some(ParkMode::Poll) => {
                if let Some(eventfd) = &*lock(&self.eventfd) {
                    lost::ring(&**eventfd, EVENTFD_NAME);
                }
            }
        }
        true
    }

    /// For the owner's sleep.
    pub(crate) fn word(&self) -> &ParkWord {
        &self.word
    }

    pub(crate) fn is_asleep(&self) -> bool {
        self.word.looks_asleep()
    }

    /// The xstream has looked at the phase word.
    pub(crate) fn see(&self, word: u64) {
        self.seen.store(word, Release); // pair: PHASE-SEEN
    }

    /// Returns whether the xstream has seen that phase word. An xstream that has left need not
    /// look.
    pub(crate) fn has_seen(&self, word: u64) -> bool {
        matches!(self.state(), State::Terminated | State::Removed)
            || self.seen.load(Acquire) >= word // pair: PHASE-SEEN
    }
}

impl fmt::Debug for XstreamShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("XstreamShared").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Counters of an xstream; see [`XstreamRef::stats`](crate::XstreamRef::stats).
///
/// ```
/// # use ult::{PoolSpec, Runtime, XstreamSpec};
/// # let runtime = Runtime::builder()
/// #     .pool(PoolSpec::new("main"))
/// #     .xstream(XstreamSpec::new("x0").pools(["main"]))
/// #     .start()?;
/// # let pool = runtime.pool("main").expect("defined above");
/// pool.spawn(ult::yield_now)?.join()?;
/// let stats = runtime.xstream("x0").expect("defined above").stats();
/// // The ULT ran until it yielded, and then to its end.
/// assert_eq!((stats.executed, stats.yields, stats.finished), (2, 1, 1));
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct XstreamStats {
    /// Times that a unit has run here until it yielded, suspended or ended.
    pub executed: u64,
    /// Units that ended here.
    pub finished: u64,
    /// Times that a ULT yielded.
    pub yields: u64,
    /// Times that a ULT suspended itself.
    pub parked: u64,
    /// Times that a suspended ULT was resumed and queued.
    pub resumed: u64,
    /// Times that a suspended ULT was run at once instead, past the queue.
    pub run_at_once: u64,
    /// Times that the xstream slept because there was nothing to run.
    pub sleeps: u64,
    /// For how long it has slept, a sleep that goes on included. The rest of the time it has run
    /// units or looked for some. Never goes back.
    pub slept: Duration,
    /// ULTs that have started here and not ended.
    pub ults: usize,
    /// Stacks that exist here, in use or idle.
    pub stacks: usize,
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn time_asleep_grows_only_while_asleep() {
        let (slept, ms) = (Slept::default(), Duration::from_millis);
        assert_eq!(slept.total(|| ms(10)), ms(0));
        slept.begin(ms(10));
        assert_eq!(slept.total(|| ms(10)), ms(0));
        assert_eq!(slept.total(|| ms(14)), ms(4));
        slept.end(ms(15));
        assert_eq!([15, 99].map(|now| slept.total(|| ms(now))), [ms(5), ms(5)]);
        slept.begin(ms(100));
        assert_eq!(slept.total(|| ms(107)), ms(12));
        slept.end(ms(110));
        assert_eq!(slept.total(|| ms(111)), ms(15));
    }
}
