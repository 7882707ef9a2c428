//! Rows `services.*`: the providers of this repository.
//!
//! Imports from `base`, `process`, `rows/rpc/pair.rs` and `rows/ult/on_ult.rs`. `kv.rs` is
//! measured beside `alone.rs`, both about a `subject.rs`; `blob.rs` stands by itself.

mod alone;
pub(crate) mod blob;
pub(crate) mod kv;
pub(crate) mod subject;
