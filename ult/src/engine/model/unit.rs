//! The descriptor of a unit (ULT or tasklet): its state, its closure and later its result.
//!
//! A descriptor is small, and made without a stack: a ULT gets one when it first runs
//! ([`stack::cache`](crate::stack::cache)), a tasklet never does. So units that wait to
//! start cost some hundred bytes each, and the ULTs of an xstream that come and go share a few warm
//! stacks.
//!
//! # Who may touch what
//!
//! | state | who |
//! |---|---|
//! | `link` | the queue that holds the unit (inbox, unit list) |
//! | `cell`, `token`, `woken`, `join`, `refs`, `requests` | anybody who keeps it alive; atomics with their own protocol |
//! | `home` | written by the home xstream at first start (and at the end); read by resumers |
//! | `pool`, `id`, `name`, `kind`, `class` | written by the spawner; constant until the end (`pool`: by whoever holds the unit) |
//! | `slot`, `block`, `pushes`, `pins`, `extra`, `inherited`, `party` | the home xstream and the ULT itself |
//! | `waits` | the ULT itself; read by its home xstream |
//! | `waits_since` | its home xstream |
//! | `payload` | one party at a time, see [`payload`](crate::base::payload) |
//!
//! # Life
//!
//! A unit is kept alive by its runtime until it ends and by its `JoinHandle` until that is gone:
//! the join word tells which of the two comes second ([`join`](mod@crate::spawn::join)), and no
//! count is needed. On top of that `refs` counts the `Unparker`s and wakers in flight, plus one for
//! the two above together. The party that takes it to zero recycles the descriptor. The descriptor
//! keeps the runtime's shared part alive (`core`), which a waker touches after the push.

use std::borrow::Cow;
use std::cell::Cell;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr::{self, NonNull};
use std::time::Instant;

use crate::base::inbox::Linked;
use crate::base::payload::Payload;
use crate::base::priority::Priority;
use crate::base::suspend::SuspendCell;
use crate::base::timer_state::TimerState;
use crate::base::values::{Locals, Values};
use crate::base::wait_kind::WaitKind;
use crate::engine::model::pool::{PoolShared, PoolSlot};
use crate::engine::model::runtime_core::{RuntimeCore, SlabPtr};
use crate::engine::model::waiter::{JoinWord, UNJOINED, Word};
use crate::engine::model::xstream_shared::XstreamShared;
use crate::stack::block::{BlockPtr, StackBlock};
use crate::stack::memory::StackClass;
use crate::stack::user::UserStack;
use crate::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use crate::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicUsize, fence};
use crate::sync::{Arc, UnsafeCell, lock};

/// The kind of a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UnitKind {
    /// Has a stack of its own once it runs, and stays where it started.
    Ult,
    /// A ULT that may be resumed by another xstream.
    Migratable,
    /// Runs to its end on the stack of its caller.
    Tasklet,
}

/// Asked to end.
pub(crate) const CANCEL: u8 = 1;
/// Asked to go to another pool; see [`change_pool`](crate::engine::xstream::change_pool).
pub(crate) const MIGRATE: u8 = 2;
/// Waits for a time before it starts; see [`timed_unit`](crate::time::timed_unit).
pub(crate) const TIMED: u8 = 4;

/// The descriptor. See the module documentation.
///
/// What every unit touches is in the first two cache lines, the rare rest behind the buffer of the
/// payload: units come and go by the hundred, and each line more that they touch shows.
#[repr(C, align(64))]
pub(crate) struct Ult {
    link: AtomicPtr<Ult>,
    pub(crate) home: AtomicPtr<XstreamShared>,
    pub(crate) slot: Cell<*const PoolSlot>,
    block: Cell<*const StackBlock>,
    pub(crate) join: JoinWord,
    refs: AtomicUsize,
    pool: Cell<*const PoolShared>,
    pub(crate) state: UnitState,

    pub(crate) id: Cell<u64>,
    pub(crate) class: Cell<StackClass>,
    /// Counted by the slab for all its descriptors.
    pub(crate) core: ManuallyDrop<Arc<RuntimeCore>>,
    /// See [`inherited`](crate::engine::unit::inherited).
    pub(crate) inherited: Cell<u64>,
    pub(crate) payload: Payload,

