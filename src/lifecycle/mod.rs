//! The life of an instance: how it starts, on whose execution streams it runs, how it ends.
//!
//! May import every folder. Read `builder.rs` and `init.rs` (the start), `runtime_source.rs` and
//! `child.rs` (whose execution streams it runs on), `shutdown.rs` and `finalize.rs` (the end),
//! `remote_shutdown.rs`.

pub(crate) mod builder;
pub(crate) mod child;
pub(crate) mod finalize;
#[cfg(test)]
mod forked;
pub(crate) mod init;
pub(crate) mod remote_shutdown;
pub(crate) mod runtime_source;
pub(crate) mod shutdown;
