//! Providers with an object for each shard, which only that shard touches.
//!
//! The object of a part is made, used and dropped on one OS thread, so that it needs neither locks
//! nor atomics: a started ULT never changes its thread, and whoever asks for the object on another
//! thread does not get it. A request that names a part goes to the pool of that part's shard
//! (`dispatch/admit.rs`).
//!
//! | state | touched by |
//! |---|---|
//! | `HomePart::object` | the thread with the number `home`, and nobody after that one has dropped it |
//! | `home` | written before others see the part |

use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use hg::{ProviderId, ReturnCode};
use na::shared::Shared;
use serde::Serialize;
use serde::de::DeserializeOwned;
use ult::{JoinError, PoolRef, Runtime, SpawnError};

use crate::origin::sharded_handle::PARTS;
use crate::serving::shard_place::ShardPlace;
use crate::support::parts::PARTS_MAX;
use crate::support::thread_number::thread_number;
use crate::{Handle, Instance, Provider, RegisterError, Serve};

/// The objects of a sharded provider, one for each part. From [`Instance::sharded_provider`].
///
/// The object of part *k* lives on the execution stream of shard *k*: it is made and dropped there,
/// and may be what no other thread may see (`Rc`, `Cell`). Handlers that find it
/// ([`Serve::part_function`], [`here`](Self::here)) run one at a time but for their waits: where
/// one suspends, another one may begin, so what is borrowed from a `RefCell` over a wait makes the
/// next handler panic that borrows it. A [`Handle`] may go to other ULTs and threads, the object
/// cannot.
///
/// ```
/// use std::cell::Cell;
///
/// use margo::ProviderId;
///
/// let service = margo::init(r#"{ "margo": { "address": "na+sm://", "shards": 2 } }"#)?;
/// let provider = service.sharded_provider(ProviderId::new(1), |_| Cell::new(0))?;
/// let counters = provider.object();
/// counters.with(1, |count| count.set(count.get() + 1))?;
/// assert_eq!(counters.gather(Cell::get)?, [0, 1]);
/// assert!(counters.here().is_none(), "this thread is no shard");
/// # drop(provider);
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Sharded<T: 'static> {
    parts: Box<[HomePart<T>]>,
}

/// The object of one part.
struct HomePart<T: 'static> {
    pool: PoolRef,
    /// The number of the only thread that touches the object. Never 0.
    home: u64,
    object: ManuallyDrop<Box<T>>,
}

// SAFETY: a part that is on another thread than `home` gives nobody its object: `Sharded::here`
// compares the numbers of the threads, which are never used again, and `Drop` has it dropped on
// `home`, or not at all. The pointer to it, the number and the pool may be anywhere.
unsafe impl<T> Send for HomePart<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for HomePart<T> {}

/// The reason why a provider has no object for each shard.
///
/// ```
/// use margo::{Instance, ProviderId, sharded::ShardedError};
///
/// let service = Instance::builder("na+sm://").start()?;
/// let counters = service.sharded_provider(ProviderId::new(1), |_| 0)?;
/// match counters.object().with(7, |count| *count) {
///     Ok(count) => println!("{count}"),
///     Err(ShardedError::NoSuchPart { part, parts }) => assert_eq!((part, parts), (7, 1)),
///     Err(error) => println!("{error}"),
/// }
/// # drop(counters);
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShardedError {
    /// Handlers run in another pool than those of the shards: `rpc_pool`, `rpc_thread_count` or
    /// `use_progress_thread` say so. Leave these out.
    #[error(
        "handlers run in pool `{pool}`, and not in the pools of the shards: leave out `rpc_pool`, \
         `rpc_thread_count` and `use_progress_thread`"
    )]
    OtherPool {
        /// The pool of handlers.
        pool: String,
    },
    /// The pool of a shard is not run by exactly one execution stream, so that its handlers would
    /// not all be on one thread.
    #[error(
        "pool `{pool}` is run by {} ({}): the pool of a shard with an object of its own needs \
         exactly one",
        count(.xstreams.len()),
        .xstreams.join(", ")
    )]
    NotAlone {
        /// The pool.
        pool: String,
        /// Names of the execution streams that run it.
        xstreams: Vec<String>,
    },
    /// No ULT could be made that makes, or looks at, the object.
    #[error("no ULT in pool `{pool}`: {source}")]
    Spawn {
        /// The pool.
        pool: String,
        /// The reason of the runtime.
        source: SpawnError,
    },
    /// The object of a part could not be made or looked at: that code has panicked, or its ULT was
    /// cancelled.
    #[error("part {part}: {source}")]
    Ended {
        /// The part.
        part: usize,
        /// How its ULT ended.
        source: JoinError,
    },
    /// There is no such part.
    #[error("there is no part {part}: the provider has {parts}")]
    NoSuchPart {
        /// The part that was asked for.
        part: usize,
        /// How many there are.
        parts: usize,
    },
    /// The execution stream of the part's shard was removed, or others run its pool, too.
    #[error("part {part} is not reached in pool `{pool}`: another execution stream runs it")]
    Away {
        /// The part.
        part: usize,
        /// The pool of its shard.
        pool: String,
    },
    /// The RPC that tells the number of parts was not registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
}

