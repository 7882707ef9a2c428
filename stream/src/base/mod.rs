//! What all of the crate uses: the definition of a stream, and the shape of its items.
//!
//! Imports nothing of this crate. Read `definition.rs`, then `schema.rs`.

pub(crate) mod definition;
pub(crate) mod schema;
