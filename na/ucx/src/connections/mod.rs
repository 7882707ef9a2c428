//! Connections: how they begin, what a peer may make us hold, its silence, and the end.
//!
//! - Imports: all folders before it; of `traffic` the constants.
//! - Reading order: `sessions.rs` · `placing.rs` (which endpoint of a group gets one) ·
//!   `bounds.rs` · `liveness.rs` · `closing.rs`. They are methods of the driver.

pub(crate) mod bounds;
mod closing;
mod liveness;
mod placing;
mod sessions;
