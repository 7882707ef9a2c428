//! Ending a ULT before its time: cancel and exit.
//!
//! Both unwind the ULT's stack with a payload of our own, so destructors run and no panic hook
//! does. The frame at the bottom tells them from panics.
//!
//! A wait that is a cancellation point ends when a cancel is pending. The object takes its waiter
//! back, exactly as for a deadline, and calls [`unwind`] when nothing of the wait is left linked.

#[cfg(not(loom))]
use crate::engine::model::unit::{CANCEL, UltPtr};
#[cfg(not(loom))]
use crate::engine::unit::payload::Stage;

/// The reason why a unit has no value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(loom, allow(dead_code, reason = "there are no ULTs in the models"))]
pub(crate) enum Why {
    /// Dropped by its pool before it started.
    Lost,
    /// Cancelled, before or after it started.
    Cancelled,
    /// It left with [`exit`].
    Exited,
    /// The system had no memory for its stack; `errno`.
    NoStack(i32),
}

/// The panic payload that unwinds a ULT that shall end now. Users see it only if they catch panics.
pub(crate) struct Unwind(pub(crate) Why);

/// Returns whether `ult`, which is the caller, has been asked to end.
#[cfg(not(loom))]
#[inline]
pub(crate) fn is_pending(ult: UltPtr) -> bool {
    // What is dropped after the end of the closure may wait, and is not disturbed.
    ult.has_requests() && ult.is_requested(CANCEL) && ult.payload.stage() == Stage::Empty
}

/// Ends the calling ULT: its destructors run. Not a panic, so no panic hook runs.
#[cold]
pub(crate) fn unwind() -> ! {
    end(Why::Cancelled)
}

fn end(why: Why) -> ! {
    if let Some(text) = without_unwinding(cfg!(panic = "abort")) {
        use std::io::Write;
        // No hook runs, and the abort says nothing.
        let act = if why == Why::Exited { "`ult::exit`" } else { "a cancelled ULT" };
        let _ = writeln!(std::io::stderr(), "ult: {act} ends the process: {text}");
    }
    std::panic::resume_unwind(Box::new(Unwind(why)))
}

/// Returns the warning for a program that is built so that nothing unwinds.
pub(crate) fn without_unwinding(is_abort: bool) -> Option<&'static str> {
    is_abort.then_some(
        "the program is built with panic = \"abort\", so that `JoinHandle::cancel`, `ult::exit` \
         and every panic, which is otherwise the outcome of its unit, abort the whole process; \
         build it with panic = \"unwind\"",
    )
}

/// Returns whether somebody has asked the calling ULT to end; see
/// [`JoinHandle::cancel`](crate::JoinHandle::cancel). For long computations without waits.
/// `false` on an OS thread.
///
/// Counterpart: `ABT_xstream_check_events`, for ULTs.
#[cfg(not(loom))]
#[must_use]
pub fn is_cancelled() -> bool {
    crate::engine::xstream::current::ult().is_some_and(is_pending)
}

/// Ends the calling unit: its stack is unwound, destructors run, and its `join` says
/// [`JoinError::Exited`](crate::JoinError::Exited).
///
/// Code that catches panics catches this, too, knows it by [`is_exit`], and should go on with
/// [`resume_unwind`](std::panic::resume_unwind). For destructors it is as a
/// [cancel](crate::JoinHandle::cancel).
///
/// # Panics
///
/// On an OS thread, where it is an ordinary panic. In a program that is built with
/// `panic = "abort"` it aborts the process, as a cancel does.
///
/// Counterpart: `ABT_self_exit`, which does not unwind.
#[cfg(not(loom))]
pub fn exit() -> ! {
    assert!(
        crate::engine::xstream::current::ult().is_some(),
        "`ult::exit` was called on a thread that runs no ULT"
    );
    end(Why::Exited)
}

/// Returns whether what [`catch_unwind`](std::panic::catch_unwind) has caught is no panic, but
/// [`exit`] or a [cancel](crate::JoinHandle::cancel) of the unit.
///
/// ```
/// # use std::panic::catch_unwind;
/// # let runtime = ult::Runtime::builder()
/// #     .pool(ult::PoolSpec::new("p"))
/// #     .xstream(ult::XstreamSpec::new("x").pools(["p"]))
/// #     .start()?;
/// # let pool = runtime.pool("p").ok_or("no pool")?;
/// let caught = pool.spawn(|| catch_unwind(|| ult::exit()).unwrap_err())?.join()?;
/// assert!(ult::is_exit(&*caught));
/// assert!(!ult::is_exit(&*catch_unwind(|| panic!("at the disco")).unwrap_err()));
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Counterpart: none; units of C end without unwinding.
#[cfg(not(loom))]
#[must_use]
pub fn is_exit(caught: &(dyn std::any::Any + Send)) -> bool {
    caught.is::<Unwind>()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn who_cannot_unwind_is_told_what_that_means() {
        assert_eq!(without_unwinding(false), None);
        let text = without_unwinding(true).unwrap();
        for word in ["cancel", "exit", "panic", "panic = \"abort\"", "panic = \"unwind\""] {
            assert!(text.contains(word), "{text}");
        }
    }
}
