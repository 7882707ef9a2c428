//! The [`Core`](crate::Core): what all operations have in common.
//!
//! - Imports: the folders before it; `ops` for the states that it keeps.
//! - Reading order: `context.rs` (rules for all operations) · `class.rs` (what contexts share) ·
//!   `registry.rs` (which RPCs there are) · `receives.rs` (receives for requests) · `cancel.rs` ·
//!   `loopback.rs` (calls to ourselves) · `watch.rs` (peers that end) · `inspect.rs`.

pub(crate) mod cancel;
pub(crate) mod class;
pub(crate) mod context;
pub(crate) mod inspect;
mod loopback;
pub(crate) mod receives;
pub(crate) mod registry;
pub(crate) mod watch;
