//! Cancel tokens, which tell handlers that their origin does not wait for the answer any more.
//!
//! A handler that works for long asks its [`Handle`](crate::Handle) for a [`CancelToken`], and only
//! then anything is done for it: the token is entered here under the name of the call, its origin
//! is watched, and a timer is set for the deadline. So a request whose handler does not ask costs
//! nothing, except for looks at `Cancels::early_lanes` when it comes, starts and ends.
//!
//! An origin stays watched when its requests are over, as it may send others. But of origins
//! without requests only [`IDLE_WATCHED_MAX`] are watched, or fewer where the network takes few
//! receives. For not every transport tells that a peer which is sent nothing is gone, and its watch
//! would stay for ever.
//!
//! A cancel may come before the handler starts, or before it asks for a token. It is kept for a
//! while ([`EARLY_MAX`], [`EARLY_KEPT`]), so that a handler which has not started does not, and one
//! that asks later is told.
//!
//! | state | touched by | under |
//! |---|---|---|
//! | `Cancels::tokens` | progress ULTs, handlers | its lock |
//! | `Cancels::early_lanes` | written under that lock | anybody: only a hint |
//! | `TokenState::fired` | the first who fires it | anybody |

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use hg::{CallKey, Watch};
use na::fork::Process;
use ult::{Eventual, PoolRef};

use crate::Addr;
use crate::operation::cancel_link::LinkedCalls;
use crate::operation::deadline_timer::DeadlineTimer;
use crate::operation::early::EndsEarly;
use crate::support::log::Log;

/// Most cancels that are kept for requests which have not asked yet.
const EARLY_MAX: usize = 4096;

/// How long they are kept.
const EARLY_KEPT: Duration = Duration::from_secs(60);

/// Most origins that are watched while none of their requests has a token.
const IDLE_WATCHED_MAX: usize = 1024;

/// The reason why an answer is not waited for any more.
///
/// ```
/// use margo::{Handle, cancel::CancelReason};
///
/// /// Returns whether what a handler has so far is worth keeping when it stops early.
/// fn keep_results(request: &Handle<String, u64>) -> bool {
///     match request.cancel_token().reason() {
///         // The origin may ask again.
///         None | Some(CancelReason::DeadlinePassed) => true,
///         Some(reason) => {
///             println!("`{}` is not needed any more: {reason}", request.args());
///             false
///         }
///     }
/// }
/// assert_eq!(CancelReason::OriginGone.to_string(), "its origin is gone");
/// # let _ = keep_results;
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CancelReason {
    /// The deadline that came with the request has passed.
    DeadlinePassed,
    /// The origin has canceled its call.
    Canceled,
    /// The origin's process has ended, or the connection to it.
    OriginGone,
    /// This instance shuts down, and its grace period is over.
    Closing,
    /// This process is a child that was forked off: the request is its parent's, which is told what
    /// becomes of it.
    Forked,
}

impl fmt::Display for CancelReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DeadlinePassed => "its deadline has passed",
            Self::Canceled => "its origin has canceled it",
            Self::OriginGone => "its origin is gone",
            Self::Closing => "the instance shuts down",
            Self::Forked => "this process was forked off: its parent process has the request",
        })
    }
}

/// A token that fires when the answer of a request is not waited for any more; from
/// [`Handle::cancel_token`](crate::Handle::cancel_token). Cheap to clone, and may be given to other
/// ULTs and threads.
///
/// It fires at most once, and only tells: the handler goes on until it looks, and may still answer.
/// So do its own calls, unless they are made in [`cancels_calls_in`](Self::cancels_calls_in).
///
/// That a call was canceled is said by a message that comes as requests do. While as many requests
/// wait to be decoded as may (`margo.requests_max`, by default 16384) none is taken, so it is told
/// when some of them have begun. Deadlines, and origins that are gone, are told all the same.
///
/// ```
/// use std::sync::mpsc;
///
/// use margo::{Instance, ProviderHandle, Rpc, cancel::CancelReason};
///
/// const LONG: Rpc<(), ()> = Rpc::new("long");
///
/// let service = Instance::builder("na+sm://").start()?;
/// let (sender, tokens) = mpsc::channel();
/// service.register(LONG, move |request| {
///     let token = request.cancel_token();
///     let _ = sender.send(token.clone());
///     token.wait(); // Or check `is_canceled` now and then.
/// })?;
/// let call = service.rpc(LONG, &ProviderHandle::from(service.self_addr()), &()).start()?;
/// let token = tokens.recv()?;
/// drop(call);
/// assert_eq!(token.wait(), CancelReason::Canceled);
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct CancelToken(Arc<TokenState>);

