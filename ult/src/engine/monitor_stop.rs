//! The engine's means to end the monitor of a runtime. The monitor itself is in `observe/`.

use crate::base::park_word::ThreadParker;
use crate::sync::atomic::AtomicBool;
use crate::sync::atomic::Ordering::{Acquire, Release};
use crate::sync::{Mutex, lock, thread};

/// How the thread of the monitor is told to leave; in the runtime's shared part.
#[derive(Debug, Default)]
pub(crate) struct MonitorStop {
    pub(crate) parker: ThreadParker,
    is_over: AtomicBool,
    pub(crate) thread: Mutex<Option<thread::JoinHandle<()>>>,
}

impl MonitorStop {
    /// The xstreams leave.
    pub(crate) fn end(&self) {
        self.is_over.store(true, Release); // pair: MONITOR-OVER
        self.parker.unpark();
    }

    /// Waits for the thread, which has been told to leave. Does not wait for itself: a report may
    /// shut the runtime down.
    pub(crate) fn join(&self) {
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread
            && thread.thread().id() != thread::current().id()
        {
            // Its panic, if any, has been printed by the panic hook.
            let _ = thread.join();
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Acquire) // pair: MONITOR-OVER
    }
}
