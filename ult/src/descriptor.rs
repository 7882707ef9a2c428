//! What the runtime knows about one ULT, at the top of the ULT's own stack mapping.
//!
//! ```text
//! low address                                                    high address
//! | guard page | ... stack, grows down ...  <- base | descriptor with payload |
//! ```
//!
//! Descriptor, closure and result share the topmost page with the first stack frames, so a
//! suspended ULT touches as few pages as possible and a spawn allocates nothing but a block. The
//! block is made once ([`stack`](crate::stack)) and then reused: its coroutine never ends, it loops
//! over the ULTs that are put into the descriptor (`switch::root`).
//!
//! # Who may touch what
//!
//! | state | who |
//! |---|---|
//! | `link` | the queue that holds the ULT (inbox, unit list) |
//! | `cell`, `token`, `join`, `refs` | anybody with a count; atomics with their own protocol |
//! | `home` | written by the home xstream at first start (and at the end); read by resumers |
//! | `pool`, `id`, `name` | written by the spawner; constant until the block is recycled |
//! | `slot`, `pushes`, `coro`, `yielder`, `wait` | the home xstream and the ULT itself |
//! | `payload` | one party at a time, see [`payload`](crate::payload) |
//!
//! # Life
//!
//! `refs` counts the runtime (from spawn to finish), the `JoinHandle`, every `Unparker`, and every
//! waker in flight. Whoever takes it to zero recycles the block. So a descriptor outlives the
//! ULT as long as somebody may still try to wake it, and the block keeps the runtime's shared part
//! alive (`core`), which a waker touches after the push.

use std::borrow::Cow;
use std::cell::Cell;
use std::convert::Infallible;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr::{self, NonNull};

use corosensei::{Coroutine, Yielder};

use crate::diag::WaitNote;
use crate::inbox::Linked;
use crate::payload::Payload;
use crate::pool::PoolShared;
use crate::shared::RuntimeCore;
use crate::stack::BlockStack;
use crate::suspend::SuspendCell;
use crate::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use crate::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, fence};
use crate::sync::{Arc, UnsafeCell};
use crate::wait::Waiter;
use crate::xstream::XstreamShared;

/// Why an xstream switches to a ULT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Wakeup {
    /// To go on.
    Run,
    /// To walk its stack and suspend again; see [`backtrace`](crate::backtrace).
    Inspect,
}

/// What a ULT asks its xstream to do when it switches away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Command {
    /// Queue it again behind the others.
    Yield,
    /// Park it until somebody resumes it.
    Park,
    /// It is over.
    Finish,
}

pub(crate) type Coro = Coroutine<Wakeup, Command, Infallible, BlockStack>;

/// The descriptor. See the module documentation.
#[repr(C, align(64))]
pub(crate) struct Ult {
    link: AtomicPtr<Ult>,
    pub(crate) home: AtomicPtr<XstreamShared>,
    pub(crate) join: AtomicPtr<Waiter>,
    refs: AtomicUsize,
    pub(crate) cell: SuspendCell,
    pub(crate) token: AtomicBool,

    pub(crate) slot: Cell<u32>,
    pub(crate) pushes: Cell<u32>,
    pub(crate) id: Cell<u64>,
    pub(crate) pool: Cell<*const PoolShared>,
    pub(crate) yielder: Cell<*const Yielder<Wakeup, Command>>,
    pub(crate) coro: UnsafeCell<ManuallyDrop<Coro>>,
    name: UnsafeCell<UltName>,
    pub(crate) wait: WaitNote,

    pub(crate) stack: BlockStack,
    pub(crate) core: ManuallyDrop<Arc<RuntimeCore>>,
    /// Position in the depot's register of all blocks; guarded by its lock.
    pub(crate) registered_at: Cell<usize>,
    pub(crate) payload: Payload,
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

impl Ult {
    /// A descriptor without a ULT, for a fresh block.
    pub(crate) fn new(core: Arc<RuntimeCore>, stack: BlockStack, coro: Coro) -> Self {
        Self {
            link: AtomicPtr::new(ptr::null_mut()),
            home: AtomicPtr::new(ptr::null_mut()),
            join: AtomicPtr::new(ptr::null_mut()),
            refs: AtomicUsize::new(0),
            cell: SuspendCell::new(),
            token: AtomicBool::new(false),
            slot: Cell::new(0),
            pushes: Cell::new(0),
            id: Cell::new(0),
            pool: Cell::new(ptr::null()),
            yielder: Cell::new(ptr::null()),
            coro: UnsafeCell::new(ManuallyDrop::new(coro)),
            name: UnsafeCell::new(UltName(NameRepr::None)),
            wait: WaitNote::default(),
            stack,
            core: ManuallyDrop::new(core),
            registered_at: Cell::new(usize::MAX),
            payload: Payload::new(),
        }
    }

    /// The pool that the ULT was spawned into.
    #[inline]
    pub(crate) fn pool(&self) -> &PoolShared {
        // SAFETY:
        // - valid: set before the ULT was first queued, and points into `core`, which this
        //   descriptor keeps alive.
        unsafe { &*self.pool.get() }
    }

    /// The name given at spawn.
    pub(crate) fn name(&self) -> Option<&str> {
        // SAFETY:
        // - no writer: the name changes only when nobody else holds a count (`prepare`).
        self.name.with(|name| unsafe { &*name }).as_str()
    }

    /// Makes the descriptor ready for a new ULT with `refs` counts. The caller owns the block.
    pub(crate) fn prepare(&self, id: u64, pool: &PoolShared, name: UltName, refs: usize) {
        self.home.store(ptr::null_mut(), Relaxed);
        self.join.store(ptr::null_mut(), Relaxed);
        self.refs.store(refs, Relaxed);
        self.cell.reset();
        self.token.store(false, Relaxed);
        self.pushes.set(0);
        self.id.set(id);
        self.pool.set(pool);
        self.set_name(name);
    }

    /// Replaces the name. The caller owns the block.
    pub(crate) fn set_name(&self, name: UltName) {
        // SAFETY:
        // - exclusive: the caller owns the block, so nobody borrows the name.
        self.name.with_mut(|slot| unsafe { *slot = name });
    }
}

/// A pointer to a descriptor whose holder owns a count, or borrows one from somebody who does
/// (the runtime's own count lasts as long as the ULT has not finished).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct UltPtr(NonNull<Ult>);

// SAFETY: a pointer to a `Sync` descriptor that outlives the pointer (see the type).
unsafe impl Send for UltPtr {}
// SAFETY: as above.
unsafe impl Sync for UltPtr {}

impl UltPtr {
    /// # Safety
    ///
    /// `ptr` is a descriptor in a live block, and the holder of the result and of its copies
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
    /// Takes over a count that was made with [`Ult::prepare`].
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
}

impl Drop for UltRef {
    #[inline]
    fn drop(&mut self) {
        // With a single count there is nobody who could change it: no read-modify-write needed.
        // pair: ULT-REFS
        if self.0.refs.load(Acquire) != 1 {
            // pair: ULT-REFS
            if self.0.refs.fetch_sub(1, Release) != 1 {
                return;
            }
            // What other holders did happens before the block is reused or unmapped.
            fence(Acquire); // pair: ULT-REFS
        }
        crate::stack_cache::recycle(self.0);
    }
}

/// The name of a ULT, for messages: a literal, an owned or a shared string.
///
/// Literals and `Arc<str>` cost no allocation per spawn.
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
