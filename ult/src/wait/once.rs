//! A value that the first party to need it makes, while the others wait.
//!
//! # States
//!
//! | `state` | meaning | left by |
//! |---|---|---|
//! | `EMPTY` | no value | a party that begins to make one -> `RUNNING` |
//! | `RUNNING` | a party, `owner`, makes the value | success -> `READY`; failure or panic -> `EMPTY` |
//! | `READY` | the value is there; final | |
//!
//! A waiter looks at the state again under the lock of the list before it links itself, and the
//! owner changes the state before it takes that lock to wake the list: so nobody is forgotten.

use std::convert::Infallible;
use std::fmt;
use std::mem::MaybeUninit;
use std::ptr::NonNull;

use crate::base::const_new::const_new;
use crate::base::wait_kind::WaitKind;
use crate::engine::model::waiter::{WaitList, Waiter};
use crate::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use crate::sync::atomic::{AtomicU64, AtomicUsize};
use crate::sync::{Mutex as OsMutex, UnsafeCell, lock};
use crate::wait::party::party_id;

const EMPTY: usize = 0;
const RUNNING: usize = 1;
const READY: usize = 2;

/// A value that is made once, when it is first needed.
///
/// Parties that come while another one makes it wait: a ULT suspends, an OS thread blocks. Once it
/// is there, access is one load. A static works before any runtime exists and after it has ended.
///
/// ```
/// static CONFIG: ult::OnceCell<String> = ult::OnceCell::new();
/// assert_eq!(CONFIG.get_or_init(|| "made once".to_owned()), "made once");
/// ```
pub struct OnceCell<T> {
    state: AtomicUsize,
    /// The party that makes the value, while `RUNNING`.
    owner: AtomicU64,
    waiters: OsMutex<WaitList>,
    value: UnsafeCell<MaybeUninit<T>>,
}

// SAFETY: the value is moved in on one thread and may be dropped on another (`T: Send`), and `&T`
// is handed to all (`T: Sync`). `state` orders them.
unsafe impl<T: Send + Sync> Sync for OnceCell<T> {}
// SAFETY: an unborrowed cell has no waiters, so it is its value.
unsafe impl<T: Send> Send for OnceCell<T> {}

impl<T> OnceCell<T> {
    const_new! {
        /// A cell without a value.
        #[must_use]
        pub fn new() -> Self {
            Self {
                state: AtomicUsize::new(EMPTY),
                owner: AtomicU64::new(0),
                waiters: OsMutex::new(WaitList::new()),
                value: UnsafeCell::new(MaybeUninit::uninit()),
            }
        }
    }

    /// The value, if it is there. Never waits.
    #[must_use]
    pub fn get(&self) -> Option<&T> {
        if self.state.load(Acquire) != READY {
            // pair: ONCE-READY (above)
            return None;
        }
        // SAFETY:
        // - initialised: READY is published after the value was written, and we acquired it;
        // - no writer: READY is final while `&self` exists.
        Some(self.value.with(|slot| unsafe { &*slot.cast::<T>() }))
    }

    /// The value; if it is not there, `init` makes it. Only one party at a time runs its `init`,
    /// the others wait for it.
    ///
    /// If `init` panics, the panic goes to its caller, and the next party tries with its own.
    ///
    /// # Panics
    ///
    /// If `init` asks for the value of this very cell, which would wait for itself forever.
    pub fn get_or_init(&self, init: impl FnOnce() -> T) -> &T {
        match self.get_or_try_init(|| Ok::<T, Infallible>(init())) {
            Ok(value) => value,
            Err(never) => match never {},
        }
    }

    /// Like [`get_or_init`](Self::get_or_init) with an `init` that may fail.
    ///
    /// # Errors
    ///
    /// That of `init`. The next party then tries with its own.
    ///
    /// # Panics
    ///
    /// As [`get_or_init`](Self::get_or_init).
    pub fn get_or_try_init<E>(&self, init: impl FnOnce() -> Result<T, E>) -> Result<&T, E> {
        loop {
            if let Some(value) = self.get() {
                return Ok(value);
            }
            // pair: ONCE-READY
            if self.state.compare_exchange(EMPTY, RUNNING, Acquire, Relaxed).is_ok() {
                break;
            }
            self.wait();
        }
        self.owner.store(party_id(), Relaxed);
        let mut run = Run { cell: self, end: EMPTY };
        let value = init()?;
        // SAFETY:
        // - no alias: the state is RUNNING and we are the owner; readers wait for READY.
        self.value.with_mut(|slot| unsafe { slot.cast::<T>().write(value) });
        run.end = READY;
        drop(run);
        // SAFETY:
        // - initialised: above; no writer: READY is final while `&self` exists.
        Ok(self.value.with(|slot| unsafe { &*slot.cast::<T>() }))
    }

