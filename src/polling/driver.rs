//! The progress ULT: the one place that polls the network.
//!
//! Each instance has one, in the pool that the configuration calls `progress_pool`, or one for each
//! of its shards (`progress/shards.rs`). Until shutdown it repeats:
//!
//! - **poll**: take completions from the network and act on them. A caller suspended in `forward`
//!   becomes runnable here, and an arrived request becomes a handler ULT here;
//! - **yield**, if anything else can run on this execution stream, also if its pool comes behind;
//! - **spin or sleep**, if nothing can. It spins for as long as `SpinWindow` allows, because a
//!   wake-up by the kernel costs tens of microseconds; then it asks the execution stream to sleep
//!   on the network's descriptor ([`ult::integration::idle`]), which any push to one of its pools
//!   also ends. Progress ULTs of one execution stream spin and sleep together
//!   (`progress_group.rs`).
//!
//! Nothing here polls a clock while asleep, and there is no tick. With
//! `margo.progress_when_needed` it spins only while operations are in flight (`when_needed.rs`).
//!
//! # Who may touch what
//!
//! | state | owner | others |
//! |---|---|---|
//! | `SpinWindow` | the progress ULT | nobody |
//! | `Core::poll` of its shard | the progress ULT | nobody |
//! | `Progress::asleep` | the progress ULT writes it | `kick` reads it; pair: PROGRESS-ASLEEP |
//! | `Progress::orders` | anybody sets a bit; the progress ULT takes `MOVE` away | pair: PROGRESS-ORDERS |
//!
//! A progress ULT that is asked to move (`reshaping/migrate.rs`) makes its successor in the other
//! pool and polls on until that one runs: it may have to wait for its xstream, or get no stack.
//! Then the old one ends, and the successor takes its place in the same `Progress`.
//!
//! # Errors
//!
//! Trouble with a peer ends that peer's operations. An error of the endpoint itself closes the RPC
//! layer, which ends every operation with an error, and begins the shutdown; the process goes on. A
//! panic in the loop, which no code of users may cause, has the same effect: the loop polls on for
//! callers that wait. (A caller that polls in the loop's stead, `caller_polling.rs`, has such a
//! panic itself.)
//!
//! The policy follows Margo's progress loop, without its fixed tick and its abort on errors.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use hg::{CallKey, Core, HgError, RequestHandle, RequestParts, Response, Sink};
use rustix::event::{EventfdFlags, eventfd};
use ult::{Eventual, integration::IdleEnd};

use crate::dispatch::run_handler;
use crate::instance::inner::Inner;
use crate::observe::monitor::ProgressSampler;
use crate::observe::trace;
use crate::operation::call::Call;
use crate::operation::pending_response;
use crate::operation::token::Token;
use crate::progress::control::{Arrival, MOVE, MoveError, Progress, STOP, Tally};
use crate::progress::progress_group::GroupMember;
use crate::progress::shards::Shard;
use crate::progress::spin_window::{Spin, SpinWindow};
use crate::progress::surplus::Surplus;
use crate::support::contain::contain;
use crate::support::log::log;
use crate::{Addr, Instance};

/// The period at which an endpoint without a descriptor is polled while no caller waits for
/// progress. It takes about one percent of a core, and requests of peers are as late.
pub(crate) const UNNEEDED_POLL: Duration = Duration::from_millis(1);

/// Completions taken from the network in one go, before other ULTs get their turn.
const BUDGET: usize = 64;
/// Looks at the network between two polls that found nothing, so many times this.
const LOOKS: u32 = 8;
/// Looks at the network for each look at what else could run here.
const LOOKS_PER_TURN: u32 = 8;

/// Tells of a progress ULT that does not start.
struct Unstarted(Arc<Arrival>);

impl Drop for Unstarted {
    fn drop(&mut self) {
        // It has been told already of one that has started, or comes too late.
        let _ = self.0.set(Err(MoveError::NoStack));
    }
}

