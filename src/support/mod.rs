//! Helpers that know nothing of calls: the log of an instance, files that are written whole, panics
//! that are caught.
//!
//! Imports nothing from the other folders. Read `log.rs` and `contain.rs`, which most files use;
//! `event.rs`, `files.rs`, `own_rpcs.rs`, `parts.rs`, `thread_number.rs` and `why_over.rs` stand
//! for themselves; `fake_machine.rs` is for tests.

pub(crate) mod contain;
pub(crate) mod event;
#[cfg(test)]
pub(crate) mod fake_machine;
pub(crate) mod files;
pub mod log;
pub(crate) mod own_rpcs;
pub(crate) mod parts;
pub(crate) mod thread_number;
pub(crate) mod why_over;
