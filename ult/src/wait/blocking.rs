//! Code that blocks its thread, run by another thread while the calling ULT is suspended.
//!
//! The ULT and the thread share the [`Outcome`] by a count, and nothing else: the closure owns what
//! it uses. So a ULT that is cancelled leaves at once, whatever the closure is in the middle of;
//! whichever of the two is last drops the outcome. A closure that has not begun is withdrawn
//! instead. The threads are in `engine/helpers.rs`.
//!
//! | caller | where the closure runs |
//! |---|---|
//! | a ULT | on a thread of its runtime |
//! | an OS thread, also one of these threads | in place |
//! | a tasklet, or a destructor during unwinding | in place: the whole xstream is blocked |
//! | a process that was forked off | in place |

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use crate::base::contain::{Panic, contained_alone, discard_panic, log, panic_message};
use crate::base::wait_kind::WaitKind;
use crate::engine::helpers::{Helpers, Lane, QueuedWork, Work};
use crate::engine::xstream::current::xstream_and_ult;
use crate::sync::{Arc, Mutex, lock};
use crate::wait::eventual::Eventual;

/// Runs `work`, which may block its thread, and returns its value. A ULT is suspended meanwhile,
/// and its xstream runs others; `work` runs on a thread that the runtime keeps for this.
///
/// For system calls that wait (files, sockets, `std::thread::sleep`), for `std` locks that are held
/// long, for libraries that block (a database, an HTTP client), and for long computations that
/// would hold up the units of the xstream. A hand-over to the thread and back costs two wake-ups,
/// some ten microseconds: what blocks for less is better called directly.
///
/// ```
/// # let runtime = ult::Runtime::builder()
/// #     .pool(ult::PoolSpec::new("p"))
/// #     .xstream(ult::XstreamSpec::new("x").pools(["p"]))
/// #     .start()?;
/// # let pool = runtime.pool("p").ok_or("no pool")?;
/// let size = pool.spawn(|| {
///     // The xstream is free while the disk works.
///     ult::blocking(|| std::fs::metadata("/proc/self/exe").map(|file| file.len()))
/// })?;
/// assert!(size.join()?? > 0);
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Where it runs
///
/// On an OS thread, `work` runs in place, since nobody is held up: also on these threads
/// themselves, so `blocking` inside of `blocking` needs no second thread. In a tasklet, in a
/// destructor during unwinding, in a child process that was forked off, and where the system gives
/// no thread at all, it runs in place, too, and blocks the xstream.
///
/// `work` runs on no ULT: [`current`](crate::current()) is `None`, values of the unit
/// ([`UltLocal`](crate::UltLocal), what it has [inherited](crate::integration::inherited)) are not
/// there, [`exit`](crate::exit) panics, and waits for objects of this crate block the thread. So it
/// shall not wait for what needs another `blocking` to happen: with all threads in such waits,
/// nobody is left to end them.
///
/// # Limits
///
/// At most [`RuntimeBuilder::blocking_threads_max`](crate::RuntimeBuilder::blocking_threads_max)
/// closures run at once, 64 unless told otherwise; more wait in order, and their ULTs with them.
/// Threads start when they are needed and end after ten seconds without work.
/// [`Runtime::blocking_stats`](crate::Runtime::blocking_stats) counts.
///
/// # Cancellation
///
/// The wait is a cancellation point. The ULT leaves at once; nothing can stop a closure that has
/// begun, so it runs to its end, and its value is dropped there. One that has not begun is dropped
/// by the ULT. This is why `work` and its value borrow nothing (`'static`): a wait for borrowed
/// values could not be abandoned, and a disk that hangs would hold a ULT whose deadline is over.
///
/// # Shutdown
///
/// A ULT that waits keeps its runtime alive, as ULTs do. Closures of cancelled ULTs do not: the
/// runtime ends without them, and they go on until they return or the process ends.
///
/// # Panics
///
/// With the panic of `work`, which has gone through the panic hook on the other thread. If the ULT
/// was cancelled meanwhile, an error in the log has its message.
///
/// Counterpart: none in Argobots; `spawn_blocking` of tokio.
pub fn blocking<F, R>(work: F) -> R
where
    F: FnOnce() -> R + Send + 'static,
    R: Send + 'static,
{
    run(Lane::Program, work)
}

