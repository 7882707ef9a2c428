//! The [`Core`](crate::Core): what all operations have in common.
//!
//! - Imports: all folders before it.
//! - Reading order: `rpc_core.rs` (the rules for all operations) · `state.rs` (under the lock) ·
//!   `class.rs` (what shards share) · `registry.rs` (which RPCs
//!   there are) · `receives.rs` (receives for requests) ·
//!   `releases.rs` (requests that are done with) · `send.rs` · `cancel.rs` · `notices.rs`
//!   (what is told to a target) · `loopback.rs` (calls to ourselves) · `builds.rs` ·
//!   `members.rs` (peers that have proven who they are) · `own_sessions.rs` (those to whom we have)
//!   · `watch.rs` (peers that end) · `inspect.rs`.

pub(crate) mod builds;
mod cancel;
mod class;
pub(crate) mod inspect;
mod loopback;
pub(crate) mod members;
mod notices;
pub(crate) mod own_sessions;
pub(crate) mod receives;
pub(crate) mod registry;
mod releases;
pub(crate) mod rpc_core;
pub(crate) mod send;
pub(crate) mod state;
pub(crate) mod watch;
