//! Spawning: a descriptor, a closure, a push.

use crate::base::priority::Priority;
use crate::base::unwind::Why;
use crate::engine::error::SpawnError;
use crate::engine::model::interfaces::{Access, PushReason};
use crate::engine::model::pool::{PoolSlot, bump};
use crate::engine::model::runtime_core::GatePass;
use crate::engine::model::unit::{OnMigrate, UltName, UltPtr, UltRef, UnitInit, UnitKind};
use crate::engine::model::waiter::{DETACHED, UNJOINED, Word};
use crate::engine::pool::handle::PoolRef;
use crate::engine::xstream::current;
use crate::engine::xstream::owner::Xstream;
use crate::engine::xstream::push::{push, push_open};
use crate::spawn::join::{Ended, JoinHandle};
use crate::stack::memory::StackClass;
use crate::stack::user::UserStack;
use crate::sync::Arc;
use crate::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use crate::trace::event::EventKind;

/// Describes a unit; see [`PoolRef::ult`] and [`PoolRef::tasklet`].
///
/// ```
/// # use ult::{PoolSpec, Runtime, XstreamSpec};
/// # let runtime = Runtime::builder()
/// #     .pool(PoolSpec::new("main"))
/// #     .xstream(XstreamSpec::new("x0").pools(["main"]))
/// #     .start()?;
/// # let pool = runtime.pool("main").expect("defined above");
/// let name = pool
///     .ult()
///     .name("worker")
///     .stack_bytes(32 * 1024)
///     .spawn(|| ult::current().and_then(|me| me.name))?
///     .join()?;
/// assert_eq!(name.as_deref(), Some("worker"));
/// // A unit without a stack, for code that never waits.
/// assert!(pool.tasklet().spawn(ult::is_tasklet)?.join()?);
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a builder does nothing until `spawn` is called"]
pub struct UltBuilder<'a> {
    pool: &'a PoolRef,
    kind: UnitKind,
    name: UltName,
    stack_bytes: Option<usize>,
    priority: Priority,
    rare: Option<Box<RareOptions>>,
}

/// Rarely used options.
#[derive(Default)]
struct RareOptions {
    stack: Option<UserStack>,
    on_migrate: Option<OnMigrate>,
}

/// Where a unit goes first.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Placement {
    /// Into its pool.
    Queue,
    /// Into the queue of its pool, where it may be stolen.
    Open,
    /// Nowhere: the caller switches to it, or makes a timer for it.
    Keep,
}

impl PoolRef {
    /// Spawns a ULT that runs `f`. May be called by ULTs of any runtime and by OS threads.
    ///
    /// `f` starts on an xstream that serves the pool, after the units that are queued before it,
    /// and stays there. Dropping the handle lets the ULT run on its own.
    ///
    /// # Errors
    ///
    /// See [`SpawnError`]; `f` has then been dropped.
    ///
    /// Counterpart: `ABT_thread_create`.
    #[inline]
    pub fn spawn<F, T>(&self, f: F) -> Result<JoinHandle<T>, SpawnError>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        self.ult().spawn(f)
    }

    /// Starts the description of a ULT with a name or a stack size of its own.
    #[inline]
    pub fn ult(&self) -> UltBuilder<'_> {
        UltBuilder::new(self, false)
    }

    /// Starts the description of a tasklet: a unit without a stack, which runs to its end on the
    /// stack of its xstream.
    ///
    /// It costs half of what a ULT costs. It may use every call of this crate, but where a ULT
    /// would suspend, a tasklet blocks its whole xstream; so use it for closures that never wait.
    ///
    /// Counterpart: `ABT_task_create`.
    #[inline]
    pub fn tasklet(&self) -> UltBuilder<'_> {
        UltBuilder::new(self, true)
    }
}

impl<'a> UltBuilder<'a> {
    #[inline]
    pub(crate) fn new(pool: &'a PoolRef, is_tasklet: bool) -> Self {
        let kind = if is_tasklet { UnitKind::Tasklet } else { UnitKind::Ult };
        Self {
            pool,
            kind,
            name: UltName::default(),
            stack_bytes: None,
            priority: Priority::Normal,
            rare: None,
        }
    }

    /// A name for messages. A literal or an `Arc<str>` costs no allocation.
    pub fn name(mut self, name: impl Into<UltName>) -> Self {
        self.name = name.into();
        self
    }