/// As [`blocking`], for names and files of margo itself: there are some threads that closures of
/// the program cannot take.
pub fn blocking_reserved<F, R>(work: F) -> R
where
    F: FnOnce() -> R + Send + 'static,
    R: Send + 'static,
{
    run(Lane::Runtime, work)
}

/// The value or the panic of a closure, for the party that waits.
struct Outcome<R>(Eventual<Mutex<Option<Result<R, Panic>>>>);

impl<R> Drop for Outcome<R> {
    /// Drops what nobody waits for any more. A ULT that does so unwinds, which a second panic would
    /// turn into an abort.
    fn drop(&mut self) {
        let slot = self.0.take();
        match slot.and_then(|slot| lock(&slot).take()) {
            Some(Ok(value)) => {
                contained_alone("the destructor of a value of `ult::blocking`", || drop(value));
            }
            Some(Err(panic)) => {
                let message = panic_message(&panic);
                log!(ERROR, message, "a closure of `ult::blocking` panicked; its ULT is gone");
                discard_panic(panic);
            }
            None => {}
        }
    }
}

/// Withdraws a closure whose ULT unwinds.
struct Withdraw<'a>(&'a Helpers, QueuedWork);

impl Drop for Withdraw<'_> {
    fn drop(&mut self) {
        if let Some(wrapped) = self.0.withdraw(&self.1) {
            contained_alone("the destructor of a closure of `ult::blocking`", || drop(wrapped));
        }
    }
}

fn run<F, R>(lane: Lane, work: F) -> R
where
    F: FnOnce() -> R + Send + 'static,
    R: Send + 'static,
{
    let here = xstream_and_ult().map(|(xstream, _)| xstream.core.helpers.clone());
    let Some(helpers) = here.filter(|helpers| helpers.are_here()) else { return work() };
    let outcome = Arc::new(Outcome::<R>(Eventual::new()));
    let there = outcome.clone();
    let wrapped: Work = Box::new(move || {
        let result = catch_unwind(AssertUnwindSafe(work));
        // Set once.
        let _ = there.0.set(Mutex::new(Some(result)));
    });
    match helpers.submit(lane, wrapped) {
        Ok(entry) => {
            let withdraw = Withdraw(&helpers, entry);
            while !outcome.0.wait_ready_as(WaitKind::Blocking, None) {}
            std::mem::forget(withdraw);
        }
        Err(wrapped) => wrapped(),
    }
    match lock(outcome.0.wait()).take().expect("an outcome is read once") {
        Ok(value) => value,
        Err(panic) => resume_unwind(panic),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outcome_that_nobody_takes_is_dropped_once_whatever_its_destructor_does() {
        struct Panics(Arc<()>);
        impl Drop for Panics {
            fn drop(&mut self) {
                assert!(Arc::strong_count(&self.0) < 2, "of the destructor");
            }
        }
        let held = Arc::new(());
        let outcome = Outcome(Eventual::new());
        assert!(outcome.0.set(Mutex::new(Some(Ok(Panics(held.clone()))))).is_ok());
        // While another panic unwinds, too.
        let unwinds = catch_unwind(AssertUnwindSafe(move || {
            let _dropped = outcome;
            resume_unwind(Box::new(7));
        }));
        assert!(unwinds.is_err());
        assert_eq!(Arc::strong_count(&held), 1);
        let outcome = Outcome::<()>(Eventual::new());
        assert!(outcome.0.set(Mutex::new(Some(Err(Box::new("a panic"))))).is_ok());
        drop(outcome);
    }
}
