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

/// The mode in which progress spins only while operations are in flight.
#[derive(Debug)]
pub(crate) struct WhenNeeded(AtomicBool);

impl WhenNeeded {
    pub(crate) fn set(&self, on: bool) {
        self.0.store(on, Ordering::Relaxed);
    }

    pub(crate) fn new(on: bool) -> Self {
        Self(AtomicBool::new(on))
    }

    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        // A hint: who reads an old value spins, or sleeps, once more than it has to.
        self.0.load(Ordering::Relaxed)
    }
}
