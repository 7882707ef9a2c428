//! Progress that spins only while a caller waits for it.
//!
//! By default a progress ULT goes on polling for a while after something has happened (see
//! `spin_window.rs`), because more is likely to follow. With `margo.progress_when_needed` it does
//! so only while operations of its instance are in flight: when the last one has ended it sleeps at
//! once, and the next one wakes it when it starts.
//!
//! It sleeps on the network's descriptor as always. So peers of an idle instance (which use memory
//! that it exposes, or send requests if it listens) are served, after a wake-up by the kernel. An
//! endpoint that was opened to be polled for ever has no descriptor; it is looked at every
//! [`UNNEEDED_POLL`](crate::polling::driver::UNNEEDED_POLL) then.
//!
//! | state | written by | read by |
//! |---|---|---|
//! | `WhenNeeded` | anybody | who starts an operation; the progress ULT |
//! | operations in flight | who starts one, then looks who sleeps | the progress ULT, after it has said that it sleeps; pair: PROGRESS-ASLEEP |

use std::sync::atomic::{AtomicBool, Ordering};

use hg::Core;

use crate::Instance;
use crate::instance::inner::Inner;
use crate::operation::token::Token;

/// The mode in which progress spins only while operations are in flight.
#[derive(Debug)]
pub(crate) struct WhenNeeded(AtomicBool);

impl WhenNeeded {
    pub(crate) fn new(on: bool) -> Self {
        Self(AtomicBool::new(on))
    }

    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        // A hint: who reads an old value spins, or sleeps, once more than it has to.
        self.0.load(Ordering::Relaxed)
    }
}

impl Inner {
    /// An operation of a caller has started, or might have.
    #[inline]
    pub(crate) fn operation_started(&self) {
        if self.when_needed.is_on() {
            self.wake_needed();
        }
    }

    #[cold]
    fn wake_needed(&self) {
        for (core, progress) in self.contexts() {
            if let Some(progress) = progress.filter(|_| core.in_flight() > 0) {
                progress.kick();
            }
        }
    }

    /// Returns whether no caller waits for the progress of this context.
    pub(crate) fn is_unneeded(&self, core: &Core<Token>) -> bool {
        self.when_needed.is_on() && core.in_flight() == 0
    }
}

impl Instance {
    /// Lets progress spin only while operations of this instance are in flight, or (`false`, the
    /// default) also for a while after that. For clients that share their cores with something else
    /// and call now and then: between calls they use no processor time at all, also with
    /// `mercury.na_no_block`, which then polls without a break during calls only. A call after a
    /// pause costs waking the execution stream of the progress ULT, some tens of microseconds,
    /// unless its caller runs there.
    ///
    /// May be changed at any time, from anywhere; holds from the end of the next spin on. (An
    /// instance that began with `na_no_block` and without this has no descriptor to sleep on over
    /// `na+sm`, `ofi+…` and `ucx+…`, and looks at the network every millisecond between calls.)
    /// In a server, requests are not operations in flight: those that come after a pause wait for
    /// a wake-up by the kernel.
    ///
    /// The key of the configuration is `margo.progress_when_needed`.
    ///
    /// Counterpart: `margo_set_progress_when_needed`. There an idle instance does not look at the
    /// network at all.
    pub fn set_progress_when_needed(&self, on: bool) {
        let inner = self.inner();
        inner.when_needed.0.store(on, Ordering::Relaxed);
    }

    /// Returns whether progress spins only while operations are in flight; see
    /// [`set_progress_when_needed`](Self::set_progress_when_needed).
    pub fn progress_when_needed(&self) -> bool {
        self.inner().when_needed.is_on()
    }
}
