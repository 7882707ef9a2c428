//! One endpoint over two transports: shared memory for peers on the same host, the network for all
//! others. [`OpenOptions::auto_sm`](crate::OpenOptions::auto_sm) asks for it.
//!
//! It holds an endpoint of each, *near* (sm) and *far*. An address belongs to one of the two, so an
//! operation goes where its address says, and nothing is translated on the way:
//!
//! - [`lookup`](crate::Endpoint::lookup) reads both forms of a composed address
//!   (see [`composed`](na_core::address::composed)) and takes the near one if the peer is on this
//!   host;
//! - a message that arrives carries the address that it came from, near or far, and is answered
//!   that way;
//! - an endpoint of a group ([`open_group`](crate::open_group)) holds one of a group near and one
//!   of a group far;
//! - registered memory has one key, in a table that both endpoints share; its description has what
//!   libfabric needs in front of it (see [`memory`]).
//!
//! Receives of unexpected messages have no address: see [`receives`]. The far endpoint is polled
//! less often while it has nothing to do, because an empty look at a network is a system call
//! ([`turns`]).
//!
//! - Imports: `base`, `address`, `memory`, `message`, `options`, `endpoint`; no transport: the
//!   registry passes both plugins in.
//! - Reading order: `endpoint.rs` · `receives.rs`, `many.rs` · `memory.rs` · `turns.rs`.
//!
//! Counterpart: `auto_sm` of `HG_Init_opt2`. There, hosts are told apart by `gethostid`, which
//! clones of a machine share; here, by the running kernel, the network namespace and the user.

mod endpoint;
mod many;
mod memory;
mod receives;
mod turns;

pub(crate) use self::endpoint::{near, open_group};
