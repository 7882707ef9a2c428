//! Fabrics: libfabric's objects, and the way from a URI to a device.
//!
//! - Imports: `providers`.
//! - Reading order: `fabric.rs` (the objects) · `cxi.rs` (Slingshot's own) · `search.rs` (devices
//!   of a URI) · `nearest.rs` (the device that is nearest to this process).

pub(crate) mod cxi;
pub(crate) mod fabric;
pub(crate) mod nearest;
pub(crate) mod search;
