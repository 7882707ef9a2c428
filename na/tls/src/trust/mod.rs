//! Whom we believe: secrets and certificates, read from files.
//!
//! - Imports: of `tls`, nothing; of the crates below, options, principals and patterns.
//! - Reading order: `files.rs` (what may be read) · `cluster.rs`, `certificates.rs` (whom we
//!   believe) · `settings.rs` (both as rustls wants them) · `shown.rs` (files in words).

mod certificates;
mod cluster;
mod files;
pub(crate) mod settings;
pub(crate) mod shown;