    /// Stack size in bytes, virtual; rounded up to whole pages, at least 16 KiB. Default: that of
    /// the pool. Without effect on a tasklet.
    pub fn stack_bytes(mut self, bytes: usize) -> Self {
        self.stack_bytes = Some(bytes);
        self
    }

    /// Sets the priority among units that wait to start, in a pool that knows priorities. Default:
    /// [`Priority::Normal`].
    #[inline]
    pub fn priority(mut self, priority: Priority) -> Self {
        self.priority = priority;
        self
    }

    /// Runs the ULT on this memory instead of a stack of the runtime. Without effect on a tasklet.
    ///
    /// Counterpart: `ABT_thread_attr_set_stack`.
    pub fn stack(mut self, stack: UserStack) -> Self {
        self.rare.get_or_insert_default().stack = Some(stack);
        self
    }

    /// Calls `f` with the name of the new pool whenever the unit has moved to another pool, before
    /// it runs there. `f` runs on the stack of an xstream and must not wait.
    ///
    /// Counterpart: `ABT_thread_set_callback`.
    pub fn on_migrate(mut self, f: impl FnMut(&str) + Send + 'static) -> Self {
        self.rare.get_or_insert_default().on_migrate = Some(Box::new(f));
        self
    }

    /// Spawns a unit that runs `f`.
    ///
    /// # Errors
    ///
    /// See [`SpawnError`]; `f` has then been dropped.
    ///
    /// Counterpart: `ABT_thread_create` with attributes, `ABT_task_create`.
    #[inline]
    pub fn spawn<F, T>(self, f: F) -> Result<JoinHandle<T>, SpawnError>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        // SAFETY: nothing is borrowed for less than 'static.
        unsafe { self.spawn_scoped(f) }
    }

    /// Spawns a unit that may borrow.
    ///
    /// # Safety
    ///
    /// What `F` and `T` borrow stays alive until the unit has ended and its outcome has been taken
    /// or dropped.
    #[inline]
    pub(crate) unsafe fn spawn_scoped<F, T>(self, f: F) -> Result<JoinHandle<T>, SpawnError>
    where
        F: FnOnce() -> T + Send,
        T: Send,
    {
        // SAFETY: duty of the caller.
        let ult = unsafe { self.make(f, Placement::Queue, UNJOINED) }?;
        // SAFETY:
        // - `f` returns a `T`; the only handle of the unit.
        Ok(unsafe { JoinHandle::new(UltRef::adopt(ult)) })
    }

    /// Spawns a unit that nobody will join. A panic in it is logged.
    ///
    /// # Errors
    ///
    /// See [`SpawnError`]; `f` has then been dropped.
    ///
    /// Counterpart: `ABT_thread_create` of an unnamed ULT.
    #[inline]
    pub fn spawn_detached<F>(self, f: F) -> Result<(), SpawnError>
    where
        F: FnOnce() + Send + 'static,
    {
        // SAFETY: nothing is borrowed for less than 'static.
        unsafe { self.make(f, Placement::Queue, DETACHED) }.map(drop)
    }

    /// Spawns a unit that nobody will join, and that may start in another pool: until an xstream of
    /// its own pool starts it, anybody may take it by [`PoolRef::steal`] and push it elsewhere,
    /// also while those xstreams are in the midst of other units. A panic in it is logged.
    ///
    /// It waits in the queue of its pool, where a lock is taken for each push and each pop, and not
    /// in the private list of the only xstream of a FIFO, which is faster: choose it for units that
    /// others wait before ([`PoolRef::has_backlog`]). Such a list and the queue take turns, each in
    /// its order. In pools that are no FIFOs it is as one of
    /// [`spawn_detached`](Self::spawn_detached).
    ///
    /// ```
    /// use ult::{PoolSpec, Runtime, XstreamSpec};
    ///
    /// let runtime = Runtime::builder()
    ///     .pool(PoolSpec::new("busy"))
    ///     .pool(PoolSpec::new("idle"))
    ///     .xstream(XstreamSpec::new("x0").pools(["busy"]))
    ///     .xstream(XstreamSpec::new("x1").pools(["idle"]))
    ///     .start()?;
    /// let [busy, idle] = ["busy", "idle"].map(|name| runtime.pool(name).expect("a pool"));
    /// busy.ult().spawn_stealable(|| println!("{:?}", ult::current()))?;
    /// if let Some(unit) = busy.steal() {
    ///     idle.push(unit).map_err(|(_, error)| error)?;
    /// }
    /// runtime.shutdown()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// See [`SpawnError`]; `f` has then been dropped.
    ///
    /// Counterpart: `ABT_thread_create` of an unnamed ULT into a pool that others pop from.
    pub fn spawn_stealable<F>(self, f: F) -> Result<(), SpawnError>
    where
        F: FnOnce() + Send + 'static,
    {
        // SAFETY: nothing is borrowed for less than 'static.
        unsafe { self.make(f, Placement::Open, DETACHED) }.map(drop)
    }

    /// Spawns a unit and switches to it at once; the caller goes back to its pool behind the
    /// others. The unit runs on the caller's xstream, whether or not that serves the pool.
    ///
    /// On an OS thread, in a tasklet, and in a destructor during unwinding, it is the same as
    /// [`spawn`](Self::spawn).
    ///
    /// # Errors
    ///
    /// See [`SpawnError`]; `f` has then been dropped.
    ///
    /// Counterpart: `ABT_thread_create_to`.
    pub fn spawn_to<F, T>(self, f: F) -> Result<JoinHandle<T>, SpawnError>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let is_here = current::xstream_in(&self.pool.core).is_some();
        let Some(me) = current::suspendable().filter(|_| is_here) else {
            return self.spawn(f);
        };
        // SAFETY: nothing is borrowed for less than 'static.
        let ult = unsafe { self.make(f, Placement::Keep, UNJOINED) }?;
        // SAFETY:
        // - `f` returns a `T`; the only handle of the unit.
        let handle = unsafe { JoinHandle::new(UltRef::adopt(ult)) };
        crate::wait::to::yield_to_ptr(me, ult);
        Ok(handle)
    }

    /// Spawns a ULT that may be resumed by any xstream that serves its pool.
    ///
    /// # Safety
    ///
    /// Whenever `f`, or what it calls, may suspend:
    ///
    /// - no reference to a thread-local value is alive, not even in a library that `f` calls, and
    ///   no code assumes that the thread before the suspension is the thread after it. The compiler
    ///   itself may keep the *address* of a thread-local across a call, so `f` should not use
    ///   thread-locals at all in functions that suspend;
    /// - no value that is not `Send` is alive on the stack (`Rc`, guards of `std` locks, and so
    ///   on).
    ///
    /// Values of [`UltLocal`](crate::UltLocal) are fine. While the ULT waits with a deadline it
    /// does not move.
    ///
    /// # Errors
    ///
    /// See [`SpawnError`]; `f` has then been dropped.
    ///
    /// Counterpart: every `ABT_thread` that has not been made non-migratable.
    pub unsafe fn spawn_migratable<F, T>(mut self, f: F) -> Result<JoinHandle<T>, SpawnError>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        if self.kind == UnitKind::Ult {
            self.kind = UnitKind::Migratable;
        }
        self.spawn(f)
    }

    /// The runtime of the pool.
    pub(crate) fn target_core(&self) -> &Arc<crate::engine::model::runtime_core::RuntimeCore> {
        &self.pool.core
    }

    /// The result is valid as long as the unit has not ended, or has a handle.
    ///
    /// All that knows the closure's type is to store it, so that a program with many closures has
    /// the rest of this once.
    ///
    /// # Safety
    ///
    /// See [`spawn_scoped`](Self::spawn_scoped).
    #[inline]
    pub(crate) unsafe fn make<F, T>(
        self,
        f: F,
        start: Placement,
        join: Word,
    ) -> Result<UltPtr, SpawnError>
    where
        F: FnOnce() -> T + Send,
        T: Send,
    {
        let pool = self.pool;
        if let Some((xstream, slot)) = owner_here(pool) {
            let ult = self.begin_as_owner(xstream, join)?;
            // SAFETY: duty of the caller.
            unsafe { ult.payload.set_closure(f) };
            queue_as_owner(ult, pool, xstream, slot, start);
            return Ok(ult);
        }
        let begun = self.begin_elsewhere(join)?;
        // SAFETY: duty of the caller.
        unsafe { begun.ult.payload.set_closure(f) };
        begun.queue(start)
    }

    /// The unit, without its closure, where `xstream` owns the pool.
    // Part of each spawn, but in builds with assertions, where it would be most of what programs
    // with many closures take to compile.
    #[cfg_attr(debug_assertions, inline(never))]
    #[cfg_attr(not(debug_assertions), inline)]
    fn begin_as_owner(self, xstream: &Xstream, join: Word) -> Result<UltPtr, SpawnError> {
        let taken = xstream.descriptors.take(&self.pool.core);
        let ult = taken.ok_or_else(|| no_memory(self.pool))?;
        self.init_unit(ult, xstream.next_id(), join);
        xstream.hand_on(ult);
        Ok(ult)
    }

    /// As [`begin_as_owner`](Self::begin_as_owner), where the caller does not own the pool.
    #[inline(never)]
    fn begin_elsewhere(self, join: Word) -> Result<Begun<'a>, SpawnError> {
        let target = self.pool;
        let core = &target.core;
        let here = current::xstream_in(core);
        let pass = pass(target, here)?;
        let taken = match here {
            Some(xstream) => xstream.descriptors.take(core),
            None => core.depot.take(core),
        };
        let ult = taken.ok_or_else(|| no_memory(target))?;
        let id = here.map_or_else(|| core.draw_ids(1), Xstream::next_id);
        self.init_unit(ult, id, join);
        crate::engine::unit::inherited::hand_on(ult);
        Ok(Begun { ult, target, here, _pass: pass })
    }

    /// Writes all that is known of the unit into its descriptor, but the closure.
    #[inline]
    fn init_unit(self, ult: UltPtr, id: u64, join: Word) {
        let pool = &*self.pool.pool;
        let class = match self.stack_bytes {
            None => pool.class,
            Some(bytes) => StackClass::new(bytes, pool.class.node()),
        };
        // SAFETY: it comes from a cache, or is new.
        unsafe { ult.prepare(UnitInit { id, pool, kind: self.kind, class, join }) };
        if self.name.as_str().is_some() {
            ult.set_name(self.name);
        }
        if self.priority != Priority::Normal {
            ult.set_priority(self.priority);
        }
        if let Some(rare) = self.rare {
            add_rare(ult, *rare);
        }
    }
}