/// Makes a progress ULT in `pool`: the first one of a shard, or the successor of one that moves.
/// It sets `arrived` when it runs, or will not.
pub(crate) fn start(
    inner: &Arc<Inner>,
    shard: u8,
    pool: &ult::PoolRef,
    arrived: Arc<Arrival>,
) -> Result<(), ult::SpawnError> {
    let (own, destination, arrived) = (inner.clone(), pool.clone(), Unstarted(arrived));
    pool.ult().name("margo progress").spawn_detached(move || {
        let Shard { core, progress: place, .. } = own.shards.get(shard);
        if place.get().is_some_and(|progress| !progress.succeed()) {
            let _ = arrived.0.set(Err(MoveError::Closing));
            return;
        }
        let xstream = own.runtime.index_here().unwrap_or_default();
        let before = place.get().map(Progress::xstream);
        let progress = place.get_or_init(|| Progress::new(xstream));
        progress.arrive(xstream);
        own.shards.progress_is_on(shard, xstream, before);
        own.elastic.progress_is_in(shard.into(), &destination);
        let _ = arrived.0.set(Ok(()));
        drop((arrived, destination));
        run(&own, core, progress);
    })
}

/// Why there is no other shard.
#[derive(Debug, Clone)]
pub(crate) enum NotAdded {
    /// The instance ends.
    Closing,
    /// The progress ULT was made and did not start, which is how a ULT ends that gets no stack.
    NoStack,
    /// The network or the RPC layer refuses it.
    Refused(HgError),
}

/// Set when a shard that is added has progress, to its number; or will not have it.
pub(crate) type Addition = Eventual<Result<u8, NotAdded>>;

/// Tells of a shard whose progress ULT does not start.
struct Unadded(Arc<Addition>);

impl Drop for Unadded {
    fn drop(&mut self) {
        // It has been told already of one that has started.
        let _ = self.0.set(Err(NotAdded::NoStack));
    }
}

/// Makes the progress ULT of one more shard in `pool`. It opens what it is to drive by `open`, so
/// that the memory of that is near, publishes the shard, and sets `added`.
pub(crate) fn start_another(
    inner: &Arc<Inner>,
    pool: &ult::PoolRef,
    open: impl FnOnce(&Inner) -> Result<Shard<Instance>, HgError> + Send + 'static,
    added: Arc<Addition>,
) -> Result<(), ult::SpawnError> {
    let (own, home, added) = (inner.clone(), pool.clone(), Unadded(added));
    pool.ult().name("margo progress").spawn_detached(move || {
        let shard = match open(&own) {
            Ok(shard) => shard,
            Err(error) => {
                let _ = added.0.set(Err(NotAdded::Refused(error)));
                return;
            }
        };
        let xstream = own.runtime.index_here().unwrap_or_default();
        let core = shard.core.clone();
        set_waker(&own, &core);
        let _ = shard.progress.set(Progress::new(xstream));
        let published = own.shards.add(shard, || own.shutdown.progress_begins());
        let Some(progress) = published.and_then(|shard| shard.progress.get()) else {
            // What was placed here goes to the others.
            core.endpoint().close();
            let _ = added.0.set(Err(NotAdded::Closing));
            return;
        };
        own.shards.progress_is_on(core.shard(), xstream, None);
        own.elastic.progress_is_in(core.shard().into(), &home);
        let _ = added.0.set(Ok(core.shard()));
        drop((added, home));
        run(&own, &core, progress);
    })
}

/// Has a shard that sleeps woken when another one has something for it.
pub(crate) fn set_waker(inner: &Arc<Inner>, core: &Core<Token>) {
    let (weak, number) = (Arc::downgrade(inner), core.shard());
    core.set_waker(move || {
        if let Some(shard) = weak.upgrade().as_ref().and_then(|inner| inner.shards.find(number)) {
            shard.kick();
        }
    });
}

/// Runs on the progress ULT of a shard until shutdown.
fn run(inner: &Arc<Inner>, core: &Arc<Core<Token>>, progress: &Progress) {
    // It may have been made on behalf of a request, but does not work for it.
    trace::begin_unit(0, None);
    let ended = guarded(inner, core, || run_loop(inner, core, progress));
    inner.shards.end_lease(core.shard());
    match ended {
        Some(LoopEnd::NotNeeded) => {}
        Some(LoopEnd::Closed) => inner.shutdown.progress_ended(),
        None => {
            progress.end();
            inner.shutdown.progress_ended();
        }
    }
}