struct TokenState {
    number: u64,
    process: Process,
    fired: Eventual<CancelReason>,
    deadline: Option<Instant>,
    /// At the deadline. One that is set keeps its runtime from ending.
    alarm: DeadlineTimer,
    /// The calls that it ends.
    ties: LinkedCalls,
}

impl CancelToken {
    /// Makes the token of a request of the process from which this one was forked off.
    pub(crate) fn of_parent(process: Process) -> Self {
        Self(Arc::new(TokenState::new(0, process, None)))
    }

    /// The calls that it ends.
    pub(crate) fn ties(&self) -> &LinkedCalls {
        &self.0.ties
    }

    /// Returns whether it has fired.
    pub fn is_canceled(&self) -> bool {
        self.reason().is_some()
    }

    /// Returns why it has fired, if it has.
    pub fn reason(&self) -> Option<CancelReason> {
        if let Some(reason) = self.0.fired.try_get() {
            return Some(*reason);
        }
        if self.0.process.is_other() {
            return Some(CancelReason::Forked);
        }
        // The timer's turn may not have come: this may be what keeps its xstream busy.
        self.0.deadline.filter(|deadline| *deadline <= Instant::now())?;
        self.0.fire(CancelReason::DeadlinePassed);
        self.0.fired.try_get().copied()
    }

    /// Waits until it fires. For work of other ULTs that is to be ended then.
    pub fn wait(&self) -> CancelReason {
        self.reason().unwrap_or_else(|| *self.0.fired.wait())
    }

    /// Waits until it fires, for at most `limit`; `None`: it has not.
    pub fn wait_timeout(&self, limit: Duration) -> Option<CancelReason> {
        if let Some(reason) = self.reason() {
            return Some(reason);
        }
        match Instant::now().checked_add(limit) {
            Some(deadline) => self.0.fired.wait_deadline(deadline).copied(),
            None => Some(self.wait()),
        }
    }

    /// Returns the event that is set when the token fires: to wait for it together with other
    /// things ([`ult::wait_any`]), or to await it ([`ult::ready`]).
    pub fn event(&self) -> &Eventual<CancelReason> {
        if self.0.process.is_other() && !self.0.fired.is_ready() { &FORKED } else { &self.0.fired }
    }
}

/// The event of tokens in a child process that was forked off: it never comes.
static FORKED: LazyLock<Eventual<CancelReason>> = LazyLock::new(|| {
    let told = Eventual::new();
    let _ = told.set(CancelReason::Forked);
    told
});

impl fmt::Debug for CancelToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CancelToken").field("reason", &self.0.fired.try_get()).finish()
    }
}

impl TokenState {
    fn new(number: u64, process: Process, deadline: Option<Instant>) -> Self {
        let (fired, alarm, ties) =
            (Eventual::new(), DeadlineTimer::default(), LinkedCalls::default());
        Self { number, process, fired, deadline, alarm, ties }
    }

    fn fire(&self, reason: CancelReason) {
        // Whoever was first has the better reason.
        let _ = self.fired.set(reason);
        self.alarm.end();
        self.ties.end();
    }
}

impl Drop for TokenState {
    fn drop(&mut self) {
        self.alarm.end();
    }
}

/// See [`Addr::connection`].
type Connection = (u64, u64);

/// The tokens of an instance.
pub(crate) struct Cancels {
    tokens: Mutex<Tokens>,
    /// A bit for each lane ([`CallKey::lane`]) of a cancel that came early.
    early_lanes: AtomicU64,
    numbers: AtomicU64,
}

struct Tokens {
    by_call: HashMap<(Addr, CallKey), Weak<TokenState>>,
    /// By the connection from which they call: it is what is watched.
    by_origin: HashMap<Connection, Origin>,
    /// Cancels that came before a handler asked.
    early: HashMap<(Addr, CallKey), Instant>,
    early_in_order: VecDeque<(Addr, CallKey, Instant)>,
    /// How many of them are in each lane.
    lanes: TokenLanes,
    /// Watched origins that had no token when they came in, those longest there first.
    idle: VecDeque<Connection>,
    idle_max: usize,
    over: bool,
}

