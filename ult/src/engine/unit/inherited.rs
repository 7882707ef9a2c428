//! Values that a unit hands on to the units it spawns: one word, and values by key.
//!
//! The word stands in the descriptor and is copied from the spawner when a unit is made, whether or
//! not anybody uses it: a load and a store, where a look-up by key would be needed otherwise.
//!
//! Values ([`Inherited`]) are for data that few units have. They are a counted list in the rarely
//! used part of the descriptor, so a spawner without them pays one look at whether it has that
//! part, and one with them shares its list with the new unit until either changes it.
//!
//! Only the unit itself reads and writes both, and the party that makes the unit, before it is
//! queued.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::marker::PhantomData;
use std::ptr;
use std::sync::Arc;

use crate::base::values::Values;
use crate::engine::model::unit::{Ult, UltPtr};
use crate::engine::xstream::current;
use crate::engine::xstream::owner::Xstream;

thread_local! {
    /// The word of an OS thread, and whether the thread has values.
    static OF_THREAD: Cell<InheritedState> =
        const { Cell::new(InheritedState { word: 0, has_values: false }) };
    /// The values of an OS thread.
    static VALUES: RefCell<Values> = const { RefCell::new(Values(None)) };
}

/// A value that units hand on to the units that they spawn.
///
/// ULTs, tasklets and OS threads begin with what their spawner had at that time (an OS thread, and
/// the first units of a program, with none), also when they start later. Setting it changes it for
/// the caller and for what it spawns from then on. Units that nobody has given one cost nothing;
/// those that have one share it with those that they spawn, which takes an allocation for each.
///
/// ```
/// # use ult::{PoolSpec, Runtime, XstreamSpec};
/// # let runtime = Runtime::builder()
/// #     .pool(PoolSpec::new("main"))
/// #     .xstream(XstreamSpec::new("x0").pools(["main"]))
/// #     .start()?;
/// # let pool = runtime.pool("main").expect("defined above");
/// static TENANT: ult::integration::Inherited<u32> = ult::integration::Inherited::new();
///
/// let inner = pool.clone();
/// let outer = pool.spawn(move || {
///     TENANT.set(Some(7));
///     inner.spawn(|| TENANT.get())
/// })?;
/// assert_eq!(outer.join()??.join()?, Some(7));
/// assert_eq!(TENANT.get(), None);
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// For a value that is not handed on see [`UltLocal`](crate::UltLocal); for a single word that
/// nearly every unit has, [`inherited_word`].
///
/// Counterpart: none; keys of Argobots are not inherited.
pub struct Inherited<T: 'static> {
    /// The address is the identity of the key, so it must have a size.
    _place: u8,
    of: PhantomData<fn() -> T>,
}

impl<T: Copy + Send + Sync + 'static> Inherited<T> {
    /// A key. Keep it in a `static`: its address is its identity.
    #[must_use]
    pub const fn new() -> Self {
        Self { _place: 0, of: PhantomData }
    }

    /// The caller's value.
    #[must_use]
    pub fn get(&'static self) -> Option<T> {
        let key = self.key();
        let find = |values: &Values| values.find(key)?.downcast_ref::<T>().copied();
        match current::ult() {
            Some(ult) if !ult.has_extra() => None,
            Some(ult) => ult.with_extra(|extra| find(&extra.inherited)),
            None if !of_thread().has_values => None,
            None => VALUES.with_borrow(find),
        }
    }

    /// Sets, or with `None` removes, the caller's value. Units that it has spawned before keep
    /// theirs.
    pub fn set(&'static self, value: Option<T>) {
        let key = self.key();
        if value.is_none() && !inherited().has_values {
            return;
        }
        let value = value.map(|value| Arc::new(value) as Arc<dyn Any + Send + Sync>);
        let old = match current::ult() {
            Some(ult) => ult.with_extra(|extra| extra.inherited.put(key, value)),
            None => VALUES.with_borrow_mut(|values| {
                let old = values.put(key, value);
                set_of_thread(InheritedState { has_values: values.0.is_some(), ..of_thread() });
                old
            }),
        };
        drop(old);
    }

    fn key(&'static self) -> usize {
        ptr::from_ref(self).addr()
    }
}

impl<T: Copy + Send + Sync + 'static> Default for Inherited<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> fmt::Debug for Inherited<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inherited").finish_non_exhaustive()
    }
}

/// The caller's inherited state, as [`inherited`] finds it.
///
/// ```
/// use ult::integration::{inherited, set_inherited_word};
///
/// # use ult::{PoolSpec, Runtime, XstreamSpec};
/// # let runtime = Runtime::builder()
/// #     .pool(PoolSpec::new("main"))
/// #     .xstream(XstreamSpec::new("x0").pools(["main"]))
/// #     .start()?;
/// # let pool = runtime.pool("main").expect("defined above");
/// let state = pool.spawn(|| {
///     set_inherited_word(7);
///     // One look for the word, and for whether there is anything else.
///     inherited()
/// })?;
/// let state = state.join()?;
/// assert_eq!((state.word, state.has_values), (7, false));
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct InheritedState {
    /// The caller's [`inherited_word`].
    pub word: u64,
    /// `false`: the caller has no value of any [`Inherited`]. `true`: it may have.
    pub has_values: bool,
}

