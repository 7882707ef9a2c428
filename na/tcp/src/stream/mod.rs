//! The bytes of one connection, in either direction.
//!
//! - Imports: of `tcp`, `wire/` and `system/`; of the crates below, TLS, memory and the claims of
//!   the matcher.
//! - Reading order: `line.rs` (where bytes go) · `outgoing.rs` (frames become bytes) · `gather.rs`
//!   (which of them wait for the next poll) · `frame_reader.rs` (bytes become frames).

pub(crate) mod frame_reader;
pub(crate) mod gather;
pub(crate) mod line;
pub(crate) mod outgoing;
