//! Hosts, network interfaces and IP addresses, for transports whose endpoints have such.
//!
//! - Imports: `base`, `options`.
//! - Reading order: `names.rs` (the system's resolver, off the polling thread) · `interface.rs` ·
//!   `own_address.rs` (which address an endpoint takes) · `host_port.rs` (`host:port`).

#[cfg(any(feature = "tcp", feature = "ucx"))]
pub(crate) mod host_port;
#[cfg(any(feature = "tcp", feature = "ofi", feature = "ucx"))]
pub(crate) mod interface;
#[cfg_attr(
    not(any(feature = "tcp", feature = "ofi", feature = "ucx")),
    allow(dead_code, reason = "only some transports have names of hosts")
)]
pub(crate) mod names;
#[cfg(any(feature = "tcp", feature = "ofi", feature = "ucx"))]
pub(crate) mod own_address;