/// Panics of progress, after the last of which it ends.
const PANICS_MAX: usize = 16;

/// Runs `work` to its end. If it panics, the network is closed and the instance shuts down, as when
/// the endpoint fails; `work` begins anew, so that waiting callers are told. `None`: it does
/// nothing but panic.
fn guarded<R>(inner: &Arc<Inner>, core: &Core<Token>, mut work: impl FnMut() -> R) -> Option<R> {
    for _ in 0..PANICS_MAX {
        let ended = contain(&inner.log, "progress, which ends the instance,", &mut work);
        if ended.is_some() || inner.is_forked() {
            return ended;
        }
        core.close();
        inner.begin_shutdown();
    }
    None
}

/// Why the loop has ended.
enum LoopEnd {
    /// There is a successor, or the network is the parent process's.
    NotNeeded,
    /// The network is closed.
    Closed,
}

fn run_loop(inner: &Arc<Inner>, core: &Arc<Core<Token>>, progress: &Progress) -> LoopEnd {
    let mut patience = SpinWindow::of(&inner.resolved);
    let mut seat = GroupMember::take();
    let (mut closing, mut unneeded, mut sent_by_look) = (false, false, false);
    let (mut rounds, mut closed_at) = (0u32, None);
    let (monitoring, mut turns) = (&inner.monitoring, ProgressSampler::default());
    loop {
        // The network is the parent's; its peers would take what is done here for its doing.
        if inner.is_forked() {
            return LoopEnd::NotNeeded;
        }
        begin_round((inner, core, progress), &mut rounds, (&mut patience, &mut seat));
        // pair: PROGRESS-ORDERS
        let orders = if closing { 0 } else { progress.orders.load(Ordering::Acquire) };
        if orders & STOP != 0 {
            closing = true;
            core.close();
            closed_at = Some(Instant::now());
            progress.end();
        } else if orders & MOVE != 0
            && progress.hand_over(|pool, arrived| start(inner, core.shard(), pool, arrived))
        {
            return LoopEnd::NotNeeded;
        }
        let since = turns.poll(monitoring);
        let found = poll_in_turn(inner, core);
        turns.polled(monitoring, since, found);
        if found > 0 {
            progress.found(found, &mut patience, &mut seat);
            sent_by_look = false;
            if ult::integration::has_runnable() {
                give_way(is_behind(inner, core), || progress.yield_now(&mut patience, &mut seat));
            }
            continue;
        }
        if closing && core.in_flight() == 0 && !awaits_copies(inner, core, closed_at) {
            return LoopEnd::Closed;
        }
        if can_others_run((inner, core), closing) || seat.is_waited_for() {
            if seat.is_alone() {
                give_way(is_behind(inner, core), || progress.yield_now(&mut patience, &mut seat));
                continue;
            }
            if !seat.give_turn(step_aside) {
                continue;
            }
        } else if seat.is_alone() {
            let may_find = linger((inner, core, progress), patience.is_fresh());
            // At once; but a poll that finds nothing all the same counts as any other.
            sent_by_look = may_find && !sent_by_look && !unneeded;
            if sent_by_look {
                continue;
            }
        }
        let was_unneeded = unneeded;
        unneeded = !closing && inner.is_unneeded(core);
        if was_unneeded && !unneeded {
            seat.useful();
        }
        let spin = if unneeded { Spin::Over } else { patience.spin(|| core.served()) };
        match spin {
            Spin::On => continue,
            // What keeps it awake keeps its company awake.
            Spin::Served => {
                seat.useful();
                continue;
            }
            Spin::Over if !seat.may_sleep() => continue,
            Spin::Over => {}
        }
        let since = turns.sleep(monitoring);
        let found = rest(inner, core, progress, &mut seat, unneeded);
        turns.slept(monitoring, since);
        patience.over(unneeded || found > 0);
    }
}

/// Counts a round, yields now and then, and ends the lease of handlers then.
#[inline]
fn begin_round(
    (inner, core, progress): (&Inner, &Core<Token>, &Progress),
    rounds: &mut u32,
    (patience, seat): (&mut SpinWindow, &mut GroupMember),
) {
    if progress.begin_round(rounds, patience, seat) {
        inner.shards.end_lease(core.shard());
    }
}

