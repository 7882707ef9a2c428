//! Switching away from a ULT, and what is done with the command that it leaves.
//!
//! Every switch away from a ULT goes to its resumer, with a [`Command`] that is carried out there
//! ([`Xstream::run`]). Only then is its stack quiet, and only then may others see it (publish after
//! switch). A ULT may hand over to another one directly; then that one carries the command out.

use std::time::{Duration, Instant};

use crate::base::contain::NoUnwind;
use crate::base::unwind::unwind;
use crate::base::wait_kind::WaitKind;
use crate::engine::model::interfaces::PushReason;
use crate::engine::model::pool::bump;
use crate::engine::model::unit::{UltPtr, UnitKind};
use crate::engine::xstream::cancel;
use crate::engine::xstream::current;
use crate::engine::xstream::inspect::inspected;
use crate::engine::xstream::owner::Xstream;
use crate::engine::xstream::timer::TimerNode;
use crate::stack::block::BlockPtr;
use crate::stack::context::{CAN_HAND_OVER, Command, Wakeup};
use crate::trace::event::EventKind;

/// Every so many switches from ULT to ULT in a row, one returns to the code that resumed the stack.
pub(crate) const HOPS_MAX: u32 = 32;

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
    inspected();
    wake_up(block, leave(block, command), command);
}

impl Xstream {
    /// `ult` has yielded, and its stack is quiet.
    #[inline(always)]
    pub(crate) fn carry_out_yield(&self, ult: UltPtr) {
        bump(&self.home_slot(ult).shared.yields);
        self.requeue(ult, PushReason::Yield);
    }

    /// `ult` has suspended itself, and its stack is quiet.
    #[inline(always)]
    pub(crate) fn carry_out_park(&self, ult: UltPtr) {
        bump(&self.home_slot(ult).shared.parked);
        if !ult.state.cell.commit_suspend() {
            self.on_event(ult, EventKind::Resume);
            self.queue_resumed(ult);
        }
    }

    /// Switches from `me`, the calling ULT, to `next`, whose queue membership the caller has;
    /// `command` is for `me`. Returns when `me` runs again.
    // Always: see `suspend`.
    #[inline(always)]
    pub(crate) fn switch_over(&self, me: UltPtr, next: UltPtr, command: Command) {
        match self.can_hand_over(me, next) {
            Some((from, to)) => {
                self.before.set(Some((me, command)));
                self.handed.set(true);
                self.current.set(Some(next));
                // Not where the scheduler switches: its loop gives the cache enough time.
                self.home_slot(next).prefetch_first();
                // SAFETY:
                // - one resumer: the caller has the right to run `next`; alive: it has not ended;
                // - not at its beginning: it has a stack, on which it has suspended or yielded.
                let wakeup = unsafe { from.context.hand_over(&to.context) };
                if wakeup == Wakeup::After {
                    // `me` does not move, so this is still its xstream.
                    return self.settle_before();
                }
                wake_up(from, wakeup, command);
            }
            None => {
                self.next.set(Some(next));
                suspend(me, command);
            }
        }
    }

    /// The stacks of `me` and `next`, if the switch may go past the scheduler: both are at home
    /// here, `me` goes back to an ordinary list, and nobody watches. Now and then it may not, so
    /// that two ULTs that switch back and forth do not keep the xstream for themselves.
    #[inline]
    fn can_hand_over(&self, me: UltPtr, next: UltPtr) -> Option<(BlockPtr, BlockPtr)> {
        let hops = self.hops.get().wrapping_add(1);
        self.hops.set(hops);
        let may = CAN_HAND_OVER
            && !hops.is_multiple_of(HOPS_MAX)
            && self.is_home_of(next)
            && self.is_plain(me)
            && !self.is_watched();
        if may { me.block().zip(next.block()) } else { None }
    }

    /// Carries out the command of the ULT that handed over to the caller, which is in the middle of
    /// a wait.
    #[inline(always)]
    pub(crate) fn settle_before(&self) {
        let guard = NoUnwind::begin();
        match self.before.get() {
            Some((ult, Command::Yield)) => self.carry_out_yield(ult),
            Some((ult, _)) => self.carry_out_park(ult),
            None => {}
        }
        guard.defuse();
    }
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
        unwind();
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

/// How many units this xstream has run: a new ULT or tasklet, and each time that one was resumed.
/// Zero on an OS thread.
///
/// A ULT that yields learns from the difference whether others ran meanwhile. It is no exact count:
/// idle waiters ([`idle`](crate::integration::idle())) do not count, and what units hand to each
/// other past the scheduler may count more than once.
#[must_use]
pub fn units_run() -> u64 {
    current::xstream().map_or(0, |xstream| xstream.units_run.get())
}

/// Returns whether the calling ULT may be resumed by other xstreams.
#[must_use]
pub fn is_migratable() -> bool {
    current::ult().is_some_and(|ult| ult.kind() == UnitKind::Migratable)
}