struct TokenLanes([usize; 64]);

impl Default for TokenLanes {
    fn default() -> Self {
        Self([0; 64])
    }
}

impl TokenLanes {
    fn bits(&self) -> u64 {
        let used = self.0.iter().enumerate().filter(|(_, count)| **count > 0);
        used.fold(0, |bits, (lane, _)| bits | 1 << lane)
    }
}

/// An origin with tokens, or that had some.
#[derive(Default)]
struct Origin {
    /// Or is about to be.
    watched: bool,
    watch: Option<Watch>,
    /// True if it is in `Tokens::idle`.
    is_idle: bool,
    tokens: HashMap<u64, Weak<TokenState>>,
}

/// The parts that a token is made of.
pub(crate) struct Wanted<'a, B> {
    pub(crate) origin: &'a Addr,
    pub(crate) call: Option<CallKey>,
    pub(crate) deadline: Option<Instant>,
    /// Where the alarm goes off.
    pub(crate) by: &'a B,
}

impl Cancels {
    /// For an instance whose network has receives for so many origins that are watched idly.
    pub(crate) fn new(idle_max: usize) -> Self {
        let tokens = Tokens {
            by_call: HashMap::new(),
            by_origin: HashMap::new(),
            early: HashMap::new(),
            early_in_order: VecDeque::new(),
            lanes: TokenLanes::default(),
            idle: VecDeque::new(),
            idle_max: idle_max.clamp(1, IDLE_WATCHED_MAX),
            over: false,
        };
        let (early_lanes, numbers) = Default::default();
        Self { tokens: Mutex::new(tokens), early_lanes, numbers }
    }

    /// A token for a request. `true`: its origin is to be watched from now on.
    pub(crate) fn token<B: EndsEarly>(&self, wanted: &Wanted<'_, B>) -> (CancelToken, bool) {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let state = Arc::new(TokenState::new(number, Process::current(), wanted.deadline));
        let is_new = self.enter(wanted, &state);
        if !state.fired.is_ready() {
            set_alarm(&state, wanted.by.log(), wanted.by.timer_pools());
        }
        (CancelToken(state), is_new)
    }

    fn enter<B>(&self, wanted: &Wanted<'_, B>, state: &Arc<TokenState>) -> bool {
        let mut tokens = self.tokens();
        if tokens.over {
            state.fire(CancelReason::Closing);
            return false;
        }
        if let Some(call) = wanted.call {
            let name = (wanted.origin.clone(), call);
            if tokens.take_early(&name) {
                self.note_lanes(&tokens);
                state.fire(CancelReason::Canceled);
            }
            tokens.by_call.insert(name, Arc::downgrade(state));
        }
        let origin = tokens.by_origin.entry(wanted.origin.connection()).or_default();
        origin.tokens.insert(state.number, Arc::downgrade(state));
        !std::mem::replace(&mut origin.watched, true)
    }

    /// The request of a token is over: it can neither be canceled nor abandoned any more. `Some`:
    /// what is to be watched no longer because of that.
    pub(crate) fn forget(
        &self,
        token: &CancelToken,
        origin: &Addr,
        call: Option<CallKey>,
    ) -> Option<Watch> {
        token.0.alarm.end();
        let mut tokens = self.tokens();
        if let Some(call) = call {
            tokens.by_call.remove(&(origin.clone(), call));
        }
        let own = tokens.by_origin.get_mut(&origin.connection())?;
        own.tokens.remove(&token.0.number);
        if !own.tokens.is_empty() {
            return None;
        }
        if !own.watched {
            tokens.by_origin.remove(&origin.connection());
            return None;
        }
        if !std::mem::replace(&mut own.is_idle, true) {
            tokens.idle.push_back(origin.connection());
        }
        tokens.leave_idle()
    }

    /// An origin is watched, as [`token`](Self::token) has asked for.
    pub(crate) fn watched(&self, origin: &Addr, watch: Watch) {
        if let Some(origin) = self.tokens().by_origin.get_mut(&origin.connection()) {
            origin.watch = Some(watch);
        }
    }

