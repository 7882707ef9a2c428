//! Panics of the user's code in places where no caller could catch them: they are logged, and the
//! next step goes on.

use std::any::Any;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::support::log::{Log, log};

/// Runs `f`, whatever it does; `None`: it has panicked. `what` says in the instance's log whose
/// code it is.
pub(crate) fn contain<R>(log: &Log, what: impl Display, f: impl FnOnce() -> R) -> Option<R> {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(result) => Some(result),
        Err(panic) => {
            let message = message_of(&*panic);
            ult::integration::discard_panic(panic);
            log!(log, ERROR, message, "{what} panicked");
            None
        }
    }
}

/// Returns the message of a panic.
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
    use std::sync::atomic::{AtomicU32, Ordering};

    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata, Subscriber};

    use super::*;

    static TAKEN: AtomicU32 = AtomicU32::new(0);

    /// Takes the log, and panics.
    struct Panics;

    impl Subscriber for Panics {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn event(&self, _: &Event<'_>) {
            TAKEN.fetch_add(1, Ordering::Relaxed);
            panic!("no log");
        }

        fn enter(&self, _: &Id) {}

        fn exit(&self, _: &Id) {}
    }

    #[test]
    fn a_panic_of_whoever_takes_the_log_stays_inside() {
        let log = Log::default();
        let ended = tracing::subscriber::with_default(Panics, || {
            log!(log, ERROR, "a line");
            assert_eq!(TAKEN.load(Ordering::Relaxed), 1, "it takes lines");
            contain(&log, "a test", || panic!("first"))
        });
        assert_eq!(ended, None::<()>);
    }

    #[test]
    fn a_panic_stays_inside_even_if_its_payload_panics_too() {
        struct Loud;
        impl Drop for Loud {
            fn drop(&mut self) {
                // A third one inside of the second.
                std::panic::resume_unwind(Box::new(Louder));
            }
        }
        struct Louder;
        impl Drop for Louder {
            fn drop(&mut self) {
                panic!("in the destructor of a payload of a destructor");
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
