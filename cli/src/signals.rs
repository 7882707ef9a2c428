//! Ctrl-C, SIGTERM, and the end of the terminal: the first asks to stop, the second stops at once.

use std::io;
use std::thread;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::failure::Failure;

/// The signals from now on; they are kept until [`handle`](Caught::handle).
pub(crate) struct Caught(Signals);

/// Whether the process was started with this signal ignored.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

impl Caught {
    pub(crate) fn new() -> Result<Self, Failure> {
        // Who has it ignored (`nohup`) wants the process to outlive its terminal.
        let hangup = Some(SIGHUP).filter(|signal| !is_ignored(*signal));
        let signals = Signals::new([SIGINT, SIGTERM].into_iter().chain(hangup));
        signals.map(Self).map_err(|error| Failure::new("cannot catch signals", error))
    }

    /// At the first signal calls `stop`, which must not wait; at the second one `clean_up`, and
    /// ends the process with status 128 plus the signal's number.
    pub(crate) fn handle(
        mut self,
        stop: impl FnOnce() + Send + 'static,
        clean_up: impl FnOnce() + Send + 'static,
    ) -> Result<(), Failure> {
        let watch = move || {
            let mut signals = self.0.forever();
            if signals.next().is_none() {
                return;
            }
            stop();
            if let Some(signal) = signals.next() {
                clean_up();
                signal_hook::low_level::exit(128 + signal);
            }
        };
        let started: io::Result<_> =
            thread::Builder::new().name("margo-signals".to_owned()).spawn(watch);
        started.map(drop).map_err(|error| Failure::new("cannot start the signal thread", error))
    }
}
