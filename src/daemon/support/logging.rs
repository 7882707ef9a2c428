//! Logs to standard error.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use crate::daemon::failure::Failure;

/// Help on logs, which every command writes.
pub const LOGGING: &str = "Logs go to standard error. MARGO_LOG (or RUST_LOG) chooses what: \
                           error, warn (the default), info, debug, trace, or a filter such as \
                           margo=debug.";

/// Shows what `MARGO_LOG`, or else `RUST_LOG`, asks for; warnings if neither is set.
pub(super) fn init() -> Result<(), Failure> {
    let asked = ["MARGO_LOG", "RUST_LOG"].into_iter().find_map(|variable| {
        let value = std::env::var(variable).ok()?;
        (!value.trim().is_empty()).then_some((variable, value))
    });
    let filter = match asked {
        None => EnvFilter::new("warn"),
        Some((variable, value)) => EnvFilter::try_new(&value)
            .map_err(|error| Failure::Usage(format!("{variable}={value}: {error}")))?,
    };
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    Ok(())
}
