//! Peers and their connections: what is known of each, and in flight with it.
//!
//! - Imports: of `tcp`, `stream/` and what that imports; of the crate below, memory and budgets.
//! - Reading order: `transfers.rs` (puts and gets) · `peer.rs` · `conn.rs` · `mail.rs` (peers that
//!   the next poll must look at) · `peer_registry.rs` (all of them) · `group.rs` (other endpoints
//!   behind the same address).

pub(crate) mod conn;
pub(crate) mod group;
pub(crate) mod mail;
pub(crate) mod peer;
pub(crate) mod peer_registry;
pub(crate) mod transfers;

pub(crate) use self::conn::{Attempt, Conn, Conns, Pause, Stage};
pub(crate) use self::group::{Group, Handed, PeerName};
pub(crate) use self::mail::{BELL_NAME, Mail};
pub(crate) use self::peer::{Broken, Link, Peer, PeerPart, PeerState, Phase};
pub(crate) use self::peer_registry::PeerRegistry;
