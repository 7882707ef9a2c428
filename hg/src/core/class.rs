//! The state that the contexts of one core share, and how they hand completions to each other.
//!
//! An endpoint has one stream of completions, so the polling context takes the completions of all
//! contexts. It acts on its own, and puts the others into the mailbox (`Core::arrived`) of the
//! context that they belong to. One context polls at a time; another one that comes meanwhile looks
//! at its mailbox only.
//!
//! # Sleep
//!
//! A context sleeps on two descriptors: the endpoint's, and its own bell, which is rung when
//! something is put into its mailbox. When any context wakes up, the announcement of sleep at the
//! endpoint ends for all of them, so a context that polls while others sleep announces their sleep
//! again. A context that has had enough and stops polling while there is more wakes a sleeper,
//! because it may come back late itself. The memory ordering of all this is in [`prim::sleepers`],
//! with a model in `loom-tests`.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, RwLock, Weak};

use prim::sleepers::{Sleeper, Sleepers};
use rustix::event::{EventfdFlags, epoll};

use crate::base::clock::Clock;
use crate::core::context::Op;
use crate::core::registry::Registry;
use crate::ops::slab::{CONTEXTS_MAX, OpRef, Role};
use crate::origin::ask_build::Builds;
use crate::progress::poll::Event;
use crate::{Core, HgError};
use prim::sync::lock;

/// The state that all contexts share.
#[derive(Debug)]
pub(crate) struct Class<T> {
    pub(crate) registry: Registry,
    contexts: RwLock<Vec<Place<T>>>,
    /// There is, or was, more than one.
    several: AtomicBool,
    /// Held by the context that polls, if there are several.
    pub(crate) polling: Mutex<()>,
    sleepers: Sleepers,
    pub(crate) clock: Clock,
    pub(crate) builds: Builds,
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
    pub(crate) fn new() -> Self {
        Self {
            registry: Registry::default(),
            contexts: RwLock::new(Vec::new()),
            several: AtomicBool::new(false),
            polling: Mutex::new(()),
            sleepers: Sleepers::default(),
            clock: Clock::new(),
            builds: Builds::default(),
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

/// How a context that shares its endpoint is woken.
#[derive(Debug)]
pub(crate) struct Bell {
    asleep: Sleeper,
    bell: OwnedFd,
    /// Both descriptors, as one.
    both: OwnedFd,
}

/// How the bell is called, should it be lost.
const BELL_NAME: &str = "the eventfd that wakes a context";

impl Bell {
    pub(crate) fn new(endpoint: Option<BorrowedFd<'_>>) -> Result<Self, HgError> {
        let failed = |errno: rustix::io::Errno| {
            HgError::Na(na::Error::io("cannot make the descriptors of a context", errno))
        };
        let bell = rustix::event::eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)
            .map_err(failed)?;
        let both = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        for fd in [Some(bell.as_fd()), endpoint].into_iter().flatten() {
            let data = epoll::EventData::new_u64(0);
            epoll::add(&both, fd, data, epoll::EventFlags::IN).map_err(failed)?;
        }
        Ok(Self { asleep: Sleeper::default(), bell, both })
    }

    #[inline]
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.both.as_fd()
    }

    /// Announces a sleep; follow with a look at the mailbox.
    pub(crate) fn announce<T>(&self, class: &Class<T>) {
        self.asleep.announce(&class.sleepers);
    }

    /// Ends a sleep.
    pub(crate) fn retract<T>(&self, class: &Class<T>) {
        if self.asleep.retract(&class.sleepers) {
            na::lost::silence(&self.bell, BELL_NAME);
        }
    }

    /// Something was put into the mailbox; whether its context slept.
    pub(crate) fn ring(&self) -> bool {
        let asleep = self.asleep.must_ring();
        if asleep {
            na::lost::ring(&self.bell, BELL_NAME);
        }
        asleep
    }
}

impl<T> Core<T> {
    /// Hands a completion to the context that it belongs to. A request is counted here, where its
    /// receive ended, and not when that context comes to look: while it does not, the others'
    /// requests need receives.
    pub(crate) fn hand_over(&self, to: &Core<T>, mut completion: na::Completion) {
        if let na::Completion::Recv { op, result: Ok(_), .. } = &mut completion
            && OpRef::parse(*op).1 == Some(Role::Request)
        {
            self.count_arrival();
            *op = OpRef::single(Role::Counted, to.id, 0);
        }
        let mut arrived = lock(&to.arrived);
        arrived.push_back(completion);
        to.has_arrived.store(true, Ordering::Relaxed);
        drop(arrived);
        to.wake();
    }

    /// When this context ends: requests that wait for it go to context 0, as those will that come
    /// for it from now on. Arguments that are being fetched are given up; their origins are told
    /// to try again.
    pub(crate) fn leave_to_primary(&self) {
        if self.is_primary() {
            return;
        }
        let primary = self.primary();
        let (events, fetches) = {
            let mut state = self.state();
            let fetches = state.ops.iter().filter(|(_, op)| matches!(op, Op::Fetch(_)));
            let fetches: Vec<_> = fetches.map(|(name, _)| name).collect();
            (std::mem::take(&mut state.events), fetches)
        };
        let requests = events.into_iter().filter(|event| matches!(event, Event::Request(_)));
        requests.for_each(|request| primary.queue(&mut primary.state(), request));
        let mut requests = self.take_arrived();
        requests.retain(is_counted_request);
        if !requests.is_empty() {
            let mut arrived = lock(&primary.arrived);
            arrived.append(&mut requests);
            primary.has_arrived.store(true, Ordering::Relaxed);
        }
        for op in fetches {
            self.endpoint.cancel(op.part(Role::Fetch));
            self.on_fetched(op, Err(na::Error::Canceled));
        }
        primary.wake();
    }

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

fn is_counted_request(completion: &na::Completion) -> bool {
    matches!(completion, na::Completion::Recv { op, .. }
        if OpRef::parse(*op).1 == Some(Role::Counted))
}
