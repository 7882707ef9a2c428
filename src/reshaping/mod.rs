//! Pools and execution streams that come, go and move while the instance runs.
//!
//! May import the folders up to `bulk`. Read `users.rs` (what must stay) and `document.rs` (the
//! configuration in effect).

pub(crate) mod document;
pub(crate) mod users;
