//! The sleep of the contexts that share an endpoint: no context misses what is put into its
//! mailbox, or what comes after another one has polled.
//!
//! | state | written by | read by |
//! |---|---|---|
//! | `Sleeper` | its context | whoever fills its mailbox; pair: CONTEXT-ASLEEP |
//! | `Sleepers` | each context | whoever polls; pair: CONTEXT-SLEEPERS |

use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};

/// How many contexts sleep, or are about to.
#[derive(Debug, Default)]
pub struct Sleepers(AtomicUsize);

impl Sleepers {
    /// Returns whether a context sleeps; for the context that polls, after its poll.
    pub fn any(&self) -> bool {
        // Either this sees the sleeper, or the sleeper's announcement comes after our poll and so
        // sees what we left.
        fence(Ordering::SeqCst); // pair: CONTEXT-SLEEPERS
        self.0.load(Ordering::Relaxed) > 0
    }
}

/// The announcement of one context that it sleeps, or is about to.
#[derive(Debug, Default)]
pub struct Sleeper(AtomicBool);

impl Sleeper {
    /// Announces a sleep; follow with a look at the mailbox and at the endpoint.
    pub fn announce(&self, all: &Sleepers) {
        if !self.0.swap(true, Ordering::Relaxed) {
            all.0.fetch_add(1, Ordering::Relaxed);
        }
        // Either the look that follows sees what was put into the mailbox, or who put it there
        // sees that we sleep.
        fence(Ordering::SeqCst); // pair: CONTEXT-ASLEEP, CONTEXT-SLEEPERS
    }

    /// Ends a sleep; whether there was one, for which a bell may have been rung.
    pub fn retract(&self, all: &Sleepers) -> bool {
        let slept = self.0.swap(false, Ordering::Relaxed);
        if slept {
            all.0.fetch_sub(1, Ordering::Relaxed);
        }
        slept
    }

    /// Returns whether a bell must be rung, after something was put into the mailbox.
    pub fn must_ring(&self) -> bool {
        fence(Ordering::SeqCst); // pair: CONTEXT-ASLEEP
        self.0.load(Ordering::Relaxed)
    }
}