    name: UnsafeCell<UltName>,
    extra: UnsafeCell<Option<Box<RareFields>>>,
    /// Since which tick of the monitor it waits.
    pub(crate) waits_since: Cell<u64>,
    /// See [`party`](crate::wait::party); zero until it is asked for.
    party: Cell<u64>,
    pub(crate) pins: Cell<u32>,
    /// A future that the ULT polls has been woken; see [`block_on`](mod@crate::wait::block_on).
    /// A mark that an earlier unit has left costs one poll too many, and nothing else.
    pub(crate) woken: AtomicBool,
    slab: SlabPtr,
}

// SAFETY: the fields that are not atomic have one user at a time; the table above says who, and
// pushes and pops of the queues, the suspend cell, `join` and `refs` order one user after another.
unsafe impl Sync for Ult {}

// SAFETY: `link` is one field of the descriptor, and only the queue that holds it writes it.
unsafe impl Linked for Ult {
    #[inline]
    fn link(&self) -> &AtomicPtr<Self> {
        &self.link
    }
}

/// The small fields, together so that a new unit sets them with one store.
#[repr(C, align(8))]
pub(crate) struct UnitState {
    pub(crate) cell: SuspendCell,
    pub(crate) token: AtomicBool,
    requests: AtomicU8,
    kind: Cell<UnitKind>,
    /// It has a name, an extra or a party number.
    rare: Cell<bool>,
    /// The kind of the ULT's wait.
    pub(crate) waits: Cell<WaitKind>,
    /// The [`Priority`] in the upper two bits, below them `STEALABLE`, and how often the unit has
    /// been put back into a pool with an order of its own.
    pushes: Cell<u16>,
}

/// The part of [`UnitState::pushes`] that counts.
const PUSHES: u16 = u16::MAX >> 3;
/// The bit of it that says that the unit may be stolen before it starts.
const STEALABLE: u16 = 1 << 13;
/// Where the priority begins.
const PRIORITY_SHIFT: u32 = 14;

impl UnitState {
    #[inline]
    fn new(kind: UnitKind) -> Self {
        Self {
            cell: SuspendCell::new(),
            token: AtomicBool::new(false),
            requests: AtomicU8::new(0),
            kind: Cell::new(kind),
            rare: Cell::new(false),
            waits: Cell::new(WaitKind::Park),
            pushes: Cell::new(0),
        }
    }

    /// Makes the state as new.
    ///
    /// # Safety
    ///
    /// The caller owns the descriptor, and nobody else keeps it.
    #[inline]
    unsafe fn reset(&self, kind: UnitKind) {
        // SAFETY:
        // - mutable behind a shared reference: every field is an atomic or a cell;
        // - exclusive: duty of the caller.
        unsafe { ptr::from_ref(self).cast_mut().write(Self::new(kind)) };
    }
}

/// The properties of a unit that its spawner chooses.
#[derive(Debug)]
pub(crate) struct UnitInit<'a> {
    pub(crate) id: u64,
    pub(crate) pool: &'a PoolShared,
    pub(crate) kind: UnitKind,
    pub(crate) class: StackClass,
    pub(crate) join: Word,
}

impl Ult {
    /// A descriptor without a unit. `core` is the count of `slab`.
    pub(crate) fn new(core: ManuallyDrop<Arc<RuntimeCore>>, slab: SlabPtr) -> Self {
        Self {
            link: AtomicPtr::new(ptr::null_mut()),
            home: AtomicPtr::new(ptr::null_mut()),
            slot: Cell::new(ptr::null()),
            block: Cell::new(ptr::null()),
            join: JoinWord::new(),
            refs: AtomicUsize::new(1),
            pool: Cell::new(ptr::null()),
            state: UnitState::new(UnitKind::Ult),
            id: Cell::new(0),
            class: Cell::new(StackClass::NONE),
            extra: UnsafeCell::new(None),
            inherited: Cell::new(0),
            payload: Payload::new(),
            name: UnsafeCell::new(UltName(NameRepr::None)),
            core,
            waits_since: Cell::new(0),
            party: Cell::new(0),
            pins: Cell::new(0),
            woken: AtomicBool::new(false),
            slab,
        }
    }

    /// The slab that it is part of.
    pub(crate) fn slab(&self) -> SlabPtr {
        self.slab
    }

