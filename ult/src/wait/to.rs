//! Switching to a unit of the caller's choice, past the scheduler.
//!
//! The caller names the next unit in a cell of its xstream and switches away; the caller's resumer
//! carries out its command, when its stack is quiet, and then runs the named unit in its place. So
//! a chain of such switches runs side by side, not nested.
//!
//! [`run_unit`] nests instead: the caller runs the unit as its child and goes on when that has
//! switched away.

use crate::base::wait_kind::WaitKind;
use crate::engine::error::ToError;
use crate::engine::model::interfaces::Unit;
use crate::engine::model::unit::UltPtr;
use crate::engine::xstream::current;
use crate::engine::xstream::owner::Xstream;
use crate::engine::xstream::push::requeue;
use crate::engine::xstream::switch;
use crate::stack::context::Command;
use crate::sync::Arc;
use crate::trace::event::EventKind;
use crate::wait::park_token::{Target, Unparker};

/// Lets `unit` run next; the caller goes back to its pool, behind the others.
///
/// The unit has been taken out of its pool ([`PoolRef::pop`](crate::PoolRef::pop)). An unstarted
/// one starts on the caller's xstream, whether or not that serves its pool.
///
/// A cancellation point.
///
/// # Errors
///
/// Gives the unit back if it has started on another xstream, belongs to another runtime, or if
/// the caller is no ULT that can be suspended.
///
/// Counterpart: `ABT_self_yield_to`.
// Always: see `switch::suspend`.
#[inline(always)]
pub fn yield_to(unit: Unit) -> Result<(), ToError> {
    let (me, xstream, target) = admit(unit)?;
    xstream.switch_over(me, target, Command::Yield);
    switch::check(me);
    Ok(())
}

/// Lets `unit` run next, and suspends the caller like [`park`](crate::park()).
///
/// # Errors
///
/// See [`yield_to`]. The caller has not been suspended then.
///
/// Counterpart: `ABT_self_suspend_to`.
pub fn park_to(unit: Unit) -> Result<(), ToError> {
    let (me, xstream, target) = admit(unit)?;
    park_next(me, xstream, target);
    Ok(())
}

/// Lets `unit` run next, and ends the caller like [`exit`](crate::exit).
///
/// # Errors
///
/// See [`yield_to`]. The caller goes on then.
///
/// Counterpart: `ABT_self_exit_to`.
pub fn exit_to(unit: Unit) -> Result<std::convert::Infallible, ToError> {
    let (_, xstream, target) = admit(unit)?;
    // Destructors that yield would let it run before the caller has ended; so it is queued first
    // if there is one already.
    if let Some(earlier) = xstream.next.replace(Some(target)) {
        crate::engine::xstream::push::requeue(xstream, earlier);
    }
    crate::engine::xstream::cancel::exit()
}

/// Runs `unit` as a child of the calling ULT, until it yields, suspends or ends; then the caller
/// goes on. With this a ULT can be a scheduler of its own.
///
/// The child runs on its own stack (a tasklet on the caller's). What it wants to run next runs
/// before the caller goes on, and so on for some hundred switches; then the next one has to queue.
///
/// # Errors
///
/// See [`yield_to`].
///
/// Counterpart: `ABT_self_schedule`.
pub fn run_unit(unit: Unit) -> Result<(), ToError> {
    let (_, xstream, target) = admit(unit)?;
    xstream.streak.stop();
    xstream.run(target);
    Ok(())
}

impl Unparker {
    /// Ends the target's [`park`](crate::park()) and lets it run next; the caller goes back to its
    /// pool, behind the others.
    ///
    /// If the target does not park now on the caller's xstream, this is [`unpark`](Self::unpark)
    /// and a [`yield_now`](crate::yield_now).
    ///
    /// Counterpart: `ABT_self_resume_yield_to`.
    pub fn yield_to(&self) {
        match self.claim() {
            Some((me, target)) => yield_to_ptr(me, target),
            None => switch::yield_now(),
        }
    }

    /// Ends the target's [`park`](crate::park()), lets it run next, and parks the caller.
    ///
    /// If the target does not park now on the caller's xstream, this is [`unpark`](Self::unpark)
    /// and a [`park`](crate::park()).
    ///
    /// Counterpart: `ABT_self_resume_suspend_to`.
    pub fn park_to(&self) {
        match self.claim().zip(current::xstream()) {
            Some(((me, target), xstream)) => park_next(me, xstream, target),
            None => crate::park(),
        }
    }

    /// Ends the target's [`park`](crate::park()), lets it run next, and ends the caller like
    /// [`exit`](crate::exit).
    ///
    /// # Panics
    ///
    /// On an OS thread, like `exit`.
    ///
    /// Counterpart: `ABT_self_resume_exit_to`.
    pub fn exit_to(&self) -> ! {
        if let Some(((_, target), xstream)) = self.claim().zip(current::xstream())
            && let Some(earlier) = xstream.next.replace(Some(target))
        {
            requeue(xstream, earlier);
        }
        crate::engine::xstream::cancel::exit()
    }

    /// Unparks. If the target stood still on this xstream, the caller has the right to run it.
    fn claim(&self) -> Option<(UltPtr, UltPtr)> {
        let near = match &self.0 {
            Target::Ult(ult) => current::suspendable().filter(|_| current::is_home_of(ult.ptr())),
            Target::Thread(_) => None,
        };
        match (near, &self.0) {
            (Some(me), Target::Ult(ult)) if ult.ptr() != me => {
                ult.ptr().leave_token();
                let is_mine = ult.ptr().state.cell.resume();
                if !is_mine {
                    return None;
                }
                crate::engine::xstream::diag::tell(ult.ptr(), EventKind::Resume);
                if let Some(xstream) = current::xstream() {
                    xstream.count_run_at_once(ult.ptr());
                }
                Some((me, ult.ptr()))
            }
            _ => {
                self.unpark();
                None
            }
        }
    }
}

/// Checks that the caller may run `unit` here. Returns the caller's ULT, its xstream, and the unit
/// to run.
#[inline(always)]
fn admit<'a>(unit: Unit) -> Result<(UltPtr, &'a Xstream, UltPtr), ToError> {
    let Some((xstream, me)) = current::xstream_and_ult() else {
        return Err(ToError::NotUlt(unit));
    };
    let ult = unit.ptr();
    if !xstream.is_home_of(ult) {
        if !Arc::ptr_eq(&ult.core, &xstream.core) {
            return Err(ToError::OtherRuntime(unit));
        }
        if unit.is_started() && !ult.may_move() {
            return Err(ToError::OtherXstream(unit));
        }
    }
    Ok((me, xstream, unit.into_ult()))
}

/// Switches from `me`, which is the caller, to `target`, whose queue membership the caller has.
#[inline]
pub(crate) fn yield_to_ptr(me: UltPtr, target: UltPtr) {
    match current::xstream() {
        Some(xstream) => xstream.switch_over(me, target, Command::Yield),
        None => switch::suspend(me, Command::Yield),
    }
    switch::check(me);
}

fn park_next(me: UltPtr, xstream: &Xstream, target: UltPtr) {
    me.state.waits.set(WaitKind::Park);
    if me.take_token() {
        return requeue(xstream, target);
    }
    xstream.switch_over(me, target, Command::Park);
    crate::park();
}
