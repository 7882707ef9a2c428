//! Ending a runtime.
//!
//! 1. *Watch*: spawns still work. Wait until nothing is alive.
//! 2. *Close*: refuse spawns. Wait until every xstream has seen that, and until no other thread is
//!    in the middle of a spawn: from then on the number of ULTs cannot grow. One that slipped in
//!    before runs to its end.
//! 3. When nothing is alive: *exit*. The xstreams leave their loops, their threads are joined, and
//!    the idle stacks are unmapped.
//!
//! If the time is over before step 3, the runtime opens again, and the xstreams are asked for the
//! ULTs that they are home to. Nothing has been destroyed, so a later attempt starts over.
//!
//! One attempt at a time; others wait for its end, within their own time. An attempt waits on
//! `news`, which every phase change, and every end of a ULT while the phase says so, announces.

use std::time::Duration;

use crate::base::contain::log;
use crate::base::limit::Limit;
use crate::engine::error::{ShutdownError, StillAlive};
use crate::engine::model::runtime_core::{CLOSING, EXIT, REPORT, RuntimeCore, WATCHED};
use crate::engine::model::waiter::ChangeSignal;
use crate::engine::xstream::current;
use crate::runtime::handle::{Owner, Runtime};
use crate::runtime::xstream_thread;
use crate::sync::{Arc, relax, thread};

/// Limit of [`Runtime::shutdown`].
const LIMIT_DEFAULT: Duration = Duration::from_secs(30);
/// How long the xstreams may take for the report. Only one that runs a ULT all that time is late.
const REPORT_LIMIT: Duration = Duration::from_millis(500);

/// Wakes attempts that wait for another. Shared by all runtimes: shutdown is rare.
static TURN_OVER: ChangeSignal = ChangeSignal::new();

impl Runtime {
    /// Waits until all ULTs have ended, then ends the xstreams. Spawns fail from then on. Same as
    /// [`shutdown_timeout`](Self::shutdown_timeout) with 30 s.
    ///
    /// # Errors
    ///
    /// See [`ShutdownError`]. The runtime then goes on as before.
    ///
    /// Counterpart: `ABT_finalize`, which waits without limit.
    pub fn shutdown(&self) -> Result<(), ShutdownError> {
        self.shutdown_timeout(LIMIT_DEFAULT)
    }

    /// Waits for at most `limit` until all ULTs have ended, then ends the xstreams.
    ///
    /// A pause of the whole process (a stop signal, a debugger, a virtual machine that is moved)
    /// counts as 100 ms at most, since the ULTs pause as well.
    ///
    /// Spawns work while ULTs are alive, and fail once the last has ended. Further calls, also
    /// concurrent ones, are harmless: they wait for the first, and return `Ok` if it succeeds.
    ///
    /// # Errors
    ///
    /// - [`ShutdownError::FromUlt`] if called by a ULT of this runtime.
    /// - [`ShutdownError::StillAlive`] when the time is over; it lists what is in the way. The
    ///   runtime then goes on as before, and this may be called again.
    pub fn shutdown_timeout(&self, limit: Duration) -> Result<(), ShutdownError> {
        if self.is_current() {
            return Err(ShutdownError::FromUlt);
        }
        self.owner.shutdown(Limit::new(limit))
    }

    /// Returns whether the caller is a ULT (or a scheduler) of this runtime.
    #[must_use]
    pub fn is_current(&self) -> bool {
        current::xstream_in(&self.owner.core).is_some()
    }

    /// Rank of the xstream that the caller runs on, if it is one of this runtime.
    ///
    /// Counterpart: `ABT_self_get_xstream_rank`.
    #[must_use]
    pub fn rank_here(&self) -> Option<usize> {
        current::xstream_in(&self.owner.core).map(|xstream| xstream.shared().rank())
    }

    /// [`index`](crate::XstreamRef::index) of the xstream that the caller runs on, if it is one of
    /// this runtime: which one it is, as ranks change and go to others.
    #[must_use]
    pub fn index_here(&self) -> Option<usize> {
        current::xstream_in(&self.owner.core).map(|xstream| xstream.shared().index)
    }
}