    /// The pool that the unit belongs to: where it was spawned, or has been moved to since.
    #[inline]
    pub(crate) fn pool(&self) -> &PoolShared {
        // SAFETY:
        // - valid: set before the unit was first queued; pools live as long as `core`, which this
        //   descriptor keeps alive.
        unsafe { &*self.pool.get() }
    }

    /// Moves it to another pool of the same runtime. The caller holds the unit.
    pub(crate) fn set_pool(&self, pool: &PoolShared) {
        self.pool.set(pool);
    }

    /// The name given at spawn.
    pub(crate) fn name(&self) -> Option<&str> {
        // SAFETY:
        // - no writer: the name changes only when nobody else keeps the descriptor (`prepare`).
        self.name.with(|name| unsafe { &*name }).as_str()
    }

    /// The name given at spawn, if it is a literal.
    pub(crate) fn literal_name(&self) -> Option<&'static str> {
        // SAFETY: as in `name`.
        match &self.name.with(|name| unsafe { &*name }).0 {
            NameRepr::Static(name) => Some(name),
            NameRepr::None | NameRepr::Shared(_) => None,
        }
    }

    #[inline]
    pub(crate) fn kind(&self) -> UnitKind {
        self.state.kind.get()
    }

    /// Returns whether it runs to its end without a stack of its own.
    #[inline]
    pub(crate) fn is_tasklet(&self) -> bool {
        self.state.kind.get() == UnitKind::Tasklet
    }

    /// Returns whether it is a tasklet without requests.
    #[inline]
    pub(crate) fn is_plain_tasklet(&self) -> bool {
        self.is_tasklet() && !self.has_requests()
    }

    /// Returns whether it is an ordinary ULT that has not started, without requests.
    #[inline]
    pub(crate) fn is_plain_fresh(&self) -> bool {
        self.kind() == UnitKind::Ult && !self.has_requests() && self.home.load(Relaxed).is_null()
    }

    /// Returns whether [`clear`](Self::clear) has something to do.
    #[inline]
    pub(crate) fn leaves_much(&self) -> bool {
        self.state.rare.get() || self.has_requests()
    }

    /// Returns whether it may be resumed elsewhere, now.
    #[inline]
    pub(crate) fn may_move(&self) -> bool {
        self.state.kind.get() == UnitKind::Migratable && self.pins.get() == 0
    }

    /// The stack it runs on; none before it started, and for tasklets.
    #[inline]
    pub(crate) fn block(&self) -> Option<BlockPtr> {
        // SAFETY:
        // - alive: set at the first start, and cleared before the stack is given back.
        unsafe { BlockPtr::from_ptr(self.block.get()) }
    }

    #[inline]
    pub(crate) fn set_block(&self, block: Option<BlockPtr>) {
        self.block.set(block.map_or(ptr::null(), BlockPtr::as_ptr));
    }

    /// Returns whether any request is there. For the fast path.
    #[inline]
    pub(crate) fn has_requests(&self) -> bool {
        self.state.requests.load(Relaxed) != 0
    }

    /// Returns whether all bits of `request` have been asked for.
    #[inline]
    pub(crate) fn is_requested(&self, request: u8) -> bool {
        self.state.requests.load(Acquire) & request == request // pair: ULT-REQUEST
    }

    pub(crate) fn request(&self, request: u8) {
        self.state.requests.fetch_or(request, Release); // pair: ULT-REQUEST
    }

    pub(crate) fn take_request(&self, request: u8) -> bool {
        self.state.requests.fetch_and(!request, Acquire) & request != 0 // pair: ULT-REQUEST
    }

    /// Forgets a request to move that the unit did not live to see. The caller is the unit, or
    /// holds it.
    #[cold]
    pub(crate) fn forget_move(&self) {
        if self.take_request(MIGRATE) {
            lock(&self.core.migrations).remove(&ptr::from_ref(self).addr());
        }
    }

    /// Returns the kind of wait of a ULT whose home is the caller's xstream; none if it does not
    /// wait.
    pub(crate) fn waits_for(&self) -> Option<WaitKind> {
        self.state.cell.is_parked().then(|| self.state.waits.get())
    }

    /// Stores the token; the ULT must then be resumed.
    pub(crate) fn leave_token(&self) {
        // A plain store would hide what an earlier giver wrote, whose token it replaces.
        let _ = self.state.token.swap(true, Release); // pair: ULT-TOKEN
    }

    /// Takes the token. The caller is the ULT.
    pub(crate) fn take_token(&self) -> bool {
        // pair: ULT-TOKEN
        self.state.token.load(Relaxed) && self.state.token.swap(false, Acquire)
    }

    /// The rarely used part, made when first asked for. The caller is the ULT itself, or holds the
    /// unit.
    pub(crate) fn with_extra<R>(&self, f: impl FnOnce(&mut RareFields) -> R) -> R {
        self.extra.with_mut(|extra| {
            // SAFETY:
            // - no alias: duty of the caller; `f` cannot get here again, since it has no way to
            //   suspend or to name the unit.
            let extra = unsafe { &mut *extra };
            self.state.rare.set(true);
            f(extra.get_or_insert_default())
        })
    }

    /// The rarely used part, if there is one. The caller as above.
    pub(crate) fn take_extra(&self) -> Option<Box<RareFields>> {
        // SAFETY:
        // - no alias: duty of the caller.
        self.extra.with_mut(|extra| unsafe { &mut *extra }.take())
    }

    /// The number of the unit, which is the caller, as a party; `draw` makes one if it has none.
    pub(crate) fn party(&self, draw: impl FnOnce() -> u64) -> u64 {
        if self.party.get() == 0 {
            self.state.rare.set(true);
            self.party.set(draw());
        }
        self.party.get()
    }

    /// Returns whether it has a name, a rarely used part or a party number. The caller as above.
    #[inline]
    pub(crate) fn is_rare(&self) -> bool {
        self.state.rare.get()
    }

    /// Returns whether there is a rarely used part. The caller as above.
    #[inline]
    pub(crate) fn has_extra(&self) -> bool {
        // SAFETY:
        // - no writer: duty of the caller.
        self.is_rare() && self.extra.with(|extra| unsafe { &*extra }.is_some())
    }

    /// Makes the descriptor ready for a new unit.
    ///
    /// # Safety
    ///
    /// The caller owns the descriptor, and nobody else keeps it.
    #[inline]
    pub(crate) unsafe fn prepare(&self, birth: UnitInit<'_>) {
        // `home`, `block`, `pins`, `party`, name, extra and the count of one are as a unit leaves
        // them.
        self.join.reset(birth.join);
        self.pool.set(birth.pool);
        self.id.set(birth.id);
        self.class.set(birth.class);
        // SAFETY: duty of the caller.
        unsafe { self.state.reset(birth.kind) };
    }

    /// Gives the unit its name. The caller owns the descriptor, and the unit has none yet.
    pub(crate) fn set_name(&self, name: UltName) {
        self.state.rare.set(true);
        // SAFETY:
        // - exclusive: the caller owns the descriptor.
        self.name.with_mut(|slot| unsafe { *slot = name });
    }

    /// Gives the unit its priority. The caller owns the descriptor, and the unit has none yet.
    pub(crate) fn set_priority(&self, priority: Priority) {
        self.state.pushes.set(priority.bits() << PRIORITY_SHIFT);
    }

    pub(crate) fn priority(&self) -> Priority {
        Priority::from_bits(self.state.pushes.get() >> PRIORITY_SHIFT)
    }

    /// Lets whoever finds the unit in its pool's queue take it away before it starts. The caller
    /// owns the descriptor.
    pub(crate) fn set_stealable(&self) {
        self.state.pushes.set(self.state.pushes.get() | STEALABLE);
    }

    pub(crate) fn is_stealable(&self) -> bool {
        self.state.pushes.get() & STEALABLE != 0
    }

    /// How often it has been put back into a pool with an order of its own, as far as that is
    /// counted.
    pub(crate) fn pushes(&self) -> u32 {
        u32::from(self.state.pushes.get() & PUSHES)
    }

    pub(crate) fn count_push(&self) {
        let pushes = self.state.pushes.get();
        self.state.pushes.set(pushes + u16::from(pushes & PUSHES < PUSHES));
    }

    /// Makes the descriptor of a unit that has ended ready to start again. The caller owns it, but
    /// stale `Unparker`s may still touch the atomics: they find an unstarted unit.
    pub(crate) fn rearm(&self, pool: &PoolShared) {
        if self.has_requests() {
            self.forget_move();
        }
        self.join.reset(UNJOINED);
        self.pool.set(pool);
        self.state.cell.reset();
        self.state.token.store(false, Relaxed);
        self.state.requests.store(0, Relaxed);
        self.party.set(0);
        self.set_priority(self.priority());
        let class = self.class.get();
        if class.is_users() {
            // That memory has been given back.
            self.class.set(StackClass::new(class.bytes(), pool.class.node()));
        }
    }

    /// Drops what a unit has left. The caller owns the descriptor.
    #[inline]
    pub(crate) fn clear(&self) {
        if self.leaves_much() {
            self.clear_slow();
        }
    }

    #[cold]
    fn clear_slow(&self) {
        if self.has_requests() {
            self.forget_move();
        }
        let extra = self.take_extra();
        crate::base::contain::contained_alone("dropping the callback of a migration", || {
            drop(extra)
        });
        self.state.rare.set(false);
        self.party.set(0);
        // SAFETY:
        // - exclusive: the caller owns the descriptor, so nobody borrows the name.
        self.name.with_mut(|slot| unsafe { *slot = UltName(NameRepr::None) });
    }

    /// Returns whether nobody but the caller keeps the descriptor.
    #[inline]
    pub(crate) fn is_last_ref(&self) -> bool {
        // With a single count there is nobody who could change it: no read-modify-write needed.
        // pair: ULT-REFS
        if self.refs.load(Acquire) == 1 {
            return true;
        }
        // pair: ULT-REFS
        if self.refs.fetch_sub(1, Release) != 1 {
            return false;
        }
        // For the next unit.
        self.refs.store(1, Relaxed);
        // What other holders did happens before the descriptor is reused.
        fence(Acquire); // pair: ULT-REFS
        true
    }
}

