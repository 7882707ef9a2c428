//! Memory that outlives its connection or its registration, because a peer may still copy there.

use crate::link::Conn;
use crate::link::group::Admission;
use na_core::LocalMem;
use na_core::memory::region::{LingeringMemory, RetiredMemory};
use prim::sync::Arc;

/// Memory that a peer may be copying although the connection, or the region, has ended.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) conn: Arc<Conn>,
    /// The memory that the peer had asked for.
    pub(crate) memory: Vec<LocalMem>,
    /// Where it writes for us.
    pub(crate) late: Vec<LingeringMemory>,
    /// Memory whose region is gone.
    pub(crate) held: Option<RetiredMemory>,
    /// The place of the connection, if it came to us, which still counts: it costs what it did.
    pub(crate) admission: Option<Admission>,
}

/// The keeper of such memory until the peer has stopped: the endpoint.
pub(crate) trait Keeper: Send + Sync {
    /// Takes it over, and has the poll look at it.
    fn keep(&self, kept: Kept);
}
