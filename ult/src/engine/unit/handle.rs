//! A runnable unit: what pools hold and schedulers pick.

use std::fmt;

use crate::base::priority::Priority;
use crate::engine::model::unit::{UltPtr, UltRef};
use crate::engine::waiting::cancel::Why;
use crate::sync::atomic::Ordering::Relaxed;

/// A runnable ULT or tasklet on its way through a pool; the right to run it once.
///
/// Pools store units and give them back, schedulers pass them to their xstream. Dropping one does
/// not lose control: an unstarted unit is cancelled (its closure is dropped, and `join` reports
/// [`JoinError::Lost`](crate::JoinError::Lost)), a started one returns to its xstream.
///
/// Counterpart: `ABT_unit`.
#[must_use = "dropping a unit cancels an unstarted one"]
pub struct Unit(UltPtr);

impl Unit {
    /// The caller hands over the queue membership of `ult`.
    #[inline]
    pub(crate) fn from_ult(ult: UltPtr) -> Self {
        Self(ult)
    }

    /// The other direction: the caller must queue or run the ULT.
    #[inline]
    pub(crate) fn into_ult(self) -> UltPtr {
        let ult = self.0;
        std::mem::forget(self);
        ult
    }

    pub(crate) fn ptr(&self) -> UltPtr {
        self.0
    }

    /// Number of the unit, unique in its runtime and never used again; increases with creation
    /// time, except that each xstream draws its numbers in blocks.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.0.id.get()
    }

    /// The name given at spawn.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.0.name()
    }

    /// Name of the pool that the unit belongs to.
    #[must_use]
    pub fn pool(&self) -> &str {
        &self.0.pool().name
    }

    /// Returns whether the unit has run before. It then runs only on its home xstream, unless it is
    /// migratable.
    #[must_use]
    pub fn is_started(&self) -> bool {
        !self.0.home.load(Relaxed).is_null()
    }

    /// Returns whether the unit is a tasklet.
    #[inline]
    #[must_use]
    pub fn is_tasklet(&self) -> bool {
        self.0.is_tasklet()
    }

    /// The priority given at spawn.
    #[must_use]
    pub fn priority(&self) -> Priority {
        self.0.priority()
    }

    /// How often the ULT has been put back into a user-written or priority pool after its start, up
    /// to 16383.
    #[must_use]
    pub fn pushes(&self) -> u32 {
        self.0.pushes()
    }
}

impl Drop for Unit {
    fn drop(&mut self) {
        if self.is_started() {
            let held = UltRef::share(self.0);
            crate::engine::xstream::switch::push_again(self.0, true);
            drop(held);
        } else {
            crate::engine::xstream::switch::lose(self.0, Why::Lost);
        }
    }
}

impl fmt::Debug for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unit")
            .field("id", &self.id())
            .field("name", &self.name())
            .field("pool", &self.pool())
            .field("started", &self.is_started())
            .finish()
    }
}