/// A pointer to a descriptor whose holder keeps it alive, or borrows from a party that does (the
/// runtime, as long as the unit has not ended).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct UltPtr(NonNull<Ult>);

// SAFETY: a pointer to a `Sync` descriptor that outlives the pointer (see the type).
unsafe impl Send for UltPtr {}
// SAFETY: as above.
unsafe impl Sync for UltPtr {}

impl UltPtr {
    /// # Safety
    ///
    /// `ptr` is a live descriptor, and the holder of the result and of its copies
    /// keeps the promise of the type.
    #[inline]
    pub(crate) unsafe fn new(ptr: NonNull<Ult>) -> Self {
        Self(ptr)
    }

    #[inline]
    pub(crate) fn as_non_null(self) -> NonNull<Ult> {
        self.0
    }
}

/// The ULT that lives on a stack, of which the stack itself knows no more than the address.
impl StackBlock {
    #[inline(always)]
    pub(crate) fn ult(&self) -> Option<UltPtr> {
        NonNull::new(self.occupant.get().cast_mut().cast()).map(UltPtr)
    }

    #[inline(always)]
    pub(crate) fn set_ult(&self, ult: Option<UltPtr>) {
        self.occupant.set(ult.map_or(ptr::null(), |ult| ult.0.as_ptr().cast_const().cast()));
    }