    /// Puts a value in.
    ///
    /// # Errors
    ///
    /// Gives `value` back if there is one already. If another party is making one, this waits for
    /// it.
    pub fn set(&self, value: T) -> Result<(), T> {
        let mut value = Some(value);
        self.get_or_try_init(|| value.take().ok_or(())).ok();
        value.map_or(Ok(()), Err)
    }

    /// Changes the value, if it is there.
    pub fn get_mut(&mut self) -> Option<&mut T> {
        self.get()?;
        // SAFETY:
        // - initialised: `get` just said so; no alias: `&mut self`.
        Some(self.value.with_mut(|slot| unsafe { &mut *slot.cast::<T>() }))
    }

    /// Takes the value out. The cell is empty afterwards.
    pub fn take(&mut self) -> Option<T> {
        self.get()?;
        self.state.store(EMPTY, Relaxed);
        // SAFETY:
        // - initialised: READY was set; read once, since the state is EMPTY again;
        // - no alias: `&mut self`.
        Some(self.value.with_mut(|slot| unsafe { slot.cast::<T>().read() }))
    }

    /// Waits until the owner is done, if there still is one.
    #[cold]
    fn wait(&self) {
        let waiter = Waiter::new(WaitKind::Once);
        let node = NonNull::from(&waiter);
        let mut waiters = lock(&self.waiters);
        if self.state.load(Relaxed) != RUNNING {
            return;
        }
        if self.owner.load(Relaxed) == party_id() {
            drop(waiters);
            panic!("the initialisation of a OnceCell or Once needs its own result");
        }
        // SAFETY:
        // - in no list: fresh; it stays until it is woken or has left the list (`settle`).
        unsafe { waiters.push_back(node) };
        drop(waiters);
        waiter.settle(None, || {
            // SAFETY:
            // - alive: we are its party; it was put into this list.
            unsafe { lock(&self.waiters).remove(node) }
        });
    }
}

/// Ends `RUNNING`, also if the initialisation panics.
struct Run<'a, T> {
    cell: &'a OnceCell<T>,
    end: usize,
}

impl<T> Drop for Run<'_, T> {
    fn drop(&mut self) {
        self.cell.owner.store(0, Relaxed);
        self.cell.state.store(self.end, Release); // pair: ONCE-READY
        let all = lock(&self.cell.waiters).take_all();
        all.wake();
    }
}

impl<T> Default for OnceCell<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Drop for OnceCell<T> {
    fn drop(&mut self) {
        drop(self.take());
    }
}

impl<T: fmt::Debug> fmt::Debug for OnceCell<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.get() {
            Some(value) => f.debug_tuple("OnceCell").field(value).finish(),
            None => f.write_str("OnceCell(<empty>)"),
        }
    }
}

/// Something that is done once, by the first party that comes, while the others wait.
///
/// ```
/// use ult::Once;
///
/// static START: Once = Once::new();
///
/// for _ in 0..3 {
///     START.call_once(|| println!("printed once"));
/// }
/// assert!(START.is_completed());
/// ```
#[derive(Debug, Default)]
pub struct Once {
    done: OnceCell<()>,
}

impl Once {
    const_new! {
        /// Nothing has been done.
        #[must_use]
        pub fn new() -> Self {
            Self { done: OnceCell::new() }
        }
    }

    /// Calls `f` if nobody has done so; returns when a call is complete.
    ///
    /// If `f` panics, the panic goes to its caller, and the next party tries with its own.
    ///
    /// # Panics
    ///
    /// If `f` calls this on the same object, which would wait for itself forever.
    pub fn call_once(&self, f: impl FnOnce()) {
        self.done.get_or_init(f);
    }

    /// Returns whether a call is complete.
    #[must_use]
    pub fn is_completed(&self) -> bool {
        self.done.get().is_some()
    }
}
