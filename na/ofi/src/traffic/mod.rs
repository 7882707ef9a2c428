//! Traffic: the behaviour of the state, from handing an operation over to its completion.
//!
//! - Imports: all folders before it.
//! - Reading order: `queue.rs` (handing over, trying again) · `transfer.rs` (puts and gets) ·
//!   `completions.rs` (reports of libfabric). They are methods of `Core`.

mod completions;
mod queue;
mod transfer;
