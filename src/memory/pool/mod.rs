//! Pools of registered buffers: [`BulkPool`].
//!
//! | state | touched by | under |
//! |---|---|---|
//! | free buffers, who waits, counts of a class | everybody, briefly | `Class::state` |
//! | a turn's buffer | its giver, then whose turn it is | set once, under `Class::state` |
//!
//! A turn that has left the queue has its buffer: both happen under the lock. So a caller that
//! stops waiting, for a deadline, a cancel, or because its ULT is cancelled, knows whether it has
//! to give a buffer back.
//!
//! Counterpart: `margo_bulk_pool_t` and `margo_bulk_poolset_t`; there a ULT that waits cannot give
//! up, and destroying a pool frees buffers that are in use.

use std::collections::VecDeque;
use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use na::LocalMem;
use na::fork::Process;
use ult::{Eventual, Selectable, wait_any};

use crate::BulkError;
use crate::memory::buffer::{BulkBuffer, LocalBulk, sealed::Registered};

mod spec;

pub use self::spec::{BulkClassStats, BulkPoolError, BulkPoolSpec};

/// Registered buffers, so that a service neither allocates nor registers in its handlers, and its
/// memory for bulk transfers has a limit. Cheap to clone.
///
/// A pool has *classes*: buffers of one size each. A caller that asks for bytes gets a buffer of
/// the smallest class that has them, and waits if none is free: a ULT suspends, an OS thread
/// blocks. Waiting callers are served in their order, directly by the caller that gives a buffer
/// back. A [`PooledBuffer`] goes back when it is dropped.
///
/// Callers that each take two buffers of a class can all wait for each other's second one: take
/// one, or make sure that there are enough.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use margo::{bulk_memory::BulkPoolSpec, Instance};
///
/// let instance = Instance::builder("na+sm://").start()?;
/// // 16 buffers each of 4 KiB, 64 KiB and 1 MiB.
/// let pool = instance.memory().bulk_pool(&BulkPoolSpec::geometric(3, 16, 4096, 16))?;
/// let mut buffer = pool.get(5000)?;
/// assert_eq!(buffer.len(), 65_536);
/// buffer[..5].copy_from_slice(b"hello");
/// // `instance.push(&peer, &bulk, 0, &mut buffer, 0..5)` …
/// drop(buffer); // … and back it goes.
/// # instance.finalize_and_wait()?;
/// # Ok(())
/// # }
/// ```
///
/// Counterpart: `margo_bulk_poolset_t`; with one class, `margo_bulk_pool_t`.
#[derive(Clone)]
pub struct BulkPool(Arc<[Class]>);

pub(crate) struct Class {
    bytes: usize,
    buffers: usize,
    state: Mutex<PoolState>,
    /// The process that made it: in a child that was forked off, the lock may be held for ever.
    process: Process,
}

struct PoolState {
    free: Vec<BulkBuffer>,
    waiting: VecDeque<Arc<BufferWaiter>>,
    closed: bool,
    counts: PoolCounts,
}

#[derive(Default)]
struct PoolCounts {
    in_use_max: usize,
    gets: u64,
    waits: u64,
    spills: u64,
    given_up: u64,
}

/// One who waits. What it gets is there for it to take; nothing, if the pool was closed.
type BufferWaiter = Eventual<Mutex<Option<BulkBuffer>>>;

/// The bulk pools that an instance has made and that are still held, with their numbers.
#[derive(Default)]
pub(crate) struct Pools(Mutex<Made>);

#[derive(Default)]
struct Made {
    count: u64,
    held: Vec<(u64, Weak<[Class]>)>,
}

impl Pools {
    pub(crate) fn add(&self, pool: &BulkPool) {
        let mut made = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        made.held.retain(|(_, pool)| pool.strong_count() > 0);
        let number = made.count;
        made.held.push((number, Arc::downgrade(&pool.0)));
        made.count += 1;
    }