    #[inline(always)]
    pub(crate) fn take_ult(&self) -> Option<UltPtr> {
        let ult = self.ult();
        self.occupant.set(ptr::null());
        ult
    }
}

impl Deref for UltPtr {
    type Target = Ult;

    #[inline]
    fn deref(&self) -> &Ult {
        // SAFETY:
        // - valid: promise of the type; shared access only.
        unsafe { self.0.as_ref() }
    }
}

/// An owned count on a descriptor.
#[derive(Debug)]
pub(crate) struct UltRef(UltPtr);

impl UltRef {
    /// Takes over the count that the unit and its handle have in common.
    #[inline]
    pub(crate) fn adopt(ult: UltPtr) -> Self {
        Self(ult)
    }

    /// Adds a count.
    pub(crate) fn share(ult: UltPtr) -> Self {
        ult.refs.fetch_add(1, Relaxed);
        Self(ult)
    }

    #[inline]
    pub(crate) fn ptr(&self) -> UltPtr {
        self.0
    }

    pub(crate) fn get(&self) -> &Ult {
        &self.0
    }
}

/// The name of a ULT, for messages: a literal, an owned or a shared string.
///
/// Literals and `Arc<str>` cost no allocation per spawn.
///
/// ```
/// use ult::UltName;
///
/// # use ult::{PoolSpec, Runtime, XstreamSpec};
/// # let runtime = Runtime::builder()
/// #     .pool(PoolSpec::new("main"))
/// #     .xstream(XstreamSpec::new("x0").pools(["main"]))
/// #     .start()?;
/// # let pool = runtime.pool("main").expect("defined above");
/// let worker = pool.ult().name("worker").spawn(|| ())?;
/// let request = pool.ult().name(format!("request {}", 7)).spawn(|| ())?;
/// # worker.join()?;
/// # request.join()?;
/// // A shared string, which costs no allocation per spawn.
/// let name: UltName = std::sync::Arc::<str>::from("shared").into();
/// assert_eq!(name.as_str(), Some("shared"));
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Default)]
pub struct UltName(NameRepr);