/// The xstream of this thread, where it owns the pool and has not begun to close.
// Of the pool's runtime, then; and the pool has not been removed, and is not while a unit is made:
// its removal waits until the owner gives it up.
#[inline]
fn owner_here(pool: &PoolRef) -> Option<(&Xstream, &PoolSlot)> {
    let xstream = current::xstream().filter(|xstream| !xstream.closing.get())?;
    Some((xstream, xstream.own_slot(&pool.pool)?))
}

/// Counts a unit that has its closure and is of a pool that `xstream` owns, and queues it.
#[cfg_attr(debug_assertions, inline(never))]
#[cfg_attr(not(debug_assertions), inline)]
fn queue_as_owner(
    ult: UltPtr,
    pool: &PoolRef,
    xstream: &Xstream,
    slot: &PoolSlot,
    start: Placement,
) {
    bump(&slot.shared.created);
    xstream.on_event(ult, EventKind::Create);
    match start {
        Placement::Queue => xstream.push_own(ult, slot),
        Placement::Open => {
            ult.set_stealable();
            push_open(ult, &pool.pool, Some(xstream), PushReason::Create);
        }
        Placement::Keep => {}
    }
}

/// A unit of a pool that the caller does not own, before it is queued.
struct Begun<'a> {
    ult: UltPtr,
    target: &'a PoolRef,
    here: Option<&'a Xstream>,
    /// Until the unit has been queued.
    _pass: Option<GatePass<'a>>,
}

