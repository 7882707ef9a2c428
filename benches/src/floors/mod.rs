//! Floors: the cost of the same work on this machine without margo. Each is a row of its own, or is
//! measured in the run of the row that it belongs to, or both.
//!
//! Imports from `base` and `process`. Read `channel.rs` (two sides and their rounds), `lines.rs`,
//! `tcp.rs`, `tls.rs` and `fabric/`, `transport.rs`; then, each for itself, `stream.rs`,
//! `attach.rs`, `memcpy.rs` (bytes), `coroutine.rs`, `futex.rs` and `ring.rs` (threads).

pub(crate) mod attach;
pub(crate) mod channel;
pub(crate) mod coroutine;
pub(crate) mod fabric;
pub(crate) mod futex;
pub(crate) mod lines;
pub(crate) mod memcpy;
pub(crate) mod ring;
pub(crate) mod stream;
pub(crate) mod tcp;
pub(crate) mod tls;
pub(crate) mod transport;
