//! `margo admin` and `margo shutdown`: what changes a running service, and ends it.
//!
//! Imports `args` and `support`.

mod admin;
mod shutdown;

pub(crate) use self::admin::run as admin;
pub(crate) use self::shutdown::run as shutdown;
