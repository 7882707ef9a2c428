//! Names of the RPCs that a listening instance serves by itself: the first two always, the last
//! from when a provider is described. They run where progress does, and follow it to another pool.

/// The end of the instance, as in C Margo.
pub(crate) const SHUTDOWN: &str = "__shutdown__";

/// The metrics of the instance.
pub(crate) const METRICS: &str = "__metrics__";

/// The descriptions of its services.
pub(crate) const DESCRIBE: &str = "__describe__";

/// The ping.
pub(crate) const PING: &str = "__ping__";

/// All of them.
pub(crate) const ALL: [&str; 4] = [SHUTDOWN, METRICS, DESCRIBE, PING];