    /// An origin has canceled a call. `may_be_here` is asked if there is no token for it: whether
    /// there is any request that could be meant.
    pub(crate) fn canceled(
        &self,
        origin: &Addr,
        call: CallKey,
        may_be_here: impl FnOnce() -> bool,
    ) {
        let mut tokens = self.tokens();
        let name = (origin.clone(), call);
        if let Some(token) = tokens.by_call.get(&name).and_then(Weak::upgrade) {
            drop(tokens);
            token.fire(CancelReason::Canceled);
            return;
        }
        // Most come for a request that was answered meanwhile.
        if !may_be_here() {
            return;
        }
        let now = Instant::now();
        tokens.forget_old(now, EARLY_MAX - 1);
        if tokens.early.insert(name, now).is_none() {
            tokens.lanes.0[call.lane()] += 1;
        }
        tokens.early_in_order.push_back((origin.clone(), call, now));
        self.note_lanes(&tokens);
    }

    /// A request has arrived. A cancel comes after its request, so one of that name that is here
    /// was meant for an earlier request, which was answered before it came.
    #[inline]
    pub(crate) fn arrived(&self, origin: &Addr, call: impl FnOnce() -> Option<CallKey>) {
        self.was_canceled(origin, call);
    }

    /// Returns whether a request was canceled before its handler has started. Also called when it
    /// ends, which forgets a cancel that no handler has asked for.
    #[inline]
    pub(crate) fn was_canceled(
        &self,
        origin: &Addr,
        call: impl FnOnce() -> Option<CallKey>,
    ) -> bool {
        let lanes = self.early_lanes.load(Ordering::Relaxed);
        lanes != 0
            && call().is_some_and(|call| lanes >> call.lane() & 1 != 0 && self.take(origin, call))
    }

    #[cold]
    fn take(&self, origin: &Addr, call: CallKey) -> bool {
        let mut tokens = self.tokens();
        tokens.forget_old(Instant::now(), EARLY_MAX);
        let found = tokens.take_early(&(origin.clone(), call));
        self.note_lanes(&tokens);
        found
    }

    fn note_lanes(&self, tokens: &Tokens) {
        self.early_lanes.store(tokens.lanes.bits(), Ordering::Relaxed);
    }

    /// A watched origin is gone.
    pub(crate) fn origin_gone(&self, origin: &Addr) {
        let gone = {
            let mut tokens = self.tokens();
            let gone = tokens.by_origin.remove(&origin.connection());
            if gone.as_ref().is_some_and(|gone| gone.is_idle) {
                tokens.idle.retain(|idle| *idle != origin.connection());
            }
            gone
        };
        fire_all(gone.into_iter().flat_map(|origin| origin.tokens), CancelReason::OriginGone);
    }

    /// The origin could not be watched; the next token tries again.
    pub(crate) fn not_watched(&self, origin: &Addr) {
        if let Some(origin) = self.tokens().by_origin.get_mut(&origin.connection()) {
            origin.watched = false;
        }
    }

    /// The instance's grace period is over.
    pub(crate) fn close(&self) {
        let origins = {
            let mut tokens = self.tokens();
            tokens.over = true;
            std::mem::take(&mut tokens.by_origin)
        };
        let all = origins.into_values().flat_map(|origin| origin.tokens);
        fire_all(all, CancelReason::Closing);
    }

