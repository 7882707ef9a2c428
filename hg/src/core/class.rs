//! The state that the shards of a group share. All of it changes rarely, or belongs to what takes
//! long anyhow: nothing here is written by a call whose arguments and result fit into messages.

use std::sync::{Arc, OnceLock, Weak};

use na::Endpoint;

use crate::Core;
use crate::base::clock::Clock;
use crate::core::builds::Builds;
use crate::core::registry::Registry;
use crate::memory::{HeldBytes, Kept, Slots};

/// The state that all shards share.
#[derive(Debug)]
pub(crate) struct Class<T> {
    pub(crate) registry: Registry,
    /// All shards, by number, as soon as they are made.
    shards: OnceLock<Box<[Weak<Core<T>>]>>,
    pub(crate) clock: Clock,
    pub(crate) builds: Builds,
    pub(crate) slots: Arc<Slots>,
    /// Results that are kept.
    pub(crate) kept: Kept,
    /// Results that are kept of the RPC that `HgOptions::results_apart` names.
    pub(crate) kept_apart: Kept,
    /// Arguments of calls that were given up.
    pub(crate) kept_arguments: Kept,
    /// Arguments that overflowed, of requests that are held.
    pub(crate) held: HeldBytes,
}

impl<T> Class<T> {
    pub(crate) fn new(endpoint: Arc<dyn Endpoint>) -> Self {
        Self {
            registry: Registry::default(),
            shards: OnceLock::new(),
            clock: Clock::new(),
            builds: Builds::default(),
            slots: Slots::new(endpoint),
            kept: Kept::default(),
            kept_apart: Kept::default(),
            kept_arguments: Kept::default(),
            held: HeldBytes::default(),
        }
    }

    /// Makes the shards known to each other, once.
    pub(crate) fn introduce(&self, shards: &[Arc<Core<T>>]) {
        // Nobody was here before.
        let _ = self.shards.set(shards.iter().map(Arc::downgrade).collect());
    }

    /// Returns the shard of that number, if there is one.
    pub(crate) fn get(&self, id: u8) -> Option<Arc<Core<T>>> {
        self.shards.get()?.get(usize::from(id))?.upgrade()
    }

    /// Returns the shards that there are.
    pub(crate) fn all(&self) -> impl Iterator<Item = Arc<Core<T>>> + use<'_, T> {
        self.shards.get().into_iter().flatten().filter_map(Weak::upgrade)
    }
}
