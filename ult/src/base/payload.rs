//! The closure of a ULT, and later its result, inside the descriptor.
//!
//! One buffer holds, one after the other: the closure, nothing (while it runs), and the result or
//! the panic. [`Stage`] tells which. Values that do not fit are boxed, and the box stands in the
//! buffer. The types are known where the ULT is spawned and where it is joined; in between, a
//! [`Vtable`] remembers what to do with the bytes.
//!
//! Access is exclusive at any time: the spawner before the first push, then the holder of the
//! unstarted unit, then the ULT itself, and after the join word says `DONE` the owner of the
//! `JoinHandle` (or the ULT, if there is none).
//!
//! A closure and its value may borrow (scoped ULTs); the party that stores them promises that the
//! loan lasts until the payload is empty again.

use std::cell::Cell;
use std::mem::{MaybeUninit, align_of, needs_drop, size_of};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::base::contain::{Panic, contained_alone, discard_panic};
use crate::base::unwind::{Unwind, Why};
use crate::sync::UnsafeCell;

/// The module and the file that stand in a backtrace between the closure and what called it.
pub(crate) const PLACE: [&str; 2] = [concat!(module_path!(), "::"), file!()];

/// Bytes of closure or result that need no box.
pub(crate) const INLINE_BYTES: usize = 208;
const INLINE_ALIGN: usize = 16;

/// The content of the buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Nothing: running, or everything was taken.
    Empty,
    /// The closure; not started.
    Closure,
    /// The closure's value.
    Value,
    /// A [`Panic`].
    Panicked,
    /// Nothing, and there never will be.
    Gone(Why),
}

/// The operations on a closure and its result after their types are forgotten.
pub(crate) struct Vtable {
    run: unsafe fn(&Payload),
    drop_closure: unsafe fn(&Payload),
    /// None if dropping a value does nothing.
    drop_value: Option<unsafe fn(&Payload)>,
}

#[repr(C, align(16))]
struct Buffer([MaybeUninit<u8>; INLINE_BYTES]);

/// The buffer and what is in it. The buffer stands last, so that small closures share a cache
/// line with what comes before.
#[repr(C)]
pub(crate) struct Payload {
    vtable: Cell<&'static Vtable>,
    stage: Cell<Stage>,
    buffer: UnsafeCell<Buffer>,
}

/// Carrier of the vtable for one pair of types.
struct Typed<F, T>(std::marker::PhantomData<(F, T)>);

impl<F: FnOnce() -> T, T> Typed<F, T> {
    const VTABLE: Vtable = Vtable {
        run: run::<F, T>,
        drop_closure: drop_stored::<F>,
        drop_value: if needs_drop::<T>() || !fits::<T>() { Some(drop_stored::<T>) } else { None },
    };
}

/// The functions themselves borrow nothing, whatever the types do.
fn vtable<F: FnOnce() -> T, T>() -> &'static Vtable {
    &const { Typed::<F, T>::VTABLE }
}

impl Payload {
    pub(crate) fn new() -> Self {
        Self {
            buffer: UnsafeCell::new(Buffer([MaybeUninit::uninit(); INLINE_BYTES])),
            stage: Cell::new(Stage::Empty),
            vtable: Cell::new(vtable::<fn(), ()>()),
        }
    }

    #[inline]
    pub(crate) fn stage(&self) -> Stage {
        self.stage.get()
    }

    /// Stores the closure of a new ULT.
    ///
    /// # Safety
    ///
    /// What `F` and `T` borrow outlives the closure and its value: until the payload has been
    /// emptied (run and taken, discarded or lost).
    pub(crate) unsafe fn set_closure<F, T>(&self, f: F)
    where
        F: FnOnce() -> T + Send,
        T: Send,
    {
        debug_assert!(matches!(self.stage(), Stage::Empty | Stage::Gone(_)));
        self.vtable.set(vtable::<F, T>());
        self.put(f);
        self.stage.set(Stage::Closure);
    }

    /// Runs the closure on the ULT's own stack and stores its value or its panic.
    #[inline]
    pub(crate) fn run(&self) {
        assert!(self.stage() == Stage::Closure, "a ULT runs once");
        self.stage.set(Stage::Empty);
        // SAFETY:
        // - type and initialised: the vtable was stored together with the closure, and the stage
        //   said that the closure is still there.
        unsafe { (self.vtable.get().run)(self) };
    }

    /// Drops the closure of a ULT that will never start.
    pub(crate) fn lose(&self, why: Why) {
        assert_eq!(self.stage(), Stage::Closure, "only an unstarted ULT can be lost");
        self.stage.set(Stage::Gone(why));
        contained_alone("dropping the closure of a unit that never ran", || {
            // SAFETY: as in `run`.
            unsafe { (self.vtable.get().drop_closure)(self) };
        });
    }

    /// Drops a value whose drop does nothing. `false`: there is something else.
    #[inline]
    pub(crate) fn discard_plain(&self) -> bool {
        let is_plain = self.stage() == Stage::Value && self.vtable.get().drop_value.is_none();
        if is_plain {
            self.stage.set(Stage::Empty);
        }
        is_plain
    }

