//! The types of the document, which are the only home of its keys, their documentation and their
//! defaults.
//!
//! Imports `report` and, for the one object that the document keeps as it is written
//! (`monitoring.rs`), `read`. Read `config.rs`, the top level, then the object in question.

pub(crate) mod admission;
pub(crate) mod affinity;
pub(crate) mod config;
pub(crate) mod dependency;
pub(crate) mod margo;
pub(crate) mod mercury;
pub(crate) mod monitoring;
pub(crate) mod network;
pub(crate) mod pool_ref;
pub(crate) mod subnet;
pub(crate) mod trace;

/// For `skip_serializing_if`: a default need not be printed.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