impl Owner {
    fn shutdown(&self, mut limit: Limit) -> Result<(), ShutdownError> {
        loop {
            let free = TURN_OVER.wait_until(&mut limit, || {
                let turn = self.turn.lock();
                turn.is_done || !turn.in_progress
            });
            let mut turn = self.turn.lock();
            if turn.is_done {
                return Ok(());
            }
            if !turn.in_progress {
                turn.in_progress = true;
                break;
            }
            if !free {
                let report = StillAlive { in_progress: true, ..StillAlive::default() };
                return Err(ShutdownError::StillAlive(Box::new(report)));
            }
        }
        let result = close(&self.core, limit);
        if result.is_ok() {
            bury(&self.core);
        }
        let mut turn = self.turn.lock();
        turn.in_progress = false;
        turn.is_done = result.is_ok();
        drop(turn);
        TURN_OVER.tell();
        result.map_err(|report| ShutdownError::StillAlive(Box::new(report)))
    }
}

impl Runtime {
    /// Has another thread wait for the end, without a limit.
    pub(crate) fn close_in_background(&self) {
        let runtime = self.clone();
        in_background(move || {
            let result = runtime.owner.shutdown(Limit::none());
            debug_assert!(result.is_ok(), "without a limit, it waits until it succeeds");
        });
    }

    pub(crate) fn is_shut_down(&self) -> bool {
        let (flags, _) = self.owner.core.phase();
        flags & (CLOSING | EXIT) != 0
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if self.turn.get_mut().is_done {
            return;
        }
        // We may be on one of the runtime's own threads, or in a hurry: somebody else waits.
        let core = self.core.clone();
        in_background(move || {
            let result = close(&core, Limit::none());
            debug_assert!(result.is_ok(), "without a limit, it waits until it succeeds");
            bury(&core);
        });
    }
}

fn in_background(wait: impl FnOnce() + Send + 'static) {
    if let Err(error) = thread::Builder::new().name("ult-reaper".to_owned()).spawn(wait) {
        log!(ERROR, %error, "cannot wait for a dropped runtime; its threads will sleep on");
    }
}

/// Joins the threads and frees the rest, when nothing is alive and every xstream has been told to
/// leave.
fn bury(core: &RuntimeCore) {
    xstream_thread::join_all(core);
    core.bury();
}

/// Steps 1 and 2, and the start of step 3.
fn close(core: &Arc<RuntimeCore>, mut limit: Limit) -> Result<(), StillAlive> {
    let word = core.set_phase(WATCHED);
    if !core.news.wait_until(&mut limit, || core.is_seen(word) && core.is_quiet()) {
        return Err(give_up(core));
    }
    let word = core.set_phase(WATCHED | CLOSING);
    if !core.news.wait_until(&mut limit, || core.is_seen(word)) || !wait_for_gate(core, &mut limit)
    {
        return Err(give_up(core));
    }
    if !core.news.wait_until(&mut limit, || core.is_quiet()) {
        return Err(give_up(core));
    }
    core.set_phase(CLOSING | EXIT);
    Ok(())
}

/// A spawn takes microseconds, so this does not sleep.
fn wait_for_gate(core: &RuntimeCore, limit: &mut Limit) -> bool {
    let mut round = 0;
    while !core.is_gate_empty() {
        if limit.is_over() {
            return false;
        }
        limit.spend(|_| relax(&mut round));
    }
    true
}

/// Opens the runtime again and collects what was in the way.
fn give_up(core: &RuntimeCore) -> StillAlive {
    let word = core.set_phase(REPORT);
    core.news.wait_until(&mut Limit::new(REPORT_LIMIT), || core.is_seen(word));
    let xstreams = core.xstreams();
    let late = xstreams.iter().filter(|xstream| !xstream.has_seen(word));
    let busy_xstreams: Vec<String> = late.map(|xstream| xstream.name.to_string()).collect();
    let suspended = core.take_stuck();
    let alive = usize::try_from(core.alive()).unwrap_or(usize::MAX);
    // A late xstream must not add to the next report.
    core.set_phase(0);
    let queued = if busy_xstreams.is_empty() { alive.saturating_sub(suspended.len()) } else { 0 };
    StillAlive { suspended, queued, busy_xstreams, in_progress: false }
}
