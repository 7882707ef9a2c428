//! The unit itself: values that it has, and its end.
//!
//! `end.rs` publishes the outcome; `local.rs` and `inherited.rs` have the values of units.

pub(crate) mod end;
pub(crate) mod inherited;
pub(crate) mod local;
