//! The end of a unit: its outcome is published, and it parts from its stack.
//!
//! The unit, its handle and those that wait meet in the [`JoinWord`] of the descriptor.
//!
//! The unit publishes its end on its own stack and touches its descriptor no more: of the unit and
//! its handle, the one that comes second drops what both have in common. If the handle was gone,
//! the unit drops the outcome itself, so that a destructor may suspend.
//!
//! [`JoinWord`]: crate::engine::model::waiter::JoinWord

use std::ptr;

use crate::base::contain::{log, panic_message};
use crate::base::payload::Stage;
use crate::base::unwind::Why;
use crate::engine::contain::contained;
use crate::engine::model::interfaces::Unit;
use crate::engine::model::unit::{CANCEL, UltPtr, UltRef};
use crate::engine::waiting::join_word::Published;
use crate::engine::xstream::change_pool::tell_loss;
use crate::engine::xstream::diag;
use crate::engine::xstream::push::{push_again, tell_end};
use crate::stack::block::BlockPtr;
use crate::sync::Arc;
use crate::sync::atomic::Ordering::{Relaxed, Release};
use crate::trace::event::EventKind;

/// Runs the calling unit, and publishes its outcome. `true`: nobody else keeps the descriptor, the
/// caller recycles it; `false`: it may be gone.
#[inline(always)]
pub(crate) fn run_and_publish(ult: UltPtr) -> bool {
    ult.payload.run();
    publish(ult)
}

/// The second half of [`run_and_publish`].
#[inline(always)]
pub(crate) fn publish(ult: UltPtr) -> bool {
    if ult.is_rare() {
        crate::engine::unit::local::drop_all(ult);
    }
    // Detached is final, so no read-modify-write is needed to see it.
    if ult.join.is_detached() {
        // It may wait, so it is still a ULT on a stack.
        discard(ult);
        count_end(ult);
        leave_block(ult);
        return true;
    }
    // Whoever joins it finds it in the counters.
    count_end(ult);
    let block = leave_block(ult);
    let is_ours = publish_done(ult);
    if is_ours {
        discard_late(ult, block);
    }
    is_ours
}

/// Counts the end of the calling unit.
#[inline(always)]
fn count_end(ult: UltPtr) {
    // SAFETY:
    // - valid: the slot where the unit runs, on this xstream; slots are dropped between two units,
    //   and those of ULTs that are at home here are not.
    let slot = unsafe { &*ult.slot.get() };
    let finished = &slot.shared.finished;
    // What the unit did happens before a shutdown that sees the count.
    finished.store(finished.load(Relaxed) + 1, Release); // pair: POOL-ENDED
    tell_end(slot);
}

/// Drops the outcome of the calling unit, whose handle went away while it published.
#[cold]
fn discard_late(ult: UltPtr, block: Option<BlockPtr>) {
    // It may wait, so it is a ULT on a stack once more. It has been counted as ended; while it is
    // at home here, a shutdown waits for it all the same, and so it stays: here and in its pool.
    let Some(block) = block else { return discard(ult) };
    ult.forget_move();
    ult.pins.set(ult.pins.get() + 1);
    move_in(ult, block);
    discard(ult);
    part(ult, block);
    ult.pins.set(ult.pins.get() - 1);
}

/// Parts the calling unit from its stack, so that its descriptor may be reused while the stack is
/// still in use.
#[inline(always)]
fn leave_block(ult: UltPtr) -> Option<BlockPtr> {
    let block = ult.block()?;
    crate::engine::xstream::diag::finishing(ult);
    part(ult, block);
    Some(block)
}

#[inline]
fn part(ult: UltPtr, block: BlockPtr) {
    // In `block.ult` it stands for the one who recycles it.
    block.set_ult(None);
    ult.set_block(None);
    ult.home.store(ptr::null_mut(), Relaxed);
}

/// Takes [`part`] back.
#[cold]
fn move_in(ult: UltPtr, block: BlockPtr) {
    block.set_ult(Some(ult));
    ult.set_block(Some(block));
    if let Some(xstream) = crate::engine::xstream::current::xstream() {
        ult.home.store(xstream.me(), Relaxed);
    }
}

/// Tells the parties that join a unit that it will never run. As [`run_and_publish`].
pub(crate) fn publish_lost(ult: UltPtr) -> bool {
    // There is no outcome that the unit would have to drop.
    publish_done(ult)
}

/// The unit comes first: its handle drops the rest. Or it comes second, and the caller does so
/// (`true`).
#[inline(always)]
fn publish_done(ult: UltPtr) -> bool {
    if ult.join.publish_unwatched() {
        return false;
    }
    publish_met(ult)
}

/// Publishes where a party waits already, or where the handle went away meanwhile.
#[inline(never)]
fn publish_met(ult: UltPtr) -> bool {
    match ult.join.publish() {
        Published::First => false,
        Published::Detached => true,
        Published::Waited(waiters) => {
            waiters.wake();
            false
        }
    }
}

/// Drops an outcome that nobody will look at. A panic is logged, and so is one of a destructor.
#[inline(always)]
pub(crate) fn discard(ult: UltPtr) {
    if !ult.payload.discard_plain() {
        discard_slow(ult);
    }
}

#[cold]
fn discard_slow(ult: UltPtr) {
    // The handle is gone, so there is no other request to come.
    ult.take_request(CANCEL);
    match ult.payload.stage() {
        Stage::Panicked => {
            log_panic(ult);
            ult.payload.discard();
        }
        Stage::Value => {
            contained(Some(ult), "dropping the value of a ULT", || ult.payload.discard());
        }
        _ => {}
    }
}

#[cold]
fn log_panic(ult: UltPtr) {
    let (id, name, pool) = (ult.id.get(), ult.name(), &*ult.pool().name);
    ult.payload.with_panic(|panic| {
        let message = panic_message(panic);
        log!(ERROR, id, name, pool, message, "a detached ULT panicked");
    });
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
    tell_loss(ult.pool());
    if publish_lost(ult) {
        drop(UltRef::adopt(ult));
    }
    core.tell_news();
}

impl Drop for Unit {
    fn drop(&mut self) {
        if self.is_started() {
            let held = UltRef::share(self.ptr());
            push_again(self.ptr(), true);
            drop(held);
        } else {
            lose(self.ptr(), Why::Lost);
        }
    }
}