    fn tokens(&self) -> MutexGuard<'_, Tokens> {
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tokens {
    /// Forgets early cancels that will not be asked for any more, and the oldest beyond `max`.
    fn forget_old(&mut self, now: Instant, max: usize) {
        while let Some((_, _, since)) = self.early_in_order.front()
            && (now.duration_since(*since) > EARLY_KEPT || self.early_in_order.len() > max)
            && let Some((origin, call, since)) = self.early_in_order.pop_front()
        {
            let name = (origin, call);
            // Unless a later cancel has the same name.
            if self.early.get(&name) == Some(&since) {
                self.take_early(&name);
            }
        }
    }

    fn take_early(&mut self, name: &(Addr, CallKey)) -> bool {
        let found = self.early.remove(name).is_some();
        self.lanes.0[name.1.lane()] -= usize::from(found);
        found
    }

    /// Makes room among the idle origins. `Some`: whose watch is to end.
    fn leave_idle(&mut self) -> Option<Watch> {
        while self.idle.len() > self.idle_max {
            let connection = self.idle.pop_front()?;
            let Some(origin) = self.by_origin.get_mut(&connection) else { continue };
            origin.is_idle = false;
            // It has a token again, or its watch is just being made.
            if origin.tokens.is_empty() && origin.watch.is_some() {
                return self.by_origin.remove(&connection)?.watch;
            }
        }
        None
    }
}

/// A tasklet at the deadline. Without one (the runtime ends) the clock is still looked at.
fn set_alarm(state: &Arc<TokenState>, log: &Log, pools: impl Iterator<Item = PoolRef>) {
    let Some(deadline) = state.deadline else { return };
    state.alarm.set_in(log, pools, deadline, || {
        let weak = Arc::downgrade(state);
        move || {
            if let Some(state) = weak.upgrade() {
                state.fire(CancelReason::DeadlinePassed);
            }
        }
    });
}

fn fire_all(tokens: impl Iterator<Item = (u64, Weak<TokenState>)>, reason: CancelReason) {
    for token in tokens.filter_map(|(_, token)| token.upgrade()) {
        token.fire(reason);
    }
}

#[cfg(test)]
mod tests {
    use na::Tag;

    use super::*;
    use crate::{ForwardError, Handle, Instance, ProviderHandle, Rpc};
    use hg::ReturnCode;

    fn key(n: usize) -> CallKey {
        CallKey::network(Tag(n as u32))
    }

    fn early(cancels: &Cancels, origin: &Addr, n: usize) -> bool {
        cancels.was_canceled(origin, || Some(key(n)))
    }

    #[test]
    fn a_cancel_that_comes_early_is_kept_for_its_request_and_for_no_other() {
        let instance = Instance::builder("na+sm://").start().unwrap();
        let origin = instance.self_addr();
        let cancels = Cancels::new(usize::MAX);
        assert!(!early(&cancels, &origin, 1));
        cancels.canceled(&origin, key(1), || false);
        assert!(!early(&cancels, &origin, 1), "there was no request");
        cancels.canceled(&origin, key(1), || true);
        cancels.canceled(&origin, key(2), || true);
        assert!(!early(&cancels, &origin, 3));
        assert!(early(&cancels, &origin, 1) && !early(&cancels, &origin, 1));
        // One that asks late is told at once.
        let wanted =
            Wanted { origin: &origin, call: Some(key(2)), deadline: None, by: &**instance.inner() };
        let (token, is_new) = cancels.token(&wanted);
        assert!(is_new && token.reason() == Some(CancelReason::Canceled));
        assert!(!early(&cancels, &origin, 2));
        assert_eq!(cancels.early_lanes.load(Ordering::Relaxed), 0, "nothing is left to look for");
        instance.finalize_and_wait().unwrap();
    }

    #[test]
    fn a_cancel_is_not_for_a_later_request_of_the_same_name() {
        let instance = Instance::builder("na+sm://").start().unwrap();
        let (cancels, origin) = (Cancels::new(usize::MAX), instance.self_addr());
        cancels.canceled(&origin, key(1), || true);
        cancels.canceled(&origin, key(2), || true);
        cancels.arrived(&origin, || Some(key(1)));
        assert!(!early(&cancels, &origin, 1) && early(&cancels, &origin, 2));
        instance.finalize_and_wait().unwrap();
    }

    #[test]
    fn early_cancels_are_bounded_in_number_and_age() {
        let instance = Instance::builder("na+sm://").start().unwrap();
        let origin = instance.self_addr();
        let cancels = Cancels::new(usize::MAX);
        for n in 0..EARLY_MAX + 10 {
            cancels.canceled(&origin, key(n), || true);
        }
        assert_eq!(cancels.tokens().early.len(), EARLY_MAX);
        assert!(!early(&cancels, &origin, 9) && early(&cancels, &origin, 10));
        let later = Instant::now().checked_add(EARLY_KEPT * 2).unwrap();
        let mut tokens = cancels.tokens();
        tokens.forget_old(later, EARLY_MAX);
        assert!(tokens.early.is_empty() && tokens.early_in_order.is_empty());
        drop(tokens);
        instance.finalize_and_wait().unwrap();
    }

