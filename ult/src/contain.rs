//! Code of the user that runs where an unwinding would lose what the runtime has in hand.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::descriptor::UltPtr;

/// Runs `code`. `None`: it panicked, and that has been logged with `what` and the unit that it is
/// about.
#[cold]
pub(crate) fn contained<R>(ult: Option<UltPtr>, what: &str, code: impl FnOnce() -> R) -> Option<R> {
    let panic = match catch_unwind(AssertUnwindSafe(code)) {
        Ok(value) => return Some(value),
        Err(panic) => panic,
    };
    let message = crate::error::panic_message(&panic);
    match ult {
        Some(ult) => {
            let (id, name, pool) = (ult.id.get(), ult.name(), &*ult.pool().name);
            tracing::error!(id, name, pool, message, "{what} panicked");
        }
        None => tracing::error!(message, "{what} panicked"),
    }
    // The payload of the panic may have a destructor that panics, too.
    std::mem::forget(panic);
    None
}