/// The caller's inherited word, and whether there is more to find: one look, for code on a path
/// where each costs.
#[inline]
#[must_use]
pub fn inherited() -> InheritedState {
    match current::ult() {
        Some(ult) => InheritedState { word: ult.inherited.get(), has_values: ult.has_extra() },
        None => of_thread(),
    }
}

/// The caller's inherited word: what [`set_inherited_word`] has last set here, else what the
/// spawner of this unit had when it spawned it. Zero where nobody has set one.
///
/// Units get the word of their spawner (ULT, tasklet or OS thread), also when they start later
/// ([`PoolRef::spawn_after`](crate::PoolRef::spawn_after)). An OS thread begins with zero. For
/// layers above that have to know on whose behalf a unit runs; there is one word, so a program has
/// one use for it. For values of more than a word, or that are not handed on, see
/// [`UltLocal`](crate::UltLocal).
///
/// ```
/// # use ult::{PoolSpec, Runtime, XstreamSpec};
/// # let runtime = Runtime::builder()
/// #     .pool(PoolSpec::new("main"))
/// #     .xstream(XstreamSpec::new("x0").pools(["main"]))
/// #     .start()?;
/// # let pool = runtime.pool("main").expect("defined above");
/// let inner = pool.clone();
/// let outer = pool.spawn(move || {
///     ult::integration::set_inherited_word(7);
///     inner.spawn(ult::integration::inherited_word)
/// })?;
/// assert_eq!(outer.join()??.join()?, 7);
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Counterpart: none; keys of Argobots are not inherited.
#[must_use]
pub fn inherited_word() -> u64 {
    match current::ult() {
        Some(ult) => ult.inherited.get(),
        None => of_thread().word,
    }
}

/// Sets the caller's word, see [`inherited_word`]. Units that it has spawned before keep theirs.
pub fn set_inherited_word(word: u64) {
    match current::ult() {
        Some(ult) => ult.inherited.set(word),
        None => set_of_thread(InheritedState { word, ..of_thread() }),
    }
}

/// Drops the caller's values of every [`Inherited`] and sets its word to `word`, as if it had
/// inherited nothing else. Units that it has spawned before keep theirs.
///
/// For a unit that works on behalf of another party than its spawner: the next request of a queue,
/// say, is spawned by the unit that has just ended. Costs a store where there are no values.
pub fn inherit_nothing(word: u64) {
    let none = match current::ult() {
        Some(ult) => {
            ult.inherited.set(word);
            if !ult.has_extra() {
                return;
            }
            ult.with_extra(|extra| std::mem::take(&mut extra.inherited))
        }
        None => {
            let values = VALUES.with_borrow_mut(std::mem::take);
            set_of_thread(InheritedState { word, has_values: false });
            values
        }
    };
    // Nothing is borrowed any more, and a destructor may come here again.
    drop(none);
}

// Never inlined, so that no address of a thread-local is kept across a switch.
#[inline(never)]
fn of_thread() -> InheritedState {
    OF_THREAD.get()
}

#[inline(never)]
fn set_of_thread(state: InheritedState) {
    OF_THREAD.set(state);
}

impl Xstream {
    /// Gives `ult`, which the caller has made, what the unit that runs here hands on; nothing while
    /// the scheduler does.
    #[inline]
    pub(crate) fn hand_on(&self, ult: UltPtr) {
        match self.current.get() {
            None => ult.inherited.set(0),
            Some(spawner) => {
                ult.inherited.set(spawner.inherited.get());
                if spawner.has_extra() {
                    hand_on_values(&spawner, &ult);
                }
            }
        }
    }
}

/// Gives `ult`, which the caller has made and holds, what the caller hands on.
pub(crate) fn hand_on(ult: UltPtr) {
    ult.inherited.set(inherited_word());
    if ult.has_extra() {
        // Of its former life, if it is revived.
        drop(ult.with_extra(|extra| std::mem::take(&mut extra.inherited)));
    }
    match current::ult() {
        Some(spawner) if spawner.has_extra() => hand_on_values(&spawner, &ult),
        None if of_thread().has_values => {
            let values = VALUES.with_borrow(Clone::clone);
            drop(ult.with_extra(|extra| std::mem::replace(&mut extra.inherited, values)));
        }
        _ => {}
    }
}

#[cold]
fn hand_on_values(spawner: &Ult, ult: &Ult) {
    let values = spawner.with_extra(|extra| extra.inherited.clone());
    if values.0.is_some() {
        ult.with_extra(|extra| extra.inherited = values);
    }
}
