//! Rows of margo itself: null calls, bulk transfers, timers.
//!
//! Imports from `base`, `process`, `floors`, and `rows/ult/on_ult.rs`. Read `pair.rs` (two
//! instances in two processes), then, each for itself, `null.rs`, `bulk.rs`, `timer.rs`, and with
//! `null.rs` `trust.rs` (what it costs to look at who calls).

pub(crate) mod bulk;
pub(crate) mod null;
pub(crate) mod pair;
pub(crate) mod timer;
pub(crate) mod trust;
