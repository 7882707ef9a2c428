//! The xstream and the ULT of the caller.
//!
//! One thread-local pointer names the xstream of this thread. It is read only by [`xstream`], which
//! is never inlined and returns the *value*: LLVM takes thread-local *addresses* for constants and
//! may keep one across a switch of stacks. By the rule that a started ULT stays on its xstream
//! that would do no harm, but the one function that runs on different threads in one frame,
//! `context::root`, must not be the one that finds out.

use std::cell::Cell;
use std::ptr;

use crate::engine::model::runtime_core::RuntimeCore;
use crate::engine::model::unit::UltPtr;
use crate::engine::model::xstream_shared::XstreamShared;
use crate::engine::xstream::owner::Xstream;
use crate::sync::Arc;
#[cfg(ult_thread_context)]
use crate::sync::atomic::Ordering::Relaxed;

thread_local! {
    static XSTREAM: Cell<*const Xstream> = const { Cell::new(ptr::null()) };
}

/// Marks this thread as the given xstream while the result lives.
pub(crate) struct EnterGuard<'a>(&'a Xstream);

impl<'a> EnterGuard<'a> {
    pub(crate) fn take(xstream: &'a Xstream) -> Self {
        XSTREAM.set(ptr::from_ref(xstream));
        Self(xstream)
    }
}

impl Drop for EnterGuard<'_> {
    fn drop(&mut self) {
        debug_assert!(ptr::eq(XSTREAM.get(), self.0));
        XSTREAM.set(ptr::null());
    }
}

/// The pointer, or null on a thread that is no xstream. Async-signal-safe.
#[inline(never)]
pub(crate) fn xstream_ptr() -> *const Xstream {
    XSTREAM.get()
}

/// A stack that is a thread of its own runs for the xstream of its resumer.
#[cfg(ult_thread_context)]
impl crate::stack::context::Back {
    /// Notes the xstream of the calling thread, which resumes the stack.
    pub(crate) fn take_xstream(&self) {
        self.xstream.store(xstream_ptr().cast_mut().cast(), Relaxed);
    }

    /// Makes it the xstream of the calling thread, which is that of the stack.
    #[inline(never)]
    pub(crate) fn bring_xstream(&self) {
        XSTREAM.set(self.xstream.load(Relaxed).cast());
    }
}

/// The xstream of this thread.
///
/// The lifetime is right wherever it can be used: ULT and scheduler code runs only while the
/// xstream exists, and what started on a thread stays there.
#[inline]
pub(crate) fn xstream<'a>() -> Option<&'a Xstream> {
    // SAFETY:
    // - valid: set by `EnterGuard` for as long as the xstream lives; all code in between runs on
    //   this thread, and a ULT that is suspended at the end of an xstream does not exist (an
    //   xstream leaves only when nothing is alive).
    unsafe { xstream_ptr().as_ref() }
}

/// The xstream of this thread if it belongs to the runtime `core`.
#[inline]
pub(crate) fn xstream_in<'a>(core: &Arc<RuntimeCore>) -> Option<&'a Xstream> {
    xstream().filter(|xstream| Arc::ptr_eq(&xstream.core, core))
}

/// The unit that runs here.
#[inline]
pub(crate) fn ult() -> Option<UltPtr> {
    xstream()?.current.get()
}

/// The ULT that runs here and can be suspended: no tasklet, and not unwinding. The count of panics
/// is per thread, so a ULT that suspended in a destructor during unwinding would make all others
/// look panicking; it blocks its thread instead.
#[inline]
pub(crate) fn suspendable() -> Option<UltPtr> {
    Some(xstream_and_ult()?.1)
}

/// As [`suspendable`], with the xstream of this thread.
#[inline]
pub(crate) fn xstream_and_ult<'a>() -> Option<(&'a Xstream, UltPtr)> {
    let xstream = xstream()?;
    let ult = xstream.current.get()?;
    (!ult.is_tasklet() && !std::thread::panicking()).then_some((xstream, ult))
}

/// Runs code of the user that must not be suspended: it finds itself in no unit, and what waits in
/// there blocks the thread.
pub(crate) fn in_no_unit<R>(code: impl FnOnce() -> R) -> R {
    /// Restores the current unit at the end, also if the code panics.
    struct Back<'a>(&'a Xstream, Option<UltPtr>);

    impl Drop for Back<'_> {
        fn drop(&mut self) {
            self.0.current.set(self.1);
        }
    }

    let _back = xstream().map(|xstream| Back(xstream, xstream.current.take()));
    code()
}

/// Returns whether `ult` is at home on this thread.
#[inline]
pub(crate) fn is_home_of(ult: UltPtr) -> bool {
    xstream().is_some_and(|xstream| xstream.is_home_of(ult))
}

