//! The instance that users hold, and the state that its parts share.
//!
//! May import the folders below: the state of each chapter stands there and knows no instance; what
//! a chapter does with it stands above. Read `inner.rs`, then `groups.rs` (its methods by subject),
//! `pools.rs` and `shard_calls.rs`, then
//! `reply.rs` (a request in hand), `handlers_in_hand.rs`, `shutdown.rs`, `callbacks.rs` and
//! `instance_tree.rs` (the end), and `address_file.rs`.

pub(crate) mod address_file;
pub(crate) mod callbacks;
pub(crate) mod descriptions;
pub(crate) mod groups;
pub(crate) mod handlers_in_hand;
pub(crate) mod inner;
pub(crate) mod instance_tree;
pub(crate) mod pools;
pub(crate) mod provider_configs;
pub(crate) mod reply;
pub(crate) mod shard_calls;
pub(crate) mod shutdown;
