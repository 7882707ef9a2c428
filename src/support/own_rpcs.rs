//! Names of the RPCs that every listening instance serves by itself. They run where progress does,
//! and follow it to another pool.

/// The end of the instance, as in C Margo.
pub(crate) const SHUTDOWN: &str = "__shutdown__";

/// The metrics of the instance.
pub(crate) const METRICS: &str = "__metrics__";
