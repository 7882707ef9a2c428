//! Timers of an instance.

use crate::{Instance, Tick, Timer, TimerSpec};

impl Instance {
    /// A timer whose callback runs as a ULT in the pool of the handlers. Not armed yet.
    ///
    /// A callback that owns a clone of this instance keeps it running for ever. Let it own a
    /// [`WeakInstance`](crate::WeakInstance): [`downgrade`](Self::downgrade).
    ///
    /// Counterpart: `margo_timer_create`.
    pub fn timer(&self, callback: impl FnMut(&mut Tick) + Send + 'static) -> Timer {
        self.timer_with(TimerSpec::new(), callback)
    }

    /// A timer whose callback runs as `spec` says. Not armed yet.
    ///
    /// Counterpart: `margo_timer_create_with_pool`.
    pub fn timer_with(
        &self,
        spec: TimerSpec,
        callback: impl FnMut(&mut Tick) + Send + 'static,
    ) -> Timer {
        let (inner, callback) = (self.inner(), Box::new(callback));
        Timer::new(&inner.timers, inner.process, &inner.elastic, spec, callback)
    }
}