fn count(xstreams: usize) -> String {
    match xstreams {
        0 => "no execution stream".to_owned(),
        count => format!("{count} execution streams"),
    }
}

impl Instance {
    /// Makes a provider with an object for each shard: `make` is called once for each, on a ULT in
    /// the pool of that shard, with its place: the number of the shard, which is that of the part,
    /// and where it is on the machine. Without `margo.shards` there is one part; and none for
    /// shards from the first one on that [was
    /// removed](crate::groups::InstanceLayout::remove_shard).
    ///
    /// Handlers that are registered with [`Serve::part_function`] or [`Serve::part_method`] get the
    /// object of the shard that they run at. Clients share out their keys among the parts with a
    /// [`ShardedHandle`](crate::sharded::ShardedHandle). A request that names no part is handled
    /// where it arrives.
    ///
    /// ```
    /// use std::cell::RefCell;
    /// use std::collections::HashMap;
    ///
    /// use margo::{ProviderHandle, ProviderId, Rpc};
    ///
    /// const PUT: Rpc<(String, u64), ()> = Rpc::new("kv_put");
    /// const GET: Rpc<String, Option<u64>> = Rpc::new("kv_get");
    ///
    /// let service = margo::init(r#"{ "margo": { "address": "na+sm://", "shards": 2 } }"#)?;
    /// let id = ProviderId::new(7);
    /// let kv = service.sharded_provider(id, |_| RefCell::new(HashMap::new()))?;
    /// kv.serve(PUT).part_function(|store, (key, value)| {
    ///     store.borrow_mut().insert(key, value);
    /// })?;
    /// kv.serve(GET).part_function(|store, key| store.borrow().get(&key).copied())?;
    ///
    /// let client = margo::init(r#"{ "margo": { "address": "na+sm://", "listen": false } }"#)?;
    /// let target = ProviderHandle::new(client.lookup(service.self_addr().uri())?, id);
    /// let kv_there = client.sharded_handle(&target)?;
    /// client.forward(PUT, kv_there.for_key("answer"), &("answer".to_owned(), 42))?;
    /// let answer = client.forward(GET, kv_there.for_key("answer"), &"answer".to_owned())?;
    /// assert_eq!(answer, Some(42));
    ///
    /// // At the service: on all parts, or on one.
    /// let count = kv.object().gather(|store| store.borrow().len())?;
    /// assert_eq!(count.iter().sum::<usize>(), 1);
    /// # client.finalize_and_wait()?;
    /// # drop(kv);
    /// # service.finalize_and_wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// The objects are dropped where they were made, after the last handler that has them; an
    /// object whose execution stream was removed before is leaked, with a warning.
    ///
    /// # Errors
    ///
    /// [`ShardedError`]; the objects that were made are dropped then.
    ///
    /// Counterpart: none; the closest is a provider for each of several instances.
    pub fn sharded_provider<T: 'static>(
        &self,
        id: ProviderId,
        make: impl Fn(&ShardPlace) -> T + Send + Sync + 'static,
    ) -> Result<Provider<Sharded<T>>, ShardedError> {
        let inner = self.inner();
        let pools = match inner.shard_pools() {
            // A part has the number of its shard.
            Some(mut pools) => {
                pools.truncate(inner.shards.iter().take_while(|one| !one.is_removed()).count());
                pools
            }
            None if inner.shards.are_several() => {
                return Err(ShardedError::OtherPool {
                    pool: self.layout().rpc_pool().name().to_owned(),
                });
            }
            None => vec![self.layout().rpc_pool()],
        };
        debug_assert!(pools.len() <= PARTS_MAX, "shards have a bound");
        let sharded = Sharded::make(&pools, &inner.runtime, Arc::new(make))?;
        let provider = self.provider_of(id, &pools[0], sharded).of_parts(pools.len() as u8);
        let count = pools.len() as u32;
        provider.serve(PARTS).function(move |()| count)?;
        Ok(provider)
    }
}

