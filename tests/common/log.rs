//! The log, for tests of its messages. It is the process's: each listener hears what all tests of
//! the program have logged, and picks out its own.

use std::sync::{Once, PoisonError, RwLock, RwLockReadGuard};

use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber};

struct Listener {
    least: Level,
    hear: Box<dyn Fn(&Event<'_>) + Send + Sync>,
}

static LISTENERS: RwLock<Vec<Listener>> = RwLock::new(Vec::new());

fn listeners() -> RwLockReadGuard<'static, Vec<Listener>> {
    LISTENERS.read().unwrap_or_else(PoisonError::into_inner)
}

/// From now on, `hear` gets every event of the process that is at least as bad as `least`.
pub(crate) fn listen(least: Level, hear: impl Fn(&Event<'_>) + Send + Sync + 'static) {
    static ONCE: Once = Once::new();
    let listener = Listener { least, hear: Box::new(hear) };
    LISTENERS.write().unwrap_or_else(PoisonError::into_inner).push(listener);
    ONCE.call_once(|| tracing::subscriber::set_global_default(ForListeners).unwrap());
}

struct ForListeners;

impl Subscriber for ForListeners {
    /// Asked anew for each event: there may be another listener by then.
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::sometimes()
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        listeners().iter().any(|listener| *metadata.level() <= listener.least)
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let level = event.metadata().level();
        for listener in listeners().iter().filter(|listener| *level <= listener.least) {
            (listener.hear)(event);
        }
    }

    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}
