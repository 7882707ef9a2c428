//! Events of ULTs and xstreams, and the rings that hold the newest of them.
//!
//! | part | what |
//! |---|---|
//! | [`event`] | what an event says, and its packed form |
//! | [`ring`] | the newest events of one xstream; one writer, read from anywhere |
//! | [`recorder`] | the rings of a recording, and the names in them |
//! | [`clock`] | time stamps in a few nanoseconds |
//!
//! It may import [`base`](crate::base), and stands below the engine, whose hooks in
//! `engine/xstream/diag.rs` come here only while somebody records or listens: the observers in
//! `observe/`. Read `event.rs`, then `ring.rs` and `recorder.rs`.

#[cfg(not(loom))]
pub(crate) mod clock;
#[cfg(not(loom))]
pub(crate) mod event;
#[cfg(not(loom))]
pub(crate) mod recorder;
pub(crate) mod ring;
