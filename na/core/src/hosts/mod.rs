//! Hosts, network interfaces and IP addresses, for transports whose endpoints have such.
//!
//! - Imports: `base`, `options`.
//! - Reading order: `names.rs` (the system's resolver, off the polling thread) · `interface.rs` ·
//!   `own_address.rs` (which address an endpoint takes) · `host_port.rs` (`host:port`).

pub mod host_port;
pub mod interface;
pub mod names;
pub mod own_address;
