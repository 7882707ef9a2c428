//! Names, codes and errors that every other folder uses, the log, the counters, the clock of timed
//! requests, and the secret of a cluster.
//!
//! - Imports: nothing of this crate.
//! - Reading order: `id.rs` (RPC ids) · `code.rs` (return codes) · `error.rs` · `log.rs` ·
//!   `counters.rs` · `clock.rs` (how long a timed request was on its way) ·
//!   `membership.rs` (keys of a cluster).

pub(crate) mod clock;
pub(crate) mod code;
pub(crate) mod counters;
pub(crate) mod error;
pub(crate) mod id;
pub(crate) mod log;
pub(crate) mod membership;
