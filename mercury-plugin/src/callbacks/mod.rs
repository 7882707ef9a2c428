//! The functions of the table that Mercury calls.
//!
//! Each catches panics, so that nothing unwinds into C: the call fails then. What each may be
//! called with is in Mercury's `na.h`; the safety of all of them rests on that.
//!
//! - Imports: everything.
//! - Reading order: this file · `start.rs` (classes and contexts) · `address.rs` · `message.rs` ·
//!   `memory.rs` · `progress.rs`.

use std::ffi::{CStr, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::c::abi::{NaClass, NaContext, Return};
use crate::c::status::{Status, code_of};
use crate::class::Class;
use crate::class::context::Context;

pub(crate) mod address;
pub(crate) mod memory;
pub(crate) mod message;
pub(crate) mod progress;
pub(crate) mod start;

/// Runs the body of a callback; `failed` if it panics.
#[inline]
fn guarded<R>(failed: R, body: impl FnOnce() -> R) -> R {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        prim::panic::discard_panic(panic);
        tracing::error!("a callback of Mercury's has panicked: this is a bug of margo's");
        failed
    })
}

/// Runs the body of a callback that returns a code.
#[inline]
fn with_code(body: impl FnOnce() -> Result<(), Status>) -> Return {
    guarded(Status::ProtocolError.code(), || code_of(body()))
}

/// The class behind Mercury's pointer.
///
/// # Safety
///
/// It is a class of this plugin, which was initialised and not finalised.
#[inline]
unsafe fn class<'a>(na_class: *const NaClass) -> &'a Class {
    // SAFETY: contract of this function.
    let own = unsafe { (*na_class).plugin_class };
    // SAFETY: `initialize` has put it there, and `finalize` takes it away.
    unsafe { &*own.cast::<Class>() }
}

/// As [`class`], refused in a child that was forked off.
///
/// # Safety
///
/// As [`class`].
#[inline]
unsafe fn class_here<'a>(na_class: *const NaClass) -> Result<&'a Class, Status> {
    // SAFETY: contract of this function.
    let class = unsafe { class(na_class) };
    class.check_process().map(|()| class)
}

/// The context behind Mercury's pointer.
///
/// # Safety
///
/// It is a context of this plugin, which was created and not destroyed.
#[inline]
unsafe fn context<'a>(na_context: *mut NaContext) -> &'a Arc<Context> {
    // SAFETY: contract of this function.
    let own = unsafe { (*na_context).plugin_context };
    // SAFETY: `context_create` has put it there, and `context_destroy` takes it away.
    unsafe { &*own.cast::<Arc<Context>>() }
}

/// A text of C.
///
/// # Safety
///
/// `text` is null, or ends with a zero byte and stays as it is while the result is used.
unsafe fn text<'a>(text: *const c_char) -> Result<Option<&'a str>, Status> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: contract of this function.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map(Some).map_err(|_| Status::InvalidArg)
}

/// Values of the program's.
///
/// # Safety
///
/// So many are at `first`, which nobody changes while the result is used; it may be null if there
/// are none.
unsafe fn values<'a, T>(first: *const T, count: usize) -> &'a [T] {
    if count == 0 {
        return &[];
    }
    // SAFETY: contract of this function.
    unsafe { std::slice::from_raw_parts(first, count) }
}

/// Writes bytes to a buffer of the caller's.
///
/// # Safety
///
/// `to` is valid for writes of `size` bytes, and the caller's alone.
unsafe fn give_bytes(to: *mut c_void, size: usize, bytes: &[u8]) -> Result<(), Status> {
    if bytes.len() > size {
        return Err(Status::Overflow);
    }
    // SAFETY: contract of this function.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.cast(), bytes.len()) };
    Ok(())
}

/// Writes a result to where the caller wants it.
///
/// # Safety
///
/// `to` is valid for writes.
unsafe fn give<T>(to: *mut T, value: T) {
    // SAFETY: contract of this function.
    unsafe { to.write(value) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_unwinds_into_c() {
        assert_eq!(with_code(|| panic!("a test")), Status::ProtocolError.code());
        assert!(!guarded(false, || panic!("a test")));
        assert_eq!(with_code(|| Err(Status::Busy)), Status::Busy.code());
        assert_eq!(with_code(|| Ok(())), 0);
    }
}
