//! TLS 1.3 for connections of the transports: who may connect, and that nobody on the way reads or
//! changes what is sent.
//!
//! rustls does the handshake, on a thread of its own ([`Doorkeeper`]): it takes some hundred
//! microseconds, which a poll must not. Then its keys are taken out, and data is sealed from and
//! opened in the buffers of the transport ([`Sealer`], [`Opener`]), each direction by itself.
//!
//! Sessions are not resumed and nothing is sent before the handshake has ended, so every connection
//! proves who it is with, and nothing that was recorded can be played again.
//!
//! # Reading order
//!
//! `trust/` (whom we believe) · `record.rs` · `handshake.rs` (one handshake) · `doorkeeper.rs` (all
//! of them).

#![cfg(not(loom))]

mod doorkeeper;
#[doc(hidden)]
pub mod fuzzing;
mod handshake;
mod record;
#[cfg(test)]
mod tests;
mod trust;

pub use self::doorkeeper::{Desk, Doorkeeper, Job, Outcome, Role, Turn};
pub use self::handshake::{Failure, Secured};
pub use self::record::{
    DATA_BYTES_MAX, HEADER_BYTES, Opened, Opener, Plaintext, RECORD_BYTES_MAX, Sealer, Unreadable,
    record_bytes,
};
pub use self::trust::settings::Settings;
pub use self::trust::shown::{Shown, ShownCertificate, show};
