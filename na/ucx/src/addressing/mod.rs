//! Addresses: from a URI to the settings of UCX and the host, and socket addresses as UCX has them.
//!
//! - Imports: no other folder.
//! - Reading order: `address.rs` · `ip_family.rs` (connections that can carry data) ·
//!   `reserved_port.rs` · `sockaddr.rs`.

pub(crate) mod address;
pub(crate) mod ip_family;
pub(crate) mod reserved_port;
pub(crate) mod sockaddr;
