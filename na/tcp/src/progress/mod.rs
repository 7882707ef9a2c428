//! The poll: all that is done with connections once operations have become frames.
//!
//! - Imports: of `tcp`, `state/` and what that imports.
//! - Reading order: `poll.rs` (its steps) · `greeting.rs` (connections begin) · `frame_handler.rs`
//!   (what a frame does) · `liveness.rs` (peers that are silent) · `unread.rs` (peers that do not
//!   read).

mod frame_handler;
pub(crate) mod greeting;
mod liveness;
mod poll;
mod unread;
