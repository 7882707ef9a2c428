//! The state of an instance on standard error, at a signal (`margo.dump_on_signal`).
//!
//! The signal handler rings an eventfd, and does nothing else, so it may interrupt anything. A
//! thread that is no execution stream waits for that, takes the dump and writes it. So the dump
//! also comes while every execution stream is held by a unit that does not yield, which is when
//! people ask.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use margo_config::DumpSignal;
use na::fork::Process;
use signal_hook::SigId;
use signal_hook::consts::{SIGUSR1, SIGUSR2};
use signal_hook::low_level;

use crate::InitError;
use crate::support::contain::contain;
use crate::support::event::Event;
use crate::support::log::Log;

/// The signal handler of an instance, and its thread if there is one. Ended when it is dropped.
pub(crate) struct DumpOnSignal {
    bell: Arc<Bell>,
    id: SigId,
    process: Process,
}

struct Bell {
    event: Event,
    is_over: AtomicBool,
}

impl DumpOnSignal {
    /// Catches the signal from now on. It is answered when there is a thread.
    pub(crate) fn register(signal: DumpSignal) -> Result<Self, InitError> {
        let failed = |source| InitError::Signal { signal: name(signal), source };
        let event = Event::new().map_err(failed)?;
        let bell = Arc::new(Bell { event, is_over: AtomicBool::new(false) });
        let rung = bell.clone();
        // SAFETY:
        // - async-signal-safe: `ring` is two system calls, getpid and write, whose errors come as
        //   values, so that it keeps errno; it neither allocates, locks nor panics;
        // - the count that the action has of the bell goes when signal-hook drops the action, which
        //   it does outside of signal handlers.
        let id = unsafe { low_level::register(number(signal), move || rung.event.ring()) };
        let id = id.map_err(failed)?;
        Ok(Self { bell, id, process: Process::current() })
    }

    /// Starts the thread that answers for this instance with the dump that `dump` returns, as long
    /// as the instance is there.
    pub(crate) fn answer_for(
        &self,
        signal: DumpSignal,
        log: Log,
        dump: impl Fn() -> Option<String> + Send + 'static,
    ) -> Result<(), InitError> {
        let bell = self.bell.clone();
        let answer = move || {
            loop {
                bell.event.wait();
                if bell.is_over() {
                    return;
                }
                let there = contain(&log, "a state dump", || dump().map(|dump| write(&dump)));
                if let Some(None) = there {
                    return;
                }
            }
        };
        let spawned = std::thread::Builder::new().name("margo-state".into()).spawn(answer);
        spawned.map(drop).map_err(|source| InitError::Signal { signal: name(signal), source })
    }

    /// The instance is over: further signals have no effect.
    pub(crate) fn end(&self) {
        if self.process.is_other() {
            // The locks of a child process may be held for ever; there it is the parent's.
            return;
        }
        low_level::unregister(self.id);
        self.bell.is_over.store(true, Ordering::Release); // pair: DUMP-OVER
        self.bell.event.ring();
    }
}

impl Bell {
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire) // pair: DUMP-OVER
    }
}

impl Drop for DumpOnSignal {
    fn drop(&mut self) {
        self.end();
    }
}

/// Writes the dump; if it is not read, it is lost. Reading may take long. A thread that writes a
/// line meanwhile, an execution stream say, does not wait for that, so this does not hold the lock
/// that all others take. Their lines come between two of the dump's.
fn write(dump: &str) {
    /// Held while a dump is written, so that dumps do not mix.
    static WRITES: Mutex<()> = Mutex::new(());
    let text = format!("{dump}\n");
    let _writes = WRITES.lock().unwrap_or_else(PoisonError::into_inner);
    let mut left = text.as_bytes();
    while !left.is_empty() {
        // It may be a file, at its limit.
        let write = || rustix::io::write(io::stderr(), &left[..lines(left)]);
        match na::file_limit::held(write).0 {
            Ok(0) => return,
            Ok(written) => left = &left[written..],
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return,
        }
    }
}

/// How many bytes of a text are lines that a pipe takes as a whole or not at all; of a longer line,
/// all that is left of that.
fn lines(text: &[u8]) -> usize {
    let end = |line: usize| line + 1;
    let is_end = |byte: &u8| *byte == b'\n';
    let whole = &text[..text.len().min(rustix::pipe::PIPE_BUF)];
    let last = whole.iter().rposition(is_end);
    last.or_else(|| text.iter().position(is_end)).map_or(text.len(), end)
}

fn number(signal: DumpSignal) -> i32 {
    match signal {
        DumpSignal::Usr1 => SIGUSR1,
        DumpSignal::Usr2 => SIGUSR2,
    }
}

fn name(signal: DumpSignal) -> &'static str {
    match signal {
        DumpSignal::Usr1 => "SIGUSR1",
        DumpSignal::Usr2 => "SIGUSR2",
    }
}
