//! UCX's objects and calls, and its calls back.
//!
//! - Imports: `wire`, `addressing`, `operations`.
//! - Reading order: `library.rs` · `worker.rs` (the calls) · `callbacks.rs` · `packing.rs` (chunks
//!   that UCX fetches) · `wait.rs` · `lanes.rs`, `devices.rs` (what UCX says of connections and
//!   devices).

mod callbacks;
pub(crate) mod devices;
pub(crate) mod lanes;
pub(crate) mod library;
pub(crate) mod packing;
pub(crate) mod wait;
pub(crate) mod worker;
