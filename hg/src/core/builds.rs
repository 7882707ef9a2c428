//! The builds of Mercury that peers are, as far as they are known: see `origin/ask_build.rs`.

use std::collections::HashMap;
use std::sync::Mutex;

use na::Addr;
use prim::sync::lock;

use crate::{Build, RpcId};

/// The RPC of the question.
pub(crate) const QUESTION: RpcId = RpcId(u64::from_be_bytes(*b"margo-rs"));

/// Peers whose build is remembered, at most; then all are asked again.
const KNOWN_MAX: usize = 4096;

/// How much longer the headers of a build with checksum support are, bytes.
pub(crate) const LONGER_BY: usize = Build::Checksum.header_bytes() - Build::Plain.header_bytes();

/// The builds of peers, by the numbers of their addresses: these are not kept.
#[derive(Debug, Default)]
pub(crate) struct Builds(Mutex<HashMap<(u64, u64), Build>>);

impl Builds {
    pub(crate) fn of(&self, peer: &Addr) -> Option<Build> {
        lock(&self.0).get(&(peer.endpoint_id(), peer.peer_id())).copied()
    }

    pub(crate) fn learn(&self, peer: &Addr, build: Build) {
        let mut known = lock(&self.0);
        if known.len() >= KNOWN_MAX {
            known.clear();
        }
        known.insert((peer.endpoint_id(), peer.peer_id()), build);
    }

    /// Forgets all builds, because a peer is gone.
    pub(crate) fn forget(&self) {
        lock(&self.0).clear();
    }
}