    pub(crate) fn metrics(&self) -> Vec<crate::BulkPoolMetrics> {
        let pools = self.0.lock().unwrap_or_else(PoisonError::into_inner).held.clone();
        let there = pools.iter().filter_map(|(number, pool)| Some((*number, pool.upgrade()?)));
        // A closed one is there for those who still have a buffer of it, or a clone.
        let there = there.filter(|(_, pool)| !pool.iter().all(|class| class.state().closed));
        let classes = |(pool, classes): (u64, Arc<[Class]>)| {
            let stats: Vec<_> = classes.iter().map(Class::stats).collect();
            stats.into_iter().map(move |class| crate::BulkPoolMetrics {
                pool,
                buffer_bytes: class.bytes,
                buffers: class.buffers,
                free: class.free,
                waiting: class.waiting,
                gets: class.gets,
                waits: class.waits,
            })
        };
        there.flat_map(classes).collect()
    }
}

impl BulkPool {
    pub(crate) fn new(
        spec: &BulkPoolSpec,
        buffer: impl Fn(usize) -> Result<BulkBuffer, BulkError>,
    ) -> Result<Self, BulkPoolError> {
        let class = |(bytes, buffers): (usize, usize)| -> Result<Class, BulkPoolError> {
            let free = (0..buffers).map(|_| buffer(bytes)).collect::<Result<_, _>>()?;
            let (waiting, counts) = (VecDeque::new(), PoolCounts::default());
            let state = Mutex::new(PoolState { free, waiting, closed: false, counts });
            Ok(Class { bytes, buffers, state, process: Process::current() })
        };
        let classes = spec.check()?.into_iter().map(class).collect::<Result<Vec<_>, _>>()?;
        Ok(Self(classes.into()))
    }

    /// Bytes of the largest buffers. Counterpart: `margo_bulk_poolset_get_max`.
    pub fn bytes_max(&self) -> usize {
        self.0.last().map_or(0, |class| class.bytes)
    }

    /// A buffer of at least `len` bytes, of the smallest class that has such; waits for one if all
    /// are in use. It holds what its last user has left in it.
    ///
    /// A ULT that is cancelled while it waits leaves the queue.
    ///
    /// # Errors
    ///
    /// [`BulkPoolError::TooLarge`], [`BulkPoolError::Closed`], [`BulkPoolError::Tasklet`].
    ///
    /// Counterpart: `margo_bulk_poolset_get`, `margo_bulk_pool_get`.
    pub fn get(&self, len: usize) -> Result<PooledBuffer, BulkPoolError> {
        self.acquire(len, None, None)
    }

    /// As [`get`](Self::get), waiting no longer than `limit`.
    ///
    /// # Errors
    ///
    /// As `get`, and [`BulkPoolError::TimedOut`].
    pub fn get_timed(&self, len: usize, limit: Duration) -> Result<PooledBuffer, BulkPoolError> {
        self.acquire(len, Some(limit), None)
    }

    /// As [`get`](Self::get); the wait ends when `cancel` is set, or after `limit`.
    ///
    /// # Errors
    ///
    /// As [`get_timed`](Self::get_timed), and [`BulkPoolError::Canceled`].
    pub fn get_unless(
        &self,
        len: usize,
        cancel: &Eventual<()>,
        limit: Option<Duration>,
    ) -> Result<PooledBuffer, BulkPoolError> {
        self.acquire(len, limit, Some(cancel))
    }

    /// A buffer of the smallest class that has at least `len` bytes, if one is free.
    ///
    /// # Errors
    ///
    /// As [`get`](Self::get).
    ///
    /// Counterpart: `margo_bulk_poolset_tryget` without `any_flag`, `margo_bulk_pool_tryget`.
    pub fn try_get(&self, len: usize) -> Result<Option<PooledBuffer>, BulkPoolError> {
        let first = self.class_for(len)?;
        self.take_free(first, false)
    }

    /// A buffer of any class that has at least `len` bytes, if one is free; the smallest of them.
    ///
    /// # Errors
    ///
    /// As [`get`](Self::get).
    ///
    /// Counterpart: `margo_bulk_poolset_tryget` with `any_flag`.
    pub fn try_get_any(&self, len: usize) -> Result<Option<PooledBuffer>, BulkPoolError> {
        let first = self.class_for(len)?;
        for class in first..self.0.len() {
            if let Some(buffer) = self.take_free(class, class > first)? {
                return Ok(Some(buffer));
            }
        }
        Ok(None)
    }

