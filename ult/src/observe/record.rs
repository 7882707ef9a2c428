//! Recording: from the start to the [`Trace`].
//!
//! A recording has one [`Ring`] per xstream, written by that xstream only, and one for all other
//! threads and for xstreams added later, behind a lock. Stopping needs no help from the xstreams:
//! rings can be read at any time.
//!
//! Names of ULTs are numbered per ring when they first occur, so that an event holds a number and
//! the name may die with its ULT. The numbers of recently used names are found by address; the
//! text is compared, because another name may have got the same address since.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use crate::engine::diag::Plan;
use crate::engine::error::RecordError;
use crate::engine::runtime_core::RuntimeCore;
use crate::engine::unit::descriptor::UltPtr;
use crate::runtime::handle::Runtime;
use crate::sync::{Arc, Mutex, lock};
use crate::trace::clock::{Moment, Scale};
use crate::trace::event::{Event, EventKind, NOTHING, Packed};
use crate::trace::ring::Ring;

/// Distinct names of ULTs that one xstream can record; ULTs with other names appear by number.
const NAMES_MAX: usize = 16 * 1024;
/// Longer names are cut.
const NAME_BYTES_MAX: usize = 256;
const RECENT: usize = 64;

/// How to record; see [`Runtime::record`].
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

/// The rings of a recording.
pub(crate) struct Recorder {
    start: Moment,
    /// One per xstream at the start, and the last for all other threads.
    tracks: Box<[Track]>,
    /// Held by a thread that writes the last track.
    others: Mutex<NameCache>,
}

struct Track {
    ring: Ring,
    names: Mutex<Vec<Arc<str>>>,
}

impl Recorder {
    fn new(xstreams: usize, events: usize) -> Self {
        let track = |_| Track { ring: Ring::new(events), names: Mutex::default() };
        // The rings first: that takes milliseconds, in which nothing is recorded.
        let tracks = (0..=xstreams).map(track).collect();
        Self { start: Moment::now(), tracks, others: Mutex::default() }
    }

    /// Records on the track of an xstream. Only its thread may call this, with its own cache.
    #[inline]
    pub(crate) fn record(
        &self,
        xstream: usize,
        names: &mut NameCache,
        ticks: u64,
        kind: EventKind,
        ult: Option<UltPtr>,
    ) {
        // The last track belongs to the others.
        match self.tracks[..self.tracks.len() - 1].get(xstream) {
            Some(track) => track.push(names, ticks, kind, ult, Some(xstream)),
            None => self.record_other(ticks, kind, ult, Some(xstream)),
        }
    }

    /// Records on the track of other threads.
    pub(crate) fn record_other(
        &self,
        ticks: u64,
        kind: EventKind,
        ult: Option<UltPtr>,
        xstream: Option<usize>,
    ) {
        if let Some(track) = self.tracks.last() {
            let mut names = lock(&self.others);
            track.push(&mut names, ticks, kind, ult, xstream);
        }
    }

    fn collect(&self, core: &RuntimeCore) -> Trace {
        let end = Moment::now();
        let scale = Scale::between(self.start, end);
        let parts = lock(&core.parts);
        let mut trace = Trace {
            events: Vec::new(),
            names: Vec::new(),
            pools: parts.pools.iter().map(|pool| pool.name.to_string()).collect(),
            xstreams: parts.xstreams.iter().map(|xstream| xstream.name.to_string()).collect(),
            dropped: Vec::new(),
            duration: end.instant.duration_since(self.start.instant),
        };
        drop(parts);
        let others = trace.xstreams.len();
        for track in &self.tracks {
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
}

impl Track {
    #[inline]
    fn push(
        &self,
        names: &mut NameCache,
        ticks: u64,
        kind: EventKind,
        ult: Option<UltPtr>,
        xstream: Option<usize>,
    ) {
        let xstream = xstream.and_then(|at| u16::try_from(at).ok()).unwrap_or(NOTHING);
        let packed = match ult {
            None => Packed { ticks, kind, ult: 0, pool: NOTHING, name: NOTHING, xstream },
            Some(ult) => Packed {
                ticks,
                kind,
                ult: ult.id.get(),
                pool: u16::try_from(ult.pool().index).unwrap_or(NOTHING),
                name: ult.name().map_or(NOTHING, |name| names.number(name, &self.names)),
                xstream,
            },
        };
        self.ring.push(packed.pack());
    }
}

/// The numbers of the names on one track. Only the writer of the track has it.
#[derive(Default)]
pub(crate) struct NameCache {
    /// By a hash of the address.
    recent: Vec<Option<(Arc<str>, usize, u16)>>,
    numbers: HashMap<Arc<str>, u16>,
}

impl NameCache {
    #[inline]
    fn number(&mut self, name: &str, table: &Mutex<Vec<Arc<str>>>) -> u16 {
        let address = name.as_ptr().addr();
        let place = (address ^ (address >> 6)) % RECENT;
        if let Some(Some((known, at, number))) = self.recent.get(place)
            && *at == address
            && **known == *name
        {
            return *number;
        }
        self.look_up(name, address, place, table)
    }

    #[cold]
    fn look_up(
        &mut self,
        name: &str,
        address: usize,
        place: usize,
        table: &Mutex<Vec<Arc<str>>>,
    ) -> u16 {
        let cut = (0..=NAME_BYTES_MAX.min(name.len())).rev().find(|at| name.is_char_boundary(*at));
        let text = &name[..cut.unwrap_or(0)];
        let (known, number) = match self.numbers.get_key_value(text) {
            Some((known, number)) => (known.clone(), *number),
            None if self.numbers.len() >= NAMES_MAX => return NOTHING,
            None => {
                let known: Arc<str> = text.into();
                let mut table = lock(table);
                let number = u16::try_from(table.len()).unwrap_or(NOTHING);
                table.push(known.clone());
                self.numbers.insert(known.clone(), number);
                (known, number)
            }
        };
        self.recent.resize(RECENT, None);
        self.recent[place] = Some((known, address, number));
        number
    }
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
        self.recorder.collect(&self.core)
    }

    /// The events so far; the recording goes on.
    #[must_use]
    pub fn snapshot(&self) -> Trace {
        self.recorder.collect(&self.core)
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

    /// Whether nothing happened.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_numbered_once_and_compared_by_text() {
        let table = Mutex::default();
        let mut cache = NameCache::default();
        let mut buffer = String::from("aaa");
        assert_eq!(cache.number(&buffer, &table), 0);
        assert_eq!(cache.number(&buffer, &table), 0);
        buffer.replace_range(.., "bbb");
        assert_eq!(cache.number(&buffer, &table), 1, "the same address, another name");
        assert_eq!(cache.number("aaa", &table), 0, "another address, a known name");
        let long = "ä".repeat(NAME_BYTES_MAX);
        assert_eq!(cache.number(&long, &table), 2);
        assert_eq!(cache.number(&long, &table), 2);
        let names: Vec<usize> = lock(&table).iter().map(|name| name.len()).collect();
        assert_eq!(names, [3, 3, NAME_BYTES_MAX]);
    }

    #[test]
    fn the_table_of_names_is_bounded() {
        let table = Mutex::default();
        let mut cache = NameCache::default();
        for number in 0..NAMES_MAX {
            assert_ne!(cache.number(&number.to_string(), &table), NOTHING);
        }
        assert_eq!(cache.number("one more", &table), NOTHING);
        assert_eq!(cache.number("7", &table), 7);
        assert_eq!(lock(&table).len(), NAMES_MAX);
    }
}
