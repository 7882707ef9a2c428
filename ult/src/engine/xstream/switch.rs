//! Switching away from a ULT, and putting ULTs back into queues.
//!
//! Every switch away from a ULT goes to its resumer, with a [`Command`] that is carried out there
//! ([`Xstream::run`](crate::engine::xstream::owner::Xstream::run)).

use std::time::{Duration, Instant};

use crate::base::wait_kind::WaitKind;
use crate::engine::model::unit::{Kind, UltPtr, UltRef};
use crate::engine::pool::spec::PushReason;
use crate::engine::unit::handle::Unit;
use crate::engine::waiting::cancel::{self, Why};
use crate::engine::xstream::current;
use crate::engine::xstream::diag;
use crate::engine::xstream::owner::{State, XstreamShared, home_here};
use crate::engine::xstream::timer::TimerNode;
use crate::stack::block::BlockPtr;
use crate::stack::context::{Command, Wakeup};
use crate::sync::atomic::Ordering::{Relaxed, Release};
use crate::sync::{Arc, lock};
use crate::trace::event::EventKind;

/// Switches from `ult`, which is the caller, to its resumer.
// Always: a function that is left after a switch returns to where the processor does not expect it,
// since its stack of return addresses is that of another ULT by then.
#[inline(always)]
pub(crate) fn suspend(ult: UltPtr, command: Command) {
    debug_assert_eq!(current::ult(), Some(ult));
    let Some(block) = ult.block() else { return };
    wake_up(block, leave(block, command), command);
}

#[inline(always)]
fn leave(block: BlockPtr, command: Command) -> Wakeup {
    // SAFETY:
    // - valid: set by the first frame of the stack that we are on.
    let back = unsafe { &*block.back.get() };
    back.suspend(&block, command)
}

/// Completes the switch of the calling ULT, which runs again after it left `block` with `command`.
#[inline(always)]
pub(crate) fn wake_up(block: BlockPtr, wakeup: Wakeup, command: Command) {
    if wakeup != Wakeup::Run {
        wake_up_otherwise(block, wakeup, command);
    }
}

#[inline(never)]
fn wake_up_otherwise(block: BlockPtr, wakeup: Wakeup, command: Command) {
    if wakeup == Wakeup::After {
        if let Some(xstream) = current::xstream() {
            xstream.settle_before();
        }
        return;
    }
    crate::engine::xstream::inspect::inspected();
    wake_up(block, leave(block, command), command);
}

/// Suspends `ult`, which is the caller, until `ready` says yes or `deadline` has passed. Returns
/// what `ready` said last. The party that makes it ready must resume the ULT afterwards.
pub(crate) fn suspend_until(
    ult: UltPtr,
    deadline: Option<Instant>,
    ready: impl Fn() -> bool,
) -> bool {
    if ready() {
        return true;
    }
    let Some(deadline) = deadline else {
        loop {
            suspend(ult, Command::Park);
            if ready() {
                return true;
            }
        }
    };
    if deadline <= Instant::now() {
        return false;
    }
    let xstream = current::xstream().expect("a ULT runs on an xstream");
    // The node stands in this xstream's heap, so the ULT stays.
    ult.pins.set(ult.pins.get() + 1);
    let timer = TimerNode::new(ult);
    // SAFETY:
    // - removed before it ends: below, and nothing in between unwinds.
    unsafe { xstream.timers.borrow_mut().insert(deadline, &timer) };
    xstream.has_chores.set(true);
    let is_ready = loop {
        suspend(ult, Command::Park);
        if ready() {
            break true;
        }
        if timer.has_fired() {
            break false;
        }
    };
    xstream.timers.borrow_mut().remove(&timer);
    ult.pins.set(ult.pins.get() - 1);
    is_ready
}

/// Resumes a ULT whose condition has been fulfilled; it looks for itself. May be called early,
/// late and more than once.
///
/// The caller keeps the ULT's descriptor alive, or runs on its home xstream.
#[inline]
pub(crate) fn resume(ult: UltPtr) {
    if ult.state.cell.resume() {
        diag::tell(ult, EventKind::Resume);
        push_resumed(ult);
    }
}