/// Returns whether peers are still copying in memory that its owner wants back. It takes them
/// microseconds; but one that is stopped in the midst of it holds the memory for as long, and not
/// the shutdown.
#[cold]
fn awaits_copies(inner: &Inner, core: &Core<Token>, closed_at: Option<Instant>) -> bool {
    let patience = inner.shutdown.grace() / 2;
    core.endpoint().keeps_memory() && closed_at.is_some_and(|at| at.elapsed() < patience)
}

/// Looks for a while, which is cheaper than to poll: so what arrives is seen at once, and not when
/// a poll comes round to it. `is_fresh`: something happened just now, so the next thing may be
/// near. Whether a poll would find something.
#[inline]
fn linger((inner, core, progress): (&Inner, &Core<Token>, &Progress), is_fresh: bool) -> bool {
    let is_wanted = || inner.surplus.as_ref().is_some_and(|all| all.is_there(core.shard()));
    for _ in 0..LOOKS {
        for _ in 0..LOOKS_PER_TURN {
            if !is_fresh {
                // For the core's other thread, at 15 to 50 ns each.
                std::hint::spin_loop();
            }
            if core.may_find() {
                return true;
            }
        }
        if ult::integration::has_runnable() || progress.is_ordered() || is_wanted() {
            return false;
        }
    }
    false
}

/// Returns whether others can run: what is there, or a handler that is taken from another shard.
#[inline]
fn can_others_run((inner, core): (&Inner, &Core<Token>), closing: bool) -> bool {
    let may_take = |all: &Surplus| !closing && all.take(core.shard());
    ult::integration::has_runnable() || inner.surplus.as_deref().is_some_and(may_take)
}

/// Returns whether units that can run have no turn while the caller yields and yields, or few.
#[inline]
fn is_behind(inner: &Inner, core: &Core<Token>) -> bool {
    ult::integration::has_runnable_behind()
        || inner.surplus.as_ref().is_some_and(|own| own.is_behind(core.shard()))
}

/// Lets others run that can.
#[inline]
fn give_way(is_behind: bool, yield_now: impl FnOnce()) {
    if is_behind {
        step_aside();
    } else {
        yield_now();
    }
}

/// Waits until nothing else can run, or some others have. A yield would come straight back, while
/// those in the pools behind ours wait.
fn step_aside() {
    // Nothing sleeps on it, as the answer to whether it may is no; so any descriptor does, and the
    // network's own one may be missing.
    match silent_fd() {
        Some(fd) => _ = ult::integration::idle(fd, None, || false),
        None => ult::yield_now(),
    }
}

/// A descriptor that is never readable; `None` when the process may open no more.
fn silent_fd() -> Option<BorrowedFd<'static>> {
    static SILENT: OnceLock<OwnedFd> = OnceLock::new();
    let fd = match SILENT.get() {
        Some(fd) => fd,
        None => {
            let fd = eventfd(0, EventfdFlags::CLOEXEC).ok()?;
            SILENT.get_or_init(|| fd)
        }
    };
    Some(fd.as_fd())
}

/// Sleeps until there may be something to do, and returns how much was done already. `unneeded`:
/// because no caller waits for progress.
fn rest(
    inner: &Arc<Inner>,
    core: &Arc<Core<Token>>,
    progress: &Progress,
    seat: &mut GroupMember,
    unneeded: bool,
) -> usize {
    inner.shards.end_lease(core.shard());
    Tally::add(&progress.tally.sleeps, 1);
    let is_late = || unneeded && !inner.is_unneeded(core);
    let has_company = seat.has_company();
    let mut found = 0;
    seat.sleep(|| {
        // That another one of the company went to sleep is no reason to wake all of it.
        while sleep(inner, core, progress, unneeded, is_late) == IdleEnd::Ran
            && has_company
            && progress.orders.load(Ordering::Relaxed) == 0
        {
            found = poll(inner, core);
            if found > 0 {
                Tally::add(&progress.tally.events, found as u64);
                break;
            }
        }
    });
    found
}

