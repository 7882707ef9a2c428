//! The protocol of a connection: the hello, frames, and the text of addresses.
//!
//! - Imports: nothing of `tcp`; of the crate below, names and errors.
//! - Reading order: `address.rs` · `frame.rs`.

pub(crate) mod address;
pub(crate) mod frame;
