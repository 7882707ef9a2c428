//! Providers that the document names: which there are, what they depend on, how they start and end.
//!
//! May import the folders up to `bulk`. Read `component.rs`, `running.rs`, then
//! `dependency.rs`.

pub(crate) mod component;
pub(crate) mod dependency;
pub(crate) mod running;
pub(crate) mod schema;