/// Queues a ULT that the caller has claimed
/// ([`SuspendCell::claim`](crate::base::suspend::SuspendCell)).
#[inline]
pub(crate) fn push_claimed(ult: UltPtr) {
    diag::tell(ult, EventKind::Resume);
    // Once it is queued it may end, and its runtime with it, while its home is still being woken.
    // A thread of that runtime keeps it; others hold it meanwhile.
    let is_ours = current::xstream_in(&ult.core).is_some();
    let held = (!is_ours).then(|| Arc::clone(&ult.core));
    push_resumed(ult);
    drop(held);
}

/// Queues a resumed ULT at its home xstream. The caller has the right to queue it, and keeps the
/// shared part of its runtime alive, by its descriptor or as an xstream of that runtime.
fn push_resumed(ult: UltPtr) {
    if let Some(xstream) = home_here(ult) {
        return xstream.queue_resumed(ult);
    }
    let Some(home) = home_elsewhere(ult) else {
        return crate::engine::pool::push::enqueue(ult, PushReason::Migrate);
    };
    let sent = home.send(ult);
    debug_assert!(sent.is_ok(), "an xstream that is home to a ULT does not leave");
}

/// Where a started ULT is at home, if it is anywhere. The caller keeps the shared part of its
/// runtime alive.
fn home_elsewhere<'a>(ult: UltPtr) -> Option<&'a XstreamShared> {
    let home = ult.home.load(Relaxed);
    // SAFETY:
    // - valid: set when the ULT settled there, and xstreams live as long as the runtime's shared
    //   part (duty of the caller).
    (home != XstreamShared::nowhere()).then(|| unsafe { &*home })
}

/// Queues a started ULT that somebody took out of its queue and did not run. It had not been
/// suspended, so this is no resume, and does not count as one. For the caller: as [`push_resumed`].
///
/// With `bypass` it goes to the xstream's own list even if its pool is an object, because that
/// object has just dropped it, and would perhaps do so again.
pub(crate) fn push_again(ult: UltPtr, bypass: bool) {
    match home_here(ult) {
        Some(xstream) if bypass => xstream.list_back(ult),
        Some(xstream) => xstream.requeue(ult, PushReason::Resume),
        None if bypass && ult.home.load(Relaxed) == XstreamShared::nowhere() => send_anywhere(ult),
        None => send_again(ult),
    }
}

/// Gives a migratable ULT, which is at home nowhere, to an xstream that serves its pool.
#[cold]
fn send_anywhere(ult: UltPtr) {
    if let Some(xstream) = current::xstream_in(&ult.core)
        && xstream.slot_of(ult.pool()).is_some_and(|slot| slot.served.get())
    {
        return xstream.take_in(ult);
    }
    let servers = lock(&ult.pool().servers).clone();
    let mut xstreams = servers.into_iter().chain(ult.core.xstreams());
    let running = xstreams.clone().find(|xstream| xstream.state() == State::Running);
    // One that has left comes to it when it is revived, or passes it on when it is removed.
    let Some(xstream) = running.or_else(|| xstreams.next()) else {
        return crate::engine::pool::push::enqueue(ult, PushReason::Migrate);
    };
    let unit = Unit::from_ult(ult);
    xstream.ask(Box::new(move |xstream| xstream.take_in(unit.into_ult())));
}

/// Sends a ULT home past the inbox, whose ULTs count as resumed.
#[cold]
fn send_again(ult: UltPtr) {
    let Some(home) = home_elsewhere(ult) else {
        return crate::engine::pool::push::enqueue(ult, PushReason::Migrate);
    };
    let unit = Unit::from_ult(ult);
    home.ask(Box::new(move |xstream| xstream.requeue(unit.into_ult(), PushReason::Resume)));
}

/// Ends a unit that never started: drops its closure and tells the parties that join it. The
/// descriptor may be gone afterwards.
#[cold]
pub(crate) fn lose(ult: UltPtr, why: Why) {
    ult.payload.lose(why);
    diag::tell(ult, EventKind::Cancel);
    let core = Arc::clone(&ult.core);
    // pair: POOL-ENDED
    ult.pool().dropped.fetch_add(1, Release);
    crate::engine::pool::push::tell_loss(ult.pool());
    if crate::engine::unit::end::publish_lost(ult) {
        drop(UltRef::adopt(ult));
    }
    core.tell_news();
}

/// Returns the kind of wait of a ULT whose home is this xstream; none if it does not wait.
pub(crate) fn waits_for(ult: UltPtr) -> Option<WaitKind> {
    ult.state.cell.is_parked().then(|| ult.state.waits.get())
}

