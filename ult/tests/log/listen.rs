//! A listener for the errors and warnings that the tests of this program log.

use std::fmt::Debug;
use std::sync::Mutex;

use tracing::field::Field;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata};

/// The errors since [`listen`] was first called: their fields in a line each.
pub(crate) static LOG: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// The warnings, likewise.
pub(crate) static WARNINGS: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Log;

/// Begins to write them down. Once is enough.
pub(crate) fn listen() {
    // Another test of the program may have done it.
    let _ = tracing::subscriber::set_global_default(Log);
}

impl tracing::Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = String::new();
        event.record(&mut |field: &Field, value: &dyn Debug| {
            line += &format!("{field}: {value:?}, ");
        });
        let is_error = *event.metadata().level() == Level::ERROR;
        let log = if is_error { &LOG } else { &WARNINGS };
        log.lock().unwrap().push(line);
    }

    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}
