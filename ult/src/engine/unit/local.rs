//! Values that each ULT has for itself.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::ptr;

use crate::base::values::{DROPPING_LOCAL, Locals};
use crate::engine::contain::contained;
use crate::engine::model::unit::UltPtr;
use crate::engine::xstream::current;

/// A value that every ULT and tasklet, and every OS thread, has for itself.
///
/// Made by `init` at the first use in a ULT; dropped when the ULT ends, on its own stack, in the
/// reverse order of creation, before a party that joins it goes on. Unlike a thread-local it is not
/// shared by the ULTs of an xstream, and it goes with a ULT that migrates.
///
/// ```
/// use std::cell::Cell;
/// static CALLS: ult::UltLocal<Cell<u32>> = ult::UltLocal::new(|| Cell::new(0));
/// CALLS.with(|calls| calls.set(calls.get() + 1));
/// assert_eq!(CALLS.with(Cell::get), 1);
/// ```
///
/// The first use in a ULT allocates; later ones search among the values of this ULT (a few
/// nanoseconds for the first few).
///
/// Counterpart: `ABT_key`.
pub struct UltLocal<T: 'static> {
    init: fn() -> T,
}

thread_local! {
    /// The values of an OS thread.
    static OF_THREAD: RefCell<Locals> = const { RefCell::new(Locals(Vec::new())) };
    /// Set once this thread has had a value: reading it costs next to nothing.
    static THREAD_HAS_SOME: Cell<bool> = const { Cell::new(false) };
}

impl<T: Send + 'static> UltLocal<T> {
    /// A key. Keep it in a `static`: its address is its identity.
    #[must_use]
    pub const fn new(init: fn() -> T) -> Self {
        Self { init }
    }

    /// Calls `f` with the caller's value.
    ///
    /// # Panics
    ///
    /// On an OS thread that is running its last destructors.
    pub fn with<R>(&'static self, f: impl FnOnce(&T) -> R) -> R {
        let key = ptr::from_ref(self).addr();
        let found = lookup(key).unwrap_or_else(|| {
            // `init` may use other keys, and even this one.
            let value: Box<dyn Any> = Box::new((self.init)());
            lookup(key).unwrap_or_else(|| insert(key, value))
        });
        // SAFETY:
        // - valid: boxed, and removed only at the end of the ULT or thread, which is the caller;
        // - no writer: values are only handed out shared.
        let value = unsafe { &*found };
        match value.downcast_ref::<T>() {
            Some(value) => f(value),
            None => unreachable!("a key has one type"),
        }
    }
}

impl<T: Send + 'static> UltLocal<T> {
    /// Calls `f` with the caller's value if it has one; makes none. Costs a nanosecond or two in a
    /// ULT without any such values.
    ///
    /// # Panics
    ///
    /// On an OS thread that is running its last destructors.
    #[inline]
    pub fn with_existing<R>(&'static self, f: impl FnOnce(&T) -> R) -> Option<R> {
        let found = lookup(ptr::from_ref(self).addr())?;
        // SAFETY:
        // - valid: boxed, and removed only at the end of the ULT or thread, which is the caller;
        // - no writer: values are only handed out shared.
        let value = unsafe { &*found };
        value.downcast_ref::<T>().map(f)
    }
}

impl<T> fmt::Debug for UltLocal<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UltLocal").finish_non_exhaustive()
    }
}

fn lookup(key: usize) -> Option<*const dyn Any> {
    match current::ult() {
        Some(ult) if !ult.has_extra() => None,
        Some(ult) => ult.with_extra(|extra| extra.locals.find(key)),
        None => OF_THREAD.with_borrow(|locals| locals.find(key)),
    }
}

fn insert(key: usize, value: Box<dyn Any>) -> *const dyn Any {
    let place = ptr::from_ref(&*value);
    match current::ult() {
        Some(ult) => ult.with_extra(|extra| extra.locals.0.push((key, value))),
        None => {
            THREAD_HAS_SOME.set(true);
            OF_THREAD.with_borrow_mut(|locals| locals.0.push((key, value)));
        }
    }
    place
}

/// Returns whether the caller, an OS thread, has values, or had some.
#[inline]
pub(crate) fn thread_has_some() -> bool {
    THREAD_HAS_SOME.get()
}

/// Drops the values of `ult`, which is the caller and has run to its end. A destructor may use
/// other keys, and wait. A panic in one is logged.
#[cold]
pub(crate) fn drop_all(ult: UltPtr) {
    if !ult.has_extra() {
        return;
    }
    while let Some((_, value)) = ult.with_extra(|extra| extra.locals.0.pop()) {
        contained(Some(ult), DROPPING_LOCAL, || drop(value));
    }
}

/// Returns whether the caller is a tasklet, or a unit or OS thread that has values of
/// [`UltLocal`](crate::UltLocal): whether there is more to find out about it. One look, for code
/// that must rule out both on a path where each costs.
#[inline]
#[must_use]
pub fn is_tasklet_or_has_locals() -> bool {
    current::ult().map_or_else(thread_has_some, |ult| ult.is_tasklet() || ult.has_extra())
}
