//! Memory that outlives its connection or its registration, because a peer may still copy there.

use crate::LocalMem;
use crate::memory::region::{LingeringMemory, RetiredMemory};
use crate::sm::link::conn::Conn;
use crate::sm::link::crowd::AcceptedPeer;
use prim::sync::Arc;

/// Memory that a peer may be copying although the connection, or the region, has ended.
#[derive(Debug)]
pub(in crate::sm) struct Kept {
    pub(in crate::sm) conn: Arc<Conn>,
    /// The memory that the peer had asked for.
    pub(in crate::sm) memory: Vec<LocalMem>,
    /// Where it writes for us.
    pub(in crate::sm) late: Vec<LingeringMemory>,
    /// Memory whose region is gone.
    pub(in crate::sm) held: Option<RetiredMemory>,
    /// How the connection still counts in the endpoint's `Crowd`: it costs what it did.
    pub(in crate::sm) guest: Option<AcceptedPeer>,
}

/// The keeper of such memory until the peer has stopped: the endpoint.
pub(in crate::sm) trait Keeper: Send + Sync {
    /// Takes it over, and has the poll look at it.
    fn keep(&self, kept: Kept);
}
