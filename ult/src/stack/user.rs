//! Stacks in memory that the program supplies.

use std::fmt;
use std::ptr::NonNull;

use crate::base::contain::contained_alone;
use crate::stack::memory::{Guard, STACK_BYTES_MIN, unprotect};

/// Memory for the stack of one ULT; see [`UltBuilder::stack`](crate::UltBuilder::stack).
///
/// The lowest whole page becomes the guard, and what is above the last whole page is not used. When
/// the ULT has ended and nothing runs on the memory any more, the guard is taken away and the
/// memory is given back: dropped, or passed to the function of [`from_raw`](Self::from_raw).
///
/// ```
/// use ult::UserStack;
///
/// # use ult::{PoolSpec, Runtime, XstreamSpec};
/// # let runtime = Runtime::builder()
/// #     .pool(PoolSpec::new("main"))
/// #     .xstream(XstreamSpec::new("x0").pools(["main"]))
/// #     .start()?;
/// # let pool = runtime.pool("main").expect("defined above");
/// let stack = UserStack::from_vec(vec![0; 128 * 1024])?;
/// assert!(stack.bytes() > 100 * 1024);
/// assert_eq!(pool.ult().stack(stack).spawn(|| 42)?.join()?, 42);
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Counterpart: `ABT_thread_attr_set_stack`, with a way to know when the memory is free again.
pub struct UserStack {
    /// Whole pages.
    pub(super) start: NonNull<u8>,
    pub(super) len: usize,
    release: Option<Box<dyn FnOnce() + Send>>,
    pub(super) guarded: Option<Guard>,
}

// SAFETY: exclusive use of a piece of memory, which may pass from thread to thread.
unsafe impl Send for UserStack {}

/// The memory of a [`UserStack`] is too small.
///
/// ```
/// use ult::UserStack;
///
/// let error = UserStack::from_vec(vec![0; 1000]).unwrap_err();
/// assert_eq!(error.bytes, 1000);
/// assert!(error.usable < error.needed);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a stack of {bytes} bytes holds {usable} bytes of whole pages; it needs {needed}")]
#[non_exhaustive]
pub struct StackTooSmall {
    /// Bytes that were given.
    pub bytes: usize,
    /// Bytes from the first page border to the last.
    pub usable: usize,
    /// Bytes that are needed: 16 KiB and the guard page.
    pub needed: usize,
}

impl UserStack {
    /// Uses a buffer as a stack, and drops it in the end.
    ///
    /// # Errors
    ///
    /// [`StackTooSmall`] if it has less than 20 KiB of whole pages (with pages of 4 KiB).
    pub fn from_vec(mut memory: Vec<u8>) -> Result<Self, StackTooSmall> {
        let (start, len) = (NonNull::from(&mut memory[..]).cast(), memory.len());
        // SAFETY:
        // - exclusive: the buffer is owned by the closure, which drops it when it is free again.
        unsafe { Self::from_raw(start, len, move || drop(memory)) }
    }

    /// Uses memory of any origin as a stack, and calls `release` when it is free again.
    ///
    /// `release` is called on an xstream, or where this value is dropped unused; it must not wait.
    ///
    /// # Safety
    ///
    /// The memory is readable, writable, and used by nobody else until `release` is called.
    ///
    /// # Errors
    ///
    /// [`StackTooSmall`]; `release` has then been called.
    pub unsafe fn from_raw(
        start: NonNull<u8>,
        len: usize,
        release: impl FnOnce() + Send + 'static,
    ) -> Result<Self, StackTooSmall> {
        let page = rustix::param::page_size();
        let low = start.as_ptr().addr().next_multiple_of(page);
        let high = (start.as_ptr().addr() + len) & !(page - 1);
        let usable = high.saturating_sub(low);
        let needed = STACK_BYTES_MIN + page;
        let pages = NonNull::new(start.as_ptr().with_addr(low)).unwrap_or(start);
        let release: Box<dyn FnOnce() + Send> = Box::new(release);
        let this = Self { start: pages, len: usable, release: Some(release), guarded: None };
        if usable < needed {
            return Err(StackTooSmall { bytes: len, usable, needed });
        }
        Ok(this)
    }

    /// Bytes of the stack, without its guard.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.len.saturating_sub(rustix::param::page_size())
    }
}

impl Drop for UserStack {
    fn drop(&mut self) {
        if let Some(how) = self.guarded {
            unprotect(self.start, rustix::param::page_size(), how);
        }
        if let Some(release) = self.release.take() {
            // The unit that had it is being taken apart: to unwind from here would lose its count.
            contained_alone("giving back a stack of the program's own", release);
        }
    }
}

impl fmt::Debug for UserStack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UserStack").field("bytes", &self.bytes()).finish_non_exhaustive()
    }
}
