//! The rings of a recording, and the names of the ULTs in them.
//!
//! There is one [`Ring`] per xstream, written by that xstream only, and one for all other threads
//! and for xstreams added later, behind a lock. Rings can be read at any time.
//!
//! Names of ULTs are numbered per ring when they first occur, so that an event holds a number and
//! the name may die with its ULT. The numbers of recently used names are found by address; the
//! text is compared, because another name may have got the same address since.

use std::collections::HashMap;

use crate::sync::{Arc, Mutex, lock};
use crate::trace::clock::Moment;
use crate::trace::event::{EventKind, NOTHING, Packed};
use crate::trace::ring::Ring;

/// Distinct names of ULTs that one xstream can record; ULTs with other names appear by number.
const NAMES_MAX: usize = 16 * 1024;
/// Longer names are cut.
const NAME_BYTES_MAX: usize = 256;
const RECENT: usize = 64;

/// The unit that an event is about.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Subject<'a> {
    pub(crate) id: u64,
    /// The index of its pool.
    pub(crate) pool: usize,
    pub(crate) name: Option<&'a str>,
}

/// The rings of a recording.
pub(crate) struct Recorder {
    pub(crate) start: Moment,
    /// One per xstream at the start, and the last for all other threads.
    pub(crate) tracks: Box<[Track]>,
    /// Held by a thread that writes the last track.
    others: Mutex<NameCache>,
}

/// A ring, and the names of the ULTs in it.
pub(crate) struct Track {
    pub(crate) ring: Ring,
    pub(crate) names: Mutex<Vec<Arc<str>>>,
}

impl Recorder {
    pub(crate) fn new(xstreams: usize, events: usize) -> Self {
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
        ult: Option<Subject<'_>>,
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
        ult: Option<Subject<'_>>,
        xstream: Option<usize>,
    ) {
        if let Some(track) = self.tracks.last() {
            let mut names = lock(&self.others);
            track.push(&mut names, ticks, kind, ult, xstream);
        }
    }
}

impl Track {
    #[inline]
    fn push(
        &self,
        names: &mut NameCache,
        ticks: u64,
        kind: EventKind,
        ult: Option<Subject<'_>>,
        xstream: Option<usize>,
    ) {
        let xstream = xstream.and_then(|at| u16::try_from(at).ok()).unwrap_or(NOTHING);
        let packed = match ult {
            None => Packed { ticks, kind, ult: 0, pool: NOTHING, name: NOTHING, xstream },
            Some(ult) => Packed {
                ticks,
                kind,
                ult: ult.id,
                pool: u16::try_from(ult.pool).unwrap_or(NOTHING),
                name: ult.name.map_or(NOTHING, |name| names.number(name, &self.names)),
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
