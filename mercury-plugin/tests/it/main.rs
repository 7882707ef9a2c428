//! The plugin, used as Mercury uses it, by a Mercury that these tests play.
#![allow(clippy::unwrap_used, reason = "a test says by panicking what went wrong")]

mod addresses;
mod file;
mod mercury;
mod messages;
mod ours;
mod sleep;
mod transfers;
