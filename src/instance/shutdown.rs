//! How far the end of an instance is, and who waits for it; `lifecycle/shutdown.rs` ends it.

use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ult::{Eventual, Limit};

use crate::FinalizeError;
use crate::instance::handlers_in_hand::HandlersInHand;
use crate::support::event::Event;
use crate::support::log::{Log, log};

/// The grace period of what is margo's own, such as progress ULTs and execution streams, where that
/// of handlers is `grace`: it does end, and only a busy machine, or users' code that blocks its
/// execution stream, keeps it from that. At least 1 s: long for them, and short for a caller who
/// waits in vain.
pub(crate) fn own_grace(grace: Duration) -> Duration {
    grace.max(Duration::from_secs(1))
}

/// The shutdown state of an instance.
pub(crate) struct Shutdown {
    /// Closed when shutdown has begun.
    handlers: HandlersInHand,
    /// Shutdown has begun.
    begun: Eventual<()>,
    /// Shutdown has begun and no handler is in hand.
    drained: Eventual<()>,
    grace: Duration,
    /// Progress ULTs that have not ended.
    progressing: AtomicUsize,
    /// The network is closed and all waiters have been told.
    pub(crate) network_closed: Eventual<()>,
    pub(crate) signal: SignalEvent,
    /// All callbacks have run: what a ULT of ours can wait for.
    pub(crate) closed: Eventual<()>,
    pub(crate) done: Eventual<Result<(), FinalizeError>>,
}

impl Shutdown {
    /// For an instance with so many progress ULTs.
    pub(crate) fn new(grace: Duration, progressing: usize) -> Self {
        Self {
            progressing: AtomicUsize::new(progressing),
            handlers: HandlersInHand::new(),
            begun: Eventual::new(),
            drained: Eventual::new(),
            grace,
            network_closed: Eventual::new(),
            signal: SignalEvent::default(),
            closed: Eventual::new(),
            done: Eventual::new(),
        }
    }

    /// Returns whether shutdown has begun. A request admitted just before may still run.
    pub(crate) fn has_begun(&self) -> bool {
        self.handlers.is_closed()
    }

    /// Counts a handler in, unless shutdown has begun.
    #[inline]
    pub(crate) fn admit(&self) -> bool {
        let admitted = self.handlers.begin();
        if !admitted {
            self.leave();
        }
        admitted
    }

    /// Counts a handler out. The last one after the beginning, and only then, tells `drain`.
    #[inline]
    pub(crate) fn leave(&self) {
        if self.handlers.end() {
            self.tell_drained();
        }
    }

    #[cold]
    fn tell_drained(&self) {
        // Another one that has ended just now may have told it.
        let _ = self.drained.set(());
    }

    /// One more progress ULT begins.
    pub(crate) fn progress_begins(&self) {
        self.progressing.fetch_add(1, Ordering::Relaxed);
    }

    /// A progress ULT has closed the network and told all who waited in its context.
    pub(crate) fn progress_ended(&self) {
        // pair: PROGRESS-END
        if self.progressing.fetch_sub(1, Ordering::Release) == 1 {
            fence(Ordering::Acquire); // pair: PROGRESS-END (what the others have told)
            let _ = self.network_closed.set(());
        }
    }

    /// Begins; `false`: it had begun.
    pub(crate) fn begin(&self) -> bool {
        let is_first = self.handlers.close();
        // Not before the handlers are closed: who is told so may look.
        let _ = self.begun.set(());
        if is_first && self.handlers.are_none() {
            self.tell_drained();
        }
        is_first
    }

    /// The event that is set when shutdown begins.
    pub(crate) fn begun(&self) -> &Eventual<()> {
        &self.begun
    }

    /// Returns two events; once either has come, no poll gives anything back any more.
    pub(crate) fn network_ends(&self) -> [&Eventual<()>; 2] {
        [&self.network_closed, &self.closed]
    }

    pub(crate) fn grace(&self) -> Duration {
        self.grace
    }

    /// Handlers that run now, or whose request is left to another ULT and not answered.
    pub(crate) fn handlers(&self) -> usize {
        self.handlers.count()
    }

    /// Returns whether everything has ended, as far as it did.
    pub(crate) fn is_done(&self) -> bool {
        self.done.is_ready()
    }

    /// Waits until everything has ended, as far as it did.
    pub(crate) fn wait_done(&self) -> &Result<(), FinalizeError> {
        self.done.wait()
    }

    /// The grace period of what is margo's own, see [`own_grace`].
    pub(crate) fn own_grace(&self) -> Duration {
        own_grace(self.grace)
    }

    /// Waits for `end`, for the grace period at most. A pause of the process does not count.
    pub(crate) fn within_grace(&self, end: &Eventual<()>) -> bool {
        within(self.grace, end)
    }

    /// Waits for an `end` of margo's own, for [`own_grace`](Self::own_grace) at most.
    pub(crate) fn within_own_grace(&self, end: &Eventual<()>) -> bool {
        within(self.own_grace(), end)
    }

    /// Runs `work` on a thread of that name and waits for its end, for the grace period at most;
    /// `false`: it goes on by itself. If the process is out of threads it runs here, and is waited
    /// for.
    pub(crate) fn run_apart(&self, thread: &str, work: impl FnOnce() + Send + 'static) -> bool {
        /// Tells the end, also that by a panic.
        struct Tell(Arc<Eventual<()>>);
        impl Drop for Tell {
            fn drop(&mut self) {
                let _ = self.0.set(());
            }
        }
        let ended = Arc::new(Eventual::new());
        let (here, tell) = (Arc::new(Mutex::new(Some(work))), Tell(ended.clone()));
        let take = |work: &Mutex<Option<_>>| work.lock().ok().and_then(|mut work| work.take());
        let there = here.clone();
        let run = move || {
            let _tell = tell;
            if let Some(work) = take(&there) {
                work();
            }
        };
        match std::thread::Builder::new().name(thread.into()).spawn(run) {
            Ok(_detached) => self.within_grace(&ended),
            Err(_) => {
                if let Some(work) = take(&here) {
                    work();
                }
                true
            }
        }
    }

    pub(crate) fn drain(&self, log: &Log) {
        if !self.within_grace(&self.drained) {
            log!(
                log,
                WARN,
                handlers = self.handlers(),
                grace = ?self.grace,
                "handlers did not end, or answer, in the grace period; closing the network"
            );
        }
    }
}

fn within(grace: Duration, end: &Eventual<()>) -> bool {
    Limit::new(grace).wait(|deadline| match deadline {
        Some(deadline) => end.wait_ready_deadline(deadline),
        None => {
            end.wait_ready();
            true
        }
    })
}

/// The event of an instance, once there is one.
#[derive(Default)]
pub(crate) struct SignalEvent(Mutex<Option<Arc<Event>>>);

impl SignalEvent {
    pub(crate) fn event(&self) -> MutexGuard<'_, Option<Arc<Event>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The instance ends: so does the thread.
    pub(crate) fn end(&self) {
        if let Some(event) = self.event().take() {
            event.ring();
        }
    }
}
