//! The state that the contexts of one core share.
//!
//! An endpoint has one stream of completions, so the polling context takes the completions of all
//! contexts. It acts on its own, and puts the others into the mailbox (`Core::arrived`) of the
//! context that they belong to (`progress/hand_over.rs`). One context polls at a time; another one
//! that comes meanwhile looks at its mailbox only.
//!
//! # Sleep
//!
//! A context sleeps on two descriptors: the endpoint's, and its own bell, which is rung when
//! something is put into its mailbox. When any context wakes up, the announcement of sleep at the
//! endpoint ends for all of them, so a context that polls while others sleep announces their sleep
//! again. A context that has had enough and stops polling while there is more wakes a sleeper,
//! because it may come back late itself. The memory ordering of all this is in [`prim::sleepers`],
//! with a model in `loom-tests`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, RwLock, Weak};

use na::Endpoint;
use prim::sleepers::Sleepers;

use crate::base::clock::Clock;
use crate::core::bell::Bell;
use crate::core::builds::Builds;
use crate::core::registry::Registry;
use crate::memory::{Kept, Slots};
use crate::ops::{CONTEXTS_MAX, Event};
use crate::{Core, HgError};

/// The state that all contexts share.
#[derive(Debug)]
pub(crate) struct Class<T> {
    pub(crate) registry: Registry,
    contexts: RwLock<Vec<Place<T>>>,
    /// There is, or was, more than one.
    several: AtomicBool,
    /// Held by the context that polls, if there are several.
    pub(crate) polling: Mutex<()>,
    pub(crate) sleepers: Sleepers,
    pub(crate) clock: Clock,
    pub(crate) builds: Builds,
    pub(crate) slots: Arc<Slots>,
    /// Results that are kept.
    pub(crate) kept: Kept,
    /// Results that are kept of the RPC that `HgOptions::results_apart` names.
    pub(crate) kept_apart: Kept,
    /// Arguments of calls that were given up.
    pub(crate) kept_arguments: Kept,
}

/// A number for a context.
#[derive(Debug)]
struct Place<T> {
    context: Weak<Core<T>>,
    /// The context has been dropped to its end.
    is_free: bool,
    /// The latest generation among its operations: the network may still end some of them, which
    /// must not be taken for those of a successor under this number.
    generation: u32,
}

impl<T> Class<T> {
    pub(crate) fn new(endpoint: Arc<dyn Endpoint>) -> Self {
        Self {
            registry: Registry::default(),
            contexts: RwLock::new(Vec::new()),
            several: AtomicBool::new(false),
            polling: Mutex::new(()),
            sleepers: Sleepers::default(),
            clock: Clock::new(),
            builds: Builds::default(),
            slots: Slots::new(endpoint),
            kept: Kept::default(),
            kept_apart: Kept::default(),
            kept_arguments: Kept::default(),
        }
    }

    /// Returns whether what arrives may belong to another context.
    #[inline]
    pub(crate) fn is_several(&self) -> bool {
        self.several.load(Ordering::Relaxed)
    }

    /// Adds a context under the number that `make` is given, with operations whose generations
    /// come after the other number that it is given.
    pub(crate) fn add(
        &self,
        max: u8,
        make: impl FnOnce(u8, u32) -> Result<Core<T>, HgError>,
    ) -> Result<Arc<Core<T>>, HgError> {
        let mut contexts = self.contexts.write().unwrap_or_else(|e| e.into_inner());
        let free = contexts.iter().position(|place| place.is_free);
        let index = free.unwrap_or(contexts.len());
        let max = usize::from(max.max(1)).min(CONTEXTS_MAX);
        if index >= max {
            return Err(HgError::Contexts { max });
        }
        self.several.store(index > 0 || self.is_several(), Ordering::Relaxed);
        let generation = free.map_or(0, |index| contexts[index].generation);
        let core = Arc::new(make(index as u8, generation)?);
        let place = Place { context: Arc::downgrade(&core), is_free: false, generation };
        match free {
            Some(index) => contexts[index] = place,
            None => contexts.push(place),
        }
        Ok(core)
    }

    /// Context `id` is being dropped; `generation` is the latest among its operations.
    pub(crate) fn retire(&self, id: u8, generation: u32) {
        let mut contexts = self.contexts.write().unwrap_or_else(|e| e.into_inner());
        if let Some(place) = contexts.get_mut(usize::from(id)) {
            (place.is_free, place.generation) = (true, generation);
        }
    }

    pub(crate) fn get(&self, id: u8) -> Option<Arc<Core<T>>> {
        let contexts = self.contexts.read().unwrap_or_else(|e| e.into_inner());
        contexts.get(usize::from(id))?.context.upgrade()
    }

    pub(crate) fn all(&self) -> Vec<Arc<Core<T>>> {
        let contexts = self.contexts.read().unwrap_or_else(|e| e.into_inner());
        contexts.iter().filter_map(|place| place.context.upgrade()).collect()
    }

    /// Returns whether a context sleeps; after its own poll.
    pub(crate) fn has_sleepers(&self) -> bool {
        self.sleepers.any()
    }

    /// Wakes one that sleeps, if there is one.
    pub(crate) fn wake_one(&self) {
        // Not under the lock: this may be the last to let go of one.
        let rings = |context: &Arc<Core<T>>| context.bell.as_ref().is_some_and(Bell::ring);
        let _ = self.all().iter().any(rings);
    }
}

impl<T> Core<T> {
    /// Queues an event of another context.
    pub(crate) fn queue_from_other(&self, event: Event<T>) {
        let mut state = self.state();
        state.hot.rpc_req_recv += 1;
        self.queue(&mut state, event);
        drop(state);
        self.wake();
    }

    /// Wakes the thread that sleeps in this context, if it has a bell.
    pub(crate) fn wake(&self) {
        if let Some(bell) = &self.bell {
            bell.ring();
        }
    }
}
