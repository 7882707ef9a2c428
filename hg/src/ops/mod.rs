//! Operations in flight: their names, and the state of each kind. A state knows what its parts have
//! come to and which event that leads to. It starts nothing and takes no lock.
//!
//! - Imports: `base`, `memory`, `proc`, `wire`, `bulk`.
//! - Reading order: `slab.rs` (names, roles and slots) · `tags.rs` · `event.rs` (what operations
//!   lead to) · `call.rs` · `response.rs` (what a call ends with) · `request.rs` (a request that
//!   arrived) · `outgoing_response.rs` · `transfer.rs`.

pub(crate) mod call;
pub(crate) mod event;
pub(crate) mod outgoing_response;
pub(crate) mod request;
pub(crate) mod response;
pub(crate) mod slab;
pub(crate) mod tags;
pub(crate) mod transfer;
