//! The endpoint as its callers see it.
//!
//! - Imports: of `tcp`, `state/` and what that imports. It calls the methods of `progress/`.
//! - Reading order: `endpoint.rs` (operations become frames, or entries of the matcher) ·
//!   `self_ops.rs` (those on the endpoint itself).

pub(crate) mod endpoint;
mod self_ops;
