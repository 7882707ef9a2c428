//! Running a measurement as a ULT, from the outside.

use std::sync::mpsc::{RecvTimeoutError, channel};

use ult::PoolRef;

use crate::failure::{Doing, Failure, Result};
use crate::wait::Deadline;

/// Runs `body` as a ULT of `pool` and waits for its result. The calling OS thread sleeps meanwhile,
/// so it does not disturb the core that it shares with the ULT's xstream.
///
/// # Errors
///
/// Those of `body`; and when it does not end in time, or panics. A ULT that is late goes on, so the
/// process has to end.
pub(crate) fn on_ult<T: Send + 'static>(
    pool: &PoolRef,
    deadline: Deadline,
    body: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let (sender, receiver) = channel();
    let spawned = pool.spawn(move || {
        // Nobody to tell if the receiver has given up: the failure is reported by then.
        let _ = sender.send(body());
    });
    let _ult = spawned.doing("spawning the measuring ULT")?;
    match receiver.recv_timeout(deadline.left()) {
        Ok(result) => result,
        Err(RecvTimeoutError::Timeout) => Err(deadline.late("the measuring ULT")),
        Err(RecvTimeoutError::Disconnected) => Err(Failure::new("the measuring ULT panicked")),
    }
}

/// Lets others run until `ready`. On a ULT.
///
/// # Errors
///
/// When the deadline passes first.
pub(crate) fn yield_until(
    what: &str,
    deadline: Deadline,
    mut ready: impl FnMut() -> bool,
) -> Result<()> {
    deadline.spin_until(what, || {
        let ready = ready();
        if !ready {
            ult::yield_now();
        }
        ready
    })
}