#[derive(Clone, Default)]
enum NameRepr {
    #[default]
    None,
    Static(&'static str),
    Shared(Arc<str>),
}

impl UltName {
    /// The text, if there is a name.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        match &self.0 {
            NameRepr::None => None,
            NameRepr::Static(name) => Some(name),
            NameRepr::Shared(name) => Some(name),
        }
    }
}

impl fmt::Debug for UltName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}

impl From<&'static str> for UltName {
    fn from(name: &'static str) -> Self {
        Self(NameRepr::Static(name))
    }
}

impl From<String> for UltName {
    fn from(name: String) -> Self {
        Self(NameRepr::Shared(name.into()))
    }
}

impl From<Arc<str>> for UltName {
    fn from(name: Arc<str>) -> Self {
        Self(NameRepr::Shared(name))
    }
}

impl From<Cow<'static, str>> for UltName {
    fn from(name: Cow<'static, str>) -> Self {
        match name {
            Cow::Borrowed(name) => name.into(),
            Cow::Owned(name) => name.into(),
        }
    }
}

/// Called when a unit has moved to another pool, with the name of that pool.
pub(crate) type OnMigrate = Box<dyn FnMut(&str) + Send>;

/// Rarely used properties of a unit, kept apart so that the descriptors of all others stay small.
#[derive(Default)]
pub(crate) struct RareFields {
    /// Values of [`UltLocal`](crate::UltLocal)s.
    pub(crate) locals: Locals,
    /// The values that it hands on to the units it spawns.
    pub(crate) inherited: Values,
    /// Memory for the stack, until it starts.
    pub(crate) stack: Option<UserStack>,
    pub(crate) on_migrate: Option<OnMigrate>,
    /// The time for which the unit waits, while it is on its way to an xstream.
    pub(crate) timed: Option<Arc<Timed>>,
}

/// State that the timer of a unit shares with the unit's handle.
#[derive(Debug)]
pub(crate) struct Timed {
    pub(in crate::engine) state: TimerState,
    pub(crate) deadline: Instant,
    /// Only for the party that has the unit, by the word of `state`.
    pub(in crate::engine) ult: UltPtr,
    /// The xstream with the timer. Written by the party that has the unit, before the timer exists.
    pub(in crate::engine) home: AtomicPtr<XstreamShared>,
    /// The place in the heap. Touched by the home xstream only.
    pub(crate) place: HeapPlace,
}

impl Timed {
    pub(crate) fn new(
        ult: UltPtr,
        deadline: Instant,
        state: TimerState,
        home: *mut XstreamShared,
    ) -> Self {
        let home = AtomicPtr::new(home);
        Self { state, deadline, ult, home, place: HeapPlace::nowhere() }
    }

    /// Returns whether the timer in the heap stands for nothing any more.
    pub(crate) fn is_stale(&self) -> bool {
        self.state.is_cancelled()
    }
}

const NOWHERE: usize = usize::MAX;

/// The place of a node in the heap. Only the node's xstream looks at it; it is an atomic because
/// its container is shared.
#[derive(Debug)]
pub(crate) struct HeapPlace(AtomicUsize);

impl HeapPlace {
    pub(crate) const fn nowhere() -> Self {
        Self(AtomicUsize::new(NOWHERE))
    }

    pub(crate) fn set(&self, place: usize) {
        self.0.store(place, Relaxed);
    }

    /// Takes it, if there is one.
    pub(crate) fn take(&self) -> Option<usize> {
        let place = self.0.load(Relaxed);
        self.set(NOWHERE);
        (place != NOWHERE).then_some(place)
    }
}
