//! Cancel and exit, as the ULT sees them that is to end.
//!
//! A wait that is a cancellation point ends when a cancel is pending. The object takes its waiter
//! back, exactly as for a deadline, and calls [`unwind`](crate::base::unwind::unwind) when nothing
//! of the wait is left linked.

use crate::base::payload::Stage;
use crate::base::unwind::{Why, unwind_for};
use crate::engine::model::unit::{CANCEL, UltPtr};
use crate::engine::xstream::current;

/// Returns whether `ult`, which is the caller, has been asked to end.
#[inline]
pub(crate) fn is_pending(ult: UltPtr) -> bool {
    // What is dropped after the end of the closure may wait, and is not disturbed.
    ult.has_requests() && ult.is_requested(CANCEL) && ult.payload.stage() == Stage::Empty
}

/// Returns whether somebody has asked the calling ULT to end; see
/// [`JoinHandle::cancel`](crate::JoinHandle::cancel). For long computations without waits.
/// `false` on an OS thread.
///
/// Counterpart: `ABT_xstream_check_events`, for ULTs.
#[must_use]
pub fn is_cancelled() -> bool {
    current::ult().is_some_and(is_pending)
}

/// Ends the calling unit: its stack is unwound, destructors run, and its `join` says
/// [`JoinError::Exited`](crate::JoinError::Exited).
///
/// Code that catches panics catches this, too, knows it by [`is_exit`](crate::is_exit), and should
/// go on with [`resume_unwind`](std::panic::resume_unwind). For destructors it is as a
/// [cancel](crate::JoinHandle::cancel).
///
/// # Panics
///
/// On an OS thread, where it is an ordinary panic. In a program that is built with
/// `panic = "abort"` it aborts the process, as a cancel does.
///
/// Counterpart: `ABT_self_exit`, which does not unwind.
pub fn exit() -> ! {
    assert!(current::ult().is_some(), "`ult::exit` was called on a thread that runs no ULT");
    unwind_for(Why::Exited)
}