/// The calling unit as [`current`] describes it.
///
/// ```
/// # use ult::{PoolSpec, Runtime, XstreamSpec};
/// # let runtime = Runtime::builder()
/// #     .pool(PoolSpec::new("main"))
/// #     .xstream(XstreamSpec::new("x0").pools(["main"]))
/// #     .start()?;
/// # let pool = runtime.pool("main").expect("defined above");
/// let me = pool.ult().name("worker").spawn(ult::current)?.join()?.expect("a ULT");
/// assert_eq!((me.name.as_deref(), &*me.pool, &*me.xstream), (Some("worker"), "main", "x0"));
/// // This thread is none.
/// assert_eq!(ult::current(), None);
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct UltInfo {
    /// Number, unique in the runtime.
    pub id: u64,
    /// Name given at spawn.
    pub name: Option<String>,
    /// Pool that it belongs to.
    pub pool: String,
    /// Xstream that it runs on, which changes only if it is migratable.
    pub xstream: String,
    /// Rank of that xstream.
    pub rank: usize,
    /// True if it is a tasklet.
    pub is_tasklet: bool,
}

/// The calling unit; `None` on an ordinary OS thread.
///
/// Allocates; meant for messages.
///
/// Counterpart: `ABT_self_get_thread`.
#[must_use]
pub fn current() -> Option<UltInfo> {
    let xstream = xstream()?;
    let ult = xstream.current.get()?;
    Some(UltInfo {
        id: ult.id.get(),
        name: ult.name().map(str::to_owned),
        pool: ult.pool().name.to_string(),
        xstream: xstream.shared().name.to_string(),
        rank: xstream.shared().rank(),
        is_tasklet: ult.is_tasklet(),
    })
}

/// Returns whether the caller is a ULT.
///
/// Counterpart: `ABT_self_get_type`.
#[must_use]
pub fn is_ult() -> bool {
    ult().is_some_and(|ult| !ult.is_tasklet())
}

/// The number of the caller's unit, and the [`index`](crate::XstreamRef::index) of the xstream that
/// runs it. `None`: an OS thread. What tells both from all others, without the names.
#[must_use]
pub fn current_ids() -> Option<(u64, usize)> {
    let xstream = xstream()?;
    let ult = xstream.current.get()?;
    Some((ult.id.get(), xstream.shared().index))
}

/// Rank of the xstream that the caller runs on. `None`: an OS thread, which is no xstream.
///
/// Costs a few loads, as does [`pool_index`]. A ULT stays on its xstream, unless it is migratable;
/// an xstream may be given another rank ([`XstreamRef::set_rank`](crate::XstreamRef::set_rank)).
///
/// ```
/// # use ult::{PoolSpec, Runtime, XstreamSpec};
/// let runtime = Runtime::builder()
///     .pool(PoolSpec::new("p"))
///     .xstream(XstreamSpec::new("x").rank(3).pools(["p"]))
///     .start()?;
/// let pool = runtime.pool("p").unwrap();
/// let there = pool.spawn(|| (ult::xstream_rank(), ult::pool_index()))?.join()?;
/// assert_eq!(there, (Some(3), Some(pool.index())));
/// assert_eq!(ult::xstream_rank(), None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Counterpart: `ABT_self_get_xstream_rank`.
#[inline]
#[must_use]
pub fn xstream_rank() -> Option<usize> {
    Some(xstream()?.shared().rank())
}

/// [`index`](crate::PoolRef::index) of the pool that the calling unit belongs to. `None`: the
/// caller is no unit. [`PoolRef::is_current`](crate::PoolRef::is_current) compares with one pool.
///
/// Counterpart: `ABT_self_get_last_pool_id`.
#[inline]
#[must_use]
pub fn pool_index() -> Option<usize> {
    Some(ult()?.pool().index)
}

/// Returns the address of the calling unit's descriptor, which tells it from all other units that
/// are alive. A later unit may get the same address. 0: an OS thread.
#[inline]
#[must_use]
pub fn current_address() -> usize {
    ult().map_or(0, |ult| ult.as_non_null().addr().get())
}

/// Returns whether the caller is a tasklet.
///
/// Counterpart: `ABT_self_get_type`.
#[must_use]
pub fn is_tasklet() -> bool {
    ult().is_some_and(|ult| ult.is_tasklet())
}

impl XstreamShared {
    /// Has `request` carried out by the xstream. If it has left, nothing happens until it is
    /// revived.
    pub(crate) fn ask(&self, request: impl FnOnce(&Xstream) + Send + 'static) {
        self.put_request(Box::new(|| {
            if let Some(xstream) = xstream() {
                request(xstream);
            }
        }));
    }
}
