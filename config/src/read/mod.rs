//! Text to values, by the steps that the head of the crate lists: all errors at once, each with its
//! place.
//!
//! Imports `report`. Read `clean.rs`, `tree.rs`, `decode.rs`; then `lacks.rs`, which keeps errors
//! from causing others.

pub(crate) mod clean;
pub(crate) mod decode;
pub(crate) mod lacks;
pub(crate) mod tree;