/// One round of the network; how much happened.
// Inlined: what arrives waits for each frame that is made before it.
#[inline(always)]
pub(crate) fn poll(inner: &Arc<Inner>, core: &Arc<Core<Token>>) -> usize {
    match core.poll(BUDGET, &mut Dispatch { inner }) {
        Ok(found) => found,
        Err(error) => failed(inner, core, &error),
    }
}

/// The polls of a turn of progress; how much happened.
#[inline(always)]
fn poll_in_turn(inner: &Arc<Inner>, core: &Arc<Core<Token>>) -> usize {
    match poll(inner, core) {
        found @ 1.. if inner.surplus.is_some() => found + poll_on(inner, core),
        found => found,
    }
}

/// Polls until nothing more is there, or others are to have their turn; how much happened. Requests
/// that are seen can be given to other shards, and then wait for no handler here.
#[inline(never)]
fn poll_on(inner: &Arc<Inner>, core: &Arc<Core<Token>>) -> usize {
    let mut sum = 0;
    while sum < BUDGET {
        match poll(inner, core) {
            0 => break,
            found => sum += found,
        }
    }
    sum
}

#[cold]
fn failed(inner: &Arc<Inner>, core: &Core<Token>, error: &HgError) -> usize {
    // It goes on failing; what it ends it has told all the same, and there is no more to find.
    if core.is_closed() {
        return 0;
    }
    log!(inner.log, ERROR, %error, "the network endpoint failed; shutting down");
    core.close();
    inner.begin_shutdown();
    1
}

/// `is_late`: after the announcement, whether there is a reason not to sleep.
fn sleep(
    inner: &Inner,
    core: &Core<Token>,
    progress: &Progress,
    unneeded: bool,
    is_late: impl Fn() -> bool,
) -> IdleEnd {
    let (fd, until) = match core.wait_fd() {
        Some(fd) => (fd, None),
        // It can only be polled. While nobody waits, now and then is enough: operations that start
        // come with a kick.
        None => match silent_fd().filter(|_| unneeded) {
            Some(fd) => (fd, Some(Instant::now() + UNNEEDED_POLL)),
            None => {
                // Give the others their turn and go on.
                ult::yield_now();
                return IdleEnd::Refused;
            }
        },
    };
    let surplus = inner.surplus.as_deref();
    let surplus = surplus.filter(|all| all.may_take(core.shard()) && !progress.is_stopping());
    let arm = || {
        progress.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst); // pair: PROGRESS-ASLEEP
        // In a child process that was forked off meanwhile the announcement would be a lie.
        let is_wanted = surplus.is_some_and(|all| all.begin_rest(core.shard()));
        let may_sleep = !inner.is_forked() && !progress.is_ordered_late(core) && !is_late();
        may_sleep && !is_wanted && (until.is_some() || core.prepare_wait())
    };
    let end = ult::integration::idle(fd, until, arm);
    progress.asleep.store(false, Ordering::Relaxed);
    if let Some(next) = surplus.and_then(|all| all.end_rest(core.shard())) {
        inner.shards.get(next).kick();
    }
    end
}

/// Passes what the RPC layer reports to those who wait for it.
struct Dispatch<'a> {
    inner: &'a Arc<Inner>,
}

