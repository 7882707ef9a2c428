//! The log, for tests of what it says. It is the process's, so there is one listener per program.

use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

struct Listener<F> {
    least: Level,
    hear: F,
}

/// From now on, `hear` gets every event of the process that is at least as bad as `least`.
pub(crate) fn listen(least: Level, hear: impl Fn(&Event<'_>) + Send + Sync + 'static) {
    tracing::subscriber::set_global_default(Listener { least, hear }).unwrap();
}

impl<F: Fn(&Event<'_>) + Send + Sync + 'static> Subscriber for Listener<F> {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.least
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        (self.hear)(event);
    }

    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}
