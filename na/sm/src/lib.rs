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
//! that [`OpenOptions::peer_users`](na_core::OpenOptions::peer_users) names, on both sides. Beyond
//! [`connections_max`], or [`connections_per_user_max`] of one user, a connection is refused with
//! that reason.
//!
//! [`connections_max`]: na_core::SmOptions::connections_max
//! [`connections_per_user_max`]: na_core::SmOptions::connections_per_user_max
//!
//! # Groups
//!
//! Several endpoints may share a name ([`Plugin::open_group`](na_core::Plugin::open_group)). One of
//! them listens. It hands a connection over to the endpoint that is to have it when it has read the
//! dialer's hello, before the welcome (`link/group.rs`). Each endpoint dials connections of its
//! own, and every connection with a group has a peer of its own on either side (`peers/peer.rs`).
//!
//! # Bulk data
//!
//! Memory of [`SharedBuffer`](na_core::SharedBuffer), on either side, is mapped once by the other
//! and copied in user space. Short transfers to a region that was asked for before need no word to
//! its owner (`transfer/offer.rs`). Other memory goes through the ring while both sides are awake,
//! both copying at the same time; if the requester sleeps, the memory's owner copies with
//! cross-memory attach. Where attaching is forbidden (found out at connect, by trying), the ring is
//! used always, as between processes that cannot be watched (before Linux 5.3, or without a free
//! descriptor). Memory is mapped only between processes of the same user.
//!
//! # Folders
//!
//! Lowest first: `wake/` (who must be woken) · `link/` (the shared memory, what is said in it, how
//! peers meet) · `transfer/` (remote memory access) · `peers/` (a peer; a connection, for senders
//! and for the poll) · `state.rs` (an endpoint) · `progress/` (the poll) · `api/` (calls). Below
//! all of them are `address.rs` and `mapping.rs`.
//!
//! # The life of a message
//!
//! `send_unexpected` takes the peer's send lock, writes the record into the ring, rings the
//! peer's bell if it sleeps and reports the send. The peer's poll sees the commit word at its
//! position, copies the message into the buffer of a posted receive, and reports that.
//!
//! That is the only copy on this side. A message is not lent as a slice of the ring. The peer could
//! change it while it is decoded, which no slice allows; and a handler that keeps a request for as
//! long as it runs would stop the ring behind it.
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

// The models in `loom-tests` see parts of these; nobody else does.
#[cfg(not(loom))]
mod link;
#[cfg(loom)]
pub mod link;
#[cfg(not(loom))]
mod wake;
#[cfg(loom)]
pub mod wake;

#[cfg(not(loom))]
mod address;
#[cfg(not(loom))]
mod api;
#[cfg(not(loom))]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(not(loom))]
mod mapping;
#[cfg(not(loom))]
mod peers;
#[cfg(not(loom))]
mod progress;
#[cfg(not(loom))]
mod state;
#[cfg(not(loom))]
mod transfer;

#[cfg(all(test, not(loom)))]
mod wire_doc;

#[cfg(not(loom))]
pub use self::api::open::Sm;
