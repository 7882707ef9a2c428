//! Payloads of panics that were caught.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The number of destructors that may panic one inside of another. The payload beyond them is
/// leaked.
pub const NESTED_MAX: u32 = 8;

/// Drops what [`catch_unwind`] has caught. The destructor of a payload
/// may panic, with another payload whose destructor panics as well: all of them are caught, and of
/// more than eight the last one is leaked. To let go of a payload in any other way is to call
/// unknown code that may unwind, which aborts the process where that is not allowed.
#[cold]
pub fn discard_panic(mut payload: Box<dyn Any + Send>) {
    for _ in 0..NESTED_MAX {
        match catch_unwind(AssertUnwindSafe(|| drop(payload))) {
            Ok(()) => return,
            Err(next) => payload = next,
        }
    }
    std::mem::forget(payload);
}
