//! Trust: secrets and certificates, read from files, and the peers that are believed for them.
//!
//! - Imports: of `tls`, nothing; of the crates below, options, principals, patterns, and the files
//!   that secrets come from.
//! - Reading order: `cluster.rs`, `certificates.rs` (whom we believe) · `verifier.rs` (both as
//!   rustls asks) · `settings.rs` (both as rustls wants them) · `shown.rs` (files in words).

mod certificates;
mod cluster;
pub(crate) mod settings;
pub(crate) mod shown;
mod verifier;
