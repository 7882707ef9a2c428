//! Providers of libfabric: in which they differ, as tables and without any object of libfabric.
//!
//! - Imports: no other folder.
//! - Reading order: `provider.rs` (the table) · `failures.rs` (the meaning of errors) ·
//!   `address.rs` (forms of addresses) · `opx.rs` (those of Omni-Path).

pub(crate) mod address;
pub(crate) mod failures;
pub(crate) mod opx;
pub(crate) mod provider;
