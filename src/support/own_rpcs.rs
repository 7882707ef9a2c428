//! Names of the RPCs that a listening instance serves by itself: some always, `DESCRIBE` from when
//! a provider is described, `ADMIN` from when the program lets the instance be administered,
//! `STAGED` from when it exposes memory of a device. They run where progress does, and follow it to
//! another pool.

/// The end of the instance, as in C Margo.
pub(crate) const SHUTDOWN: &str = "__shutdown__";

/// The metrics of the instance.
pub(crate) const METRICS: &str = "__metrics__";

/// The descriptions of its services.
pub(crate) const DESCRIBE: &str = "__describe__";

/// The ping.
pub(crate) const PING: &str = "__ping__";

/// Changes of the instance.
pub(crate) const ADMIN: &str = "__admin__";

/// Transfers of device memory.
pub(crate) const STAGED: &str = "__staged__";

/// All of them.
pub(crate) const ALL: [&str; 6] = [SHUTDOWN, METRICS, DESCRIBE, PING, ADMIN, STAGED];
