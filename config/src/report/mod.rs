//! Words about a document: errors and warnings with their places, and what was probably meant.
//!
//! Imports nothing of this crate. Read `error.rs` first, then `suggest.rs`; `text.rs` makes text of
//! others safe to show, and `drawing.rs` draws with it.

pub mod drawing;
pub(crate) mod error;
pub(crate) mod suggest;
pub mod text;
