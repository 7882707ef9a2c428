//! Operations in flight: their names, and the state of each kind. A state knows what its parts have
//! come to and which event that leads to. It starts nothing.
//!
//! - Imports: `base`, `memory`, `wire`, `bulk`.
//! - Reading order: `slab.rs` (names and slots).

pub(crate) mod slab;
