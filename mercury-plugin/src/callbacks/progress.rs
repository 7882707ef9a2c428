//! Progress, sleep, cancel.

use std::ffi::{c_int, c_uint};
use std::time::{Duration, Instant};

use super::{class, class_here, context, give, guarded, with_code};
use crate::c::abi::{NaClass, NaContext, NaOp, Return};
use crate::c::status::Status;
use crate::class::context::Context;
use crate::class::{Class, op};

/// The descriptor to sleep on; -1: there is none.
pub(crate) unsafe extern "C" fn poll_get_fd(
    na_class: *mut NaClass,
    na_context: *mut NaContext,
) -> c_int {
    guarded(-1, || {
        // SAFETY: Mercury passes a class of ours.
        if unsafe { class(na_class) }.no_block {
            return -1;
        }
        // SAFETY: Mercury passes a context of ours.
        unsafe { context(na_context) }.fd().unwrap_or(-1)
    })
}

/// Announces that the caller is about to sleep on the descriptor. `false`: there is something to
/// do.
pub(crate) unsafe extern "C" fn poll_try_wait(
    na_class: *mut NaClass,
    na_context: *mut NaContext,
) -> bool {
    guarded(false, || {
        // SAFETY: Mercury passes a class of ours.
        let Ok(class) = (unsafe { class_here(na_class) }) else { return true };
        // SAFETY: Mercury passes a context of ours.
        may_sleep(class, unsafe { context(na_context) })
    })
}

fn may_sleep(class: &Class, context: &Context) -> bool {
    if !context.prepare_sleep() {
        return false;
    }
    let quiet = class.endpoint.prepare_wait();
    if !quiet {
        context.wakes();
    }
    quiet
}

/// Looks at the network once.
pub(crate) unsafe extern "C" fn poll(
    na_class: *mut NaClass,
    na_context: *mut NaContext,
    count: *mut c_uint,
) -> Return {
    with_code(|| {
        // SAFETY: Mercury passes a class of ours.
        let class = unsafe { class_here(na_class) }?;
        // SAFETY: Mercury passes a context of ours.
        let context = unsafe { context(na_context) };
        let ended = class.poll(Some(context))?;
        if !count.is_null() {
            // SAFETY: Mercury passes a variable.
            unsafe { give(count, ended as c_uint) };
        }
        Ok(())
    })
}

/// Looks at the network until an operation of the context has ended, or for so long.
pub(crate) unsafe extern "C" fn poll_wait(
    na_class: *mut NaClass,
    na_context: *mut NaContext,
    timeout_ms: c_uint,
    count: *mut c_uint,
) -> Return {
    with_code(|| {
        // SAFETY: Mercury passes a class of ours.
        let class = unsafe { class_here(na_class) }?;
        // SAFETY: Mercury passes a context of ours.
        let context = unsafe { context(na_context) };
        let timeout = Duration::from_millis(timeout_ms.into());
        let began = (timeout_ms > 0).then(Instant::now);
        loop {
            let was_told = context.was_told();
            let ended = class.poll(Some(context))?;
            if ended > 0 || was_told {
                if !count.is_null() {
                    // SAFETY: Mercury passes a variable.
                    unsafe { give(count, ended as c_uint) };
                }
                return Ok(());
            }
            let left = began.map_or(Duration::ZERO, |at| timeout.saturating_sub(at.elapsed()));
            if left.is_zero() {
                return Err(Status::Timeout);
            }
            if !class.no_block && may_sleep(class, context) {
                context.sleep(left);
            }
        }
    })
}

/// Asks for the early end of an operation.
pub(crate) unsafe extern "C" fn cancel(
    na_class: *mut NaClass,
    _: *mut NaContext,
    op: *mut NaOp,
) -> Return {
    with_code(|| {
        // SAFETY: Mercury passes a class of ours.
        let class = unsafe { class_here(na_class) }?;
        // SAFETY: Mercury passes an operation of ours.
        if unsafe { op::is_busy(op) } {
            class.endpoint.cancel(op::number(op));
        }
        Ok(())
    })
}
