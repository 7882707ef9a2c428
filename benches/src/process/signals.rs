//! Interrupts and orphans.
//!
//! - Ctrl-C: [`catch_interrupts`] makes the supervisor's waits end, so its guards run.
//! - A killed row process leaves dead peers: they become children of the supervisor
//!   ([`adopt_orphans`]), which reaps them after each row ([`reap_orphans`]).

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::{WaitOptions, getpid, set_child_subreaper};

use crate::base::{Deadline, Doing, Result, ensure};

/// Set by the signal handler, which may do nothing else.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Makes Ctrl-C and `SIGTERM` end the supervisor's waits instead of the supervisor.
pub(crate) fn catch_interrupts() {
    extern "C" fn note(_signal: libc::c_int) {
        INTERRUPTED.store(true, Ordering::Relaxed);
    }
    let handler = note as extern "C" fn(libc::c_int) as libc::sighandler_t;
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY:
        // - `handler` is a function of the signature that `signal` expects, alive for ever;
        // - it is async-signal-safe: one atomic store;
        // - no thread relies on the replaced default action. Children get it back at `exec`.
        unsafe { libc::signal(signal, handler) };
    }
}

/// Returns true if the user asked for the end.
pub(crate) fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// Sleeps for so long.
///
/// # Errors
///
/// When the user interrupts meanwhile.
pub(crate) fn nap(time: Duration) -> Result<()> {
    let deadline = Deadline::after(time);
    while !deadline.left().is_zero() {
        std::thread::sleep(deadline.left().min(Duration::from_millis(100)));
        ensure!(!interrupted(), "interrupted");
    }
    Ok(())
}

/// Makes this process the parent of its children's orphans.
///
/// # Errors
///
/// When the kernel refuses.
pub(crate) fn adopt_orphans() -> Result<()> {
    set_child_subreaper(Some(getpid())).doing("adopting orphans")
}

/// Reaps the orphans. They die with the row process that started them, so there is little to wait
/// for. No child of this process may be alive: it would be reaped as well.
pub(crate) fn reap_orphans() {
    let deadline = Deadline::after(Duration::from_secs(2));
    loop {
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some(_)) => {}
            Ok(None) if deadline.left().is_zero() => return,
            Ok(None) => std::thread::sleep(Duration::from_millis(1)),
            Err(_) => return, // no children left
        }
    }
}
