//! Settings, from the document to the parts that are started: pools and execution streams, and the
//! options of the transport and of the RPC layer. Nothing is started here, so `margo config check`
//! uses it.
//!
//! May import `support`. Read `plan.rs`, then `options.rs`, then `network_check.rs`.

pub(crate) mod network_check;
pub(crate) mod options;
pub(crate) mod plan;
