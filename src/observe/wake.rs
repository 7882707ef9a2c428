//! The sleep of a thread that writes records, and its wake-ups: no record is left lying while it
//! sleeps. Nothing but atomics, so that `loom-tests` can include this file.
//!
//! | state | written by | read by |
//! |---|---|---|
//! | `is_asleep` | the thread; who wakes it | whoever hands a record over; pair: TRACE-WAKE |
//! | `is_closed` | who closes | the thread; pair: TRACE-CLOSE |
//!
//! The thread says in `is_asleep` that it is about to sleep, and looks once more before it does. A
//! thread that hands a record over looks at `is_asleep` afterwards. A fence between the two steps
//! on each side lets one of them see the other. A wake-up leaves a token with the thread, so one
//! that comes before the thread sleeps ends that sleep at once. Awake, it lets records gather for a
//! moment before it looks again, so that under load it needs no wake-ups.

use prim::sync::atomic::{AtomicBool, Ordering, fence};

#[derive(Debug, Default)]
pub(crate) struct Wake {
    is_asleep: AtomicBool,
    /// Nothing more will come.
    is_closed: AtomicBool,
}

impl Wake {
    /// Returns whether to unpark the thread; for a thread that has handed a record over.
    #[inline]
    pub(crate) fn must_unpark(&self) -> bool {
        fence(Ordering::SeqCst); // pair: TRACE-WAKE
        let is_asleep = self.is_asleep.load(Ordering::Relaxed);
        if is_asleep {
            // Others need not do it as well.
            self.is_asleep.store(false, Ordering::Relaxed);
        }
        is_asleep
    }

    /// Has the thread take what there is and end. The caller unparks it.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::Release); // pair: TRACE-CLOSE
    }

    /// The thread, until it is closed. `take` takes all that there is, and tells whether there was
    /// anything; `gather` sleeps for a moment, or until an unpark; `park` until an unpark.
    pub(crate) fn run(&self, mut take: impl FnMut() -> bool, gather: impl Fn(), park: impl Fn()) {
        loop {
            // What was handed over before the end was told is still taken.
            let is_last = self.is_closed.load(Ordering::Acquire); // pair: TRACE-CLOSE
            let mut any = take();
            if is_last {
                return;
            }
            if !any {
                self.is_asleep.store(true, Ordering::Relaxed);
                fence(Ordering::SeqCst); // pair: TRACE-WAKE
                any = take();
                if !any {
                    park();
                }
                self.is_asleep.store(false, Ordering::Relaxed);
            }
            if any {
                gather();
            }
        }
    }
}
