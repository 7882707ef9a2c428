//! The errors of this crate, one enum per family of operations.

use std::fmt;
use std::io;

use crate::payload::Panic;

/// Why a runtime did not start. Nothing is left running.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// There is nothing to run on.
    #[error("the runtime has no xstream: add at least one with `RuntimeBuilder::xstream`")]
    NoXstream,
    /// Two pools have the same name.
    #[error("pool `{pool}` is defined twice: pool names are unique")]
    DuplicatePool {
        /// The name.
        pool: String,
    },
    /// Two xstreams have the same name.
    #[error("xstream `{xstream}` is defined twice: xstream names are unique")]
    DuplicateXstream {
        /// The name.
        xstream: String,
    },
    /// An xstream names a pool that is not there.
    #[error("xstream `{xstream}` serves pool `{pool}`, which is not defined (have: {have})")]
    UnknownPool {
        /// The xstream.
        xstream: String,
        /// What it names.
        pool: String,
        /// The names that are there.
        have: String,
    },
    /// An xstream names a pool twice.
    #[error("xstream `{xstream}` lists pool `{pool}` twice: list each pool once")]
    RepeatedPool {
        /// The xstream.
        xstream: String,
        /// What it names twice.
        pool: String,
    },
    /// An xstream serves no pool and could never run anything.
    #[error("xstream `{xstream}` serves no pool: give it at least one")]
    NoPool {
        /// The xstream.
        xstream: String,
    },
    /// What is spawned into this pool would never run.
    #[error("pool `{pool}` is served by no xstream: list it in one, or remove it")]
    UnservedPool {
        /// The pool.
        pool: String,
    },
    /// A processor that does not exist, or that this process may not use.
    #[error("xstream `{xstream}`: cpu {cpu} does not exist or is not allowed here (have: {have})")]
    Cpu {
        /// The xstream.
        xstream: String,
        /// The processor that was asked for.
        cpu: usize,
        /// The processors that can be had.
        have: String,
    },
    /// A time of the monitor is zero.
    #[error("monitor: `{what}` is zero: give it at least 1 ms")]
    MonitorZero {
        /// Which one.
        what: &'static str,
    },
    /// The system refused the monitor its thread.
    #[error("cannot start the thread of the monitor")]
    Monitor {
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// The system refused what an xstream needs.
    #[error("xstream `{xstream}`: cannot {what}")]
    System {
        /// The xstream.
        xstream: String,
        /// What was tried, for example "start its thread".
        what: &'static str,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
}

/// Why a recording did not start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// There is one already.
    #[error("this runtime is being recorded already: stop that recording first")]
    AlreadyRecording,
}

/// Why a ULT was not spawned. Its closure has been dropped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpawnError {
    /// The runtime of this pool has shut down, or is about to.
    #[error("cannot spawn into pool `{pool}`: its runtime has shut down")]
    ShutDown {
        /// The pool.
        pool: String,
    },
    /// No memory for a stack.
    #[error("cannot spawn into pool `{pool}`: no memory for a stack of {bytes} bytes")]
    Stack {
        /// The pool.
        pool: String,
        /// Size of the stack.
        bytes: usize,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
}

/// Why `join` has no value to return.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// The ULT panicked.
    #[error("the ULT panicked: {}", .0.message())]
    Panicked(PanicPayload),
    /// The ULT never started: its pool dropped it.
    #[error("the ULT was dropped before it started")]
    Lost,
    /// A ULT tried to join itself, and would have waited forever.
    #[error("a ULT cannot join itself")]
    Deadlock,
}

/// What a ULT panicked with.
pub struct PanicPayload(Panic);

impl PanicPayload {
    pub(crate) fn new(panic: Panic) -> Self {
        Self(panic)
    }

    /// The message of `panic!`, or a placeholder if the payload is not a string.
    #[must_use]
    pub fn message(&self) -> &str {
        panic_message(&self.0)
    }

    /// The payload, to be passed to [`std::panic::resume_unwind`] for example.
    #[must_use]
    pub fn into_inner(self) -> Box<dyn std::any::Any + Send + 'static> {
        self.0
    }
}

impl fmt::Debug for PanicPayload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PanicPayload").field(&self.message()).finish()
    }
}

// `Any` is not `Sync`, but shared access only reads strings, which are.
//
// SAFETY: `&PanicPayload` gives out `&str` from a `&'static str` or `String` payload, nothing else.
unsafe impl Sync for PanicPayload {}

/// The text of a panic.
pub(crate) fn panic_message(panic: &Panic) -> &str {
    if let Some(text) = panic.downcast_ref::<&'static str>() {
        text
    } else if let Some(text) = panic.downcast_ref::<String>() {
        text
    } else {
        "(the panic payload is not a string)"
    }
}

/// Why a runtime did not shut down. It is still running, accepts spawns, and can be asked again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShutdownError {
    /// Called by one of the runtime's own ULTs, which would wait for itself.
    #[error("shutdown was called by a ULT of the same runtime: call it from another thread")]
    FromUlt,
    /// ULTs were still alive at the end of the allowed time.
    #[error("{0}")]
    StillAlive(Box<StillAlive>),
}

/// What was still alive when a shutdown gave up.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct StillAlive {
    /// ULTs that had started and not finished.
    pub suspended: Vec<StuckUlt>,
    /// Number of ULTs that had not started.
    pub queued: usize,
    /// Xstreams that did not answer because a ULT on them neither yields nor suspends. What they
    /// hold is not in the other lists.
    pub busy_xstreams: Vec<String>,
    /// Another shutdown of the same runtime was still in progress, and nothing was examined.
    pub in_progress: bool,
}

/// A ULT that has started and not finished.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StuckUlt {
    /// Number of the ULT.
    pub id: u64,
    /// Name given at spawn.
    pub name: Option<String>,
    /// The pool it was spawned into.
    pub pool: String,
    /// Its home xstream.
    pub xstream: String,
}

impl fmt::Display for StuckUlt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name.as_deref().unwrap_or("(unnamed)");
        let Self { id, pool, xstream, .. } = self;
        write!(f, "`{name}` (id {id}) of pool `{pool}` on xstream `{xstream}`")
    }
}

impl fmt::Display for StillAlive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 8;
        if self.in_progress {
            return f.write_str("another shutdown of this runtime is still in progress");
        }
        write!(f, "shutdown gave up: {} ULTs still suspended", self.suspended.len())?;
        for (at, ult) in self.suspended.iter().take(SHOWN).enumerate() {
            write!(f, "{} {ult}", if at == 0 { ":" } else { "," })?;
        }
        if self.suspended.len() > SHOWN {
            write!(f, " and {} more", self.suspended.len() - SHOWN)?;
        }
        if self.queued > 0 {
            write!(f, "; {} ULTs not started", self.queued)?;
        }
        if !self.busy_xstreams.is_empty() {
            write!(f, "; no answer from xstreams that run a ULT which never yields: ")?;
            write!(f, "{}", self.busy_xstreams.join(", "))?;
        }
        Ok(())
    }
}
