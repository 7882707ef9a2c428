//! Names, codes and errors that every other folder uses, the log, the counters, and the clock of
//! timed requests.
//!
//! - Imports: nothing of this crate.
//! - Reading order: `id.rs` (RPC ids) · `code.rs` (return codes) · `error.rs` · `log.rs` ·
//!   `counters.rs` · `clock.rs` (how long a timed request was on its way).

pub(crate) mod clock;
pub(crate) mod code;
pub(crate) mod counters;
pub(crate) mod error;
pub(crate) mod id;
pub(crate) mod log;
