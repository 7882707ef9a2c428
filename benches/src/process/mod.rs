//! Processes: one for each row, one for the other side of a row with two, and how they end.
//!
//! Imports from `base`. Read `child.rs` (children, and that none is left behind), `signals.rs`,
//! then `context.rs` (what a row gets, and how it starts its peer).

pub(crate) mod child;
mod context;
pub(crate) mod signals;

pub(crate) use child::ChildProcess;
pub(crate) use context::Context;
