//! Recordings, from their start to the finished [`Trace`].
//!
//! Stopping needs no help from the xstreams: the rings of the [`recorder`](crate::trace::recorder)
//! can be read at any time.

use std::fmt;
use std::time::Duration;

use crate::engine::error::RecordError;
use crate::engine::model::runtime_core::RuntimeCore;
use crate::engine::pulse::Plan;
use crate::runtime::handle::Runtime;
use crate::sync::{Arc, lock};
use crate::trace::clock::{Moment, Scale};
use crate::trace::event::{Event, EventKind, NOTHING, Packed};
use crate::trace::recorder::Recorder;

/// How to record; see [`Runtime::record`].
///
/// ```
/// use ult::RecordOptions;
///
/// # use ult::{PoolSpec, Runtime, XstreamSpec};
/// # let runtime = Runtime::builder()
/// #     .pool(PoolSpec::new("main"))
/// #     .xstream(XstreamSpec::new("x0").pools(["main"]))
/// #     .start()?;
/// # let pool = runtime.pool("main").expect("defined above");
/// // The newest 63 events of each xstream, in 1.5 KiB.
/// let recording = runtime.record(&RecordOptions::new().events_per_xstream(63))?;
/// for _ in 0..50 {
///     pool.spawn(ult::yield_now)?.join()?;
/// }
/// assert!(recording.stop().dropped_on("x0") > 0);
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecordOptions {
    /// How many events are kept per xstream, the newest ones. Rounded up to a power of two less
    /// one. An event takes 24 bytes. Default 262,143, which takes 6 MiB per xstream.
    pub events_per_xstream: usize,
}

impl Default for RecordOptions {
    fn default() -> Self {
        Self { events_per_xstream: (1 << 18) - 1 }
    }
}

impl RecordOptions {
    /// The defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets [`events_per_xstream`](Self::events_per_xstream).
    #[must_use]
    pub fn events_per_xstream(mut self, events: usize) -> Self {
        self.events_per_xstream = events;
        self
    }
}

/// The events of a recording so far.
fn collect(recorder: &Recorder, core: &RuntimeCore) -> Trace {
    let end = Moment::now();
    let scale = Scale::between(recorder.start, end);
    let parts = lock(&core.parts);
    let mut trace = Trace {
        events: Vec::new(),
        names: Vec::new(),
        pools: parts.pools.iter().map(|pool| pool.name.to_string()).collect(),
        xstreams: parts.xstreams.iter().map(|xstream| xstream.name.to_string()).collect(),
        dropped: Vec::new(),
        duration: end.instant.duration_since(recorder.start.instant),
    };
    drop(parts);
    let others = trace.xstreams.len();
    for track in &recorder.tracks {
        let read = track.ring.read();
        let first_name = trace.names.len();
        trace.names.extend(lock(&track.names).iter().cloned());
        trace.dropped.push(read.dropped);
        let events = read.events.into_iter().map(Packed::unpack);
        let events = events.filter(|event| event.ticks <= end.ticks);
        trace.events.extend(events.map(|event| Stored {
            at_ns: scale.ns(event.ticks),
            kind: event.kind,
            ult: event.ult,
            pool: event.pool,
            name: (event.name != NOTHING).then(|| first_name + usize::from(event.name)),
            track: others.min(event.xstream.into()),
        }));
    }
    trace.events.sort_by_key(|event| event.at_ns);
    trace
}

impl Runtime {
    /// Starts to record what ULTs and xstreams do, until [`Recording::stop`].
    ///
    /// An event costs about as much as one look at the clock; without a recording, a few loads per
    /// switch remain. Only the newest events are kept, so a recording may run as long as you like.
    ///
    /// # Errors
    ///
    /// [`RecordError::AlreadyRecording`]: a runtime has one recording at a time.
    ///
    /// Counterpart: `ABT_tool` callbacks, with which a tracer would have to be written first.
    pub fn record(&self, options: &RecordOptions) -> Result<Recording, RecordError> {
        let core = &self.owner.core;
        let xstreams = lock(&core.parts).xstreams.len();
        let recorder = Arc::new(Recorder::new(xstreams, options.events_per_xstream));
        let mut is_taken = false;
        core.diag.change(core, |plan| {
            is_taken = plan.recorder.is_some();
            (!is_taken).then(|| Plan { recorder: Some(recorder.clone()), ..plan.clone() })
        });
        if is_taken {
            return Err(RecordError::AlreadyRecording);
        }
        Ok(Recording { core: core.clone(), recorder })
    }
}

