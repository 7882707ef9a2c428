//! Matters of all commands: how they fail, print and log, the signals, the documents they are
//! given, and the services they talk to.
//!
//! Most of it is what daemons have ([`margo::daemon`]). Imports nothing of the other folders. Read
//! `output.rs`, then `table.rs`, `peer.rs`, `caught.rs`.

mod caught;
pub(crate) mod output;
pub(crate) mod peer;
pub(crate) mod table;

pub(crate) use self::caught::caught;
pub(crate) use margo::daemon::support::{document, signals};
