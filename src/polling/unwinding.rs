//! Waiting in destructors of a ULT that unwinds.
//!
//! Such a ULT cannot suspend: the count of panics is the thread's. It blocks its execution stream,
//! and if the progress ULT lives there, nothing would ever end the wait: a guard that gives back a
//! lock by a call would hang its whole instance. So the waiting ULT does what progress would do.
//! Progress is in no poll then, because it shares the thread and does not run. Nothing else runs
//! there until the wait is over: no handler either, so a call to a handler of the same execution
//! stream ends by its deadline, or not at all. With less stack than a poll may need
//! ([`STACK_BYTES`]) nothing is polled, and the wait blocks until something else ends it.

use std::sync::Arc;
use std::time::Instant;

use ult::Eventual;

use crate::instance::inner::Inner;
use crate::polling::callers::STACK_BYTES;
use crate::polling::driver::poll;

/// Polls in a row that find nothing before the processor is offered to other threads.
const POLLS_PER_YIELD: u32 = 64;

impl Inner {
    /// Waits until `done`, which progress sets; `false`: it was not at `until`.
    #[inline]
    pub(crate) fn wait_for<T>(
        self: &Arc<Self>,
        done: &Eventual<T>,
        until: Option<Instant>,
    ) -> bool {
        if std::thread::panicking() {
            self.bring_on(&|| done.is_ready(), until);
        }
        match until {
            Some(until) => done.wait_ready_deadline(until),
            None => {
                done.wait_ready();
                true
            }
        }
    }

    /// Waits for the end of an operation until `until`, and polls meanwhile where that is of use.
    /// If `due` comes before, the operation is given up, and the end that follows is waited for.
    #[inline]
    pub(crate) fn wait_for_end<T>(
        self: &Arc<Self>,
        done: &Eventual<T>,
        until: Option<Instant>,
        due: impl FnOnce() -> Option<Instant>,
        give_up: impl FnOnce(),
    ) -> bool {
        if !done.is_ready() && until.is_none_or(|until| until > Instant::now()) {
            self.stand_in(&|| done.is_ready());
        }
        if let Some(due) = due().filter(|due| until.is_none_or(|until| *due <= until)) {
            if self.wait_for(done, Some(due)) {
                return true;
            }
            give_up();
        }
        self.wait_for(done, until)
    }

    /// In a destructor of a ULT that unwinds: polls for the shards whose progress it holds up,
    /// until `is_over` or `until`.
    #[cold]
    pub(crate) fn bring_on(self: &Arc<Self>, is_over: &dyn Fn() -> bool, until: Option<Instant>) {
        let Some(xstream) = self.runtime.index_here() else { return };
        let held_up: Vec<_> = self
            .shards
            .iter()
            .filter_map(|shard| Some((&shard.core, shard.progress.get()?)))
            .filter(|(_, progress)| progress.xstream() == xstream && !progress.is_caller())
            .collect();
        if held_up.is_empty() || ult::stack_left() < STACK_BYTES || self.is_forked() {
            return;
        }
        let mut idle = 0;
        while !is_over() && until.is_none_or(|until| Instant::now() < until) {
            let mut found = 0;
            for (core, progress) in &held_up {
                if progress.is_stopping() {
                    core.close();
                }
                found += poll(self, core);
            }
            idle = if found > 0 { 0 } else { idle + 1 };
            if idle >= POLLS_PER_YIELD {
                idle = 0;
                std::thread::yield_now();
            }
        }
    }
}