    #[test]
    fn an_origin_that_could_not_be_watched_is_tried_again_by_the_next_token() {
        let instance = Instance::builder("na+sm://").start().unwrap();
        let (cancels, origin) = (Cancels::new(usize::MAX), instance.self_addr());
        let (origin, instance) = (&origin, &instance);
        let wanted =
            |n| Wanted { origin, call: Some(key(n)), deadline: None, by: &**instance.inner() };
        let (first, watch) = cancels.token(&wanted(1));
        assert!(watch);
        // The watch fails, while the token is there.
        cancels.not_watched(origin);
        let (second, watch) = cancels.token(&wanted(2));
        assert!(watch, "it is never watched");
        // Now it is.
        let (third, watch) = cancels.token(&wanted(3));
        assert!(!watch);
        cancels.origin_gone(origin);
        for token in [&first, &second, &third] {
            assert_eq!(token.reason(), Some(CancelReason::OriginGone));
        }
        // Nothing is kept of one that is not watched and has no tokens.
        let (last, watch) = cancels.token(&wanted(4));
        assert!(watch);
        cancels.not_watched(origin);
        cancels.forget(&last, origin, Some(key(4)));
        assert!(cancels.tokens().by_origin.is_empty());
        instance.finalize_and_wait().unwrap();
    }

    #[test]
    fn only_requests_of_its_lane_look_for_an_early_cancel() {
        let instance = Instance::builder("na+sm://").start().unwrap();
        let (cancels, origin) = (Cancels::new(usize::MAX), instance.self_addr());
        let lanes = || cancels.early_lanes.load(Ordering::Relaxed);
        for n in [3, 3, 64 + 3, 5] {
            cancels.canceled(&origin, key(n), || true);
        }
        assert_eq!(lanes(), 1 << 3 | 1 << 5);
        assert!(early(&cancels, &origin, 3));
        assert_eq!(lanes(), 1 << 3 | 1 << 5, "another one of it is there");
        assert!(early(&cancels, &origin, 67) && early(&cancels, &origin, 5));
        assert_eq!(lanes(), 0);
        instance.finalize_and_wait().unwrap();
    }

    #[test]
    fn what_was_canceled_while_it_ran_is_forgotten_when_it_is_answered() {
        const RUN: Rpc<(), ()> = Rpc::new("run");
        let instance = Instance::builder("na+sm://").start().unwrap();
        let (begun, go) = (Arc::new(Eventual::new()), Arc::new(Eventual::new()));
        let (begin, held) = (begun.clone(), go.clone());
        let handler = move |request: crate::Handle<(), ()>| {
            let _ = begin.set(());
            held.wait();
            drop(request);
        };
        instance.register(RUN, handler).unwrap();
        let to = crate::ProviderHandle::from(instance.self_addr());
        let call = instance.rpc(RUN, &to, &()).start().unwrap();
        begun.wait();
        drop(call);
        let cancels = &instance.inner().cancels;
        let lanes = || cancels.early_lanes.load(Ordering::Relaxed);
        let until = |done: &dyn Fn() -> bool| {
            let start = Instant::now();
            while !done() {
                assert!(start.elapsed() < Duration::from_secs(60));
                std::thread::yield_now();
            }
        };
        until(&|| lanes() != 0);
        let _ = go.set(());
        until(&|| lanes() == 0);
        instance.finalize_and_wait().unwrap();
    }

    #[test]
    fn of_origins_without_tokens_only_some_stay_watched() {
        only_some_stay_watched(usize::MAX, IDLE_WATCHED_MAX);
        only_some_stay_watched(5, 5);
        only_some_stay_watched(0, 1);
    }

    fn only_some_stay_watched(given: usize, max: usize) {
        let instance = Instance::builder("na+sm://").start().unwrap();
        let (cancels, instance) = (Cancels::new(given), &instance);
        let number = |n: usize| instance.lookup(&format!("na+sm://{}-1-000000000000", n + 10));
        let mut ended = Vec::new();
        // As long as an address is there, it stands for the same connection.
        let origins: Vec<_> = (0..max + 2).map(|n| number(n).unwrap()).collect();
        for (n, origin) in origins.iter().enumerate() {
            let wanted =
                Wanted { origin, call: Some(key(n)), deadline: None, by: &**instance.inner() };
            let (token, watch) = cancels.token(&wanted);
            assert!(watch);
            cancels.watched(origin, Watch::numbered(n as u64));
            // The first one goes on.
            if n > 0 {
                ended.extend(cancels.forget(&token, origin, Some(key(n))));
            } else {
                assert!(token.reason().is_none());
                std::mem::forget(token);
            }
        }
        assert_eq!(ended, [Watch::numbered(1)], "the one that has been idle longest");
        assert_eq!(cancels.tokens().by_origin.len(), max + 1);
        assert_eq!(cancels.tokens().idle.len(), max);
        cancels.origin_gone(&origins[2]);
        assert_eq!(cancels.tokens().idle.len(), max - 1);
        instance.finalize_and_wait().unwrap();
    }

