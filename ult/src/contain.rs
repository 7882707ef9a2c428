//! Code of the user that runs where an unwinding would lose what the runtime has in hand.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::descriptor::UltPtr;

/// Runs `f`. A panic is logged with `what` and the unit that it is about.
#[cold]
pub(crate) fn contained(ult: Option<UltPtr>, what: &str, f: impl FnOnce()) {
    let Err(panic) = catch_unwind(AssertUnwindSafe(f)) else { return };
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
}