    /// Ends all waits with [`BulkPoolError::Closed`], and gives out no buffers any more. Those in
    /// use are freed when they come back, all others now. Idempotent.
    ///
    /// Counterpart: `margo_bulk_poolset_destroy`, which frees buffers in use as well.
    pub fn close(&self) {
        for class in self.0.iter().filter(|class| !class.process.is_other()) {
            let mut state = class.state();
            state.closed = true;
            state.counts.given_up += state.waiting.len() as u64;
            for turn in std::mem::take(&mut state.waiting) {
                // A turn in the queue has not been set.
                let _ = turn.set(Mutex::new(None));
            }
            let unused = std::mem::take(&mut state.free);
            drop(state);
            drop(unused);
        }
    }

    /// Returns the buffers that there are and the counts so far, by class, smallest first.
    pub fn stats(&self) -> Vec<BulkClassStats> {
        self.0.iter().map(Class::stats).collect()
    }

    /// Runs `work` with the locks held, as another thread might hold them.
    #[cfg(test)]
    pub(crate) fn while_locked<V>(&self, work: impl FnOnce() -> V) -> V {
        let _held: Vec<_> = self.0.iter().map(Class::state).collect();
        work()
    }

    fn class_for(&self, len: usize) -> Result<usize, BulkPoolError> {
        let class = self.0.partition_point(|class| class.bytes < len);
        match class < self.0.len() {
            true => Ok(class),
            false => Err(BulkPoolError::TooLarge { len, max: self.bytes_max() }),
        }
    }

    fn take_free(
        &self,
        class: usize,
        is_spill: bool,
    ) -> Result<Option<PooledBuffer>, BulkPoolError> {
        let mut state = self.0[class].open()?;
        let Some(buffer) = self.0[class].pop_free(&mut state) else { return Ok(None) };
        state.counts.spills += u64::from(is_spill);
        drop(state);
        Ok(Some(self.wrap(class, buffer)))
    }

    fn wrap(&self, class: usize, buffer: BulkBuffer) -> PooledBuffer {
        PooledBuffer { buffer: Some(buffer), pool: self.0.clone(), class }
    }

    fn acquire(
        &self,
        len: usize,
        limit: Option<Duration>,
        cancel: Option<&Eventual<()>>,
    ) -> Result<PooledBuffer, BulkPoolError> {
        let class = self.class_for(len)?;
        // A limit beyond all clocks is none.
        let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
        let mut state = self.0[class].open()?;
        if let Some(buffer) = self.0[class].pop_free(&mut state) {
            drop(state);
            return Ok(self.wrap(class, buffer));
        }
        if ult::is_tasklet() {
            return Err(BulkPoolError::Tasklet { bytes: self.0[class].bytes });
        }
        let place = Place { pool: self, class, turn: Arc::new(BufferWaiter::new()) };
        state.waiting.push_back(place.turn.clone());
        drop(state);
        let turn: &dyn Selectable = &*place.turn;
        let woken_by = match cancel {
            Some(cancel) => wait_any(&[turn, cancel], deadline),
            None => wait_any(&[turn], deadline),
        };
        match (place.leave(), woken_by) {
            (Left::Got(buffer), _) => Ok(buffer),
            (Left::Closed, _) => Err(BulkPoolError::Closed),
            (Left::Early, Some(_)) => Err(BulkPoolError::Canceled),
            (Left::Early, None) => Err(BulkPoolError::TimedOut {
                bytes: self.0[class].bytes,
                limit: limit.unwrap_or_default(),
            }),
        }
    }
}

impl Class {
    fn state(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self) -> Result<MutexGuard<'_, PoolState>, BulkPoolError> {
        if self.process.is_other() {
            return Err(BulkPoolError::Forked);
        }
        let state = self.state();
        if state.closed { Err(BulkPoolError::Closed) } else { Ok(state) }
    }

    /// A free buffer. There is none while some wait.
    fn pop_free(&self, state: &mut PoolState) -> Option<BulkBuffer> {
        let buffer = state.free.pop()?;
        self.count_get(state);
        Some(buffer)
    }

    fn count_get(&self, state: &mut PoolState) {
        state.counts.gets += 1;
        let in_use = self.buffers - state.free.len();
        state.counts.in_use_max = state.counts.in_use_max.max(in_use);
    }

    fn give_back(&self, buffer: BulkBuffer) {
        if self.process.is_other() {
            return drop(buffer);
        }
        let mut state = self.state();
        if let Some(turn) = state.waiting.pop_front() {
            state.counts.waits += 1;
            self.count_get(&mut state);
            // A turn in the queue has not been set.
            let _ = turn.set(Mutex::new(Some(buffer)));
        } else if state.closed {
            drop(state);
            drop(buffer);
        } else {
            state.free.push(buffer);
        }
    }

    fn stats(&self) -> BulkClassStats {
        let state = self.state();
        let PoolCounts { in_use_max, gets, waits, spills, given_up } = state.counts;
        BulkClassStats {
            bytes: self.bytes,
            buffers: self.buffers,
            free: state.free.len(),
            waiting: state.waiting.len(),
            in_use_max,
            gets,
            waits,
            spills,
            given_up,
        }
    }
}

