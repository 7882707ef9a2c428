//! The parts that all of the crate uses: the definition of a stream, the shape of its items, names
//! of RPCs, and the turns of ULTs.
//!
//! Imports nothing of this crate. Read `definition.rs`, then `schema.rs`.

pub(crate) mod definition;
pub(crate) mod figures;
pub(crate) mod names;
pub(crate) mod random;
pub(crate) mod schema;
pub(crate) mod turn;
