//! Calls of the program's event sinks by the engine. Sinks are added and removed in `observe/`.

use std::cell::Cell;

use crate::base::contain::Foreign;
use crate::sync::UnsafeCell;
use crate::trace::event::{Event, EventMask};

/// Gets events as they happen.
///
/// ```
/// use std::sync::{Arc, Mutex, PoisonError};
/// use ult::{Event, EventMask, EventSink};
///
/// /// Collects the numbers of new units.
/// #[derive(Clone, Default)]
/// struct Spawned(Arc<Mutex<Vec<u64>>>);
///
/// impl EventSink for Spawned {
///     fn event(&self, event: &Event<'_>) {
///         self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(event.ult);
///     }
/// }
///
/// # use ult::{PoolSpec, Runtime, XstreamSpec};
/// # let runtime = Runtime::builder()
/// #     .pool(PoolSpec::new("main"))
/// #     .xstream(XstreamSpec::new("x0").pools(["main"]))
/// #     .start()?;
/// # let pool = runtime.pool("main").expect("defined above");
/// let spawned = Spawned::default();
/// let sink = runtime.add_sink(EventMask::CREATE, spawned.clone());
/// let worker = pool.spawn(|| ())?;
/// assert_eq!(*spawned.0.lock().unwrap(), [worker.id()]);
/// # worker.join()?;
/// # drop(sink);
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # What a sink must know
///
/// - It runs in the middle of a switch, a spawn or a resume, perhaps on the small stack of a ULT
///   and on many threads at once. Be short; never wait for anything.
/// - Events that the sink itself causes (a spawn, a resume) do not call sinks.
/// - A panic is caught and logged, also that of its destructor.
///
/// Counterpart: `ABT_tool_thread_callback_fn`.
pub trait EventSink: Send + Sync {
    /// Called for every event of the registered kinds.
    fn event(&self, event: &Event<'_>);
}

impl<F: Fn(&Event<'_>) + Send + Sync> EventSink for F {
    fn event(&self, event: &Event<'_>) {
        self(event);
    }
}

/// A registered sink.
pub(crate) struct Listener {
    pub(crate) mask: EventMask,
    /// Empty after the removal, so that the remover drops the sink, although an xstream may still
    /// have an old plan.
    pub(crate) sink: UnsafeCell<Option<Foreign<Box<dyn EventSink>>>>,
}

// SAFETY: a sink is `Send` and `Sync`. It is taken out when no call goes on and none can begin.
unsafe impl Sync for Listener {}

thread_local! {
    static IN_SINK: Cell<bool> = const { Cell::new(false) };
}

/// Marks a thread that is no xstream as being in a sink. `None`: it is already.
pub(crate) struct InSink(());

impl InSink {
    pub(crate) fn enter() -> Option<Self> {
        (!IN_SINK.replace(true)).then_some(Self(()))
    }

    pub(crate) fn is_inside() -> bool {
        IN_SINK.get()
    }
}

impl Drop for InSink {
    fn drop(&mut self) {
        IN_SINK.set(false);
    }
}
