//! The deadline of an operation for which nobody may be waiting.
//!
//! A request that nobody looks at, say, or a future which some other executor polls: a tasklet
//! starts at that time and ends the operation. It is made with an operation that has a deadline and
//! is not waited for at once; the end of the operation takes it away, so that none outlives its
//! instance.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use ult::TimerHandle;

use crate::Instance;
use crate::call::pool_for_units;
use crate::log::log;

/// Of one operation.
#[derive(Default)]
pub(crate) struct Alarm(Mutex<State>);

#[derive(Default)]
enum State {
    #[default]
    Off,
    Set(TimerHandle<()>),
    /// The operation has ended: there will be none.
    Over,
}

impl Alarm {
    fn state(&self) -> MutexGuard<'_, State> {
        // No code of others runs under this lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has `ring` called at that time. Once is enough: further ones change nothing.
    pub(crate) fn set(
        &self,
        instance: &Instance,
        at: Instant,
        ring: impl FnOnce() + Send + 'static,
    ) {
        let mut state = self.state();
        if !matches!(*state, State::Off) {
            return;
        }
        let pools = [instance.progress_pool(), instance.rpc_pool()];
        let Some(pool) = pool_for_units(instance, pools) else { return };
        match pool.tasklet().name("margo deadline").spawn_at(at, ring) {
            Ok(timer) => *state = State::Set(timer),
            // Only when the runtime ends, and then all operations have.
            Err(error) => log!(instance.inner().log, DEBUG, %error, "no alarm for an operation"),
        }
    }

    /// The operation has ended.
    pub(crate) fn end(&self) {
        let state = std::mem::replace(&mut *self.state(), State::Over);
        if let State::Set(timer) = state {
            timer.cancel();
        }
    }
}
