//! The registrations of one provider, counted: its end waits for the last of them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hg::{Holders, Registration};
use na::fork::Process;
use ult::Eventual;

/// The count of a provider's registrations that are not dropped yet.
pub(crate) struct Living {
    process: Process,
    state: Mutex<LivingState>,
}

#[derive(Default)]
struct LivingState {
    entries: usize,
    /// Those that are not in the registry any more: only requests have them.
    replaced: Vec<Holders>,
    /// The event of the caller that waits for the last of them.
    none: Option<Arc<Eventual<()>>>,
}

impl Living {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { process: Process::current(), state: Mutex::default() })
    }

    /// Waits until no registration is left. `Err`: the requests that are still in hand.
    pub(crate) fn wait(&self, limit: Duration) -> Result<(), usize> {
        let none = Arc::new(Eventual::new());
        {
            let mut living = self.lock();
            if living.entries == 0 {
                return Ok(());
            }
            living.none = Some(none.clone());
        }
        if none.wait_ready_timeout(limit) {
            return Ok(());
        }
        let mut living = self.lock();
        living.none = None;
        match living.entries {
            0 => Ok(()),
            // Whoever has the last of one is in its destructor, and counts.
            _ => Err(living.replaced.iter().map(Holders::count).sum::<usize>().max(1)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, LivingState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts a `RegisteredRpc` of a provider, for as long as that lives.
pub(crate) struct Member(Arc<Living>);

impl Member {
    pub(crate) fn of(living: &Arc<Living>) -> Self {
        living.lock().entries += 1;
        Self(living.clone())
    }

    /// That registration, whose entry has this, is not in the registry any more.
    pub(crate) fn replaced(&self, registration: &Registration) {
        let mut living = self.0.lock();
        living.replaced.retain(|earlier| earlier.count() > 0);
        living.replaced.push(registration.holders().clone());
    }
}

impl Clone for Member {
    fn clone(&self) -> Self {
        Self::of(&self.0)
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // There the lock may be held for ever, and nobody waits.
        if self.0.process.is_other() {
            return;
        }
        let none = {
            let mut living = self.0.lock();
            living.entries -= 1;
            if living.entries > 0 { None } else { living.none.take() }
        };
        if let Some(none) = none {
            // Nobody else sets it.
            _ = none.set(());
        }
    }
}
