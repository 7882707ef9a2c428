//! A word that units hand on to the units that they spawn.
//!
//! It stands in the descriptor and is copied from the spawner when a unit is made, whether or not
//! anybody uses it: a load and a store, where a look-up by key would be needed otherwise. Only the
//! unit itself reads and writes its word, and whoever makes the unit, before it is queued.

use std::cell::Cell;

use crate::current;
use crate::xstream::Xstream;

thread_local! {
    /// The word of an OS thread.
    static OF_THREAD: Cell<u64> = const { Cell::new(0) };
}

/// The caller's inherited word: what [`set_inherited_word`] has last set here, else what the
/// spawner of this unit had when it spawned it. Zero where nobody has set one.
///
/// Units get the word of whoever spawns them, ULT, tasklet or OS thread, also when they start
/// later ([`PoolRef::spawn_after`](crate::PoolRef::spawn_after)). An OS thread begins with zero.
/// For layers above that have to know on whose behalf a unit runs; there is one word, so a program
/// has one use for it. For values of more than a word, or that are not handed on, see
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
///     ult::set_inherited_word(7);
///     inner.spawn(ult::inherited_word)
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
        None => of_thread(),
    }
}

/// Sets the caller's word, see [`inherited_word`]. Units that it has spawned before keep theirs.
pub fn set_inherited_word(word: u64) {
    match current::ult() {
        Some(ult) => ult.inherited.set(word),
        None => set_of_thread(word),
    }
}

// Never inlined, so that no address of a thread-local is kept across a switch.
#[inline(never)]
fn of_thread() -> u64 {
    OF_THREAD.get()
}

#[inline(never)]
fn set_of_thread(word: u64) {
    OF_THREAD.set(word);
}

impl Xstream {
    /// The word of the unit that runs here; zero while the scheduler does.
    #[inline]
    pub(crate) fn inherited_word(&self) -> u64 {
        self.current.get().map_or(0, |ult| ult.inherited.get())
    }
}
