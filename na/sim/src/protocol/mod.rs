//! The protocol below the messages: packets, their numbers, and operations that are under way.
//!
//! - Imports: `base`.
//! - Reading order: `packet.rs` · `stream.rs` (numbers, acknowledgements) · `outgoing.rs`
//!   (operations towards a peer) · `loopback.rs` (those of a node to itself) · `done.rs`
//!   (completions for a poll).

pub(crate) mod done;
pub(crate) mod loopback;
pub(crate) mod outgoing;
pub(crate) mod packet;
pub(crate) mod stream;