/// A recording in progress. Dropping it stops the recording and throws the events away.
///
/// ```
/// use ult::{EventKind, RecordOptions};
///
/// # use ult::{PoolSpec, Runtime, XstreamSpec};
/// # let runtime = Runtime::builder()
/// #     .pool(PoolSpec::new("main"))
/// #     .xstream(XstreamSpec::new("x0").pools(["main"]))
/// #     .start()?;
/// # let pool = runtime.pool("main").expect("defined above");
/// let recording = runtime.record(&RecordOptions::new().events_per_xstream(1023))?;
/// pool.ult().name("worker").spawn(ult::yield_now)?.join()?;
/// let trace = recording.stop();
/// let yields = trace.events().filter(|event| event.kind == EventKind::Yield);
/// assert_eq!(yields.count(), 1);
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "the recording ends when this is dropped"]
pub struct Recording {
    core: Arc<RuntimeCore>,
    recorder: Arc<Recorder>,
}

impl Recording {
    /// Ends the recording and collects the events. Does not wait for anything; also works after the
    /// runtime has shut down.
    #[must_use]
    pub fn stop(self) -> Trace {
        collect(&self.recorder, &self.core)
    }

    /// The events so far; the recording goes on.
    #[must_use]
    pub fn snapshot(&self) -> Trace {
        collect(&self.recorder, &self.core)
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        self.core.diag.change(&self.core, |plan| Some(Plan { recorder: None, ..plan.clone() }));
    }
}

impl fmt::Debug for Recording {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recording").field("since", &self.recorder.start.instant).finish()
    }
}

/// An event with places in the tables of its trace.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stored {
    pub(crate) at_ns: u64,
    pub(crate) kind: EventKind,
    /// Zero: of an xstream.
    pub(crate) ult: u64,
    pub(crate) pool: u16,
    pub(crate) name: Option<usize>,
    /// The xstream; one past the last: another thread.
    pub(crate) track: usize,
}

/// The events of a recording, ordered by time.
///
/// ```
/// use ult::RecordOptions;
///
/// # use ult::{PoolSpec, Runtime, XstreamSpec};
/// # let runtime = Runtime::builder()
/// #     .pool(PoolSpec::new("main"))
/// #     .xstream(XstreamSpec::new("x0").pools(["main"]))
/// #     .start()?;
/// # let pool = runtime.pool("main").expect("defined above");
/// let recording = runtime.record(&RecordOptions::new().events_per_xstream(1023))?;
/// pool.ult().name("worker").spawn(ult::yield_now)?.join()?;
/// let trace = recording.stop();
/// assert_eq!(trace.dropped(), 0);
/// // For ui.perfetto.dev; usually into a file.
/// let mut json = Vec::new();
/// trace.write_chrome(&mut json)?;
/// assert!(String::from_utf8(json)?.contains("worker"));
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Trace {
    pub(crate) events: Vec<Stored>,
    names: Vec<Arc<str>>,
    pub(crate) pools: Vec<String>,
    pub(crate) xstreams: Vec<String>,
    dropped: Vec<u64>,
    duration: Duration,
}

impl Trace {
    /// The events, oldest first.
    pub fn events(&self) -> impl ExactSizeIterator<Item = Event<'_>> {
        self.events.iter().map(|event| Event {
            at_ns: event.at_ns,
            kind: event.kind,
            ult: (event.ult != 0).then_some(event.ult),
            name: self.name_of(event),
            pool: self.pools.get(usize::from(event.pool)).map(String::as_str),
            xstream: self.xstreams.get(event.track).map(String::as_str),
        })
    }

    /// Number of events.
    #[must_use]
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Returns whether nothing happened.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// How long the recording took.
    #[must_use]
    pub fn duration(&self) -> Duration {
        self.duration
    }

    /// How many older events were overwritten, over all xstreams and other threads.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped.iter().sum()
    }

    /// How many older events of this xstream were overwritten; zero for an unknown one, and for one
    /// that was added during the recording, which counts among the other threads.
    #[must_use]
    pub fn dropped_on(&self, xstream: &str) -> u64 {
        // The last one belongs to the other threads.
        let own = self.dropped.split_last().map_or(&[][..], |(_, own)| own);
        let both = self.xstreams.iter().zip(own);
        both.filter(|(name, _)| *name == xstream).map(|(_, dropped)| dropped).sum()
    }

    pub(crate) fn name_of(&self, event: &Stored) -> Option<&str> {
        event.name.and_then(|name| self.names.get(name)).map(|name| &**name)
    }
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trace")
            .field("events", &self.len())
            .field("dropped", &self.dropped())
            .field("duration", &self.duration)
            .finish_non_exhaustive()
    }
}
