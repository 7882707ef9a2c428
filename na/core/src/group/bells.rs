//! The bells of a group: each shard of several has an eventfd in its epoll set, which tells that
//! there is something in its inbox. So a poll asks for nothing that it would not ask for alone.
//!
//! Touched when a connection is handed over, and when the group grows.

use std::os::fd::OwnedFd;

use prim::lost;
use prim::sync::{Arc, Mutex, lock};
use rustix::event::{EventfdFlags, eventfd};

use crate::Error;

/// The bells of a group, by shard; none for an endpoint alone.
///
/// ```
/// use na_core::group::bells::Bells;
///
/// let bells = Bells::new("the bell of a shard", 2)?;
/// assert!(bells.get(1).is_some() && bells.get(2).is_none());
/// bells.ring(1); // its descriptor is readable now
/// bells.silence(1);
/// # Ok::<(), na_core::Error>(())
/// ```
#[derive(Debug)]
pub struct Bells {
    /// How one is called, should it be lost.
    name: &'static str,
    all: Mutex<Vec<Arc<OwnedFd>>>,
}

impl Bells {
    /// The bells of `count` endpoints.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] when the system has no descriptors left.
    pub fn new(name: &'static str, count: usize) -> Result<Self, Error> {
        let bells = if count > 1 { 0..count } else { 0..0 };
        let all = bells.map(|_| Self::make()).collect::<Result<_, _>>()?;
        Ok(Self { name, all: Mutex::new(all) })
    }

    fn make() -> Result<Arc<OwnedFd>, Error> {
        eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)
            .map(Arc::new)
            .map_err(|errno| Error::io("cannot create an eventfd", errno))
    }

    /// The descriptor that becomes readable when there is something in the inbox of `shard`.
    pub fn get(&self, shard: usize) -> Option<Arc<OwnedFd>> {
        lock(&self.all).get(shard).cloned()
    }

    /// Makes a bell for the next shard. If there was none yet, the group was an endpoint alone,
    /// and it gets one as well, which is given to `watch_first`.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new), and those of `watch_first`.
    pub fn add(
        &self,
        watch_first: impl FnOnce(&OwnedFd) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut all = lock(&self.all);
        if all.is_empty() {
            let first = Self::make()?;
            watch_first(&first)?;
            all.push(first);
        }
        all.push(Self::make()?);
        Ok(())
    }

    /// Takes the bells of shards back that there are not: the group has `count`.
    pub fn keep(&self, count: usize) {
        lock(&self.all).truncate(count);
    }

    /// There is something for `shard`.
    pub fn ring(&self, shard: usize) {
        self.get(shard).into_iter().for_each(|bell| lost::ring(&*bell, self.name));
    }

    /// The bell of `shard` was seen.
    pub fn silence(&self, shard: usize) {
        self.get(shard).into_iter().for_each(|bell| lost::silence(&*bell, self.name));
    }
}
