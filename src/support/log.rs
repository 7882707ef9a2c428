//! The filter of each instance for its log messages.
//!
//! Messages are events of `tracing`, so the program's subscriber decides where they go. Warnings
//! and errors of a program that has no subscriber go to standard error, a line each. Beside that,
//! each instance has a level of its own, as in C ([`Log`], which is that of `margo-log`).
//!
//! Messages of the execution streams (`ult`) and of the transports (`na`) belong to no instance,
//! since several can share them. A subscriber filters these by their targets.

use margo_config::LogLevel;
pub use tracing::Log;
use tracing::level_filters::LevelFilter;
pub(crate) use tracing::log;

/// A log with the configured level; all messages if none is configured.
pub(crate) fn configured(level: Option<LogLevel>) -> Log {
    Log::new(level.map_or(LevelFilter::TRACE, filter))
}

pub(crate) fn filter(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Off => LevelFilter::OFF,
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warning => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    }
}

pub(crate) fn level_of(log: &Log) -> LogLevel {
    use LogLevel::{Debug, Error, Info, Off, Trace, Warning};
    let level = log.level();
    let all = [Off, Error, Warning, Info, Debug];
    all.into_iter().find(|known| filter(*known) == level).unwrap_or(Trace)
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn a_level_lets_in_what_is_as_severe() {
        use LogLevel::{Debug, Error, Info, Off, Trace, Warning};
        let severe_first = [Level::ERROR, Level::WARN, Level::INFO, Level::DEBUG, Level::TRACE];
        let log = Log::default();
        assert_eq!(level_of(&log), Trace);
        for (allowed, level) in [Off, Error, Warning, Info, Debug, Trace].into_iter().enumerate() {
            log.set(filter(level));
            assert_eq!(level_of(&log), level);
            let count = severe_first.iter().filter(|level| log.allows(**level)).count();
            assert_eq!(count, allowed);
        }
    }
}
