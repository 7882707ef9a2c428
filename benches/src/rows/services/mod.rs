//! Rows `services.*`: the providers of this repository.
//!
//! Imports from `base`, `process`, `rows/rpc/pair.rs` and `rows/ult/on_ult.rs`. Each file by
//! itself.

pub(crate) mod blob;
pub(crate) mod kv;