impl Begun<'_> {
    /// Counts the unit, which has its closure now, and queues it.
    #[inline(never)]
    fn queue(self, start: Placement) -> Result<UltPtr, SpawnError> {
        let Self { ult, target, here, _pass } = self;
        count_created(target, here).inspect_err(|_| {
            ult.payload.lose(Why::Lost);
            drop(UltRef::adopt(ult));
        })?;
        crate::engine::xstream::diag::created(ult, &target.core, here);
        match start {
            Placement::Queue => push(ult, &target.pool, here, PushReason::Create),
            Placement::Open => {
                ult.set_stealable();
                push_open(ult, &target.pool, here, PushReason::Create);
            }
            Placement::Keep => {}
        }
        Ok(ult)
    }
}

/// The error of a spawn into `target` for which there was no descriptor.
#[cold]
fn no_memory(target: &PoolRef) -> SpawnError {
    SpawnError::NoMemory { pool: target.name().to_owned() }
}

/// Lets the caller, which does not own the pool, spawn into `target` now, or refuses. The pass must
/// live until the unit has been queued.
fn pass<'a>(
    target: &'a PoolRef,
    here: Option<&Xstream>,
) -> Result<Option<GatePass<'a>>, SpawnError> {
    debug_assert!(
        target.access() != Access::Private
            || here.is_some_and(|here| here.owns(&target.pool) || here.serves_alone(&target.pool)),
        "pool `{}` is private to its xstream: spawn from there, or define it as mpsc",
        target.name()
    );
    let pass = match here {
        Some(xstream) => (!xstream.closing.get()).then_some(None),
        None => target.core.enter_gate().map(Some),
    };
    match pass {
        Some(pass) if !target.pool.removed.load(Acquire) => Ok(pass),
        Some(_) => Err(SpawnError::Removed { pool: target.name().to_owned() }),
        None => Err(SpawnError::ShutDown { pool: target.name().to_owned() }),
    }
}

