//! Peers, and their connections: one half for those that send, one for the poll.
//!
//! - Imports: of `sm`, `transfer/` and what that imports; of the crate below, everything.
//! - Reading order: `peer.rs` (a peer and the table of all) · `tx.rs` (a connection, for senders) ·
//!   `rx.rs` (for the poll) · `links.rs` (which of them a poll looks at).

pub(crate) mod links;
pub(crate) mod peer;
pub(crate) mod rx;
pub(crate) mod tx;

pub(crate) use self::links::Links;
pub(crate) use self::peer::{Peer, PeerPart, PeerTable, Reach};
pub(crate) use self::rx::{ConnectionStage, RxLink};
pub(crate) use self::tx::{TxLink, sent};
