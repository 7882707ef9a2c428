//! Sinks: callbacks of the user for events.
//!
//! A sink is called by the party that causes the event: an xstream, on its own stack or on that of
//! a ULT, or another thread. [`SinkHandle::remove`] must not return while a call goes on. Two flags
//! tell of that:
//!
//! - Each xstream has `in_sink`. It sets it, then looks at the list of sinks; the remover changes
//!   the list, then looks at `in_sink`. A fence between the two steps on each side forbids that
//!   both see the old state (pair: SINK-DEKKER).
//! - Other threads count themselves before they take the list, under the lock under which the
//!   remover changes it.

use std::fmt;

use crate::base::contain::Foreign;
use crate::engine::listener::{EventSink, Listener};
use crate::engine::model::runtime_core::RuntimeCore;
use crate::engine::pulse::Plan;
use crate::runtime::handle::Runtime;
use crate::sync::{Arc, UnsafeCell};
use crate::trace::event::EventMask;

impl Runtime {
    /// Has `sink` called for the events in `mask`, until the handle is removed or dropped.
    ///
    /// Counterpart: `ABT_tool_register_thread_callback`.
    pub fn add_sink(&self, mask: EventMask, sink: impl EventSink + 'static) -> SinkHandle {
        let core = &self.owner.core;
        let sink: Box<dyn EventSink> = Box::new(sink);
        let sink = Foreign::new(sink, "the destructor of an event sink");
        let listener = Arc::new(Listener { mask, sink: UnsafeCell::new(Some(sink)) });
        core.diag.change(core, |plan| {
            let mut plan = plan.clone();
            plan.sinks.push(listener.clone());
            plan.mask = mask_of(&plan);
            Some(plan)
        });
        SinkHandle { core: core.clone(), listener }
    }
}

fn mask_of(plan: &Plan) -> EventMask {
    plan.sinks.iter().fold(EventMask::NONE, |mask, listener| mask | listener.mask)
}

/// Keeps a sink registered; see [`Runtime::add_sink`]. Dropping it removes the sink.
///
/// ```
/// use std::sync::mpsc;
/// use ult::{Event, EventMask};
///
/// # use ult::{PoolSpec, Runtime, XstreamSpec};
/// # let runtime = Runtime::builder()
/// #     .pool(PoolSpec::new("main"))
/// #     .xstream(XstreamSpec::new("x0").pools(["main"]))
/// #     .start()?;
/// # let pool = runtime.pool("main").expect("defined above");
/// let (sender, spawned) = mpsc::channel();
/// let sink = runtime.add_sink(EventMask::CREATE, move |event: &Event<'_>| {
///     sender.send(event.ult).ok();
/// });
/// let first = pool.spawn(|| ())?;
/// sink.remove();
/// let second = pool.spawn(|| ())?;
/// assert_eq!(spawned.iter().collect::<Vec<_>>(), [Some(first.id())]);
/// # first.join()?;
/// # second.join()?;
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "the sink is removed when this is dropped"]
pub struct SinkHandle {
    core: Arc<RuntimeCore>,
    listener: Arc<Listener>,
}

impl SinkHandle {
    /// Removes the sink. After this has returned it is not called any more, and no call of it goes
    /// on; for that it waits for the end of calls in progress, blocking the thread.
    ///
    /// Inside a sink it does not wait, since it might wait for itself, and promises only that the
    /// calls will end.
    pub fn remove(self) {}
}

impl Drop for SinkHandle {
    fn drop(&mut self) {
        let core = &self.core;
        core.diag.change(core, |plan| {
            let mut plan = plan.clone();
            plan.sinks.retain(|listener| !Arc::ptr_eq(listener, &self.listener));
            plan.mask = mask_of(&plan);
            Some(plan)
        });
        if core.diag.wait_for_sinks(core) {
            // SAFETY:
            // - exclusive: no plan has the sink any more, and calls by old ones have ended.
            drop(self.listener.sink.with_mut(|sink| unsafe { (*sink).take() }));
        }
    }
}

impl fmt::Debug for SinkHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SinkHandle").field("mask", &self.listener.mask).finish_non_exhaustive()
    }
}