/// Counts a unit that is about to be queued. An error if the pool has been removed; the unit then
/// counts as dropped, and is still the caller's.
fn count_created(target: &PoolRef, here: Option<&Xstream>) -> Result<(), SpawnError> {
    let pool = &*target.pool;
    match here.and_then(|xstream| xstream.slot_of(pool)) {
        Some(slot) => bump(&slot.shared.created),
        None => {
            pool.foreign.0.created.fetch_add(1, Relaxed);
        }
    }
    // A pool that has an owner has not been removed, as in `make`.
    if here.is_some_and(|xstream| xstream.owns(pool)) {
        return Ok(());
    }
    if pool.outlives_removal() {
        return Ok(());
    }
    pool.dropped.fetch_add(1, Release); // pair: POOL-ENDED
    target.core.tell_news();
    Err(SpawnError::Removed { pool: target.name().to_owned() })
}

impl Ended {
    /// Starts the unit again in `pool` with another closure. It keeps its number, its name and its
    /// stack size, and is a tasklet if it was one.
    ///
    /// # Errors
    ///
    /// See [`SpawnError`]; `f` and the unit have then been dropped.
    ///
    /// Counterpart: `ABT_thread_revive`, `ABT_task_revive`.
    pub fn revive<F, T>(self, pool: &PoolRef, f: F) -> Result<JoinHandle<T>, SpawnError>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let ult = self.0.ptr();
        if !Arc::ptr_eq(&ult.core, &pool.core) {
            return Err(SpawnError::OtherRuntime { pool: pool.name().to_owned() });
        }
        let here = current::xstream_in(&pool.core);
        let _pass = pass(pool, here)?;
        count_created(pool, here)?;
        ult.rearm(&pool.pool);
        // SAFETY: nothing is borrowed for less than 'static.
        unsafe { ult.payload.set_closure(f) };
        crate::engine::unit::inherited::hand_on(ult);
        crate::engine::xstream::diag::created(ult, &pool.core, here);
        push(ult, &pool.pool, here, PushReason::Create);
        // SAFETY:
        // - `f` returns a `T`; the only handle of the unit.
        Ok(unsafe { JoinHandle::new(self.0) })
    }
}

#[cold]
fn add_rare(ult: UltPtr, rare: RareOptions) {
    if let Some(stack) = &rare.stack
        && !ult.is_tasklet()
    {
        ult.class.set(StackClass::of_user(stack.bytes()));
    }
    ult.with_extra(|extra| {
        extra.stack = rare.stack;
        extra.on_migrate = rare.on_migrate;
    });
}

impl std::fmt::Debug for UltBuilder<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UltBuilder")
            .field("pool", &self.pool)
            .field("kind", &self.kind)
            .field("name", &self.name)
            .field("stack_bytes", &self.stack_bytes)
            .finish_non_exhaustive()
    }
}
