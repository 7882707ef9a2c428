//! Raw declarations of libfabric (the structures of version 1.17, `raw.rs`), the library opened at
//! run time ([`Library`]), and its inline functions, one line each ([`call`]).
//!
//! Nothing of libfabric is needed to build. The declarations are written by `generate.sh`;
//! `tests/it/layout.rs` compares them with the headers that are installed. Structures that later
//! libraries have changed are served by them under symbol versions: [`Library`] asks for the
//! versions that belong to these declarations, so that one binary runs on libfabric 1.13
//! ([`OLDEST`]) and later, and on 2.x.

pub mod call;
mod library;
#[allow(
    missing_docs,
    missing_debug_implementations,
    non_camel_case_types,
    non_upper_case_globals,
    unreachable_pub,
    clippy::all,
    reason = "written by bindgen"
)]
pub mod raw;

pub use self::library::{Library, LoadError, OLDEST, Version};
