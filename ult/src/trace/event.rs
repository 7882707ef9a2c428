//! Events of a trace, and their packed form in a ring.

use std::fmt;
use std::ops::BitOr;

use crate::base::wait_kind::WaitKind;
use crate::trace::ring::Words;

/// The kind of an event.
///
/// ```
/// use ult::{EventKind, RecordOptions, WaitKind};
///
/// # use ult::{PoolSpec, Runtime, XstreamSpec};
/// # let runtime = Runtime::builder()
/// #     .pool(PoolSpec::new("main"))
/// #     .xstream(XstreamSpec::new("x0").pools(["main"]))
/// #     .start()?;
/// # let pool = runtime.pool("main").expect("defined above");
/// let recording = runtime.record(&RecordOptions::new().events_per_xstream(1023))?;
/// let waits = pool.spawn(ult::park)?;
/// # pool.spawn(|| ())?.join()?;
/// waits.cancel();
/// # waits.join().unwrap_err();
/// let kinds: Vec<_> = recording.stop().events().map(|event| event.kind).collect();
/// assert!(kinds.contains(&EventKind::Block(WaitKind::Park)));
/// assert!(kinds.contains(&EventKind::Cancel));
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EventKind {
    /// A ULT or tasklet was spawned. On the xstream of the spawner.
    Create,
    /// An xstream switched to a ULT.
    Run,
    /// The ULT gave way to others and stays runnable.
    Yield,
    /// The ULT suspended, and waits for this.
    Block(WaitKind),
    /// A suspended ULT became runnable. On the xstream of the party that resumed it.
    Resume,
    /// The ULT ended, in any way but the next.
    Finish,
    /// The unit was cancelled and has ended, or was dropped before it started.
    Cancel,
    /// The unit moved to this pool.
    Migrate,
    /// An xstream began a tasklet.
    TaskletRun,
    /// The tasklet ended.
    TaskletFinish,
    /// The xstream found nothing to run and goes to sleep.
    Sleep,
    /// The xstream is awake again.
    Wake,
}

impl EventKind {
    const fn number(self) -> u8 {
        match self {
            Self::Create => 0,
            Self::Run => 1,
            Self::Yield => 2,
            Self::Block(_) => 3,
            Self::Resume => 4,
            Self::Finish => 5,
            Self::Cancel => 6,
            Self::Migrate => 7,
            Self::TaskletRun => 8,
            Self::TaskletFinish => 9,
            Self::Sleep => 10,
            Self::Wake => 11,
        }
    }

    fn from_numbers(kind: u8, wait: u8) -> Self {
        match kind {
            0 => Self::Create,
            1 => Self::Run,
            2 => Self::Yield,
            3 => Self::Block(WaitKind::from_u8(wait)),
            4 => Self::Resume,
            5 => Self::Finish,
            6 => Self::Cancel,
            7 => Self::Migrate,
            8 => Self::TaskletRun,
            9 => Self::TaskletFinish,
            10 => Self::Sleep,
            _ => Self::Wake,
        }
    }
}

impl fmt::Display for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Create => "create",
            Self::Run => "run",
            Self::Yield => "yield",
            Self::Block(kind) => return write!(f, "block: {kind}"),
            Self::Resume => "resume",
            Self::Finish => "finish",
            Self::Cancel => "cancel",
            Self::Migrate => "migrate",
            Self::TaskletRun => "tasklet run",
            Self::TaskletFinish => "tasklet finish",
            Self::Sleep => "sleep",
            Self::Wake => "wake",
        })
    }
}

/// A set of kinds of event; combine them with `|`.
///
/// ```
/// use ult::{EventKind, EventMask, WaitKind};
///
/// let mask = EventMask::BLOCK | EventMask::RESUME;
/// assert!(mask.contains(EventKind::Block(WaitKind::Mutex)));
/// assert!(!mask.contains(EventKind::Yield));
/// ```
///
/// Counterpart: the event mask of `ABT_tool_register_thread_callback`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct EventMask(u16);

impl EventMask {
    /// No event.
    pub const NONE: Self = Self(0);
    /// Every event, also of kinds that are yet to come.
    pub const ALL: Self = Self(u16::MAX);
    /// [`EventKind::Create`].
    pub const CREATE: Self = Self::of(EventKind::Create);
    /// [`EventKind::Run`].
    pub const RUN: Self = Self::of(EventKind::Run);
    /// [`EventKind::Yield`].
    pub const YIELD: Self = Self::of(EventKind::Yield);
    /// [`EventKind::Block`], whatever it waits for.
    pub const BLOCK: Self = Self::of(EventKind::Block(WaitKind::Park));
    /// [`EventKind::Resume`].
    pub const RESUME: Self = Self::of(EventKind::Resume);
    /// [`EventKind::Finish`].
    pub const FINISH: Self = Self::of(EventKind::Finish);
    /// [`EventKind::Cancel`].
    pub const CANCEL: Self = Self::of(EventKind::Cancel);
    /// [`EventKind::Migrate`].
    pub const MIGRATE: Self = Self::of(EventKind::Migrate);
    /// [`EventKind::TaskletRun`].
    pub const TASKLET_RUN: Self = Self::of(EventKind::TaskletRun);
    /// [`EventKind::TaskletFinish`].
    pub const TASKLET_FINISH: Self = Self::of(EventKind::TaskletFinish);
    /// [`EventKind::Sleep`].
    pub const SLEEP: Self = Self::of(EventKind::Sleep);
    /// [`EventKind::Wake`].
    pub const WAKE: Self = Self::of(EventKind::Wake);

