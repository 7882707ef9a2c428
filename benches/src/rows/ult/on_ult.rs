//! Runs a measurement as a ULT while the calling OS thread sleeps.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};

use ult::PoolRef;

use crate::base::failure::{Doing, Failure, Result};
use crate::base::wait::Deadline;

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

/// Runs `body` as one ULT of each of `pools`, all at once, and waits for their results. `body` gets
/// its place and a gate for as many parties as there are pools.
///
/// # Errors
///
/// As [`on_ult`], for the first that fails.
pub(crate) fn on_each<T: Send + 'static>(
    pools: &[PoolRef],
    deadline: Deadline,
    body: impl Fn(usize, &StartLine) -> Result<T> + Send + Sync + 'static,
) -> Result<Vec<T>> {
    let (body, gate) = (Arc::new(body), Arc::new(StartLine::new(pools.len())));
    let (sender, receiver) = channel();
    for (place, pool) in pools.iter().enumerate() {
        let (body, gate, sender) = (body.clone(), gate.clone(), sender.clone());
        // As in `on_ult`.
        let run = move || drop(sender.send((place, body(place, &gate))));
        pool.ult().spawn_detached(run).doing("spawning a measuring ULT")?;
    }
    drop(sender);
    let mut results = Vec::with_capacity(pools.len());
    for _ in pools {
        match receiver.recv_timeout(deadline.left()) {
            Ok((place, result)) => results.push((place, result?)),
            Err(RecvTimeoutError::Timeout) => return Err(deadline.late("the measuring ULTs")),
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Failure::new("a measuring ULT panicked"));
            }
        }
    }
    results.sort_by_key(|(place, _)| *place);
    Ok(results.into_iter().map(|(_, result)| result).collect())
}

/// Where several parties wait for each other, once, without sleeping.
#[derive(Debug)]
pub(crate) struct StartLine {
    parties: usize,
    arrived: AtomicUsize,
}

impl StartLine {
    /// Opens when `parties` have come.
    pub(crate) fn new(parties: usize) -> Self {
        Self { parties, arrived: AtomicUsize::new(0) }
    }

    /// Waits for the others. A ULT lets those of its own xstream run meanwhile; for an OS thread
    /// this is a spin that gives the core away.
    ///
    /// # Errors
    ///
    /// When they do not come in time.
    pub(crate) fn pass(&self, deadline: Deadline) -> Result<()> {
        // pair: GATE
        self.arrived.fetch_add(1, Ordering::AcqRel);
        yield_until("the other parties", deadline, || {
            // pair: GATE
            self.arrived.load(Ordering::Acquire) >= self.parties
        })
    }
}
