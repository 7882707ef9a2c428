//! Rows of streams and graphs.
//!
//! Imports from `base`, `process`, `floors`, `rows/ult` and `rows/rpc`. Read `flow.rs` (between two
//! processes); `text.rs`, `word_count.rs`, `nexmark.rs` (graphs).

pub(crate) mod flow;
pub(crate) mod nexmark;
pub(crate) mod text;
pub(crate) mod word_count;