    /// Drops a value or a panic that nobody wants.
    pub(crate) fn discard(&self) {
        match self.stage.replace(Stage::Empty) {
            Stage::Value => {
                if let Some(drop_value) = self.vtable.get().drop_value {
                    // SAFETY:
                    // - type and initialised: the vtable belongs to the value, and the stage said
                    //   that it is there; the stage is `Empty` now, so it is dropped once.
                    unsafe { drop_value(self) };
                }
            }
            // SAFETY: `Panicked` says that a `Panic` is there; taken once, as above.
            Stage::Panicked => discard_panic(unsafe { self.get::<Panic>() }),
            other => self.stage.set(other),
        }
    }

    /// Takes the value.
    ///
    /// # Safety
    ///
    /// The closure that this payload was given returned a `T`.
    #[inline]
    pub(crate) unsafe fn take_value<T>(&self) -> T {
        assert!(self.stage.replace(Stage::Empty) == Stage::Value, "a value is taken once");
        // SAFETY:
        // - type: duty of the caller; initialised: the stage; taken once: the stage is `Empty` now.
        unsafe { self.get() }
    }

    /// Takes the panic.
    pub(crate) fn take_panic(&self) -> Panic {
        assert_eq!(self.stage.replace(Stage::Empty), Stage::Panicked);
        // SAFETY: `Panicked` says that a `Panic` is there; the stage is `Empty` now.
        unsafe { self.get() }
    }

    /// The stored panic, for a message.
    pub(crate) fn with_panic<R>(&self, f: impl FnOnce(&Panic) -> R) -> Option<R> {
        let there = self.stage() == Stage::Panicked;
        // SAFETY: as in `take_panic`; a `Panic` fits and stands inline, and is only borrowed.
        there.then(|| self.buffer.with(|buffer| f(unsafe { &*buffer.cast::<Panic>() })))
    }

    fn put<V>(&self, value: V) {
        self.buffer.with_mut(|buffer| {
            if const { fits::<V>() } {
                // SAFETY:
                // - room and alignment: `fits`; exclusive: see the module documentation.
                unsafe { buffer.cast::<V>().write(value) };
            } else {
                // SAFETY:
                // - room and alignment: a box is one pointer; exclusive: as above.
                unsafe { buffer.cast::<Box<V>>().write(Box::new(value)) };
            }
        });
    }

    /// # Safety
    ///
    /// `put` stored a `V`, and it has not been taken since.
    unsafe fn get<V>(&self) -> V {
        self.buffer.with_mut(|buffer| {
            if const { fits::<V>() } {
                // SAFETY: `put` took the same branch; initialised and unique by the contract.
                unsafe { buffer.cast::<V>().read() }
            } else {
                // SAFETY: `put` took the same branch; initialised and unique by the contract.
                *unsafe { buffer.cast::<Box<V>>().read() }
            }
        })
    }
}

const fn fits<V>() -> bool {
    size_of::<V>() <= INLINE_BYTES && align_of::<V>() <= INLINE_ALIGN
}

/// # Safety
///
/// The payload holds an `F`.
unsafe fn run<F: FnOnce() -> T, T>(payload: &Payload) {
    // SAFETY: duty of the caller.
    let f = unsafe { payload.get::<F>() };
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(value) => {
            payload.put(value);
            payload.stage.set(Stage::Value);
        }
        Err(panic) => caught(payload, panic),
    }
}

#[cold]
fn caught(payload: &Payload, panic: Panic) {
    match panic.downcast::<Unwind>() {
        Ok(unwind) => payload.stage.set(Stage::Gone(unwind.0)),
        Err(panic) => {
            payload.put::<Panic>(panic);
            payload.stage.set(Stage::Panicked);
        }
    }
}

/// # Safety
///
/// The payload holds a `V`.
unsafe fn drop_stored<V>(payload: &Payload) {
    // SAFETY: duty of the caller.
    drop(unsafe { payload.get::<V>() });
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn value_inline_and_boxed() {
        let payload = Payload::new();
        // SAFETY: nothing is borrowed.
        unsafe { payload.set_closure(|| 7u8) };
        payload.run();
        // SAFETY: the closure returns a `u8`.
        assert_eq!(unsafe { payload.take_value::<u8>() }, 7);

        let big = [3u64; 200];
        // SAFETY: nothing is borrowed.
        unsafe { payload.set_closure(move || big) };
        payload.run();
        // SAFETY: the closure returns this array.
        assert_eq!(unsafe { payload.take_value::<[u64; 200]>() }, big);
    }

    #[test]
    fn lost_closure_is_dropped_once() {
        let payload = Payload::new();
        let held = Arc::new(());
        let inner = held.clone();
        // SAFETY: nothing is borrowed.
        unsafe { payload.set_closure(move || drop(inner)) };
        payload.lose(Why::Lost);
        assert_eq!(Arc::strong_count(&held), 1);
        payload.discard();
    }

    #[test]
    fn unwanted_value_and_panic_are_dropped() {
        let payload = Payload::new();
        let held = Arc::new(());
        let inner = held.clone();
        // SAFETY: nothing is borrowed.
        unsafe { payload.set_closure(move || inner) };
        payload.run();
        payload.discard();
        assert_eq!(Arc::strong_count(&held), 1);
        // SAFETY: nothing is borrowed.
        unsafe { payload.set_closure(|| -> () { std::panic::resume_unwind(Box::new(1u8)) }) };
        payload.run();
        assert_eq!(payload.with_panic(|p| p.is::<u8>()), Some(true));
        payload.discard();
        assert_eq!(payload.stage(), Stage::Empty);
    }
}