    #[test]
    fn a_token_ends_with_its_request_and_with_the_instance() {
        let instance = Instance::builder("na+sm://").start().unwrap();
        let origin = instance.self_addr();
        let cancels = Cancels::new(usize::MAX);
        let deadline = Instant::now().checked_add(Duration::from_secs(3600));
        let about = &instance;
        let wanted =
            |n| Wanted { origin: &origin, call: Some(key(n)), deadline, by: &**about.inner() };
        let [(first, watch), (second, again)] = [1, 2].map(|n| cancels.token(&wanted(n)));
        assert!(watch && !again, "an origin is watched once");
        cancels.forget(&first, &origin, Some(key(1)));
        assert!(!first.0.alarm.is_set(), "a timer that outlives its request");
        cancels.close();
        assert_eq!((first.reason(), second.reason()), (None, Some(CancelReason::Closing)));
        assert!(!second.0.alarm.is_set());
        let (late, _) = cancels.token(&wanted(3));
        assert_eq!(late.reason(), Some(CancelReason::Closing));
        // Timers that were left would keep it from ending.
        instance.finalize_and_wait().unwrap();
    }

    #[test]
    fn a_cancel_that_came_while_arguments_were_fetched_finds_its_request() {
        const ASK: Rpc<Vec<u8>, bool> = Rpc::new("ask");
        let [service, client] =
            [true, false].map(|on| Instance::builder("na+sm://").listen(on).start().unwrap());
        let names = Arc::new(Mutex::new(None));
        let here = names.clone();
        let ask = move |request: Handle<Vec<u8>, bool>| {
            let canceled = request.is_canceled();
            let tokens = request.instance().inner().cancels.tokens();
            *here.lock().unwrap() = tokens.by_call.keys().next().cloned();
            drop(tokens);
            let _ = request.respond(&canceled);
        };
        service.register(ASK, ask).unwrap();
        let target = ProviderHandle::from(client.lookup(service.self_addr().uri()).unwrap());
        let patience = Duration::from_secs(60);
        let call = |len| client.forward_timed(ASK, &target, &vec![0; len], patience);
        for (len, is_of_an_earlier_one) in [(10, true), (100_000, false)] {
            assert!(!call(10).unwrap());
            let (origin, key) = names.lock().unwrap().clone().unwrap();
            // As if it had come then.
            service.inner().cancels.canceled(&origin, key.next(), || true);
            let told = call(len);
            if is_of_an_earlier_one {
                assert!(!told.unwrap());
            } else {
                let ForwardError::Failed { code, .. } = told.unwrap_err() else {
                    panic!("answered")
                };
                assert_eq!(code, ReturnCode::Canceled);
            }
        }
        client.finalize_and_wait().unwrap();
        service.finalize_and_wait().unwrap();
    }

    #[test]
    fn a_deadline_is_told_although_the_pool_for_its_alarm_has_just_been_removed() {
        let instance = Instance::builder("na+sm://").start().unwrap();
        let gone = instance.layout().add_pool_from_json("{}").unwrap().pool;
        instance.layout().remove_pool(&gone).unwrap();
        let state = Arc::new(TokenState::new(0, Process::current(), Some(Instant::now())));
        let pools = [gone, instance.layout().rpc_pool()].into_iter();
        set_alarm(&state, &instance.inner().log, pools);
        // Whoever waits does not look at the clock.
        let until = Instant::now() + Duration::from_secs(60);
        assert_eq!(state.fired.wait_deadline(until), Some(&CancelReason::DeadlinePassed));
        instance.finalize_and_wait().unwrap();
    }
}
