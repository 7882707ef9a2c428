//! Lengths of time as system calls take them.

use std::time::Duration;

use rustix::time::Timespec;

/// For system calls. Saturates, at some 292 billion years.
pub(crate) fn timespec(limit: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(limit.subsec_nanos()),
    }
}
