//! The distribution of one copy among several threads. Nothing but atomics, so that `loom-tests`
//! can include this file.
//!
//! Each thread claims one part after the other until none is left, and counts each part when it is
//! done. A thread that waits for the end has itself claimed until none was left. So it waits only
//! for parts that others are copying at that moment, never for a thread that has yet to come.
//!
//! | state | written by | read by |
//! |---|---|---|
//! | `next` | whoever claims | whoever claims: only the number counts |
//! | `done` | whoever has copied a part | whoever waits for the end; pair: COPY-DONE |

use prim::sync::atomic::{AtomicUsize, Ordering};

/// The parts of one copy.
#[derive(Debug)]
pub(crate) struct Claims {
    parts: usize,
    next: AtomicUsize,
    done: AtomicUsize,
}

impl Claims {
    pub(crate) fn new(parts: usize) -> Self {
        Self { parts, next: AtomicUsize::new(0), done: AtomicUsize::new(0) }
    }

    /// A part for the caller alone; follow with [`finish`](Self::finish). `None`: all are taken,
    /// now and for ever.
    pub(crate) fn claim(&self) -> Option<usize> {
        // Nothing is read by means of this number but what was there before the claims were shared.
        let part = self.next.fetch_add(1, Ordering::Relaxed);
        (part < self.parts).then_some(part)
    }

    /// A claimed part is done with.
    pub(crate) fn finish(&self) {
        // pair: COPY-DONE (the bytes are there)
        self.done.fetch_add(1, Ordering::Release);
    }

    /// Returns whether every part is done with: no thread will touch the memory any more.
    pub(crate) fn is_over(&self) -> bool {
        // pair: COPY-DONE
        self.done.load(Ordering::Acquire) == self.parts
    }
}
