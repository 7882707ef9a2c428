//! The instance: how it starts, what it consists of, how it ends.
//!
//! The top of the crate, which may import every folder. Read `init.rs` (the start), `inner.rs` (the
//! parts), `home.rs` and `child.rs` (whose execution streams it runs on), `component.rs` and
//! `dependency.rs` (providers of the document), `shutdown.rs` and `finalize.rs` (the end),
//! `document.rs`, `users.rs`, `remote_shutdown.rs` and `address_file.rs`.

pub(crate) mod address_file;
pub(crate) mod child;
pub(crate) mod component;
pub(crate) mod dependency;
pub(crate) mod document;
pub(crate) mod finalize;
#[cfg(test)]
mod forked;
pub(crate) mod home;
pub(crate) mod init;
pub(crate) mod inner;
pub(crate) mod remote_shutdown;
pub(crate) mod shutdown;
pub(crate) mod users;