impl<T: 'static> Sharded<T> {
    fn make(
        pools: &[PoolRef],
        runtime: &Runtime,
        make: Arc<impl Fn(&ShardPlace) -> T + Send + Sync + 'static>,
    ) -> Result<Self, ShardedError> {
        for pool in pools {
            let xstreams = pool.xstreams();
            if xstreams.len() != 1 {
                return Err(ShardedError::NotAlone { pool: pool.name().to_owned(), xstreams });
            }
        }
        let begin = |(part, pool): (usize, &PoolRef)| {
            let (make, own) = (make.clone(), pool.clone());
            let place = ShardPlace::of(part, pools.len(), pool, runtime);
            let made = pool.spawn(move || {
                let object = ManuallyDrop::new(Box::new(make(&place)));
                HomePart { pool: own, home: thread_number(), object }
            });
            made.map_err(|source| ShardedError::Spawn { pool: pool.name().to_owned(), source })
        };
        let begun: Vec<_> = pools.iter().enumerate().map(begin).collect();
        let end = |(part, begun): (usize, Result<ult::JoinHandle<HomePart<T>>, _>)| {
            begun?.join().map_err(|source| ShardedError::Ended { part, source })
        };
        // All of them end before the first error is told, so that nothing is made later.
        let made: Vec<_> = begun.into_iter().enumerate().map(end).collect();
        Ok(Self { parts: made.into_iter().collect::<Result<_, _>>()? })
    }

    /// Returns how many parts there are.
    pub fn parts(&self) -> usize {
        self.parts.len()
    }

    /// Returns the object of the shard whose execution stream the caller is on; `None`: it is on
    /// another thread.
    pub fn here(&self) -> Option<&T> {
        let own = thread_number();
        let part = self.parts.iter().find(|part| part.home == own)?;
        Some(&part.object)
    }

    /// Runs `work` on the object of a part, on a ULT of its shard, and waits for its result; at
    /// once, if the caller is there.
    ///
    /// # Errors
    ///
    /// [`ShardedError`]: `NoSuchPart`, `Away`, `Spawn`, or `Ended` if `work` has panicked.
    pub fn with<R: Send + 'static>(
        self: &Arc<Self>,
        part: usize,
        work: impl FnOnce(&T) -> R + Send + 'static,
    ) -> Result<R, ShardedError> {
        let parts = self.parts();
        let Some(there) = self.parts.get(part) else {
            return Err(ShardedError::NoSuchPart { part, parts });
        };
        if there.home == thread_number() {
            return Ok(work(&there.object));
        }
        self.begin(part, work)?.join().map_err(|source| ShardedError::Ended { part, source })?
    }

    /// Runs `work` on the object of each part, at the same time, and returns what it has returned,
    /// in the order of the parts.
    ///
    /// # Errors
    ///
    /// As [`with`](Self::with), of the first part that has one; `work` has ended everywhere then.
    pub fn gather<R: Send + 'static>(
        self: &Arc<Self>,
        work: impl Fn(&T) -> R + Send + Sync + 'static,
    ) -> Result<Vec<R>, ShardedError> {
        let work = Arc::new(work);
        let begin = |part| {
            let work = work.clone();
            self.begin(part, move |object: &T| work(object))
        };
        let begun: Vec<_> = (0..self.parts()).map(begin).collect();
        let end = |(part, begun): (usize, Result<ult::JoinHandle<Result<R, _>>, _>)| {
            begun?.join().map_err(|source| ShardedError::Ended { part, source })?
        };
        let ended: Vec<_> = begun.into_iter().enumerate().map(end).collect();
        ended.into_iter().collect()
    }

    fn begin<R: Send + 'static>(
        self: &Arc<Self>,
        part: usize,
        work: impl FnOnce(&T) -> R + Send + 'static,
    ) -> Result<ult::JoinHandle<Result<R, ShardedError>>, ShardedError> {
        let (own, pool) = (self.clone(), &self.parts[part].pool);
        let begun = pool.spawn(move || {
            let there = &own.parts[part];
            match there.home == thread_number() {
                true => Ok(work(&there.object)),
                false => Err(ShardedError::Away { part, pool: there.pool.name().to_owned() }),
            }
        });
        begun.map_err(|source| ShardedError::Spawn { pool: pool.name().to_owned(), source })
    }
}

