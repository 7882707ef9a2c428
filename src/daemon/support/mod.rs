//! Matters of a command that are not about providers: what it prints and logs, signals, documents.
//! The command `margo` shares them, with more commands than a daemon has.
//!
//! Imports `failure.rs`. Read `output.rs` first; the others stand alone.

pub mod document;
mod logging;
pub mod output;
pub mod signals;

use std::process::ExitCode;

use super::failure::Failure;

pub use self::logging::LOGGING;

/// Runs a command in a process that is made ready for it, tells the user how it failed, and returns
/// the exit status.
pub fn run(command: impl FnOnce() -> Result<(), Failure>) -> ExitCode {
    // A panic in a handler then says in which.
    ult::install_panic_hook();
    let ready = signals::outlive_file_limit()
        .and_then(|()| signals::hear_of_children())
        .and_then(|()| logging::init());
    match ready.and_then(|()| command()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !matches!(failure, Failure::OutputClosed) {
                output::note(&failure);
            }
            ExitCode::from(failure.status())
        }
    }
}