/// Lets the other runnable units of this xstream run, then goes on. On an ordinary OS thread, in a
/// tasklet and in a destructor during unwinding, gives the processor away.
///
/// A cancellation point.
///
/// Counterpart: `ABT_self_yield`.
// Always: see `suspend`.
#[inline(always)]
pub fn yield_now() {
    match current::suspendable() {
        Some(ult) => {
            suspend(ult, Command::Yield);
            check(ult);
        }
        None => std::thread::yield_now(),
    }
}

/// Ends `ult`, which is the caller, if it has been cancelled.
#[inline]
pub(crate) fn check(ult: UltPtr) {
    if cancel::is_pending(ult) {
        cancel::unwind();
    }
}

/// Waits for `duration`. A ULT suspends, without polling; an OS thread sleeps.
///
/// Resolution is that of the system's timers, far below 1 ms, if the xstream is idle; a busy
/// xstream looks at its timers between units. A cancellation point.
pub fn sleep(duration: Duration) {
    match current::suspendable() {
        Some(ult) if duration.is_zero() => {
            suspend(ult, Command::Yield);
            check(ult);
        }
        // A deadline beyond the clock's range never comes.
        Some(ult) => sleep_ult(ult, Instant::now().checked_add(duration)),
        None => std::thread::sleep(duration),
    }
}

/// Waits until `deadline`; returns at once if it has passed. See [`sleep`].
pub fn sleep_until(deadline: Instant) {
    match current::suspendable() {
        Some(ult) => sleep_ult(ult, Some(deadline)),
        None => std::thread::sleep(deadline.saturating_duration_since(Instant::now())),
    }
}

fn sleep_ult(ult: UltPtr, deadline: Option<Instant>) {
    ult.state.waits.set(WaitKind::Sleep);
    suspend_until(ult, deadline, || cancel::is_pending(ult));
    check(ult);
}

/// Returns whether anything else could run on this xstream now: runnable units, resumed or new ones
/// from elsewhere, or a shutdown that wants attention. Always `false` on an OS thread.
///
/// Costs a few loads; a ULT that polls something may ask this between polls instead of yielding.
/// Timers that are due count, but the clock is looked at only every 64th call.
#[must_use]
pub fn has_runnable() -> bool {
    current::xstream().is_some_and(|xstream| xstream.has_runnable())
}

/// Returns whether anything could run on this xstream beside `known` units, which the caller knows
/// to be runnable: other units, as for [`has_runnable`], or idle waiters ([`idle`](crate::idle())),
/// which run after some others have. For a ULT that does the work of another one, which waits for
/// its turn, as long as no third one waits.
#[must_use]
pub fn has_runnable_beyond(known: usize) -> bool {
    current::xstream().is_some_and(|xstream| xstream.has_runnable_beyond(known))
}

/// Bytes of its stack that are left to the calling ULT. Zero where nobody knows: on an OS thread,
/// and in a tasklet.
#[must_use]
pub fn stack_left() -> usize {
    let block = current::ult().and_then(|ult| ult.block());
    // The address of something on the stack in use, wherever that is.
    let here = 0u8;
    let here = std::hint::black_box(&raw const here).addr();
    match block.map(|block| (block.range(), here)) {
        Some(((low, bytes), here)) if (low..low + bytes).contains(&here) => here - low,
        _ => 0,
    }
}

/// Returns whether a unit waits in a pool that comes after the caller's in the list of this
/// xstream. In a strict order such units have no turn while the caller yields and yields; one that
/// polls lets them have it by [`idle`](crate::idle()), with an `arm` that answers `false`. Always
/// `false` on an OS thread.
#[must_use]
pub fn has_runnable_behind() -> bool {
    let here = current::xstream().zip(current::ult());
    here.is_some_and(|(xstream, ult)| xstream.has_runnable_behind(ult.pool()))
}

/// How many units this xstream has run: a new ULT or tasklet, and each time that one was resumed.
/// Zero on an OS thread.
///
/// A ULT that yields learns from the difference whether others ran meanwhile. It is no exact count:
/// idle waiters ([`idle`](crate::idle())) do not count, and what units hand to each other past the
/// scheduler may count more than once.
#[must_use]
pub fn units_run() -> u64 {
    current::xstream().map_or(0, |xstream| xstream.units_run.get())
}

/// Returns whether the calling ULT may be resumed by other xstreams.
#[must_use]
pub fn is_migratable() -> bool {
    current::ult().is_some_and(|ult| ult.kind() == Kind::Migratable)
}
