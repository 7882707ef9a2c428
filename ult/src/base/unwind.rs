//! The means by which a ULT ends before its time, and the reasons for it.
//!
//! Cancel and exit unwind the ULT's stack with a payload of our own, so destructors run and no
//! panic hook does. The frame at the bottom tells them from panics.

/// The reason why a unit has no value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(loom, allow(dead_code, reason = "there are no ULTs in the models"))]
pub(crate) enum Why {
    /// Dropped by its pool before it started.
    Lost,
    /// Cancelled, before or after it started.
    Cancelled,
    /// It left with [`exit`](crate::exit).
    Exited,
    /// The system had no memory for its stack; `errno`.
    NoStack(i32),
}

/// The panic payload that unwinds a ULT that shall end now. Users see it only if they catch panics.
pub(crate) struct Unwind(pub(crate) Why);

/// Ends the calling ULT: its destructors run. Not a panic, so no panic hook runs.
#[cold]
pub(crate) fn unwind() -> ! {
    unwind_for(Why::Cancelled)
}

/// Unwinds the calling ULT for the reason `why`.
pub(crate) fn unwind_for(why: Why) -> ! {
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

/// Returns whether what [`catch_unwind`](std::panic::catch_unwind) has caught is no panic, but
/// [`exit`](crate::exit) or a [cancel](crate::JoinHandle::cancel) of the unit.
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
