//! Matters of all commands: how they fail, print and log, the signals, the documents they are
//! given, and the services they talk to.
//!
//! Imports nothing of the other folders. Read `failure.rs` and `output.rs` first; the others stand
//! alone.

pub(crate) mod document;
pub(crate) mod failure;
pub(crate) mod logging;
pub(crate) mod output;
pub(crate) mod peer;
pub(crate) mod signals;
