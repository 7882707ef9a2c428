//! Sockets, and what the kernel lacks or keeps of them.
//!
//! - Imports: nothing of `tcp`; of the crate below, options and pieces of memory.
//! - Reading order: `socket.rs` (the system calls) · `lack.rs` (callers for whom no descriptor is
//!   left) · `leaving.rs` (data of connections that have ended) · `kernel_tls.rs`.

pub(crate) mod kernel_tls;
pub(crate) mod lack;
pub(crate) mod leaving;
pub(crate) mod socket;
