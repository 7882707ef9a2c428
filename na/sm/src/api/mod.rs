//! The endpoint as its callers see it.
//!
//! - Imports: of `sm`, `progress/`, `state.rs` and what these import; of the crate below,
//!   everything.
//! - Reading order: `open.rs` (the plugin) · `endpoint.rs` (the calls that start operations).

mod endpoint;
pub(crate) mod open;