impl<T: 'static> Drop for HomePart<T> {
    fn drop(&mut self) {
        // SAFETY: `object` is not used after this, as `self` is being dropped.
        let object = unsafe { ManuallyDrop::take(&mut self.object) };
        let leaving = Leaving { home: self.home, object: ManuallyDrop::new(object) };
        if self.home == thread_number() {
            return drop(leaving);
        }
        // If no ULT can be made, the closure is dropped here, and the object is leaked.
        let _ = self.pool.ult().spawn_detached(move || drop(leaving));
    }
}

/// An object that is on its way home, to be dropped there.
struct Leaving<T: 'static> {
    home: u64,
    object: ManuallyDrop<Box<T>>,
}

// SAFETY: as for `HomePart`: it is dropped on `home`, or not at all.
unsafe impl<T> Send for Leaving<T> {}

impl<T> Drop for Leaving<T> {
    fn drop(&mut self) {
        if self.home == thread_number() {
            // SAFETY: once, as `self` is being dropped; on the thread where it was made.
            unsafe { ManuallyDrop::drop(&mut self.object) };
        } else {
            tracing::tell(|| {
                tracing::warn!("an object of a sharded provider is leaked: its thread has ended");
            });
        }
    }
}

impl<T> fmt::Debug for Sharded<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sharded({} parts)", self.parts.len())
    }
}

impl<A, R, T> Serve<'_, A, R, Sharded<T>>
where
    A: DeserializeOwned + 'static,
    R: Serialize + 'static,
    T: 'static,
{
    /// Serves with a function of the object of the part and the arguments, whose return value is
    /// the answer. The request is refused ([`ForwardError::Failed`](crate::ForwardError::Failed))
    /// if the pool has another execution stream than that of the object.
    ///
    /// # Errors
    ///
    /// [`RegisterError`].
    pub fn part_function<F>(self, function: F) -> Result<(), RegisterError>
    where
        F: Fn(&T, A) -> R + Send + Sync + 'static,
    {
        let objects = self.object().clone();
        self.run(move |reply, args| match objects.here() {
            Some(object) => reply.returned(&function(object, args)),
            None => _ = reply.fail(ReturnCode::OtherError, AWAY),
        })
    }

    /// As [`part_function`](Self::part_function), with a borrowed [`Handle`] in place of the
    /// arguments, for bulk transfers and nested calls.
    ///
    /// # Errors
    ///
    /// [`RegisterError`].
    pub fn part_method<F>(self, handler: F) -> Result<(), RegisterError>
    where
        F: Fn(&T, &Handle<A, R>) -> R + Send + Sync + 'static,
    {
        let objects = self.object().clone();
        self.run(move |reply, args| match objects.here() {
            Some(object) => {
                let handle = Handle::new(args, Shared::clone_sole(reply));
                let result = handler(object, &handle);
                reply.returned(&result);
            }
            None => _ = reply.fail(ReturnCode::OtherError, AWAY),
        })
    }
}

/// Why a request is refused.
const AWAY: &str = "its part is not on this execution stream: others run the pool of its shard";
