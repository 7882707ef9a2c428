//! Rows of streams and graphs.
//!
//! Imports from `base`, `process`, `floors` and `rows/ult`. Read `text.rs`, `word_count.rs`.

pub(crate) mod text;
pub(crate) mod word_count;
