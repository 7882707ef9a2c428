//! Recording of what ULTs and xstreams do: events, rings, sinks, and trace files.
//!
//! | part | what |
//! |---|---|
//! | [`event`] | what an event says, and its packed form |
//! | [`ring`] | the newest events of one xstream; one writer, read from anywhere |
//! | [`clock`] | time stamps in a few nanoseconds |
//! | [`record`] | starting and stopping a recording, and the names of ULTs |
//! | [`sink`] | callbacks of the user |
//! | [`chrome`] | the trace as a file for `ui.perfetto.dev` |
//!
//! The core calls the hooks in [`diag`](crate::diag), which come here only while somebody records
//! or listens.

#[cfg(not(loom))]
pub(crate) mod chrome;
#[cfg(not(loom))]
pub(crate) mod clock;
#[cfg(not(loom))]
pub(crate) mod event;
#[cfg(not(loom))]
pub(crate) mod record;
pub(crate) mod ring;
#[cfg(not(loom))]
pub(crate) mod sink;