/// A place in the queue of a class. Dropped without [`leave`](Self::leave) when the ULT unwinds.
struct Place<'a> {
    pool: &'a BulkPool,
    class: usize,
    turn: Arc<BufferWaiter>,
}

enum Left {
    Got(PooledBuffer),
    Closed,
    /// It was still in the queue.
    Early,
}

impl Place<'_> {
    fn leave(&self) -> Left {
        let mut state = self.pool.0[self.class].state();
        if let Some(at) = state.waiting.iter().position(|turn| Arc::ptr_eq(turn, &self.turn)) {
            state.waiting.remove(at);
            state.counts.given_up += 1;
            return Left::Early;
        }
        drop(state);
        let handed = self
            .turn
            .try_get()
            .and_then(|slot| slot.lock().unwrap_or_else(PoisonError::into_inner).take());
        handed.map_or(Left::Closed, |buffer| Left::Got(self.pool.wrap(self.class, buffer)))
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        // What it has been given meanwhile goes back; after a `leave` there is nothing left.
        drop(self.leave());
    }
}

/// A buffer of a [`BulkPool`], which its holder has alone. Goes back when it is dropped.
///
/// ```
/// use margo::{Instance, bulk_memory::BulkPoolSpec};
///
/// let instance = Instance::builder("na+sm://").start()?;
/// let pool = instance.memory().bulk_pool(&BulkPoolSpec::new().class(4096, 1))?;
/// let mut buffer = pool.get(100)?;
/// assert_eq!(buffer.len(), 4096); // The size of its class.
/// buffer[..5].copy_from_slice(b"hello");
/// assert!(pool.try_get(100)?.is_none(), "it was the only one");
/// drop(buffer);
/// assert!(pool.try_get(100)?.is_some());
/// # instance.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Counterpart: what `margo_bulk_pool_get` gives, and `margo_bulk_pool_release` takes.
pub struct PooledBuffer {
    /// Some, until it is dropped.
    buffer: Option<BulkBuffer>,
    pool: Arc<[Class]>,
    class: usize,
}

// To its bytes, not to the `BulkBuffer`: who could put another one in its place would have the pool
// hand that out, of whatever length it is.
impl Deref for PooledBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.buffer.as_ref().expect("only `drop` takes it")
    }
}

impl DerefMut for PooledBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.buffer.as_mut().expect("only `drop` takes it")
    }
}

impl AsMut<[u8]> for PooledBuffer {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl LocalBulk for PooledBuffer {}

impl Registered for PooledBuffer {
    fn memory(&self) -> &LocalMem {
        self.buffer.as_ref().expect("only `drop` takes it").memory()
    }

    fn set_aside(&mut self, moved: &Range<usize>) {
        self.buffer.as_mut().expect("only `drop` takes it").set_aside(moved);
    }
}

impl Drop for PooledBuffer {
    fn drop(&mut self) {
        let Some(mut buffer) = self.buffer.take() else { return };
        // With its transfer, whose end came when nobody waited for it any more.
        let is_late = buffer.memory().may_be_written();
        if is_late && !buffer.replace(&(0..buffer.len())) {
            // Nobody may wait here; and to hand it out would be worse.
            let bytes = self.pool[self.class].bytes;
            return tracing::error!(
                "no memory for a buffer of {bytes} bytes in the place of one that a stopped peer \
                 may still write: its pool has one less from now on"
            );
        }
        self.pool[self.class].give_back(buffer);
    }
}

impl fmt::Debug for PooledBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PooledBuffer({} bytes)", self.pool[self.class].bytes)
    }
}

impl fmt::Debug for BulkPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.stats()).finish()
    }
}
