//! Rows `sweep.*`: the measurements of Mercury's `hg_rate`, `hg_bw_read` and `hg_bw_write`, for
//! each size and number of calls in flight that is asked for (`--sizes`, `--in-flight`).
//!
//! One origin and one target, a core each, both polling, at the layer below ULTs. The origin starts
//! as many calls as are to be in flight, waits for all of their answers, and begins again.
//!
//! - `rate`: the call has a length and that many bytes of arguments, which the target copies to a
//!   buffer; the answer is empty. Longer arguments than a message holds overflow it.
//! - `write`, `read`: the call names a buffer and a length; the target pulls the origin's buffer of
//!   that number, or pushes its own to there, and then answers. Buffers are registered once, at
//!   both sides, one for each call in flight, plain memory; with `_alloc` they are of
//!   [`SharedBuffer`](na::SharedBuffer). Handles are told once, before: small memory that can only
//!   be read has come inside its handle then, here as in Mercury.
//!
//! With `--mercury` those programs are run as well, in turn with ours, and their figures stand
//! beside the row.
//!
//! The value is the mean over all calls, as there; p50 and p99 are of batches of calls. After the
//! last one the destination's bytes are compared with what they must be. No floor: these rows are
//! for comparing libraries, those without a size in their id have one.
//!
//! Imports from `base`, `process`, `floors` and `rows/net`. Read `spec.rs` (a row), `origin.rs` and
//! `target.rs` (the two sides), `run.rs`, `mercury.rs`.

pub(crate) mod mercury;
mod origin;
mod run;
pub(crate) mod spec;
pub(crate) mod target;
