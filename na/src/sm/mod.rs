//! Shared memory between processes of one host: `na+sm://`.
//!
//! Two endpoints meet at an abstract Unix socket and then share one sealed memfd with a ring of
//! records per direction. Nothing appears in the file system and nothing is left behind by a killed
//! process. A busy poll makes no system calls; a sleeping one is woken through the socket.
//!
//! # Addresses
//!
//! | URI | meaning |
//! |---|---|
//! | `na+sm://`, `sm` | an endpoint with a made-up name, `<pid>-<counter>-<random>` |
//! | `na+sm://name` | an endpoint called `name` (up to 64 letters, digits, `.`, `_`, `-`) |
//! | `na+sm://uid@name` | the same of another user |
//!
//! Names belong to a user and a network namespace. Processes of the same user connect, and of those
//! that [`OpenOptions::peer_users`](crate::OpenOptions::peer_users) names, on both sides. Beyond
//! [`connections_max`], or [`connections_per_user_max`] of one user, a connection is refused with
//! that reason.
//!
//! [`connections_max`]: crate::SmOptions::connections_max
//! [`connections_per_user_max`]: crate::SmOptions::connections_per_user_max
//!
//! # Bulk data
//!
//! Memory of [`SharedBuffer`](crate::SharedBuffer), on either side, is mapped once by the other and
//! copied in user space; short transfers to a region that was asked for before without a word to
//! its owner (`offer.rs`). Other memory goes through the ring while both sides are awake, both
//! copying at the same time; to a side that sleeps the memory's owner copies with cross-memory
//! attach. Where the latter is forbidden (found out at connect, by trying), the ring is used
//! always, as between processes that cannot be watched (before Linux 5.3, or without a free
//! descriptor). Memory is mapped only between processes of the same user.
//!
//! # Reading order
//!
//! `ring.rs`, `lane.rs`, `doorbell.rs`, `gate.rs`, `reports.rs`, the locks of `prim` (the
//! protocols, plain atomics, model-checked) · `segment.rs` (what is shared) · `record.rs`,
//! `handshake.rs` (what is said) · `address.rs`, `socket.rs`, `closer.rs` (how peers are found) ·
//! `peer.rs`, `link.rs`, `rx.rs` (a connection, for senders and the poll) · `endpoint.rs` (calls) ·
//! `connect.rs`, `crowd.rs`, `poll.rs`, `links.rs`, `board.rs`, `teardown.rs` (progress) ·
//! `rma.rs`, `serve.rs`, `offer.rs`, `block.rs`, `cma.rs`, `alive.rs`, `fallback.rs` (bulk data) ·
//! `costs.rs`, `untaken.rs` (which way it goes) · `ready.rs`; of the crate `copy.rs`,
//! `loopback.rs`.
//!
//! # The life of a message
//!
//! `send_unexpected` takes the peer's send lock, writes the record into the ring, rings the
//! peer's bell if it sleeps and reports the send. The peer's poll sees the commit word at its
//! position, copies the message into the buffer of a posted receive, and reports that.
//!
//! That is the only copy on this side. A message is not lent as a slice of the ring: the peer could
//! change it while it is decoded, which no slice allows; and whoever keeps a request for as long as
//! it is handled would stop the ring behind it.
//!
//! # Death
//!
//! The kernel closes a dead process's socket, unless a child that was forked off keeps it; so the
//! process itself is watched as well, by a pidfd. The next look at the epoll set (every 10 ms of
//! busy polling, at once when asleep) finds either. Complete messages in the ring are still
//! delivered, then everything towards that peer ends. Its name can be connected to again as soon as
//! somebody listens there.
//!
//! Counterpart: Mercury's `na_sm`, which is not wire compatible.

// The models in `loom-tests` see these; nobody else does.
#[cfg(not(loom))]
#[allow(unreachable_pub, reason = "public for the models only")]
mod doorbell;
#[cfg(loom)]
pub mod doorbell;
#[cfg(not(loom))]
#[allow(unreachable_pub, reason = "public for the models only")]
mod gate;
#[cfg(loom)]
pub mod gate;
#[cfg(not(loom))]
#[allow(unreachable_pub, reason = "public for the models only")]
mod lane;
#[cfg(loom)]
pub mod lane;
#[cfg(not(loom))]
#[allow(unreachable_pub, reason = "public for the models only")]
mod reports;
#[cfg(loom)]
pub mod reports;
#[cfg(not(loom))]
#[allow(unreachable_pub, reason = "public for the models only")]
mod ring;
#[cfg(loom)]
pub mod ring;
#[cfg(not(loom))]
#[allow(unreachable_pub, reason = "public for the models only")]
mod turns;
#[cfg(loom)]
pub mod turns;

#[cfg(not(loom))]
use prim::lock;

#[cfg(not(loom))]
mod address;
mod alive;
#[cfg(not(loom))]
mod block;
#[cfg(not(loom))]
mod board;
#[cfg(not(loom))]
mod closer;
#[cfg(not(loom))]
mod cma;
#[cfg(not(loom))]
mod connect;
#[cfg(not(loom))]
mod costs;
#[cfg(not(loom))]
mod crowd;
#[cfg(not(loom))]
mod endpoint;
#[cfg(not(loom))]
mod fallback;
#[cfg(not(loom))]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(not(loom))]
mod handshake;
#[cfg(not(loom))]
mod link;
#[cfg(not(loom))]
mod links;
#[cfg(not(loom))]
mod offer;
#[cfg(not(loom))]
mod open;
#[cfg(not(loom))]
mod peer;
#[cfg(not(loom))]
mod poll;
#[cfg(not(loom))]
mod ready;
#[cfg(not(loom))]
mod record;
#[cfg(not(loom))]
mod rma;
#[cfg(not(loom))]
mod rx;
#[cfg(not(loom))]
mod segment;
#[cfg(not(loom))]
mod serve;
#[cfg(not(loom))]
mod socket;
#[cfg(not(loom))]
mod teardown;
#[cfg(not(loom))]
mod untaken;

#[cfg(all(test, not(loom)))]
mod wire_doc;

#[cfg(not(loom))]
use crate::loopback;
#[cfg(not(loom))]
use crate::memory::copy;

#[cfg(not(loom))]
pub use self::open::Sm;
