//! The state behind an [`Addr`](na_core::Addr) of this transport.

use std::sync::Arc;

use prim::sync::atomic::{AtomicU64, Ordering};

/// Names a peer. All addresses of a peer share `current`, so that it is known when nobody names the
/// peer any more.
#[derive(Debug)]
pub(crate) struct PeerRef {
    /// The peer's place in the driver.
    pub(crate) index: usize,
    /// The session as in the peer; it is written only with the driver's lock held.
    pub(crate) current: Arc<AtomicU64>,
}

impl PeerRef {
    /// Our number for what is between us and the peer, without the driver.
    pub(crate) fn session(&self) -> u64 {
        self.current.load(Ordering::Relaxed)
    }
}
