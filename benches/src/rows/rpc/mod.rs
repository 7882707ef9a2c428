//! Rows of margo itself: null calls, bulk transfers, a second xstream, timers.
//!
//! Imports from `base`, `process`, `floors`, and `rows/ult/on_ult.rs`. Read `pair.rs` (two
//! instances in two processes), then, each for itself, `null.rs`, `bulk.rs`, `scale.rs`,
//! `timer.rs`.

pub(crate) mod bulk;
pub(crate) mod null;
pub(crate) mod pair;
pub(crate) mod scale;
pub(crate) mod timer;
