//! Ctrl-C and SIGTERM: the first asks to stop, the second stops at once.

use std::io;
use std::thread;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::failure::Failure;

/// The signals from now on; they are kept until [`handle`](Caught::handle).
pub(crate) struct Caught(Signals);

impl Caught {
    pub(crate) fn new() -> Result<Self, Failure> {
        let signals = Signals::new([SIGINT, SIGTERM]);
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
