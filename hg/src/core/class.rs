//! The state that the shards of a group share. All of it changes rarely, or belongs to what takes
//! long anyhow: nothing here is written by a call whose arguments and result fit into messages.

use std::sync::{Arc, Mutex, OnceLock, Weak};

use na::Endpoint;

use crate::Core;
use crate::base::clock::Clock;
use crate::core::builds::Builds;
use crate::core::members::MemberSessions;
use crate::core::registry::Registry;
use crate::memory::{HeldBytes, Kept, Slots};
use crate::ops::SHARDS_MAX;
use crate::wire::extension::OwnSecret;

/// The state that all shards share.
#[derive(Debug)]
pub(crate) struct Class<T> {
    pub(crate) registry: Registry,
    /// All shards, by number, as soon as they are made. Each place is filled once, in order.
    shards: Box<[OnceLock<Weak<Core<T>>>]>,
    /// Held while a shard is added.
    pub(crate) growing: Mutex<()>,
    pub(crate) clock: Clock,
    /// The secret that requests to ourselves have which take the network, once one does.
    own: OnceLock<Option<OwnSecret>>,
    pub(crate) builds: Builds,
    pub(crate) members: MemberSessions,
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
            shards: (0..SHARDS_MAX).map(|_| OnceLock::new()).collect(),
            growing: Mutex::new(()),
            clock: Clock::new(),
            own: OnceLock::new(),
            builds: Builds::default(),
            members: MemberSessions::default(),
            slots: Slots::new(endpoint),
            kept: Kept::default(),
            kept_apart: Kept::default(),
            kept_arguments: Kept::default(),
            held: HeldBytes::default(),
        }
    }

    /// Returns the secret by which we know our own requests; `None`: there is none, and they stay
    /// unknown.
    pub(crate) fn own_secret(&self) -> Option<OwnSecret> {
        *self.own.get_or_init(OwnSecret::draw)
    }

    /// Returns whether a request has that secret. One that was never drawn nobody has.
    pub(crate) fn is_own(&self, said: &OwnSecret) -> bool {
        matches!(self.own.get(), Some(Some(own)) if own.is(said))
    }

    /// Makes a shard known to the others, under its number.
    pub(crate) fn introduce(&self, shard: &Arc<Core<T>>) {
        if let Some(place) = self.shards.get(usize::from(shard.id)) {
            // Nobody was here before.
            let _ = place.set(Arc::downgrade(shard));
        }
    }

    /// How many shards were made known.
    pub(crate) fn count(&self) -> usize {
        self.shards.iter().take_while(|place| place.get().is_some()).count()
    }

    /// Returns the shard of that number, if there is one.
    pub(crate) fn get(&self, id: u8) -> Option<Arc<Core<T>>> {
        self.shards.get(usize::from(id))?.get()?.upgrade()
    }

    /// Returns the shards that there are.
    pub(crate) fn all(&self) -> impl Iterator<Item = Arc<Core<T>>> + use<'_, T> {
        self.shards.iter().map_while(OnceLock::get).filter_map(Weak::upgrade)
    }
}