impl Sink<Token> for Dispatch<'_> {
    fn request(&mut self, request: RequestHandle<Token>) {
        let (core, parts) = request.into_parts();
        self.request_parts(&core, parts);
    }

    // Inlined where requests and responses arrive, so that they are not put together before they
    // are where they stay.
    #[inline(always)]
    fn request_parts(&mut self, core: &Arc<Core<Token>>, parts: RequestParts) {
        run_handler::dispatch(self.inner, core, parts);
    }

    #[inline(always)]
    fn response(&mut self, token: Token, result: Result<Response, HgError>) {
        if let Token::Forward(call) = token {
            // SAFETY: once: a call has one token, which cannot be cloned and ends here.
            unsafe { Call::complete(call, &self.inner.monitoring, result) };
        }
    }

    fn responded(&mut self, token: Token, result: Result<(), HgError>) {
        if let Err(error) = &result {
            log!(self.inner.log, DEBUG, %error, "an answer was not delivered");
        }
        match token {
            Token::Respond(span) => pending_response::delivered(span.as_ref(), &result),
            Token::Awaited(answer) => answer.complete(result),
            Token::Forward(_) | Token::Bulk(_) => {}
        }
    }

    fn canceled(&mut self, origin: &Addr, call: CallKey) {
        let (gates, core) = (&self.inner.gates, &self.inner.core);
        // In hand, or its arguments are being fetched.
        let may_be_here = || gates.any_in_hand() || core.in_hand().operations > 0;
        self.inner.cancels.canceled(origin, call, may_be_here);
    }

    fn peer_gone(&mut self, peer: &Addr) {
        self.inner.cancels.origin_gone(peer);
    }

    fn bulk(&mut self, token: Token, result: Result<u64, HgError>) {
        if let Token::Bulk(call) = token {
            call.complete(&self.inner.monitoring, result);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use na::shared::UninitShared;
    use ult::Eventual;

    use super::*;
    use crate::operation::call::CallInfo;
    use crate::operation::deadline::CallLimits;
    use crate::{ForwardError, Instance, ProviderHandle, Rpc};

    /// Calls, transfers and the shutdown would wait for a progress ULT that is not there any more.
    #[test]
    fn a_panic_of_progress_ends_its_instance_and_leaves_nobody_waiting() {
        const HOLD: Rpc<(), ()> = Rpc::new("hold");
        const PING: Rpc<(), ()> = Rpc::new("ping");
        const PATIENCE: Duration = Duration::from_secs(60);
        let service = Instance::builder("na+sm://").start().unwrap();
        let go = Arc::new(Eventual::<()>::new());
        let may_go = go.clone();
        service.serve(HOLD).function(move |()| *may_go.wait()).unwrap();
        service.serve(PING).function(|()| ()).unwrap();
        let client = Instance::builder("na+sm://").listen(false).start().unwrap();
        let target = ProviderHandle::from(client.lookup(service.self_addr().uri()).unwrap());
        let held = client.rpc(HOLD, &target, &()).start().unwrap();
        // What ends it is called by progress, and no code of users.
        let at_end = Box::new(|_| panic!("on the progress ULT"));
        let (_call, token) =
            UninitShared::new().fill_pair(Call::with_extra(CallLimits::default(), Some(at_end)));
        let site = CallInfo { rpc: "ping", to: &target, term: None };
        client.start(hg::ForwardOptions::default(), PING, site, &(), token).unwrap();
        let error = held.wait_timeout(PATIENCE).unwrap().unwrap_err();
        assert!(matches!(error, ForwardError::Closing { .. }), "{error}");
        client.wait_for_finalize().unwrap();
        go.set(()).unwrap();
        service.finalize_and_wait().unwrap();
    }

    #[test]
    fn progress_that_does_nothing_but_panic_ends() {
        let own = crate::init("{}").unwrap();
        let (inner, mut panics) = (own.inner(), 0);
        let ended = guarded(inner, &inner.core, || {
            panics += 1;
            assert!(panics == 0, "a test");
        });
        assert_eq!((ended, panics), (None, PANICS_MAX));
        own.wait_for_finalize().unwrap();
    }

    #[test]
    fn who_steps_aside_lets_pools_behind_its_own_have_a_turn() {
        let runtime = ult::Runtime::builder()
            .pool(ult::PoolSpec::new("first"))
            .pool(ult::PoolSpec::new("behind"))
            .xstream(ult::XstreamSpec::new("x").pools(["first", "behind"]))
            .start()
            .expect("a runtime");
        let [first, behind] = ["first", "behind"].map(|name| runtime.pool(name).expect("a pool"));
        let steps = first.spawn(move || {
            let has_run = Arc::new(AtomicBool::new(false));
            let runs = has_run.clone();
            let other = behind.spawn(move || runs.store(true, Ordering::Relaxed));
            // Not after a yield, which comes straight back.
            let steps = (0..100).take_while(|_| {
                give_way(ult::integration::has_runnable_behind(), ult::yield_now);
                !has_run.load(Ordering::Relaxed)
            });
            let steps = steps.count();
            other.expect("a unit").join().expect("its end");
            steps
        });
        let steps = steps.expect("a unit").join().expect("its end");
        assert_eq!(steps, 0, "it has run when the first step ends");
        runtime.shutdown().expect("the end");
    }
}
