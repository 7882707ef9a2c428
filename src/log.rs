//! What each instance lets into the log.
//!
//! Messages are events of `tracing`, so the program's subscriber decides where they go; warnings
//! and errors of a program that has none go to standard error, a line each. Beside that each
//! instance has a level of its own, as in C, for two instances in one process of which one is
//! to be quieter: it is looked at before an event is made. Events carry the address of the instance
//! in the field `instance`, so a subscriber can tell them apart as well.
//!
//! What the execution streams (`ult`) and the transports (`na`) say is not an instance's, since
//! several can share them; a subscriber filters these by their targets.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};

use margo_config::LogLevel;
use tracing::Level;

use crate::{Instance, InstanceBuilder};

/// The log of one instance. Clones are the same log.
#[derive(Debug, Clone, Default)]
pub struct Log(Arc<State>);

#[derive(Debug)]
struct State {
    /// As a number: see `rank`.
    most: AtomicU8,
    /// Whose it is, once that is known.
    name: OnceLock<String>,
}

impl Default for State {
    fn default() -> Self {
        Self { most: AtomicU8::new(LogLevel::Trace as u8), name: OnceLock::new() }
    }
}

/// The same level.
impl PartialEq for Log {
    fn eq(&self, other: &Self) -> bool {
        self.level() == other.level()
    }
}

impl Eq for Log {}

impl Log {
    pub(crate) fn new(level: Option<LogLevel>) -> Self {
        let log = Self::default();
        log.set(level.unwrap_or(LogLevel::Trace));
        log
    }

    fn set(&self, level: LogLevel) {
        self.0.most.store(level as u8, Ordering::Relaxed);
    }

    fn level(&self) -> LogLevel {
        use LogLevel::{Debug, Error, Info, Off, Trace, Warning};
        let most = self.0.most.load(Ordering::Relaxed);
        let all = [Off, Error, Warning, Info, Debug];
        all.into_iter().find(|level| *level as u8 == most).unwrap_or(Trace)
    }

    /// Whether messages of that level may go on to the subscriber.
    pub(crate) fn allows(&self, level: Level) -> bool {
        let rank = match level {
            Level::ERROR => LogLevel::Error,
            Level::WARN => LogLevel::Warning,
            Level::INFO => LogLevel::Info,
            Level::DEBUG => LogLevel::Debug,
            Level::TRACE => LogLevel::Trace,
        };
        rank as u8 <= self.0.most.load(Ordering::Relaxed)
    }

    /// Says whose it is; the first name stays.
    pub(crate) fn set_name(&self, name: &str) {
        let _ = self.0.name.set(name.to_owned());
    }

    pub(crate) fn name(&self) -> &str {
        self.0.name.get().map_or("starting", String::as_str)
    }
}

/// Makes an event of `tracing` in the name of an instance, if its level allows that:
/// `log!(inner.log, WARN, %error, "what happened")`. A subscriber that panics harms nobody here.
macro_rules! log {
    ($log:expr, $level:ident, $($event:tt)+) => {{
        let log: &$crate::log::Log = &$log;
        if log.allows(::tracing::Level::$level) {
            $crate::contain::tell(|| {
                ::tracing::event!(::tracing::Level::$level, instance = log.name(), $($event)+);
            });
        }
    }};
}
pub(crate) use log;

impl InstanceBuilder {
    /// The least severe messages of this instance that reach the log. Default: as configured in
    /// `margo.log_level`, which is all of them; the environment variable `MARGO_LOG_LEVEL` wins.
    /// See [`Instance::set_log_level`].
    pub fn log_level(mut self, level: LogLevel) -> Self {
        self.config_mut().margo.log_level = Some(level);
        self
    }
}

impl Instance {
    /// From now on lets only messages of this level and more severe ones of this instance into the
    /// log. They are events of `tracing`, and the program's subscriber may leave out more; in a
    /// program without one warnings and errors go to standard error, and nothing else. Messages
    /// of execution streams and transports (targets `ult` and `na`), which instances share, are
    /// left to the subscriber alone.
    ///
    /// Counterpart: `margo_set_log_level`; `margo_set_logger` is the subscriber.
    pub fn set_log_level(&self, level: LogLevel) {
        self.inner().log.set(level);
    }

    /// The level that was set last; [`LogLevel::Trace`] if none was.
    pub fn log_level(&self) -> LogLevel {
        self.inner().log.level()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_lets_in_what_is_as_severe() {
        use LogLevel::{Debug, Error, Info, Off, Trace, Warning};
        let severe_first = [Level::ERROR, Level::WARN, Level::INFO, Level::DEBUG, Level::TRACE];
        let log = Log::default();
        assert_eq!(log.level(), Trace);
        for (allowed, level) in [Off, Error, Warning, Info, Debug, Trace].into_iter().enumerate() {
            log.set(level);
            assert_eq!(log.level(), level);
            let count = severe_first.iter().filter(|level| log.allows(**level)).count();
            assert_eq!(count, allowed);
        }
    }
}
