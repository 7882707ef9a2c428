//! Bulk transfers: data that moves between the memory of two processes.
//!
//! May import the folders up to `serving`. Read `expose.rs` (memory that is lent),
//! `bulk_transfer.rs` (how a transfer is described) and `transfer.rs` (one that is waited for),
//! then `bulk_request.rs` and `chunks.rs` (those that go on) and `bind.rs`; then `staged/`
//! (memory of devices). `misuse.rs` has programs that must not compile.

pub(crate) mod bind;
pub(crate) mod bulk_request;
pub(crate) mod bulk_transfer;
pub(crate) mod chunks;
pub(crate) mod expose;
#[cfg(doctest)]
mod misuse;
pub(crate) mod staged;
pub(crate) mod transfer;
