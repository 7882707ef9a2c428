//! Panics of the user's code in places where nobody could catch them: they are logged, and what
//! comes next goes on.

use std::any::Any;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::log::{Log, log};

/// Runs `f`, whatever it does; `None`: it has panicked. `what` says in the instance's log whose
/// code it is.
pub(crate) fn contain<R>(log: &Log, what: impl Display, f: impl FnOnce() -> R) -> Option<R> {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(result) => Some(result),
        Err(panic) => {
            let message = message_of(&*panic);
            log!(log, ERROR, message, "{what} panicked");
            // Its payload may have a destructor that panics, too.
            std::mem::forget(panic);
            None
        }
    }
}

/// What a panic says.
pub(crate) fn message_of(panic: &(dyn Any + Send)) -> String {
    if let Some(text) = panic.downcast_ref::<&str>() {
        (*text).to_owned()
    } else if let Some(text) = panic.downcast_ref::<String>() {
        text.clone()
    } else {
        "the panic has no message".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_stays_inside_even_if_its_payload_panics_too() {
        struct Loud;
        impl Drop for Loud {
            fn drop(&mut self) {
                panic!("in the destructor of a payload");
            }
        }
        let (log, mut ran) = (Log::default(), false);
        contain(&log, "a test", || std::panic::panic_any(Loud));
        contain(&log, "a test", || ran = true);
        assert!(ran);
        assert_eq!(message_of(&"text"), "text");
        assert_eq!(message_of(&"text".to_owned()), "text");
        assert_eq!(message_of(&7), "the panic has no message");
    }
}
