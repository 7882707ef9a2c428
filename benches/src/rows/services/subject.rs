//! The store that a row is about, what is done with it, its keys and values.

use std::sync::atomic::{AtomicU64, Ordering};

use margo_provider_kv::{MemoryOrder, StoreKind};

use crate::floors::transport::Transport;

pub(crate) const VALUE: [u8; 100] = [7; 100];

/// The store that a row is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Store {
    /// In memory.
    Memory(MemoryOrder),
    /// In a file.
    Disk(StoreKind),
}

impl Store {
    /// The word in ids.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Memory(MemoryOrder::Ordered) => "ordered",
            Self::Memory(_) => "hashed",
            Self::Disk(StoreKind::Fjall) => "fjall",
            Self::Disk(StoreKind::Lmdb) => "lmdb",
            Self::Disk(_) => "redb",
        }
    }
}

/// The calls that a row makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    /// One key of a call.
    Get,
    /// One key of a call.
    Put,
    /// Many keys of a call.
    GetMany,
}

/// The subject of a row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spec {
    pub(crate) transport: Transport,
    pub(crate) store: Store,
    pub(crate) work: Work,
    pub(crate) keys: u64,
}

/// The key of that number: keys are as long as a hash, and in no order.
pub(crate) fn key(number: u64) -> [u8; 32] {
    let mut key = [0; 32];
    let mut state = number;
    for part in key.chunks_exact_mut(8) {
        state = mixed(state.wrapping_add(0x9e37_79b9_7f4a_7c15));
        part.copy_from_slice(&state.to_le_bytes());
    }
    key
}

/// The output function of `splitmix64`.
fn mixed(mut state: u64) -> u64 {
    state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ (state >> 31)
}

/// Random numbers of keys.
#[derive(Debug)]
pub(crate) struct Picks {
    next: AtomicU64,
    keys: u64,
}

impl Picks {
    pub(crate) fn new(keys: u64) -> Self {
        Self { next: AtomicU64::new(0), keys }
    }

    pub(crate) fn key(&self) -> [u8; 32] {
        key(mixed(self.next.fetch_add(1, Ordering::Relaxed)) % self.keys)
    }
}