    const fn of(kind: EventKind) -> Self {
        Self(1 << kind.number())
    }

    /// Returns whether events of this kind are in the set. What a [`EventKind::Block`] waits for
    /// does not matter.
    #[must_use]
    pub const fn contains(self, kind: EventKind) -> bool {
        self.0 & Self::of(kind).0 != 0
    }
}

impl BitOr for EventMask {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl fmt::Debug for EventMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EventMask({:#b})", self.0)
    }
}

/// One event.
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
/// pool.ult().name("worker").spawn(|| ())?.join()?;
/// let trace = recording.stop();
/// let run = trace.events().find(|event| event.kind == EventKind::Run).expect("it has run");
/// assert_eq!((run.name, run.pool, run.xstream), (Some("worker"), Some("main"), Some("x0")));
/// println!("{run}");
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Event<'a> {
    /// Nanoseconds since the start of the recording; for a sink, since the start of the runtime.
    pub at_ns: u64,
    /// The kind of this event.
    pub kind: EventKind,
    /// Number of the ULT or tasklet; `None` for events of an xstream.
    pub ult: Option<u64>,
    /// Name given at spawn.
    pub name: Option<&'a str>,
    /// Pool of the unit.
    pub pool: Option<&'a str>,
    /// The xstream on which it happened; `None`: on a thread that is none of this runtime.
    pub xstream: Option<&'a str>,
}

impl fmt::Display for Event<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (us, ns) = (self.at_ns / 1000, self.at_ns % 1000);
        write!(f, "{us}.{ns:03} us {}: {}", self.xstream.unwrap_or("(other thread)"), self.kind)?;
        if let Some(id) = self.ult {
            let name = self.name.unwrap_or("(unnamed)");
            write!(f, " `{name}` (id {id}) of pool `{}`", self.pool.unwrap_or("?"))?;
        }
        Ok(())
    }
}

/// No pool, no name, or no xstream.
pub(crate) const NOTHING: u16 = u16::MAX;

/// An event with numbers for names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Packed {
    pub(crate) ticks: u64,
    pub(crate) kind: EventKind,
    /// Zero: of an xstream.
    pub(crate) ult: u64,
    pub(crate) pool: u16,
    pub(crate) name: u16,
    /// The xstream; `NOTHING`: another thread.
    pub(crate) xstream: u16,
}

impl Packed {
    #[inline]
    pub(crate) fn pack(self) -> Words {
        let wait = if let EventKind::Block(kind) = self.kind { kind as u8 } else { 0 };
        let small = u64::from(self.kind.number())
            | u64::from(wait) << 8
            | u64::from(self.pool) << 16
            | u64::from(self.name) << 32
            | u64::from(self.xstream) << 48;
        [self.ticks, self.ult, small]
    }

    pub(crate) fn unpack([ticks, ult, small]: Words) -> Self {
        let bytes = small.to_le_bytes();
        Self {
            ticks,
            kind: EventKind::from_numbers(bytes[0], bytes[1]),
            ult,
            pool: u16::from_le_bytes([bytes[2], bytes[3]]),
            name: u16::from_le_bytes([bytes[4], bytes[5]]),
            xstream: u16::from_le_bytes([bytes[6], bytes[7]]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [EventKind; 13] = [
        EventKind::Create,
        EventKind::Run,
        EventKind::Yield,
        EventKind::Block(WaitKind::Mutex),
        EventKind::Block(WaitKind::Join),
        EventKind::Resume,
        EventKind::Finish,
        EventKind::Cancel,
        EventKind::Migrate,
        EventKind::TaskletRun,
        EventKind::TaskletFinish,
        EventKind::Sleep,
        EventKind::Wake,
    ];

    #[test]
    fn packing_loses_nothing() {
        for kind in KINDS {
            let some = Packed { ticks: u64::MAX, kind, ult: 7, pool: 3, name: NOTHING, xstream: 5 };
            assert_eq!(Packed::unpack(some.pack()), some);
            let event = Packed { ult: u64::MAX, pool: NOTHING, name: 3, xstream: NOTHING, ..some };
            assert_eq!(Packed::unpack(event.pack()), event);
        }
    }

    #[test]
    fn masks_select_kinds() {
        let mask = EventMask::BLOCK | EventMask::WAKE;
        for kind in KINDS {
            let expected = matches!(kind, EventKind::Block(_) | EventKind::Wake);
            assert_eq!(mask.contains(kind), expected, "{kind}");
            assert!(EventMask::ALL.contains(kind));
            assert!(!EventMask::NONE.contains(kind));
        }
    }
}
