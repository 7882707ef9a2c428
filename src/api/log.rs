//! The level of the log of an instance.

use margo_config::LogLevel;

use crate::InstanceMonitoring;
use crate::support::log::{filter, level_of};

impl InstanceMonitoring<'_> {
    /// From now on lets only messages of this level and more severe ones of this instance into the
    /// log. They are events of `tracing`, and the program's subscriber may leave out more; in a
    /// program without one warnings and errors go to standard error, and nothing else. Messages
    /// of execution streams and transports (targets `ult` and `na`), which instances share, are
    /// left to the subscriber alone.
    ///
    /// Counterpart: `margo_set_log_level`; `margo_set_logger` is the subscriber.
    pub fn set_log_level(&self, level: LogLevel) {
        self.inner().log.set(filter(level));
    }

    /// The level that was set last; [`LogLevel::Trace`] if none was.
    pub fn log_level(&self) -> LogLevel {
        level_of(&self.inner().log)
    }
}
