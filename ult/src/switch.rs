//! Switching: from a ULT to its xstream and back, and putting ULTs back into queues.
//!
//! corosensei switches only between a coroutine and whoever resumed it, so every switch away from
//! a ULT goes to its xstream, with a [`Command`]. The xstream carries it out on its own stack
//! ([`Xstream::run`](crate::xstream::Xstream::run)).

use std::convert::Infallible;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use corosensei::Yielder;

use crate::current;
use crate::descriptor::{Command, Ult, UltPtr, UltRef, Wakeup};
use crate::diag;
use crate::sync::atomic::Ordering::Relaxed;
use crate::timer::TimerNode;
use crate::trace::event::EventKind;
use crate::wait_kind::WaitKind;

/// The frame at the bottom of every stack. It runs one ULT after the other and never ends.
///
/// Between two ULTs the block may pass to another thread, with this frame on it. So the frame holds
/// nothing that belongs to a thread, and what might read thread-locals is in [`body`].
pub(crate) fn root(place: NonNull<Ult>, yielder: &Yielder<Wakeup, Command>) -> Infallible {
    // SAFETY:
    // - a descriptor in a live block: it is the block of this very stack.
    let ult = unsafe { UltPtr::new(place) };
    ult.yielder.set(yielder);
    loop {
        body(ult);
        yielder.suspend(Command::Finish);
    }
}

/// One ULT, from its closure to its published result.
#[inline(never)]
fn body(ult: UltPtr) {
    ult.payload.run();
    crate::join::publish(ult);
}

/// Switches from `ult`, which is the caller, to its xstream.
#[inline]
pub(crate) fn suspend(ult: UltPtr, command: Command) {
    debug_assert_eq!(current::ult(), Some(ult));
    // SAFETY:
    // - valid: set by `root`, and points into the stack that we are on.
    let wakeup = unsafe { &*ult.yielder.get() }.suspend(command);
    // Nothing of this frame is needed after the switch, so nothing is saved across it.
    if wakeup == Wakeup::Inspect {
        crate::backtrace::inspected(command);
    }
}

/// Suspends `ult`, which is the caller, until `ready` says yes or `deadline` has passed. Returns
/// what `ready` said last. Whoever makes it ready must resume the ULT afterwards.
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
    let timer = TimerNode::new(ult);
    // SAFETY:
    // - removed before it ends: below, and nothing in between unwinds.
    unsafe { xstream.timers.borrow_mut().insert(deadline, &timer) };
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
    is_ready
}

/// Resumes a ULT whose condition has been fulfilled; it looks for itself. May be called early,
/// late and more than once.
///
/// The caller holds a count on the ULT, or runs on its home xstream.
#[inline]
pub(crate) fn resume(ult: UltPtr) {
    if ult.cell.resume() {
        diag::tell(ult, EventKind::Resume);
        push_resumed(ult, false);
    }
}

/// Queues a started ULT at its home xstream. The caller has the right to queue it, and holds a
/// count or runs on the home xstream.
///
/// With `bypass` it goes to the xstream's own list even if its pool is an object, because that
/// object has just dropped it.
pub(crate) fn push_resumed(ult: UltPtr, bypass: bool) {
    let home = ult.home.load(Relaxed);
    match current::xstream() {
        Some(xstream) if xstream.is_home_of(ult) => {
            if bypass {
                xstream.list_back(ult, ult.slot.get() as usize);
            } else {
                xstream.queue_resumed(ult);
            }
        }
        // SAFETY:
        // - valid: set at the first start, and points into the runtime's shared part, which lives
        //   until the call is over: the ULT may end as soon as it is queued, but not its
        //   descriptor, on which the caller holds a count.
        _ => unsafe { &*home }.send(ult),
    }
}

/// Ends a ULT that never started: drops its closure and tells whoever joins it.
pub(crate) fn lose(ult: UltPtr) {
    ult.payload.lose();
    diag::tell(ult, EventKind::Cancel);
    let pool = ult.pool();
    // pair: POOL-ENDED
    pool.dropped.fetch_add(1, crate::sync::atomic::Ordering::Release);
    crate::join::publish_lost(ult);
    let core = crate::sync::Arc::clone(&ult.core);
    drop(UltRef::adopt(ult));
    core.tell_news();
}

/// Lets the other runnable units of this xstream run, then goes on. On an ordinary OS thread, and
/// in a destructor during unwinding, gives the processor away.
///
/// Counterpart: `ABT_self_yield`.
#[inline]
pub fn yield_now() {
    match current::suspendable() {
        Some(ult) => suspend(ult, Command::Yield),
        None => std::thread::yield_now(),
    }
}

/// Waits for `duration`. A ULT suspends, without polling; an OS thread sleeps.
///
/// Resolution is that of the system's timers, far below 1 ms, if the xstream is idle; a busy
/// xstream looks at its timers between units.
pub fn sleep(duration: Duration) {
    match current::suspendable() {
        Some(ult) if !duration.is_zero() => {
            // A deadline beyond the clock's range never comes.
            diag::announce(ult, WaitKind::Sleep);
            suspend_until(ult, Instant::now().checked_add(duration), || false);
        }
        Some(ult) => suspend(ult, Command::Yield),
        None => std::thread::sleep(duration),
    }
}

/// Whether anything else could run on this xstream now: runnable units, resumed or new ones from
/// elsewhere, or a shutdown that wants attention. Always `false` on an OS thread.
///
/// Costs a few loads; a ULT that polls something may ask this between polls instead of yielding.
/// Timers that are due count, but the clock is looked at only every 64th call.
#[must_use]
pub fn has_runnable() -> bool {
    current::xstream().is_some_and(|xstream| xstream.has_runnable())
}
